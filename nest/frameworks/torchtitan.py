"""torchtitan: a job file in TOML, and what its parsers make of it.

Written for torchtitan 0.2.2, the last with job files. It takes any type and
any name of a module without a word; what no run can start with is refused
when the file is read.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks.arguments import MAX_NUMBER, alike, passed_over
from nest.frameworks.hosts import read_hosts
from nest.frameworks.launch import (
    Groups,
    Launch,
    Mesh,
    as_run,
    check_memory,
    usual_groups,
    usual_mesh,
)
from nest.frameworks.layers import Chunk
from nest.frameworks.settings import Settings
from nest.ir.job import Schedule
from nest.ir.plan import Overlap
from nest.models.architectures import Architecture
from nest.models.zoo import architecture
from nest.units import ceil_div
from nest.util.text import count_text

NAME = "torchtitan"
FILE = "job.toml"

#: Bytes per weight: fp32 weights, of which layers count 2, and Adam.
STATE_BYTES, GRADIENT_BYTES = 10, 4

#: What torchtitan calls models.
FLAVORS = {
    "llama3-8b": "llama3/8B",
    "llama3-70b": "llama3/70B",
    "llama3-405b": "llama3/405B",
    "qwen3-30b-a3b": "qwen3/30B-A3B",
    "qwen3-235b-a22b": "qwen3/235B-A22B",
    "deepseek-v3": "deepseek_v3/671B",
}
_RESHARD = {2: "never", 3: "always"}
_SCHEDULES: dict[tuple[Schedule, bool], str] = {
    ("1f1b", False): "1F1B",
    ("1f1b", True): "Interleaved1F1B",
    ("gpipe", False): "GPipe",
}
_FLOAT8 = "quantize.linear.float8"


class Key(NamedTuple):
    """A key of the file: its type, its default, and which values it takes."""

    kind: type
    default: Any = None
    known: tuple[Any, ...] = ()


#: Dots of a line, at most.
_MAX_DOTS = 100
_DEGREE = Key(int, 1)
#: What is written and read, by section.
KEYS: dict[str, dict[str, Key]] = {
    "model": {
        "name": Key(str),
        "flavor": Key(str),
        "converters": Key(list, []),
    },
    "training": {
        "local_batch_size": Key(int, 8),
        "global_batch_size": Key(int, -1),
        "seq_len": Key(int, 2048),
        "dtype": Key(str, "float32", ("float32",)),
        "mixed_precision_param": Key(str, "bfloat16", ("bfloat16",)),
        "mixed_precision_reduce": Key(str, "float32", ("float32",)),
    },
    "parallelism": {
        "data_parallel_replicate_degree": _DEGREE,
        "data_parallel_shard_degree": Key(int, -1),
        "fsdp_reshard_after_forward": Key(
            str, "default", ("default", "always", "never")
        ),
        "tensor_parallel_degree": _DEGREE,
        "enable_async_tensor_parallel": Key(bool, False),
        "context_parallel_degree": _DEGREE,
        "expert_parallel_degree": _DEGREE,
        "expert_tensor_parallel_degree": _DEGREE,
        "pipeline_parallel_degree": _DEGREE,
        "pipeline_parallel_schedule": Key(
            str, "1F1B", tuple(_SCHEDULES.values())
        ),
        "pipeline_parallel_microbatch_size": _DEGREE,
        "module_fqns_per_model_part": Key(list),
        "pipeline_parallel_layers_per_stage": Key(int),
        "pipeline_parallel_first_stage_less_layers": Key(int, 1),
        "pipeline_parallel_last_stage_less_layers": Key(int, 1),
    },
    "activation_checkpoint": {"mode": Key(str, "selective", ("none", "full"))},
    "compile": {"enable": Key(bool, False)},
}


#: What FSDP overlaps by itself, which no key says, and how a comment of an
#: export says what of it the plan was priced with.
_BY_ITSELF: tuple[Overlap, ...] = ("weights", "gradients")
_OVERLAP = "FSDP overlaps in the plan: "


def mesh_of(launch: Launch) -> Mesh:
    """Return how ranks are numbered, the fastest axis first."""
    return usual_mesh(launch)


def said(launch: Launch) -> Launch:
    """Return what of a launch the file says: not what FSDP overlaps."""
    overlap = tuple(name for name in launch.overlap if name == "tp")
    return replace(as_run(launch), overlap=overlap)


def modules_of(chunks: Sequence[Chunk]) -> list[list[str]]:
    """Return the modules of every part of the model."""
    parts, first = [], 0
    for chunk in chunks:
        last = first + chunk.layers
        parts.append(
            ["tok_embeddings"] * chunk.embedding
            + [f"layers.{number}" for number in range(first, last)]
            + ["norm", "output"] * chunk.head
        )
        first = last
    return parts


def write(
    launch: Launch, model: Architecture, settings: Settings, heading: str
) -> dict[str, str]:
    """Return the job file.

    Raises
    ------
    InvalidPlanError
        If the file cannot say what is kept per weight, the data type, or
        how data ranks go together with others.
    InvalidOptionError
        If it is not known what torchtitan calls the model.
    """
    check_memory(launch, STATE_BYTES, (GRADIENT_BYTES,))
    flavor = settings.flavor or FLAVORS.get(model.name)
    if flavor is None or not re.fullmatch(r"[\w.+-]+/[\w.+-]+", flavor):
        raise InvalidOptionError(
            f"--flavor: expected torchtitan's name and flavor of "
            f"{model.name}, such as llama3/8B, got "
            f"{'none' if flavor is None else repr(flavor)}; add "
            f"it to nest export"
        )
    if launch.dtype not in ("bf16", "fp8"):
        raise InvalidPlanError(
            f"dtype: expected bf16 or fp8, got {launch.dtype}; torchtitan "
            f"computes in no other"
        )
    run = as_run(launch)
    reason = why_not_data(run)
    if reason is not None:
        raise InvalidPlanError(f"{reason}; choose another plan")
    piped = run.stages > 1
    name, flavor = flavor.split("/")
    # FSDP shards what it shards over dp_shard * cp ranks.
    replicas = run.replicas if run.zero else run.dp
    values: dict[str, dict[str, Any]] = {
        "model": {"name": name, "flavor": flavor},
        "training": {
            "local_batch_size": run.samples
            * (run.micro_batches if piped else 1),
            "global_batch_size": run.global_batch,
            "seq_len": run.sequence_length,
            "dtype": "float32",
            "mixed_precision_param": "bfloat16",
        },
        "parallelism": {
            "data_parallel_replicate_degree": replicas,
            "data_parallel_shard_degree": run.dp if run.zero else 1,
            "tensor_parallel_degree": run.tp,
            "context_parallel_degree": run.cp,
            "pipeline_parallel_degree": run.stages,
            "module_fqns_per_model_part": modules_of(run.chunks),
        },
        "activation_checkpoint": {"mode": run.recompute},
    }
    split = values["parallelism"]
    if run.zero:
        split["fsdp_reshard_after_forward"] = _RESHARD[run.zero]
    if run.ep > 1:
        split["expert_parallel_degree"] = run.ep
        split["expert_tensor_parallel_degree"] = run.tp
    if piped:
        kind = (run.schedule, run.virtual_stages > 1)
        split["pipeline_parallel_schedule"] = _SCHEDULES[kind]
        split["pipeline_parallel_microbatch_size"] = run.samples
    if "tp" in run.overlap:
        split["enable_async_tensor_parallel"] = True
        values["compile"] = {"enable": True}
    if run.dtype == "fp8":
        values["model"]["converters"] = [_FLOAT8]
    hidden = [name for name in run.overlap if name in _BY_ITSELF]
    overlap = f"# {_OVERLAP}{', '.join(hidden) or 'none'}\n"
    return {FILE: f"# {heading}\n{overlap}{_toml(values)}"}


def _toml(values: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sections of numbers, texts, truth values and lists of texts."""
    lines = []
    for section, keys in values.items():
        lines.append(f"\n[{section}]")
        for key, value in keys.items():
            if value and isinstance(value, list) and value[0] != _FLOAT8:
                parts = [f"    {json.dumps(part)}," for part in value]
                lines += [f"{key} = [", *parts, "]"]
            else:
                lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def why_not_data(launch: Launch) -> str | None:
    """Say why data ranks cannot go together with others, or ``None``.

    Weights are sharded and computed with in bf16 by FSDP only; replicas
    without it are a mode of their own, over all ranks (``parallelize.py``).
    """
    if launch.zero or (launch.world == launch.dp and launch.ep == 1):
        return None
    if launch.ep > 1:
        return "zero: expected 2 or 3 with expert parallelism, got 0"
    return (
        f"zero: expected 2 or 3 over several data ranks together with "
        f"{launch.tp} tensor and {launch.stages} pipeline ranks, got 0 over "
        f"{launch.dp}"
    )


