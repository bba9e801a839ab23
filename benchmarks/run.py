"""Ratios against the naive implementations, measured in one run; writes benchmarks/RESULTS.md.

    python benchmarks/run.py            all rows (about five minutes)
    python benchmarks/run.py flow help  some of them

The opponents are the oracles of the test suite: what a paper's notebook would write in NumPy and
SciPy. Ours is timed after compilation, the best of five calls; the time to compile is told too.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # more only slow down small matrices

import jax
import jax.numpy as jnp
import numpy as np
import optax

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import attnflow as af  # noqa: E402
from attnflow.dynamics import host  # noqa: E402
from attnflow.dynamics.batching import for_each_run, prepare  # noqa: E402
from attnflow.dynamics.numpy_form import numpy_batch  # noqa: E402
from attnflow.dynamics.starts import Start  # noqa: E402
from attnflow.dynamics.system import system_of  # noqa: E402
from benchmarks import (  # noqa: E402
    first_answer,
    head,
    instruments,
    reliability,
    runs,
    single_location,
    transformer,
    web,
)
from benchmarks.timing import best, timed  # noqa: E402
from tests.oracles import jacobian, two_token, value_softmax  # noqa: E402

Row = tuple[str, str, str, str]


def eight_tokens():
    """The polarization paper's logistic example: p = 8, step 0.1, a million steps."""
    rng = np.random.default_rng(0)
    target = rng.normal(size=8)
    return 0.1 * rng.normal(size=(8, 8)), target / np.linalg.norm(target)


def flow() -> list[Row]:
    values, target = eight_tokens()
    steps = 10**6
    naive = timed(
        lambda: value_softmax.logistic_descent(values, target, np.zeros(8), step=0.1, steps=steps)
    )
    model = af.ValueSoftmax(values=values, target=target)
    rows = []
    for name, call in {
        "gradient flow to t = 1e5, its end": lambda: af.gradient_flow(model, times=[1e5]),
        "gradient flow to t = 1e5, 200 output times": lambda: af.gradient_flow(model, 1e5),
        "gradient flow to t = 1e12, its end": lambda: af.gradient_flow(model, times=[1e12]),
        "compiled descent, 10⁶ steps, 200 records": lambda: _descend(model, steps),
    }.items():
        first, later = best(call, 20 if "flow" in name else 3)
        rows.append(
            (
                name,
                f"NumPy loop of 10⁶ steps: {naive:.1f} s",
                f"{later * 1e3:.1f} ms (first call {first:.1f} s)",
                f"{naive / later:,.0f}×",
            )
        )
    return rows


OPTIMIZER = optax.sgd(0.1)


def _descend(model, steps):
    return af.descend(model, steps, OPTIMIZER, progress=False)


def batch() -> list[Row]:
    count, sample = 10_000, 200
    c0 = np.random.default_rng(0).uniform(0.5, 8.0, count)
    rows = []
    first, later = best(
        lambda: af.gradient_flow(af.TwoToken(), times=[1e4], over={"c0": c0}), repeats=3
    )
    for method in ("RK45", "LSODA"):
        naive = timed(
            lambda method=method: [
                two_token.reduced_flow(0.0, c, 6.0, 1e4, method=method) for c in c0[:sample]
            ]
        )
        naive *= count / sample
        rows.append(
            (
                "10,000 two-token flows to t = 1e4 in one call",
                f"SciPy solve_ivp {method}, one by one: {naive:.0f} s (from {sample} of them)",
                f"{later:.2f} s (first call {first:.1f} s)",
                f"{naive / later:,.0f}×",
            )
        )
    floor = arithmetic_of_steps(c0)
    rows.append(
        (
            "10,000 two-token flows to t = 1e4 in one call",
            f"arithmetic of the accepted steps on all cores: {floor:.2f} s",
            f"{later:.2f} s",
            f"{later / floor:.1f} of it",
        )
    )
    return rows


def arithmetic_of_steps(c0: np.ndarray, sample: int = 300, block: int = 512) -> float:
    """Seconds of twelve velocities for each step that an adaptive method of order 8 accepts."""
    few = numpy_batch(af.TwoToken(), {"c0": c0[:sample]})
    assert few is not None
    taken = host.solve(few, np.log1p([1e4]), 1e-9, 1e-11, 5000)["run"]  # in each step 1e-10
    steps = np.mean([len(np.unique(own)) - 1 for own in np.asarray(taken.s).T])
    with jax.enable_x64(True):
        made = prepare(af.TwoToken(), {"c0": c0[:block]}, None, Start(), None)

        def velocity(model, start, y):
            return system_of(model, start, "auto").clock_field(0.0, y, None)

        @jax.jit
        def repeated(y, times):
            each = for_each_run(velocity)
            return jax.lax.fori_loop(
                0, times, lambda _, y: y + 1e-9 * each(made.model, made.start, y), y
            )

        start = jnp.zeros((block, 2))
        _, later = best(lambda: repeated(start, 5000).block_until_ready(), 3)
    return float(later / 5000 / block * 12 * steps * len(c0) / (os.cpu_count() or 1))


