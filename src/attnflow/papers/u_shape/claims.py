"""The statements of the U-shape paper (two-token dot-product attention), in its order."""

from attnflow.papers.u_shape import _algebra, _shape, _troughs, _variations, _wider
from attnflow.papers.u_shape._flows import LEDGER

__all__ = ["LEDGER", "_algebra", "_shape", "_troughs", "_variations", "_wider"]
