"""Files that a framework starts with: a launch, as a problem and its plan."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from msgspec.structs import replace

from nest.constraints.targets import ANY
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks.faults import STAND_INS, Fault, raise_questions
from nest.ir.io import problem_hash
from nest.models.named import load_model
from nest.requests.settings import Request, option_name, setting
from nest.requests.values import RefusedValueError, anything, integer, name_text, pairs

if TYPE_CHECKING:
    from nest.frameworks.importing import Imported, Site
    from nest.frameworks.launch import Launch
    from nest.models.architectures import Architecture
    from nest.validation.software import Software


def _assignments(value: Any) -> tuple[tuple[str, str], ...]:
    """Read texts such as ``TP=4``; in Python also a mapping."""
    if all(isinstance(each, tuple) for each in value):
        return tuple(value)  # what this reader returned
    assignments = []
    for text in pairs(value):
        name, equals, content = text.partition("=")
        if not name or not equals:
            raise RefusedValueError(
                f"expected NAME=VALUE, got {text!r}; for example TP=4"
            )
        assignments.append((name, content))
    return tuple(assignments)


SAY: Any = setting(
    "--say NAME=VALUE",
    "What the file does not say, as the framework names it; repeatable.",
    _assignments,
    multiple=True,
)
VARIABLES: Any = setting(
    "--set NAME=VALUE",
    "Value of a shell variable, instead of the script's; repeatable.",
    _assignments,
    multiple=True,
)
IGNORE: Any = setting(
    "--ignore NAME",
    "An argument or key of the file that does not count; repeatable.",
    pairs,
    multiple=True,
)


class LaunchReading(NamedTuple):
    """What a file says, with notes for the user, as ``build`` takes it.

    ``software`` is the name of what runs it, by default the framework's.
    With ``plan_order`` the framework puts ranks where the plan has them.
    """

    launch: Launch
    model: Architecture
    notes: tuple[str, ...] = ()
    mesh_inside: bool = False
    target: str = ANY
    selective_operators: bool = False
    software: str | None = None
    plan_order: bool = False


@dataclass(frozen=True, kw_only=True)
class LaunchFileRequest(Request, command="nest import"):
    """A file that a framework starts with, and what the file leaves open."""

    #: The framework whose export writes such files.
    FRAMEWORK: ClassVar[str]

    path: str = setting("FILE", "The file.", required=True)
    cluster: str = setting(
        "--cluster NAME|FILE",
        "Machine and devices, such as h100x64, or a file with them.",
        required=True,
    )
    model: str | None = setting(
        "--model NAME", "The model, as far as the file does not say it."
    )
    overlap: tuple[str, ...] = setting(
        "--overlap NAME=F,…",
        "Fraction of communication that is hidden where the file lets it overlap, such "
        "as gradients=0.9; repeatable.  [default: as calibrated]",
        anything,
        multiple=True,
    )
    calibration: str | None = setting(
        "--calibration FILE",
        "What kernels reach on the user's own devices, and what of "
        "communication is hidden there; see 'nest calibrate'.",
    )
    software: str | None = setting(
        "--software NAME",
        "Software that runs it, with its release, such as 'NeMo 24.07': its kernels "
        "count.  [default: the framework of the file]",
        name_text,
    )
    layers_per_node: int = setting(
        "--layers-per-node N",
        "Consecutive layers that plans do not cut apart.",
        integer(),
        default=1,
    )
    rank_map: str | None = setting(
        "--rank-map FILE",
        "The plan's device of every rank.  [default: rank_map.json beside "
        "FILE, if there is one]",
    )
    plan: str | None = setting(
        "--plan FILE", "Where to write the plan.  [default: beside -o]"
    )

    @property
    def text(self) -> str:
        """The text of the file."""
        return read_text(self.path)

    @property
    def architecture(self) -> Architecture | None:
        """The model of ``--model``, if it is given."""
        return None if self.model is None else load_model(self.model)

    def find_site(self) -> Site:
        """Return the cluster, with what its calibration says."""
        from nest.frameworks.importing import Site
        from nest.hardware import find_cluster
        from nest.hardware.calibration_file import own_runs_for, with_calibration

        parts, network = find_cluster(self.cluster)
        parts, record = with_calibration(parts, self.calibration)
        software = None if record is None else record.software
        user_runs = own_runs_for(record, parts)
        return Site(parts, network, software, self.calibration, user_runs)

    def find_devices(self) -> tuple[int, ...] | None:
        """Return the device of every rank, ``None`` for all in order."""
        from nest.frameworks.hosts import RANK_MAP, read_map

        default = Path(self.path).with_name(RANK_MAP)
        if self.rank_map is None and not default.is_file():
            return None
        path = self.rank_map or str(default)
        return read_map(read_text(path), path)

    def plan_path(self, output: str) -> str:
        """Return where the plan goes: ``problem-plan.json`` by default."""
        if self.plan is None and output == "-":
            raise InvalidOptionError(
                "--plan: expected a file, got none, and -o is standard output; add it"
            )
        path = Path(output)
        return self.plan or str(path.with_name(f"{path.stem}-plan.json"))

    def check(self) -> None:
        """Refuse a request that leaves open what the file does not say."""

    def read(self, num_ranks: int) -> LaunchReading:
        """Return what the file says, for a number of ranks."""
        raise NotImplementedError

    def imported(self, any_sequences: bool = False) -> Imported:
        """Return the problem and the plan of the file, with all notes.

        ``any_sequences`` as of :class:`nest.frameworks.importing.Freedom`.

        Raises ``InvalidPlanError`` if the plan is none of the problem.
        """
        from nest.cost.score import score
        from nest.frameworks.importing import Freedom, build, overlap_of
        from nest.frameworks.launch import rank_map_of, usual_mesh
        from nest.validation.software import meant_software

        self.check()
        overlap, site = overlap_of(self.overlap), self.find_site()
        devices = self.find_devices()
        reading = self.read(site.num_devices if devices is None else len(devices))
        if reading.plan_order:
            launch = reading.launch
            stride, mesh = launch.world // launch.replicas, usual_mesh(launch)
            order = range(launch.world) if devices is None else devices
            devices = tuple(order[rank] for rank in rank_map_of(launch, stride, mesh))
        freedom = Freedom(
            self.layers_per_node, any_sequences, reading.selective_operators
        )
        site, facts = self._under_software(site, reading)
        made = build(
            *(reading.launch, reading.model, site, overlap, freedom, devices),
            *(reading.mesh_inside, reading.target),
        )
        job, weights = made.problem.job, made.model.parameters
        job = replace(job, optimizer=facts.with_buckets(job.optimizer, weights))
        problem = replace(made.problem, software=facts.name, job=job)
        score(problem, made.plan)
        plan = replace(made.plan, problem_hash=problem_hash(problem))
        notes = (*reading.notes, *made.notes)
        if self.software is None:
            notes += (f"kernels are those of {facts.name}; --software names others",)
        elif question := meant_software(self.software):
            notes += (f"--software {self.software!r} is not known, {question}",)
        return made._replace(problem=problem, plan=plan, notes=notes)

    def _under_software(
        self, site: Site, reading: LaunchReading
    ) -> tuple[Site, Software]:
        """Return the site as the software runs there, and the facts of its entry."""
        from nest.validation.planned import planned

        launch, machines = reading.launch, site.machines
        try:
            software = planned(
                *(self.software or reading.software, self.FRAMEWORK),
                reading.model.name,
                *(machines[0][0].device.name, launch.dtype),
            )
        except InvalidOptionError as error:
            raise InvalidOptionError(f"--{error}") from None
        assert software is not None
        execution = software.execution(machines)
        site = site._replace(machines=software.on(machines), execution=execution)
        return site, software.facts


def _open_question(setting_name: str, answer: str) -> Fault:
    """Return the question for what a configuration does not say."""
    name = option_name(setting_name)
    return Fault(
        f"{name}: expected a value, got none, and the configuration does not say it; "
        f"add it",
        subject=name,
        answers=(name, answer),
    )


def read_text(path: str) -> str:
    """Return the text of a file that a framework starts with."""
    from nest.ir.io import read_text

    return read_text(path, InvalidPlanError)


@dataclass(frozen=True, kw_only=True)
class MegatronRequest(LaunchFileRequest):
    """A launch of Megatron-LM."""

    FRAMEWORK: ClassVar[str] = "megatron"

    variables: tuple[tuple[str, str], ...] = VARIABLES
    say: tuple[tuple[str, str], ...] = SAY
    ignore: tuple[str, ...] = IGNORE

    def read(self, num_ranks: int) -> LaunchReading:
        """Return what a script or a configuration says."""
        from nest.frameworks.megatron_configs import read_config
        from nest.frameworks.printed import is_printed, read_printed
        from nest.frameworks.scripts import read_launch

        is_yaml = self.path.endswith((".yaml", ".yml"))
        read_file = read_config if is_yaml else read_launch
        if is_printed(self.text):
            read_file = read_printed
        launched = read_file(
            *(self.text, self.path, num_ranks),
            dict(self.variables),
            [*self.say],
            self.architecture,
            self.ignore,
        )
        launch, model = launched.reading.launch, launched.reading.model
        mesh_inside = launched.reading.pipelines_inside
        return LaunchReading(launch, model, launched.notes, mesh_inside)


@dataclass(frozen=True, kw_only=True)
class TorchtitanRequest(LaunchFileRequest):
    """A job file of torchtitan."""

    FRAMEWORK: ClassVar[str] = "torchtitan"

    say: tuple[tuple[str, str], ...] = SAY
    ignore: tuple[str, ...] = IGNORE

    def read(self, num_ranks: int) -> LaunchReading:
        """Return what a job file says."""
        from nest.frameworks.torchtitan import read_foreign

        job = read_foreign(
            *(self.text, self.path, num_ranks, [*self.say]),
            self.architecture,
            lambda name: read_text(str(Path(self.path).parent / name)),
            self.ignore,
        )
        return LaunchReading(
            *(job.launch, job.model, job.notes),
            selective_operators=job.launch.recompute == "selective",
            software="torchtitan, compiled" if job.compiled else None,
        )


@dataclass(frozen=True, kw_only=True)
class MaxTextRequest(LaunchFileRequest):
    """A configuration of MaxText, or a script that starts it."""

    FRAMEWORK: ClassVar[str] = "maxtext"

    variables: tuple[tuple[str, str], ...] = VARIABLES
    say: tuple[tuple[str, str], ...] = SAY
    ignore: tuple[str, ...] = IGNORE

    def read(self, num_ranks: int) -> LaunchReading:
        """Return what a configuration or a script says."""
        from nest.frameworks.maxtext import configuration_of, read_foreign
        from nest.frameworks.maxtext_script import is_script, read_configuration
        from nest.frameworks.scripts import check_variables

        text, path, variables = self.text, self.path, dict(self.variables)
        if is_script(text, path):
            keys = read_configuration(text, path, variables, self._read_named)
        else:
            check_variables(variables, (), path)
            keys = configuration_of(text, path)
        launch, model, notes = read_foreign(
            *(keys, path, num_ranks, [*self.say]), *(self.architecture, self.ignore)
        )
        # Of its mesh, data is outside the stages, and fsdp inside (mesh_axes).
        outside = launch.zero < 2 and launch.stages > 1
        return LaunchReading(
            launch, model, notes, outside, target="maxtext", plan_order=not outside
        )

    def _read_named(self, name: str) -> str | None:
        """Return the text of a file that the script names, from there or beside it."""
        folder = Path(self.path).parent
        for path in (folder / name, folder / Path(name).name, Path(name)):
            if path.is_file():
                return read_text(str(path))
        return None


@dataclass(frozen=True, kw_only=True)
class AccelerateRequest(LaunchFileRequest):
    """A configuration of Hugging Face Accelerate."""

    FRAMEWORK: ClassVar[str] = "accelerate"

    say: tuple[tuple[str, str], ...] = SAY
    ignore: tuple[str, ...] = IGNORE

    def read(self, num_ranks: int) -> LaunchReading:
        """Return what a configuration says, with the arguments of a trainer."""
        from nest.frameworks.accelerate import read_foreign

        def read_sibling(name: str) -> str:
            path = Path(self.path).with_name(name)
            return read_text(str(path)) if path.is_file() else ""

        model = self.architecture
        if model is None:
            attempts = (dataclasses.replace(self, model=name) for name in STAND_INS)
            raise_questions(
                [_open_question("model", "<NAME|config.json>")],
                [partial(attempt.read, num_ranks) for attempt in attempts],
            )
        launch, notes = read_foreign(
            *(self.text, self.path, num_ranks, model, [*self.say]),
            *(read_sibling, self.ignore),
        )
        return LaunchReading(launch, model, notes, target="accelerate")


@dataclass(frozen=True, kw_only=True)
class DeepSpeedRequest(LaunchFileRequest):
    """A launch with DeepSpeed."""

    FRAMEWORK: ClassVar[str] = "deepspeed"

    sequence_length: int | None = setting(
        "--sequence-length N", "Tokens per sample.", integer()
    )
    tp: int = setting("--tp N", "Tensor parallel degree.", integer(), default=1)
    pp: int = setting(
        "--pp N", "Pipeline stages, of equal layers.", integer(), default=1
    )
    variables: tuple[tuple[str, str], ...] = VARIABLES
    say: tuple[tuple[str, str], ...] = SAY
    ignore: tuple[str, ...] = IGNORE

    def read(self, num_ranks: int) -> LaunchReading:
        """Return what a configuration, or a script, says."""
        from nest.frameworks.deepspeed import read_foreign

        model, length = self.architecture, self.sequence_length
        if model is None or length is None:
            if not self.path.endswith(".json"):
                return self._read_script(num_ranks)
            answers = {"model": "<NAME|config.json>", "sequence_length": "<N>"}
            attempts = (
                dataclasses.replace(self, model=name, sequence_length=tokens)
                for name, tokens in zip(STAND_INS, (1024, 4096), strict=True)
            )
            raise_questions(
                [
                    _open_question(name, value)
                    for name, value in answers.items()
                    if getattr(self, name) is None
                ],
                [partial(attempt.read, num_ranks) for attempt in attempts],
            )
        launch, notes = read_foreign(
            *(self.text, self.path, num_ranks, model, length),
            *((self.tp, self.pp), self.say, self.ignore),
        )
        return LaunchReading(launch, model, notes, target="deepspeed")

    def _read_script(self, num_ranks: int) -> LaunchReading:
        """Return what a script of Megatron-DeepSpeed says."""
        from nest.frameworks.deepspeed import read_launch
        from nest.frameworks.scripts import check_variables
        from nest.frameworks.shell import read_script

        path, variables = self.path, dict(self.variables)
        script = read_script(self.text, path, variables)
        check_variables(variables, script.used, path)
        launch, model, notes = read_launch(
            *(script, path, num_ranks),
            lambda name: read_text(str(Path(path).parent / name)),
            *(self.say, self.ignore),
        )
        return LaunchReading(launch, model, notes, target="deepspeed")
