"""Planners of others on the command line: packages, commands, conformance."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nest.conform import CHECKS, references
from nest.conform import run as conform_run
from nest.ir.io import encode
from nest.solvers import registry

EXAMPLES = Path(__file__).parents[2] / "examples"
SHELL = EXAMPLES / "shell-planner" / "replicate.yaml"

#: Modules of a package, of which one works.
MODULES = {
    "noisy": "print('hello')\nfrom tests.loopback import LoopbackBaseline",
    "raises": "raise ImportError('no\\nengine')",
    "leaves": "import os\nos._exit(7)",
    "mistaken": (
        "from nest.solvers.base import Capabilities\n"
        "class Planner:\n"
        "    capabilities = Capabilities(exact='yes', method='m')\n"
    ),
}
TARGETS = {
    "noisy": "theirs_noisy:LoopbackBaseline",
    "raises": "theirs_raises:Planner",
    "leaves": "theirs_leaves:Planner",
    "mistaken": "theirs_mistaken:Planner",
    "no-colon": "theirs_noisy",
}
REASONS = {
    "raises": "expected a solver class at 'theirs_raises:Planner', got "
    "ImportError: no engine; reinstall the package that provides it",
    "leaves": "importing theirs_leaves:Planner ended the process: exit 7; "
    "reinstall the package that provides it",
    "mistaken": "expected a solver class at 'theirs_mistaken:Planner', got "
    "TypeError: capabilities: exact: expected a value of its type, got "
    "'yes'; see nest.solvers.base.Capabilities; reinstall the package that "
    "provides it",
    "no-colon": "expected a solver class at 'theirs_noisy', got TypeError: "
    "expected a target 'module:Class', got 'theirs_noisy'; correct it; "
    "reinstall the package that provides it",
}


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    registry._plugins.cache_clear()
    yield
    registry._plugins.cache_clear()
    registry.unregister_solver("replicate")


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package with one good entry point and four broken ones."""
    site = tmp_path / "site"
    info = site / "theirs-1.2.dist-info"
    info.mkdir(parents=True)
    for name, text in MODULES.items():
        (site / f"theirs_{name}.py").write_text(text)
    (info / "METADATA").write_text("Name: theirs\nVersion: 1.2\n")
    lines = (f"{name} = {target}\n" for name, target in TARGETS.items())
    (info / "entry_points.txt").write_text(f"[nest.solvers]\n{''.join(lines)}")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setattr(registry, "_tried", {})
    return site


@pytest.mark.usefixtures("theirs")
def test_broken_entry_points_cost_a_cell_each(cli, files, tmp_path):
    assert cli("solvers", "--json", "-") == 0
    entries = {x["solver"]: x for x in json.loads(cli.out)["solvers"]}
    assert entries["noisy"]["reason"] is None
    assert entries["noisy"]["version"] == "theirs 1.2"
    assert {x: entries[x]["reason"] for x in REASONS} == REASONS

    solvers = "noisy,raises,leaves,mistaken,no-colon,random"
    asked = (files["problem"], "--solvers", solvers)
    option = ("--option", "noisy.act=heuristic")
    assert cli("compare", *asked, *option, "--json", "-") == 0
    cells = {x["solver"]: x for x in json.loads(cli.out)["cells"]}
    assert cells["noisy"]["outcome"] == cells["random"]["outcome"] == "solved"
    assert {
        name: cells[name]["detail"]
        for name in REASONS
        if cells[name]["outcome"] == "not-installed"
    } == REASONS

    # One that ends the process that imports it has failed.
    asked = (files["problem"], "--solvers", "raises,leaves,random")
    run = str(tmp_path / "run")
    assert cli("bench", *asked, "-o", run, "--json", "-") == 1
    document = json.loads(cli.out)
    found = {x["solver"]: x for x in document["answers"]["rows"]}
    assert found["random"]["outcome"] == "solved"
    assert found["raises"]["detail"] == REASONS["raises"]
    assert found["leaves"]["outcome"] == "error"


@pytest.mark.usefixtures("theirs")
def test_a_broken_entry_point_alone(cli, files):
    asked = ("solve", files["problem"], "--solver", "raises")
    assert cli.refuses(*asked) == f"solver 'raises': {REASONS['raises']}"
    assert cli("conform", "mistaken") == 1
    (loads,) = (x for x in cli.out.splitlines() if x.startswith("loads"))
    assert "failed" in loads


def test_an_entry_point_that_hangs(cli, files, theirs, monkeypatch):
    """The list of solvers says so, and it costs its cell."""
    (info,) = theirs.glob("*.dist-info")
    (theirs / "theirs_hangs.py").write_text("import time\ntime.sleep(600)\n")
    (info / "entry_points.txt").write_text(
        "[nest.solvers]\nhangs = theirs_hangs:Planner\n"
    )
    monkeypatch.setattr(registry, "IMPORT_S", 0.2)
    assert cli("solvers", "--json", "-") == 0
    entries = {x["solver"]: x for x in json.loads(cli.out)["solvers"]}
    assert entries["hangs"]["reason"] == (
        "importing theirs_hangs:Planner took more than 0.2 s; allow more "
        "time, or mend the package that provides it"
    )
    asked = (files["problem"], "--solvers", "hangs,random")
    assert cli("compare", *asked, "--json", "-") == 0
    cells = {x["solver"]: x for x in json.loads(cli.out)["cells"]}
    assert cells["hangs"]["outcome"] == "not-installed"
    assert cells["hangs"]["detail"] == entries["hangs"]["reason"]
    assert cells["random"]["outcome"] == "solved"


