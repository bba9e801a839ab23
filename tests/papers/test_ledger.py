"""Every row of every ledger: its verdict is the recorded one, and it can fail."""

import json

import pytest

from attnflow.papers import ledger
from attnflow.papers.ledger import Finding, Ledger, corrected, identity, inequality, select
from attnflow.runs.text import plain

CLAIMS = {claim.id: claim for claim in select()}
# Whole groups, because rows of a group share their trainings. `make tour` verifies them too.
SLOW = """specialization/proposition-iii.3 specialization/proposition-iii.4
    conditioning/stall-cause polarization/sink-matrix
    routing/em-speedup
    routing/em-reading routing/sharper-attention
    routing/attention-freezes-first routing/adam-two-timescale routing/low-dimensional-values
    routing/manifold-dimension routing/layernorm-residual-heads routing/query-diversity
    routing/posterior-entropy-axis specialization/figure-5-ordering specialization/figure-5-plateau
    specialization/figure-5-continuous specialization/figure-5-close-to-bayes
    specialization/continuous-extra-heads specialization/plateau-other-activations
    specialization/softmax-close-on-flipping-spike specialization/softmax-gap-on-gaussian
    specialization/figure-7-pruning specialization/figure-7-pruning-spikes
    specialization/figure-7-degradation specialization/heads-for-continuous-laws"""
LONG = {claim.id for claim in CLAIMS.values() if claim.slow} | set(SLOW.split())
ROWS = [pytest.param(x, marks=pytest.mark.slow) if x in LONG else x for x in CLAIMS]


def test_slow_rows_exist():
    assert set(SLOW.split()) <= set(CLAIMS)


@pytest.mark.parametrize("name", ROWS)
def test_the_verdict_is_the_recorded_one(name):
    (row,) = ledger.verify([CLAIMS[name]], slow=True)
    if row.note:
        pytest.skip(row.note)
    assert not row.changed, f"{row.finding}"
    assert row.finding.cases > 0
    assert json.dumps(plain(row.as_dict()), allow_nan=False)
    if row.finding.verdict in ("refuted", "holds_corrected"):
        assert row.finding.counterexample, "say what refutes the printed form"
    if row.finding.verdict in ("holds_corrected", "not_checkable"):
        assert row.finding.correction


@pytest.mark.parametrize("name", ROWS)
def test_a_broken_statement_changes_the_verdict(name):
    claim = CLAIMS[name]
    assert claim.broken, "give a variant that must fail"
    try:
        found = claim.check(**claim.broken)
    except ledger.NeedsData as missing:
        pytest.skip(str(missing))
    assert found.verdict != claim.recorded


@pytest.mark.parametrize("name", [claim.id for claim in CLAIMS.values() if claim.slow])
def test_slow_rows_are_shown_as_they_were_found(name):
    (row,) = ledger.verify([CLAIMS[name]])
    assert not row.changed
    assert row.stored
    assert row.finding.cases > 0


REQUIRED = {
    "u_shape": """lemma-3.1 lemma-3.2 theorem-3.3 invariants equation-4 theorem-3.4 unique-trough
        heating trough-depth frozen-offset toy-example correct-basin-monotone vocabulary-extension
        tokens-rank tokens-conservation""",
    "conditioning": """lemma-1 equation-8 equation-10 lemma-2 equation-12 proposition-1
        table-3-approximation lemma-3 lemma-3-sharper equation-22 lemma-4 theorem-1i-margin
        theorem-1i-bounded theorem-1ii equation-40 spectral-equivalence lemma-6 lemma-7 theorem-2
        remark-7 corollary-1 attention-ratio-settings stall-cause overparameterized-linear
        overparameterized-ratio linear-attention-control preconditioning-flat""",
    "polarization": """equations-3-4 equations-6-7 theorem-3.2a theorem-3.2b score-gaps lyapunov
        theorem-3.3a theorem-3.3b theorem-3.3c lemma-b.1a lemma-b.1b lemma-3.5a lemma-3.5b
        regression-partial conditioning-sparsifies kl-loss normalization-dynamics lemma-d.1
        lemma-d.2 lemma-d.4 f-identity f-square sigmoid relu tied-model sink-matrix""",
    "specialization": """proposition-iii.1 proposition-iii.1-finite proposition-iii.2
        proposition-iii.2-finite-p proposition-iii.3 proposition-iii.4 orthogonal-noise-stability
        figure-1-time lemma-a.1 lemma-a.2 equation-25 lemma-a.3 lemma-a.4 lemma-iii.1 lemma-a.5
        lemma-a.5-table lemma-iii.2 lemma-a.6 same-samples proposition-iv.1 bayes-risk equation-17
        proposition-iv.2 proposition-iv.3-softmax proposition-iv.3-softmax1
        proposition-iv.3-softmax1-rate heads-for-continuous-laws figure-5-ordering figure-5-plateau
        figure-5-continuous continuous-extra-heads plateau-other-activations
        softmax-close-on-flipping-spike softmax-gap-on-gaussian figure-6-attention-maps
        figure-7-pruning-spikes figure-7-pruning figure-7-degradation figure-11-wording
        figure-14-alignment""",
    "routing": """cross-entropy-gradient cross-entropy-example score-gradient value-gradient
        projection-gradients first-order-step score-update attention-reallocation
        advantage-decreases-loss advantage-any-amount value-update m-step values-continue
        feedback-loop attention-equalized em-speedup em-reading sharper-attention
        attention-freezes-first adam-two-timescale low-dimensional-values manifold-dimension
        layernorm-residual-heads query-diversity posterior-entropy-axis""",
}


@pytest.mark.parametrize("paper", REQUIRED)
def test_the_ledger_is_complete(paper):
    assert {f"{paper}/{name}" for name in REQUIRED[paper].split()} <= set(CLAIMS)


def test_identity_is_relative_and_catches_nan():
    assert identity([1e9 + 1], [1e9], tolerance=1e-8).verdict == "holds"
    assert identity([1e-3], [2e-3], tolerance=1e-8).verdict == "refuted"
    assert identity([float("nan")], [1.0]).verdict == "refuted"


def test_inequality_names_its_worst_case():
    finding = inequality([3.0, -1.0, 2.0], counterexample=lambda i: {"index": i})
    assert finding == Finding("refuted", -1.0, 3, {"index": 1})
    assert inequality([0.0]).verdict == "refuted"
    assert inequality([0.0], tolerance=1e-12).verdict == "holds"
    assert inequality([float("nan"), 1.0]).verdict == "refuted"


def test_corrected_keeps_the_counterexample_of_the_printed_form():
    good, bad = Finding("holds", 1.0, 2), Finding("refuted", -1.0, 3, {"x": 1})
    both = corrected(bad, good, "x < 1")
    assert (both.verdict, both.counterexample, both.correction) == (
        "holds_corrected",
        {"x": 1},
        "x < 1",
    )
    assert corrected(good, bad, "").verdict == "holds"
    assert corrected(bad, bad, "").verdict == "refuted"


def test_a_name_stands_once_in_a_ledger():
    book = Ledger("paper")

    def add():
        book.claim("x", where="", statement="", kind="sign", recorded="holds", broken={})(
            lambda: Finding("holds", 0.0, 1)
        )

    add()
    with pytest.raises(ValueError, match="already"):
        add()


def test_unknown_papers_and_claims_suggest_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'u_shape'"):
        select("ushape")
    with pytest.raises(ValueError, match=r"did you mean 'lemma-3.1'"):
        select("u_shape/lemma-3.11")
