"""What the figures of the specialization paper share: the gallery, colours of heads and of time,
heads in the plane of two features, alignments against time."""

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import FuncNorm
from matplotlib.figure import Figure

from attnflow.papers.gallery import Gallery
from attnflow.papers.style import COLORS, clock_axis

GALLERY = Gallery("specialization")
TIME_COLORS = mpl.colormaps["viridis_r"]
SIGN_COLORS = mpl.colormaps["coolwarm"]


def time_scale(last: float) -> FuncNorm:
    """Colours even in log(1 + τ)."""
    return FuncNorm((np.log1p, np.expm1), vmin=0.0, vmax=last)


def time_bar(figure: Figure, axes, last: float) -> None:
    scale = ScalarMappable(time_scale(last), TIME_COLORS)
    bar = figure.colorbar(scale, ax=axes, shrink=0.8, pad=0.02, label=r"time $\tau$")
    ticks = [0, *(10.0**k for k in range(int(np.log10(last)) + 1))]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.minorticks_off()


def heads_in_plane(
    ax: Axes, times: np.ndarray, m: np.ndarray, last: float, features: tuple[int, int] = (1, 2)
) -> None:
    """Paths of the heads (time, head, 2), the later the darker: circles at the start, coloured
    dots at the end, arrows of unit length along the two features."""
    for x, y, name, side in ((1, 0, features[0], (-5, -12)), (0, 1, features[1], (4, 0))):
        arrow = {"arrowstyle": "-|>", "color": "0.45", "lw": 1.2, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", (x, y), (0, 0), arrowprops=arrow, zorder=1)
        label = f"$k^*_{name}$"
        ax.annotate(label, (x, y), side, textcoords="offset points", color="0.35", fontsize=8)
    for head in range(m.shape[1]):
        path = m[:, head]
        pieces = np.stack([path[:-1], path[1:]], axis=1)
        lines = LineCollection(
            list(pieces), cmap=TIME_COLORS, norm=time_scale(last), lw=1.5, capstyle="round"
        )
        lines.set_array((times[:-1] + times[1:]) / 2)
        ax.add_collection(lines)
        ax.plot(*path[0], "o", ms=3, mfc="white", mec="0.3", mew=0.7, zorder=3)
        ax.plot(*path[-1], "o", ms=5, color=COLORS[head % 8], mec="white", mew=0.6, zorder=4)
    reach = 1.12 * max(1.15, float(np.abs(m).max()))
    left = -0.25 * reach if m[-1, :, 0].min() > 0.1 * reach else -reach  # all on one side
    ax.set(xlim=(left, reach), ylim=(-reach, reach), aspect="equal")
    ax.axhline(0, color="0.8", lw=0.6, zorder=0)
    ax.axvline(0, color="0.8", lw=0.6, zorder=0)


def rays(ax: Axes, points: np.ndarray) -> None:
    """Dotted, the directions that the signal can take."""
    for x, y in points:
        ax.axline((0, 0), (x, y), color="0.7", lw=0.8, ls=":", zorder=0)


def heads_in_time(ax: Axes, times: np.ndarray, m: np.ndarray) -> None:
    """One line a head (time, head), on the clock log(1 + τ)."""
    for head in range(m.shape[1]):
        ax.plot(times, m[:, head], color=COLORS[head % 8], lw=1.3)
    last = float(times[-1])
    clock_axis(ax, last, r"$\tau$")
    powers = range(1, int(np.log10(last) + 1e-9) + 1)  # no room for the 1 beside the 0
    ax.set_xticks([0, *(10.0**k for k in powers)], ["0", *(f"$10^{k}$" for k in powers)])


def sign_table(ax: Axes, signs: np.ndarray, small: bool = False) -> None:
    """Heads against features: red +, blue −, grey 0; heads ordered by their pattern."""
    order = np.lexsort(signs.T[::-1])
    ax.imshow(signs[order].T, cmap=SIGN_COLORS, vmin=-1.4, vmax=1.4, aspect="auto")
    ax.set_xticks([])
    ax.set_yticks([])
    if not small:
        for (feature, head), sign in np.ndenumerate(signs[order].T):
            ax.text(head, feature, "0+−"[sign], ha="center", va="center", fontsize=5.5)
        names = [f"{feature + 1}" for feature in range(signs.shape[1])]
        ax.set_yticks(range(signs.shape[1]), names, fontsize=5.5)
        ax.set_title("signs: heads across, features down", fontsize=5.5, pad=1.5)
    ax.tick_params(length=0, pad=1)
    ax.grid(False)
