"""The registry: names, lazy imports, and reasons."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nest.errors import InvalidOptionError, SolverNotInstalledError, UnknownSolverError
from nest.solvers import registry
from tests.loopback import TARGET, Loopback


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    for name in ("loopback", "broken", "engine"):
        registry.unregister_solver(name)
    registry._plugins.cache_clear()


def test_built_in_names_come_first() -> None:
    assert registry.solver_names()[:4] == ["brute", "dp", "cpsat", "milp"]


def test_registered_solver_is_found() -> None:
    registry.register_solver("loopback", TARGET)
    assert "loopback" in registry.solver_names()
    assert registry.get_solver("loopback") is Loopback
    assert registry.availability("loopback") is None
    assert registry.solver_version("loopback") is None
    registry.unregister_solver("loopback")
    assert "loopback" not in registry.solver_names()


def test_unknown_name_is_corrected() -> None:
    with pytest.raises(
        UnknownSolverError,
        match=r"expected one of .*brute.*; got 'cpsta'; did you mean 'cpsat'",
    ):
        registry.get_solver("cpsta")
    with pytest.raises(UnknownSolverError, match="choose one of them"):
        registry.availability("zzzzzz")


def test_built_in_name_cannot_be_taken() -> None:
    with pytest.raises(
        InvalidOptionError, match="'dp': expected a new name, got that of"
    ):
        registry.register_solver("dp", TARGET)


@pytest.mark.parametrize(
    ("name", "target", "text"),
    [
        ("Loop", TARGET, "expected a name of lower-case letters"),
        ("loopback", "tests.loopback", "expected a target 'module:Class'"),
        ("loopback", "tests/x:Y", "expected a target 'module:Class'"),
    ],
)
def test_malformed_registration(name: str, target: str, text: str) -> None:
    with pytest.raises(InvalidOptionError, match=text):
        registry.register_solver(name, target)


def test_missing_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    registry.register_solver("engine", "tests.loopback:NeedsEngine")
    with pytest.raises(
        SolverNotInstalledError,
        match=r"'engine': expected package 'no_such_engine.api', got none; "
        r"install it with: pip install no_such_engine.api$",
    ):
        registry.get_solver("engine")
    monkeypatch.setitem(registry._BUILT_IN, "engine", "tests.loopback:NeedsEngine")
    assert registry.availability("engine") == (
        "expected package 'no_such_engine.api', got none; "
        "install it with: pip install 'nest-planner[engine]'"
    )


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("no_such_module:X", "got ModuleNotFoundError: No module named"),
        ("tests.loopback:Missing", "got AttributeError"),
        (
            "tests.loopback:NOT_A_SOLVER",
            "got TypeError: tests.loopback:NOT_A_SOLVER: expected a class "
            "with 'capabilities' and 'solve'",
        ),
    ],
)
def test_broken_solver_is_not_installed(target: str, text: str) -> None:
    registry.register_solver("broken", target)
    with pytest.raises(SolverNotInstalledError, match=text):
        registry.get_solver("broken")
    reason = registry.availability("broken")
    assert reason is not None
    assert reason.endswith("reinstall the package that provides it")


def test_entry_points(monkeypatch: pytest.MonkeyPatch) -> None:
    dist = SimpleNamespace(name="their-planner", version="1.2")
    points = [
        SimpleNamespace(name=name, value=value, dist=dist)
        for name, value in (
            ("theirs", TARGET),
            ("theirs", "zzz:Other"),
            ("dp", "evil:Solver"),
            ("Bad", "a:B"),
        )
    ]

    def entry_points(group: str) -> list[SimpleNamespace]:
        assert group == "nest.solvers"
        return points

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    registry._plugins.cache_clear()
    assert "theirs" in registry.solver_names()
    assert registry.get_solver("theirs") is Loopback
    assert registry.solver_version("theirs") == "their-planner 1.2"
    assert registry.solver_target("dp") == "nest.search.solver:DpSolver"
    ignored = registry.ignored_plugins()
    assert ignored["dp of their-planner"] == "a built-in solver has this name"
    assert "has this name too" in ignored["theirs of their-planner"]
    assert "lower-case" in ignored["Bad of their-planner"]
    with pytest.raises(InvalidOptionError, match="expected a new name"):
        registry.register_solver("theirs", TARGET)


def test_listing_imports_no_engine() -> None:
    code = (
        "import sys\n"
        "from nest.solvers.registry import availability, solver_names\n"
        "for name in solver_names(): availability(name)\n"
        "bad = {'ortools', 'pulp', 'highspy'} & set(sys.modules)\n"
        "sys.exit(', '.join(bad) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_import_that_hangs_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As long as is allowed; again only for who allows more."""
    (tmp_path / "sleepy.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "_tried", {})
    began: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen

    def popen(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        began.append(start(*arguments, **options))
        return began[-1]

    monkeypatch.setattr(subprocess, "Popen", popen)
    for limit_s in (0.01, None, 0.01, 0.001):
        assert registry.import_trouble("sleepy:Solver", limit_s) == (
            "importing sleepy:Solver took more than 0.01 s; allow more time, "
            "or mend the package that provides it"
        )
    assert len(began) == 1
    monkeypatch.setattr(registry, "IMPORT_S", 0.02)
    for _ in range(2):
        why = registry.import_trouble("sleepy:Solver", 600)
        assert why is not None
        assert "took more than 0.02 s" in why
    assert len(began) == 2
    assert all(process.returncode == -signal.SIGKILL for process in began)
