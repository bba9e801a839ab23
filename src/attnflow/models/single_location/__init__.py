"""Many heads, one relevant token, any dimension."""

from attnflow.models.single_location.bayes import (
    bayes_heads,
    bayes_risk,
    bayes_samples,
    believed_risk,
    heads_needed,
    posterior,
    quadrature,
)
from attnflow.models.single_location.estimate import Estimate, estimate
from attnflow.models.single_location.model import SingleLocation
from attnflow.models.single_location.pruning import Pruning, prune
from attnflow.models.single_location.signals import (
    Discrete,
    Gaussian,
    Signal,
    discrete,
    flipping_spike,
    from_sampler,
    gaussian,
    spikes,
)
from attnflow.models.single_location.stability import Curvature, Growth, curvature, growth, plateau
from attnflow.models.single_location.task import HeadsTask

__all__ = [
    "Curvature",
    "Discrete",
    "Estimate",
    "Gaussian",
    "Growth",
    "HeadsTask",
    "Pruning",
    "Signal",
    "SingleLocation",
    "bayes_heads",
    "bayes_risk",
    "bayes_samples",
    "believed_risk",
    "curvature",
    "discrete",
    "estimate",
    "flipping_spike",
    "from_sampler",
    "gaussian",
    "growth",
    "heads_needed",
    "plateau",
    "posterior",
    "prune",
    "quadrature",
    "spikes",
]
