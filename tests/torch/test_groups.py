"""Values that learn faster: against training where they are parameters of their own."""

import copy
import functools
import io

import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")
pytest.importorskip("transformers", reason="the extra [torch] is not installed")

from torch import nn  # noqa: E402
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR  # noqa: E402

from attnflow.torch.groups import MARK, param_groups  # noqa: E402
from attnflow.torch.modules import attention_modules  # noqa: E402
from tests.oracles.separate_values import train_apart  # noqa: E402
from tests.torch import zoo  # noqa: E402

FUSED = ["gpt2", "gpt_neox", "phi3", "encoder"]
OPTIMIZERS = {
    "momentum": functools.partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01),
    "adam": functools.partial(torch.optim.Adam, weight_decay=0.01),
    "adamw": functools.partial(torch.optim.AdamW, weight_decay=0.1),
}


def float64(name):
    return zoo.build(name).double()


def loss_of(name):
    batch = zoo.inputs(name, batch=2, length=6)

    def loss(call):
        output = call(**batch)
        return output.square().mean() if name == "encoder" else output.loss

    return loss


def train(model, loss, optimizer, steps, schedule=None):
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return {n: x.detach() for n, x in model.named_parameters()}


def assert_same(found, truth):
    """A bias of the keys shifts all scores of a row: its gradient is rounding, which Adam divides
    by its own size. Hence the wider margin for biases that hold one."""
    assert found.keys() == truth.keys()
    for name in truth:
        atol = 1e-6 if name.endswith("bias") else 1e-13
        torch.testing.assert_close(found[name], truth[name], atol=atol, rtol=0, msg=name)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", FUSED)
def test_fused_values_train_as_if_they_were_apart(name, optimizer):
    model, make = float64(name), OPTIMIZERS[optimizer]
    truth = train_apart(name, copy.deepcopy(model), loss_of(name), make, 1e-3, 7.0, steps=4)
    found = train(model, loss_of(name), make(param_groups(model, 1e-3, 7.0)), steps=4)
    assert_same(found, truth)


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_scale_one_is_plain_training_bit_for_bit(name):
    model, plain = zoo.build(name), zoo.build(name)
    found = train(model, loss_of(name), torch.optim.AdamW(param_groups(model, 1e-3, 1.0)), 3)
    truth = train(plain, loss_of(name), torch.optim.AdamW(plain.parameters(), lr=1e-3), 3)
    for n in truth:
        assert torch.equal(found[n], truth[n]), n


@pytest.mark.parametrize("outputs", [False, True])
@pytest.mark.parametrize("name", zoo.MODELS)
def test_every_parameter_is_in_one_group_at_its_rate(name, outputs):
    model = zoo.built(name)
    groups = param_groups(model, 0.01, 4.0, outputs=outputs, weight_decay=0.3)
    listed = [p for group in groups for p in group["params"]]
    assert len(listed) == len(set(listed))
    assert set(listed) == set(model.parameters())
    assert all(group["weight_decay"] == 0.3 for group in groups)
    rates = {p: (g["lr"], g.get(MARK)) for g in groups for p in g["params"]}
    for each in attention_modules(model):
        assert each.value is not None
        assert each.output is not None
        expected = (0.01, 4.0) if each.fused else (0.04, None)
        assert rates[each.value.weight] == expected
        if each.value.bias is not None:
            assert rates[each.value.bias] == expected
        assert rates[each.output.weight] == ((0.04, None) if outputs else (0.01, None))
    assert rates[next(iter(model.parameters()))] == (0.01, None)  # an embedding


