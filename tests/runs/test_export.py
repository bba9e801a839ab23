import csv
import sys
import types

import pyarrow.parquet as pq
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st

from attnflow.runs.export import export, export_tensorboard, label
from attnflow.runs.filters import Entry
from attnflow.runs.query import listed, table
from tests.runs.experiments import Walk, walk


def test_export_to_csv(filled, tmp_path):
    assert export(filled, "seed<2", tmp_path / "new" / "all.csv") == 4
    with (tmp_path / "new" / "all.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = table(filled, "seed<2").to_pylist()
    assert [float(row["loss"]) for row in rows] == [row["loss"] for row in expected]
    assert [row["run"] for row in rows] == [row["run"] for row in expected]


def test_export_to_parquet(filled, tmp_path):
    assert export(filled, (), tmp_path / "all.parquet") == 6
    assert pq.read_table(tmp_path / "all.parquet").equals(table(filled))


def test_export_refuses(filled, tmp_path):
    for name in ("all.xlsx", "all"):
        with pytest.raises(ValueError, match=r"export format .* choose one of .csv, .parquet"):
            export(filled, (), tmp_path / name)
    with pytest.raises(ValueError, match="nothing to export"):
        export(filled, "seed=77", tmp_path / "all.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(ValueError, match="is a folder"):
        export(filled, (), tmp_path / "folder.csv")
    assert [x.name for x in tmp_path.iterdir() if x.suffix] == ["folder.csv"]


class FakeWriter:
    """Keeps what tensorboardX would write."""

    said: dict = {}  # noqa: RUF012

    def __init__(self, folder, filename_suffix):
        self.rows = self.said[folder] = []
        assert filename_suffix == ".attnflow"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def add_text(self, tag, text, walltime):
        self.rows.append((tag, text))

    def add_scalar(self, tag, value, step, walltime):
        self.rows.append((tag, value, step, walltime))


def test_what_tensorboard_gets(filled, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeWriter, "said", {})
    fake = types.SimpleNamespace(SummaryWriter=FakeWriter)
    monkeypatch.setitem(sys.modules, "tensorboardX", fake)
    assert export_tensorboard(filled, "rate=0.1", tmp_path / "tb") == 3
    assert len(FakeWriter.said) == 3
    entry = listed(filled, ["rate=0.1", "seed=2"])[0]
    folder = tmp_path / "tb" / "walk" / f"seed=2-{entry.name[:8]}"
    (tag, text), *scalars = FakeWriter.said[str(folder)]
    assert tag == "config"
    assert '"seed": 2' in text
    loss = walk(Walk(2, 0.1, 5)).loss.values
    assert [(name, value, step) for name, value, step, _ in scalars] == [
        ("loss", value, step) for step, value in enumerate(loss)
    ]
    assert scalars[-1][3] - scalars[0][3] == pytest.approx(0.5)  # the seconds it took


def test_flows_count_rows_in_tensorboard(store, tmp_path, monkeypatch):
    monkeypatch.setattr(FakeWriter, "said", {})
    fake = types.SimpleNamespace(SummaryWriter=FakeWriter)
    monkeypatch.setitem(sys.modules, "tensorboardX", fake)
    flow = xr.Dataset(
        {"loss": ("time", [2.0, 1.0]), "word": ("time", ["a", "b"])}, {"time": [0.0, 0.5]}
    )
    store.add(Walk(), flow, experiment="flow")
    export_tensorboard(store, (), tmp_path)
    ((_, *scalars),) = FakeWriter.said.values()
    assert [row[:3] for row in scalars] == [
        ("time", 0.0, 0),
        ("time", 0.5, 1),
        ("loss", 2.0, 0),
        ("loss", 1.0, 1),
    ]


def test_real_event_files_are_replaced_not_added(filled, tmp_path):
    pytest.importorskip("tensorboardX")
    for _ in range(2):
        assert export_tensorboard(filled, (), tmp_path) == 6
    assert len(list(tmp_path.rglob("events.out.tfevents.*.attnflow"))) == 6


def test_tensorboard_is_an_extra(filled, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(ValueError, match=r"pip install 'attnflow\[tensorboard\]'"):
        export_tensorboard(filled, (), tmp_path)


@given(st.text(max_size=40), st.text(max_size=40))
def test_labels_are_safe_paths(experiment, value):
    found = label(Entry("0123456789", None, experiment, {"how": value}, 0.0), ["how"])  # pyright: ignore[reportArgumentType]
    kind, rest = found.split("/")
    assert kind not in ("", ".", "..")
    assert rest.endswith("-01234567")