def test_entry_points_that_cannot_be_read(cli, theirs):
    """Those of one package; all others are there."""
    (info,) = theirs.glob("*.dist-info")
    broken = theirs / "worse-1.dist-info"
    broken.mkdir()
    (broken / "METADATA").write_text("Name: worse\nVersion: 1\n")
    (broken / "entry_points.txt").write_text("[nest.solvers]\nno equals\n")
    (info / "entry_points.txt").write_text(
        "[nest.solvers]\nnoisy = theirs_noisy:LoopbackBaseline\n"
    )
    assert cli("solvers") == 0
    assert "noisy" in cli.out
    assert "ignored: entry points of worse: expected lines" in cli.err


def test_the_example_package(cli, tmp_path, monkeypatch):
    """Built as pip would, and put where pip would put it."""
    subprocess.run(
        [
            *(sys.executable, "-m", "hatchling", "build", "-t", "wheel"),
            *("-d", tmp_path),
        ],
        cwd=EXAMPLES / "even-planner",
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    source = (site / "even_planner.py").read_text()
    assert sum(bool(line.strip()) for line in source.splitlines()) < 40
    monkeypatch.syspath_prepend(site)
    assert cli("solvers") == 0
    assert "even        no      yes         even pipelines" in cli.out
    keep_small(monkeypatch)
    assert cli("conform", "even") == 0
    assert "even (even-planner 1.0) conforms: " in cli.out


def keep_small(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_ = references()
    monkeypatch.setattr(conform_run, "references", lambda: (first,))
    monkeypatch.setattr(conform_run, "large", lambda: first)


def test_a_command_takes_part(cli, files, tmp_path, monkeypatch):
    """In every command that runs solvers, and when a run is resumed."""
    asked = (files["problem"], "--solvers", str(SHELL))
    assert cli("compare", *asked, "--repair", "--json", "-") == 0
    (cell,) = json.loads(cli.out)["cells"]
    assert cell["solver"] == "replicate"
    assert cell["version"] == "replicate 1.0"
    assert cell["status"] == "over-memory"

    plan = tmp_path / "plan.json"
    first, *_ = references()
    problem = tmp_path / "dag.json"
    problem.write_bytes(encode(first.problem))
    solve = ("solve", str(problem), "--solver", str(SHELL), "-o", str(plan))
    assert cli(*solve) == 0
    assert cli("score", str(problem), str(plan)) == 0

    run = tmp_path / "run"
    bench = ("bench", *asked, "-o", str(run))
    assert cli(*bench) == 0
    (cell_file,) = (run / "cells").iterdir()
    cell_file.unlink()
    registry.unregister_solver("replicate")
    resume = ("bench", "--resume", "-o", str(run), "--json", "-")
    assert cli(*resume, "--solvers", str(SHELL)) == 0
    names = [x["solver"] for x in json.loads(cli.out)["answers"]["rows"]]
    assert names == ["replicate"]
    assert cell_file.exists()

    changed = tmp_path / "other.yaml"
    changed.write_text(SHELL.read_text().replace("1.0", "1.1"))
    assert "expected the planners of the run that began there" in cli.refuses(
        *("bench", files["problem"], "--solvers", str(changed)),
        *("--resume", "-o", str(run)),
    )


def mine(folder: Path) -> tuple[str, Path]:
    """Return the description of a command, and the file that it leaves."""
    path, trace = folder / "mine.yaml", folder / "it-ran"
    words = ["sh", "-c", f"touch {trace}; cp {{problem}} {{plan}}"]
    description = {"schema": "nest-planner/1", "name": "mine"}
    path.write_text(json.dumps({**description, "command": words}))
    return str(path), trace


@pytest.fixture
def command_run(cli, files, tmp_path) -> Iterator[tuple[Path, str, Path]]:
    """A run with a command, of which no cell is finished."""
    path, trace = mine(tmp_path)
    run = tmp_path / "run"
    solvers = f"random,{path}"
    cli("bench", files["problem"], "--solvers", solvers, "-o", str(run))
    trace.unlink()
    for cell in (run / "cells").iterdir():
        cell.unlink()
    registry.unregister_solver("mine")
    yield run, path, trace
    registry.unregister_solver("mine")


def test_a_directory_runs_no_command(cli, command_run, tmp_path):
    """Only this call can name one, whatever the directory says."""
    run, path, trace = command_run
    resume = ("bench", "--resume", "-o", str(run))
    assert cli.refuses(*resume) == (
        f"-o {run}: expected this call to name planner 'mine' as the run "
        f"began, because nest runs no command that only run.json names, got "
        f"none; add --solvers random,FILE, where FILE is the description of "
        f"'mine'"
    )
    assert "expected those of the run, random,mine, got mine" in cli.refuses(
        *resume, "--solvers", path
    )
    changed = tmp_path / "changed.yaml"
    changed.write_text(Path(path).read_text().replace("touch", "touch  "))
    assert "expected this call to name planner 'mine'" in cli.refuses(
        *resume, "--solvers", f"random,{changed}"
    )
    assert not trace.exists()
    assert not any((run / "cells").iterdir())
    cli(*resume, "--solvers", f"random,{path}")
    assert trace.exists()
    # Once its cells are finished nothing of it runs.
    trace.unlink()
    registry.unregister_solver("mine")
    assert cli(*resume) == 1
    assert not trace.exists()


@pytest.mark.parametrize(
    ("planners", "solver"),
    [
        ({"mine": "tests.loopback:Loopback"}, "mine"),
        ({"random": "command:{}"}, "random"),
        ({"dp": "tests.loopback:Loopback"}, "dp"),
    ],
)
def test_a_directory_imports_no_class(cli, command_run, planners, solver):
    """Neither one that it names, nor one in place of a solver of nest."""
    run, _, trace = command_run
    manifest = run / "run.json"
    data = json.loads(manifest.read_text())
    data |= {"planners": planners, "solvers": [solver]}
    manifest.write_text(json.dumps(data))
    assert f"expected this call to name planner {solver!r}" in cli.refuses(
        "bench", "--resume", "-o", str(run)
    )
    assert not trace.exists()


def test_a_directory_names_no_log(cli, files, command_run, tmp_path):
    run, _, _ = command_run
    manifest, log = run / "run.json", tmp_path / "log"
    data = json.loads(manifest.read_text())
    data |= {"planners": {}, "solvers": ["milp"]}
    data["extra"] = {"milp": {"log": str(log)}}
    manifest.write_text(json.dumps(data))
    assert "expected this call to name the log of 'milp'" in cli.refuses(
        "bench", "--resume", "-o", str(run)
    )
    assert not log.exists()


def test_a_grid_runs_no_command(cli, tmp_path):
    path, trace = mine(tmp_path)
    grid = tmp_path / "grid.yaml"
    grid.write_text(
        "schema: nest-sweep/1\nmodels: [gpt2]\nclusters: [h100x1]\n"
        f"job: {{layers_per_node: 12, global_batch: 4}}\nsolvers: [{path}]\n"
    )
    sweep = ("sweep", str(grid), "-o", str(tmp_path / "run"))
    try:
        assert cli.refuses(*sweep) == (
            f"{grid}: solvers: expected names, because nest runs no command "
            f"that only a file names, got a description of a command; add "
            f"--solvers {path}"
        )
        assert not trace.exists()
        cli(*sweep, "--solvers", path)
        assert trace.exists()
    finally:
        registry.unregister_solver("mine")


def test_bad_descriptions(cli, files, tmp_path):
    missing = str(tmp_path / "none.yaml")
    for command in (
        ("solve", files["problem"], "--solver", missing),
        ("compare", files["problem"], "--solvers", f"dp,{missing}"),
        ("conform", missing),
    ):
        assert "expected a readable description of a planner" in cli.refuses(
            *command
        )
    assert "expected every solver once, got 'replicate' again" in cli.refuses(
        "compare", files["problem"], "--solvers", f"{SHELL},{SHELL}"
    )


def test_conform(cli, tmp_path, monkeypatch):
    keep_small(monkeypatch)
    out = tmp_path / "conform.json"
    assert cli("conform", str(SHELL), "--json", str(out)) == 0
    assert "replicate (replicate 1.0) conforms: 9 passed, 0 failed" in cli.out
    document = json.loads(out.read_text())
    assert document["schema"] == "nest-conform/1"
    assert document["conforms"] is True
    assert document["grace_s"] == 1.0
    assert [x["check"] for x in document["checks"]] == [x.name for x in CHECKS]
    assert document["cells"][0]["problem"] == "conform-dag"

    broken = tmp_path / "broken.yaml"
    broken.write_text(
        "schema: nest-planner/1\nname: replicate\n"
        "command: sh -c 'exit 3' sh {problem} {plan}\n"
    )
    assert cli("conform", str(broken)) == 1
    assert "the command ended with code 3" in cli.out
    assert "does not conform: " in cli.out


def test_conform_refuses(cli):
    assert "got 'dpp'; did you mean 'dp'" in cli.refuses("conform", "dpp")
    assert "expected SOLVER, got none" in cli.refuses("conform")
    assert "option dp.speed: expected one of the options" in cli.refuses(
        "conform", "dp", "--option", "dp.speed=1"
    )
    assert cli("conform", "dp", "--promises") == 0
    assert all(check.meaning in cli.out for check in CHECKS)
