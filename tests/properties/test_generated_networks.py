"""A generated network that states less is never faster, for any group."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from nest.hardware import machine
from nest.ir.graph import COLLECTIVES
from nest.topology import HierarchyNetwork
from nest.topology.generators.machine import on_machine
from tests.properties.profiles import examples

#: Nodes, and nodes of a leaf.
SHAPES = ((4, 2), (6, 2), (6, 3), (8, 4), (12, 3), (16, 4))


def times_ns(name, text, devices, size_bytes):
    """Return what collectives and a message of some devices take."""
    network = HierarchyNetwork(on_machine(text, machine(name), None))
    shapes = [network.shape(devices)]
    link = network.link(devices[0], devices[-1])
    return [
        *(network.collective_ns(x, shapes, size_bytes) for x in COLLECTIVES),
        link.alpha_ns + size_bytes / link.beta * 1e9,
    ]


@examples(200)
@given(
    st.sampled_from(("h100", "a100", "b200", "a100-40gb")),
    st.sampled_from(SHAPES),
    st.sampled_from(("dgx", "rail")),
    st.sampled_from((1.0, 1.5, 2.0, 4.0)),
    st.sampled_from((1.0, 2.0, 3.0)),
    st.integers(0, 10**9),
    st.data(),
)
def test_less_is_never_faster(name, shape, kind, less, slower, size, data):
    """Than the machine's own network, and than the same with more.

    Oversubscription and bandwidth of ports; a shared port is less than one
    for each device, and a second rail is twice the bandwidth.
    """
    nodes, per_leaf = shape
    group = data.draw(st.sets(st.integers(0, 8 * nodes - 1), min_size=2, max_size=32))
    port = machine(name).network.bandwidth_bytes_per_s
    unit = "nodes_per_leaf" if kind == "dgx" else "segment"

    def taken(over, bandwidth, more=""):
        text = (
            f"{kind}:nodes={nodes},{unit}={per_leaf},spines=1,"
            f"oversubscription={over},port_bytes_per_s={bandwidth}{more}"
        )
        return times_ns(name, text, sorted(group), size)

    rows = [
        times_ns(name, f"dgx:nodes={nodes}", sorted(group), size),
        taken(1.0, port),
        taken(less, port),
        taken(2 * less, port),
        taken(2 * less, port / slower),
    ]
    if kind == "dgx":
        rows.append(taken(2 * less, port / slower, ",ports=shared"))
    for better, worse in itertools.pairwise(rows):
        assert all(x <= y for x, y in zip(better, worse, strict=True))
    assert all(x <= y for x, y in zip(taken(less, 2 * port), rows[2], strict=True))
