"""What importers of other planners' JSON files have in common.

They read a file as a struct, check what its types cannot say, and turn it
into a problem; one time unit of such a file counts as 1 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from nest.errors import InvalidProblemError
from nest.ir.base import Struct
from nest.ir.cluster import Hierarchy
from nest.ir.graph import Edge, Graph, Layer, LayerCost, LayerKind
from nest.ir.io import decode, read_bytes
from nest.ir.problem import Problem

File = TypeVar("File", bound=Struct)

NS_PER_UNIT = 1e9
PS_PER_UNIT = 10**12

#: Largest time and bandwidth of a file that the IR takes.
MAX_TIME = 1e12
MAX_RATE = 1e21


def import_file(
    path: str | Path,
    file_type: type[File],
    make_problem: Callable[[File, str], Problem],
) -> Problem:
    """Read a JSON file and make a problem of it.

    ``make_problem`` is called with its contents and the problem's name, the stem of the
    path, and raises ``ValueError`` if they make no problem. Raises
    ``InvalidProblemError`` then, and if the file cannot be read or does not hold such a
    struct; the text names the file and the place in it.
    """
    path = Path(path)
    data = read_bytes(path, InvalidProblemError)
    file = decode(data, str(path), file_type, "problem", InvalidProblemError)
    try:
        return make_problem(file, path.stem)
    except ValueError as error:
        raise InvalidProblemError(f"{path}: $: {error}") from error


def check_range(field: str, value: float, minimum: float, maximum: float) -> None:
    """Check that a number is in a range, ends included.

    Raises ``ValueError`` if it is not, or not a number.
    """
    if not minimum <= value <= maximum:
        raise ValueError(
            f"{field}: expected a number from {minimum:g} to {maximum:g}, "
            f"got {value}; correct the value"
        )


def check_ids(
    ids: Iterable[int], ends: Iterable[tuple[int, int]], part: str = ""
) -> None:
    """Check the ids of the nodes of a graph, and the ends of its edges.

    ``part`` says where inside ``nodes`` and ``edges`` they are, such as ``.1``. Raises
    ``ValueError`` if two nodes have one id, an edge ends at no node, or two edges have
    the same ends.
    """
    distinct: set[int] = set()
    for node in ids:
        if node in distinct:
            raise ValueError(
                f"nodes{part}: expected distinct ids, got {node} twice; remove one"
            )
        distinct.add(node)
    seen: set[tuple[int, int]] = set()
    for source, target in ends:
        for end in (source, target):
            if end not in distinct:
                raise ValueError(
                    f"edges{part}: expected ids of nodes{part}, got {end}; "
                    f"add the node or remove the edge"
                )
        if (source, target) in seen:
            raise ValueError(
                f"edges{part}: expected one edge from {source} to {target}, "
                f"got two; merge them"
            )
        seen.add((source, target))


def make_graph(
    tables: Mapping[int, tuple[LayerCost, ...]], edges: Iterable[Edge]
) -> Graph:
    """Return the graph of layers under their ids.

    ``tables`` has the costs of every layer; layers with equal ones are of one kind,
    named after the first of them. Layers are in topological order, ties in the order of
    ``tables``. Raises ``ValueError`` if the edges form a cycle.
    """
    kinds: dict[tuple[LayerCost, ...], str] = {}
    layers = tuple(
        Layer(id=layer, kind=kinds.setdefault(table, f"layer-{layer}"))
        for layer, table in tables.items()
    )
    graph = Graph(
        kinds=tuple(LayerKind(name=kind, costs=table) for table, kind in kinds.items()),
        layers=layers,
        edges=tuple(edges),
    )
    return Graph(
        kinds=graph.kinds,
        layers=tuple(layers[i] for i in graph.topological_order()),
        edges=graph.edges,
    )


def listed(ids: Iterable[int]) -> str:
    """Return ids in order, as text."""
    return ", ".join(map(str, sorted(ids))) or "none"


def tree_of(problem: Problem) -> Hierarchy:
    """Return the network of a problem whose rules know trees only.

    Raises ``InvalidProblemError`` if it is another kind of network.
    """
    topology = problem.cluster.topology
    if topology.kind != "hierarchy":
        raise InvalidProblemError(
            f"$.cluster.topology.kind: expected 'hierarchy' under preset "
            f"{problem.preset!r}, got {topology.kind!r}; change it or use "
            f"preset 'standard'"
        )
    return topology
