"""Tasks in forked processes: findings reach the others, no failure is lost."""

from __future__ import annotations

import os
import signal
import time

import pytest

from nest.cost.model import CostModel
from nest.errors import SolverError
from nest.models import builtin
from nest.search.frontier import exact as frontier
from nest.search.parallel import Link, share
from nest.search.stages.closed_sets import closed_sets
from nest.solvers.base import Deadline, OutOfTimeError
from nest.util.files import write_atomically
from tests.children import children, is_alive, wait_until


def run_all(run, num_tasks=4, workers=2):
    found, results, begun = [], {}, []
    share(num_tasks, workers, run, found.append, results.__setitem__, begun.append)
    return found, results, begun


@pytest.mark.parametrize("workers", [1, 2])
def test_every_task_runs_once(workers):
    found, results, begun = run_all(
        lambda number, link: number * number, workers=workers
    )
    assert results == {n: n * n for n in range(4)}
    assert found == []
    assert sorted(begun) == [0, 1, 2, 3]


def test_findings_reach_the_caller_and_the_other_process():
    """Each process waits for the other one's finding, so both have a task.

    It is told once.
    """

    def run(number: int, link: Link) -> list[object]:
        link.tell(f"point {number}")
        heard: list[object] = []
        for _ in range(3000):
            heard += link.heard()
            if heard:
                break
            time.sleep(0.01)
        return heard + link.heard()

    found, results, _ = run_all(run, num_tasks=2)
    assert sorted(found) == ["point 0", "point 1"]
    assert results == {0: ["point 1"], 1: ["point 0"]}


@pytest.mark.parametrize(("workers", "begun"), [(1, [0]), (2, [0, 1])])
def test_a_process_stops_when_its_time_is_up(workers, begun):
    """What it leaves comes back; tasks that nobody began do not."""
    results = {}

    def run(number: int, link: Link) -> str:
        raise OutOfTimeError(f"the rest of {number}")

    with pytest.raises(OutOfTimeError):
        share(4, workers, run, lambda finding: None, results.__setitem__)
    assert results == {n: f"the rest of {n}" for n in begun}


def test_a_process_that_dies_is_an_error():
    def run(number: int, link: Link) -> None:
        os._exit(3)

    with pytest.raises(
        SolverError,
        match=r"a search process ended without an answer; give it more "
        r"memory, or use fewer --workers",
    ):
        run_all(run)


def test_no_process_is_left_after_an_interrupt():
    begun, before = [], children()

    def begin(number: int) -> None:
        begun.append(number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        share(
            2,
            2,
            lambda number, link: time.sleep(600),
            lambda finding: None,
            lambda number, result: None,
            begin,
        )
    assert begun
    assert children() <= before


@pytest.mark.parametrize("limit_s", [None, 1e-9])
def test_frontiers_are_the_same(limit_s):
    """Many cases of a built-in problem, with time and without any."""
    problem = builtin.load("llama2-7b-8")
    model = CostModel(problem)
    sets = closed_sets(problem.graph)
    curves = []
    for workers in (1, 2):
        points, gaps = frontier.search(model, sets, Deadline(limit_s), workers=workers)
        pairs = [(p.memory_bytes, p.step_quanta) for p in points]
        curves.append((pairs, gaps))
    assert curves[0] == curves[1]
    assert bool(curves[0][0]) == (limit_s is None)


def test_processes_end_with_the_one_that_searches(tmp_path):
    """However it ends: they hold each other's pipes open."""
    files = [tmp_path / str(number) for number in range(2)]

    def run(number: int, link: Link) -> None:
        write_atomically(files[number], str(os.getpid()).encode())
        while True:
            time.sleep(1)

    pid = os.fork()
    if not pid:
        run_all(run, num_tasks=2)
        os._exit(0)
    wait_until(lambda: all(file.exists() for file in files))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    pids = [int(file.read_text()) for file in files]
    wait_until(lambda: not any(map(is_alive, pids)))
