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
from nest.models.hf import from_hf
from nest.models.zoo import architecture, names
from tests.cli.conftest import Cli

#: A model that every solver is done with at once.
TINY = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "max_position_embeddings": 1024,
    "model_type": "llama",
    "num_attention_heads": 8,
    "num_hidden_layers": 4,
    "num_key_value_heads": 4,
    "vocab_size": 1024,
}

#: The key of costs on one device, of one sample.
ONE_DEVICE = (1, 1, 1, False, 1)

SMALL = (
    *("--global-batch", "8", "--micro-batches", "1,2"),
    *("--tp", "1,2", "--zero", "0,1", "--recompute", "none,full"),
)


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(TINY))
    return str(path)


def test_compare_a_model_on_a_cluster(cli: Cli, config: str) -> None:
    """Three exact solvers agree; 60 s each unless said otherwise."""
    arguments = ("compare", "--model", config, "--cluster", "h100x4", *SMALL)
    assert cli(*arguments, "--time-limit", "600", "--json", "-") == 0
    document = json.loads(cli.out)
    times = {cell["step_time_ns"] for cell in document["cells"]}
    assert [cell["status"] for cell in document["cells"]] == ["optimal"] * 3
    assert max(times) == pytest.approx(min(times), rel=1e-6)
    assert "time limit 600 s" in cli.err
    assert cli(*arguments, "--solvers", "dp") == 0
    assert "time limit 60 s" in cli.out


def test_answers_say_what_nobody_chose(cli: Cli, config: str) -> None:
    """Neither on the command line nor by a pin."""
    arguments = ("solve", "--model", config, "--cluster", "h100x4")
    arguments = (*arguments, "--solver", "dp", "--layers-per-node", "2")
    cp = "cp 1 (--cp)"
    batch = "batch 4096 (--global-batch), "
    sizes = "micro-batches 1,2,4,8 (--micro-batches), "
    length = "sequence 1024 (--sequence-length), "
    assert cli(*arguments) == 0
    assert f"\ndefaults: {length}{batch}{sizes}{cp}\n" in cli.out
    chosen = (*arguments, "--sequence-length", "8192", "--cp", "1,2")
    assert cli(*chosen, "--pin", "b=1") == 0
    assert "\ndefaults: batch 512 (--global-batch)\n" in cli.out
    assert cli(*chosen, "--global-batch", "4", "--micro-batches", "1,2") == 0
    assert "defaults" not in cli.out
    assert cli("solve", "llama2-7b-8", "--solver", "dp", "--gap", "0.5") == 0
    assert "defaults" not in cli.out


def test_a_length_that_a_model_fixes_is_no_default(cli: Cli) -> None:
    """Images of 257 tokens."""
    arguments = ("solve", "--model", "vit-large", "--cluster", "h100x2")
    assert cli(*arguments, "--solver", "dp", "--gap", "0.5") == 0
    assert "\ndefaults: batch " in cli.out


SEQUENCES = (
    *("--global-batch", "32", "--micro-batches", "32", "--tp", "1,2"),
    *("--zero", "0", "--recompute", "none", "--sequence-length", "1024"),
)


def test_plans_choose_where_sequences_are_split(
    cli: Cli, config: str, tmp_path: Path
) -> None:
    """Whole ones are faster here; split ones need less memory."""
    plan = str(tmp_path / "plan.json")
    arguments = (
        *("solve", "--model", config, "--cluster", "h100x2", *SEQUENCES),
        *("--solver", "dp", "--pin", "tp=2", "-o", plan),
    )
    both = (*arguments, "--sequence-parallel", "on,off")
    assert cli(*both) == 0
    assert "tp2 " in cli.out
    assert "·sp" not in cli.out
    assert cli(*both, "--headroom", "95%") == 0
    assert "tp2·sp" in cli.out
    found = read_plan(plan)
    assert {
        strategy.sequence_parallel
        for stage in found.stages
        for strategy in stage.layer_strategies
    } == {True}
    assert cli(*arguments, "--sequence-parallel", "on") == 0
    assert "·sp" not in cli.out
    problem = str(tmp_path / "problem.json")
    assert (
        cli(
            *("problems", "--model", config, "--cluster", "h100x2"),
            *(*SEQUENCES, "--sequence-parallel", "on,off", "-o", problem),
        )
        == 0
    )
    assert read_problem(problem).job.sequence_parallel == (False, True)
    assert cli("check", problem) == 0
    assert "sequence parallelism or none" in cli.out


