"""``nest export``, and ``nest import`` of what frameworks start with."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from nest.constraints.targets import for_target
from nest.cost.score import score
from nest.ir import Plan, Stage, Strategy, read_plan, read_problem, write
from nest.ir.io import problem_hash
from nest.models import builtin
from nest.requests.problems import ProblemRequest
from nest.validation.complete import complete
from nest.validation.predict import PredictedRun, predicted_run
from nest.validation.rows import Row
from tests.builders import with_device
from tests.chakra import replay
from tests.cli.conftest import Cli
from tests.unit.frameworks.test_launch_configs import NEMO

SMALL = ("gpt2", "h100x2")
FOR_SMALL = f"--model {SMALL[0]} --cluster {SMALL[1]}"


def plan_of_16(recompute="none"):
    """Return a plan of llama2-7b-16 whose second stage may recompute.

    Megatron runs only plans whose stages do the same.
    """
    names = [layer.id for layer in builtin.load("llama2-7b-16").graph.layers]
    first, second = (Strategy(dp=8, zero=1, recompute=x) for x in ("none", recompute))
    stages = (Stage.of(names[:17], [first] * 17), Stage.of(names[17:], [second] * 17))
    return Plan(replicas=1, micro_batch=8, stages=stages)


@pytest.fixture(scope="module")
def plans(tmp_path_factory):
    """Write a plan that Megatron can run, and one that it cannot."""
    folder = tmp_path_factory.mktemp("plans")
    paths = {"plan": str(folder / "plan.json"), "mixed": str(folder / "mixed.json")}
    write(paths["plan"], plan_of_16())
    write(paths["mixed"], plan_of_16(recompute="full"))
    return paths


def test_plans_of_other_problems_are_refused(
    cli: Cli, plans: dict[str, str], tmp_path: Path
) -> None:
    """Those of the problem under the target are its own."""
    problem = builtin.load("llama2-7b-16")
    plan = read_plan(plans["plan"])
    arguments = "export llama2-7b-16 plan.json"
    own = problem_hash(problem)
    write("plan.json", replace(plan, problem_hash="f" * 64))
    for target, known in (("megatron", "megatron"), ("chakra", None)):
        with_it = f"--target {known}" if known else "any --target"
        assert cli.refuses(f"{arguments} -o out --to {target}") == (
            f"plan: expected one that was made for problem {own[:12]}, or for "
            f"it with {with_it}, got one for ffffffffffff; pass the problem "
            f"that it was solved for, with its target or none, or remove "
            f"problem_hash from the plan"
        )
        assert not Path("out").exists()
    there = problem_hash(for_target(problem, "megatron"))
    for number, known in enumerate((own, there)):
        write("plan.json", replace(plan, problem_hash=known))
        folder = str(tmp_path / str(number))
        cli.succeeds(f"{arguments} -o {folder} --to megatron")


@pytest.fixture(scope="module")
def made_for(tmp_path_factory):
    """A plan of a model, as solved for each of some targets."""
    folder = tmp_path_factory.mktemp("made-for")
    found = {}
    for target in ("any", "megatron", "torchtitan"):
        request = ProblemRequest(model=SMALL[0], cluster=SMALL[1], target=target)
        problem = request.find_problem()
        layers = [layer.id for layer in problem.graph.layers]
        stage = Stage.of(layers, [Strategy(dp=2)] * len(layers))
        plan = Plan(replicas=1, micro_batch=2, stages=(stage,))
        found[target] = str(folder / f"{target}.json")
        write(found[target], replace(plan, problem_hash=problem_hash(problem)))
    return found


@pytest.mark.parametrize("nearest", ["", "--nearest"])
def test_plans_of_a_model_that_knew_no_target_are_exported(
    cli: Cli, made_for: dict[str, str], nearest
) -> None:
    """Gradients are of 2 bytes then, and of 4 by Megatron's default."""
    cli.succeeds(f"export {FOR_SMALL} {made_for['any']} --to megatron {nearest} -o out")
    assert Path("out/args.sh").exists()


