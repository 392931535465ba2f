"""``nest topology``: a collective on a graph from a file."""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace

import networkx
import pytest
import yaml

from nest.topology.graph.convert import networkx_of
from tests.cli.conftest import Cli
from tests.rows import rows
from tests.unit.topology.test_graph_network import NETWORKS


def case(name: str = "clos", **fields):
    """Return a case on a network of docs/graphs.md."""
    graph = networkx_of(NETWORKS[name])
    order = graph.graph.pop("order")
    units = graph.graph.pop("units", None)
    coordinates = graph.graph.pop("coord", None)
    found = {
        "graph": networkx.node_link_data(graph, edges="edges"),
        "order": order,
        "groups": [[0, 2], [1, 3]],
        "collective": "all-reduce",
        "bytes": 100,
    }
    if units is not None:
        found["partitions"] = [[of[x] for x in order] for of in units]
    if coordinates is not None:
        found["coord"] = [coordinates[x] for x in order]
    found |= fields
    return {key: value for key, value in found.items() if value is not None}


@pytest.fixture
def written(tmp_path):
    def write(document, name: str = "case.json") -> str:
        path = tmp_path / name
        text = (yaml.safe_dump if name.endswith("yaml") else json.dumps)(document)
        path.write_text(text, "utf-8")
        return str(path)

    return write


def test_price_as_json(cli: Cli, written):
    document = cli.document(f"topology price {written(case())}")
    assert cli.err == ""
    assert list(document) == ["best_ns", "best", "algorithms", "bound_ns"]
    assert document["algorithms"]["ring"] == 240
    assert document["best_ns"] == document["algorithms"]["one-phase"] == 220
    assert document["best"] == "one-phase"
    assert document["bound_ns"] == 200
    assert list(document["algorithms"]) == [
        "ring",
        "two-way-ring",
        "rotated-rings",
        "halving-doubling",
        "halving-doubling-far",
        "direct",
        "one-phase",
        "doubling",
        "two-trees",
        "pipelined",
    ]


def test_a_case_in_yaml_and_on_standard_input(cli: Cli, written, monkeypatch):
    cli.succeeds(f"topology price {written(case(), 'case.yaml')}")
    expected = cli.out
    data = io.BytesIO(json.dumps(case()).encode())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=data))
    cli.succeeds("topology price -")
    assert cli.out == expected


def test_units_and_coordinates_by_place(cli: Cli, written):
    """Places follow the order: turned around, 0 and 1 are on two leaves."""
    turned = case(order=["0", "2", "1", "3"], partitions=None, groups=[[0, 1]])
    document = cli.document(f"topology price {written(turned)}")
    assert document["best_ns"] == 120
    assert "rotated-rings" not in document["algorithms"]
    torus = case("torus", groups=[list(range(9))], bytes=900)
    assert cli.document(f"topology price {written(torus)}")["algorithms"][
        "torus"
    ] == pytest.approx(480, rel=1e-11)


def test_the_order_of_the_graph_is_the_default(cli: Cli, written):
    document = case(order=None, partitions=None)
    assert cli.document(f"topology price {written(document)}")["best_ns"] == 220


@pytest.mark.parametrize("fields", [{"groups": [[0], [2]]}, {"bytes": 0}])
def test_nothing_to_do(cli: Cli, written, fields):
    path = written(case(**fields))
    assert cli.document(f"topology price {path}") == {
        "best_ns": 0,
        "best": None,
        "algorithms": {},
        "bound_ns": 0,
    }
    cli.succeeds(f"topology price {path}")
    assert "lower bound" in cli.out


@pytest.mark.parametrize(("fields", "message"), rows("topologies", "cases"))
def test_a_wrong_case_is_one_line(cli: Cli, written, fields, message):
    found = case(**fields)
    if fields.get("graph") == "CUT":
        graph = case("star")["graph"]
        graph["edges"] = [x for x in graph["edges"] if x["source"] != "3"]
        found["graph"] = graph
    assert message in cli.refuses(f"topology price {written(found)} --json -")


def test_a_cluster_has_a_network(cli: Cli):
    """16 devices in two nodes: a switch each and one above."""
    path = Path("my.yaml")
    cli.succeeds("new cluster --machine h100 --devices 16 -o my.yaml")
    for text in (str(path), "h100x16"):
        cli.succeeds(f"topology show {text}")
        assert "16 devices, 3 switches, 18 links" in cli.out
        cli.succeeds(f"topology bench {text}")
        assert f"{text}, 16 devices" in cli.out
    path.write_text("num_devices: 2\ndevice: {machine: h1000}\n")
    assert "machine: expected" in cli.refuses("topology show my.yaml")
