"""Cases in forked processes: points reach the others, no failure is lost."""

from __future__ import annotations

import os
import time

import pytest

from nest.cost.model import CostModel
from nest.dp import frontier
from nest.dp.closed_sets import closed_sets
from nest.dp.errors import OutOfTimeError
from nest.dp.forked import Link, share
from nest.errors import SolverError
from nest.models import builtin
from nest.solvers.base import Deadline


def run_all(run, num_cases=4, workers=2):
    points, said = [], []
    found = share(num_cases, workers, run, points.append, said.append, str)
    return found, points, said


def test_every_case_runs_once():
    found, points, said = run_all(lambda number, link: number * number)
    assert found == {n: (n * n, True) for n in range(4)}
    assert points == []
    assert sorted(said) == ["0", "1", "2", "3"]


def test_points_reach_the_caller_and_the_other_process():
    """Each process waits for the other one's point, so both have a case."""

    def run(number: int, link: Link) -> list[object]:
        link.tell(f"point {number}")
        heard: list[object] = []
        while not heard:
            heard = link.heard()
            time.sleep(0.01)
        return heard

    found, points, _ = run_all(run, num_cases=2)
    assert sorted(points) == ["point 0", "point 1"]
    assert found == {0: (["point 1"], True), 1: (["point 0"], True)}


def test_a_process_stops_when_its_time_is_up():
    """What it leaves comes back; cases that nobody began do not."""

    def run(number: int, link: Link) -> str:
        raise OutOfTimeError(f"the rest of {number}")

    found, _, _ = run_all(run)
    assert found == {
        0: ("the rest of 0", False),
        1: ("the rest of 1", False),
    }


def test_a_process_that_dies_is_an_error():
    def run(number: int, link: Link) -> None:
        os._exit(3)

    with pytest.raises(
        SolverError,
        match=r"frontier: a process ended without an answer; give it more "
        r"memory, or use fewer --workers",
    ):
        run_all(run)


def test_no_process_is_left_after_an_interrupt():
    processes = []

    def say(text: str) -> None:
        processes.append(int(text))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        share(
            2,
            2,
            lambda number, link: time.sleep(600),
            lambda point: None,
            say,
            lambda number: str(os.getpid()),
        )
    assert processes
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize("limit_s", [None, 1e-9])
def test_frontiers_are_the_same(limit_s):
    """Many cases of a built-in problem, with time and without any."""
    problem = builtin.load("llama2-7b-8")
    model = CostModel(problem)
    sets = closed_sets(problem.graph)
    curves = []
    for workers in (1, 2):
        points, gaps = frontier.search(
            model, sets, Deadline(limit_s), workers=workers
        )
        pairs = [(p.memory_bytes, p.step_quanta) for p in points]
        curves.append((pairs, gaps))
    assert curves[0] == curves[1]
    assert bool(curves[0][0]) == (limit_s is None)
