"""How pages are made: templates of this folder, everything from data escaped."""

import base64
import io
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import version

import jinja2
from markupsafe import Markup, escape
from matplotlib.figure import Figure

import attnflow
from attnflow.runs.text import brief

LETTER = r"[^\W\d_²³¹⁰-⁹₀-₉½]"
SCRIPT = rf"(\{{[^}}]*\}}|\([^()]*\)|[+−-]?(?:{LETTER}|[0-9*∞]){{1,4}}(?!{LETTER}|[0-9_]))"
PARTS = re.compile(rf"`([^`]+)`|(?:(?<![^\W\d])({LETTER})|([∇∂∫‖)\]]))_{SCRIPT}|\^{SCRIPT}")


def render(template: str, libraries: tuple[str, ...], **content) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("attnflow", "web"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": brief, "anchor": anchor, "typeset": typeset}
    return environment.get_template(template).render(
        version=attnflow.__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        versions=", ".join(f"{name} {version(name)}" for name in libraries),
        python=platform.python_version(),
        **content,
    )


def anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def typeset(text: str) -> Markup:
    """`code`; u_j, x^2, e^{-t}: subscripts of one letter, superscripts; all else as it stands."""
    parts, end = [], 0
    for match in PARTS.finditer(text):
        code, letter, sign, below, above = match.groups()
        inner = code or (below or above).removeprefix("{").removesuffix("}")
        kind = "code" if code else "sub" if below else "sup"
        parts += [escape(text[end : match.start()]), escape(letter or sign or "")]
        parts.append(Markup("<{0}>{1}</{0}>").format(Markup(kind), inner))
        end = match.end()
    return Markup("").join([*parts, escape(text[end:])])


def data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def drawn(figure: Figure) -> str:
    """A figure as an address that holds the whole picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return data_url(buffer.getvalue())
