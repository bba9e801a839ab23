"""Pure functions of arrays: NumPy, JAX and PyTorch alike."""

from attnflow.instruments.curvature import (
    local_factors,
    operator_extremes,
    operator_spectrum,
    predicted_error,
)
from attnflow.instruments.entropy import effective_support, entropy
from attnflow.instruments.jacobian import (
    Conditioning,
    conditioning_of_weights,
    softmax_conditioning,
)
from attnflow.instruments.manifold import Shape, alignment, principal_shape
from attnflow.instruments.norms import Phase, norm_phases
from attnflow.instruments.routing import (
    Freezing,
    Signs,
    advantage,
    compatibility,
    failure_signs,
    freezing,
    usage,
    users_error,
    value_specialization,
)
from attnflow.instruments.separation import (
    Separation,
    extreme_weights,
    important_keys,
    leakage,
    leakage_sampled,
    log10_ratio,
    separation,
    signal_subspace,
    value_margins,
    weight_bounds,
)
from attnflow.instruments.sinks import is_sink, key_mass
from attnflow.instruments.specialization import (
    excursions,
    head_groups,
    head_similarity,
    head_spread,
    sign_patterns,
    split_times,
    unspecialized_time,
)

__all__ = [
    "Conditioning",
    "Freezing",
    "Phase",
    "Separation",
    "Shape",
    "Signs",
    "advantage",
    "alignment",
    "compatibility",
    "conditioning_of_weights",
    "effective_support",
    "entropy",
    "excursions",
    "extreme_weights",
    "failure_signs",
    "freezing",
    "head_groups",
    "head_similarity",
    "head_spread",
    "important_keys",
    "is_sink",
    "key_mass",
    "leakage",
    "leakage_sampled",
    "local_factors",
    "log10_ratio",
    "norm_phases",
    "operator_extremes",
    "operator_spectrum",
    "predicted_error",
    "principal_shape",
    "separation",
    "sign_patterns",
    "signal_subspace",
    "softmax_conditioning",
    "split_times",
    "unspecialized_time",
    "usage",
    "users_error",
    "value_margins",
    "value_specialization",
    "weight_bounds",
]
