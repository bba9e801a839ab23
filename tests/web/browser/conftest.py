"""A server and a browser for all tests; a store that each test finds as if it were the first."""

import os
import shutil
import subprocess
import sys

import pytest

from attnflow.runs import Store, grid, sweep
from attnflow.web.shelf import Shelf
from tests.runs.experiments import WALK, Walk

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PATIENCE = 300_000  # milliseconds: a view that is new compiles


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("explorer") / "runs"


@pytest.fixture
def store(root):
    """Four runs, one of them with an evil name, and one that failed."""
    shutil.rmtree(root, ignore_errors=True)
    place = Store(root)
    sweep(grid(Walk(), seed=range(3)), WALK, place, engine="here", progress=False)
    sweep([Walk(how="raise")], WALK, place, engine="here", progress=False)
    evil = "<img src=x onerror=alert(1)>"
    place.add(Walk(seed=77), place.get(next(iter(place)).name).data(), experiment=evil)  # type: ignore
    return place


@pytest.fixture(scope="session")
def address(root, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "stderr"
    shelf = Shelf(tmp_path_factory.getbasetemp().parent / "programs")  # of all test processes
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(root)],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env=os.environ | shelf.environment(),
        )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert "Traceback" not in log.read_text()


# No work ahead: what tests ask for is all that is compiled.
SERVER = """
import sys
from pathlib import Path
from attnflow.cli.serve import listening
from attnflow.web.connections import server
from attnflow.web.guard import Limits
from attnflow.web.server import create_app
limits = Limits(seconds=300)
with listening("127.0.0.1", 0) as place:
    print(place.getsockname()[1], flush=True)
    server(create_app(Path(sys.argv[1]), limits=limits), limits).run(sockets=[place])
"""


@pytest.fixture(scope="module")  # while it lives, no other file can have an event loop
def browser():
    if BROWSER is None:
        pytest.skip("needs Chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def page(browser, address):
    """A page that may neither complain nor ask anybody else."""
    context = browser.new_context(viewport={"width": 1000, "height": 900}, base_url=address)
    page = context.new_page()
    page.set_default_timeout(PATIENCE)
    wrong = []
    page.on("console", lambda x: wrong.append(x.text) if is_complaint(x) else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda x: x.url.startswith((address, "data:")) or wrong.append(x.url))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.wrong = wrong
    yield page
    context.close()
    assert wrong == []


def is_complaint(message):
    """A request that a newer one replaced is none."""
    return message.type in ("error", "warning") and "status of 409" not in message.text
