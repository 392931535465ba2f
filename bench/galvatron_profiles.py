"""Galvatron on its own profiles: its cost model, fed from its JSON files.

Reads what Hetu-Galvatron's profilers write (computation, memory, all-reduce,
point-to-point, overlap and message times), builds the tables of
:mod:`baselines.galvatron_core` with its time and memory model, and searches as its
search engine at cea12ff does. Used to check the search against recorded answers; the
solver :mod:`baselines.galvatron` prices layers with the shared cost model instead.

Models with one type of layer, in ``batch`` time mode (times of at least eight
batch sizes, fitted by a line) and ``static`` memory mode; no context
parallelism. Units are those of the files: ms, and MB of 2^20 bytes. Section
numbers refer to reference/galvatron.md.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from baselines.galvatron_core import (
    Choice,
    Floats,
    Other,
    Tables,
    bias_s,
    divide_even,
    hidden_s,
    overlapped_s,
    solve_tasks,
    stages_of,
    usable_mib,
)
from nest.errors import InvalidProblemError

MIB = 2**20
MS_PER_S = 1000

#: Backward over forward computation.
BACKWARD_RATIO = 2

#: What a process needs before any tensor, in MB.
CONTEXT_MB = 1024

#: All-gathers of a tensor parallel layer and all-to-alls of an Ulysses layer
#: per micro-batch; half as many again if the layer is recomputed.
NUM_ALL_GATHERS = 6
NUM_ALL_TO_ALLS = 4
CHECKPOINT_FACTOR = 1.5

#: Bias in s between strategies that differ in Ulysses only, and have it then.
BIAS_ULYSSES_S = 1e-10

#: From bytes times ms/MB to seconds as coded; 1e-9 would be the bandwidth.
TRANSITION_SCALE = 1e-7

MIN_FIT_POINTS = 8

Line = tuple[float, float]
DataParallel = Literal["ddp", "zero2", "zero3"]
Mode = Literal["tp_only", "sp_only", "tp_with_sp"]
MODES: tuple[Mode, ...] = ("tp_only", "sp_only", "tp_with_sp")


class ProfileStrategy(NamedTuple):
    """One leaf of Galvatron's decision tree; sorts as its list does."""

    pp: int
    tp: int
    sp: int
    dp: int
    data_parallel: DataParallel
    checkpoint: bool = False

    @property
    def degree(self) -> int:
        """Tensor or sequence parallel degree; only one of them is above 1."""
        return max(self.tp, self.sp)

    @property
    def sharers(self) -> int:
        """Devices that share model states."""
        return self.dp * self.sp

    def __str__(self) -> str:
        """Return the planner's own notation ``pp-tp[*]-dp[f][-c][-sp]``."""
        degree = f"{self.degree}*" if self.degree > 1 else "1"
        dp = f"{self.dp}f" if self.data_parallel == "zero3" else f"{self.dp}"
        checkpoint = "-c" if self.checkpoint else ""
        ulysses = "-sp" if self.sp > 1 else ""
        return f"{self.pp}-{degree}-{dp}{checkpoint}{ulysses}"


class Messages(NamedTuple):
    """Times of one collective: measured by size in bytes, and a line in MB."""

    measured_ms: Mapping[int, float]
    line_ms: Line

    def time_ms(self, size_bytes: float) -> float:
        """Return the measured time of a size, else that of the line."""
        if size_bytes in self.measured_ms:
            return self.measured_ms[int(size_bytes)]
        return self.fitted_ms(size_bytes)

    def fitted_ms(self, size_bytes: float) -> float:
        """Return the time by the line."""
        return _on_line(self.line_ms, size_bytes / MIB)


@dataclass(frozen=True)
class HardwareProfile:
    """What the hardware profiler measured.

    Attributes
    ----------
    num_devices
        Devices, a power of two.
    all_reduce_ms_per_mb
        By group size and whether neighbors form the group.
    p2p_ms_per_mb
        By pipeline degree.
    overlap_slowdown
        How much slower computation and communication are while both run.
    all_gathers, all_to_alls
        By group size; an all-gather takes half an all-reduce.
    """

    num_devices: int
    all_reduce_ms_per_mb: Mapping[tuple[int, bool], float]
    p2p_ms_per_mb: Mapping[int, float]
    overlap_slowdown: float
    all_gathers: Mapping[int, Messages]
    all_to_alls: Mapping[int, Messages]


