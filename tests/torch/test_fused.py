"""The kernel and the blocks against attention written out, over one table of cases."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")

from attnflow.torch import fused  # noqa: E402
from attnflow.torch.fused import fused_attention  # noqa: E402
from tests.oracles import torch_attention as oracle  # noqa: E402

B, H, T, S, D = 2, 4, 5, 7, 6


def random(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def tensors(key_heads=H, queries=T, keys=S, wide=D, dtype=torch.float64):
    return (
        random(B, H, queries, D, seed=1, dtype=dtype),
        random(B, key_heads, keys, D, seed=2, dtype=dtype),
        random(B, key_heads, keys, wide, seed=3, dtype=dtype),
    )


def some(*shape):
    """Booleans, a row and a whole sequence of which are all False."""
    seen = random(*shape, seed=4) > -0.3
    if len(shape) == 4 and shape[2] > 1:
        seen[0, :, 1] = False
    if len(shape) == 4 and shape[0] > 1:
        seen[1, ..., : shape[3] // 2] = False
    return seen


LATE = torch.arange(600) >= 520  # whole blocks of the kernel are hidden
CASES = {
    "full": {},
    "scaled": {"scale": 2.0},
    "keys in groups": {"key_heads": 2},
    "wide values": {"wide": 9},
    "narrow values": {"wide": 2, "key_heads": 1},
    "one query": {"queries": 1, "causal": True},
    "one key": {"keys": 1},
    "causal": {"keys": T, "causal": True},
    "causal after a cache": {"causal": True},
    "causal with more queries than keys": {"keys": 3, "causal": True},
    "padding": {"mask": some(B, 1, 1, S)},
    "mask of two dimensions": {"mask": some(T, S)},
    "mask a head": {"mask": some(1, H, T, S)},
    "whole mask": {"mask": some(B, H, T, S)},
    "nothing is seen": {"mask": torch.zeros(1, 1, 1, 1, dtype=torch.bool)},
    "causal and padding": {"keys": T, "causal": True, "mask": some(B, 1, 1, T)},
    "causal and mask": {"keys": T, "causal": True, "mask": some(B, 1, T, T)},
    "causal after a cache, and mask": {"causal": True, "mask": some(B, 1, T, S)},
    "added": {"mask": random(1, H, T, S)},
    "added in single precision": {"mask": random(B, 1, T, S).float()},
    "causal and added": {"keys": T, "causal": True, "mask": random(B, H, T, T)},
    "added minus infinity": {"mask": torch.where(some(B, 1, T, S), 0.3, -math.inf)},
    "added lowest number": {"mask": torch.where(some(B, 1, T, S), 0.3, torch.finfo().min)},
    "added -10,000 in half precision": {
        "mask": torch.where(some(B, 1, T, S), 0.0, -1e4).to(torch.bfloat16)
    },
    "many keys": {"keys": 600, "mask": LATE & some(1, 1, T, 600), "key_heads": 1},
}


@pytest.fixture(params=["kernel", "blocks"])
def path(request, monkeypatch):
    if request.param == "blocks":
        monkeypatch.setattr(fused, "_has_kernel", lambda q: False)
    return request.param


def arguments(case, dtype=torch.float64):
    options = dict(CASES[case])
    sizes = {x: options.pop(x) for x in ("key_heads", "queries", "keys", "wide") if x in options}
    return tensors(**sizes, dtype=dtype), options


def numpy(options):
    mask = options.get("mask")
    mask = mask.double() if mask is not None and mask.is_floating_point() else mask
    return {**options, "mask": mask}


@pytest.mark.parametrize("case", CASES)
def test_output_and_lse_are_those_of_attention_written_out(case, path):
    inputs, options = arguments(case)
    out, lse = fused_attention(*inputs, **options, block=2)
    expected = oracle.attention("softmax", *inputs, **numpy(options))
    np.testing.assert_allclose(out, expected[0], atol=1e-12)
    np.testing.assert_allclose(lse, expected[1], atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_lower_precision(dtype, path):
    for case in ("causal", "causal and added", "many keys", "wide values"):
        inputs, options = arguments(case, dtype)
        out, lse = fused_attention(*inputs, **options)
        expected = oracle.attention("softmax", *(x.double() for x in inputs), **numpy(options))
        assert out.dtype == dtype
        assert lse.dtype == torch.float32
        close = 1e-5 if dtype == torch.float32 else 2e-2
        np.testing.assert_allclose(out.double(), expected[0], atol=close)
        np.testing.assert_allclose(lse, expected[1], atol=1e-5 if close < 1e-4 else 1e-3)


def both(*inputs, **options):
    """Outputs for `gradcheck`, which cannot subtract infinities."""
    out, lse = fused_attention(*inputs, **options, block=2)
    return out, lse.masked_fill(torch.isneginf(lse), 0.0)


GRADIENTS = ["wide values", "narrow values", "causal", "causal after a cache", "causal and mask"]


@pytest.mark.parametrize("case", [*GRADIENTS, "causal and added"])
def test_gradients_are_finite_differences(case, path):
    inputs, options = arguments(case)
    inputs = [x[:1, :, :, :3].requires_grad_() for x in inputs]
    mask = options.pop("mask", None)
    mask = mask if mask is None else mask[:1]
    assert torch.autograd.gradcheck(
        lambda *x: both(*x, mask=mask, **options), inputs, fast_mode=True
    )


def test_second_derivatives(path):
    inputs = [x[:1, :2, :3, :2].requires_grad_() for x in tensors()]
    mask = some(1, 1, 3, 3)
    assert torch.autograd.gradgradcheck(
        lambda *x: both(*x, causal=True, mask=mask), inputs, fast_mode=True
    )


def test_gradient_of_what_is_added():
    inputs = [x[:1].requires_grad_() for x in tensors()]
    added = random(1, H, T, S)
    added[..., 2] = -math.inf
    finite = random(1, H, T, 2).requires_grad_()

    def function(*given):
        mask = torch.cat([given[-1], added[..., 2:]], dim=-1)
        return both(*given[:-1], mask=mask)

    assert torch.autograd.gradcheck(function, (*inputs, finite), fast_mode=True)


@pytest.mark.parametrize("used", ["output", "lse"])
def test_gradients_of_one_result_alone(used, path):
    q, k, v = (x.requires_grad_() for x in tensors())
    scores = q @ k.transpose(-1, -2) / math.sqrt(D)
    dense = {"output": scores.softmax(-1) @ v, "lse": torch.logsumexp(scores, -1)}[used]
    out, lse = fused_attention(q, k, v)
    found = {"output": out, "lse": lse}[used]
    weights = random(*found.shape, seed=9)
    for x in (q, k) if used == "lse" else (q, k, v):
        expected = torch.autograd.grad((dense * weights).sum(), x, retain_graph=True)
        got = torch.autograd.grad((found * weights).sum(), x, retain_graph=True)
        torch.testing.assert_close(got, expected, atol=1e-13, rtol=0)


def test_rows_that_see_nothing_have_no_gradient(path):
    """Even where the gradient that arrives is infinite, as that of lse²."""
    q, k, v = (x.requires_grad_() for x in tensors())
    mask = torch.ones(B, 1, T, S, dtype=torch.bool)
    mask[0, :, 3] = False
    mask[1] = False
    out, lse = fused_attention(q, k, v, mask=mask)
    assert (out[0, :, 3] == 0).all()
    assert torch.isneginf(lse[0, :, 3]).all()
    (out.square().sum() + lse.square().sum()).backward()
    for x in (q, k, v):
        assert x.grad is not None
        assert torch.isfinite(x.grad).all()
        assert (x.grad[1] == 0).all()
    assert (q.grad[0, :, 3] == 0).all()
    assert (q.grad[0, :, 2] != 0).any()


def test_strides_do_not_matter(path):
    """The kernel alone would read transposed tensors wrongly."""
    inputs = tensors()
    twisted = [x.transpose(-1, -2).contiguous().transpose(-1, -2) for x in inputs]
    assert twisted[0].stride(-1) != 1
    torch.testing.assert_close(fused_attention(*twisted), fused_attention(*inputs))


def test_extreme_scores(path):
    q, k, v = (x.requires_grad_() for x in tensors())
    out, lse = fused_attention(1e4 * q, 1e4 * k, v)
    (out.sum() + lse.sum()).backward()
    for x in (out, lse, q.grad, k.grad, v.grad):
        assert torch.isfinite(x).all()


def test_under_autocast(path):
    inputs = tensors(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out, lse = fused_attention(*inputs, causal=True)
    expected = fused_attention(*inputs, causal=True)
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), expected[0], atol=3e-2, rtol=0)
    torch.testing.assert_close(lse, expected[1], atol=3e-2, rtol=0)


def test_no_tensor_is_as_large_as_the_map(path):
    """At T = 512 the map of two heads has 2¹⁹ numbers; the backward pass makes none of it."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            made = result if isinstance(result, tuple | list) else [result]
            sizes = [x.numel() for x in made if isinstance(x, torch.Tensor)]
            self.size = max([self.size, *sizes])
            return result

    q, k, v = (random(1, 2, 512, 8, seed=i).requires_grad_() for i in range(3))
    with Largest() as largest:
        out, lse = fused_attention(q, k, v, causal=True, block=64)
        (out.sum() + lse.sum()).backward()
    assert largest.size <= (2 * 512 * 9 if path == "kernel" else 2 * 64 * 512)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda q, k, v: fused_attention(q[0], k, v), "queries must be numbers"),
        (lambda q, k, v: fused_attention(q, k[:, :, :0], v), "keys must be numbers"),
        (lambda q, k, v: fused_attention(q.long(), k, v), "queries must be numbers"),
        (lambda q, k, v: fused_attention(q, k[..., :3], v), "differ in batch or width"),
        (lambda q, k, v: fused_attention(q, k, v[:, :, 1:]), "do not belong together"),
        (lambda q, k, v: fused_attention(q, k[:, :3], v[:, :3]), "3 key heads cannot serve 4"),
        (lambda q, k, v: fused_attention(q.float(), k, v), "differ in type"),
        (lambda q, k, v: fused_attention(q, k, v, mask=torch.ones(T, S + 1)), "not broadcast"),
        (lambda q, k, v: fused_attention(q, k, v, mask=torch.ones(T, S).long()), "booleans"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(*tensors())
