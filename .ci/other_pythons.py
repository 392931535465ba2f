"""Run bench/identity.py on every other Python of this machine.

Hashes, optima and agreement must not depend on the version of Python. Run by
``.ci/run`` with the Python of the environment. For every minor version from
3.11 to 3.15 but its own, the first interpreter that starts, on the PATH or
among pyenv's, gets a throw-away environment with the runtime dependencies of
``requirements.lock``. A version that is not there, or for which these cannot
be installed, is skipped with the reason; a failure of the script is one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path("bench", "identity.py")
MINORS = range(11, 16)
DISTRIBUTION = "nest-planner"


def main() -> int:
    """Return the exit status: 1 if the script fails on any version."""
    if not (ROOT / SCRIPT).is_file():
        print(
            f"other Pythons: expected {SCRIPT}, got no such file; restore it",
            file=sys.stderr,
        )
        return 1
    own = sys.version_info.minor
    failed = []
    for minor in MINORS:
        if minor != own:
            began = time.monotonic()
            outcome = run_on(minor)
            wall_s = time.monotonic() - began
            print(f"Python 3.{minor}: {outcome} ({wall_s:.0f} s)", flush=True)
            if outcome == "failed":
                failed.append(minor)
    return 1 if failed else 0


def run_on(minor: int) -> str:
    """Return what came of one version, in words."""
    python = next(filter(starts, candidates(minor)), None)
    if python is None:
        return "skipped, none on the PATH or in pyenv"
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "runtime.lock")
        lock.write_text(runtime_lock(), encoding="utf-8")
        new = Path(folder, "environment", "bin", "python")
        install = "-m pip install -qq --disable-pip-version-check"
        checked = "--only-binary :all: --require-hashes -r"
        for command in (
            [python, "-m", "venv", new.parents[1]],
            [new, *install.split(), *checked.split(), lock],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                lines = (done.stderr or done.stdout).strip().splitlines()
                return f"skipped, {' '.join(lines[-2:]) or 'no venv module'}"
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([new, SCRIPT], cwd=ROOT, env=environment)
    return "failed" if done.returncode else "passed"


def candidates(minor: int) -> Iterator[Path]:
    """Yield the interpreters of a version, those on the PATH first."""
    name = f"python3.{minor}"
    for folder in os.get_exec_path():
        yield Path(folder, name)
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    yield from sorted(versions.glob(f"*/bin/{name}"), reverse=True)


def starts(python: Path) -> bool:
    """Whether it runs; pyenv's shims of versions not chosen do not."""
    try:
        done = subprocess.run([python, "-c", ""], capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def runtime_lock() -> str:
    """Return the part of the lock without tools and extras."""
    names = runtime_names()
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    entries = re.split(r"(?m)^(?=[a-z])", text)
    return "".join(entry for entry in entries if entry.partition("==")[0] in names)


def runtime_names() -> set[str]:
    """Return what the project needs, directly or not, on any platform."""
    found: set[str] = set()
    open_names = [DISTRIBUTION]
    while open_names:
        try:
            lines = metadata.requires(open_names.pop()) or []
        except metadata.PackageNotFoundError:  # of another platform
            continue
        for requirement in map(Requirement, lines):
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            optional = "extra" in str(requirement.marker)
            if not optional and name not in found:
                found.add(name)
                open_names.append(name)
    return found


if __name__ == "__main__":
    sys.exit(main())
