"""The prompt model, trained in discrete steps."""

import dataclasses
from typing import Annotated, Any

import optax
import xarray as xr
from typing_extensions import Doc

from attnflow._checks import at_least, choice, fits_memory, positive
from attnflow.cli.options import Extras, Output
from attnflow.dynamics.descent import descend
from attnflow.dynamics.preconditioning import (
    gauss_newton,
    levenberg_marquardt,
    simplex_natural_gradient,
)
from attnflow.models.prompt import StudentTeacher


@dataclasses.dataclass(frozen=True)
class DescentOptions(Output):
    steps: Annotated[int, Doc("steps of the optimizer")] = 10_000
    step: Annotated[float, Doc("step size")] = 0.1
    optimizer: Annotated[str, Doc("sgd, adam, gauss_newton, levenberg_marquardt or natural")] = (
        "sgd"
    )
    explain: Annotated[bool, Doc("tell why the run stands where it stands")] = False

    def unused(self, model: Any) -> dict[str, str]:
        chosen = self.optimizer == "levenberg_marquardt"  # it chooses its own steps
        return {"step": "with another --optimizer"} if chosen else {}

    def run(self, task: StudentTeacher) -> tuple[xr.Dataset, Extras]:
        positive("step", self.step)
        at_least("steps", self.steps, 1)
        choice("optimizer", self.optimizer, OPTIMIZERS)
        if self.optimizer in SECOND_ORDER:
            entries = sum(task.d**2 if block == "W" else task.d for block in task.trained)
            shown = f"{self.optimizer} with {entries} parameters and {task.samples} samples"
            fits_memory(shown, 8 * 4 * entries * (entries + task.samples))
        model = task.model()
        optimizer = OPTIMIZERS[self.optimizer](model, self.step)
        run, params = descend(model, self.steps, optimizer, return_params=True)
        extras: Extras = {"steps": self.steps}
        if self.explain:
            step = self.step if self.optimizer == "sgd" else None
            from attnflow.dynamics.stall import explain_stall

            extras["stall"] = dataclasses.asdict(explain_stall(model, params, step=step))
        return run, extras


def _preconditioned(direction, step: float):
    return optax.chain(direction, optax.scale(-step))


OPTIMIZERS = {
    "sgd": lambda model, step: optax.sgd(step),
    "adam": lambda model, step: optax.adam(step),
    "gauss_newton": lambda model, step: _preconditioned(
        gauss_newton(model.outputs, model.loss_of_outputs), step
    ),
    "levenberg_marquardt": lambda model, step: levenberg_marquardt(  # it chooses its own steps
        model.outputs, model.loss_of_outputs
    ),
    "natural": lambda model, step: _preconditioned(simplex_natural_gradient(model.scores), step),
}


SECOND_ORDER = ("gauss_newton", "levenberg_marquardt", "natural")
