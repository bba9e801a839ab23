import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnflow.runs import Store, canonical, grid, restored
from tests.runs.experiments import Walk


@dataclasses.dataclass(frozen=True)
class Nested:
    walk: Walk = dataclasses.field(default_factory=Walk)
    rates: tuple[float, ...] = (0.1, 1.0)
    name: str = "é"


@given(st.integers(0, 10**9), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=9))
def test_configs_come_back_as_they_were(seed, rate, how):
    config = Nested(Walk(seed=seed, rate=rate, how=how))
    assert restored(canonical(config), Nested) == config


def test_one_content_has_one_form():
    assert (
        canonical(Walk(rate=1)) == canonical(Walk(rate=1.0)) == canonical(Walk(rate=np.float64(1)))
    )
    numbered: Any = np.int64(3)
    assert canonical(Walk(seed=numbered)) == canonical(Walk(seed=3))
    assert canonical(Walk()) != canonical(Walk(), "walk")
    listed: Any = [0.1, 1.0]
    assert canonical(Nested(rates=listed)) == canonical(Nested())


def test_the_name_is_the_same_in_another_process(tmp_path):
    code = (
        "from attnflow.runs import Store; from tests.runs.test_config import Nested;"
        f"print(Store({str(tmp_path)!r}).name(Nested(), 'x'))"
    )
    for seed in ("0", "123"):
        asked = [sys.executable, "-c", code]
        done = subprocess.run(
            asked, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        )
        assert done.stdout.strip() == Store(tmp_path).name(Nested(), "x")


def test_what_cannot_name_a_run_is_refused():
    with pytest.raises(ValueError, match=r"config\.rate must be finite"):
        canonical(Walk(rate=float("nan")))
    with pytest.raises(ValueError, match=r"config\.how is no plain data"):
        canonical(Walk(how=object()))  # pyright: ignore[reportArgumentType]


def test_other_versions_are_refused():
    text = canonical(Walk())
    with pytest.raises(ValueError, match="newer attnflow"):
        restored(text.replace('"schema":1', '"schema":99'), Walk)
    with pytest.raises(ValueError, match="colour is not a field of Walk"):
        restored(text.replace('"seed":0', '"seed":0,"colour":1'), Walk)
    with pytest.raises(ValueError, match="of a Walk, not of a Nested"):
        restored(text, Nested)


def test_grids():
    assert len(grid(Walk(), seed=range(3), rate=(0.1, 0.2))) == 6
    with pytest.raises(ValueError, match="'sead' is not a field of Walk"):
        grid(Walk(), sead=[1])
