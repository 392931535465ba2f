"""``--pin``, ``nest fit`` and ``nest explain`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from nest.constraints.pins import restrict
from nest.ir import DeviceRange, Problem, problem_hash, read_plan, write
from tests.builders import SINGLE, make_cost, make_levels, make_plan, make_problem
from tests.cli.conftest import Cli


def chain(**fields: object) -> Problem:
    """Two layers of 30 ns; 180, 120 and 60 ns on one to three devices."""
    cost = make_cost(10, 20, kept_bytes=10)
    fields.setdefault("global_batch", 3)
    return make_problem(
        {"a": cost, "b": cost},
        edge=0,
        devices=3,
        topology=make_levels((4, 0.0, 1e15)),
        **fields,
    )


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    write(tmp_path / "problem.json", chain(sequence_length=10))
    write(tmp_path / "plan.json", make_plan(("a", SINGLE), ("b", SINGLE)))
    write(tmp_path / "two.json", chain_of_two_types())


# Pins


def test_pins_restrict_solve(cli: Cli) -> None:
    """The plan is one of the whole problem, and says so."""
    cli.succeeds(
        "solve problem.json --solver dp --pin pp=2,r=1 --forbid tp=2|3 -o "
        "out.json --json doc.json"
    )
    said = " ".join(cli.out.split())
    assert "without overlap under --pin pp=2,r=1 --forbid tp=2|3;" in said
    found = read_plan("out.json")
    assert len(found.stages) == 2
    assert found.problem_hash == problem_hash(chain(sequence_length=10))
    cli.succeeds("score problem.json out.json")
    assert cli.err == ""
    written = json.loads(Path("doc.json").read_text())
    assert written["restrictions"] == {
        "pin": {"pp": [2], "r": [1]},
        "forbid": {"tp": [2, 3]},
    }
    assert written["cells"][0]["step_time_ns"] == 120


def test_pins_restrict_compare(cli: Cli) -> None:
    cli.succeeds(
        "compare problem.json --solvers dp,brute,cpsat,milp --pin pp=2 --json -"
    )
    assert "only plans under --pin pp=2" in cli.err
    assert [cell["step_time_ns"] for cell in json.loads(cli.out)["cells"]] == [120] * 4


def test_without_pins_nothing_is_said(cli: Cli) -> None:
    assert "restrictions" not in cli.document("compare problem.json --solvers dp")
    assert "only plans under" not in cli.err


def test_an_infeasible_answer_says_under_which_pins(cli: Cli) -> None:
    """Each stage of one layer keeps 10 bytes for two micro-batches."""
    write("tight.json", chain(memory_bytes=19))
    cli.succeeds("solve tight.json --solver dp --pin pp=2")
    assert "infeasible: no plan under --pin pp=2 fits" in cli.out


# fit


def test_fit_finds_the_fewest_devices(cli: Cli) -> None:
    cli.succeeds("fit problem.json --within 150e-9 -o fit.json")
    assert "least devices: 2 (proven: nothing smaller" in cli.out
    assert "target     a step within 1.5e-07 s" in cli.out
    assert len(read_plan("fit.json").stages) == 2


def test_fit_says_why_there_is_no_plan_at_all(cli: Cli) -> None:
    """A layer keeps 10 bytes."""
    write("tight.json", chain(memory_bytes=5))
    assert cli("fit tight.json --within 1 --devices-list 1,2 --json fit.json") == 1
    assert "least devices: none keeps the target (proven among" in cli.out
    assert "best possible: no plan at all was found" in cli.out
    assert "why: memory is short by" in cli.out
    assert " would do: " in cli.out
    assert json.loads(Path("fit.json").read_text())["infeasible"]["memory_bytes"] > 5


def test_fit_finds_the_smallest_memory(cli: Cli) -> None:
    cli.succeeds("fit problem.json --memory --within 60e-9")
    assert "tried: 4 candidates; --verbose shows each" in cli.out
    assert "unlimited" not in cli.out
    cli.succeeds("fit problem.json --memory --within 60e-9 --json - -v")
    assert "least memory per device: 20 bytes (proven" in cli.err
    assert "unlimited" in cli.err
    document = json.loads(cli.out)
    assert document["schema"] == "nest-fit/1"
    assert document["question"] == "memory"
    assert document["answer"]["memory_bytes"] == 20


@pytest.mark.parametrize(
    ("target", "devices"),
    [
        ("--tokens-per-s 25e7", 2),
        ("--tokens-per-s 26e7", 3),
        # four steps of 30 tokens, each within 60 ns
        ("--tokens 100 --days 2.8e-12", 3),
    ],
)
def test_fit_takes_other_targets(cli, target, devices):
    cli.succeeds(f"fit problem.json {target}")
    assert f"least devices: {devices} (proven" in cli.out


def test_fit_says_no_and_what_is_possible(cli: Cli) -> None:
    assert cli("fit problem.json --within 59e-9 --devices-list 1,3 -o none.json") == 1
    assert "none keeps the target (proven among the counts" in cli.out
    assert "best possible: 60.0000 ns with 3 devices" in cli.out
    assert "nest: none.json not written: no plan" in cli.err
    assert not Path("none.json").exists()
    assert cli("fit problem.json --within 59e-9 --memory") == 1
    assert "60.0000 ns whatever the memory" in cli.out


def test_fit_of_what_never_fits(cli: Cli) -> None:
    write("tiny.json", chain(memory_bytes=1))
    assert cli("fit tiny.json --within 1") == 1
    assert "best possible: no plan at all was found" in cli.out


def test_fit_honours_pins(cli: Cli) -> None:
    cli.succeeds("fit problem.json --within 1 --pin pp=2")
    assert "least devices: 2 (proven" in cli.out
    assert "only plans under --pin pp=2" in cli.out


def chain_of_two_types() -> Problem:
    """Two devices, 1 and 2 $ per hour; the step times of the plain chain."""
    problem = chain(sequence_length=10)
    device = replace(problem.cluster.device, price_usd_per_hour=1.0)
    part = DeviceRange(first=1, count=2, device=replace(device, name="New-80GB"))
    cluster = replace(problem.cluster, device=device, others=(part,))
    return replace(problem, cluster=cluster)


def test_fit_finds_the_fastest_within_a_budget(cli: Cli) -> None:
    """Prices of new devices fall to 0.5 $: two of them cost 1 $ per hour."""
    cli.succeeds("fit two.json --hourly-budget 1 --price new=0.5 --json - -o plan.json")
    assert "fastest: 2 New-80GB (proven among these counts)" in cli.err
    assert "target     at most 1 $ per hour" in cli.err
    document = json.loads(cli.out)
    assert document["answer"]["devices_by_type"] == {"New-80GB": 2}
    assert document["answer"]["usd_per_hour"] == 1
    assert document["answer"]["step_time_ns"] == 120
    assert len(read_plan("plan.json").stages) == 2


def test_fit_finds_the_cheapest_within_a_target_and_quotas(cli: Cli) -> None:
    """All devices take a third of the time that one takes."""
    arguments = "fit two.json --cheapest --within 60e-9"
    cli.succeeds(arguments)
    assert "cheapest: 1 device + 2 New-80GB (proven among these counts)" in cli.out
    assert "run        3 $ per hour, 5e-11 $ per step" in cli.out
    assert cli(f"{arguments} --quota NEW-80gb=1,device=1") == 1
    assert "cheapest: none keeps the target (proven among these counts)" in cli.out


def test_fit_takes_the_budget_of_a_run(cli: Cli) -> None:
    """Four steps; on any devices at 1 $ each costs at least 180 ns of one."""
    arguments = "fit two.json --tokens 100 --budget"
    cli.succeeds(f"{arguments} 2.1e-10")
    assert "fastest: 1 device + 2 New-80GB (proven among these counts)" in cli.out
    assert cli(f"{arguments} 1.9e-10") == 1


# explain


def test_explain_has_every_part(cli: Cli) -> None:
    """120 ns: 90 of computation, 30 to fill; three replicas take 60."""
    cli.succeeds("explain problem.json plan.json --prefer pp=1,r=1")
    lines = [" ".join(line.split()) for line in cli.out.splitlines()]
    for line in (
        "Where the step time goes",
        "computation 90.000 ns 75.00 %",
        "filling and draining the pipeline 30.000 ns 25.00 %",
        "slowest stage 1 of 2, 30.000 ns per micro-batch, counted 3 times",
        "What bounds it",
        "proof best plan 60.000 ns (proven); the plan takes 100.00 % more",
        "binding none of these alone gains anything",
        "What a neighboring plan takes",
        "one stage less +60.000 ns +50.00 % ±0 bytes stages 1 and 2 merged, single",
        "What the preferred setting costs",
        "its plan TP 1 · PP 1 · DP 1 · CP 1 · ZeRO 0 · no recomputation · "
        "micro-batch size 1 per data-parallel rank, 3 microbatches · "
        "1 of 3 devices",
        "pp=1,r=1 at best 180.000 ns (proven), 50.00 % more than the plan",
        "computation 90.000 ns 180.000 ns +90.000 ns",
    ):
        assert line in lines
    (illegal,) = (line for line in lines if "illegal" in line)
    assert illegal.startswith("9 moves are illegal (--verbose says which): ")
    assert "zero: expected one of [0]" in cli.out


def test_explain_lists_what_is_illegal_if_asked(cli: Cli) -> None:
    cli.succeeds("explain problem.json plan.json --no-search --verbose")
    lines = [" ".join(line.split()) for line in cli.out.splitlines()]
    assert "moves are illegal" not in cli.out
    assert any(
        line.startswith("zero raised by 1 illegal: stage 1: zero: expected")
        for line in lines
    )


def test_explain_the_preferred_plan_itself(cli: Cli) -> None:
    cli.succeeds("explain problem.json plan.json --prefer pp=2,r=1")
    end = cli.out[cli.out.index("What the preferred setting costs") :]
    assert "(proven), as long as the plan" in end
    assert "difference" not in end


def test_explain_without_a_search(cli: Cli) -> None:
    document = cli.document("explain problem.json plan.json --no-search")
    assert document["schema"] == "nest-explain/1"
    assert document["optimum"] is None
    assert "What bounds it" not in cli.err


def test_explain_under_pins(cli: Cli) -> None:
    document = cli.document("explain problem.json plan.json --pin pp=2")
    assert document["optimum"]["step_time_ns"] == 120
    assert document["restrictions"] == {"pin": {"pp": [2]}, "forbid": {}}
    assert "only plans under --pin pp=2" in cli.err
    assert "the plan is as good" in cli.err


def test_explain_a_plan_that_does_not_fit(cli: Cli) -> None:
    """Two layers keep 20 bytes on one device, 19 are there."""
    write("tight.json", chain(memory_bytes=19))
    assert cli("explain tight.json plan.json") == 1
    assert "proof      infeasible" in cli.out
    assert "20 of 19 bytes on the fullest device, 1 byte too much" in cli.out
    assert "binding  memory without limit" in cli.out
    assert "a plan fits" in cli.out


def test_explain_says_where_a_plan_comes_from(cli: Cli) -> None:
    """Plans of pinned problems belong to the whole one; others do not."""
    write("narrow.json", restrict(chain(), {"pp": (2,)}))
    cli.succeeds("solve narrow.json --solver dp -o foreign.json")
    cli.succeeds("explain problem.json foreign.json --no-search")
    assert "warning: the plan was made for problem" in cli.err
