"""The gradients of one head, and what one step does to first order."""

import functools

import jax
import numpy as np
from scipy.special import softmax

from attnflow.models.head import closed_gradients, first_order, pulls
from attnflow.papers.ledger import Finding, corrected, identity, inequality
from attnflow.papers.routing._ledger import (
    LEDGER,
    LENGTH,
    Heads,
    Projected,
    all_of,
    differentiated,
    random_heads,
    random_projected,
    rerun,
    swap,
)

BOTH = (True, False)  # causal or not
LIBRARY = (0, 7)  # cases on which the library's own closed forms are looked at too


@functools.cache
def slopes_of_cross_entropy() -> tuple[Heads, np.ndarray, np.ndarray]:
    """Random heads, and the slopes of every query's loss in its logits and in its z."""
    heads = random_heads(False)

    def loss(mixed, output, bias, target, shift):
        return -jax.nn.log_softmax(mixed @ output + bias + shift)[target]

    each = jax.vmap(jax.grad(loss, (4, 0)), (0, None, None, 0, None))
    with jax.enable_x64(True):
        shift = np.zeros(heads.bias.shape[-1])
        in_logits, in_output = jax.jit(jax.vmap(each, (0, 0, 0, 0, None)))(
            heads.mixed, heads.output, heads.bias, heads.targets, shift
        )
        return heads, np.asarray(in_logits), np.asarray(in_output)


@LEDGER.claim(
    "cross-entropy-gradient",
    where="Foundational learning; component map",
    statement="The slope of a query's cross-entropy in its logits is p − e_y, and in the head's "
    "output z it is u = W_O (p − e_y).",
    hypotheses="Logits z W_O + b_O in row vectors; the document's W_O is the transpose.",
    kind="identity",
    recorded="holds",
    broken={"inverted": True},
)
def cross_entropy_gradient(inverted: bool = False) -> Finding:
    heads, in_logits, in_output = slopes_of_cross_entropy()
    back = np.linalg.pinv(heads.output) if inverted else swap(heads.output)
    return all_of(
        identity(heads.misses, in_logits), identity(heads.misses @ back, in_output, cases=0)
    )


PRINTED_CHANCES, PRINTED_SLOPES = [0.659, 0.242, 0.099], [0.659, -0.758, 0.099]


@LEDGER.claim(
    "cross-entropy-example",
    where="Foundational learning, quick check",
    statement="Logits (2, 1, 0.5) have the chances (0.659, 0.242, 0.099), and with target class 1 "
    "the slopes (0.659, −0.758, 0.099).",
    hypotheses="Three decimals. Class 1 is the second logit, as the printed slopes have it, so "
    "that classes count from 0; the ∂L/∂ℓ₂ asked for is then not the −0.758 of the target.",
    kind="identity",
    recorded="holds_corrected",
    broken={"third": 0.2},
)
def cross_entropy_example(third: float = 0.1) -> Finding:
    def rounded(third: float) -> Finding:
        chances = softmax([2.0, 1.0, third])
        off = [chances - PRINTED_CHANCES, chances - [0, 1, 0] - PRINTED_SLOPES]
        return inequality(
            0.00051 - np.abs(off),
            counterexample=lambda _: {
                "logits": [2.0, 1.0, third],
                "chances": chances.tolist(),
                "slopes": (chances - [0, 1, 0]).tolist(),
                "run": rerun(
                    "import scipy.special as s; p = s.softmax([2, 1, 0.5]); print(p, p - [0, 1, 0])"
                ),
            },
        )

    return corrected(
        rounded(0.5),
        rounded(third),
        "The chances are (0.629, 0.231, 0.140) and the slopes (0.629, −0.769, 0.140); the printed "
        "numbers are those of logits (2, 1, 0.1). Counting from 0, ∂L/∂ℓ₂ = 0.140.",
    )


def over_both(formula, block: str) -> Finding:
    """`formula(heads)`, N times a slope of free heads, against automatic differentiation."""
    found = [formula(random_heads(causal)) / LENGTH for causal in BOTH]
    return identity(
        np.concatenate(found), np.concatenate([differentiated(c)[0][block] for c in BOTH])
    )


def library_pulls(which: str) -> Finding:
    """The library's own slopes at scores or values, against the plain ones."""
    made, found = random_projected(True), []
    heads = made.heads
    plain = {"scores": -heads.attention * heads.advantage, "values": heads.pull}[which]
    for case in LIBRARY:
        model = made.model(case)
        found.append(getattr(pulls(model, model.start), which) * model.targets.size)
    return identity(found, plain[list(LIBRARY)])


def score_slope(heads: Heads, centred: bool) -> np.ndarray:
    """α_ij (b_ij − Σ_k α_ik b_ik)."""
    a, b = heads.attention, heads.compatibility
    return a * (b - centred * np.sum(a * b, axis=-1, keepdims=True))


