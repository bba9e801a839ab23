"""A short training of a tiny model, watched or not."""

import torch

from attnflow.torch.watcher import watch
from tests.torch import zoo


def train(model, name="llama", steps=6, watcher=None, accumulate=1, **options):
    """Weights after some steps of AdamW with dropout's random numbers, and the losses."""
    torch.manual_seed(1)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if watcher is not None:
        options.setdefault("every", 2)
        if accumulate > 1:
            options["optimizer"] = optimizer
        watcher = watch(model, **options)
        watcher.__enter__()
    losses = []
    for step in range(steps):
        for part in range(accumulate):
            loss = model(**zoo.inputs(name, seed=step + 100 * part)).loss
            loss.backward()
            losses.append(float(loss.detach()))
        optimizer.step()
        optimizer.zero_grad()
    if watcher is not None:
        watcher.__exit__()
    return losses, watcher
