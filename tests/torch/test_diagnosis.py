import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
pytest.importorskip("transformers", reason="the extra [torch] is not installed")

import xarray as xr  # noqa: E402

from attnflow.torch.diagnosis import Limits, diagnose, head_kinds  # noqa: E402
from attnflow.torch.history import dates  # noqa: E402
from attnflow.torch.measure import QUANTITIES, Budget  # noqa: E402
from tests.torch import zoo  # noqa: E402


def with_troubles():
    """A Llama whose first layer has a sink (head 0), an even head (1) and a dead one (3)."""
    model = zoo.build("llama", num_key_value_heads=4)
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = 0.0
        model.model.embed_tokens.weight[1] *= 0.1
        model.model.embed_tokens.weight[1, 0] = 20.0  # token 1, always the first, has a mark
        attention.k_proj.weight[:8] = 0.0
        attention.q_proj.weight[:8] = 0.0
        attention.k_proj.weight[7, 0] = 30.0  # the slowest pair of the rotation
        attention.q_proj.weight[7] = 0.0
        attention.q_proj.weight[8:16] = 0.0
        attention.o_proj.weight[:, 24:] = 0.0
    hook = attention.q_proj.register_forward_hook(_always_ask)
    return model, hook


def _always_ask(module, arguments, output):
    output = output.clone()
    output[..., 7] = 3.0
    return output


@pytest.fixture(scope="module")
def troubled():
    model, _ = with_troubles()
    ids = zoo.inputs("llama", batch=3, length=40)["input_ids"].clamp_min(2)
    ids[:, 0] = 1
    return diagnose(model, {"input_ids": ids, "labels": ids}, name="troubled")


def test_troubles_are_found_where_they_are(troubled):
    assert (0, 0) in troubled.kinds["sink"]
    assert (0, 1) in troubled.kinds["diffuse"]
    assert (0, 3) in troubled.kinds["dead"]
    assert (0, 2) not in {pair for pairs in troubled.kinds.values() for pair in pairs}
    titles = [each.title for each in troubled.advice]
    assert {"Attention sinks", "Dead heads", "Diffuse heads"} <= set(titles)
    dead = next(each for each in troubled.advice if each.title == "Dead heads")
    assert "0.3" in dead.evidence
    assert "{0: [3]}" in dead.code


def test_a_diagnosis_is_plain_data(troubled):
    found = json.loads(json.dumps(troubled.as_dict(), allow_nan=False))
    assert set(found["heads"]) == set(QUANTITIES)
    assert np.shape(found["heads"]["entropy"]) == (2, 4)
    assert found["about"]["heads"] == 8
    assert len(found["stream"]["first_length"]) == 3


def test_sequences_in_pieces_are_those_at_once():
    model = zoo.built("bert")
    ids = zoo.inputs("bert", batch=5, length=16)["input_ids"]
    budget = Budget(rows=16, exact=16, skip=0)  # every row: no draw
    found = diagnose(model, {"input_ids": ids}, budget=budget)
    single = [diagnose(model, {"input_ids": row[None]}, budget=budget) for row in ids]
    pairs = [single[0], single[1]], [single[2], single[3]], [single[4]]
    for name in ("entropy", "log10_kappa", "first_mass", "score_mean"):
        means = [np.mean([each.heads[name] for each in some], axis=0) for some in pairs]
        np.testing.assert_allclose(found.heads[name], np.mean(means, axis=0), rtol=1e-5)
    assert found.about["loss"] is None
    assert np.isnan(found.heads.advantage).all()


@pytest.mark.parametrize("name", ["vit", "gpt_oss", "encoder"])
def test_other_kinds_of_models(name):
    inputs = zoo.inputs(name)
    found = diagnose(zoo.built(name), inputs)
    assert np.isfinite(found.heads.entropy).all()
    assert json.dumps(found.as_dict(), allow_nan=False)


def test_nothing_to_say_of_a_healthy_head():
    data = {name: (("layer", "head"), np.full((1, 2), 0.5)) for name in QUANTITIES}
    heads = xr.Dataset(data)
    heads["first_mass"] = heads.first_mass * 0
    heads["sink_mass"] = heads.sink_mass * 0
    assert not any(head_kinds(heads, Limits()).values())


def test_models_without_attention_are_refused():
    with pytest.raises(ValueError, match="Linear has no attention to diagnose"):
        diagnose(torch.nn.Linear(2, 2), {})
    with pytest.raises(ValueError, match="sink must lie in"):
        Limits(sink=2.0)


def history(first_mass, redundancy, norm):
    steps = len(first_mass)
    shape = ("step", "layer", "head")

    def array(values):
        return shape, np.asarray(values, float).reshape(steps, 1, -1)

    return xr.Dataset(
        {
            "first_mass": array(first_mass),
            "redundancy": array(redundancy),
            "interaction_norm": array(norm),
        },
        {"step": 100 * np.arange(steps)},
    )


def test_dates():
    mass = [[0.0, 0.0], [0.5, 0.1], [0.2, 0.1], [0.6, 0.2], [0.7, 0.2]]
    alike = [[1.0, 1.0], [0.99, 1.0], [0.9, 0.9], [0.5, 0.5], [0.5, 0.5]]
    norm = [[3.0, 3.0], [1.0, 1.0], [2.0, 2.0], [4.0, 4.0], [4.1, 4.1]]
    found = dates(history(mass, alike, norm))
    assert found.sinks == {(0, 0): 300.0}  # it was one at 100, but not for good
    assert found.first_sink == found.half_of_sinks == 300.0
    assert found.specialized == {0: 300.0}
    assert [phase[0] for phase in found.phases[0]] == ["heating", "forging", "cooling"]
    calm = dates(history(np.zeros((3, 2)), np.ones((3, 2)), np.ones((3, 2))))
    assert calm.sinks == {}
    assert calm.first_sink is None
    assert calm.specialized == {0: None}
    with pytest.raises(ValueError, match="two records"):
        dates(history(mass, alike, norm).isel(step=[0]))
