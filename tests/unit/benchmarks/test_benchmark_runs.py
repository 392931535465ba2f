"""Runs of benchmarks: killed, resumed, in parallel, on a cluster."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from nest.benchmarks import engine
from nest.benchmarks.cells import BenchCell, BenchmarkSpec, Finished
from nest.benchmarks.execute import CellTask, died, run_cell
from nest.benchmarks.rows import read_rows
from nest.benchmarks.session import Ended
from nest.benchmarks.store import RunFolder, open_run
from nest.errors import InvalidProblemError, NestError
from nest.ir.io import encode
from nest.present.pages.benchmark import reports
from nest.solvers import registry
from nest.solvers.base import Status
from nest.solvers.command import Planner, target_of
from nest.solvers.result import Outcome as Result
from nest.solvers.run import run_solver
from nest.util.files import write_atomically
from tests.benchmarks import go, instances, make_run
from tests.children import is_alive, wait_until
from tests.loopback import BASELINE, GOOD_NS, TARGET, tiny_problem

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _solvers() -> Iterator[None]:
    for name in ("quick", "slow", "bomb"):
        target = "tests.exits:Solver" if name == "bomb" else TARGET
        registry.register_solver(name, target)
    yield
    for name in ("quick", "slow", "bomb"):
        registry.unregister_solver(name)


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time, and are tested elsewhere."""
    monkeypatch.setattr("nest.present.pages.draw.find_spec", lambda _: None)


def waiting(place: Path) -> dict[str, dict[str, str]]:
    """Return options by which ``slow`` waits for the file ``go``."""
    own = {"act": "await", "until": str(place / "go")}
    return {"slow": {**own, "pids": str(place / "pids")}}


def slow_run(place: Path) -> BenchmarkSpec:
    return make_run(instances(2), ["quick", "slow"], waiting(place))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a run with ``slow`` ended by itself, in ``whole``."""
    for name in ("quick", "slow"):
        registry.register_solver(name, TARGET)
    place = tmp_path_factory.mktemp("shared")
    (place / "go").touch()
    go(place / "whole", slow_run(place), instances(2), jobs=2)
    return place


@pytest.fixture
def place(whole: Path) -> Path:
    """Return the same place, where ``slow`` waits again."""
    for name in ("go", "pids"):
        (whole / name).unlink(missing_ok=True)
    return whole


def check_same(place: Path, name: str) -> None:
    """Hold a run against the one that ended by itself."""
    for file in ("answers.csv", "run.json"):
        one, other = place / name / file, place / "whole" / file
        assert one.read_bytes() == other.read_bytes()
    documents = [
        json.loads((place / run / "report.json").read_text()) for run in (name, "whole")
    ]
    assert documents[0]["answers"] == documents[1]["answers"]
    assert documents[0]["answers"]["finished"] == 4


_BEGIN = """
import sys
from pathlib import Path
from nest.solvers import registry
from tests.benchmarks import go, instances
from tests.unit.benchmarks.test_benchmark_runs import slow_run
from tests.loopback import TARGET
if __name__ == "__main__":
    registry.register_solver("quick", TARGET)
    registry.register_solver("slow", TARGET)
    place = Path(sys.argv[1])
    go(place / "killed", slow_run(place), instances(2), jobs=2)
