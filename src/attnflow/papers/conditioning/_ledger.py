"""The ledger, and the prompt-attention problem in plain arrays on which its rows are checked.

f(X) = φ(X W p)ᵀ X v with only p trained and the square loss, so m = L = 1 for every constant.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from attnflow.papers.ledger import Finding, Ledger, rerun

LEDGER = Ledger("conditioning")


def vanishing(errors, *, tolerance: float = 1e-9) -> Finding:
    """Every error, already relative to its natural size, is zero."""
    errors = np.abs(np.asarray(errors, float))
    worst = float(errors.max())
    return Finding("holds" if worst <= tolerance else "refuted", worst, errors.size)


def rerun_gradient(inputs, labels, v, p, show: str) -> str:
    """`rerun` with m, a Prompt at the blocks b (W = I, only p trained), and g = ∇m.loss there."""
    blocks = f"b = dict(p=np.array({p}), v=np.array({v}), W=np.eye({len(p)}))"
    model = f"m = af.Prompt(np.array({inputs}), np.array({labels}), b, b, ('p',))"
    gradient = "q = {'p': b['p']}; g = jax.grad(m.loss)(q)['p']"
    return rerun(f"import jax; {blocks}; {model}; {gradient}; print({show})")


def softmax(scores):
    """φ over the last axis; complex scores pass, for derivatives by a complex step."""
    shifted = np.exp(scores - np.max(scores.real, axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)


def softmax_jacobian(a):
    """J = diag(a) − aaᵀ, for a (…, n)."""
    return a[..., None] * np.eye(a.shape[-1]) - a[..., :, None] * a[..., None, :]


@dataclasses.dataclass(frozen=True)
class Problem:
    """Inputs X (N, n, d), key–query map W, value v and the teacher's prompt p*."""

    inputs: np.ndarray
    mixing: np.ndarray
    value: np.ndarray
    teacher: np.ndarray

    def __post_init__(self):
        if np.linalg.matrix_rank(self.mixing) < len(self.mixing):
            raise ValueError("W is singular: keys X W then do not tell the inputs X apart")

    @property
    def samples(self) -> int:
        return len(self.inputs)

    @property
    def keys(self):
        return self.inputs @ self.mixing

    @property
    def values(self):
        """uᵢ = Xᵢ v."""
        return self.inputs @ self.value

    @property
    def labels(self):
        return self.outputs(self.teacher)

    def weights(self, p):
        return softmax(self.keys @ p)

    def outputs(self, p):
        return np.sum(self.weights(p) * self.values, axis=-1)

    def residuals(self, p):
        """f − y, which is also gᵢ = ∂ℓ/∂f."""
        return self.outputs(p) - self.labels

    def loss(self, p):
        return 0.5 * np.mean(self.residuals(p) ** 2)

    def pulls(self, p):
        """J(aᵢ)uᵢ = aᵢ ⊙ (uᵢ − aᵢᵀuᵢ), (N, n)."""
        a = self.weights(p)
        return a * (self.values - np.sum(a * self.values, axis=-1, keepdims=True))

    def factors(self, p):
        """F of equation (9), N × d: rows KᵢᵀJ(aᵢ)uᵢ / N."""
        return np.einsum("ij,ijd->id", self.pulls(p), self.keys) / self.samples

    def gradient(self, p):
        return self.factors(p).T @ self.residuals(p)

    def hessian(self, p):
        """Of the loss: Gauss–Newton, plus the residuals times the second derivative of f."""
        a, pulls, keys = self.weights(p), self.pulls(p), self.keys
        cross = a[:, :, None] * pulls[:, None, :]
        bend = pulls[:, :, None] * np.eye(a.shape[1]) - cross - np.swapaxes(cross, 1, 2)
        rows = self.factors(p)
        second = np.einsum("i,ija,ijk,ikb->ab", self.residuals(p), keys, bend, keys)
        return self.samples * rows.T @ rows + second / self.samples

    def descent(self, start, step: float, steps: int) -> Iterator[np.ndarray]:
        """p₀, p₁, … of gradient descent."""
        p = np.array(start, float)
        yield p
        for _ in range(steps):
            p = p - step * self.gradient(p)
            yield p


def gaussian_problem(rng, samples: int, n: int, d: int, *, prompt=1.0, mixed=False) -> Problem:
    """Standard normal inputs, value and (times `prompt`) teacher; W the identity or normal."""
    mixing = rng.normal(size=(d, d)) if mixed else np.eye(d)
    inputs = rng.normal(size=(samples, n, d))
    return Problem(inputs, mixing, rng.normal(size=d), prompt * rng.normal(size=d))


def pair_problem(x: float, v: float, teacher: float, *, samples: int = 1, copies: bool = True):
    """Tokens x and −x, so that f = x v tanh(x p): N `copies` of one sample along the first axis
    of ℝᴺ, or one sample along each axis."""
    axes = np.repeat(np.eye(samples)[:1], samples, axis=0) if copies else np.eye(samples)
    inputs = x * np.stack([axes, -axes], axis=1)
    along = axes.max(axis=0)
    return Problem(inputs, np.eye(samples), v * along, teacher * along)
