"""The loop of the experiments, against the same steps written out."""

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the extra [torch] is not installed")

from torch import nn  # noqa: E402

from attnflow.torch.training import (  # noqa: E402
    TrainingError,
    Until,
    accuracy,
    cross_entropy,
    last_accuracy,
    train,
)


def model() -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(3, 4)


def batch(step):
    rng = np.random.default_rng(step)
    inputs = rng.normal(size=(8, 3)).astype(np.float32)
    return inputs, inputs.argmax(1)


def test_steps_are_those_of_a_plain_loop():
    one, other = model(), model()
    optimizer = torch.optim.SGD(one.parameters(), lr=0.5)
    record = train(
        one, batch, steps=7, optimizer=optimizer, record_every=3, schedule=lambda t: 1 / (1 + t)
    )
    losses = []
    for step in range(7):
        inputs, targets = (torch.as_tensor(x) for x in batch(step))
        loss = nn.functional.cross_entropy(other(inputs), targets)
        losses.append(loss.item())
        loss.backward()
        with torch.no_grad():
            for parameter in other.parameters():
                parameter -= 0.5 / (1 + step) * parameter.grad
        other.zero_grad()
    assert record.step.values.tolist() == [0, 3, 6]
    np.testing.assert_allclose(record.loss, [losses[i] for i in (0, 3, 6)], rtol=1e-6)
    torch.testing.assert_close(one.weight, other.weight)
    assert record.stopped == ""


def test_it_learns_and_stops_by_its_criterion():
    until = Until(accuracy=0.9, records=2)
    optimizer = torch.optim.Adam((net := model()).parameters(), lr=0.3)
    record = train(net, batch, steps=500, optimizer=optimizer, record_every=5, stop=until)
    assert record.stopped == "accuracy at least 0.9 in 2 records in a row"
    assert record.step[-1] < 499
    held = record.accuracy.values >= 0.9
    assert held[-2:].all()
    assert not (held[:-2] & held[1:-1]).any()


def test_a_loss_that_is_no_number_stops_and_keeps_the_record():
    def broken(step):
        inputs, targets = batch(step)
        return (inputs * np.float32("nan") if step == 4 else inputs), targets

    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with pytest.raises(TrainingError, match="nan at step 4") as caught:
        train(net, broken, steps=9, optimizer=optimizer, record_every=2)
    assert caught.value.step == 4
    assert caught.value.recorded.step.values.tolist() == [0, 2]
    assert torch.isfinite(net.weight).all()  # the bad step was not taken
    with pytest.raises(TrainingError, match="at step 0") as caught:
        train(net, lambda step: broken(4), steps=9, optimizer=optimizer)
    assert caught.value.recorded.sizes["step"] == 0


def test_an_endless_loss_stops_too():
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)

    def endless(logits, targets):
        return logits.square().sum() * np.float32("inf")

    with pytest.raises(TrainingError, match="inf at step 0"):
        train(net, batch, steps=5, optimizer=optimizer, loss=endless)


def test_weighted_cross_entropy_by_hand():
    logits = torch.tensor([[[0.0, 0.0], [1.0, 0.0]], [[2.0, 0.0], [0.0, 0.0]]])
    targets = torch.tensor([[0, 1], [0, 1]])
    each = torch.tensor([[np.log(2), np.log(1 + np.e)], [np.log(1 + np.exp(-2)), np.log(2)]])
    weights = torch.tensor([0.2, 1.0])
    wanted = (each * weights).sum() / 2
    torch.testing.assert_close(cross_entropy(logits, targets, weights), wanted.float())
    torch.testing.assert_close(cross_entropy(logits, targets), each.mean().float())
    first = cross_entropy(logits[:, 0], targets[:, 0])
    torch.testing.assert_close(first, each[:, 0].mean().float())
    assert float(accuracy(logits + torch.tensor([0.1, 0]), targets, weights)) == 0.5
    assert float(last_accuracy(logits + torch.tensor([0.0, 0.1]), targets, weights)) == 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps"),
        ({"record_every": 0}, "record_every"),
        ({"batches": [batch(0)]}, "function of the step"),
    ],
)
def test_bad_input(options, message):
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    given = {"batches": batch, "steps": 2, **options}
    with pytest.raises(ValueError, match=message):
        train(net, optimizer=optimizer, **given)


def test_a_criterion_needs_a_bound():
    with pytest.raises(ValueError, match="needs a bound"):
        Until()
    both = Until(loss=0.1, accuracy=0.9)
    assert str(both) == "loss at most 0.1 and accuracy at least 0.9 in 1 records in a row"
    assert both([{"loss": 0.05, "accuracy": 0.95}])
    assert not both([{"loss": 0.05, "accuracy": 0.85}])
