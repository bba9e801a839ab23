"""The ledger, and heads in plain arrays on which its rows are checked.

The source writes one loss L without saying over how many positions it is averaged; here it is the
mean over N positions, so that every gradient carries 1/N. Row vectors: logits are z W_O + b_O.
"""

import dataclasses
import functools

import jax
import numpy as np
from scipy.special import log_softmax, softmax

from attnflow.models.head import Head
from attnflow.papers.ledger import Finding, Ledger, all_of, rerun

__all__ = [
    "CLASSES",
    "LEDGER",
    "LENGTH",
    "Heads",
    "Projected",
    "all_of",
    "differentiated",
    "in_turn",
    "random_heads",
    "random_projected",
    "rerun",
    "rerun_free",
    "swap",
]

LEDGER = Ledger("routing")
CASES, SEQUENCES, LENGTH, WIDTH, KEY, VALUE, CLASSES = 30, 2, 5, 4, 2, 3, 4


def in_turn(*findings: Finding) -> Finding:
    """The first that fails, or the last; with the cases of all."""
    cases = sum(each.cases for each in findings)
    told = next((each for each in findings if not each.good), findings[-1])
    return dataclasses.replace(told, cases=cases)


def swap(x: np.ndarray) -> np.ndarray:
    return np.swapaxes(x, -1, -2)


@dataclasses.dataclass(frozen=True)
class Heads:
    """Many heads: scores (…, query, key), values (…, key, width), W_O, b_O and targets."""

    scores: np.ndarray
    values: np.ndarray
    output: np.ndarray
    bias: np.ndarray
    targets: np.ndarray
    causal: bool = False

    @property
    def length(self) -> int:
        return self.scores.shape[-1]

    @property
    def visible(self) -> np.ndarray:
        """Which keys a query may see."""
        seen = np.tri(self.length) if self.causal else np.ones((self.length, self.length))
        return np.broadcast_to(seen > 0, self.scores.shape)

    @functools.cached_property
    def attention(self) -> np.ndarray:
        return softmax(np.where(self.visible, self.scores, -np.inf), axis=-1)

    @property
    def mixed(self) -> np.ndarray:
        """z_i = Σ_j α_ij v_j."""
        return self.attention @ self.values

    @functools.cached_property
    def logits(self) -> np.ndarray:
        return self.mixed @ self.output + self.bias[..., None, :]

    @property
    def misses(self) -> np.ndarray:
        """p_i − e_{y_i}."""
        return softmax(self.logits, axis=-1) - np.eye(self.output.shape[-1])[self.targets]

    @property
    def losses(self) -> np.ndarray:
        """Of every query."""
        logs = log_softmax(self.logits, axis=-1)
        return -np.take_along_axis(logs, self.targets[..., None], axis=-1)[..., 0]

    @functools.cached_property
    def errors(self) -> np.ndarray:
        """u_i, the slope of the loss in z_i."""
        return self.misses @ swap(self.output)

    @property
    def compatibility(self) -> np.ndarray:
        return self.errors @ swap(self.values)

    @functools.cached_property
    def advantage(self) -> np.ndarray:
        b = self.compatibility
        return np.sum(self.attention * b, axis=-1, keepdims=True) - b

    @property
    def helpful(self) -> np.ndarray:
        """Pairs that are visible and of positive advantage."""
        return self.visible & (self.advantage > 1e-9)

    @functools.cached_property
    def pull(self) -> np.ndarray:
        """Σ_i α_ij u_i of every key: N times the slope of the mean loss in v_j."""
        return swap(self.attention) @ self.errors

    def replaced(self, **fields) -> "Heads":
        return dataclasses.replace(self, **fields)


