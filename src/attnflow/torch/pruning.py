"""Heads cut out of a model: smaller weights, the same outputs as with these heads masked."""

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnflow._checks import choice
from attnflow.torch.cutting import cut, removable
from attnflow.torch.masking import Heads, choose_heads, output_of
from attnflow.torch.modules import AttentionModule
from attnflow.torch.probe import left_alone
from attnflow.torch.ranking import run

LOG = "attnflow_pruned"  # on the model: the calls of prune_heads so far
WEIGHTS, HEADS_FILE = "model.safetensors", "pruned_heads.json"


@dataclasses.dataclass(frozen=True)
class Pruned:
    """What was done to each module, by name: heads that are gone, heads whose columns of the output
    projection are zero since the module cannot do without them, and the factor of the other
    columns. Numbers of heads are those before; the heads that stay are numbered anew."""

    removed: dict[str, list[int]]
    zeroed: dict[str, list[int]]
    factors: dict[str, float]
    parameters_before: int
    parameters_after: int


def prune_heads(
    model: nn.Module,
    heads: Heads,
    *,
    rescale: Literal["none", "uniform", "least_squares"] = "none",
    batches: Iterable[Any] = (),
) -> Pruned:
    """Cut heads out of the model, in place. heads as in `mask_heads`, whose outputs it reproduces.

    Grouped queries need groups of one size: keys and values go where a whole group goes, and as
    many heads of each other group as all of them lose; the rest of the heads are zeroed, i.e. their
    columns of the output projection are (they cost as before, and training would revive them). So
    are all heads of `nn.MultiheadAttention`, whose sizes are fixed, and of modules that hold more
    than the four projections and norms of one head: gates, norms over all heads, biases of
    positions.

    rescale: the columns of the heads that stay are multiplied, by H/(H − n) if "uniform" (n of H
    heads go; right where heads are averaged), by the factor that comes nearest to the module's old
    output on `batches` if "least_squares" (one forward pass each). In a trained transformer heads
    are summed, and "uniform" does harm: without 10 (20) of the 40 heads of stories260K, in greedy
    order, its loss on its own stories rose from 1.20 by 0.10 (0.41) with "none", 0.12 (0.79) with
    "uniform" and 0.09 (0.36) with "least_squares".

    Optimizers made before hold the old parameters: make them anew. `save_pretrained` writes what
    cannot be read again: use `save_pruned`.
    """
    choice("rescale", rescale, ("none", "uniform", "least_squares"))
    chosen = choose_heads(model, heads)
    for module, numbers in chosen:
        _check(module, numbers)
    before = sum(parameter.numel() for parameter in model.parameters())
    factors = {m.name: m.heads / (m.heads - len(n)) for m, n in chosen}
    if rescale == "none":
        factors = dict.fromkeys(factors, 1.0)
    elif rescale == "least_squares":
        factors = _least_squares(model, chosen, batches)
    removed, zeroed = {}, {}
    for module, numbers in chosen:
        gone = removable(module, numbers)
        rest = [number for number in numbers if number not in gone]
        _scale_columns(module, rest, factors[module.name])
        if gone:
            cut(module, gone)
        for where, which in ((removed, gone), (zeroed, rest)):
            if which:
                where[module.name] = which
    log = [*getattr(model, LOG, ()), {module.name: numbers for module, numbers in chosen}]
    setattr(model, LOG, log)
    after = sum(parameter.numel() for parameter in model.parameters())
    return Pruned(removed, zeroed, factors, before, after)


def _check(module: AttentionModule, numbers: list[int]) -> None:
    kind = f"{module.name} ({type(module.module).__name__})"
    output_of(module)
    if len(module.projections) < 4:
        raise ValueError(f"{kind}: its projections are not known; mask_heads can mask its heads")
    if len(numbers) == module.heads:
        raise ValueError(f"{kind} would lose all its {module.heads} heads: remove the layer")
    if not all(each.weight.is_floating_point() for each in module.projections.values()):
        raise ValueError(f"{kind} is quantized: prune before quantizing")


