"""What was attacked and what broke; writes the reliability table of benchmarks/RESULTS.md."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Attack:
    """`failures` of `tried` cases lost something, hung, or answered wrongly; zero is the aim."""

    what: str
    tried: int
    failures: int
    note: str = ""
