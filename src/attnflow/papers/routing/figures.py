"""The figures of the routing study."""

from attnflow.papers.routing import _figures_schedules, _figures_toy, _figures_values
from attnflow.papers.routing._drawing import GALLERY

__all__ = ["GALLERY"]

# imported for what they register
del _figures_schedules, _figures_toy, _figures_values
