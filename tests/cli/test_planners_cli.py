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

pytestmark = pytest.mark.usefixtures("files")

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
def test_broken_entry_points_cost_a_cell_each(cli, files):
    entries = {x["solver"]: x for x in cli.document("solvers")["solvers"]}
    assert entries["noisy"]["reason"] is None
    assert entries["noisy"]["version"] == "theirs 1.2"
    assert {x: entries[x]["reason"] for x in REASONS} == REASONS

    asked = "problem.json --solvers noisy,raises,leaves,mistaken,no-colon,random"
    cells = {
        x["solver"]: x
        for x in cli.document(f"compare {asked} --option noisy.act=heuristic")["cells"]
    }
    assert cells["noisy"]["outcome"] == cells["random"]["outcome"] == "solved"
    assert {
        name: cells[name]["detail"]
        for name in REASONS
        if cells[name]["outcome"] == "not-installed"
    } == REASONS

    # One that ends the process that imports it has failed.
    asked = "problem.json --solvers raises,leaves,random"
    assert cli(f"bench {asked} -o run --json -") == 1
    found = {x["solver"]: x for x in json.loads(cli.out)["answers"]["rows"]}
    assert found["random"]["outcome"] == "solved"
    assert found["raises"]["detail"] == REASONS["raises"]
    assert found["leaves"]["outcome"] == "error"


@pytest.mark.usefixtures("theirs")
def test_a_broken_entry_point_alone(cli, files):
    asked = "solve problem.json --solver raises"
    assert cli.refuses(asked) == f"solver 'raises': {REASONS['raises']}"
    assert cli("conform mistaken") == 1
    (loads,) = (x for x in cli.out.splitlines() if x.startswith("loads"))
    assert "failed" in loads


def test_an_entry_point_that_hangs(cli, theirs, monkeypatch):
    """The list of solvers says so, and it costs its cell."""
    (info,) = theirs.glob("*.dist-info")
    (theirs / "theirs_hangs.py").write_text("import time\ntime.sleep(600)\n")
    (info / "entry_points.txt").write_text(
        "[nest.solvers]\nhangs = theirs_hangs:Planner\n"
    )
    monkeypatch.setattr(registry, "IMPORT_S", 0.2)
    entries = {x["solver"]: x for x in cli.document("solvers")["solvers"]}
    assert entries["hangs"]["reason"] == (
        "importing theirs_hangs:Planner took more than 0.2 s; allow more "
        "time, or mend the package that provides it"
    )
    cells = {
        x["solver"]: x
        for x in cli.document("compare problem.json --solvers hangs,random")["cells"]
    }
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
    cli.succeeds("solvers")
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
    site = Path("site")
    zipfile.ZipFile(wheel).extractall(site)
    source = (site / "even_planner.py").read_text()
    assert sum(bool(line.strip()) for line in source.splitlines()) < 40
    monkeypatch.syspath_prepend(site)
    cli.succeeds("solvers")
    assert "even        no      yes         even pipelines" in cli.out
    keep_small(monkeypatch)
    cli.succeeds("conform even")
    assert "even (even-planner 1.0) conforms: " in cli.out


def keep_small(monkeypatch: pytest.MonkeyPatch) -> None:
    first, *_ = references()
    monkeypatch.setattr(conform_run, "references", lambda: (first,))
    monkeypatch.setattr(conform_run, "large", lambda: first)


