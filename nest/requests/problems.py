"""Which problem a request is about: one that exists, or one of a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, Self, TypeAlias, cast

from msgspec import structs

from nest.constraints.targets import (
    ANY,
    GRADIENTS,
    OPTIMIZERS,
    Framework,
    stated_schedules,
)
from nest.constraints.targets import target as find_target
from nest.cost.axes import AXES, EXPERT_TENSOR_AXIS
from nest.cost.magnitude import with_quantum
from nest.errors import (
    InvalidOptionError,
    InvalidProblemError,
    NestError,
    UnknownNameError,
)
from nest.ir.documents import read_stdin
from nest.ir.io import decode_problem, read_problem
from nest.ir.job import ANY_ORDER, SCHEDULES, Schedules, named_schedules
from nest.ir.plan import OVERLAP, RECOMPUTE, USUAL_RECOMPUTE, Overlap
from nest.ir.problem import Problem
from nest.requests import values as read
from nest.requests.settings import Request, given_settings, option_name, setting
from nest.requests.values import (
    Integers,
    Pairs,
    PathText,
    Reader,
    RefusedValueError,
    Words,
    also_needed,
    shown,
)
from nest.util.text import did_you_mean

if TYPE_CHECKING:
    from nest.hardware.machines import Machine
    from nest.models.architectures import Architecture

    #: A problem, or the name or file of one.
    ProblemLike: TypeAlias = Problem | PathText

#: Seconds per run of a solver for the problem of a model: the slower ones
#: would run for days.
MODEL_TIME_LIMIT_S = 60.0

#: What a model's job allows of an axis by default.
_DEFAULT_DEGREES = {
    "tp": "powers of two up to the node",
    "cp": "1, and 2 for long sequences",
    "ep": "powers of two up to 64",
    "etp": "as --tp",
}


#: Settings of a job that also change those of a PROBLEM.
_OF_ANY_PROBLEM = ("schedule", "virtual_stages")


def _meaning(axis_name: str) -> str:
    """Return the help of the degrees of a parallel axis."""
    axes = (*AXES, EXPERT_TENSOR_AXIS)
    (axis,) = (axis for axis in axes if axis.name == axis_name)
    default = _DEFAULT_DEGREES.get(axis_name, "1")
    return f"{axis.meaning.capitalize()}.  [default: {default}]"


def _overlap_fractions(value: Any) -> dict[Overlap, float]:
    if value == "none":
        return {}
    from nest.models.choices import read_overlap

    if isinstance(value, Mapping):
        value = [f"{name}={x}" for name, x in value.items()]
    return read_overlap([value] if isinstance(value, str) else value)


_read_overlap = Reader(
    _overlap_fractions,
    lambda fractions: True,
    f"'none', or some of {', '.join(OVERLAP)}, each once, with a fraction from 0 to 1",
    "for example gradients=0.9,tp=0.5",
)


def _schedules(value: Any) -> str | tuple[str, ...]:
    """Read a schedule, several separated by commas, or ``any``."""
    if isinstance(value, str) and "," not in value:
        return read.one_of(*SCHEDULES, ANY_ORDER)(value)
    names = value.split(",") if isinstance(value, str) else value
    if len(names) > 1 and ANY_ORDER in names:
        raise RefusedValueError(
            f"expected names of schedules, or {ANY_ORDER!r} alone, got "
            f"{','.join(names)!r}; remove {ANY_ORDER!r} or the others"
        )
    several = tuple(read.one_of(*SCHEDULES)(name) for name in names)
    return several[0] if len(several) == 1 else several


class ScheduleFile(str):
    """The path of a file with an order of passes."""


def schedule_or_file(value: Any) -> str | tuple[str, ...]:
    """Read schedules, or the path of a file, which no name looks like."""
    path = os.fspath(value) if isinstance(value, str | os.PathLike) else ""
    if "." in path or os.sep in path:
        return ScheduleFile(path)
    return _schedules(value)


@dataclass(frozen=True, kw_only=True)
class JobRequest(Request, group="Model, cluster and job"):
    """The job of a model, and what its costs rest on.

    The fields are those of :class:`nest.models.choices.Request`, a profile
    and a calibration.
    """

    global_batch: int | None = setting(
        "--global-batch N",
        "Samples per step.  [default: about 4 Mi tokens]",
        read.integer(),
        unit="samples",
    )
    sequence_length: int | None = setting(
        "--sequence-length N",
        "Tokens per sample.  [default: the model's longest, at most 8192]",
        read.integer(),
        unit="tokens",
    )
    micro_batches: Integers | None = setting(
        "--micro-batches N,…",
        "Samples of one pipeline step.  [default: 1,2,4,…,64]",
        read.integers(),
        unit="samples",
    )
    tp: Integers | None = setting("--tp N,…", _meaning("tp"), read.integers())
    cp: Integers | None = setting("--cp N,…", _meaning("cp"), read.integers())
    ep: Integers | None = setting("--ep N,…", _meaning("ep"), read.integers())
    etp: Integers | None = setting("--etp N,…", _meaning("etp"), read.integers())
    zero: Integers | None = setting(
        "--zero N,…", "ZeRO stages.  [default: 0,1,2,3]", read.integers(0, 3)
    )
    recompute: Words | None = setting(
        "--recompute A,…",
        f"Recompute choices.  [default: {','.join(USUAL_RECOMPUTE)}]",
        read.several_of(RECOMPUTE),
    )
    sequence_parallel: bool | tuple[bool, ...] | str | None = setting(
        "--sequence-parallel on|off|on,off",
        "Whether activations between layers are split over tensor ranks too; "
        "both leaves it to every stage.  [default: on where tokens divide]",
        read.switches,
    )
    virtual_stages: Integers | None = setting(
        "--virtual-stages N,…",
        "Chunks of layers per pipeline stage; above 1 plans are "
        "interleaved.  [default: 1]",
        read.integers(),
    )
    schedule: str | tuple[str, ...] | None = setting(
        "--schedule NAME,…",
        f"Pipeline schedule, of {', '.join(SCHEDULES)}; several for plans to "
        f"choose from, or 'any' for any order of passes.  [default: 1f1b; after it, "
        f"'nest solve --model' looks at others for at most 1 s of CPU, or a "
        f"fifth of the search's time up to 5 s]",
        Reader(_schedules, bool, "", "", (*SCHEDULES, ANY_ORDER)),
    )
    overlap: Mapping[str, float] | str | None = setting(
        "--overlap NAME=FRACTION,…",
        f"Communication that plans may overlap with computation, of "
        f"{', '.join(OVERLAP)}, with the overlapped fraction, such as "
        f"gradients=0.9, or 'none'.  [default: that of the software, if any]",
        _read_overlap,
    )
    distributed_optimizer: bool = setting(
        "--distributed-optimizer",
        "Plans may shard the optimizer over replicas too, as Megatron-LM's.",
    )
    layers_per_node: int | None = setting(
        "--layers-per-node N",
        "Consecutive layers that plans do not cut apart.  [default: 1, more "
        "beyond 100 layers]",
        read.integer(),
        unit="layers",
    )
    dtype: str | None = setting(
        "--dtype bf16|fp16|fp8",
        "Of the matrix products.  [default: bf16]",
        read.one_of("bf16", "fp16", "fp8"),
    )
    gradients: str | None = setting(
        "--gradients bf16|fp32",
        "What gradients are kept in.  [default: that of the target, else bf16]",
        read.one_of(*GRADIENTS),
    )
    optimizer: str | None = setting(
        f"--optimizer {'|'.join(OPTIMIZERS)}",
        "Optimizer, which sets the bytes of optimizer state per weight.  "
        "[default: adam]",
        read.one_of(*OPTIMIZERS),
    )
    software: str | None = setting(
        "--software NAME",
        "Software that trains, with its release, such as 'NeMo 24.07': its kernels, "
        "overlap and bytes per weight count.  [default: that of the target]",
        read.name_text,
    )
    profile: PathText | None = setting(
        "--profile FILE",
        "Measured layers to prefer over analytic costs; see 'nest profile'.",
    )
    calibration: PathText | None = setting(
        "--calibration FILE",
        "What kernels reach on the user's own devices; see 'nest calibrate'.",
    )

    @property
    def given_job(self) -> list[str]:
        """The fields of the job that are not left to their defaults."""
        given = given_settings(self)
        return [name for name in JOB_FIELDS if name in given]

    def build_problem(
        self,
        model: Architecture,
        cluster: str,
        target: str | None = None,
        named: Mapping[str, Collection[int | str]] | None = None,
        change: Callable[[Machine], Machine] | None = None,
    ) -> Problem:
        """Return the problem of training a model on a cluster, by its name or file.

        The defaults of the framework ``target`` count. ``named`` are values of settings
        that plans are named by, see :func:`nest.models.choices.choose`. Costs are those
        of the machines that ``change`` returns for those of the cluster.
        """
        from nest.hardware import find_cluster
        from nest.hardware.calibration_file import resting_on, with_calibration
        from nest.models.choices import Request as Choice
        from nest.models.choices import choose
        from nest.models.graphs import build_on
        from nest.validation.planned import planned

        chosen = {
            name: getattr(self, name)
            for name in Choice.__struct_fields__
            if name != "target"
        }
        calibration_path: Any = self.calibration
        try:
            try:
                machines, network = find_cluster(cluster)
            except UnknownNameError as error:
                error.args = (f"--cluster: {error}",)
                raise
            machines, calibration = with_calibration(machines, calibration_path)
            choices = choose(
                model,
                machines[0][0],
                sum(count for _, count in machines),
                Choice(**chosen, target=target),
                named,
            )
            software = planned(
                *(self.software, target, model.name),
                *(machines[0][0].device.name, choices.dtype),
            )
            if software is not None:
                choices = software.choices(
                    choices,
                    machines,
                    self._stated_facts(target),
                    calibration.software.overlap if calibration else None,
                )
                choices = software.with_buckets(choices, model.parameters)
                machines = software.on(machines)
        except InvalidOptionError as error:
            field, colon, rest = str(error).partition(":")
            raise InvalidOptionError(f"{option_name(field)}{colon}{rest}") from None
        priced = machines
        if change is not None:
            priced = [(change(site), count) for site, count in machines]
        problem = build_on(model, priced, choices, network)
        if software is not None:
            problem = structs.replace(problem, software=software.facts.name)
        if calibration is not None:
            problem = resting_on(problem, calibration, machines, calibration_path)
        problem = self._on_network(problem)
        if self.profile is None:
            return problem
        from nest.profiles import apply_profile, load_profile

        path = os.fspath(self.profile)
        profile = load_profile(path)
        return with_quantum(
            apply_profile(
                problem,
                profile,
                model=model.name if model.name in profile.models else None,
                layers_per_node=choices.layers_per_node,
                where=path,
            )
        )

    def _stated_facts(self, target: str | None) -> frozenset[str]:
        """Return which facts of a software the request or a target states itself."""
        stated = {"overlap": self.overlap is not None}
        bytes_stated = self.gradients is not None or self.optimizer is not None
        stated["optimizer"] = bytes_stated or target not in (None, ANY)
        return frozenset(name for name, is_stated in stated.items() if is_stated)

    def _on_network(self, problem: Problem) -> Problem:
        return problem


JOB_FIELDS = tuple(
    name
    for name in JobRequest.__dataclass_fields__
    if name not in Request.__dataclass_fields__
)


@dataclass(frozen=True, kw_only=True)
class NetworkRequest(Request, group="Model, cluster and job"):
    """What a network's file leaves open: facts and the order of devices."""

    beside: Pairs = setting(
        "--beside KEY=VALUE,…",
        "What the file of --topology does not say, such as "
        "devices_per_node=8; repeatable, lists as 4e11/2e11.",
        read.pairs,
        multiple=True,
    )
    order: str | None = setting(
        "--order given|auto|FILE",
        "Order of the devices of --topology: as given, one that keeps "
        "together what is close, or that of a rank file.  [default: given]",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class ModelRequest(NetworkRequest, JobRequest, group="Model, cluster and job"):
    """A model on a cluster, with its job."""

    model: PathText | None = setting(
        "--model NAME",
        "Model instead of PROBLEM: a name, see 'nest problems --models', or "
        "a config.json of Hugging Face.",
    )
    cluster: PathText | None = setting(
        "--cluster NAME|FILE",
        "Machine and devices for --model, such as h100x64, several as "
        "h100x64+a100x64; or a file with them, see docs/files.md.",
    )
    topology: PathText | None = setting(
        "--topology FILE|NAME",
        "Network of these devices instead of the machine's own: a file (see "
        "docs/topologies.md), or a name such as torus:4x4x4 or "
        "dgx:8,nodes_per_leaf=4,oversubscription=2.",
    )

    @property
    def given_job(self) -> list[str]:
        """The fields of a model that are not left to their defaults."""
        given = given_settings(self)
        return [name for name in MODEL_FIELDS if name in given]

    def check_model(self) -> None:
        """Refuse options of a model without ``--model`` and ``--cluster``."""
        given = self.given_job
        if given and self.model is None:
            raise also_needed(option_name(given[0]), "--model")
        if given and self.cluster is None:
            raise InvalidOptionError(
                "--cluster: expected <machine>x<devices> with --model, got "
                "none; for example --cluster h100x64"
            )

    def model_problem(
        self,
        target: str | None = None,
        named: Mapping[str, Collection[int | str]] | None = None,
        change: Callable[[Machine], Machine] | None = None,
    ) -> Problem:
        """Return the problem of the model, see :meth:`build_problem`."""
        from nest.models.named import load_model

        self.check_model()
        assert self.model is not None
        assert self.cluster is not None
        model = load_model(os.fspath(self.model))
        cluster = os.fspath(self.cluster)
        return self.build_problem(model, cluster, target, named, change)

    def limited(self, slow: bool = False) -> Self:
        """Return the request with a time limit, for a model if it has none.

        With ``slow``, for every problem.
        """
        limit_s = getattr(self, "time_limit", None)
        if limit_s is None and (slow or self.model is not None):
            changes: dict[str, Any] = {"time_limit": MODEL_TIME_LIMIT_S}
            return replace(self, **changes)
        return self

    def _on_network(self, problem: Problem) -> Problem:
        """Return the problem on the network of ``topology``, if any."""
        if self.topology is None:
            for name in ("beside", "order"):
                if getattr(self, name):
                    raise also_needed(f"--{name}", "--topology")
            return problem
        from nest.hardware import find_cluster
        from nest.requests import networks
        from nest.topology.generators.machine import on_machine

        where, facts = os.fspath(self.topology), tuple(self.beside)
        if networks.is_generated(where) and not facts:
            (site, _), *_ = find_cluster(os.fspath(self.cluster or ""))[0]
            graph = on_machine(where, site, self.order)
            network = networks.in_order(graph, self.order)
        else:
            network = networks.find_network(where, facts, self.order)
        return with_quantum(networks.with_network(problem, network, where))


#: Options of a model in the order in which help lists them.
MODEL_FIELDS = (*("model", "cluster", "topology", "beside", "order"), *JOB_FIELDS)


def _read_problem(value: Any) -> Any:
    if isinstance(value, Problem):
        return value
    if isinstance(value, str | os.PathLike):
        return os.fspath(value)
    raise InvalidProblemError(
        f"PROBLEM: expected a problem, a name or a file, got "
        f"{shown(value)}; pass one, the problem before a plan"
    )


@dataclass(frozen=True)
class ProblemRequest(ModelRequest, command="nest problem"):
    """A problem: a record, a name, a file, or a model on a cluster."""

    problem: ProblemLike | None = setting(
        "[PROBLEM]",
        "Name or file of a problem, or in Python a problem; otherwise a model.",
        _read_problem,
    )
    _: KW_ONLY
    target: str | None = setting(
        "--target NAME",
        "Framework whose gradients and optimizer --model keeps, and that can "
        "run a plan by its settings.  [default: any]",
    )

    @property
    def problem_text(self) -> str | None:
        """The name or file of the problem, or its name if it is a record."""
        if self.problem is None or isinstance(self.problem, str):
            return self.problem
        return getattr(self.problem, "name", None)

    @property
    def plan_texts(self) -> tuple[str, ...]:
        """The plans of the request that are settings or files."""
        plans = (getattr(self, name, None) for name in ("plan", "warm_start"))
        return tuple(plan for plan in plans if isinstance(plan, str))

    @property
    def named(self) -> dict[str, set[int | str]]:
        """Values of settings that pins and plans are named by."""
        from nest.constraints.pins import are_settings, parse

        plans = filter(are_settings, self.plan_texts)
        values_of: dict[str, set[int | str]] = {}
        for settings in (*getattr(self, "pin", ()), *plans):
            # What cannot be read is refused where it is used.
            with suppress(NestError):
                for name, values in parse([settings], "--pin").items():
                    values_of.setdefault(name, set()).update(values)
        return values_of

    def check_problem_choice(self) -> None:
        """Refuse all but either PROBLEM or ``--model`` with ``--cluster``."""
        given, command = self.given_job, self.COMMAND
        if self.problem is not None and "calibration" in given:
            raise InvalidOptionError(
                f"--calibration: expected --model, got {self.problem_text!r}, "
                f"a problem whose costs are already computed; build it anew "
                f"with --model, --cluster and --calibration"
            )
        given = [x for x in given if x not in _OF_ANY_PROBLEM]
        if self.problem is not None and given:
            raise InvalidOptionError(
                f"{option_name(given[0])}: expected either PROBLEM or --model "
                f"with its options, got {self.problem_text!r} too; remove one"
            )
        if self.problem is None and not self.given_job:
            raise InvalidOptionError(
                f"{command}: expected PROBLEM, got none; see "
                f"'{command} --help', or pass --model and --cluster"
            )
        if self.problem is None:
            self.check_model()

    def find_problem(self) -> Problem:
        """Return the problem that is named, or that of the model."""
        self.check_problem_choice()
        if self.problem is None:
            return self.model_problem(self.target, self.named)
        problem = self.problem
        if not isinstance(problem, Problem):
            problem = load_problem(os.fspath(problem))
        return _with_schedule(
            problem,
            cast("Schedules | None", self.schedule),
            cast("tuple[int, ...] | None", self.virtual_stages),
            find_target(self.target or ANY, "--target"),
        )


def _with_schedule(
    problem: Problem,
    stated: Schedules | None,
    virtual_stages: tuple[int, ...] | None,
    target: Framework,
) -> Problem:
    """Return a problem whose plans have other schedules."""
    if stated is None and virtual_stages is None:
        return problem
    job = problem.job
    schedule = stated_schedules(target, stated) if stated else job.schedule
    if virtual_stages is None:
        virtual_stages = job.virtual_stages
        if "1f1b" not in named_schedules(schedule):
            virtual_stages = (1,)
        elif stated == ANY_ORDER:
            from nest.models.choices import CHUNKS_OF_ANY_ORDER

            virtual_stages = (1, *CHUNKS_OF_ANY_ORDER)
    try:
        job = structs.replace(job, schedule=schedule, virtual_stages=virtual_stages)
    except ValueError as error:
        raise InvalidOptionError(f"--schedule: {error}") from None
    return structs.replace(problem, job=job)


def load_problem(source: str) -> Problem:
    """Return the problem in a file, on standard input (``-``), or of a name.

    A file wins over a built-in problem or an instance of the same name.
    """
    if source == "-":
        return decode_problem(read_stdin(InvalidProblemError), "standard input")
    if os.path.exists(source):
        return read_problem(source)

    from nest.instances import store
    from nest.models import builtin

    problem = named_problem(source)
    if problem is not None:
        return problem
    if os.sep in source or source.endswith((".json", ".yaml", ".yml")):
        return read_problem(source)  # says that there is no such file
    names = (*builtin.names(), *store.index())
    hint = did_you_mean(source, names, "see 'nest problems' and 'nest instances'")
    raise InvalidProblemError(
        f"{source}: expected a file, a built-in problem ({', '.join(builtin.names())}) "
        f"or an instance, got no such file and no such name; {hint}"
    )


def named_problem(name: str) -> Problem | None:
    """Return the built-in problem or the instance of a name, if any."""
    from nest.instances import store
    from nest.models import builtin

    if name in builtin.names():
        return builtin.load(name)
    return store.load(name) if name in store.index() else None


def file_settings(request: Any) -> dict[str, str | None]:
    """Return the files that a request reads, by the option that names them."""
    model: Any = getattr(request, "model", None)
    is_file = model is not None and os.path.isfile(model)
    paths = {
        "PROBLEM": getattr(request, "problem_text", None),
        "PLAN": getattr(request, "plan", None),
        "--model": os.fspath(model) if is_file else None,
        "--profile": getattr(request, "profile", None),
        "--calibration": getattr(request, "calibration", None),
        "--warm-start": getattr(request, "warm_start", None),
    }
    return {
        name: read.text(path) if isinstance(path, str | os.PathLike) else None
        for name, path in paths.items()
    }