def start(launch: Launch) -> str:
    """Say in one line how to start it."""
    return (
        f"torchrun (or srun) {launch.world} times -m torchtitan.train "
        f"--job.config_file {FILE}, with your sections for data, tokenizer, "
        f"optimizer and checkpoints."
    )


class Reading(NamedTuple):
    """What a job file says, and what it calls the model."""

    launch: Launch
    flavor: str


def read(
    files: Mapping[str, str], model: Architecture
) -> tuple[Launch, Groups]:
    """Read an export of this module, and refuse what could not run.

    Raises
    ------
    InvalidPlanError
        If it is broken; the text names file and key.
    """
    devices = read_hosts(files)
    ask = JobFile(files[FILE], FILE)
    ask.check_known()
    reading = read_job(ask, len(devices), model.layers)
    return reading.launch, usual_groups(reading.launch, devices)


class JobFile:
    """The keys of a job file, with their types checked.

    Every reader raises :class:`~nest.errors.InvalidPlanError` if a value has
    another type or is none of those known; the text names file and key.
    """

    def __init__(self, text: str, where: str) -> None:
        self.where = where
        self.text = text
        # What reads TOML needs memory that grows with the square of a key.
        for number, line in enumerate(text.splitlines(), 1):
            if line.count(".") > _MAX_DOTS and line.lstrip()[0] != "#":
                raise InvalidPlanError(
                    f"{where}:{number}: expected at most {_MAX_DOTS} dots, "
                    f"got {line.count('.')}; correct the line"
                )
        try:
            self.sections: dict[str, Any] = tomllib.loads(text)
        # Besides malformed text: integers of thousands of digits, and tables
        # inside tables without end.
        except (ValueError, RecursionError) as error:
            raise InvalidPlanError(
                f"{where}: expected TOML, got a syntax error ({error}); "
                f"correct it"
            ) from None

    def check_known(self) -> None:
        """Refuse sections and keys that exports do not write."""
        for section, keys in self.sections.items():
            for key in keys if isinstance(keys, dict) else [""]:
                if key not in KEYS.get(section, {}):
                    raise self.refuse(
                        section, key, "a known key", key or "none"
                    )

    def check_foreign(self) -> tuple[str, ...]:
        """Return the keys that nobody reads, sections of them as a whole.

        Raises
        ------
        InvalidPlanError
            If one is nearly a key that is read, or changes memory or time in
            a way that plans do not know.
        """
        left = []
        for section, keys in self.sections.items():
            if section in _OLD_SECTIONS:
                continue
            close = alike(section, KEYS)
            if section not in KEYS and close:
                raise self.refuse(
                    section,
                    "",
                    "a section that is known",
                    section,
                    f"did you mean {close!r}?",
                )
            own = KEYS.get(section, {})
            here = keys if isinstance(keys, dict) else {}
            for key, value in here.items():
                unchanged, why = _REFUSED.get((section, key), ((), ""))
                if why and value not in unchanged:
                    raise self.refuse(
                        section,
                        key,
                        " or ".join(json.dumps(one) for one in unchanged),
                        json.dumps(value, default=str)[:40],
                        why,
                    )
                if key in own or (section, key) in _MOVED or key in _OLD_KEYS:
                    continue
                close = alike(key, own)
                if close and not why:
                    raise self.refuse(
                        section,
                        key,
                        "a key that is known",
                        key,
                        f"did you mean {close!r}?",
                    )
                if own:
                    left.append(f"{section}.{key}")
            if not own:
                left.append(section)
        return tuple(left)

    def line(self, section: str, key: str) -> int | None:
        """Return the line of a key, if it is on a line of its own."""
        inside = False
        for number, line in enumerate(self.text.splitlines(), 1):
            text = line.strip()
            if text.startswith("["):
                inside = text.partition("]")[0] == f"[{section}"
            elif inside and text.partition("=")[0].strip() == key:
                return number
        return None

    def refuse(
        self,
        section: str,
        key: str,
        expected: str,
        got: object,
        remedy: str = "correct it",
    ) -> InvalidPlanError:
        """Return the error about one key."""
        line = self.line(section, key)
        place = f"{self.where}:{line}" if line else self.where
        name = f"{section}.{key}" if key else section
        return InvalidPlanError(
            f"{place}: {name}: expected {expected}, got {got}; {remedy}"
        )

    def get(self, section: str, key: str) -> Any:
        """Return a value, or the framework's default."""
        kind, default, known = KEYS[section][key]
        found = self.sections.get(section, {})
        if not isinstance(found, dict):
            raise self.refuse(section, key, "a section", json.dumps(found))
        value = found.get(key, default)
        if value is None:
            return None
        if type(value) is not kind:
            raise self.refuse(
                section, key, _KINDS[kind], json.dumps(value, default=str)
            )
        if isinstance(value, int) and abs(value) > MAX_NUMBER:
            raise self.refuse(
                section, key, f"at most {MAX_NUMBER}", count_text(value)
            )
        if known and value not in known:
            raise self.refuse(
                section,
                key,
                f"one of {', '.join(map(str, known))}",
                repr(value),
            )
        return value

    def count(self, section: str, key: str) -> int:
        """Return a number of at least 1."""
        value: int = self.get(section, key)
        if value < 1:
            raise self.refuse(section, key, "at least 1", value)
        return value

    def degree(self, key: str) -> int:
        """Return a parallel degree."""
        return self.count("parallelism", key)


