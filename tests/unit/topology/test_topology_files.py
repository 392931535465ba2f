"""Networks from files: every format, worked out by hand.

The files in ``tests/data/topologies`` are written after the formats; none is
a copy of a published one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from itertools import combinations
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import yaml

from nest.errors import InvalidOptionError, InvalidProblemError
from nest.topology.files import (
    FORMATS,
    MEANING,
    FileSupplement,
    read_rankfile,
    read_topology,
    recognise,
    write_hostfile,
    write_node_link,
    write_rankfile,
)
from nest.topology.files.source import read_source

DATA = Path(__file__).parents[2] / "data" / "topologies"
FILES = sorted(DATA.iterdir())

#: Two devices and two ports a node, two tiers above the leaves.
HOSTS: dict[str, Any] = {
    "devices_per_node": 2,
    "node_bandwidth_bytes_per_s": 9e11,
    "node_latency_ns": 100,
    "ports_per_node": 2,
    "port_bandwidth_bytes_per_s": 5e10,
    "port_latency_ns": 600,
    "uplink_bandwidths_bytes_per_s": (1e11, 2e11),
    "uplink_latencies_ns": (700, 800),
}
ONE_DEVICE: dict[str, Any] = {
    "devices_per_node": 1,
    "ports_per_node": 1,
    "port_bandwidth_bytes_per_s": 5e10,
    "port_latency_ns": 600,
}
#: One node, without a network.
ALONE: dict[str, Any] = {
    "num_nodes": 1,
    "port_bandwidth_bytes_per_s": None,
    "port_latency_ns": None,
}
PORT = (5e10, 600)
INSIDE = (9e11, 100)

Links = dict[tuple[str, str], tuple[float, float]]

#: How to recognize and read every file: its format, and its options.
HOW: dict[str, tuple[str, dict[str, Any]]] = {
    name: (form, options)
    for name, (form, options) in yaml.safe_load(
        (DATA.parent / "topologies-options.yaml").read_text()
    ).items()
}


def read(name: str, **options: Any) -> nx.Graph:
    return read_topology(DATA / name, **{**HOW[name][1], **options})


def links(graph: nx.Graph) -> Links:
    return {
        (min(ends), max(ends)): (kept["bandwidth"], kept["latency_ns"])
        for *ends, kept in graph.edges(data=True)
    }


def linked(*pairs: str, by: tuple[float, float]) -> Links:
    """Return links ``a-b`` that are all alike."""
    ends = [pair.split(" - ") for pair in pairs]
    return {(min(pair), max(pair)): by for pair in ends}


def of_kind(graph: nx.Graph, kind: str) -> list[str]:
    return [name for name, own in graph.nodes(data="kind") if own == kind]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_recognised_and_sound(path: Path) -> None:
    name, options = HOW[path.name]
    assert recognise(read_source(path)).name == name
    graph = read_topology(path, **options)
    assert sorted(graph.graph["order"]) == sorted(of_kind(graph, "device"))
    assert {*graph.nodes} == {*of_kind(graph, "device"), *of_kind(graph, "switch")}
    for _, _, kept in graph.edges(data=True):
        assert kept.keys() == {"bandwidth", "latency_ns"}
        assert kept["bandwidth"] > 0
        assert kept["latency_ns"] >= 0
    for unit in graph.graph.get("units", []):
        assert unit.keys() == set(graph.graph["order"])


def test_every_format_has_a_file() -> None:
    assert {name for name, _ in HOW.values()} == FORMATS.keys()
    assert {path.name for path in FILES} == HOW.keys()


def test_every_option_is_asked_for_somewhere() -> None:
    options = {field.name for field in fields(FileSupplement)}
    asked = {option for form in FORMATS.values() for option in form.options}
    assert options == asked == MEANING.keys()


def test_every_format_and_option_is_documented() -> None:
    page = (DATA.parents[2] / "docs" / "topologies.md").read_text()
    for name in [*FORMATS, *MEANING]:
        assert f"`{name}`" in page


def test_content_decides_not_the_suffix(tmp_path: Path) -> None:
    for path in FILES:
        copy = tmp_path / f"{path.stem}.data"
        copy.write_bytes(path.read_bytes())
        assert recognise(read_source(copy)).name == HOW[path.name][0]


class TestAstraSim:
    """GB is 2**30 bytes; the first dimension is fastest."""

    def test_rings_are_a_torus(self) -> None:
        # 2 x 3: rows 0 1, 2 3, 4 5; a ring of two is one link.
        graph = read("astra-rings.yml")
        row = (100 * 2**30, 500)
        column = (50 * 2**30, 1000)
        rows = ["0 - 1", "2 - 3", "4 - 5"]
        columns = ["0 - 2", "2 - 4", "0 - 4", "1 - 3", "3 - 5", "1 - 5"]

        def npus(pairs: list[str]) -> list[str]:
            return [f"npu{a} - npu{b}" for a, _, b in (pair.split() for pair in pairs)]

        assert links(graph) == {
            **linked(*npus(rows), by=row),
            **linked(*npus(columns), by=column),
        }
        assert graph.graph["order"] == [f"npu{i}" for i in range(6)]
        assert graph.graph["coord"]["npu3"] == [1, 1]
        assert graph.graph["coord"]["npu4"] == [0, 2]
        assert graph.graph["wrap"] == [True, True]
        assert all(graph.nodes[f"npu{i}"]["forward"] for i in range(6))

    def test_a_switch_is_two_links_away_and_pairs_are_linked(self) -> None:
        graph = read("astra-mixed.yml")
        pair = (100 * 2**30, 0)
        hub = (25 * 2**30, 700)
        assert links(graph) == {
            **linked("npu0 - npu1", "npu2 - npu3", "npu4 - npu5", by=pair),
            **linked(*(f"npu{i} - dim1/switch0" for i in (0, 2, 4)), by=hub),
            **linked(*(f"npu{i} - dim1/switch1" for i in (1, 3, 5)), by=hub),
        }
        # From 0 to 3 a message has to pass through a device.
        assert graph.nodes["npu0"]["forward"]
        units = graph.graph["units"]
        assert len(units) == 1
        assert units[0]["npu2"] == units[0]["npu3"] != units[0]["npu1"]

    @pytest.mark.parametrize(
        ("word", "count", "num_links", "forward"),
        [
            ("Switch", 4, 4, False),
            ("FullyConnected", 4, 6, False),
            ("Ring", 4, 4, True),
            ("Ring", 2, 1, True),
        ],
    )
    def test_one_dimension(
        self, tmp_path: Path, word: str, count: int, num_links: int, forward: bool
    ) -> None:
        path = tmp_path / "net.yml"
        path.write_text(
            f"topology: [ {word} ]\nnpus_count: [ {count} ]\n"
            "bandwidth: [ 1e0 ]\nlatency: [ 5 ]\n"
        )
        graph = read_topology(path)
        assert set(links(graph).values()) == {(2.0**30, 5.0)}
        assert graph.number_of_edges() == num_links
        assert graph.nodes["npu0"]["forward"] is forward
        assert "units" not in graph.graph


class TestSlurm:
    def test_an_unbalanced_tree(self) -> None:
        # Leaves are tier 0, pod is tier 1; edge is a leaf at the spine.
        graph = read("slurm-tree.conf")
        nodes = {
            "gpu08": "leaf0",
            "gpu09": "leaf0",
            "gpu10": "leaf1",
            "gpu11": "leaf1",
            "c": "edge",
        }
        expected: Links = {}
        for node, leaf in nodes.items():
            for i in range(2):
                device = f"{node}/gpu{i}"
                expected |= linked(f"{device} - {node}/nvlink", by=INSIDE)
                expected |= linked(f"{device} - {leaf}", by=PORT)
        expected |= linked("leaf0 - pod", "leaf1 - pod", by=(1e11, 700))
        expected |= linked("edge - spine", by=(1e11, 700))
        expected |= linked("pod - spine", by=(2e11, 800))
        assert links(graph) == expected
        assert graph.graph["order"][:3] == ["gpu08/gpu0", "gpu08/gpu1", "gpu09/gpu0"]
        units = [unit["gpu09/gpu1"] for unit in graph.graph["units"]]
        assert units == ["gpu09", "leaf0", "pod"]
        assert graph.graph["units"][2]["c/gpu0"] == "edge"

    def test_a_part_of_a_forest(self) -> None:
        graph = read("slurm-no-root.conf")
        assert graph.graph["order"] == ["b1/gpu0", "b1/gpu1", "b2/gpu0", "b2/gpu1"]
        assert "west" not in graph

    def test_blocks_pair_up_and_spares_are_nodes(self) -> None:
        # Three blocks of base 2 (and a spare each); 4 spans two blocks.
        graph = read("slurm-blocks.conf", devices_per_node=1, ports_per_node=1)
        assert len(graph.graph["order"]) == 9
        racks = {f"n0{i} - rack{(i + 2) // 3}": None for i in range(1, 10)}
        assert links(graph) == {
            **linked(*racks, by=PORT),
            **linked(
                "rack1 - blocks1/0",
                "rack2 - blocks1/0",
                "rack3 - blocks1/1",
                by=(1e11, 700),
            ),
            **linked("blocks1/0 - blocks2/0", "blocks1/1 - blocks2/0", by=(2e11, 800)),
        }

    def test_blocks_without_sizes_are_below_one_switch(self, tmp_path: Path) -> None:
        path = tmp_path / "net.conf"
        path.write_text("BlockName=a Nodes=n1\nBlockName=b Nodes=n2,n3\n")
        options = {
            **ONE_DEVICE,
            "uplink_bandwidths_bytes_per_s": (1e11,),
            "uplink_latencies_ns": (700,),
        }
        assert links(read_topology(path, **options)) == {
            **linked("n1 - a", "n2 - b", "n3 - b", by=PORT),
            **linked("a - blocks1/0", "b - blocks1/0", by=(1e11, 700)),
        }

    def test_a_size_beyond_all_blocks_joins_them(self, tmp_path: Path) -> None:
        """Slurm takes it; six nodes with sizes of 8 or 64 have the same tiers."""
        text = (DATA / "slurm-blocks.conf").read_text()
        options = {"devices_per_node": 1, "ports_per_node": 1}
        expected = links(read("slurm-blocks.conf", **options))
        path = tmp_path / "topology.conf"
        for sizes in ("2,4,8", "2,4,8,64"):
            path.write_text(text.replace("=2,4", f"={sizes}"))
            options = {**HOW["slurm-blocks.conf"][1], **options}
            assert links(read_topology(path, **options)) == expected

    def test_sizes_that_reach_all_blocks_need_no_more(self, tmp_path: Path) -> None:
        # 1, 2 and 8 nodes: pairs of blocks, and four pairs.
        path = tmp_path / "net.conf"
        path.write_text(
            "".join(f"BlockName=b{i} Nodes=n{i}\n" for i in range(8))
            + "BlockSizes=1,2,8\n"
        )
        options = {**HOSTS, **ONE_DEVICE}
        del options["node_bandwidth_bytes_per_s"], options["node_latency_ns"]
        assert links(read_topology(path, **options)) == {
            **linked(*(f"n{i} - b{i}" for i in range(8)), by=PORT),
            **linked(*(f"b{i} - blocks1/{i // 2}" for i in range(8)), by=(1e11, 700)),
            **linked(*(f"blocks1/{i} - blocks2/0" for i in range(4)), by=(2e11, 800)),
        }

    def test_a_ring_in_the_order_of_its_list(self) -> None:
        graph = read("slurm-rings.conf")
        assert links(graph) == linked("a3 - a1", "a1 - a2", "a2 - a3", by=PORT)
        assert graph.graph["order"] == ["a3", "a1", "a2"]
        assert graph.graph["coord"] == {"a3": [0], "a1": [1], "a2": [2]}
        assert graph.nodes["a1"]["forward"]

    def test_a_ring_of_sixteen(self, tmp_path: Path) -> None:
        path = tmp_path / "net.conf"
        path.write_text("RingName=r Nodes=n[1-16]\n")
        options = {**ONE_DEVICE, "ports_per_node": None}
        assert read_topology(path, **options).number_of_edges() == 16

    def test_the_default_topology(self) -> None:
        graph = read("slurm.yaml")
        assert links(graph) == {
            **linked("n01 - s1", "n02 - s1", "n03 - s2", "n04 - s2", by=PORT),
            **linked("s1 - root", "s2 - root", by=(1e11, 700)),
        }
        assert graph.graph["name"] == "t1"

    def test_blocks_in_yaml(self) -> None:
        graph = read("slurm.yaml", topology="t2")
        assert links(graph) == {
            **linked("n01 - b1", "n02 - b1", "n03 - b2", "n04 - b2", by=PORT),
            **linked("b1 - blocks1/0", "b2 - blocks1/0", by=(1e11, 700)),
        }

    def test_a_torus(self) -> None:
        # 3 x 2 x 1, x fastest: rows n01-n03 and n04-n06 are rings; an axis of
        # two has two cables.
        graph = read("slurm.yaml", topology="t3", ports_per_node=None)
        assert links(graph) == {
            **linked("n01 - n02", "n02 - n03", "n01 - n03", by=PORT),
            **linked("n04 - n05", "n05 - n06", "n04 - n06", by=PORT),
            **linked("n01 - n04", "n02 - n05", "n03 - n06", by=(1e11, 600)),
        }
        assert graph.graph["coord"]["n06"] == [2, 1, 0]
        assert graph.graph["wrap"] == [True] * 3

    def test_regions_are_boxes_of_a_torus(self, tmp_path: Path) -> None:
        # Two planes of 2 x 2: a1 to a4 below b1 to b4, x fastest in each of them; the
        # first region is listed last, and has no anchor.
        regions = [
            {"anchor": {"x": 0, "y": 0, "z": 1}, "nodes": "b[1-4]"},
            {"nodes": "a[1-4]"},
        ]
        dims = {"x": 2, "y": 2, "z": 1}
        torus = {
            "name": "pod",
            "dims": {**dims, "z": 2},
            "regions": [{**region, "dims": dims} for region in regions],
            "placements": [{"dims": dims}],
        }
        path = tmp_path / "topology.yaml"
        options = {**ONE_DEVICE, "ports_per_node": None}

        def read_torus() -> nx.Graph:
            text = json.dumps({"torus3d": {"toruses": [torus]}})
            path.write_text(f"- topology: t\n  {text[1:-1]}\n")
            return read_topology(path, **options)

        graph = read_torus()
        torus["nodes"] = "a[1-4],b[1-4]"
        del torus["regions"]
        listed = read_torus()
        assert links(graph) == links(listed)
        assert graph.graph == listed.graph
        assert graph.graph["coord"]["b3"] == [0, 1, 1]

    def test_hosts_of_several_devices_on_a_torus(self) -> None:
        graph = read(
            "slurm.yaml",
            topology="t4",
            ports_per_node=None,
            devices_per_node=2,
            node_bandwidth_bytes_per_s=9e11,
            node_latency_ns=100,
        )
        hubs = [f"n0{i}/switch" for i in (1, 2, 3, 4)]
        assert links(graph) == {
            **linked(
                *(f"{a} - {b}" for a, b in zip(hubs, hubs[1:] + hubs[:1], strict=True)),
                by=PORT,
            ),
            **linked(
                *(f"n0{i}/gpu{j} - n0{i}/switch" for i in (1, 2, 3, 4) for j in (0, 1)),
                by=INSIDE,
            ),
        }
        assert "coord" not in graph.graph

    def test_a_flat_cluster_is_one_switch(self) -> None:
        graph = read(
            "slurm.yaml",
            topology="t5",
            num_nodes=3,
            uplink_bandwidths_bytes_per_s=None,
            uplink_latencies_ns=None,
        )
        assert links(graph) == linked(*(f"node{i} - switch" for i in range(3)), by=PORT)

    def test_yaml_beside_a_conf_is_what_slurm_reads(self, tmp_path: Path) -> None:
        conf = tmp_path / "topology.conf"
        conf.write_bytes((DATA / "slurm-tree.conf").read_bytes())
        assert read_topology(conf, **HOSTS)
        (tmp_path / "topology.yaml").write_text("- topology: t\n")
        assert read_topology(conf, "slurm-conf", **HOSTS)


class TestUnits:
    """The finest partition is that of hosts, whatever their names are."""

    def test_hosts_of_one_device_have_its_name(self, tmp_path: Path) -> None:
        nodes = [
            {"id": name, "network_layers": [leaf, "s"], "labels": {KEY: clique}}
            for name, leaf, clique in (("a", "l", "x"), ("b", "m", "y"))
        ]
        path = tmp_path / "graph.json"
        path.write_text(dumps({"instances": nodes}))
        options = {**HOSTS, **ONE_DEVICE}
        for option in ("uplink_bandwidths_bytes_per_s", "uplink_latencies_ns"):
            options[option] = options[option][:1]
        graph = read_topology(path, **options)
        assert "units" not in graph.graph
        write_hostfile(tmp_path / "hosts", graph)
        assert (tmp_path / "hosts").read_text() == "a\nb\n"

    def test_servers_of_one_device_have_another_name(self, tmp_path: Path) -> None:
        path = tmp_path / "topo.txt"
        path.write_text("2 1 0 0 1 A100\n0 1 8Gbps 1us 0\n")
        write_hostfile(tmp_path / "hosts", read_topology(path))
        assert (tmp_path / "hosts").read_text() == "server0\nserver1\n"


KEY = "accelerator.topograph.run/domain"


class TestPorts:
    """Ports per node: one each, shared, or several per device."""

    def test_a_shared_port_is_no_short_cut(self) -> None:
        graph = read("slurm-tree.conf", ports_per_node=1)
        assert links(graph)["gpu08/nic0", "leaf0"] == (5e10, 0)
        assert links(graph)["gpu08/gpu0", "gpu08/nic0"] == PORT
        # The way over the port is as long as that over the leaf.
        path = nx.shortest_path(graph, "gpu08/gpu0", "gpu08/gpu1", weight="latency_ns")
        assert path[1] == "gpu08/nvlink"

    def test_neighbours_share_a_port(self) -> None:
        graph = read("slurm-tree.conf", devices_per_node=4)
        shared = {i: f"c/nic{i // 2}" for i in range(4)}
        for i, nic in shared.items():
            assert links(graph)[f"c/gpu{i}", nic] == PORT
            assert graph.degree[nic] == 3

    def test_several_ports_per_device_add_up(self) -> None:
        graph = read("slurm-tree.conf", ports_per_node=4)
        assert links(graph)["gpu08/gpu0", "leaf0"] == (1e11, 600)


class TestTopograph:
    def test_a_domain_has_one_switch(self) -> None:
        graph = read("topograph-graph.json")
        domain = {"i-1": "nvl-1", "i-2": "nvl-1", "i-3": "nvl-2"}
        leaf = {"i-1": "leaf-a", "i-2": "leaf-a", "i-3": "leaf-b"}
        devices = [f"{name}/gpu{i}" for name in leaf for i in range(2)]
        assert graph.graph["order"] == devices
        assert links(graph) == {
            **linked(
                *(f"{one} - {domain[one[:3]]}/nvlink" for one in devices), by=INSIDE
            ),
            **linked(*(f"{one} - {leaf[one[:3]]}" for one in devices), by=PORT),
            **linked("leaf-a - spine", "leaf-b - spine", by=(1e11, 700)),
        }
        units = graph.graph["units"]
        assert [unit["i-2/gpu1"] for unit in units] == ["i-2", "nvl-1"]

    def test_a_model(self) -> None:
        graph = read("topograph-model.yaml")
        assert links(graph)["core", "spine"] == (2e11, 800)
        assert links(graph)["leaf2", "spine"] == (1e11, 700)
        assert links(graph)["n3/gpu0", "nvl2/nvlink"] == INSIDE
        assert [unit["n2/gpu0"] for unit in graph.graph["units"]] == ["n2", "nvl1"]

    def test_an_older_model(self) -> None:
        # 0103 is a name, not a number in base 8.
        graph = read("topograph-model-old.yaml")
        assert [*dict.fromkeys(graph.graph["units"][0].values())] == [
            "101",
            "102",
            "0103",
        ]
        assert graph.graph["units"][1]["0103/gpu0"] == "CB3"
        assert links(graph)["102/gpu1", "CB2/nvlink"] == INSIDE

    def test_the_capacity_block_may_stand_at_either_side(self, tmp_path: Path) -> None:
        path = tmp_path / "model.yaml"
        path.write_text(
            "switches: {s: {nodes: [a, b]}}\n"
            "nodes: {a: {type: H100}, b: {capacity_block: cb}, z: {}}\n"
            "capacity_blocks: {cb: {nodes: [a]}}\n"
        )
        graph = read_topology(
            path, **ONE_DEVICE, node_bandwidth_bytes_per_s=9e11, node_latency_ns=100
        )
        assert links(graph) == {
            **linked("a - s", "b - s", by=PORT),
            **linked("a - cb/nvlink", "b - cb/nvlink", by=INSIDE),
        }

    def test_an_instance_may_have_only_layers(self, tmp_path: Path) -> None:
        path = tmp_path / "graph.json"
        path.write_text(
            '{"instances": [{"id": "a", "network_layers": ["s"]},'
            ' {"id": "b", "network_layers": ["s"]}]}'
        )
        assert links(read_topology(path, **ONE_DEVICE)) == linked(
            "a - s", "b - s", by=PORT
        )


class TestKubernetes:
    def test_layer_3_of_aws_is_next_to_the_node(self) -> None:
        graph = read("kubernetes-aws.json")
        assert links(graph) == {
            **linked(
                "p5-a/gpu0 - p5-a/nvlink",
                "p5-a/gpu1 - p5-a/nvlink",
                "p5-b/gpu0 - p5-b/nvlink",
                "p5-b/gpu1 - p5-b/nvlink",
                by=INSIDE,
            ),
            **linked("p5-a/gpu0 - nn-1", "p5-a/gpu1 - nn-1", by=PORT),
            **linked("p5-b/gpu0 - nn-2", "p5-b/gpu1 - nn-2", by=PORT),
            **linked("nn-1 - nn-mid", "nn-2 - nn-mid", by=(1e11, 700)),
            **linked("nn-mid - nn-top", by=(2e11, 800)),
        }

    @pytest.mark.parametrize(
        "keys",
        [
            ["fabric.topograph.run/tier-0", "fabric.topograph.run/tier-1"],
            ["network.topology.nvidia.com/leaf", "network.topology.nvidia.com/spine"],
            [
                "topology.k8s.aws/network-node-layer-3",
                "topology.k8s.aws/network-node-layer-2",
            ],
            [
                "cloud.google.com/gce-topology-subblock",
                "cloud.google.com/gce-topology-block",
            ],
            [
                "oci.oraclecloud.com/host.rack_id",
                "oci.oraclecloud.com/host.network_block_id",
            ],
        ],
    )
    @pytest.mark.parametrize("listed", [True, False])
    def test_labels_of_every_origin(
        self, tmp_path: Path, keys: list[str], listed: bool
    ) -> None:
        nodes = [
            {
                "metadata": {
                    "name": name,
                    "labels": {
                        keys[0]: leaf,
                        keys[1]: "top",
                        "nvidia.com/gpu.clique": f"u.{leaf}",
                    },
                }
            }
            for name, leaf in (("a", "l1"), ("b", "l1"), ("c", "l2"))
        ]
        path = tmp_path / "nodes.json"
        path.write_text(dumps(nodes if listed else {"items": nodes}))
        graph = read_topology(
            path,
            **{
                **ONE_DEVICE,
                "node_bandwidth_bytes_per_s": 9e11,
                "node_latency_ns": 100,
                "uplink_bandwidths_bytes_per_s": (1e11,),
                "uplink_latencies_ns": (700,),
            },
        )
        assert links(graph) == {
            **linked("a - l1", "b - l1", "c - l2", by=PORT),
            **linked("a - u.l1/nvlink", "b - u.l1/nvlink", by=INSIDE),
            **linked("c - u.l2/nvlink", by=INSIDE),
            **linked("l1 - top", "l2 - top", by=(1e11, 700)),
        }


def dumps(value: object) -> str:
    return json.dumps(value)


class TestNvidiaSmi:
    def test_a_switch_of_k_links_is_no_mesh_of_k_links(self) -> None:
        # NV18 to both others: 36 links, more than a device has, so a switch;
        # 18 links of 25 GB/s are 450 GB/s.
        graph = read("nvidia-smi-nvswitch.txt")
        expected: Links = {}
        for node in ("node0", "node1"):
            for i in range(3):
                device, nic = f"{node}/gpu{i}", f"{node}/nic{i}"
                expected |= linked(f"{device} - {node}/nvswitch", by=(4.5e11, 100))
                expected |= linked(f"{device} - {nic}", by=PORT)
                expected |= linked(f"{nic} - network", by=(5e10, 0))
        assert links(graph) == expected

    def test_the_mesh_of_a_dgx_1(self) -> None:
        # Rows add up to 6 links: a mesh.
        graph = read("nvidia-smi-mesh.txt", **ALONE)
        nvlinks = {1: "01 02 13 26 37 45 46 57", 2: "03 04 12 15 23 47 56 67"}
        expected: Links = {}
        for count, pairs in nvlinks.items():
            for a, b in pairs.split():
                expected |= linked(
                    f"node0/gpu{a} - node0/gpu{b}", by=(count * 25e9, 100)
                )
        pcie = {
            "gpu0": "pcie0",
            "gpu1": "pcie0",
            "gpu2": "cpu0",
            "gpu3": "cpu0",
            "pcie0": "cpu0",
            "gpu4": "pcie3",
            "gpu5": "pcie3",
            "gpu6": "cpu1",
            "gpu7": "cpu1",
            "pcie3": "cpu1",
        }
        expected |= linked(
            *(f"node0/{one} - node0/{other}" for one, other in pcie.items()),
            by=(1e10, 300),
        )
        expected |= linked("node0/cpu0 - node0/cpu1", by=(2e10, 300))
        assert links(graph) == expected
        rows = [
            sum(
                kept["bandwidth"]
                for _, other, kept in graph.edges(one, data=True)
                if "gpu" in other
            )
            for one in graph.graph["order"]
        ]
        assert set(rows) == {6 * 25e9}

    def test_devices_that_share_a_card(self) -> None:
        graph = read("nvidia-smi-mesh.txt")
        for i in range(8):
            card = f"node1/mlx5_{i // 4}"
            assert links(graph)[f"node1/gpu{i}", card] == PORT
        assert links(graph)["network", "node1/mlx5_1"] == (5e10, 0)

    def test_pcie_alone(self) -> None:
        graph = read("nvidia-smi-pcie.txt")
        pcie = {
            "gpu0": "pcie0",
            "gpu1": "pcie0",
            "pcie0": "cpu0",
            "gpu2": "cpu0",
            "gpu3": "cpu1",
        }
        assert links(graph) == {
            **linked(
                *(f"node0/{a} - node0/{b}" for a, b in pcie.items()), by=(1e10, 300)
            ),
            **linked("node0/cpu0 - node0/cpu1", by=(2e10, 300)),
        }

    @pytest.mark.parametrize(
        ("count", "links_each", "speed"),
        [
            # Four devices, NV4: a mesh of a device with 12 links.
            (4, 12, 4 * 25e9),
            # The same behind a switch, if a device has but 6.
            (4, 6, None),
        ],
    )
    def test_what_a_device_has_tells_mesh_from_switch(
        self, tmp_path: Path, count: int, links_each: int, speed: float | None
    ) -> None:
        path = tmp_path / "topo.txt"
        path.write_text(uniform(count, "NV4"))
        graph = read_topology(
            path,
            num_nodes=1,
            nvlink_bandwidth_bytes_per_s=25e9,
            node_latency_ns=100,
            nvlinks_per_device=links_each,
        )
        names = [f"node0/gpu{i}" for i in range(count)]
        if speed is None:
            assert links(graph) == linked(
                *(f"{one} - node0/nvswitch" for one in names), by=(1e11, 100)
            )
        else:
            assert links(graph) == linked(
                *(f"{a} - {b}" for a, b in combinations(names, 2)), by=(speed, 100)
            )

    def test_affinity_tells_processors_where_nvlink_hides_them(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "topo.txt"
        path.write_text(
            "      GPU0 GPU1 GPU2 GPU3 CPU Affinity\n"
            "GPU0  X    NV2  NV2  SYS  0-9\n"
            "GPU1  NV2  X    SYS  NV2  0-9\n"
            "GPU2  NV2  SYS  X    NV2  10-19\n"
            "GPU3  SYS  NV2  NV2  X    10-19\n"
        )
        graph = read_topology(path, **{**HOW["nvidia-smi-mesh.txt"][1], **ALONE})
        pairs = ("0 - node0/gpu1", "0 - node0/gpu2", "1 - node0/gpu3", "2 - node0/gpu3")
        assert links(graph) == {
            **linked(*("node0/gpu" + pair for pair in pairs), by=(5e10, 100)),
            **linked(
                "node0/gpu0 - node0/cpu0",
                "node0/gpu1 - node0/cpu0",
                "node0/gpu2 - node0/cpu1",
                "node0/gpu3 - node0/cpu1",
                by=(1e10, 300),
            ),
            **linked("node0/cpu0 - node0/cpu1", by=(2e10, 300)),
        }

    def test_without_cards_ports_are_asked_for(self, tmp_path: Path) -> None:
        path = tmp_path / "topo.txt"
        path.write_text(uniform(2, "NV12"))
        graph = read_topology(
            path,
            num_nodes=2,
            nvlink_bandwidth_bytes_per_s=25e9,
            node_latency_ns=100,
            ports_per_node=2,
            port_bandwidth_bytes_per_s=5e10,
            port_latency_ns=600,
        )
        for node in ("node0", "node1"):
            for i in range(2):
                assert links(graph)["network", f"{node}/gpu{i}"] == PORT
        assert links(graph)["node0/gpu0", "node0/gpu1"] == (3e11, 100)

    def test_one_processor_has_no_other_to_be_linked_to(self, tmp_path: Path) -> None:
        path = tmp_path / "topo.txt"
        path.write_text(uniform(2, "PHB"))
        graph = read_topology(
            path, num_nodes=1, pcie_bandwidth_bytes_per_s=1e10, pcie_latency_ns=300
        )
        assert links(graph) == linked(
            "node0/gpu0 - node0/cpu0", "node0/gpu1 - node0/cpu0", by=(1e10, 300)
        )

    def test_one_device(self, tmp_path: Path) -> None:
        path = tmp_path / "topo.txt"
        path.write_text("\tGPU0\tCPU Affinity\nGPU0\t X \t0-31\n")
        assert read_topology(path, num_nodes=1).graph["order"] == ["node0/gpu0"]


def uniform(count: int, code: str) -> str:
    """Return a matrix with one code between all devices."""
    names = [f"GPU{i}" for i in range(count)]
    rows = [
        " ".join([one, *("X" if one == other else code for other in names)])
        for one in names
    ]
    return "\n".join([" ".join(["", *names]), *rows, ""])


class TestNccl:
    def test_a_dump(self) -> None:
        # 32 GT/s x 16: 16 * 240 / 80 = 48 GB/s; width 0 means 16; 16 GT/s x 8:
        # 12 GB/s. 18 NVLinks of an H100: 18 * 20.6 = 370.8 GB/s.
        graph = read("nccl-dump.xml")
        expected: Links = {}
        for node in ("node0", "node1"):
            expected |= linked(
                f"{node}/cpu0 - {node}/0000:10:00.0",
                f"{node}/gpu1 - {node}/0000:10:00.0",
                f"{node}/gpu0 - {node}/cpu1",
                by=(48e9, 300),
            )
            expected |= linked(
                f"{node}/0000:10:00.0 - {node}/0000:12:00.0", by=(12e9, 300)
            )
            expected |= linked(f"{node}/cpu0 - {node}/cpu1", by=(2e10, 300))
            expected |= linked(f"{node}/0000:12:00.0 - network", by=(5e10, 600))
            for i in range(2):
                expected |= linked(
                    f"{node}/gpu{i} - {node}/nvswitch", by=(pytest.approx(370.8e9), 100)
                )
        assert links(graph) == expected
        assert graph.graph["order"] == [
            f"{node}/gpu{i}" for node in ("node0", "node1") for i in range(2)
        ]

    def test_a_file_that_leaves_out_nvlinks_and_nets(self) -> None:
        graph = read("nccl-input.xml")
        expected: Links = {}
        for node in ("node0", "node1"):
            expected |= linked(
                f"{node}/cpu0 - {node}/ffff:ff:01.0",
                f"{node}/cpu0 - {node}/ffff:ff:02.0",
                f"{node}/gpu0 - {node}/ffff:ff:01.0",
                f"{node}/gpu1 - {node}/ffff:ff:02.0",
                f"{node}/0101:00:00.0 - {node}/ffff:ff:01.0",
                by=(24e9, 300),
            )
            expected |= linked(
                f"{node}/gpu0 - {node}/nvswitch",
                f"{node}/gpu1 - {node}/nvswitch",
                by=(3e11, 100),
            )
            expected |= linked(f"{node}/0101:00:00.0 - network", by=PORT)
        assert links(graph) == expected

    def test_a_mesh(self) -> None:
        # Two links of a V100: 2 * 20 GB/s. One PCIe speed is not known.
        graph = read("nccl-mesh.xml")
        assert links(graph) == {
            **linked("node0/gpu0 - node0/gpu1", by=(40e9, 100)),
            **linked("node0/gpu0 - node0/cpu0", by=(10e9, 300)),
            **linked("node0/gpu1 - node0/cpu0", by=(12e9, 300)),
        }

    def test_elements_of_equal_nvlinks_add_up(self, tmp_path: Path) -> None:
        """Two of one link each are two links of 20 GB/s."""
        text = (DATA / "nccl-mesh.xml").read_text()
        path = tmp_path / "topo.xml"
        one = r'\1count="1"\2'
        path.write_text(re.sub(r'(<nvlink [^>]*)count="2"([^>]*/>)', one + one, text))
        graph = read_topology(path, **HOW["nccl-mesh.xml"][1])
        assert links(graph)["node0/gpu0", "node0/gpu1"] == (40e9, 100)

    @pytest.mark.parametrize(
        ("capability", "gb_per_s"),
        [
            (60, 18),
            (70, 20),
            (80, 20),
            (86, 12),
            (89, 20),
            (90, 20.6),
            (100, 40.1),
            (120, 40.1),
        ],
    )
    def test_speed_of_an_nvlink(
        self, tmp_path: Path, capability: int, gb_per_s: float
    ) -> None:
        text = (DATA / "nccl-mesh.xml").read_text()
        path = tmp_path / "topo.xml"
        path.write_text(text.replace('sm="70"', f'sm="{capability}"'))
        graph = read_topology(path, **HOW["nccl-mesh.xml"][1])
        speed, _ = links(graph)["node0/gpu0", "node0/gpu1"]
        assert speed == pytest.approx(2 * gb_per_s * 1e9)

    def test_a_card_of_unknown_speed_is_asked_for(self, tmp_path: Path) -> None:
        text = (DATA / "nccl-dump.xml").read_text()
        path = tmp_path / "topo.xml"
        path.write_text(text.replace('speed="400000"', 'speed="0"'))
        options = HOW["nccl-dump.xml"][1]
        with pytest.raises(
            InvalidOptionError, match=r"give port_bandwidth_bytes_per_s$"
        ):
            read_topology(path, **options)
        graph = read_topology(path, **options, port_bandwidth_bytes_per_s=25e9)
        assert links(graph)["network", "node1/0000:12:00.0"] == (25e9, 600)

    def test_without_cards_ports_are_asked_for(self) -> None:
        graph = read(
            "nccl-mesh.xml",
            num_nodes=2,
            ports_per_node=1,
            port_bandwidth_bytes_per_s=25e9,
            port_latency_ns=600,
        )
        assert links(graph)["network", "node1/nic0"] == (25e9, 0)
        assert links(graph)["node1/gpu1", "node1/nic0"] == (25e9, 600)

    def test_devices_without_nvlinks_have_pcie(self, tmp_path: Path) -> None:
        text = (DATA / "nccl-mesh.xml").read_text()
        path = tmp_path / "topo.xml"
        path.write_text(re.sub("<nvlink[^>]*/>", "", text))
        options = {**HOW["nccl-mesh.xml"][1], "node_latency_ns": None}
        assert links(read_topology(path, **options)) == {
            **linked("node0/gpu0 - node0/cpu0", by=(10e9, 300)),
            **linked("node0/gpu1 - node0/cpu0", by=(12e9, 300)),
        }

    def test_a_chip_is_linked_to_its_processor(self, tmp_path: Path) -> None:
        # 8 x 43.125 GB/s, instead of the PCIe link beside it; the card is on PCIe.
        path = tmp_path / "topo.xml"
        path.write_text(
            """<system version="1"><cpu numaid="-1" arch="arm64">
            <pci busid="0009:01:00.0" class="0x028000" link_speed="5.0 GT/s PCIe"
              link_width="1"><nic><net name="a" speed="10000"/></nic></pci>
            <pci busid="000f:01:00.0" class="0x030000" link_speed="2.5 GT/s PCIe"
              link_width="16"><gpu dev="0" sm="121">
              <c2c bw="43125" count="8"/></gpu></pci></cpu></system>"""
        )
        options = {**HOW["nccl-mesh.xml"][1], **dict.fromkeys(ALONE), "num_nodes": 2}
        options |= {"port_latency_ns": 600}
        graph = read_topology(path, **options)
        for node in ("node0", "node1"):
            assert links(graph)[f"{node}/cpu-1", f"{node}/gpu0"] == (345e9, 100)
            card = f"{node}/0009:01:00.0"
            assert links(graph)[card, f"{node}/cpu-1"] == (375e6, 300)

    @pytest.mark.parametrize(
        ("link", "gb_per_s"),
        [
            ('<c2c bw="50000" count="2"/>', 100),
            ('<nvlink target="0000:09:00.0" count="3" tclass="0x068001"/>', 60),
        ],
    )
    def test_a_chip_below_a_pcie_switch(
        self, tmp_path: Path, link: str, gb_per_s: float
    ) -> None:
        """The way over the switch stays; class 0x068001 is the processor."""
        path = tmp_path / "topo.xml"
        text = (DATA / "nccl-dump.xml").read_text()
        path.write_text(
            re.sub(r'(<gpu dev="1")( sm=")90(.*)', rf"\1\g<2>80\3{link}", text)
        )
        found = links(read_topology(path, **HOW["nccl-dump.xml"][1]))
        assert found["node0/cpu0", "node0/gpu1"] == (gb_per_s * 1e9, 100)
        assert found["node0/0000:10:00.0", "node0/gpu1"] == (48e9, 300)

    def test_bridges_with_a_link_are_one_switch(self, tmp_path: Path) -> None:
        path = tmp_path / "topo.xml"
        text = (DATA / "nccl-input.xml").read_text()
        bridge = r'(busid="ffff:ff:0{}.0" [^>]*>)'
        for one, other in ((1, 2), (2, 1)):
            link = rf'\1<pcilink target="FFFF:ff:0{other}.0"/>'
            text = re.sub(bridge.format(one), link, text)
        path.write_text(text)
        found = links(read_topology(path, **HOW["nccl-input.xml"][1]))
        assert found["node1/ffff:ff:01.0", "node1/ffff:ff:02.0"] == (5e12, 300)

    def test_a_card_without_a_pcie_device(self, tmp_path: Path) -> None:
        """NCCL joins it to the processor at its speed inside a card."""
        text = (DATA / "nccl-dump.xml").read_text()
        card = '<nic><net name="eth0" dev="1" speed="400000" port="1"/></nic>'
        path = tmp_path / "topo.xml"
        path.write_text(text.replace("  </cpu>\n</system>", f"{card}</cpu></system>"))
        found = links(read_topology(path, **HOW["nccl-dump.xml"][1]))
        assert found["node0/cpu1", "node0/cpu1-nic1"] == (5e12, 300)
        assert found["network", "node0/cpu1-nic1"][0] == 50e9

    def test_ports_of_a_card_add_up(self, tmp_path: Path) -> None:
        text = (DATA / "nccl-dump.xml").read_text()
        path = tmp_path / "topo.xml"
        path.write_text(
            text.replace("<nic>", '<nic><net name="mlx5_9" dev="9" speed="100000"/>')
        )
        graph = read_topology(path, **HOW["nccl-dump.xml"][1])
        speed, _ = links(graph)["network", "node0/0000:12:00.0"]
        assert speed == 500e9 / 8


class TestSimAi:
    def test_rails(self) -> None:
        # 2880 Gb/s are 360 GB/s; 0.000025 ms are 25 ns.
        graph = read("simai.txt")
        assert links(graph) == {
            **linked("0 - 4", "1 - 4", "2 - 5", "3 - 5", by=(360e9, approx(25))),
            **linked(
                "0 - 6",
                "1 - 7",
                "2 - 6",
                "3 - 7",
                "6 - 8",
                "7 - 8",
                by=(50e9, approx(500)),
            ),
        }
        assert graph.graph["order"] == ["0", "1", "2", "3"]
        assert graph.graph["units"][0]["2"] == graph.graph["units"][0]["3"]

    def test_parallel_links_add_up(self, tmp_path: Path) -> None:
        path = tmp_path / "topo.txt"
        path.write_text(
            "3 2 0 1 3 A100\n2\n0 2 8Mbps 1us 0\n2 0 8Mbps 2us 0\n1 2 8000Kbps 3ns 0\n"
        )
        assert links(read_topology(path)) == {
            ("0", "2"): (2e6, 2000),
            ("1", "2"): (1e6, 3),
        }

    def test_devices_alone(self, tmp_path: Path) -> None:
        path = tmp_path / "topo.txt"
        path.write_text("2 2 0 0 1 A100\n0 1 8Gbps 1us 0\n")
        assert links(read_topology(path)) == {("0", "1"): (1e9, 1000)}


def approx(value: float) -> Any:
    return pytest.approx(value)


class TestGraphs:
    @pytest.mark.parametrize("name", ["node-link.json", "graph.graphml"])
    def test_parallel_links_add_up_and_ids_are_text(self, name: str) -> None:
        graph = read(name)
        assert type(graph) is nx.Graph
        assert links(graph) == {("1", "s"): (3e9, 7), ("2", "s"): (3e9, 0)}
        assert graph.graph["order"] == ["2", "1"]

    def test_attributes(self) -> None:
        graph = read("node-link.json")
        assert graph.graph["name"] == "pair"
        assert graph.nodes["s"] == {"kind": "switch", "forward": True}
        assert graph.graph["units"] == [{"2": "h", "1": "h"}]
        assert read("graph.graphml").nodes["1"] == {"kind": "device", "forward": True}

    @pytest.mark.parametrize("back", [1e9, 2e9])
    def test_directions_that_differ(self, tmp_path: Path, back: float) -> None:
        record = {
            "directed": True,
            "nodes": [{"id": i, "kind": "device"} for i in "ab"],
            "edges": [
                {"source": "a", "target": "b", "bandwidth": 1e9, "latency_ns": 1},
                {"source": "b", "target": "a", "bandwidth": back, "latency_ns": 1},
            ],
        }
        path = tmp_path / "graph.json"
        path.write_text(dumps(record))
        graph = read_topology(path)
        assert type(graph) is (nx.Graph if back == 1e9 else nx.DiGraph)
        assert graph.edges["b", "a"]["bandwidth"] == back

    @pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
    def test_node_link_says_all(self, tmp_path: Path, path: Path) -> None:
        graph = read(path.name)
        write_node_link(tmp_path / "graph.json", graph)
        assert same(read_topology(tmp_path / "graph.json"), graph)

    @pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
    def test_graphml_says_all(self, tmp_path: Path, path: Path) -> None:
        graph = read(path.name)
        plain = graph.copy()
        for key in ("order", "units", "coord", "wrap"):
            if key in plain.graph:
                plain.graph[key] = dumps(plain.graph[key])
        nx.write_graphml(plain, tmp_path / "graph.graphml")
        assert same(read_topology(tmp_path / "graph.graphml"), graph)

    def test_a_directed_graph_goes_round(self, tmp_path: Path) -> None:
        graph = nx.DiGraph(order=["b", "a"])
        graph.add_nodes_from("ab", kind="device")
        graph.add_edge("a", "b", bandwidth=1.0, latency_ns=2.0)
        graph.add_edge("b", "a", bandwidth=3.0, latency_ns=2.0)
        write_node_link(tmp_path / "graph.json", graph)
        assert same(read_topology(tmp_path / "graph.json"), graph)


def same(one: nx.Graph, other: nx.Graph) -> bool:
    return (
        type(one) is type(other)
        and dict(one.nodes) == dict(other.nodes)
        and one.graph == other.graph
        and _arcs(one) == _arcs(other)
    )


def _arcs(graph: nx.Graph) -> dict[str, Mapping[str, Any]]:
    return {node: dict(near) for node, near in graph.adjacency()}


class TestRanks:
    ORDER = ("n02/gpu1", "n01/gpu0", "n02/gpu0", "n01/gpu1")

    @pytest.fixture
    def graph(self) -> nx.Graph:
        graph = nx.Graph(order=["n01/gpu0", "n01/gpu1", "n02/gpu0", "n02/gpu1"])
        graph.add_nodes_from(graph.graph["order"], kind="device")
        graph.add_node("s", kind="switch")
        graph.graph["units"] = [{device: device[:3] for device in graph.graph["order"]}]
        return graph

    def test_a_host_per_rank(self, tmp_path: Path, graph: nx.Graph) -> None:
        path = tmp_path / "hosts"
        write_hostfile(path, graph)
        assert path.read_text() == "n01\nn01\nn02\nn02\n"
        write_hostfile(path, graph, self.ORDER)
        assert path.read_text() == "n02\nn01\nn02\nn01\n"

    @pytest.mark.parametrize(
        "host", ["-oProxyCommand=x", "a b", "a;b", "$(a)", "`a`", "#a", "a\nb", "'a'"]
    )
    @pytest.mark.parametrize("write", [write_hostfile, write_rankfile])
    def test_a_host_is_a_word_that_is_no_option(
        self, tmp_path: Path, graph: nx.Graph, host: str, write: Any
    ) -> None:
        """Shells read these files, and hand hosts to ``ssh``."""
        graph.graph["units"][0]["n01/gpu0"] = host
        with pytest.raises(
            InvalidProblemError, match=r"hosts: host: expected letters, digits"
        ):
            write(tmp_path / "hosts", graph)
        assert not (tmp_path / "hosts").exists()

    def test_a_device_per_rank(self, tmp_path: Path, graph: nx.Graph) -> None:
        path = tmp_path / "ranks"
        write_rankfile(path, graph, self.ORDER)
        assert path.read_text() == "0 n02:1\n1 n01:0\n2 n02:0\n3 n01:1\n"
        assert read_rankfile(path, graph) == list(self.ORDER)
        path.write_text(path.read_text().replace("\n", "\n\n"))
        assert read_rankfile(path, graph) == list(self.ORDER)

    @pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
    def test_every_order_goes_round(self, tmp_path: Path, path: Path) -> None:
        graph = read(path.name)
        order = graph.graph["order"][::-1]
        write_rankfile(tmp_path / "ranks", graph, order)
        assert read_rankfile(tmp_path / "ranks", graph) == order
