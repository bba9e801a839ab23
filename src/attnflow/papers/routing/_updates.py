"""What a step does to scores and attention, statement by statement."""

import numpy as np
from scipy.special import softmax

from attnflow.papers.ledger import Finding, corrected, identity, inequality
from attnflow.papers.routing._gradients import BOTH
from attnflow.papers.routing._ledger import (
    LEDGER,
    Heads,
    differentiated,
    in_turn,
    random_heads,
    random_projected,
    rerun,
    rerun_free,
)

# Tokens with labels 0 and 1, q = 1 and 4, k = 0.5 and 0, v = ±1 towards class 0: the longer query
# turns the keys against the other.
PAIR = (
    "h = af.Head(inputs=np.eye(2)[None], targets=np.array([[0, 1]]), start=dict("
    "W_Q=np.array([[1.0], [4.0]]), W_K=np.array([[0.5], [0.0]]), W_V=np.array([[1.0], [-1.0]]), "
    "W_O=np.array([[1.0, -1.0]])), classes=2, causal=False)"
)


def pair() -> tuple[np.ndarray, np.ndarray]:
    """Advantages of the pair's keys, and the first-order change of its scores for η = 1."""
    q, k, values = np.array([1.0, 4.0]), np.array([0.5, 0.0]), np.array([[1.0], [-1.0]])
    output, targets = np.array([[1.0, -1.0]]), np.array([0, 1])
    heads = Heads(np.outer(q, k), values, output, np.zeros(2), targets)
    rise = heads.attention * heads.advantage / 2
    return heads.advantage, np.outer(rise @ k, k) + np.outer(q, rise.T @ q)


def three_keys() -> Heads:
    """One query thrice: label 0, values 1, 0.5 and −1 towards it, scores 2, 0 and 1."""
    scores, values = np.tile([2.0, 0.0, 1.0], (3, 1)), np.array([[1.0], [0.5], [-1.0]])
    return Heads(scores, values, np.array([[1.0, -1.0]]), np.zeros(2), np.zeros(3, int))


@LEDGER.claim(
    "score-update",
    where="Mechanism 1",
    statement="A step of descent raises s_ij where b_ij lies below its mean under the attention of "
    "i, and lowers it where above.",
    hypotheses="To first order. Random heads with free scores, and with W_Q, W_K trained, causal "
    "or not; hidden pairs left out.",
    kind="sign",
    recorded="holds_corrected",
    broken={"mended": "every pair"},
)
def score_update(mended: str = "free scores") -> Finding:
    free, pairs, whole = [], [], []
    for causal in BOTH:
        heads, (slopes, gradient) = random_heads(causal), differentiated(causal)
        seen = heads.visible & (np.abs(heads.advantage) > 1e-9)
        free.append((-slopes["scores"] * np.sign(heads.advantage))[seen])
        made = random_projected(causal)
        heads, rate = made.heads, 1e-6
        change = (made.stepped(gradient, rate).heads.scores - heads.scores) / rate
        seen = heads.visible & (np.abs(heads.advantage) > 1e-9)
        pairs.append((change * np.sign(heads.advantage))[seen])
        whole.append(np.sum(heads.attention * heads.advantage * change, axis=(1, 2, 3)))
    printed = inequality(
        np.concatenate(pairs),
        counterexample=lambda _: {
            "wrong_share_of_pairs": float(np.mean(np.concatenate(pairs) < 0)),
            "labels": [0, 1],
            "queries": [1, 4],
            "keys": [0.5, 0],
            "values": [1, -1],
            "advantage": pair()[0][0].tolist(),
            "change_of_scores": pair()[1][0].tolist(),
            "run": rerun(
                f"{PAIR}; print(h.routing(h.start).advantage[0, 0], "
                "af.head.first_order(h, h.start, 1.0).scores[0, 0])"
            ),
        },
    )
    true = inequality(np.concatenate([*free, *whole]))
    return corrected(
        printed,
        true if mended == "free scores" else printed,
        "For scores that are parameters themselves. Trained through W_Q and W_K, the scores move "
        "by a positive semidefinite mixture of all pairs' pulls: Σ_ij α_ij A_ij Δs_ij ≥ 0, "
        "single scores either way.",
    )


def drift(heads: Heads) -> np.ndarray:
    """Slope of the attention as the scores descend the summed loss: J (α A), J = diag α − ααᵀ."""
    a, gain = heads.attention, heads.attention * heads.advantage
    return a * (gain - np.sum(a * gain, axis=-1, keepdims=True))


def moved_attention(heads: Heads, rate: float = 1e-7) -> np.ndarray:
    """The same by a step."""
    after = heads.replaced(scores=heads.scores + rate * heads.attention * heads.advantage)
    return (after.attention - heads.attention) / rate


