"""More words and more tokens: the extensions of section 4."""

import functools

import numpy as np

from attnflow.models.self_attention import SelfAttention
from attnflow.papers.ledger import Finding, corrected, identity, inequality
from attnflow.papers.u_shape import _plane as plane
from attnflow.papers.u_shape._flows import LEDGER, active_part, lifted, with_gaps
from attnflow.papers.u_shape._plane import expit
from attnflow.papers.u_shape._variations import planar_end


@functools.cache
def vocabulary_states(lean: float | None, cases: int = 60, seed: int = 5):
    """Tokens, matrices and gradients at random states with three extra words.

    lean: every extra word has |⟨w, g⟩| at most `lean` × (1 − p), and the gaps are random; None:
    words of any length, and equal positive gaps.
    """
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(cases, 2, 3))
    tokens /= np.linalg.norm(tokens, axis=-1, keepdims=True)
    p = np.sum(tokens[:, 0] * tokens[:, 1], axis=-1)
    equal, different = rng.uniform(0.1, 5, size=(cases, 1)), rng.uniform(-6, 6, size=(cases, 2))
    gaps = np.tile(equal, 2) if lean is None else different
    matrices = with_gaps(tokens, rng.normal(size=(cases, 3, 3)), gaps)
    extra = rng.normal(scale=3.0, size=(cases, 3, 3))
    if lean is not None:
        g = tokens[:, 1] - tokens[:, 0]
        tilt = np.einsum("rkd,rd->rk", extra, g)
        kept = lean * (1 - p)[:, None] * np.tanh(tilt)
        extra += ((kept - tilt) / np.sum(g * g, axis=1)[:, None])[..., None] * g[:, None]
    import jax

    with jax.enable_x64(True):

        def gradient(tokens, matrix, extra):
            return jax.grad(SelfAttention(tokens, matrix, extra).loss)(matrix)

        gradients = np.asarray(jax.jit(jax.vmap(gradient))(tokens, matrices, extra))
    return tokens, matrices, gradients


@LEDGER.claim(
    "vocabulary-conservation",
    where="Section 4 (extensions), V > 2",
    statement="With extra words in the vocabulary the gradient keeps its row space span(g), so the "
    "conservation law and the (a, b) reduction survive.",
    kind="identity",
    recorded="holds",
    broken={"direction": lambda tokens: tokens[:, 1] + tokens[:, 0]},
)
def vocabulary_conservation(direction=lambda tokens: tokens[:, 1] - tokens[:, 0]) -> Finding:
    tokens, _, gradients = vocabulary_states(None)
    g = direction(tokens)
    g /= np.linalg.norm(g, axis=1, keepdims=True)
    rows = np.einsum("rde,re,rf->rdf", gradients, g, g)
    first = identity(rows, gradients)
    second = identity(lifted(tokens, active_part(tokens, gradients)), gradients)
    return max(first, second, key=lambda found: found.margin)


def vocabulary_slope(words, xi, p):
    """∂ℒ/∂ξ_i = (1 + Σ_k z_k w_k·(x_j − x_i)) σ_i (1 − σ_i) for orthonormal tokens, the first two
    of `words`, with z the predicted distribution of row i."""
    from scipy.special import softmax

    del p
    sigma = expit(xi)
    right, wrong = 1 - sigma, sigma
    rows = [[right[..., 0], wrong[..., 0]], [wrong[..., 1], right[..., 1]]]
    outputs = np.moveaxis(np.array(rows), (0, 1), (-2, -1))
    z = softmax(outputs @ words.T, axis=-1) @ (words[:, 1] - words[:, 0])
    return (1 + z * [1, -1]) * sigma * (1 - sigma)


@LEDGER.claim(
    "vocabulary-extension",
    where="Section 4 (extensions), V > 2",
    statement="With extra words in the vocabulary the U-shape carries over unchanged: the norm "
    "falls at first and diverges in the end.",
    kind="sign",
    recorded="holds_corrected",
    broken={"lean": 6.0},
)
def vocabulary_extension(lean: float = 1.0) -> Finding:
    words, start = np.array([[1.0, 0], [0, 1], [8, 0], [0, 3]]), np.array([1.0, 6.0])
    slope = functools.partial(vocabulary_slope, words)
    middle, end = planar_end(slope, 0.0, start, 6.0), planar_end(slope, 0.0, start, 7.0)
    sizes = [plane.active_norm2(xi, 0.0) for xi in (start, middle, end)]

    def rising_and_bounded(_):
        return {
            "tokens": words[:2].tolist(),
            "extra": words[2:].tolist(),
            "start": [[0, 1], [6, 0]],
            "initial_slope_of_norm2": -2 * float(start @ slope(start, 0.0)),
            "norm2_change_in_the_end": float(sizes[2] - sizes[0]),
            "wrong_attention_in_the_end": expit(end).tolist(),
            "run": "python -c 'import attnflow as af, numpy as np; print(af.gradient_flow("
            "af.SelfAttention(np.eye(2), np.array([[0.,1.],[6.,0.]]), np.array([[8.,0.],[0.,3.]]))"
            ", t1=1e3, points=60).norm2.values)'",
        }

    falls, grows = start @ slope(start, 0.0), sizes[2] - sizes[1] - 1e-6
    printed = inequality([falls, grows], counterexample=rising_and_bounded)
    tokens, _, gradients = vocabulary_states(lean)
    pulls = active_part(tokens, gradients) * [1, -1]  # ∂ℒ/∂ξ_i, as in Lemma 3.2
    _, matrices, anything = vocabulary_states(None)
    falling = 2 * np.sum(matrices * anything, axis=(1, 2))
    mended = inequality(np.concatenate([pulls.min(axis=1), falling]))
    return corrected(
        printed,
        mended,
        "It carries over when no extra word leans further than the tokens, |⟨w, g⟩| ≤ 1 − p: then "
        "both ∂ℒ/∂ξ_i stay positive. For c0 = c1 the first fall survives any vocabulary; the "
        "divergence does not.",
    )


