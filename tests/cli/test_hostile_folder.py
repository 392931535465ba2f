"""Every command in a folder with modules that want to be imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import nest
from bench.instance_updates import with_certificate
from nest.certificates import documents
from nest.certificates.certify import certify
from nest.cli.main import commands
from nest.errors import NestError
from nest.instances import best_known, names, store
from nest.ir import write
from nest.util.interpreters import (
    ignore_working_directory,
    leave_safe_environment,
    search_path,
)
from nest.util.versions import num_cpus
from tests import readers
from tests.cli.test_codesign_resume import SPEC
from tests.loopback import tiny_problem

ROOT = Path(nest.__file__).parents[1]
NAME, *_ = (x for x in names(["tiny", "chain"]) if best_known(x).plan)

#: What is imported before any line of nest where it is started with ``-m``.
EARLY = {
    *("warnings", "importlib", "keyword", "operator", "reprlib", "runpy"),
    *("collections", "types", "functools", "contextlib", "nest"),
}

#: Everything that the programs of nest import, and what they would like to.
MODULES = {
    *(name for name in sys.stdlib_module_names if not name.startswith("_")),
    *("baselines", "click", "cloudpickle", "dask", "distributed", "editables"),
    *("formulations", "google", "highspy", "joblib", "matplotlib", "msgspec"),
    *("nest", "networkx", "numpy", "ortools", "pandas", "psutil", "pulp"),
    *("pyscipopt", "rich", "scipy", "sitecustomize", "torch", "tornado"),
    *("usercustomize", "vl_convert", "yaml", "_json", "_random"),
}

#: Runs commands as the script ``nest`` does, one after the other.
DRIVER = """\
import sys
def run(words):
    from nest.__main__ import main
    sys.argv = ["nest", *words]
    try:
        main()
    except SystemExit as error:
        return error.code
if __name__ == "__main__":
    import json
    for words in json.loads(sys.argv[1]):
        print(words, file=sys.stderr)
        code = run(words)
        # Some need PyTorch, or more than these files.
        may_refuse = {"profile", "import", "order"} & {*words[:2]}
        if code not in (0, 2 if may_refuse else 0):
            sys.exit(f"{words}: {code}")
