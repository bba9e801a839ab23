"""The statements of the U-shape paper (two-token dot-product attention)."""

import functools

import jax
import numpy as np
from scipy.special import expit

from attnflow.models.two_token import TwoToken
from attnflow.papers.ledger import Finding, Ledger, identity

LEDGER = Ledger("u_shape")


def printed_loss(sigma, p):
    """Σ log(1 + exp((1 − p)(2σ_i − 1)))."""
    return np.log1p(np.exp((1 - p)[:, None] * (2 * sigma - 1))).sum(axis=1)


@functools.cache
def random_states(cases: int = 200, seed: int = 0):
    """Two-token models in width 3 at random matrices: observables and autodiff gradients."""
    rng = np.random.default_rng(seed)
    p = rng.uniform(-0.95, 0.95, cases)
    matrices = rng.normal(scale=2.0, size=(cases, 3, 3))
    with jax.enable_x64(True):

        def look(p, matrix):
            model = TwoToken(p=p, d=3)
            return model.observe(matrix), jax.grad(model.loss)(matrix), model.tokens()

        seen = jax.jit(jax.vmap(look))(p, matrices)
        observed, gradients, tokens = jax.tree.map(np.asarray, seen)
    return p, matrices, observed, gradients, tokens


@LEDGER.claim(
    "lemma-3.1",
    where="Lemma 3.1, equation (1)",
    statement="The loss is Σ_i log(1 + exp((1 − p)(2σ_i − 1))): it depends on M only through the "
    "attention σ_i that each token pays to the wrong one.",
    kind="identity",
    recorded="holds",
    broken={"formula": lambda sigma, p: printed_loss(sigma, p / 2)},
)
def lemma_3_1(formula=printed_loss) -> Finding:
    p, _, observed, _, _ = random_states()
    return identity(formula(observed["sigma"], p), observed["loss"])
