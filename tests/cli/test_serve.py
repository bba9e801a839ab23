import importlib.util
import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from attnflow.cli import main


def test_serve_prints_an_address_answers_and_ends_on_ctrl_c(tmp_path):
    command = [sys.executable, "-m", "attnflow", "serve", "--port", "0", "--store", str(tmp_path)]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("explorer: http://127.0.0.1:")
        address = line.split()[1]
        with urllib.request.urlopen(address, timeout=30) as page:
            assert b"attnflow" in page.read()
        os.kill(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "stopped" in out
    assert err == ""


def test_a_port_that_is_taken(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "--port 0 takes a free port" in capsys.readouterr().err


def test_replies_do_not_wait_for_acknowledgements():
    """asyncio turns Nagle's algorithm off only where a socket says that it is TCP."""
    from attnflow.cli.serve import listening

    with listening("127.0.0.1", 0) as place:
        assert place.proto == socket.IPPROTO_TCP


def test_the_extra_is_named_when_it_is_missing(capsys, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "uvicorn" else real(name)
    )
    assert main(["serve"]) == 2
    assert "attnflow[web]" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", [["--port", "70000"], ["--port=-1"], ["--port", "9" * 30], ["--workers", "0"]]
)
def test_numbers_that_cannot_be(capsys, line):
    assert main(["serve", *line]) == 2
    assert "must lie" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("", "empty"),
        ("   ", "white space"),
        ("127.0.0.1 ", "white space"),
        ("a\0b", "not a name"),
        ("x" * 300, "not a name"),
        ("nowhere.invalid", "not a name"),
        ("127.0.0.1:8765", "not a name"),
        ("http://127.0.0.1", "not a name"),
        ("192.0.2.1", "not an address of this machine"),  # kept free for documentation
        ("2001:db8::1", "this machine"),
    ],
)
def test_hosts_that_cannot_be(capsys, monkeypatch, host, why):
    from attnflow.cli import serve

    monkeypatch.setattr(serve, "serve", lambda *given: pytest.fail("it serves"))
    assert main(["serve", f"--host={host}", "--port=0"]) == 2
    told = capsys.readouterr().err
    assert why in told
    assert told.count("\n") == 1


def test_another_address_has_a_token(capsys, monkeypatch):
    from attnflow.cli import serve

    seen = {}
    monkeypatch.setattr(serve, "serve", lambda options, place, token: seen.update(token=token))
    for host in ("127.0.0.1", "0.0.0.0"):
        assert main(["serve", "--host", host, "--port", "0"]) == 0
        assert (seen["token"] is None) == (host == "127.0.0.1")
    assert len(seen["token"]) >= 32
