"""torchtitan: a job file in TOML, and what its parsers make of it.

Written for torchtitan 0.2.2, the last with job files. It takes any type and any name of
a module without a word; what no run can start with is refused when the file is read.
"""

from __future__ import annotations

import itertools
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from nest.constraints.targets import degree_rule
from nest.constraints.targets import target as find_target
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks import schedule_csv, torchtitan_shapes
from nest.frameworks.arguments import ignored_note
from nest.frameworks.faults import Fault, read_all
from nest.frameworks.hosts import read_hosts
from nest.frameworks.keyed import KeyedFile, KeyTable, read_data, split_path
from nest.frameworks.launch import (
    Groups,
    Launch,
    Settings,
    as_run,
    check_dtype,
    check_memory,
    usual_groups,
    usual_mesh,
)
from nest.frameworks.layers import Chunk, with_ends
from nest.frameworks.megatron_model import check_shape
from nest.ir.job import Schedule
from nest.ir.plan import Overlap, Recompute
from nest.models.architectures import Architecture
from nest.models.stated import shape_of_model
from nest.models.zoo import architecture
from nest.units import ceil_div

FILE = "job.toml"
START = (
    f"torchrun (or srun) {{world}} times -m torchtitan.train --job.config_file {FILE}, "
    f"with your sections for data, tokenizer, optimizer and checkpoints."
)
mesh_of = usual_mesh

#: Keys of older files, in either of two sections.
_POINTS = "pipeline_parallel_split_points"
_COUNT = "pipeline_parallel_microbatches"

#: Bytes per weight: fp32 weights, of which layers count 2, and Adam.
STATE_BYTES, GRADIENT_BYTES = 10, 4

#: The same where ``training.dtype`` is bfloat16: Adam keeps its moments in it, too.
_WHOLE_BF16 = 4, 2

#: What torchtitan calls models.
FLAVORS = {
    "llama3-8b": "llama3/8B",
    "llama3-70b": "llama3/70B",
    "llama3-405b": "llama3/405B",
    "qwen3-0.6b": "qwen3/0.6B",
    "qwen3-1.7b": "qwen3/1.7B",
    "qwen3-4b": "qwen3/4B",
    "qwen3-8b": "qwen3/8B",
    "qwen3-14b": "qwen3/14B",
    "qwen3-32b": "qwen3/32B",
    "qwen3-30b-a3b": "qwen3/30B-A3B",
    "qwen3-235b-a22b": "qwen3/235B-A22B",
    "deepseek-v3": "deepseek_v3/671B",
}
#: Flavors of the same shape as a model, but with other numbers beside, and older ones.
_ALIKE = {
    "deepseek_v3/16B": "deepseek-v2-lite",
    "llama2/7B": "llama2-7b",
    "llama2/13B": "llama2-13b",
    "llama2/70B": "llama2-70b",
}
_RESHARD = {2: "never", 3: "always"}
_SCHEDULES: dict[tuple[Schedule | Literal["any"], bool], str] = {
    ("1f1b", False): "1F1B",
    ("1f1b", True): "Interleaved1F1B",
    ("gpipe", False): "GPipe",
}
#: With an order of passes, the name says where the parts of a rank sit.
_LOOP, _TURN = "PipelineScheduleMulti", "ZBVZeroBubble"
#: Of these a rank has one part by default, of others two.
_SINGLE = ("1F1B", "GPipe", "PipelineScheduleSingle")
_FLOAT8 = "quantize.linear.float8"

#: Maximum number of dots in a line.
_MAX_DOTS = 100
#: A line that is a list of texts, such as the modules of a part: it has no key.
_TEXTS = re.compile(r'\s*\["[^"\\]*"(, "[^"\\]*")*\],?\s*')
TABLE = read_data("torchtitan", KeyTable)

_DATA = "parallelism.data_parallel_shard_degree"
_PARTS = "parallelism.module_fqns_per_model_part"
_SCHEDULE = "parallelism.pipeline_parallel_schedule"
_ORDER = "parallelism.pipeline_parallel_schedule_csv"
_MICRO_BATCH = "parallelism.pipeline_parallel_microbatch_size"
_LOCAL_BATCH = "training.local_batch_size"
_GLOBAL_BATCH = "training.global_batch_size"
_CHECKPOINTING = "activation_checkpoint.mode"
_IMPORT = "experimental.custom_import"
_OPTION = "activation_checkpoint.selective_ac_option"
_BY_OPERATOR = "op"
#: What FSDP overlaps by itself, which no key says, and how a comment of an
#: export says what of it the plan was priced with.
_BY_ITSELF: tuple[Overlap, ...] = ("weights", "gradients")
_OVERLAP = "FSDP overlaps in the plan: "