"""

JOBS = str(min(2, num_cpus()))
FOR_GPT2 = "--model gpt2 --cluster h100x2"

#: A line or more for each command.
COMMANDS = f"""
solve problem.json --solver dp -o plan.json --json - --html solved.html
compare problem.json --solvers dp,cpsat,alpa --jobs {JOBS} --resume kept
bench problem.json --solvers dp,milp --jobs {JOBS} -o run
bench --resume -o run
sweep grid.yaml -o swept
audit
codesign spec.yaml --jobs {JOBS} -o chips
report problem.json plan.json --html page.html
score problem.json plan.json
simulate problem.json plan.json
trace problem.json plan.json -o trace.json
check problem.json plan.json
fits problem.json plan.json
fit problem.json --within 1000
explain problem.json plan.json
pareto problem.json --top 3 --plot frontier.svg
solvers
conform random --promises
problems
instances
instances show {NAME}
instances fetch {NAME} --plans -o fetched
new cluster --machine h100 --devices 32 -o my.yaml
new problem --model gpt2 --cluster h100x2 -o p.json
import nest-artifact artifact.json -o imported.json
import piper piper.json -o imported.json
import hf config.json --cluster h100x8 -o imported.json
import megatron-args run.sh --cluster h100x16 -o imported.json
import torch model.py:make --cluster h100x8 -o imported.json
import torchtitan train.toml --cluster h100x8 -o imported.json
import deepspeed ds.json --cluster h100x8 --model gpt2 -o imported.json
import maxtext config.yml --cluster h100x8 -o imported.json
import accelerate config.yml --cluster h100x8 --model gpt2 -o imported.json
import profile-csv ops.csv --model gpt2 --device V100-16GB -o profile.json
import schedule-csv order.csv --plan plan.json -o ordered.json
export {FOR_GPT2} --plan tp=1,pp=1 --nearest --to megatron -o out
topology show torus:2x2 --plot network.svg
topology bench dgx:nodes=1
topology price case.json
topology order problem.json plan.json
schedule layer.json --cores tensor=2,vector=1 --solver cpsat
validate --limit 4 --jobs {JOBS}
calibrate --template -o runs.csv
certify {NAME} known.json -o certified.json
completion bash
doctor
cite
versions
profile --model gpt2 --tp 1 -o profile.json
"""

#: Inputs that their readers take, by the name of the reader.
FILES = {
    "artifact.json": "artifact",
    "piper.json": "piper",
    "config.json": "hf",
    "run.sh": "script",
    "train.toml": "torchtitan",
    "ds.json": "deepspeed",
    "config.yml": "maxtext",
    "ops.csv": "aceso",
    "layer.json": "layer",
    "case.json": "price",
    "order.csv": "order of passes",
}
GRID = """\
schema: nest-sweep/1
models: [gpt2]
clusters: [h100x1]
job: {layers_per_node: 12, global_batch: 4}
"""


def hostile(folder: Path, modules: set[str]) -> None:
    """Write modules that leave a trace when they are imported."""
    for name in modules:
        trace = folder / f"ran-{name}"
        (folder / f"{name}.py").write_text(f"open({str(trace)!r}, 'w')\n")


def traces(folder: Path) -> list[str]:
    return sorted(x.name for x in folder.glob("ran-*"))


def start(
    folder: Path, *words: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, with no more of this process's environment."""
    kept = {x: y for x, y in os.environ.items() if not x.startswith("PYTHON")}
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all inputs, and a module of every name."""
    folder = tmp_path_factory.mktemp("hostile")
    for file, reader in FILES.items():
        (folder / file).write_bytes(readers.READERS[reader].examples()[0])
    write(folder / "problem.json", tiny_problem())
    (folder / "spec.yaml").write_text(SPEC)
    (folder / "grid.yaml").write_text(GRID)
    (folder / "best.json").write_bytes(store.best_known_path().read_bytes())
    known = best_known(NAME)
    assert known.plan is not None
    write(folder / "known.json", known.plan)
    found = certify(store.load(NAME), known.plan)
    (folder / "certificate.json").write_text(json.dumps(found))
    hostile(folder, MODULES)
    return folder


def test_no_command_imports_from_its_folder(folder: Path, tmp_path: Path) -> None:
    """Nor does a process that it starts: solvers, pools, checkers."""
    lines = [line.split() for line in COMMANDS.strip().splitlines()]
    leaves = {path for path, command in commands() if path != "nest"}
    groups = {"nest new", "nest import", "nest topology"}
    named = {" ".join(("nest", *words[:count])) for words in lines for count in (1, 2)}
    assert leaves - groups <= named
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)
    done = start(folder, str(driver), json.dumps(lines))
    assert done.returncode == 0, done.stderr
    assert traces(folder) == []


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (("-m", "nest"), {}),
        (("-mnest",), {}),
        (("-P", "-m", "nest"), {}),
        (("-c", "from nest.__main__ import main; main()"), {"PYTHONSAFEPATH": "1"}),
    ],
)
def test_python_m_nest_imports_from_no_folder(words, environment, tmp_path):
    """But for what Python itself imports before, see docs/files.md."""
    write(tmp_path / "problem.json", tiny_problem())
    safe = "-P" in words or environment
    hostile(tmp_path, MODULES if safe else MODULES - EARLY)
    done = start(
        tmp_path, *words, "solve", "problem.json", "--solver", "dp", **environment
    )
    assert done.returncode == 0, done.stderr
    assert traces(tmp_path) == []


@pytest.mark.parametrize("named", ["", ".", "./"])
def test_an_empty_entry_of_the_path_is_none(named, tmp_path):
    """Python reads sitecustomize from there, nest nothing."""
    write(tmp_path / "problem.json", tiny_problem())
    hostile(tmp_path, {"msgspec", "click", "joblib", "yaml"})
    command = "from nest.__main__ import main; main()"
    done = start(
        tmp_path,
        *("-P", "-c", command, "solve", "problem.json", "--solver", "dp"),
        PYTHONPATH=os.pathsep.join((named, str(ROOT))),
    )
    assert done.returncode == 0, done.stderr
    assert traces(tmp_path) == []


def test_what_the_user_named_stays(monkeypatch, tmp_path):
    """An absolute path is no accident, also that of the working directory."""
    monkeypatch.chdir(tmp_path)
    here, other = str(tmp_path), str(tmp_path / "lib")
    monkeypatch.setattr(sys, "path", ["", ".", here, "lib"])
    assert search_path() == [here, other]
    monkeypatch.setattr(sys, "path", [here, other, here])
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((".", here, other)))
    ignore_working_directory()
    assert sys.path == [other, here]
    assert os.environ["PYTHONPATH"] == os.pathsep.join((here, other))


def test_no_command_is_handed_the_safe_path(monkeypatch) -> None:
    """Planners of others start as the user starts them."""
    for value, left in (("nest", None), ("1", "1")):
        monkeypatch.setenv("PYTHONSAFEPATH", value)
        leave_safe_environment()
        assert os.environ.get("PYTHONSAFEPATH") == left


def test_no_module_answers_for_the_checker(monkeypatch, tmp_path) -> None:
    """Not even one that prints the very line, wherever it is found."""
    known = best_known(NAME)
    assert known.plan is not None
    forged = certify(store.load(NAME), known.plan)
    forged["lower_bound_quanta"] += 1
    forged["step_time_quanta"] += 1
    forged["seal"] = documents.digest(forged)
    value = forged["step_time_quanta"]
    line = f"verified: optimal, step time {value} quanta, lower bound {value}"
    for name in ("json", "fractions", "hashlib", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(
            f"import os\nos.write(1, {line.encode()!r})\nos._exit(0)\n"
        )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(NestError, match="expected a certificate for"):
        with_certificate({}, NAME, json.dumps(forged).encode(), "c.json")


def test_a_checker_that_only_ends_well_verifies_nothing(monkeypatch) -> None:
    """What counts is what it prints: the claim of this very certificate."""
    known = best_known(NAME)
    assert known.plan is not None
    found = certify(store.load(NAME), known.plan)
    forged = found | {"lower_bound_quanta": found["lower_bound_quanta"] - 1}
    true = f"step time {found['step_time_quanta']} quanta"
    for said in ("", "verified", f"verified: optimal, {true}"):
        monkeypatch.setattr("bench.instance_updates._CHECK", ("-c", f"print({said!r})"))
        for claim in (found, forged):
            with pytest.raises(NestError, match="expected a certificate for"):
                with_certificate({}, NAME, json.dumps(claim).encode(), "c.json")
