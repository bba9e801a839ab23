"""Sphinx: `make site` builds the pages of this folder into out/site, offline."""

import re

import attnflow

project = "attnflow"
author = "The attnflow developers"
copyright = author
version = release = attnflow.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "furo"
html_title = "attnflow"
html_copy_source = False
myst_heading_anchors = 3
exclude_patterns = ["images"]

autodoc_typehints = "none"
autodoc_preserve_defaults = True
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}


CODE_OR_EMPHASIS = re.compile(r"(`[^`]+`|(?<!\w)\*\w[^*`]*\w\*(?!\w))")


def as_rst(text: str) -> str:
    """Our docstrings are plain text with `code` in single backticks and some *emphasis*. What else
    would mean something to reStructuredText (|x|, a * b, x_) is escaped."""

    def part(text: str) -> str:
        if text.startswith("`"):
            return rf"\ `{text}`\ "  # escaped blanks: it may touch other characters
        return text if CODE_OR_EMPHASIS.fullmatch(text) else re.sub(r"([\\*|]|_\b)", r"\\\1", text)

    return "".join(map(part, CODE_OR_EMPHASIS.split(text)))


def docstring(app, what, name, obj, options, lines: list[str]) -> None:
    """Each paragraph, except those that are code: examples (>>>) stay as they are."""
    paragraphs = "\n".join(lines).split("\n\n")
    lines[:] = "\n\n".join(
        part if part.lstrip().startswith(">>>") else as_rst(part) for part in paragraphs
    ).split("\n")


def skip(app, what, name, obj, skipped, options) -> bool | None:
    """Fields of named tuples have no docstring of their own."""
    return True if str(getattr(obj, "__doc__", "")).startswith("Alias for field") else None


def setup(app) -> None:
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-skip-member", skip)