@dataclass(frozen=True)
class OtherMemory:
    """Embedding and head: MB of states per degree, of activations per sample.

    Activations are by tensor or sequence parallel degree.
    """

    states_mb: Mapping[int, float]
    activations_mb: Mapping[int, float]


@dataclass(frozen=True)
class ModelProfile:
    """What the model profiler measured.

    Attributes
    ----------
    num_layers, hidden_size, sequence_length
        Shape of the model.
    forward_ms, other_forward_ms
        Lines in samples per device: one layer; embedding and head.
    parameters_mb
        Weights of one layer in fp32.
    activations_mb
        What a layer keeps per sample, by tensor or sequence parallel degree.
    checkpoint_mb
        What a recomputed layer keeps per sample.
    other, first, last
        Embedding and head together, and on first and last stage.
    """

    num_layers: int
    hidden_size: int
    sequence_length: int
    forward_ms: Line
    other_forward_ms: Line
    parameters_mb: float
    activations_mb: Mapping[int, float]
    checkpoint_mb: float
    other: OtherMemory
    first: OtherMemory
    last: OtherMemory


@dataclass(frozen=True)
class Search:
    """What Galvatron's user chooses.

    Attributes
    ----------
    memory_gib
        Memory of a device.
    batch_sizes
        Global batches to try.
    chunks
        Micro-batches to try; ``None`` tries all divisors of the batch.
    gpipe
        Pipeline schedule GPipe instead of 1F1B.
    fine_grained
        A strategy per layer, else one for all.
    default_zero2
        Shard optimizer and gradients by default, instead of plain DDP.
    mixed_precision, sequence_parallel, async_grad_reduce
        How the model is trained: bf16 or fp16; Megatron's sequence parallelism with
        tensor parallel layers; gradients reduced once a step.
    max_pp, max_degree
        Largest degrees.
    """

    memory_gib: int
    batch_sizes: Sequence[int]
    chunks: Sequence[int] | None = None
    gpipe: bool = False
    fine_grained: bool = True
    default_zero2: bool = True
    mixed_precision: bool = True
    sequence_parallel: bool = True
    async_grad_reduce: bool = True
    max_pp: int = 8
    max_degree: int = 8


class Task(NamedTuple):
    """One turn of the outer loops."""

    batch: int
    chunks: int
    pp: int
    mode: Mode
    max_degree: int


@dataclass(frozen=True)
class ProfileAnswer:
    """The answer of a search.

    Attributes
    ----------
    task
        Where it was found.
    time_s
        Predicted step time.
    strategies
        One per layer.
    division
        Layers per stage.
    embedding
        Strategy of embedding and head.
    memory_mb
        Predicted memory per stage, cache included.
    """

    task: Task
    time_s: float
    strategies: tuple[ProfileStrategy, ...]
    division: tuple[int, ...]
    embedding: ProfileStrategy
    memory_mb: tuple[int, ...]

    def config(self, search: Search) -> dict[str, Any]:
        """Return the fields of the file that Galvatron writes."""

        def listed(values: Sequence[int]) -> str:
            return ",".join(map(str, values))

        used = self.strategies
        return {
            "pp_deg": self.task.pp,
            "tp_sizes_enc": listed([s.degree for s in used]),
            "tp_consecutive_flags": listed([1] * len(used)),
            "dp_types_enc": listed([int(s.data_parallel == "zero3") for s in used]),
            "use_sp": listed([int(s.sp > 1) for s in used]),
            "checkpoint": listed([int(s.checkpoint) for s in used]),
            "global_bsz": self.task.batch,
            "chunks": self.task.chunks,
            "pp_division": listed(self.division),
            "pipeline_type": "gpipe" if search.gpipe else "pipedream_flush",
            "default_dp_type": "zero2" if search.default_zero2 else "ddp",
            "vtp": self.embedding.degree,
            "vsp": int(self.embedding.sp > 1),
            "embed_sdp": int(self.embedding.data_parallel == "zero3"),
        }

    def summary(self) -> str:
        """Return the strategies in the planner's notation, runs counted."""
        return ", ".join(
            f"{len(list(run))}x {strategy}"
            for strategy, run in groupby(self.strategies)
        )


