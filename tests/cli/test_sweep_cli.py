"""``nest sweep --vary``: what each value of a setting buys."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import nest
from nest.errors import InvalidOptionError
from nest.requests.benchmarks import SweepRequest
from nest.requests.sweeping import Point, axes_of, points
from tests.cli.conftest import SMALL, TINY, Cli


@pytest.fixture(autouse=True)
def _model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(TINY))


BASE = f"--model config.json --cluster h100x16 {SMALL}"


def request(**more: Any) -> SweepRequest:
    return SweepRequest(
        model="config.json",
        cluster="h100x16",
        global_batch=8,
        micro_batches=1,
        tp=1,
        **more,
    )


def replace_cluster(cluster: str, vary: str) -> SweepRequest:
    return dataclasses.replace(request(vary=vary), cluster=cluster)


def points_of(vary: str, **more: Any) -> list[Point]:
    return list(points(request(vary=vary, **more)))


def between_nodes(point: Point) -> float:
    topology = point.problem.cluster.topology
    assert topology.kind == "hierarchy"
    return topology.levels[-1].bandwidth_bytes_per_s


def test_a_second_rail_doubles_the_bandwidth_between_nodes() -> None:
    one, two = points_of("rails=1,2")
    assert between_nodes(two) == 2 * between_nodes(one)
    first, second = (x.problem.cluster.topology.levels[0] for x in (one, two))
    assert first == second


def test_a_bandwidth_is_that_of_the_data_sheet() -> None:
    """A port of h100 has 400 Gb/s, which are 50 GB/s."""
    same, own, twice, half = points_of("network=400Gb/s,default,800Gbps,0.5x")
    assert between_nodes(same) == between_nodes(own)
    assert between_nodes(twice) == 2 * between_nodes(own)
    assert between_nodes(half) == between_nodes(own) / 2
    assert between_nodes(points_of("network=50 GB/s")[0]) == between_nodes(own)


def test_a_network_that_is_stated_has_its_own_bandwidth() -> None:
    """Whichever axis comes first; the machine's own may be varied beside."""
    network = "topology=default,dgx:nodes=2"
    found = points_of(("rails=1,2", network))  # type: ignore[arg-type]
    own, twice, stated = map(between_nodes, found)
    assert twice == 2 * own == 2 * stated
    refused = "expected the network of a machine, got another one; vary the"
    for axes in (("rails=2", network), ("topology=dgx:nodes=2", "rails=2")):
        with pytest.raises(InvalidOptionError, match=refused):
            points_of(axes)  # type: ignore[arg-type]


def test_the_base_is_the_answer_of_solve_and_less_is_never_faster() -> None:
    values = (
        "default|dgx:nodes=2,port_bytes_per_s=800Gb/s|dgx:nodes=2|"
        "dgx:nodes=2,nodes_per_leaf=1,oversubscription=4|"
        "dgx:nodes=2,ports=shared"
    )
    job: dict[str, Any] = {
        "model": "config.json",
        "cluster": "h100x16",
        "global_batch": 16,
        "micro_batches": 1,
        "tp": 1,
    }
    rows = nest.sweep(vary={"topology": values}, **job)["rows"]
    own, *times_ns = (row["step_time_ns"] for row in rows)
    assert own == nest.solve(**job).step_time_ns == times_ns[1]
    assert times_ns == sorted(times_ns)


def test_oversubscription_divides_it() -> None:
    one, two = points_of("oversubscription=1,2")
    assert between_nodes(two) == between_nodes(one) / 2


@pytest.mark.parametrize("cluster", ["h100x8", "tpu-v5ex8"])
def test_an_axis_without_an_effect_is_named(cli: Cli, cluster: str) -> None:
    """The network between nodes is of no use to one node or slice."""
    base = f"--model config.json --cluster {cluster} {SMALL}"
    assert cli(f"sweep {base} --vary rails=1,2 --html page.html --json a.json") == 0
    note = "no effect here, because one node or slice has all devices"
    rows = json.loads(Path("a.json").read_text())["rows"]
    assert [row["note"] for row in rows] == ["", note]
    assert f"rails: {note}" in Path("page.html").read_text()
    assert f"rails=2: {note}\n" in cli.out


