"""The plotting library of the page, from the installed package, and what it needs to be allowed."""

import base64
import functools
import hashlib
import importlib.metadata
import importlib.util
import re
from pathlib import Path

STYLES = re.compile(r"""createElement\("style"\).{0,200}?\.textContent='((?:[^'\\]|\\.)*)'""", re.S)


def path() -> Path:
    found = importlib.util.find_spec("plotly")
    if found is None or found.origin is None:
        raise ValueError("the explorer needs plotly: pip install 'attnflow[web]'")
    return Path(found.origin).parent / "package_data" / "plotly.min.js"


def version() -> str:
    return importlib.metadata.version("plotly")


@functools.cache
def policy() -> str:
    """The content security policy of the page. The library adds an empty <style> whose rules it
    fills in by script, and the fixed styles of its maps: each is allowed by its hash. What another
    version adds is refused by the browser, and the page does without. It also sets style attributes
    of single elements."""
    text = path().read_text(encoding="utf-8")
    styles = ["", *(re.sub(r"\\(.)", r"\1", found) for found in STYLES.findall(text))]
    hashes = " ".join(f"'sha256-{_hash(style)}'" for style in styles)
    return (
        f"default-src 'none'; script-src 'self'; style-src 'self' {hashes}; "
        "style-src-attr 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; frame-ancestors 'none'; form-action 'none'"
    )


def _hash(style: str) -> str:
    return base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
