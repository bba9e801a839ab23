"""Configs as text: one form for one content, in every process and Python version."""

import dataclasses
import hashlib
import json
import math
import typing
from collections.abc import Iterable, Mapping
from itertools import product
from typing import Any, TypeVar

import numpy as np

SCHEMA = 1
DIGITS = 20  # of the name of a run
C = TypeVar("C")


def canonical(config: Any, experiment: str = "") -> str:
    """The config as JSON with sorted keys. Whole numbers in float fields become floats, tuples
    lists; NaN, infinities and things that are no data are refused."""
    head = {"schema": SCHEMA, "experiment": experiment, "type": type(config).__name__}
    return json.dumps(
        head | {"config": _plain(config, "config")}, sort_keys=True, separators=(",", ":")
    )


def digest(text: str) -> str:
    """The name of the run of a canonical config."""
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _plain(value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kinds = typing.get_type_hints(type(value))
        return {
            field.name: _plain(
                _as_declared(getattr(value, field.name), kinds.get(field.name)),
                f"{where}.{field.name}",
            )
            for field in dataclasses.fields(value)
        }
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    if isinstance(value, np.ndarray | np.generic):
        return _plain(value.tolist(), where)
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} must be finite to name a run (got {value})")
        return value
    raise ValueError(f"{where} is no plain data: {type(value).__name__} cannot name a run")


def _as_declared(value: Any, kind: Any) -> Any:
    return float(value) if kind is float and isinstance(value, int) else value


def restored(text: str, cls: type[C]) -> C:
    """The config that `canonical` wrote. A newer form or a field that `cls` does not have is
    refused: it would be another run."""
    stored = json.loads(text)
    if stored["schema"] > SCHEMA:
        raise ValueError(
            f"this run was stored by a newer attnflow (form {stored['schema']}, known {SCHEMA}): "
            "upgrade to read it"
        )
    if stored["type"] != cls.__name__:
        raise ValueError(f"this run is of a {stored['type']}, not of a {cls.__name__}")
    return _built(stored["config"], cls, "config")


def _built(values: Mapping[str, Any], cls: type[C], where: str) -> C:
    kinds = typing.get_type_hints(cls)
    names = {field.name for field in dataclasses.fields(cls)}  # pyright: ignore[reportArgumentType]
    unknown = sorted(set(values) - names)
    if unknown:
        raise ValueError(
            f"{where}.{unknown[0]} is not a field of {cls.__name__}: the run is of another version"
        )

    def made(name: str, value: Any) -> Any:
        kind = kinds[name]
        if dataclasses.is_dataclass(kind) and isinstance(value, Mapping):
            return _built(value, kind, f"{where}.{name}")  # pyright: ignore[reportArgumentType]
        return _tuples(value)

    return cls(**{name: made(name, value) for name, value in values.items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def grid(base: C, /, **fields: Iterable[Any]) -> list[C]:
    """Every combination of the given values of fields, the last varying fastest.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Config:
    ...     rate: float = 0.1
    ...     seed: int = 0
    >>> [(c.rate, c.seed) for c in grid(Config(), rate=(0.1, 0.2), seed=range(2))]
    [(0.1, 0), (0.1, 1), (0.2, 0), (0.2, 1)]
    """
    names = {field.name for field in dataclasses.fields(base)}  # pyright: ignore[reportArgumentType]
    for name in fields:
        if name not in names:
            raise ValueError(f"grid: {name!r} is not a field of {type(base).__name__}")
    values = [list(each) for each in fields.values()]
    return [
        dataclasses.replace(base, **dict(zip(fields, chosen, strict=True)))  # pyright: ignore[reportArgumentType]
        for chosen in product(*values)
    ]
