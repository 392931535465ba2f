"""From a captured module and a machine to a problem.

Every layer of :mod:`nest.capture.layers` is a node of the graph, priced as the layers
of the zoo are (:func:`nest.models.operators.timing.layer_cost`). The graph of a module
with many layers has fewer nodes, see :func:`graph_of`. A plan is exact with respect to
the graph.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from nest.capture.batch import (
    UNCHECKED,
    at_batch,
    check_loss,
    normalizes_batch,
    random_notes,
)
from nest.capture.records import CapturedModule, ModuleLayer, Operation, Parameter
from nest.capture.strategies import (
    Style,
    TensorCut,
    function_name,
    path_of,
    read_apart,
    remade,
    tensor_cut,
    where,
    why_not_local,
    why_unwritten,
)
from nest.cost.magnitude import with_quantum
from nest.errors import InvalidProblemError, NestError
from nest.hardware import Machine
from nest.ir.base import Struct
from nest.ir.cluster import Cluster
from nest.ir.graph import (
    CollectiveCall,
    Edge,
    Graph,
    Layer,
    LayerCost,
    LayerKind,
    enumerate_masks,
)
from nest.ir.job import Job, Optimizer, Schedules
from nest.ir.plan import Recompute
from nest.ir.problem import Problem
from nest.models.graphs import in_range
from nest.models.operators.attention import ATTENTION_BACKWARD, QUERY_BLOCK
from nest.models.operators.base import Execution, Node, Operator, Product, Split
from nest.models.operators.collectives import merged
from nest.models.operators.timing import layer_cost
from nest.units import ceil_div

#: Closed sets that a graph may have, as many as dp takes by default.
MAX_CLOSED_SETS = 1000

#: Kept bytes that may count twice without a note, as a fraction.
MAX_COUNTED_TWICE = 0.02

#: What nest calls data types of PyTorch.
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}

#: Of a layer that tensor ranks do not share.
_WHOLE = TensorCut()

#: Bytes of optimizer state per byte of weights, as PyTorch's optimizers keep it.
STATES = {"adamw": 2, "sgd": 0}


class ModuleSource(Struct, frozen=True, kw_only=True):
    """Where the module of a problem comes from, and what was found in it."""

    file: str
    factory: str
    #: Of the file, and of those that it imports from its folder or package, by path
    #: from the folder that Python finds it in.
    sha256: str = ""
    imported: dict[str, str] = {}
    granularity: str = "block"
    #: Layers of the module before they were joined, and closed sets of the graph.
    layers: int = 0
    closed_sets: int = 0
    #: Names of the layers that tensor ranks share, by their number.
    shared: dict[str, tuple[str, ...]] = {}
    #: Why strategies are not available, a line each.
    reasons: tuple[str, ...] = ()
    #: What was assumed, a line each.
    assumed: tuple[str, ...] = ()


def source_of(problem: Problem) -> ModuleSource | None:
    """Return where the module of a problem comes from, if it was captured."""
    try:
        model = msgspec.json.decode(problem.model, type=dict[str, ModuleSource])
    except (msgspec.MsgspecError, ValueError):
        return None
    return model.get("module")


class ModuleJob(Struct, frozen=True, kw_only=True):
    """The job of a captured module, and which choices plans have."""

    global_batch: int
    micro_batches: tuple[int, ...]
    tp: tuple[int, ...] = (1,)
    zero: tuple[int, ...] = (0, 1, 2, 3)
    recompute: tuple[Recompute, ...] = ("none", "full")
    schedule: Schedules = "1f1b"
    optimizer: str = "adamw"
    #: Whether micro-batches may compute the loss apart whatever it is.
    split_loss: bool = False

    @property
    def samples(self) -> tuple[int, ...]:
        """Samples of a micro-batch on one data rank that costs are stated for."""
        shares = {
            size // 2**power
            for size in self.micro_batches
            for power in range(size.bit_length())
            if size % 2**power == 0
        }
        return tuple(sorted(shares))


@dataclass(frozen=True)
class Captures:
    """One module at two batch sizes, and its layers."""

    small: CapturedModule
    large: CapturedModule
    layers: tuple[ModuleLayer, ...]
    #: Captures the module with the weights of one of several tensor ranks; without it
    #: nothing is checked.
    run: Callable[[Mapping[str, Style], int], CapturedModule] | None = None
    #: Checks the loss by values, given whether it may be computed apart, and returns
    #: what was assumed; without it nothing is checked.
    check: Callable[[bool], tuple[str, ...]] | None = None

    @cached_property
    def again(self) -> frozenset[str]:
        """Tensors that stages make again instead of receiving them."""
        return remade(self.small, self.layers)


def problem_of_module(
    captures: Captures,
    job: ModuleJob,
    machine: Machine,
    cluster: Cluster,
    source: ModuleSource,
) -> Problem:
    """Return the problem of training a captured module on a cluster.

    Raises
    ------
    InvalidProblemError
        If the loss is no mean over samples, a figure is out of range, or the device
        has no peak rate for the data type of the module.
    """
    small, large, layers = captures.small, captures.large, captures.layers
    normed = next(filter(normalizes_batch, small.operations), None)
    assumed = list(source.assumed)
    if job.split_loss:
        assumed.append("--split-loss: every micro-batch computes the loss apart")
    else:
        check_loss(small, large)
    if captures.check is not None:
        notes = captures.check(job.split_loss)
        assumed += notes
        unchecked = [x for x in notes if x.startswith(UNCHECKED)]
        if not job.split_loss and unchecked:
            try:
                check_loss(small, large, is_unchecked=True)
            except InvalidProblemError as error:
                raise InvalidProblemError(f"{error}; {unchecked[0]}") from None
    if normed is not None:
        job = replace(job, micro_batches=(job.global_batch,), recompute=("none",))
        assumed.append(
            f"{path_of(normed)}: batch norm needs the whole batch in one micro-batch "
            f"on one data rank; use another norm for data parallelism"
        )
    graph = graph_of(captures)
    nodes = graph.nodes
    reasons: dict[str, str] = {}
    with in_range(small.name, "check the module"):
        pricing = _Pricing(captures, nodes, job, machine, reasons)
        choices = tuple(tp for tp in job.tp if tp == 1 or pricing.shared(tp))
        if not choices:
            raise InvalidProblemError(
                f"{small.name}: expected a --tp that cuts layers, got {job.tp} "
                f"({next(iter(reasons.values()), 'none does')}); add 1"
            )
        kinds, names, reused = pricing.kinds()
        problem = Problem(
            name=f"{small.name}-{machine.name}x{cluster.num_devices}",
            source=(
                f"module: {source.file}:{source.factory}; machine: {machine.source}; "
                f"costs: operators of PyTorch, one graph node per "
                f"{'layer' if len(nodes) == len(layers) else 'few layers'}"
            ),
            graph=Graph(
                kinds=kinds,
                layers=tuple(
                    Layer(id=node[0].name, kind=kind)
                    for node, kind in zip(nodes, names, strict=True)
                ),
                edges=graph.edges,
            ),
            cluster=cluster,
            job=_job(job, small, pricing, choices, reused, normed is not None),
        )
    noun = "operators" if source.granularity == "operator" else "layers"
    source = replace(
        source,
        layers=len(layers),
        closed_sets=graph.closed_sets,
        shared={str(tp): pricing.shared(tp) for tp in choices if tp > 1},
        reasons=(
            *reasons.values(),
            *pricing.parameters.reasons(nodes),
            *_general_reasons(source, any(x.is_block for x in layers)),
        ),
        assumed=(
            *assumed,
            *pricing.notes(),
            *graph.notes(len(layers), noun),
            *_unwritten(captures),
        ),
    )
    model = msgspec.json.encode({"module": source}).decode()
    return with_quantum(replace(problem, model=model))


def _general_reasons(source: ModuleSource, has_blocks: bool) -> Iterator[str]:
    """Yield why strategies are not available whatever the operations are."""
    if source.granularity == "operator":
        yield "tp: only whole modules are cut; import with --granularity block"
    if not has_blocks:
        yield "recomputation: expected repeated blocks, found none"
    yield "cp: the script that runs plans does not cut sequences"


def _unwritten(captures: Captures) -> Iterator[str]:
    """Yield the first step that no script can repeat, if there is one."""
    for step in (x for layer in captures.layers for x in layer.steps):
        record = captures.small.record_of(step)
        got, remedy = why_unwritten(record)
        if got:
            yield f"{where(record)}: export --to torch refuses {got}; {remedy}"
            return


def _job(
    job: ModuleJob,
    small: CapturedModule,
    pricing: _Pricing,
    tp: tuple[int, ...],
    reused: tuple[str, ...],
    whole_batch: bool,
) -> Job:
    """Return the job as plans may choose it."""
    size = pricing.value_bytes
    blocks = any(layer.is_block for node in pricing.nodes for layer in node)
    one: tuple[int, ...] | None = (1,) if whole_batch else None
    return Job(
        global_batch=job.global_batch,
        micro_batches=job.micro_batches,
        dtype=pricing.dtype,
        optimizer=Optimizer(
            name=job.optimizer,
            weight_bytes=size,
            gradient_bytes=size,
            state_bytes=size * STATES[job.optimizer],
        ),
        schedule=job.schedule,
        replicas=one,
        data_parallel=one,
        tensor_parallel=tp,
        zero=job.zero,
        recompute=job.recompute if blocks else ("none",),
        uniform=("dp", "tp", "cp", "zero"),
        one_stage=reused,
        model_flops_per_sample=(small.forward_flops + small.backward_flops)
        / small.batch,
    )


# ------------------------------------------------------------------- the graph


def covered(layers: Sequence[ModuleLayer], ids: Sequence[str]) -> list[list[int]]:
    """Return the positions of the layers that each node of a problem stands for.

    ``ids`` are those of the problem's layers, in its order. A node has the name of its
    first layer and all layers up to the next node.

    Raises ``ValueError`` if they name no such layers.
    """
    position = {layer.name: i for i, layer in enumerate(layers)}
    if not all(name in position for name in ids) or not ids:
        missing = next((name for name in ids if name not in position), "none")
        raise ValueError(f"expected layers of the module, got {missing}")
    starts = [position[name] for name in ids]
    if starts[0] != 0 or starts != sorted(set(starts)):
        raise ValueError(f"expected layers in the order of the module, got {ids[0]}")
    ends = [*starts[1:], len(layers)]
    return [[*range(*pair)] for pair in zip(starts, ends, strict=True)]


class ModuleGraph(NamedTuple):
    """Layers as the nodes of a graph."""

    #: Each has neighboring layers.
    nodes: tuple[tuple[ModuleLayer, ...], ...]
    edges: tuple[Edge, ...]
    closed_sets: int
    #: Layers that were joined to others without loss.
    joined_free: int = 0
    #: Whether branches that run side by side are put in a row.
    in_row: bool = False

    def notes(self, num_layers: int, noun: str) -> Iterator[str]:
        """Yield what of the layers plans do not tell apart, if they do not tell all."""
        lossy = num_layers - self.joined_free - len(self.nodes)
        if not (lossy or self.joined_free or self.in_row):
            return
        joined = "none with loss"
        if lossy:
            joined = f"{lossy:,} with loss, where few bytes cross"
        row = ", in the order in which they run" if self.in_row else ""
        yield (
            f"{num_layers:,} {noun}: {self.joined_free:,} are joined to others without "
            f"loss, {joined}; plans are exact for the {len(self.nodes):,} nodes that "
            f"are left{row} ({self.closed_sets:,} closed sets)"
        )


def graph_of(captures: Captures, max_sets: int = MAX_CLOSED_SETS) -> ModuleGraph:
    """Return layers as a graph of at most ``max_sets`` closed sets.

    Layers that take no time are joined to their neighbors, see :func:`_is_free`. If
    there are still too many closed sets, branches that run side by side are put in a
    row, in the order in which they run. Then nodes are joined until few enough are
    left: of the places in every stretch of the row one is kept, that the fewest bytes
    cross.
    """
    layers = captures.layers
    handed = [*_handed(captures)]
    free = [_is_free(captures, layer) for layer in layers]
    starts = _without_views(captures, handed, free)
    edges, closed_sets = _edges(captures, handed, starts, max_sets)
    if closed_sets <= max_sets:
        nodes = _split(layers, starts)
        return ModuleGraph(nodes, edges, closed_sets, len(layers) - len(nodes))
    across = _bytes_across(len(layers), handed)
    starts = _without_free(free, across)
    joined_free = len(layers) - len(starts)
    if len(starts) >= max_sets:
        starts = _spread(starts, across, max_sets - 1)
    edges, closed_sets = _edges(captures, handed, starts, max_sets, in_row=True)
    return ModuleGraph(_split(layers, starts), edges, closed_sets, joined_free, True)


class _Handed(NamedTuple):
    """A tensor that a layer hands on to others, all by their positions."""

    maker: int
    readers: list[int]
    #: Of one sample, rounded up; 0 if stages make the tensor again.
    size_bytes: int


def _handed(captures: Captures) -> Iterator[_Handed]:
    small = captures.small
    layer_of: list[int] = []
    for i, layer in enumerate(captures.layers):
        layer_of += [i] * (layer.end - layer.first)
    for name, positions in small.readers.items():
        if name in small.maker:
            maker = layer_of[small.maker[name]]
            readers = sorted({layer_of[x] for x in positions} - {maker})
            size_bytes = ceil_div(small.tensors[name].size_bytes, small.batch)
            if readers:
                yield _Handed(
                    maker, readers, 0 if name in captures.again else size_bytes
                )


def _is_free(captures: Captures, layer: ModuleLayer) -> bool:
    """Whether a layer takes no time and holds nothing, as views do.

    It may be in either of two stages. So of the places before and behind it a plan
    needs only the one that fewer bytes cross: what cuts at the other one may cut there
    instead, and where it cuts at both, there is a stage that does nothing.
    """
    return not any(
        x.kernels
        or x.forward_flops
        or _traffic(x)
        or x.saved
        or x.weights
        or not captures.again.isdisjoint(x.inputs)
        for x in captures.small.operations[layer.first : layer.end]
    )


def _without_views(
    captures: Captures, handed: Sequence[_Handed], free: Sequence[bool]
) -> list[int]:
    """Return where nodes begin if free layers belong to what makes what they read.

    Those that are the only readers of it, and hand on no more bytes: so no closed set
    is lost that ends a better stage.
    """
    made: Counter[int] = Counter()
    read: Counter[int] = Counter()
    first_maker = [*range(len(captures.layers))]
    shared = set()
    for maker, readers, size_bytes in handed:
        made[maker] += size_bytes
        read[readers[0]] += size_bytes
        for reader in readers:
            first_maker[reader] = min(maker, first_maker[reader])
            if len(readers) > 1:
                shared.add(reader)
    starts = [0]
    for i in range(1, len(captures.layers)):
        is_view = starts[-1] <= first_maker[i] < i and i not in shared
        if not (free[i] and is_view and made[i] <= read[i]):
            starts.append(i)
    return starts


def _without_free(free: Sequence[bool], across: Sequence[int]) -> list[int]:
    """Return where nodes in a row begin: of places with free layers between, one."""
    starts = [0]
    for i in range(1, len(free)):
        if not free[i - 1]:
            starts.append(i)
        elif len(starts) > 1 and across[i] <= across[starts[-1]]:
            starts[-1] = i
    return starts


def _spread(starts: Sequence[int], across: Sequence[int], count: int) -> list[int]:
    """Return ``count`` places: the first, and of equal stretches the best of each."""
    best: dict[int, int] = {}
    for index, i in enumerate(starts[1:]):
        stretch = index * (count - 1) // (len(starts) - 1)
        if stretch not in best or across[i] <= across[best[stretch]]:
            best[stretch] = i
    return [0, *best.values()]


def _split(
    layers: Sequence[ModuleLayer], starts: Sequence[int]
) -> tuple[tuple[ModuleLayer, ...], ...]:
    ends = [*starts[1:], len(layers)]
    return tuple(tuple(layers[a:b]) for a, b in zip(starts, ends, strict=True))


def _bytes_across(num_layers: int, handed: Sequence[_Handed]) -> list[int]:
    """Return the bytes that cross the place before each layer."""
    changes = [0] * (num_layers + 1)
    for maker, readers, size_bytes in handed:
        changes[maker + 1] += size_bytes
        changes[readers[-1] + 1] -= size_bytes
    return [*accumulate(changes)]


def _traffic(operation: Operation) -> int:
    return operation.read_bytes + operation.written_bytes + operation.backward_bytes


def _edges(
    captures: Captures,
    handed: Sequence[_Handed],
    starts: Sequence[int],
    max_sets: int,
    in_row: bool = False,
) -> tuple[tuple[Edge, ...], int]:
    """Return the edges between nodes, and how many closed sets the graph has.

    A node hands one tensor on: all that readers from there on need of it. Layers
    without tensors from or for others follow the one before them. Closed sets are not
    counted far above ``max_sets``.
    """
    layers, count = captures.layers, len(starts)
    owner = [bisect(starts, i) - 1 for i in range(len(layers))]
    sizes: dict[tuple[int, int], int] = {}
    ends: dict[int, list[tuple[int, int]]] = {}
    for maker, readers, size_bytes in handed:
        source = owner[maker]
        targets = {owner[reader] for reader in readers} - {source}
        if targets:
            ends.setdefault(source, []).append((max(targets), size_bytes))
            sizes |= dict.fromkeys(((source, target) for target in targets), 0)
    for source, target in sizes:
        sizes[source, target] = sum(
            size_bytes for last, size_bytes in ends[source] if last >= target
        )
    parents = {target for _, target in sizes}
    children = {source for source, _ in sizes}
    nodes = _split(layers, starts)
    for i in range(1, count):
        follows = in_row or i - 1 not in children
        if not follows and i not in parents:
            operations = captures.small.operations[nodes[i][0].first : nodes[i][-1].end]
            follows = not any(x.weights for x in operations)
        if follows:
            sizes.setdefault((i - 1, i), 0)
    closed_sets = count + 1
    if not in_row and count < max_sets:
        closed_sets = len(enumerate_masks(count, sizes, max_sets))
    edges = tuple(
        Edge(
            source=nodes[source][0].name,
            target=nodes[target][0].name,
            bytes_per_sample=size_bytes,
        )
        for (source, target), size_bytes in sorted(sizes.items())
    )
    return edges, closed_sets


# -------------------------------------------------------------------- the costs


def data_type(captured: CapturedModule) -> str:
    """Return the data type of the largest product, as nest calls it."""
    busiest = max(captured.operations, key=lambda x: x.forward_flops)
    name = busiest.outputs[0].dtype if busiest.outputs else "float32"
    return DTYPES.get(name, "fp32")


class _Pricing:
    """Costs of the nodes of a captured module on a machine."""

    def __init__(
        self,
        captures: Captures,
        nodes: Sequence[Sequence[ModuleLayer]],
        job: ModuleJob,
        machine: Machine,
        reasons: dict[str, str],
    ) -> None:
        self.captures = captures
        self.nodes = nodes
        self.job = job
        self.machine = machine
        self.reasons = reasons
        small = captures.small
        self.dtype = data_type(small)
        self.value_bytes = 4 if self.dtype == "fp32" else 2
        self.execution = Execution(dtype=self.dtype)  # type: ignore[arg-type]
        self.cuts = {tp: self._cuts(tp) for tp in job.tp if tp > 1}
        self.parameters = _Parameters(captures, nodes)

    def notes(self) -> Iterator[str]:
        """Yield what the costs assume."""
        yield f"data type: {self.dtype}, that of the largest product"
        if self.dtype == "fp32":
            yield "products in fp32 without TF32, as PyTorch runs them by default"
        made = self.captures
        twice = _Memory(made.small, self.nodes, made.again).counted_twice
        if twice > MAX_COUNTED_TWICE:
            yield (
                f"memory of kept tensors: up to {twice:.0%} too much in one stage: "
                f"what two layers keep counts in both, as where stages part them"
            )
        yield from random_notes(self.captures.small)

    def shared(self, tp: int) -> tuple[str, ...]:
        """Return the names of the layers that tensor ranks share."""
        cuts = self.cuts.get(tp, {})
        return tuple(name for name, cut in cuts.items() if cut.styles)

    def _cuts(self, tp: int) -> dict[str, TensorCut]:
        """Return how tensor ranks share each layer, where they do.

        Only layers that run with the weights of one rank. The first reason of each kind
        is kept.
        """
        small = self.captures.small
        cuts: dict[str, TensorCut] = {}
        whole: dict[str, str] = {}
        uncut: dict[str, str] = {}
        readers = read_apart(small, self.captures.layers)
        for layer in self.captures.layers:
            cut = cuts[layer.name] = tensor_cut(small, layer, tp)
            for path in cut.styles:
                if path in readers:
                    reason = f"{path}: {readers[path]} also reads its weights apart"
                    uncut.setdefault(layer.kind, reason)
            if cut.reasons:
                whole.setdefault(layer.kind, cut.reasons[0])
        cuts = self._without(cuts, uncut)
        shared = {name: cut for name, cut in cuts.items() if cut.styles}
        kinds = {x.kind: x for x in self.captures.layers if x.name in shared}
        why = self._why_not_local(shared, tp) if shared else ""
        if why:
            for kind, layer in kinds.items():
                why = self._why_not_local({layer.name: shared[layer.name]}, tp)
                if why:
                    uncut[kind] = why
        for kind, reason in (whole | uncut).items():
            self.reasons.setdefault(kind, f"tp {tp}: {reason}")
        return self._without(cuts, uncut)

    def _without(
        self, cuts: Mapping[str, TensorCut], kinds: Container[str]
    ) -> dict[str, TensorCut]:
        """Return cuts without those of layers of some kinds."""
        return {
            x.name: cuts[x.name]
            for x in self.captures.layers
            if x.name in cuts and x.kind not in kinds
        }

    def _why_not_local(self, cuts: Mapping[str, TensorCut], tp: int) -> str:
        """Return why the module does not run with the weights of one rank."""
        run = self.captures.run
        if run is None:
            return ""
        styles: dict[str, Style] = {}
        for cut in cuts.values():
            styles |= cut.styles
        try:
            local = run(styles, tp)
        except NestError as error:
            return f"with the weights of one rank the module fails: {error}"
        reasons = (
            why_not_local(self.captures.small, local, layer, cuts[layer.name])
            for layer in self.captures.layers
            if layer.name in cuts
        )
        return next(filter(None, reasons), "")

    def kinds(self) -> tuple[tuple[LayerKind, ...], list[str], tuple[str, ...]]:
        """Return the kinds, that of every node, and those that stay in one stage."""
        of_nodes = node_kinds(self.captures, self.nodes, self.parameters)
        first: dict[str, int] = {}
        for i, name in enumerate(of_nodes):
            first.setdefault(name, i)
        costs: dict[str, list[LayerCost]] = {name: [] for name in first}
        made = self.captures
        for samples in self.job.samples:
            captured = at_batch(made.small, made.large, samples)
            memory = _Memory(captured, self.nodes, made.again)
            for name, index in first.items():
                for tp in self.job.tp:
                    if tp == 1 or self.shared(tp):
                        costs[name].append(self._cost(captured, memory, index, tp))
        kinds = tuple(
            LayerKind(name=name, costs=tuple(each)) for name, each in costs.items()
        )
        again = {of_nodes[i] for i in self.parameters.again}
        return kinds, of_nodes, tuple(name for name in first if name in again)

    def _cost(
        self, captured: CapturedModule, memory: _Memory, index: int, tp: int
    ) -> LayerCost:
        """Return the cost of a node for the samples of a capture."""
        pieces = []
        styles: dict[str, str] = {}
        for layer in self.nodes[index]:
            cut = self.cuts.get(tp, {}).get(layer.name, _WHOLE)
            styles |= cut.styles
            pieces.append((_node(captured, memory, layer, cut, tp), 1))
        split = Split(
            tp=tp, samples=captured.batch, sequence_length=1, sequence_parallel=False
        )
        cost = layer_cost(pieces, split, self.machine, self.execution)
        weight_bytes, static_bytes = self.parameters.bytes_of(index, styles, tp)
        return replace(
            cost,
            weight_bytes=weight_bytes,
            activations=tuple(
                replace(x, static_bytes=static_bytes)
                for x in cost.activations
                if x.recompute in ("none", "full")
            ),
        )


def node_kinds(
    captures: Captures,
    nodes: Sequence[Sequence[ModuleLayer]],
    parameters: _Parameters | None = None,
) -> list[str]:
    """Return the kind of each node; nodes of a kind cost the same.

    ``parameters`` are those that the nodes hold, where they are known.
    """
    parameters = parameters or _Parameters(captures, nodes)
    memories = [
        _Memory(captured, nodes, captures.again)
        for captured in (captures.small, captures.large)
    ]
    names: dict[tuple[object, ...], str] = {}
    keys = []
    for i, node in enumerate(nodes):
        key = (
            *(layer.kind for layer in node),
            *(memory.kept_bytes(layer) for memory in memories for layer in node),
            parameters.bytes_of(i),
            i in parameters.again,
        )
        name = node[0].kind
        suffix = 1
        while key not in names and name in names.values():
            suffix += 1
            name = f"{node[0].kind}-{suffix}"
        names.setdefault(key, name)
        keys.append(key)
    return [names[key] for key in keys]


class _Parameters:
    """Which parameters and buffers each node holds.

    Of blocks that share trained parameters, as those do that are called again, the
    first one holds them, and all are in one stage. So are all that share a buffer which
    the forward pass writes. What other layers share, such as the table of embedding and
    head or a buffer of positions, each of them holds, as in pipelines that part them; a
    node that reads tensors which stages make again holds the buffers that they need.
    """

    def __init__(
        self, captures: Captures, nodes: Sequence[Sequence[ModuleLayer]]
    ) -> None:
        small = captures.small
        by_name = small.named_parameters
        self.held: list[dict[int, Parameter]] = []
        #: Nodes that use what an earlier one holds, and those that hold it.
        self.again: set[int] = set()
        #: Why they are in one stage, by the name of what they share.
        self.together: dict[str, list[int]] = {}
        holder: dict[int, int] = {}
        written = _written_buffers(small)
        needed = _buffers_needed(captures)
        for i, node in enumerate(nodes):
            used = {
                by_name[source].storage: by_name[source]
                for layer in node
                for operation in small.operations[layer.first : layer.end]
                for name in operation.inputs
                for source in needed.get(name, (name,))
                if source in by_name
            }
            # Modules that are called hold parameters that nothing reads, too.
            paths = tuple(
                f"{small.modules[step.module].call.path}."
                for layer in node
                for step in layer.steps
                if step.module >= 0
            )
            used |= {
                x.storage: x
                for x in small.parameters
                if any(name.startswith(paths) for name in x.names)
            }
            has_blocks = any(layer.is_block for layer in node)
            for storage, parameter in [*used.items()]:
                if parameter.trained and not has_blocks:
                    continue
                if not parameter.trained and parameter.names[0] not in written:
                    continue
                if holder.setdefault(storage, i) != i:
                    self.again |= {i, holder[storage]}
                    sharers = self.together.setdefault(
                        parameter.names[0], [holder[storage]]
                    )
                    sharers.append(i)
                    del used[storage]
            self.held.append(used)

    def reasons(self, nodes: Sequence[Sequence[ModuleLayer]]) -> Iterator[str]:
        """Yield which nodes are in one stage, and why: a line for each set of them."""
        explained = set()
        for name, sharers in self.together.items():
            if tuple(sharers) not in explained:
                explained.add(tuple(sharers))
                first, last = (nodes[sharers[i]][0].name for i in (0, -1))
                count = f" and {len(sharers) - 2} others" * (len(sharers) > 2)
                yield (
                    f"pp: {first} and {last}{count} share {name}, so one stage has them"
                )

    def bytes_of(
        self, node: int, styles: Mapping[str, str] | None = None, tp: int = 1
    ) -> tuple[int, int]:
        """Return the bytes of trained parameters of a node, and of all others."""
        trained = fixed = 0
        for parameter in self.held[node].values():
            path, _, leaf = parameter.names[0].rpartition(".")
            style = (styles or {}).get(path, "")
            pieces = tp if style == "colwise" or (style and leaf == "weight") else 1
            size_bytes = ceil_div(parameter.size_bytes, pieces)
            if parameter.trained:
                trained += size_bytes
            else:
                fixed += size_bytes
        return trained, fixed


#: Names of functions that may change what they are given. ``__getitem__`` ends with
#: ``_``, too, and changes nothing.
_CHANGES = re.compile(
    r"[^_]_$|_norm$|__setitem__$"
    r"|__i(add|sub|mul|truediv|floordiv|mod|pow|matmul|and|or|xor|lshift|rshift)__$"
)


def _written_buffers(captured: CapturedModule) -> frozenset[str]:
    """Return the names of the buffers that the forward pass may write.

    A function writes what it changes in place; norms and functions that are not
    PyTorch's own may write any buffer that they read.
    """
    buffers = {name for x in captured.parameters if x.buffer for name in x.names}
    return frozenset(
        name
        for x in captured.operations
        if not x.outputs
        or _CHANGES.search(x.function)
        or "out=" in x.code
        or not x.function.startswith("torch.")
        or x.function.startswith("torch.ops.")
        for name in x.inputs
        if name in buffers
    )


def _buffers_needed(captures: Captures) -> dict[str, frozenset[str]]:
    """Return the buffers from which stages make each tensor again."""
    small = captures.small
    buffers = {name for x in small.parameters if x.buffer for name in x.names}
    needed: dict[str, frozenset[str]] = {name: frozenset((name,)) for name in buffers}
    for operation in small.operations:
        sources = [needed[name] for name in operation.inputs if name in needed]
        for output in operation.outputs:
            if output.name in captures.again:
                needed[output.name] = frozenset[str]().union(*sources)
    return needed


class _Memory:
    """What layers keep for the backward pass.

    A stage holds what its layers keep, and costs do not depend on where a plan cuts. So
    a storage that layers of several nodes keep counts in the first and in the last of
    them: no stage counts less than it holds, since one between them hands it on, which
    the cost model counts. Inputs that several layers keep are held by the rank anyway,
    and what stages make again counts where it is made.
    """

    def __init__(
        self,
        captured: CapturedModule,
        nodes: Sequence[Sequence[ModuleLayer]],
        again: frozenset[str],
    ) -> None:
        self.captured = captured
        self.tensors = captured.tensors
        self.again = {self.tensors[name].storage for name in again}
        self.sizes: dict[int, int] = {}
        for tensor in self.tensors.values():
            size_bytes = max(self.sizes.get(tensor.storage, 0), tensor.size_bytes)
            self.sizes[tensor.storage] = size_bytes
        self.inputs = {x.storage for x in captured.inputs}
        #: The layer that makes each storage; an empty name for parameters and inputs.
        self.maker = dict.fromkeys((x.storage for x in captured.parameters), "")
        self.maker |= dict.fromkeys(self.inputs, "")
        self.node_of: dict[str, int] = {}
        saved: dict[str, set[int]] = {}
        recomputed: dict[str, set[int]] = {}
        for i, layer in ((i, x) for i, node in enumerate(nodes) for x in node):
            self.node_of[layer.name] = i
            saved[layer.name] = set()
            for operation in captured.operations[layer.first : layer.end]:
                saved[layer.name].update(operation.saved)
                self.sizes |= operation.saved
                for tensor in operation.outputs:
                    self.maker.setdefault(tensor.storage, layer.name)
            received = self._received(layer)
            before = saved[layer.name] - self.again - self.inputs
            helps = self._total(received - self.inputs) < self._total(before)
            if layer.can_rerun and helps:
                recomputed[layer.name] = received
        #: Blocks that keep less if they are computed again.
        self.helped = frozenset(recomputed)
        #: The storages that count in each layer, without and with recomputation.
        self.none = self._counted(saved)
        self.full = self._counted(saved | recomputed)
        for name in saved.keys() - self.helped:
            self.none[name] |= self.full[name]

    def _received(self, layer: ModuleLayer) -> set[int]:
        """Return the storages that a layer reads and another one made.

        Views of what a layer reads are no memory that it makes.
        """
        read = {
            self.tensors[name].storage
            for operation in self.captured.operations[layer.first : layer.end]
            for name in operation.inputs
            if name in self.tensors
        }
        made = {x for x in read - self.inputs if self.maker[x] in ("", layer.name)}
        return read - made - self.again

    def _counted(self, retained: Mapping[str, set[int]]) -> dict[str, set[int]]:
        """Return the storages that count in each layer, of those that layers keep."""
        keepers: dict[int, list[str]] = {}
        for name, storages in retained.items():
            for storage in storages:
                keepers.setdefault(storage, []).append(name)
        counted: dict[str, set[int]] = {name: set() for name in retained}
        for storage, names in keepers.items():
            first, last = names[0], names[-1]
            if len(names) > 1 and (storage in self.inputs or storage in self.again):
                first = last = self.maker[storage]
            if first:
                counted[first].add(storage)
            if first and self.node_of[first] != self.node_of[last]:
                counted[last].add(storage)
        return counted

    def _total(
        self, storages: Iterable[int], cut: Collection[int] = (), tp: int = 1
    ) -> int:
        """Return the bytes on one of ``tp`` ranks, which share those that are cut."""
        return sum(ceil_div(self.sizes[x], tp if x in cut else 1) for x in storages)

    def kept_bytes(
        self, layer: ModuleLayer, cut: TensorCut = _WHOLE, tp: int = 1
    ) -> tuple[int, int]:
        """Return the bytes kept without and with recomputation of the layer.

        They are equal where recomputation would not help.
        """
        pieces = {self.tensors[name].storage for name in cut.axes}
        none = self._total(self.none[layer.name], pieces, tp)
        if layer.name not in self.helped:
            return none, none
        return none, self._total(self.full[layer.name], pieces, tp)

    @property
    def counted_twice(self) -> float:
        """Bytes that count twice, as a fraction of what the whole module keeps."""
        counts = Counter(x for storages in self.none.values() for x in storages)
        return self._total(counts.elements()) / max(self._total(counts), 1) - 1


def checkpointed(
    captured: CapturedModule, layers: Sequence[ModuleLayer]
) -> frozenset[str]:
    """Return the names of the layers that full recomputation computes again.

    They are the blocks that keep less so.
    """
    return _Memory(captured, [layers], remade(captured, layers)).helped


def _node(
    captured: CapturedModule,
    memory: _Memory,
    layer: ModuleLayer,
    cut: TensorCut,
    tp: int,
) -> Node:
    """Return what a layer does and holds on one of ``tp`` ranks."""
    operators: list[Operator] = []
    collectives = []
    working_bytes = 0
    for operation in captured.operations[layer.first : layer.end]:
        style = cut.styles.get(operation.calls[-1].path) if operation.calls else None
        if function_name(operation) not in ("linear", "embedding"):
            style = None
        operators += _operator(operation, memory, cut, tp, style)
        made = [tensor.size_bytes for tensor in operation.outputs]
        if style == "table":  # Its backward pass makes the gradient of all rows.
            made += [captured.named_parameters[x].size_bytes for x in operation.weights]
        working_bytes = max(working_bytes, *made, 0)
        # Megatron's f and g: a sum of the outputs, and of the gradients of the inputs.
        inputs = memory.tensors.get(operation.inputs[0]) if operation.inputs else None
        if style in ("rowwise", "table"):
            size_bytes = operation.outputs[0].size_bytes
            collectives.append(_sum_of("forward", size_bytes))
        elif style == "colwise" and inputs is not None and inputs.has_gradient:
            collectives.append(_sum_of("backward", inputs.size_bytes))
    none, full = memory.kept_bytes(layer, cut, tp)
    node = Node(
        operators=tuple(operators),
        collectives=merged(collectives),
        kept_bytes={"none": none, "selective": none, "full": full, "offload": none},
        working_bytes=working_bytes,
    )
    return node if layer.name in memory.helped else node.without_checkpoint()


def _sum_of(phase: str, size_bytes: int) -> CollectiveCall:
    return CollectiveCall(
        kind="all-reduce",
        axis="tp",
        phase=phase,  # type: ignore[arg-type]
        size_bytes=size_bytes,
    )


def _operator(
    operation: Operation, memory: _Memory, cut: TensorCut, tp: int, style: str | None
) -> Iterator[Operator]:
    """Yield what nest counts of an operation: nothing of a view."""
    if not (operation.kernels or operation.forward_flops or _traffic(operation)):
        return
    whole = local = 0
    is_cut = style is not None
    for name in {*operation.inputs, *(x.name for x in operation.outputs)}:
        if name in memory.tensors:
            size_bytes = memory.tensors[name].size_bytes
            whole += size_bytes
            local += size_bytes // tp if name in cut.axes else size_bytes
            is_cut = is_cut or name in cut.axes
    ranks = tp if is_cut else 1
    bytes_share = local / whole if whole else 1.0
    forward_flops = operation.forward_flops / ranks
    backward_flops = operation.backward_flops / ranks
    attention = "scaled_dot_product_attention" in operation.function
    products = tuple(
        Product(*_cut_product(x, tp, style, ranks)) for x in operation.products
    )
    largest = max(products, key=lambda x: x.flops, default=Product(0, 0, 0, 0))
    if attention:
        # Fused kernels leave out what a causal mask hides.
        if "is_causal=True" in operation.code:
            forward_flops /= 2
        backward_flops = ATTENTION_BACKWARD * forward_flops
    yield Operator(
        operation.function,
        "attention" if attention else "matmul" if products else "memory",
        forward_flops,
        (operation.read_bytes + operation.written_bytes) * bytes_share,
        backward_flops,
        operation.backward_bytes * bytes_share,
        kernels=operation.kernels,
        backward_kernels=operation.backward_kernels,
        shape=(0, 0, 0) if attention else largest[:3],
        has_weights=bool(products and operation.weights),
        blocks=largest.m * largest.batch / QUERY_BLOCK if attention else 0.0,
        head_size=largest.k if attention else 0.0,
        products=products,
    )


def _cut_product(
    product: tuple[int, int, int, int], tp: int, style: str | None, ranks: int
) -> tuple[int, int, int, int]:
    """Return the part of a product that one rank computes."""
    rows, depth, columns, count = product
    if style == "colwise":
        return rows, depth, columns // tp, count
    if style == "rowwise":
        return rows, depth // tp, columns, count
    return rows, depth, columns, max(count // ranks, 1)