_KINDS = {
    int: "an integer",
    str: "a text",
    bool: "true or false",
    list: "a list",
}


def read_job(ask: JobFile, world: int, layers: int) -> Reading:
    """Return what a job file says on so many devices, without groups.

    Parameters
    ----------
    ask
        The file.
    world
        Devices.
    layers
        Blocks of the model.

    Raises
    ------
    InvalidPlanError
        If a value is out of range, contradicts another one, or no run can
        start with it.
    """
    tp, cp = (
        ask.degree(f"{name}_parallel_degree") for name in ("tensor", "context")
    )
    stages = ask.degree("pipeline_parallel_degree")
    replicas = ask.degree("data_parallel_replicate_degree")
    shard_key = "data_parallel_shard_degree"
    shard = ask.get("parallelism", shard_key)
    others = replicas * tp * cp * stages
    if shard == -1:
        shard = world // others
    if shard < 1 or shard * others != world:
        raise ask.refuse(
            "parallelism",
            shard_key,
            f"degrees whose product is the {world} devices",
            f"{shard} * {others}",
        )
    sharded = shard * cp > 1
    ep = _expert_degree(ask, tp, shard * cp)
    chunks, virtual = _chunks(ask, layers, stages)
    samples, batch = _batch(ask, stages, replicas * shard)
    policy = ask.get("parallelism", "fsdp_reshard_after_forward")
    if policy == "default":
        policy = "never" if stages > 1 else "always"
    launch = Launch(
        tp=tp,
        cp=cp,
        dp=shard if sharded else replicas,
        ep=ep,
        replicas=replicas if sharded else 1,
        stages=stages,
        virtual_stages=virtual,
        chunks=chunks,
        schedule=_schedule(ask, stages, virtual),
        zero=(3 if policy == "always" else 2) if sharded else 0,
        recompute=ask.get("activation_checkpoint", "mode"),
        micro_batch=samples * (shard if sharded else replicas),
        global_batch=batch,
        sequence_length=ask.count("training", "seq_len"),
        overlap=("tp",) if _asynchronous(ask, tp) else (),
        sequence_parallel=tp > 1,
        dtype=_dtype(ask),
        gradient_bytes=GRADIENT_BYTES,
        state_bytes=STATE_BYTES,
    )
    reason = why_not_data(launch)
    if reason is not None:
        raise ask.refuse(
            "parallelism", shard_key, "what can run together", reason
        )
    micro = launch.micro_batches
    if stages > 1 and (
        micro < stages or (virtual > 1 and micro % max(1, micro // stages))
    ):
        raise ask.refuse(
            "training",
            "local_batch_size",
            f"micro-batches that {stages} stages can take",
            micro,
        )
    for section in KEYS:
        for key in KEYS[section]:
            ask.get(section, key)
    name, flavor = (ask.get("model", key) for key in ("name", "flavor"))
    if not name or not flavor:
        raise ask.refuse("model", "flavor", "name and flavor", "none")
    return Reading(launch, f"{name}/{flavor}")


#: Where keys were in older files, and what they were called.
_MOVED = {
    ("training", "batch_size"): ("training", "local_batch_size"),
    ("training", "data_parallel_degree"): (
        "parallelism",
        "data_parallel_shard_degree",
    ),
    **{
        (old, f"{key}_parallel{rest}"): (
            "parallelism",
            f"{key}_parallel{rest}",
        )
        for old in ("training", "experimental")
        for key, rest in (
            ("tensor", "_degree"),
            ("context", "_degree"),
            ("pipeline", "_degree"),
            ("pipeline", "_schedule"),
            ("pipeline", "_microbatch_size"),
            ("data", "_replicate_degree"),
            ("data", "_shard_degree"),
        )
    },
    ("training", "fsdp_reshard_after_forward"): (
        "parallelism",
        "fsdp_reshard_after_forward",
    ),
}
_SPLITS = "pipeline_parallel_split_points"
_MICRO = "pipeline_parallel_microbatches"
_OLD_SECTIONS = ("experimental",)
_OLD_KEYS = (_SPLITS, _MICRO)
#: Keys that change memory or time in ways that plans do not know: the values
#: that change nothing, and why others are refused.
_REFUSED: dict[tuple[str, str], tuple[tuple[Any, ...], str]] = {
    ("training", "enable_cpu_offload"): (
        (False,),
        "plans know no offloading",
    ),
    ("optimizer", "name"): (
        ("Adam", "AdamW"),
        "plans keep two moments with torchtitan",
    ),
    ("optimizer", "early_step_in_backward"): (
        (False,),
        "plans keep all gradients up to the step",
    ),
    ("parallelism", "disable_loss_parallel"): (
        (False,),
        "plans split the logits as they split the head",
    ),
    ("parallelism", "pipeline_parallel_schedule_csv"): (
        ("",),
        "plans know no schedules from files",
    ),
    ("parallelism", "pipeline_parallel_expert_parallel_overlap"): (
        (False,),
        "plans do not overlap two passes",
    ),
}


def unread(text: str, where: str) -> tuple[str, ...]:
    """Return the note about keys that are passed over, if there are any.

    Raises
    ------
    InvalidPlanError
        As for :meth:`JobFile.check_foreign`.
    """
    return passed_over(where, JobFile(text, where).check_foreign())


def read_foreign(
    text: str,
    where: str,
    world: int,
    said: Sequence[tuple[str, str]] = (),
    model: Architecture | None = None,
) -> tuple[Launch, Architecture]:
    """Read somebody's job file, of torchtitan 0.1 or later.

    Parameters
    ----------
    text, where
        The file, and its name for messages.
    world
        Devices.
    said
        Keys beside those of the file, such as ``activation_checkpoint.mode``,
        with their values.
    model
        The model, where the flavor is not known.

    Raises
    ------
    InvalidPlanError
        If a value is out of range or contradicts another one.
    """
    ask = JobFile(text, where)
    ask.check_foreign()
    # Older versions split layers over stages otherwise.
    aged = any(key in ask.sections.get(old, {}) for old, key in _MOVED)
    _modernise(ask, said)
    name, flavor = (ask.get("model", key) for key in ("name", "flavor"))
    if model is None:
        known = {flavor: name for name, flavor in FLAVORS.items()}
        found = known.get(f"{name}/{flavor}")
        if found is None:
            raise ask.refuse(
                "model",
                "flavor",
                f"a flavor that is known ({', '.join(sorted(known))}) or "
                f"--model",
                f"{name}/{flavor}",
            )
        model = architecture(found)
    _split_points(ask, model.layers)
    if not aged:
        _default_split(ask, model.layers)
    launch = read_job(ask, world, model.layers).launch
    own = _own_overlap(text, where, launch)
    return replace(launch, overlap=(*launch.overlap, *own)), model


def _own_overlap(text: str, where: str, launch: Launch) -> tuple[Overlap, ...]:
    """Return what FSDP overlaps: of an export, what its plan does."""
    found = re.search(rf"^# {_OVERLAP}(.*)$", text, re.MULTILINE)
    if found is None:
        occurs = launch.zero > 0, launch.dp * launch.cp > 1
        return tuple(itertools.compress(_BY_ITSELF, occurs))
    names = [] if found[1] == "none" else found[1].split(", ")
    if not {*names} <= {*_BY_ITSELF}:
        line = text[: found.start()].count("\n") + 1
        raise InvalidPlanError(
            f"{where}:{line}: {_OVERLAP.strip(': ')}: expected none or "
            f"{', '.join(_BY_ITSELF)}, got {found[1]!r}; correct it, or "
            f"remove the line"
        )
    return tuple(name for name in _BY_ITSELF if name in names)


def _modernise(ask: JobFile, said: Sequence[tuple[str, str]]) -> None:
    """Put keys where 0.2.2 has them, and add those that are said."""
    sections = ask.sections
    for (section, key), (there, name) in _MOVED.items():
        found = sections.get(section, {})
        if (section, key) == (there, name) or key not in found:
            continue
        if name in sections.setdefault(there, {}):
            raise ask.refuse(
                section, key, f"it or {there}.{name}", "both of them"
            )
        sections[there][name] = found.pop(key)
    for name, value in said:
        section, _, key = name.partition(".")
        if key not in KEYS.get(section, {}):
            raise ask.refuse(section, key, "a known key", name)
        try:
            typed = tomllib.loads(f"value = {value}")["value"]
        except (ValueError, RecursionError):
            typed = value
        sections.setdefault(section, {})[key] = typed


def _split_points(ask: JobFile, layers: int) -> None:
    """Turn the split points and numbers of micro-batches of older files."""
    split = ask.sections.get("parallelism", {})
    old = [ask.sections.get("experimental", {}), split]
    points = next((x.pop(_SPLITS) for x in old if _SPLITS in x), None)
    count = next((x.pop(_MICRO) for x in old if _MICRO in x), None)
    stages = split.get("pipeline_parallel_degree", 1)
    if points and stages != 1:
        if isinstance(points, str):
            points = points.split(",")
        whole = modules_of((Chunk(True, layers, True),))[0]
        places = [0, *(whole.index(p) if p in whole else 0 for p in points)]
        if sorted(set(places)) != places:
            raise ask.refuse("parallelism", _SPLITS, "layers in order", points)
        ends = [*places[1:], len(whole)]
        split["module_fqns_per_model_part"] = [
            whole[first:last] for first, last in zip(places, ends, strict=True)
        ]
    if count and stages != 1:
        local = ask.get("training", "local_batch_size")
        if type(count) is not int or count < 1 or local % count:
            raise ask.refuse(
                "parallelism", _MICRO, f"a divisor of the batch {local}", count
            )
        split["pipeline_parallel_microbatch_size"] = local // count


def _default_split(ask: JobFile, layers: int) -> None:
    """Say the parts that torchtitan 0.2 makes where none are given.

    Embedding and head count as so many layers
    (``pipeline_parallel_first_stage_less_layers``, ``…last…``); what the
    parts do not divide goes to the first of them. A schedule of several
    parts has two on a stage, unless
    ``pipeline_parallel_layers_per_stage`` says how many layers a part has at
    most (``generate_llm_fqn_per_model_part`` and its caller in
    ``distributed/pipeline_parallel.py`` of 0.2.2).
    """
    key = "module_fqns_per_model_part"
    stages = ask.degree("pipeline_parallel_degree")
    if stages == 1 or ask.get("parallelism", key) is not None:
        return
    ends = [
        ask.get("parallelism", f"pipeline_parallel_{end}_stage_less_layers")
        for end in ("first", "last")
    ]
    name = ask.get("parallelism", "pipeline_parallel_schedule")
    several = any(x[1] for x, known in _SCHEDULES.items() if known == name)
    parts = stages * (2 if several else 1)
    most = ask.get("parallelism", "pipeline_parallel_layers_per_stage")
    total = layers + sum(ends)
    if most is not None:
        parts = ceil_div(total, most) if most > 0 else 0
        each, rest = divmod(parts, stages)
        if rest or (each < 2 if several else each != 1):
            raise ask.refuse(
                "parallelism",
                "pipeline_parallel_layers_per_stage",
                f"a number that makes {'2 or more parts' * several}"
                f"{'1 part' * (not several)} on each of {stages} stages under "
                f"{name}",
                f"{parts} parts of {most}",
            )
    least, more = divmod(total, parts)
    if min(ends) < 0 or max(ends) > least or least == 0:
        raise ask.refuse(
            "parallelism",
            "pipeline_parallel_degree",
            f"stages for {layers} layers, {ends[0]} for the embedding and "
            f"{ends[1]} for the head",
            f"{parts} parts",
        )
    counts = [least + (number < more) for number in range(parts)]
    counts[0] -= ends[0]
    counts[-1] -= ends[1]
    chunks = [
        Chunk(number == 0, count, number == parts - 1)
        for number, count in enumerate(counts)
    ]
    ask.sections.setdefault("parallelism", {})[key] = modules_of(chunks)


def _expert_degree(ask: JobFile, tp: int, ranks: int) -> int:
    ep = ask.degree("expert_parallel_degree")
    own = ask.degree("expert_tensor_parallel_degree")
    if ep > 1 and own != tp:
        raise ask.refuse(
            "parallelism",
            "expert_tensor_parallel_degree",
            f"tensor_parallel_degree {tp}, as plans split experts",
            own,
        )
    if ranks % ep:
        raise ask.refuse(
            "parallelism",
            "expert_parallel_degree",
            f"a divisor of the {ranks} shard * context ranks",
            ep,
        )
    return ep


def _schedule(ask: JobFile, stages: int, virtual: int) -> Schedule:
    key = "pipeline_parallel_schedule"
    name = ask.get("parallelism", key)
    for (schedule, interleaved), known in _SCHEDULES.items():
        if known == name and interleaved == (virtual > 1):
            return schedule if stages > 1 else "1f1b"
    raise ask.refuse(
        "parallelism",
        key,
        f"a schedule of {virtual} parts per stage",
        repr(name),
    )


def _asynchronous(ask: JobFile, tp: int) -> bool:
    found: bool = ask.get("parallelism", "enable_async_tensor_parallel")
    if found and not ask.get("compile", "enable"):
        raise ask.refuse(
            "compile",
            "enable",
            "true with asynchronous tensor parallelism",
            "false",
        )
    return found and tp > 1


def _dtype(ask: JobFile) -> str:
    converters = ask.get("model", "converters")
    if converters not in ([], [_FLOAT8]):
        raise ask.refuse(
            "model", "converters", f"{_FLOAT8} or none", converters
        )
    return "fp8" if converters else "bf16"


def _batch(ask: JobFile, stages: int, data: int) -> tuple[int, int]:
    """Return samples of a micro-batch on a data rank, and of a step."""
    local = ask.get("training", "local_batch_size")
    batch = ask.get("training", "global_batch_size")
    if batch == -1:
        batch = local * data
    if local < 1 or batch < 1 or batch % (local * data):
        raise ask.refuse(
            "training",
            "global_batch_size",
            f"a multiple of local_batch_size * data ranks = {local} * {data}",
            batch,
        )
    if stages == 1:
        return local, batch
    key = "pipeline_parallel_microbatch_size"
    samples = ask.degree(key)
    if local % samples:
        raise ask.refuse(
            "parallelism",
            key,
            f"a divisor of training.local_batch_size {local}",
            samples,
        )
    if batch != local * data:
        # Accumulation flushes the pipeline, which plans do not.
        raise ask.refuse(
            "training",
            "global_batch_size",
            f"local_batch_size * data ranks = {local * data} with a pipeline",
            batch,
        )
    return samples, batch


def _chunks(
    ask: JobFile, layers: int, stages: int
) -> tuple[tuple[Chunk, ...], int]:
    """Return what every chunk holds, and how many are on a stage."""
    key = "module_fqns_per_model_part"
    parts = ask.get("parallelism", key)
    if parts is None:
        if stages > 1:
            raise ask.refuse(
                "parallelism", key, "the modules of every part", "none"
            )
        return (Chunk(True, layers, True),), 1
    if not all(
        isinstance(part, list) and all(isinstance(x, str) for x in part)
        for part in parts
    ):
        raise ask.refuse(
            "parallelism", key, "lists of names", json.dumps(parts)[:80]
        )
    wanted = modules_of((Chunk(True, layers, True),))[0]
    got = [name for part in parts for name in part]
    if got != wanted:
        wrong = next(
            (
                f"{theirs!r} instead of {ours!r}"
                for ours, theirs in zip(wanted, got, strict=False)
                if ours != theirs
            ),
            f"{len(got)} modules",
        )
        raise ask.refuse(
            "parallelism", key, f"{len(wanted)} modules in order", wrong
        )
    if not all(parts):
        raise ask.refuse(
            "parallelism", key, "modules in every part", "a part of none"
        )
    for part in parts:
        if ("norm" in part) != ("output" in part):
            raise ask.refuse(
                "parallelism", key, "norm and output together", "them apart"
            )
    if len(parts) % stages or (stages == 1 and len(parts) > 1):
        raise ask.refuse(
            "parallelism",
            key,
            f"a multiple of {stages} stages",
            f"{len(parts)} parts",
        )
    chunks = tuple(
        Chunk(
            "tok_embeddings" in part,
            sum(name.startswith("layers.") for name in part),
            "output" in part,
        )
        for part in parts
    )
    return chunks, len(parts) // stages
