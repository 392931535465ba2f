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


def test_a_machine_alone_is_that_machine(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / "x.yaml")
    words = ("--machine", "h100", "--devices", "16", "-o", path)
    assert cli("new", "cluster", *words) == 0
    cluster, ((site, count),) = read_cluster(path)
    assert (site, count) == (machine("h100"), 16)
    assert cluster.topology == machine("h100").cluster(16).topology
    # What is a comment there is the same network.
    text = Path(path).read_text()
    start, end = text.index("# topology:"), text.index("# Any other network")
    shown = re.sub("^# ", "", text[start:end], flags=re.MULTILINE)
    Path(path).write_text(text + shown)
    assert read_cluster(path)[0].topology == cluster.topology
    graph = re.sub("^# ", "", text[text.rindex("# topology") :], flags=re.M)
    assert "kind: graph" in graph
    Path(path).write_text("num_devices: 2\ndevice: {machine: h100}\n" + graph)
    assert read_cluster(path)[0].topology.max_devices == 2


def test_what_differs_is_written(cli: Cli, tmp_path: Path) -> None:
    """NDR reaches 46.8 of 50 GB/s: 23.4 of 25."""
    path = str(tmp_path / "x.yaml")
    assert (
        cli(
            *("new", "cluster", "--machine", "h100", "--devices", "8"),
            *("--node-size", "4", "--network-gb-per-s", "25"),
            *("--price", "2.2", "--memory", "94GB", "-o", path),
        )
        == 0
    )
    cluster, _ = read_cluster(path)
    assert isinstance(cluster.topology, Hierarchy)
    node, network = cluster.topology.levels
    assert (node.fan_out, network.fan_out) == (4, 2)
    assert network.bandwidth_bytes_per_s == pytest.approx(23.4e9)
    assert cluster.device.price_usd_per_hour == 2.2
    assert cluster.device.memory_bytes == 94 * SIZES["GB"]