def test_a_word_that_says_nothing_of_sequences_is_refused(
    cli: Cli, config: str
) -> None:
    assert (
        cli(
            *("solve", "--model", config, "--cluster", "h100x2"),
            *("--sequence-parallel", "both"),
        )
        == 2
    )
    assert (
        "--sequence-parallel: expected some of on,off, each once, separated "
        "by commas, got 'both'; for example on" in cli.err
    )


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
def test_solvers_agree_on_branches(
    cli: Cli, tmp_path: Path, model: dict[str, Any], width: int
) -> None:
    """An encoder-decoder, and two towers, cut into pipelines of 4 devices.

    One replica and one sample leave no other use of the devices.
    """
    path, problem = tmp_path / "config.json", tmp_path / "problem.json"
    path.write_text(json.dumps(model))
    arguments = (
        *("import", "hf", str(path), "--cluster", "h100x4"),
        *("--global-batch", "8", "--micro-batches", "1", "--tp", "1"),
    )
    assert cli(*arguments, "-o", str(problem)) == 0
    document = json.loads(problem.read_text())
    assert len(document["graph"]["layers"]) == width
    document["job"]["replicas"] = [1]
    problem.write_text(json.dumps(document))
    solvers = "dp,cpsat,brute"
    assert (
        cli("compare", str(problem), "--solvers", solvers, "--json", "-") == 0
    )
    cells = json.loads(cli.out)["cells"]
    assert [cell["status"] for cell in cells] == ["optimal"] * 3
    assert len({cell["step_time_ns"] for cell in cells}) == 1
    assert len(cells[0]["plan"]["stages"]) > 1


def test_solve_a_model_of_the_zoo(cli: Cli, tmp_path: Path) -> None:
    """The plan fits the problem that 'nest problems' writes."""
    arguments = ("--model", "gpt2", "--cluster", "a100x2", "--tp", "1")
    plan, problem = str(tmp_path / "plan.json"), str(tmp_path / "p.json")
    assert cli("problems", *arguments, "-o", problem) == 0
    assert cli("solve", *arguments, "--solver", "dp", "-o", plan) == 0
    assert read_plan(plan).micro_batch >= 1
    assert cli("score", problem, plan) == 0
    assert "feasible" in cli.out
    assert cli.err == ""


def test_problems_writes_what_python_builds(cli: Cli) -> None:
    model, site = architecture("llama3-70b"), machine("h100")
    built = build_problem(model, site, 64, choose(model, site, 64))
    arguments = ("--model", "llama3-70b", "--cluster", "h100x64")
    assert cli("problems", *arguments) == 0
    assert cli.out.encode() == encode(built)


