"""What is wrong with the words of a call is one line that names the option."""

import pytest

from attnflow.cli import main

CASES = [
    ("simulate two_token --rtoll 1", "--rtoll is not known: did you mean --rtol?"),
    ("simulate two_token --c0 six", "--c0 takes a number (got 'six')"),
    ("simulate two_token --c0=six", "--c0 takes a number (got 'six')"),
    ("simulate two_token --c0=", "--c0 takes a number (got '')"),
    ("simulate two_token --c0 6 --c0 x", "--c0 takes a number (got 'x')"),
    ("simulate two_token --points 2.5", "--points takes a whole number (got '2.5')"),
    ("simulate two_token --key 1.5", "--key takes a whole number (got '1.5')"),
    ("simulate two_token --p", "--p needs a value: a number"),
    ("simulate two_token --plot", "--plot needs a value: a path"),
    ("simulate two_token extra", "'extra' is not known: attnflow simulate two_token --help"),
    ("simulate two_token --json yes", "'yes' is not known"),
    ("simulate two_token --no-json", "--no-json is not known: did you mean --json?"),
    ("simulate value_softmax --projections a b", "--projections takes numbers (got 'a b')"),
    ("simulate value_softmax --loss", "--loss needs a value"),
    ("reproduce --preset slow", "--preset 'slow' is not known: choose one of paper, quick"),
    ("reproduce --preset papper", "did you mean 'paper'?"),
    ("reproduce --workers 1.5", "--workers takes a whole number (got '1.5')"),
    ("reproduce --dry-rum", "did you mean --dry-run?"),
    ("verify a b", "'b' is not known"),
    ("verify -x", "-x is not known: attnflow verify --help lists the options"),
    ("diagnose", "MODEL is missing"),
    ("runs list --limit x", "--limit takes a whole number (got 'x')"),
    ("serve --port x", "--port takes a whole number (got 'x')"),
]


@pytest.mark.parametrize(("line", "message"), CASES)
def test_one_line_and_status_2(capsys, line, message):
    words = line.split()
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"attnflow {words[0]}: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("width", ["20", "300"])
def test_the_width_of_the_terminal_does_not_matter(capsys, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", width)
    assert main(["simulate", "tied_value_softmax", "--dimension", "a" * 200]) == 2
    assert f"--dimension takes a whole number (got '{'a' * 200}')" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["verify --help", "simulate prompt -h", "runs rm --help"])
def test_help_is_no_error(capsys, line):
    assert main(line.split()) == 0
    out, err = capsys.readouterr()
    assert "usage: attnflow" in out
    assert err == ""
