"""``nest.operator_schedule`` on cases worked out by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from formulations.milp.engines import Outcome, Verdict
from formulations.schedule.cpsat import schedule_part as in_cpsat
from formulations.schedule.milp import TOLERANCE, UNIT, Model
from nest.errors import InvalidProblemError, SolverError, UnknownNameError
from nest.ir.io import _NAMES
from nest.operator_schedule import (
    SOLVERS,
    Cores,
    Engine,
    Operator,
    PartOf,
    bounds,
    makespan_ticks,
    quick_ticks,
    schedule,
    search,
)
from nest.operator_schedule.blocks import schedule_part as in_blocks
from nest.operator_schedule.bounds import lower_bound_ticks, work_ticks
from nest.operator_schedule.checks import MAX_OPERATORS, MAX_TICKS
from nest.operator_schedule.layer_file import decode_layer
from nest.operator_schedule.pack import shortest_block
from nest.operator_schedule.parts import JobGroup, in_series
from nest.operator_schedule.reduce import in_pieces, with_fewer_modes, without_channel
from nest.operator_schedule.search import How
from nest.operator_schedule.timetable import Timetable, faults, length_ticks
from nest.solvers.base import Deadline, OutOfTimeError
from tests.schedules import (
    free,
    fused,
    least_makespan,
    one_by_one,
    operator,
    replay,
    stored_passes,
    tensor,
    vector,
)


@pytest.fixture(autouse=True)
def _nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "_kept", type(search._kept)())


@pytest.mark.parametrize("workers", [1, 2])
def test_long_operators(workers: int) -> None:
    operators, cores, shortest = PASSES["long"]
    assert least_makespan(operators, cores) == shortest
    part = only_part(*operators)
    how = How(Deadline(None), num_workers=workers)
    table, bound = in_cpsat(part, one_by_one(part), 0, how)
    assert length_ticks(part, table) == shortest == bound


def only_part(*operators: Operator, cores: tuple[int, int] = (2, 1)) -> JobGroup:
    ((_, part),) = in_series(operators, Cores(*cores))
    return part


HOW = How(Deadline(None))

PASSES = stored_passes()
#: Those that every engine solves in no time.
CASES = [name for name in PASSES if name not in ("long", "backward")]


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("case", CASES)
def test_makespans(case: str, solver: str) -> None:
    operators, cores, makespan = PASSES[case]
    found = schedule(operators, cores, solver=solver)
    assert found.makespan_ticks == makespan
    assert found.optimal
    replay(operators, cores, found)
    assert least_makespan(operators, cores) == makespan
    assert makespan_ticks(operators, cores, solver=solver) == makespan
    lower, upper = bounds(operators, cores)
    assert lower <= makespan <= upper


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("case", CASES)
def test_engines_find_them_without_help(case: str, solver: str) -> None:
    """Of whole parts, with no bound, from one job after the other."""
    operators, cores, makespan = PASSES[case]
    engine = import_module(SOLVERS[solver].partition(":")[0])
    total = 0
    for _, part in in_series(operators, cores):
        table, bound = engine.schedule_part(part, one_by_one(part), 0, HOW)
        assert faults(part, table) is None
        assert length_ticks(part, table) == bound
        total += bound
    assert total == makespan


def test_the_channel_is_looked_at_along_the_paths() -> None:
    operators, cores, makespan = PASSES["backward"]
    found = schedule(operators, cores)
    replay(operators, cores, found)
    assert found.makespan_ticks == makespan
    assert [part.proof for part in found.parts] == ["dp"]
    still = [
        replace(x, single_channel_ticks=0, whole_channel_ticks=0) for x in operators
    ]
    assert makespan_ticks(still, cores) == makespan


def test_milp_proves_a_little_less_than_floats_say() -> None:
    part = only_part(*(tensor(x, 4) for x in "abc"))
    model = Model(part, one_by_one(part), 0)
    ticks = UNIT / 12
    said = Outcome(Verdict.STOPPED, bound=7 * ticks * (1 + TOLERANCE / 2))
    assert model.read(said, 5) == (None, 7)
    assert model.read(said, 8) == (None, 8)
    assert model.read(Outcome(Verdict.STOPPED), 5) == (None, 5)
    more = Outcome(Verdict.STOPPED, bound=7 * ticks * (1 + 2 * TOLERANCE))
    assert model.read(more, 5) == (None, 8)


def test_a_schedule_says_when_and_where() -> None:
    operators = [
        tensor("a", 4, 2),
        tensor("b", 3, after=["a"]),
        vector("c", 3, after=["a"], channel=(2, 0)),
        free("view", ["b"]),
        fused("d", 1, after=["view", "c"]),
    ]
    found = schedule(operators, Cores(2, 1))
    assert found.makespan_ticks == found.lower_bound_ticks == 6
    assert list(found.operators) == ["a", "b", "c", "view", "d"]
    places = found.operators
    assert places["a"] == (0, 2, True, None, None)
    assert places["b"] == (2, 5, False, 0, None)
    assert places["c"] == (2, 5, False, None, 0)
    assert places["view"] == (5, 5, False, None, None)
    assert places["d"] == (5, 6, False, 0, 0)
    assert found.parts == (
        PartOf(("a",), 0, 2, 2, 0, "single"),
        PartOf(("b", "c"), 2, 5, 3, 2, "bound"),
        PartOf(("d",), 5, 6, 1, 0, "single"),
    )


def test_a_pass_is_cut_where_everything_meets() -> None:
    """a, then b to e, then f; c and d do not meet in between."""
    operators = [
        tensor("a", 1),
        tensor("b", 2, after=["a"]),
        vector("c", 2, after=["a"]),
        tensor("d", 3, after=["b"]),
        vector("e", 3, after=["c"]),
        fused("f", 1, after=["d", "e", "a"]),
    ]
    parts = in_series(operators[::-1], Cores(1, 1))
    names = [{operators[::-1][i].name for i in members} for members, _ in parts]
    assert names == [{"a"}, {"b", "c", "d", "e"}, {"f"}]
    # What is read through others is left out.
    assert [job.after for _, part in parts for job in part.jobs] == [
        *((), (), (), (0,), (1,), ())
    ]
    found = schedule(operators, Cores(1, 1))
    assert found.makespan_ticks == 1 + (2 + 3) + 1


def test_free_operators_cut_as_if_they_were_not_there() -> None:
    """a, then b: the view beside them joins nothing."""
    operators = [tensor("a", 2), free("view"), tensor("b", 2, after=["a"])]
    assert len(in_series(operators, Cores(1, 0))) == 2


def test_operators_get_the_first_free_core() -> None:
    found = schedule(
        [tensor("a", 4), tensor("b", 4), vector("c", 4), tensor("d", 4)], Cores(3, 1)
    )
    places = found.operators
    assert {places[name].tensor_core for name in "abd"} == {0, 1, 2}
    assert places["c"].vector_core == 0


# Equal parts


def test_equal_parts_are_scheduled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever they are called, in whichever order they are listed."""
    runs = []
    engine = search._run

    def counted(part: JobGroup, *rest: Any) -> Any:
        runs.append(part)
        return engine(part, *rest)

    monkeypatch.setattr(search, "_run", counted)
    layer = [tensor("a", 5, 3), tensor("b", 5, 3), vector("c", 4)]
    again = [
        operator(f"{x.name}2", x.engine, x.single_ticks, x.whole_ticks, "abc")
        for x in layer[::-1]
    ]
    found = schedule([*layer, *again], Cores(2, 1))
    assert [len(part.operators) for part in found.parts] == [3, 3]
    assert found.makespan_ticks == 10
    assert len(runs) == 1
    # More cores than can be used change nothing.
    schedule(layer, Cores(7, 5))
    assert len(runs) == 1
    schedule(layer, Cores(1, 1))
    assert len(runs) == 2
    schedule(layer, Cores(2, 1), solver="cpsat")
    assert len(runs) == 3


