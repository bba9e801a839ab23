"""What cannot end well is refused before anything is computed."""

import pytest

from attnflow import _checks
from attnflow.cli import main, report, reproduce, simulate
from attnflow.cli.options.routing import RoutingOptions


@pytest.fixture
def refused(monkeypatch, capsys):
    """The line of a call that must not begin to compute."""

    def forbidden(*_, **__):
        raise AssertionError("it began to compute")

    for cls in {simulate.classes(name)[1] for name in simulate.MODELS}:
        monkeypatch.setattr(cls, "run", forbidden)
    monkeypatch.setattr(reproduce, "render_all", forbidden)
    monkeypatch.setattr(report, "everything", forbidden)

    def call(*words):
        assert main(list(words)) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.count("\n") == 1
        return err

    return call


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("folder.png", "folder.png is a folder"),
        ("file/flow.png", "is a file, not a folder"),
        ("x" * 300 + ".png", "name too long"),
        ("/proc/flow.png", "cannot write /proc/flow.png"),
    ],
)
def test_a_picture_that_cannot_be_written(refused, tmp_path, target, words):
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "file").touch()
    line = refused("simulate", "two_token", "--plot", str(tmp_path / target))
    assert words in line


def test_a_folder_without_permission(refused, tmp_path, monkeypatch):
    """Who runs the tests may be allowed everything, so the refusal is made up."""

    def denied(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(_checks.tempfile, "mkstemp", denied)
    for words in (
        ("simulate", "two_token", "--plot", str(tmp_path / "a.png")),
        ("reproduce", "u_shape/1", "--out", str(tmp_path)),
        ("report", "--out", str(tmp_path / "new" / "out")),
    ):
        assert "(Permission denied): name another place" in refused(*words)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["reproduce", "report"])
def test_an_output_folder_that_is_a_file(refused, tmp_path, command):
    (tmp_path / "file").touch()
    assert "is a file, not a folder" in refused(command, "--out", str(tmp_path / "file"))
    assert "is a file, not a folder" in refused(command, "--out", str(tmp_path / "file" / "x"))


UNUSED = [
    ("simulate head --diversity clustered", "--diversity", "with --task diversity"),
    ("simulate head --task toy --diversity identical", "--diversity", "with --task diversity"),
    ("simulate head --task toy --stay 0.5", "--stay", "with --task chain"),
    ("simulate head --task toy --heads 2", "--heads", "with --task chain"),
    ("simulate head --task diversity --normalized", "--normalized", "with --task chain"),
    ("simulate head --task diversity --residual", "--residual", "with --task chain"),
    ("simulate head --factor 3", "--factor", "with --schedule em"),
    ("simulate head --schedule alternating --output-too", "--output-too", "with --schedule em"),
    ("simulate single_location --rate 0.1", "--rate", "with a --level of SGD"),
    ("simulate single_location --signal spikes --nu2 3", "--nu2", "with another --signal"),
    ("simulate two_token --scale 2", "--scale", "with --key"),
    ("simulate value_softmax --projections 1 2 --scale 2", "--scale", "with --key"),
    ("simulate sink_matrix --scale 2", "--scale", "with --key"),
    ("simulate tied_value_softmax --scale 2", "--scale", "with --key"),
    ("simulate prompt --optimizer levenberg_marquardt --step 1", "--step", "another --optimizer"),
    ("reproduce --address auto", "--address", "with --engine ray"),
    ("reproduce --engine here --workers 2", "--workers", "with another --engine"),
    ("reproduce --fresh --resume", "--resume", "without --fresh"),
    ("report --store somewhere", "--store", "with runs"),
    ("report abc --all", "--all", "without runs"),
]


@pytest.mark.parametrize(("line", "option", "when"), UNUSED)
def test_an_option_without_effect(refused, line, option, when):
    told = refused(*line.split())
    assert f"{option} has an effect only " in told
    assert when in told


def test_an_option_at_its_default_is_no_error(monkeypatch):
    begun = []
    monkeypatch.setattr(RoutingOptions, "run", lambda *_: begun.append(True) or 1 / 0)
    main(["simulate", "head", "--task", "toy", "--stay", "0.3", "--diversity", "uniform"])
    assert begun