def test_memory_has_a_unit_or_is_a_multiple() -> None:
    sizes = [
        point.problem.cluster.memory_bytes()
        for point in points_of("memory=default,80GB,80GiB,2x")
    ]
    # An H100-80GB offers 79.1 GiB; a twenty-fifth of that is kept free.
    share = sizes[0] / (79.1 * 2**30)
    assert sizes[1] == sizes[0]
    assert sizes[2] == pytest.approx(share * 80 * 2**30, rel=1e-3)
    assert sizes[3] == pytest.approx(2 * sizes[0], rel=1e-9)
    free = points_of("memory=80GiB", headroom="0")
    assert free[0].problem.cluster.memory_bytes() == 80 * 2**30


def test_counts_of_devices_and_of_nodes() -> None:
    for axis, values in (("devices", "8,32"), ("nodes", "1,4")):
        counts = [
            point.problem.cluster.num_devices for point in points_of(f"{axis}={values}")
        ]
        assert counts == [8, 32]
    (point,) = points(replace_cluster("8xH100", "nodes=2"))
    assert point.problem.cluster.num_devices == 16


def test_the_others_have_their_first_values() -> None:
    found = points_of("devices=8,16") + list(
        points(request(vary=("devices=8,16", "sequence=512,1024")))
    )
    shown = [
        (
            point.axis,
            point.value,
            point.problem.cluster.num_devices,
            point.problem.job.sequence_length,
        )
        for point in found[2:]
    ]
    assert shown == [
        ("", "devices=8, sequence=512", 8, 512),
        ("devices", "16", 16, 512),
        ("sequence", "1024", 8, 1024),
    ]


def test_parameters_of_a_network_stay_together() -> None:
    assert axes_of(("topology=default,rail:nodes=2,devices=8,torus:4x4",)) == {
        "topology": ["default", "rail:nodes=2,devices=8", "torus:4x4"]
    }
    assert axes_of(("topology=a:x=1|b",)) == {"topology": ["a:x=1", "b"]}


def test_the_screen_the_document_and_the_page(cli: Cli) -> None:
    cli.succeeds(
        f"sweep {BASE} --vary batch=8,16 --vary price=2,4 --tokens 1e9 "
        "--json out.json --html out.html"
    )
    assert max(map(len, cli.out.splitlines())) <= 80
    document = json.loads(Path("out.json").read_text())
    assert document["axes"] == {"batch": ["8", "16"], "price": ["2", "4"]}
    base, batch, price = document["rows"]
    assert (base["speed_up"], base["axis"]) == (1.0, "")
    assert batch["speed_up"] == pytest.approx(
        batch["tokens_per_s"] / base["tokens_per_s"]
    )
    assert price["step_time_ns"] == base["step_time_ns"]
    assert price["usd"] == pytest.approx(2 * base["usd"])
    assert base["usd"] == pytest.approx(base["days"] * 24 * 16 * 2)
    page = Path("out.html").read_text()
    assert 'id="batch"' in page
    assert 'id="price"' in page
    assert f"The run costs {base['usd']:,.0f} USD at price=2, " in page


def test_a_value_without_a_plan(cli: Cli) -> None:
    assert cli(f"sweep {BASE} --vary memory=default,3001MB") == 1
    assert "memory=3001MB" in cli.out
    assert "infeasible" in cli.out


def test_python_takes_a_mapping(cli: Cli) -> None:
    cli.succeeds(f"sweep {BASE} --vary rails=1,2 --json out.json")
    document = nest.sweep(
        model="config.json",
        cluster="h100x16",
        global_batch=8,
        micro_batches=(1, 2),
        tp=(1, 2),
        zero=(0, 1),
        recompute=("none", "full"),
        vary={"rails": [1, 2]},
    )
    assert document == json.loads(Path("out.json").read_text())


def test_a_target_and_pins_count() -> None:
    (point,) = points_of("rails=1", target="megatron", pin="pp=1")
    assert point.problem.job.pipeline_parallel == (1,)
    whole = points_of("rails=1", target="megatron")[0].problem
    assert replace(point.problem, job=whole.job) == whole
