"""What axe-core finds on every page: nothing."""

import importlib.util
from pathlib import Path

import pytest

from tests.web.browser.steps import forgive, lines, settled


def axe_source():
    found = importlib.util.find_spec("axe_playwright_python")
    assert found is not None
    assert found.origin is not None
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def violations(page):
    found = page.evaluate("axe.run().then((found) => found.violations)")
    return [
        (x["id"], node["html"][:200], node["failureSummary"]) for x in found for node in x["nodes"]
    ]


def light_and_dark(page):
    page.evaluate(axe_source())
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        yield violations(page)


@pytest.mark.parametrize(
    "view",
    [
        "two_tokens",
        "polarization",
        "conditioning",
        "specialization",
        "routing",
    ],
)
def test_views(page, view):
    page.goto(f"/?view={view}")
    settled(page)
    assert list(light_and_dark(page)) == [[], []]


def test_a_view_with_an_error(page):
    page.goto("/?view=two_tokens&c0=3")
    settled(page)
    page.get_by_label("c0, as a number").fill("99")
    page.get_by_label("c0, as a number").press("Enter")
    page.get_by_text("results of earlier values").wait_for()
    assert list(light_and_dark(page)) == [[], []]
    forgive(page)


def test_the_ledger(page):
    page.goto("/?view=ledger&search=lemma")
    page.wait_for_selector("article")
    page.locator("article[data-id='conditioning/lemma-1']").get_by_role("button").first.click()
    page.get_by_text("found now").wait_for()
    assert list(light_and_dark(page)) == [[], []]


def test_the_runs(page, store):
    (store.root / "gpt.html").write_text("<h1>diagnosis</h1>")
    one, other, torn, *_ = store
    (torn.path / "scalars.parquet").write_bytes(b"")
    page.goto(f"/?view=runs&size=25&runs={one.name},{other.name},{torn.name}")
    lines(page, 2)
    page.wait_for_selector("tbody tr")
    page.get_by_text("Columns").click()
    assert list(light_and_dark(page)) == [[], []]
    forgive(page)


def test_empty_and_unknown(page, store):
    for run in list(store):
        store.remove(run)
    page.goto("/?view=runs")
    page.get_by_text("0 runs", exact=True).wait_for()
    assert list(light_and_dark(page)) == [[], []]
    page.goto("/?view=nothing")
    page.get_by_text("There is no such view").wait_for()
    assert list(light_and_dark(page)) == [[], []]
