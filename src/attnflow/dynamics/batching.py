"""From plain numbers to traced ones, and from one run to many."""

import dataclasses
import functools
import typing
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from attnflow._checks import at_least, seed
from attnflow.dynamics.starts import Start
from attnflow.dynamics.trajectory import fields_of
from attnflow.models.interface import Model, Module, tell_jax

tell_jax()


def _lifted(value: Any) -> Any:
    """Floats, also inside arrays, dicts and tuples of numbers, as float64 arrays."""
    if isinstance(value, tuple) and all(isinstance(x, float | int) for x in value):
        return np.asarray(value, np.float64)
    return jax.tree.map(
        lambda x: np.asarray(x, np.float64) if eqx.is_inexact_array_like(x) else x, value
    )


def traced(model: Model) -> Model:
    """The model with every float as a float64 array, so that a new value does not recompile; also
    whole numbers where a field is a float."""
    real = _real_fields(type(model))

    def lifted(name: str, value: Any) -> Any:
        if name in model.shared:
            return value
        return _lifted(float(value) if name in real and type(value) is int else value)

    return type(model)(**{name: lifted(name, x) for name, x in fields_of(model).items()})


@functools.cache
def _real_fields(kind: type) -> frozenset[str]:
    return frozenset(
        field.name
        for field in dataclasses.fields(kind)
        if field.type is float or float in typing.get_args(field.type)
    )


def split(model: Model) -> tuple[Model, Model]:
    """The model's arrays that differ from run to run, and the rest; `eqx.combine` joins them."""
    names = type(model).shared
    mask = jax.tree.map(eqx.is_array, model)
    if names:
        fields = [getattr(model, name) for name in names]
        fixed = [jax.tree.map(lambda _: False, field) for field in fields]
        mask = eqx.tree_at(lambda m: [getattr(m, name) for name in names], mask, fixed)
    return eqx.partition(model, mask)


def take_runs(model: Model, rows: np.ndarray) -> Model:
    """The batched model with only the given runs."""
    varying, shared = split(model)
    return eqx.combine(jax.tree.map(lambda x: x[rows], varying), shared)


def for_each_run(function):
    """`function(model, *rest)` over the leading run axis of the model's own arrays and `rest`."""

    def call(model, *rest):
        varying, shared = split(model)
        each = eqx.filter_vmap(
            lambda own, *others: function(eqx.combine(own, shared), *others),
            in_axes=eqx.if_array(0),
        )
        return each(varying, *rest)

    return call


def _stacked(values: Any) -> Any:
    """One array with a leading run axis; a list of modules or dicts becomes one of such arrays."""
    if (
        isinstance(values, list | tuple)
        and values
        and isinstance(values[0], Module | eqx.Module | dict)
    ):
        return jax.tree.map(lambda *x: np.stack(x).astype(np.float64), *values)
    return np.asarray(values, np.float64)


def batched(model: Model, over: Mapping[str, Any] | None, runs: int | None) -> tuple[Model, int]:
    """The traced model with a leading run axis on every float: fields of `over` vary, the rest
    repeat."""
    plain = fields_of(model)
    known = {name for name, value in plain.items() if not isinstance(value, str | int)}
    varied = {name: _stacked(values) for name, values in (over or {}).items()}
    for name in varied:
        if name not in known or name in model.shared:
            raise ValueError(f"over: {name!r} is not a float field of {type(model).__name__}")
    leaves = jax.tree.leaves(varied)
    lengths = {values.shape[0] if values.ndim else 0 for values in leaves}
    if runs is not None:
        at_least("runs", runs, 1, "a call needs at least one initial condition")
        lengths.add(runs)
    if len(lengths) != 1 or 0 in lengths:
        raise ValueError(f"over: every field needs the same number of runs (got {sorted(lengths)})")
    (count,) = lengths

    def repeat(x):
        return np.broadcast_to(x, (count, *x.shape)) if isinstance(x, np.ndarray) else x

    repeated = {
        name: value if name in model.shared else jax.tree.map(repeat, _lifted(value))
        for name, value in plain.items()
    }
    return type(model)(**(repeated | varied)), count  # which also checks every value of the batch


def prng_key(key: Any) -> jax.Array | None:
    """None, a whole number, or a JAX key."""
    if key is None or isinstance(key, jax.Array):
        return key
    at_least("key", key, 0, "give a seed, or a JAX key")
    seed("key", key)
    return jax.random.key(key)


class Batch(NamedTuple):
    """A model ready to be compiled: its floats and those of its start lead with a run axis if
    `lead`."""

    model: Model
    start: Start
    count: int
    lead: bool

    @property
    def axes(self) -> dict[str, np.ndarray]:
        return {"run": np.arange(self.count)} if self.lead else {}


def prepare(
    model: Model,
    over: Mapping[str, Any] | None,
    runs: int | None,
    start: Start,
    starts: int | None = None,
) -> Batch:
    """One run, `runs` random ones from a key, or one for each value of `over`; starts: how many
    runs the start is for, if its arrays lead with them."""
    start = start._replace(key=prng_key(start.key))
    if runs is None and over is None and starts is None:
        return Batch(traced(model), start, 1, False)
    lifted, count = batched(model, over, starts if runs is None and over is None else runs)
    if starts not in (None, count):
        raise ValueError(f"start: is for {starts} runs where there are {count}")
    if over is None and start.key is None and starts is None:
        raise ValueError("runs: give a key (a seed), or every run would be the same")

    def repeated(x):
        return np.broadcast_to(x, (count, *np.shape(x)))

    return Batch(
        lifted,
        Start(
            None if start.key is None else jax.random.split(start.key, count),
            start.params if starts is not None else jax.tree.map(repeated, start.params),
            jax.tree.map(repeated, start.rates),
        ),
        count,
        True,
    )


def take_starts(start: Start, rows: np.ndarray) -> Start:
    """Those of the given runs."""
    return jax.tree.map(lambda x: x[rows], start)
