"""How each model is run from the command line: one module for each way, imported when needed."""

import dataclasses
from pathlib import Path
from typing import Annotated, Any

from typing_extensions import Doc

Extras = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Output:
    json: Annotated[bool, Doc("print one JSON object with the final observables")] = False
    plot: Annotated[Path | None, Doc("write a picture: PNG, PDF or SVG by its ending")] = None

    def unused(self, model: Any) -> dict[str, str]:
        """Options and fields of the model that have no effect on this run, and when they have."""
        del model
        return {}