def test_what_is_not_proven_is_not_kept() -> None:
    operators = [tensor(f"o{i}", 5 + i % 7) for i in range(40)]
    found = schedule(operators, Cores(3, 1), time_limit_s=0.0)
    assert found.parts[0].proof == "none"
    assert not search._kept


def test_the_oldest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "MAX_KEPT", 2)
    for ticks in (1, 2, 1, 3):
        schedule([tensor("a", ticks)], Cores(1, 0))
    kept = [part.jobs[0].least_ticks for _, part in search._kept]
    assert kept == [1, 3]


# What is left out


def test_a_mode_that_gains_nothing_is_left_out() -> None:
    part = only_part(
        tensor("a", 4, 4, channel=(1, 1)),
        tensor("b", 4, 4, channel=(2, 1)),
        tensor("c", 4, 3),
    )
    # In the order of their ticks: c, a, b.
    assert [job.whole is None for job in part.jobs] == [False, True, False]
    # Without its channel b gains nothing either.
    bare = without_channel(part)
    assert [job.whole is None for job in bare.jobs] == [False, True, True]


def test_an_operator_that_holds_up_others_takes_the_chip() -> None:
    """9 beside b and c, or 2 and both of them one by one in 4 + 3."""
    others = (tensor("b", 4), vector("c", 3))
    for single, kept in ((9, False), (8, True)):
        part = only_part(tensor("a", single, 2), *others)
        jobs = with_fewer_modes(part).jobs
        (job,) = [job for job in jobs if job.whole is not None]
        assert (job.single is not None) == kept
    # One that would need more of the channel so stays as it is.
    part = only_part(tensor("a", 9, 2, channel=(1, 2)), *others)
    assert with_fewer_modes(part) == part
    assert without_channel(part) != part


