"""What was attacked and what broke; writes the reliability table of benchmarks/RESULTS.md.

python -m benchmarks.reliability        (about half an hour)
"""

import dataclasses
import importlib
import sys
from pathlib import Path

BEGIN, END = "<!-- reliability -->", "<!-- end of reliability -->"
PARTS = ("runs", "cli", "web")


@dataclasses.dataclass(frozen=True)
class Attack:
    """`failures` of `tried` cases lost something, hung, or answered wrongly; zero is the aim."""

    what: str
    tried: int
    failures: int
    note: str = ""


def table(attacks: list[Attack]) -> str:
    rows = [f"| {x.what} | {x.tried:,} | {x.failures} | {x.note} |" for x in attacks]
    lines = [
        BEGIN,
        "## Reliability",
        "",
        "One run of `python -m benchmarks.reliability`.",
        "",
        "| attack | cases | failures | measured |",
        "| --- | --- | --- | --- |",
        *rows,
        END,
    ]
    return "\n".join(lines)


def written(text: str, new: str) -> str:
    """The page with its reliability table replaced, or with one at its end."""
    if BEGIN not in text:
        return f"{text.rstrip()}\n\n{new}\n"
    before, _, rest = text.partition(BEGIN)
    return before + new + rest.partition(END)[2]


def main() -> int:
    attacks = []
    for part in PARTS:
        module = importlib.import_module(f"benchmarks.reliability_{part}")
        for attack in module.attacks():
            print(attack, flush=True)
            attacks.append(attack)
    path = Path(__file__).parent / "RESULTS.md"
    path.write_text(written(path.read_text(), table(attacks)))
    return 1 if any(attack.failures for attack in attacks) else 0


if __name__ == "__main__":
    sys.exit(main())
