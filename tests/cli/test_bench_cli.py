"""``nest bench``, ``nest sweep``, and ``nest compare`` of several."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nest.ir import write
from nest.present.pages import several
from nest.solvers import registry
from nest.util.versions import num_cpus
from tests.cli.conftest import Cli
from tests.loopback import GOOD_NS, TARGET, tiny_problem
from tests.pages import Page


@pytest.fixture(autouse=True)
def _solvers() -> Iterator[None]:
    registry.register_solver("loopback", TARGET)
    yield
    registry.unregister_solver("loopback")


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """They take most of the time."""
    monkeypatch.setattr("nest.present.pages.draw.find_spec", lambda _: None)


@pytest.fixture(autouse=True)
def _problems(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / f"{name}.json", tiny_problem(name))


def test_a_benchmark(cli: Cli) -> None:
    cli.succeeds(
        "bench one.json two.json --solvers brute -o run --json report.json "
        "--html report.html"
    )
    assert (
        Path("report.html").read_bytes() == (Path("run") / "report.html").read_bytes()
    )
    assert re.search(r"^brute +2 +2 +2 of 2", cli.out, re.M)
    assert "2 of 2 cells finished: 2 problems × 1 solver" in cli.out
    assert "1 seed (0), 60 s each" in cli.out
    assert cli.out.endswith("report: run/report.html\n")
    assert {path.name for path in Path("run").iterdir()} == {
        *("run.json", "lock", "cells", "problems", "answers.csv", "times.csv"),
        *("report.json", "report.md", "report.html"),
    }
    assert (
        Path("report.json").read_bytes() == (Path("run") / "report.json").read_bytes()
    )
    assert cli.refuses("bench one.json -o run").startswith(
        "-o run: expected a new or empty directory, got that of a run; add"
    )
    cli.succeeds("bench --resume -o run")
    assert "nest: 2 of 2 cells are finished" in cli.err


def test_a_model_on_a_cluster_is_a_benchmark(cli: Cli) -> None:
    model = ("--model", "gpt2-large", "--cluster", "a10gx2")
    arguments = (
        *("bench", *model, "--layers-per-node", "36"),
        *("--solvers", "brute", "-o", "run"),
    )
    cli.succeeds(*arguments, "--json", "out.json")
    document = json.loads(Path("out.json").read_text())
    (problem,) = document["run"]["problems"]
    assert problem["name"] == "gpt2-large-a10gx2"
    assert problem["source"] == "gpt2-large on a10gx2"
    assert document["run"]["title"] == "Benchmark of gpt2-large-a10gx2"
    for again in (arguments, ("bench", "-o", "run")):
        cli.succeeds(*again, "--resume")
        assert "nest: 1 of 1 cells are finished" in cli.err


def test_a_failed_cell_is_the_exit_code(cli: Cli) -> None:
    option = "--option loopback.act=raise"
    assert cli(f"bench one.json --solvers loopback -o run {option}") == 1
    assert re.search(r"^loopback .* 1$", cli.out, re.M)


@pytest.mark.skipif(num_cpus() < 2, reason="needs two CPUs")
def test_jobs_times_workers(cli: Cli) -> None:
    """All CPUs for every solver leave none for another job."""
    pair, workers = ("--jobs", "2"), str(num_cpus())
    text = cli.refuses(*("bench", "one.json", "-o", "run", *pair, "--workers", workers))
    expected = f"--jobs 2: expected jobs × workers <= {num_cpus()}"
    assert expected in text
    cli.succeeds(f"bench one.json --solvers loopback -o run --workers {workers}")
    assert expected in cli.refuses("bench --resume -o run", *pair)


def test_without_dask(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    assert cli.refuses("bench one.json -o run --dask 1") == (
        "--dask: expected distributed to be installed, got no such package; "
        "install it with: pip install 'nest-planner[dask]'"
    )


def test_a_cut_cell_is_told_in_a_line(cli: Cli) -> None:
    arguments = "bench one.json --solvers loopback -o run"
    cli.succeeds(arguments)
    (path,) = Path("run/cells").iterdir()
    path.write_bytes(path.read_bytes()[:50])
    cli.succeeds(f"{arguments} --resume")
    assert cli.err.startswith(
        f"nest: run/cells/{path.name}: line 3: expected a finished cell in "
        f"JSON, got malformed text"
    )
    assert cli.err.count("\n") == 1
    assert "1 of 1 cells finished" in cli.out


def test_no_scheduler(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("nest.tasks.parallel._CONNECT_S", 0.2)
    where = "tcp://127.0.0.1:9"
    arguments = "bench one.json --solvers loopback -o run"
    text = cli.refuses(f"{arguments} --dask {where}")
    assert text.startswith(f"--dask {where}: expected the address of a Dask")
    assert not Path("run").exists()
    # A directory that was there before stays, and is as empty as it was.
    Path("run").mkdir()
    cli.refuses(f"{arguments} --dask {where}")
    assert list(Path("run").iterdir()) == []


def test_more_local_workers_than_cpus(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They share CPUs, which standard error and the report say."""
    pytest.importorskip("distributed")
    for module in ("nest.benchmarks.engine", "nest.util.versions"):
        monkeypatch.setattr(f"{module}.num_cpus", lambda: 1)
    cli.succeeds("bench one.json --solvers loopback -o run --dask 2")
    assert (
        "nest: --dask 2: 2 threads share 1 CPU, so measured times are too "
        "long, and time limits cut off earlier" in cli.err.splitlines()
    )