"""


def test_a_killed_run_goes_on_to_the_same_report(place):
    """Killed in the middle of cells; what is finished is not run again."""
    began = subprocess.Popen(
        [sys.executable, "-c", _BEGIN, str(place)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    cells = place / "killed" / "cells"
    pids = place / "pids"
    try:
        wait_until(lambda: cells.is_dir() and list(cells.glob("[!.]*.json")))
        wait_until(lambda: pids.exists() and pids.read_text())
    finally:
        began.kill()
        began.wait()
    pid = int(pids.read_text())
    wait_until(lambda: not is_alive(pid))
    before = {path: path.stat().st_mtime_ns for path in cells.glob("*.json")}
    (place / "go").touch()
    finished: list[Finished] = []
    go(place / "killed", None, [], resume=True, on_finished=finished.append)
    assert len(finished) == 4 - len(before)
    assert all(path.stat().st_mtime_ns == at for path, at in before.items())
    check_same(place, "killed")


def test_the_same_report_from_a_cluster_that_loses_a_worker(place):
    """One of three dies in the middle of a cell."""
    distributed = pytest.importorskip("distributed")
    pids = place / "pids"

    def kill_one(finished: Finished) -> None:
        if not (place / "go").exists():
            wait_until(lambda: pids.exists() and pids.read_text())
            stat = Path(f"/proc/{pids.read_text()}/stat").read_text()
            os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
            (place / "go").touch()

    with distributed.LocalCluster(
        n_workers=3,
        threads_per_worker=1,
        memory_limit=0,
        dashboard_address=None,
        silence_logs=50,
    ) as cluster:
        there = go(
            place / "there",
            slow_run(place),
            instances(2),
            dask=cluster.scheduler_address,
            on_finished=kill_one,
        )
    assert (place / "go").exists()
    assert len(there.rows) == 4 == len({row.cell.key for row in there.rows})
    assert all(row.step_quanta == GOOD_NS for row in there.rows)
    check_same(place, "there")


def test_a_solver_that_cannot_be_imported_costs_its_cells(tmp_path):
    outcome = go(
        tmp_path / "run", make_run(instances(1), ["bomb", "quick"]), instances(1)
    )
    bomb, quick = outcome.rows
    assert bomb.outcome is Result.ERROR
    assert bomb.detail == (
        "importing tests.exits:Solver ended the process: exit 7; reinstall "
        "the package that provides it"
    )
    assert quick.proven
    assert outcome.failed


def test_a_solver_that_takes_forever_to_import(tmp_path, monkeypatch):
    """It is waited for as long as a cell may take."""
    monkeypatch.setattr(registry, "_tried", {})
    run = msgspec.structs.replace(make_run(instances(1), ["quick"]), time_limit_s=0.001)
    (row,) = go(tmp_path / "run", run, instances(1)).rows
    assert row.outcome is Result.ERROR
    assert "took more than 0.001 s" in row.detail


def test_a_process_that_dies_costs_one_cell(tmp_path, monkeypatch):
    """It takes the pool along; cells that were in it run again."""
    monkeypatch.setattr(engine, "import_trouble", lambda *_: None)
    problems = instances(2)
    run = make_run(problems, ["bomb", "quick"])
    rows = go(tmp_path / "run", run, problems, jobs=2).rows
    assert [(row.solver, row.detail) for row in rows] == [
        ("bomb", "the process that ran it died"),
        ("quick", ""),
    ] * 2
    assert [row.outcome for row in rows] == [Result.ERROR, Result.SOLVED] * 2


def test_a_cell_whose_process_was_killed_runs_again(tmp_path):
    """What a solver did wrong itself is an answer, and kept."""
    run = make_run(
        instances(1),
        ["quick", "slow"],
        {"quick": {"act": "raise-engine"}, "slow": {"act": "kill"}},
    )
    first = go(tmp_path / "run", run, instances(1))
    assert [row.outcome for row in first.rows] == [Result.ERROR] * 2
    again: list[Finished] = []
    folders: list[RunFolder] = []
    ended = go(
        tmp_path / "run",
        *(None, []),
        resume=True,
        on_open=folders.append,
        on_finished=again.append,
    )
    assert [each.cell.solver for each in again] == ["slow"]
    (complaint,) = folders[0].complaints
    assert complaint.endswith(
        "expected an answer, got none as the process was killed by SIGKILL "
        "(out of memory?); the cell counts as not run"
    )
    assert [row.outcome for row in ended.rows] == [Result.ERROR] * 2


@pytest.mark.parametrize(
    ("words", "killed"),
    [("kill -9 $$", "KilledError: the command ended with signal 9"),
     ("exit 9", "")],
)  # fmt: skip
def test_a_command_that_was_killed_says_so(words, killed):
    planner = Planner(
        name="command", command=("sh", "-c", words, "{problem}", "{plan}")
    )
    registry.register_solver("command", target_of(planner))
    try:
        result = run_solver(tiny_problem(), "command")
    finally:
        registry.unregister_solver("command")
    assert result.extra.get("killed", "") == killed
    assert result.outcome is Result.ERROR


def test_a_process_of_a_pool_that_died_was_killed():
    run = make_run(instances(1), ["quick"])
    ((_, cell),) = run.cells()
    problem = msgspec.json.encode(instances(1)[0].problem)
    data = died(CellTask(cell, problem, TARGET), "the process that ran it died")
    finished = msgspec.json.decode(data, type=Finished)
    assert finished.killed == "the process that ran it died"


def test_an_unknown_option_of_a_solver_costs_its_cells(tmp_path):
    """Of a solver that is not imported before."""
    run = make_run(instances(1), ["quick"], {"quick": {"speed": "9"}})
    (row,) = go(tmp_path / "run", run, instances(1)).rows
    assert row.outcome is Result.ERROR
    assert "expected one of the options of solver 'quick'" in row.detail


def test_other_versions_elsewhere_are_refused(tmp_path, monkeypatch):
    run = make_run(instances(1), ["quick"])
    monkeypatch.setattr("nest.benchmarks.execute.nest_version", lambda: "9.9")
    with pytest.raises(NestError, match=r"expected nest 0\.\d+.*got 9\.9"):
        go(tmp_path / "run", run, instances(1))


# Cells


def test_the_key_of_a_cell_is_all_that_its_answer_depends_on():
    """Every field of it makes another key, and the same fields the same."""
    (_, cell), *_ = make_run(instances(1), ["quick"]).cells()
    others = {
        "problem_hash": "0",
        "solver": "slow",
        "seed": 1,
        "time_limit_s": None,
        "gap": 0.5,
        "num_workers": 2,
        "repair": True,
        "extra": {"act": "feasible"},
        "planner": "command:{}",
        "version": "0.0",
    }
    assert set(others) == set(type(cell).__struct_fields__)
    keys = {
        msgspec.structs.replace(cell, **{name: value}).key
        for name, value in others.items()
    }
    assert len(keys | {cell.key}) == 1 + len(others)
    assert msgspec.structs.replace(cell).key == cell.key


def trace_of(solver: str = "quick", **extra: str) -> list[tuple[Any, ...]]:
    """Return the trace of a cell, without its times."""
    run = make_run(instances(1), [solver], {solver: extra})
    ((_, cell),) = run.cells()
    problem = msgspec.json.encode(instances(1)[0].problem)
    data = run_cell(CellTask(cell, problem, registry.solver_target(solver)))
    finished = msgspec.json.decode(data, type=Finished)
    times = [point.wall_s for point in finished.trace]
    assert times == sorted(times)
    assert times[-1] == finished.result["wall_s"]
    return [(point.step_quanta, point.bound_quanta) for point in finished.trace]


@pytest.mark.parametrize(
    ("extra", "trace"),
    [
        # a plan with a bound of 60, then the proof
        ({"report": "good"}, [(90, 60), (90, 90)]),
        # it claims 89 for a plan that takes 90, and stays below its limit
        ({"report": "lie", "act": "feasible"}, [(90, 60), (90, 60)]),
        # plans that do not fit, and what no plan takes, count for nothing
        ({"report": "infeasible", "act": "no-solution"}, [(None, 60)]),
        ({"report": "endless", "act": "endless"}, [(None, None)]),
        # the bound of a refused plan
        ({"act": "big-plan-and-bound"}, [(None, 91)]),
    ],
)
def test_the_trace_of_a_cell(extra, trace):
    assert trace_of(**extra) == trace


def test_a_trace_has_no_bounds_of_who_may_not_prove():
    registry.register_solver("quick", BASELINE)
    assert trace_of(report="good", act="heuristic") == [(90, None)] * 2


def test_a_refuted_proof_of_a_cell_is_a_mismatch(folder):
    """Its plan went lost, and what is left contradicts the other cell."""
    path, _ = sorted((folder / "cells").glob("*.json"))
    document = json.loads(path.read_text())
    twin = document | {"cell": document["cell"] | {"solver": "slow"}}
    cell = msgspec.convert(twin["cell"], BenchCell)
    twin["key"] = cell.key
    nothing = {"status": "infeasible", "plan": None, "step_time_quanta": None}
    twin["result"] |= {**nothing, "lower_bound_quanta": None}
    twin["trace"] = []
    (folder / "cells" / f"{cell.key}.json").write_text(json.dumps(twin))
    run = make_run(instances(2), ["quick", "slow"])
    (folder / "run.json").write_bytes(encode(run))
    rows = read_rows(opened(folder))
    (mismatch,) = (row for row in rows if row.solver == "slow")
    assert mismatch.outcome is Result.MISMATCH
    assert mismatch.status is Status.NO_SOLUTION


# The directory


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a finished run."""
    registry.register_solver("quick", TARGET)
    place = tmp_path_factory.mktemp("made") / "run"
    go(place, make_run(instances(2), ["quick"]), instances(2))
    return place


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """Return a copy of a finished run."""
    import shutil

    place = tmp_path / "run"
    shutil.copytree(made, place)
    return place


