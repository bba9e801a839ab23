"""Views: their numbers are those of the command they name."""

import dataclasses
import importlib
import io
import json
import re
import shlex
import threading
from contextlib import redirect_stdout

import numpy as np
import pytest

from attnflow.cli import main
from attnflow.dynamics.descents import recorded_steps
from attnflow.models.two_token import TwoToken
from attnflow.web import views
from attnflow.web.views.conditioning import of_row
from attnflow.web.views.two_tokens import form
from attnflow.web.work import Refused
from attnflow.web.work import view as answer_of
from tests.oracles import jacobian

CASES = {
    "two_tokens": {"p": 0.3, "c1": 3.5, "t1": 2e3},
    "polarization": {"seed": 7, "tokens": 3, "target_norm": 1.7, "t1": 1e6},
    "conditioning": {"sigma_p": 1.2, "optimizer": "natural", "step": 0.1, "steps": 100, "d": 3},
    "specialization": {"nu1": 3.0, "seed": 2, "t1": 20.0, "samples": 128},
    "routing": {"seed": 3, "schedule": "em", "factor": 4.0, "steps": 60},
}


def printed(command: str) -> dict:
    out = io.StringIO()
    with redirect_stdout(out):
        status = main([*shlex.split(command)[1:], "--json"])
    assert status == 0
    return json.loads(out.getvalue())


def dug(content, key: str):
    for part in key.split("."):
        content = content[part]
    return content


def same(told, found) -> bool:
    if isinstance(told, str):
        return told == found
    told, found = (np.array(x, float) for x in (told, found))  # never: null, and infinite
    told, found = (np.where(np.isnan(x), np.inf, x) for x in (told, found))
    return np.allclose(told, found, rtol=1e-6, atol=1e-12)


def compare(name: str, changes: dict) -> int:
    view = views.get(name)
    answer = view.compute(view.defaults | changes)
    found = printed(answer.command)
    told = [fact for fact in answer.facts if fact.key]
    for fact in told:
        value = dug(found, fact.key)
        if fact.key == "heads.groups":
            assert fact.value == value
        else:
            assert same(fact.value, value), (fact, value)
    return len(told)


@pytest.mark.slow  # the fast one is that of tests/web/test_browser.py
@pytest.mark.parametrize("name", views.NAMES)
def test_numbers_are_those_of_the_command(name):
    assert compare(name, CASES[name]) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("name", views.NAMES)
def test_the_python_lines_run(name):
    view = views.get(name)
    answer = view.compute(view.defaults | CASES[name])
    out = io.StringIO()
    with redirect_stdout(out):
        exec(answer.python, {})
    told = next(fact.value for fact in answer.facts if fact.key == "loss")
    words = re.findall(r"[-+\d.e]*\d", out.getvalue())
    printed = [float(word) for word in words if re.fullmatch(r"-?\d+\.?\d*(e[-+]?\d+)?", word)]
    assert any(same(told, number) for number in printed)


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["logistic", "square"])
@pytest.mark.parametrize("map_name", views.get("polarization").controls["map"].options)  # type: ignore
def test_every_map_and_loss_is_answered(map_name, loss):
    query = [("map", map_name), ("loss", loss), ("t1", "100")]
    if loss == "logistic" and map_name in ("abs_normalized", "linear_normalized"):
        with pytest.raises(Refused, match="the flow stopped at t"):  # a weight's sign jumps
            answer_of("polarization", query)
    else:
        assert len(answer_of("polarization", query).plots) in (3, 4)


def test_the_contours_are_the_norm(rng):
    """|M|² over the (a, b) plane, against the matrix itself."""
    import jax

    with jax.enable_x64(True):
        model = TwoToken(p=0.4, c0=3.0, c1=2.0, d=3)
        x, start = np.asarray(model.tokens()), np.asarray(model.init())
    g = x[1] - x[0]
    for a, b in rng.normal(size=(5, 2)):
        M = start + a * np.outer(x[0], g) + b * np.outer(x[1], g)
        height = np.sum(start**2) + 2 * (3.0 * a - 2.0 * b) + form(0.4, a, b)
        assert np.sum(M**2) == pytest.approx(height, rel=1e-12)


def test_the_spectrum_of_a_row_is_exact(rng):
    weights = rng.dirichlet(np.ones(6))
    _, facts = of_row(weights)
    told = {fact.label: fact.value for fact in facts}
    (matrix,) = jacobian.jacobians(np.log(weights)[None])
    exact = np.linalg.eigvalsh(matrix)[1:]
    assert told["spectrum"] == pytest.approx(exact, rel=1e-9)
    assert told["κ(J)"] == pytest.approx(exact[-1] / exact[0], rel=1e-9)
    low, high = told["bounds by interlacing"]
    assert low <= told["κ(J)"] <= high


def test_recorded_steps_have_one_shape():
    assert recorded_steps(10, 41).shape == recorded_steps(3000, 41).shape == (41,)
    assert recorded_steps(3000, 41)[[0, -1]].tolist() == [0, 3000]


def test_an_unknown_view_is_no_view():
    from attnflow.web.work import do

    assert do("view", {"name": "three_tokens", "query": []})[0] == 404


def new_process(monkeypatch):
    for name in ("_first", "_begun", "_compiled"):
        monkeypatch.setattr(views, name, set())


def test_the_program_is_compiled_beside_the_answers(monkeypatch):
    new_process(monkeypatch)
    done, asked = threading.Event(), []

    def compute(values):
        asked.append(views.engine("two_tokens"))
        assert done.wait(60)

    view = dataclasses.replace(views.get("two_tokens"), compute=compute)
    monkeypatch.setattr(views, "get", lambda name: view)
    assert [views.engine("two_tokens") for _ in range(20)] == ["host"] * 20  # nobody waits for it
    done.set()
    views.compile_view("two_tokens")  # returns when the one that has begun is done
    assert views.engine("two_tokens") == "compiled"
    assert asked == ["compiled"]


def test_a_program_that_cannot_be_compiled_leaves_the_host(monkeypatch):
    new_process(monkeypatch)
    view = dataclasses.replace(views.get("two_tokens"), compute=lambda values: 1 / 0)
    monkeypatch.setattr(views, "get", lambda name: view)
    assert [views.engine("two_tokens") for _ in range(3)] == ["host"] * 3
    with pytest.raises(ZeroDivisionError):
        views.compile_view("two_tokens")
    assert views.engine("two_tokens") == "host"


@pytest.mark.parametrize("name", ["two_tokens", "polarization"])
def test_the_first_answers_come_from_the_host_and_are_the_same(name, monkeypatch):
    new_process(monkeypatch)
    solvers = []
    module = importlib.import_module(f"attnflow.web.views.{name}")
    flow = module.gradient_flow

    def noted(*given, **options):
        found = flow(*given, **options)
        solvers.append(found.solver)
        return found

    monkeypatch.setattr(module, "gradient_flow", noted)
    first = answer_of(name, [])
    views.compile_view(name)
    later = answer_of(name, [])
    assert solvers == ["DOP853", "Tsit5", "Tsit5"]
    for one, other in zip(first.facts, later.facts, strict=True):
        if isinstance(one.value, str):
            assert one.value == other.value
        else:
            np.testing.assert_allclose(one.value, other.value, rtol=1e-6)
