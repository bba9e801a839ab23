"""One contract over the whole registry, as functions."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
hf = pytest.importorskip("transformers", reason="the extra [torch] is not installed")

from attnflow import attention as registry  # noqa: E402
from attnflow.attention import normalizations  # noqa: E402
from attnflow.attention.registry import _REGISTRY  # noqa: E402
from attnflow.torch.attention import (  # noqa: E402
    attend,
)
from tests.oracles import torch_attention as oracle  # noqa: E402

NAMES = registry.names()
BIASED = [name for name in NAMES if registry.get(name).takes_bias]
FUSED = ["softmax", "softmax_1", "bayes_softmax"]
B, H, T, D = 2, 4, 5, 6


def random(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def tensors(name, key_heads=2, keys=T, dtype=torch.float64):
    """Where a sum of similarities may vanish, all scores are positive."""
    q, k = random(B, H, T, D, seed=1), random(B, key_heads, keys, D, seed=2)
    if registry.get(name).needs_nonzero_sum:
        q, k = q.abs() + 0.1, k.abs() + 0.1
    return [x.to(dtype) for x in (q, k, random(B, key_heads, keys, D, seed=3))]


def padding(keys=T):
    seen = torch.ones(B, 1, 1, keys, dtype=torch.bool)
    seen[0, ..., :2] = False
    seen[1, ..., 3:] = False
    return seen


def a_row_sees_nothing():
    seen = random(B, H, T, T, seed=4) > -0.5
    seen[0, :, 2] = False
    seen[1, 1, 3] = False
    return seen


def numpy(options):
    return {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in options.items()}


CASES = {
    "full": {},
    "causal": {"causal": True},
    "after a cache": {"causal": True, "keys": T + 3},
    "causal and padding": {"causal": True, "mask": padding()},
    "rows that see nothing": {"mask": a_row_sees_nothing()},
    "added": {"mask": 0.3 * random(1, H, T, T, seed=5).abs(), "scale": 0.7},
    "lowest number as mask": {"mask": torch.where(padding(), 0.0, torch.finfo().min)},
    "soft cap": {"causal": True, "softcap": 0.8},
}


@pytest.mark.parametrize("name", NAMES)
def test_attention_is_as_written_out(name):
    for case, given in CASES.items():
        options = dict(given)
        inputs = tensors(name, keys=options.pop("keys", T))
        biases = [None, 0.4, random(H, seed=6)] if name in BIASED else [None]
        for bias in biases:
            expected, _ = oracle.attention(name, *inputs, bias=bias, **numpy(options))
            for block in (2, 128):
                found = attend(name, *inputs, **options, bias=bias, block=block)
                np.testing.assert_allclose(found, expected, atol=1e-12, err_msg=case)
            single = [x.float() for x in inputs]
            found = attend(name, *single, **options, bias=bias)
            np.testing.assert_allclose(found, expected, atol=1e-5, rtol=1e-5, err_msg=case)


@pytest.mark.parametrize("name", FUSED)
def test_the_fused_pass_is_the_registry_on_scores(name):
    """A soft cap that caps nothing takes the way over the weights."""
    inputs = tensors(name)
    for options in ({"causal": True}, {"mask": a_row_sees_nothing()}):
        dense = attend(name, *inputs, **options, softcap=1e9)
        np.testing.assert_allclose(attend(name, *inputs, **options), dense, atol=1e-12)
    single = [x.float() for x in inputs]
    dense = attend(name, *single, causal=True, softcap=1e6)
    np.testing.assert_allclose(attend(name, *single, causal=True), dense, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_finite_differences(name):
    inputs = [x[:1].requires_grad_() for x in tensors(name)]
    bias = [random(H, seed=6).requires_grad_()] if name in BIASED else []
    mask = a_row_sees_nothing()[:1]

    def function(*given):
        b = given[3] if bias else None
        return attend(name, *given[:3], causal=True, mask=mask, bias=b, block=2)

    assert torch.autograd.gradcheck(function, (*inputs, *bias), fast_mode=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("extreme", [1e4, -1e4])
def test_no_nan_at_extreme_scores(name, extreme):
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64, requires_grad=True)
    scores = torch.tensor([extreme, 1.0, 0.5], dtype=torch.float64)
    values = torch.eye(3, dtype=torch.float64)[None, None]
    found = attend(name, q, scores[None, None, :, None], values, scale=1.0)
    expected = registry.get(name)(scores.numpy())
    np.testing.assert_allclose(found[0, 0, 0].detach(), expected, atol=1e-12)
    found[..., 1].sum().backward()
    assert torch.isfinite(q.grad).all()


@pytest.mark.parametrize("name", NAMES)
def test_rows_that_see_nothing_have_no_gradient(name):
    """Also where the sum of their hidden scores vanishes."""
    q, k, v = (x.requires_grad_() for x in tensors(name, key_heads=H))
    mask = torch.ones(B, 1, T, T, dtype=torch.bool)
    mask[1] = False
    keys = torch.where(mask[..., :1], k.abs(), torch.zeros_like(k))
    attend(name, q.abs(), keys, v, mask=mask).sum().backward()
    for x in (q, k, v):
        assert x.grad is not None
        assert torch.isfinite(x.grad).all()
        assert (x.grad[1] == 0).all()
        assert (x.grad[0] != 0).any()


@pytest.mark.parametrize("name", NAMES)
def test_the_order_of_keys_does_not_matter(name):
    q, k, v = tensors(name)
    order = torch.tensor([3, 0, 4, 1, 2])
    found = attend(name, q, k[:, :, order], v[:, :, order], mask=padding()[..., order])
    torch.testing.assert_close(found, attend(name, q, k, v, mask=padding()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_half_precision(name, dtype):
    inputs = tensors(name, dtype=dtype)
    found = attend(name, *inputs, causal=True)
    expected = attend(name, *(x.double() for x in inputs), causal=True)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, atol=2e-2, rtol=2e-2)


def test_a_sink_keeps_what_weak_scores_do_not_earn():
    q, k = torch.ones(1, 1, 1, 1), torch.tensor([-10.0, -9.0, -8.0])[None, None, :, None]
    mass = attend("softmax_1", q, k, torch.ones(1, 1, 3, 1), scale=1.0).item()
    grown = math.exp(-10) + math.exp(-9) + math.exp(-8)
    assert mass == pytest.approx(grown / (1 + grown), rel=1e-5)
    assert mass == pytest.approx(5.04e-4, rel=1e-2)
    earned = attend("softmax_1", q, k, torch.ones(1, 1, 3, 1), scale=1.0, bias=-10.0).item()
    assert earned == pytest.approx(grown / (math.exp(-10) + grown), rel=1e-5)


def test_one_head_has_nobody_to_compete_with():
    q, k, v = (x[:, :1] for x in tensors("softmax"))
    alone = attend("bayes_softmax", q, k, v, bias=3.0, causal=True)
    torch.testing.assert_close(alone, attend("softmax", q, k, v, causal=True))


def test_nothing_as_large_as_the_map_is_kept():
    """What the backward pass needs of 512 × 512 weights is made again, 64 rows at a time."""
    sizes = []
    q, k, v = (random(1, 1, 512, 4, seed=i).requires_grad_() for i in range(3))
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: sizes.append(x.numel()) or x, lambda x: x
    ):
        attend("sigmoid", q, k, v, block=64)
    assert sum(sizes) < 512 * 512 / 4


@pytest.fixture
def own(monkeypatch):
    law = registry.Attention("cubes", lambda x: x * x * x, normalizations.sink_sum)
    monkeypatch.setitem(_REGISTRY, "cubes", law)
    return law


def test_an_attention_of_your_own(own):
    q, k, v = (x.abs() for x in tensors("softmax", key_heads=H))
    grown = (q @ k.transpose(-1, -2) / math.sqrt(D)) ** 3
    expected = grown / (1 + grown.sum(-1, keepdim=True)) @ v
    torch.testing.assert_close(attend("cubes", q, k, v), expected)
    torch.testing.assert_close(attend(own, q, k, v), expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k, v: attend("sofmax", q, k, v), "did you mean 'softmax'"),
        (lambda q, k, v: attend("softmax", q, k, v, bias=1.0), "softmax has no bias"),
        (lambda q, k, v: attend("softmax_1", q, k, v, bias=torch.zeros(3)), "each of 4 heads"),
        (lambda q, k, v: attend("relu", q, k, v, softcap=0.0), "softcap"),
        (lambda q, k, v: attend("relu", q, k, v, block=0), "block"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(*tensors("softmax"))
