"""Numbers as words and as JSON."""

import math
from typing import Any


def brief(value: Any) -> str:
    """Numbers to six digits, for reading."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} = {brief(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(brief, value)) + "]"
    return str(value)


def plain(value: Any) -> Any:
    """The value for JSON, which has no infinity and no NaN: they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value
