"""Pure functions of arrays: NumPy, JAX and PyTorch alike."""

from attnflow.instruments.entropy import effective_support, entropy
from attnflow.instruments.sinks import is_sink, key_mass

__all__ = ["effective_support", "entropy", "is_sink", "key_mass"]
