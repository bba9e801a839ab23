"""The experiments' transformer, against PyTorch's own."""

import copy
import dataclasses
import math
import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")

from torch import nn  # noqa: E402

from attnflow import attention as registry  # noqa: E402
from attnflow.attention import normalizations  # noqa: E402
from attnflow.attention.registry import _REGISTRY  # noqa: E402
from attnflow.torch.kernels import KERNELS  # noqa: E402
from attnflow.torch.modules import attention_modules  # noqa: E402
from attnflow.torch.probe import probe  # noqa: E402
from attnflow.torch.statistics import attention_rows  # noqa: E402
from attnflow.torch.transformer import Transformer, TransformerConfig  # noqa: E402
from tests.torch.tiny import SMALL, small, tokens  # noqa: E402

EVERY = sorted([*KERNELS, *registry.names()])
TABLE = ["softmax", "uniform"] + [
    name + ending
    for name in ("sigmoid", "elu", "elu_elu", "mlp", "linear")
    for ending in ("", "_normalized")
]


def torch_layer(block, causal):
    """PyTorch's encoder layer with the weights of a block."""
    layer = nn.TransformerEncoderLayer(
        16, 2, 24, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    attention, (norm, up, _, down) = block.attention, block.mlp
    names = {
        "self_attn.in_proj_": attention.qkv,
        "self_attn.out_proj.": attention.o_proj,
        "linear1.": up,
        "linear2.": down,
        "norm1.": block.attention_norm,
        "norm2.": norm,
    }
    state = {start + x: getattr(m, x) for start, m in names.items() for x in ("weight", "bias")}
    layer.load_state_dict(state)
    hidden = nn.Transformer.generate_square_subsequent_mask(7) if causal else None
    return lambda x: layer(x, src_mask=hidden)


@pytest.mark.parametrize("causal", [True, False])
def test_softmax_is_that_of_torch(causal):
    model = small(causal=causal)
    x = model.embed(tokens()) + model.positions.weight
    for block in model.blocks:
        x = torch_layer(block, causal)(x)
    wanted = model.readout(nn.functional.layer_norm(x, (16,)))
    torch.testing.assert_close(model(tokens()), wanted, atol=1e-5, rtol=1e-5)


def test_the_table_has_twelve():
    assert len(TABLE) == 12
    assert set(TABLE) <= set(EVERY)


def dense_weights(attention, name, x):
    """Weights of one layer's attention by the definition, in loops over queries and heads."""
    heads, d = attention.heads, attention.head_dim
    q, k, _ = attention.qkv(x).unflatten(-1, (3, heads, d)).permute(2, 0, 3, 1, 4).detach()
    found = torch.zeros(len(x), heads, x.shape[1], x.shape[1])
    for b, h, i in np.ndindex(found.shape[:3]):
        a, c = q[b, h, i], k[b, h, : i + 1]
        scale = 1 / math.sqrt(d)
        if name.startswith("elu_elu"):
            a, c, scale = nn.functional.elu(a) + 1, nn.functional.elu(c) + 1, 1.0
        if name.startswith("mlp"):
            up, down = attention.feature.up, attention.feature.down
            a, c = (down(nn.functional.gelu(up(each))).detach() for each in (a, c))
        s = scale * (c @ a)
        kind = name.removesuffix("_normalized")
        similarity = {
            "softmax": s.exp(),
            "uniform": torch.ones_like(s),
            "sigmoid": s.sigmoid(),
            "elu": nn.functional.elu(s) + 1,
        }.get(kind, s)
        total = torch.ones(())
        if name in ("softmax", "uniform") or name.endswith("_normalized"):
            total = similarity.sum()
        if name in ("linear_normalized", "mlp_normalized"):
            total = total.abs().clamp_min(1)
        found[b, h, i, : i + 1] = similarity / total
    return found


@pytest.mark.parametrize("name", TABLE)
def test_maps_and_mixtures_are_those_of_the_definition(name):
    attention = small(attention=name).blocks[0].attention
    x = 2 * torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    maps = []
    out = attention(x, maps)
    weights = dense_weights(attention, name, x)
    torch.testing.assert_close(maps[0], weights, atol=1e-5, rtol=1e-4)
    v = attention.qkv(x)[..., 32:].unflatten(-1, (2, 8)).transpose(1, 2)
    wanted = attention.o_proj((weights @ v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(out, wanted, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_the_future_does_not_leak(name):
    model = small(attention=name)
    with torch.no_grad():  # scores above zero: relu_normalized is 0/0 where a row has none
        for block in model.blocks:
            block.attention.qkv.bias[:32] += 2
    one = tokens(1)
    other = one.clone()
    other[0, 4:] = (other[0, 4:] + 1) % 11
    a, b = model(one).detach(), model(other).detach()
    assert torch.isfinite(a).all()
    torch.testing.assert_close(a[0, :4], b[0, :4], atol=1e-6, rtol=1e-5)
    assert float((a[0, 4:] - b[0, 4:]).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["softmax", "softmax_1", "bayes_softmax", "mlp_normalized"])
def test_maps_are_the_captured_ones(name):
    model = small(attention=name, learn_bias=name in ("softmax_1", "bayes_softmax"))
    if model.blocks[0].attention.bias is not None:
        nn.init.normal_(model.blocks[0].attention.bias)
    logits, maps = model(tokens(), maps=True)
    assert maps.shape == (2, 3, 2, 7, 7)
    assert torch.equal(logits, model(tokens()))
    modules = attention_modules(model)
    found = probe(model, ((tokens(),), {}), modules)
    for each, weights in zip(modules, maps, strict=True):
        capture = found.captures[each.name]
        rows = attention_rows(capture.queries, capture.keys, capture.attention, torch.arange(7))
        torch.testing.assert_close(rows.weights, weights, atol=0, rtol=0)


def test_one_attention_a_layer():
    model = small(attention=("sigmoid", "softmax_1"), learn_bias=True)
    first, second = (block.attention for block in model.blocks)
    assert (first.law, second.law) == ("sigmoid", "softmax_1")
    assert first.bias is None
    assert second.attnflow_bias.shape == (2,)
    model(tokens()).square().sum().backward()
    assert float(second.attnflow_bias.grad.abs().min()) > 0


def test_an_attention_of_the_user(monkeypatch):
    mine = registry.Attention("cubed_here", lambda x: x**3, normalizations.clamped_sum)
    monkeypatch.setitem(_REGISTRY, "cubed_here", mine)
    _, maps = small(attention="cubed_here")(tokens(), maps=True)
    assert torch.isfinite(maps).all()
    assert float(maps.min()) < 0


@pytest.mark.parametrize("positions", ["additive", "concatenated", "none"])
def test_positions(positions):
    model = small(positions=positions, causal=False)
    widths = {"additive": 16, "concatenated": 8, "none": 16}
    assert model.embed.weight.shape == (11, widths[positions])
    if positions == "none":
        assert model.positions is None
        order = torch.tensor([3, 1, 0, 2, 6, 5, 4])
        torch.testing.assert_close(model(tokens())[:, order], model(tokens()[:, order]))
        assert model(tokens(length=9)).shape == (3, 9, 11)
        return
    assert model.positions.weight.shape == (7, widths[positions])
    same = torch.full((1, 7), 4)
    out = model(same)[0]
    assert not torch.allclose(out[0], out[1])
    stream = model._placed(same)[0]
    part = stream - model.embed.weight[4] if positions == "additive" else stream[:, 8:]
    torch.testing.assert_close(part, model.positions.weight)


def test_vectors_after_a_start():
    model = small(vocabulary=0, patch=5, start=True, read="first", causal=False, outputs=3)
    out, maps = model(torch.randn(2, 6, 5), maps=True)
    assert out.shape == (2, 3)
    assert maps.shape[-2:] == (7, 7)


@pytest.mark.parametrize("read", ["first", "last"])
@pytest.mark.parametrize("more", [{}, {"mlp": 0}, {"norm": False, "layers": 1}])
def test_one_place_is_read_as_among_all(read, more):
    every = small(causal=False, **more)
    one = small(causal=False, read=read, **more)
    place = 0 if read == "first" else -1
    torch.testing.assert_close(one(tokens()), every(tokens())[:, place])


def test_norms_and_mlps_can_be_left_out():
    bare = small(norm=False, mlp=0, layers=1)
    assert not [m for m in bare.modules() if isinstance(m, nn.LayerNorm | nn.GELU)]
    full = small(layers=1)
    assert sum(isinstance(m, nn.LayerNorm) for m in full.modules()) == 3


def test_same_seed_same_weights_and_no_random_number_is_used():
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    a, b, c = small(seed=3), small(seed=3), small(seed=4)
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.readout.weight, c.readout.weight)
    torch.manual_seed(3)
    again = Transformer(SMALL)
    assert torch.equal(again.readout.weight, a.readout.weight)


def test_weights_begin_as_pytorch_makes_them():
    model: Any = Transformer(
        TransformerConfig(vocabulary=2000, learn_bias=True, attention="softmax_1"), seed=0
    )
    table = model.embed.weight.detach()
    assert float(table.mean()) == pytest.approx(0, abs=0.01)
    assert float(table.std()) == pytest.approx(1, abs=0.01)
    assert float(model.positions.weight.detach().std()) == pytest.approx(1, abs=0.1)
    block = model.blocks[0]
    for linear in (block.attention.qkv, block.attention.o_proj, block.mlp[3], model.readout):
        bound = 1 / math.sqrt(linear.in_features)
        for values in (linear.weight.detach(), linear.bias.detach()):
            assert 0.9 * bound < float(values.abs().max()) <= bound
        assert float(linear.weight.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)
    assert (block.attention_norm.weight == 1).all()
    assert (block.attention.attnflow_bias == 0).all()


def test_tied_weights():
    model = small(tied=True)
    assert model.readout.weight is model.embed.weight
    assert "readout.weight" not in dict(model.named_parameters())


def test_it_can_be_copied_and_saved(tmp_path):
    model = small(attention="softmax_1", learn_bias=True)
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    other = small(seed=1, attention="softmax_1", learn_bias=True)
    other.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    assert torch.equal(other(tokens()), copy.deepcopy(model)(tokens()))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"heads": 3}, "16 is no multiple of 3"),
        ({"width": 15, "heads": 3, "positions": "concatenated"}, "it must be even"),
        ({"positions": "additve"}, "did you mean 'additive'"),
        ({"attention": "softmx"}, "did you mean 'softmax'"),
        ({"attention": ("softmax",) * 3}, "3 names for 2 layers"),
        ({"learn_bias": True}, "softmax has no bias"),
        ({"patch": 4}, "either tokens"),
        ({"vocabulary": 0}, "either tokens"),
        ({"tied": True, "outputs": 5}, "as many outputs"),
        ({"layers": 0}, "layers"),
        ({"mlp": -1}, "mlp"),
        ({"read": "middle"}, "read"),
    ],
)
def test_bad_configs(fields, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **fields)


def test_bad_inputs():
    with pytest.raises(ValueError, match="9 positions, and the model knows 7"):
        small()(tokens(length=9))
    with pytest.raises(ValueError, match="token numbers"):
        small()(torch.randn(2, 7, 16))
    with pytest.raises(ValueError, match="vectors"):
        small(vocabulary=0, patch=5)(tokens())


@pytest.mark.slow
def test_compiled_it_gives_the_same():
    model = small()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = torch.compile(model)(tokens())
    torch.testing.assert_close(found, model(tokens()), atol=1e-5, rtol=1e-5)
