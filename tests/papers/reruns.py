"""Counterexamples as a reader runs them."""

import contextlib
import io
import re


def output_of(run: str) -> str:
    """What a counterexample's command prints."""
    code = run.removeprefix('python -c "').removesuffix('"')
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        exec(code, {})
    return shown.getvalue()


def numbers(text: str) -> list[float]:
    """The numbers of a text; the names of JAX and NumPy types are not among them."""
    bare = re.sub(r"(?<!\d)(?<!\d\.)[A-Za-z_]\w*", " ", text)
    return [float(x) for x in re.findall(r"-?\d+\.?\d*(?:e[-+]?\d+)?", bare)]
