import os
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

from attnflow.runs.processes import deaf_children


@pytest.fixture
def heard():
    """Ctrl-C as at a terminal, and another thread that the system may tell of it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    yield
    end.set()
    other.join()
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_waits_until_a_child_is_started(heard):
    reached = []

    def start():
        with deaf_children():
            for _ in range(20):
                os.kill(os.getpid(), signal.SIGINT)
                reached.append(len(reached))

    with pytest.raises(KeyboardInterrupt):
        start()
    assert reached == list(range(20))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_ctrl_c_nothing_is_raised(heard):
    with deaf_children():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_very_first_child_is_deaf_too():
    """In a new process, where starting a child also starts multiprocessing's own helper."""
    code = """
import multiprocessing, signal
from attnflow.runs.processes import deaf_children

def tell(pipe):
    pipe.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))

if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with deaf_children():
        context.Process(target=tell, args=(theirs,)).start()
    print(ours.recv())
"""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(code)
        file.flush()
        done = subprocess.run([sys.executable, file.name], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
