"""Ctrl-C in long commands: what is known is written, the code is 130."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nest.analysis.explain import explain
from nest.analysis.fit import fewest_devices, smallest_memory, within
from nest.analysis.offers import Limits, best_offer, with_prices
from nest.analysis.pareto import frontier
from nest.calibration import design, runs
from nest.certificates.certify import certify
from nest.cli.main import Terminated
from nest.cli.progress import ProgressLine
from nest.conform import CHECKS, State, conform, references
from nest.errors import NestError
from nest.ir import read_plan, write
from nest.present.table import count
from nest.profiles import torch_profiler
from nest.requests.measured import ValidateRequest
from nest.solvers.base import Deadline, Limit, Status
from nest.solvers.messages import Failure
from nest.solvers.result import Outcome
from nest.solvers.run import CellInterrupted
from nest.studies.study import Findings, Plot, Study, StudySetting
from nest.util.interrupts import Ending, Interrupted
from tests.builders import SINGLE, make_plan, two_stages
from tests.certified import NCCL
from tests.children import HANG_S, python
from tests.inside import run_inside
from tests.unit.analysis.test_pareto import small
from tests.unit.solvers.test_explain import BOTH, chain

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _heard() -> Iterator[None]:
    """Shells start what runs in the background with this signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


# How work ends


