"""Who imports whom: no circles, and one way through the layers.

Imports under ``TYPE_CHECKING`` and inside functions are apart: they bind
nothing when a module is loaded.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("nest", "formulations", "baselines")

#: The layers from the lowest up; a module belongs to the longest prefix, and
#: imports from its own layer and those below. Modules without a prefix here,
#: and those of no layer (None), are tools that all may use.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("nest.ir", "nest.hardware", "nest.units", "nest.errors"),
    ("nest.topology",),
    # What searches are written against: the protocol, and warm starts.
    (
        *("nest.cost", "nest.solvers.base", "nest.solvers.warm_start"),
        "nest.codesign.schedule",
    ),
    ("nest.simulate",),
    # What becomes of a problem before anything is searched.
    ("nest.targets",),
    ("nest.export",),
    ("nest.search", "nest.audits", "formulations", "baselines"),
    ("nest.solvers",),
    (
        "nest.compare",
        "nest.pareto",
        "nest.fit",
        "nest.explain",
        "nest.offers",
        "nest.reorder",
        "nest.restrictions",
        "nest.headroom",
        "nest.calibration",
        "nest.intervals",
        "nest.robust",
        "nest.feasible",
        "nest.by_settings",
        "nest.certificates",
        "nest.instances",
    ),
    (
        *("nest.prove", "nest.conform", "nest.report", "nest.pages"),
        *("nest.benchmarks", "nest.studies"),
    ),
    ("nest.cli",),
)


def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            found[".".join(parts)] = path
    return found


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield what runs when a module is loaded."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        for field in ("body", "orelse", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                yield from statements(getattr(node, field, []))


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Return the modules that a module imports while it is loaded."""
    found = set()
    for node in statements(ast.parse(path.read_text()).body):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (inner & known.keys()) or {node.module}
    return found & known.keys()


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: imports(path, known) for name, path in known.items()}


def layer(name: str) -> int | None:
    """Return the number of a module's layer."""
    matches = [
        (len(prefix), number)
        for number, prefixes in enumerate(LAYERS)
        for prefix in prefixes
        if f"{name}.".startswith(f"{prefix}.")
    ]
    return max(matches)[1] if matches else None


def test_no_circles(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"circular imports: {' <- '.join(error.args[1])}")


def test_layers_are_crossed_one_way(graph: dict[str, set[str]]) -> None:
    wrong = [
        f"{name} imports {other}"
        for name, others in sorted(graph.items())
        for other in sorted(others)
        if (own := layer(name)) is not None
        and (its := layer(other)) is not None
        and its > own
    ]
    assert wrong == []
