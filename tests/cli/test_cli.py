import json
import re
import subprocess
import sys

import pytest

from attnflow.cli import main
from attnflow.cli import verify as verify_command
from attnflow.papers.ledger import Claim, Finding


def run(capsys, line):
    status = main(line.split())
    out, err = capsys.readouterr()
    return status, out, err


def test_help_is_light():
    """No heavy library is loaded; the time itself is measured in benchmarks/."""
    program = (
        "import sys; from attnflow.cli import main; main(['--help']); "
        "assert not {'jax', 'numpy', 'matplotlib', 'tyro'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "simulate" in done.stdout


def test_two_tokens_as_json(capsys):
    status, out, _ = run(capsys, "simulate two_token --p 0 --c0 6 --c1 6 --json")
    result = json.loads(out)
    assert status == 0
    assert result["critical_norm2"] == pytest.approx([36.0], rel=1e-9)
    assert result["critical_times"] == pytest.approx([143.57977910909], rel=1e-9)
    assert [phase["name"] for phase in result["phases"]] == ["heating", "forging"]
    assert result["phases"][-1]["end"] is None


def test_value_softmax_as_json(capsys):
    line = "simulate value_softmax --projections 0.3 0.1 -0.2 --loss logistic --t1 1e12 --json"
    status, out, _ = run(capsys, line)
    result = json.loads(out)
    assert status == 0
    assert sum(result["weights"]) == pytest.approx(1)
    assert result["weights"][0] > 0.99
    assert result["loss"] == pytest.approx(1e-12, rel=0.01)
    assert {"projections", "gamma_integral"} <= set(result)


def test_a_table_and_a_picture(capsys, tmp_path):
    picture = tmp_path / "flow.png"
    line = f"simulate value_softmax --projections 0.3 0.1 --t1 100 --points 20 --plot {picture}"
    status, out, _ = run(capsys, line)
    assert status == 0
    assert "weights[0]" in out
    assert "▁" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("level", [pytest.param("theory", marks=pytest.mark.slow), "exact"])
def test_heads_as_a_table_and_as_json(capsys, level):
    line = "simulate single_location --samples 256 --nu2 9 --tokens 4 --t1 40 --points 20"
    line += f" --level {level} --dimension 100 --rate 0.5"
    status, out, _ = run(capsys, line)
    assert status == 0
    assert "Bayes risk" in out
    assert "heads are 0.5 apart on feature 1 at t =" in out
    if level == "exact":
        return
    status, out, _ = run(capsys, line + " --json")
    found = json.loads(out)["heads"]
    assert status == 0
    assert found["split_times"][0] is None  # never: JSON has no infinity
    assert 1 < found["split_times"][1] < 40
    assert sorted(head for group in found["groups"] for head in group) == [0, 1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("simulate two_token --p 1", "p must lie in (-1, 1)"),
        ("simulate two_token --p nan", "p must lie in (-1, 1)"),
        ("simulate two_token --d 0", "d must be a whole number of at least 2"),
        ("simulate two_token --t1 -1", "t1 must be finite and after the start"),
        ("simulate two_token --t1 inf", "t1 must be finite"),
        ("simulate two_token --points 0", "points must be a whole number"),
        ("simulate two_tokn", "did you mean 'two_token'?"),
        ("simulate value_softmax --projections 1 2 --loss logstic", "did you mean 'logistic'?"),
        ("simulate value_softmax --projections 1 2 --map sofmax", "did you mean 'softmax'?"),
        ("simulate value_softmax --projections 1 2 --map identity_normalized", "0/0"),
        ("simulate value_softmax --projections 0.1 0.1 0", "tokens 0 and 1 are tied"),
        ("simulate value_softmax", "give the start as projections"),
        ("simulate two_token --plot flow.txt", "choose one of .pdf, .png, .svg"),
        ("simulate single_location --tokens 1", "attention needs two tokens"),
        ("simulate single_location --features 3", "a flipping spike has two"),
        ("simulate single_location --signal spyke", "did you mean 'spikes'?"),
        ("simulate single_location --activation softmax1", "did you mean 'softmax_1'?"),
        ("simulate single_location --level exakt", "did you mean 'exact'?"),
        ("simulate single_location --level exact --dimension 5", "at least 6"),
        ("simulate single_location --nu1 -1", "nu1 must be positive"),
        ("verify u_shpe", "did you mean 'u_shape'?"),
        ("verify u_shape/lemma-3.9", "claim 'lemma-3.9' is not known"),
        ("reproduce polarisation", "did you mean 'polarization'?"),
        ("verfy", "did you mean 'verify'?"),
    ],
)
def test_bad_input_is_one_line_and_status_2(capsys, line, message):
    status, out, err = run(capsys, line)
    assert status == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def fake(verdict, recorded):
    return Claim(
        "paper", "row", "here", "x", "sign", recorded, lambda: Finding(verdict, 1.0, 1), {}
    )


def test_verify_tells_a_changed_verdict(capsys, monkeypatch):
    monkeypatch.setattr(verify_command, "select", lambda _: [fake("refuted", "holds")])
    status, _, err = run(capsys, "verify")
    assert status == 1
    assert "paper/row is recorded as holds, found refuted" in err
    monkeypatch.setattr(verify_command, "select", lambda _: [fake("holds", "holds")])
    assert run(capsys, "verify")[0] == 0


def test_verify_as_json_has_the_promised_fields(capsys):
    status, out, _ = run(capsys, "verify u_shape/lemma-3.1 --json")
    (row,) = json.loads(out)
    assert status == 0
    promised = "id paper where statement verdict margin cases counterexample correction seconds"
    assert set(promised.split()) <= set(row)


@pytest.mark.slow  # it tries the implicit solver to the end
def test_a_failed_solve_has_status_1(capsys):
    status, _, err = run(capsys, "simulate two_token --c0 60 --c1 60 --t1 1e40 --points 5")
    assert status == 1
    assert "stopped at t =" in err


def test_timing_tells_where_the_seconds_go(capsys):
    assert main(["simulate", "two_token", "--c1", "3", "--timing"]) == 0
    told = capsys.readouterr().err
    assert re.fullmatch(r"attnflow simulate: \d+\.\d\d s: (.*, )?the rest \d+\.\d\d s\n", told)
    assert main(["runs", "--timing"]) == 2  # it compiles nothing
