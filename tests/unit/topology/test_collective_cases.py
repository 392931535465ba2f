"""Collectives on small networks are as near to what they take at least as is stored."""

from __future__ import annotations

import json

import pytest

from tests.collectives import KINDS, STORED, bound, cases, network_of, ns_per_byte

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
