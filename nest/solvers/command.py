"""Planners that are commands: a problem file in, a plan file out.

A description file names the command; the planner may be written in any language. It
runs in a directory of its own, in the process group of its cell, and is stopped at the
time limit. What it hands in is a claim like that of any other solver.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from nest import errors
from nest.ir.base import AnyText, FileStruct, Size
from nest.ir.io import decode, read_bytes, write
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import (
    COMMAND,
    EXTENSIONS,
    Capabilities,
    Limit,
    Report,
    SolveOptions,
    SolverOutput,
    Status,
    ignore_progress,
)

#: Endings of the names of description files.
SUFFIXES = (".yaml", ".yml", ".json")

#: What may stand in a command, in braces.
PLACEHOLDERS = (
    *("problem", "plan", "time_limit_s", "seed", "workers", "gap"),
    *("warm_start", "here"),
)
_PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")

#: How much of what a command printed is kept.
_LOG_BYTES = 4000


class Planner(FileStruct, frozen=True, kw_only=True, tag="nest-planner/1"):
    """The description of a planner that is a command, and what it promises.

    The command is a list of words, or one text that is split as a shell would; no shell
    runs it. :data:`PLACEHOLDERS` in braces stand for values. ``method`` is one line for
    people, ``version`` what reports say of it; for the other fields see
    :class:`~nest.solvers.base.Capabilities`.
    """

    name: str
    command: AnyText | tuple[AnyText, ...]
    method: str = "a command"
    version: str | None = None
    exact: bool = False
    overruns: bool = False
    any_schedule: bool = False
    searches: tuple[str, ...] = ()
    deterministic: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        used = {*_PLACEHOLDER.findall(" ".join(self.words))}
        unknown = sorted(used - {*PLACEHOLDERS})
        if unknown:
            raise ValueError(
                f"command: expected placeholders out of {', '.join(PLACEHOLDERS)}, got "
                f"{{{unknown[0]}}}; correct it, or put the program into a file"
            )
        for name in ("problem", "plan"):
            if name not in used:
                raise ValueError(
                    f"command: expected {{{name}}} in it, got none; add it"
                )
        for name in self.searches:
            if name not in EXTENSIONS:
                raise ValueError(
                    f"searches: expected some of {', '.join(EXTENSIONS)}, "
                    f"got {name!r}; correct it"
                )

    @property
    def words(self) -> tuple[str, ...]:
        """The words of the command, with placeholders."""
        if not isinstance(self.command, str):
            return self.command
        try:
            return tuple(shlex.split(self.command))
        except ValueError as error:
            raise ValueError(
                f"command: expected words with closed quotes, got {error}; correct it"
            ) from None

    def takes(self, placeholder: str) -> bool:
        """Whether the command is told a value."""
        return any(f"{{{placeholder}}}" in word for word in self.words)

    @property
    def capabilities(self) -> Capabilities:
        """What it promises."""
        return Capabilities(
            exact=self.exact,
            method=self.method,
            overruns=self.overruns,
            any_schedule=self.any_schedule,
            searches=frozenset(self.searches),
            warm_start=self.takes("warm_start"),
            parallel=self.takes("workers"),
            deterministic=self.deterministic,
        )


class Answer(FileStruct, frozen=True, kw_only=True, tag="nest-answer/1"):
    """What a command may write in place of a plan: a plan with claims.

    The status is what it says is proven; ``unsupported`` if it cannot search the
    problem, with the reason as ``detail``. The rest is as in
    :class:`~nest.solvers.base.SolverOutput`.
    """

    status: Literal["optimal", "feasible", "infeasible", "no-solution", "unsupported"]
    plan: Plan | None = None
    claimed_quanta: Size | None = None
    lower_bound_quanta: Size | None = None
    own_objective_ns: float | None = None
    detail: AnyText = ""


class _Tagged(msgspec.Struct):
    schema: object = None


def is_description(text: str) -> bool:
    """Whether a solver is named by a file and not by a keyword."""
    return text.endswith(SUFFIXES)


def read_planner(path: str | Path) -> Planner:
    """Read a description file.

    ``{here}`` becomes the directory of the file.

    Raises
    ------
    InvalidOptionError
        If it cannot be read or is no description.
    """
    data = read_bytes(path, errors.InvalidOptionError, "description of a planner")
    planner = decode(
        data, str(path), Planner, "description of a planner", errors.InvalidOptionError
    )
    here = str(Path(path).resolve().parent)
    words = tuple(word.replace("{here}", here) for word in planner.words)
    return msgspec.structs.replace(planner, command=words)


def target_of(planner: Planner) -> str:
    """Return what the registry has in place of ``"module:Class"``."""
    return COMMAND + msgspec.json.encode(planner).decode()


def planner_of(target: str) -> Planner:
    """Return the description of a target."""
    text = target.removeprefix(COMMAND)
    return msgspec.json.decode(text, type=Planner)


def solver_of(target: str) -> type[CommandSolver]:
    """Return the solver class of a target."""
    planner = planner_of(target)
    fields: dict[str, Any] = {
        "name": planner.name,
        "capabilities": planner.capabilities,
        "planner": planner,
        "__doc__": planner.method,
    }
    if planner.version is not None:
        fields["version"] = planner.version
    return type("Command", (CommandSolver,), fields)


class CommandSolver:
    """Runs the command of a description; :func:`solver_of` makes classes."""

    name: ClassVar[str] = "command"
    capabilities: ClassVar[Capabilities] = Capabilities(exact=False, method="a command")
    planner: ClassVar[Planner]

    def unsupported(self, problem: Problem) -> str | None:
        """Return ``None``: a command says so in its answer."""
        return None

    def solve(
        self, problem: Problem, options: SolveOptions, report: Report = ignore_progress
    ) -> SolverOutput:
        """Run the command and read what it wrote.

        Raises
        ------
        SolverNotInstalledError
            If there is no such program.
        SolverError
            If it fails, or writes no plan.
        UnsupportedProblemError
            If it says so.
        """
        folder = Path(tempfile.mkdtemp(prefix="planner-"))
        files = {"problem": folder / "problem.json", "plan": folder / "plan"}
        write(files["problem"], problem)
        values = {name: str(path) for name, path in files.items()}
        values["warm_start"] = ""
        if options.warm_start is not None:
            values["warm_start"] = str(folder / "warm-start.json")
            write(values["warm_start"], options.warm_start)
        limit_s = options.time_limit_s
        values |= {
            "time_limit_s": "inf" if limit_s is None else f"{limit_s:.3f}",
            "seed": str(options.seed),
            "workers": str(options.num_workers),
            "gap": str(options.gap),
        }
        killed = self._run(values, folder, limit_s)
        return self._read(files["plan"], limit_s if killed else None)

    def _run(self, values: dict[str, str], folder: Path, limit_s: float | None) -> bool:
        """Run the command; return whether it was stopped at the limit."""
        words = [
            _PLACEHOLDER.sub(lambda found: values[found[1]], word)
            for word in self.planner.words
        ]
        scratch = folder / "work"
        scratch.mkdir()
        with open(folder / "log", "w+b") as log:
            try:
                # In the process group of this process, so that it ends with
                # it, whoever kills the group.
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=scratch
                )
            except OSError as error:
                raise errors.SolverNotInstalledError(
                    f"expected a program {words[0]!r} that can be started, "
                    f"got {error.strerror or error}; correct the command"
                ) from error
            killed = False
            try:
                process.wait(limit_s)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                killed = True
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_BYTES))
            said = log.read().decode(errors="replace")
        sys.stderr.write(said)
        code = process.returncode
        if code and not killed:
            last = [line for line in said.splitlines() if line.strip()][-1:]
            text = f": {last[0].strip()}" if last else ""
            how = f"code {code}" if code > 0 else f"signal {-code}"
            kind = errors.SolverError if code > 0 else errors.KilledError
            raise kind(f"the command ended with {how}{text}")
        return killed

    def _read(self, path: Path, killed_s: float | None) -> SolverOutput:
        """Return what the plan file claims.

        If the command was stopped after ``killed_s``, it may be missing or half
        written.
        """
        detail, extra = "", {}
        if killed_s is not None:
            detail = f"stopped at its limit of {killed_s:.1f} s"
            extra = {"killed": True}
        try:
            if not path.exists():
                raise errors.InvalidPlanError(
                    "expected a plan file from the command, got none; it "
                    "must write {plan}, or end with a code that is not 0"
                )
            answer = _decode(read_bytes(path, errors.InvalidPlanError, "plan"))
        except errors.InvalidPlanError:
            if killed_s is None:
                raise
            answer = Answer(status="no-solution")
        if answer.status == "unsupported":
            raise errors.UnsupportedProblemError(answer.detail)
        status = Status(answer.status)
        proven = status in (Status.OPTIMAL, Status.INFEASIBLE)
        return SolverOutput(
            status=status,
            plan=answer.plan,
            claimed_quanta=answer.claimed_quanta,
            lower_bound_quanta=answer.lower_bound_quanta,
            limit=None if killed_s is None or proven else Limit.TIME,
            detail="; ".join(filter(None, (detail, answer.detail))),
            own_objective_ns=answer.own_objective_ns,
            extra=extra,
        )


def _decode(data: bytes) -> Answer:
    """Return an answer; a plan alone claims nothing."""
    schema = None
    # Not text at all is a ValueError.
    with contextlib.suppress(ValueError, RecursionError):
        # Nothing else of it is read here, so nothing else can hide it.
        schema = msgspec.json.decode(data, type=_Tagged).schema
    if schema == "nest-answer/1":
        return decode(data, "plan file", Answer, "answer", errors.InvalidPlanError)
    plan = decode(data, "plan file", Plan, "plan", errors.InvalidPlanError)
    return Answer(status="feasible", plan=plan)
