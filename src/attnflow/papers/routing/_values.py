"""What a step does to the values: the M-step it is compared with, and whether it ever stops."""

import dataclasses

import numpy as np

from attnflow.papers.ledger import Finding, corrected, identity, inequality
from attnflow.papers.routing._gradients import BOTH, block_slopes
from attnflow.papers.routing._ledger import (
    LEDGER,
    Heads,
    Projected,
    differentiated,
    in_turn,
    random_heads,
    random_projected,
    rerun,
    rerun_free,
)
from attnflow.papers.routing._updates import three_keys


def askew_tokens() -> dict:
    """Tokens (1, 0) and (1, 1), even attention, no b_V: each value is moved by both pulls."""
    tokens = np.array([[1.0, 0.0], [1.0, 1.0]])
    values = tokens @ [[1.0], [0.0]]
    heads = Heads(np.zeros((2, 2)), values, np.array([[1.0, -1.0]]), np.zeros(2), np.zeros(2, int))
    return {
        "tokens": tokens.tolist(),
        "printed_change": (-heads.pull[:, 0] / 2).tolist(),
        "change": (-tokens @ tokens.T @ heads.pull[:, 0] / 2).tolist(),
        "run": rerun(
            "h = af.Head(inputs=np.array([[[1.0, 0.0], [1.0, 1.0]]]), targets=np.array([[0, 0]]), "
            "start=dict(W_Q=np.zeros((2, 1)), W_K=np.zeros((2, 1)), W_V=np.array([[1.0], [0.0]]), "
            "W_O=np.array([[1.0, -1.0]])), classes=2, causal=False); "
            "print(-af.head.pulls(h, h.start).values, af.head.first_order(h, h.start, 1.0).values)"
        ),
    }


@LEDGER.claim(
    "value-update",
    where="Mechanism 2",
    statement="A step of size η moves value j by −η Σ_i α_ij u_i.",
    hypotheses="L summed over queries. Values of W_V, b_V and the inputs; random heads, causal "
    "or not, two sequences.",
    kind="identity",
    recorded="holds_corrected",
    broken={"bias": 0.0},
)
def value_update(bias: float = 1.0) -> Finding:
    moved, alone, mixed = [], [], []
    for causal in BOTH:
        made, (_, gradient) = random_projected(causal), differentiated(causal)
        count = made.targets[0].size
        moved.append(made.stepped(gradient, count).heads.values - made.heads.values)
        alone.append(-made.heads.pull)
        kernel = np.einsum("nbtx,ncsx->nbtcs", made.inputs, made.inputs) + bias
        mixed.append(-np.einsum("nbtcs,ncsv->nbtv", kernel, made.heads.pull))
    printed = identity(np.concatenate(alone), np.concatenate(moved))
    if not printed.good:
        printed = dataclasses.replace(printed, counterexample=askew_tokens())
    return corrected(
        printed,
        identity(np.concatenate(mixed), np.concatenate(moved)),
        "For values that are parameters themselves, or orthonormal tokens without b_V. In general "
        "Δv_j = −η Σ_k (x_j·x_k + 1) Σ_i α_ik u_i over all tokens k that share W_V and b_V.",
    )


def m_step(heads: Heads) -> np.ndarray:
    """Each value moved to the mean of v_j − u_i over its users."""
    used = heads.attention.sum(axis=-2)[..., None]
    wanted = heads.values[..., None, :, :] - heads.errors[..., :, None, :]
    return np.einsum("...ij,...ijd->...jd", heads.attention, wanted) / used


def fixed_attention_losses(heads: Heads, values: np.ndarray) -> np.ndarray:
    return heads.replaced(values=values).losses.sum(axis=-1)


@LEDGER.claim(
    "m-step",
    where="Foundational learning, EM intuition; abstract",
    statement="The values' step −η Σ_i α_ij u_i is the M-step μ_j ← Σ_i γ_ij x_i / Σ_i γ_ij: the "
    "mean of its users' wishes weighted by responsibility.",
    hypotheses="Free values. Query i wishes v_j − u_i; random heads, causal or not, W_O scaled to "
    "a given spectral norm.",
    kind="identity",
    recorded="holds_corrected",
    broken={"norm": 20.0},
)
def m_step_row(norm: float = 2.0) -> Finding:
    residues, pairs, falls = [], [], []
    for heads in map(random_heads, BOTH):
        size = np.linalg.norm(heads.output, 2, axis=(-2, -1))[:, None, None]
        heads = heads.replaced(output=norm * heads.output / size)
        step, used = m_step(heads) - heads.values, heads.attention.sum(axis=-2)[..., None]
        best = np.sum(step * heads.pull, (1, 2)) / np.sum(heads.pull**2, (1, 2))
        rest = step - best[:, None, None] * heads.pull
        residues.append(np.sum(rest**2, (1, 2)) / np.sum(step**2, (1, 2)))
        pairs.append((step, -heads.pull / used))
        falls.append(heads.losses.sum(axis=-1) - fixed_attention_losses(heads, m_step(heads)))
    measured, claimed = (np.concatenate(side) for side in zip(*pairs, strict=True))
    small = three_keys()
    printed = inequality(
        1e-9 - np.sqrt(np.concatenate(residues)),
        counterexample=lambda _: {
            "usage": small.attention.sum(axis=0).tolist(),
            "printed_step_over_eta": (-small.pull[:, 0]).tolist(),
            "m_step": (m_step(small) - small.values)[:, 0].tolist(),
            "least_relative_distance_over_eta": float(np.sqrt(np.concatenate(residues)).min()),
            "run": rerun_free(
                small,
                "r = h.routing(h.start); p = -np.asarray(r.attention[0]).T @ np.asarray(r.error[0])"
                "; print(p.T, p.T / r.usage[0])",
            ),
        },
    )
    same = identity(measured, claimed)
    return corrected(
        printed,
        in_turn(inequality(np.concatenate(falls)), same),
        "With a rate of its own for each value, η_j = 1/Σ_i α_ij; one common η moves much used "
        "values too far against rarely used ones. Like an M-step it then lowers the loss at fixed "
        "attention if the spectral norm of W_O is at most 2; beyond it may raise it.",
    )


