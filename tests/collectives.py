"""Collectives on small networks: what they take by nest, and what they take at least.

``tests/data/collectives.json`` has, of each network and its groups, the ns per byte of
a large buffer that no schedule can beat, and how many times as much nest needs.

- An all-gather has to bring all shards to every rank. They may be copied on the way,
  and take any way: a linear program of flows, one per group and target.
- An all-to-all is a flow per rank of its own messages.
- An all-reduce has the bound of :mod:`nest.topology.graph.bounds`.

    python -m tests.collectives [--write]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from nest.topology.generators import generate
from nest.topology.graph import GraphNetwork
from nest.topology.graph.bounds import bound_ns
from nest.topology.graph.convert import topology_of

STORED = Path(__file__).parent / "data" / "collectives.json"
KINDS = ("all-gather", "all-to-all", "all-reduce")
#: Programs with more variables are not solved.
MAX_VARIABLES = 20_000

Groups = list[list[int]]
#: Of a row its columns and their factors, and the least and the most of the sum.
Row = tuple[list[int], list[float], float, float]


def strided(n: int, stride: int) -> Groups:
    """Return all groups of ranks that are ``stride`` apart."""
    return [list(range(first, n, stride)) for first in range(stride)]


def blocks(n: int, size: int) -> Groups:
    """Return groups of so many ranks one after the other, without a rest."""
    return [list(range(k, k + size)) for k in range(0, n - size + 1, size)]


def cases() -> Iterator[tuple[str, Groups]]:
    """Yield networks, and groups that run at the same time on each."""
    for name, devices, several in (
        ("dgx:nodes=4,devices=4", 16, (16, 8, 6, 4, 3)),
        ("dgx:nodes=4,devices=4,ports=shared", 16, (16, 8, 6, 4, 3)),
        ("dgx:nodes=2,ports=pooled", 16, (16,)),
        ("dgx:nodes=4,devices=4,nodes_per_leaf=2,oversubscription=4", 16, (16, 8)),
        ("rail:nodes=4,devices=4", 16, (16, 8, 6, 4)),
        ("rail:nodes=4,devices=4,spines=0", 16, (16, 8, 6, 4)),
        ("leaf-spine:leaves=4,hosts=4,oversubscription=2", 16, (16, 8, 6, 3)),
        ("fat-tree:k=4", 16, (16, 8)),
        ("dgx1:nodes=1", 8, (8, 6, 4)),
        ("dgx1:nodes=2", 16, (16, 8)),
        ("torus:4x4", 16, (16, 8, 4)),
        ("torus:4x2x2", 16, (16,)),
        ("torus:3x5", 15, (15, 5)),
        ("torus:shape=4x4,wrap=no", 16, (16, 4)),
        ("ring:devices=8", 8, (8, 4)),
        ("dragonfly:p=2,a=2,h=1", 12, (12, 4)),
        ("all-to-all:devices=6", 6, (6, 3)),
    ):
        for size in several:
            yield name, blocks(devices, size)
    for name, stride in (
        ("dgx:nodes=4,devices=4", 4),
        ("dgx:nodes=4,devices=4,ports=shared", 4),
        ("dgx:nodes=4,devices=4,nodes_per_leaf=2,oversubscription=4", 4),
        ("rail:nodes=4,devices=4,spines=0", 4),
        ("rail:nodes=4,devices=4,spines=0", 2),
        ("leaf-spine:leaves=4,hosts=4,oversubscription=2", 4),
        ("dgx1:nodes=2", 8),
        ("torus:4x4", 2),
    ):
        yield name, strided(16, stride)
    for name in ("dgx:nodes=2", "dgx:nodes=2,ports=shared", "rail:nodes=2"):
        yield name, [list(range(12))]
        yield name, [list(range(3, 11))]
    yield "rail:nodes=2,spines=0", [list(range(12))]
    yield "dgx:nodes=4,devices=4", [[0, *range(4, 12)]]
    yield "rail:nodes=4,devices=4,spines=0", [[0, 1, 6, 7], [2, 3, 4, 5]]
    yield "nvl72:racks=1", [list(range(0, 72, 9))]
    yield "nvl72:racks=2", [list(range(66, 76))]


class Program:
    """A linear program: the least time in which flows fit on all arcs."""

    def __init__(self, network: GraphNetwork, groups: Groups) -> None:
        routes = network.routes
        self.node_of = routes.ranks
        members = {routes.ranks[rank] for group in groups for rank in group}
        self.arcs = [
            (arc.tail, arc.head, arc.bandwidth_bytes_per_s / 1e9)
            for arc in routes.arcs
            if all(x in members or routes.forwards[x] for x in (arc.tail, arc.head))
        ]
        self.rows: list[Row] = []
        #: The first is the time.
        self.num_variables = 1
        self.loads: list[int] = []

    def flow(self) -> int:
        """Add a variable for each arc, and return the first."""
        first = self.num_variables
        self.num_variables += len(self.arcs)
        return first

    def conserve(self, first: int, out: Mapping[int, float], sink: int | None) -> None:
        """Let a flow carry what nodes send, and what not is given to the sink."""
        nodes: dict[int, tuple[list[int], list[float]]] = {}
        for index, (tail, head, _) in enumerate(self.arcs, first):
            for node, sign in ((tail, 1.0), (head, -1.0)):
                columns, factors = nodes.setdefault(node, ([], []))
                columns.append(index)
                factors.append(sign)
        for node, (columns, factors) in nodes.items():
            if node != sink:
                self.rows.append((columns, factors, out.get(node, 0), out.get(node, 0)))

    def gather(self, group: Sequence[int]) -> None:
        """Add an all-gather: what targets get, together at most what is sent."""
        nodes = [self.node_of[rank] for rank in group]
        sent = self.flow()
        self.loads.append(sent)
        for target in nodes:
            first = self.flow()
            shards = {node: 1 / len(group) for node in nodes if node != target}
            self.conserve(first, shards, target)
            for index in range(len(self.arcs)):
                pair = [first + index, sent + index]
                self.rows.append((pair, [1.0, -1.0], -np.inf, 0.0))

    def exchange(self, group: Sequence[int]) -> None:
        """Add an all-to-all: what every rank sends to all others."""
        nodes = [self.node_of[rank] for rank in group]
        for source in nodes:
            first = self.flow()
            self.loads.append(first)
            parts = dict.fromkeys(nodes, -1 / len(group))
            parts[source] = 1 - 1 / len(group)
            self.conserve(first, parts, None)

    def least(self) -> float:
        """Return the least time, in ns per byte of the buffer."""
        import highspy

        for index, (_, _, speed) in enumerate(self.arcs):
            columns = [0, *(first + index for first in self.loads)]
            factors = [-speed, *([1.0] * len(self.loads))]
            self.rows.append((columns, factors, -np.inf, 0.0))
        columns, factors, lower, upper = zip(*self.rows, strict=True)
        solver, program = highspy.Highs(), highspy.HighsLp()
        solver.setOptionValue("output_flag", False)
        n = self.num_variables
        program.num_col_, program.num_row_ = n, len(self.rows)
        program.col_cost_ = np.eye(1, n).ravel()
        program.col_lower_, program.col_upper_ = np.zeros(n), np.full(n, np.inf)
        program.row_lower_, program.row_upper_ = np.array(lower), np.array(upper)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.cumsum([0, *map(len, columns)])
        program.a_matrix_.index_ = np.concatenate(columns).astype(np.int32)
        program.a_matrix_.value_ = np.concatenate(factors)
        solver.passModel(program)
        solver.run()
        return float(solver.getInfo().objective_function_value)


def bound(network: GraphNetwork, kind: str, groups: Groups) -> float | None:
    """Return the least ns per byte; ``None`` where the program is too large."""
    if kind == "all-reduce":
        return bound_ns(network.routes, "all-reduce", groups, 1.0, network.places)
    program = Program(network, groups)
    add: Callable[[Sequence[int]], None] = program.exchange
    if kind == "all-gather":
        add = program.gather
    for group in groups:
        add(group)
    return program.least() if program.num_variables <= MAX_VARIABLES else None


def ns_per_byte(network: GraphNetwork, kind: str, groups: Groups) -> float:
    """Return what a byte more takes in a large buffer."""
    lines = getattr(network.prices(groups), kind.replace("-", "_"), None)
    if kind == "all-gather":
        lines = network.prices(groups).half
    assert lines is not None
    return min(line.ns_per_byte for line in lines)


def network_of(name: str) -> GraphNetwork:
    """Return a generated network."""
    return GraphNetwork(topology_of(generate(name)))


def main(write: bool) -> None:
    rows = []
    for name, groups in cases():
        network = network_of(name)
        row: dict[str, object] = {"network": name, "groups": groups}
        for kind in KINDS:
            least = bound(network, kind, groups)
            if least is not None:
                times = ns_per_byte(network, kind, groups) / least
                row[kind] = [float(f"{least:.9g}"), round(times, 4)]
        rows.append(row)
        sizes = f"{len(groups)} × {len(groups[0])}"
        print(f"{name:60} {sizes:8}", *(row.get(kind) for kind in KINDS), flush=True)
    if write:
        lines = ",\n ".join(json.dumps(row, separators=(",", ":")) for row in rows)
        STORED.write_text(f"[\n {lines}\n]\n")


if __name__ == "__main__":
    main("--write" in sys.argv)
