"""The views and the ledger in a real browser."""

import contextlib
import io
import json
import shlex

import pytest

from attnflow.cli import main
from attnflow.papers import ledger
from attnflow.web.pages import typeset
from attnflow.web.server import STATIC
from tests.web.browser.steps import commanded, curve, forgive, query, settled, slide


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
        "(y) => document.querySelector('.canvas')?.data?.find((t) => t.y).y[0] === y", arg=start[0]
    )
    assert page.locator("#field-c0").input_value() == "6"
    page.go_forward()
    page.wait_for_function(
        "(y) => document.querySelector('.canvas')?.data?.find((t) => t.y).y[0] === y", arg=moved[0]
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
    page.wait_for_function("() => !!document.querySelector('#error-p')?.textContent")
    assert "p must lie from" in page.locator("#error-p").inner_text()
    assert page.locator("#field-p").get_attribute("aria-invalid") == "true"
    page.get_by_role("button", name="Defaults").click()
    settled(page)
    assert page.locator("#error-p").inner_text() == ""
    forgive(page)


def test_with_a_field_in_error_all_results_are_dimmed(page):
    page.goto("/?view=two_tokens&c0=3")
    settled(page)
    number = page.get_by_label("c0, as a number")
    copies = [page.get_by_role("button", name=f"Copy as {what}") for what in ("command", "Python")]
    for text, dimmed in (("99", True), ("5", False), ("", True)):
        number.fill(text)
        number.press("Enter")
        page.wait_for_function(
            """(dimmed) => {
                const style = (x) => getComputedStyle(document.querySelector(x));
                const ink = (x) => style(x).color !== style("h1").color;
                return (style(".canvas").opacity === "0.45") === dimmed
                    && ["h3", ".facts dd", "#command", "#python"].every((x) => ink(x) === dimmed);
            }""",
            arg=dimmed,
        )
        assert [button.is_disabled() for button in copies] == [dimmed] * 2
        assert page.get_by_text("results of earlier values").is_visible() == dimmed
    assert page.get_by_role("button", name="Copy link").is_enabled()
    forgive(page)


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


def opened(page):
    page.goto("/")


def reloaded(page):
    page.goto("/?view=polarization")
    settled(page)
    page.reload()


def linked(page):
    """Another view than the first, on a narrow page where the navigation is scrolled."""
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto("/?view=conditioning")


def gone_back(page):
    page.goto("/?view=two_tokens")
    settled(page)
    page.goto("/?view=ledger")
    page.wait_for_selector("article")
    page.go_back()


@pytest.mark.parametrize("load", [opened, reloaded, linked, gone_back])
def test_the_keyboard_starts_at_the_skip_link(page, load):
    load(page)
    settled(page)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Two tokens"


def test_the_link_of_the_view_is_in_sight(page, store):
    page.set_viewport_size({"width": 400, "height": 800})
    for view in ("runs", "two_tokens"):
        page.goto(f"/?view={view}")
        page.wait_for_selector("nav a[aria-current]")
        inside = """() => {
            const outer = document.querySelector("nav").getBoundingClientRect();
            const inner = document.querySelector("nav a[aria-current]").getBoundingClientRect();
            return outer.left <= inner.left + 1 && inner.right <= outer.right + 1;
        }"""
        page.wait_for_function(inside)


def test_scripts_do_not_move_the_place_where_the_keyboard_starts():
    for path in STATIC.glob("*.js"):
        assert "scrollIntoView(" not in path.read_text()


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
def test_nothing_sticks_out(page, store, width):
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
    page.wait_for_function("() => document.querySelector('#verdict')?.value === ''")


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