def test_others_take_the_chip_only_if_the_channel_allows() -> None:
    """b alone takes 1 with 1 tick of the channel, or 4 without."""
    for channel, kept in (((0, 1), True), ((1, 1), False)):
        part = only_part(tensor("a", 4, 1), tensor("b", 4, 1, channel=channel))
        jobs = with_fewer_modes(part).jobs
        assert sum(job.single is not None for job in jobs) == 2 * kept


def test_an_operator_that_meets_none_runs_first_or_last() -> None:
    """b, c may overlap; a meets nothing and follows nothing, d ends."""
    part = only_part(
        tensor("a", whole=1),
        tensor("b", 4),
        vector("c", 4),
        tensor("d", whole=2, after=["b"]),
        vector("e", 5, after=["a", "c", "b"]),
        cores=(1, 1),
    )
    pieces = in_pieces(without_channel(part))
    ticks = [
        [part.jobs[i].least_ticks for i in numbers]
        for numbers in (pieces.first, pieces.last)
    ]
    assert ticks == [[1], [2, 5]] or ticks == [[1], [5, 2]]
    ((members, piece),) = pieces.between
    assert [part.jobs[i].least_ticks for i in members] == [4, 4]
    assert piece.cores == (1, 1)


def test_more_cores_than_users_are_not_counted() -> None:
    part = only_part(tensor("a", 4), tensor("b", 5, 4), cores=(9, 3))
    assert part.cores == (2, 1)
    # b alone is left, and has both modes.
    part = only_part(tensor("a", whole=4), tensor("b", 5, 4), cores=(9, 3))
    assert part.cores == (1, 1)


# Bounds


def test_bounds_without_an_engine() -> None:
    """The path a, b: 5; work on two tensor cores (3 + 4 + 4) / 2."""
    operators = [tensor("a", 3), tensor("b", 2, after=["a"]), tensor("c", 1)]
    assert bounds(operators, Cores(2, 0)) == (5, 6)
    operators = [tensor("a", 3), tensor("b", 4), tensor("c", 4)]
    assert bounds(operators, Cores(2, 0)) == (6, 11)
    # The channel serves one after the other: 2 + 3 + 1.
    channelled = [
        tensor(str(i), 4, channel=(ticks, 0)) for i, ticks in enumerate((2, 3))
    ]
    assert bounds(channelled, Cores(2, 0)) == (5, 8)
    assert bounds([], Cores(0, 0)) == (0, 0)


