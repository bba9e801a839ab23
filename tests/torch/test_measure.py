"""One number a head, against loops over the dense map in float64."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
pytest.importorskip("transformers", reason="the extra [torch] is not installed")

from attnflow.torch.measure import QUANTITIES, Budget, head_numbers, measure  # noqa: E402
from attnflow.torch.modules import attention_modules  # noqa: E402
from attnflow.torch.probe import Capture, probe  # noqa: E402
from attnflow.torch.statistics import Attention  # noqa: E402
from attnflow.torch.weights import interaction_norms  # noqa: E402
from tests.torch import zoo  # noqa: E402

B, H, K, T, D = 2, 4, 2, 12, 6


def capture(seed=0, attention=None, gradient=True):
    g = torch.Generator().manual_seed(seed)

    def draw(heads):
        return torch.randn(B, heads, T, D, generator=g, dtype=torch.float64)

    attention = Attention(causal=True) if attention is None else attention
    return Capture(draw(H), draw(K), draw(K), attention, draw(H) if gradient else None)


def dense(c, present=None):
    """Weights (batch, head, query, key) of causal softmax attention."""
    k = c.keys.repeat_interleave(H // K, 1)
    scores = c.queries @ k.transpose(-1, -2) / math.sqrt(D)
    seen = torch.ones(T, T).tril().bool().expand(B, H, T, T)
    if present is not None:
        seen = seen & present[:, None, None, :]
    return scores.masked_fill(~seen, -math.inf).softmax(-1).numpy(), scores.numpy(), seen.numpy()


def looked_at(c, rows, present=None):
    return {k: v.numpy() for k, v in head_numbers(c, rows, present, exact=3).items()}


PRESENT = torch.ones(B, T, dtype=torch.bool)
PRESENT[0, :3] = False  # padding on the left


@pytest.mark.parametrize("present", [None, PRESENT], ids=["whole", "padded"])
def test_masses_and_routing_by_loops(present):
    mask = None if present is None else present[:, None, None, :]
    c = capture(attention=Attention(causal=True, mask=mask))
    rows = torch.tensor([4, 7, 11])
    weights, _, seen = dense(c, present)
    found = looked_at(c, rows, present)
    assert c.gradient is not None
    values = c.values.repeat_interleave(H // K, 1).numpy()
    for h in range(H):
        first, entropy, got, best, helpful, force = [], [], [], [], [], []
        for b in range(B):
            start = 0 if present is None or b == 1 else 3
            for i in rows.tolist():
                w, see = weights[b, h, i], seen[b, h, i]
                first.append(w[start])
                entropy.append(-sum(p * math.log(p) for p in w if p > 0))
                gain = values[b, h] @ c.gradient[b, h, i].numpy()
                got.append(w @ gain)
                advantage = w @ gain - gain
                best.append(advantage[see].max())
                helpful.append(w[(advantage > 0) & see].sum())
                force.append(np.linalg.norm(w * advantage))
        for name, truth in {
            "first_mass": first,
            "entropy": entropy,
            "compatibility": got,
            "advantage": best,
            "helpful_mass": helpful,
            "score_gradient": force,
        }.items():
            assert found[name][h] == pytest.approx(np.mean(truth), rel=1e-9), name


def test_sinks_are_found_where_they_are():
    c = capture()
    keys = c.keys.clone()
    queries = c.queries.clone()
    queries[:, 1, :, 0] = 10.0
    keys[:, 0, :, 0] = 0.0
    keys[:, 0, 2, 0] = 20.0  # key 2 draws the attention of head 1
    c = Capture(queries, keys, c.values, c.attention)
    found = looked_at(c, torch.arange(4, T))
    assert found["sink_key"][1] == 2
    assert found["sink_mass"][1] > 0.99
    assert found["first_mass"][1] < 0.01


def test_condition_numbers_by_eigenvalues():
    c = capture()
    rows = torch.tensor([5, 8, 11])
    weights, _, _ = dense(c)
    found = looked_at(c, rows)
    for h in range(H):
        logs, bounds = [], []
        for b in range(B):
            for i in rows.tolist():
                w = weights[b, h, i, : i + 1]
                values = np.linalg.eigvalsh(np.diag(w) - np.outer(w, w))[1:]
                logs.append(np.log10(values[-1] / values[0]))
                bounds.append(2 * np.log10(w.max() / w.min()))
        assert found["log10_kappa"][h] == pytest.approx(np.mean(logs), rel=1e-6)
        assert found["log10_kappa_bound"][h] == pytest.approx(np.mean(bounds), rel=1e-9)


def test_twins_and_values():
    c = capture()
    queries = c.queries.clone()
    queries[:, 1] = queries[:, 0]  # heads 0 and 1 share their keys too
    c = Capture(queries, c.keys, c.values, c.attention)
    found = looked_at(c, torch.arange(3, T))
    assert found["redundancy"][0] == pytest.approx(1.0)
    assert (found["twin"][0], found["twin"][1]) == (1, 0)
    assert (found["redundancy"][2:] < 0.99).all()
    flat = c.values[:, 0].reshape(-1, D).numpy()
    spectrum = np.linalg.eigvalsh(np.cov(flat.T))
    assert found["value_dimension"][0] == pytest.approx(
        spectrum.sum() ** 2 / (spectrum**2).sum(), rel=1e-4
    )
    lengths = np.linalg.norm(c.values[:, 0].numpy(), axis=-1)
    assert found["first_value"][0] == pytest.approx(
        lengths[:, 0].mean() / lengths[:, 1:].mean(), rel=1e-5
    )


def test_contributions_are_lengths_behind_the_output_projection():
    c = capture()
    rows = torch.tensor([5, 8])
    output = torch.randn(H, D, 10, dtype=torch.float64)
    output[2] = 0  # a dead head
    found = head_numbers(c, rows, None, 1, output)["contribution"]
    weights, _, _ = dense(c)
    heads = torch.from_numpy(weights) @ c.values.repeat_interleave(H // K, 1)
    lengths = torch.einsum("bhid,hdw->bhiw", heads[:, :, rows], output).norm(dim=-1).mean((0, 2))
    torch.testing.assert_close(found, lengths / lengths.mean())
    assert found[2] == 0


def test_unnormalized_attention_has_shares_but_no_condition_number():
    found = looked_at(
        capture(attention=Attention(causal=True, function="sigmoid")), torch.arange(3, T)
    )
    assert "log10_kappa" not in found
    assert (found["row_sum"] > 1).all()
    assert (found["first_mass"] < 1).all()


@pytest.mark.parametrize("name", zoo.MODELS)
def test_interaction_norms_are_those_of_the_product(name):
    for module in attention_modules(zoo.built(name)):
        q, k = module.query.matrices(), module.key.matrices()  # pyright: ignore
        group = module.heads // module.key_heads
        truth = [float((q[h].T @ k[h // group]).norm()) for h in range(module.heads)]
        np.testing.assert_allclose(interaction_norms(module).numpy(), truth, rtol=1e-5)


def test_every_quantity_of_a_model_is_measured():
    model = zoo.built("gpt2")
    modules = attention_modules(model)
    found = probe(model, ((), zoo.inputs("gpt2", length=20)), modules)
    data = measure(modules, found, Budget(), torch.Generator().manual_seed(0))
    assert set(data) == set(QUANTITIES)
    assert all(np.isfinite(data[name]).all() for name in data)
    assert data.module.values.tolist() == ["transformer.h.0.attn", "transformer.h.1.attn"]


def test_rows_are_drawn_within_the_sequence():
    g = torch.Generator().manual_seed(0)
    rows = Budget(rows=5, skip=8).draw(100, g)
    assert len(rows) == 5
    assert rows.min() >= 8
    assert Budget(rows=50).draw(8, g).tolist() == [2, 3, 4, 5, 6, 7]
    assert Budget().draw(1, g).tolist() == [0]