def opened(path: Path, resume: bool = True) -> RunFolder:
    with open_run(path, None, [], resume) as found:
        return found


@pytest.mark.parametrize("resume", [True, False])
def test_two_runs_in_one_directory(folder, resume):
    """Whether the second one wants to go on or to begin."""
    run = make_run(instances(2), ["quick"])
    with (
        open_run(folder, None, [], True),
        pytest.raises(
            NestError,
            match=rf"no run works in, got one taken by process {os.getpid()} "
            rf"on \S+ since .* UTC; wait for its end",
        ),
        open_run(folder, run, instances(2), resume),
    ):
        pass
    assert len(opened(folder).finished) == 2  # free again


@pytest.mark.parametrize("size", [0, 1, 300])
def test_a_cell_file_cut_short_is_told_and_runs_again(folder, size):
    first, second = sorted((folder / "cells").glob("*.json"))
    kept = second.read_bytes()
    first.write_bytes(first.read_bytes()[:size])
    half = folder / "cells" / f".{first.name}.abc_1234"
    half.write_text("{")
    found = opened(folder)
    (text,) = found.complaints
    assert text.startswith(f"{first}: line ")
    assert "expected a finished cell in JSON, got malformed" in text
    assert text.endswith("the cell counts as not run")
    assert "\n" not in text
    assert list(found.finished) == [second.stem]
    assert not half.exists()
    outcome = go(folder, None, [], resume=True)
    assert len(outcome.rows) == 2
    assert second.read_bytes() == kept


