"""Two tokens: the norm that first contracts."""

import dataclasses
from typing import Annotated, Any

import numpy as np
from typing_extensions import Doc

from attnflow.dynamics.flow import gradient_flow
from attnflow.models.self_attention import LOSSES
from attnflow.models.two_token import TwoToken
from attnflow.web.answers import (
    Answer,
    Axis,
    Fact,
    Plot,
    band,
    call,
    command,
    contour,
    dots,
    line,
)
from attnflow.web.fields import Choice, Slider
from attnflow.web.views import View, engine, picked

PHASE_COLORS = {"heating": 3, "forging": 2, "reheating": 1}
DASHES = ("", "dash")  # equal gaps stay equal: both must be seen
HOW: dict[str, Any] = {
    "compiled": {"rtol": 1e-9, "engine": "compiled", "solver": "quick"},
    "host": {"rtol": 1e-9, "engine": "host", "solver": "explicit"},
}
POINTS = 100  # of the curves
RESOLUTION = 100  # of the search for critical points; the command searches far finer


@dataclasses.dataclass(frozen=True)
class Clock:
    t1: Annotated[float, Doc("final time")] = 1e4


def compute(values: dict[str, Any]) -> Answer:
    model = TwoToken(**picked(TwoToken, values))
    t1 = values["t1"]
    how = HOW[engine("two_tokens")]
    flow = gradient_flow(model, t1, points=POINTS, atol=1e-11, **how)
    critical = model.critical_points(points=RESOLUTION, **how)
    time = flow.time.values[1:]  # a logarithmic axis has no zero
    clock = Axis("time t", log=True)
    seen = critical.times <= t1
    turns = dots(critical.times[seen], critical.norm2[seen], "critical points", 6, "diamond")
    phases = [
        band(max(each.start, time[0]), min(each.end, t1), each.name, PHASE_COLORS[each.name])
        for each in critical.phases
        if each.start < t1 and each.end > time[0]
    ]
    xi, sigma = flow.xi.values[1:], flow.sigma.values[1:]
    at, height = np.append(time, critical.times[seen]), flow.norm2.values[1:]
    order, height = np.argsort(at), np.append(height, critical.norm2[seen])
    norm = line(at[order], height[order], "|M|²", 0)  # through its turns, however sharp
    plots = [
        Plot("Norm of the interaction matrix", clock, Axis("|M|²"), [*phases, norm, turns]),
        Plot("Path in the (a, b) plane, over |M|²", Axis("a"), Axis("b"), plane(model, flow)),
        Plot(
            "Logit gaps",
            clock,
            Axis("gap ξ toward the wrong token"),
            [line(time, xi[:, i], f"ξ{i}", i, DASHES[i]) for i in (0, 1)],
        ),
        Plot(
            "Attention",
            clock,
            Axis("weight on the wrong token", low=0, high=1),
            [line(time, sigma[:, i], f"token {i}", i, DASHES[i]) for i in (0, 1)],
        ),
    ]
    facts = [
        Fact("shape", critical.shape, "shape"),
        Fact("critical times", critical.times.tolist(), "critical_times"),
        Fact("|M|² there", critical.norm2.tolist(), "critical_norm2"),
        Fact("phases", ", ".join(f"{x.name} from t = {x.start:.4g}" for x in critical.phases)),
        Fact("|M|² at the end", float(flow.norm2[-1]), "norm2"),
        Fact("loss at the end", float(flow.loss[-1]), "loss"),
    ]
    fields = picked(TwoToken, values)
    return Answer(
        plots,
        facts,
        command("two_token", (TwoToken, fields), (Clock, values)),
        "import attnflow as af\n\n"
        f"model = {call('af.TwoToken', TwoToken, fields)}\n"
        f"flow = af.gradient_flow(model, {t1!r})\n"
        "print(flow.norm2.values[-1], flow.loss.values[-1])\n"
        "print(model.critical_points())",
    )


def plane(model: TwoToken, flow, cells: int = 28) -> list:
    """The path over the contours of |M|² = |M(0)|² + 2(c0 a − c1 b) + |a x0 gᵀ + b x1 gᵀ|²."""
    a, b = flow.a.values, flow.b.values
    size = 1.15 * max(np.abs(a).max(), np.abs(b).max(), 1e-3)
    x, y = np.linspace(-size, 0.15 * size, cells), np.linspace(-0.15 * size, size, cells)
    if a.max() > 0.15 * size:
        x = np.linspace(-size, size, cells)
    if b.min() < -0.15 * size:
        y = np.linspace(-size, size, cells)
    start = float(flow.norm2[0])
    height = start + 2 * (model.c0 * x - model.c1 * y[:, None]) + form(model.p, x, y[:, None])
    return [
        contour(x, y, height, "|M|²"),
        line(a, b, "path", 3),
        dots(a[:1], b[:1], "start", 6),
    ]


def form(p: float, a: Any, b: Any) -> Any:
    """|a x0 gᵀ + b x1 gᵀ|² = |g|² (a² + 2p ab + b²)."""
    return 2 * (1 - p) * (a**2 + 2 * p * a * b + b**2)


VIEW = View(
    "two_tokens",
    "Two tokens",
    "The smallest model in which the norm of attention falls before it grows. It starts by "
    "attending to the wrong token; the norm must first melt that (heating), and only then builds "
    "what is right (forging).",
    (TwoToken, Clock),
    {
        "p": Slider(-0.95, 0.95, step=0.01),
        "c0": Slider(-4, 16, step=0.05),
        "c1": Slider(-4, 16, step=0.05),
        "d": Slider(2, 8),
        "objective": Choice(tuple(LOSSES)),
        "t1": Slider(1, 1e12, log=True),
    },
    compute,
)