def opposite_labels() -> Projected:
    """Two equal tokens with labels 0 and 1, and logits that are even."""
    params = {"W_Q": [[1.0]], "W_K": [[1.0]], "W_V": [[0.5]], "W_O": [[1.0, -1.0]]}
    params |= {"b_Q": [0.0], "b_K": [0.0], "b_V": [0.0], "b_O": [-0.5, 0.5]}
    blocks = {name: np.array([value]) for name, value in params.items()}
    return Projected(np.ones((1, 1, 2, 1)), np.array([[[0, 1]]]), blocks, causal=False)


def silent() -> Heads:
    """An error that W_O does not see: labels 0, of which it knows nothing."""
    output = np.array([[0.0, 1.0, -1.0]])
    return Heads(np.zeros((2, 2)), np.zeros((2, 1)), output, np.zeros(3), np.zeros(2, int))


def singular(matrix: np.ndarray, which: int) -> np.ndarray:
    """The singular value of this number; they fall."""
    return np.linalg.svd(matrix, compute_uv=False)[..., which]


@LEDGER.claim(
    "values-continue",
    where="Mechanism 3, Section 6.1",
    statement="Unless the loss is exactly zero, u_i is non-zero, and so is the values' gradient.",
    hypotheses="Mended on random heads with free values, one sequence, causal or not.",
    kind="inequality",
    recorded="holds_corrected",
    broken={"singular_value": 0},
)
def values_continue(singular_value: int = -1) -> Finding:
    still = opposite_labels()
    slopes = block_slopes(still, 1.0)
    gradient = float(np.sqrt(sum(np.sum(x**2) for x in slopes.values())))
    heads, mute = still.heads, silent()
    printed = inequality(
        [gradient - 1e-9, np.abs(mute.errors).max() - 1e-9],
        counterexample=lambda _: {
            "labels": [0, 1],
            "loss": float(heads.losses.mean()),
            "gradient_norm": gradient,
            "errors": heads.errors.ravel().tolist(),
            "W_O_that_hides_the_error_of_label_0": mute.output.tolist(),
            "loss_there": float(mute.losses.mean()),
            "errors_there": mute.errors.ravel().tolist(),
            "run": rerun(
                "h = af.Head(inputs=np.ones((1, 2, 1)), targets=np.array([[0, 1]]), start=dict("
                "W_Q=np.ones((1, 1)), W_K=np.ones((1, 1)), W_V=0.5 * np.ones((1, 1)), "
                "W_O=np.array([[1.0, -1.0]]), b_O=np.array([-0.5, 0.5])), classes=2, "
                "causal=False); g = af.head.closed_gradients(h, h.start); "
                "print(h.loss(h.start), sum((x**2).sum() for x in g.values())**0.5, "
                "h.routing(h.start).error)"
            ),
        },
    )
    slack = []
    for heads in map(random_heads, BOTH):
        # p − e_y sums to 0; d_v = C − 1, so that the least singular value is the last
        centred = heads.output - heads.output.mean(axis=-1, keepdims=True)
        seen, mixes = (singular(x, singular_value) for x in (centred, heads.attention))
        wrong = 1 - np.exp(-heads.losses)
        sizes = np.linalg.norm(heads.errors, axis=-1)
        slack.append((sizes - seen[:, None] * wrong).ravel())
        flow = np.linalg.norm(heads.pull, axis=(-2, -1))
        slack.append(flow - mixes * np.linalg.norm(sizes, axis=-1))
    return corrected(
        printed,
        inequality(np.concatenate(slack)),
        "|u_i| ≥ σ (1 − e^(−loss_i)), σ the least singular value of W_O on vectors of sum zero: it "
        "is positive only if d_v ≥ C − 1. The values' gradient is αᵀu, at least σ_min(α) |u|: it "
        "cannot vanish for free values under an attention of full rank (every causal one), but "
        "does where the users of a value pull it evenly apart, as at a minimum of the loss of "
        "anything unpredictable.",
    )
