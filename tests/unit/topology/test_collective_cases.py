"""Collectives on small networks are as near to what they take at least as is stored."""

from __future__ import annotations

import json

import pytest

from nest.topology.graph import GraphNetwork
from tests.collectives import KINDS, STORED, bound, cases, network_of, ns_per_byte
from tests.graphs import make_graph

ROWS = json.loads(STORED.read_text("utf-8"))
#: On these the programs are small.
BOUNDED = [
    ("ring:devices=8", "all-to-all"),
    ("all-to-all:devices=6", "all-gather"),
    ("dgx1:nodes=1", "all-to-all"),
]


def test_every_case_is_stored():
    assert [(row["network"], row["groups"]) for row in ROWS] == list(cases())
    assert len(ROWS) >= 60


@pytest.mark.parametrize("index", range(len(ROWS)))
def test_no_price_is_below_a_bound_or_worse_than_known(index):
    """By ns per byte; the latencies of algorithms are in docs/graphs.md."""
    row = ROWS[index]
    network = network_of(row["network"])
    for kind in KINDS:
        least, times = row.get(kind, (None, None))
        if least is not None:
            found = ns_per_byte(network, kind, row["groups"]) / least
            assert found >= 1 - 1e-6
            assert found == pytest.approx(times, abs=1e-4)


def test_most_schedules_are_the_best():
    """On nodes, rails, leaves and spines nearly all are."""
    times = [row[kind][1] for row in ROWS for kind in KINDS if kind in row]
    assert sum(x < 1.001 for x in times) >= 0.7 * len(times)


@pytest.mark.parametrize(("name", "kind"), BOUNDED)
def test_bounds_are_the_least_time_of_flows(name, kind):
    row = next(row for row in ROWS if row["network"] == name)
    found = bound(network_of(name), kind, row["groups"])
    assert found == pytest.approx(row[kind][0], rel=1e-6)


def test_groups_pass_on_step_by_step_each_alone():
    """A group whose ranks are far from each other waits for no group that is far apart.

    Ranks 1 and 2 meet through 0: 50 + 50 inside and 50 + 5 + 1 across, 156. Ranks 4 and
    5 through 3: 10 + 10 inside and 10 + 300 + 1 across, 331, and not 100 + 311.
    """
    ends = zip("012345", "aabccd", (50, 50, 1, 10, 10, 1), strict=True)
    links = [(device, node, latency, 1e9) for device, node, latency in ends]
    links += [("a", "b", 5, 1e9), ("b", "c", 5, 1e9), ("c", "d", 300, 1e9)]
    graph = make_graph(
        "012345", links, units=(dict(zip("012345", "aabccd", strict=True)),)
    )
    offered = GraphNetwork(graph).offered([[0, 1, 2], [3, 4, 5]])
    (line,) = offered["all-to-all"]["pxn"]
    assert line.latency_fs == 331_000_000
