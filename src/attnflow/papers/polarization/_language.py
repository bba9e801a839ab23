"""Language models that differ in their attention alone: softmax against unnormalized sigmoid."""

import dataclasses
import functools
import gzip
import importlib
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from attnflow.papers import pretrained

SYMBOLS = 256  # bytes; one more begins every sequence


@dataclasses.dataclass(frozen=True)
class Pair:
    """Small Llamas on the bytes of a text, all else equal: data, order, start, schedule. Sigmoid is
    σ(score − log length), as in the released models, so that a row starts with a sum near one.

    `model`: also measure a pretrained softmax model: "smollm2", a folder, or nothing; `partner`:
    its unnormalized-sigmoid counterpart, for those who have the 7B pair.
    """

    text: str = "tinyshakespeare"
    layers: int = 3
    heads: int = 4
    width: int = 96
    length: int = 96
    batch: int = 12
    steps: int = 1000
    rate: float = 2e-3
    seeds: tuple[int, ...] = (0,)
    sequences: int = 16
    model: str = ""
    partner: str = ""


ATTENTIONS = ("softmax", "sigmoid")


def encoded(name: str) -> np.ndarray:
    path = pretrained.text(name)
    raw = path.read_bytes()
    return np.frombuffer(gzip.decompress(raw) if path.suffix == ".gz" else raw, np.uint8)


def batches(symbols: np.ndarray, config: Pair, seed: int):
    """Random pieces, each behind the symbol that begins a sequence, endlessly."""
    torch: Any = importlib.import_module("torch")
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(symbols) - config.length, config.batch)
        rows = np.stack([symbols[start : start + config.length - 1] for start in starts])
        begun = np.concatenate([np.full((config.batch, 1), SYMBOLS), rows], axis=1)
        yield torch.from_numpy(begun.astype(np.int64))


def shifted_sigmoid(length: int) -> str:
    """The name of σ(score − log length) in the registry."""
    from attnflow import attention

    name = f"sigmoid_{length}"
    if name not in attention.names():
        shift = float(np.log(length))
        plain = attention.get("sigmoid")
        law = dataclasses.replace(
            plain, name=name, similarity=lambda score: plain.similarity(score - shift)
        )
        attention.register(law)
    return name


def build(config: Pair, kind: str, seed: int) -> Any:
    torch: Any = importlib.import_module("torch")
    hf: Any = importlib.import_module("transformers")
    from attnflow.torch import swap_attention

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = hf.LlamaForCausalLM(
            hf.LlamaConfig(
                hidden_size=config.width,
                intermediate_size=3 * config.width,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.heads,
                vocab_size=SYMBOLS + 1,
                max_position_embeddings=config.length,
            )
        )
    if kind == "sigmoid":
        swap_attention(model, shifted_sigmoid(config.length))
    return model


@functools.lru_cache(maxsize=8)
def trained(config: Pair, kind: str, seed: int) -> tuple[Any, float]:
    """The model after training, and its loss on held-out text (the last tenth)."""
    torch: Any = importlib.import_module("torch")
    symbols = encoded(config.text)
    cut = int(0.9 * len(symbols))
    model = build(config, kind, seed).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.rate, weight_decay=0.01)
    warm = max(config.steps // 10, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda k: min((k + 1) / warm, 0.5 * (1 + np.cos(np.pi * min(k / config.steps, 1.0)))),
    )
    source = batches(symbols[:cut], config, seed)
    for _ in range(config.steps):
        ids = next(source)
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.eval()
    with torch.no_grad():
        held = batches(symbols[cut:], config, 12345)
        losses = [
            float(model(input_ids=x, labels=x).loss) for x, _ in zip(held, range(8), strict=False)
        ]
    return model, float(np.mean(losses))


def held_out(config: Pair) -> Any:
    torch: Any = importlib.import_module("torch")
    symbols = encoded(config.text)
    source = batches(symbols[int(0.9 * len(symbols)) :], config, 54321)
    rows = [next(source) for _ in range(-(-config.sequences // config.batch))]
    return torch.cat(rows)[: config.sequences]


def scores(model: Any, ids: Any) -> tuple[np.ndarray, np.ndarray]:
    """By (layer, head): sparsity, the mean share of the greatest weight in its row, over all rows;
    and the mean share of attention on the first token, over rows that see at least eight keys."""
    from attnflow.torch import attention_modules, attention_statistics
    from attnflow.torch.probe import probe

    modules = attention_modules(model)
    found = probe(model, ((), {"input_ids": ids}), modules)
    sparsity, first = [], []
    for each in modules:
        capture = found.captures[each.name]
        statistics = attention_statistics(capture.queries, capture.keys, capture.attention)
        sparsity.append(statistics.sparsity.mean((0, 2)).numpy())
        share = statistics.key_mass[..., 0] / statistics.row_sum
        first.append(share[:, :, 7:].mean((0, 2)).numpy())
    return np.array(sparsity, float), np.array(first, float)


def pretrained_scores(source: str, sequences: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Of a model that exists, on WikiText-2, two sequences at a time."""
    from attnflow.torch.loading import load_model
    from attnflow.torch.texts import token_batches

    path = pretrained.smollm2() if source == "smollm2" else Path(source)
    loaded = load_model(path)
    batch = token_batches(loaded, pretrained.text("wikitext-2"), sequences=sequences, length=length)
    parts = [scores(loaded.model, some) for some in batch.input_ids.split(2)]
    return tuple(np.mean([part[k] for part in parts], axis=0) for k in (0, 1))  # pyright: ignore


def compare(config: Pair) -> xr.Dataset:
    """Both attentions, every seed; and the pretrained model if there is one."""
    pretrained.needs_torch()
    found = {name: [] for name in ("sparsity", "first", "loss")}
    ids = held_out(config)
    for kind in ATTENTIONS:
        for seed in config.seeds:
            model, loss = trained(config, kind, seed)
            sparsity, first = scores(model, ids)
            for name, value in (("sparsity", sparsity), ("first", first), ("loss", loss)):
                found[name].append(value)
    shape = (len(ATTENTIONS), len(config.seeds))
    dims = ("attention", "seed", "layer", "head")
    data: dict[str, Any] = {
        name: (dims[: 2 + np.ndim(values[0])], np.reshape(values, shape + np.shape(values[0])))
        for name, values in found.items()
    }
    for name, source in (("pretrained", config.model), ("partner", config.partner)):
        if source:
            sparsity, first = pretrained_scores(source, 8, 256)
            where = (f"{name}_layer", f"{name}_head")
            data |= {f"{name}_sparsity": (where, sparsity), f"{name}_first": (where, first)}
    return xr.Dataset(data, {"attention": list(ATTENTIONS), "seed": list(config.seeds)})
