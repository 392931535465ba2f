"""Plans for a model leave memory free by default, and say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import nest
from nest.uncertainty.headroom import DEFAULT_HEADROOM
from tests.cli.conftest import SMALL, Cli


@pytest.fixture
def solve(cli: Cli, config: str) -> str:
    """Return the command for a cluster with little memory."""
    cli.succeeds(
        f"solve --model {config} --cluster h100x4 {SMALL} --headroom 0 "
        "--json whole.json"
    )
    (cell,) = json.loads(Path("whole.json").read_text())["cells"]
    needed = max(stage["memory_bytes"] for stage in cell["score"]["stages"])
    memory = f"memory_bytes: {round(1.005 * needed)}"
    device = f"device: {{machine: h100, {memory}}}"
    Path("tight.yaml").write_text(f"num_devices: 4\n{device}\n")
    return f"--model {config} --cluster tight.yaml {SMALL}"


def test_the_plan_that_may_not_fit_is_shown_below(cli: Cli, solve: str) -> None:
    """``--headroom 0`` gives it, and so does the stated headroom the other.

    The headroom is enough for about half of all runs, as no software is stated.
    """
    document = cli.document(f"solve {solve}")
    assert document["headroom"] == DEFAULT_HEADROOM
    (cell,), faster = document["cells"], document["faster"]
    assert 0.45 <= cell["intervals"]["fit_probability"] < 0.75
    assert 0.25 < faster["fit_probability"] < 0.5
    assert faster["step_time_ns"] < cell["step_time_ns"]
    assert "% faster, fits" in cli.err
    # The plan is one of the problem that 'nest problems' writes.
    assert cell["plan"]["problem_hash"] == document["problem_hash"]
    model = solve.replace(SMALL, "")
    cli.succeeds(f"problems {model} {SMALL} -o problem.json")
    Path("plan.json").write_text(json.dumps(cell["plan"]))
    assert (
        cli.document("score problem.json plan.json")["step_time_ns"]
        == cell["step_time_ns"]
    )

    again = cli.document(f"solve {solve} --headroom {DEFAULT_HEADROOM}")
    assert again["cells"][0]["step_time_ns"] == cell["step_time_ns"]
    assert "faster" not in again
    old = cli.document(f"solve {solve} --headroom 0")
    assert old["cells"][0]["step_time_ns"] == faster["step_time_ns"]
    assert old["headroom"] == "0"
    assert "only plans under" not in cli.err


def test_compare_and_python_have_the_same_default(cli: Cli, solve: str) -> None:
    document = cli.document(f"compare {solve} --solvers dp,cpsat")
    steps = {cell["step_time_ns"] for cell in document["cells"]}
    assert len(steps) == 1
    assert document["faster"]["step_time_ns"] < min(steps)
    model, cluster = "tiny/config.json", "tight.yaml"
    small = {
        "global_batch": 8,
        "micro_batches": (1, 2),
        "tp": (1, 2),
        "zero": (0, 1),
        "recompute": ("none", "full"),
    }
    result = nest.solve(model=model, cluster=cluster, **small)
    assert {result.step_time_ns} == steps
    assert result.extra["headroom"] == DEFAULT_HEADROOM
    assert result.extra["faster"] == document["faster"]
    comparison = nest.compare(solvers="dp", model=model, cluster=cluster, **small)
    assert {comparison["dp"].step_time_ns} == steps
    # A problem that was made before is solved as it is.
    fastest = nest.solve(nest.problem(model=model, cluster=cluster, **small))
    assert fastest.step_time_ns == document["faster"]["step_time_ns"]
    assert "headroom" not in fastest.extra