@LEDGER.claim(
    "score-gradient",
    where="Mechanism 1, Section 3.4",
    statement="∂L/∂s_ij = α_ij (b_ij − Σ_k α_ik b_ik) with b_ij = u_i·v_j.",
    hypotheses="L summed over queries. Random heads with free scores and values, causal or not.",
    kind="identity",
    recorded="holds",
    broken={"centred": False},
)
def score_gradient(centred: bool = True) -> Finding:
    whole = over_both(lambda heads: score_slope(heads, centred), "scores")
    return all_of(whole, library_pulls("scores"))


@LEDGER.claim(
    "value-gradient",
    where="Mechanism 2, component map",
    statement="∂L/∂v_j = Σ_i α_ij u_i.",
    hypotheses="L summed over queries. Random heads with free scores and values, causal or not.",
    kind="identity",
    recorded="holds",
    broken={"averaged": True},
)
def value_gradient(averaged: bool = False) -> Finding:
    def slope(heads: Heads) -> np.ndarray:
        used = heads.attention.sum(axis=-2)[..., None]
        return heads.pull / used if averaged else heads.pull

    return all_of(over_both(slope, "values"), library_pulls("values"))


def block_slopes(made: Projected, root: float) -> dict[str, np.ndarray]:
    """The chain rule from scores, values and logits to the blocks; `root` is √d_k."""
    heads = made.heads
    scores = score_slope(heads, centred=True)
    at = {
        "Q": (made.inputs, scores @ made.project("K") / root),
        "K": (made.inputs, swap(scores) @ made.project("Q") / root),
        "V": (made.inputs, heads.pull),
        "O": (heads.mixed, heads.misses),
    }
    count = made.targets[0].size
    slopes = {f"W_{name}": np.einsum("nbtx,nbty->nxy", *pair) for name, pair in at.items()}
    slopes |= {f"b_{name}": pull.sum((1, 2)) for name, (_, pull) in at.items()}
    return {name: slope / count for name, slope in slopes.items()}


@LEDGER.claim(
    "projection-gradients",
    where="Abstract (gradients of all parameters)",
    statement="With S = ∂L/∂s and s = q kᵀ/√d_k: ∂L/∂W_Q = Xᵀ S K/√d_k, ∂L/∂W_K = Xᵀ Sᵀ Q/√d_k, "
    "∂L/∂W_V = Xᵀ αᵀ u, ∂L/∂W_O = zᵀ (p − e), biases the same with 1 for X and z; that of b_K is "
    "identically zero.",
    hypotheses="The products are ours: the summary names them only. Random heads, causal or not, "
    "d_k ≠ d_v, two sequences.",
    kind="identity",
    recorded="holds",
    broken={"power": 0.0},
)
def projection_gradients(power: float = 0.5) -> Finding:
    findings = []
    for causal in BOTH:
        made, truth = random_projected(causal), differentiated(causal)[1]
        slopes = block_slopes(made, made.params["b_K"].shape[-1] ** power)
        nothing = truth["b_K"] / np.abs(truth["b_Q"]).max()
        findings.append(identity(1 + nothing, np.ones_like(nothing), tolerance=1e-12))
        for name in truth.keys() - {"b_K"}:
            findings.append(identity(slopes[name], truth[name]))
        for case in LIBRARY:
            model = made.model(case)
            closed = closed_gradients(model, model.start)
            pairs = [(closed[name].ravel(), truth[name][case].ravel()) for name in truth]
            findings.append(identity(*map(np.concatenate, zip(*pairs, strict=True)), cases=1))
    return all_of(*findings)


def order_of(errors: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Slopes of log error over log rate, one a column."""
    return np.polyfit(np.log(rates), np.log(errors), 1)[0]


@LEDGER.claim(
    "first-order-step",
    where="Mechanisms 1 and 2 (small learning rates)",
    statement="A step of size η on all blocks changes scores, values and loss by their first-order "
    "amounts, up to an error of order η² (values: none).",
    hypotheses="Random heads, causal or not; order fitted over η = 1e-3 … 1e-5.",
    kind="limit",
    recorded="holds",
    broken={"stretch": 1.01},
)
def first_order_step(stretch: float = 1.0) -> Finding:
    rates, cases = np.geomspace(1e-3, 1e-5, 5), range(3)
    orders, slip = [], 0.0
    for causal in BOTH:
        made, (_, gradient) = random_projected(causal), differentiated(causal)
        change = [first_order(made.model(c), made.model(c).start, stretch) for c in cases]
        descent = sum(np.sum(x[:3].reshape(3, -1) ** 2, axis=1) for x in gradient.values())
        errors = []
        for rate in rates:
            after, before = made.stepped(gradient, rate).heads, made.heads
            scores = (after.scores - before.scores)[:3] - rate * np.array(
                [c.scores for c in change]
            )
            values = (after.values - before.values)[:3] - rate * np.array(
                [c.values for c in change]
            )
            loss = (after.losses - before.losses)[:3].mean((1, 2)) + stretch * rate * descent
            errors.append(np.append(np.abs(scores).max((1, 2, 3)), np.abs(loss)))
            slip = max(slip, float(np.abs(values).max()))
        orders.append(order_of(np.array(errors), rates))
    off = float(np.abs(np.array(orders) - 2).max())
    good = off < 0.05 and slip < 1e-12
    return Finding("holds" if good else "refuted", off, 2 * np.size(orders))
