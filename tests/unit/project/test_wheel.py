"""The wheel: what it ships, and that it works where it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = {"nest", "formulations", "baselines"}


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
    run(*build, "-d", folder, cwd=ROOT)
    (path,) = folder.glob("*.whl")
    return path


def test_it_ships_three_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    tops = {name.partition("/")[0] for name in names}
    metadata = {top for top in tops if top.endswith(".dist-info")}
    assert len(metadata) == 1
    assert tops - metadata == PACKAGES
    assert {f"{name}/py.typed" for name in PACKAGES} <= set(names)


def test_it_ships_every_file_of_them(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert path.relative_to(ROOT).as_posix() in names


def test_it_compares_solvers_where_it_is_installed(wheel: Path, tmp_path: Path) -> None:
    """In an environment of its own; the dependencies are those of this one."""
    home = tmp_path / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    python = home / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python]
    run(*pip, "install", "--quiet", "--no-index", "--no-deps", wheel, cwd=tmp_path)
    # Not the working tree: files named *.pth do not count on this path.
    paths = {"PYTHONPATH": sysconfig.get_path("purelib")}
    code = "import nest; print(nest.__file__)"
    place = run(python, "-c", code, cwd=tmp_path, **paths)
    assert Path(place.strip()).is_relative_to(home)
    table = run(
        home / "bin" / "nest",
        *("compare", "llama2-7b-8", "--solvers", "dp,alpa"),
        cwd=tmp_path,
        **paths,
    )
    assert "optimal" in table
    assert "fastest" in table
