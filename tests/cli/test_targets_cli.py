"""``--target`` and what goes with it on the command line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from nest.hardware import machine
from nest.ir import read_plan, read_problem, write
from nest.ir.problem import Problem
from tests.builders import make_cost, make_levels, make_problem
from tests.cli.conftest import Cli
from tests.cli.test_models import SMALL, TINY


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(TINY))
    return str(path)


@pytest.fixture
def tiny(config: str) -> tuple[str, ...]:
    """Return the options of a small model on four devices."""
    return ("--model", config, "--cluster", "h100x4", *SMALL)


@pytest.fixture
def imported(cli: Cli, config: str, tmp_path: Path) -> Callable[..., str]:
    """Return a function that imports the model with more options."""
    path = str(tmp_path / "problem-of-tiny.json")

    def run(*options: str) -> str:
        where = ("--cluster", "h100x4", *SMALL, *options)
        assert cli("import", "hf", config, *where, "-o", path) == 0
        return path

    return run


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


@pytest.fixture
def problem(tmp_path: Path) -> str:
    path = tmp_path / "problem.json"
    write(path, stages_differ())
    return str(path)


def test_solve_for_a_target(cli: Cli, problem: str, tmp_path: Path) -> None:
    """The plan is one of the whole problem, with its hash."""
    plan_path = tmp_path / "plan.json"
    target = ("--target", "megatron", "--target-loss")
    solve = ("solve", problem, "--solver", "dp", *target)
    assert cli(*solve, "-o", str(plan_path)) == 0
    assert "only plans under --target megatron" in cli.out
    assert (
        "Megatron-LM, megatron-core 0.16.1 and 0.19.2: schedule 1f1b, adam "
        "with 4 bytes of gradient and 12 of state per weight" in cli.out
    )
    assert "step time    204.000 ns" in cli.out
    assert (
        "36.00 % slower than the best plan without the target (both proven "
        "optimal)" in cli.out
    )
    assert cli("score", problem, str(plan_path)) == 0
    assert cli.err == ""
    assert {s.strategy.tp for s in read_plan(plan_path).stages} == {2}


def test_compare_for_a_target(cli: Cli, problem: str) -> None:
    """Exact solvers agree; the document has the target and the loss."""
    compare = ("compare", problem, "--solvers", "dp,cpsat,milp,brute,alpa")
    target = ("--target", "megatron", "--target-loss")
    assert cli(*compare, *target, "--json", "-") == 0
    document = json.loads(cli.out)
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


def test_no_target_changes_nothing(cli: Cli, problem: str) -> None:
    assert cli("solve", problem, "--solver", "dp", "--target", "any") == 0
    assert "step time    150.000 ns" in cli.out
    assert "under" not in cli.out


def test_explain_and_fit_and_pareto_for_a_target(
    cli: Cli, problem: str, tmp_path: Path
) -> None:
    plan = str(tmp_path / "plan.json")
    assert cli("solve", problem, "--solver", "dp", "-o", plan) == 0
    target = ("--target", "megatron")
    assert cli("fit", problem, "--within", "210e-9", *target) == 0
    assert "under          --target megatron" in cli.out
    assert cli("pareto", problem, *target, "--json", "-") == 0
    document = json.loads(cli.out)
    assert document["target"] == "megatron"
    assert min(p["step_time_ns"] for p in document["points"]) == 204
    # The plan has stages that differ.
    text = cli.refuses("explain", problem, plan, *target)
    assert "stage 2: expected tp=1 as in stage 1" in text
    assert cli("solve", problem, "--solver", "dp", *target, "-o", plan) == 0
    assert cli("explain", problem, plan, *target) == 0
    assert "only plans under --target megatron" in cli.out


def test_memory_is_left_free(cli: Cli, problem: str) -> None:
    solve = ("solve", problem, "--solver", "dp", "--headroom", "10%")
    assert cli(*solve, "--json", "-") == 0
    assert json.loads(cli.out)["headroom"] == "10%"
    assert "only plans under --headroom 10%" in cli.err
    # Nothing is kept, of 1e9 bytes less a tenth.
    assert "memory left  0.84 GiB on the fullest device" in cli.err


def test_what_training_keeps_of_a_model(imported: Callable[..., str]) -> None:
    """A problem file says what the options chose."""
    for options, expected in (
        ((), (2, 2, 12)),
        (("--gradients", "fp32"), (2, 4, 12)),
        (("--optimizer", "adam-8bit"), (2, 2, 6)),
        (("--optimizer", "muon", "--gradients", "fp32"), (2, 4, 8)),
    ):
        made = read_problem(imported(*options)).job.optimizer
        sizes = made.weight_bytes, made.gradient_bytes, made.state_bytes
        assert sizes == expected


def test_a_model_has_the_defaults_of_the_target(
    cli: Cli, tiny: tuple[str, ...]
) -> None:
    """Unless the options say otherwise."""
    asked = ("solve", *tiny, "--solver", "dp", "--target")
    for name, options, text in (
        ("megatron", (), "adam with 4 bytes of gradient and 12 of state"),
        ("megatron", ("--gradients", "bf16"),
         "adam with 2 bytes of gradient and 12 of state"),
        ("torchtitan", ("--optimizer", "sgd"),
         "sgd with 4 bytes of gradient and 6 of state"),
        ("deepspeed", (), "adam with 2 bytes of gradient and 12 of state"),
        ("maxtext", (), "schedule gpipe, adam with 4 bytes of gradient"),
    ):  # fmt: skip
        assert cli(*asked, name, *options) == 0
        assert text in cli.out
        assert "optimal" in cli.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("solve PROBLEM --solver dp --target megatorn",
         "--target: expected one of any, deepspeed, maxtext, megatron, "
         "torchtitan; got 'megatorn'; did you mean 'megatron'?"),
        ("solve PROBLEM --solver dp --target megatron --granularity layer",
         "--granularity layer: expected stage with --target megatron, which "
         "has one strategy for all layers, got layer; remove it"),
        ("solve --model gpt3-6.7b --cluster h100x8 --solver dp --schedule "
         "zb-v --target torchtitan",
         "--schedule zb-v: expected one that torchtitan has, 1f1b or gpipe, "
         "got zb-v; leave it out or choose another target"),
        ("solve PROBLEM --solver dp --target-loss",
         "--target-loss: expected --target too, got none; add a target with "
         "rules, such as --target megatron"),
        ("solve PROBLEM --solver dp --headroom 2GB",
         "--headroom 2GB: expected less than the 0.93 GiB that plans may use "
         "of a device (device), got 1.86 GiB; leave less free"),
        ("fit PROBLEM --within 1 --memory --headroom 1%",
         "--headroom: expected either it or --memory, which asks for the "
         "memory of a device, got both; remove one"),
        ("solve --model CONFIG --cluster h100x4 --solver dp --target "
         "torchtitan --gradients bf16",
         "--gradients: expected one of fp32, which torchtitan can keep, got "
         "bf16; choose it or another target"),
        ("solve PROBLEM --solver dp --gradients fp32",
         "--gradients: expected either PROBLEM or --model"),
    ],
)  # fmt: skip
def test_bad_targets_give_one_line(
    cli: Cli, problem: str, config: str, words: str, message: str
) -> None:
    paths = {"PROBLEM": problem, "CONFIG": config}
    text = cli.refuses(*(paths.get(word, word) for word in words.split()))
    assert text.startswith(message)


def launched(cli: Cli, tiny: tuple[str, ...], *options: str) -> int:
    """Ask for the best plan of a small model as Megatron runs it."""
    target = ("--solver", "dp", "--target", "megatron")
    return cli("solve", *tiny, *target, *options)


def test_one_screen_to_launch_from(cli: Cli, tiny, tmp_path: Path):
    """Figures and arguments, at most 40 lines of 79 columns."""
    folder = tmp_path / "launch"
    options = ("--target-loss", "--launch-dir", str(folder))
    assert launched(cli, tiny, *options) == 0
    lines = cli.out.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 79
    rows = dict(line.split(maxsplit=1) for line in lines[:8])
    assert rows["problem"] == "tiny-dgx-h100x4 (preset standard)"
    assert re.fullmatch(
        r"dp, \S+ s; optimal: no plan under --target megatron is faster",
        rows["solver"],
    )
    assert re.fullmatch(r"time +\S+ ms, simulated \S+ ms", rows["step"])
    assert re.fullmatch(r" +90 %: \S+ – \S+ ms; 50 %: \S+ – \S+ ms", lines[3])
    assert re.fullmatch(
        r"on +H100 \(\d+ runs of \d+ sources\); no layer profiled; any "
        r"software",
        rows["rests"],
    )
    assert re.fullmatch(
        r"\S+ samples/s, \S+ tokens/s, \S+ per device", rows["throughput"]
    )
    assert re.fullmatch(
        r"\S+ % of 989 TFLOP/s per device \(bf16\)", rows["MFU"]
    )
    assert "8 samples of 1024 tokens, " in cli.out
    assert "GiB left on the fullest" in cli.out
    assert re.search(r"\n +90 %: \S+ – \S+ GiB; 50 %: ", cli.out)
    assert "adam with 4 bytes of gradient" in " ".join(cli.out.split())
    assert "than the best plan without the target" in " ".join(cli.out.split())
    # What is shown are the arguments of the files, in their order.
    written = (folder / "args.sh").read_text()
    start = cli.out.index("# tiny")
    shown = cli.out[start : cli.out.index("\n)", start) + 2]
    assert shown.split() == written.split()
    comments = " ".join(
        line.removeprefix("# ") for line in lines if line.startswith("# ")
    )
    said = (folder / "README").read_text().splitlines()
    assert comments.endswith(" ".join(said[1:]))


def test_a_launch_in_json(
    cli: Cli, tiny: tuple[str, ...], imported, config: str, tmp_path: Path
) -> None:
    """The figures have their units, and the files are those of an export."""
    assert launched(cli, tiny, "--launch", "--json", "-") == 0
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
    plan, out = tmp_path / "plan.json", tmp_path / "out"
    plan.write_text(json.dumps(cell["plan"]))
    paths = (imported("--gradients", "fp32"), str(plan))
    target = ("--to", "megatron", "--model", config)
    assert cli("export", *paths, *target, "-o", str(out)) == 0
    assert {p.name: p.read_text() for p in out.iterdir()} == files


def test_what_cannot_be_launched(
    cli: Cli,
    problem: str,
    tiny: tuple[str, ...],
    imported: Callable[..., str],
    tmp_path: Path,
) -> None:
    solve = ("solve", problem, "--solver", "dp", "--launch")
    assert cli.refuses(*solve) == (
        "--launch: expected --target too, got none; add the framework that "
        "runs it, such as --target megatron"
    )
    assert "expected layers named embedding" in cli.refuses(
        *solve, "--target", "megatron"
    )
    target = ("--solver", "dp", "--target", "megatron")
    assert cli.refuses("solve", imported(), *target, "--launch") == (
        "--launch: expected a problem that names its model, got "
        "tiny-dgx-h100x4; write the plan with -o, and pass 'nest export' its "
        "--model"
    )
    torus = (*tiny, "--topology", "torus:2x2")
    assert cli.refuses("solve", *torus, *target, "--launch") == (
        "--launch: expected a network with nodes, got that of "
        "tiny-dgx-h100x4; write the plan with -o, and pass 'nest export' its "
        "--gpus-per-node"
    )
    full = tmp_path / "full"
    full.mkdir()
    (full / "a").touch()
    folder = ("--launch-dir", str(full))
    assert cli.refuses("solve", *tiny[:4], *target, *folder) == (
        f"--launch-dir {full}: expected a new or empty directory, got one "
        f"with files in it; choose another path"
    )


def test_without_a_plan_there_is_nothing_to_launch(
    cli: Cli, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "launch"
    device = machine("h100").device
    usable_bytes = device.memory_bytes - device.reserve_bytes
    size = f"{(usable_bytes - 1) / 1000:.3f}kB"
    words = ("--headroom", size, "--launch-dir", str(folder))
    assert launched(cli, tiny, *words) == 1
    assert cli.err.endswith(f"nest: {folder} not written: no plan to launch\n")
    assert not folder.exists()
    assert launched(cli, tiny, *words[:2], "--launch") == 1


@pytest.mark.parametrize(
    ("solver", "target", "code", "texts"),
    [
        # A plan that the export refuses is shown, with the reason.
        ("dp", "torchtitan", 1,
         ("status       optimal", "no launch: --flavor: expected")),
        ("random", "megatron", 0,
         ("s; nothing proven, feasible under --target megatron",)),
    ],
)  # fmt: skip
def test_other_screens_of_launches(
    cli: Cli, tiny: tuple[str, ...], solver, target, code, texts
) -> None:
    options = ("--solver", solver, "--target", target, "--launch")
    assert cli("solve", *tiny, *options) == code
    for text in texts:
        assert text in cli.out


def test_a_problem_of_a_target(
    cli: Cli, tiny: tuple[str, ...], tmp_path: Path
) -> None:
    """It is the one that the plan of 'nest solve' belongs to."""
    problem, plan = str(tmp_path / "p.json"), str(tmp_path / "plan.json")
    target = ("--target", "megatron")
    assert cli("problems", *tiny, *target, "-o", problem) == 0
    assert read_problem(problem).job.optimizer.gradient_bytes == 4
    assert cli("solve", *tiny, *target, "--solver", "dp", "-o", plan) == 0
    assert cli("score", problem, plan) == 0
    assert cli.err == ""
    assert cli.refuses("problems", "llama2-7b-16", *target) == (
        "--target: expected --model too, got none; a built-in problem keeps "
        "what it says"
    )
    text = cli.refuses("problems", *tiny, "--target", "megatorn")
    assert text.startswith("--target: expected one of any, ")
    assert text.endswith("did you mean 'megatron'?")
