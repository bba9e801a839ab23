"""The explorer in a real browser, on one server for all tests."""

import contextlib
import io
import json
import shlex
import shutil
import socket
import subprocess
import sys
import time
from urllib.parse import parse_qs, urlsplit

import pytest

from attnflow.cli import main
from attnflow.papers import ledger
from attnflow.runs import Store, grid, sweep
from attnflow.web.pages import typeset
from tests.runs.experiments import WALK, Walk

BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
PATIENCE = 300_000  # milliseconds: a view that is new compiles


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    place = Store(tmp_path_factory.mktemp("explorer") / "runs")
    sweep(grid(Walk(), seed=range(3)), WALK, place, engine="here", progress=False)
    sweep([Walk(how="raise")], WALK, place, engine="here", progress=False)
    evil = "<img src=x onerror=alert(1)>"
    place.add(Walk(seed=77), place.get(next(iter(place)).name).data(), experiment=evil)  # type: ignore
    return place


@pytest.fixture(scope="module")
def address(store):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", SERVER, str(store.root), str(port)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/"
    finally:
        process.terminate()
        process.communicate(timeout=30)


# One worker and no work ahead: what tests ask for is all that is compiled.
SERVER = """
import sys, uvicorn
from pathlib import Path
from attnflow.web.guard import Limits
from attnflow.web.server import create_app
app = create_app(Path(sys.argv[1]), limits=Limits(workers=1, seconds=300))
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", timeout_graceful_shutdown=1)
"""


@pytest.fixture(scope="module")
def browser():
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
    page.on("console", lambda x: wrong.append(x.text) if x.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda x: x.url.startswith((address, "data:")) or wrong.append(x.url))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.wrong = wrong
    yield page
    context.close()
    assert wrong == []


def settled(page):
    """All figures are drawn, and nothing is under way."""
    page.wait_for_selector("dl.facts dd")
    page.wait_for_function("() => document.querySelector('.status').textContent === ''")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.canvas')].every((x) => x.querySelector('.main-svg'))"
    )


def commanded(page, words):
    """The newest values are those drawn."""
    page.wait_for_function(
        "(words) => document.querySelector('#command').textContent.includes(words)", arg=words
    )
    settled(page)


def curve(page):
    """The y values of the first line of the first figure, as plotly holds them."""
    return page.evaluate("document.querySelector('.canvas').data.find((t) => t.y).y")


def slide(page, name, value):
    """As a mouse does: inputs on the way, a change at the end."""
    script = """([name, value]) => {
        const range = document.getElementById(`field-${name}`);
        const from = Number(range.value);
        for (let i = 1; i <= 4; i++) {
            range.value = from + (value - from) * i / 4;
            range.dispatchEvent(new Event("input", { bubbles: true }));
        }
        range.dispatchEvent(new Event("change", { bubbles: true }));
    }"""
    page.evaluate(script, [name, value])


def query(page):
    return {name: x[0] for name, x in parse_qs(urlsplit(page.url).query).items()}


@pytest.mark.parametrize(
    "view",
    [
        "conditioning",
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("specialization", "routing")),
    ],
)
def test_every_view_loads(page, view):
    page.goto(f"/?view={view}")
    settled(page)
    assert page.locator(".plot").count() >= 3
    assert page.locator("nav a[aria-current]").inner_text().lower() == view
    assert page.locator("#command").inner_text().startswith("attnflow simulate ")
    if view == "routing":
        before = page.evaluate("document.querySelector('.canvas').data[0].z")
        slide(page, "moment", 0)  # no request: all moments are there
        page.wait_for_function(
            "(z) => JSON.stringify(document.querySelector('.canvas').data[0].z) !== z",
            arg=json.dumps(before, separators=(",", ":")),
        )
        assert page.locator("output").inner_text() == "step 0"
        assert query(page)["moment"] == "0"
    if view == "specialization":
        page.get_by_label("1", exact=True).check()
        page.get_by_text("risk without head 1").wait_for()
        assert query(page)["pruned"] == "1"


def test_a_slider_moves_the_curve_and_the_address_is_the_state(page):
    page.goto("/")
    settled(page)
    start = curve(page)
    slide(page, "c0", 3)
    commanded(page, "--c0=3.0")
    moved = curve(page)
    assert moved != start
    assert query(page) == {"view": "two_tokens", "c0": "3"}
    page.reload()
    settled(page)
    assert curve(page) == moved
    assert page.locator("#field-c0").input_value() == "3"
    page.go_back()  # one step for the whole drag
    settled(page)
    page.wait_for_function(
        "(y) => document.querySelector('.canvas').data.find((t) => t.y).y[0] === y", arg=start[0]
    )
    assert page.locator("#field-c0").input_value() == "6"
    page.go_forward()
    page.wait_for_function(
        "(y) => document.querySelector('.canvas').data.find((t) => t.y).y[0] === y", arg=moved[0]
    )


def test_late_replies_do_not_overwrite_newer_ones(page):
    asked = []
    page.goto("/")
    settled(page)
    page.on("request", lambda x: asked.append(x.url) if "/api/view/" in x.url else None)
    for value in (1, 2, 3, 4, 5, 7):
        slide(page, "c1", value)
    commanded(page, "--c1=7.0")
    assert len(asked) < 6 * 4  # the newest only, one after the other
    assert asked[-1].endswith("c1=7")
    assert page.locator("#command").inner_text() == "attnflow simulate two_token --c1=7.0"


def test_an_error_is_beside_its_field(page):
    page.goto("/?view=two_tokens&p=2")
    page.wait_for_function("() => document.querySelector('#error-p').textContent !== ''")
    assert "p must lie from" in page.locator("#error-p").inner_text()
    assert page.locator("#field-p").get_attribute("aria-invalid") == "true"
    page.get_by_role("button", name="Defaults").click()
    settled(page)
    assert page.locator("#error-p").inner_text() == ""
    assert page.wrong.pop().startswith("Failed to load resource")  # the 400 itself