def test_a_plan_without_a_target_is_none_of_the_problem_of_one(
    cli: Cli, made_for: dict[str, str]
) -> None:
    """A file has no options: that of the target is another problem."""
    cli.succeeds(f"problems {FOR_SMALL} --target megatron -o problem.json")
    words = "--to megatron --nearest -o out"
    said = cli.refuses(f"export problem.json {made_for['any']} {words}")
    own, other = (
        read_plan(made_for[name]).problem_hash for name in ("megatron", "any")
    )
    assert said == (
        f"plan: expected one that was made for problem {own[:12]}, or for it "
        f"with --target megatron, got one for {other[:12]}; pass the problem "
        f"that it was solved for, with its target or none, or remove "
        f"problem_hash from the plan"
    )
    cli.succeeds(f"export problem.json {made_for['megatron']} {words}")


def test_plans_for_another_target_are_refused_by_its_name(
    cli: Cli, made_for: dict[str, str]
) -> None:
    arguments = f"export {FOR_SMALL} {made_for['torchtitan']} --nearest"
    assert cli.refuses(f"{arguments} --to megatron -o out") == (
        "plan: expected one of this problem, or of it with --target "
        "megatron, got another: the plan was made with --target torchtitan; "
        "solve with --target megatron"
    )


@pytest.mark.parametrize(
    ("known", "target", "why"),
    [
        (
            *("megatron", ""),
            "with --target megatron; run 'nest simulate … --target megatron'",
        ),
        (*("any", "--target megatron"), "without --target megatron; leave that out"),
        (
            *("megatron", "--target torchtitan"),
            "with --target megatron; run 'nest simulate … --target megatron'",
        ),
        (
            *("megatron", "--schedule any"),
            "with --target megatron and without --schedule any; run 'nest "
            "simulate … --target megatron' and leave that out",
        ),
    ],
)
def test_a_warning_of_another_problem_names_the_target(
    cli: Cli, made_for: dict[str, str], known: str, target, why: str
) -> None:
    cli(f"simulate {FOR_SMALL} {made_for[known]} {target}")
    assert f"the plan was made {why}" in " ".join(cli.err.split())


def test_a_plan_for_the_target_is_no_stranger(
    cli: Cli, made_for: dict[str, str]
) -> None:
    cli(f"simulate {FOR_SMALL} {made_for['megatron']} --target megatron")
    assert "warning: the plan was made" not in cli.err


def test_traces_of_any_plan_take_the_simulated_step(cli: Cli, plans):
    out = Path("out")
    arguments = f"llama2-7b-16 {plans['mixed']}"
    cli.succeeds(f"export {arguments} --to chakra -o out")
    assert cli.out == (out / "README").read_text()
    assert cli.out.count("\n") == 3
    assert "Block 0 is devices 0-7, 1 is devices 8-15." in cli.out
    names = sorted(path.name for path in out.iterdir())
    assert names == ["README", "trace.0.et", "trace.1.et"]
    files = {name: (out / name).read_bytes() for name in names[1:]}
    step_ns = cli.document(f"simulate {arguments}")["simulated_step_time_ns"]
    assert replay(files).end == step_ns * 1000


def test_traces_of_infeasible_plans_say_so(cli: Cli, plans):
    problem = builtin.load("llama2-7b-16")
    write(Path("small.json"), with_device(problem, memory_bytes=4 * 10**9))
    cli.succeeds(f"export small.json {plans['plan']} --to chakra -o out")
    assert cli.err.count("nest: warning: the plan is infeasible: stage") == 2


def test_export_and_import_score_the_same(cli: Cli, plans):
    out = Path("out")
    cli.succeeds(f"export llama2-7b-16 {plans['plan']} --to megatron -o out")
    assert sorted(path.name for path in out.iterdir()) == [
        "README",
        "args.sh",
        "hostfile",
    ]
    assert cli.out == (out / "README").read_text()
    assert cli.out.count("\n") == 3
    cli.succeeds(
        f"import megatron-args {out / 'args.sh'} --cluster dgx-a100x16 -o back.json"
    )
    assert cli.err == (
        "nest: note: not in the script, so Megatron-LM's defaults: "
        "--recompute-granularity\n"
        "nest: note: kernels are those of Megatron-LM; --software names others\n"
    )
    found = read_plan("back-plan.json")
    before = score(builtin.load("llama2-7b-16"), read_plan(plans["plan"]))
    after = score(read_problem("back.json"), found)
    assert after.step_time_ns == before.step_time_ns
    assert after.blocks == before.blocks


