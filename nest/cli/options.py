"""The options that several commands share: spelled, read and checked once.

A command names those it takes with :func:`takes` and gets their values as
one :class:`Options`.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from nest.cli.declare import (
    Command,
    Decorator,
    fraction,
    integer,
    integers,
    one_of,
    option,
    reader,
    seconds,
    switches,
    words,
)
from nest.cli.inputs import (
    Restricted,
    check_distinct_files,
    check_output,
    fill_in,
    flag,
    load_plan,
    load_problem,
    model_problem,
    people,
    read_solver,
    warn_if_foreign,
    write_json,
    write_record,
)
from nest.cli.saying import say
from nest.constraints.pins import SETTINGS
from nest.constraints.targets import ANY, GRADIENTS, OPTIMIZERS, names, target
from nest.cost.axes import AXES
from nest.errors import InvalidOptionError, NestError
from nest.ir.job import GRANULARITIES, SCHEDULES
from nest.ir.plan import OVERLAP, RECOMPUTE, Overlap
from nest.models.named import load_model
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem
    from nest.models.architectures import Architecture
    from nest.solvers.base import SolveOptions

#: Who answers if nobody is named.
DEFAULT_SOLVER = "dp"

#: Seconds per run of a solver for the problem of a model: the slower ones
#: would run for days.
MODEL_TIME_LIMIT_S = 60.0

#: What a model's job allows of an axis if nobody says otherwise.
_DEFAULT_DEGREES = {
    "tp": "powers of two up to the node",
    "cp": "1, and 2 for long sequences",
    "ep": "powers of two up to 64",
}


def _shared(usage: str, text: str, *rest: Any, **settings: Any) -> Any:
    """Return :func:`option`, which another text may be given to."""
    return lambda text=text: option(usage, text, *rest, **settings)


def _fractions(text: str) -> dict[Overlap, float]:
    from nest.models.choices import read_overlap

    return read_overlap([text])


def _restriction(name: str, effect: str) -> Any:
    names = ", ".join(
        f"{name} ({setting.long})" if setting.long else name
        for name, setting in SETTINGS.items()
    )
    return _shared(
        f"--{name} SETTING=VALUE,…",
        f"Only plans {effect}; repeatable.  Settings: {names}.",
        multiple=True,
    )


#: What chooses the job and the graph of a model: names are those of
#: :class:`nest.models.choices.Request`, ``profile`` and ``calibration``.
_JOB = {
    "global_batch": _shared(
        "--global-batch N",
        "Samples per step.  [default: about 4 Mi tokens]",
        integer(),
    ),
    "sequence_length": _shared(
        "--sequence-length N",
        "Tokens per sample.  [default: the model's longest, at most 8192]",
        integer(),
    ),
    "micro_batches": _shared(
        "--micro-batches N,…",
        "Samples of one pipeline step.  [default: 1,2,4,…,64]",
        integers(),
    ),
    **{
        axis.name: _shared(
            f"--{axis.name} N,…",
            f"{axis.meaning.capitalize()}.  [default: "
            f"{_DEFAULT_DEGREES.get(axis.name, '1')}]",
            integers(),
        )
        for axis in AXES
        if axis.name != "dp"  # whatever is left
    },
    "zero": _shared(
        "--zero N,…", "ZeRO stages.  [default: 0,1,2,3]", integers(0, 3)
    ),
    "recompute": _shared(
        "--recompute A,…",
        f"Recompute choices.  [default: {','.join(RECOMPUTE)}]",
        words(RECOMPUTE),
    ),
    "sequence_parallel": _shared(
        "--sequence-parallel on|off|on,off",
        "Whether activations between layers are split over tensor ranks too; "
        "both leaves it to every stage.  [default: on where tokens divide]",
        switches,
    ),
    "virtual_stages": _shared(
        "--virtual-stages N,…",
        "Chunks of layers per pipeline stage; above 1 plans are "
        "interleaved.  [default: 1]",
        integers(),
    ),
    "schedule": _shared(
        "--schedule NAME",
        f"Pipeline schedule, of {', '.join(SCHEDULES)}.  [default: 1f1b]",
        one_of(*SCHEDULES),
    ),
    "overlap": _shared(
        "--overlap NAME=FRACTION,…",
        f"What of {', '.join(OVERLAP)} may run behind computation, and how "
        f"much of it hides, such as gradients=0.9.  [default: none]",
        reader(
            _fractions,
            bool,
            f"some of {', '.join(OVERLAP)}, each once, with a fraction from "
            f"0 to 1",
            "for example gradients=0.9,tp=0.5",
        ),
    ),
    "distributed_optimizer": _shared(
        "--distributed-optimizer",
        "Plans may shard the optimiser over replicas too, as Megatron-LM's.",
    ),
    "layers_per_node": _shared(
        "--layers-per-node N",
        "Consecutive layers that plans do not cut apart.  [default: 1, more "
        "beyond 100 layers]",
        integer(),
    ),
    "dtype": _shared(
        "--dtype bf16|fp16|fp8",
        "Of the matrix products.  [default: bf16]",
        one_of("bf16", "fp16", "fp8"),
    ),
    "gradients": _shared(
        "--gradients bf16|fp32",
        "What gradients are kept in.  [default: that of --target, else bf16]",
        one_of(*GRADIENTS),
    ),
    "optimizer": _shared(
        f"--optimizer {'|'.join(OPTIMIZERS)}",
        "What is kept per weight beside it.  [default: adam]",
        one_of(*OPTIMIZERS),
    ),
    "profile": _shared(
        "--profile FILE",
        "Measured layers to prefer over analytic costs; see 'nest profile'.",
    ),
    "calibration": _shared(
        "--calibration FILE",
        "What kernels reach on the user's own devices; see 'nest calibrate'.",
    ),
}

_MODEL = {
    "model": _shared(
        "--model NAME",
        "Model instead of PROBLEM: a name, see 'nest problems --models', or "
        "a config.json of Hugging Face.",
    ),
    "cluster": _shared(
        "--cluster NAME|FILE",
        "Machine and devices for --model, such as h100x64, several as "
        "h100x64+a100x64; or a file with them, see docs/files.md.",
    ),
    "topology": _shared(
        "--topology FILE|NAME",
        "Network of these devices instead of the machine's own: a file (see "
        "docs/topologies.md), or a name such as torus:4x4x4.",
    ),
    "beside": _shared(
        "--beside KEY=VALUE,…",
        "What the file of --topology does not say, such as "
        "devices_per_node=8; repeatable, lists as 4e11/2e11.",
        multiple=True,
    ),
    "order": _shared(
        "--order given|auto|FILE",
        "Order of the devices of --topology: as given, one that keeps "
        "together what is close, or that of a rank file.  [default: given]",
    ),
    **_JOB,
}

#: By what :class:`Options` calls them.
_OPTIONS: dict[str, Callable[..., Decorator]] = {
    "problem_text": functools.partial(
        click.argument, "problem_text", metavar="[PROBLEM]", required=False
    ),
    "plan_text": functools.partial(
        click.argument, "plan_text", metavar="[PLAN]", required=False
    ),
    "problem_texts": functools.partial(
        click.argument, "problem_texts", metavar="[PROBLEM]…", nargs=-1
    ),
    **_MODEL,
    "pin": _restriction(
        "pin", "with these settings, such as tp=8,pp=4 or zero=0|1"
    ),
    "forbid": _restriction("forbid", "without these settings, such as zero=3"),
    "target": _shared(
        "--target NAME",
        f"Only plans that a framework can express: {', '.join(names())}.  "
        f"[default: any]",
    ),
    "headroom": _shared(
        "--headroom SIZE",
        "Memory of every device that plans leave free, such as 8GB or 10%.",
    ),
    "plan": _shared(
        "--plan FILE|SETTINGS",
        "Plan instead of PLAN: a file, or settings as of --pin, such as "
        "tp=8,pp=4,zero=1.  Then it is the fastest plan that has them, or, "
        "if none fits, the one that needs least memory.",
    ),
    "solver": _shared(
        "--solver NAME",
        "See 'nest solvers'.",
        read_solver,
        default=DEFAULT_SOLVER,
    ),
    "time_limit": _shared(
        "--time-limit S",
        "Wall-clock seconds for the run of the solver.  [default: none, 60 "
        "with --model]",
        seconds,
    ),
    "gap": _shared(
        "--gap F",
        "Let exact solvers stop at a plan proven to be so close to the best, "
        "such as 0.02 for 2 %.",
        fraction,
        default=0,
    ),
    "workers": _shared(
        "--workers N",
        "Threads or processes per solver.  [default: the CPUs at hand where "
        "no answer depends on it, 1 elsewhere]",
        integer(1, num_cpus()),
    ),
    "seed": _shared(
        "--seed N", "Seed of random choices.", integer(0), default=0
    ),
    "warm_start": _shared(
        "--warm-start PLAN",
        "Plan to start from, a file or settings such as tp=8,pp=4, for "
        "solvers that can.",
    ),
    "repair": _shared(
        "--repair",
        "Make plans that exceed the memory fit: more recomputation, more "
        "ZeRO, a smaller micro-batch.",
    ),
    "extra": _shared(
        "--option SOLVER.KEY=VALUE",
        "Option of one solver, see 'nest solvers'; repeatable.",
        None,
        "extra",
        multiple=True,
    ),
    "granularity": _shared(
        f"--granularity {'|'.join(GRANULARITIES)}",
        "Whether every stage or every layer has a strategy of its own.  "
        "[default: as the problem says]",
        one_of(*GRANULARITIES),
    ),
    "json_path": _shared(
        "--json FILE",
        "Also write a JSON document; '-' is standard output.",
        None,
        "json_path",
    ),
    "output": _shared(
        "-o --output FILE",
        "Write the plan to a file; '-' is standard output.",
    ),
}

#: Names for :func:`takes` of options that go together.
JOB = tuple(_JOB)
MODEL = tuple(_MODEL)
RESTRICTIONS = ("pin", "forbid", "target", "headroom")

#: What ``--target`` means where nothing is searched.
KEPT_TARGET = (
    "Framework whose gradients and optimizer --model keeps, and that can run "
    "a plan by its settings.  [default: any]"
)

#: What names a problem and a plan for it.
PLANNED = ("problem_text", "plan_text", "plan", *MODEL)


def takes(*names: str, **helps: str) -> Decorator:
    """Add shared options to a command, which gets an :class:`Options` first.

    They are attributes of :class:`Options` or fields of a job; ``helps`` are
    other texts for the help of some of them.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def run(**values: Any) -> Any:
            path = click.get_current_context().command_path
            shared = {name: values.pop(name) for name in names}
            job = {n: shared.pop(n) for n in names if n in _MODEL}
            options = Options(path, job=job, **shared)
            if "plan_text" in shared:
                options = options.placed()
            return command(options, **values)

        for name in reversed(names):
            changes = {"text": helps[name]} if name in helps else {}
            _OPTIONS[name](**changes)(run)
        return run

    return decorate