SCHEDULES = {
    "lambda": lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "cosine": lambda optimizer: CosineAnnealingLR(optimizer, 5),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_schedules_keep_the_ratio(name, schedule):
    """At every learning rate of the schedule values move `scale` times as far."""
    model = float64(name)
    each = attention_modules(model)[0]
    assert each.value is not None
    assert each.query is not None
    optimizer = torch.optim.SGD(param_groups(model, 0.1, 5.0))
    plan = SCHEDULES[schedule](optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        loss_of(name)(model).backward()
        rate = optimizer.param_groups[0]["lr"]
        before = each.value.matrices(), each.query.matrices()
        slopes = [part.weight.grad.clone() for part in (each.value, each.query)]  # pyright: ignore
        optimizer.step()
        for part, was, slope, factor in zip(
            (each.value, each.query), before, slopes, (5.0, 1.0), strict=True
        ):
            rows = slope.index_select(part.axis, part.index.flatten())
            rows = rows if part.axis == 0 else rows.T
            moved = part.matrices() - was
            torch.testing.assert_close(moved, -rate * factor * rows.reshape_as(moved))
        plan.step()


def test_state_is_saved_and_loaded():
    """Four steps in one go are two steps, a file, and two steps of an optimizer made anew."""
    loss = loss_of("gpt2")
    straight = float64("gpt2")
    truth = train(straight, loss, torch.optim.AdamW(param_groups(straight, 1e-3)), 4)
    model = float64("gpt2")
    first = torch.optim.AdamW(param_groups(model, 1e-3))
    train(model, loss, first, 2)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = torch.optim.AdamW(param_groups(model, 1e-3, value_scale=1.0))
    second.load_state_dict(torch.load(file, weights_only=True))
    assert [group.get(MARK) for group in second.param_groups] == [None, 10.0]
    assert_same(train(model, loss, second, 2), truth)


def test_a_copied_model_is_not_trained_wrongly_in_silence():
    model = float64("gpt2")
    optimizer = copy.deepcopy(torch.optim.AdamW(param_groups(model, 1e-3)))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.ones_like(parameter)
    with pytest.raises(RuntimeError, match="call param_groups on this model"):
        optimizer.step()


def test_other_optimizers_are_left_alone():
    param_groups(zoo.built("gpt2"), 1e-3)  # hooks are there now
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.sum().backward()
    optimizer.step()
    assert weight.tolist() == [0.5, 0.5, 0.5]


def test_values_of_another_width_than_queries():
    """`MultiheadAttention` with kdim keeps three weights and one bias."""
    model = nn.MultiheadAttention(8, 2, kdim=6, vdim=5)
    groups = {g["name"]: g["params"] for g in param_groups(model, 0.1, 3.0)}
    assert groups["values"] == [model.v_proj_weight]
    assert groups["fused"] == [model.in_proj_bias]
    optimizer = torch.optim.SGD(param_groups(model, 0.1, 3.0))
    assert model.in_proj_bias is not None
    model.in_proj_bias.grad = torch.ones(24)
    optimizer.step()
    torch.testing.assert_close(
        model.in_proj_bias.detach(), torch.tensor([-0.1] * 16 + [-0.3] * 8), atol=1e-7, rtol=0
    )


def test_frozen_parameters_are_left_out():
    model = zoo.build("llama")
    model.model.embed_tokens.requires_grad_(False)  # pyright: ignore
    listed = [p for group in param_groups(model, 1e-3) for p in group["params"]]
    assert all(p.requires_grad for p in listed)
    assert len(listed) == sum(p.requires_grad for p in model.parameters())
    for each in attention_modules(model):
        assert each.value is not None
        each.value.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to make faster"):
        param_groups(model, 1e-3)


def test_unknown_values_are_named():
    model = zoo.build("llama")
    attention = model.model.layers[1].self_attn  # pyright: ignore
    attention.v_proj = nn.Sequential(attention.v_proj)
    with pytest.warns(UserWarning, match=r"not recognized.*layers\.1\.self_attn \(value\)"):
        groups = param_groups(model, 1e-3)
    assert [len(g["params"]) for g in groups if g["name"] == "values"] == [1]
    first = model.model.layers[0].self_attn  # pyright: ignore
    first.v_proj = nn.Sequential(first.v_proj)
    with pytest.raises(ValueError, match="no projection was recognized"):
        param_groups(model, 1e-3)


def test_trainer_of_hugging_face(tmp_path):
    """One step by `Trainer` with its own schedule moves the fused values `scale` times as far."""
    import transformers

    moved = {}
    for scale in (1.0, 10.0):
        model = zoo.build("gpt2")
        before = copy.deepcopy(model)
        arguments = transformers.TrainingArguments(
            tmp_path, max_steps=1, report_to=[], disable_tqdm=True, use_cpu=True, save_strategy="no"
        )
        rows = zoo.inputs("gpt2")
        data = [{k: v[i] for k, v in rows.items()} for i in range(3)]
        optimizer = torch.optim.SGD(param_groups(model, 0.01, scale))
        transformers.Trainer(
            model, arguments, train_dataset=data, optimizers=(optimizer, None)
        ).train()
        for part in ("value", "query"):
            new, old = (getattr(attention_modules(m)[0], part).matrices() for m in (model, before))
            moved[part, scale] = new - old
    torch.testing.assert_close(moved["query", 10.0], moved["query", 1.0])
    torch.testing.assert_close(moved["value", 10.0], 10 * moved["value", 1.0], atol=2e-6, rtol=1e-3)
    assert float(moved["value", 1.0].abs().max()) > 1e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: param_groups(nn.Linear(2, 2), 1e-3), "no attention was found"),
        (lambda: param_groups(zoo.built("llama"), 1e-3, 0.0), "value_scale must be positive"),
        (lambda: param_groups(zoo.built("llama"), 1e-3, float("nan")), "value_scale"),
        (lambda: param_groups(zoo.built("llama"), -1.0), "lr must be positive"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
