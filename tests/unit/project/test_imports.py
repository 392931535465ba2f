"""Who imports whom: every room has a floor, and imports go down only.

Imports inside functions count; those under ``TYPE_CHECKING`` bind nothing.
"""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.rooms import (
    PAGE,
    ROOMS,
    Import,
    imports,
    modules,
    named_in_texts,
    page,
    room_of,
    tree_of,
)

Graph = dict[str, set[Import]]


@pytest.fixture(scope="module")
def graph() -> Graph:
    known = modules()
    return {name: imports(path, known) for name, path in known.items()}


def test_every_module_has_a_room(graph: Graph) -> None:
    assert {room_of(name).name for name in graph} == {r.name for r in ROOMS}
    assert len(ROOMS) <= 36
    assert max(room.floor for room in ROOMS) < 16


def test_imports_go_down(graph: Graph) -> None:
    wrong = [
        f"{name} ({own.name}, floor {own.floor}) imports {other.module} "
        f"({its.name}, floor {its.floor})"
        for name, others in sorted(graph.items())
        for other in sorted(others)
        if (own := room_of(name)) != (its := room_of(other.module))
        and its.floor >= own.floor
    ]
    assert wrong == []


def test_nothing_but_the_door_imports_the_command_line(graph: Graph) -> None:
    found = {
        name
        for name, others in graph.items()
        if not name.startswith("nest.cli")
        and any(f"{x.module}.".startswith("nest.cli.") for x in others)
    }
    assert found == {"nest.__main__"}
    naming = {
        name for name, path in modules().items() if "nest.cli." in path.read_text()
    }
    assert {room_of(name).name for name in naming} <= {"cli", "door"}


#: Modules that name modules of higher floors as text, which they import when
#: somebody asks for them, and why. The list may only get shorter.
UP_BY_NAME = {
    "nest.solvers.registry": "lists solvers without importing engines",
    "nest.cost.rules": "lists the rules of published cost models",
    "nest.uncertainty.intervals": "reads data that calibration stores",
}


@pytest.mark.usefixtures("graph")
def test_names_of_modules_in_texts_go_down_but_in_registries() -> None:
    known = modules()
    up = {
        name
        for name, path in known.items()
        for other in named_in_texts(path, known)
        if room_of(other).floor > room_of(name).floor
    }
    assert up == set(UP_BY_NAME)


@pytest.mark.usefixtures("graph")
def test_every_import_says_the_whole_name() -> None:
    """A relative one would be seen by no other test."""
    relative = {
        name
        for name, path in modules().items()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom) and node.level
    }
    # nest-check runs without nest, as a package of its own.
    assert {room_of(name).name for name in relative} == {"certificates"}


def test_the_core_imports_no_satellite(graph: Graph) -> None:
    """But where a request, a page or a formulation is about one."""
    above = {
        (room_of(name).name, room_of(other.module).name)
        for name, others in graph.items()
        for other in others
        if room_of(name).core and not room_of(other.module).core
    }
    about = {"door", "cli", "api", "present", "requests"}
    assert {pair for pair in above if pair[0] not in about} == {
        ("formulations", "audits")
    }


def test_no_circles_of_files(graph: Graph) -> None:
    """Imports inside functions count, too."""
    check_no_circle(
        {
            name: {other.module for other in others} - {name}
            for name, others in graph.items()
        }
    )


#: Records and classes of networks: they say themselves what they are, by
#: ``Topology.kind`` and ``Network.tree``.
NETWORKS = {
    *("Hierarchy", "GraphTopology"),
    *("Network", "HierarchyNetwork", "GraphNetwork"),
}


def _asks_for_a_network(node: ast.AST) -> bool:
    """Whether a node of code asks of which class a network is."""
    match node:
        case ast.Call(func=ast.Name(id="isinstance" | "issubclass")):
            classes: list[ast.AST] = [*node.args[1:]]
        case ast.Compare(left=ast.Call(func=ast.Name(id="type")), comparators=classes):
            pass
        case ast.MatchClass(cls=kind):
            classes = [kind]
        case _:
            return False
    return any(
        (isinstance(part, ast.Name) and part.id in NETWORKS)
        or (isinstance(part, ast.Attribute) and part.attr in NETWORKS)
        for kind in classes
        for part in ast.walk(kind)
    )


def _asking_lines(code: str) -> list[int]:
    return [
        node.lineno if isinstance(node, ast.expr) else node.cls.lineno
        for node in ast.walk(ast.parse(code))
        if _asks_for_a_network(node)
    ]


def test_only_topology_knows_the_classes_of_networks() -> None:
    found = {
        f"{name}:{line}"
        for name, path in modules().items()
        if not f"{name}.".startswith("nest.topology.")
        and any(x in (code := path.read_text("utf-8")) for x in NETWORKS)
        for line in _asking_lines(code)
    }
    assert found == set()


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(x, Hierarchy)",
        "isinstance(x, (int, topology.GraphNetwork))",
        "isinstance(x, Hierarchy | None)",
        "issubclass(x, Network)",
        "type(x) is GraphTopology",
        "match x:\n  case ir.Hierarchy(): pass",
    ],
)
def test_the_classes_of_networks_are_noticed(code: str) -> None:
    assert _asking_lines(code)


def check_no_circle(imported: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(imported).prepare()
    except CycleError as error:
        pytest.fail(f"circular imports: {' <- '.join(error.args[1])}")


def test_the_page_shows_the_rooms() -> None:
    """``python -m tests.rooms`` writes it."""
    assert page() == PAGE.read_text()