def test_the_nearest_plan_is_written_with_its_price(cli, plans):
    cli.succeeds(f"export llama2-7b-16 {plans['mixed']} --to megatron -o out --nearest")
    first = cli.out.splitlines()[0]
    assert first.startswith("nearest plan: step time ")
    assert " s as planned, " in first
    plan = read_plan(Path("out") / "plan.json")
    assert len({stage.strategy for stage in plan.stages}) == 1
    # It says what score says of both.
    problem = builtin.load("llama2-7b-16")
    for path, words in ((plans["mixed"], "as planned"), (None, "as written")):
        found = read_plan(path) if path else plan
        seconds = score(problem, found).step_time_ns / 1e9
        assert f"{seconds:.6g} s {words}" in first


def test_a_problem_keeps_its_model(cli: Cli, config: str) -> None:
    """Of a file; one that it cannot read, or of other work, is none of it."""
    cli.succeeds(f"import hf {config} --cluster h100x4 --global-batch 8 -o p.json")
    cli.succeeds("solve p.json --solver random --target megatron -o plan.json")
    export = "export p.json plan.json --to megatron -o"
    cli.succeeds(f"{export} out")
    cli.succeeds(f"{export} other --model {config}")
    for name in ("args.sh", "hostfile"):
        assert (Path("out") / name).read_text() == (Path("other") / name).read_text()
    plan = json.loads(Path("plan.json").read_text())
    del plan["problem_hash"]
    Path("plan.json").write_text(json.dumps(plan))
    problem = json.loads(Path("p.json").read_text())
    hidden = json.loads(problem["model"])
    hidden["head"]["outputs"] *= 2
    for text in ("{", "[]", json.dumps(hidden)):
        Path("p.json").write_text(json.dumps({**problem, "model": text}))
        assert "expected the model of" in cli.refuses(f"{export} third")


@pytest.mark.parametrize("limit", [-0.01, 0.01])
def test_a_large_loss_points_at_the_target(cli, plans, limit, monkeypatch):
    """The plan itself is the nearest one, and loses nothing."""
    monkeypatch.setattr("nest.frameworks.nearest.LARGE_LOSS", limit)
    cli.succeeds(f"export llama2-7b-16 {plans['plan']} --to megatron --nearest -o out")
    note = "'nest solve --target megatron' finds the fastest plan that megatron can run"
    assert (note in cli.err) == (limit < 0)


def test_plans_that_do_not_fit_are_written_with_a_warning(cli):
    names = [layer.id for layer in builtin.load("llama2-7b-16").graph.layers]
    plan = Plan(
        replicas=1,
        micro_batch=8,
        stages=(Stage.of(names, [Strategy(dp=8)] * len(names)),),
    )
    write("plan.json", plan)
    cli.succeeds("export llama2-7b-16 plan.json --to megatron -o out")
    assert "nest: warning: the plan is infeasible: stage 1" in cli.err


def test_scripts_of_deepspeed_bring_their_configuration(cli):
    Path("run.sh").write_text(
        "deepspeed --num_nodes 1 --num_gpus 8 pretrain_gpt.py --num-layers 24 "
        "--hidden-size 2048 --num-attention-heads 16 --seq-length 2048 "
        "--vocab-size 50257 --tensor-model-parallel-size 2 --fp16 "
        "--no-pipeline-parallel --deepspeed --deepspeed_config own.json\n"
    )
    Path("own.json").write_text(
        json.dumps(
            {
                "train_batch_size": 64,
                "train_micro_batch_size_per_gpu": 2,
                "fp16": {"enabled": True},
                "zero_optimization": {"stage": 2},
            }
        )
    )
    arguments = "import deepspeed run.sh -o p.json --cluster"
    cli.succeeds(f"{arguments} dgx-a100x8")
    assert read_plan("p-plan.json").stages[0].strategy == Strategy(dp=4, tp=2, zero=2)
    assert cli.refuses(f"{arguments} dgx-a100x16") == (
        "run.sh:1: --num_gpus 8 and run.sh:1: --num_nodes 1: expected "
        "the 16 devices of --cluster, got 8; name a cluster of 8 devices"
    )