def test_whole_chip_counts_for_both_types() -> None:
    """a on the chip takes 2 of the vector core too, which b needs for 8.

    Where a's modes cost the same: an eighth of the weight is on the tensor
    core, min(2, 16/8) + 8 * 7/8.
    """
    part = only_part(tensor("a", 16, 2), vector("b", 8, 8), cores=(2, 1))
    assert work_ticks(part.jobs, part.cores, (1, 1)) == 2
    assert work_ticks(part.jobs, part.cores, (0, 1)) == 8
    assert work_ticks(part.jobs, part.cores, (1, 8)) == 9
    assert lower_bound_ticks(part) == 9


def test_weighing_both_types_is_the_better_bound() -> None:
    """Each alone takes 6; four of them, two at a time, 12, not 6 or 8."""
    part = only_part(
        *(tensor(name, 8, 3) for name in "ab"),
        *(vector(name, 8, 3) for name in "cd"),
        cores=(1, 1),
    )
    # 3 + 3 + 3 + 3, or 16 beside 16, or 8 and 3 and 3
    assert work_ticks(part.jobs, part.cores, (1, 1)) == 6
    assert work_ticks(part.jobs, part.cores, (1, 2)) == 12
    assert lower_bound_ticks(part) == 12


def test_work_counts_from_the_first_start_to_the_last_end() -> None:
    """a, then two of 4 on one core, then d: 2 + 8 + 3, not 2 + 4 + 3."""
    operators = [
        vector("a", 2),
        *(tensor(name, 4, after=["a"]) for name in "bc"),
        vector("d", 3, after=["b", "c"]),
        tensor("e", 1),
    ]
    part = only_part(*operators, cores=(1, 1))
    assert lower_bound_ticks(part) == 13


# Blocks


def test_a_core_that_others_keep_busy_takes_no_part() -> None:
    """12 ticks, not 13: after b and d, 0 and 4 share two cores for 9 ticks.

    While a tensor core is busy till 7 the other one alone takes five after
    one, which ends at 9 as well; what both cores have left says nothing of it.
    """
    operators = [
        tensor("0", 3, 2),
        tensor("1", 1),
        tensor("3", None, 1, ["1"]),
        tensor("4", 7, 4, ["3"]),
        tensor("5", 1, 1, ["0", "3"]),
        vector("6", 5, 1, ["5"]),
        tensor("7", 1, None, ["4", "5"]),
        tensor("8", 1, None, ["6", "7"]),
        tensor("9", 5, 1, ["5"]),
    ]
    found = schedule(operators, Cores(2, 1))
    assert found.makespan_ticks == 12
    assert found.optimal


def test_blocks_are_packed() -> None:
    """7 = 4 + 3 beside 5, and then 1; below 8 ticks there is no other."""
    part = only_part(tensor("a", 4), tensor("b", 3), tensor("c", 5), vector("d", 1))
    everything = (1 << len(part.jobs)) - 1
    found = shortest_block(part, everything, 100)
    assert found is not None
    assert found.ticks == 7
    assert found.starts is not None
    table = Timetable(found.starts, (False,) * 4)
    assert faults(part, table) is None
    assert shortest_block(part, everything, 7) is not None
    assert shortest_block(part, everything, 6) == (7, None)


