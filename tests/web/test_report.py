import dataclasses
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import xarray as xr

from attnflow.cli import report
from attnflow.papers.ledger import Claim, Finding, Row
from attnflow.runs import Store
from attnflow.runs.environment import environment
from attnflow.runs.figures import Rendered
from attnflow.web import latex
from attnflow.web.pages import typeset
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
    done = Rendered(
        "paper/1", "quick", tmp_path / "data.nc", picture, '{"p": 8}', 1.0, environment()
    )
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


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("s_j/s_0 ≤ C_σ²", "s<sub>j</sub>/s<sub>0</sub> ≤ C<sub>σ</sub>²"),
        ("2C_σ‖v‖", "2C<sub>σ</sub>‖v‖"),
        ("e^{-t} x^2", "e<sup>-t</sup> x<sup>2</sup>"),
        ("‖x‖_F, u_{ij}", "‖x‖<sub>F</sub>, u<sub>ij</sub>"),
        ("`first_mass` <b>", "<code>first_mass</code> &lt;b&gt;"),
        ("excess_over_the_risk", "excess_over_the_risk"),
    ],
)
def test_statements_are_typeset(text, found):
    assert typeset(text) == found


def test_the_page_tells_what_a_figure_was_made_with(html):
    assert f"numpy {np.__version__}" in html
    assert "&#34;p&#34;: 8" in html or '"p": 8' in html


def test_the_ledger_as_a_latex_table():
    text = latex.table([row("one", "holds"), row("two_2", "refuted")])
    assert r"a < b \& one & holds & 0.5 \\" in text
    assert r"\texttt{paper/\allowbreak{}two\_2}" in text
    body = text.partition(r"\endhead")[2]
    assert len(re.findall(r"(?<!\\)&", body)) == 2 * 3  # three separators a row, no bare one else
    assert text.count(r"\begin") == text.count(r"\end{")


@dataclasses.dataclass(frozen=True)
class Config:
    rate: float = 0.1
    label: str = "<script>alert(1)</script>"


@pytest.fixture
def out(tmp_path):
    step = np.arange(5)
    data = xr.Dataset(
        {"loss": ("step", 1.0 / (1 + step)), "note": ((), "text"), "end": ((), 0.25)},
        {"step": step},
    )
    store = Store(tmp_path / "runs")
    for rate in (0.1, 0.2):
        store.add(Config(rate), data, experiment="tests", log="said <b>this</b>")
    return tmp_path


def test_runs_make_a_page_of_their_own(out, capsys):
    assert report.run(["rate=0.2", "--out", str(out)]) == 0
    assert "runs.html" in capsys.readouterr().out
    text = (out / "runs.html").read_text()
    links = Links()
    links.feed(text)
    assert len(links.sources) == 1
    assert links.sources[0].startswith("data:image/png;base64,")
    assert {target.removeprefix("#") for target in links.targets} <= links.ids
    assert "0.25" in text
    assert "<script" not in text
    assert "<b>this" not in text
    assert "&lt;script&gt;alert(1)" in text


def test_runs_that_are_not_there_are_told(out, tmp_path):
    with pytest.raises(ValueError, match="begins with 'zzz'"):
        report.run(["zzz", "--out", str(out)])
    with pytest.raises(ValueError, match=r"no run in .* passes rate=0\.7"):
        report.run(["rate=0.7", "--out", str(out)])
    with pytest.raises(ValueError, match="--store"):
        report.run(["abc", "--out", str(tmp_path / "nowhere")])
