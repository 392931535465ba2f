"""The step of CI that goes through the other versions of Python."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def step() -> Any:
    path = ROOT / ".ci" / "other_pythons.py"
    spec = importlib.util.spec_from_file_location("other_pythons", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_runtime_lock_has_what_nest_imports_and_no_tools(step: Any):
    lock = step.runtime_lock()
    names = set(re.findall(r"(?m)^([a-z0-9-]+)==", lock))
    assert {"click", "msgspec", "networkx", "numpy", "ortools"} <= names
    # Of ortools, of rich, of pandas, which is of ortools.
    assert {"protobuf", "pygments", "python-dateutil"} <= names
    assert not names & {"pytest", "ruff", "mypy", "matplotlib"}
    assert lock.count("==") <= lock.count("--hash=")


def test_an_interpreter_that_does_not_start_is_passed_over(step: Any, tmp_path: Path):
    """As pyenv's stand-ins for versions that are not chosen."""
    broken = tmp_path / "python3.13"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    assert not step.starts(broken)
    assert not step.starts(tmp_path / "python3.14")


def test_interpreters_are_sought_on_the_path_and_in_pyenv(
    step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    versions = tmp_path / "pyenv" / "versions"
    for name in ("3.12.1", "3.12.2"):
        (versions / name / "bin").mkdir(parents=True)
        (versions / name / "bin" / "python3.12").touch()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert list(step.candidates(12)) == [
        tmp_path / "bin" / "python3.12",
        versions / "3.12.2" / "bin" / "python3.12",
        versions / "3.12.1" / "bin" / "python3.12",
    ]


def test_a_version_that_is_nowhere_is_skipped(
    step: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert step.run_on(14) == "skipped, none on the PATH or in pyenv"


def test_a_missing_script_is_a_failure(
    step: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setattr(step, "ROOT", tmp_path)
    assert step.main() == 1
    assert capsys.readouterr().err == (
        "other Pythons: expected bench/identity.py, got no such file; restore it\n"
    )