def test_too_much_work_is_left_to_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    operators = [
        *(tensor(f"t{i}", 7 + i, 5) for i in range(5)),
        *(vector(f"v{i}", 9 + i, after=[f"t{i}"]) for i in range(5)),
    ]
    truth = least_makespan(operators, Cores(2, 2))
    for module, name in (
        ("blocks", "MAX_JOBS"),
        ("blocks", "MAX_SETS"),
        ("blocks", "MAX_PAIRS"),
        ("blocks", "MAX_REACHED"),
        ("pack", "MAX_STARTED"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(f"nest.operator_schedule.{module}.{name}", 4)
            search._kept.clear()
            found = schedule(operators, Cores(2, 2))
        assert found.makespan_ticks == truth
        assert [part.proof for part in found.parts] == ["cpsat"]
    search._kept.clear()
    found = schedule(operators, Cores(2, 2))
    assert [part.proof for part in found.parts] == ["dp"]


def many_heads() -> list[Operator]:
    operators = []
    for head in range(8):
        operators += [
            *(tensor(f"{x}{head}", 64, 9) for x in "qkv"),
            tensor(f"s{head}", 32, 5, [f"q{head}", f"k{head}"]),
            vector(f"m{head}", 10, 5, [f"s{head}"]),
            tensor(f"a{head}", 32, 5, [f"m{head}", f"v{head}"]),
        ]
    return operators


def test_a_layer_of_many_heads_is_bounded() -> None:
    """24 products of 64 and 16 of 32 on 8 cores: work for 256 ticks."""
    operators = many_heads()
    lower, upper = bounds(operators, Cores(8, 2))
    assert (lower, upper) == (256, 24 * 9 + 8 * (5 + 5 + 5))
    # What is at hand without any search: more time may find less.
    found = schedule(operators, Cores(8, 2), time_limit_s=0.0)
    replay(operators, Cores(8, 2), found)
    assert found.lower_bound_ticks == 256
    assert found.makespan_ticks <= 293


def test_quick_ticks_leave_open_what_the_own_search_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 24 products beside others it knows the work, of three all."""
    three = [tensor("a", 3), tensor("b", 4), tensor("c", 4)]
    with monkeypatch.context() as patch:
        patch.setattr("nest.operator_schedule.blocks.MAX_QUICK_SETS", 4)
        assert quick_ticks(three, Cores(2, 1)) == (6, False)
    assert quick_ticks(three, Cores(2, 1)) == (7, True)
    assert quick_ticks(many_heads(), Cores(8, 2)) == (256, False)


# Limits

#: Schedules once with CP-SAT, then something hard, and is interrupted in it.
INTERRUPTED = """
import os, signal, threading
from nest.operator_schedule import Cores, schedule
from tests.unit.operator_schedule.test_schedule import many_heads, tensor

# Whoever started the tests may have let SIGINT be ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
schedule([tensor("a", 3), tensor("b", 4), tensor("c", 4)], Cores(2, 1),
         solver="cpsat")
# A process that has lost its handler would end here, without a word.
threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    schedule(many_heads(), Cores(8, 2), solver="cpsat")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_is_heard_while_cpsat_works_and_afterwards() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def many() -> list[Operator]:
    return [tensor(f"o{i}", 5 + i % 7) for i in range(40)]


@pytest.mark.parametrize("solver", SOLVERS)
def test_without_time_what_is_at_hand_is_returned(solver: str) -> None:
    operators = [*many(), tensor("last", 9, 4, ["o0", "o1"])]
    found = schedule(operators, Cores(3, 1), solver=solver, time_limit_s=0.0)
    replay(operators, Cores(3, 1), found)
    assert found.lower_bound_ticks < found.makespan_ticks
    assert not found.optimal
    assert [part.proof for part in found.parts] == ["none"]
    # What is not proven is no makespan.
    with pytest.raises(OutOfTimeError):
        makespan_ticks(operators, Cores(3, 1), solver=solver, deadline=Deadline(0.0))


def test_time_that_runs_out_ends_the_search() -> None:
    part = only_part(*(tensor(f"t{i}", 7 + i, 5) for i in range(6)), cores=(3, 1))
    with pytest.raises(OutOfTimeError):
        in_blocks(part, one_by_one(part), 0, How(Deadline(0.0)))


def test_the_same_schedule_every_time() -> None:
    """Of an engine with one worker, too."""
    operators = [
        *(tensor(f"t{i}", 7 + i, 5) for i in range(5)),
        *(vector(f"v{i}", 9 + i, after=[f"t{i}"]) for i in range(5)),
    ]
    for solver in ("dp", "cpsat"):
        found = []
        for _ in range(2):
            search._kept.clear()
            found.append(schedule(operators, Cores(2, 2), solver=solver))
        assert found[0] == found[1]


# Engines that err


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (
            (Timetable((0, 0, 0), (False,) * 3), 0),
            "cpsat: expected a schedule that keeps the rules, got one where "
            "more cores are in use at 0 than there are; report it",
        ),
        (
            (Timetable((0, 0, 5), (False, False, True)), 0),
            "job 2 runs in a mode that it does not have",
        ),
        (
            (None, 99),
            "cpsat: expected a bound of at most 10 ticks, which a schedule "
            "takes, got 99; report it",
        ),
    ],
)
def test_engines_are_not_believed(
    monkeypatch: pytest.MonkeyPatch, answer: Any, text: str
) -> None:
    monkeypatch.setattr(
        "formulations.schedule.cpsat.schedule_part", lambda *rest: answer
    )
    with pytest.raises(SolverError) as caught:
        schedule([tensor(name, 5) for name in "abc"], Cores(2, 0), solver="cpsat")
    assert text in str(caught.value)


