"""What commands take and give: problems, plans, numbers, output files."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from nest.cli.saying import say_data
from nest.errors import (
    InvalidOptionError,
    InvalidPlanError,
    InvalidProblemError,
    NestError,
    UnknownNameError,
)
from nest.util.text import did_you_mean

if TYPE_CHECKING:
    from nest.constraints.targets import Target
    from nest.hardware.calibration import CalibrationFile
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem
    from nest.models.architectures import Architecture


class Group(click.Group):
    """A group that says what its commands are when it is given another."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that the first argument names."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            raise UnknownNameError(
                f"{ctx.command_path} COMMAND", args[0], self.commands
            )
        return super().resolve_command(ctx, args)


def load_problem(text: str) -> Problem:
    """Return the problem in a file, on standard input (``-``), or of a name.

    A file wins over a built-in problem or an instance of the same name.
    """
    from nest.ir.documents import read_stdin
    from nest.ir.io import decode_problem, read_problem

    if text == "-":
        return decode_problem(
            read_stdin(InvalidProblemError), "standard input"
        )
    if os.path.exists(text):
        return read_problem(text)

    from nest.instances import store
    from nest.models import builtin

    named = named_problem(text)
    if named is not None:
        return named
    if os.sep in text or text.endswith((".json", ".yaml", ".yml")):
        return read_problem(text)  # says that there is no such file
    known = (*builtin.names(), *store.index())
    hint = did_you_mean(
        text, known, "see 'nest problems' and 'nest instances'"
    )
    raise InvalidProblemError(
        f"{text}: expected a file, a built-in problem "
        f"({', '.join(builtin.names())}) or an instance, got no such file and "
        f"no such name; {hint}"
    )


def load_plan(path: str, problem: Problem | None = None) -> Plan:
    """Return the plan in a file; warn if it is one of another problem."""
    from nest.ir.io import read_plan

    plan = read_plan(path)
    if problem is not None:
        warn_if_foreign(problem, plan)
    return plan


def fill_in(settings: str, problem: Problem, option: str) -> Plan:
    """Return the plan that settings stand for, and say which it is."""
    from nest.analysis.plan_by_settings import TIME_LIMIT_S, plan_by_settings
    from nest.cli.progress import ProgressLine, hint
    from nest.present.table import plan_text

    unit = problem.time_unit
    with ProgressLine(unit, limit_s=TIME_LIMIT_S) as progress:
        found = plan_by_settings(
            problem, settings, option, on_progress=progress
        )
    hint(f"nest: {option} is {found.how}: {plan_text(found.plan)}")
    return found.plan


def warn_if_foreign(problem: Problem, plan: Plan, remedy: str = "") -> None:
    """Say on standard error that a plan was made for something else.

    ``remedy`` follows, what to do about it.

    Raises
    ------
    InvalidPlanError
        If it is none of this problem either.
    """
    from nest.cost.score import score
    from nest.ir.io import problem_hash

    if plan.problem_hash is None:
        return
    own = problem_hash(problem)
    if plan.problem_hash == own:
        return
    text = (
        f"the plan was made for problem {plan.problem_hash[:12]}, this is "
        f"{own[:12]}{remedy}"
    )
    try:
        score(problem, plan)
    except InvalidPlanError as error:
        raise InvalidPlanError(f"{error}: {text}") from None
    from nest.cli.progress import hint

    hint(f"nest: warning: {text}")


def named_problem(name: str) -> Problem | None:
    """Return the built-in problem or the instance of a name, if any."""
    from nest.instances import store
    from nest.models import builtin

    if name in builtin.names():
        return builtin.load(name)
    return store.load(name) if name in store.index() else None


def solver_keyword(text: str) -> str:
    """Return the keyword of a solver that a keyword or a file names.

    The planner of a description file is known from then on.
    """
    from nest.solvers.command import is_description

    if not is_description(text):
        return text
    from nest.solvers.registry import register_planner

    return register_planner(text)


def read_solver(text: str) -> str:
    """Read what ``--solver`` says, see :func:`solver_keyword`."""
    try:
        return solver_keyword(text)
    except NestError as error:
        raise click.BadParameter(str(error)) from None


