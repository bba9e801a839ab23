"""Smaller attention modules: the rows, columns and sizes of some heads taken out of one."""

import inspect
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnflow.torch.modules import AttentionModule, Projection, head_numbers

HEADS = (
    "num_attention_heads",
    "num_heads",
    "n_heads",
    "n_head",
    "encoder_attention_heads",
    "decoder_attention_heads",
)
KEY_HEADS = ("num_key_value_heads", "num_kv_heads", "kv_heads")
GROUPS = ("num_key_value_groups",)
SIZES = ("all_head_size", "split_size", "inner_dim", "q_dim", "embed_dim", "hidden_size")
KEY_SIZES = ("kv_dim",)
ONE_A_HEAD = ("sinks", "attnflow_bias")  # parameters
QUERY_NORM = r"(q|k|query|key)_?(layer_?)?norm"
SHARED = ("position_bias", "relative_position_bias", "alibi", "is_kv_shared_layer")


def removable(module: AttentionModule, numbers: list[int]) -> list[int]:
    """Those of the heads that can be cut so that all groups of queries stay of one size."""
    if not module.on_interface or not _understood(module):
        return []
    group = head_numbers(module).tolist()
    lost = [[n for n in numbers if group[n] == key] for key in range(module.key_heads)]
    size = module.heads // module.key_heads
    alive = [some for some in lost if len(some) < size]
    common = min(len(some) for some in alive)
    whole = [n for some in lost if len(some) == size for n in some]
    return sorted(whole + [n for some in alive for n in some[:common]])


def _understood(module: AttentionModule) -> bool:
    """Whether nothing but the projections depends on how many heads there are: no norm over all of
    them, no gate, no bias of positions, no keys that another layer reads."""
    inner = module.module
    if any(name in forward_names(inner) for name in SHARED):
        return False
    known = {each.owner for each in module.projections.values()}
    for name, child in inner.named_children():
        sizes = {parameter.numel() for parameter in child.parameters()}
        of_one_head = re.fullmatch(QUERY_NORM, name) and sizes <= {module.width}
        after = name == "LayerNorm"  # ALBERT's, behind the output projection
        if sizes and child not in known and not of_one_head and not after:
            return False
    return {name for name, _ in inner.named_parameters(recurse=False)} <= set(ONE_A_HEAD)


def forward_names(module: nn.Module) -> set[str]:
    """Whatever its forward pass reads by name: attributes, variables."""
    code = inspect.unwrap(type(module).forward).__code__
    return {*code.co_names, *code.co_varnames}


def cut(module: AttentionModule, gone: list[int]) -> None:
    group = head_numbers(module)
    stay = torch.tensor([n for n in range(module.heads) if n not in gone])
    keys = group[stay].unique()
    kept = {"query": stay, "key": keys, "value": keys, "output": stay}
    owners: dict[nn.Module, list[tuple[Projection, Tensor]]] = {}
    for name, projection in module.projections.items():
        owners.setdefault(projection.owner, []).append((projection, kept[name]))
    for owner, parts in owners.items():
        numbers = torch.cat([part.index[which].flatten() for part, which in parts])
        _keep(owner, parts[0][0], numbers.sort().values)
    for name in ONE_A_HEAD:
        if isinstance(getattr(module.module, name, None), nn.Parameter):
            part = _part_of(module.module.get_parameter(name), 0, stay)
            setattr(module.module, name, part)
    _resize(module, len(stay), len(keys))


def _keep(owner: nn.Module, projection: Projection, numbers: Tensor) -> None:
    """Only these rows (columns) of a matrix and its bias."""
    bias = projection.bias
    owner.weight = _part_of(projection.weight, projection.axis, numbers)
    if bias is not None:
        owner.bias = _part_of(bias, 0, numbers)
    names = ("in_features", "nx") if projection.output else ("out_features", "nf")
    for name in names:
        if hasattr(owner, name):
            setattr(owner, name, len(numbers))


def _part_of(parameter: Tensor, axis: int, numbers: Tensor) -> nn.Parameter:
    part = parameter.detach().index_select(axis, numbers.to(parameter.device))
    return nn.Parameter(part.contiguous(), requires_grad=parameter.requires_grad)


def _resize(module: AttentionModule, heads: int, key_heads: int) -> None:
    """The sizes that the module's forward pass reads, from itself or from its config."""
    inner, width, read = module.module, module.width, forward_names(module.module)
    for names, value in ((HEADS, heads), (KEY_HEADS, key_heads), (GROUPS, heads // key_heads)):
        for name in names:
            if isinstance(getattr(inner, name, None), int):
                setattr(inner, name, value)
    for names, old, new in ((SIZES, module.heads, heads), (KEY_SIZES, module.key_heads, key_heads)):
        for name in names:
            if name in read and getattr(inner, name, None) == old * width:
                setattr(inner, name, new * width)
    config = getattr(inner, "config", None)
    if config is not None:
        own = dict.fromkeys(HEADS, heads) | dict.fromkeys(KEY_HEADS, key_heads)
        own = {name: value for name, value in own.items() if hasattr(config, name)}
        inner.config = OwnSizes(config, {**own, "head_dim": module.width})  # pyright: ignore


class OwnSizes:
    """The model's config with other head counts: whatever else is set there later shows here."""

    def __init__(self, config: Any, own: Mapping[str, int]):
        base = config._config if isinstance(config, OwnSizes) else config
        self.__dict__.update(_config=base, _own=dict(own))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_own" not in self.__dict__:  # while copied or unpickled
            raise AttributeError(name)
        return self._own[name] if name in self._own else getattr(self._config, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._config, name, value)
