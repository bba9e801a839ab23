"""How pages are made: templates of this folder, everything from data escaped."""

import base64
import io
import platform
import re
from datetime import UTC, datetime
from importlib.metadata import version

import jinja2
from matplotlib.figure import Figure

import attnflow
from attnflow.runs.text import brief


def render(template: str, libraries: tuple[str, ...], **content) -> str:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("attnflow", "web"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {"number": brief, "anchor": anchor}
    return environment.get_template(template).render(
        version=attnflow.__version__,
        made=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        versions=", ".join(f"{name} {version(name)}" for name in libraries),
        python=platform.python_version(),
        **content,
    )


def anchor(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def data_url(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def drawn(figure: Figure) -> str:
    """A figure as an address that holds the whole picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=150)
    return data_url(buffer.getvalue())
