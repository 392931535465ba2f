"""Networks on the command line: what they are like, and plans on them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nest.ir import read_plan, read_problem
from tests.cli.conftest import Cli

FILES = Path(__file__).parents[1] / "data" / "topologies"
SMALL = "--model gpt2 --global-batch 8 --micro-batches 1"
#: Whose passes take longer than hosts need to issue them.
LARGER = "--model llama2-7b --global-batch 8 --micro-batches 1"


def test_show_says_what_a_network_is_like(cli: Cli) -> None:
    """Four devices on a ring: two links of 45 GB/s each way per half."""
    document = cli.document("topology show ring:4")
    assert document["num_devices"] == 4
    assert document["diameter_hops"] == 2
    assert len(document["order"]) == 4
    assert document["bisection_bytes_per_s"] == pytest.approx(
        document["port_bytes_per_s"]["most"]
    )
    cli.succeeds("topology show ring:4")
    assert "4 devices, 0 switches, 4 links" in cli.out


def test_beside_is_read_by_type(cli: Cli) -> None:
    path = str(FILES / "slurm-tree.conf")
    said = (
        "devices_per_node=2,node_bandwidth_bytes_per_s=4e11",
        "node-latency-ns=100,ports_per_node=2,port_latency_ns=500",
        "port_bandwidth_bytes_per_s=5e10",
        "uplink_bandwidths_bytes_per_s=1e11/1e11,uplink_latencies_ns=600/600",
    )
    beside = [word for text in said for word in ("--beside", text)]
    plain = cli.document("topology", "show", path, *beside)
    assert plain["num_devices"] == 10
    assert "10 devices, 10 switches, 24 links" in cli.err
    with_units = [
        word.replace("=4e11", "=3200Gb/s").replace("=1e11/", "=100 GB/s/")
        for word in beside
    ]
    assert cli.document("topology", "show", path, *with_units) == plain


def test_order_picture_and_lists_are_written(cli: Cli, tmp_path: Path) -> None:
    files = {
        name: str(tmp_path / name)
        for name in ("plot", "hostfile", "rankfile", "output")
    }
    cli.succeeds(
        "topology show dgx:nodes=2 --order auto",
        *(x for name, path in files.items() for x in (f"--{name}", path)),
    )
    hosts = Path(files["hostfile"]).read_text().split()
    assert len(hosts) == 16
    assert hosts[:8] == [hosts[0]] * 8
    assert Path(files["plot"]).read_text().startswith("<svg")
    # the rank file is an order, the JSON a network: both come back
    rankfile = Path(files["rankfile"]).read_text().splitlines()
    turned = [f"{i} {line.split()[1]}" for i, line in enumerate(rankfile[::-1])]
    Path("again").write_text("\n".join(turned) + "\n")
    order = cli.document(f"topology show {files['output']} --order again")["order"]
    assert cli.document(f"topology show {files['output']}")["order"] == order[::-1]


def test_bench_prices_every_kind_by_size(cli: Cli) -> None:
    rows = cli.document("topology bench torus:4x4")["rows"]
    assert [row["bytes"] for row in rows][:2] == [65536, 262144]
    for row in rows:
        # an all-reduce may be two halves of the same algorithm
        assert row["all-reduce"]["ns"] <= 2 * row["all-gather"]["ns"] * (1 + 1e-11)
        # 15/16 of a buffer leave a device over four links, twice
        assert row["all-reduce"]["bound_ns"] == pytest.approx(
            2 * 15 / 16 * row["bytes"] / 180
        )
        assert row["all-reduce"]["bound_ns"] <= row["all-reduce"]["ns"]
    cli.succeeds("topology bench torus:4x4 --ranks 4")
    assert "4 × 4 ranks" in cli.out
    assert "1 GiB" in cli.out
    assert "bound" in cli.out
    # too many devices for it
    cli.succeeds("topology bench ring:512 --ranks 2")
    assert "bound" not in cli.out


# Plans on networks


def test_a_plan_on_another_network_scores_as_it_says(cli: Cli, tmp_path: Path) -> None:
    """The network is part of the problem file that is written."""
    problem, plan = (str(tmp_path / name) for name in ("problem", "plan"))
    network = "--cluster a100x8 --topology ring:8"
    cli.succeeds(f"problems {SMALL} {network} -o {problem}.json")
    assert read_problem(f"{problem}.json").cluster.topology.max_devices == 8
    arguments = f"solve {SMALL} {network} --solver dp"
    step = cli.document(f"{arguments} -o {plan}.json")["cells"][0]["step_time_ns"]
    arguments = f"score {problem}.json {plan}.json --json -"
    cli.succeeds(arguments)
    assert json.loads(cli.out)["step_time_ns"] == step


def test_an_answer_lists_what_collectives_reach(cli: Cli) -> None:
    """In groups of 8, NVLink 4 reaches 0.849 · (1 - 0.424/8) = 0.804."""
    solve = f"solve {SMALL} --cluster h100x8 --solver dp --topology"
    reached = (
        "collectives reach 80 % of bandwidths in nodes, 94 % of others (--topology)"
    )
    missing = "no NVLink or other links in nodes of 8, which --topology does"
    cli.succeeds(f"{solve} dgx:nodes=1")
    assert reached in " ".join(cli.out.split())
    assert missing not in " ".join(cli.out.split())
    cli.succeeds(f"{solve} leaf-spine:leaves=1,hosts=8")
    assert missing in " ".join(cli.out.split())
    cli.succeeds(f"solve {SMALL} --cluster h100x8 --solver dp")
    assert "collectives reach" not in " ".join(cli.out.split())


def test_several_kinds_of_machines_are_one_cluster(cli: Cli) -> None:
    cli.succeeds(f"problems {LARGER} --cluster h100x8+a100x4 -o problem.json")
    problem = read_problem("problem.json")
    found = problem.cluster
    assert found.device_name == "H100-80GB-SXM + A100-80GB-SXM"
    assert [found.devices_of(i) for i in range(2)] == [8, 4]
    cost = problem.graph.kinds[1].costs[0]
    (slow,) = cost.by_device
    assert slow.device == "A100-80GB-SXM"
    assert slow.forward_ns > cost.forward_ns
    # a message inside a node stays there
    assert len(set(found.topology.units[0].values())) == 2
    cli.succeeds("solve problem.json --solver dp -o plan.json")
    assert "optimal" in cli.out
    assert read_plan("plan.json").devices_used <= 12


def test_a_cluster_in_a_file_is_that_of_its_name(cli: Cli, tmp_path: Path) -> None:
    """But for the name; prices say what the file says."""
    path, named, filed = (
        tmp_path / name for name in ("ours.yaml", "named.json", "filed.json")
    )
    path.write_text(
        "name: dgx-a100-8\nnum_devices: 8\n"
        "device: {machine: a100, price_usd_per_hour: 2.5}\n"
    )
    for cluster, output in (("a100x8", named), (str(path), filed)):
        cli.succeeds(f"problems {SMALL} --cluster {cluster} -o {output}")
    one, other = read_problem(named), read_problem(filed)
    assert other.graph == one.graph
    assert other.cluster.topology == one.cluster.topology
    assert other.cluster.price_usd_per_hour == 2.5


def test_an_order_for_a_plan_is_scored_and_written(cli: Cli, tmp_path: Path) -> None:
    """The problem in the order of the rank file has the step time stated."""
    problem, plan, ranks, hosts, moved, again = (
        str(tmp_path / name)
        for name in ("p.json", "plan.json", "r", "h", "moved.json", "a.json")
    )
    network = f"{LARGER} --cluster h100x16 --topology torus:4x4"
    cli.succeeds(f"problems {network} -o {problem}")
    cli.succeeds(f"solve {problem} --solver dp --pin tp=4,r=4 -o {plan}")
    files = f"--rankfile {ranks} --hostfile {hosts} -o {moved}"
    found = cli.document(f"topology order {problem} {plan} {files}")
    assert found["after_ns"] < found["before_ns"]
    assert "less" in cli.err
    assert len(Path(hosts).read_text().splitlines()) == 16
    cli.succeeds(f"problems {network} --order {ranks} -o {again}")
    assert read_problem(again).cluster == read_problem(moved).cluster
    for path, name in ((problem, "before_ns"), (again, "after_ns")):
        assert cli.document(f"score {path} {plan}")["step_time_ns"] == found[name]