@pytest.mark.parametrize(
    ("target", "notes"),
    [
        ("megatron", ""),
        (
            "torchtitan",
            "nest: note: with torchtitan, optimizer.gradient_bytes is 4, not "
            "2\nnest: note: with torchtitan, optimizer.state_bytes is 10, not "
            "12\n",
        ),
        (
            "maxtext",
            "nest: note: with maxtext, schedule is gpipe, not 1f1b\n"
            "nest: note: with maxtext, optimizer.state_bytes is 10, not 12\n",
        ),
    ],
)
def test_what_is_solved_for_a_target_is_exported(cli, target, notes):
    cli.succeeds(f"solve llama2-7b-16 --solver dp --target {target} -o plan.json")
    cli.succeeds(f"export llama2-7b-16 plan.json --to {target} -o out")
    assert cli.err == notes


DEEPSEEK = {
    "model_type": "deepseek_v3",
    "vocab_size": 1280,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 5,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 64,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "max_position_embeddings": 512,
    "num_nextn_predict_layers": 2,
}


def test_modules_of_predictions_there_and_back(cli: Cli):
    """Imported, solved for Megatron on 4 stages, exported, imported again."""
    Path("config.json").write_text(json.dumps(DEEPSEEK))
    problem = "--mtp --cluster h100x8 --software Megatron-LM --overlap none"
    cli.succeeds(f"import hf config.json {problem} -o problem.json")
    solve = "solve problem.json --solver dp --target"
    cli.succeeds(f"{solve} megatron --pin pp=4 -o plan.json")
    export = "export problem.json plan.json --model config.json --to"
    cli.succeeds(f"{export} megatron -o out")
    args = Path("out/args.sh").read_text()
    assert "  --mtp-num-layers 2\n" in args
    (layout,) = (
        line.split()[1].strip("'")
        for line in args.splitlines()
        if "pipeline-model-parallel-layout" in line
    )
    assert layout.count("|") == 3
    assert re.search(r"m\*2\|?L$", layout)
    cli.succeeds("import megatron-args out/args.sh --cluster h100x8 -o back.json")
    scores = [
        score(read_problem(f"{problem}.json"), read_plan(f"{plan}.json"))
        for problem, plan in (("problem", "plan"), ("back", "back-plan"))
    ]
    assert scores[0].step_quanta == scores[1].step_quanta
    for target in ("torchtitan", "deepspeed", "maxtext"):
        said = cli.refuses(f"{solve} {target}")
        assert said.startswith(f"target {target}: expected no layers of kind")
        for option in ("", "--nearest"):
            assert cli(f"{export} {target} -o {target} {option}") == 2
            line = cli.err.splitlines()[-1]
            assert "expected no layers of kind 'mtp'" in line
        assert not Path(target).exists()


SCRIPT = (
    "GPUS=8\nPP=16\ntorchrun --nproc_per_node $GPUS pretrain_gpt.py "
    "--num-layers 96 --hidden-size 12288 --num-attention-heads 96 "
    "--seq-length 2048 --micro-batch-size 1 --global-batch-size 1536 "
    "--tensor-model-parallel-size 8 --bf16 "
    "--pipeline-model-parallel-size $PP --overlap-grad-reduce\n"
)


@pytest.fixture
def script(tmp_path):
    (tmp_path / "run.sh").write_text(SCRIPT)
    return "run.sh"


def test_what_a_script_does_not_say_is_asked_for(cli, script):
    arguments = (
        f"import megatron-args {script} --cluster dgx-a100x128 -o p.json --set GPUS=128"
    )
    text = Path(script).read_text()
    Path(script).write_text(text.replace("--seq-length 2048", ""))
    assert cli.refuses(f"{arguments} --say vocab-size=50272") == (
        f"{script}: --seq-length: expected a value, got none; add it, or pass "
        f"--say seq-length=N"
    )
    Path(script).write_text(text)
    # GPT-3 and OPT of 175 billion weights have other vocabularies.
    assert cli.refuses(arguments) == (
        f"{script}: --vocab-size: expected the size of the vocabulary, got none; pass "
        f"--say vocab-size=N"
    )
    cli.succeeds(f"{arguments} --say vocab-size=50272")
    assert "overlap of gradients: how much of it hides is not in" in cli.err
    plan = read_plan("p-plan.json")
    assert (plan.num_blocks, plan.overlap) == (16, ("gradients",))
    cli.succeeds(f"{arguments} --say vocab-size=50257 --overlap gradients=0.9")
    plan = read_plan("p-plan.json")
    assert (plan.num_blocks, plan.overlap) == (16, ("gradients",))


