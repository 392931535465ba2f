"""Models and clusters on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nest.hardware import machine
from nest.ir import encode, read_plan, read_problem
from nest.models.choices import Request, choose
from nest.models.graphs import build_problem
from nest.models.hf import read_hf
from nest.models.zoo import architecture, names
from tests.cli.conftest import SMALL, Cli

#: The key of costs on one device, of one sample.
ONE_DEVICE = (1, 1, 1, 0, False, 1)


def test_compare_a_model_on_a_cluster(cli: Cli, config: str) -> None:
    """Three exact solvers agree; 60 s each unless said otherwise."""
    arguments = f"compare --model {config} --cluster h100x4 {SMALL}"
    document = cli.document(f"{arguments} --time-limit 600 --verbose")
    times = {cell["step_time_ns"] for cell in document["cells"]}
    assert [cell["status"] for cell in document["cells"]] == ["optimal"] * 3
    assert max(times) == pytest.approx(min(times), rel=1e-6)
    assert "time limit 600 s" in cli.err
    cli.succeeds(f"{arguments} --solvers dp --verbose")
    assert "time limit 60 s" in cli.out


def test_answers_say_what_nobody_chose(cli: Cli, config: str) -> None:
    """Neither on the command line nor by a pin."""
    arguments = f"solve --model {config} --cluster h100x4"
    arguments = f"{arguments} --solver dp --layers-per-node 2"
    batch = "batch 4096 (--global-batch), "
    sizes = "micro-batches 1,2,4,8 (--micro-batches), "
    length = "sequence 1024 (--sequence-length), "
    cli.succeeds(arguments)
    assert f" assumed {length}{batch}{sizes}cp 1 (--cp)" in " ".join(cli.out.split())
    chosen = f"{arguments} --sequence-length 8192 --cp 1,2"
    cli.succeeds(f"{chosen} --pin b=1")
    assert "\nassumed    batch 512 (--global-batch)\n" in cli.out
    cli.succeeds(f"{chosen} --global-batch 4 --micro-batches 1,2")
    assert "assumed" not in cli.out
    cli.succeeds("solve llama2-7b-8 --solver dp --gap 0.5")
    assert "assumed" not in cli.out


def test_a_length_that_a_model_fixes_is_no_default(cli: Cli) -> None:
    """Images of 257 tokens."""
    cli.succeeds("solve --model vit-large --cluster h100x2 --solver dp --gap 0.5")
    assert "\nassumed    batch " in cli.out


SEQUENCES = (
    "--global-batch 32 --micro-batches 32 --tp 1,2 --zero 0 "
    "--recompute none --sequence-length 1024"
)


def test_plans_choose_where_sequences_are_split(cli: Cli, config: str) -> None:
    """Whole ones are faster here; split ones need less memory."""
    arguments = (
        f"solve --model {config} --cluster h100x2 {SEQUENCES} "
        "--solver dp --pin tp=2 -o plan.json"
    )
    both = f"{arguments} --sequence-parallel on,off"
    cli.succeeds(f"{both} --verbose")
    assert "tp2 " in cli.out
    assert "·sp" not in cli.out
    cli.succeeds(f"{both} --headroom 95% --verbose")
    assert "tp2·sp" in cli.out
    assert {
        strategy.sequence_parallel
        for stage in read_plan("plan.json").stages
        for strategy in stage.layer_strategies
    } == {True}
    cli.succeeds(f"{arguments} --sequence-parallel on")
    assert "·sp" not in cli.out
    cli.succeeds(
        f"problems --model {config} --cluster h100x2 {SEQUENCES} "
        "--sequence-parallel on,off -o problem.json"
    )
    assert read_problem("problem.json").job.sequence_parallel == (False, True)
    cli.succeeds("check problem.json")
    assert "sequence parallelism or none" in cli.out


T5 = {
    "d_ff": 1024,
    "d_kv": 64,
    "d_model": 512,
    "model_type": "t5",
    "n_positions": 128,
    "num_heads": 8,
    "num_layers": 3,
    "vocab_size": 1024,
}

TOWER = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_attention_heads": 8,
    "num_hidden_layers": 2,
}

CLIP = {
    "model_type": "clip",
    "text_config": {**TOWER, "vocab_size": 1024},
    "vision_config": {**TOWER, "hidden_size": 1024, "patch_size": 14},
}


@pytest.mark.parametrize(("model", "width"), [(T5, 10), (CLIP, 7)])
def test_solvers_agree_on_branches(cli: Cli, model: dict[str, Any], width: int) -> None:
    """An encoder-decoder, and two towers, cut into pipelines of 4 devices.

    One replica and one sample leave no other use of the devices.
    """
    path, problem = Path("config.json"), Path("problem.json")
    path.write_text(json.dumps(model))
    arguments = (
        "import hf config.json --cluster h100x4 --global-batch 8 "
        "--micro-batches 1 --tp 1"
    )
    cli.succeeds(f"{arguments} -o problem.json")
    document = json.loads(problem.read_text())
    assert len(document["graph"]["layers"]) == width
    document["job"]["replicas"] = [1]
    problem.write_text(json.dumps(document))
    cells = cli.document("compare problem.json --solvers dp,cpsat,brute")["cells"]
    assert [cell["status"] for cell in cells] == ["optimal"] * 3
    assert len({cell["step_time_ns"] for cell in cells}) == 1
    assert len(cells[0]["plan"]["stages"]) > 1


def test_solve_a_model_of_the_zoo(cli: Cli) -> None:
    """The plan fits the problem that 'nest problems' writes."""
    arguments = "--model gpt2 --cluster a100x2 --tp 1"
    cli.succeeds(f"problems {arguments} -o p.json")
    cli.succeeds(f"solve {arguments} --solver dp -o plan.json")
    assert read_plan("plan.json").micro_batch >= 1
    cli.succeeds("score p.json plan.json")
    assert "fits       yes, " in cli.out
    assert cli.err == ""


def test_problems_writes_what_python_builds(cli: Cli) -> None:
    model, site = architecture("llama3-70b"), machine("h100")
    built = build_problem(model, site, 64, choose(model, site, 64))
    cli.succeeds("problems --model llama3-70b --cluster h100x64")
    assert cli.out.encode() == encode(built)


def test_options_reach_the_problem(cli: Cli) -> None:
    arguments = (
        "--model mixtral-8x7b --cluster h100x16 --global-batch 48 "
        "--sequence-length 2048 --micro-batches 3 --tp 2,4 --cp "
        "1,2 --ep 8 --zero 1,3 --recompute selective "
        "--layers-per-node 8 --dtype fp8 --virtual-stages 1,2"
    )
    cli.succeeds(f"problems {arguments} -o problem.json")
    problem = read_problem("problem.json")
    job = problem.job
    assert (job.global_batch, job.sequence_length) == (48, 2048)
    assert (job.micro_batches, job.zero) == ((3,), (1, 3))
    assert (job.recompute, job.dtype) == (("selective",), "fp8")
    assert job.virtual_stages == (1, 2)
    assert len(problem.graph.layers) == 4 + 2
    assert {cost.key for cost in problem.graph.kinds[0].costs} == {
        (tp, cp, 8, 0, False, samples)
        for tp in (2, 4)
        for cp in (1, 2)
        for samples in (1, 3)
    }


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "dualpipe-v"])
def test_schedules_that_split_the_backward_pass(cli: Cli, schedule: str) -> None:
    """Costs then say what gradients of weights take, and none recomputes
    fully by default."""
    arguments = "problems --model llama2-7b --cluster h100x8"
    cli.succeeds(f"{arguments} --schedule {schedule} -o p.json")
    cli.succeeds(f"{arguments} -o plain.json")
    problem = read_problem("p.json")
    assert problem.job.schedule == schedule
    assert problem.job.recompute == ("none", "selective")
    for kind in problem.graph.kinds:
        for cost in kind.costs:
            assert cost.weight_backward_ns is not None
            assert cost.weight_backward_ns <= cost.backward_ns / 2
    for kind in read_problem("plain.json").graph.kinds:
        assert {cost.weight_backward_ns for cost in kind.costs} == {None}


def test_import_hf(cli: Cli, config: str) -> None:
    """Named after its family and size; as built in Python."""
    arguments = f"import hf {config} --cluster h200x8 -o problem.json"
    cli.succeeds(f"{arguments} --micro-batches 1,2,4 --tp 1,4")
    problem = read_problem("problem.json")
    assert problem.name == "llama-10.5m-h200x8"
    model, site = read_hf(config), machine("h200")
    request = Request(micro_batches=(1, 2, 4), tp=(1, 4))
    assert problem == build_problem(model, site, 8, choose(model, site, 8, request))


def test_lists(cli: Cli) -> None:
    cli.succeeds("problems --models")
    for name in names():
        assert f"{name} " in cli.out
    models = {m["name"]: m for m in cli.document("problems --models")["models"]}
    assert tuple(models) == names()
    assert models["mixtral-8x7b"]["parameters"] == 46_702_792_704
    assert models["mixtral-8x7b"]["active_parameters"] == 12_879_925_248
    cli.succeeds("problems --clusters")
    assert "dgx-h100" in cli.out
    sites = {m["name"]: m for m in cli.document("problems --clusters")["machines"]}
    assert sites["dgx-h100"]["node_size"] == 8


# Profiles


def measured(problem: Any, device: str) -> dict[str, Any]:
    """Return a profile of the decoder layer, ten times slower."""
    (cost,) = (
        cost
        for kind in problem.graph.kinds
        if kind.name == "decoder"
        for cost in kind.costs
        if cost.key == ONE_DEVICE
    )
    return {
        "schema": "nest-profile/1",
        "source": "test",
        "device": device,
        "framework": "PyTorch",
        "dtype": "bf16",
        "entries": [
            {
                "model": "tiny",
                "kind": "decoder",
                "samples": 1,
                "sequence_length": 1024,
                "forward_ns": 10 * cost.forward_ns,
                "backward_ns": 10 * cost.backward_ns,
                "weight_bytes": cost.weight_bytes,
            }
        ],
    }


def test_profiles_are_preferred(cli: Cli, config: str) -> None:
    """A layer measured at ten times its cost; nodes of two take twice it."""
    model, site = read_hf(config), machine("h100")
    plain = build_problem(model, site, 4, choose(model, site, 4))
    profile = Path("profile.json")
    profile.write_text(json.dumps(measured(plain, "H100-80GB-SXM")))
    arguments = f"import hf {config} --cluster h100x4 --profile profile.json -o p.json"

    def forward_ns(problem: Any) -> float:
        (kind,) = (k for k in problem.graph.kinds if k.name == "decoder")
        (cost,) = (c for c in kind.costs if c.key == ONE_DEVICE)
        return float(cost.forward_ns)

    one = forward_ns(plain)
    cli.succeeds(arguments)
    assert forward_ns(read_problem("p.json")) == pytest.approx(10 * one)
    assert "layer costs measured" in read_problem("p.json").source
    cli.succeeds(f"{arguments} --layers-per-node 2")
    assert forward_ns(read_problem("p.json")) == pytest.approx(20 * one)

    profile.write_text(json.dumps(measured(plain, "A100-80GB-SXM")))
    said = cli.refuses(arguments)
    assert said.startswith("profile.json: device: expected 'H100-80GB-SXM', as")


# Bad input


def test_text_models_are_imported_with_a_note(cli: Cli) -> None:
    path = Path("gemma.json")
    inside = {"model_type": "gemma3_text", "num_hidden_layers": 2}
    path.write_text(json.dumps({"model_type": "gemma3", "text_config": inside}))
    cli.succeeds("import hf gemma.json --cluster h100x8 -o p.json")
    defaults, note = cli.err.splitlines()
    assert defaults.startswith("nest: note: gemma.json: assumed: sequence 8192 ")
    assert note == "nest: note: gemma.json: the text model of gemma3 alone"


def test_other_answers_say_what_nobody_chose_too(cli: Cli, config: str) -> None:
    """Comparisons, frontiers, sizes and imports; files say what they have."""
    defaults = (
        "sequence 1024 (--sequence-length), batch 4096 "
        "(--global-batch), micro-batches 1,2,4,8 (--micro-batches), cp 1 "
        "(--cp)"
    )
    model = ("--model", config, "--cluster", "h100x4")
    model = (*model, "--layers-per-node", "2")
    for command in (
        ("compare", *model, "--solvers", "dp"),
        ("pareto", *model),
        ("fit", *model, "--within", "1000"),
    ):
        cli.succeeds(*command)
        said = " ".join(cli.out.split())
        assert defaults in said.partition("assumed")[2]
    cli.succeeds(*command, "--micro-batches", "1,2", "--sequence-length", "1024")
    said = "           batch 4096 (--global-batch), cp 1 (--cp)"
    assert said in cli.out.splitlines()
    cli.succeeds(f"import hf {config} --cluster h100x4 -o problem.json")
    assert f"nest: note: {config}: assumed: {defaults}" in cli.err
    cli.succeeds("solve problem.json --solver dp --gap 0.5 -o plan.json")
    cli.succeeds("explain problem.json plan.json --no-search")
    said = " ".join(cli.out.split())
    assert "sequence 1024, batch 4096, micro-batches 1,2,4,8, cp 1" in said