def test_resuming_removes_no_file_of_others(folder, tmp_path):
    """Not what has another name, and nothing through a link."""
    cells, half = folder / "cells", f".{'a' * 32}.json.abcd1234"
    others = [cells / name for name in (".half", f"{half}5", half[:-1])]
    target = tmp_path / "target"
    for path in (*others, target):
        path.write_text("theirs")
    (cells / half).symlink_to(target)
    opened(folder)
    cells.rename(tmp_path / "elsewhere")
    cells.symlink_to(tmp_path / "elsewhere")
    (cells / half).unlink()
    (cells / half).write_text("theirs")
    found = opened(folder)
    assert len(found.finished) == 2
    assert found.complaints == []
    assert all(x.read_text() == "theirs" for x in (*others, target))
    assert (cells / half).read_text() == "theirs"


def test_a_lock_that_is_a_link_is_not_followed(folder, tmp_path):
    (tmp_path / "theirs").write_text("theirs")
    (folder / "lock").unlink()
    (folder / "lock").symlink_to(tmp_path / "theirs")
    with pytest.raises(NestError, match="expected a directory that can be"):
        opened(folder)
    assert (tmp_path / "theirs").read_text() == "theirs"


def test_a_cell_under_the_name_of_another(folder):
    first, second = sorted((folder / "cells").glob("*.json"))
    first.write_bytes(second.read_bytes())
    (text,) = opened(folder).complaints
    assert "expected the cell of its name, got another" in text


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("step_time_quanta", 89, "a step of 89 quanta for a plan that takes"),
        ("plan", None, "a step time without a plan"),
        ("status", "splendid", "splendid"),
    ],
)
def test_a_cell_that_says_what_cannot_be(folder, field, value, text):
    """Its plan is scored again, and the cell counts as not run."""
    path, other = sorted((folder / "cells").glob("*.json"))
    document = json.loads(path.read_text())
    document["result"][field] = value
    path.write_text(json.dumps(document))
    found = opened(folder)
    assert [row.cell.key for row in read_rows(found)] == [other.stem]
    assert [cell.key for cell in found.missing()] == [path.stem]
    (complaint,) = found.complaints
    assert complaint.startswith(f"{path}: expected its own plan and score")
    assert text in complaint
    assert "\n" not in complaint


def test_a_manifest_cut_short(folder):
    """It is lost, but cells are found by what they are."""
    path = folder / "run.json"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(
        NestError,
        match=r"run\.json: line \d+: expected a run in JSON, got malformed "
        r"text .*; name SET and the options of the run again, which keeps",
    ):
        opened(folder)
    run = make_run(instances(2), ["quick"])
    finished: list[Finished] = []
    go(folder, run, instances(2), resume=True, on_finished=finished.append)
    assert finished == []


def test_a_problem_that_was_changed(folder):
    path, other = sorted((folder / "problems").glob("*.json"))
    path.write_bytes(other.read_bytes())
    with pytest.raises(
        InvalidProblemError, match="expected the problem with the hash of"
    ):
        opened(folder)


def test_a_problem_cut_short(folder):
    """Named again, it is written anew, and its cells are kept."""
    path, _ = sorted((folder / "problems").glob("*.json"))
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(
        InvalidProblemError,
        match=r"got malformed text .*; name SET and the options of the run ag",
    ):
        opened(folder)
    run = make_run(instances(2), ["quick"])
    finished: list[Finished] = []
    go(folder, run, instances(2), resume=True, on_finished=finished.append)
    assert finished == []


