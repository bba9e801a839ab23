"""No bad call begins to compute, and each is told in one line; see `bad_calls` for the table."""

import importlib
import shlex

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnflow.cli import COMMANDS, main, report, reproduce
from attnflow.cli import verify as verify_command
from attnflow.dynamics import compiled, descent, host
from tests.cli.bad_calls import FIELDS, OTHERS, cases

CASES = list(dict.fromkeys(cases()))
BOXES = set("─│╭╮╰╯━┃┏┓┗┛")


class Computed(BaseException):
    """It began to compute."""


@pytest.fixture
def nothing_computes(monkeypatch):
    def begun(*_, **__):
        raise Computed

    monkeypatch.setattr(compiled, "solve", begun)
    monkeypatch.setattr(host, "solve", begun)
    monkeypatch.setattr(descent, "_programs", begun)
    monkeypatch.setattr(importlib.import_module("attnflow.dynamics.sgd.online"), "start", begun)
    monkeypatch.setattr(verify_command, "run_all", begun)
    monkeypatch.setattr(reproduce, "sweep", begun)
    monkeypatch.setattr(report, "everything", begun)


def test_the_table_is_long():
    assert len(CASES) >= 300


@pytest.mark.usefixtures("nothing_computes")
@pytest.mark.parametrize("command", [*(f"simulate {x} " for x in FIELDS), ""])
def test_bad_calls(capsys, command):
    """One test a model: a test a call would take longer to report than to run."""
    chosen = [x for x in CASES if x not in OTHERS and x[0].startswith(command)]
    chosen = chosen if command else OTHERS
    wrong = []
    for line, word in chosen:
        words = shlex.split(line)
        status = main(words)
        out, err = capsys.readouterr()
        known = words[0] in COMMANDS
        start = f"attnflow {words[0]}: " if known else "attnflow: "
        good = (
            status == 2
            and out == ""
            and err.startswith(start)
            and err.count("\n") == 1
            and not BOXES & set(err)
            and (word in err or word.replace("_", "-") in err)
        )
        if not good:
            wrong.append((line, word, status, out[:80], err[:300]))
    assert not wrong, "\n".join(map(str, wrong))
    assert chosen


VOCABULARY = """
list show compare export rm u_shape u_shape/1 routing/x --json --p --d --points --t1 --key --plot
--out --store --limit --slow --preset --dry-run --workers --text --length --help -h --version -- -
--= = 0 1 -1 2.5 1e200 1e-320 nan inf 100000000000000000000 six ключ %s {x}
"""
STRANGE = ["", " ", "a b", "x" * 300, "\x00", "\ud800", "\n", "│"]
WORDS = st.sampled_from([*COMMANDS, *FIELDS, *VOCABULARY.split(), *STRANGE])


@pytest.mark.usefixtures("nothing_computes")
@settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)
@given(st.lists(WORDS, max_size=6))
def test_any_words(capsys, tmp_path, monkeypatch, words):
    """Any call that does not compute ends with status 0 or 2 and at most a line."""
    monkeypatch.chdir(tmp_path)
    if words[:1] in (["serve"], ["diagnose"], ["runs"]):  # they start servers and load models
        words = [*words, "--junk"]
    status = main(words)
    err = capsys.readouterr().err
    if status == 70:
        assert "Computed" in err, (words, err)
        return
    assert status in (0, 2), (words, err)
    assert (err.count("\n") == 1) == (status == 2), (words, err)
    assert "Traceback" not in err
