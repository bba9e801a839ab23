"""Normalizations σ_f(a) = f(a)/Σf(a) in place of softmax.

f = x from equal scores has a closed form. With dς = dτ/Σa the path is linear, u_ς = |β*|² a and
a_ς = u − ⟨u, s⟩, so all differences of u grow like cosh(|β*|ς) and those of a like sinh(|β*|ς):
s moves on the ray 1/p + x c, c = u(0) − mean u(0). |a|² is conserved (the map does not feel a
common scale), so Σa = √(p²α² − p|c|² sinh²(|β*|ς)/|β*|²) reaches 0 at a finite τ, where x = ∞.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy.integrate import quad

from attnflow.papers.ledger import Finding, corrected, identity, inequality
from attnflow.papers.polarization._equations import flat
from attnflow.papers.polarization._ledger import LEDGER, close, rerun
from attnflow.papers.polarization._states import MAPS, random_states
from attnflow.papers.polarization._tau_path import scores_rate, tau_path, weights


@functools.cache
def starts(cases: int = 6) -> list[tuple[np.ndarray, float]]:
    """Ordered u(0) of 3 to 6 tokens, and |β*|²."""
    rng = np.random.default_rng(5)
    return [
        (np.sort(rng.normal(size=3 + row % 4))[::-1], (0.25, 1.0, 4.0)[row % 3])
        for row in range(cases)
    ]


@dataclasses.dataclass(frozen=True)
class IdentityPath:
    """The path of f = x from u(0) and equal scores `level`, as a function of ς."""

    u: np.ndarray
    norm2: float
    level: float = 1.0

    @property
    def c(self):
        return self.u - self.u.mean()

    def spread(self, clock):
        """sinh(|β*|ς)/|β*|: a = Σa/p + c · spread."""
        return np.sinh(math.sqrt(self.norm2) * clock) / math.sqrt(self.norm2)

    def total(self, clock):
        """Σa."""
        p = self.u.size
        left = (p * self.level) ** 2 - p * (self.c @ self.c) * self.spread(clock) ** 2
        return np.sqrt(np.maximum(left, 0.0))

    def tau(self, clock: float) -> float:
        return quad(self.total, 0.0, clock, epsabs=1e-13, epsrel=1e-13)[0]

    def _clock(self, weight: float) -> float:
        """Where |β*|² p² level² = weight · sinh²."""
        p, b = self.u.size, math.sqrt(self.norm2)
        return math.asinh(b * p * abs(self.level) / math.sqrt(weight)) / b

    @property
    def exit(self) -> float:
        """ς at which the last weight passes through 0."""
        p, c = self.u.size, self.c
        return self._clock(p * (c @ c) + p**2 * c[-1] ** 2)

    @property
    def end(self) -> float:
        """ς at which Σa reaches 0."""
        return self._clock(self.u.size * (self.c @ self.c))

    def weights(self, clocks):
        """s = 1/p + c · spread/Σa, one row for each ς."""
        return 1 / self.u.size + np.outer(self.spread(clocks) / self.total(clocks), self.c)


@LEDGER.claim(
    "normalization-dynamics",
    where="§3.2; D.2, (30)–(31)",
    statement="For σ_f the logistic flow is u' = γ|β*|² s, a' = γ f'(a)/Σf ⊙ (u − ⟨u, s⟩1): true "
    "for f = x, |x|, x², relu, softplus and exp.",
    kind="identity",
    recorded="holds",
    broken={"centre": 0.0},
)
def normalization_dynamics(centre: float = 1.0) -> Finding:
    measured, claimed = [], []
    for law in MAPS:
        x = random_states()[law]
        drift = x.gamma * scores_rate(law, x.u, x.scores, centre)
        measured.append(flat(x.u_rate, x.scores_rate))
        claimed.append(flat(x.gamma * x.norm2 * weights(law, x.scores), drift))
    return identity(np.concatenate(measured), np.concatenate(claimed))


def least_gap(law: str, level: float) -> float:
    """The least u_i − u_(i+1) and a_i − a_(i+1) on the path from a(0) = level."""
    gaps = []
    for u, norm2 in starts():
        path = IdentityPath(u, norm2, level)
        longest = 0.95 * path.tau(path.end) if law == "identity_normalized" else 3.0
        taus = np.linspace(0.0, longest, 40)[1:]
        gaps += [-np.diff(x, axis=1).max() for x in tau_path(law, u, level, norm2, taus)]
    return float(min(gaps))


@LEDGER.claim(
    "lemma-d.4",
    where="D.2, Lemma D.4",
    statement="For every increasing differentiable f, u and a keep their order from a(0) = 0.",
    hypotheses="u_0(0) > u_1(0) > …; mended form: f = exp, sigmoid, elu + 1 and softplus from "
    "a(0) = 0, x and x² from a(0) = 1.",
    kind="inequality",
    recorded="holds_corrected",
    broken={"mended": (("identity_normalized", -1.0),)},
)
def lemma_d_4(
    mended=(
        ("softmax", 0.0),
        ("sigmoid_normalized", 0.0),
        ("elu_normalized", 0.0),
        ("softplus_normalized", 0.0),
        ("identity_normalized", 1.0),
        ("square_normalized", 1.0),
    ),
) -> Finding:
    printed = inequality(
        [least_gap("identity_normalized", -1.0)],  # f = x − 1 from a = 0 is f = x from a = −1
        counterexample=lambda _: {
            "f": "x − 1 (for f = x itself, σ_f(0) is 0/0)",
            "projections": [0.3, 0.1],
            "a(0)": [0.0, 0.0],
            "what happens": "Σf < 0 turns the repulsion of a around: a_0 < a_1 for all t > 0",
            "run": rerun(
                "ValueSoftmax(projections=(0.3, 0.1), map='identity_normalized', "
                "scores=(-1.0, -1.0))",
                "t1=1.0, points=3",
                "f.scores.values + 1",
            ),
        },
    )
    found = inequality([least_gap(law, level) for law, level in mended])
    return corrected(printed, found, "f must be positive where the flow goes, so that Σf > 0")


def nearest_to_one_hot(law: str) -> float:
    """The least |s − e_0|_∞ met from a(0) = 1, over all starts."""
    least = np.inf
    for u, norm2 in starts():
        path = IdentityPath(u, norm2)
        ends = law == "identity_normalized"
        taus = np.linspace(0.0, 0.999 * path.tau(path.end) if ends else 15.0, 200)[1:]
        s = weights(law, tau_path(law, u, 1.0, norm2, taus)[1])
        least = min(least, np.abs(s - np.eye(u.size)[0]).max(axis=1).min())
    return float(least)


@LEDGER.claim(
    "f-identity",
    where="§3.2, f(x) = x",
    statement="With f(x) = x the polarization is not enough for one-hot scores.",
    hypotheses="a(0) = 1, p ≥ 3, u(0) without ties; margin: the least |s − e_0| over the path.",
    kind="inequality",
    recorded="holds",
    broken={"law": "square_normalized"},
)
def f_identity(law: str = "identity_normalized") -> Finding:
    least = nearest_to_one_hot(law)
    return Finding("holds" if least > 0.01 else "refuted", least, len(starts()))


@LEDGER.claim(
    "f-identity-ray",
    where="Ours, beside f(x) = x",
    statement="From a(0) = α the weights move on the ray 1/p + x c, c = u(0) − mean u(0), "
    "x = sinh(|β*|ς)/(|β*| Σa). They leave the simplex at a finite τ and, for p ≥ 3 without ties, "
    "never through e_0; at another finite τ, Σa = 0 and x = ∞ (t = ∞ for the logistic loss).",
    kind="identity",
    recorded="holds",
    broken={"past": 0.98},
)
def f_identity_ray(past: float = 1.02) -> Finding:
    measured, claimed, outside = [], [], True
    for u, norm2 in starts():
        path = IdentityPath(u, norm2)
        clocks = np.array([0.3, 0.6, 0.9, past]) * path.exit
        _, a = tau_path("identity_normalized", u, 1.0, norm2, [path.tau(x) for x in clocks])
        s = weights("identity_normalized", a)
        outside &= bool(path.exit < path.end and s[:3].min() > 0 > s[3, -1])
        measured.append(s.ravel())
        claimed.append(path.weights(clocks).ravel())
    finding = identity(np.concatenate(measured), np.concatenate(claimed), tolerance=1e-8)
    return finding if outside else dataclasses.replace(finding, verdict="refuted")


@LEDGER.claim(
    "f-square",
    where="§3.2, f(x) = x²",
    statement="With f(x) = x² the flow drives s to a one-hot vector.",
    hypotheses="a(0) = 1, logistic loss; margin: the distance from e_0 at τ = 15.",
    kind="limit",
    recorded="holds",
    broken={"law": "softmax"},
)
def f_square(law: str = "square_normalized") -> Finding:
    distances = []
    for u, norm2 in starts():
        s = weights(law, tau_path(law, u, 1.0, norm2, [15.0])[1][0])
        distances.append(np.abs(s - np.eye(u.size)[0]).max())
    rest = float(max(distances))
    return Finding("holds" if rest < 1e-4 else "refuted", rest, len(distances))


@LEDGER.claim(
    "f-square-replicator",
    where="Ours, beside f(x) = x²",
    statement="f = x² conserves |a|² and is exactly the replicator: "
    "s_i' = (4γ/|a|²) s_i (u_i − ⟨u, s⟩).",
    kind="identity",
    recorded="holds",
    broken={"speed": 2.0},
)
def f_square_replicator(speed: float = 4.0) -> Finding:
    x = random_states()["square_normalized"]
    size = (x.scores**2).sum(axis=1, keepdims=True)
    radial = (x.scores * x.scores_rate).sum(axis=1, keepdims=True) / size
    measured = 2 * x.scores * x.scores_rate / size - 2 * radial * x.weights
    claimed = speed * x.gamma / size * x.weights * (x.u - x.margin)
    return identity(flat(radial, measured), flat(np.zeros_like(radial), claimed))


@LEDGER.claim(
    "f-square-rate",
    where="Ours, beside f(x) = x²",
    statement="For f = x², log(s_0/s_j) ~ (2|β*|²/|a|²) τ² = 2 log² t/(|a|²|β*|²): far faster than "
    "softmax, whose scores fall like 1/log² t.",
    hypotheses="a(0) = 1, logistic loss; the curvature fitted while s_0/s_1 > e¹², s_0/s_j < e⁴⁵.",
    kind="limit",
    recorded="holds",
    broken={"constant": 1.0},
)
def f_square_rate(constant: float = 2.0) -> Finding:
    fitted, claimed = [], []
    for u, norm2 in starts():
        taus = np.linspace(0.0, 15.0 / math.sqrt(norm2), 400)
        a = tau_path("square_normalized", u, 1.0, norm2, taus)[1]
        falls = 2 * (np.log(a[:, :1]) - np.log(np.maximum(a[:, 1:], 1e-30)))
        for fall in falls.T:
            seen = (falls[:, 0] > 12) & (fall < 45)
            if seen.sum() > 20:
                fitted.append(np.polyfit(taus[seen], fall[seen], 2)[0])
                claimed.append(constant * norm2 / u.size)
    return close(fitted, claimed, tolerance=1e-2)