def test_jobs_wait_for_what_precedes_them() -> None:
    part = only_part(tensor("a", 2), tensor("b", 2), vector("c", 1, after=["a"]))
    assert [job.after for job in part.jobs] == [(), (), (0,)]
    table = Timetable((0, 0, 1), (False,) * 3)
    assert faults(part, table) == "job 2 starts before its input is there"
    assert faults(part, Timetable((0, 0, 2), (False,) * 3)) is None


# Bad input


ONE = Cores(1, 1)


@pytest.mark.parametrize(
    ("operators", "cores", "text"),
    [
        ([tensor("a", 1)], (-1, 1), "cores.tensor: expected a whole number >= "
         "0, got -1; correct it"),
        ([tensor("a", 1)], (1, 1.0), "cores.vector: expected a whole number "
         ">= 0, got 1.0; correct it"),
        ([tensor("a", 1), vector("a", 1)], ONE, "operator 'a': expected "
         "distinct names, got it 2 times; rename one"),
        ([tensor("a", 1, after=["z"])], ONE, "operator 'a': expected names of "
         "operators in after, got 'z'; correct it"),
        ([operator("a", "gpu", 1)], ONE, "operator 'a': engine: expected "
         "'tensor' or 'vector' or 'both' or 'none', got 'gpu'; correct it"),
        *(
            ([tensor("a", ticks)], ONE, f"operator 'a': single_ticks: "
             f"expected a whole number >= 1, got {ticks}; correct it or use "
             f"engine 'none'")
            for ticks in (0, -3, 1.5, float("nan"), True)
        ),
        ([tensor("a", 4, channel=(5, 0))], ONE, "operator 'a': "
         "single_channel_ticks: expected a whole number from 0 to its "
         "single_ticks, 4, got 5; correct it"),
        ([tensor("a", 4, channel=(0, 1))], ONE, "operator 'a': "
         "whole_channel_ticks: expected a whole number from 0 to its "
         "whole_ticks, 0, got 1; correct it"),
        ([tensor("a")], ONE, "operator 'a': expected single_ticks or "
         "whole_ticks, got neither; the layer cannot run on this accelerator"),
        ([operator("a", "none", 3)], ONE, "operator 'a': expected no ticks "
         "with engine 'none', got single_ticks 3 and single_channel_ticks 0; "
         "remove them or name its engine"),
        ([fused("a", 1)], (1, 0), "operator 'a': expected at least one vector "
         "core, got none; add one or change its engine"),
        ([tensor("a", 1, after="b"), tensor("b", 1, after="a"),
          tensor("c", 1)], ONE, "operators: expected no cycle, got one among "
         "a, b; remove an entry of after"),
        ([tensor("a", 1, after=["a"])], ONE, "operators: expected no cycle, "
         "got one among a; remove an entry of after"),
        ([tensor("a", MAX_TICKS), tensor("b", 1)], ONE, f"operators: expected "
         f"at most {MAX_TICKS} ticks together, got {MAX_TICKS + 1}; count in "
         f"larger units"),
        ([tensor(str(i), 1) for i in range(MAX_OPERATORS + 1)], ONE,
         f"operators: expected at most {MAX_OPERATORS}, got "
         f"{MAX_OPERATORS + 1}; schedule the parts of the layer one by one"),
    ],
)  # fmt: skip
def test_operators_that_cannot_be_scheduled(
    operators: list[Operator], cores: tuple[int, int], text: str
) -> None:
    for function in (schedule, bounds):
        with pytest.raises(InvalidProblemError) as caught:
            function(operators, Cores(*cores))
        assert str(caught.value) == text


