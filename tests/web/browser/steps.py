"""What tests in the browser do again and again."""

from urllib.parse import parse_qs, urlsplit


def settled(page):
    """All figures are drawn, and nothing is under way."""
    page.wait_for_selector("dl.facts dd")
    page.wait_for_function("() => document.querySelector('.status')?.textContent === ''")
    page.wait_for_function(
        "() => [...document.querySelectorAll('.canvas')].every((x) => x.querySelector('.main-svg'))"
    )


def lines(page, number):
    """The first figure is there and has this many lines."""
    page.wait_for_function(
        "(number) => document.querySelector('.canvas')?.data?.length === number", arg=number
    )


def commanded(page, words):
    """The newest values are those drawn."""
    page.wait_for_function(
        "(words) => document.querySelector('#command')?.textContent.includes(words)", arg=words
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
    page.wait_for_selector(f"#field-{name}")
    page.evaluate(script, [name, value])


def query(page):
    return {name: x[0] for name, x in parse_qs(urlsplit(page.url).query).items()}


def forgive(page):
    """The browser complains of refusals, here those that the test has asked for."""
    others = [x for x in page.wrong if not x.startswith("Failed to load resource")]
    assert len(others) < len(page.wrong)
    page.wrong[:] = others
