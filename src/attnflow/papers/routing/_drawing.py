"""What the figures of the routing study share: the gallery, and means with their spread."""

import numpy as np
from matplotlib.axes import Axes

from attnflow.papers.gallery import Gallery

GALLERY = Gallery("routing")


def band(ax: Axes, x, seeds: np.ndarray, **options) -> None:
    """The mean over seeds (seed, x) as a line, one standard deviation to each side."""
    mean, spread = seeds.mean(axis=0), seeds.std(axis=0)
    (line,) = ax.plot(x, mean, **options)
    ax.fill_between(x, mean - spread, mean + spread, color=line.get_color(), alpha=0.18, lw=0)


def seeds_note(count: int) -> str:
    return "1 seed" if count == 1 else f"mean ± s.d. of {count} seeds"
