"""Hugging Face Accelerate: its configuration, and arguments of a trainer.

Written for accelerate 1.15.0: FSDP2 as it wraps the layers that a model of transformers
names itself, or data parallelism alone. A plan with ZeRO 3 has a second configuration,
which runs it with DeepSpeed; both keep 16 bytes per weight. Batches and the length of
samples are arguments of the trainer of transformers (``SFTConfig`` of TRL has them).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

import yaml
from msgspec.structs import replace

from nest.errors import InvalidPlanError
from nest.frameworks import deepspeed
from nest.frameworks.arguments import ignored_note
from nest.frameworks.faults import Correction, Fault, read_all
from nest.frameworks.hosts import read_hosts
from nest.frameworks.keyed import KeyedFile, KeyTable, read_data, split_path
from nest.frameworks.launch import (
    Groups,
    Launch,
    Settings,
    as_run,
    check_dtype,
    check_memory,
    length_of,
    usual_groups,
    usual_mesh,
)
from nest.frameworks.layers import Chunk
from nest.frameworks.torchtitan import (
    GRADIENT_BYTES,
    STATE_BYTES,
    fsdp_overlap,
    overlap_comment,
)
from nest.ir.documents import parse_json, refusing
from nest.ir.yaml_documents import parse_yaml
from nest.models.architectures import Architecture

FILE, ZERO3, DEEPSPEED = "accelerate.yaml", "zero3.yaml", "zero3-ds.json"
START = (
    f"On host I of hostfile: accelerate launch --config_file {FILE} --num_machines N "
    f"--machine_rank I --main_process_ip FIRST_HOST trainer.py with the arguments "
    f"of accelerate-trainer.json ({{world}} processes). Where there is {ZERO3}, it "
    f"runs the same plan with DeepSpeed."
)
mesh_of = usual_mesh

TABLE = read_data("accelerate", KeyTable)
TRAINER = read_data("accelerate_trainer", KeyTable)

_FSDP = "fsdp_config.fsdp_"
_RESHARD, _POLICY = f"{_FSDP}reshard_after_forward", f"{_FSDP}auto_wrap_policy"
_REPLICAS, _SHARDS = (
    f"parallelism_config.parallelism_config_dp_{name}_size"
    for name in ("replicate", "shard")
)
#: Sharding strategies by their numbers from 1, and what hybrid ones are in a machine.
_STRATEGIES = (
    *("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD"),
    *("HYBRID_SHARD", "HYBRID_SHARD_ZERO2"),
)
_HYBRID = {"HYBRID_SHARD": "FULL_SHARD", "HYBRID_SHARD_ZERO2": "SHARD_GRAD_OP"}
_BATCH, _STEPS = "per_device_train_batch_size", "gradient_accumulation_steps"
_CONFIG_FILE = "deepspeed_config.deepspeed_config_file"


def stated(launch: Launch) -> Launch:
    """Return a launch as the files state it: without the overlap."""
    return replace(as_run(launch), overlap=())


def trainer_of(path: str) -> str:
    """Return the file with the arguments of the trainer, beside a configuration."""
    return f"{PurePath(path).stem}-trainer.json"


def write(
    launch: Launch, _model: Architecture, _settings: Settings, heading: str
) -> dict[str, str]:
    """Return configurations and arguments; ``ExportModule.write`` says its errors."""
    check_memory(launch, STATE_BYTES, (GRADIENT_BYTES,))
    check_dtype(launch, ("bf16",), "Accelerate is written for no other")
    run = as_run(launch)
    config: dict[str, Any] = {
        "distributed_type": "MULTI_GPU" if run.world > 1 else "NO",
        "mixed_precision": "bf16",
        "num_processes": run.world,
    }
    trainer: dict[str, Any] = {
        _BATCH: run.samples,
        _STEPS: run.micro_batches,
        "max_length": length_of(run),
        "bf16": True,
    }
    checkpointed = {**trainer, "gradient_checkpointing": run.recompute == "full"}
    if not run.zero:
        return _texts(heading, launch, FILE, config, checkpointed)
    config["distributed_type"] = "FSDP"
    config["fsdp_config"] = {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": run.zero == 3,
        # Without a class, the layers that the model names in _no_split_modules.
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "fsdp_activation_checkpointing": run.recompute == "full",
    }
    config["parallelism_config"] = {
        "parallelism_config_dp_replicate_size": run.replicas,
        "parallelism_config_dp_shard_size": run.dp,
    }
    texts = _texts(heading, launch, FILE, config, trainer)
    if run.zero < 3 or run.replicas > 1:
        return texts
    zero3 = {
        "distributed_type": "DEEPSPEED",
        "num_processes": run.world,
        "deepspeed_config": {"deepspeed_config_file": DEEPSPEED},
    }
    document = {
        "train_batch_size": run.global_batch,
        "train_micro_batch_size_per_gpu": run.samples,
        _STEPS: run.micro_batches,
        "zero_optimization": {"stage": 3, "overlap_comm": True},
        "bf16": {"enabled": True},
        "data_types": {"grad_accum_dtype": "bf16"},
    }
    texts |= _texts(heading, launch, ZERO3, zero3, checkpointed)
    return {**texts, DEEPSPEED: json.dumps(document, indent=1) + "\n"}


def _texts(
    heading: str,
    launch: Launch,
    name: str,
    config: Mapping[str, Any],
    trainer: Mapping[str, Any],
) -> dict[str, str]:
    """Return a configuration and its arguments as texts."""
    text = yaml.safe_dump({**config}, sort_keys=False)
    return {
        name: f"# {heading}\n{overlap_comment(launch)}{text}",
        trainer_of(name): json.dumps(trainer, indent=1) + "\n",
    }


def read(files: Mapping[str, str], model: Architecture) -> tuple[Launch, Groups]:
    """Read an export of this module; ``ExportModule.read`` says its errors."""
    devices = read_hosts(files)
    launches = [
        _read_export(files, name, len(devices), model)
        for name in (FILE, ZERO3)
        if name in files
    ]
    launch, *others = launches
    for other in others:
        same = replace(other, gradient_bytes=GRADIENT_BYTES, state_bytes=STATE_BYTES)
        if same != launch:
            raise InvalidPlanError(
                f"{ZERO3}: expected the plan of {FILE}, got another; correct one"
            )
    return launch, usual_groups(launch, devices)


def _read_export(
    files: Mapping[str, str], name: str, world: int, model: Architecture
) -> Launch:
    job = _Job(
        _yaml_file(files[name], name),
        _json_file(files[trainer_of(name)], trainer_of(name)),
        lambda path: files.get(path, ""),
    )
    for file in (job.config, job.trainer):
        file.check_written()
        file.check_values()
    return replace(_read(job, world, model), overlap=())


class _Job(NamedTuple):
    """A configuration, arguments of a trainer, and a reader of other files.

    ``ignore`` are keys of those other files that the user passes over.
    """

    config: KeyedFile
    trainer: KeyedFile
    read_file: Callable[[str], str]
    ignore: tuple[str, ...] = ()

    def corrected(self, correction: Correction) -> _Job:
        """Return a copy in which one key of a file is otherwise."""
        name = correction.subject
        if name in TRAINER.classed or name in self.trainer.document:
            return self._replace(trainer=self.trainer.corrected(correction))
        return self._replace(config=self.config.corrected(correction))


def _yaml_file(text: str, where: str) -> KeyedFile:
    with refusing(where, InvalidPlanError):
        document = parse_yaml(text)
    return _keyed(document, where, TABLE)


def _json_file(text: str, where: str) -> KeyedFile:
    with refusing(where, InvalidPlanError):
        document = parse_json(text)
    return _keyed(document, where, TRAINER)


def _keyed(document: object, where: str, table: KeyTable) -> KeyedFile:
    if not isinstance(document, dict):
        raise InvalidPlanError(
            f"{where}: expected keys with values, got something else; correct it"
        )
    return KeyedFile(document, where, table)


def read_foreign(
    text: str,
    where: str,
    world: int,
    model: Architecture,
    overrides: Sequence[tuple[str, str]] = (),
    read_file: Callable[[str], str] = lambda _: "",
    ignore: Sequence[str] = (),
) -> tuple[Launch, tuple[str, ...]]:
    """Read a configuration of a user, and return notes for the user too.

    Parameters and errors are those of :func:`nest.frameworks.torchtitan.read_foreign`.
    The file does not say the model; overrides are arguments of the trainer, too.
    """
    arguments = read_file(trainer_of(where))
    config = _yaml_file(text, where)
    # Other names are those of a configuration of DeepSpeed that it names.
    several = _has(config.document, _CONFIG_FILE)
    inside = [x for x in ignore if not several or _has(config.document, x)]
    config.ignore = inside
    job = _Job(
        config,
        _json_file(arguments or "{}", trainer_of(where)),
        read_file,
        tuple(x for x in ignore if x not in inside),
    )
    for path, value in overrides:
        with refusing(f"--say {path}", InvalidPlanError):
            made = parse_yaml(value)
        file = job.trainer if path in TRAINER.classed else job.config
        section, name = split_path(path)
        file.section(section)[name] = made
    _write_as_present(config)

    def read(job: _Job) -> tuple[Launch, tuple[str, ...]]:
        notes = (
            *ignored_note(where, job.config.ignored()),
            *ignored_note(job.trainer.where, job.trainer.ignored()),
        )
        for key in (_BATCH, "max_length"):
            if key not in job.trainer.document:
                raise job.trainer.refuse(key, "a value", "none", f"pass --say {key}=N")
        launch = _read(job, world, model)
        if job.config.get("distributed_type") == "FSDP":
            overlap = fsdp_overlap(text, where, launch)
            launch = replace(launch, overlap=overlap)
        return launch, notes

    return read_all(read, job)


def _has(document: Mapping[str, Any], path: str) -> bool:
    """Whether a configuration has a key."""
    section, name = split_path(path)
    inside = document.get(section, {}) if section else document
    return isinstance(inside, dict) and name in inside


def _write_as_present(config: KeyedFile) -> None:
    """Write values of older files as 1.15.0 has them.

    Precision may be in capitals. Sharding strategies of FSDP 1 are numbers or names,
    under the key of version 2 since 1.6; hybrid ones have a replica on each machine
    (``ShardingStrategy`` of PyTorch).
    """
    precision = config.document.get("mixed_precision")
    if isinstance(precision, str):
        config.document["mixed_precision"] = precision.lower()
    keys = config.document.get("fsdp_config")
    if not isinstance(keys, dict) or keys.get("fsdp_version", 1) != 1:
        return
    strategy = keys.get("fsdp_sharding_strategy")
    if isinstance(keys.get("fsdp_reshard_after_forward"), str):
        strategy = keys.pop("fsdp_reshard_after_forward")
    if str(strategy).isdigit() and 1 <= int(str(strategy)) <= len(_STRATEGIES):
        strategy = _STRATEGIES[int(str(strategy)) - 1]
    machines = config.document.get("num_machines") or 1
    if strategy in _HYBRID and "parallelism_config" not in config.document:
        sizes = {_REPLICAS.rpartition(".")[2]: machines}
        config.document["parallelism_config"] = sizes
        strategy = _HYBRID[strategy]
    if strategy is not None:
        keys["fsdp_sharding_strategy"] = strategy


def _read(job: _Job, world: int, model: Architecture) -> Launch:
    config, trainer = job.config, job.trainer
    processes = config.get("num_processes")
    if processes not in (None, world):
        raise config.refuse("num_processes", f"the {world} devices", processes)
    kind = config.get("distributed_type")
    checkpointing: bool = trainer.get("gradient_checkpointing")
    if kind == "DEEPSPEED":
        launch = _with_deepspeed(job, world, model)
        return replace(launch, recompute="full" if checkpointing else "none")
    precision = config.get("mixed_precision")
    if precision != "bf16" and not (precision == "no" and trainer.get("bf16")):
        raise config.refuse("mixed_precision", "bf16", repr(precision))
    replicas, shards, zero = world, 1, 0
    if kind == "FSDP":
        replicas = config.get(_REPLICAS)
        shards = config.get(_SHARDS) or world // replicas
        if replicas * shards != world:
            expected = f"sizes whose product is the {world} devices"
            raise config.refuse(_SHARDS, expected, f"{replicas} * {shards}")
        zero = _zero_of(config) if shards > 1 else 0
        if config.get(_POLICY) != "TRANSFORMER_BASED_WRAP":
            raise config.refuse(_POLICY, "TRANSFORMER_BASED_WRAP", "none")
        checkpointing |= config.get(f"{_FSDP}activation_checkpointing")
    if not zero:
        replicas, shards = 1, world
    samples, steps = trainer.get(_BATCH), trainer.get(_STEPS)
    return Launch(
        dp=shards,
        replicas=replicas,
        chunks=(Chunk(True, model.layers, True),),
        zero=zero,
        recompute="full" if checkpointing else "none",
        micro_batch=samples * shards,
        global_batch=samples * world * steps,
        sequence_length=trainer.get("max_length"),
        gradient_bytes=GRADIENT_BYTES,
        state_bytes=STATE_BYTES,
    )


def _zero_of(config: KeyedFile) -> int:
    """Return the ZeRO stage of FSDP, of version 1 by its name of a strategy."""
    if config.get(f"{_FSDP}version") == 1:
        full = config.get(f"{_FSDP}sharding_strategy") == "FULL_SHARD"
    else:
        full = config.get(_RESHARD)
    return 3 if full else 2


def _with_deepspeed(job: _Job, world: int, model: Architecture) -> Launch:
    """Return what DeepSpeed runs, with what the trainer fills in for ``auto``."""
    config, trainer = job.config, job.trainer
    samples, steps = trainer.get(_BATCH), trainer.get(_STEPS)
    precision = "bf16" if trainer.get("bf16") else config.get("mixed_precision")
    name = config.get(_CONFIG_FILE)
    if name is None and precision == "no":
        raise config.refuse("mixed_precision", "bf16 or fp16", "no")
    if name is None:
        stated_steps = config.get(f"deepspeed_config.{_STEPS}")
        document: dict[str, Any] = {
            "zero_optimization": {"stage": config.get("deepspeed_config.zero_stage")},
            _STEPS: stated_steps or steps,
            "bf16": {"enabled": precision == "bf16"},
            "fp16": {"enabled": precision == "fp16"},
        }
    else:
        document = deepspeed.config_file(job.read_file(name), name).document
    filled = {
        "train_batch_size": samples * world * steps,
        "train_micro_batch_size_per_gpu": samples,
        _STEPS: steps,
    }
    for key, value in filled.items():
        if document.get(key) == "auto":
            document[key] = value
    document.setdefault("train_micro_batch_size_per_gpu", samples)
    automatic = [
        (inside, section)
        for section in ("bf16", "fp16")
        if isinstance(inside := document.get(section), dict)
        and inside.get("enabled") == "auto"
    ]
    if precision == "no" and automatic:
        expected = f"the precision that {name} leaves to it"
        raise trainer.refuse("bf16", expected, "none", "pass --say bf16=true")
    for inside, section in automatic:
        inside["enabled"] = section == precision
    where, length = name or config.where, trainer.get("max_length")
    text = json.dumps(document)
    try:
        launch, _ = deepspeed.read_foreign(
            text, where, world, model, length, ignore=job.ignore
        )
    except Fault as fault:
        # It is about another file, whose keys --say does not give.
        if "--ignore" in fault.answers:
            raise
        raise InvalidPlanError(str(fault)) from None
    return launch