def stated(launch: Launch) -> Launch:
    """Return a launch as the file states it: without the overlap of FSDP."""
    overlap = tuple(name for name in launch.overlap if name == "tp")
    return replace(as_run(launch), overlap=overlap)


def modules_of(chunks: Sequence[Chunk]) -> list[list[str]]:
    """Return the modules of every part of the model."""
    model_parts, first = [], 0
    for chunk in chunks:
        last = first + chunk.layers
        model_parts.append(
            ["tok_embeddings"] * chunk.embedding
            + [f"layers.{index}" for index in range(first, last)]
            + ["norm", "output"] * chunk.head
        )
        first = last
    return model_parts


def write(
    launch: Launch, model: Architecture, settings: Settings, heading: str
) -> dict[str, str]:
    """Return the job file; ``ExportModule.write`` says its errors.

    With them a module that registers the model, where torchtitan has no such flavor.

    Raises ``InvalidOptionError`` if a flavor is none, or does not run so.
    """
    check_memory(launch, STATE_BYTES, (GRADIENT_BYTES,))
    check_dtype(launch, ("bf16", "fp8"), "torchtitan computes in no other")
    run = as_run(launch)
    reason = why_not_data(run)
    if reason is not None:
        raise InvalidPlanError(f"{reason}; choose another plan")
    piped = run.stages > 1
    name, flavor, files = _model_files(model, settings, run)
    # FSDP shards what it shards over dp_shard * cp ranks.
    replicas = run.replicas if run.zero else run.dp
    values: dict[str, dict[str, Any]] = {
        "model": {"name": name, "flavor": flavor},
        "training": {
            "local_batch_size": run.samples * (run.micro_batches if piped else 1),
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
    if run.recompute == "selective":
        values["activation_checkpoint"]["selective_ac_option"] = _BY_OPERATOR
    split = values["parallelism"]
    if torchtitan_shapes.FILE in files:
        values["experimental"] = {"custom_import": torchtitan_shapes.MODULE}
    if run.zero:
        split["fsdp_reshard_after_forward"] = _RESHARD[run.zero]
    if run.ep > 1:
        split["expert_parallel_degree"] = run.ep
        split["expert_tensor_parallel_degree"] = run.strategy.expert_tp
    if piped:
        if run.order is None:
            kind = (run.schedule, run.virtual_stages > 1)
            split["pipeline_parallel_schedule"] = _SCHEDULES[kind]
        else:
            name = _TURN if run.placement == "v" else _LOOP
            split["pipeline_parallel_schedule"] = name
            split["pipeline_parallel_schedule_csv"] = schedule_csv.FILE
            files[schedule_csv.FILE] = schedule_csv.csv_text(run.order)
        split["pipeline_parallel_microbatch_size"] = run.samples
    if "tp" in run.overlap:
        if any("W" in cell for row in run.order or () for cell in row):
            raise InvalidPlanError(
                "overlap: expected none of tp where gradients of weights are computed "
                "apart, as torch.compile cannot, got tp; choose another plan"
            )
        split["enable_async_tensor_parallel"] = True
        values["compile"] = {"enable": True}
    if run.dtype == "fp8":
        values["model"]["converters"] = [_FLOAT8]
    overlap = overlap_comment(run)
    start = "# Start it in this folder: it names a file.\n" * bool(files)
    start += positions_comment(model, run.sequence_length)
    return {FILE: f"# {heading}\n{overlap}{start}{_toml(values)}", **files}


def positions_comment(model: Architecture, length: int | None) -> str:
    """Return the line that says where positions are not scaled as the model has it.

    torchtitan scales by YaRN only samples that are longer than the original length
    (``precompute_freqs_cis`` of its deepseek_v3).
    """
    rotary = model.details and model.details.rotary
    if not rotary or rotary.scaling != "yarn":
        return ""
    if length is None or length > rotary.original_length:
        return ""
    return (
        f"# torchtitan does not scale positions by YaRN here, as the model does: it "
        f"scales samples of more than {rotary.original_length} tokens only.\n"
    )


def _model_files(
    model: Architecture, settings: Settings, run: Launch
) -> tuple[str, str, dict[str, str]]:
    """Return name and flavor of a model, and the module that registers them if any.

    A flavor that cannot run so is registered anew.
    """
    stated = settings.flavor
    if stated is not None and not re.fullmatch(r"[\w.+-]+/[\w.+-]+", stated):
        raise InvalidOptionError(
            f"--flavor: expected torchtitan's name and flavor of {model.name}, such as "
            f"llama3/8B, got {stated!r}; correct it"
        )
    flavor = stated or FLAVORS.get(model.name)
    name, _, flavor = (flavor or "").partition("/")
    reason = why_not_flavor(name, run)
    if stated is not None and reason is not None:
        raise InvalidOptionError(
            f"--flavor: expected a model that torchtitan runs {reason}, got {stated}; "
            f"leave it out, so that nest writes a module with the model"
        )
    if flavor and reason is None:
        return name, flavor, {}
    length = run.sequence_length or model.max_sequence
    text = torchtitan_shapes.module_text(model, length, run.stages)
    flavor = torchtitan_shapes.flavor_of(model)
    return torchtitan_shapes.NAME, flavor, {torchtitan_shapes.FILE: text}


def why_not_flavor(name: str, launch: Launch) -> str | None:
    """Return what torchtitan's models of a name do not run with, or ``None``.

    Some have no function for pipelines (``train_spec.py``); flavors of DeepSeek have
    the attention that context parallelism does not take (``deepseek_v3/__init__.py``).
    """
    if launch.stages > 1 and name in torchtitan_shapes.UNPIPED:
        return "on several stages"
    if launch.cp > 1 and name in ("deepseek_v3", "gpt_oss"):
        return "with context parallelism"
    return None


def _toml(values: Mapping[str, Mapping[str, Any]]) -> str:
    """Return sections of numbers, texts, truth values and lists of texts."""
    lines = []
    for section, keys in values.items():
        lines.append(f"\n[{section}]")
        for key, value in keys.items():
            if value and isinstance(value, list) and value[0] != _FLOAT8:
                rows = [f"    {json.dumps(names)}," for names in value]
                lines += [f"{key} = [", *rows, "]"]
            else:
                lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


def why_not_data(launch: Launch) -> str | None:
    """Return why data ranks cannot run together with others, or ``None``.

    Weights are sharded and computed with in bf16 by FSDP only; replicas
    without it are a mode of their own, over all ranks (``parallelize.py``).
    """
    if launch.zero or (launch.world == launch.dp and launch.ep == 1):
        return None
    if launch.ep > 1:
        return "zero: expected 2 or 3 with expert parallelism, got 0"
    return (
        f"zero: expected 2 or 3 over several data ranks together with {launch.tp} "
        f"tensor and {launch.stages} pipeline ranks, got 0 over {launch.dp}"
    )


def read(files: Mapping[str, str], model: Architecture) -> tuple[Launch, Groups]:
    """Read an export of this module; ``ExportModule.read`` says its errors."""
    devices = read_hosts(files)
    job = job_file(files[FILE], FILE)
    job.check_written()
    launch = read_job(job, len(devices), model.layers, lambda name: files.get(name, ""))
    option = job.get(_OPTION)
    if launch.recompute == "selective" and option != _BY_OPERATOR:
        raise job.refuse(_OPTION, repr(_BY_OPERATOR), repr(option))
    if job.get(_IMPORT):
        registered = _registered(job, lambda name: files.get(name, ""))
        length = launch.sequence_length
        details = model.details and model.details.effective
        model = replace(model, details=details)
        check_shape(torchtitan_shapes.FILE, model, registered, length)
    return launch, usual_groups(launch, devices)


def job_file(text: str, where: str, ignore: Sequence[str] = ()) -> KeyedFile:
    """Return the keys of a job file; ``ignore`` as :class:`KeyedFile` has it.

    Raises ``InvalidPlanError`` if it is no TOML.
    """
    # What reads TOML needs memory that grows with the square of a key.
    for line_number, line in enumerate(text.splitlines(), 1):
        if line.count(".") <= _MAX_DOTS or _TEXTS.fullmatch(line):
            continue
        if line.lstrip()[0] != "#":
            raise InvalidPlanError(
                f"{where}:{line_number}: expected at most {_MAX_DOTS} dots, "
                f"got {line.count('.')}; correct the line"
            )
    try:
        document = tomllib.loads(text)
    # Besides malformed text: integers of thousands of digits, and tables
    # inside tables without end.
    except (ValueError, RecursionError) as error:
        raise InvalidPlanError(
            f"{where}: expected TOML, got a syntax error ({error}); correct it"
        ) from None
    return KeyedFile(document, where, TABLE, lambda path: _line(text, path), ignore)


def _line(text: str, path: str) -> int | None:
    """Return the line of a key, if it is on a line of its own."""
    section, key = split_path(path)
    inside = False
    for line_number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        if stripped.startswith("["):
            inside = stripped.partition("]")[0] == f"[{section}"
        elif inside and stripped.partition("=")[0].strip() == key:
            return line_number
    return None


def read_job(
    job: KeyedFile, world: int, layers: int, read_file: Callable[[str], str]
) -> Launch:
    """Return the launch that a job file describes on ``world`` devices.

    ``read_file`` returns the text of another file that it names.

    Raises ``InvalidPlanError`` if a value is out of range, contradicts another one, or
    no run can start with it.
    """
    job.check_values()
    tp, cp, stages = (
        job.get(f"parallelism.{name}_parallel_degree")
        for name in ("tensor", "context", "pipeline")
    )
    replicas = job.get("parallelism.data_parallel_replicate_degree")
    shard = job.get(_DATA)
    others = replicas * tp * cp * stages
    if shard == -1:
        shard = world // others
    if shard < 1 or shard * others != world:
        expected = f"degrees whose product is the {world} devices"
        raise job.refuse(_DATA, expected, f"{shard} * {others}")
    sharded = shard * cp > 1
    ranks, replicas = (shard, replicas) if sharded else (replicas, 1)
    ep, etp = _expert_degree(job, tp, shard * cp)
    chunks, virtual = _chunks(job, layers, stages)
    samples, batch = _batch(job, stages, replicas * ranks)
    state_bytes, gradient_bytes = _bytes_per_weight(job)
    policy = job.get("parallelism.fsdp_reshard_after_forward")
    if policy == "default":
        policy = "never" if stages > 1 else "always"
    launch = Launch(
        tp=tp,
        cp=cp,
        dp=ranks,
        ep=ep,
        etp=etp,
        replicas=replicas,
        stages=stages,
        virtual_stages=virtual,
        chunks=chunks,
        zero=(3 if policy == "always" else 2) if sharded else 0,
        recompute=_recompute(job),
        micro_batch=samples * ranks,
        global_batch=batch,
        sequence_length=job.get("training.seq_len"),
        overlap=("tp",) if _asynchronous(job, tp) else (),
        sequence_parallel=tp > 1,
        dtype=_dtype(job),
        gradient_bytes=gradient_bytes,
        state_bytes=state_bytes,
    )
    reason = why_not_data(launch)
    if reason is not None:
        raise job.refuse(_DATA, "what can run together", reason)
    launch = _with_schedule(job, launch, read_file)
    if not (job.get("model.name") and job.get("model.flavor")):
        raise job.refuse("model.flavor", "name and flavor", "none")
    return launch


class JobReading(NamedTuple):
    """What a job file says, with notes for the user.

    ``compiled`` is whether torch.compile makes the kernels of the model.
    """

    launch: Launch
    model: Architecture
    notes: tuple[str, ...]
    compiled: bool


def read_foreign(
    text: str,
    where: str,
    world: int,
    overrides: Sequence[tuple[str, str]] = (),
    model: Architecture | None = None,
    read_file: Callable[[str], str] = lambda _: "",
    ignore: Sequence[str] = (),
) -> JobReading:
    """Read a job file of a user, of torchtitan 0.1 or later, on ``world`` devices.

    ``where`` is its name for messages. ``overrides`` are keys in addition to those of
    the file, such as ``activation_checkpoint.mode``, with their values; ``model`` is
    the model where the flavor is not known; ``read_file`` returns the text of another
    file that it names, empty if there is none; ``ignore`` are keys that nest does not
    know, and that change no plan.

    Raises ``InvalidPlanError`` if a value is missing, out of range or contradicts
    another one.
    """
    job = job_file(text, where, ignore)

    def read(file: KeyedFile) -> JobReading:
        # Reading changes sections of its own copy.
        return _read_renewed(file.with_values(()), text, world, model, read_file, old)

    old, doubled = _modernise(job)
    for path, _ in overrides:
        if _present(path) not in TABLE.classed:
            raise job.refuse(path, "a known key", path)
    job = job.with_values([(_present(path), _as_json(x)) for path, x in overrides])
    return read_all(read, job, doubled)


def _read_renewed(
    job: KeyedFile,
    text: str,
    world: int,
    model: Architecture | None,
    read_file: Callable[[str], str],
    old: bool,
) -> JobReading:
    """Read a file whose keys have their present names; ``old`` is one that had not."""
    _rename_sections(job)
    where = job.where
    imported = job.get(_IMPORT) not in ("", torchtitan_shapes.MODULE)
    notes = ignored_note(where, (*job.ignored(), *[_IMPORT] * imported))
    job.check_values()
    model = model or _named_model(job, read_file)
    _split_points(job, model.layers)
    if not old:
        # Older versions split layers over stages otherwise.
        _default_split(job, model.layers)
    launch = read_job(job, world, model.layers, read_file)
    _check_degrees(job, launch, model)
    overlap = (*launch.overlap, *fsdp_overlap(text, where, launch))
    notes = (*notes, *_checkpointing_note(job, launch))
    components = job.document.get("compile", {}).get("components", ["model"])
    compiled = job.get("compile.enable") and "model" in components
    return JobReading(replace(launch, overlap=overlap), model, notes, compiled)


def _named_model(job: KeyedFile, read_file: Callable[[str], str]) -> Architecture:
    """Return the model that a file names, or that a module of nest registers."""
    models = _ALIKE | {flavor: name for name, flavor in FLAVORS.items()}
    flavor = f"{job.get('model.name')}/{job.get('model.flavor')}"
    if flavor in models:
        return architecture(models[flavor])
    if job.get(_IMPORT) == torchtitan_shapes.MODULE:
        return _registered(job, read_file)
    listed = ", ".join(sorted(models))
    expected = f"a flavor that is known ({listed}) or --model"
    answers = ("--model", "<NAME>")
    raise job.refuse("model.flavor", expected, flavor, answers=answers)


def _registered(job: KeyedFile, read_file: Callable[[str], str]) -> Architecture:
    """Return the model that the module beside an export registers."""
    name, flavor = job.get("model.name"), job.get("model.flavor")
    if name != torchtitan_shapes.NAME:
        raise job.refuse("model.name", repr(torchtitan_shapes.NAME), repr(name))
    text = read_file(torchtitan_shapes.FILE)
    return torchtitan_shapes.read_module(text, torchtitan_shapes.FILE, str(flavor))


def _check_degrees(job: KeyedFile, launch: Launch, model: Architecture) -> None:
    """Refuse a tensor degree that no run of the model can start with."""
    rules = find_target("torchtitan").rules
    assert rules is not None
    shape, tokens = shape_of_model(model), launch.sequence_length
    forbidden = degree_rule(rules, tokens, shape, launch.tp)
    if forbidden is not None:
        rule, expected = forbidden
        got = f"{launch.tp} ({rule.source})"
        raise job.refuse("parallelism.tensor_parallel_degree", expected, got)


def _recompute(job: KeyedFile) -> Recompute:
    """Return what is computed again, of selective modes the nearest choice.

    The one by operators is that of :mod:`nest.models.operators.selective`. Of every
    second layer whole (``_apply_layer_sac`` of torchtitan 0.2.2) about as much is kept.
    """
    mode: Recompute = job.get(_CHECKPOINTING)
    option = job.get(_OPTION)
    if mode != "selective" or option in (_BY_OPERATOR, "2"):
        return mode
    if option in ("0", "1"):
        return "full"
    raise job.refuse(
        _OPTION,
        "'op', or every layer or every second one ('1', '2')",
        repr(option),
        f"choose none or full with --say {_CHECKPOINTING}=…",
    )


def _checkpointing_note(job: KeyedFile, launch: Launch) -> tuple[str, ...]:
    """Return the note about a choice that is not that of the file, if there is any."""
    if launch.recompute != "selective" or job.get(_OPTION) == _BY_OPERATOR:
        return ()
    return (
        f"{job.where}: the file checkpoints every second layer whole; the nearest "
        f"choice of plans keeps what attention and every other product of a layer "
        f"yield; "
        f"--say {_CHECKPOINTING}=full or none gives another",
    )


def overlap_comment(launch: Launch) -> str:
    """Return the line of an export that says what FSDP overlaps in its plan."""
    hidden = [name for name in launch.overlap if name in _BY_ITSELF]
    return f"# {_OVERLAP}{', '.join(hidden) or 'none'}\n"


def fsdp_overlap(text: str, where: str, launch: Launch) -> tuple[Overlap, ...]:
    """Return what FSDP overlaps: of an export, what its plan does."""
    comment = re.search(rf"^# {_OVERLAP}(.*)$", text, re.MULTILINE)
    if comment is None:
        occurs = launch.zero > 0, launch.dp * launch.cp > 1
        return tuple(itertools.compress(_BY_ITSELF, occurs))
    names = [] if comment[1] == "none" else comment[1].split(", ")
    if not {*names} <= {*_BY_ITSELF}:
        line = text[: comment.start()].count("\n") + 1
        raise InvalidPlanError(
            f"{where}:{line}: {_OVERLAP.strip(': ')}: expected none or "
            f"{', '.join(_BY_ITSELF)}, got {comment[1]!r}; correct it, or "
            f"remove the line"
        )
    return tuple(name for name in _BY_ITSELF if name in names)


def _modernise(job: KeyedFile) -> tuple[bool, list[Fault]]:
    """Move keys to where 0.2.2 has them.

    Returns whether there are any, and faults about those that are in both places.
    """
    moved, doubled = False, list[Fault]()
    sections = job.document
    for old, new in TABLE.moved.items():
        section, key = split_path(old)
        values = sections.get(section)
        if not isinstance(values, dict) or key not in values:
            continue
        moved = True
        new_section, new_key = split_path(new)
        value = values.pop(key)
        if new_key in job.section(new_section):
            expected = f"it or {new}"
            fault = job.refuse(old, expected, "both of them", "remove one", ())
            doubled.append(fault)
        else:
            sections[new_section][new_key] = value
    return moved, doubled


def _present(path: str) -> str:
    """Return the present name of a key."""
    section, key = split_path(path)
    section = TABLE.moved_sections.get(section, section)
    return TABLE.moved.get(path, f"{section}.{key}".lstrip("."))


def _as_json(value: str) -> str:
    """Return a value of TOML in JSON; what is none is a text."""
    try:
        return json.dumps(tomllib.loads(f"value = {value}")["value"])
    # A date is no value of a key, either.
    except (ValueError, TypeError, RecursionError):
        return json.dumps(value)


def _rename_sections(job: KeyedFile) -> None:
    """Give sections and converters their present names.

    Sections of converters that are not used have no effect, and go.
    """
    _rename_converters(job)
    for old, new in TABLE.moved_sections.items():
        section, name = split_path(old)
        settings = job.section(section).pop(name, None)
        if not settings or not isinstance(settings, dict):
            continue
        present = job.section(new)
        if present:
            raise job.refuse(old, f"it or {new}", "both of them", "remove one", ())
        present.update(settings)
    converters = job.get("model.converters")
    quantize = job.document.pop("quantize", {})
    for path in converters if isinstance(quantize, dict) else ():
        _, kind, name = (*str(path).split("."), "", "")[:3]
        settings = quantize.get(kind)
        if isinstance(settings, dict) and name in settings:
            job.section(f"quantize.{kind}")[name] = settings[name]


def _rename_converters(job: KeyedFile) -> None:
    """Write converters as the list of their present names.

    Before 0.1 a switch stood for the one of fp8, and a text was a list of names with
    commas.
    """
    model = job.section("model")
    names = model.get("converters", [])
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    switches = [
        job.section(section).pop("enable_float8_linear", False)
        for section in ("training", "float8")
    ]
    if isinstance(names, list):
        names = [TABLE.moved_sections.get(str(name), name) for name in names]
        if True in switches and _FLOAT8 not in names:
            names.append(_FLOAT8)
    if names:
        model["converters"] = names


def _split_points(job: KeyedFile, layers: int) -> None:
    """Turn the split points and numbers of micro-batches of older files."""
    split = job.document.get("parallelism", {})
    sections = [job.document.get("experimental", {}), split]
    points = next((x.pop(_POINTS) for x in sections if _POINTS in x), None)
    count = next((x.pop(_COUNT) for x in sections if _COUNT in x), None)
    stages = split.get("pipeline_parallel_degree", 1)
    if points and stages != 1:
        if isinstance(points, str):
            points = points.split(",")
        whole = modules_of((Chunk(True, layers, True),))[0]
        starts = [0, *(whole.index(p) if p in whole else 0 for p in points)]
        if sorted(set(starts)) != starts:
            raise job.refuse(f"parallelism.{_POINTS}", "layers in order", points)
        ends = itertools.pairwise([*starts, len(whole)])
        split["module_fqns_per_model_part"] = [whole[a:b] for a, b in ends]
    if count and stages != 1:
        local = job.get(_LOCAL_BATCH)
        if type(count) is not int or count < 1 or local % count:
            raise job.refuse(
                f"parallelism.{_COUNT}", f"a divisor of the batch {local}", count
            )
        split["pipeline_parallel_microbatch_size"] = local // count


def _default_split(job: KeyedFile, layers: int) -> None:
    """Write the parts that torchtitan 0.2 makes where the file has none.

    Embedding and head count as so many layers
    (``pipeline_parallel_first_stage_less_layers``, ``…last…``); what the parts
    do not divide goes to the first of them. A schedule of several parts has
    two on a stage, unless ``pipeline_parallel_layers_per_stage`` says how many
    layers a part has at most (``generate_llm_fqn_per_model_part`` and its
    caller in ``distributed/pipeline_parallel.py`` of 0.2.2).
    """
    stages = job.get("parallelism.pipeline_parallel_degree")
    if stages == 1 or job.get(_PARTS) is not None:
        return
    ends = [
        job.get(f"parallelism.pipeline_parallel_{end}_stage_less_layers")
        for end in ("first", "last")
    ]
    name = job.get(_SCHEDULE)
    several = name not in _SINGLE
    num_parts = stages * (2 if several else 1)
    path = "parallelism.pipeline_parallel_layers_per_stage"
    max_layers = job.get(path)
    total = layers + sum(ends)
    if max_layers is not None:
        num_parts = ceil_div(total, max_layers) if max_layers > 0 else 0
        each, rest = divmod(num_parts, stages)
        if rest or (each < 2 if several else each != 1):
            raise job.refuse(
                path,
                f"a number that makes {'2 or more parts' if several else '1 part'} on "
                f"each of {stages} stages under {name}",
                f"{num_parts} parts of {max_layers}",
            )
    each, rest = divmod(total, num_parts)
    if min(ends) < 0 or max(ends) > each or each == 0:
        raise job.refuse(
            "parallelism.pipeline_parallel_degree",
            f"stages for {layers} layers, {ends[0]} for the embedding and "
            f"{ends[1]} for the head",
            f"{num_parts} parts",
        )
    counts = [each + (index < rest) for index in range(num_parts)]
    counts[0] -= ends[0]
    counts[-1] -= ends[1]
    section, key = split_path(_PARTS)
    job.document.setdefault(section, {})[key] = modules_of(with_ends(counts))


def _expert_degree(job: KeyedFile, tp: int, ranks: int) -> tuple[int, int]:
    """Return the expert parallel degree, and ``etp`` of strategies.

    Of experts on one rank the matrices are cut, whatever the file states.
    """
    ep: int = job.get("parallelism.expert_parallel_degree")
    path = "parallelism.expert_tensor_parallel_degree"
    expert_tp = job.get(path) if ep > 1 else tp
    if expert_tp not in (1, tp):
        raise job.refuse(path, f"tensor_parallel_degree {tp} or 1", expert_tp)
    etp = int(expert_tp < tp)
    ranks *= tp if etp else 1
    if ranks % ep:
        expected = f"a divisor of the {ranks} shard * context{' * tensor' * etp} ranks"
        raise job.refuse("parallelism.expert_parallel_degree", expected, ep)
    return ep, etp


def _with_schedule(
    job: KeyedFile, launch: Launch, read_file: Callable[[str], str]
) -> Launch:
    """Return a launch with its schedule: by name, or pass by pass."""
    path, name = job.get(_ORDER), job.get(_SCHEDULE)
    stages, virtual = launch.stages, launch.virtual_stages
    count = launch.micro_batches
    if stages == 1:  # it has none
        return launch
    if path:
        placement, order = schedule_csv.read(
            read_file(path), path, stages, virtual, count
        )
        expected = _TURN if placement == "v" else _LOOP
        if (expected == _TURN) != (name == _TURN):
            where = f"{expected} with chunks placed as {placement!r} in {path}"
            raise job.refuse(_SCHEDULE, where, repr(name))
        return replace(launch, schedule="any", placement=placement, order=order)
    schedules = {
        title: schedule
        for (schedule, interleaved), title in _SCHEDULES.items()
        if interleaved == (virtual > 1)
    }
    if name not in schedules:
        raise job.refuse(
            _SCHEDULE, f"a schedule of {virtual} parts per stage", repr(name)
        )
    if count < stages or (virtual > 1 and count % max(1, count // stages)):
        raise job.refuse(
            _LOCAL_BATCH, f"micro-batches that {stages} stages can take", count
        )
    return replace(launch, schedule=schedules[name])


def _asynchronous(job: KeyedFile, tp: int) -> bool:
    enabled: bool = job.get("parallelism.enable_async_tensor_parallel")
    if enabled and not job.get("compile.enable"):
        raise job.refuse(
            "compile.enable", "true with asynchronous tensor parallelism", "false"
        )
    return enabled and tp > 1


def _bytes_per_weight(job: KeyedFile) -> tuple[int, int]:
    """Return the bytes of optimizer state, and of a gradient.

    Plans keep gradients as they reduce them.
    """
    dtype, path = job.get("training.dtype"), "training.mixed_precision_reduce"
    if job.get(path) != dtype:
        raise job.refuse(path, f"{dtype} as training.dtype", repr(job.get(path)))
    return _WHOLE_BF16 if dtype == "bfloat16" else (STATE_BYTES, GRADIENT_BYTES)


def _dtype(job: KeyedFile) -> str:
    converters = job.get("model.converters")
    if converters not in ([], [_FLOAT8]):
        raise job.refuse("model.converters", f"{_FLOAT8} or none", converters)
    return "fp8" if converters else "bf16"


def _batch(job: KeyedFile, stages: int, data: int) -> tuple[int, int]:
    """Return samples of a micro-batch on a data rank, and of a step."""
    local, batch = job.get(_LOCAL_BATCH), job.get(_GLOBAL_BATCH)
    if batch == -1:
        batch = local * data
    if local < 1 or batch < 1 or batch % (local * data):
        expected = f"a multiple of local_batch_size * data ranks = {local} * {data}"
        raise job.refuse(_GLOBAL_BATCH, expected, batch)
    if stages == 1:
        return local, batch
    samples = job.get(_MICRO_BATCH)
    if local % samples:
        raise job.refuse(_MICRO_BATCH, f"a divisor of {_LOCAL_BATCH} {local}", samples)
    if batch != local * data:
        # Accumulation flushes the pipeline, which plans do not.
        expected = f"local_batch_size * data ranks = {local * data} with a pipeline"
        raise job.refuse(_GLOBAL_BATCH, expected, batch)
    return samples, batch


def _chunks(job: KeyedFile, layers: int, stages: int) -> tuple[tuple[Chunk, ...], int]:
    """Return what every chunk holds, and how many are on a stage."""
    model_parts = job.get(_PARTS)
    if model_parts is None:
        if stages > 1:
            raise job.refuse(_PARTS, "the modules of every part", "none")
        return (Chunk(True, layers, True),), 1
    if not all(
        isinstance(names, list) and all(isinstance(x, str) for x in names)
        for names in model_parts
    ):
        raise job.refuse(_PARTS, "lists of names", json.dumps(model_parts)[:80])
    expected = modules_of((Chunk(True, layers, True),))[0]
    got = [name for names in model_parts for name in names]
    if got != expected:
        wrong = next(
            (
                f"{theirs!r} instead of {ours!r}"
                for ours, theirs in zip(expected, got, strict=False)
                if ours != theirs
            ),
            f"{len(got)} modules",
        )
        raise job.refuse(_PARTS, f"{len(expected)} modules in order", wrong)
    if not all(model_parts):
        raise job.refuse(_PARTS, "modules in every part", "a part of none")
    if any(("norm" in names) != ("output" in names) for names in model_parts):
        raise job.refuse(_PARTS, "norm and output together", "them apart")
    if len(model_parts) % stages or (stages == 1 and len(model_parts) > 1):
        raise job.refuse(
            _PARTS, f"a multiple of {stages} stages", f"{len(model_parts)} parts"
        )
    chunks = tuple(
        Chunk(
            "tok_embeddings" in names,
            sum(name.startswith("layers.") for name in names),
            "output" in names,
        )
        for names in model_parts
    )
    return chunks, len(model_parts) // stages