def test_a_command_takes_part(cli, monkeypatch):
    """In every command that runs solvers, and when a run is resumed."""
    asked = f"problem.json --solvers {SHELL}"
    (cell,) = cli.document(f"compare {asked} --repair")["cells"]
    assert cell["solver"] == "replicate"
    assert cell["version"] == "replicate 1.0"
    assert cell["status"] == "over-memory"

    first, *_ = references()
    Path("dag.json").write_bytes(encode(first.problem))
    cli.succeeds(f"solve dag.json --solver {SHELL} -o plan.json")
    cli.succeeds("score dag.json plan.json")
    cli.succeeds(f"bench {asked} -o run")
    (cell_file,) = (Path("run") / "cells").iterdir()
    cell_file.unlink()
    registry.unregister_solver("replicate")
    names = [
        x["solver"]
        for x in cli.document(f"bench --resume -o run --solvers {SHELL}")["answers"][
            "rows"
        ]
    ]
    assert names == ["replicate"]
    assert cell_file.exists()

    Path("other.yaml").write_text(SHELL.read_text().replace("1.0", "1.1"))
    assert "expected the planners of the run that began there" in cli.refuses(
        "bench problem.json --solvers other.yaml --resume -o run"
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
    run = Path("run")
    cli(f"bench problem.json --solvers random,{path} -o run")
    trace.unlink()
    for cell in (run / "cells").iterdir():
        cell.unlink()
    registry.unregister_solver("mine")
    yield run, path, trace
    registry.unregister_solver("mine")


def test_a_directory_runs_no_command(cli, command_run):
    """Only this call can name one, whatever the directory says."""
    run, path, trace = command_run
    resume = f"bench --resume -o {run}"
    assert cli.refuses(resume) == (
        f"-o {run}: expected this call to name planner 'mine' as the run "
        f"began, because nest runs no command that only run.json names, got "
        f"none; add --solvers random,FILE, where FILE is the description of "
        f"'mine'"
    )
    assert "expected those of the run, random,mine, got mine" in cli.refuses(
        f"{resume} --solvers {path}"
    )
    Path("changed.yaml").write_text(Path(path).read_text().replace("touch", "touch  "))
    assert "expected this call to name planner 'mine'" in cli.refuses(
        f"{resume} --solvers random,changed.yaml"
    )
    assert not trace.exists()
    assert not any((run / "cells").iterdir())
    cli(f"{resume} --solvers random,{path}")
    assert trace.exists()
    # Once its cells are finished nothing of it runs.
    trace.unlink()
    registry.unregister_solver("mine")
    assert cli(resume) == 1
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
        f"bench --resume -o {run}"
    )
    assert not trace.exists()


def test_a_directory_names_no_log(cli, command_run):
    run, _, _ = command_run
    manifest, log = run / "run.json", Path("log")
    data = json.loads(manifest.read_text())
    data |= {"planners": {}, "solvers": ["milp"]}
    data["extra"] = {"milp": {"log": str(log)}}
    manifest.write_text(json.dumps(data))
    assert "expected this call to name the log of 'milp'" in cli.refuses(
        f"bench --resume -o {run}"
    )
    assert not log.exists()


def test_a_grid_runs_no_command(cli, tmp_path):
    path, trace = mine(tmp_path)
    Path("grid.yaml").write_text(
        "schema: nest-sweep/1\nmodels: [gpt2]\nclusters: [h100x1]\n"
        f"job: {{layers_per_node: 12, global_batch: 4}}\nsolvers: [{path}]\n"
    )
    sweep = "sweep grid.yaml -o run"
    try:
        assert cli.refuses(sweep) == (
            "grid.yaml: solvers: expected names, because nest runs no "
            "command that only a file names, got a description of a command; "
            "add "
            f"--solvers {path}"
        )
        assert not trace.exists()
        cli(f"{sweep} --solvers {path}")
        assert trace.exists()
    finally:
        registry.unregister_solver("mine")


def test_a_description_is_named_once(cli):
    assert "expected every solver once, got 'replicate' again" in cli.refuses(
        f"compare problem.json --solvers {SHELL},{SHELL}"
    )


def test_conform(cli, monkeypatch):
    keep_small(monkeypatch)
    cli.succeeds(f"conform {SHELL} --json conform.json")
    assert "replicate (replicate 1.0) conforms: 9 passed, 0 failed" in cli.out
    document = json.loads(Path("conform.json").read_text())
    assert document["schema"] == "nest-conform/1"
    assert document["conforms"] is True
    assert document["grace_s"] == 1.0
    assert [x["check"] for x in document["checks"]] == [x.name for x in CHECKS]
    assert document["cells"][0]["problem"] == "conform-dag"

    Path("broken.yaml").write_text(
        "schema: nest-planner/1\nname: replicate\n"
        "command: sh -c 'exit 3' sh {problem} {plan}\n"
    )
    assert cli("conform broken.yaml") == 1
    assert "the command ended with code 3" in cli.out
    assert "does not conform: " in cli.out


def test_promises_are_listed(cli):
    cli.succeeds("conform dp --promises")
    assert all(check.meaning in cli.out for check in CHECKS)
