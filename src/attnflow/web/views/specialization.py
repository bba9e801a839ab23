"""Specialization: heads that start alike part ways."""

import dataclasses
import functools
from typing import Annotated, Any

import jax
import numpy as np
from typing_extensions import Doc

from attnflow.dynamics.flow import gradient_flow
from attnflow.instruments import head_groups, split_times, unspecialized_time
from attnflow.models.single_location import HeadsTask, bayes_risk, bayes_samples
from attnflow.models.single_location.model import ACTIVATIONS, SingleLocation
from attnflow.models.single_location.pruning import masked_risks
from attnflow.models.single_location.task import SIGNALS
from attnflow.web.answers import Answer, Axis, Fact, Plot, call, command, dots, level, line
from attnflow.web.fields import Choice, Marks, Slider
from attnflow.web.views import View, picked

MOST_HEADS = 6
POINTS = 60


@dataclasses.dataclass(frozen=True)
class Watched:
    t1: Annotated[float, Doc("final time: step size × steps")] = 100.0
    points: Annotated[int, Doc("output times, even in t")] = 100
    pruned: Annotated[tuple[int, ...], Doc("heads taken out at the end; click a head")] = ()


def compute(values: dict[str, Any]) -> Answer:
    task = HeadsTask(**picked(HeadsTask, values))
    model = task.model()
    t1, pruned = values["t1"], values["pruned"]
    if max(pruned, default=0) >= task.heads or len(pruned) == task.heads:
        raise ValueError(f"pruned: leave one of the {task.heads} heads, and name no others")
    times = np.linspace(0, t1, POINTS)
    flow = gradient_flow(model, times=times, solver="quick", rtol=1e-6, atol=1e-8)
    samples = bayes_samples(task.samples)
    best = _best(task.signal, task.nu1, task.nu2, task.features, task.tokens, samples)
    m, mean = flow.m.values, np.asarray(model.signal.mean())
    plots = [
        Plot(
            "Heads (click one to prune it)",
            Axis("alignment m with feature 0"),
            Axis("alignment m with feature 1" if m.shape[2] > 1 else ""),
            heads(m, pruned),
            pick="pruned",
        ),
        Plot(
            "Risk",
            Axis("time τ"),
            Axis("risk"),
            [
                line(times, flow.loss.values, "risk", 0),
                level(best, "Bayes risk", 3),
            ],
        ),
        Plot(
            "Alignments (broken: features 1, 2, …)",
            Axis("time τ"),
            Axis("alignment m"),
            [
                line(times, m[:, h, f], f"head {h}", h, ("", "dash", "dot")[min(f, 2)], show=f == 0)
                for h in range(task.heads)
                for f in range(m.shape[2])
            ],
        ),
    ]
    facts = [
        Fact("risk at the end", float(flow.loss[-1]), "loss"),
        Fact("Bayes risk", best, "heads.bayes_risk"),
        Fact(
            "the mean is learned at τ",
            unspecialized_time(times, m, mean),
            "heads.mean_learned",
            "never",
        ),
        Fact(
            "heads part at τ, by feature",
            split_times(times, m).tolist(),
            "heads.split_times",
            "never",
        ),
        Fact("groups of heads", head_groups(m[-1]), "heads.groups"),
    ]
    if pruned:
        whole, left = pruned_risks(model, flow, pruned)
        facts.append(Fact(f"risk without head {', '.join(map(str, pruned))}", left))
        facts.append(Fact("what they were worth", left - whole))
    given, shown = picked(HeadsTask, values), values | {"pruned": (), "points": POINTS}
    return Answer(
        plots,
        facts,
        command("single_location", (HeadsTask, given), (Watched, shown)),
        "import attnflow as af, numpy as np\n\n"
        f"model = {call('af.single_location.HeadsTask', HeadsTask, given)}.model()\n"
        f"times = np.linspace(0, {t1!r}, {POINTS})\n"
        "flow = af.gradient_flow(model, times=times, solver='quick', rtol=1e-6, atol=1e-8)\n"
        "print(flow.loss.values[-1], flow.m.values[-1])\n"
        f"print(af.single_location.bayes_risk(model.signal, model.tokens, {samples}))",
    )


@functools.lru_cache(maxsize=64)
def _best(signal: str, nu1: float, nu2: float, features: int, tokens: int, samples: int) -> float:
    """The Bayes risk, which knows of no other field."""
    law = HeadsTask(signal=signal, nu1=nu1, nu2=nu2, features=features).law()
    return bayes_risk(law, tokens, samples)[0]


def heads(m: np.ndarray, pruned: tuple[int, ...]) -> list:
    """Paths and ends of the heads, on the first two features."""
    x, y = m[:, :, 0], m[:, :, 1] if m.shape[2] > 1 else np.zeros(m.shape[:2])
    traces = []
    for h in range(m.shape[1]):
        gone = h in pruned
        traces.append(line(x[:, h], y[:, h], f"head {h}", h, "dot" * gone, mark=h, show=False))
        symbol = "x" if gone else "circle"
        name = f"head {h}, pruned" if gone else f"head {h}"
        traces.append(dots(x[-1:, h], y[-1:, h], name, h, symbol, mark=h))
    return traces


def pruned_risks(model: SingleLocation, flow, pruned: tuple[int, ...]) -> tuple[float, float]:
    """The risk at the end with all heads, and without those pruned, over the same points. From
    m and q only, so with another root of Q than the flow had: the first is the risk of the flow up
    to the error of the average."""
    m, q = flow.m.values[-1], flow.q.values[-1]
    values, vectors = np.linalg.eigh(q - m @ m.T)
    params = {"m": m, "r": vectors * np.sqrt(np.maximum(values, 0))}
    if "bias" in flow:
        params["b"] = flow.bias.values[-1]
    if "gain" in flow:
        params["v"] = flow.gain.values[-1]
    masks = np.ones((2, model.heads))
    masks[1, list(pruned)] = 0
    with jax.enable_x64(True):
        whole, left = np.asarray(masked_risks(model, params, masks))
    return float(whole), float(left)


VIEW = View(
    "specialization",
    "Specialization",
    "Several heads look for one relevant token. First all learn the mean of its signal together, "
    "then they part, each for a feature of its own. Heads without one are ballast: click them.",
    (HeadsTask, Watched),
    {
        "activation": Choice(ACTIVATIONS),
        "heads": Slider(1, MOST_HEADS),
        "signal": Choice(SIGNALS),
        "nu1": Slider(0.1, 20, log=True),
        "nu2": Slider(0.1, 20, log=True, default=8.0),
        "features": Slider(1, 4),
        "tokens": Slider(2, 10),
        "eta": Slider(0.1, 3, log=True),
        "dimension": Slider(100, 1e6, log=True),
        "seed": Slider(0, 200),
        "samples": Slider(128, 2048, log=True, default=256),
        "t1": Slider(1, 300, log=True),
        "pruned": Marks(MOST_HEADS, of="heads"),
    },
    compute,
)
