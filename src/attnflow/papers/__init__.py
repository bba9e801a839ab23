"""The papers: their statements as claims, their figures as commands."""

import importlib.util
import pkgutil


def papers_with(part: str) -> list[str]:
    """Every paper that has a module of this name ("claims" or "figures"), in order of name."""
    return sorted(
        module.name
        for module in pkgutil.iter_modules(__path__)
        if module.ispkg and importlib.util.find_spec(f"{__name__}.{module.name}.{part}")
    )
