"""Tasks of a search: what they are called, run by, and stored as.

A task is one model on one architecture. What it came to is a file named by
all that it depends on, so that a search that is begun again, or another one
about the same points, finds it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from functools import cached_property, lru_cache
from pathlib import Path

import msgspec

from nest.accelerators.architecture import Architecture
from nest.accelerators.evaluate import Solved, solve_point, solve_together
from nest.accelerators.layers import execution_of, layer_works
from nest.accelerators.problem import base_problem
from nest.accelerators.systolic import Convention
from nest.accelerators.workload import Workload
from nest.errors import NestError
from nest.ir.base import FileStruct, Struct
from nest.ir.io import decode, encode, read_bytes
from nest.models.architectures import Architecture as Model
from nest.models.choices import Request
from nest.solvers.base import OutOfTimeError
from nest.tasks.folder import not_writable, taken
from nest.util.files import half_written, write_atomically
from nest.util.versions import nest_version

#: The file that says what a directory is.
MANIFEST = "codesign.json"


class WorkloadSetting(Struct, frozen=True, kw_only=True):
    """All that the step time of a model depends on except the architecture.

    It has the model, not its name alone: a file may have become another one. For
    ``convention`` and ``attention`` see :class:`~nest.accelerators.spec.Spec`.
    """

    model: Model
    num_devices: int
    devices_per_node: int
    job: Request
    convention: Convention = "in-use"
    attention: str = "unfused"
    link_latency_ns: int = 0
    network_latency_ns: int = 0

    def __hash__(self) -> int:
        """Return a hash: jobs may have fields that have none."""
        return hash(repr(self))


class Task(Struct, frozen=True, kw_only=True, dict=True):
    """A model to solve on an architecture, or on several together."""

    setting: WorkloadSetting
    architecture: Architecture
    #: The longest step that matters.
    target_quanta: int
    #: What passes take at least on several points, whose memory and rates the
    #: architecture has; empty for one point, which has its own.
    entries: tuple[int, ...] = ()
    #: The ``(R, B)`` with which a plan can be so fast; none for all.
    splits: tuple[tuple[int, int], ...] = ()
    version: str
    limit_s: float | None = None

    @cached_property
    def key(self) -> str:
        """The name of the task: equal only for equal questions.

        Of one point neither the target nor the splits are part of it, as what
        is known of it only grows. Of several both are: which splits are left
        depends on the target, and those that are not looked at are ruled out
        for these points only, not for others that are as fast together.
        """
        question = (self.target_quanta, self.splits) if self.entries else None
        # All fields, in their order; what is encoded leaves out defaults.
        fields = self.setting, self.architecture, self.entries, question, self.version
        about = repr(fields)
        return hashlib.sha256(about.encode()).hexdigest()[:32]


@lru_cache(maxsize=64)
def workload_of(setting: WorkloadSetting) -> Workload:
    """Return the workload of a setting.

    Raises ``NestError`` if the model is asked for what there is not.
    """
    model = setting.model
    execution = execution_of("fused" if setting.attention == "fused" else "unfused")
    base = base_problem(
        model,
        setting.num_devices,
        setting.devices_per_node,
        setting.job,
        execution=execution,
        link_latency_ns=setting.link_latency_ns,
        network_latency_ns=setting.network_latency_ns,
    )
    works = layer_works(model, base.choices, execution)
    return Workload(model.name, base.problem, works, setting.convention)


def run_task(task: Task) -> bytes:
    """Run a task and return what it came to, :class:`Solved` in JSON."""
    if task.version != nest_version():
        raise NestError(
            f"worker: expected nest {task.version}, as where the search "
            f"began, got {nest_version()}; install the same version everywhere"
        )
    workload = workload_of(task.setting)
    limits = (task.splits, task.target_quanta, task.key, task.limit_s)
    try:
        if task.entries:
            solved = solve_together(workload, task.architecture, task.entries, *limits)
        else:
            solved = solve_point(workload, task.architecture, *limits)
    except OutOfTimeError:
        solved = Solved(key=task.key, lower_quanta=0, exact=False, out_of_time=True)
    return msgspec.json.encode(solved)


def died(task: Task, text: str) -> bytes:
    """Refuse to go on without a task that ended its process."""
    raise NestError(
        f"{task.setting.model.name} on point {task.architecture}: expected an answer, "
        f"got none as {text}; what is finished is kept, go on with --resume"
    )


class Manifest(FileStruct, frozen=True, kw_only=True, tag="nest-codesign-run/1"):
    """The description of a directory of answers."""

    version: str


class Store:
    """Results of tasks, in memory and in a directory if there is one.

    ``path`` is the directory, see :func:`open_store`; ``None`` keeps nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.solved: dict[str, Solved] = {}
        self.complaints: list[str] = []
        self.found = self.evaluated = 0
        for file in sorted((path / "points").iterdir()) if path else ():
            self._load(file)

    def _load(self, file: Path) -> None:
        if half_written(file):
            return
        try:
            data = read_bytes(file, NestError, "solved point")
            solved = decode(data, str(file), Solved, "solved point", NestError)
            if solved.key != file.stem:
                raise NestError(
                    f"{file}: expected the point of its name, got another; "
                    f"restore or remove the file"
                )
        except NestError as error:
            self.complaints.append(f"{error}; it counts as not solved")
        else:
            self.solved[solved.key] = solved
            self.found += 1

    def keep(self, data: bytes) -> Solved:
        """Store what a task came to, unless its time ran out."""
        solved = msgspec.json.decode(data, type=Solved)
        if solved.out_of_time:
            return solved
        if self.path is not None:
            file = self.path / "points" / f"{solved.key}.json"
            write_atomically(file, encode(solved), durable=True)
        self.solved[solved.key] = solved
        self.evaluated += 1
        return solved


@contextlib.contextmanager
def open_store(folder: str | Path | None, resume: bool) -> Iterator[Store]:
    """Open the directory of a search, for nobody else at the same time.

    ``folder`` is made if there is none; ``None`` keeps answers in memory alone. With
    ``resume`` a search that began there may go on.

    Raises ``NestError`` if somebody else works in the directory, it holds something
    else or was written by another version, or it cannot be written.
    """
    if folder is None:
        yield Store(None)
        return
    path = Path(folder)
    _check_folder(path, resume)
    try:
        (path / "points").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise not_writable(path, error) from None
    with taken(path):
        manifest = Manifest(version=nest_version())
        write_atomically(path / MANIFEST, encode(manifest), durable=True)
        yield Store(path)


def _check_folder(path: Path, resume: bool) -> None:
    """Refuse a directory before anything is written into it."""
    if path.exists() and not path.is_dir():
        raise NestError(
            f"-o {path}: expected a directory, got a file; choose another path"
        )
    names = {file.name for file in path.iterdir()} if path.exists() else set()
    if MANIFEST not in names:
        if other_names := names - {"lock", "points"}:
            raise NestError(
                f"-o {path}: expected a new or empty directory, got one with "
                f"other files in it ({min(other_names)}); choose another path"
            )
        return
    if not resume:
        raise NestError(
            f"-o {path}: expected a new or empty directory, got that of a "
            f"search; add --resume to go on with it, or choose another path"
        )
    where = path / MANIFEST
    data = read_bytes(where, NestError, "search")
    before = decode(data, str(where), Manifest, "search", NestError)
    if before.version != nest_version():
        raise NestError(
            f"-o {path}: expected nest {before.version}, with which the "
            f"search began, got {nest_version()}; choose another path"
        )
