"""Generated networks on a machine: what its links were measured to reach.

H100 reach 0.849 of 450 GB/s over NVLink and 0.936 of 50 GB/s over InfiniBand,
where a step takes 8.27 us and a launch 39.6 us (docs/results/links.md).
"""

from __future__ import annotations

import itertools
import json

import pytest

import nest
from nest.errors import InvalidOptionError
from nest.hardware import machine
from nest.topology.generators import generate
from nest.topology.generators.machine import on_machine
from tests.cli.conftest import TINY

GB = 1e9
PORT = 0.936 * 50 * GB


def levels(text, name="h100"):
    """Return fan-out, bandwidth in bytes/s and latency in ns of each level."""
    return [
        (x.fan_out, pytest.approx(x.bandwidth_bytes_per_s), x.latency_ns)
        for x in on_machine(text, machine(name), None).levels
    ]


def links(text, name, order=None):
    """Return the bandwidths and latencies of a graph, and its launch cost."""
    graph = on_machine(text, machine(name), order)
    found = {
        (round(x["bandwidth"] / GB, 3), x["latency_ns"])
        for _, _, x in graph.edges(data=True)
    }
    return found, graph.graph["launch_ns"]


@pytest.mark.parametrize(
    ("name", "nodes", "network"),
    [
        *itertools.product(
            ("h100", "a100", "h200", "b200", "mi300x", "gaudi2"),
            (1, 2, 3, 16),
            ("dgx:nodes={}", "rail:nodes={}"),
        )
    ],
)
def test_a_network_like_that_of_the_machine_is_the_same(name, nodes, network):
    site = machine(name)
    made = on_machine(network.format(nodes), site, "given")
    assert made == site.cluster(8 * nodes).topology


def test_stated_bandwidths_are_those_of_data_sheets():
    stated = "dgx:nodes=2,nvlink_bytes_per_s=3.6Tb/s,port_bytes_per_s=400Gb/s"
    assert on_machine(stated, machine("h100"), None) == on_machine(
        "dgx:nodes=2", machine("h100"), None
    )
    half = "dgx:nodes=2,port_bytes_per_s=25 GB/s"
    assert levels(half)[1] == (2, PORT / 2, 8270)


def test_leaves_and_spines_are_levels():
    node = (8, 0.849 * 450 * GB, 1400)
    text = "dgx:nodes=16,nodes_per_leaf=4,oversubscription=2"
    assert levels(text) == [node, (4, PORT, 8270), (4, PORT / 2, 8270)]
    assert levels(f"{text},up_latency_ns=500")[2] == (4, PORT / 2, 9270)
    assert levels(f"{text},port_latency_ns=3000")[1] == (4, PORT, 6000)
    assert levels("dgx:nodes=4,ports=shared")[1] == (4, PORT / 8, 8270)
    assert levels("dgx:nodes=4,nodes_per_leaf=1,oversubscription=4")[1:] == [
        (1, PORT, 8270),
        (4, PORT / 4, 8270),
    ]
    assert levels("rail:nodes=4,segment=2,oversubscription=2")[1:] == [
        (2, PORT, 8270),
        (2, PORT / 2, 8270),
    ]
    assert levels("leaf-spine:leaves=4,hosts=8,oversubscription=2") == [
        (1, PORT, 8270),
        (8, PORT, 8270),
        (4, PORT / 2, 8270),
    ]
    assert levels("fat-tree:4") == [(1, PORT, 8270), (2, PORT, 8270), (8, PORT, 8270)]
    assert [x[0] for x in levels("nvl72:racks=2", "gb200")] == [72, 1, 2]


def test_other_networks_and_orders_are_graphs():
    """Groups of eight reach 1 - 0.424/8 of NVLink; a port is half a step."""
    assert links("torus:4x4", "h100") == ({(42.12, 8270)}, 39600)
    assert links("torus:4x4,link_latency_ns=700", "h100")[0] == {(42.12, 700)}
    assert links("dragonfly:p=2,a=4,h=2", "h100") == (
        {(23.4, 4135), (23.4, 600), (23.4, 1200)},
        39600,
    )
    assert links("dgx:nodes=2", "h100", "auto") == (
        {(361.801, 700), (46.8, 4135)},
        39600,
    )
    assert links("dgx1:nodes=1", "v100")[0] == {
        (20.1, 3710),
        (40.2, 3710),
        (12.703, 3710),
        (11.7, 4135),
    }


@pytest.mark.parametrize("text", ["tpu-v4:4x4x4", "torus:4x4", "ring:8"])
def test_links_without_measurements_are_those_of_the_name(text):
    graph = on_machine(text, machine("tpu-v4"), None)
    same = generate(text)
    assert dict(graph.edges) == dict(same.edges)
    assert graph.graph["launch_ns"] == 0


@pytest.mark.parametrize(
    "text", ["fat-tree", "dgx:nodes=2,devices=0", "leaf-spine:2,hosts=0"]
)
def test_bad_input(text):
    with pytest.raises(InvalidOptionError, match=r"; (write|it is) "):
        on_machine(text, machine("h100"), None)


@pytest.mark.parametrize(("name", "nodes"), [("h100", 2), ("a100", 3)])
def test_step_times_are_those_of_the_machine(tmp_path, name, nodes):
    """And a network with less above its leaves is never faster."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(TINY))

    def step_ns(topology=None):
        result = nest.solve(
            model=config,
            cluster=f"{name}x{8 * nodes}",
            topology=topology,
            global_batch=8 * nodes,
            micro_batches=1,
            tp=[1, 2],
        )
        return result.step_time_ns

    own_ns = step_ns()
    assert step_ns(f"dgx:nodes={nodes}") == own_ns
    leaves = f"dgx:nodes={nodes},nodes_per_leaf=1,oversubscription="
    assert own_ns <= step_ns(f"{leaves}1") < step_ns(f"{leaves}8")
