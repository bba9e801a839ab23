"""What trained heads are worth: their risk, and that of those left after pruning."""

import dataclasses
from typing import Any

import matplotlib as mpl
import numpy as np
import xarray as xr

from attnflow.models.single_location import bayes_risk, prune
from attnflow.papers.specialization._drawing import GALLERY
from attnflow.papers.specialization._figures_flow import (
    ACTIVATIONS,
    Training,
    elsewhere,
    fresh_risk,
    params_at,
    signal_of,
    trained,
)
from attnflow.papers.style import COLORS, STYLE, canvas

MARKERS = dict(zip(ACTIVATIONS, "os^", strict=True))
LAWS = {"spikes": "spikes", "flipping": "flipping spike", "gaussian": "isotropic Gaussian"}


@dataclasses.dataclass(frozen=True)
class Risks:
    """Final risks at τ = `last`: against the number of heads for F = `features` of strength `nu`
    and each of `laws`, and against the strength for F = 2 and `few` heads."""

    laws: tuple[str, ...] = ("spikes",)
    heads: tuple[int, ...] = (2, 4, 6)
    features: int = 4
    nu: float = 10.0
    strengths: tuple[float, ...] = (1.0, 5.0, 20.0)
    few: int = 4
    tokens: int = 5
    runs: int = 1
    last: float = 100.0
    samples: int = 1024
    rtol: float = 1e-3


def final_risk(training: Training) -> float:
    return fresh_risk(training.model(), params_at(trained(training)))


def risks(config: Risks) -> xr.Dataset:
    def rows(signals, heads):
        """(activation, case, run)"""
        cases = list(zip(signals, heads, strict=True))
        return [
            [
                [
                    final_risk(
                        Training(
                            signal,
                            tokens=config.tokens,
                            heads=count,
                            activation=activation,
                            last=config.last,
                            seed=seed,
                            samples=config.samples,
                            records=2,
                            rtol=config.rtol,
                        )
                    )
                    for seed in range(config.runs)
                ]
                for signal, count in cases
            ]
            for activation in ACTIVATIONS
        ]

    def best(signal):
        return bayes_risk(signal_of(signal), config.tokens, replicates=2)[0]

    by_heads = {law: (law, config.features, config.nu) for law in config.laws}
    by_strength = {
        "flipping": [("flipping", nu, nu) for nu in config.strengths],
        "gaussian": [("gaussian", 2, nu) for nu in config.strengths],
    }
    data: dict[str, Any] = {}
    for law, signal in by_heads.items():
        found = rows([signal] * len(config.heads), config.heads)
        data[f"heads_{law}"] = (("activation", "heads", "run"), found)
        data[f"heads_{law}_bayes"] = best(signal)
    for law, signals in by_strength.items():
        found = rows(signals, [config.few] * len(signals))
        data[f"strength_{law}"] = (("activation", "strength", "run"), found)
        data[f"strength_{law}_bayes"] = ("strength", [best(signal) for signal in signals])
    coords = {"heads": list(config.heads), "strength": list(config.strengths)}
    return xr.Dataset(data, coords | {"activation": list(ACTIVATIONS)})


@mpl.rc_context(STYLE)
def draw_risks(ds: xr.Dataset):
    panels = [name for name in ds if "run" in ds[name].dims]
    figure, axes = canvas(1, len(panels), width=2.9, height=2.9)
    for ax, name in zip(axes[0], panels, strict=True):
        along, law = str(name).split("_")
        for index, (activation, title) in enumerate(ACTIVATIONS.items()):
            values = ds[name].isel(activation=index)
            mean, spread = values.mean("run"), values.std("run")
            style = {"color": COLORS[index], "marker": MARKERS[activation], "ms": 4, "lw": 1.2}
            ax.errorbar(ds[along], mean, spread, label=title, **style)
        bayes = np.broadcast_to(ds[f"{name}_bayes"], ds[along].shape)
        ax.plot(ds[along], bayes, color="black", ls="--", lw=1.2, label="Bayes risk")
        ax.set(title=LAWS[law], xlabel="heads $H$" if along == "heads" else r"strength $\nu$")
        ax.set_ylim(0)
    axes[0, 0].set_ylabel("risk after training")
    axes[0, 0].legend(fontsize=7)
    return figure