def test_a_file_runs_with_the_kernels_of_its_software(cli: Cli) -> None:
    """As a row does; compiled where file, option or software says so."""
    job = (
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nlocal_batch_size = 1\n'
        "global_batch_size = 8\nseq_len = 8192\n[activation_checkpoint]\n"
        'mode = "none"\n'
    )
    read = "import torchtitan job.toml --cluster dgx-h100x8 -o"
    times_ns = {}
    for name, text, options in (
        ("eager", job, ""),
        ("said", job, "--say compile.enable=true"),
        ("file", f"{job}[compile]\nenable = true\n", ""),
        ("named", job, "--software 'torchtitan, torch.compile'"),
    ):
        Path("job.toml").write_text(text)
        cli.succeeds(f"{read} {name}.json {options}")
        assert ("kernels are those of" in cli.err) == (name != "named")
        problem = read_problem(f"{name}.json")
        compiled = ", compiled" * (name != "eager")
        assert problem.software == f"torchtitan{compiled}"
        times_ns[name] = score(problem, read_plan(f"{name}-plan.json")).step_time_ns
    run = complete(
        Row(
            framework="torchtitan",
            model="llama3-8b",
            hardware="H100-80GB-SXM",
            precision_class="bf16",
            recompute="none",
            **dict.fromkeys(
                ("num_devices", "dp", "global_batch", "devices_per_node"), 8
            ),
            **dict.fromkeys(("tp", "pp", "micro_batch"), 1),
            **{"seq_len": 8192, "zero_stage": 3},
        )
    )
    predicted = predicted_run(run)
    assert isinstance(predicted, PredictedRun)
    assert times_ns["eager"] == predicted.verdict.step_time_ns
    assert times_ns["said"] == times_ns["file"] == times_ns["named"]
    assert times_ns["named"] < times_ns["eager"]
    cli.succeeds(f"{read} p.json --software tochtitan")
    assert "'tochtitan' is not known, did you mean 'torchtitan'?" in cli.err
    said = cli.refuses(f"{read} p.json --software NeMo")
    assert said.startswith("--software: expected one that runs plans for torchtitan")


def test_job_files_and_configurations_become_problems(cli):
    Path("job.toml").write_text(
        '[model]\nname = "llama3"\nflavor = "8B"\n[training]\nbatch_size = 2\n'
        'seq_len = 4096\n[activation_checkpoint]\nmode = "full"\n'
    )
    cli.succeeds("import torchtitan job.toml --cluster dgx-h100x8 -o p.json")
    plan = read_plan("p-plan.json")
    assert plan.stages[0].strategy == Strategy(dp=8, zero=3, recompute="full")
    Path("ds.json").write_text(
        json.dumps(
            {
                "train_batch_size": 64,
                "gradient_accumulation_steps": 4,
                "zero_optimization": {"stage": 1},
                "bf16": {"enabled": True},
            }
        )
    )
    arguments = "import deepspeed ds.json --cluster dgx-h100x8 -o p.json"
    assert cli.refuses(f"{arguments} --sequence-length 4096").startswith(
        "--model: expected a value"
    )
    cli.succeeds(f"{arguments} --model llama3-8b --sequence-length 4096")
    plan = read_plan("p-plan.json")
    assert plan.stages[0].strategy == Strategy(dp=8, zero=1)
    assert plan.micro_batch == 16
    # DeepSpeed splits tensors without sequences, other frameworks both.
    assert read_problem("p.json").job.sequence_parallel == (False, True)
    for target in ("deepspeed", "megatron"):
        cli.succeeds(f"solve p.json --pin tp=2,pp=1,zero=1 --target {target}")
        assert "TP 2 · PP 1" in cli.out


def test_configurations_are_imported(cli: Cli):
    """NeMo says its 16 devices, but not the vocabulary."""
    path, back = Path("gpt.yaml"), Path("back.json")
    path.write_text(NEMO)
    arguments = (
        "import megatron-args gpt.yaml --cluster dgx-h100x16 -o "
        "back.json --say model.ffn_hidden_size=512"
    )
    message = cli.refuses(arguments)
    assert "--vocab-size: expected the size of the vocabulary, got none" in message
    cli.succeeds(f"{arguments} --say vocab-size=1024")
    assert back.exists()
    assert "not in the file, so NeMo's defaults: " in cli.err
    plan = read_plan("back-plan.json")
    assert plan.stages[0].strategy == Strategy(dp=4, tp=2, zero=1, recompute="full")
    assert score(read_problem(back), plan).step_quanta > 0
