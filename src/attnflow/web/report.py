"""One self-contained HTML page: it opens from disk, offline."""

import base64
import dataclasses
import platform
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import jinja2

import attnflow
from attnflow.runs.figures import Rendered
from attnflow.runs.text import brief

LIBRARIES = ("jax", "diffrax", "equinox", "optax", "xarray", "numpy")


@dataclasses.dataclass(frozen=True)
class Picture:
    """A drawn figure with its words."""

    id: str
    title: str
    caption: str
    rendered: Rendered

    @property
    def data_url(self) -> str:
        encoded = base64.b64encode(self.rendered.picture.read_bytes()).decode()
        return f"data:image/png;base64,{encoded}"

    @property
    def command(self) -> str:
        return f"attnflow reproduce {self.id} --preset {self.rendered.preset}"


def anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def page(rows: Sequence[Any], pictures: Sequence[Picture]) -> str:
    """The report; `rows` are `attnflow.papers.ledger.Row`s."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("attnflow", "web"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": brief, "anchor": anchor}
    papers: dict[str, list] = {}
    for row in rows:
        papers.setdefault(row.claim.paper, []).append(row)
    return environment.get_template("report.html").render(
        papers=papers,
        pictures=pictures,
        counts=Counter(row.finding.verdict for row in rows),
        verdicts=("holds", "holds_corrected", "refuted", "not_checkable"),
        errata=[row for row in rows if row.finding.verdict in ("holds_corrected", "refuted")],
        version=attnflow.__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        versions=", ".join(f"{name} {version(name)}" for name in LIBRARIES),
        python=platform.python_version(),
        seconds=sum(row.seconds for row in rows),
    )
