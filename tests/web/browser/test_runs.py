"""The page of the runs in a real browser."""

from attnflow.runs import grid, sweep
from attnflow.runs.status import Announcement
from tests.runs.experiments import WALK, Walk
from tests.web.browser.steps import forgive, lines, query


def test_runs_are_text_and_curves_lie_over_each_other(page, store):
    page.goto("/?view=runs")
    page.wait_for_selector("tbody tr")
    assert page.get_by_text("<img src=x onerror=alert(1)>").count() == 1
    assert page.locator("tbody img").count() == 0
    assert "cannot be done" in page.get_by_role("listitem").inner_text()
    for box in page.locator("tbody input").all()[:2]:
        box.check()
    lines(page, 2)
    assert page.locator(".plot h3").inner_text() == "loss of 2 runs"
    page.locator("#filter").fill("seed<1")
    page.wait_for_function("() => document.querySelectorAll('tbody tr').length === 1")
    page.locator("#filter").fill("sed<1")
    page.get_by_text("did you mean").wait_for()
    forgive(page)


def test_a_sweep_is_followed_while_it_runs(page, store):
    page.goto("/?view=runs")
    page.wait_for_selector("tbody tr")
    before = int(page.locator(".live").inner_text().split()[0])
    configs = grid(Walk(rate=0.7), seed=range(3))
    sweep(configs, WALK, store, engine="here", progress=False)
    page.get_by_text(f"{before + 3} runs done").wait_for()
    page.wait_for_function(f"() => document.querySelectorAll('tbody tr').length === {before + 3}")


def names(page):
    return page.locator("tbody code").all_inner_texts()


def filled(store, count):
    sweep(grid(Walk(rate=0.7), seed=range(count)), WALK, store, engine="here", progress=False)


def test_runs_come_in_pages_that_a_keyboard_turns(page, store):
    filled(store, 26)  # 30 in all
    page.goto("/?view=runs&size=25")
    page.get_by_text("1 to 25 of 30 runs, page 1 of 2").wait_for()
    first = names(page)
    turn = page.get_by_role("button", name="Next page of runs")
    turn.focus()
    page.keyboard.press("Enter")
    page.get_by_text("26 to 30 of 30 runs, page 2 of 2").wait_for()
    assert query(page) == {"view": "runs", "size": "25", "page": "2"}
    assert not set(names(page)) & set(first)
    assert page.evaluate("document.activeElement.textContent") == "Next page"  # it is still there
    assert turn.get_attribute("aria-disabled") == "true"
    page.reload()
    page.get_by_text("page 2 of 2").wait_for()
    page.get_by_role("button", name="First page of runs").click()
    page.get_by_text("page 1 of 2").wait_for()
    assert names(page) == first
    page.locator("#filter").fill("rate=0.1")
    page.get_by_text("4 runs", exact=True).wait_for()
    assert not turn.is_visible()


def test_columns_are_chosen_and_a_link_carries_them(page, store):
    page.goto("/?view=runs")
    page.wait_for_selector("tbody tr")
    heads = page.locator("th")
    assert heads.all_inner_texts() == ["show", "run", "experiment", "seed", "finished (UTC)"]
    page.get_by_text("Columns").click()
    page.get_by_label("length", exact=True).press("Space")
    page.wait_for_function("() => document.querySelectorAll('th').length === 6")
    assert page.evaluate("document.activeElement.value") == "length"
    assert set(query(page)["columns"].split(",")) == {"seed", "length"}
    page.reload()
    page.wait_for_function("() => document.querySelectorAll('th').length === 6")
    assert page.locator("tbody tr").first.inner_text().count("20") >= 1
    page.get_by_text("Columns").click()
    page.get_by_role("button", name="Those that differ").click()
    page.wait_for_function("() => document.querySelectorAll('th').length === 5")
    assert query(page) == {"view": "runs"}


def test_total_and_time_left_of_a_sweep_are_told(page, store, monkeypatch):
    monkeypatch.setattr("attnflow.runs.status.EVERY", 0.0)
    page.goto("/?view=runs")
    page.get_by_text("no sweep under way").wait_for()
    with Announcement(store.root, "walk", 400) as told:
        page.get_by_text("walk: 0 of 400 done", exact=True).wait_for()
        begun = told.status.begun
        monkeypatch.setattr("attnflow.runs.status.time.time", lambda: begun + 61)
        told.update(done=120, failed=2)
        page.get_by_text("walk: 120 of 400 done, 2 failed, about 2 min left").wait_for()
        assert page.locator("progress").evaluate("(x) => x.value / x.max") == 122 / 400
    page.get_by_text("no sweep under way").wait_for()


def test_damaged_runs_are_named(page, store):
    unread, torn, *_ = store
    (unread.path / "config.json").write_text("{")
    (torn.path / "scalars.parquet").write_bytes(b"")
    page.goto(f"/?view=runs&runs={torn.name}")
    page.get_by_text(f"run {torn.name}: this run is damaged").wait_for()
    assert unread.name in page.get_by_role("list", name="Left out").inner_text()
    forgive(page)
