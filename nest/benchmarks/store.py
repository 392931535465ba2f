"""The directory of a run: its manifest, its problems, a file per cell.

Cells are written whole or not at all, under a name that only equal cells
have. What is finished stays finished, whatever happens to the run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from nest.benchmarks.cells import BenchCell, BenchmarkSpec, Finished
from nest.benchmarks.instances import Instance
from nest.errors import InvalidProblemError, NestError
from nest.ir.io import decode, encode, problem_hash, read_bytes, read_problem
from nest.ir.problem import Problem
from nest.tasks.folder import LOCK, not_writable, taken
from nest.util.files import half_written, write_atomically
from nest.util.versions import versions

MANIFEST = "run.json"


@dataclass
class RunFolder:
    """A run on the disk.

    Problems are by hash, answers of finished cells by key; there is a complaint, a
    line, for every file that was found broken.
    """

    path: Path
    run: BenchmarkSpec
    problems: Mapping[str, Problem]
    finished: dict[str, Finished] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        cells = {cell.key: cell for _, cell in self.run.cells()}
        for path in sorted((self.path / "cells").iterdir()):
            if half_written(path) or path.stem not in cells:
                continue
            try:
                data = read_bytes(path, NestError, "finished cell")
                stored = decode(data, str(path), Finished, "finished cell", NestError)
                if stored.key != path.stem or stored.cell != cells[path.stem]:
                    raise NestError(
                        f"{path}: expected the cell of its name, got another; "
                        f"restore or remove the file"
                    )
                if stored.killed:
                    raise NestError(
                        f"{path}: expected an answer, got none as {stored.killed}"
                    )
            except NestError as error:
                self.complaints.append(f"{error}; the cell counts as not run")
            else:
                self.finished[path.stem] = stored

    def missing(self) -> list[BenchCell]:
        """Return the cells that are not finished, in the order of reports."""
        return [cell for _, cell in self.run.cells() if cell.key not in self.finished]

    def keep(self, data: bytes) -> Finished:
        """Store the answer of a cell.

        Raises ``NestError`` if it cannot be written; what is finished stays so.
        """
        finished = msgspec.json.decode(data, type=Finished)
        path = self.path / "cells" / f"{finished.key}.json"
        write_atomically(path, encode(finished), durable=True)
        self.finished[finished.key] = finished
        return finished

    def forget(self, key: str, why: str) -> None:
        """Take a cell for unfinished, whose file says what cannot be."""
        del self.finished[key]
        path = self.path / "cells" / f"{key}.json"
        self.complaints.append(f"{path}: {why}; the cell counts as not run")

    def write(self, name: str, data: bytes) -> None:
        """Write a file of the report."""
        write_atomically(self.path / name, data, durable=True)


@contextlib.contextmanager
def open_run(
    folder: str | Path,
    run: BenchmarkSpec | None,
    instances: Sequence[Instance],
    resume: bool,
) -> Iterator[RunFolder]:
    """Open the directory of a run, for nobody else at the same time.

    It is made if there is none. A ``run`` or ``instances`` of ``None`` is taken from
    it, and with ``resume`` a run that began there may go on.

    Raises ``NestError`` if somebody else works in the directory, it holds another run
    or other files, or cannot be written. Of a run that this ends before its first cell
    nothing stays.
    """
    path = Path(folder)
    _check_folder(path, run, resume)
    new = [each for each in (path, *path.parents) if not each.exists()]
    try:
        (path / "cells").mkdir(parents=True, exist_ok=True)
        (path / "problems").mkdir(exist_ok=True)
    except OSError as error:
        raise not_writable(path, error) from None
    with taken(path):
        # Under the lock: until then another run may have written it.
        begun_here = not (path / MANIFEST).exists()
        try:
            run = _agreed(path, run, resume)
            for instance in instances:
                file = path / "problems" / f"{instance.hash}.json"
                write_atomically(file, encode(instance.problem), durable=True)
            write_atomically(path / MANIFEST, encode(run), durable=True)
            yield RunFolder(path, run, dict(_problems(path, run)))
        except NestError:
            if begun_here:
                _clear(path, instances, new)
            raise


def _clear(path: Path, instances: Sequence[Instance], new: Sequence[Path]) -> None:
    """Remove what a run made that was refused before its first cell."""
    with contextlib.suppress(OSError):  # why it is refused matters more
        if any((path / "cells").iterdir()):
            return
        (path / MANIFEST).unlink(missing_ok=True)
        for instance in instances:
            file = path / "problems" / f"{instance.hash}.json"
            file.unlink(missing_ok=True)
        for folder in (path / "problems", path / "cells"):
            folder.rmdir()
        (path / LOCK).unlink()
        for folder in new:
            folder.rmdir()


def _check_folder(path: Path, run: BenchmarkSpec | None, resume: bool) -> None:
    """Refuse a directory before anything is written into it."""
    if path.exists() and not path.is_dir():
        raise NestError(
            f"-o {path}: expected a directory, got a file; choose another path"
        )
    names = {file.name for file in path.iterdir()} if path.exists() else set()
    if resume and run is None and MANIFEST not in names:
        raise NestError(
            f"-o {path}: expected the directory of a run to resume, got one "
            f"without {MANIFEST}; name SET to begin one"
        )
    if MANIFEST not in names and names - {LOCK, "cells", "problems"}:
        raise NestError(
            f"-o {path}: expected a new or empty directory, got one with "
            f"other files in it ({min(names)}); choose another path"
        )


def begun(folder: str | Path | None) -> BenchmarkSpec | None:
    """Return the run that began in a directory, if there is one to read."""
    if folder is None:
        return None
    try:
        return _manifest(Path(folder))
    except NestError:
        return None


def _manifest(path: Path) -> BenchmarkSpec:
    data = read_bytes(path / MANIFEST, NestError, "run")
    return decode(data, str(path / MANIFEST), BenchmarkSpec, "run", NestError)


def _agreed(path: Path, run: BenchmarkSpec | None, resume: bool) -> BenchmarkSpec:
    """Return what the directory and the request both say."""
    manifest = path / MANIFEST
    if not manifest.exists():
        assert run is not None
        return run
    if not resume:
        raise NestError(
            f"-o {path}: expected a new or empty directory, got that of a "
            f"run; add --resume to go on with it, or choose another path"
        )
    try:
        before = _manifest(path)
    except NestError as error:
        if run is not None:  # finished cells are found by what they are
            return run
        raise NestError(
            f"{error}; name SET and the options of the run again, which "
            f"keeps its finished cells"
        ) from None
    if run is None:
        return _same_versions(path, before)
    for name in BenchmarkSpec.__struct_fields__:
        old, new = getattr(before, name), getattr(run, name)
        if old != new and name != "versions":
            what = "set of problems" if name == "title" else name
            raise NestError(
                f"-o {path}: expected the {what.replace('_', ' ')} of the "
                f"run that began there, got others; leave out SET and "
                f"options to go on with it, or choose another path"
            )
    return _same_versions(path, before)


def _same_versions(path: Path, run: BenchmarkSpec) -> BenchmarkSpec:
    """Refuse to go on with a run where answers may be others."""
    for name, now in versions().items():
        before = run.versions.get(name)
        if before != now:
            raise NestError(
                f"-o {path}: expected {name} {before or 'not installed'}, "
                f"with which the run began, got {now or 'none'}; restore it, "
                f"or begin a run in another directory"
            )
    return run


def _problems(path: Path, run: BenchmarkSpec) -> Iterator[tuple[str, Problem]]:
    remedy = "name SET and the options of the run again, which writes it anew"
    for entry in run.problems:
        file = path / "problems" / f"{entry.hash}.json"
        try:
            problem = read_problem(file)
        except InvalidProblemError as error:
            raise InvalidProblemError(f"{error}; {remedy}") from None
        computed = problem_hash(problem)
        if computed != entry.hash:
            raise InvalidProblemError(
                f"{file}: expected the problem with the hash of its name, "
                f"got {computed}; {remedy}"
            )
        yield entry.hash, problem