def test_the_first_signal_ends_work_and_the_second_stops_it():
    asked = []
    before = signal.getsignal(signal.SIGINT)
    with Ending(lambda: asked.append(1)) as ending:
        interrupt()
        assert (asked, ending.asked) == ([1], signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            interrupt()
        assert asked == [1]
    assert signal.getsignal(signal.SIGINT) is before
    with pytest.raises(Interrupted) as caught:
        ending.stop("what is known")
    assert caught.value.found == "what is known"


def test_a_forked_process_leaves_the_second_one_to_its_parent():
    with Ending(lambda: None) as ending:
        ending.forked()
        interrupt()
        interrupt()
    assert ending.asked == signal.SIGINT


def test_what_stopped_it_is_the_cause():
    def terminate(number, frame):
        raise Terminated(number)

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        with Ending(lambda: None) as ending:
            os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(Interrupted) as caught:
            ending.stop(None)
        assert isinstance(caught.value.__cause__, Terminated)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Ending(lambda: None) as ending:
            interrupt()
        assert ending.asked is None
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_leave_signals_alone():
    found = []

    def work() -> None:
        with Ending(lambda: None):
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not isinstance(found[0], Ending)


def test_clocks_of_parts_expire_with_the_whole():
    whole = Deadline(None)
    part = whole.shortened(60.0)
    inner, heard = part.shortened(None), []
    part.at_expiry = lambda: heard.append(part.limit_s)
    assert not any(clock.passed for clock in (whole, part, inner))
    whole.expire()
    assert whole.passed
    assert part.passed
    assert inner.passed
    assert heard == [0.0]


# nest pareto


@pytest.fixture(autouse=True)
def _problem(tmp_path: Path) -> None:
    write(tmp_path / "problem.json", small())


@pytest.mark.parametrize("workers", [1, 2])
def test_a_frontier_that_is_interrupted_is_what_is_known(workers):
    """Forked processes are told."""
    once = iter([interrupt])

    def show(running):
        next(once, lambda: None)()

    with pytest.raises(Interrupted) as caught:
        frontier(small(), on_progress=show, workers=workers)
    found = caught.value.found
    assert not found.proven
    whole = frontier(small())
    for point in found.points:
        best = whole.curves[0].at_most(point.memory_bytes)
        assert best is not None
        assert best.step_quanta <= point.step_quanta


def test_sizes_that_did_not_begin_are_open(monkeypatch):
    """The largest one is interrupted as it begins, others never begin."""

    def run_cells(cells, workers, take):
        first = next(cells)
        assert first.problem.cluster.num_devices == 2
        interrupt()
        first.last = Failure(error="KeyboardInterrupt", text="")
        take(first)
        assert list(cells) == []

    monkeypatch.setattr("nest.analysis.pareto.run_cells", run_cells)
    with pytest.raises(Interrupted) as caught:
        frontier(small(), ("time", "devices"), workers=2)
    for curve in caught.value.found.curves:
        assert not curve.points
        assert [gap.above_bytes for gap in curve.gaps] == [-1]


def test_pareto_writes_what_is_known(cli, monkeypatch):
    monkeypatch.setattr(ProgressLine, "__call__", interrupt)
    assert cli("pareto problem.json --workers 1 --json out.json -o plans") == 130
    assert cli.err == "nest: interrupted\n"
    assert "not proven: 2 devices from 0 bytes" in cli.out
    written = json.loads(Path("out.json").read_text())
    assert not written["proven"]
    known = written["points"]
    assert (
        f"stopped before the end: {count(len(known), 'point')} known by then, "
        f"{sum(point['proven'] for point in known)} of them proven\n"
    ) in cli.out
    assert len(sorted(Path("plans").iterdir())) == len(written["points"])


def test_pareto_writes_the_page_of_what_is_known(cli, monkeypatch):
    monkeypatch.setattr(ProgressLine, "__call__", interrupt)
    page = Path("out.html")
    assert cli("pareto problem.json --workers 1 --html out.html") == 130
    assert cli.err == "nest: interrupted\n"
    assert "not proven: 2 devices from 0 bytes" in cli.out
    assert "The frontier" in page.read_text()
    (line,) = (x for x in cli.out.splitlines() if x.startswith("stopped"))
    assert f"The run was {line}." in page.read_text()


def test_pareto_without_points_writes_what_is_known(cli, monkeypatch):
    """It is interrupted while it looks for what would be feasible."""

    def remedies_within(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("nest.analysis.feasible.remedies_within", remedies_within)
    page = Path("out.html")
    write("tight.json", small(memory_bytes=1))
    assert cli("pareto tight.json --html out.html") == 130
    text = "stopped before the end: what would make plans fit is open"
    assert f"{text}\nno plan fits\n" in cli.out
    assert "The frontier" in page.read_text()
    assert f"The run was {text}." in page.read_text()


def test_proofs_so_far_are_kept(cli, monkeypatch):
    asked = []

    def prove(found, point, *_):
        from nest.analysis.prove import Proof

        asked.append(point)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return Proof(point, run_inside(found.problem, "brute"), None, "proven", "")

    monkeypatch.setattr("nest.analysis.prove.prove", prove)
    assert cli("pareto problem.json --prove brute --html out.html") == 130
    assert "proven of 1F1B plans" in cli.out
    assert cli.out.count("no plan (less than the reserve)") == 1
    text = (
        "stopped before the end: the frontier was known by then, brute had "
        "examined 1 of 3 points"
    )
    assert text in " ".join(cli.out.split())
    assert f"The run was {text}." in Path("out.html").read_text()
    asked[:] = [None]
    assert cli("pareto problem.json --prove brute --points 2") == 130
    assert "had examined 0 of 1 point " in " ".join(cli.out.split())


# nest fit and nest explain


def stopping(after: int):
    """Return a runner that is interrupted after so many runs."""
    count = 0

    def run(problem, name, options=None, on_progress=None):
        nonlocal count
        count += 1
        result = run_inside(problem, name, options)
        if count <= after:
            return result
        raise CellInterrupted(
            replace(
                result,
                outcome=Outcome.INTERRUPTED,
                limit=Limit.INTERRUPT,
                status=Status.NO_SOLUTION,
                plan=None,
                score=None,
                lower_bound_quanta=None,
                detail="interrupted by the user",
            )
        )

    return run


def test_the_candidates_so_far_are_kept(monkeypatch):
    """One device takes 240 ns, two take 120: 200 ns need two."""
    target = within(chain(), 200 / 10**9)
    for after, answers in ((0, ["open"]), (1, ["no", "open"])):
        monkeypatch.setattr("nest.analysis.fit.run_solver", stopping(after))
        with pytest.raises(Interrupted) as caught:
            fewest_devices(chain(), target)
        fit = caught.value.found
        assert [trial.answer for trial in fit.trials] == answers
        assert (fit.best, fit.proven) == (None, False)
    # A search finds the best plan of the answer, too.
    monkeypatch.setattr("nest.analysis.fit.run_solver", stopping(2))
    fit = fewest_devices(chain(), target)
    assert fit.proven
    assert fit.best.num_devices == 2


def test_the_smallest_memory_so_far_is_not_proven(monkeypatch):
    target = within(chain(), 1)
    monkeypatch.setattr("nest.analysis.fit.run_solver", stopping(1))
    with pytest.raises(Interrupted) as caught:
        smallest_memory(chain(), target)
    fit = caught.value.found
    assert [trial.answer for trial in fit.trials] == ["yes", "open", "yes"]
    assert fit.best is not None
    assert not fit.proven


def test_the_best_offer_so_far_is_not_proven(monkeypatch):
    priced = with_prices(chain(), {"device": 1.0})
    monkeypatch.setattr("nest.analysis.fit.run_solver", stopping(1))
    with pytest.raises(Interrupted) as caught:
        best_offer(priced, "fastest", Limits())
    fit = caught.value.found
    assert fit.best.num_devices == 2
    assert not fit.proven


def test_fit_writes_what_is_known(cli, monkeypatch):
    write("chain.json", chain())
    monkeypatch.setattr("nest.analysis.fit.run_solver", stopping(1))
    command = "fit chain.json --memory --within 1 --json out.json -o plan.json"
    assert cli(command) == 130
    assert cli.err == "nest: interrupted\n"
    assert json.loads(Path("out.json").read_text())["answer"]["num_devices"] == 2
    assert read_plan("plan.json").replicas == 2


def test_explain_writes_what_is_known(cli, monkeypatch):
    write("chain.json", chain())
    write("plan.json", BOTH)
    monkeypatch.setattr("nest.analysis.explain.run_solver", stopping(2))
    assert cli("explain chain.json plan.json --json out.json") == 130
    assert cli.err == "nest: interrupted\n"
    assert "What a neighboring plan takes" in cli.out
    written = json.loads(Path("out.json").read_text())
    assert written["optimum"]["status"] == "optimal"
    assert len(written["relaxed"]) == 1
    monkeypatch.setattr("nest.analysis.explain.run_solver", stopping(0))
    with pytest.raises(Interrupted) as caught:
        explain(chain(), BOTH)
    assert caught.value.found.optimum.outcome is Outcome.INTERRUPTED


# nest validate, calibrate, profile and audit


def test_validate_counts_the_rows_that_are_done(cli, monkeypatch):
    original = ValidateRequest.predict

    def some(request, rows, with_intervals):
        for number, assessed in enumerate(original(request, rows, with_intervals)):
            if number == 2:
                raise KeyboardInterrupt
            yield assessed

    monkeypatch.setattr(ValidateRequest, "predict", some)
    assert cli("validate --limit 5 --json -") == 130
    written = json.loads(cli.out)
    assert (written["rows"], written["interrupted"]) == (2, {"of": 5})
    assert "; interrupted, the first of 5" in cli.err
    assert cli.err.endswith("nest: interrupted\n")


def test_calibrate_writes_the_calibration(cli, monkeypatch):
    from nest.hardware.calibration import stored_calibration
    from tests.cli.test_calibrate_cli import RUNS, write_runs

    class Learned:
        file = stored_calibration()

    def raising(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "learn", lambda *_, **__: Learned)
    monkeypatch.setattr(design, "candidates", raising)
    assert cli(f"calibrate {write_runs('runs.csv', *RUNS)} -o my.json") == 130
    assert cli.err == (
        "nest: my.json written; runs to do next are not\nnest: interrupted\n"
    )
    assert Path("my.json").exists()


def test_profile_writes_what_is_measured(cli, monkeypatch):
    from nest.profiles.format import Entry, Profile, decode_profile

    fields = {"model": "gpt2", "kind": "head", "sequence_length": 16}
    entry = Entry(forward_ns=1.0, backward_ns=2.0, **fields)
    made = Profile(device="toy", dtype="bf16", entries=(entry,))

    def raising(*_, **__):
        raise Interrupted(made)

    monkeypatch.setattr(torch_profiler, "require_torch", lambda: None)
    monkeypatch.setattr(torch_profiler, "profile_layers", raising)
    path = Path("profile.json")
    assert cli("profile --model gpt2 -o profile.json") == 130
    assert decode_profile(path.read_bytes(), "profile").entries == (entry,)


@pytest.mark.parametrize("broken", [False, True])
def test_audit_says_what_was_done(cli, monkeypatch, broken):
    def run(setting: StudySetting) -> Findings:
        done = []
        for name in setting.each(["one", "two", "three"]):
            done.append(name)
            if name == "two":
                interrupt()
        if broken:
            raise NestError("too little")
        return Findings((f"done: {done}",), (), Plot("", "", "", ()))

    study = Study(
        name="tiny",
        question="Why?",
        method="Look.",
        quick="Half.",
        limits=("None.",),
        run=run,
    )
    monkeypatch.setattr("nest.studies.get_study", lambda name: study)
    folder = Path("out")
    assert cli("audit tiny -o out") == 130
    assert cli.err == (
        "nest: ending after this case; once more stops at once\nnest: interrupted\n"
    )
    if broken:
        assert not folder.exists()
        return
    page = (folder / "audit.md").read_text()
    assert page == cli.out
    assert "Interrupted: only what was done by then is counted." in page
    assert "done: ['one', 'two']" in page


# nest certify and nest conform


def test_a_certificate_that_is_interrupted_has_the_step_time(
    cli, tmp_path, monkeypatch
):
    """143 ns: see tests/unit/certificates/test_certificates.py."""

    def prove(problem, step_quanta):
        raise KeyboardInterrupt

    problem = two_stages(topology=NCCL)
    plan = make_plan(("a b", SINGLE), replicas=2)
    with monkeypatch.context() as patch:
        patch.setattr("nest.certificates.certify._prove", prove)
        with pytest.raises(Interrupted) as caught:
            certify(problem, plan)
        paths = [tmp_path / name for name in ("problem", "plan", "certified")]
        paths = [str(path.with_suffix(".json")) for path in paths]
        write(paths[0], problem)
        write(paths[1], plan)
        assert cli("certify", *paths[:2], "-o", paths[2]) == 130
    assert cli.out.startswith(
        "feasible: step time 143 ns, lower bound 0 ns, gap 100 %; "
    )
    assert cli.err == "nest: interrupted\n"
    found = json.loads(Path(paths[2]).read_text())
    assert found["proof"] == caught.value.found["proof"]
    checked = python("-m", "nest.certificates.check", paths[0], paths[2])
    assert checked.stdout.startswith("verified: feasible")


def test_that_no_plan_fits_is_said_as_far_as_it_is_known(cli, monkeypatch):
    splits = []

    def prove_split(problem, split, bound):
        splits.append(split)
        if len(splits) == 2:
            raise KeyboardInterrupt
        return {}

    monkeypatch.setattr("nest.certificates.certify.prove_split", prove_split)
    write("problem.json", two_stages(topology=NCCL, memory_bytes=1))
    assert cli("certify problem.json -o out.json") == 130
    assert cli.err == (
        "nest: out.json not written: no plan fits in 1 of 2 cases, "
        "the others are open\nnest: interrupted\n"
    )
    assert not Path("out.json").exists()


def stopping_trials(monkeypatch, after: int) -> None:
    count = 0

    def run(problem, name, options, *_, **__):
        nonlocal count
        count += 1
        if count > after:
            raise KeyboardInterrupt
        return run_inside(problem, name, options)

    monkeypatch.setattr("nest.conform.run.run_solver", run)


def test_promises_are_open_where_runs_are_missing(monkeypatch):
    stopping_trials(monkeypatch, 1)
    with pytest.raises(Interrupted) as caught:
        conform("brute", problems=references()[:2])
    report = caught.value.found
    states = {check.name: check.state for check in report.checks}
    assert states.pop("loads") is State.PASSED
    assert set(states.values()) == {State.OPEN}
    assert report.conforms is None
    assert len(report.cells) == 1


def test_promises_that_all_runs_kept_are_kept(monkeypatch):
    """Two problems and the large one; what runs once more is open."""
    stopping_trials(monkeypatch, 3)
    problems = references()[:2]
    monkeypatch.setattr("nest.conform.run.large", lambda: problems[0])
    with pytest.raises(Interrupted) as caught:
        conform("brute", problems=problems)
    states = {check.name: check.state for check in caught.value.found.checks}
    assert states["proofs"] is State.PASSED
    assert states["repeatable"] is State.OPEN
    assert states["options"] is State.OPEN


def test_a_promise_that_is_broken_stays_so(monkeypatch):
    """Whatever the runs that are missing would have been."""

    def ask(candidate):
        return State.FAILED, "it was broken"

    monkeypatch.setattr("nest.conform.run.CHECKS", replace_promise("plans", ask))
    stopping_trials(monkeypatch, 0)
    with pytest.raises(Interrupted) as caught:
        conform("brute", problems=references()[:1])
    report = caught.value.found
    assert report.failed == ("plans: it was broken",)
    assert report.conforms is False


def replace_promise(name, ask):
    return tuple(
        check._replace(check=ask) if check.name == name else check for check in CHECKS
    )


def test_conform_shows_what_is_known(cli, monkeypatch):
    stopping_trials(monkeypatch, 0)
    assert cli("conform brute --json out.json") == 130
    assert cli.err == "nest: interrupted\n"
    assert "interrupted after 0 runs" in cli.out
    assert "was not checked to the end: 1 passed, 0 failed, " in cli.out
    assert json.loads(Path("out.json").read_text())["conforms"] is None


# Processes


def test_a_signal_to_the_process(tmp_path):
    """Processes that trace a size each say what they know."""
    document = tmp_path / "out.json"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "nest", "pareto", "gpt3-175b-256"),
            *("--workers", "2", "--objectives", "time,devices", "-v"),
            *("--json", str(document)),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    process.stderr.readline()  # a sign of life: it searches
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "nest: interrupted"
    assert "not proven: " in out
    assert not json.loads(document.read_text())["proven"]
