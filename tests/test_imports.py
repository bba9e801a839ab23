"""Who may import whom: the design's rule, read off the source."""

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "attnflow"
LEAVES = ("attnflow._checks", "attnflow._arrays")  # everybody may use them

ALLOWED = {
    "attention": set(),
    "instruments": set(),
    "tasks": set(),
    "models": {"attention", "tasks"},
    "dynamics": {"models.interface"},
    # what papers train are runs of a store
    "papers": {"attention", "models", "dynamics", "instruments", "tasks", "torch", "runs"},
    "torch": {"attention", "instruments", "runs"},  # records go to a run store
    "runs": set(),
    "web": {"cache", "attention", "models", "dynamics", "instruments", "tasks", "papers", "runs"},
    "cli": {
        "cache",
        "attention",
        "models",
        "dynamics",
        "instruments",
        "tasks",
        "papers",
        "runs",
        "torch",
        "web",
    },
}
# TwoToken.critical_points() is a method because users look for it there; it asks the dynamics
# when it is called.
EXCEPTIONS = {("models/two_token.py", "attnflow.dynamics.critical_points")}


def imports_of(path: Path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write absolute imports"
            if node.module == "attnflow":
                yield from (f"attnflow.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


def violations(package: str, files):
    for path in files:
        name = str(path.relative_to(SOURCE))
        for module in imports_of(path):
            if not module.startswith("attnflow.") or module in LEAVES:
                continue
            inner = module.removeprefix("attnflow.")
            if inner.split(".")[0] == package or (name, module) in EXCEPTIONS:
                continue
            if not any(inner == ok or inner.startswith(ok + ".") for ok in ALLOWED[package]):
                yield f"{name} imports {module}"


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_only_what_the_design_allows(package):
    files = sorted((SOURCE / package).rglob("*.py"))
    assert list(violations(package, files)) == []


def test_every_package_has_a_rule():
    packages = {p.name for p in SOURCE.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    assert packages <= set(ALLOWED)


def test_the_rule_can_fail(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)  # the rule reads names relative to it
    bad = tmp_path / "attention" / "bad.py"
    bad.parent.mkdir()
    bad.write_text("from attnflow import models\nimport attnflow.dynamics.flow\n")
    assert len(list(violations("attention", [bad]))) == 2


def test_theorem_numbers_stay_in_papers():
    """`papers` is the only place where a theorem or figure of a paper has its number."""
    import re

    pattern = re.compile(r"\b(Theorem|Lemma|Proposition|Corollary|Figure|figure) \d")
    found = [
        f"{path.relative_to(SOURCE)}: {match.group()}"
        for path in SOURCE.rglob("*.py")
        if "papers" not in path.parts
        for match in pattern.finditer(path.read_text())
    ]
    assert found == []


def test_importing_leaves_jax_settings_alone():
    import subprocess
    import sys

    program = (
        "import jax, attnflow as af; af.gradient_flow(af.TwoToken(), 1.0, points=2); "
        "assert not jax.config.jax_enable_x64; "
        "import jax.numpy as jnp; assert jnp.ones(1).dtype == 'float32'"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