GALLERY.figure(
    "5",
    tour=False,
    title="Risk after training",
    caption="L = 5, η = 1. Left: against the number of heads, F = 4, ν = 10 (in the paper preset "
    "also for Gaussian features); right pair: against the strength, F = 2, H = 4 (ν₁ = ν₂ for the "
    "flipping spike). On spikes B-softmax comes to the Bayes risk as soon as H = F and stays there "
    "(8 % above it at the quick horizon); on Gaussian features every added head still helps it "
    "(0.42, 0.16, 0.11 for H = 2, 4, 6 at τ = 1,000, Bayes 0.06). Softmax levels "
    "off at strong Gaussian signals, because a head that points away from the signal cannot keep "
    "silent, and the gap to softmax-1 opens there. "
    "Risks at the end of the flow, over points that it did not see; those of softmax-1 still fall "
    "with the horizon (bias and gain keep growing). Quick: one start, H = 2, 4, 6, τ = 100 and "
    "1,024 points; paper preset: five starts, H = 1 to 8, τ = 1,000, 10⁵ points. The published "
    "horizon is not stated.",
    quick=Risks(),
    paper=Risks(
        laws=("spikes", "gaussian"),
        heads=tuple(range(1, 9)),
        strengths=(0.5, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0),
        runs=5,
        last=1e3,
        samples=100_000,
        rtol=1e-4,
    ),
    draw=draw_risks,
)(risks)


@dataclasses.dataclass(frozen=True)
class Pruned:
    """Greedy pruning after training, for F features of strength `nu` of each of `laws`."""

    laws: tuple[str, ...] = ("spikes",)
    features: int = 4
    nu: float = 10.0
    heads: int = 8
    tokens: int = 5
    runs: int = 1
    last: float = 100.0
    samples: int = 2048
    rtol: float = 1e-3


def pruned(config: Pruned) -> xr.Dataset:
    found = np.empty((len(config.laws), len(ACTIVATIONS), config.runs, config.heads))
    for place in np.ndindex(found.shape[:3]):
        training = Training(
            (config.laws[place[0]], config.features, config.nu),
            tokens=config.tokens,
            heads=config.heads,
            activation=list(ACTIVATIONS)[place[1]],
            last=config.last,
            seed=place[2],
            samples=config.samples,
            records=2,
            rtol=config.rtol,
        )
        found[place] = prune(elsewhere(training.model()), params_at(trained(training))).risks
    best = [
        bayes_risk(signal_of((law, config.features, config.nu)), config.tokens, replicates=2)[0]
        for law in config.laws
    ]
    return xr.Dataset(
        {"risk": (("law", "activation", "run", "removed"), found), "bayes": ("law", best)},
        {"law": list(config.laws), "activation": list(ACTIVATIONS)},
        {"features": config.features},
    )


@mpl.rc_context(STYLE)
def draw_pruned(ds: xr.Dataset):
    figure, axes = canvas(1, ds.sizes["law"], width=3.8, height=3.0)
    removed = np.arange(ds.sizes["removed"])
    for ax, law in zip(axes[0], ds.law.values, strict=True):
        here = ds.sel(law=law)
        for index, (activation, title) in enumerate(ACTIVATIONS.items()):
            values = here.risk.isel(activation=index)
            ax.plot(removed, values.T, color=COLORS[index], lw=0.7, alpha=0.5)
            style = {"color": COLORS[index], "marker": MARKERS[activation], "ms": 4}
            ax.plot(removed, values.mean("run"), label=title, **style)
        ax.axhline(float(here.bayes), color="black", ls="--", lw=1.2, label="Bayes risk")
        spare = removed.size - int(ds.attrs["features"])
        ax.axvline(spare, color="0.6", lw=0.8, ls=":")
        ax.text(spare, 0.01, " $H-F$", color="0.4", transform=ax.get_xaxis_transform())
        ax.set(title=LAWS[str(law)], xlabel=r"heads removed $\tilde H$")
        ax.set_ylim(0)
    axes[0, 0].set_ylabel("risk")
    axes[0, 0].legend(fontsize=7)
    return figure


GALLERY.figure(
    "7",
    tour=False,
    title="Pruning heads one by one",
    caption="Risk while the least needed of eight trained heads is removed again and again, L = 5, "
    "F = 4, ν = 10: spikes, and in the paper preset isotropic Gaussian too; thin lines: runs. On "
    "spikes B-softmax loses nothing until H − F = 4 heads (dotted) are gone and fails abruptly "
    "after; softmax degrades gently. On Gaussian features each head that goes costs B-softmax "
    "something: H − F of them more than double its risk (0.08 to 0.18 at τ = 300), so "
    "'H − F heads can go' is true of the spikes only. Risks over points that training did not "
    "see. Quick: one start, τ = 100, 2,048 points; paper preset: five, τ = 1,000, 10⁵ points.",
    quick=Pruned(),
    paper=Pruned(laws=("spikes", "gaussian"), runs=5, last=1e3, samples=100_000, rtol=1e-4),
    draw=draw_pruned,
)(pruned)
