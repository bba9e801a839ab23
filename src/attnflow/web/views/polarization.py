"""Polarization: one weight takes all, slowly."""

import dataclasses
from typing import Annotated, Any

import numpy as np
from typing_extensions import Doc

from attnflow import attention
from attnflow._checks import choice
from attnflow.dynamics.flow import gradient_flow
from attnflow.models.value_softmax import ValueSoftmax
from attnflow.web.answers import Answer, Axis, Fact, Plot, call, command, line
from attnflow.web.fields import Choice, Slider
from attnflow.web.views import View, engine, picked
from attnflow.web.views.two_tokens import Clock

MAPS = tuple(name for name in attention.names() if not attention.get(name).takes_bias)

# A square loss is minimized long before 1e12, and every step from there on is implicit.
STIFF = {"points": 60, "solver": "stiff", "rtol": 1e-4, "atol": 1e-6}
QUICK = {"points": 120, "solver": "quick", "rtol": 1e-9, "atol": 1e-11}
MOST_STEPS = 3000  # some signed maps divide by zero in finite time: that must be told soon


@dataclasses.dataclass(frozen=True)
class Start:
    """u(0): normal numbers, to four decimals so that a command line can carry them."""

    tokens: Annotated[int, Doc("p, how many tokens there are to attend to")] = 4
    seed: Annotated[int, Doc("of the start")] = 4
    spread: Annotated[float, Doc("standard deviation of the initial projections u(0)")] = 1.0

    def projections(self) -> tuple[float, ...]:
        drawn = np.random.default_rng(self.seed).normal(size=self.tokens)
        return tuple(np.round(self.spread * drawn, 4).tolist())


def compute(values: dict[str, Any]) -> Answer:
    choice("map", values["map"], MAPS)
    fields = picked(ValueSoftmax, values)
    fields["projections"] = Start(**picked(Start, values)).projections()
    if not attention.get(values["map"]).similarity(np.zeros(1)).any():
        fields["scores"] = (1.0,) * values["tokens"]  # at scores of 0 such a map is 0, or 0/0
    model = ValueSoftmax(**fields)
    model.require_order()
    t1, square = values["t1"], values["objective"] == "square"
    options: dict[str, Any] = STIFF if square else QUICK
    if not square and values["map"] == "softmax" and engine("polarization") == "host":
        options = QUICK | {"solver": "explicit", "engine": "host"}
    flow = gradient_flow(model, t1, **options, max_steps=MOST_STEPS)
    clock, time = Axis("time t", log=True), flow.time.values[1:]

    def each(name: str) -> list:
        paths = flow[name].values[1:]
        return [line(time, x, f"token {i}", i) for i, x in enumerate(paths.T)]

    plots = [
        Plot("Attention weights", clock, Axis("weight s"), each("weights")),
        Plot("Values along the target", clock, Axis("projection u"), each("projections")),
        _ratios(model, flow, clock),
    ]
    facts = [
        Fact("weights at the end", flow.weights.values[-1].tolist(), "weights"),
        Fact("loss at the end", float(flow.loss[-1]), "loss"),
        Fact("∫γ dt", float(flow.gamma_integral[-1]), "gamma_integral"),
    ]
    if "entropy" in flow:
        curve = [
            line(time, flow.entropy.values[1:], "entropy", 0),
            line(time[[0, -1]], [np.log(values["tokens"])] * 2, "log p, the most", 7, "dot"),
        ]
        plots.insert(2, Plot("Entropy", clock, Axis("entropy (nats)", low=0), curve))
        facts.append(Fact("entropy at the end", float(flow.entropy[-1]), "entropy"))
    more = "".join(f", {name}={x!r}" for name, x in options.items())
    return Answer(
        plots,
        facts,
        command("value_softmax", (ValueSoftmax, fields), (Clock, values)),
        "import attnflow as af\n\n"
        f"model = {call('af.ValueSoftmax', ValueSoftmax, fields)}\n"
        f"flow = af.gradient_flow(model, {t1!r}{more})\n"
        "print(flow.weights.values[-1], flow.loss.values[-1])",
    )


def _ratios(model: ValueSoftmax, flow, clock: Axis) -> Plot:
    """s_j/s_0 of the best token's rivals; for softmax with the bound 1/(1 + (δ/p) ∫γ dt), δ the
    least gap of u(0). It holds on the path in ∫γ dt, which does not depend on the loss."""
    assert model.projections is not None
    order = np.argsort(model.projections)[::-1]
    weights, time = flow.weights.values[1:], flow.time.values[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.abs(weights[:, order[1:]] / weights[:, order[:1]])
    traces = [line(time, x, f"token {j}", int(j)) for j, x in zip(order[1:], ratios.T, strict=True)]
    if model.map == "softmax":
        delta = np.diff(np.sort(model.projections)).min()
        bound = 1 / (1 + delta / len(order) * flow.gamma_integral.values[1:])
        traces.append(line(time, bound, "bound", 6, "dash"))
    return Plot(f"Rivals of token {order[0]}", clock, Axis("s_j/s_0", True), traces)


VIEW = View(
    "polarization",
    "Polarization",
    "One head: weights s = map(a) over tokens whose values are trained too. Under softmax the "
    "token that starts best takes all attention, the others fade like a power of log t: hence a "
    "clock that runs to 10¹².",
    (ValueSoftmax, Start, Clock),
    {
        "map": Choice(MAPS),
        "objective": Choice(("logistic", "square")),
        "tokens": Slider(2, 8),
        "seed": Slider(0, 200),
        "spread": Slider(0.05, 2, step=0.01),
        "target_norm": Slider(0.2, 5, log=True),
        "t1": Slider(10, 1e12, log=True, default=1e12),
    },
    compute,
)