def kappa() -> list[Row]:
    count, sample, n = 10**6, 2000, 64
    scores = 3 * np.random.default_rng(0).normal(size=(count, n))
    matrices = jacobian.jacobians(scores[:sample])
    naive, ours = [], []
    for _ in range(5):  # in turns, so that both see the same machine
        naive.append(timed(lambda: np.linalg.eigvalsh(matrices)) * count / sample)
        ours.append(timed(lambda: af.instruments.softmax_conditioning(scores)))
    return [
        (
            f"condition numbers of 10⁶ softmax Jacobians, n = {n}",
            f"numpy.linalg.eigvalsh, one thread: {min(naive):.0f} s (from {sample} of them)",
            f"{min(ours):.2f} s",
            f"{min(naive) / min(ours):,.0f}×",
        )
    ]


@jax.jit
def _four_products(X, count):
    """The products of a descent on p and v with the N × n × d inputs, and nothing else."""

    def step(_, pv):
        back = (jnp.einsum("kn,knd->d", X @ x, X) for x in pv)
        return tuple(x / jnp.linalg.norm(x) for x in back)

    start = jnp.ones(X.shape[-1], X.dtype)
    return jax.lax.fori_loop(0, count, step, (start, 2 * start))


def prompt() -> list[Row]:
    return [_prompt(d, steps) for d, steps in ((20, 20_000), (150, 400), (400, 60))]


def _prompt(d: int, steps: int) -> Row:
    model = af.StudentTeacher(d=d, n=d, samples=100).model()
    with jax.enable_x64(True):
        inputs = jnp.asarray(model.inputs)
        floors, ours = [], []
        for _ in range(6):
            floors.append(timed(lambda: jax.block_until_ready(_four_products(inputs, steps))))
            ours.append(
                timed(lambda: af.descend(model, steps, OPTIMIZER, record=2, progress=False))
            )
    floor, later = (1e6 * min(times[1:]) / steps for times in (floors, ours))
    return (
        f"a step of descent on prompt attention, d = n = {d}, N = 100",
        f"its four products with the inputs, compiled: {floor:,.0f} µs",
        f"{later:,.0f} µs",
        f"{later / floor:.1f} of it",
    )


def help() -> list[Row]:
    command = [sys.executable, "-m", "attnflow", "--help"]
    seconds = min(
        timed(lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL))
        for _ in range(3)
    )
    return [("attnflow --help", "budget 0.5 s", f"{seconds:.2f} s", "")]


SECTIONS = {
    "flow": flow,
    "batch": batch,
    "kappa": kappa,
    "prompt": prompt,
    **single_location.SECTIONS,
    **head.SECTIONS,
    **instruments.SECTIONS,
    **transformer.SECTIONS,
    **runs.SECTIONS,
    **web.SECTIONS,
    **first_answer.SECTIONS,
    "help": help,
}


def main(names: list[str]) -> None:
    unknown = set(names) - set(SECTIONS)
    if unknown:
        raise SystemExit(f"unknown benchmark {', '.join(unknown)}: choose from {list(SECTIONS)}")
    rows = []
    for name in names or SECTIONS:
        print(f"{name} …", flush=True)
        for row in SECTIONS[name]():
            rows.append(row)
            print("   ", " | ".join(row), flush=True)
    if names:
        return  # a part is for looking, the table is always one whole run
    lines = [
        "# Benchmarks",
        "",
        f"One run of `make bench` on {os.cpu_count()} cores ({platform.machine()}), "
        f"Python {platform.python_version()}, JAX {jax.__version__}. Ours is timed after "
        "compilation, best of several calls.",
        "",
        "| what | against | attnflow | ratio |",
        "| --- | --- | --- | --- |",
        *("| " + " | ".join(row) + " |" for row in rows),
        "",
    ]
    path = Path(__file__).parent / "RESULTS.md"
    _, mark, rest = path.read_text().partition(reliability.BEGIN)
    path.write_text("\n".join(lines) + (f"\n{mark}{rest}" if mark else ""))


if __name__ == "__main__":
    main(sys.argv[1:])
