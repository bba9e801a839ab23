"""The ledger as a LaTeX table."""

from collections.abc import Sequence
from typing import Any

SPECIAL = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    **{each: "\\" + each for each in "&%$#_"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
}
HEAD = r"""% For XeLaTeX or LuaLaTeX with a font that has Greek letters and mathematical signs:
% \usepackage{booktabs, longtable, fontspec}
\begin{longtable}{p{0.24\linewidth}p{0.46\linewidth}p{0.14\linewidth}r}
\toprule
claim & statement & verdict & margin \\
\midrule
\endhead
"""
TAIL = r"""\bottomrule
\end{longtable}
"""


def escaped(text: str) -> str:
    """
    >>> escaped("50 % of a_i & b^2")
    '50 \\\\% of a\\\\_i \\\\& b\\\\textasciicircum{}2'
    """
    return "".join(SPECIAL.get(each, each) for each in text)


def table(rows: Sequence[Any]) -> str:
    """A longtable with a line for each `attnflow.papers.ledger.Row`."""
    lines = []
    for row in rows:
        name = escaped(row.claim.id).replace("/", r"/\allowbreak{}").replace("-", r"-\allowbreak{}")
        cells = (
            rf"\texttt{{{name}}}",
            escaped(row.claim.statement),
            row.finding.verdict.replace("_", " "),
            f"{row.finding.margin:.2g}",
        )
        lines.append(" & ".join(cells) + r" \\")
    return HEAD + "\n".join(lines) + "\n" + TAIL