def test_options_reach_the_problem(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / "problem.json")
    arguments = (
        *("--model", "mixtral-8x7b", "--cluster", "h100x16"),
        *("--global-batch", "48", "--sequence-length", "2048"),
        *("--micro-batches", "3", "--tp", "2,4", "--cp", "1,2"),
        *("--ep", "8", "--zero", "1,3", "--recompute", "selective"),
        *("--layers-per-node", "8", "--dtype", "fp8"),
        *("--virtual-stages", "1,2"),
    )
    assert cli("problems", *arguments, "-o", path) == 0
    problem = read_problem(path)
    job = problem.job
    assert (job.global_batch, job.sequence_length) == (48, 2048)
    assert (job.micro_batches, job.zero) == ((3,), (1, 3))
    assert (job.recompute, job.dtype) == (("selective",), "fp8")
    assert job.virtual_stages == (1, 2)
    assert len(problem.graph.layers) == 4 + 2
    assert {cost.key for cost in problem.graph.kinds[0].costs} == {
        (tp, cp, 8, False, samples)
        for tp in (2, 4)
        for cp in (1, 2)
        for samples in (1, 3)
    }


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "dualpipe-v"])
def test_schedules_that_split_the_backward_pass(
    cli: Cli, tmp_path: Path, schedule: str
) -> None:
    """Costs then say what gradients of weights take, and none recomputes
    fully by default."""
    path, plain = str(tmp_path / "p.json"), str(tmp_path / "plain.json")
    arguments = ("problems", "--model", "llama2-7b", "--cluster", "h100x8")
    assert cli(*arguments, "--schedule", schedule, "-o", path) == 0
    assert cli(*arguments, "-o", plain) == 0
    problem = read_problem(path)
    assert problem.job.schedule == schedule
    assert problem.job.recompute == ("none", "selective")
    for kind in problem.graph.kinds:
        for cost in kind.costs:
            assert cost.weight_backward_ns is not None
            assert cost.weight_backward_ns <= cost.backward_ns / 2
    for kind in read_problem(plain).graph.kinds:
        assert {cost.weight_backward_ns for cost in kind.costs} == {None}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            ("--virtual-stages", "1,2"),
            "--virtual-stages: expected [2] with schedule 'zb-v', got [1, 2]; "
            "only '1f1b' can be interleaved",
        ),
        (
            ("--recompute", "none,full"),
            "--recompute: expected 'none' or 'selective' with schedule "
            "'zb-v', got ['none', 'full']; what 'full' computes again is "
            "needed until weights have their gradients",
        ),
    ],
)
def test_what_a_schedule_does_not_allow_is_refused(
    cli: Cli, options: tuple[str, ...], text: str
) -> None:
    arguments = ("problems", "--model", "llama2-7b", "--cluster", "h100x8")
    assert cli.refuses(*arguments, "--schedule", "zb-v", *options) == text


def test_import_hf(cli: Cli, config: str, tmp_path: Path) -> None:
    """Named after its folder; as built in Python."""
    path = str(tmp_path / "problem.json")
    arguments = ("import", "hf", config, "--cluster", "h200x8", "-o", path)
    assert cli(*arguments, "--micro-batches", "1,2,4", "--tp", "1,4") == 0
    problem = read_problem(path)
    assert problem.name == "tiny-h200x8"
    model, site = from_hf(TINY, name="tiny"), machine("h200")
    request = Request(micro_batches=(1, 2, 4), tp=(1, 4))
    assert problem == build_problem(
        model, site, 8, choose(model, site, 8, request)
    )


def test_lists(cli: Cli) -> None:
    assert cli("problems", "--models") == 0
    for name in names():
        assert f"{name} " in cli.out
    assert cli("problems", "--models", "--json") == 0
    models = {m["name"]: m for m in json.loads(cli.out)["models"]}
    assert tuple(models) == names()
    assert models["mixtral-8x7b"]["parameters"] == 46_702_792_704
    assert models["mixtral-8x7b"]["active_parameters"] == 12_879_925_248
    assert cli("problems", "--clusters") == 0
    assert "dgx-h100" in cli.out
    assert cli("problems", "--clusters", "--json") == 0
    sites = {m["name"]: m for m in json.loads(cli.out)["machines"]}
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


def test_profiles_are_preferred(cli: Cli, config: str, tmp_path: Path) -> None:
    """A layer measured at ten times its cost; nodes of two take twice it."""
    model, site = from_hf(TINY, name="tiny"), machine("h100")
    plain = build_problem(model, site, 4, choose(model, site, 4))
    profile, path = tmp_path / "profile.json", str(tmp_path / "p.json")
    profile.write_text(json.dumps(measured(plain, "H100-80GB-SXM")))
    arguments = (
        *("import", "hf", config, "--cluster", "h100x4"),
        *("--profile", str(profile), "-o", path),
    )

    def forward_ns(problem: Any) -> float:
        (kind,) = (k for k in problem.graph.kinds if k.name == "decoder")
        (cost,) = (c for c in kind.costs if c.key == ONE_DEVICE)
        return float(cost.forward_ns)

    one = forward_ns(plain)
    assert cli(*arguments) == 0
    assert forward_ns(read_problem(path)) == pytest.approx(10 * one)
    assert "layer costs measured" in read_problem(path).source
    assert cli(*arguments, "--layers-per-node", "2") == 0
    assert forward_ns(read_problem(path)) == pytest.approx(20 * one)

    profile.write_text(json.dumps(measured(plain, "A100-80GB-SXM")))
    said = cli.refuses(*arguments)
    assert said.startswith(f"{profile}: device: expected 'H100-80GB-SXM', as")


