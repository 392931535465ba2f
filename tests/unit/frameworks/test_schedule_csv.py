"""Orders of passes as CSV files of PyTorch: written, read, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from nest.cost.schedules import schedule_of
from nest.cost.score import score
from nest.errors import InvalidPlanError
from nest.frameworks.schedule_csv import cells_of, csv_text, export, with_passes
from nest.requests.explaining import SimulateRequest
from nest.simulation.events import Simulation
from tests.builders import SINGLE, make_cost, make_plan
from tests.builders import make_problem as build
from tests.exports import Strategy, small_plan, small_problem

#: Schedules with chunks per block, and where those sit.
KINDS = [
    ("1f1b", 1, "loop"),
    ("1f1b", 2, "loop"),
    ("gpipe", 1, "loop"),
    ("zb-h1", 1, "loop"),
    ("zb-v", 2, "v"),
    ("dualpipe-v", 2, "v"),
]


def case(schedule, virtual, placement, counts=(2, 2, 2, 2)):
    """Return a problem of a schedule, and a plan of two or four blocks."""
    problem = small_problem()
    changes = {"schedule": schedule, "virtual_stages": (virtual,)}
    job = replace(problem.job, recompute=("none",), **changes)
    plan = small_plan(
        problem,
        Strategy(dp=4, zero=1),
        counts,
        virtual_stages=virtual,
        placement=placement,
    )
    return replace(problem, job=job), plan


@pytest.mark.parametrize(("schedule", "virtual", "placement"), KINDS)
def test_every_order_is_written_and_read_back(schedule, virtual, placement, tmp_path):
    """It takes as long on the same stages, wherever the plan had them."""
    problem, plan = case(schedule, virtual, placement)
    simulation = Simulation(problem, plan)
    text = export(simulation)["schedule.csv"]
    other = replace(plan, placement="loop")
    if schedule == "dualpipe-v":
        with pytest.raises(InvalidPlanError, match=r"got '\(0F3;3B1\)OVERL"):
            with_passes(other, text, "s.csv")
        return
    ordered = with_passes(other, text, "s.csv")
    assert ordered.placement == placement
    assert csv_text(ordered.order) == text
    path = tmp_path / "s.csv"
    path.write_text(text)
    request = SimulateRequest(problem, plan=other, schedule=path)
    assert Simulation(*request.find_problem_and_plan()).step == simulation.step


def test_a_schedule_of_somebody_else_is_priced_on_a_plan(tmp_path):
    """GPipe's order by hand on a plan for 1F1B: 3 F, 3 B on each stage.

    (F, G) = (10, 20): the second block ends its forward passes at 40 and its
    backward passes at 100, the first block one backward pass later.
    """
    costs = {name: make_cost(10, 20) for name in "ab"}
    problem = build(costs, edges=(("a", "b", 0),), global_batch=3)
    plan = make_plan(("a", SINGLE), ("b", SINGLE))
    path = Path(tmp_path / "gpipe.csv")
    path.write_text("0F0,0F1,0F2,,,0B0,0B1,0B2\n, 1F0,1F1,1F2,1B0,1B1,1B2\n")
    request = SimulateRequest(problem, plan=plan, schedule=path)
    priced, ordered = request.find_problem_and_plan()
    assert Simulation(priced, ordered).step == 120
    assert ordered.order[1] == ("1F0", "1F1", "1F2", "1B0", "1B1", "1B2")
    assert score(problem, plan).feasible  # the plan itself is as it was


def test_chunks_go_where_the_rows_have_them():
    _, plan = case("1f1b", 2, "loop")
    zbv = cells_of(schedule_of("zb-v"), 2, 8)
    there = with_passes(plan, csv_text(zbv), "s.csv")
    assert (there.placement, there.order) == ("v", zbv)
    loop = cells_of(schedule_of("1f1b", 2), 2, 8)
    back = with_passes(there, csv_text(loop), "s.csv")
    assert (back.placement, back.order) == ("loop", loop)


def test_communication_is_passed_over():
    """What ``_dump_csv`` writes besides."""
    _, plan = case("1f1b", 1, "loop", (4, 4))
    text = (
        "0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\n"
        "1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD,1RESHARD\n"
    )
    ordered = with_passes(plan, text, "s.csv")
    assert ordered.order == (("0F0", "0B0"), ("1F0", "1B0"))


#: A file for two stages and two micro-batches, and what the refusal says.
GOOD = "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"
BROKEN = [
    ("", "1F0,1B0,1F1,1B1\n", "s.csv: expected 2 rows, one for each block of "
     "the plan, got 1; take the schedule of as many ranks"),
    (None, "2F0,2B0\n", "s.csv: expected 2 rows, one for each block of the "
     "plan, got 3; take the schedule of as many ranks"),
    ("1B1", "2B1", "s.csv, row 2: expected stages 0 to 1, those of the plan, "
     "got 2B1; take the schedule of as many stages"),
    ("1B1", "0B1", "s.csv, row 2: expected passes of its chunks [1], got 0B1; "
     "move it to the row of chunk 0, or remove it"),
    (",1B1", "", "s.csv, row 2: expected every pass of chunk 1, got no 1B1; add it"),
    ("0F1,", "", "s.csv, row 1: expected 0F1 in front of 0B1, got it later or "
     "not at all; reorder them"),
    ("0F1", "0F0", "s.csv, row 1: expected every pass once, got 0F0 again; remove one"),
    ("1B1", "1B1,1W1", "s.csv, row 2: expected every pass once, got 1W1 "
     "again; remove one"),
    ("1B1", "1W1,1I1", "s.csv, row 2: expected 1I1 in front of 1W1, got it "
     "later or not at all; reorder them"),
    ("0F0,0F1,0B0,0B1", "0F0,0B0,0F1,0B1\n1F0,1F1,1B1,1B0",
     "s.csv: expected 2 rows, one for each block of the plan, got 3; take "
     "the schedule of as many ranks"),
    ("0F0,0F1,0B0,0B1", "0F0,0B0,0F1,0B1", None),
    ("1F0,1B0,1F1,1B1", "1F1,1B1,1F0,1B0", None),
    ("0F0,0F1,0B0,0B1\n1F0,1B0", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0",
     "s.csv, row 2: expected every pass once, got 1F1 again; remove one"),
    ("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1", "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
     "s.csv: expected passes that can all run, got some that wait for each "
     "other: 0B0 on row 1, 1F1 on row 2; reorder them"),
    ("1B1", "1X1", "s.csv, row 2: expected single passes such as 3F5 "
     "(stage 3, micro-batch 5; F, B, I or W), got '1X1'; correct it"),
    ("1B1", "1B1x", "got '1B1x'; correct it"),
    ("0F1", "(0F1;0B0)OVERLAP_F_B", "s.csv, row 1: expected single passes such as 3F5 "
     "(stage 3, micro-batch 5; F, B, I or W), got '(0F1;0B0)OVERLAP_F_B'; correct it"),
    ("0F0", "x" * 140000, "s.csv: expected a CSV file, got field larger than "
     "field limit (131072); correct it"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "message"), BROKEN)
def test_bad_files_are_refused_by_row_and_pass(old, new, message):
    _, plan = case("1f1b", 1, "loop", (4, 4))
    if old is None:
        text = GOOD + new
    elif old == "":
        text = new
    else:
        text = GOOD.replace(old, new)
    assert text != GOOD
    if message is None:
        assert with_passes(plan, text, "s.csv")
        return
    with pytest.raises(InvalidPlanError) as error:
        with_passes(plan, text, "s.csv")
    assert str(error.value).endswith(message)


def test_other_numbers_of_micro_batches_are_refused(tmp_path):
    problem, plan = case("1f1b", 1, "loop", (4, 4))
    path = tmp_path / "s.csv"
    path.write_text(GOOD)
    for batch, message in (
        (8, "row 1: expected micro-batches 0 to 0, got 0F1; remove it"),
        (24, "row 1: expected every pass of chunk 0, got no 0F2; add it"),
    ):
        job = replace(problem.job, global_batch=batch)
        request = SimulateRequest(replace(problem, job=job), plan=plan, schedule=path)
        with pytest.raises(InvalidPlanError, match=message):
            request.find_problem_and_plan()


def test_blocks_of_other_devices_cannot_have_their_chunks_moved():
    """Chunks 1 and 4 on the first block are of 4 and 2 devices."""
    _, plan = case("1f1b", 2, "loop")
    small = Strategy(dp=2)
    stages = [
        replace(stage, devices=2, strategy=small) if index % 2 else stage
        for index, stage in enumerate(plan.stages)
    ]
    plan = replace(plan, stages=tuple(stages))
    zbv = csv_text(cells_of(schedule_of("zb-v"), 2, 8))
    with pytest.raises(
        InvalidPlanError,
        match=r"s.csv: stages: expected 2 devices in stage 3, as in stage 2",
    ):
        with_passes(plan, zbv, "s.csv")


def test_weights_apart_need_no_full_recomputation(tmp_path):
    problem, plan = case("1f1b", 1, "loop", (4, 4))
    job = replace(problem.job, recompute=("full",))
    full = Strategy(dp=4, zero=1, recompute="full")
    plan = replace(plan, stages=tuple(replace(x, strategy=full) for x in plan.stages))
    path = tmp_path / "s.csv"
    path.write_text(csv_text(cells_of(schedule_of("zb-h1"), 2, 8)))
    request = SimulateRequest(replace(problem, job=job), plan=plan, schedule=path)
    with pytest.raises(
        InvalidPlanError, match="stage 1: expected whole backward passes"
    ):
        Simulation(*request.find_problem_and_plan())
