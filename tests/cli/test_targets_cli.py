"""``--target`` and what goes with it on the command line."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nest.hardware import machine
from nest.ir import read_problem, write
from nest.ir.problem import Problem
from tests.builders import make_cost, make_levels, make_problem
from tests.cli.conftest import SMALL, Cli


def stages_differ() -> Problem:
    """Three devices, M = 4: a takes 30 or 21 ns, b 60 or 30.

    Free, 60 + 3·30; with one tp for both 4·51, 36 % more.
    """
    return make_problem(
        {
            name: tuple(
                make_cost(time // 3, time - time // 3, tp=tp)
                for tp, time in enumerate(times, 1)
            )
            for name, times in (("a", (30, 21)), ("b", (60, 30)))
        },
        edges=(("a", "b", 0),),
        devices=3,
        topology=make_levels((3, 0.0, 1e18)),
        global_batch=4,
        replicas=(1,),
    )


@pytest.fixture(autouse=True)
def _problem(tmp_path: Path) -> None:
    write(tmp_path / "problem.json", stages_differ())


@pytest.mark.parametrize("command", ["solve --solver dp", "compare --solvers dp"])
def test_the_printed_commands_write_what_starts_a_plan(
    cli: Cli, config: str, command: str
) -> None:
    cli.succeeds(f"{command} --model {config} --cluster h100x8 {SMALL}")
    _, *rest = cli.out.partition("\nnest solve ")
    commands = "".join(rest).replace("\\\n", "").split("nest ")[1:]
    assert len(commands) == 2
    for printed in commands:
        cli.succeeds(printed)
    assert Path("launch/args.sh").exists()
    if command.startswith("solve"):
        output = "-o kept.json --cluster h100x8"
        cli.succeeds(f"{command} {output} --model {config} {SMALL}")
        assert "nest export" in cli.out
        assert "full kept.json" in cli.out
        assert "nest solve" not in cli.out


def test_compare_for_a_target(cli: Cli) -> None:
    """Exact solvers agree; the document has the target and the loss."""
    document = cli.document(
        "compare problem.json --solvers dp,cpsat,milp,brute,alpa --target "
        "megatron --target-loss"
    )
    assert [c["step_time_ns"] for c in document["cells"][:4]] == [204] * 4
    assert document["cells"][4]["outcome"] == "skipped"
    assert document["target"] == "megatron"
    assert document["target_loss"] == {
        "step_quanta": 204,
        "untargeted_quanta": 150,
        "fraction": 0.36,
        "proven": True,
    }
    assert "36.00 % slower" in cli.err


def test_other_questions_for_a_target(cli: Cli) -> None:
    """Of the best plan without it the stages differ."""
    cli.succeeds("solve problem.json --solver dp -o plan.json")
    document = cli.document("pareto problem.json --target megatron")
    assert document["target"] == "megatron"
    assert min(p["step_time_ns"] for p in document["points"]) == 204
    text = cli.refuses("explain problem.json plan.json --target megatron")
    assert "stage 2: expected tp=1 as in stage 1" in text


def test_memory_is_left_free(cli: Cli) -> None:
    assert (
        cli.document("solve problem.json --solver dp --headroom 10%")["headroom"]
        == "10%"
    )
    assert "plans without overlap under --headroom 10%" in cli.err
    # What is kept free is memory of the device.
    assert "0 bytes of 0.93 GiB on the fullest device" in cli.err


def test_what_training_keeps_of_a_model(cli: Cli, config: str) -> None:
    """A problem file says what the options chose."""
    for options, expected in (
        ((), (2, 2, 12)),
        (("--gradients", "fp32"), (2, 4, 12)),
        (("--optimizer", "adam-8bit"), (2, 2, 6)),
        (("--optimizer", "adam-bf16"), (2, 2, 8)),
        (("--optimizer", "muon", "--gradients", "fp32"), (2, 4, 8)),
    ):
        cli.succeeds(
            f"import hf {config} --cluster h100x4 {SMALL}",
            *options,
            *("-o", "problem.json"),
        )
        made = read_problem("problem.json").job.optimizer
        assert (made.weight_bytes, made.gradient_bytes, made.state_bytes) == expected


def test_a_model_has_the_defaults_of_the_target(cli: Cli, config: str) -> None:
    """Unless the options say otherwise."""
    solve = f"solve --model {config} --cluster h100x4 {SMALL} --solver dp"
    for target, text in (
        ("megatron", "adam with 4 bytes of gradient and 12 of state"),
        ("megatron --gradients bf16", "adam with 2 bytes of gradient and 12 of state"),
        ("torchtitan --optimizer sgd", "sgd with 4 bytes of gradient and 6 of state"),
        ("deepspeed", "adam with 2 bytes of gradient and 12 of state"),
        ("maxtext", "schedule gpipe, adam with 4 bytes of gradient"),
    ):
        cli.succeeds(f"{solve} --target {target}")
        assert text in " ".join(cli.out.split())
        assert "optimal" in cli.out


def launched(cli: Cli, config: str, *options: str) -> int:
    """Ask for the best plan of a small model as Megatron runs it."""
    return cli(
        f"solve --model {config} --cluster h100x4 {SMALL}",
        *("--solver", "dp", "--target", "megatron", *options),
    )


def test_one_screen_to_launch_from(cli: Cli, config: str):
    """Figures and arguments, at most 40 lines of 79 columns."""
    folder = Path("launch")
    assert launched(cli, config, "--target-loss", "--launch-dir", str(folder)) == 0
    lines = cli.out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 79
    assert lines[0] == (
        "llama-10.5m-dgx-h100x4: 4 × H100-80GB-SXM, 8 samples of 1,024 tokens per step"
    )
    text = " ".join(cli.out.split())
    for row in (
        r"fits yes, 99 times in 100: \S+ of \S+ GiB on the fullest device; ",
        r"step time \S+ ms; 9 of 10 measured steps take \S+ – \S+ ms \(from "
        r"H100 \(\d+ runs of \d+ sources\), no layer profiled, "
        r"Megatron-LM \(\d+ runs of \d+ sources\)\)",
        r"speed \S+ tokens/s, \S+ per device; MFU \S+ %",
        r"proof optimal among 1F1B plans that overlap tp, cp, weights, gradients "
        r"under --target megatron --headroom \S+%; dp, \S+ s",
    ):
        assert re.search(f" {row}", text), row
    assert "adam with 4 bytes of gradient" in " ".join(cli.out.split())
    assert "than the best plan without the target" in " ".join(cli.out.split())
    # What is shown are the arguments of the files, in their order.
    written = (folder / "args.sh").read_text()
    start = cli.out.index("# llama-10.5m")
    assert cli.out[start : cli.out.index("\n)", start) + 2].split() == written.split()
    comments = " ".join(
        line.removeprefix("# ") for line in lines if line.startswith("# ")
    )
    assert comments.endswith(" ".join((folder / "README").read_text().splitlines()[1:]))


def test_a_launch_in_json(cli: Cli, config: str) -> None:
    """The figures have their units, and the files are those of an export."""
    assert launched(cli, config, "--launch", "--json", "-") == 0
    document = json.loads(cli.out)
    (cell,) = document["cells"]
    figures = cell["score"]
    tokens_per_s = 8 * 1024 / (cell["step_time_ns"] / 1e9)
    assert figures["throughput_tokens_per_s"] == pytest.approx(tokens_per_s)
    assert figures["throughput_tokens_per_s_per_device"] == pytest.approx(
        tokens_per_s / 4
    )
    assert 0 < figures["mfu"] < 1
    assert figures["memory_left_bytes"] > 0
    files = document["launch"]["files"]
    assert sorted(files) == ["README", "args.sh", "hostfile"]
    # The same plan under the same job, exported.
    Path("plan.json").write_text(json.dumps(cell["plan"]))
    cli.succeeds(
        f"import hf {config} --cluster h100x4 {SMALL} --software Megatron-LM "
        f"-o problem.json"
    )
    cli.succeeds(f"export problem.json plan.json --to megatron --model {config} -o out")
    assert {p.name: p.read_text() for p in Path("out").iterdir()} == files


def test_a_network_with_nodes_can_be_launched(cli: Cli, config: str) -> None:
    """The machine says how many devices a node has, the network has them."""
    solve = (
        f"solve --model {config} --cluster 2x4xh100 {SMALL} --target megatron "
        f"--launch --tokens 1B"
    )
    assert "nodes of 8 devices" in cli.refuses(solve)
    solve = solve.replace("2x4x", "2x8x")
    cli.succeeds(f"{solve} --topology dgx:nodes=2")
    assert "device d mod 8 of node d div 8" in cli.out.replace("\n# ", " ")
    assert "expected a network that groups the devices" in cli.refuses(
        f"{solve} --topology leaf-spine:leaves=1,hosts=16"
    )


SLURM = """SwitchName=root Switches=leaf[1-2]
SwitchName=leaf1 Nodes=n[1-2]
SwitchName=leaf2 Nodes=n[3-4]
"""


@pytest.mark.parametrize(
    ("network", "nodes"),
    [
        ("dgx:nodes=4,devices=4", "four"),
        ("dgx1:nodes=2", "eight"),
        (
            "topology.conf --beside devices_per_node=4,node_bandwidth_bytes_per_s=4e11,"
            "node_latency_ns=600,ports_per_node=4,port_bandwidth_bytes_per_s=5e10,"
            "port_latency_ns=3000,uplink_bandwidths_bytes_per_s=1e11,"
            "uplink_latencies_ns=1000",
            "four",
        ),
        ("leaf-spine:leaves=4,hosts=4 --order auto", ""),
        ("torus:4x4", ""),
    ],
    ids=["dgx", "dgx1", "slurm", "leaf-spine", "torus"],
)
def test_networks_whose_nodes_are_known_are_launched(
    cli: Cli, config: str, network: str, nodes: str
) -> None:
    """From arguments and from a file; the machine has eight devices in a node."""
    Path("topology.conf").write_text(SLURM)
    model = f"--model {config} --cluster h100x16 {SMALL} --topology {network}"
    solve = f"solve {model} --solver random --target megatron --launch"
    cli.succeeds(f"problems {model} -o p.json")
    again = "solve p.json --solver random --target megatron -o plan.json --launch"
    if not nodes:
        for command in (solve, again):
            assert "a network that groups the devices" in cli.refuses(command)
        return
    count = {"four": 4, "eight": 8}[nodes]
    for command in (solve, again):
        cli.succeeds(command)
        assert f"mod {count} of" in cli.out
    cli.succeeds("export p.json plan.json --to megatron -o out")
    hosts = Path("out/hostfile").read_text().splitlines()
    assert hosts == [f"node{node} slots={count}" for node in range(16 // count)]


def test_what_cannot_be_launched(cli: Cli, config: str) -> None:
    solve = "solve problem.json --solver dp --launch"
    assert cli.refuses(solve) == (
        "--launch: expected --target too, got none; add the framework that "
        "runs it, such as --target megatron"
    )
    assert "expected layers named embedding" in cli.refuses(
        f"{solve} --target megatron"
    )
    cli.succeeds(f"import hf {config} --cluster h100x4 {SMALL} -o named.json")
    text = Path("named.json").read_text()
    Path("named.json").write_text(re.sub(r',\s*"model": ".*"', "", text))
    assert cli.refuses("solve named.json --solver dp --target megatron --launch") == (
        "--launch: expected a problem that names its model, got "
        "llama-10.5m-dgx-h100x4; write the plan with -o, and pass 'nest "
        "export' its --model"
    )
    assert cli.refuses(
        f"solve --model {config} --cluster h100x4 {SMALL} --topology "
        "torus:2x2 --solver dp --target megatron --launch"
    ) == (
        "--launch: expected a network that groups the devices into nodes, got "
        "the network of llama-10.5m-dgx-h100x4, which has no nodes; write "
        "the plan with -o, and pass 'nest export' its --gpus-per-node"
    )
    full = Path("full")
    full.mkdir()
    (full / "a").touch()
    assert cli.refuses(
        f"solve --model {config} --cluster h100x4 --solver dp --target "
        "megatron --launch-dir full"
    ) == (
        "--launch-dir full: expected a new or empty directory, got one "
        "with files in it; choose another path"
    )


def test_without_a_plan_there_is_nothing_to_launch(cli: Cli, config: str) -> None:
    folder = Path("launch")
    device = machine("h100").device
    usable_bytes = device.memory_bytes - device.reserve_bytes
    size = f"{(usable_bytes - 1) / 1000:.3f}kB"
    words = ("--headroom", size, "--launch-dir", str(folder))
    assert launched(cli, config, *words) == 1
    assert cli.err.endswith("nest: launch not written: no plan to launch\n")
    assert not folder.exists()
    assert launched(cli, config, *words[:2], "--launch") == 1


def test_a_plan_that_the_export_refuses(cli: Cli, config: str) -> None:
    """It is shown, with the reason, and the exit code says so."""
    solve = f"--cluster h100x4 {SMALL} --solver dp --target torchtitan --launch"
    cli.succeeds(f"solve --model {config} {solve}")
    assert 'custom_import = "nest_model"' in cli.out
    assert 'register_train_spec("nest", spec)' in cli.out
    model = {**json.loads(Path(config).read_text()), "attention_bias": True}
    Path("biased.json").write_text(json.dumps(model))
    assert cli(f"solve --model biased.json {solve}") == 1
    assert "proof      optimal" in cli.out
    assert "no launch: model: attention.biases: expected False" in cli.out


def test_the_screen_of_an_unproven_plan(cli: Cli, config: str) -> None:
    cli.succeeds(
        f"solve --model {config} --cluster h100x4 {SMALL} --solver random "
        "--target megatron --launch"
    )
    assert "nothing proven, feasible under --target megatron" in cli.out


def test_a_problem_of_a_target(cli: Cli, config: str) -> None:
    """It is the one that the plan of 'nest solve' belongs to."""
    model = f"--model {config} --cluster h100x4 {SMALL} --target megatron"
    cli.succeeds(f"problems {model} -o p.json")
    assert read_problem("p.json").job.optimizer.gradient_bytes == 4
    cli.succeeds(f"solve {model} --solver dp -o plan.json")
    cli.succeeds("score p.json plan.json")
    assert cli.err == ""