def model_problem(
    model: Architecture,
    job: Mapping[str, Any],
    named: Mapping[str, Collection[int | str]] | None = None,
) -> Problem:
    """Return the problem of a model with the options of the command line.

    ``job`` holds ``cluster``, ``calibration``, ``profile`` and the fields of
    :class:`nest.models.choices.Request`, ``named`` settings of plans, see
    :func:`nest.models.choices.choose`. Errors name the option.
    """
    from nest.cost.magnitude import with_quantum
    from nest.hardware import find_cluster
    from nest.hardware.calibration_file import resting_on, with_calibration
    from nest.models.choices import Request, choose
    from nest.models.graphs import build_on

    try:
        parts, cluster = find_cluster(job["cluster"])
        parts, calibration = with_calibration(parts, job.get("calibration"))
        choices = choose(
            model,
            parts[0][0],
            sum(count for _, count in parts),
            Request(**{n: job.get(n) for n in Request.__struct_fields__}),
            named,
        )
    except InvalidOptionError as error:
        field, colon, rest = str(error).partition(":")
        raise InvalidOptionError(f"{flag(field)}{colon}{rest}") from None
    problem = build_on(model, parts, choices, cluster)
    if calibration is not None:
        problem = resting_on(problem, calibration, parts, job["calibration"])
    if job.get("topology") is not None:
        from nest.cli.networks import find_network, with_network

        text = job["topology"]
        graph = find_network(text, job["beside"], job["order"])
        problem = with_quantum(with_network(problem, graph, text))
    for name in ("beside", "order"):
        if job.get("topology") is None and job.get(name):
            raise InvalidOptionError(
                f"--{name}: expected --topology too, got none; add it"
            )
    if job["profile"] is None:
        return problem
    from nest.profiles import apply_profile, load_profile

    profile = load_profile(job["profile"])
    return with_quantum(
        apply_profile(
            problem,
            profile,
            model=model.name if model.name in profile.models else None,
            layers_per_node=choices.layers_per_node,
            where=job["profile"],
        )
    )


def flag(field: str) -> str:
    """Return the option of a field."""
    return "--" + field.replace("_", "-")


def check_output(path: str | None, option: str, folder: bool = False) -> None:
    """Refuse an output path before any work is done for it.

    A ``folder`` is for new files only, so that none get mixed.
    """
    if path is None or (path == "-" and not folder):
        return
    file = Path(path)
    wanted = "new or empty directory" if folder else "writable file"
    reason = None
    if not file.exists():
        if not file.parent.is_dir():
            reason = f"no directory {file.parent}"
        elif not folder and not os.access(file.parent, os.W_OK):
            reason = f"a directory {file.parent} that may not be written"
    elif file.is_dir() != folder:
        reason = "a file" if folder else "a directory"
    elif not os.access(file, os.W_OK):
        kind = "one" if folder else "a file"
        reason = f"{kind} that may not be written"
    elif folder and any(file.iterdir()):
        reason = "one with files in it"
    if reason is not None:
        raise NestError(
            f"{option} {path}: expected a {wanted}, got {reason}; "
            f"choose another path"
        )


def check_distinct_files(paths: Mapping[str, str | None]) -> None:
    """Refuse to read and write, or to write twice, the same file."""
    seen: dict[str, str] = {}
    for name, path in paths.items():
        if path is None:
            continue
        place = path if path == "-" else os.path.realpath(path)
        if place in seen:
            raise InvalidOptionError(
                f"{name}: expected another file than for {seen[place]}, "
                f"got {path} for both; choose another path"
            )
        seen[place] = name


def write_text(path: str, text: str) -> None:
    """Write a text to a file, whole or not at all, or to ``-``."""
    from nest.util.files import write_atomically

    if path == "-":
        say_data(text)
    else:
        write_atomically(Path(path), text.encode())


