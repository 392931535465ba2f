"""Problems with known answers that contracts are checked on.

Some are small enough for plain enumeration: ``bench/conform.py`` solved them
with ``brute`` and ``dp`` and stored the optima. Where plans order their passes,
the enumerators of the tests stand in for ``brute``. The others are closed instances
of the library.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from typing import NamedTuple

from nest import instances
from nest.errors import InvalidProblemError
from nest.ir.base import FileStruct, Size, Struct
from nest.ir.io import decode, problem_hash, read_problem
from nest.ir.plan import Plan
from nest.ir.problem import Problem

#: Those of ``nest/conform/data``.
OWN = (
    *("dag", "mixed", "per-layer", "artifact", "tight-bound", "half-quanta"),
    *("any-order", "schedules"),
)

#: Instances: one where memory binds, one where nothing fits.
CLOSED = ("gpt2-large-a10gx2", "llama2-7b-a100-40gbx2")

#: Large enough to reach a limit of a few seconds; its optimum is known too.
LARGE = "llama3-8b-tpu-v5px256"


class Optimum(Struct, frozen=True, kw_only=True):
    """What is stored of one of :data:`OWN`."""

    problem_hash: str
    value_quanta: Size
    plan: Plan


class Optima(FileStruct, frozen=True, kw_only=True, tag="nest-conform-optima/1"):
    """The optima of :data:`OWN` by name."""

    solvers: tuple[str, ...]
    optima: dict[str, Optimum]


class Reference(NamedTuple):
    """A problem and its proven answer."""

    name: str
    problem: Problem
    #: The least step time and a plan that has it; ``None`` if it is proven that no plan
    #: fits.
    optimum_quanta: int | None
    plan: Plan | None


def references() -> tuple[Reference, ...]:
    """Return the problems that every solver is run on."""
    return (*(_own(name) for name in OWN), *(_closed(name) for name in CLOSED))


def large() -> Reference:
    """Return the problem that limits are checked on."""
    return _closed(LARGE)


def own_problem(name: str) -> Problem:
    """Return a problem of :data:`OWN`."""
    with as_file(files("nest.conform") / "data" / f"{name}.yaml") as path:
        return read_problem(path)


def _own(name: str) -> Reference:
    stored = files("nest.conform") / "data" / "optima.json"
    optimum = decode(
        stored.read_bytes(), str(stored), Optima, "list of optima", InvalidProblemError
    ).optima[name]
    problem = own_problem(name)
    if problem_hash(problem) != optimum.problem_hash:
        raise InvalidProblemError(
            f"{name}.yaml: expected the problem with hash "
            f"{optimum.problem_hash[:12]}, whose optimum is stored, got "
            f"another; reinstall the package, or run bench/conform.py"
        )
    return Reference(problem.name, problem, optimum.value_quanta, optimum.plan)


def _closed(name: str) -> Reference:
    record = instances.best_known(name)
    return Reference(name, instances.problem(name), record.value_quanta, record.plan)
