"""What a benchmark runs: problems × solvers × seeds, and keys of its cells."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import product
from typing import Annotated, Any

import msgspec

from nest.ir.base import AnyText, Count, FileStruct, Size, Struct, any_text
from nest.solvers.base import SolveOptions


class BenchCell(Struct, frozen=True, kw_only=True):
    """One cell: a problem, a solver, and all that its answer depends on.

    Options are as in :class:`~nest.solvers.base.SolveOptions`; ``planner`` is what the
    registry has of a planner that is a command.
    """

    problem_hash: str
    solver: str
    seed: Size = 0
    time_limit_s: float | None = None
    gap: float = 0.0
    num_workers: Count = 1
    repair: bool = False
    extra: dict[str, str] = {}
    planner: AnyText = ""
    version: str

    @property
    def key(self) -> str:
        """What the cell is called: equal only for equal cells."""
        canonical = json.dumps(
            msgspec.to_builtins(self), sort_keys=True, separators=(",", ":")
        )
        return hashlib.sha256(canonical.encode()).hexdigest()[:32]

    @property
    def options(self) -> SolveOptions:
        """The options of the solver."""
        names = ("time_limit_s", "gap", "num_workers", "seed", "repair", "extra")
        return SolveOptions(**{name: getattr(self, name) for name in names})


class Entry(Struct, frozen=True, kw_only=True):
    """A problem of a run.

    ``best_quanta`` is the step time of the best plan known before the run, ``axes``
    says where it stands in the grid of a sweep.
    """

    name: str
    hash: str
    source: str
    best_quanta: int | None = None
    axes: dict[str, str | int | float] = {}


class BenchmarkSpec(FileStruct, frozen=True, kw_only=True, tag="nest-bench-run/1"):
    """All that a run shall do; the manifest of its directory."""

    title: str
    #: There is a cell for each of their combinations.
    problems: tuple[Entry, ...]
    solvers: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    time_limit_s: float | None = None
    gap: float = 0.0
    repair: bool = False
    #: Workers and own options by solver.
    workers: dict[str, int] = {}
    extra: dict[str, dict[str, str]] = {}
    #: What the registry has of solvers that are commands, by name.
    planners: dict[str, AnyText] = {}
    #: What else reports must say, such as what restricts plans.
    notes: tuple[str, ...] = ()
    #: Of the project and of what answers may depend on.
    versions: dict[str, str | None] = {}

    def cells(self) -> Iterator[tuple[Entry, BenchCell]]:
        """Yield all cells in the order of reports."""
        for entry, solver, seed in product(self.problems, self.solvers, self.seeds):
            cell = BenchCell(
                problem_hash=entry.hash,
                solver=solver,
                seed=seed,
                time_limit_s=self.time_limit_s,
                gap=self.gap,
                num_workers=self.workers.get(solver, 1),
                repair=self.repair,
                extra=self.extra.get(solver, {}),
                planner=self.planners.get(solver, ""),
                version=self.versions.get("nest") or "unknown",
            )
            yield entry, cell

    @property
    def most_workers(self) -> int:
        """The most workers that a solver has."""
        return max(self.workers.values(), default=1)

    @property
    def size(self) -> int:
        """How many cells it has."""
        return len(self.problems) * len(self.solvers) * len(self.seeds)


class TracePoint(Struct, frozen=True, kw_only=True):
    """What a solver had after so many seconds.

    It has the step time of its best plan so far, by the shared cost model, and its
    greatest lower bound so far.
    """

    wall_s: float
    step_quanta: int | None = None
    bound_quanta: int | None = None


class Finished(FileStruct, frozen=True, kw_only=True, tag="nest-bench-cell/1"):
    """A finished cell: its answer, how it came about, and where.

    ``result`` is the cell of a ``nest-compare/1`` document, ``trace`` plans and bounds
    over time; the last point is the answer.
    """

    key: str
    cell: BenchCell
    result: Annotated[dict[str, Any], any_text]
    trace: tuple[TracePoint, ...] = ()
    machine: dict[str, str | int] = {}

    @property
    def killed(self) -> str:
        """How a signal ended its process; empty if none did."""
        extra = self.result.get("extra")
        return str(extra.get("killed", "")) if isinstance(extra, dict) else ""
