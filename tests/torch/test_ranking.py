"""The order in which heads go, against trying them one by one on a model with zeroed weights."""

import copy
import itertools

import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
pytest.importorskip("transformers", reason="the extra [torch] is not installed")

from torch import nn  # noqa: E402

from attnflow.torch.modules import attention_modules  # noqa: E402
from attnflow.torch.pruning import prune_heads  # noqa: E402
from attnflow.torch.ranking import rank_heads  # noqa: E402
from tests.torch import zoo  # noqa: E402


def batches(name="llama", count=2):
    return [zoo.inputs(name, batch=2, length=6, seed=seed) for seed in range(count)]


def loss_without(model, heads, given):
    """Mean loss of a copy whose columns of these heads are zero."""
    model = copy.deepcopy(model)
    modules = {each.name: each for each in attention_modules(model)}
    with torch.no_grad():
        for name, head in heads:
            output = modules[name].output
            assert output is not None
            output.weight[:, output.index[head]] = 0
        return sum(float(model(**batch).loss) for batch in given) / len(given)


def every_head(model):
    return [(m.name, h) for m in attention_modules(model) for h in range(m.heads)]


def test_greedy():
    model, given = zoo.build("llama"), batches()
    found = rank_heads(model, given, count=3)
    order: list = []
    for _ in range(3):
        rest = [head for head in every_head(model) if head not in order]
        losses = [loss_without(model, [*order, head], given) for head in rest]
        order.append(rest[losses.index(min(losses))])
    assert found.order == order
    assert found.baseline == pytest.approx(loss_without(model, [], given), abs=1e-5)
    for k, loss in enumerate(found.losses, 1):
        assert loss == pytest.approx(loss_without(model, order[:k], given), abs=1e-5)
    assert found.evaluations == 1 + 8 + 7 + 6


def test_single():
    model, given = zoo.build("llama"), batches()
    found = rank_heads(model, given, by="single", count=4)
    alone = {head: loss_without(model, [head], given) for head in every_head(model)}
    assert found.order == sorted(alone, key=alone.__getitem__)[:4]
    assert found.losses[-1] == pytest.approx(loss_without(model, found.order, given), abs=1e-5)


@pytest.mark.parametrize("name", ["llama", "gpt2", "encoder"])
def test_gradient_is_that_of_a_factor_on_the_heads_output(name):
    """By finite differences in float64, summed over batches after taking absolute values."""
    model, given = zoo.build(name).double(), batches(name)

    def loss(output, batch):  # the models' own is in float32
        logits = output if name == "encoder" else output.logits
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch["input_ids"].flatten())

    found = rank_heads(model, given, by="gradient", count=6, loss=loss)
    modules = {each.name: each for each in attention_modules(model)}
    slopes = dict.fromkeys(every_head(model), 0.0)
    for (module, head), batch in itertools.product(slopes, given):
        ends = []
        for gate in (1 - 1e-4, 1 + 1e-4):
            changed = copy.deepcopy(model)
            output = {m.name: m for m in attention_modules(changed)}[module].output
            assert output is not None
            with torch.no_grad():
                weight = output.weight if output.axis == 1 else output.weight.T
                weight[:, output.index[head]] *= gate
                ends.append(float(loss(changed(**batch), batch)))
        slopes[module, head] += abs(ends[1] - ends[0])
    ranked, kept = [], dict.fromkeys(modules, 4)
    for head in sorted(slopes, key=slopes.__getitem__):
        if kept[head[0]] > 1:
            ranked.append(head)
            kept[head[0]] -= 1
    assert found.order == ranked[:6]
    assert found.evaluations == 1 + 6


def test_every_beginning_can_be_pruned():
    model, given = zoo.build("llama"), batches(count=1)
    found = rank_heads(model, given)
    assert len(found.order) == 6
    prune_heads(model, found.first(6))
    assert [each.heads for each in attention_modules(model)] == [1, 1]
    with torch.no_grad():
        assert float(model(**given[0]).loss) == pytest.approx(found.losses[-1], abs=1e-5)


def test_candidates_save_passes():
    model, given = zoo.build("llama"), batches(count=1)
    gradient = rank_heads(model, given, by="gradient", count=3).order
    found = rank_heads(model, given, count=3, candidates=1)
    assert found.order == gradient
    assert found.evaluations == 1 + 3
    assert (
        rank_heads(model, given, count=2, candidates=8).order
        == rank_heads(model, given, count=2).order
    )


def test_the_model_is_left_as_it_was():
    model = zoo.build("llama", attention_dropout=0.5).train()
    parameter = next(model.parameters())
    parameter.requires_grad_(False)
    each = attention_modules(model)[0].output
    assert each is not None
    each.weight.requires_grad_(False)
    state = {n: p.clone() for n, p in model.state_dict().items()}
    random = torch.get_rng_state()
    orders = [rank_heads(model, batches(), by="gradient", count=2) for _ in range(2)]
    assert orders[0] == orders[1]  # no dropout: it ran in evaluation mode
    assert model.training
    assert not each.weight.requires_grad
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(p, state[n]) for n, p in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_batches_of_other_kinds():
    model = zoo.build("encoder")
    ids = batches("encoder", 1)[0]["input_ids"]
    orders = [
        rank_heads(model, [batch], loss=lambda output, _: output.square().mean(), count=2)
        for batch in (ids, (ids,), [ids], {"input_ids": ids})
    ]
    assert all(order == orders[0] for order in orders)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: rank_heads(m, []), "batches is empty"),
        (lambda m: rank_heads(m, batches(), by="gredy"), "did you mean 'greedy'"),  # pyright: ignore
        (lambda m: rank_heads(m, batches(), count=7), "6 heads can go"),
        (lambda m: rank_heads(m, batches(), count=0), "count"),
        (lambda m: rank_heads(m, batches(), by="single", candidates=3), "only the greedy"),
        (lambda m: rank_heads(m, [{"input_ids": torch.ones(1, 3).long()}]), "give labels"),
        (lambda m: rank_heads(nn.Linear(2, 2), batches()), "no attention was found"),
        (lambda m: rank_heads(m, batches(), count=2).first(3), "only 2 heads were ranked"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call(zoo.built("llama"))
