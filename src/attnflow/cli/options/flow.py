"""Models that are followed along their gradient flow."""

import dataclasses
from typing import Annotated, Any

import xarray as xr
from typing_extensions import Doc

from attnflow.cli.options import Extras, Output
from attnflow.dynamics.flow import gradient_flow
from attnflow.models.two_token import TwoToken
from attnflow.models.value_softmax import ValueSoftmax


@dataclasses.dataclass(frozen=True)
class FlowOptions(Output):
    t1: Annotated[float, Doc("final time")] = 1e4
    points: Annotated[int, Doc("output times, even in log(1 + t)")] = 200
    key: Annotated[int | None, Doc("seed of a random start around the given one")] = None
    rtol: Annotated[float, Doc("relative tolerance of the integrator")] = 1e-10

    def unused(self, model: Any) -> dict[str, str]:
        return {"scale": "with --key"} if self.key is None else {}

    def run(self, model) -> tuple[xr.Dataset, Extras]:
        if isinstance(model, ValueSoftmax) and self.key is None:
            model.require_order()
        flow = gradient_flow(model, self.t1, points=self.points, key=self.key, rtol=self.rtol)
        extras = critical(model) if isinstance(model, TwoToken) and self.key is None else {}
        return flow, extras | {"t1": self.t1}


def critical(model: TwoToken) -> Extras:
    points = model.critical_points()
    return {
        "critical_times": points.times.tolist(),
        "critical_norm2": points.norm2.tolist(),
        "phases": [phase._asdict() for phase in points.phases],
        "shape": points.shape,
    }
