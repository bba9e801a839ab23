"""How the rows of the ledger are handed out."""

import types

from attnflow.papers.workers import Chunks


def claim(paper, module, name):
    check = types.SimpleNamespace(__module__=module)
    return types.SimpleNamespace(paper=paper, id=f"{paper}/{name}", check=check)


def test_a_worker_stays_with_its_paper_and_then_helps():
    chunks = Chunks(
        claim(paper, f"{paper}.{module}", name)
        for paper, module, name in zip("aaaabc", "112311", "123456", strict=True)
    )
    assert chunks.take(None) == ("a", ["a/1", "a/2"])  # the largest paper first
    assert chunks.take(None) == ("b", ["b/5"])
    assert chunks.take("b") == ("c", ["c/6"])
    assert chunks.take("c") == ("a", ["a/4"])  # from the other end than its own worker
    assert chunks.take("a") == ("a", ["a/3"])
    assert chunks.take("a") is None
    assert chunks.take("c") is None