# Bad input

MODEL = ("--model", "gpt3-13b", "--cluster", "h100x64")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ("solve", "--solver", "dp"),
            "nest solve: expected PROBLEM, got none; see 'nest solve "
            "--help', or pass --model and --cluster",
        ),
        (
            ("solve", "p.json", "--solver", "dp", *MODEL),
            "--model: expected either PROBLEM or --model with its options, "
            "got 'p.json' too; remove one",
        ),
        (
            ("compare", "p.json", "--tp", "2"),
            "--tp: expected either PROBLEM or --model with its options, got "
            "'p.json' too; remove one",
        ),
        (
            ("compare", "--micro-batches", "2"),
            "--micro-batches: expected --model too, got none; add it",
        ),
        (
            ("compare", "--model", "gpt2"),
            "--cluster: expected <machine>x<devices> with --model, got none; "
            "for example --cluster h100x64",
        ),
        (
            ("compare", *MODEL, "--tp", "3"),
            "--tp: expected a divisor of the 40 attention heads of gpt3-13b, "
            "got 3; choose 2",
        ),
        (
            ("compare", *MODEL, "--tp", "16"),
            "--tp: expected a divisor of the 40 attention heads of gpt3-13b, "
            "got 16; choose 8",
        ),
        (
            ("compare", *MODEL, "--ep", "2"),
            "--ep: expected 1, as gpt3-13b has no experts, got 2; choose 1",
        ),
        (
            ("compare", *MODEL, "--layers-per-node", "7"),
            "--layers-per-node: expected a divisor of the 40 layers of "
            "gpt3-13b, got 7; choose 5",
        ),
        (
            ("compare", *MODEL, "--tp", "1,x"),
            "--tp: expected distinct integers >= 1 separated by commas, got "
            "'1,x'; for example 1,2",
        ),
        (
            ("compare", *MODEL, "--zero", "4"),
            "--zero: expected distinct integers from 0 to 3 separated by "
            "commas, got '4'; for example 1,2",
        ),
        (
            ("compare", *MODEL, "--recompute", "some"),
            "--recompute: expected some of none,selective,full, each once, "
            "separated by commas, got 'some'; for example none",
        ),
        (
            ("compare", *MODEL, "--dtype", "int8"),
            "--dtype: expected one of bf16, fp16, fp8; got 'int8'; choose "
            "one of them",
        ),
        (
            (
                *("compare", "--model", "gpt2", "--cluster", "a100x8"),
                *("--dtype", "fp8"),
            ),
            "--dtype: expected one of bf16, fp16, which A100-80GB-SXM "
            "multiplies, got 'fp8'; choose another",
        ),
        (
            ("problems", "llama2-7b-8", *MODEL),
            "--model: expected either PROBLEM or --model with its options, "
            "got 'llama2-7b-8' too; remove one",
        ),
        (
            ("problems", "--model", "no/config.json", "--cluster", "h100x8"),
            "no/config.json: expected a readable config.json of Hugging "
            "Face, got No such file or directory; check the path",
        ),
        (
            ("import", "hf", "config.json", "-o", "p.json"),
            "nest import hf: expected --cluster, got none; see 'nest import "
            "hf --help'",
        ),
    ],
)
def test_bad_input(cli: Cli, arguments: tuple[str, ...], text: str) -> None:
    assert cli.refuses(*arguments) == text


@pytest.mark.parametrize(
    "more", [["gpt2"], ["-o", "x.json"], ["--clusters"], ["--tp", "2"]]
)
def test_lists_take_nothing_else(cli: Cli, more: list[str]) -> None:
    assert cli.refuses("problems", "--models", *more) == (
        "--models: expected no other option than --json, got more; remove one"
    )