# Sweeps


def test_twice_the_network(cli: Cli) -> None:
    Path("grid.yaml").write_text(
        "schema: nest-sweep/1\n"
        "models: [gpt3-1.3b]\n"
        "clusters: [dgx-a100x16]\n"
        "batches: [32]\n"
        "bandwidths: [1, 2]\n"
        "job: {layers_per_node: 6, micro_batches: [1]}\n"
        "solvers: [dp]\n"
    )
    (group,) = cli.document("sweep grid.yaml -o run")["answers"]["sweep"]
    assert (group["model"], group["batch"]) == ("gpt3-1.3b", 32)
    once, twice = group["bandwidths"]
    assert once["speed_up"] == 1
    assert twice["step_time_ns"] < once["step_time_ns"]
    assert twice["speed_up"] == once["step_time_ns"] / twice["step_time_ns"]
    assert "× 2" in cli.err
    assert "What bandwidth buys" in Path("run/report.md").read_text()


# Several problems of compare


def test_several_problems(cli: Cli) -> None:
    cli.succeeds(
        "compare one.json two.json --solvers brute,loopback --csv - --json "
        "all.json --resume kept"
    )
    rows = list(csv.DictReader(io.StringIO(cli.out)))
    assert [(row["problem"], row["solver"]) for row in rows] == [
        (problem, solver)
        for problem in ("one", "two")
        for solver in ("brute", "loopback")
    ]
    assert {row["step_time_ns"] for row in rows} == {str(GOOD_NS)}
    document = json.loads(Path("all.json").read_text())
    assert document["schema"] == "nest-bench/1"
    assert document["answers"]["finished"] == 4
    assert re.search(r"^two +loopback +optimal +0 +90.0000 ns", cli.err, re.M)
    stamps = {p: p.stat().st_mtime_ns for p in Path("kept/cells").iterdir()}
    assert len(stamps) == 4
    cli.succeeds("compare one.json two.json --solvers brute,loopback --resume kept")
    assert "nest: 4 of 4 cells are finished" in cli.err
    assert all(p.stat().st_mtime_ns == at for p, at in stamps.items())


def test_several_go_on_with_the_workers_they_began_with(cli: Cli) -> None:
    """``dp`` takes all CPUs unless several cells run at a time."""
    again = "compare one.json two.json --solvers dp"
    cli.succeeds(f"{again} --workers 1 --resume kept")
    cli.succeeds(f"{again} --resume kept")
    assert "nest: 2 of 2 cells are finished" in cli.err


def test_restrictions_of_several_are_said(cli: Cli) -> None:
    document = cli.document("compare one.json two.json --solvers brute --pin pp=1")
    assert document["run"]["notes"] == ["only plans under --pin pp=1"]
    assert "; only plans under --pin pp=1; nest" in cli.err
    assert {row["status"] for row in document["answers"]["rows"]} == {"infeasible"}


def test_several_problems_leave_nothing_behind(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = Path("temporary")
    temporary.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    option = "--option loopback.act=raise"
    assert cli(f"compare one.json two.json --solvers loopback {option}") == 1
    assert re.search(r"^one +loopback +error", cli.out, re.M)
    assert "report:" not in cli.out
    assert list(temporary.iterdir()) == []


def test_one_problem_as_csv(cli: Cli) -> None:
    """The table and the document are as without."""
    arguments = "compare one.json --solvers brute"
    cli.succeeds(f"{arguments} --csv all.csv --json all.json")
    assert cli.out.splitlines()[1].startswith("solver   fits ")
    text = Path("all.csv").read_text()
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["problem"], row["solver"]) == ("one", "brute")
    assert (row["step_time_quanta"], row["over_best"]) == ("90", "1.0")
    assert json.loads(Path("all.json").read_text())["schema"] == "nest-compare/1"


def test_several_problems_as_a_page(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vl_convert")
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    arguments = "compare one.json two.json --solvers brute"
    cli.succeeds(f"{arguments} --html page.html")
    assert "2 of 2 cells finished" in cli.out
    text = Path("page.html").read_text()
    assert text.startswith("<!DOCTYPE html>")
    assert len(text) < 2_000_000
    # Each with its figures, and when asked with its map and its memory.
    assert Page(text).text.count("step time 90.0000 ns") == 2
    assert text.count("<summary>Charts and tables of ") == 2
    for name in ("map", "memory"):
        assert text.count(f'aria-labelledby="{name}-1-caption"') == 1
        assert text.count(f'aria-labelledby="{name}-2-caption"') == 1
    ids = re.findall(r' id="([^"]+)"', re.sub("<svg.*?</svg>", "", text))
    assert len(ids) == len(set(ids))
    # Of many problems the last have tables.
    monkeypatch.setattr(several, "MOST_CHARTED", 1)
    cli.succeeds(f"{arguments} --html page.html")
    text = Path("page.html").read_text()
    assert 'aria-labelledby="memory-2-caption"' not in text
    assert Page(text).text.count("Memory of a device, in GiB") > 1
    assert "could not be drawn" not in text
