"""Rows of the ledger on several processes.

Rows of one paper share flows and programs, so a worker stays with a paper as long as that has rows
left; then it takes up another, the longest first, and when none is left helps with the one that has
most to do. What is handed out are the rows of one module.
"""

import multiprocessing
import os
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any

from attnflow.runs.processes import deaf_children, end_with_parent

Rows = list[str]  # names of claims
PACE = {"routing": 2.5, "specialization": 0.7, "u_shape": 0.4}  # seconds a row, roughly; else 0.3


class Chunks:
    """What is left to do: by paper, the rows of each of its modules."""

    def __init__(self, claims: Iterable[Any]):
        found: dict[str, dict[str, Rows]] = {}
        for claim in claims:
            modules = found.setdefault(claim.paper, {})
            modules.setdefault(claim.check.__module__, []).append(claim.id)
        self.left = {paper: list(modules.values()) for paper, modules in found.items()}
        self.untouched = set(self.left)

    def take(self, paper: str | None) -> tuple[str, Rows] | None:
        """The next rows for a worker that did rows of this paper; None when all are taken."""
        mine = self.left.get(paper or "")
        if mine:
            return paper or "", mine.pop(0)
        waiting = [name for name, chunks in self.left.items() if chunks]
        if not waiting:
            return None
        fresh = [name for name in waiting if name in self.untouched]
        name = max(fresh or waiting, key=self.seconds)
        self.untouched.discard(name)
        return name, self.left[name].pop(0 if fresh else -1)

    def seconds(self, paper: str) -> float:
        """What is left of it, roughly."""
        return PACE.get(paper, 0.3) * sum(map(len, self.left[paper]))


def on_workers(claims: Iterable[Any], processes: int) -> Iterator[Any]:
    """What `_work` answers for each claim, as it comes."""
    context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
    chunks = Chunks(claims)
    running: dict[Connection, tuple[Any, str | None]] = {}
    try:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            worker = context.Process(target=_work, args=(theirs,))
            with deaf_children():
                worker.start()
            theirs.close()
            running[ours] = worker, None
        busy = [pipe for pipe in running if _hand_out(pipe, running, chunks)]
        while busy:
            for pipe in wait(busy):
                assert isinstance(pipe, Connection)
                try:
                    answer = pipe.recv()
                except (EOFError, OSError):
                    raise RuntimeError(
                        "a ledger process died: run `attnflow verify PAPER` alone"
                    ) from None
                if answer is not None:
                    yield answer
                elif not _hand_out(pipe, running, chunks):
                    busy.remove(pipe)
    finally:
        for worker, _ in running.values():
            worker.terminate()
            worker.join()


def _hand_out(pipe: Connection, running: dict[Connection, Any], chunks: Chunks) -> bool:
    worker, paper = running[pipe]
    given = chunks.take(paper)
    if given is None:
        return False
    running[pipe] = worker, given[0]
    pipe.send(given[1])
    return True


def _work(pipe: Connection) -> None:
    from attnflow.papers.ledger import select, verify

    end_with_parent()
    while True:
        rows = verify([claim for name in _received(pipe) for claim in select(name)])
        for row in rows:
            _send(pipe, (row.claim.id, row.finding, row.seconds))
        _send(pipe, None)


def _received(pipe: Connection) -> Rows:
    try:
        return pipe.recv()
    except (EOFError, OSError):
        os._exit(0)  # the other end is gone, and nobody wants to hear more


def _send(pipe: Connection, answer: Any) -> None:
    try:
        pipe.send(answer)
    except OSError:
        os._exit(0)
