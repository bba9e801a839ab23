"""The figures of the specialization paper, and two of our own."""

from attnflow.papers.specialization import (
    _figures_dimension,
    _figures_heads,
    _figures_plane,
    _figures_points,
    _figures_risk,
    _figures_sgd,
    _figures_time,
)
from attnflow.papers.specialization._drawing import GALLERY

__all__ = ["GALLERY"]

# imported for what they register
del _figures_dimension, _figures_heads, _figures_plane, _figures_points, _figures_risk
del _figures_sgd, _figures_time
