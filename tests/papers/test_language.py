"""Parts of the experiments on language models that need no training."""

import numpy as np
import pytest

from attnflow import attention
from attnflow.attention import registry
from attnflow.papers import pretrained
from attnflow.papers.ledger import NeedsData
from attnflow.papers.polarization import _language


@pytest.fixture(autouse=True)
def _a_registry_of_its_own(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def test_the_shifted_sigmoid_starts_with_rows_near_one():
    name = _language.shifted_sigmoid(64)
    weights = attention.get(name)(np.zeros(64))
    assert weights.sum() == pytest.approx(64 / 65)
    assert _language.shifted_sigmoid(64) == name  # once is enough


def test_both_models_of_a_pair_start_and_see_alike(monkeypatch):
    torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
    pytest.importorskip("transformers", reason="the extra [torch] is not installed")
    config = _language.Pair(layers=2, heads=2, width=16, length=16, batch=2, steps=2, sequences=2)
    text = np.frombuffer(b"To be, or not to be, that is the question. " * 50, np.uint8)
    monkeypatch.setattr(_language, "encoded", lambda _: text)
    models = [_language.build(config, kind, 0) for kind in _language.ATTENTIONS]
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(a, b)
    first, second = (next(_language.batches(text, config, 0)) for _ in range(2))
    assert torch.equal(first, second)
    assert (first[:, 0] == _language.SYMBOLS).all()
    ds = _language.compare(config)
    assert ds.sparsity.shape == (2, 1, 2, 2)
    assert ((ds.sparsity > 0) & (ds.sparsity <= 1)).all()
    model, _ = _language.trained(config, "softmax", 0)
    model.set_attn_implementation("eager")
    ids = _language.held_out(config)
    maps = torch.stack(model(input_ids=ids, output_attentions=True).attentions).detach().numpy()
    expected = (maps.max(-1) / maps.sum(-1)).mean((1, 3))  # the published pseudocode
    np.testing.assert_allclose(ds.sparsity.sel(attention="softmax")[0], expected, rtol=1e-4)
    from attnflow.papers.polarization._language_figures import draw

    assert len(draw(ds).axes) == 2


def test_absent_data_are_told(monkeypatch, tmp_path):
    pytest.importorskip("transformers", reason="the extra [torch] is not installed")
    monkeypatch.delenv("ATTNFLOW_DATA", raising=False)
    monkeypatch.setenv(pretrained.SMOLLM2, str(tmp_path / "absent.gguf"))
    with pytest.raises(NeedsData, match="ATTNFLOW_DATA"):
        pretrained.text("wikitext-2")
    with pytest.raises(NeedsData, match="ATTNFLOW_DATA"):
        pretrained.stories()
    with pytest.raises(NeedsData, match="names no file"):
        pretrained.smollm2()
    assert "ATTNFLOW_DATA" in pretrained.missing(lambda: pretrained.text("tinyshakespeare"))
    assert pretrained.missing(pretrained.needs_torch) == ""
