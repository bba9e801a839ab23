"""A laboratory for the training dynamics of softmax attention."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from attnflow import attention, cache, instruments, runs
    from attnflow.dynamics.critical_points import CriticalPoints
    from attnflow.dynamics.descent import descend
    from attnflow.dynamics.errors import DescentError, FlowError
    from attnflow.dynamics.events import Critical, Crosses
    from attnflow.dynamics.flow import gradient_flow
    from attnflow.dynamics.preconditioning import (
        gauss_newton,
        levenberg_marquardt,
        simplex_natural_gradient,
    )
    from attnflow.dynamics.schedules import alternating, em_like, scale_blocks
    from attnflow.dynamics.sgd import sgd
    from attnflow.dynamics.stall import Stall, explain_stall
    from attnflow.models import head, single_location
    from attnflow.models.head import Head, SymbolHead
    from attnflow.models.prompt import Prompt, StudentTeacher
    from attnflow.models.self_attention import SelfAttention
    from attnflow.models.single_location import SingleLocation
    from attnflow.models.sink_matrix import SinkMatrix
    from attnflow.models.tied import TiedValueSoftmax
    from attnflow.models.two_token import TwoToken
    from attnflow.models.value_softmax import ValueSoftmax

_EXPORTS = {
    "Critical": "attnflow.dynamics.events",
    "CriticalPoints": "attnflow.dynamics.critical_points",
    "Crosses": "attnflow.dynamics.events",
    "DescentError": "attnflow.dynamics.errors",
    "descend": "attnflow.dynamics.descent",
    "Head": "attnflow.models.head",
    "SymbolHead": "attnflow.models.head",
    "alternating": "attnflow.dynamics.schedules",
    "em_like": "attnflow.dynamics.schedules",
    "scale_blocks": "attnflow.dynamics.schedules",
    "Prompt": "attnflow.models.prompt",
    "StudentTeacher": "attnflow.models.prompt",
    "Stall": "attnflow.dynamics.stall",
    "explain_stall": "attnflow.dynamics.stall",
    "gauss_newton": "attnflow.dynamics.preconditioning",
    "levenberg_marquardt": "attnflow.dynamics.preconditioning",
    "simplex_natural_gradient": "attnflow.dynamics.preconditioning",
    "SingleLocation": "attnflow.models.single_location",
    "SinkMatrix": "attnflow.models.sink_matrix",
    "TiedValueSoftmax": "attnflow.models.tied",
    "ValueSoftmax": "attnflow.models.value_softmax",
    "FlowError": "attnflow.dynamics.errors",
    "SelfAttention": "attnflow.models.self_attention",
    "TwoToken": "attnflow.models.two_token",
    "gradient_flow": "attnflow.dynamics.flow",
    "sgd": "attnflow.dynamics.sgd.online",
    "attention": "attnflow.attention",
    "cache": "attnflow.cache",
    "instruments": "attnflow.instruments",
    "runs": "attnflow.runs",
    "head": "attnflow.models.head",
    "single_location": "attnflow.models.single_location",
}

__all__ = [
    "Critical",
    "CriticalPoints",
    "Crosses",
    "DescentError",
    "FlowError",
    "Head",
    "Prompt",
    "SelfAttention",
    "SingleLocation",
    "SinkMatrix",
    "Stall",
    "StudentTeacher",
    "SymbolHead",
    "TiedValueSoftmax",
    "TwoToken",
    "ValueSoftmax",
    "alternating",
    "attention",
    "cache",
    "descend",
    "em_like",
    "explain_stall",
    "gauss_newton",
    "gradient_flow",
    "head",
    "instruments",
    "levenberg_marquardt",
    "runs",
    "scale_blocks",
    "sgd",
    "simplex_natural_gradient",
    "single_location",
]


def __getattr__(name: str):
    """Load the heavy modules when they are first used: the command line must answer at once."""
    if name not in _EXPORTS:
        raise AttributeError(f"module 'attnflow' has no attribute {name!r}")
    module = importlib.import_module(_EXPORTS[name])
    return module if _EXPORTS[name].endswith(f".{name}") else getattr(module, name)


def __dir__():
    return sorted([*globals(), *_EXPORTS])
