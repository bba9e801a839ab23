"""The single-location model from plain numbers and names."""

import dataclasses
from typing import Annotated

from typing_extensions import Doc

from attnflow._checks import choice
from attnflow.models.single_location.model import SingleLocation
from attnflow.models.single_location.signals import Signal, flipping_spike, gaussian, spikes

SIGNALS = ("flipping_spike", "spikes", "gaussian")


@dataclasses.dataclass(frozen=True)
class HeadsTask:
    """H heads, one relevant token of L; `model()` makes the `SingleLocation`.

    >>> HeadsTask(signal="spikes", features=4, nu1=10.0).model().signal.features
    4
    """

    signal: Annotated[
        str,
        Doc(
            "flipping_spike (F = 2: a constant feature of strength nu1, one of random sign of "
            "strength nu2), spikes (one of F features, strength nu1) or gaussian (variances even "
            "from nu1 to nu2)"
        ),
    ] = "flipping_spike"
    nu1: Annotated[float, Doc("strength of the first feature")] = 2.0
    nu2: Annotated[float, Doc("strength of the last feature")] = 2.0
    features: Annotated[int, Doc("F, hidden features (a flipping spike has two)")] = 2
    tokens: Annotated[int, Doc("L, tokens of a sequence")] = 5
    heads: Annotated[int, Doc("H, attention heads")] = 2
    activation: Annotated[str, Doc("softmax, softmax_1 or bayes_softmax")] = "softmax"
    eta: Annotated[float, Doc("size of the initial heads")] = 1.0
    dimension: Annotated[float, Doc("D: of the start, and of SGD")] = 1e4
    samples: Annotated[int, Doc("points of the averages")] = 8192
    seed: Annotated[int, Doc("seed of points and start")] = 0

    def law(self) -> Signal:
        choice("signal", self.signal, SIGNALS)
        if self.signal == "spikes":
            return spikes(self.features, self.nu1)
        if self.signal == "gaussian":
            return gaussian(self.features, self.nu1, self.nu2)
        if self.features != 2:
            raise ValueError(
                f"features: a flipping spike has two (got {self.features}); take signal spikes"
            )
        return flipping_spike(self.nu1, self.nu2)

    def model(self) -> SingleLocation:
        return SingleLocation(
            self.law(),
            tokens=self.tokens,
            heads=self.heads,
            activation=self.activation,
            eta=self.eta,
            dimension=self.dimension,
            samples=self.samples,
            seed=self.seed,
        )