def test_a_name_in_the_address_that_means_nothing_is_told(page):
    page.goto("/?view=two_tokens&c0=3&c_0=4")
    told = page.get_by_text("The address names what is not here: c_0")
    told.wait_for()
    assert told.evaluate("(x) => getComputedStyle(x).color") == "rgb(168, 54, 10)"  # of errors
    slide(page, "c0", 5)
    commanded(page, "--c0=5.0")
    assert page.locator(".status").inner_text() == ""
    assert query(page) == {"view": "two_tokens", "c0": "5"}


def test_the_command_reproduces_the_numbers_shown(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto("/?view=polarization&tokens=3&seed=7&t1=1e6")
    settled(page)
    page.get_by_role("button", name="Copy as command").click()
    page.get_by_role("button", name="Copied").wait_for()
    command = page.evaluate("navigator.clipboard.readText()")
    shown = {
        key: json.loads(page.locator(f"dd[data-key={key}]").inner_text())
        for key in ("weights", "loss", "gamma_integral", "entropy")
    }
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*shlex.split(command)[1:], "--json"]) == 0
    found = json.loads(out.getvalue())
    for key, value in shown.items():
        assert value == pytest.approx(found[key], rel=1e-5), key


def test_a_keyboard_is_enough(page):
    page.goto("/")
    settled(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")  # the first control after the skip link
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "p, as a number"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "field-p"
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert page.evaluate(outline) == "solid"
    page.keyboard.press("ArrowRight")
    commanded(page, "--p=0.01")
    unlabelled = page.evaluate(
        "[...document.querySelectorAll('input, select')].filter((x) => !x.labels.length"
        " && !x.getAttribute('aria-label')).length"
    )
    assert unlabelled == 0


@pytest.mark.parametrize("width", [400, 1600])
def test_nothing_sticks_out(page, width):
    page.set_viewport_size({"width": width, "height": 800})
    for view in ("two_tokens", "ledger", "runs"):
        page.goto(f"/?view={view}")
        if view == "two_tokens":
            settled(page)
        else:
            page.wait_for_selector("article, tbody tr")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_ledger_is_filtered_and_a_claim_is_run(page):
    page.goto("/?view=ledger&paper=conditioning")
    page.wait_for_selector("article")
    seen = page.locator("article:visible")
    assert all(x.startswith("conditioning/") for x in seen.evaluate_all(IDS))
    everything = seen.count()
    page.get_by_label("Verdict").select_option("holds")
    assert 0 < seen.count() < everything
    assert page.locator("article:visible h2 .verdict").all_inner_texts() == ["holds"] * seen.count()
    assert query(page) == {"view": "ledger", "paper": "conditioning", "verdict": "holds"}
    page.get_by_label("Words").fill("lemma-1")
    card = page.locator("article[data-id='conditioning/lemma-1']")
    card.get_by_role("button", name="Run it").click()
    card.get_by_text("found now").wait_for()
    assert card.get_by_role("button").count() == 1  # what holds has no counterexample
    page.go_back()
    page.wait_for_function("() => document.querySelector('#verdict').value === ''")


def test_statements_look_as_in_the_report(page):
    page.goto("/?view=ledger")
    page.wait_for_selector("article")
    pairs = [[claim.statement, str(typeset(claim.statement))] for claim in ledger.select()]
    assert page.evaluate(DIFFERENT, pairs) == []


DIFFERENT = """async (pairs) => {
  const { typeset } = await import("/static/ledger.js");
  return pairs.filter(([text, wanted]) => {
    const here = document.createElement("p");
    here.append(...typeset(text));
    here.normalize();
    const there = new DOMParser().parseFromString(`<p>${wanted}</p>`, "text/html");
    return !here.isEqualNode(there.querySelector("p"));
  });
}"""


def test_a_counterexample_is_one_click(page):
    page.goto("/?view=ledger&search=lemma-b.1b-proof")
    card = page.locator("article[data-id='polarization/lemma-b.1b-proof']")
    card.get_by_role("button", name="Run its counterexample").click()
    card.locator(".printed").wait_for()
    assert card.locator(".printed").inner_text().strip() == "False"
    assert card.get_by_text("Counterexample:").count() == 1


IDS = "(cards) => cards.map((card) => card.dataset.id)"


def test_runs_are_text_and_curves_lie_over_each_other(page, store):
    page.goto("/?view=runs")
    page.wait_for_selector("tbody tr")
    assert page.get_by_text("<img src=x onerror=alert(1)>").count() == 1
    assert page.locator("tbody img").count() == 0
    assert "cannot be done" in page.get_by_role("listitem").inner_text()
    for box in page.locator("tbody input").all()[:2]:
        box.check()
    page.wait_for_function("() => document.querySelector('.canvas').data?.length === 2")
    assert page.locator(".plot h3").inner_text() == "loss of 2 runs"
    page.locator("#filter").fill("seed<1")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    page.locator("#filter").fill("sed<1")
    page.get_by_text("did you mean").wait_for()
    assert page.wrong.pop().startswith("Failed to load resource")  # the 400 itself


def test_a_sweep_is_followed_while_it_runs(page, store):
    page.goto("/?view=runs")
    page.wait_for_selector("tbody tr")
    before = int(page.locator(".live").inner_text().split()[0])
    configs = grid(Walk(rate=0.7), seed=range(3))
    sweep(configs, WALK, store, engine="here", progress=False)
    page.get_by_text(f"{before + 3} runs done").wait_for()
    page.wait_for_function(f"() => document.querySelectorAll('tbody tr').length === {before + 3}")