@torch.no_grad()
def _scale_columns(module: AttentionModule, zeroed: list[int], factor: float) -> None:
    output = output_of(module)
    factors = torch.full((module.heads,), factor, dtype=torch.float64)
    factors[zeroed] = 0
    columns = output.index.flatten().to(output.weight.device)
    scale = factors.repeat_interleave(module.width).to(output.weight)
    part = output.weight.index_select(output.axis, columns)
    part = part * (scale if output.axis == 1 else scale[:, None])
    output.weight.index_copy_(output.axis, columns, part)


def _least_squares(
    model: nn.Module, chosen: list[tuple[AttentionModule, list[int]]], batches: Iterable[Any]
) -> dict[str, float]:
    """For each module the factor a that makes Σ |full − a · kept|² least, where these are outputs
    without the bias, of all heads and of those that stay: a = ⟨full, kept⟩ / ⟨kept, kept⟩."""
    sums = {module.name: torch.zeros(2, dtype=torch.float64) for module, _ in chosen}

    def add(module: AttentionModule, numbers: list[int]) -> Callable[[Any, Any], None]:
        matrices = output_of(module).matrices().flatten(0, 1)  # (heads · width, out)
        gate = torch.ones(module.heads, dtype=matrices.dtype, device=matrices.device)
        gate[numbers] = 0
        gate = gate.repeat_interleave(module.width)

        def hook(_: Any, arguments: tuple[Tensor, ...]) -> None:
            heads = arguments[0].detach().to(matrices.dtype)
            full, kept = heads @ matrices, (heads * gate) @ matrices
            sums[module.name] += torch.stack([(full * kept).sum(), kept.square().sum()]).cpu()

        return hook

    for module, _ in chosen:
        if not module.on_interface:
            raise ValueError(f"{module.name}: least_squares cannot see its heads; use uniform")
    hooks = [
        output_of(module).owner.register_forward_pre_hook(add(module, numbers))
        for module, numbers in chosen
    ]
    try:
        with left_alone(model), torch.no_grad():
            for batch in batches:
                run(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    for name, (_, square) in sums.items():
        if not square > 0:
            raise ValueError(
                f"{name} gave no outputs to fit: least_squares needs batches that the model takes"
            )
    return {name: float(product / square) for name, (product, square) in sums.items()}


def save_pruned(model: nn.Module, folder: str | Path) -> None:
    """Weights (safetensors), the pruned heads (JSON), and the config as it was before pruning."""
    from safetensors.torch import save_model

    log = getattr(model, LOG, None)
    if not log:
        raise ValueError("the model was not pruned by prune_heads: save it as usual")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("config", "generation_config"):
        if getattr(model, name, None) is not None:
            getattr(model, name).save_pretrained(folder)
    save_model(model, str(folder / WEIGHTS), metadata={"format": "pt"})
    record = {"class": type(model).__name__, "heads": log}
    (folder / HEADS_FILE).write_text(json.dumps(record, indent=1), encoding="utf-8")


def load_pruned(folder: str | Path, build: Callable[[], nn.Module] | None = None) -> nn.Module:
    """The model that `save_pruned` wrote, in evaluation mode. build: makes the model as it was
    before pruning, with any weights; unless given, its transformers class does from the config."""
    from safetensors.torch import load_file, load_model

    folder = Path(folder)
    try:
        record = json.loads((folder / HEADS_FILE).read_text(encoding="utf-8"))
        kind, log = record["class"], record["heads"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} holds no model written by save_pruned: {error}") from error
    model = (build or _builder(kind, folder))()
    for heads in log:
        prune_heads(model, heads)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    for name, tensor in load_file(folder / WEIGHTS).items():
        if name in parameters:
            parameters[name].data = parameters[name].data.to(tensor.dtype)
    load_model(model, str(folder / WEIGHTS), strict=True)
    return model.eval()


def _builder(kind: str, folder: Path) -> Callable[[], nn.Module]:
    import transformers

    found = getattr(transformers, kind, None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise ValueError(f"{kind} is no model class of transformers: give `build`")
    return lambda: found(transformers.AutoConfig.from_pretrained(folder, local_files_only=True))
