"""Runs that nobody compares share a process, one after the other."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from nest.search.solver import DpSolver
from nest.solvers import cell, registry, worker
from nest.solvers.base import SolveOptions, Status
from nest.solvers.cell import one_process
from nest.solvers.messages import Failure, Message, OutputMessage, Request
from nest.solvers.process import REQUEST, Usage, Worker
from nest.solvers.result import Outcome, SolveResult
from nest.solvers.run import run_solver
from tests.loopback import GOOD_NS, TARGET, tiny_problem


class Inside:
    """A process that is none: it answers here, at once."""

    made: list[Inside]

    def __init__(self, request: bytes, num_threads: int, folder: str | None) -> None:
        self.requests: list[Request] = []
        self.lines: list[bytes] = []
        self.ended = self.is_gone = False
        self.made.append(self)
        self.send(request)

    def send(self, request: bytes) -> bool:
        if self.is_gone:
            return False
        self.requests.append(msgspec.json.decode(request, type=Request))
        said: list[Message] = []
        try:
            said.append(worker.answered(self.requests[-1], said.append))
        except ValueError as error:
            said.append(worker.failure_of(error))
        self.lines += [msgspec.json.encode(x) for x in said]
        return True

    def poll(self, timeout_s: float) -> list[bytes]:
        assert self.lines, "it has not been asked"
        lines, self.lines = self.lines, []
        return lines

    def wait(self, timeout_s: float) -> None:
        pass

    def stop(self) -> Usage:
        self.is_gone = True
        return Usage(0, 100.0, 1, log="")


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> list[Inside]:
    Inside.made = []
    monkeypatch.setattr(cell, "Worker", Inside)
    return Inside.made


def solved(name: str = "dp", **more: Any) -> SolveResult:
    return run_solver(tiny_problem(), name, SolveOptions(**more))


def test_runs_share_a_process_while_they_answer(processes: list[Inside]) -> None:
    with one_process():
        results = [solved(), solved()]
        assert not processes[0].is_gone
    assert [len(x.requests) for x in processes] == [2]
    assert all(request.more for request in processes[0].requests)
    assert processes[0].is_gone
    alone = solved()
    assert len(processes) == 2
    assert not processes[1].requests[0].more
    assert processes[1].is_gone
    taken = {"wall_s": 0.0, "cpu_s": None, "peak_rss_bytes": None}
    for result in results:
        assert replace(result, **taken) == replace(alone, **taken)
        # What the answer took, not what the process took.
        assert result.cpu_s is not None
        assert result.cpu_s < alone.cpu_s == 100


def test_other_solvers_and_threads_have_another_process(
    processes: list[Inside],
) -> None:
    with one_process():
        for more in ({}, {"name": "brute"}, {"num_workers": 2}, {}):
            assert solved(**more).status is Status.OPTIMAL
    assert [len(x.requests) for x in processes] == [2, 1, 1]
    assert all(x.is_gone for x in processes)


def test_solvers_of_others_share_none(processes: list[Inside]) -> None:
    registry.register_solver("loopback", TARGET)
    try:
        with one_process():
            solved("loopback", extra={"act": "print"})
            solved("loopback", extra={"act": "print"})
    finally:
        registry.unregister_solver("loopback")
    assert [len(x.requests) for x in processes] == [1, 1]
    assert not any(x.requests[0].more for x in processes)


def test_a_run_that_fails_ends_the_process(
    monkeypatch: pytest.MonkeyPatch, processes: list[Inside]
) -> None:
    """It is one error line, and the next run answers."""

    def solve(*_: object) -> None:
        raise ValueError("what")

    with one_process():
        with monkeypatch.context() as patch:
            patch.setattr(DpSolver, "solve", solve)
            failed = solved()
        assert processes[0].is_gone
        answered = solved()
    assert (failed.outcome, failed.detail) == (Outcome.ERROR, "ValueError: what")
    assert answered.step_quanta == GOOD_NS
    assert [len(x.requests) for x in processes] == [1, 1]


def test_a_process_that_died_is_replaced(processes: list[Inside]) -> None:
    with one_process():
        solved()
        processes[0].is_gone = True
        assert solved().step_quanta == GOOD_NS
    assert len(processes) == 2


# The other side


class Said(list[Any]):
    """A channel that keeps what is sent."""

    send = list.append


def request_file(folder: Path, more: bool, target: str = "DpSolver") -> None:
    request = Request(
        target=f"nest.search.solver:{target}",
        problem=tiny_problem(),
        options=SolveOptions(extra={}),
        more=more,
    )
    (folder / REQUEST).write_bytes(msgspec.json.encode(request))


@pytest.mark.parametrize("more", [True, False])
def test_a_process_stays_only_if_more_may_come(tmp_path: Path, more: bool) -> None:
    request_file(tmp_path, more=more)
    said = Said()
    assert worker._serve(str(tmp_path), said) == more  # type: ignore[arg-type]
    assert isinstance(said[-1], OutputMessage)
    assert said[-1].cpu_s < 10


def test_a_process_does_not_stay_after_an_error(tmp_path: Path) -> None:
    request_file(tmp_path, more=True, target="Nothing")
    said = Said()
    assert not worker._serve(str(tmp_path), said)  # type: ignore[arg-type]
    assert isinstance(said[-1], Failure)


def test_a_byte_is_a_request_and_the_end_is_the_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    monkeypatch.setattr(worker, "end_detached", lambda _: 0)
    reader, writer = os.pipe()
    os.write(writer, b"\n\n")
    os.close(writer)
    asked = threading.Semaphore(1)
    worker._guard(reader, str(tmp_path / "gone"), asked)
    os.close(reader)
    assert [asked.acquire(blocking=False) for _ in range(4)] == [True] * 3 + [False]
    assert killed == [0]


def test_a_process_that_is_gone_is_cleared_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stopped: list[Worker] = []
    monkeypatch.setattr(Worker, "stop", lambda process: stopped.append(process))
    process = Worker.__new__(Worker)
    process._directory = str(tmp_path / "gone")
    assert not process.send(b"")
    assert stopped == [process]


def test_a_real_process_answers_twice() -> None:
    """Where it is killed, the next run has another."""
    with one_process():
        first, second = solved(), solved()
        (process,) = (cell.WAITING.get() or {}).values()
        assert isinstance(process, Worker)
        os.kill(process.pid, 9)
        process.wait(10)
        third = solved()
    assert {first.step_quanta, second.step_quanta} == {GOOD_NS}
    assert third.step_quanta == GOOD_NS
    assert not Path(process._directory).exists()
