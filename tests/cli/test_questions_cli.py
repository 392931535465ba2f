"""``--pin``, ``nest fit`` and ``nest explain`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from nest.constraints.pins import restrict
from nest.ir import DeviceRange, Problem, problem_hash, read_plan, write
from tests.builders import (
    SINGLE,
    make_cost,
    make_levels,
    make_plan,
    make_problem,
)
from tests.cli.conftest import Cli


def chain(**fields: object) -> Problem:
    """Two layers of 30 ns; 180, 120 and 60 ns on one to three devices."""
    cost = make_cost(10, 20, kept_bytes=10)
    fields.setdefault("global_batch", 3)
    return make_problem(
        {"a": cost, "b": cost},
        edges=(("a", "b", 0),),
        devices=3,
        topology=make_levels((4, 0.0, 1e15)),
        **fields,
    )


@pytest.fixture
def problem(tmp_path: Path) -> str:
    path = str(tmp_path / "problem.json")
    write(path, chain(sequence_length=10))
    return path


@pytest.fixture
def plan(tmp_path: Path) -> str:
    path = str(tmp_path / "plan.json")
    write(path, make_plan(("a", SINGLE), ("b", SINGLE)))
    return path


# Pins


def test_pins_restrict_solve(cli: Cli, problem: str, tmp_path: Path) -> None:
    """The plan is one of the whole problem, and says so."""
    output, document = str(tmp_path / "out.json"), str(tmp_path / "doc.json")
    code = cli(
        *("solve", problem, "--solver", "dp", "--pin", "pp=2,r=1"),
        *("--forbid", "tp=2|3", "-o", output, "--json", document),
    )
    assert code == 0
    assert "only plans under --pin pp=2,r=1 --forbid tp=2|3" in cli.out
    found = read_plan(output)
    assert len(found.stages) == 2
    assert found.problem_hash == problem_hash(chain(sequence_length=10))
    assert cli("score", problem, output) == 0
    assert cli.err == ""
    written = json.loads(Path(document).read_text())
    assert written["restrictions"] == {
        "pin": {"pp": [2], "r": [1]},
        "forbid": {"tp": [2, 3]},
    }
    assert written["cells"][0]["step_time_ns"] == 120


def test_pins_restrict_compare(cli: Cli, problem: str) -> None:
    code = cli(
        *("compare", problem, "--solvers", "dp,brute,cpsat,milp"),
        *("--pin", "pp=2", "--json", "-"),
    )
    assert code == 0
    assert "only plans under --pin pp=2" in cli.err
    cells = json.loads(cli.out)["cells"]
    assert [cell["step_time_ns"] for cell in cells] == [120] * 4


def test_without_pins_nothing_is_said(cli: Cli, problem: str) -> None:
    assert cli("compare", problem, "--solvers", "dp", "--json", "-") == 0
    assert "restrictions" not in json.loads(cli.out)
    assert "only plans under" not in cli.err


def test_an_infeasible_answer_says_under_which_pins(
    cli: Cli, tmp_path: Path
) -> None:
    """Each stage of one layer keeps 10 bytes for two micro-batches."""
    path = str(tmp_path / "tight.json")
    write(path, chain(memory_bytes=19))
    assert cli("solve", path, "--solver", "dp", "--pin", "pp=2") == 0
    assert "infeasible" in cli.out
    assert "only plans under --pin pp=2" in cli.out


def test_pins_that_contradict_each_other(cli: Cli, problem: str) -> None:
    assert cli.refuses(
        *("solve", problem, "--solver", "dp", "--pin", "pp=2", "--pin", "pp=1")
    ) == (
        "--pin: expected pp once, got pp=2 and pp=1, which contradict each "
        "other; keep one, or write pp=2|1 for either"
    )
    text = cli.refuses("compare", problem, "--pin", "pp=2,r=3")
    assert text.startswith("--pin pp=2,r=3: expected a plan that fulfils all")


# fit


def test_fit_finds_the_fewest_devices(
    cli: Cli, problem: str, tmp_path: Path
) -> None:
    output = str(tmp_path / "fit.json")
    code = cli("fit", problem, "--within", "150e-9", "-o", output)
    assert code == 0
    assert "least devices  2 (proven: nothing smaller" in cli.out
    assert "target         a step within 1.5e-07 s" in cli.out
    assert len(read_plan(output).stages) == 2


def test_fit_says_why_there_is_no_plan_at_all(
    cli: Cli, tmp_path: Path
) -> None:
    """A layer keeps 10 bytes."""
    path = tmp_path / "tight.json"
    write(path, chain(memory_bytes=5))
    code = cli(
        *("fit", str(path), "--within", "1", "--devices-list", "1,2"),
        *("--json", str(tmp_path / "fit.json")),
    )
    assert code == 1
    assert "least devices  none keeps the target (proven among" in cli.out
    assert "best possible  no plan at all was found" in cli.out
    assert "\nwhy: memory is short by" in cli.out
    assert "\nwould do: " in cli.out
    document = json.loads((tmp_path / "fit.json").read_text())
    assert document["infeasible"]["memory_bytes"] > 5


def test_fit_finds_the_smallest_memory(cli: Cli, problem: str) -> None:
    code = cli("fit", problem, "--memory", "--within", "60e-9", "--json", "-")
    assert code == 0
    assert "least memory per device  20 bytes (20 bytes) (proven" in cli.err
    assert "unlimited" in cli.err
    document = json.loads(cli.out)
    assert document["schema"] == "nest-fit/1"
    assert document["question"] == "memory"
    assert document["answer"]["memory_bytes"] == 20


@pytest.mark.parametrize(
    ("target", "devices"),
    [
        (("--tokens-per-s", "25e7"), 2),
        (("--tokens-per-s", "26e7"), 3),
        # four steps of 30 tokens, each within 60 ns
        (("--tokens", "100", "--days", "2.8e-12"), 3),
    ],
)
def test_fit_takes_other_targets(cli, problem, target, devices):
    assert cli("fit", problem, *target) == 0
    assert f"least devices  {devices} (proven" in cli.out


def test_fit_says_no_and_what_is_possible(
    cli: Cli, problem: str, tmp_path: Path
) -> None:
    output = str(tmp_path / "none.json")
    code = cli(
        *("fit", problem, "--within", "59e-9", "--devices-list", "1,3"),
        *("-o", output),
    )
    assert code == 1
    assert "none keeps the target (proven among the counts" in cli.out
    assert "best possible  60.0000 ns with 3 devices" in cli.out
    assert f"nest: {output} not written: no plan" in cli.err
    assert not Path(output).exists()
    code = cli("fit", problem, "--within", "59e-9", "--memory")
    assert code == 1
    assert "60.0000 ns whatever the memory" in cli.out


def test_fit_of_what_never_fits(cli: Cli, tmp_path: Path) -> None:
    path = str(tmp_path / "tiny.json")
    write(path, chain(memory_bytes=1))
    assert cli("fit", path, "--within", "1") == 1
    assert "best possible  no plan at all was found" in cli.out


def test_fit_honours_pins(cli: Cli, problem: str) -> None:
    assert cli("fit", problem, "--within", "1", "--pin", "pp=2") == 0
    assert "least devices  2 (proven" in cli.out
    assert "under          --pin pp=2" in cli.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            (),
            "nest fit: expected one target, --within, --tokens-per-s or "
            "--days with --tokens, got none; add one",
        ),
        (
            ("--within", "1", "--days", "1", "--tokens", "1"),
            "nest fit: expected one target, --within, --tokens-per-s or "
            "--days with --tokens, got --within and --days; keep one",
        ),
        (
            ("--days", "1"),
            "--tokens: expected --days and --tokens together, got one of "
            "them; add --tokens",
        ),
        (
            ("--within", "1", "--tokens", "1"),
            "--days: expected --days and --tokens together, got one of them; "
            "add --days",
        ),
        (
            ("--within", "0"),
            "--within: expected a number > 0, got '0'; for example 1.5 or "
            "2e12",
        ),
        (
            ("--within", "1/2"),
            "--within: expected a number > 0, got '1/2'; for example 1.5 or "
            "2e12",
        ),
        (
            ("--within", "soon"),
            "--within: expected a number > 0, got 'soon'; for example 1.5 or "
            "2e12",
        ),
        (
            ("--within", "1", "--memory", "--devices-list", "1"),
            "--devices-list: expected either it or --memory, got both; "
            "remove one",
        ),
        (
            ("--within", "1", "--devices-list", "2,9"),
            "--devices-list: expected numbers from 1 to 3, the devices of "
            "the cluster, got 9; remove it",
        ),
    ],
)
def test_fit_refuses(cli, problem, arguments, reason):
    assert cli.refuses("fit", problem, *arguments) == reason


@pytest.fixture
def two_types(tmp_path: Path) -> str:
    """Two devices, 1 and 2 $ per hour; the step times of the plain chain."""
    path = str(tmp_path / "two.json")
    problem = chain(sequence_length=10)
    device = replace(problem.cluster.device, price_usd_per_hour=1.0)
    part = DeviceRange(
        first=1, count=2, device=replace(device, name="New-80GB")
    )
    cluster = replace(problem.cluster, device=device, others=(part,))
    write(path, replace(problem, cluster=cluster))
    return path


def test_fit_finds_the_fastest_within_a_budget(
    cli: Cli, two_types: str, tmp_path: Path
) -> None:
    """Prices of new devices fall to 0.5 $: two of them cost 1 $ per hour."""
    output = str(tmp_path / "plan.json")
    code = cli(
        *("fit", two_types, "--hourly-budget", "1", "--price", "new=0.5"),
        *("--json", "-", "-o", output),
    )
    assert code == 0
    assert "fastest    2 New-80GB (proven among these counts)" in cli.err
    assert "limits     at most 1 $ per hour" in cli.err
    document = json.loads(cli.out)
    assert document["answer"]["devices_by_type"] == {"New-80GB": 2}
    assert document["answer"]["usd_per_hour"] == 1
    assert document["answer"]["step_time_ns"] == 120
    assert len(read_plan(output).stages) == 2


def test_fit_finds_the_cheapest_within_a_target_and_quotas(
    cli: Cli, two_types: str
) -> None:
    """All devices take a third of the time that one takes."""
    arguments = ("fit", two_types, "--cheapest", "--within", "60e-9")
    assert cli(*arguments) == 0
    assert (
        "cheapest   1 device + 2 New-80GB (proven among these counts)"
        in cli.out
    )
    assert "price      3 $ per hour, 5e-11 $ per step" in cli.out
    assert cli(*arguments, "--quota", "NEW-80gb=1,device=1") == 1
    assert (
        "cheapest  none keeps the limits (proven among these counts)"
        in cli.out
    )


def test_fit_takes_the_budget_of_a_run(cli: Cli, two_types: str) -> None:
    """Four steps; on any devices at 1 $ each costs at least 180 ns of one."""
    arguments = ("fit", two_types, "--tokens", "100", "--budget")
    assert cli(*arguments, "2.1e-10") == 0
    assert (
        "fastest    1 device + 2 New-80GB (proven among these counts)"
        in cli.out
    )
    assert cli(*arguments, "1.9e-10") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ("--hourly-budget", "-5"),
            "--hourly-budget: expected a number > 0, got '-5'; for example "
            "1.5 or 2e12",
        ),
        (
            ("--budget", "0", "--tokens", "1"),
            "--budget: expected a number > 0, got '0'; for example 1.5 or "
            "2e12",
        ),
        (
            ("--budget", "5"),
            "--tokens: expected the tokens of the run of --budget, got none; "
            "add --tokens, or ask for an --hourly-budget",
        ),
        (
            ("--cheapest",),
            "nest fit: expected one target, --within, --tokens-per-s or "
            "--days with --tokens, got none; add one",
        ),
        (
            ("--within", "1", "--quota", "new=1"),
            "--quota: expected --budget, --hourly-budget or --cheapest too, "
            "got none; add one",
        ),
        (
            ("--within", "1", "--price", "new=1"),
            "--price: expected --budget, --hourly-budget or --cheapest too, "
            "got none; add one",
        ),
        (
            ("--hourly-budget", "5", "--memory"),
            "--hourly-budget: expected either it or --memory, got both; "
            "remove one",
        ),
        (
            ("--hourly-budget", "5", "--devices-list", "1"),
            "--hourly-budget: expected either it or --devices-list, got "
            "both; remove one",
        ),
        (
            ("--hourly-budget", "5", "--quota", "v100=4"),
            "--quota v100=4: expected TYPE=VALUE with a type of the cluster, "
            "device or New-80GB, got 'v100'; correct it",
        ),
        (
            ("--hourly-budget", "5", "--quota", "new"),
            "--quota new: expected TYPE=VALUE with a type of the cluster, "
            "device or New-80GB, got 'new'; correct it",
        ),
        (
            ("--hourly-budget", "5", "--quota", "new=1,new=2"),
            "--quota new=2: expected New-80GB once, got it twice; keep one",
        ),
        (
            ("--hourly-budget", "5", "--quota", "new=3"),
            "--quota New-80GB=3: expected an integer from 0 to 2, the devices "
            "of this type, got 3; lower it",
        ),
        (
            ("--hourly-budget", "5", "--price", "new=-1"),
            "--price new=-1: expected a number > 0, got '-1'; for example "
            "1.5 or 2e12",
        ),
        (
            ("--within", "1", "--memory"),
            "--memory: expected devices of one type, got device + New-80GB; "
            "ask for each type alone",
        ),
    ],
)
def test_fit_refuses_bad_budgets(cli, two_types, arguments, reason):
    assert cli.refuses("fit", two_types, *arguments) == reason


def test_fit_asks_for_prices(cli: Cli, problem: str) -> None:
    assert cli.refuses("fit", problem, "--hourly-budget", "5") == (
        "--price: expected a price of every type, got none of device; add "
        "--price device=USD or its price_usd_per_hour in the file"
    )


def test_fit_refuses_an_unknown_solver(cli: Cli, problem: str) -> None:
    text = cli.refuses("fit", problem, "--within", "1", "--solver", "ddp")
    assert text.startswith("solver: expected one of")
    assert text.endswith("got 'ddp'; did you mean 'dp'?")


# explain


def test_explain_has_every_part(cli: Cli, problem: str, plan: str) -> None:
    """120 ns: 90 of computation, 30 to fill; three replicas take 60."""
    code = cli("explain", problem, plan, "--prefer", "pp=1,r=1")
    assert code == 0
    lines = [" ".join(line.split()) for line in cli.out.splitlines()]
    for line in (
        "Where the step time goes",
        "computation 90.000 ns 75.00 %",
        "filling and draining the pipeline 30.000 ns 25.00 %",
        "slowest stage 1 of 2, 30.000 ns per micro-batch, counted 3 times",
        "What bounds it",
        "best plan 60.000 ns (proven); the plan takes 100.00 % more",
        "binding none of these alone gains anything",
        "What a neighbouring plan takes",
        "one stage less +60.000 ns +50.00 % ±0 bytes stages 1 and 2 "
        "merged, single",
        "What the preferred setting costs",
        "its plan r=1, b=1, pp=1, strategies single",
        "pp=1,r=1 at best 180.000 ns (proven), 50.00 % more than the plan",
        "computation 90.000 ns 180.000 ns +90.000 ns",
    ):
        assert line in lines
    (illegal,) = (line for line in lines if "illegal" in line)
    assert illegal.startswith("9 moves are illegal (--verbose says which): ")
    assert "zero: expected one of [0]" in cli.out


def test_explain_lists_what_is_illegal_if_asked(
    cli: Cli, problem: str, plan: str
) -> None:
    assert cli("explain", problem, plan, "--no-search", "--verbose") == 0
    lines = [" ".join(line.split()) for line in cli.out.splitlines()]
    assert "moves are illegal" not in cli.out
    assert any(
        line.startswith("zero raised by 1 illegal: stage 1: zero: expected")
        for line in lines
    )


def test_explain_the_preferred_plan_itself(
    cli: Cli, problem: str, plan: str
) -> None:
    code = cli("explain", problem, plan, "--prefer", "pp=2,r=1")
    assert code == 0
    end = cli.out[cli.out.index("What the preferred setting costs") :]
    assert "(proven), as long as the plan" in end
    assert "difference" not in end


def test_explain_without_a_search(cli: Cli, problem: str, plan: str) -> None:
    assert cli("explain", problem, plan, "--no-search", "--json", "-") == 0
    document = json.loads(cli.out)
    assert document["schema"] == "nest-explain/1"
    assert document["optimum"] is None
    assert "What bounds it" not in cli.err


def test_explain_under_pins(cli: Cli, problem: str, plan: str) -> None:
    code = cli("explain", problem, plan, "--pin", "pp=2", "--json", "-")
    assert code == 0
    document = json.loads(cli.out)
    assert document["optimum"]["step_time_ns"] == 120
    assert document["restrictions"] == {"pin": {"pp": [2]}, "forbid": {}}
    assert "only plans under --pin pp=2" in cli.err
    assert "the plan is as good" in cli.err


def test_explain_a_plan_that_does_not_fit(
    cli: Cli, plan: str, tmp_path: Path
) -> None:
    """Two layers keep 20 bytes on one device, 19 are there."""
    path = str(tmp_path / "tight.json")
    write(path, chain(memory_bytes=19))
    assert cli("explain", path, plan) == 1
    assert "best plan  infeasible" in cli.out
    assert "20 bytes of 19 bytes, 1 byte too much" in cli.out
    assert "binding    memory without limit" in cli.out
    assert "a plan fits" in cli.out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            ("--no-search", "--prefer", "pp=1"),
            "--prefer: expected either it or --no-search, got both; remove "
            "one",
        ),
        (
            ("--prefer", "pp=5"),
            "--prefer pp=5: expected at most 2 stages (2 layers, 3 devices), "
            "got 5; pin fewer",
        ),
        (
            ("--pin", "pp=1"),
            "stages: expected one of [1] as their number, got 2; change the "
            "strategies",
        ),
    ],
)
def test_explain_refuses(cli, problem, plan, arguments, reason):
    assert cli.refuses("explain", problem, plan, *arguments) == reason


def test_explain_says_where_a_plan_comes_from(
    cli: Cli, problem: str, tmp_path: Path
) -> None:
    """Plans of pinned problems belong to the whole one; others do not."""
    output = str(tmp_path / "foreign.json")
    narrow = str(tmp_path / "narrow.json")
    write(narrow, restrict(chain(), {"pp": (2,)}))
    assert cli("solve", narrow, "--solver", "dp", "-o", output) == 0
    assert cli("explain", problem, output, "--no-search") == 0
    assert "warning: the plan was made for problem" in cli.err
