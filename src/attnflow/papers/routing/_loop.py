"""The loop between attention and values, and when attention stands still."""

import numpy as np

from attnflow.papers.ledger import Finding, corrected, identity, inequality
from attnflow.papers.routing._gradients import BOTH
from attnflow.papers.routing._ledger import LEDGER, Heads, in_turn, random_heads, rerun_free, swap
from attnflow.papers.routing._updates import drift


def change_of_compatibility(heads: Heads, *, errors_move: bool) -> np.ndarray:
    """Slope of b_ij as the values descend: −u_i·g_j, with g_j = Σ_i α_ij u_i, and if errors move
    too + v_j·H_i Δz_i, with H_i = W_O (diag p − ppᵀ) W_Oᵀ and Δz_i = −Σ_k α_ik g_k."""
    held = -heads.errors @ swap(heads.pull)
    if not errors_move:
        return held
    chances = heads.misses + np.eye(heads.output.shape[-1])[heads.targets]
    tilt = -(heads.attention @ heads.pull) @ heads.output
    tilt = chances * (tilt - np.sum(chances * tilt, axis=-1, keepdims=True))
    return held + tilt @ swap(heads.output) @ swap(heads.values)


def change_of_advantage(heads: Heads, change: np.ndarray) -> np.ndarray:
    return np.sum(heads.attention * change, axis=-1, keepdims=True) - change


def opposed() -> Heads:
    """Queries with labels 0 and 1; the second uses value 0 more and pulls it its way."""
    scores, values = np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([[1.0], [0.0]])
    return Heads(scores, values, np.array([[1.0, -1.0]]), np.zeros(2), np.array([0, 1]))


def loop(_) -> dict:
    """The pair (0, 0) of `opposed`, and how often each link holds on random heads."""
    links = []
    for heads in map(random_heads, BOTH):
        change, helpful = change_of_compatibility(heads, errors_move=True), heads.helpful
        gain = change_of_advantage(heads, change)
        links.append(np.array([-change[helpful], gain[helpful], drift(heads)[helpful]]) > 0)
    kept, small = np.concatenate(links, axis=1), opposed()
    change = change_of_compatibility(small, errors_move=True)
    return {
        "share_of_helpful_pairs_whose_compatibility_falls": float(kept[0].mean()),
        "share_whose_advantage_grows": float(kept[1].mean()),
        "share_whose_attention_grows": float(kept[2].mean()),
        "share_with_all_three": float(kept.all(axis=0).mean()),
        "labels": [0, 1],
        "attention": small.attention.tolist(),
        "advantage": float(small.advantage[0, 0]),
        "change_of_compatibility": float(change[0, 0]),
        "change_of_advantage": float(change_of_advantage(small, change)[0, 0]),
        "run": rerun_free(
            small,
            "r = h.routing(h.start); v = h.start['values'] - 0.01 * af.head.pulls(h, "
            "h.start).values[0]; n = h.routing(dict(h.start, values=v)); "
            "print(r.compatibility[0, 0, 0], n.compatibility[0, 0, 0], r.advantage[0, 0, 0], "
            "n.advantage[0, 0, 0])",
        ),
    }


@LEDGER.claim(
    "feedback-loop",
    where="Mechanism 2, Section 4.4",
    statement="Where value j helps query i, the next value step lowers b_ij and raises the "
    "advantage, and α_ij grows, so that u_i weighs more in later steps of v_j.",
    hypotheses="To first order, scores and values free; a value step, then a score step. Random "
    "heads, causal or not.",
    kind="sign",
    recorded="holds_corrected",
    broken={"weighted": False},
)
def feedback_loop(weighted: bool = True) -> Finding:
    links, found, claimed, falls, balance = [], [], [], [], []
    for heads in map(random_heads, BOTH):
        change, held = (change_of_compatibility(heads, errors_move=x) for x in (True, False))
        after = heads.replaced(values=heads.values - 1e-7 * heads.pull)
        found.append((after.compatibility - heads.compatibility) / 1e-7)
        claimed.append(change)
        gain, helpful = change_of_advantage(heads, change), heads.helpful
        links += [-change[helpful], gain[helpful], drift(heads)[helpful]]
        users = heads.attention if weighted else np.ones_like(heads.attention)
        falls.append(-np.sum(users * held, axis=-2).ravel())
        balance.append(np.sum(heads.attention * gain, axis=-1))
    zero = np.concatenate(balance)
    return corrected(
        inequality(np.concatenate(links), counterexample=loop),
        in_turn(
            identity(np.concatenate(found), np.concatenate(claimed), tolerance=1e-5),
            identity(1 + zero, np.ones_like(zero), tolerance=1e-12),
            inequality(np.concatenate(falls)),
        ),
        "With g_j = Σ_i α_ij u_i and errors held, Δb_ij = −η u_i·g_j: it falls on the average of "
        "j's users, Σ_i α_ij Δb_ij = −η|g_j|², and for a single one if u_i·g_j > 0. The advantage "
        "grows if u_i·g_j > Σ_k α_ik u_i·g_k; gains and losses of a query cancel, Σ_j α_ij ΔA_ij "
        "= 0. If all errors are alike the most used keys gain, not the most helpful.",
    )


def saturated() -> Heads:
    """All attention on the harmful one of two values, 40 nats above the helpful one."""
    scores, values = np.tile([40.0, 0.0], (2, 1)), np.array([[-1.0], [1.0]])
    return Heads(scores, values, np.array([[1.0, -1.0]]), np.zeros(2), np.zeros(2, int))


@LEDGER.claim(
    "attention-equalized",
    where="Mechanism 3, Section 6.1",
    statement="Score gradients vanish when, and attention freezes because, b_ij is the same for "
    "all keys of a query.",
    hypotheses="Equal values give equal b_ij. Random heads, causal or not, and one saturated.",
    kind="inequality",
    recorded="holds_corrected",
    broken={"least": np.max},
)
def attention_equalized(least=np.min) -> Finding:
    slack, small = [], saturated()
    for heads in (*map(random_heads, BOTH), small):
        a, far = heads.attention, heads.advantage
        even = heads.replaced(values=np.repeat(heads.values[..., :1, :], heads.length, axis=-2))
        slack.append(-np.abs(even.attention * even.advantage).max(axis=-1))
        size, spread = (np.linalg.norm(x * heads.visible, axis=-1) for x in (a * far, far))
        lowest = least(a, axis=-1, initial=1.0 if least is np.min else 0.0, where=heads.visible)
        slack += [size - lowest * spread, a.max(axis=-1) * spread - size]
    stopped = small.attention * np.abs(small.advantage)
    printed = inequality(
        1e-9 - np.abs(small.advantage[stopped < 1e-9]),
        counterexample=lambda _: {
            "scores": small.scores[0].tolist(),
            "values": small.values[:, 0].tolist(),
            "advantage": small.advantage[0].tolist(),
            "score_gradient": (-small.attention * small.advantage)[0].tolist(),
            "run": rerun_free(
                small,
                "print(h.routing(h.start).advantage[0, 0], "
                "af.head.pulls(h, h.start).scores[0, 0] * 2)",
            ),
        },
    )
    return corrected(
        printed,
        inequality(np.concatenate([each.ravel() for each in slack]), tolerance=1e-12),
        "Equal b_ij is enough, and at finite scores needed for an exact zero: min_j α_ij |A_i| ≤ "
        "|∂L/∂s_i| ≤ max_j α_ij |A_i|. But gradients also become as small as the least used "
        "weight: saturated attention freezes on a harmful value whose rival is far better.",
    )
