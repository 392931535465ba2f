"""The screen of ``nest solve``: its rows, and arguments side by side."""

from __future__ import annotations

import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

import nest
from nest.analysis import others
from nest.analysis.others import others_of
from nest.analysis.page_facts import Wish
from nest.constraints.targets import Obstacle, target
from nest.cost.score import score
from nest.instances import best_known
from nest.instances import problem as problem_of
from nest.present import screen as screen_module
from nest.present.screen import (
    LABELS,
    answer_rows,
    continued,
    degrees,
    launch_commands,
    launch_text,
    launch_texts,
    others_text,
    run_text,
)
from nest.present.screen import screen as screen_of
from nest.present.table import show
from nest.solvers.base import Limit, Status
from nest.solvers.result import SolveResult
from nest.uncertainty.intervals import intervals_of
from nest.util.time_scale import digits
from tests.builders import make_cost, make_levels, make_problem

TEXTS = ["# what starts it"]


def one_layer(**job: object) -> nest.Problem:
    """Four samples of 290 ns each on one device: F = 90, G = 200."""
    return make_problem(
        {"a": make_cost(90, 200)},
        devices=1,
        topology=make_levels((1, 0.0, 1e18)),
        global_batch=4,
        replicas=(1,),
        **job,
    )


def screen(problem: nest.Problem, result: SolveResult, under: str = "") -> str:
    file = io.StringIO()
    show(file, *screen_of(problem, answer_rows(problem, result, under), TEXTS))
    return file.getvalue()


def test_rows_that_are_not_known_are_left_out() -> None:
    problem = one_layer()
    text = screen(problem, nest.solve(problem, "dp"))
    assert "MFU" not in text
    assert "tokens" not in text
    assert re.search(
        r"^proof      optimal among 1F1B plans without overlap; dp, \S+ s$", text, re.M
    )
    assert "4 samples per step\n" in text
    assert (
        "plan TP 1 · PP 1 · DP 1 · CP 1 · ZeRO 0 · no recomputation · "
        "micro-batch size 1 per data-parallel rank, 4 microbatches proof"
    ) in " ".join(text.split())
    assert text.endswith("\n\n# what starts it\n")


OF_1F1B = "1F1B plans without overlap"


@pytest.mark.parametrize(
    ("bound", "limit", "line"),
    [
        (870, None, f"within 25.00 % of the best of {OF_1F1B}"),
        (870, Limit.TIME, f"within 25.00 % of the best of {OF_1F1B} (time limit)"),
        (None, Limit.TIME, "nothing proven, feasible (time limit)"),
        (None, None, "nothing proven, feasible"),
    ],
)
def test_how_much_is_proven(bound: int | None, limit: Limit | None, line: str) -> None:
    """The step is 4 · 290 = 1160 ns; a bound of 870 is a quarter less."""
    problem = one_layer()
    result = nest.solve(problem, "dp")
    assert result.step_quanta == 1160
    found = replace(
        result, status=Status.FEASIBLE, lower_bound_quanta=bound, limit=limit, detail=""
    )
    text = " ".join(screen(problem, found).split())
    assert f" proof {line}; dp, " in f" {text} "
    for end in (OF_1F1B, "feasible"):
        under = line.replace(end, f"{end} under --pin tp=1")
        if under != line:
            break
    text = screen(problem, found, "--pin tp=1")
    assert f" proof {under}; dp, " in f"{' '.join(text.split())} "


def test_arguments_stand_side_by_side() -> None:
    """As many as fit 79 columns; what is no argument keeps its line."""
    files = {
        "ds.json": '{\n  "a": 1\n}\n',
        "args.sh": "# x\nexport A=1\nARGS=(\n"
        + "".join(f"  --{name * 30} 1\n" for name in "abcd")
        + ")\nexport B=1\n",
        "hostfile": "node0 slots=8\n",
        "rank_map.json": "[1, 0]\n",
        "README": "what it is\nstart it so\nrank i is device i\n",
    }
    first, second = launch_texts(files)
    assert first == '{\n  "a": 1\n}'
    assert second.splitlines() == [
        "# x",
        "export A=1",
        "ARGS=(",
        f"  --{'a' * 30} 1 --{'b' * 30} 1",
        f"  --{'c' * 30} 1 --{'d' * 30} 1",
        ")",
        "export B=1",
        "# start it so",
        "# rank i is device i",
    ]


