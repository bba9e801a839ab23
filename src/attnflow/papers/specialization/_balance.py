"""Where bias and gain of softmax-1 settle while m = r = 0: lemma A.4."""

from itertools import product

import numpy as np

from attnflow.papers.ledger import Finding, corrected, identity, inequality
from attnflow.papers.specialization._expansion import slope
from attnflow.papers.specialization._ledger import LEDGER, all_of, rerun

HEADS, TOKENS, BIASES = (1, 2, 4), (2, 5, 10), (-1.0, 0.0, 1.0)


def risk_at_rest(b, v, tokens: int):
    """The risk of softmax-1 at m = r = 0 for biases b, one a head."""
    output = np.mean(v / (tokens + np.exp(b)))
    return (1 - output) ** 2 + (tokens - 1) * output**2


def in_one_bias(heads: int, tokens: int, b: float, v: float) -> float:
    return slope(lambda x: risk_at_rest(x, v, tokens), np.full(heads, b))[0]


def in_common_bias(heads: int, tokens: int, b: float, v: float) -> float:
    return float(slope(lambda x: risk_at_rest(np.full(heads, x), v, tokens), np.array(b)))


def in_gain(heads: int, tokens: int, b: float, v: float) -> float:
    return float(slope(lambda x: risk_at_rest(np.full(heads, b), x, tokens), np.array(v)))


def equation_33(heads: int, tokens: int, b: float, v: float) -> float:
    Z = tokens + np.exp(b)
    return -2 * (tokens * v / Z - 1) * v / heads * np.exp(b) / Z**2


def equation_34(heads: int, tokens: int, b: float, v: float) -> float:
    del heads
    Z = tokens + np.exp(b)
    return 2 * (tokens * v / Z - 1) / Z


def rates_at(heads: int, tokens: int, b: float) -> np.ndarray:
    """Eigenvalues of the linearized flow of (common b, v) at L v = L + e^b, least first. Each b_h
    moves by its own derivative, so the common one by 1/H of the derivative in it."""
    at = np.array([b, 1 + np.exp(b) / tokens])

    def field(x):
        args = heads, tokens, *x
        return -np.array([in_one_bias(*args), in_gain(*args)])

    step = 1e-5 * np.eye(2)
    jacobian = np.array([(field(at + e) - field(at - e)) / 2e-5 for e in step]).T
    return np.sort(np.linalg.eigvals(jacobian).real)


def rate_across(heads: int, tokens: int, b: float) -> float:
    Z = tokens + np.exp(b)
    return -2 * tokens / Z**2 - 2 * np.exp(2 * b) / (heads * tokens * Z**2)


@LEDGER.claim(
    "lemma-a.4",
    where="Lemma A.4, equations (33) to (36)",
    statement="At m = r = 0 the derivatives of the softmax-1 risk in the common b and in v are "
    "(33) and (34); the fixed points L v = L + e^b attract; at b = 0, v = 1 the signs are + and −.",
    hypotheses="H = 1, 2, 4, L = 2, 5, 10, b from −1 to 1, v from 0.5 to 2.",
    kind="identity",
    recorded="holds_corrected",
    broken={"meant": "gain"},
)
def lemma_a_4(meant: str = "one") -> Finding:
    tries = list(product(HEADS, TOKENS, BIASES, (0.5, 1.0, 2.0)))
    derivative = {"one": in_one_bias, "gain": in_gain}[meant]
    claimed = [equation_33(*each) for each in tries]
    common = [in_common_bias(*each) for each in tries]
    printed = identity(claimed, common)
    on_the_line = list(product(HEADS, TOKENS, BIASES))
    rates = np.array([rates_at(*each) for each in on_the_line])
    lines = np.array([[rate_across(*each), 0.0] for each in on_the_line])
    starts = [each for each in tries if each[2:] == (0.0, 1.0)]
    signs = inequality([[in_one_bias(*each), -in_gain(*each)] for each in starts])
    mended = all_of(
        identity(claimed, [derivative(*each) for each in tries]),
        identity([equation_34(*each) for each in tries], [in_gain(*each) for each in tries]),
        identity(rates, lines, tolerance=1e-8),
    )
    worst = int(np.argmax(np.abs(np.array(claimed) - common)))
    heads, tokens, b, v = tries[worst]
    shown = {
        "heads": heads,
        "tokens": tokens,
        "b": b,
        "v": v,
        "equation_33": claimed[worst],
        "derivative_in_the_common_b": common[worst],
        "derivative_in_one_b": in_one_bias(heads, tokens, b, v),
        "rates_around_a_fixed_point": rates[0].tolist(),
        "run": rerun(
            f"import jax; H, L, b, v = {heads}, {tokens}, {b}, {v}; m = af.SingleLocation("
            "af.single_location.flipping_spike(), tokens=L, heads=H, activation='softmax_1'); "
            "f = lambda b: m.loss(dict(m=np.zeros((H, 2)), r=np.zeros((H, H)), "
            "b=jax.numpy.full(H, b), v=v)); "
            "print(jax.grad(f)(b), -2 * (L*v/(L + np.exp(b)) - 1) * v/H * np.exp(b)"
            "/(L + np.exp(b))**2)"
        ),
    }
    return corrected(
        Finding(printed.verdict, printed.margin, printed.cases, shown),
        mended if signs.good else signs,
        "(33) is the derivative in one b_h; in the common b it has no 1/H. The fixed points are a "
        "line, Z = L + e^b: it attracts across, at the rate 2L/Z² + 2e^(2b)/(H L Z²), and is "
        "neutral along.",
    )