def write_json(path: str, document: Any) -> None:
    """Write a document to a file, whole or not at all, or to ``-``."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def write_record(path: str, record: Problem | Plan | CalibrationFile) -> None:
    """Write a problem, a plan or a calibration to a file or to ``-``."""
    from nest.ir.io import encode

    write_text(path, encode(record).decode())


def people(*outputs: str | None) -> IO[str]:
    """Return where to talk to people: standard error if data takes ``-``.

    With ``--quiet`` nowhere then, as that is for errors.
    """
    from nest.present.verbosity import QUIET

    if "-" not in outputs:
        return sys.stdout
    return io.StringIO() if QUIET.get() else sys.stderr


@dataclass(frozen=True)
class Restricted:
    """A problem under what narrows down its plans.

    Attributes
    ----------
    problem, whole
        The problem with a restricted job, and as it was.
    pins, forbids
        Values by setting.
    target, headroom
        The framework, and the memory to leave free; ``None`` for none.
    untargeted
        The problem with the same restrictions, but for any framework.
    calibration
        The file of a user's own calibration, ``None`` for the stored one.
    """

    problem: Problem
    whole: Problem
    pins: Mapping[str, tuple[int | str, ...]]
    forbids: Mapping[str, tuple[int | str, ...]]
    target: Target | None = None
    headroom: str | None = None
    untargeted: Problem | None = None
    calibration: str | None = None

    @classmethod
    def of(
        cls,
        problem: Problem,
        pin: Sequence[str],
        forbid: Sequence[str],
        granularity: str | None,
        target: Target | None = None,
        headroom: str | None = None,
        said: bool = False,
    ) -> Restricted:
        """Restrict a problem to what the options say.

        ``said`` is whether they say what is kept per weight: by default a
        target's own default takes the place of the job's.
        """
        from msgspec.structs import replace

        from nest.constraints.pins import parse, restrict
        from nest.constraints.targets import ANY, for_target
        from nest.uncertainty.headroom import with_headroom

        if granularity is not None:
            job = replace(problem.job, granularity=granularity)
            problem = replace(problem, job=job)
        pins, forbids = parse(pin, "--pin"), parse(forbid, "--forbid")
        narrow = problem
        if headroom is not None:
            narrow = with_headroom(problem, headroom)
        if target is None or target.name == ANY:
            found = restrict(narrow, pins, forbids)
            return cls(found, problem, pins, forbids, headroom=headroom)
        own = problem.job.optimizer if said else None
        found = for_target(narrow, target, own)
        loose = for_target(narrow, ANY, found.job.optimizer)
        return cls(
            restrict(found, pins, forbids),
            problem,
            pins,
            forbids,
            target,
            headroom,
            restrict(loose, pins, forbids),
        )

    @property
    def text(self) -> str:
        """What restricts plans as on the command line; empty for none."""
        from nest.constraints.pins import describe

        parts = [describe(self.pins, self.forbids)]
        if self.headroom is not None:
            parts.insert(0, f"--headroom {self.headroom}")
        if self.target is not None:
            parts.insert(0, f"--target {self.target.name}")
        return " ".join(filter(None, parts))

    @property
    def notes(self) -> list[str]:
        """What a report says about them; empty for none."""
        found = [f"only plans under {self.text}"] if self.text else []
        if self.target is not None:
            job = self.problem.job
            optimizer = job.optimizer
            found.append(
                f"{self.target.title}, {self.target.packages}: schedule "
                f"{job.schedule}, {optimizer.name} with "
                f"{optimizer.gradient_bytes} bytes of gradient and "
                f"{optimizer.state_bytes} of state per weight"
            )
        if self.calibration is not None:
            found.append(f"times under the calibration {self.calibration}")
        return found

    def document(self) -> dict[str, Any]:
        """Return what a JSON document says about them; empty for none."""
        found: dict[str, Any] = {}
        if self.calibration is not None:
            found["calibration"] = Path(self.calibration).name
        if self.target is not None:
            found["target"] = self.target.name
        if self.headroom is not None:
            found["headroom"] = self.headroom
        if self.pins or self.forbids:
            found["restrictions"] = {
                "pin": {name: list(v) for name, v in self.pins.items()},
                "forbid": {name: list(v) for name, v in self.forbids.items()},
            }
        return found

    def adopt(self, plan: Plan) -> Plan:
        """Return a plan as one of the whole problem, which it is too."""
        from msgspec.structs import replace

        from nest.ir.io import problem_hash

        return replace(plan, problem_hash=problem_hash(self.whole))


def parse_extra(
    texts: tuple[str, ...], solvers: list[str]
) -> dict[str, dict[str, str]]:
    """Return ``SOLVER.KEY=VALUE`` texts as a dict per solver."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        solver, dot, key = name.partition(".")
        if not (equals and dot and solver and key):
            raise InvalidOptionError(
                f"--option: expected SOLVER.KEY=VALUE, got {text!r}; "
                f"for example --option {solvers[0]}.key=value"
            )
        if solver not in solvers:
            raise InvalidOptionError(
                f"--option {text}: expected one of the solvers that run "
                f"({', '.join(solvers)}), got {solver!r}; "
                f"correct it or add the solver"
            )
        if key in found.setdefault(solver, {}):
            raise InvalidOptionError(
                f"--option {text}: expected {solver}.{key} once, got it "
                f"twice; remove one"
            )
        found[solver][key] = value
    return found
