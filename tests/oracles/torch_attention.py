"""Attentions written out query by query in NumPy, float64, without any trick."""

import numpy as np

SIMILARITIES = {
    "softmax": np.exp,
    "softmax_1": np.exp,
    "bayes_softmax": np.exp,
    "sigmoid": lambda s: 1 / (1 + np.exp(-s)),
    "elu": lambda s: np.where(s > 0, s + 1, np.exp(np.minimum(s, 0))),
    "linear": lambda s: s,
    "identity": lambda s: s,
    "relu": lambda s: np.maximum(s, 0),
    "abs": np.abs,
    "square": lambda s: s**2,
    "softplus": lambda s: np.log1p(np.exp(s)),
}


def weights(name, scores, bias):
    """Of one query: for every head, the weights of the keys that it sees."""
    grown = [SIMILARITIES[name.removesuffix("_normalized")](row) for row in scores]
    if name == "bayes_softmax":
        grown = [np.exp(b) * row for row, b in zip(grown, bias, strict=True)]
        mean = sum(row.sum() for row in grown) / len(grown)
        return [row / mean for row in grown]
    if name == "softmax_1":
        return [row / (np.exp(b) + row.sum()) for row, b in zip(grown, bias, strict=True)]
    if name == "linear_normalized":
        return [row / max(abs(row.sum()), 1) for row in grown]
    if name == "softmax" or name.endswith("_normalized"):
        return [row / row.sum() for row in grown]
    return grown


def attention(
    name, q, k, v, *, causal=False, mask=None, scale=None, bias=None, softcap=None, window=None
):
    """Output (batch, heads, T, width) and log-sum-exp (batch, heads, T) of the scores; a row that
    sees nothing gives 0 and -inf. Booleans of the mask say what is seen, numbers are added."""
    q, k, v = (np.asarray(x, dtype=float) for x in (q, k, v))
    (batch, heads, length, width), (key_heads, size) = q.shape, k.shape[1:3]
    scale = width**-0.5 if scale is None else scale
    bias = np.broadcast_to(0.0 if bias is None else np.asarray(bias, dtype=float), heads)
    mask = np.broadcast_to(True if mask is None else np.asarray(mask), (batch, heads, length, size))
    out = np.zeros((batch, heads, length, v.shape[-1]))
    lse = np.full((batch, heads, length), -np.inf)
    for b in range(batch):
        for i in range(length):
            place = i + size - length
            rows, keys = [], []
            for h in range(heads):
                key = k[b, h // (heads // key_heads)]
                score = scale * (key @ q[b, h, i])
                score = score if softcap is None else softcap * np.tanh(score / softcap)
                added = mask[b, h, i]
                seen = added if mask.dtype == bool else added > -9e3
                score = score if mask.dtype == bool else score + added
                if causal:
                    seen = seen & (np.arange(size) <= place)
                if window is not None:
                    seen = seen & (np.arange(size) > place - window)
                rows.append(score[seen])
                keys.append(np.flatnonzero(seen))
            if not any(len(row) for row in rows):
                continue
            with np.errstate(invalid="ignore"):  # 0/0 in a row that sees nothing
                found = weights(name, rows, bias)
            for h in range(heads):
                if len(keys[h]):
                    out[b, h, i] = found[h] @ v[b, h // (heads // key_heads), keys[h]]
                    lse[b, h, i] = np.logaddexp.reduce(rows[h])
    return out, lse