def test_a_device_of_ones_own_has_a_problem(cli: Cli, tmp_path: Path) -> None:
    path, problem = str(tmp_path / "x.yaml"), str(tmp_path / "p.json")
    assert (
        cli(
            *("new", "cluster", "--machine", "h100", "--devices", "8"),
            *("--name", "our: chip", "--memory", "141GB", "--tflops", "1200"),
            *("--hbm-gb-per-s", "4800", "-o", path),
        )
        == 0
    )
    device = read_cluster(path)[0].device
    assert device.name == "our: chip"
    assert device.memory_bytes == 141 * SIZES["GB"]
    assert device.hbm_bytes_per_s == 4.8e12
    assert device.peak_flops["bf16"] == 1.2e15
    words = ("--model", "llama2-7b", "--cluster", path, "--global-batch", "8")
    assert cli("new", "problem", *words, "-o", problem) == 0
    found = read_problem(problem)
    assert found.cluster.device == device
    assert cli("problems", *words) == 0
    assert cli.out == Path(problem).read_text()


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return answers by the beginning of questions; else the defaults."""
    said: dict[str, str] = {}

    def prompt(text: str, default: str, err: bool) -> str:
        assert err
        return said.pop(text.partition(" ")[0], default)

    monkeypatch.setattr(making, "_asking", lambda: True)
    monkeypatch.setattr(click, "prompt", prompt)
    return said


def test_a_terminal_is_asked(
    cli: Cli, tmp_path: Path, answers: dict[str, str]
) -> None:
    path, problem = str(tmp_path / "x.yaml"), str(tmp_path / "p.json")
    answers |= {"Machine": "a100", "Devices": "8", "Dollars": "1.5"}
    assert cli("new", "cluster", "-o", path) == 0
    cluster, ((site, count),) = read_cluster(path)
    assert (site.name, count) == ("dgx-a100", 8)
    assert cluster.device.price_usd_per_hour == 1.5
    assert "\ntopology" not in Path(path).read_text()
    answers |= {"Model": "llama2-7b", "Cluster:": path, "Samples": "16"}
    assert cli("new", "problem", "-o", problem) == 0
    assert read_problem(problem).job.global_batch == 16
    assert not answers


def test_an_unknown_device_is_asked_about(
    cli: Cli, tmp_path: Path, answers: dict[str, str]
) -> None:
    path = str(tmp_path / "x.yaml")
    answers |= {"Machine": "ours", "Memory,": "64GB", "TFLOP/s": "400"}
    assert cli("new", "cluster", "-o", path) == 0
    device = read_cluster(path)[0].device
    assert (device.name, device.memory_bytes) == ("ours", 64 * 10**9)
    assert device.peak_flops["bf16"] == 4e14
    assert device.hbm_bytes_per_s == 3.35e12
    assert "kernels: dgx-h100 " in Path(path).read_text()
    assert not answers


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("cluster", "-o", "-"), "--machine: expected a value where nobody c"),
        (
            ("cluster", "--machine", "h100", "-o", "-"),
            "--devices: expected a value where nobody can be asked, got none",
        ),
        (
            ("cluster", "--machine", "x100", "--devices", "8", "-o", "-"),
            "machine: expected one of .* got 'x100'",
        ),
        (
            (
                *("cluster", "--machine", "h100", "--devices", "8"),
                *("--memory", "8XB", "-o", "-"),
            ),
            "--memory: expected a size such as 141GB or 80GiB, got '8XB'",
        ),
        (
            (
                *("cluster", "--machine", "h100", "--devices", "8"),
                *("--memory", "2GB", "-o", "-"),
            ),
            "--memory 2GB: expected more than the 3000000000 bytes of it th",
        ),
        (("cluster",), "nest new cluster: expected --output, got none"),
        (("problem",), "nest new problem: expected -o, got none; name a file"),
        (("problem", "-o", "-"), "--model: expected a value where nobody can"),
        (("prblem",), "nest new COMMAND: expected one of cluster, problem"),
    ],
)
def test_bad_calls(cli: Cli, arguments: tuple[str, ...], text: str) -> None:
    assert re.match(text, cli.refuses("new", *arguments))


def test_a_bad_answer_is_asked_for_again(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was answered before is not lost, and names are known at once."""
    said = iter(
        (
            *("h10", "no", "h100", "x", "8", "8", "50", "-1", "2"),
            *("llama3-8", "llama2-7b", "h100y8", "h100x8", "0", "16"),
            *("megatrn", "any"),
        )
    )
    monkeypatch.setattr(making, "_asking", lambda: True)
    monkeypatch.setattr(click, "prompt", lambda *_, **__: next(said))
    path, problem = str(tmp_path / "x.yaml"), str(tmp_path / "p.json")
    assert cli("new", "cluster", "-o", path) == 0
    (device,) = read_cluster(path)[0].types
    assert device.price_usd_per_hour == 2
    assert "'h10' is no known machine\n" in cli.err
    assert "Devices: expected an integer from 1 to" in cli.err
    assert (
        "(0: unknown): expected from 0 to 1e+09 dollars, got '-1'" in cli.err
    )
    assert cli("new", "problem", "-o", problem) == 0
    assert "Model ('nest problems --models'): " in cli.err
    assert "did you mean 'llama3-8b'?" in cli.err
    assert "cluster: expected <machine>x<devices>" in cli.err
    assert "got 'megatrn'" in cli.err
    assert read_problem(problem).job.global_batch == 16


def test_a_file_that_is_there_is_said(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    words = ("new", "cluster", "--machine", "h100", "--devices", "8")
    path.write_text("mine")
    assert cli(*words, "-o", str(path)) == 0
    assert cli.err == f"nest: {path}: written over the file of that name\n"


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("--devices", "1048577", "expected an integer from 1 to 1048576"),
        ("--network-gb-per-s", "1e300", "expected from 0.001 to 1e+09 gigab"),
        ("--network-gb-per-s", "1e-12", "expected from 0.001 to 1e+09 gigab"),
        ("--tflops", "1e300", "expected from 0.001 to 1e+09 TFLOP/s, got"),
        ("--price", "1e300", "expected from 1e-09 to 1e+09 dollars, got"),
    ],
)
def test_figures_that_no_cluster_has(
    cli: Cli, tmp_path: Path, option: str, value: str, text: str
) -> None:
    path = tmp_path / "x.yaml"
    words = ("new", "cluster", "--machine", "h100", "--devices", "8")
    said = cli.refuses(*words, option, value, "-o", str(path))
    assert said.startswith(f"{option}: {text}")
    assert not path.exists()


def test_what_cannot_be_read_is_not_written(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "nest.hardware.template.cluster_text", lambda *_: "num_devices: 0"
    )
    path = tmp_path / "x.yaml"
    words = ("new", "cluster", "--machine", "h100", "--devices", "8")
    said = cli.refuses(*words, "-o", str(path))
    assert said.startswith("nest new cluster: expected options of a cluster")
    assert not path.exists()


def test_too_many_devices_are_the_clusters_fault(cli: Cli) -> None:
    words = ("--model", "llama2-7b", "--cluster", "h100x2147483647")
    assert cli.refuses("new", "problem", *words, "-o", "-").startswith(
        "--cluster: expected at most 1048576 devices, got 2147483647 in"
    )
