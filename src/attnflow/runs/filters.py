"""Which runs: by the fields of their configs, or by their names."""

import dataclasses
import functools
import json
import operator
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from attnflow._checks import choice
from attnflow.runs.run import Run, verify
from attnflow.runs.store import Store

Filters = str | Iterable[str]
OWN = ("run", "experiment")  # fields of every run; a config's field of that name is config.run
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
PATTERN = re.compile(r"\s*([^=!<>\s]+)\s*(!=|<=|>=|==?|<|>)\s*([^=<>].*|)", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Filter:
    """`field operator value`; `text` is the value as written."""

    field: str
    operator: str
    value: Any
    text: str

    def __str__(self) -> str:
        return f"{self.field}{self.operator}{self.text}"

    def comparable(self, value: Any) -> bool:
        """Order is for numbers, and for text; equality is for all."""
        kinds = _kind(value), _kind(self._against(value))
        return self.operator in ("=", "!=") or (kinds[0] == kinds[1] and kinds[0] in (float, str))

    def accepts(self, value: Any) -> bool:
        other = self._against(value)
        if self.operator in ("=", "!="):
            same = _kind(value) == _kind(other) and value == other
            return same == (self.operator == "=")
        return self.comparable(value) and COMPARE[self.operator](value, other)

    def _against(self, value: Any) -> Any:
        """Words need no quotes: a field that is text is compared with the value as written."""
        return (
            self.text if isinstance(value, str) and not isinstance(self.value, str) else self.value
        )


def _kind(value: Any) -> type:
    return float if type(value) is int else type(value)  # but true is not 1


def parse(filters: Filters) -> list[Filter]:
    """Filters such as "rate=0.1", "seed<8", "task.width>=16", "experiment=walk".

    Values are JSON, or else text as it stands.

    >>> [(each.field, each.operator, each.value) for each in parse(["rate>=0.1", "how=fast"])]
    [('rate', '>=', 0.1), ('how', '=', 'fast')]
    """
    found = []
    for text in [filters] if isinstance(filters, str) else filters:
        match = PATTERN.fullmatch(text)
        if match is None:
            raise ValueError(
                f"filter {text!r} is not FIELD OPERATOR VALUE, such as seed<8 or how=fast "
                f"(operators {' '.join(COMPARE)})"
            )
        field, sign, value = match.groups()
        value = value.strip()
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        found.append(Filter(field, "=" if sign == "==" else sign, parsed, value))
    return found


@dataclasses.dataclass(frozen=True)
class Entry:
    """A finished run as its config tells it: fields of fields have dotted names. `when`: the time
    of its end, in seconds since 1970."""

    name: str
    root: Path
    experiment: str
    config: dict[str, Any]
    when: float

    @property
    def run(self) -> Run:
        return Run(self.name, self.root / self.name)

    @functools.cached_property
    def environment(self) -> dict[str, Any]:
        """Read when asked for: a list of thousands is not to open twice as many files."""
        return self.run.environment

    @property
    def seconds(self) -> float:
        return self.environment["seconds"]

    def field(self, name: str) -> Any:
        """Of the run or of its config; KeyError if it has none."""
        if name in OWN:
            return self.name if name == "run" else self.experiment
        return self.config[name if name in self.config else name.removeprefix("config.")]

    def has(self, name: str) -> bool:
        return name in OWN or name in self.config or name.removeprefix("config.") in self.config

    def passes(self, wanted: Filter) -> bool:
        return self.has(wanted.field) and wanted.accepts(self.field(wanted.field))


def flat(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Fields of fields by dotted names.

    >>> flat({"rate": 0.1, "task": {"width": 16}})
    {'rate': 0.1, 'task.width': 16}
    """
    found = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def listed(store: Store, filters: Filters = (), *, verify: bool = False) -> list[Entry]:
    """The finished runs that pass every filter, by name; what has no operator is the name of a run
    or its unique beginning, and of several names each is chosen.

    A run without the field of a filter does not pass; a field that no run has is an error. Damaged
    runs are left out, with one warning that names them: configs are compared with their checksums,
    other files by their size. verify: every file is read and compared (O(bytes)).
    """
    tests, names = separate(filters)
    wanted = {named(store, name) for name in names}
    entries, wrong = _entries(store)
    chosen = [x for x in passing(entries, tests) if not wanted or x.name in wanted]
    if wanted:
        wrong = {name: why for name, why in wrong.items() if name in wanted}
    if verify:
        chosen, more = verified(chosen)
        wrong |= more
    if wrong:
        warnings.warn(left_out(wrong), stacklevel=2)
    return chosen


def verified(entries: Sequence[Entry]) -> tuple[list[Entry], dict[str, str]]:
    """Those whose files are all what was written, and what is wrong with the others."""
    wrong = {entry.name: entry.run.damage() for entry in entries}
    whole = [entry for entry in entries if wrong[entry.name] is None]
    return whole, {name: why for name, why in wrong.items() if why is not None}


def left_out(wrong: Mapping[str, str], most: int = 5) -> str:
    """One line that names damaged runs and what is wrong with them."""
    named = [f"{name} ({why})" for name, why in sorted(wrong.items())]
    rest = [f"and {len(named) - most} more"] if len(named) > most else []
    count = "1 run is" if len(named) == 1 else f"{len(named)} runs are"
    return f"{count} left out as damaged: {', '.join(named[:most] + rest)}"


def separate(filters: Filters) -> tuple[list[str], list[str]]:
    """Filters, and names of runs."""
    texts = [filters] if isinstance(filters, str) else list(filters)
    tests = [text for text in texts if set(text) & set("=<>!")]
    return tests, [text for text in texts if text not in tests]


def passing(entries: list[Entry], filters: Filters) -> list[Entry]:
    wanted = parse(filters)
    for each in wanted:
        _known(each, entries)
    return [entry for entry in entries if all(map(entry.passes, wanted))]


def failed(store: Store, filters: Filters = ()) -> dict[str, tuple[Entry, str]]:
    """By name: what is known of the chosen runs that failed, and the traceback."""
    tests, names = separate(filters)
    wanted = {named(store, name, failed=True) for name in names}
    records = {x: y for x, y in store.failures().items() if not wanted or x in wanted}
    entries = [
        Entry(name, store.root, record["experiment"], flat(record["config"]), 0.0)
        for name, record in records.items()
    ]
    return {x.name: (x, records[x.name]["traceback"]) for x in passing(entries, tests)}


def _known(wanted: Filter, entries: list[Entry]) -> None:
    having = [entry for entry in entries if entry.has(wanted.field)]
    if entries and not having:
        choice("field", wanted.field, {*OWN, *(name for entry in entries for name in entry.config)})
    if having and not any(wanted.comparable(entry.field(wanted.field)) for entry in having):
        example = json.dumps(having[0].field(wanted.field))
        raise ValueError(
            f"filter {str(wanted)!r}: {wanted.field} is not ordered against {wanted.text!r} "
            f"(a run has {example})"
        )


def _entries(store: Store) -> tuple[list[Entry], dict[str, str]]:
    """All runs by name, and what is wrong with those that are damaged."""
    entries, wrong = [], {}
    for name in store.names():
        folder = os.path.join(store.root, name)
        stored, when, why = verify(folder, name, read=False)
        if why is None:
            entry = Entry(name, store.root, stored["experiment"], flat(stored["config"]), when)
            entries.append(entry)
        elif os.path.exists(folder):  # else it has just been removed
            wrong[name] = why
    return entries, wrong


def named(store: Store, start: str, *, failed: bool = False) -> str:
    """The name of the one run whose name begins so; failed: also those that failed."""
    known = {name for name in store.names() if name.startswith(start)}
    if failed:
        known |= {name for name in store.failures() if name.startswith(start)}
    if start in known:
        return start
    if not start or not known:
        raise ValueError(
            f"no run in {store.root} has a name that begins with {start!r} "
            "(a filter has an operator: FIELD=VALUE)"
        )
    if len(known) > 1:
        few = ", ".join(sorted(known)[:4]) + (", …" if len(known) > 4 else "")
        raise ValueError(f"run {start!r} is one of {len(known)}: {few}")
    return known.pop()


def fields(entries: Iterable[Entry]) -> list[str]:
    """Of all their configs, in the order of their first appearance."""
    return list(dict.fromkeys(name for entry in entries for name in entry.config))


def swept(entries: Sequence[Entry]) -> list[str]:
    """The fields that are not the same in all of them."""
    return [
        name
        for name in fields(entries)
        if len({repr(entry.config.get(name)) for entry in entries}) > 1
    ]


def telling(entries: Sequence[Entry], shown: Sequence[Entry], most: int) -> tuple[list[str], int]:
    """At most `most` of the fields that tell runs of one experiment apart, each experiment of the
    runs `shown` out of `entries` in turn, its commonest first; and how many there are."""
    ranked = []
    for experiment, _ in Counter(entry.experiment for entry in shown).most_common():
        runs = [entry for entry in entries if entry.experiment == experiment]
        having = Counter(name for entry in runs for name in entry.config)
        ranked.append(sorted(swept(runs), key=lambda name, having=having: -having[name]))
    names = dict.fromkeys(x for row in zip_longest(*ranked) for x in row if x is not None)
    return list(names)[:most], len(names)


def free(name: str, taken: Iterable[str]) -> str:
    """A config's field beside other names, which keep theirs: `loss` becomes `config.loss`."""
    return f"config.{name}" if name.lower() in {each.lower() for each in taken} else name


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
