"""Forms from dataclasses, and the words that reproduce an answer."""

import dataclasses
from typing import Annotated

import numpy as np
import pytest
import tyro
from typing_extensions import Doc

from attnflow.web.answers import call, command, numbers
from attnflow.web.fields import (
    Bars,
    Choice,
    FieldError,
    Marks,
    Slider,
    blamed,
    fields_of,
    read_query,
)


@dataclasses.dataclass(frozen=True)
class Config:
    rate: Annotated[float, Doc("how fast")] = 0.1
    count: Annotated[int | None, Doc("how many")] = None
    objective: Annotated[str, tyro.conf.arg(name="loss"), Doc("which")] = "square"
    row: tuple[float, ...] = (1.0, 2.0)
    gone: tuple[int, ...] = ()


FIELDS = fields_of(
    (Config,),
    {
        "rate": Slider(0.01, 1, log=True),
        "count": Slider(1, 5, default=3),
        "objective": Choice(("square", "kl")),
        "row": Bars(0, 9, (1.0, 2.0)),
        "gone": Marks(3),
    },
)


def test_fields_are_those_of_the_dataclass():
    rate, count, loss, *_ = (field.as_dict() for field in FIELDS)
    assert (rate["name"], rate["default"], rate["help"]) == ("rate", 0.1, "how fast")
    assert not rate["whole"]
    assert (count["whole"], count["default"]) == (True, 3)
    assert (loss["name"], loss["options"]) == ("loss", ("square", "kl"))


def test_a_query_gives_values_by_attribute():
    query = [("loss", "kl"), ("rate", "1e-1"), ("row", "3,4.5"), ("gone", "2,0")]
    assert read_query(FIELDS, query) == {
        "rate": 0.1,
        "count": 3,
        "objective": "kl",
        "row": (3.0, 4.5),
        "gone": (0, 2),
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("rate", "2"),
        ("rate", "inf"),
        ("count", "1.0"),
        ("loss", "x"),
        ("row", "1"),
        ("row", "1,2,3"),
        ("row", "1,x"),
        ("gone", "3"),
        ("gone", "1,1"),
    ],
)
def test_bad_values_name_their_field(name, text):
    with pytest.raises(FieldError) as caught:
        read_query(FIELDS, [(name, text)])
    assert caught.value.field == name


def test_a_models_error_finds_its_field():
    assert blamed(FIELDS, "rate must be positive") == "rate"
    assert blamed(FIELDS, "objective 'x' is not known") == "loss"  # by its attribute
    assert blamed(FIELDS, "rates differ") is None
    assert blamed(FIELDS, "") is None


def test_only_what_differs_from_the_defaults_is_written():
    values = {"rate": -1e-05, "count": 3, "objective": "square", "row": (0.5, -2.0), "other": 1}
    assert command("m", (Config, values)) == (
        "attnflow simulate m --rate=-1e-05 --count=3 --row 0.5 -2.0"
    )
    assert call("af.C", Config, values) == "af.C(rate=-1e-05, count=3, row=(0.5, -2.0))"


def test_numbers_of_pictures_have_seven_digits(rng):
    values = np.concatenate([10.0 ** rng.uniform(-300, 300, 500), [0.0, -1 / 3, np.nan, np.inf]])
    short = np.array(numbers(values))
    assert np.allclose(short[:-2], values[:-2], rtol=5e-7, atol=0)
    assert short[-3] == -0.3333333
    assert np.isnan(short[-2])
    assert np.isinf(short[-1])
