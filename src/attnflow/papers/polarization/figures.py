"""The figures of the polarization paper, and the sink matrix."""

from attnflow.papers.polarization import (
    _induction_figures,
    _language_figures,
    _regression_figures,
    _sink_figures,
    _swap_figures,
    _toy_figures,
)
from attnflow.papers.polarization._drawing import GALLERY

__all__ = ["GALLERY"]

del (
    _induction_figures,
    _language_figures,
    _regression_figures,
    _sink_figures,
    _swap_figures,
    _toy_figures,
)  # imported for what they register
