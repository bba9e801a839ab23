"""Trainings that figures share: done once, found again, told when they are missing."""

import dataclasses

import pytest
import xarray as xr
from matplotlib.figure import Figure as Canvas

from attnflow.cli.reproduce import render_all
from attnflow.papers import trials
from attnflow.papers.gallery import Gallery
from attnflow.runs import Experiment, Store, grid


@dataclasses.dataclass(frozen=True)
class Power:
    base: int = 2
    exponent: int = 1


def power(config: Power) -> xr.Dataset:
    if config.exponent < 0:
        raise ValueError("exponent must not be negative")
    return xr.Dataset({"value": config.base**config.exponent})


POWERS = Experiment("power", power)


@dataclasses.dataclass(frozen=True)
class Several:
    exponents: tuple[int, ...] = (0, 1, 2)

    @property
    def grid(self) -> list[Power]:
        return grid(Power(), exponent=self.exponents)


def gallery() -> Gallery:
    made = Gallery("tests")

    @made.figure(
        "powers",
        title="Powers",
        caption="",
        quick=Several(),
        paper=Several((0, 1, 2, 3)),
        draw=lambda ds: Canvas(),
        trials=trials.Trials(POWERS, lambda config: config.grid),
    )
    def powers(config: Several, found) -> xr.Dataset:
        return trials.table({"exponent": config.exponents}, found, value=lambda each: each.value)

    return made


@pytest.fixture
def _nothing_known(monkeypatch):
    monkeypatch.setattr(trials, "_known", {})


def test_a_table_is_in_the_order_of_its_grid():
    axes = {"base": (2, 3), "exponent": (0, 1, 2)}
    found = [power(each) for each in grid(Power(), **axes)]
    data = trials.table(axes, found, value=lambda each: each.value)
    assert data.value.dims == ("base", "exponent")
    assert data.value.values.tolist() == [[1, 2, 4], [1, 3, 9]]


@pytest.mark.usefixtures("_nothing_known")
def test_trainings_are_done_once(monkeypatch, tmp_path):
    monkeypatch.setenv(trials.FOLDER, str(tmp_path))
    wanted = grid(Power(), exponent=(2, 0))
    first = trials.collect(POWERS, wanted)
    assert [int(each.value) for each in first] == [4, 1]
    never = Experiment("power", lambda config: pytest.fail("done before"))
    assert trials.collect(never, wanted)[0].identical(first[0])  # this process knows them
    trials._known.clear()
    assert [int(each.value) for each in trials.collect(never, wanted)] == [
        4,
        1,
    ]  # so does the store


@pytest.mark.usefixtures("_nothing_known")
def test_a_damaged_training_is_done_again(monkeypatch, tmp_path):
    monkeypatch.setenv(trials.FOLDER, str(tmp_path))
    trials.collect(POWERS, [Power(exponent=3)])
    (run,) = Store(tmp_path)
    (run.path / "config.json").write_bytes(b"")
    trials._known.clear()
    assert [int(each.value) for each in trials.collect(POWERS, [Power(exponent=3)])] == [8]
    assert run.damage() is None


@pytest.mark.usefixtures("_nothing_known")
def test_a_training_that_fails_is_told(monkeypatch, tmp_path):
    monkeypatch.delenv(trials.FOLDER, raising=False)
    with pytest.raises(RuntimeError, match="must not be negative"):
        trials.collect(POWERS, [Power(exponent=-1)])
    with pytest.raises(RuntimeError, match="1 of 1 trainings"):
        trials.found(POWERS, [Power()], Store(tmp_path))


def test_a_figure_of_trainings_leaves_them_in_the_store(tmp_path, capsys):
    figure = gallery().figures["powers"]
    (done,) = render_all([figure], "quick", tmp_path, engine="here")
    assert xr.load_dataset(done.data).value.values.tolist() == [1, 2, 4]
    store = Store(tmp_path / "runs")
    assert store.find(Power(exponent=2), "power") is not None
    (again,) = render_all([figure], "paper", tmp_path, engine="here")  # one more training
    assert xr.load_dataset(again.data).value.values.tolist() == [1, 2, 4, 8]
    broken = dataclasses.replace(
        figure, presets={"quick": Several((1, -1)), "paper": Several((1, -1, -2))}
    )
    assert render_all([broken], "quick", tmp_path, engine="here") == []
    assert "1 of 2 trainings" in capsys.readouterr().err


@pytest.mark.usefixtures("_nothing_known")
def test_such_a_figure_computes_alone(monkeypatch, tmp_path):
    monkeypatch.setenv(trials.FOLDER, str(tmp_path))
    figure = gallery().figures["powers"]
    assert figure.compute(Several((3,))).value.values.tolist() == [8]