def offered(problem: Problem) -> dict[str, tuple[str, str]]:
    """Return what bounds every answer: a name and values, by option."""
    job = problem.job
    degrees = {x.cp for kind in problem.graph.kinds for x in kind.costs}
    found: dict[str, tuple[str, Iterable[int | None]]] = {
        "sequence_length": ("sequence", (job.sequence_length,)),
        "global_batch": ("batch", (job.global_batch,)),
        "micro_batches": ("micro-batches", job.micro_batches),
        "cp": ("cp", sorted(degrees)),
    }
    return {
        name: (label, ",".join(map(str, values)))
        for name, (label, values) in found.items()
    }


def defaults_of(
    problem: Problem, model: Architecture, chosen: Collection[str]
) -> str:
    """Say what the answer for a model rests on and nobody chose.

    Each with the option that chooses it; empty where all is ``chosen``. A
    sequence length that the model fixes is none.
    """
    is_fixed = all(x.sequence_length is not None for x in model.towers)
    return ", ".join(
        f"{label} {values} ({flag(name)})"
        for name, (label, values) in offered(problem).items()
        if name not in chosen and not (is_fixed and name == "sequence_length")
    )


@dataclass(frozen=True)
class Options:
    """What the command line says; defaults where a command does not ask.

    Attributes
    ----------
    command
        Such as ``nest solve``, for messages.
    problem_text, problem_texts
        The argument PROBLEM, of commands that take one or several.
    plan_text, plan
        The argument PLAN, and the option instead of it.
    plans
        The plans of a command that takes several.
    job
        ``--model``, ``--cluster`` and the options of the job.
    json_path, output
        Files to write.

    Notes
    -----
    The others are the options of the same name.
    """

    command: str
    problem_text: str | None = None
    problem_texts: tuple[str, ...] = ()
    plan_text: str | None = None
    plan: str | None = None
    plans: tuple[str, ...] = ()
    job: Mapping[str, Any] = field(default_factory=dict)
    granularity: str | None = None
    pin: tuple[str, ...] = ()
    forbid: tuple[str, ...] = ()
    target: str | None = None
    headroom: str | None = None
    solver: str = DEFAULT_SOLVER
    time_limit: float | None = None
    gap: float = 0.0
    workers: int | None = None
    seed: int = 0
    warm_start: str | None = None
    repair: bool = False
    extra: tuple[str, ...] = ()
    json_path: str | None = None
    output: str | None = None

    @property
    def people(self) -> IO[str]:
        """Where to talk to people."""
        return people(self.json_path, self.output)

    @property
    def model(self) -> str | None:
        """What ``--model`` says."""
        text: str | None = self.job.get("model")
        return text

    @property
    def given_job(self) -> list[str]:
        """The options of a model that are given."""
        missing: tuple[Any, ...] = (None, (), False)
        return [name for name, v in self.job.items() if v not in missing]

    def placed(self) -> Options:
        """Return them with a single argument beside ``--model`` as PLAN."""
        alone = self.plan_text is None and self.plan is None
        if not (self.model and self.problem_text and alone):
            return self
        return replace(self, problem_text=None, plan_text=self.problem_text)

    def limited(self, slow: bool = False) -> Options:
        """Return them with a time limit, for a model if none is given."""
        if self.time_limit is None and (slow or self.model is not None):
            return replace(self, time_limit=MODEL_TIME_LIMIT_S)
        return self

    def check_problem_choice(self) -> None:
        """Refuse all but either PROBLEM or ``--model`` with ``--cluster``."""
        given = self.given_job
        if self.problem_text is not None and "calibration" in given:
            raise InvalidOptionError(
                f"--calibration: expected --model, got {self.problem_text!r}, "
                f"a problem whose costs are already computed; build it anew "
                f"with --model, --cluster and --calibration"
            )
        if self.problem_text is not None and given:
            raise InvalidOptionError(
                f"{flag(given[0])}: expected either PROBLEM or --model with "
                f"its options, got {self.problem_text!r} too; remove one"
            )
        if self.problem_text is None and not given:
            raise InvalidOptionError(
                f"{self.command}: expected PROBLEM, got none; see "
                f"'{self.command} --help', or pass --model and --cluster"
            )
        if given and self.model is None:
            raise InvalidOptionError(
                f"{flag(given[0])}: expected --model too, got none; add it"
            )
        if given and self.job["cluster"] is None:
            raise InvalidOptionError(
                "--cluster: expected <machine>x<devices> with --model, got "
                "none; for example --cluster h100x64"
            )

    def check_plan_choice(self, required: bool = True) -> None:
        """Refuse PLAN beside ``--plan``, and neither if one is required."""
        if self.plan_text is not None and self.plan is not None:
            raise InvalidOptionError(
                f"--plan: expected either it or PLAN, got {self.plan_text!r} "
                f"too; remove one"
            )
        if required and self.plan_text is None and self.plan is None:
            raise InvalidOptionError(
                f"{self.command}: expected PLAN, got none; see "
                f"'{self.command} --help', or pass --plan"
            )

    def check_files(
        self,
        reads: Mapping[str, str | None] | None = None,
        writes: Mapping[str, str | None] | None = None,
    ) -> None:
        """Refuse files that cannot be written, or are named twice.

        Those of the command's own options and arguments come by their names.
        """
        writes = {
            "--json": self.json_path,
            "-o": self.output,
            **(writes or {}),
        }
        model = self.model
        check_distinct_files(
            {
                "PROBLEM": self.problem_text,
                "PLAN": self.plan_text,
                "--plan": self.plan,
                **(reads or {}),
                "--model": model if model and os.path.isfile(model) else None,
                "--profile": self.job.get("profile"),
                "--calibration": self.job.get("calibration"),
                "--warm-start": self.warm_start,
                **writes,
            }
        )
        for name, path in writes.items():
            check_output(path, name)

    def find_problem(self) -> Problem:
        """Return the problem of PROBLEM, or of ``--model``."""
        if self.problem_text is not None:
            return load_problem(self.problem_text)
        job = {**self.job, "target": self.target}
        return model_problem(load_model(self.job["model"]), job, self.named)

    @property
    def named(self) -> dict[str, set[int | str]]:
        """Values of settings that pins and plans are named by."""
        from nest.analysis.plan_by_settings import are_settings
        from nest.constraints.pins import parse

        plans = (self.plan, self.plan_text, self.warm_start, *self.plans)
        found: dict[str, set[int | str]] = {}
        for text in (*self.pin, *(x for x in plans if x and are_settings(x))):
            # What cannot be read is refused where it is used.
            with suppress(NestError):
                for name, values in parse([text], "--pin").items():
                    found.setdefault(name, set()).update(values)
        return found

    def find_plan(self, problem: Problem, warn: bool = True) -> Plan | None:
        """Return the plan of PLAN or ``--plan`` for a problem, if any.

        Says on standard error what it is if it is one by its settings, and,
        unless told not to, if a file's was made for something else.
        """
        from nest.analysis.plan_by_settings import are_settings

        text, name = self.plan_text, "PLAN"
        if text is None:
            text, name = self.plan, "--plan"
        if text is None:
            return None
        if not are_settings(text):
            plan = load_plan(text)
            if warn:
                warn_if_foreign(problem, plan, self._remedy(problem, plan))
            return plan
        return fill_in(text, self.restricted(problem).problem, name)

    def made_for(self, problem: Problem, plan: Plan) -> str | None:
        """Return the target of the same ``--model`` that a plan was made for.

        ``None`` if it was made for this problem, or for something else.
        """
        from nest.ir.io import problem_hash

        known = plan.problem_hash
        if self.model is None or known in (None, problem_hash(problem)):
            return None
        for name in dict.fromkeys((ANY, *names())):
            try:
                other = replace(self, target=name).find_problem()
            except NestError:
                continue
            if problem_hash(other) == known:
                return name
        return None

    def _remedy(self, problem: Problem, plan: Plan) -> str:
        """Return what makes this problem that of a plan; empty if nothing."""
        name = self.made_for(problem, plan)
        if name is None:
            return ""
        if name == ANY:
            return f", with --target {self.target}; leave it out"
        return f", without --target {name}; add it"

    def find_problem_and_plan(self) -> tuple[Problem, Plan]:
        """Return what PROBLEM and PLAN say, or the options instead."""
        self.check_problem_choice()
        self.check_plan_choice()
        problem = self.find_problem()
        plan = self.find_plan(problem)
        assert plan is not None
        return problem, plan

    def restricted(self, problem: Problem | None = None) -> Restricted:
        """Return the problem as the options that narrow it down leave it."""
        name = self.target or ANY
        framework = target(name, "--target")
        if framework.rules is not None and self.granularity == "layer":
            raise InvalidOptionError(
                f"--granularity layer: expected stage with --target {name}, "
                f"which has one strategy for all layers, got layer; remove it"
            )
        asked = self.job.get("schedule")
        rules = framework.rules
        if rules is not None and asked not in (None, *rules.schedule.value):
            raise InvalidOptionError(
                f"--schedule {asked}: expected one that {framework.title} "
                f"has, {' or '.join(rules.schedule.value)}, got {asked}; "
                f"leave it out or choose another target"
            )
        found = Restricted.of(
            problem or self.find_problem(),
            self.pin,
            self.forbid,
            self.granularity,
            framework,
            self.headroom,
            said=self.model is not None,
        )
        return replace(found, calibration=self.job.get("calibration"))

    def unsaid(self, restricted: Restricted) -> str:
        """Return :func:`defaults_of` the problem; empty for PROBLEM."""
        if self.model is None:
            return ""
        pins = restricted.pins
        return defaults_of(
            restricted.whole,
            load_model(self.model),
            {*self.given_job, *pins, *(SETTINGS[x].field for x in pins)},
        )

    def notes(self, restricted: Restricted) -> list[str]:
        """Return what a report says about options: given ones, and not."""
        unsaid = self.unsaid(restricted)
        return restricted.notes + [f"defaults: {unsaid}"] * bool(unsaid)

    def find_warm_start(self, problem: Problem) -> Plan | None:
        """Return the plan that ``--warm-start`` names for a problem."""
        from nest.analysis.plan_by_settings import are_settings
        from nest.ir.io import read_plan

        if self.warm_start is None:
            return None
        if are_settings(self.warm_start):
            return fill_in(self.warm_start, problem, "--warm-start")
        return read_plan(self.warm_start)

    def solve_options(
        self, solver: str, warm_start: Plan | None = None
    ) -> SolveOptions:
        """Return the options of a solver, without its ``--option``."""
        from nest.solvers.base import SolveOptions
        from nest.solvers.registry import default_workers

        return SolveOptions(
            time_limit_s=self.time_limit,
            gap=self.gap,
            num_workers=self.workers
            or default_workers(solver, self.time_limit),
            seed=self.seed,
            warm_start=warm_start,
            repair=self.repair,
        )

    def write_json(self, document: Mapping[str, Any]) -> None:
        """Write the document that ``--json`` asks for, if it does."""
        if self.json_path is not None:
            write_json(self.json_path, document)

    def write_plan(self, plan: Plan | None) -> None:
        """Write the plan that ``-o`` asks for, or say that there is none.

        Then a file of that name is removed, so that nobody takes a plan of
        before for this one.
        """
        if self.output is None:
            return
        if plan is not None:
            write_record(self.output, plan)
            return
        file = Path(self.output)
        removed = self.output != "-" and file.is_file()
        if removed:
            file.unlink()
        what = "removed" if removed else "not written"
        say(f"nest: {self.output} {what}: no plan", err=True)