def test_an_unknown_solver_is_refused() -> None:
    for function in (schedule, makespan_ticks):
        with pytest.raises(
            UnknownNameError, match="solver: expected one of cpsat, dp, milp; got 'x'"
        ):
            function([], Cores(1, 1), solver="x")


# Files


def document(**changes: Any) -> dict[str, Any]:
    one = {"name": "a", "engine": "tensor", "single_ticks": 3}
    two = {"name": "b", "engine": "none", "after": ["a"]}
    fields = {
        "schema": "nest-layer/1",
        "name": "toy",
        "unit": "cycles",
        "passes": {"forward": [one, two]},
    }
    return {**fields, **changes}


def test_layers_are_read() -> None:
    layer = decode_layer(json.dumps(document()).encode())
    assert (layer.name, layer.unit) == ("toy", "cycles")
    assert layer.passes == {"forward": (tensor("a", 3), free("b", ["a"]))}
    text = b"schema: nest-layer/1\npasses:\n  x: [{name: a, engine: none}]\n"
    layer = decode_layer(text, "layer.yaml")
    assert (layer.name, layer.unit) == ("", "ticks")


def test_engines_are_named_in_messages() -> None:
    assert _NAMES["engine"] == get_args(Engine)


def of(**fields: Any) -> dict[str, Any]:
    """Return a pass with one operator."""
    return {"passes": {"x": [{"name": "a", **fields}]}}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"schema": "nest-plan/1"}, "$.schema: expected 'nest-layer/1', got"),
        ({"passes": {}}, "$.passes: expected at least one pass, got none; add "
         "one, such as forward"),
        ({"passes": {"forward": []}}, "$.passes.forward: expected at least "
         "one operator, got none; remove the pass"),
        ({"unit": "parsecs per fortnight"}, "$.unit: expected a word of at "
         "most 20 characters, got 'parsecs per fortnight'; shorten it"),
        (of(), "expected key 'engine', got"),
        (of(engine="gpu"), "$.passes[...][0].engine: expected 'tensor' or "
         "'vector' or 'both' or 'none', got 'gpu'; correct the value"),
        *(
            (of(engine="tensor", whole_ticks=ticks), text)
            for ticks, text in (
                (1.5, "expected `int | null`, got `float`"),
                ("3", "expected `int | null`, got `str`"),
                (True, "expected `int | null`, got `bool`"),
                (10**30, "expected"),
                (-1, "$.passes.x: operator 'a': whole_ticks: expected a "
                 "whole number >= 1, got -1"),
                (float("nan"), "got NaN"),
            )
        ),
    ],
)  # fmt: skip
def test_files_that_are_no_layers(changes: dict[str, Any], text: str) -> None:
    data = json.dumps(document(**changes)).encode()
    with pytest.raises(InvalidProblemError) as caught:
        decode_layer(data, "layer.json")
    assert str(caught.value).startswith("layer.json: ")
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
