"""What a problem needs besides model and cluster: chosen, or filled in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product
from math import gcd, prod
from typing import Any, NamedTuple

from msgspec.structs import asdict

from nest.constraints.targets import ANY, Framework, optimizer_of, stated_schedules
from nest.constraints.targets import target as find_target
from nest.errors import InvalidOptionError
from nest.hardware import Machine
from nest.ir.base import Distinct, Struct
from nest.ir.job import (
    ANY_ORDER,
    SPLIT_BACKWARD,
    Job,
    Optimizer,
    Schedules,
    named_schedules,
)
from nest.ir.plan import NOT_SPLIT, OVERLAP, USUAL_RECOMPUTE, Overlap, Recompute
from nest.models.architectures import Architecture, blocks, head_towers
from nest.models.operators.base import DTYPES, Dtype, Execution
from nest.units import divisors

#: Mixed-precision Adam with 16 bytes per weight: bf16 weight and gradient, fp32 master
#: weight and two moments (Rajbhandari et al. 2020, arXiv 1910.02054, §3.1).
MIXED_PRECISION_ADAM = Optimizer(
    name="adam", weight_bytes=2, gradient_bytes=2, state_bytes=12
)

#: Tokens per step unless the user says otherwise.
GLOBAL_TOKENS = 4 * 2**20

#: Devices up to which a sample is shared by default: Llama-3-405B was trained on 16,384
#: with 2,048 samples (Grattafiori et al. 2024, arXiv 2407.21783, table 4).
DEVICES_PER_SAMPLE = 8

#: Longest sequence unless the user says otherwise.
SEQUENCE_LENGTH = 8192

#: Sequences from this length on may be split over ``cp`` by default.
LONG_SEQUENCE = 8192

#: Tokens of the largest share of a micro-batch that one rank is offered.
TOKENS_PER_RANK = 2**15

#: Largest degrees and micro-batch that are tried by default.
MAX_TP = 16
MAX_EP = 64
MAX_MICRO_BATCH = 64

#: Graph nodes up to which the dynamic program is quick on a chain.
MAX_NODES = 100

#: Fewer nodes than this leave too little choice of where to cut.
MIN_NODES = 16


class Degrees(NamedTuple):
    """Key of a cost: degrees, and samples per data-parallel rank.

    ``etp`` is 1 where tensor ranks hold whole experts, 0 where these are cut too.
    """

    tp: int = 1
    cp: int = 1
    ep: int = 1
    samples: int = 1
    etp: int = 0


def read_overlap(texts: Sequence[str]) -> dict[Overlap, float]:
    """Read texts such as ``gradients=0.9,tp=0.5``.

    Raises ``ValueError`` with the part that has an unknown name, one that came before,
    or no fraction from 0 to 1.
    """
    fractions: dict[Overlap, float] = {}
    for item in (item for text in texts for item in text.split(",")):
        text, _, value = item.strip().partition("=")
        name = next((name for name in OVERLAP if name == text), None)
        try:
            fraction = float(value)
        except ValueError:
            fraction = -1.0
        if name is None or name in fractions or not 0 <= fraction <= 1:
            raise ValueError(item)
        fractions[name] = fraction
    return fractions


class Request(Struct, frozen=True, kw_only=True):
    """What the user chooses; ``None`` leaves it to :func:`choose`."""

    #: Samples per step; tokens of the towers without a length of their own.
    global_batch: int | None = None
    sequence_length: int | None = None
    #: Candidates.
    micro_batches: tuple[int, ...] | None = None
    tp: tuple[int, ...] | None = None
    cp: tuple[int, ...] | None = None
    ep: tuple[int, ...] | None = None
    etp: tuple[int, ...] | None = None
    zero: tuple[int, ...] | None = None
    recompute: tuple[Recompute, ...] | None = None
    #: Consecutive blocks that one graph node stands for.
    layers_per_node: int | None = None
    #: Of the matrix products.
    dtype: Dtype | None = None
    #: Chunks per block that plans may have; above 1 they are interleaved.
    virtual_stages: tuple[int, ...] | None = None
    #: What training keeps per weight, see :mod:`nest.constraints.targets.memory`.
    gradients: str | None = None
    optimizer: str | None = None
    #: The framework whose defaults count, see :mod:`nest.constraints.targets`.
    target: str | None = None
    #: The pipeline schedule.
    schedule: Schedules | None = None
    #: Communication that may overlap with computation, with the overlapped fraction.
    overlap: dict[Overlap, float] | None = None
    #: Whether the optimizer may be sharded over replicas too.
    distributed_optimizer: bool | None = None
    #: Whether activations between layers are split over ``tp`` too: one value for all
    #: plans, or both for plans to choose.
    sequence_parallel: Distinct[bool] | None = None


class Choices(Struct, frozen=True, kw_only=True):
    """All that a problem needs besides model and cluster.

    As in :class:`Request`, with ``degrees`` the keys of the cost tables, and
    ``sequence_parallel`` as in a job: whether activations between layers are
    cut over ``tp`` too, or what plans may choose of that. ``execution`` is how
    operators are run, by default the usual one in the data type.
    """

    global_batch: int
    sequence_length: int
    micro_batches: tuple[int, ...]
    degrees: tuple[Degrees, ...]
    zero: tuple[int, ...] = (0, 1, 2, 3)
    recompute: tuple[Recompute, ...] = USUAL_RECOMPUTE
    layers_per_node: int = 1
    sequence_parallel: bool | tuple[bool, ...] = True
    dtype: Dtype = "bf16"
    virtual_stages: tuple[int, ...] = (1,)
    optimizer: Optimizer = MIXED_PRECISION_ADAM
    schedule: Schedules = "1f1b"
    overlap: dict[Overlap, float] = {}
    distributed_optimizer: bool = False
    execution: Execution | None = None

    @property
    def of_job(self) -> dict[str, Any]:
        """The fields that a job has too."""
        fields = asdict(self)
        if self.execution is not None:
            fields["selective_operators"] = self.execution.selective_operators
        return {name: fields[name] for name in Job.__struct_fields__ if name in fields}

    def splits(self, tp: int) -> dict[bool, bool]:
        """Return the splits of sequences that have costs at a degree.

        By what their entries say: nothing where the job decides.
        """
        if isinstance(self.sequence_parallel, bool):
            return {False: self.sequence_parallel}
        if tp == 1:
            return {False: True in self.sequence_parallel}
        return dict(zip(self.sequence_parallel, self.sequence_parallel, strict=True))


def choose(
    model: Architecture,
    site: Machine,
    num_devices: int,
    request: Request | None = None,
    named: Mapping[str, Collection[int | str]] | None = None,
) -> Choices:
    """Fill in what the user left open, as docs/models.md lists.

    Unless the user chooses, sequence parallelism is off where a tower's length does not
    divide by every ``tp`` (the 257 tokens of an image), and for targets without it.

    Degrees that the request chooses must divide the model. ``named`` are values that
    plans are named by, by the settings of ``--pin``: where the request leaves a list
    open, it gets those that the model allows. Raises ``InvalidOptionError`` if a choice
    is out of range or does not divide the model; the text begins with the field's name.
    """
    request = request or Request()
    values_of_settings = {
        name: {*map(int, values)}
        for name, values in (named or {}).items()
        if name != "recompute"
    }
    framework = find_target(request.target or ANY)
    schedule, recompute, virtual_stages = _schedule(
        request, framework, values_of_settings
    )
    length = _sequence_length(model, request.sequence_length)
    longest = max(model.lengths(length).values())
    batch = request.global_batch
    if batch is None:
        batch = powers_of_two(
            max(GLOBAL_TOKENS // longest, num_devices // DEVICES_PER_SAMPLE)
        )[-1]
    micro_batches, samples = _micro_batches(
        request, batch, num_devices, longest, values_of_settings
    )
    usual = {
        "tp": powers_of_two(min(site.node.fan_out, num_devices, MAX_TP)),
        "cp": (1, 2) if longest >= LONG_SEQUENCE else (1,),
        "ep": powers_of_two(min(MAX_EP, num_devices)),
    }
    tps, cps, eps = (
        _fitting(
            *(model, axis, getattr(request, axis)),
            *(tuple(sorted({*few, *values_of_settings.get(axis, ())})),),
            *(num_devices, length),
        )
        for axis, few in usual.items()
    )
    stated = request.sequence_parallel
    sequence_parallel: bool | tuple[bool, ...]
    if stated is not None:
        sequence_parallel = stated[0] if len(stated) == 1 else (False, True)
    elif framework.rules and framework.rules.sequence_parallel.value is False:
        sequence_parallel = False
    else:
        # A degree that was named takes nothing from the others.
        few = usual["tp"] if request.tp is None else None
        sequence_parallel = _usual_split(model, length, tps, few)
    expert_tensor = _expert_tensor(
        *(model, request.etp, sequence_parallel), values_of_settings.get("etp", ())
    )
    degrees = tuple(
        Degrees(*key, etp)
        for key in product(tps, cps, eps, samples)
        for etp in expert_tensor(key[0])
        if model.why_not_split(*key[:3], length, sequence_parallel is True) is None
    )
    if not degrees:
        raise InvalidOptionError(
            f"tp: expected degrees that divide {model.name} together with "
            f"cp and ep, got tp {_listed(tps)}, cp {_listed(cps)} and ep "
            f"{_listed(eps)}; choose smaller ones"
        )
    return Choices(
        global_batch=batch,
        sequence_length=length,
        micro_batches=micro_batches,
        degrees=degrees,
        zero=request.zero or (0, 1, 2, 3),
        recompute=recompute,
        layers_per_node=layers_per_node(model, request.layers_per_node),
        sequence_parallel=sequence_parallel,
        dtype=_dtype(site, request.dtype),
        virtual_stages=virtual_stages,
        optimizer=optimizer_of(framework, request.gradients, request.optimizer),
        schedule=schedule,
        overlap=request.overlap or {},
        distributed_optimizer=bool(request.distributed_optimizer),
    )


def _expert_tensor(
    model: Architecture,
    requested: tuple[int, ...] | None,
    sequence_parallel: bool | tuple[bool, ...],
    named: Collection[int],
) -> Callable[[int], tuple[int, ...]]:
    """Return what ``etp`` of keys may be at a ``tp``: 0, and 1 for whole experts.

    The request lists numbers of tensor ranks that an expert is cut over, by default
    ``tp`` and what is named. Raises ``InvalidOptionError`` if the model has no experts,
    or whole ones would need sequence parallelism.
    """
    has_experts = any(block.mlp.experts for block in blocks(model, once=True))
    if requested and not has_experts:
        raise InvalidOptionError(
            f"etp: expected none, as {model.name} has no experts, got "
            f"{_listed(requested)}; leave it out"
        )
    if requested == (1,) and sequence_parallel is False:
        raise InvalidOptionError(
            "etp: expected sequence parallelism, as tensor ranks with whole experts "
            "dispatch tokens of their own, got none; add --sequence-parallel on"
        )

    def values(tp: int) -> tuple[int, ...]:
        allowed = requested or (tp, *named)
        cut = (0,) if tp in allowed else ()
        whole = (1,) if tp > 1 and 1 in allowed and has_experts else ()
        return cut + whole

    return values


#: Chunks per block of plans with any order of passes, by default.
CHUNKS_OF_ANY_ORDER = (2, 4)


def _schedule(
    request: Request, target: Framework, named: Mapping[str, Collection[int]]
) -> tuple[Schedules, tuple[Recompute, ...], tuple[int, ...]]:
    """Return schedules, and their recompute choices and virtual stages."""
    stated = request.schedule or "1f1b"
    schedule = stated_schedules(target, stated)
    recompute = request.recompute
    if not recompute:
        splits = SPLIT_BACKWARD.issuperset(named_schedules(schedule))
        refused = NOT_SPLIT if splits else frozenset()
        recompute = tuple(x for x in USUAL_RECOMPUTE if x not in refused)
    virtual_stages = request.virtual_stages
    if virtual_stages is None:
        more: Collection[int] = ()
        if "1f1b" in named_schedules(schedule):
            more = named.get("v", ())
            if stated == ANY_ORDER:
                more = (*more, *CHUNKS_OF_ANY_ORDER)
        virtual_stages = tuple(sorted({1, *more}))
    try:
        Job(
            global_batch=1,
            schedule=schedule,
            recompute=recompute,
            virtual_stages=virtual_stages,
        )
    except ValueError as error:
        raise InvalidOptionError(str(error)) from None
    return schedule, recompute, virtual_stages


def _usual_split(
    model: Architecture, length: int, tps: Sequence[int], usual: Sequence[int] | None
) -> bool | tuple[bool, ...]:
    """Return whether sequences are split over all ``tps``.

    Plans choose where every one of the ``usual`` degrees divides them, but
    another one does not.
    """
    lengths = model.lengths(length).values()
    uneven = {tp for tp in tps if any(tokens % tp for tokens in lengths)}
    if uneven and usual is not None and uneven.isdisjoint(usual):
        return (False, True)
    return not uneven


def _micro_batches(
    request: Request,
    batch: int,
    num_devices: int,
    longest: int,
    named: Mapping[str, Collection[int]],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return micro-batches, and samples per data-parallel rank."""
    stated = request.micro_batches
    if stated is not None:
        if all(batch % size for size in stated):
            raise InvalidOptionError(
                f"micro_batches: expected at least one divisor of "
                f"global_batch {batch}, got {_listed(stated)}; choose others"
            )
        return stated, _shares(stated)
    largest = min(MAX_MICRO_BATCH, num_devices * 2, batch)
    sizes = tuple(size for size in powers_of_two(largest) if batch % size == 0)
    limit = max(TOKENS_PER_RANK // longest, 1)
    return _with_named(batch, sizes, powers_of_two(min(limit, max(sizes))), named)


def _sequence_length(model: Architecture, requested: int | None) -> int:
    fixed = [tower.sequence_length for tower in model.towers]
    if requested is None:
        return min(model.max_sequence, SEQUENCE_LENGTH)
    if None not in fixed and requested != model.max_sequence:
        raise InvalidOptionError(
            f"sequence_length: expected {model.max_sequence}, which "
            f"{model.name} fixes, got {requested}; leave it out"
        )
    tables = [
        tower.learned_positions
        for tower in model.towers
        if tower.learned_positions and tower.sequence_length is None
    ]
    if tables and requested > min(tables):
        raise InvalidOptionError(
            f"sequence_length: expected at most the {min(tables)} learned "
            f"positions of {model.name}, got {requested}; choose less"
        )
    return requested


def _fitting(
    model: Architecture,
    axis: str,
    requested: tuple[int, ...] | None,
    usual: tuple[int, ...],
    num_devices: int,
    length: int,
) -> tuple[int, ...]:
    """Return the user's degrees, or the usual ones that divide the model."""
    fitting = []
    for value in requested or usual:
        degrees = {"tp": 1, "cp": 1, "ep": 1, axis: value}
        reason = model.why_not_split(
            **degrees, sequence_length=length, sequence_parallel=False
        )
        if value > num_devices:
            reason = (
                f"{axis}: expected at most the {num_devices} devices, got "
                f"{value}; choose less"
            )
        if reason is None:
            fitting.append(value)
        elif requested is not None:
            raise InvalidOptionError(reason)
    return tuple(fitting)


def layers_per_node(model: Architecture, requested: int | None) -> int:
    """Return the user's number, or one that leaves a graph of useful size."""
    layers = gcd(*(tower.layers for tower in model.towers))
    if requested is not None:
        if layers % requested:
            smaller = range(1, min(requested, layers) + 1)
            fits = max(n for n in smaller if layers % n == 0)
            raise InvalidOptionError(
                f"layers_per_node: expected a divisor of the {layers} "
                f"layers of {model.name}, got {requested}; choose {fits}"
            )
        return requested
    # The closed sets of towers side by side are pairs of positions.
    readers = [tower.layers for tower in head_towers(model)]
    for count in divisors(layers):
        sets = model.layers // count
        if len(readers) > 1:
            sets = prod(size // count + 1 for size in readers)
        if sets <= MAX_NODES:
            return count if model.layers // count >= MIN_NODES else 1
    return 1


def _dtype(site: Machine, requested: Dtype | None) -> Dtype:
    """Return the user's data type if the device multiplies it."""
    peaks = site.device.peak_flops
    multiplied = [name for name in DTYPES if name in peaks]
    if requested is None:
        if not multiplied:
            raise InvalidOptionError(
                f"dtype: expected a device that multiplies one of "
                f"{', '.join(DTYPES)}, got {site.device.name} with "
                f"{', '.join(sorted(peaks)) or 'none'}; choose another"
            )
        return multiplied[0]
    if requested not in multiplied:
        raise InvalidOptionError(
            f"dtype: expected one of {', '.join(multiplied)}, which "
            f"{site.device.name} multiplies, got {requested!r}; choose another"
        )
    return requested


def powers_of_two(limit: int) -> tuple[int, ...]:
    """Return the powers of two up to ``limit``."""
    return tuple(2**i for i in range(max(limit, 1).bit_length()))


def _with_named(
    batch: int,
    micro_batches: tuple[int, ...],
    samples: tuple[int, ...],
    named: Mapping[str, Collection[int]],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return micro-batches and samples per rank with those that are named.

    Those of a micro-batch, and those that a data-parallel degree needs.
    """
    sizes, shares = {*micro_batches}, {*samples}
    degrees = named.get("dp", ())
    for size in named.get("b", ()):
        if batch % size == 0:
            sizes.add(size)
            shares.update(s for s in _shares([size]) if s <= samples[-1])
            shares.update(size // dp for dp in degrees if size % dp == 0)
    if "b" not in named:
        for dp in degrees:
            whole = {dp * share for share in samples if batch % (dp * share) == 0}
            if whole.isdisjoint(micro_batches):
                sizes |= whole
    return tuple(sorted(sizes)), tuple(sorted(shares))


def _shares(micro_batches: Iterable[int]) -> tuple[int, ...]:
    """Return every ``B/dp`` of the micro-batches."""
    return tuple(sorted({n for size in micro_batches for n in divisors(size)}))


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
