"""One self-contained HTML page: it opens from disk, offline."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

from attnflow.runs.figures import Rendered
from attnflow.web.pages import data_url, render

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
        return data_url(self.rendered.picture.read_bytes())

    @property
    def command(self) -> str:
        return f"attnflow reproduce {self.id} --preset {self.rendered.preset}"


def page(rows: Sequence[Any], pictures: Sequence[Picture]) -> str:
    """The report; `rows` are `attnflow.papers.ledger.Row`s."""
    papers: dict[str, list] = {}
    for row in rows:
        papers.setdefault(row.claim.paper, []).append(row)
    return render(
        "report.html",
        LIBRARIES,
        papers=papers,
        pictures=pictures,
        counts=Counter(row.finding.verdict for row in rows),
        verdicts=("holds", "holds_corrected", "refuted", "not_checkable"),
        errata=[row for row in rows if row.finding.verdict in ("holds_corrected", "refuted")],
        seconds=sum(row.seconds for row in rows if not row.stored),
        earlier=sum(bool(row.stored) for row in rows),
    )