def rerun_free(heads: Heads, then: str) -> str:
    """`rerun` with h, a library head with these free scores and values, no b_O."""
    blocks = {"scores": heads.scores, "values": heads.values, "W_O": heads.output}
    start = ", ".join(f"{name}=np.array({x.tolist()})" for name, x in blocks.items())
    targets, classes = f"np.array({[heads.targets.tolist()]})", heads.output.shape[-1]
    made = f"start=dict({start}), classes={classes}, causal={heads.causal}"
    return rerun(f"h = af.Head(inputs=None, targets={targets}, {made}); {then}")


def head(inputs, targets, start, causal: bool) -> Head:
    classes = start["W_O"].shape[-1]
    return Head(inputs=inputs, targets=targets, start=start, classes=classes, causal=causal)


@dataclasses.dataclass(frozen=True)
class Projected:
    """Many heads on inputs (case, sequence, position, width), by the names of their blocks."""

    inputs: np.ndarray
    targets: np.ndarray
    params: dict[str, np.ndarray]
    causal: bool

    def project(self, name: str) -> np.ndarray:
        """x W + b with one of Q, K, V."""
        weight, bias = self.params[f"W_{name}"], self.params[f"b_{name}"]
        return self.inputs @ weight[:, None] + bias[:, None, None]

    @functools.cached_property
    def heads(self) -> Heads:
        q, k, v = (self.project(name) for name in "QKV")
        scores = q @ swap(k) / np.sqrt(k.shape[-1])
        output, bias = self.params["W_O"][:, None], self.params["b_O"][:, None]
        return Heads(scores, v, output, bias, self.targets, self.causal)

    def stepped(self, gradient: dict[str, np.ndarray], rate: float) -> "Projected":
        params = {name: x - rate * gradient[name] for name, x in self.params.items()}
        return dataclasses.replace(self, params=params)

    def model(self, case: int) -> Head:
        start = {name: x[case] for name, x in self.params.items()}
        return head(self.inputs[case], self.targets[case], start, self.causal)


@functools.cache
def random_heads(causal: bool) -> Heads:
    """Free scores and values, one sequence each: all numbers standard normal."""
    rng = np.random.default_rng(int(causal))
    shapes = (LENGTH, LENGTH), (LENGTH, VALUE), (VALUE, CLASSES), (CLASSES,)
    drawn = [rng.normal(size=(CASES, *shape)) for shape in shapes]
    targets = rng.integers(CLASSES, size=(CASES, LENGTH))
    return Heads(*drawn, targets=targets, causal=causal)


@functools.cache
def random_projected(causal: bool) -> Projected:
    """Inputs, weights and biases standard normal; d_k = 2, d_v = 3, two sequences."""
    rng = np.random.default_rng([2, int(causal)])
    sides = {"Q": (WIDTH, KEY), "K": (WIDTH, KEY), "V": (WIDTH, VALUE), "O": (VALUE, CLASSES)}
    params = {f"W_{name}": rng.normal(size=(CASES, *shape)) for name, shape in sides.items()}
    params |= {f"b_{name}": rng.normal(size=(CASES, width)) for name, (_, width) in sides.items()}
    inputs = rng.normal(size=(CASES, SEQUENCES, LENGTH, WIDTH))
    return Projected(inputs, rng.integers(CLASSES, size=inputs.shape[:3]), params, causal)


@functools.cache
def differentiated(causal: bool) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """∇ of the library's loss by automatic differentiation: `random_heads`, `random_projected`."""
    free, made = random_heads(causal), random_projected(causal)
    blocks = {"scores": free.scores, "values": free.values, "W_O": free.output, "b_O": free.bias}

    def slope(inputs, targets, params):
        return jax.grad(head(inputs, targets, params, causal).loss)(params)

    with jax.enable_x64(True):
        both = jax.jit(
            lambda free, made: (
                jax.vmap(functools.partial(slope, None))(*free),
                jax.vmap(slope)(*made),
            )
        )((free.targets[:, None], blocks), (made.inputs, made.targets, made.params))
        return jax.tree.map(np.asarray, both)
