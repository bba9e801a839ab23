from html.parser import HTMLParser

import pytest

from attnflow.papers.ledger import Claim, Finding, Row
from attnflow.runs.figures import Rendered
from attnflow.web.report import Picture, page


def row(name, verdict, **finding):
    claim = Claim(
        "paper",
        name,
        "Lemma 1",
        f"a < b & {name}",
        "sign",
        verdict,
        lambda: Finding(verdict, 0.5, 7),
        {},
    )
    return Row(claim, Finding(verdict, 0.5, 7, **finding), 0.1)


@pytest.fixture
def html(tmp_path):
    picture = tmp_path / "figure.png"
    picture.write_bytes(b"\x89PNG")
    done = Rendered("paper/1", "quick", tmp_path / "data.nc", picture, '{"p": 8}', 1.0)
    rows = [
        row("one", "holds"),
        row(
            "two",
            "holds_corrected",
            counterexample={"x": 0.123456789, "run": "attnflow simulate two_token --p 0"},
            correction="b < a",
        ),
        row("three", "refuted", counterexample={"y": [1.0, 2.0]}),
    ]
    return page(rows, [Picture("paper/1", "A picture", "What one sees.", done)])


class Links(HTMLParser):
    def __init__(self):
        super().__init__()
        self.sources, self.targets, self.ids = [], [], set()

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.sources += [given["src"]] if "src" in given else []
        self.targets += [given["href"]] if "href" in given else []
        self.ids |= {given["id"]} if "id" in given else set()


def test_the_page_is_self_contained_and_its_links_arrive(html):
    links = Links()
    links.feed(html)
    assert links.sources
    assert all(source.startswith("data:image/png;base64,") for source in links.sources)
    assert {target.removeprefix("#") for target in links.targets} <= links.ids
    assert "http" not in html


def test_the_page_tells_verdicts_errata_and_counterexamples(html):
    assert "a &lt; b &amp; one" in html
    assert "b &lt; a" in html
    assert "x = 0.123457" in html
    assert "attnflow simulate two_token --p 0" in html
    assert "y = [1, 2]" in html
    assert "attnflow reproduce paper/1 --preset quick" in html
