"""What commands take and give: problems, plans, numbers, output files."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import click

from nest.errors import (
    InvalidOptionError,
    InvalidProblemError,
    NestError,
    UnknownNameError,
)

if TYPE_CHECKING:
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem
    from nest.models.architectures import Architecture

F = TypeVar("F", bound=Callable[..., object])


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


def seconds(text: str) -> float:
    """Read a finite number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise click.BadParameter(
            f"expected a finite number of seconds > 0, got {text!r}; "
            f"leave it out for no limit"
        )
    return value


def integer(
    lowest: int, highest: Callable[[], int]
) -> Callable[[str | int], int]:
    """Return a reader of integers from a range."""

    def read(text: str | int) -> int:
        try:
            value = int(text)
        except ValueError:
            value = lowest - 1
        if not lowest <= value <= highest():
            raise click.BadParameter(
                f"expected an integer from {lowest} to {highest()}, "
                f"got {text!r}; correct the value"
            )
        return value

    return read


def integers(
    lowest: int = 1, highest: int = 2**31 - 1
) -> Callable[[str], tuple[int, ...]]:
    """Return a reader of distinct integers, separated by commas."""

    def read(text: str) -> tuple[int, ...]:
        try:
            values = tuple(int(part) for part in text.split(","))
        except ValueError:
            values = ()
        if (
            not values
            or not all(lowest <= value <= highest for value in values)
            or len(set(values)) < len(values)
        ):
            limits = f"from {lowest} to {highest}"
            if highest == 2**31 - 1:
                limits = f">= {lowest}"
            raise click.BadParameter(
                f"expected distinct integers {limits} separated by commas, "
                f"got {text!r}; for example 1,2"
            )
        return values

    return read


