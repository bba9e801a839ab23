"""Configs as text: one form for one content, in every process and Python version."""

import dataclasses
import functools
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


def names(config: Any, experiment: str = "") -> tuple[str, str]:
    """The names that the run of a config may have, the usual one first.

    The usual name is the hash of the fields that differ from their defaults, so that a new field
    with a default renames no run; whole numbers count the same as 1 and as 1.0. The other name is
    the hash of the whole config: runs of the first edition have it, and runs whose usual name is
    taken because a default has changed since.
    """
    text = canonical(config, experiment)
    head = {"experiment": experiment, "type": type(config).__name__}
    return digest(_text(head | {"differs": _differing(config)})), digest(text)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def is_same(stored: Mapping[str, Any], config: Any, experiment: str = "") -> bool:
    """Whether a stored config (as `canonical` wrote it, parsed) is this one. A field that was not
    there yet must have its default."""
    ours = json.loads(canonical(config, experiment))
    if (stored["experiment"], stored["type"]) != (ours["experiment"], ours["type"]):
        return False
    return _same_fields(stored["config"], ours["config"], config)


def _same_fields(stored: Any, ours: Any, value: Any) -> bool:
    if not (dataclasses.is_dataclass(value) and isinstance(stored, Mapping)):
        return _text(stored) == _text(ours)
    added = {name for name in ours if name not in stored}
    if added & set(_differing(value)):
        return False
    return all(
        _same_fields(stored[name], ours[name], getattr(value, name, None))
        for name in ours
        if name not in added
    )


def _differing(value: Any) -> dict[str, Any]:
    """The fields of a dataclass that are not at their defaults, and of nested ones likewise."""
    if not dataclasses.is_dataclass(value):
        return _plain(value, "config")
    found = {}
    for field in dataclasses.fields(value):
        mine = getattr(value, field.name)
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        plain = _plain(mine, field.name)
        if default is not dataclasses.MISSING and _equal(plain, default):
            continue
        nested = dataclasses.is_dataclass(mine) and not isinstance(mine, type)
        found[field.name] = _differing(mine) if nested else plain
    return found


def _equal(plain: Any, default: Any) -> bool:
    """Whether plain data are those of a default. One that cannot name a run (infinity) is equal to
    nothing that can."""
    if type(plain) is type(default) and isinstance(plain, str | int | float):
        return plain == default
    try:
        return _text(plain) == _text(_plain(default, "default"))
    except ValueError:
        return False


def _text(value: Any) -> str:
    """The same for 1 and 1.0, another for True."""
    return json.dumps(_numbers(value), sort_keys=True, separators=(",", ":"))


def _numbers(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _plain(value: Any, where: str) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kinds = _hints(type(value))
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