def test_the_last_column_is_79() -> None:
    """2 + 38 + 1 + 38 columns stand on one line, one more does not."""
    for more, lines in ((0, 1), (1, 2)):
        array = f"ARGS=(\n  --{'a' * 36}\n  --{'b' * (36 + more)}\n)\n"
        (text,) = launch_texts({"args.sh": array, "README": "x\ny\n"})
        assert len(text.splitlines()) == lines + 3


def model_problem(**changes: Any) -> tuple[nest.Problem, nest.Plan]:
    """Return a stored problem made from a model, and its best known plan."""
    problem = problem_of("llama3-70b-dgx-h100x64-megatron")
    plan = best_known(problem.name).plan
    assert plan is not None
    return problem, structs.replace(plan, **changes)


def test_degrees_are_those_of_frameworks() -> None:
    """Replicas multiply the data-parallel degree, and dp divides B."""
    problem, plan = model_problem()
    assert degrees(problem, plan, 128) == (
        "TP 2 · PP 8 · DP 4 · CP 1 · ZeRO 1 · selective recomputation · "
        "micro-batch size 1 per data-parallel rank, 128 microbatches"
    )
    first, *others = plan.stages
    assert first.strategy is not None
    wide = structs.replace(first.strategy, dp=2, cp=2, ep=4, zero=0, recompute="none")
    stages = (structs.replace(first, strategy=wide), *others)
    mixed = structs.replace(plan, stages=stages, replicas=2, micro_batch=8)
    assert degrees(problem, mixed, 1) == (
        "TP 2 · PP 8 · DP 4–8 · CP 1–2 · EP 1–4 · ZeRO 0–1 · no or selective "
        "recomputation · micro-batch size 2 or 4 per data-parallel rank, "
        "1 microbatch · stages differ, see --verbose"
    )
    interleaved = structs.replace(plan, virtual_stages=2)
    assert interleaved.degrees_text == (
        "TP 2 · PP 4 · VP 2 · DP 4 · CP 1 · ZeRO 1 · selective recomputation"
    )


def test_a_run_has_the_interval_of_its_step() -> None:
    """Without a number of tokens only the price of a step is known."""
    problem, plan = model_problem()
    verdict = score(problem, plan)
    known = intervals_of(problem, plan, verdict)
    assert known is not None
    low, high = (end / verdict.step_time_ns for end in known.step_90_ns)

    def run(tokens: float | None = None, price: float | None = None) -> str:
        return run_text(problem, plan, verdict, Wish(tokens, price))

    assert run() == ""
    step_usd = 64 * 2.0 * verdict.step_time_ns / 3.6e12
    assert run(price=2.0).startswith(f"{digits(step_usd, 3)} USD per step (")
    steps = math.ceil(2e12 / (512 * 8192))
    days = steps * verdict.step_time_ns / 8.64e13
    usd = steps * step_usd
    assert run(2e12, 2.0) == (
        f"2 trillion tokens take {digits(days, 3)} days "
        f"({digits(days * low, 3)} – {digits(days * high, 3)}) and "
        f"{digits(usd, 3)} USD ({digits(usd * low, 3)} – "
        f"{digits(usd * high, 3)})"
    )
    other = one_layer()
    answer = nest.solve(other, "dp")
    assert answer.plan is not None
    assert answer.score is not None
    text = run_text(other, answer.plan, answer.score, Wish(2e12))
    assert text == "days unknown: no tokens per sample, or no seconds"


