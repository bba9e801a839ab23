"""One cross-entropy head by loops over positions, and the closed gradients of its parameters."""

import numpy as np


def forward(inputs, targets, params, causal):
    """Loss, attention, upstream errors, values, mixed values, chances minus one-hot targets."""
    get = params.get
    q = inputs @ params["W_Q"] + get("b_Q", 0)
    k = inputs @ params["W_K"] + get("b_K", 0)
    v = inputs @ params["W_V"] + get("b_V", 0)
    batch, length, _ = inputs.shape
    attention = np.zeros((batch, length, length))
    for s in range(batch):
        for i in range(length):
            seen = i + 1 if causal else length
            scores = k[s, :seen] @ q[s, i] / np.sqrt(k.shape[-1])
            grown = np.exp(scores - scores.max())
            attention[s, i, :seen] = grown / grown.sum()
    mixed = attention @ v
    logits = mixed @ params["W_O"] + get("b_O", 0)
    chances = np.exp(logits - logits.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    hit = np.eye(logits.shape[-1])[targets]
    loss = -np.mean(np.log(np.sum(hit * chances, axis=-1)))
    off = chances - hit
    return loss, attention, off @ params["W_O"].T, v, mixed, off