def words(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Return a reader of distinct words out of a few, by commas."""

    def read(text: str) -> tuple[str, ...]:
        values = tuple(part.strip() for part in text.split(","))
        if len(set(values)) < len(values) or not set(values) <= set(known):
            raise click.BadParameter(
                f"expected some of {','.join(known)}, each once, separated "
                f"by commas, got {text!r}; for example {known[0]}"
            )
        return values

    return read


def load_problem(text: str) -> Problem:
    """Return the problem in a file, on standard input (``-``), or built in.

    A file wins over a built-in problem of the same name.
    """
    from difflib import get_close_matches

    from nest.ir.io import decode_problem, read_problem

    if text == "-":
        return decode_problem(sys.stdin.buffer.read(), "standard input")
    if os.path.exists(text):
        return read_problem(text)

    from nest.models import builtin

    if text in builtin.names():
        return builtin.load(text)
    if os.sep in text or text.endswith((".json", ".yaml", ".yml")):
        return read_problem(text)  # says that there is no such file
    close = get_close_matches(text, builtin.names(), n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else "see 'nest problems'"
    raise InvalidProblemError(
        f"{text}: expected a file or a built-in problem "
        f"({', '.join(builtin.names())}), got no such file and no such "
        f"name; {hint}"
    )


def output_option(what: str) -> Callable[[F], F]:
    """Add ``-o``, the file that what was made goes to; it must be given."""
    return click.option(
        "-o",
        "--output",
        required=True,
        metavar="FILE",
        help=f"Where to write the {what}; '-' is standard output.",
    )


def job_options(command: F) -> F:
    """Add the options that choose the job and the graph of a model.

    They arrive as keyword arguments with the names of
    :class:`nest.models.choices.Request`, and ``profile``.
    """
    from nest.ir.plan import RECOMPUTE

    positive = integer(1, lambda: 2**31 - 1)
    options = (
        click.option(
            "--global-batch",
            type=positive,
            metavar="N",
            help="Samples per step.  [default: about 4 Mi tokens]",
        ),
        click.option(
            "--sequence-length",
            type=positive,
            metavar="N",
            help="Tokens per sample.  [default: the model's longest, at "
            "most 8192]",
        ),
        click.option(
            "--micro-batches",
            type=integers(),
            metavar="N,…",
            help="Samples of one pipeline step.  [default: 1,2,4,…,64]",
        ),
        click.option(
            "--tp",
            type=integers(),
            metavar="N,…",
            help="Tensor parallel degrees.  [default: powers of two up to "
            "the node]",
        ),
        click.option(
            "--cp",
            type=integers(),
            metavar="N,…",
            help="Context parallel degrees.  [default: 1, and 2 for long "
            "sequences]",
        ),
        click.option(
            "--ep",
            type=integers(),
            metavar="N,…",
            help="Expert parallel degrees.  [default: powers of two up to 64]",
        ),
        click.option(
            "--zero",
            type=integers(0, 3),
            metavar="N,…",
            help="ZeRO stages.  [default: 0,1,2,3]",
        ),
        click.option(
            "--recompute",
            type=words(RECOMPUTE),
            metavar="A,…",
            help=f"Recompute choices.  [default: {','.join(RECOMPUTE)}]",
        ),
        click.option(
            "--virtual-stages",
            type=integers(),
            metavar="N,…",
            help="Chunks of layers per pipeline stage; above 1 plans are "
            "interleaved.  [default: 1]",
        ),
        click.option(
            "--layers-per-node",
            type=positive,
            metavar="N",
            help="Consecutive layers that plans do not cut apart.  "
            "[default: 1, more beyond 100 layers]",
        ),
        click.option(
            "--dtype",
            type=one_of("bf16", "fp16", "fp8"),
            metavar="bf16|fp16|fp8",
            help="Of the matrix products.  [default: bf16]",
        ),
        click.option(
            "--profile",
            metavar="FILE",
            help="Measured layers to prefer over analytic costs; see 'nest "
            "profile'.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def model_options(command: F) -> F:
    """Add ``--model``, ``--cluster`` and the options of the job."""
    command = job_options(command)
    for option in (
        click.option(
            "--cluster",
            metavar="NAME",
            help="Machine and devices for --model, such as h100x64.",
        ),
        click.option(
            "--model",
            metavar="NAME",
            help="Model instead of PROBLEM: a name, see 'nest problems "
            "--models', or a config.json of Hugging Face.",
        ),
    ):
        command = option(command)
    return command


def one_of(*known: str) -> Callable[[str], str]:
    """Return a reader of one of a few names."""

    def read(text: str) -> str:
        if text not in known:
            raise click.BadParameter(
                f"expected one of {', '.join(known)}; got {text!r}; choose "
                f"one of them"
            )
        return text

    return read


def check_problem_choice(
    command: str, problem_text: str | None, job: Mapping[str, Any]
) -> None:
    """Refuse all but either PROBLEM or ``--model`` with ``--cluster``.

    Parameters
    ----------
    command
        Such as ``nest solve``, for messages.
    problem_text
        The argument PROBLEM.
    job
        Values of :func:`model_options`.

    Raises
    ------
    InvalidOptionError
        If neither or both are given, or an option belongs to neither.
    """
    given = [name for name, value in job.items() if value is not None]
    if problem_text is not None and given:
        raise InvalidOptionError(
            f"{_flag(given[0])}: expected either PROBLEM or --model with "
            f"its options, got {problem_text!r} too; remove one"
        )
    if problem_text is None and not given:
        raise InvalidOptionError(
            f"{command}: expected PROBLEM, got none; see '{command} --help', "
            f"or pass --model and --cluster"
        )
    if given and job["model"] is None:
        raise InvalidOptionError(
            f"{_flag(given[0])}: expected --model too, got none; add it"
        )
    if given and job["cluster"] is None:
        raise InvalidOptionError(
            "--cluster: expected <machine>x<devices> with --model, got none; "
            "for example --cluster h100x64"
        )


def find_problem(problem_text: str | None, job: Mapping[str, Any]) -> Problem:
    """Return the problem of PROBLEM, or of ``--model`` on ``--cluster``.

    The choice was checked by :func:`check_problem_choice`.
    """
    if problem_text is not None:
        return load_problem(problem_text)
    return model_problem(load_model(job["model"]), job)


def model_file(job: Mapping[str, Any]) -> str | None:
    """Return the file that ``--model`` names, if it names one."""
    text = job["model"]
    return text if text is not None and os.path.isfile(text) else None


def load_model(text: str) -> Architecture:
    """Return the architecture of that name, or of a ``config.json``.

    Raises
    ------
    NestError
        If there is no such model or the file is bad.
    """
    if text.endswith(".json") or os.path.isfile(text):
        from nest.models.hf import read_hf

        return read_hf(text)
    from nest.models.zoo import architecture

    return architecture(text)


def model_problem(model: Architecture, job: Mapping[str, Any]) -> Problem:
    """Return the problem of a model with the options of the command line.

    Parameters
    ----------
    model
        What is trained.
    job
        ``cluster`` and the values of :func:`job_options`.

    Raises
    ------
    NestError
        If an option or the profile is bad; the text names the option.
    """
    from nest.hardware import parse_cluster
    from nest.models.choices import Request, choose
    from nest.models.graphs import build_problem

    try:
        site, num_devices = parse_cluster(job["cluster"])
        choices = choose(
            model,
            site,
            num_devices,
            Request(**{name: job[name] for name in Request.__struct_fields__}),
        )
    except InvalidOptionError as error:
        field, colon, rest = str(error).partition(":")
        raise InvalidOptionError(f"{_flag(field)}{colon}{rest}") from None
    problem = build_problem(model, site, num_devices, choices)
    if job["profile"] is None:
        return problem
    from nest.profiles import apply_profile, load_profile

    profile = load_profile(job["profile"])
    return apply_profile(
        problem,
        profile,
        model=model.name if model.name in profile.models else None,
        layers_per_node=choices.layers_per_node,
        where=job["profile"],
    )


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def load_plan(path: str) -> Plan:
    """Return the plan in a file."""
    from nest.ir.io import read_plan

    return read_plan(path)


def check_output(path: str | None, option: str) -> None:
    """Refuse an output path before any work is done for it.

    Raises
    ------
    NestError
        If it is plain that the file cannot be written.
    """
    if path is None or path == "-":
        return
    file = Path(path)
    reason = None
    if file.is_dir():
        reason = "a directory"
    elif not file.parent.is_dir():
        reason = f"no directory {file.parent}"
    elif file.exists() and not os.access(file, os.W_OK):
        reason = "a file that may not be written"
    elif not file.exists() and not os.access(file.parent, os.W_OK):
        reason = f"a directory {file.parent} that may not be written"
    if reason is not None:
        raise NestError(
            f"{option} {path}: expected a writable file, got {reason}; "
            f"choose another path"
        )


def check_distinct_files(**paths: str | None) -> None:
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


def write_json(path: str, document: Any) -> None:
    """Write a document to a file, whole or not at all, or to ``-``."""
    from nest.ir.io import write_atomically

    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    if path == "-":
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_atomically(Path(path), text.encode())


def write_record(path: str, record: Problem | Plan) -> None:
    """Write a problem or a plan to a file or to ``-``."""
    from nest.ir.io import encode, write

    if path == "-":
        sys.stdout.write(encode(record).decode())
        sys.stdout.flush()
    else:
        write(path, record)


def people(*outputs: str | None) -> IO[str]:
    """Return where to talk to people: standard error if data takes ``-``."""
    return sys.stderr if "-" in outputs else sys.stdout


def solve_options(command: F) -> F:
    """Add the options that ``solve`` and ``compare`` share."""
    from nest.ir.job import GRANULARITIES
    from nest.versions import num_cpus

    options = (
        click.option(
            "--time-limit",
            type=seconds,
            metavar="S",
            help="Wall-clock seconds per solver, everything included.",
        ),
        click.option(
            "--workers",
            type=integer(1, num_cpus),
            default=1,
            metavar="N",
            help="Threads per solver.  [default: 1]",
        ),
        click.option(
            "--seed",
            type=integer(0, lambda: 2**31 - 1),
            default=0,
            metavar="N",
            help="Seed of random choices.  [default: 0]",
        ),
        click.option(
            "--warm-start",
            metavar="PLAN",
            help="Plan file to start from, for solvers that can.",
        ),
        click.option(
            "--repair",
            is_flag=True,
            help="Make plans that exceed the memory fit: more recomputation, "
            "more ZeRO, a smaller micro-batch.",
        ),
        click.option(
            "--option",
            "extra",
            multiple=True,
            metavar="SOLVER.KEY=VALUE",
            help="Option of one solver, see 'nest solvers'; repeatable.",
        ),
        click.option(
            "--granularity",
            type=one_of(*GRANULARITIES),
            metavar="|".join(GRANULARITIES),
            help="Whether every stage or every layer has a strategy of its "
            "own.  [default: as the problem says]",
        ),
        click.option(
            "--json",
            "json_path",
            metavar="FILE",
            help="Also write a JSON document; '-' is standard output.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def restriction_options(command: F) -> F:
    """Add ``--pin`` and ``--forbid``; read them with :class:`Restricted`."""
    for name, effect in (
        ("forbid", "without these settings, such as zero=3"),
        ("pin", "with these settings, such as tp=8,pp=4 or zero=0|1"),
    ):
        command = click.option(
            f"--{name}",
            multiple=True,
            metavar="SETTING=VALUE,…",
            help=f"Only plans {effect}; repeatable.  Settings: r "
            f"(replicas), b (micro_batch), pp, tp, dp, cp, ep, zero, "
            f"recompute, v (virtual_stages).",
        )(command)
    return command


@dataclass(frozen=True)
class Restricted:
    """A problem under ``--pin`` and ``--forbid``.

    Attributes
    ----------
    problem, whole
        The problem with a restricted job, and as it was.
    pins, forbids
        Values by setting.
    """

    problem: Problem
    whole: Problem
    pins: Mapping[str, tuple[int | str, ...]]
    forbids: Mapping[str, tuple[int | str, ...]]

    @classmethod
    def of(
        cls, problem: Problem, pin: Sequence[str], forbid: Sequence[str]
    ) -> Restricted:
        """Restrict a problem to what the options say."""
        from nest.restrictions import parse, restrict

        pins, forbids = parse(pin, "--pin"), parse(forbid, "--forbid")
        return cls(restrict(problem, pins, forbids), problem, pins, forbids)

    @property
    def text(self) -> str:
        """The restrictions as on the command line; empty for none."""
        from nest.restrictions import describe

        return describe(self.pins, self.forbids)

    def document(self) -> dict[str, Any]:
        """Return what a JSON document says about them; empty for none."""
        if not self.text:
            return {}
        return {
            "restrictions": {
                "pin": {name: list(v) for name, v in self.pins.items()},
                "forbid": {name: list(v) for name, v in self.forbids.items()},
            }
        }

    def adopt(self, plan: Plan) -> Plan:
        """Return a plan as one of the whole problem, which it is too."""
        from msgspec.structs import replace

        from nest.ir.io import problem_hash

        return replace(plan, problem_hash=problem_hash(self.whole))


def with_granularity(problem: Problem, granularity: str | None) -> Problem:
    """Return a problem whose job says so, if anything is said."""
    if granularity is None:
        return problem
    from msgspec.structs import replace

    return replace(problem, job=replace(problem.job, granularity=granularity))


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
