"""What the figures of the polarization paper share: the gallery, the published random draws, the
pairing of a flow with its descent, lines coloured by token."""

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
import optax
import xarray as xr
from matplotlib.axes import Axes

from attnflow.dynamics.descent import descend, step_grid
from attnflow.dynamics.errors import DescentError
from attnflow.models.value_softmax import ValueSoftmax
from attnflow.papers.gallery import Gallery
from attnflow.papers.style import COLORS

GALLERY = Gallery("polarization")


def legacy(seed: int) -> np.random.RandomState:
    """NumPy's legacy generator: the published seeds are of this one."""
    return np.random.RandomState(seed)


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def renamed(ds: xr.Dataset, prefix: str, names: Sequence[str]) -> xr.Dataset:
    """The variables `names` of a flow or a descent, as `prefix_name`, without attributes."""
    return ds[list(names)].rename({name: f"{prefix}_{name}" for name in names}).drop_attrs()


def descend_while_finite(model: ValueSoftmax, steps: int, step: float, records: int) -> xr.Dataset:
    """Plain gradient descent; where an observable stops being finite, the records before, then NaN.

    That can be an overflow, or the entropy of weights that turn negative.
    """
    grid = step_grid(steps, records)
    try:
        return descend(model, steps, optax.sgd(step), record=grid)
    except DescentError as error:
        finite = grid[grid < error.step]
        done = descend(model, int(finite[-1]), optax.sgd(step), record=finite)
        return done.reindex(step=grid)


def token_colors(count: int) -> list:
    """The house colours for few tokens; for many the first in blue, then a gradient."""
    if count <= len(COLORS):
        return list(COLORS[:count])
    return [COLORS[0], *mpl.colormaps["YlOrBr_r"](np.linspace(0.1, 0.75, count - 1))]


def token_lines(ax: Axes, x, values, **options) -> None:
    """One line for each token, on a logarithmic axis; x = 0 cannot be shown and is left out.

    The first token is drawn last, on top.
    """
    x, values = np.asarray(x), np.asarray(values)
    colors = token_colors(values.shape[1])
    for token in reversed(range(values.shape[1])):
        ax.semilogx(x[x > 0], values[x > 0, token], color=colors[token], **options)
