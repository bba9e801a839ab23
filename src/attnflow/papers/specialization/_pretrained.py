"""Heads that language models do without."""

import functools
import importlib
from typing import Any

from attnflow.papers import pretrained
from attnflow.papers.ledger import Finding, corrected, inequality
from attnflow.papers.specialization._ledger import LEDGER

MODELS = ("stories260K", "SmolLM2-135M")
CANDIDATES = 4


def prepared(name: str) -> tuple[Any, list[dict], list[dict]]:
    """A model, texts to rank its heads on, and others to measure on: stories it tells itself, or
    WikiText-2."""
    torch: Any = importlib.import_module("torch")
    from attnflow.torch import load_model, token_batches

    if name == "stories260K":
        model = load_model(pretrained.stories()).model
        torch.manual_seed(0)
        start = torch.full((16, 1), 1)
        options = {"attention_mask": torch.ones_like(start), "pad_token_id": 0}
        told = model.generate(start, max_new_tokens=199, do_sample=True, top_k=0, **options)
        parts = told[:8], told[8:]
    else:
        loaded = load_model(pretrained.smollm2())
        text = pretrained.text("wikitext-2")
        model = loaded.model
        ids = token_batches(loaded, text, sequences=8, length=128).input_ids
        parts = ids[::4], ids[1::2]
    ranked, measured = ([{"input_ids": x, "labels": x} for x in part.split(2)] for part in parts)
    return model, ranked, measured


@functools.cache
def rises(name: str, share: float) -> dict[str, float]:
    """Loss without the share of heads that a greedy ranking lets go first, over that with all: the
    rest as it is, or multiplied by H/(H − n) in every layer."""
    import copy

    torch: Any = importlib.import_module("torch")
    from attnflow.torch import attention_modules, prune_heads, rank_heads

    model, ranked, measured = prepared(name)

    def loss(some: Any) -> float:
        with torch.no_grad():
            found = [float(some(**batch, use_cache=False).loss) for batch in measured]
        return sum(found) / len(found)

    count = round(share * sum(each.heads for each in attention_modules(model)))
    order = rank_heads(model, ranked, count=count, candidates=CANDIDATES)
    whole = loss(model)
    found = {"all heads": whole}
    for rescale in ("none", "uniform"):
        cut = copy.deepcopy(model)
        prune_heads(cut, order.first(count), rescale=rescale)
        found[rescale] = loss(cut)
    return found


@LEDGER.claim(
    "pruning-pretrained",
    where="Section IV.C (pruning, figure 7), on pretrained language models",
    statement="A substantial number of heads can be removed greedily, the output uniformly "
    "rescaled, without seriously affecting performance.",
    hypotheses="Substantial: a tenth of all heads. Not seriously: less than 5 % more loss, on "
    "texts that the ranking has not seen: WikiText-2 (SmolLM2-135M), own stories (stories260K).",
    kind="inequality",
    recorded="holds_corrected",
    broken={"limit": 0.0},
    slow=True,
)
def pruning_pretrained(share: float = 0.1, limit: float = 0.05) -> Finding:
    found = {name: rises(name, share) for name in MODELS}

    def slack(rescale: str) -> list[float]:
        return [limit - (each[rescale] / each["all heads"] - 1) for each in found.values()]

    return corrected(
        inequality(slack("uniform"), counterexample=lambda _: found),
        inequality(slack("none")),
        "A tenth of the heads can go if the others are left as they are. The output of a "
        "transformer's layer is a sum over heads, not a mean: to rescale it does harm.",
    )
