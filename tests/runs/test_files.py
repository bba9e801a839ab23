import dataclasses

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure as Canvas

from attnflow.papers.gallery import Figure
from attnflow.runs.figures import render
from attnflow.runs.files import whole


def test_a_whole_file_appears(tmp_path):
    with whole(tmp_path / "deep" / "file.txt") as draft:
        draft.write_text("all")
        assert not (tmp_path / "deep" / "file.txt").exists()
    assert (tmp_path / "deep" / "file.txt").read_text() == "all"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_write_keeps_the_old_file(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write():
        with whole(path) as draft:
            draft.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@dataclasses.dataclass(frozen=True)
class Line:
    slope: float = 1.0


@pytest.fixture
def figure():
    calls = []

    def compute(config):
        calls.append(config)
        return xr.Dataset({"y": ("x", config.slope * np.arange(3.0))})

    def draw(data):
        canvas = Canvas()
        canvas.subplots().plot(data.y)
        return canvas

    made = Figure("paper", "1", "t", "c", {"quick": Line(), "paper": Line(2.0)}, compute, draw)
    return made, calls


def test_data_are_computed_once_and_redrawn(figure, tmp_path):
    made, calls = figure
    first = render(made, "quick", tmp_path)
    assert first.seconds > 0
    again = render(made, "quick", tmp_path)
    assert again.seconds == 0
    assert len(calls) == 1
    assert again.picture.read_bytes().startswith(b"\x89PNG")
    render(made, "quick", tmp_path, fresh=True)
    assert len(calls) == 2


def test_another_config_or_a_damaged_file_is_computed_again(figure, tmp_path):
    made, calls = figure
    done = render(made, "quick", tmp_path)
    changed = dataclasses.replace(made, presets={"quick": Line(3.0), "paper": Line()})
    other = render(changed, "quick", tmp_path)
    assert xr.load_dataset(other.data).y[1] == 3
    assert xr.load_dataset(done.data).y[1] == 1
    other.data.write_bytes(b"not netCDF")
    render(changed, "quick", tmp_path)
    assert len(calls) == 3


def test_a_figure_that_cannot_be_computed_says_why(figure, tmp_path):
    broken = dataclasses.replace(figure[0], compute=lambda config: 1 / 0)
    with pytest.raises(RuntimeError, match="division by zero"):
        render(broken, "quick", tmp_path)


def test_an_unknown_preset_is_refused(figure, tmp_path):
    with pytest.raises(ValueError, match="did you mean 'quick'"):
        render(figure[0], "quik", tmp_path)