def test_the_launch_row_says_who_runs_a_plan() -> None:
    problem, plan = model_problem()
    assert launch_text(one_layer(), plan) == ""
    assert launch_text(problem, plan) == "Megatron-LM can run it"
    first, *others = plan.stages
    assert first.strategy is not None
    other = structs.replace(first.strategy, recompute="none")
    stages = (structs.replace(first, strategy=other), *others)
    text = launch_text(problem, structs.replace(plan, stages=stages))
    assert text.startswith(
        "no framework runs it as it is; Megatron-LM: stage 2: expected "
        "recompute=none as in stage 1"
    )
    assert text.endswith("--target megatron --launch")
    assert launch_text(problem, plan, target("megatron")) == (
        "--launch shows the arguments for Megatron-LM"
    )


def test_only_frameworks_that_run_the_software_are_proposed() -> None:
    problem, plan = model_problem()
    for software, named in (
        ("DeepSpeed", "deepspeed"),
        ("Megatron-Core", "megatron"),
        ("unknown software", "megatron"),
    ):
        of_software = structs.replace(problem, software=software)
        assert re.search(
            rf"--(to|target) {named}\b",
            launch_commands(of_software, plan, "p.json", "p.json", "plan.json"),
        )
    other = structs.replace(problem, software="Composer")
    assert launch_commands(other, plan, "p.json", "p.json") == ""
    assert launch_text(other, plan) == "nest writes no files for Composer"


def test_other_bytes_of_weights_keep_no_framework_from_a_plan(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Megatron-LM has no such schedule, torchtitan gradients in fp32."""
    problem, plan = model_problem()
    schedule = Obstacle("schedule", "any", "1f1b", "tested")
    gradients = Obstacle("optimizer.gradient_bytes", "2", "gradients in fp32", "tested")
    monkeypatch.setattr(
        screen_module,
        "inexpressible",
        lambda framework, *_: [
            gradients if framework.name == "torchtitan" else schedule
        ],
    )
    assert launch_text(problem, plan) == "torchtitan can run it, with gradients in fp32"
    command = launch_commands(problem, plan, "p.json", "p.json --schedule any")
    assert command == "nest solve p.json --schedule any --target torchtitan --launch"


def test_commands_to_copy_are_continued_between_words() -> None:
    long = "nest solve " + " ".join(["--tp 1,2-3"] * 12)
    made = continued(f"nest export a\n{long}")
    first, *others = made.splitlines()
    assert first == "nest export a"
    assert all(len(line) < 80 for line in others)
    assert len(others) == 2
    assert "".join(others).replace(" \\  ", " ") == long
    quoted = f"{long} 'a b'"
    assert continued(quoted) == quoted


def test_what_else_is_said_of_a_plan() -> None:
    """Half the devices take longer; changes come in the order of time."""
    problem, plan = model_problem()
    step = score(problem, plan).step_quanta
    answer = others_of(problem, plan, 1e3)
    assert answer.complete
    assert answer.half is not None
    assert answer.half.step_quanta > 1.5 * step
    steps = [x.score.step_quanta for x in answer.changes if x.score]
    assert steps == sorted(steps)
    assert {x.verdict for x in answer.changes} == {"fits"}
    text = others_text(problem, step, answer)
    assert text.startswith("half the devices: at most ")
    left = "searches, see 'nest fit' and 'nest explain'"
    assert text.endswith(f". Left out: {left}")
    hasty = replace(answer, half=None, complete=False)
    text = others_text(problem, step, hasty)
    assert "half the devices" not in text
    assert text.endswith(", and changes beyond the time for them")


def test_what_else_in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is scored beyond the first change once the time is over."""
    problem, plan = model_problem()
    monkeypatch.setattr(others, "LIMIT_S", 0.0)
    found = others_of(problem, plan, 0.0)
    assert found.half is None
    assert len(found.changes) <= 1
    assert not found.complete


def test_labels_and_headings_are_words_of_the_glossary() -> None:
    """Rows have the order of LABELS."""
    problem = one_layer()
    result = nest.solve(problem, "dp")
    rows = answer_rows(problem, result)
    assert {label for label, _ in rows} <= set(LABELS)
    file = io.StringIO()
    show(file, *screen_of(problem, [*reversed(rows)]))
    text, *_ = screen(problem, result).partition("\n\n")
    assert file.getvalue() == f"{text}\n"