@LEDGER.claim(
    "attention-reallocation",
    where="Mechanism 1, key results",
    statement="A step moves attention mass towards every position whose value is better than "
    "average for the query.",
    hypotheses="To first order, scores free; random heads, causal or not, and one of three keys.",
    kind="sign",
    recorded="holds_corrected",
    broken={"baseline": 0.0},
)
def attention_reallocation(baseline: float = 1.0) -> Finding:
    small, slack, gains, found, claimed = three_keys(), [], [], [], []
    for heads in (*map(random_heads, BOTH), small):
        moved, helpful = drift(heads), heads.helpful
        slack.append(moved[helpful])
        gains.append(np.sum(moved * heads.advantage, axis=-1)[helpful.any(axis=-1)])
        a, gain = heads.attention, heads.attention * heads.advantage
        found.append(moved_attention(heads).ravel())
        claimed.append((a * (gain - baseline * np.sum(a * gain, axis=-1, keepdims=True))).ravel())
    printed = inequality(
        np.concatenate(slack),
        counterexample=lambda _: {
            "losing_share_of_helpful_pairs": float(np.mean(np.concatenate(slack) < 0)),
            "attention": small.attention[0].tolist(),
            "advantage": small.advantage[0].tolist(),
            "change_of_attention": drift(small)[0].tolist(),
            "run": rerun_free(
                small,
                "r = h.routing(h.start); "
                "s = h.start['scores'] - 0.1 * af.head.pulls(h, h.start).scores[0]; "
                "n = h.routing(dict(h.start, scores=s)); "
                "print(r.advantage[0, 0], n.attention[0, 0] - r.attention[0, 0])",
            ),
        },
    )
    held = identity(np.concatenate(found), np.concatenate(claimed), tolerance=1e-5)
    return corrected(
        printed,
        in_turn(held, inequality(np.concatenate(gains))),
        "Scores of helpful keys rise, but α_ij grows only if α_ij A_ij > Σ_k α_ik² A_ik: little "
        "used helpful keys lose mass to much used ones. On the whole it helps: "
        "Σ_j A_ij Δα_ij ≥ 0.",
    )


@LEDGER.claim(
    "advantage-decreases-loss",
    where="Section 3.4",
    statement="Where the advantage A_ij is positive a little more attention to j (or a little more "
    "score) lowers the loss, where negative it raises it; a small step along the advantages "
    "lowers it.",
    hypotheses="Small changes, as assumed there: 1e-5 of the attention or of the score. Random "
    "heads, causal or not.",
    kind="sign",
    recorded="holds",
    broken={"centred": False},
)
def advantage_decreases_loss(centred: bool = True) -> Finding:
    slack, little = [], 1e-5
    for heads in map(random_heads, BOTH):
        before = heads.losses
        advantage = heads.advantage if centred else -heads.compatibility
        for j in range(heads.length):
            seen = heads.visible[..., j] & (np.abs(advantage[..., j]) > 1e-3)
            sign = np.sign(advantage[..., j])
            more = heads.replaced(scores=heads.scores + little * np.eye(heads.length)[j])
            slack.append((sign * (before - more.losses) / little)[seen])
            slack.append((sign * (before - shared(heads, j, little)) / little)[seen])
        along = heads.replaced(scores=heads.scores + little * heads.attention * heads.advantage)
        slack.append((before - along.losses).sum(axis=-1) / little)
    return inequality(np.concatenate([each.ravel() for each in slack]))


def shared(heads: Heads, key: int, share: float | np.ndarray) -> np.ndarray:
    """Losses of the queries when each gives `share` of its attention to `key`."""
    share = np.asarray(share)[..., None]
    mixed = (1 - share) * heads.mixed + share * heads.values[..., key, None, :]
    logits = mixed @ heads.output + heads.bias[..., None, :]
    chances = softmax(logits, axis=-1)
    return -np.log(np.take_along_axis(chances, heads.targets[..., None], axis=-1)[..., 0])


def overshooting() -> Heads:
    """Two keys with the logits 0 and (4, 6, −16), label 0, all attention but 1e-4 on the first."""
    values = np.array([[0.0, 0.0, 0.0], [4.0, 6.0, -16.0]])
    scores = np.tile([0.0, np.log(1e-4)], (2, 1))
    return Heads(scores, values, np.eye(3), np.zeros(3), np.zeros(2, int))


@LEDGER.claim(
    "advantage-any-amount",
    where="Section 3.4",
    statement="Where the advantage A_ij is positive, increasing the attention to j reduces the "
    "loss, by whatever amount.",
    hypotheses="The document assumes small rates; this asks how small. A share t of query i's "
    "attention goes to j, the rest shrinks by 1 − t.",
    kind="inequality",
    recorded="holds_corrected",
    broken={"safe": 80.0},
)
def advantage_any_amount(safe: float = 8.0) -> Finding:
    small, slack, below, convex = overshooting(), [], [], []
    for heads in (*map(random_heads, BOTH), small):
        before, seen = heads.losses, heads.visible
        for j in range(heads.length):
            gain = heads.advantage[..., j]
            way = (heads.values[..., j, None, :] - heads.mixed) @ heads.output
            safely = np.clip(safe * gain / np.maximum(np.ptp(way, axis=-1), 1e-9) ** 2, 0, 1)
            helpful = seen[..., j] & (gain > 1e-6)
            below.append((before - shared(heads, j, 0.999 * safely))[helpful])
            for share in (0.01, 0.3, 0.99):
                after = shared(heads, j, share)
                convex.append((after - before + share * gain)[seen[..., j]])
                slack.append((before - after)[helpful])
    printed = inequality(
        np.concatenate(slack),
        counterexample=lambda _: {
            "logits_of_the_keys": small.values.tolist(),
            "target": 0,
            "advantage": small.advantage[0].tolist(),
            "loss_before": float(small.losses[0]),
            "loss_with_0.99_on_key_1": float(shared(small, 1, 0.99)[0]),
            "run": rerun_free(
                small,
                "s = np.tile([0.0, np.log(99.0)], (2, 1)); r = h.routing(h.start); "
                "n = h.routing(dict(h.start, scores=s)); "
                "print(r.advantage[0, 0], *-np.log([r.chances[0, 0, 0], n.chances[0, 0, 0]]))",
            ),
        },
    )
    return corrected(
        printed,
        in_turn(
            inequality(np.concatenate(convex), tolerance=1e-12), inequality(np.concatenate(below))
        ),
        "A share t lowers the loss while t < 8 A_ij / R², R the range over the classes of the "
        "change of logits (v_j − z_i) W_O at t = 1. The loss is convex in t, so that a key of "
        "negative advantage never lowers it, whatever the share.",
    )
