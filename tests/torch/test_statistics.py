"""Against the dense map in float64, over one table of cases."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")

from attnflow import attention as registry  # noqa: E402
from attnflow.instruments import effective_support, entropy  # noqa: E402
from attnflow.torch import (  # noqa: E402
    Attention,
    attention_statistics,
    fused_statistics,
    statistics_from_lse,
)

B, H, T, D = 2, 4, 9, 6


def tensors(seed=0, key_heads=H, keys=T, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    q = torch.randn(B, H, T, D, generator=g, dtype=torch.float64)
    k = torch.randn(B, key_heads, keys, D, generator=g, dtype=torch.float64)
    return q.to(dtype), k.to(dtype)


def padding():
    seen = torch.ones(B, 1, 1, T, dtype=torch.bool)
    seen[0, ..., 6:] = False
    return seen


def alibi():
    distance = torch.arange(T)[:, None] - torch.arange(T)
    return -0.3 * torch.arange(1, H + 1)[:, None, None] * distance.abs()


CASES = {
    "full": {},
    "causal": {"causal": True},
    "scaled": {"causal": True, "scale": 2.0},
    "window": {"causal": True, "window": 3},
    "padding": {"mask": padding()},
    "causal and padding": {"causal": True, "mask": padding()},
    "additive bias": {"causal": True, "bias": alibi()},
    "minus infinity as mask": {"bias": torch.where(padding(), 0.0, -math.inf)},
    "soft cap": {"causal": True, "softcap": 0.8},
    "sink": {"causal": True, "sink": torch.tensor([-1.0, 0.0, 1.0, 3.0])},
}


def dense(
    q, k, causal=False, window=None, mask=None, bias=None, softcap=None, sink=None, scale=None
):
    """Rows of the map, loop by loop."""
    group = q.shape[1] // k.shape[1]
    size = k.shape[2]
    weights = np.zeros((B, H, T, size))
    seen = np.zeros((B, H, T, size), bool)
    for b in range(B):
        for h in range(H):
            for i in range(T):
                place = i + size - T
                score = {}
                for j in range(size):
                    s = float(q[b, h, i] @ k[b, h // group, j]) * (scale or 1 / math.sqrt(D))
                    s = softcap * math.tanh(s / softcap) if softcap else s
                    if bias is not None:
                        s += float(bias.expand(B, H, T, size)[b, h, i, j])
                    hidden = (causal and j > place) or (window and j <= place - window)
                    if mask is not None:
                        hidden = hidden or not bool(mask.expand(B, H, T, size)[b, h, i, j])
                    if not hidden and s > -math.inf:
                        score[j] = s
                total = sum(math.exp(s) for s in score.values())
                total += math.exp(float(sink[h])) if sink is not None else 0
                for j, s in score.items():
                    weights[b, h, i, j], seen[b, h, i, j] = math.exp(s) / total, True
    return weights, seen.sum(-1)


@pytest.mark.parametrize("block", [2, 128])
@pytest.mark.parametrize("key_heads", [H, 2, 1])
@pytest.mark.parametrize("case", CASES)
def test_statistics_are_those_of_the_dense_map(case, key_heads, block):
    q, k = tensors(key_heads=key_heads)
    found = attention_statistics(q, k, Attention(**CASES[case]), key_mass=(0, -1), block=block)
    weights, visible = dense(q, k, **CASES[case])
    shares = weights / weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(found.entropy, entropy(shares), atol=1e-13)
    np.testing.assert_allclose(found.sparsity, shares.max(-1), atol=1e-14)
    np.testing.assert_allclose(found.sum_of_squares, (weights**2).sum(-1), atol=1e-14)
    np.testing.assert_allclose(found.greatest, weights.max(-1), atol=1e-14)
    np.testing.assert_allclose(found.row_sum, weights.sum(-1), atol=1e-13)
    np.testing.assert_allclose(found.support, effective_support(weights), rtol=1e-12)
    np.testing.assert_allclose(found.key_mass, weights[..., [0, -1]], atol=1e-14)
    np.testing.assert_array_equal(found.visible, visible)
    jacobian = np.apply_along_axis(lambda w: np.diag(w) - np.outer(w, w), -1, weights)
    trace = np.trace(jacobian, axis1=-2, axis2=-1)
    if "sink" not in CASES[case]:
        np.testing.assert_allclose(found.jacobian_trace, trace, atol=1e-13)
        relative = entropy(weights) / np.log(np.maximum(visible, 2))
        np.testing.assert_allclose(found.relative_entropy, relative, atol=1e-13)
    several = visible > 1
    others = (weights.sum(-1) - weights.max(-1))[several] / (visible[several] - 1)
    ratio = np.log(weights.max(-1)[several] / others)
    np.testing.assert_allclose(found.log_ratio.numpy()[several], ratio, rtol=1e-9)
    assert np.isinf(found.log_ratio.numpy()[~several]).all()


@pytest.mark.parametrize("name", registry.names())
def test_statistics_of_every_attention_of_the_registry(name):
    q, k = (x.abs() for x in tensors())  # scores of one sign: no row of the signed ones adds to 0
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    seen = torch.ones(T, T, dtype=torch.bool).tril()
    weights = registry.get(name)(scores, seen, heads=-3).numpy()
    found = attention_statistics(q, k, Attention(causal=True, function=name), block=4)
    np.testing.assert_allclose(found.row_sum, weights.sum(-1), rtol=1e-12)
    np.testing.assert_allclose(found.entropy, entropy(weights, normalize=True), atol=1e-12)
    np.testing.assert_allclose(found.sparsity, weights.max(-1) / weights.sum(-1), rtol=1e-12)
    np.testing.assert_allclose(found.key_mass[..., 0], weights[..., 0], rtol=1e-12)


def test_biases_of_joint_heads():
    q, k = tensors()
    bias = torch.tensor([-1.0, 0.0, 1.0, 3.0], dtype=torch.float64)
    found = attention_statistics(q, k, Attention(function="bayes_softmax", sink=bias))
    scores = (q @ k.transpose(-1, -2) / math.sqrt(D) + bias[:, None, None]).exp()
    weights = H * scores / scores.sum((1, 3), keepdim=True)
    torch.testing.assert_close(found.row_sum, weights.sum(-1))


def test_queries_after_a_cache():
    """Fewer queries than keys: they are the last ones."""
    q, k = tensors(keys=T + 5)
    found = attention_statistics(q, k, Attention(causal=True))
    weights, visible = dense(q, k, causal=True)
    np.testing.assert_array_equal(found.visible, visible)
    np.testing.assert_allclose(found.entropy, entropy(weights), atol=1e-13)


def test_some_rows_are_those_rows():
    q, k = tensors()
    rows = torch.tensor([7, 2])
    options = Attention(causal=True, bias=alibi())
    some, every = (attention_statistics(q, k, options, rows=r) for r in (rows, None))
    for a, b in zip(some, every, strict=True):
        torch.testing.assert_close(a, b[:, :, rows], equal_nan=True)


def test_rows_that_see_nothing_are_no_numbers():
    q, k = tensors()
    mask = torch.ones(B, 1, T, T, dtype=torch.bool)
    mask[0, :, 3] = False
    found = attention_statistics(q, k, Attention(mask=mask))
    assert torch.isnan(found.entropy[0, :, 3]).all()
    assert torch.isfinite(found.entropy[1]).all()
    assert (found.visible[0, :, 3] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_measured_exactly(dtype):
    q, k = tensors(dtype=dtype)
    found = attention_statistics(q, k, Attention(causal=True))
    truth = attention_statistics(q.double(), k.double(), Attention(causal=True))
    torch.testing.assert_close(found.entropy.double(), truth.entropy, atol=2e-6, rtol=0)


def test_extreme_scores_stay_finite():
    q, k = tensors()
    found = attention_statistics(1e4 * q, 1e4 * k, Attention(causal=True))
    assert torch.isfinite(found.entropy).all()
    assert float(found.greatest.max()) == 1.0


def test_entropy_and_squares_from_a_fused_pass():
    q, k = tensors()
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    weights = scores.softmax(-1)
    squares = torch.logsumexp(2 * scores, -1)
    found = statistics_from_lse(q, torch.logsumexp(scores, -1), weights @ k, squares)
    np.testing.assert_allclose(found[0], entropy(weights.numpy()), atol=1e-12)
    np.testing.assert_allclose(found[1], (weights**2).sum(-1), atol=1e-13)


@pytest.mark.parametrize("key_heads", [H, 2])
@pytest.mark.parametrize("case", ["full", "causal", "scaled", "padding"])
def test_two_fused_passes_give_entropy_and_squares(case, key_heads):
    q, k = tensors(key_heads=key_heads)
    options = CASES[case]
    lse, entropies, squares = fused_statistics(q, k, **options)
    truth = attention_statistics(q, k, Attention(**options))
    torch.testing.assert_close(lse, truth.lse, atol=1e-12, rtol=0)
    torch.testing.assert_close(entropies, truth.entropy, atol=1e-11, rtol=0)
    torch.testing.assert_close(squares, truth.sum_of_squares, atol=1e-12, rtol=0)


def test_an_additive_mask_has_no_entropy_from_fused_passes():
    q, k = tensors()
    with pytest.raises(ValueError, match="booleans"):
        fused_statistics(q, k, mask=torch.zeros(T, T))


def test_no_tensor_is_as_large_as_the_map(monkeypatch):
    """At T = 1,024 the map has 2²⁰ numbers a head; the largest tensor made has 16 rows of it."""
    largest = []
    real = torch.exp
    monkeypatch.setattr(torch, "exp", lambda x: largest.append(x.numel()) or real(x))
    q = torch.randn(1, 2, 1024, 8)
    found = attention_statistics(q, q, Attention(causal=True), block=16)
    assert found.entropy.shape == (1, 2, 1024)
    assert max(largest) == 2 * 16 * 1024


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k: attention_statistics(q[0], k), "queries must be"),
        (lambda q, k: attention_statistics(q, k[..., :3]), "differ in batch or width"),
        (lambda q, k: attention_statistics(q, k[:, :3]), "3 key heads cannot serve 4"),
        (lambda q, k: attention_statistics(q, k, key_mass=(9,)), "there are 9 keys"),
        (lambda q, k: attention_statistics(q, k, Attention(sink=torch.zeros(3))), "one logit"),
        (lambda q, k: attention_statistics(q, k, rows=torch.arange(0)), "rows is empty"),
        (lambda q, k: Attention(window=2), "only causal"),
        (lambda q, k: Attention(function="softmx"), "did you mean 'softmax'"),
        (lambda q, k: Attention(function="relu", sink=torch.zeros(4)), "relu has none"),
        (lambda q, k: Attention(softcap=-1.0), "softcap"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(*tensors())
