"""``nest new``: cluster and problem files to begin with."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from nest.cli import making
from nest.hardware import machine, read_cluster
from nest.ir import read_problem
from nest.ir.cluster import Hierarchy
from nest.util.quantities import SIZES
from tests.cli.conftest import Cli


def test_a_machine_alone_is_that_machine(cli: Cli) -> None:
    cli.succeeds("new cluster --machine h100 --devices 16 -o x.yaml")
    cluster, ((site, count),) = read_cluster("x.yaml")
    assert (site, count) == (machine("h100"), 16)
    assert cluster.topology == machine("h100").cluster(16).topology
    # What is a comment there is the same network.
    text = Path("x.yaml").read_text()
    start, end = text.index("# topology:"), text.index("# Any other network")
    shown = re.sub("^# ", "", text[start:end], flags=re.MULTILINE)
    Path("x.yaml").write_text(text + shown)
    assert read_cluster("x.yaml")[0].topology == cluster.topology
    graph = re.sub("^# ", "", text[text.rindex("# topology") :], flags=re.M)
    assert "kind: graph" in graph
    Path("x.yaml").write_text("num_devices: 2\ndevice: {machine: h100}\n" + graph)
    assert read_cluster("x.yaml")[0].topology.max_devices == 2


def test_what_differs_is_written(cli: Cli) -> None:
    """NDR reaches 46.8 of 50 GB/s: 23.4 of 25."""
    cli.succeeds(
        "new cluster --machine h100 --devices 8 --node-size 4 "
        "--network-gb-per-s 25 --price 2.2 --memory 94GB -o x.yaml"
    )
    cluster, _ = read_cluster("x.yaml")
    assert isinstance(cluster.topology, Hierarchy)
    node, network = cluster.topology.levels
    assert (node.fan_out, network.fan_out) == (4, 2)
    assert network.bandwidth_bytes_per_s == pytest.approx(23.4e9)
    assert cluster.device.price_usd_per_hour == 2.2
    assert cluster.device.memory_bytes == 94 * SIZES["GB"]
    plain = Path("x.yaml").read_text()
    cli.succeeds(
        "new cluster --machine h100 --devices 8 --node-size 4 "
        "--network-gb-per-s 200Gb/s --price 2.2 --memory 94GB -o y.yaml"
    )
    assert Path("y.yaml").read_text() == plain


def test_a_device_of_ones_own_has_a_problem(cli: Cli) -> None:
    cli.succeeds(
        "new cluster --machine h100 --devices 8 --name 'our: chip' --memory "
        "141GB --tflops 1200 --hbm-gb-per-s 4800 -o x.yaml"
    )
    device = read_cluster("x.yaml")[0].device
    assert device.name == "our: chip"
    assert device.memory_bytes == 141 * SIZES["GB"]
    assert device.hbm_bytes_per_s == 4.8e12
    assert device.peak_flops["bf16"] == 1.2e15
    words = "--model llama2-7b --cluster x.yaml --global-batch 8"
    cli.succeeds(f"new problem {words} -o p.json")
    assert read_problem("p.json").cluster.device == device
    cli.succeeds(f"problems {words}")
    assert cli.out == Path("p.json").read_text()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return answers by the beginning of questions; else the defaults."""
    said: dict[str, str] = {}

    def prompt(text: str, default: str, err: bool) -> str:
        assert err
        return said.pop(text.partition(" ")[0], default)

    monkeypatch.setattr(making, "_is_terminal", lambda: True)
    monkeypatch.setattr(click, "prompt", prompt)
    return said


def test_a_terminal_is_asked(cli: Cli, answers: dict[str, str]) -> None:
    answers |= {"Machine": "a100", "Devices": "8", "Dollars": "1.5"}
    cli.succeeds("new cluster -o x.yaml")
    cluster, ((site, count),) = read_cluster("x.yaml")
    assert (site.name, count) == ("dgx-a100", 8)
    assert cluster.device.price_usd_per_hour == 1.5
    assert "\ntopology" not in Path("x.yaml").read_text()
    answers |= {"Model": "llama2-7b", "Cluster:": "x.yaml", "Samples": "16"}
    cli.succeeds("new problem -o p.json")
    assert read_problem("p.json").job.global_batch == 16
    assert not answers


def test_an_unknown_device_is_asked_about(cli: Cli, answers: dict[str, str]) -> None:
    answers |= {"Machine": "ours", "Memory,": "64GB", "TFLOP/s": "400"}
    cli.succeeds("new cluster -o x.yaml")
    device = read_cluster("x.yaml")[0].device
    assert (device.name, device.memory_bytes) == ("ours", 64 * 10**9)
    assert device.peak_flops["bf16"] == 4e14
    assert device.hbm_bytes_per_s == 3.35e12
    assert "kernels: dgx-h100 " in Path("x.yaml").read_text()
    assert not answers


def test_a_bad_answer_is_asked_for_again(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was answered before is not lost, and names are known at once."""
    said = iter(
        (
            *("h10", "no", "h100", "x", "8", "8", "50", "-1", "2"),
            *("llama3-8", "llama2-7b", "h100y8", "h100x8", "0", "16"),
            *("megatrn", "any"),
        )
    )
    monkeypatch.setattr(making, "_is_terminal", lambda: True)
    monkeypatch.setattr(click, "prompt", lambda *_, **__: next(said))
    cli.succeeds("new cluster -o x.yaml")
    (device,) = read_cluster("x.yaml")[0].types
    assert device.price_usd_per_hour == 2
    assert "'h10' is no known machine\n" in cli.err
    assert "Devices: expected an integer from 1 to" in cli.err
    assert "(0: unknown): expected from 0 to 1e+09 dollars, got '-1'" in cli.err
    cli.succeeds("new problem -o p.json")
    assert "Model ('nest problems --models'): " in cli.err
    assert "did you mean 'llama3-8b'?" in cli.err
    assert "cluster: expected <machine>x<devices>" in cli.err
    assert "got 'megatrn'" in cli.err
    assert read_problem("p.json").job.global_batch == 16


def test_a_file_that_is_there_is_said(cli: Cli) -> None:
    Path("x.yaml").write_text("mine")
    cli.succeeds("new cluster --machine h100 --devices 8 -o x.yaml")
    assert cli.err == "nest: x.yaml: written over the file of that name\n"


def test_what_cannot_be_read_is_not_written(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nest.hardware.template.cluster_text", lambda *_: "num_devices: 0"
    )
    said = cli.refuses("new cluster --machine h100 --devices 8 -o x.yaml")
    assert said.startswith("nest new cluster: expected options of a cluster")
    assert not Path("x.yaml").exists()
