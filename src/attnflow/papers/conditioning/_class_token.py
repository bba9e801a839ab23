"""What the first token of a transformer, the class token, looks at."""

import importlib
from typing import Any, NamedTuple

import numpy as np


class Seen(NamedTuple):
    """scores (layer, example, head, key) of the class token; keys and values (…, key, d), both of
    the heads' own width. Softmax of the scores is the attention."""

    scores: np.ndarray
    keys: np.ndarray
    values: np.ndarray

    @property
    def weights(self) -> np.ndarray:
        raised = np.exp(self.scores - self.scores.max(-1, keepdims=True))
        return raised / raised.sum(-1, keepdims=True)


def class_token(model: Any, inputs: np.ndarray, size: int = 250) -> Seen:
    """Of an `attnflow.torch.Transformer` without causal mask, in float64; one forward pass, `size`
    inputs at a time."""
    parts = [_some(model, inputs[k : k + size]) for k in range(0, len(inputs), size)]
    return Seen(*(np.concatenate(each, axis=1) for each in zip(*parts, strict=True)))


def _some(model: Any, inputs: np.ndarray) -> Seen:
    torch: Any = importlib.import_module("torch")
    from attnflow.torch.statistics import attention_rows

    found: list[Seen] = []

    def read(q, k, v, attention, _) -> None:
        first = attention_rows(q, k, attention, torch.zeros(1, dtype=torch.long)).scores[:, :, 0]
        found.append(Seen(*(each.double().numpy() for each in (first, k, v))))

    layers = [block.attention for block in model.blocks]
    for layer in layers:
        layer.reader = read
    try:
        with torch.no_grad():
            model(torch.as_tensor(inputs))
    finally:
        for layer in layers:
            layer.reader = None
    return Seen(*(np.stack(each) for each in zip(*found, strict=True)))