def test_a_configuration_is_not_overwritten(cli: Cli, config: str) -> None:
    model = ("--model", config, "--cluster", "h100x4")
    for command, option in (
        (("compare",), "--json"),
        (("solve", "--solver", "dp"), "-o"),
        (("problems",), "-o"),
    ):
        said = cli.refuses(*command, *model, option, config)
        assert said == (
            f"{option}: expected another file than for --model, got "
            f"{config} for both; choose another path"
        )
    said = cli.refuses(
        "import", "hf", config, "--cluster", "h100x4", "-o", config
    )
    assert said.startswith("-o: expected another file than for FILE, got")


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (
            ("compare", "--model", "gpt5", "--cluster", "h100x8"),
            "model: expected one of 48 names, such as ",
        ),
        (
            ("compare", "--model", "gpt2", "--cluster", "h100"),
            "--cluster: expected <machine>x<devices> such as h100x64, got "
            "'h100'",
        ),
        (
            ("compare", "--model", "gpt2", "--cluster", "abacusx8"),
            "machine: expected one of ",
        ),
        (
            ("compare", *MODEL, "--profile", "none.json"),
            "none.json: expected",
        ),
    ],
)
def test_unknown_names(
    cli: Cli, arguments: tuple[str, ...], start: str
) -> None:
    assert cli.refuses(*arguments).startswith(start)


def test_text_models_are_imported_with_a_note(
    cli: Cli, tmp_path: Path
) -> None:
    path = tmp_path / "gemma.json"
    inside = {"model_type": "gemma3_text", "num_hidden_layers": 2}
    path.write_text(
        json.dumps({"model_type": "gemma3", "text_config": inside})
    )
    output = str(tmp_path / "p.json")
    arguments = ("import", "hf", str(path), "--cluster", "h100x8")
    assert cli(*arguments, "-o", output) == 0
    defaults, note = cli.err.splitlines()
    assert defaults.startswith(f"nest: note: {path}: defaults: sequence 8192 ")
    assert note == f"nest: note: {path}: the text model of gemma3 alone"


def test_modules_for_multi_token_prediction_are_asked_for(
    cli: Cli, config: str
) -> None:
    said = cli.refuses(
        *("import", "hf", config, "--cluster", "h100x4"), "--mtp", "-o", "-"
    )
    assert said.startswith(
        f"{config}: num_nextn_predict_layers: expected modules for"
    )


def test_files_of_other_families(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "xlnet"}')
    said = cli.refuses(
        "import", "hf", str(path), "--cluster", "h100x8", "-o", "-"
    )
    assert said.startswith(f"{path}: model_type: expected one of 149 names, ")
    assert "got 'xlnet'" in said


def test_other_answers_say_what_nobody_chose_too(
    cli: Cli, config: str, tmp_path: Path
) -> None:
    """Comparisons, frontiers, sizes and imports; files say what they have."""
    defaults = (
        "defaults: sequence 1024 (--sequence-length), batch 4096 "
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
        assert cli(*command) == 0
        assert defaults in " ".join(cli.out.split())
    chosen = ("--micro-batches", "1,2", "--sequence-length", "1024")
    assert cli(*command, *chosen) == 0
    assert "\ndefaults: batch 4096 (--global-batch), cp 1 (--cp)\n" in cli.out
    problem, plan = str(tmp_path / "problem.json"), str(tmp_path / "plan.json")
    imported = ("import", "hf", config, "--cluster", "h100x4")
    assert cli(*imported, "-o", problem) == 0
    assert f"nest: note: {config}: {defaults}" in cli.err
    solver = ("--solver", "dp", "--gap", "0.5")
    assert cli("solve", problem, *solver, "-o", plan) == 0
    assert cli("explain", problem, plan, "--no-search") == 0
    assert (
        "\nthe problem has sequence 1024, batch 4096, micro-batches 1,2,4,8, "
        "cp 1\n"
    ) in cli.out