SIZES = [
    ("simulate two_token --d 1000000000000", "d = 1000000000000 needs about 2.4e+25 bytes"),
    ("simulate two_token --d 100000", "d = 100000"),
    ("simulate tied_value_softmax --dimension 1000000", "dimension = 1000000"),
    ("simulate prompt --samples 1000000000000", "samples = 1000000000000"),
    ("simulate prompt --d 10000000", "d = 10000000"),
    ("simulate prompt --samples 100000000 --chunk 100000000", "samples = 100000000"),
]


@pytest.mark.parametrize(("line", "words"), SIZES)
def test_a_size_beyond_the_memory(refused, monkeypatch, line, words):
    monkeypatch.setattr(_checks, "machine_memory", lambda: 24 * 2**30)
    told = refused(*line.split())
    assert words in told
    assert "of memory; this machine has 24 GiB" in told


COMPUTED = [  # refused where the sizes are known, on the way into the computation
    ("simulate two_token --points 1000000000000000", "points = 1000000000000000 needs"),
    ("simulate two_token --points 100000000", "a flow with 100000000 points needs"),
    ("simulate single_location --points 1000000000000000", "points = 1000000000000000 needs"),
    ("simulate single_location --features 1000000 --signal spikes", "features = 1000000 needs"),
    ("simulate single_location --features 100000000 --signal gaussian", "features = 100000000"),
    ("simulate single_location --heads 10000", "10000"),
    ("simulate single_location --heads 10000000", "heads = 10000000"),
    ("simulate single_location --tokens 10000000", "tokens = 10000000"),
    ("simulate single_location --tokens 9000", "at most 21201; take fewer"),
    ("simulate single_location --samples 100000000000000000000", "at most 2^24 points"),
    ("simulate single_location --level direct --dimension 1e12", "at dimension 1000000000000"),
    ("simulate single_location --level exact --rate 1e-50 --t1 1e300", "t1/rate must be at most"),
    ("simulate head --length 1000000000000", "length = 1000000000000"),
    ("simulate head --classes 1000000", "classes = 1000000"),
    ("simulate head --width 1000000000000", "width = 1000000000000"),
    ("simulate head --task toy --length 1000000", "length = 1000000"),
    ("simulate head --task diversity --width 100000000000", "width = 100000000000"),
    ("simulate head --steps 100000000000000000000", "steps must be at most"),
    ("simulate prompt --steps 100000000000000000000", "steps must be at most"),
    ("simulate prompt --samples 1000000 --d 1000 --optimizer gauss_newton", "gauss_newton with"),
    ("simulate two_token --key 100000000000000000000", "key must be below 2^63"),
    ("simulate prompt --seed 100000000000000000000", "seed must be below 2^63"),
    ("simulate head --seed 100000000000000000000", "seed must be below 2^63"),
    ("simulate single_location --seed 100000000000000000000", "seed must be below 2^63"),
]


@pytest.mark.parametrize(("line", "words"), COMPUTED)
def test_a_number_beyond_its_limit(capsys, monkeypatch, line, words):
    monkeypatch.setattr(_checks, "machine_memory", lambda: 24 * 2**30)
    status = main(line.split())
    out, err = capsys.readouterr()
    assert (status, out, err.count("\n")) == (2, "", 1), err
    assert words in err


def test_the_memory_of_the_machine():
    assert 2**28 < _checks.machine_memory() < 2**50


@pytest.mark.parametrize(
    ("size", "told"),
    [(2**30, "1 GiB"), (3 * 2**39, "1.5 TiB"), (10**24, "1.0e+24 bytes"), (10**500, "1.0e+500 b")],
)
def test_sizes_are_told_in_units(monkeypatch, size, told):
    monkeypatch.setattr(_checks, "machine_memory", lambda: 100)
    with pytest.raises(ValueError, match="this machine has 100 bytes") as error:
        _checks.fits_memory("it", size)
    assert f"it needs about {told}" in str(error.value)