@functools.cache
def token_gradients(n: int, d: int, cases: int = 20, seed: int = 6):
    """Random tokens, and the gradients at random matrices.

    For n = d = 3 the first two cases are plain: M = 0 and simple tokens.
    """
    rng = np.random.default_rng(seed)
    tokens, matrices = rng.normal(size=(cases, n, d)), rng.normal(size=(cases, d, d))
    if n == d == 3:
        tokens[0], tokens[1] = [[1, 0, 0], [0, 1, 0], [0.6, 0, 0.8]], np.eye(3)
        matrices[:2] = 0.0
    import jax

    with jax.enable_x64(True):

        def gradient(tokens, matrix):
            return jax.grad(SelfAttention(tokens, matrix).loss)(matrix)

        gradients = np.asarray(jax.jit(jax.vmap(gradient))(tokens, matrices))
    return tokens, gradients


@LEDGER.claim(
    "tokens-rank",
    where="Section 4 (extensions), n > 2",
    statement="With n tokens the gradient can have rank up to n(n − 1)/2.",
    kind="identity",
    recorded="holds_corrected",
    broken={"bound": lambda n, d: min(d, n)},
)
def tokens_rank(bound=lambda n, d: min(d, n - 1)) -> Finding:
    printed, mended, ratios = [], [], []
    for n, d in ((3, 3), (4, 3), (5, 5)):
        spectrum = np.linalg.svd(token_gradients(n, d)[1], compute_uv=False)
        spectrum /= spectrum[:, :1]
        ranks = np.sum(spectrum > 1e-12, axis=1)
        printed.append(ranks.max() == min(d, n * (n - 1) // 2))
        mended.append((ranks == bound(n, d)).all())
        ratios.append(spectrum[:, n - 1 :].max(initial=0.0))
    shown = {
        "tokens": np.eye(3).tolist(),
        "start": np.zeros((3, 3)).tolist(),
        "rank": int(np.linalg.matrix_rank(token_gradients(3, 3)[1][1])),
        "printed": 3,
        "run": "python -c 'import attnflow as af, jax, numpy as np; z=np.zeros((3,3)); "
        "print(np.linalg.matrix_rank(jax.grad(af.SelfAttention(np.eye(3), z).loss)(z)))'",
    }
    worst, cases = max(ratios), 20 * len(ratios)
    return corrected(
        Finding("holds" if all(printed) else "refuted", worst, cases, shown),
        Finding("holds" if all(mended) else "refuted", worst, cases),
        "The rank is at most min(d, n − 1), and generically equal to it: the row space is spanned "
        "by the differences of the tokens, since each row of ∂ℒ/∂L sums to 0.",
    )


@LEDGER.claim(
    "tokens-conservation",
    where="Theorem 3.3, read for n > 2",
    statement="With n linearly independent tokens the row sums of L are conserved.",
    hypotheses="Checked as d/dt = 0 at random states, which is the same for every gradient flow.",
    kind="identity",
    recorded="holds_corrected",
    broken={"weights": lambda gram: gram @ np.ones(len(gram))},
)
def tokens_conservation(weights=lambda gram: np.linalg.solve(gram, np.ones(len(gram)))) -> Finding:
    tokens, gradients = token_gradients(3, 3)
    rates = -tokens @ gradients @ np.swapaxes(tokens, 1, 2)  # dL/dt
    shown = {
        "tokens": tokens[0].tolist(),
        "start": np.zeros((3, 3)).tolist(),
        "row_sum_rates": rates[0].sum(axis=1).tolist(),
        "run": "python -c 'import attnflow as af, numpy as np; x=np.array([[1,0,0],[0,1,0],"
        "[.6,0,.8]]); f=af.gradient_flow(af.SelfAttention(x, np.zeros((3,3))), t1=100., points=5); "
        'print(f.logits.sum("key").values, f.conserved.values)\'',
    }
    kept = np.stack([rate @ weights(x @ x.T) for rate, x in zip(rates, tokens, strict=True)])
    scale = np.abs(rates).max()
    drift, left = np.abs(rates.sum(axis=2)).max() / scale, np.abs(kept).max() / scale
    return corrected(
        Finding("holds" if drift < 1e-9 else "refuted", drift, len(rates), shown),
        Finding("holds" if left < 1e-9 else "refuted", left, len(rates)),
        "What is conserved is L G⁻¹ 1 with G the Gram matrix of the tokens: the row sums only if "
        "all rows of G have the same sum, as they do for two unit tokens.",
    )
