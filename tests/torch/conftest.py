"""Tiny models on one thread: with two test processes on two cores, threads only wait."""

import contextlib

with contextlib.suppress(ImportError):
    import torch

    torch.set_num_threads(1)
