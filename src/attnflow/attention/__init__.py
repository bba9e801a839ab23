"""How scores become weights."""

from attnflow.attention.registry import Attention, get, names, register

__all__ = ["Attention", "get", "names", "register"]
