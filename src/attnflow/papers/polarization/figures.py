"""The figures of the polarization paper that need no transformer, and the sink matrix."""

from attnflow.papers.polarization import _regression_figures, _sink_figures, _toy_figures
from attnflow.papers.polarization._drawing import GALLERY

__all__ = ["GALLERY"]

del _regression_figures, _sink_figures, _toy_figures  # imported for what they register
