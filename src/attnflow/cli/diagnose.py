"""attnflow diagnose MODEL: what the attention of a trained transformer does, as a page and JSON."""

import dataclasses
import importlib.util
import json
import math
import time
from pathlib import Path
from typing import Annotated, Any

import tyro
from typing_extensions import Doc

from attnflow._checks import at_least, can_write, fits_memory, inside, seed
from attnflow.cli.parsing import parse_options
from attnflow.runs.files import whole


@dataclasses.dataclass(frozen=True)
class Options:
    model: Annotated[
        tyro.conf.Positional[str],
        Doc("a Hugging Face folder, a .gguf file, or a name on the hub"),
    ]
    text: Annotated[
        str | None,
        Doc("a text file to measure on, or wikitext-2 or tinyshakespeare from the data folder"),
    ] = None
    data: Annotated[Path | None, Doc("the data folder (else the variable ATTNFLOW_DATA)")] = None
    checkpoints: Annotated[
        Path | None, Doc("a folder of checkpoint-500, checkpoint-1000, …: when did it happen?")
    ] = None
    sequences: Annotated[int, Doc("how many sequences to measure on")] = 8
    length: Annotated[int, Doc("tokens in each")] = 512
    rows: Annotated[int, Doc("queries looked at in each sequence")] = 64
    sink: Annotated[float, Doc("share of attention on the first token that makes a sink")] = 0.3
    trust: Annotated[
        str | None, Doc("run the Python code that comes with this model: its name, once more")
    ] = None
    seed: Annotated[int, Doc("of the queries looked at and of random tokens")] = 0
    out: Annotated[Path, Doc("the page; the numbers go beside it, as .json")] = Path(
        "diagnosis.html"
    )


def run(arguments: list[str]) -> int:
    options = parse_options(
        Options,
        arguments,
        prog="attnflow diagnose",
        description="Diagnose the attention of a trained transformer.",
    )
    if (
        importlib.util.find_spec("torch") is None
        or importlib.util.find_spec("transformers") is None
    ):
        raise ValueError("diagnosing needs PyTorch and transformers: pip install 'attnflow[torch]'")
    if options.out.suffix not in (".html", ".htm"):
        raise ValueError(f"--out is a page: its name must end in .html (got {options.out})")
    for target in (options.out, options.out.with_suffix(".json")):
        can_write("--out", target)
    for name in ("sequences", "length", "rows"):
        at_least(name, getattr(options, name), 1)
    seed("seed", options.seed)
    inside("sink", options.sink, 0, 1, "it is a share of the attention")
    if options.data is not None and options.text is not None and Path(options.text).exists():
        raise ValueError("--data has an effect only without --text FILE: leave it out")
    tokens = options.sequences * options.length
    fits_memory(f"sequences = {options.sequences}, length = {options.length}", 8 * tokens)
    begun = time.perf_counter()
    found, text, history, when = examine(options)
    from attnflow.web.diagnosis import page

    with whole(options.out) as draft:
        draft.write_text(page(found, text, history, when), encoding="utf-8")
    numbers = found.as_dict() | {"measured_on": text}
    if when is not None:
        numbers["dates"] = _plain_dates(when)
    target = options.out.with_suffix(".json")
    with whole(target) as draft:
        draft.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    _tell(found, text)
    print(f"page: {options.out}  numbers: {target}  ({time.perf_counter() - begun:.1f} s)")
    return 0


def examine(options: Options) -> tuple[Any, str, Any, Any]:
    """Diagnosis, what it was measured on, history and dates of the checkpoints."""
    from attnflow.torch.diagnosis import Limits, diagnose
    from attnflow.torch.history import dates
    from attnflow.torch.loading import checkpoints, load_model
    from attnflow.torch.measure import Budget
    from attnflow.torch.records import joined
    from attnflow.torch.texts import example_batch

    limits, budget = Limits(sink=options.sink), Budget(rows=options.rows)
    steps = None if options.checkpoints is None else checkpoints(options.checkpoints)

    main = load_model(options.model, trust=options.trust)

    def look(loaded: Any) -> tuple[Any, str]:
        batch = example_batch(
            loaded,
            _text(options, main),
            sequences=options.sequences,
            length=options.length,
            seed=options.seed,
        )
        diagnosis = diagnose(
            loaded.model,
            batch.as_inputs(),
            name=loaded.name,
            limits=limits,
            budget=budget,
            seed=options.seed,
            notes=(*loaded.notes, *batch.notes),
        )
        return diagnosis, batch.described

    found, text = look(main)
    if steps is None:
        return found, text, None, None
    records = []
    for number, each in enumerate(steps.found):
        print(f"checkpoint {number + 1} of {len(steps.found)}: {each.path.name}", flush=True)
        trust = None if options.trust is None else str(each.path)
        loaded = load_model(each.path, trust=trust)
        seen, _ = look(dataclasses.replace(loaded, tokenizer=main.tokenizer))  # the same tokens
        loss = seen.about["loss"]
        record = seen.heads.assign(loss=math.nan if loss is None else loss)
        records.append(record.assign_coords(step=each.step))
    if steps.skipped:
        notes = (*found.notes, *(f"skipped checkpoint: {why}" for why in steps.skipped))
        found = dataclasses.replace(found, notes=notes)
    history = joined(records)
    return found, text, history, dates(history, options.sink) if len(records) > 1 else None


def _text(options: Options, loaded: Any) -> Path | None:
    from attnflow.torch.texts import TEXTS, find_text

    if options.text is not None:
        known = options.text in TEXTS and not Path(options.text).exists()
        return find_text(options.text, options.data) if known else Path(options.text)
    if loaded.tokenizer is None or loaded.model.main_input_name != "input_ids":
        return None
    try:
        return find_text("wikitext-2", options.data)
    except ValueError:
        if options.data is not None:
            raise
        return None


def _tell(found: Any, text: str) -> None:
    about = found.about
    print(
        f"{found.name}: {about['class']}, {about['parameters']:,} parameters, {about['layers']} "
        f"layers, {about['heads']} heads, on {text}"
    )
    for note in found.notes:
        print(f"note: {note}")
    for name, why in found.skipped.items():
        print(f"skipped: {name} ({why})")
    counts = ", ".join(f"{len(pairs)} {kind}" for kind, pairs in found.kinds.items())
    print(f"heads: {counts}")
    for each in found.advice:
        print(f"\n{each.title}\n  seen:   {each.evidence}\n  remedy: {each.remedy}")
        if each.code:
            print(f"          {each.code}")
    if not found.advice:
        print("nothing stands out")
    print()


def _plain_dates(when: Any) -> dict[str, Any]:
    return {
        "sinks": [[layer, head, step] for (layer, head), step in when.sinks.items()],
        "first_sink": when.first_sink,
        "half_of_sinks": when.half_of_sinks,
        "specialized": {str(layer): step for layer, step in when.specialized.items()},
        "phases": {str(layer): phases for layer, phases in when.phases.items()},
    }