@pytest.mark.parametrize(
    ("solvers", "seeds", "text"),
    [(["quick", "slow"], [0], "solvers"), (["quick"], [0, 1], "seeds")],
)
def test_another_run_in_the_directory(folder, solvers, seeds, text):
    run = make_run(instances(2), solvers, seeds=seeds)
    with pytest.raises(
        NestError, match=f"expected the {text} of the run that began there"
    ):
        go(folder, run, instances(2), resume=True)
    other = replace(make_run(instances(2), ["quick"]), title="Other problems")
    with pytest.raises(NestError, match="expected the set of problems of the"):
        go(folder, other, instances(2), resume=True)


def test_other_versions_than_the_run_began_with(folder):
    path = folder / "run.json"
    text = path.read_text().replace('"ortools": "9', '"ortools": "8')
    path.write_text(text)
    with pytest.raises(
        NestError, match=r"expected ortools 8\S+, with which the run began"
    ):
        opened(folder)


def test_nothing_to_resume(tmp_path):
    with pytest.raises(NestError, match=r"got one without run\.json"):
        opened(tmp_path / "none")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("run", r"got that of a run; add --resume"),
        ("others", r"other files in it \(thesis.tex\)"),
        ("others/thesis.tex", "a directory, got a file"),
        ("/proc/none/run", "expected a directory that can be"),
    ],
)
def test_a_directory_that_a_run_cannot_have(folder, path, text):
    """What is in it is left alone."""
    others = folder.parent / "others"
    others.mkdir()
    (others / "thesis.tex").touch()
    run = make_run(instances(2), ["quick"])
    with pytest.raises(NestError, match=text):
        go(folder.parent / path, run, instances(2))
    assert [file.name for file in others.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(("at_once", "expected"), [(3, 1), (1, 0)])
def test_a_report_says_which_cells_shared_cpus(
    tmp_path, monkeypatch, at_once, expected
):
    """Three at once on two CPUs; the answers stay the same."""
    two_cpus = {"cpus": 2}
    monkeypatch.setattr("nest.benchmarks.execute.machine", lambda: two_cpus)
    run = make_run(instances(1), ["quick"])
    with open_run(tmp_path / "run", run, instances(1), False) as folder:
        (cell,) = folder.missing()
        problem = msgspec.json.encode(folder.problems[cell.problem_hash])
        folder.keep(run_cell(CellTask(cell, problem, TARGET, at_once)))
        document = Ended(folder).document
    assert document["times"]["sharing_cpus"] == expected
    told = "1 cell shared CPUs with others: their times are too long"
    assert (told in reports(document)["report.md"]) == bool(expected)


def test_a_refused_run_that_has_cells_stays(tmp_path):
    path = tmp_path / "run"
    run = make_run(instances(1), ["quick"])

    def stop(finished: Finished) -> None:
        raise NestError("no more")

    with pytest.raises(NestError, match="no more"):
        go(path, run, instances(1), on_finished=stop)
    assert (path / "run.json").exists()
    assert len(list((path / "cells").iterdir())) == 1


def test_a_full_disk_has_a_remedy():
    """The line says what to do about it."""
    with pytest.raises(
        NestError,
        match=r"/dev/full: expected a writable file, got .*No space left on "
        r"device; make room, or choose another path",
    ):
        write_atomically(Path("/dev/full"), b"x")


def test_a_full_disk(folder, monkeypatch):
    """Nothing is half written, and what was finished stays so."""
    first, second = sorted((folder / "cells").glob("*.json"))
    first.unlink()
    keep = RunFolder.keep

    def fill(found: RunFolder, data: bytes) -> Finished:
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
        try:
            return keep(found, data)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            signal.signal(signal.SIGXFSZ, previous)

    monkeypatch.setattr(RunFolder, "keep", fill)
    with pytest.raises(NestError, match="File too large") as caught:
        go(folder, None, [], resume=True)
    assert "\n" not in str(caught.value)
    assert list((folder / "cells").iterdir()) == [second]
    assert [cell.key for cell in opened(folder).missing()] == [first.stem]


def test_ctrl_c_reports_what_is_finished(tmp_path):
    def stop(finished: Finished) -> None:
        raise KeyboardInterrupt

    run = make_run(instances(2), ["quick"])
    with pytest.raises(KeyboardInterrupt):
        go(tmp_path / "run", run, instances(2), on_finished=stop)
    document = json.loads((tmp_path / "run" / "report.json").read_text())
    assert document["answers"]["finished"] == 1
    assert document["answers"]["cells"] == 2