# Strategies and tasks


def powers_of_two(limit: int) -> list[int]:
    """Return 1, 2, 4, … up to ``most``."""
    return [2**i for i in range(limit.bit_length())] if limit > 0 else []


def strategy_space(
    num_devices: int, num_layers: int, search: Search
) -> list[ProfileStrategy]:
    """Return all strategies, sorted (§1)."""
    space = set()
    for pp in powers_of_two(min(num_devices, num_layers, search.max_pp)):
        devices = num_devices // pp
        for degree in powers_of_two(min(devices, search.max_degree)):
            dp = devices // degree
            kinds: tuple[DataParallel, ...] = (
                "zero2" if search.default_zero2 else "ddp",
                "zero3",
            )
            for kind in kinds if dp > 1 else ("ddp",):
                for checkpoint in (False, True):
                    for tp, sp in {(degree, 1), (1, degree)}:
                        # a data rank of one device shards over sp only
                        space.add(ProfileStrategy(pp, tp, sp, dp, kind, checkpoint))
    return sorted(space)


def list_tasks(num_devices: int, num_layers: int, search: Search) -> list[Task]:
    """Return the turns of the outer loops, in order (§2).

    Raises
    ------
    InvalidProblemError
        If a number of chunks does not divide a batch.
    """
    tasks = []
    for batch in search.batch_sizes:
        chunk_sizes = search.chunks
        if chunk_sizes is None:
            chunk_sizes = [i for i in range(1, batch + 1) if batch % i == 0]
        for chunks in chunk_sizes:
            if chunks < 1 or batch % chunks:
                raise InvalidProblemError(
                    f"chunks: expected divisors of the batch {batch}, got "
                    f"{chunks}; correct the value"
                )
            for pp in powers_of_two(
                min(num_devices, num_layers, search.max_pp, chunks)
            ):
                devices = num_devices // pp
                max_degree = min(devices, search.max_degree)
                most_dp = max(1, min(batch // chunks, devices))
                min_degree = max(1, devices // most_dp)
                for mode in MODES:
                    tasks += [
                        Task(batch, chunks, pp, mode, degree)
                        for degree in powers_of_two(max_degree)
                        if (
                            degree == max_degree
                            if mode == "sp_only"
                            else degree >= min_degree
                        )
                    ]
    return tasks


def on_offer(
    space: Sequence[ProfileStrategy], num_devices: int, task: Task
) -> list[ProfileStrategy]:
    """Return the strategies that a task may use, in their order."""
    most_dp = max(1, min(task.batch // task.chunks, num_devices // task.pp))
    return [
        s
        for s in space
        if s.pp == task.pp
        and s.degree <= task.max_degree
        and s.dp <= most_dp
        and not (task.mode == "tp_only" and s.sp > 1)
        and not (task.mode == "sp_only" and s.tp > 1)
    ]


# The cost model


def layer_times_s(
    model: ModelProfile,
    hardware: HardwareProfile,
    search: Search,
    strategy: ProfileStrategy,
    task: Task,
) -> tuple[float, float]:
    """Return a layer's time per micro-batch with and without gradient sync.

    As in §5, with these readings: the gradient sync is an all-reduce
    of ``2 (d-1)/d`` of the weights over the ``d`` sharers; ZeRO-3 adds half
    of that, once, overlapping nothing; a point-to-point transfer counts ``pp``
    messages both ways, spread over all layers of the model.
    """
    samples = task.batch // task.chunks // strategy.dp
    bytes_each = 2 if search.mixed_precision else 4
    forward_ms = _on_line(model.forward_ms, samples / strategy.degree)
    backward_ms = BACKWARD_RATIO * forward_ms
    if strategy.checkpoint:
        backward_ms += forward_ms

    sharers = strategy.sharers
    sync_mb = 2 * (sharers - 1) / sharers * model.parameters_mb / strategy.tp
    if search.mixed_precision:
        sync_mb /= 2
    neighbors = strategy.tp == 1
    sync_ms = sync_mb * hardware.all_reduce_ms_per_mb[sharers, neighbors]

    message_bytes = samples * model.sequence_length * model.hidden_size * bytes_each
    messages_ms = 0.0
    if strategy.tp > 1:
        messages_ms = NUM_ALL_GATHERS * hardware.all_gathers[strategy.tp].time_ms(
            message_bytes
        )
    elif strategy.sp > 1:
        messages_ms = NUM_ALL_TO_ALLS * hardware.all_to_alls[strategy.sp].time_ms(
            message_bytes
        )
    if strategy.checkpoint:
        messages_ms *= CHECKPOINT_FACTOR

    rest_ms = forward_ms + messages_ms
    if strategy.data_parallel == "zero3":
        rest_ms += sync_ms / 2
    if strategy.pp > 1:
        transfer_mb = strategy.pp * 2 * message_bytes / MIB
        transfer_ms = transfer_mb * hardware.p2p_ms_per_mb[strategy.pp]
        rest_ms += transfer_ms / model.num_layers
    with_sync_ms, without_ms = (
        rest_ms + overlapped_s(sync, backward_ms, hardware.overlap_slowdown)
        for sync in (sync_ms, 0.0)
    )
    return with_sync_ms / MS_PER_S, without_ms / MS_PER_S


def layer_memory_mb(
    model: ModelProfile,
    search: Search,
    strategy: ProfileStrategy,
    task: Task,
    stage: int,
) -> float:
    """Return the memory of a layer on a stage (§6)."""
    samples = task.batch // task.chunks // strategy.dp
    in_flight = samples * _num_in_flight(search, task, stage)
    states_mb = 4 * model.parameters_mb / strategy.tp
    states_mb *= _state_ratio(search, strategy, task)
    if not strategy.checkpoint:
        return states_mb + model.activations_mb[strategy.degree] * in_flight
    kept_mb = model.checkpoint_mb * in_flight
    if strategy.sp > 1 or (strategy.tp > 1 and search.sequence_parallel):
        kept_mb /= strategy.degree
    return states_mb + kept_mb


def other_times_s(
    model: ModelProfile,
    hardware: HardwareProfile,
    search: Search,
    strategy: ProfileStrategy,
    task: Task,
) -> list[float]:
    """Return the time of embedding and head on every stage per micro-batch.

    Half of the profiled time falls on the first stage and half on the last.
    A tensor parallel embedding and head exchange one message each, always
    timed by the line. Gradient sync is left out, as it does not count in the
    pipeline time. ZeRO-3 gathers the weights, counted as half an all-reduce
    of fp32 weights, once, behind the forward pass: that reading alone gives
    the recorded times (a second gather would add 0.03 %).
    """
    samples = task.batch // task.chunks // strategy.dp
    forward_ms = _on_line(model.other_forward_ms, samples / strategy.degree)
    message_ms = 0.0
    if strategy.tp > 1:
        message_ms = hardware.all_gathers[strategy.tp].fitted_ms(
            samples
            * model.sequence_length
            * model.hidden_size
            * (2 if search.mixed_precision else 4)
        )
    sharers = strategy.sharers
    neighbors = strategy.tp == 1 or strategy.dp == 1
    gather_ms_per_mb = 0.0
    if strategy.data_parallel == "zero3":
        coefficient = hardware.all_reduce_ms_per_mb[sharers, neighbors]
        gather_ms_per_mb = 0.5 * coefficient * (sharers - 1) / sharers

    def time_s(part: OtherMemory, share: float, num_messages: int) -> float:
        forward = share * forward_ms
        weights_mb = part.states_mb[strategy.tp] / 4
        time_ms = BACKWARD_RATIO * forward + num_messages * message_ms
        time_ms += hidden_s(
            gather_ms_per_mb * weights_mb, forward, hardware.overlap_slowdown
        )
        return time_ms / MS_PER_S

    if task.pp == 1:
        return [time_s(model.other, 1, 2)]
    between = [0.0] * (task.pp - 2)
    return [time_s(model.first, 0.5, 1), *between, time_s(model.last, 0.5, 1)]


def other_memory_mb(
    model: ModelProfile, search: Search, strategy: ProfileStrategy, task: Task
) -> list[float]:
    """Return the memory of embedding, head and context on every stage."""
    samples = task.batch // task.chunks // strategy.dp
    ratio = _state_ratio(search, strategy, task)
    memory_mb = [float(CONTEXT_MB)] * task.pp
    parts = (
        [(0, model.other)]
        if task.pp == 1
        else [(0, model.first), (task.pp - 1, model.last)]
    )
    for stage, part in parts:
        in_flight = samples * _num_in_flight(search, task, stage)
        memory_mb[stage] += part.states_mb[strategy.tp] * ratio
        memory_mb[stage] += part.activations_mb[strategy.degree] * in_flight
    return memory_mb


def buffer_mb(
    model: ModelProfile, search: Search, num_devices: int, task: Task
) -> float:
    """Return the buffer in which sequence parallel layers gather."""
    if not search.sequence_parallel or task.mode == "sp_only":
        return 0.0
    dp = num_devices // task.pp // task.max_degree
    samples = task.batch / task.chunks / dp
    size = samples * model.hidden_size * model.sequence_length * 4 / MIB
    return size / 2 if search.mixed_precision else size


def transition_s(
    model: ModelProfile,
    hardware: HardwareProfile,
    search: Search,
    before: ProfileStrategy,
    after: ProfileStrategy,
    task: Task,
) -> float:
    """Return the time between layers of different strategies.

    ``(g-1)/g`` of the activation at the larger degree ``g`` where degrees
    differ under sequence parallelism, 100 times what the bandwidth says, see
    :data:`TRANSITION_SCALE`; else a bias that orders strategies.
    """
    if before == after:
        return 0.0
    if search.sequence_parallel and before.degree != after.degree:
        degree = max(before.degree, after.degree)
        dp = hardware.num_devices // task.pp // degree
        size_bytes = (
            task.batch
            / task.chunks
            / dp
            * model.sequence_length
            * model.hidden_size
            * (2 if search.mixed_precision else 4)
        )
        coefficient = hardware.all_reduce_ms_per_mb[degree, True]
        moved = (degree - 1) / degree * size_bytes
        return moved * coefficient * TRANSITION_SCALE
    if before.degree != after.degree:
        return 0.0
    kinds = [(x.data_parallel == "zero3", x.checkpoint) for x in (before, after)]
    if (before.sp > 1) == (after.sp > 1):
        return bias_s(*kinds)
    return BIAS_ULYSSES_S if after.sp > 1 and kinds[0] == kinds[1] else 0.0


def make_tables(
    model: ModelProfile, hardware: HardwareProfile, search: Search, task: Task
) -> tuple[Tables, list[ProfileStrategy], list[ProfileStrategy]]:
    """Return the tables of a task that offers some strategy.

    With the strategies of the layers, and those of embedding and head.
    """
    space = strategy_space(hardware.num_devices, model.num_layers, search)
    layers = on_offer(space, hardware.num_devices, task)
    plain = [s._replace(checkpoint=False) for s in layers]
    # in coarse mode a layer's strategy is that of embedding and head too
    heads = sorted(set(plain)) if search.fine_grained else plain
    times_s = np.array(
        [layer_times_s(model, hardware, search, s, task) for s in layers]
    )
    memory = [
        [math.ceil(layer_memory_mb(model, search, s, task, stage)) for s in layers]
        for stage in range(task.pp)
    ]
    shape = (model.num_layers, len(layers))
    between: Floats = np.array(
        [
            [transition_s(model, hardware, search, s, t, task) for t in layers]
            for s in layers
        ]
    )
    # rounded down where layers choose, up in coarse mode, as coded
    rounded = math.floor if search.fine_grained else math.ceil
    buffer = rounded(buffer_mb(model, search, hardware.num_devices, task))
    others = []
    for strategy in heads:
        times = other_times_s(model, hardware, search, strategy, task)
        memory_mb = other_memory_mb(model, search, strategy, task)
        others.append(
            Other(tuple(times), tuple(math.ceil(size) + buffer for size in memory_mb))
        )
    tables = Tables(
        num_chunks=task.chunks,
        stages=stages_of(divide_even(model.num_layers, task.pp)),
        layer_sync_s=np.broadcast_to(times_s[:, 0], shape),
        layer_no_sync_s=np.broadcast_to(times_s[:, 1], shape),
        memory_units=np.broadcast_to(
            np.array(memory, dtype=np.int64)[:, None, :], (task.pp, *shape)
        ),
        transition_s=np.broadcast_to(between, (shape[0], *between.shape)),
        others=tuple(others),
    )
    return tables, layers, heads


def search_profiles(
    model: ModelProfile,
    hardware: HardwareProfile,
    search: Search,
    stop: Callable[[], bool] = lambda: False,
) -> ProfileAnswer | None:
    """Search as Galvatron does; ``None`` if nothing fits.

    The answer has the highest throughput over all batches and tasks.

    Raises
    ------
    InvalidProblemError
        If a number of chunks does not divide a batch, or a degree that is
        searched was not profiled.
    """
    _check_degrees(model, hardware, search)
    budget_mb = search.memory_gib * 1024
    usable_mb = usable_mib(budget_mb)
    space = strategy_space(hardware.num_devices, model.num_layers, search)
    best: ProfileAnswer | None = None
    for batch in search.batch_sizes:
        one = replace(search, batch_sizes=(batch,))
        made = [
            (task, *make_tables(model, hardware, one, task))
            for task in list_tasks(hardware.num_devices, model.num_layers, one)
            if on_offer(space, hardware.num_devices, task)
        ]
        solved = solve_tasks(
            [tables for _, tables, _, _ in made],
            usable_mb,
            coarse=not search.fine_grained,
            stop=stop,
        )
        if solved is None:
            continue
        position, choice = solved
        task, tables, layers, heads = made[position]
        answer = _answer(task, choice, tables, layers, heads, budget_mb - usable_mb)
        if best is None or (
            answer.task.batch / answer.time_s > best.task.batch / best.time_s
        ):
            best = answer
    return best


def zero_ratios(
    ranks: int,
    num_chunks: int,
    *,
    mixed_precision: bool = True,
    async_grad_reduce: bool = True,
) -> tuple[float, float]:
    """Return which part of the model states ZeRO-2 and ZeRO-3 leave.

    Parameters
    ----------
    ranks
        Devices ``d`` that share them; a shard is ``r = 1/d + 0.003``.
    num_chunks
        Micro-batches per step.
    mixed_precision, async_grad_reduce
        Whether weights are kept twice, and whether gradients are reduced at
        the end of the step only (§6; the ratios without mixed
        precision are those of the code).
    """
    shard = 1 / ranks + 0.003
    if num_chunks > 1 and async_grad_reduce:
        if mixed_precision:
            return 6 / 8 * shard + 2 / 8, 7 / 8 * shard + 1 / 8
        return 2 / 4 * shard + 2 / 4, 3 / 4 * shard + 1 / 4
    zero2 = 7 / 8 * shard + 1 / 8 if mixed_precision else 3 / 4 * shard + 1 / 4
    if num_chunks == 1:
        return zero2, shard
    if mixed_precision:
        return zero2 * 5 / 4, shard * 5 / 4
    return zero2, shard * 5 / 4


# Files


def read_hardware(
    folder: str | Path, num_nodes: int, devices_per_node: int
) -> HardwareProfile:
    """Read the profiles of a machine from a folder ``hardware_configs``.

    Raises
    ------
    InvalidProblemError
        If a file or an entry is missing or malformed.
    """
    folder = Path(folder)
    machine = f"{num_nodes}nodes_{devices_per_node}gpus_per_node"
    num_devices = num_nodes * devices_per_node
    sizes = powers_of_two(num_devices)[1:]
    bandwidths = Entries.read(folder / f"allreduce_bandwidth_{machine}.json")
    all_reduce = {(1, True): 0.0, (1, False): 0.0}
    for size in sizes:
        for neighbors in (True, False):
            # the whole machine is one group, counted as neighbors
            flag = int(neighbors or size == num_devices)
            key = f"allreduce_size_{size}_consec_{flag}"
            all_reduce[size, neighbors] = 1 / bandwidths.number(key)
    transfers = Entries.read(folder / f"p2p_bandwidth_{machine}.json")
    p2p = {pp: 1 / transfers.number(f"pp_size_{pp}") for pp in sizes}
    times = Entries.read(folder / f"sp_time_{machine}.json")
    overlap = Entries.read(folder / "overlap_coefficient.json")
    return HardwareProfile(
        num_devices=num_devices,
        all_reduce_ms_per_mb=all_reduce,
        p2p_ms_per_mb=p2p,
        overlap_slowdown=overlap.number("overlap_coe"),
        all_gathers=_messages(times, "allreduce", 0.5),
        all_to_alls=_messages(times, "all2all", 1.0),
    )


def read_model(
    folder: str | Path,
    name: str,
    *,
    num_layers: int,
    hidden_size: int,
    sequence_length: int,
    dtype: str = "bf16",
    sequence_parallel: bool = True,
) -> ModelProfile:
    """Read the profiles of a model from a folder ``configs``.

    Parameters
    ----------
    folder, name, dtype
        Where the files are, and the parts of their names.
    num_layers, hidden_size, sequence_length
        Shape of the model; the files hold single layers only.
    sequence_parallel
        Read the memory profiled with sequence parallelism.

    Raises
    ------
    InvalidProblemError
        If a file or an entry is missing or malformed, or there are too few
        batch sizes for a line.
    """
    name = f"profiling_{dtype}_{name}_all.json"
    times = Entries.read(Path(folder, f"computation_{name}"))
    memory = Entries.read(Path(folder, f"memory_{name}"))
    suffix = "_sp" if sequence_parallel else ""
    length = str(sequence_length)

    def memory_of(part: str) -> Entries:
        return memory.inside(part + suffix).inside(length)

    def other(part: str) -> OtherMemory:
        entries = memory_of(part)
        states, activations = (
            entries.inside(key) for key in ("model_states", "activation")
        )
        return OtherMemory(states.degrees(), activations.degrees())

    layer = memory_of("layertype_0")
    kept = layer.inside("tp_activation_per_bsz_dict")
    return ModelProfile(
        num_layers=num_layers,
        hidden_size=hidden_size,
        sequence_length=sequence_length,
        forward_ms=_forward_line(times, "layertype_0", length),
        other_forward_ms=_forward_line(times, "layertype_other", length),
        parameters_mb=layer.number("parameter_size"),
        checkpoint_mb=kept.number("checkpoint"),
        activations_mb=kept.degrees(but="checkpoint"),
        other=other("other_memory_pp_off"),
        first=other("other_memory_pp_on_first"),
        last=other("other_memory_pp_on_last"),
    )


@dataclass(frozen=True)
class Entries:
    """Entries of a profile.

    Attributes
    ----------
    values
        What they are.
    where
        The file, and the keys that lead to them; for errors.
    """

    values: Mapping[str, Any]
    where: str

    @classmethod
    def read(cls, path: Path) -> Entries:
        """Return the entries of a file."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise InvalidProblemError(
                f"{path}: expected a readable profile, got "
                f"{error.strerror or error}; check the path"
            ) from error
        except ValueError as error:
            raise InvalidProblemError(
                f"{path}: expected a profile in JSON, got malformed text; "
                f"check that the file is complete"
            ) from error
        if not isinstance(values, dict):
            raise InvalidProblemError(
                f"{path}: expected a JSON object, got "
                f"{type(values).__name__}; check that it is a profile of "
                f"Galvatron"
            )
        return cls(values, f"{path}: ")

    def inside(self, key: str) -> Entries:
        """Return the entries under a key."""
        value = self.values.get(key)
        if not isinstance(value, dict):
            raise InvalidProblemError(
                f"{self.where}{key}: expected an object, got "
                f"{'none' if value is None else type(value).__name__}; "
                f"profile this part of the model"
            )
        return Entries(value, f"{self.where}{key}.")

    def number(self, key: str) -> float:
        """Return a number above 0."""
        value = self.values.get(key)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not 0 < value < math.inf
        ):
            raise InvalidProblemError(
                f"{self.where}{key}: expected a number above 0, got "
                f"{'none' if value is None else value}; profile it again"
            )
        return float(value)

    def degrees(self, but: str = "") -> dict[int, float]:
        """Return numbers by degree, without those of another key."""
        return {int(key): self.number(key) for key in self.values if key != but}


def _messages(times: Entries, kind: str, factor: float) -> dict[int, Messages]:
    """Read ``kind_size_N_XMB_time`` into one table per group size."""
    pattern = re.compile(rf"{kind}_size_(\d+)_(\d+)MB_time")
    measured: dict[int, dict[int, float]] = {}
    for key in times.values:
        match = pattern.fullmatch(key)
        if match:
            group, size_mb = map(int, match.groups())
            time_ms = factor * times.number(key)
            measured.setdefault(group, {})[size_mb * MIB] = time_ms
    return {
        group: Messages(
            table,
            _fit(
                {size / MIB: time_ms for size, time_ms in table.items()},
                f"{times.where}{kind}_size_{group}",
            ),
        )
        for group, table in measured.items()
    }


def _forward_line(times: Entries, part: str, length: str) -> Line:
    """Fit the forward time of a micro-batch to its samples."""
    pattern = re.compile(rf"{part}_bsz(\d+)_seq{length}")
    totals: dict[float, float] = {}
    for key in times.values:
        match = pattern.fullmatch(key)
        if match:
            samples = int(match[1])
            totals[samples] = samples * times.number(key)
    return _fit(totals, f"{times.where}{part}_bsz…_seq{length}")


def _fit(points: Mapping[float, float], where: str) -> Line:
    """Return the least-squares line through points."""
    if len(points) < MIN_FIT_POINTS:
        raise InvalidProblemError(
            f"{where}: expected at least {MIN_FIT_POINTS} sizes, got "
            f"{len(points)}; profile more of them"
        )
    slope, constant = np.polyfit(list(points), list(points.values()), 1)
    return float(slope), float(constant)


def _check_degrees(
    model: ModelProfile, hardware: HardwareProfile, search: Search
) -> None:
    degrees = powers_of_two(min(hardware.num_devices, search.max_degree))
    tables: dict[str, Mapping[int, object]] = {"activations": model.activations_mb}
    for part in ("other", "first", "last"):
        memory: OtherMemory = getattr(model, part)
        tables[f"states of embedding and head ({part})"] = memory.states_mb
        tables[f"activations of embedding and head ({part})"] = memory.activations_mb
    for name, table in tables.items():
        _check_profiled(name, table, degrees)
    _check_profiled("all-gather times", hardware.all_gathers, degrees[1:])
    _check_profiled("all-to-all times", hardware.all_to_alls, degrees[1:])


def _check_profiled(
    name: str, table: Mapping[int, object], degrees: Sequence[int]
) -> None:
    for degree in degrees:
        if degree not in table:
            raise InvalidProblemError(
                f"{name}: expected degrees "
                f"{', '.join(map(str, degrees))}, got "
                f"{', '.join(map(str, sorted(table)))}; profile degree "
                f"{degree} or search smaller ones only"
            )


def _answer(
    task: Task,
    choice: Choice,
    tables: Tables,
    layers: Sequence[ProfileStrategy],
    heads: Sequence[ProfileStrategy],
    cache_mb: int,
) -> ProfileAnswer:
    return ProfileAnswer(
        task=task,
        time_s=choice.time_s,
        strategies=tuple(layers[s] for s in choice.strategies),
        division=tuple(stop - start for start, stop in tables.stages),
        embedding=heads[choice.other],
        memory_mb=tuple(used + cache_mb for used in choice.used_units),
    )


def _on_line(line: Line, x: float) -> float:
    return line[0] * x + line[1]


def _num_in_flight(search: Search, task: Task, stage: int) -> int:
    if task.pp == 1:
        return 1
    return task.chunks if search.gpipe else task.pp - stage


def _state_ratio(search: Search, strategy: ProfileStrategy, task: Task) -> float:
    zero2, zero3 = zero_ratios(
        strategy.sharers,
        task.chunks,
        mixed_precision=search.mixed_precision,
        async_grad_reduce=search.async_grad_reduce,
    )
    return {"ddp": 1.0, "zero2": zero2, "zero3": zero3}[strategy.data_parallel]
