"""attnflow reproduce --dry-run: it counts and computes nothing."""

import pytest

from attnflow.cli import main, reproduce


@pytest.mark.parametrize("target", ["u_shape", "u_shape/1", "polarization"])
def test_a_dry_run_computes_nothing_and_makes_no_folder(capsys, tmp_path, monkeypatch, target):
    def forbidden(*_, **__):
        raise AssertionError("it computes")

    monkeypatch.setattr(reproduce, "sweep", forbidden)
    monkeypatch.setattr(reproduce, "compute", forbidden)
    monkeypatch.setattr(reproduce, "FIGURES", reproduce.Experiment(reproduce.NAME, forbidden))
    out = tmp_path / "new"
    assert main(["reproduce", target, "--dry-run", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "to do" in told
    assert "took" not in told  # nothing is there to estimate from
    assert not out.exists()


def test_a_dry_run_estimates_from_what_is_there(capsys, tmp_path):
    words = ["reproduce", "u_shape", "--out", str(tmp_path)]
    assert main(["reproduce", "u_shape/1", "--out", str(tmp_path), "--engine", "here"]) == 0
    capsys.readouterr()
    before = sorted(tmp_path.rglob("*"))
    assert main([*words, "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert "1 done" in told
    assert "one took" in told
    assert sorted(tmp_path.rglob("*")) == before
