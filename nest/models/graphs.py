"""From an architecture and a machine to a graph and a problem.

A graph node stands for one embedding, one head, the norm behind an encoder,
one module for multi-token prediction, or ``layers_per_node`` consecutive
blocks. Towers are chains; modules are between the last block and the head. An
encoder-decoder is a DAG: the encoder's output feeds every node of the decoder
with cross-attention. The towers that nothing reads feed the head.

What the user does not choose is chosen by :func:`nest.models.choices.choose`; all
choices are in the problem that :func:`build_problem` returns, so that solvers search
the same space. A plan is exact with respect to the graph: it cannot cut inside a node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from msgspec.structs import replace

from nest.cost.magnitude import with_quantum
from nest.errors import InvalidProblemError, NestError
from nest.hardware import Machine, mixed_cluster
from nest.ir.cluster import Cluster
from nest.ir.graph import DeviceTimes, Edge, Graph, Layer, LayerCost, LayerKind
from nest.ir.job import Job, splits_backward
from nest.ir.problem import Problem
from nest.models.architectures import Architecture, head_towers
from nest.models.blocks import Block, Head, Module, Tower
from nest.models.choices import Choices
from nest.models.named import text_of_model
from nest.models.operators.base import BF16, Execution, Node, Split
from nest.models.operators.nodes import (
    block_node,
    embedding_node,
    head_node,
    module_node,
    norm_node,
)
from nest.models.operators.timing import layer_cost
from nest.models.weights import final_norm_weights

#: Kinds of modules for multi-token prediction: the first, which holds the
#: token table for all of them, and the others.
MTP_KINDS = ("mtp", "mtp-next")


def build_on(
    model: Architecture,
    machines: Sequence[tuple[Machine, int]],
    choices: Choices,
    cluster: Cluster | None = None,
    name: str | None = None,
) -> Problem:
    """Return the problem of a model, with a quantum that suits its times.

    ``machines`` come with the numbers of their devices, in the order of ranks; a
    ``cluster`` of a file takes the place of theirs. Raises ``InvalidProblemError`` if
    the model is so large that a figure is out of range.
    """
    if len(machines) > 1:
        problem = _mixed_problem(model, machines, choices)
    else:
        problem = build_problem(model, *machines[0], choices)
    if cluster is not None:
        problem = replace(problem, cluster=cluster)
    if name is not None:
        problem = replace(problem, name=name)
    return with_quantum(problem)


def build_problem(
    model: Architecture, site: Machine, num_devices: int, choices: Choices
) -> Problem:
    """Return the problem of training a model on a cluster.

    Training is in mixed precision and 1F1B, under the preset ``standard``. Raises
    ``InvalidProblemError`` if the model is so large that a figure is out of range.
    """
    with in_range(model.name):
        return problem_of(
            model,
            build_graph(model, site, choices),
            site.cluster(num_devices),
            choices,
            name=f"{model.name}-{site.name}x{num_devices}",
            source=(
                f"model: {model.source}; machine: {site.source}; costs: "
                f"analytic operator count, {grain(choices)}"
            ),
        )


@contextlib.contextmanager
def in_range(name: str, remedy: str = "check the shape of the model") -> Iterator[None]:
    """Refuse a model that makes a figure of its graph out of range."""
    try:
        yield
    except ValueError as error:
        if isinstance(error, NestError):
            raise
        raise InvalidProblemError(f"{name}: {error}; {remedy}") from None


def grain(choices: Choices) -> str:
    """Say how many layers a graph node stands for, for sources."""
    count = choices.layers_per_node
    return f"one graph node per {'layer' if count == 1 else f'{count} layers'}"


def problem_of(
    model: Architecture,
    graph: Graph,
    cluster: Cluster,
    choices: Choices,
    *,
    name: str,
    source: str,
) -> Problem:
    """Return the problem of training a model, whose graph is known.

    Raises ``ValueError`` if the model is so large that a figure is out of range.
    """
    # Modules share one token table, so plans must not part them.
    several = any(tower.modules > 1 for tower in model.towers)
    job = Job(
        **choices.of_job,
        one_stage=MTP_KINDS if several else (),
        model_flops_per_sample=float(model.model_flops(choices.sequence_length)),
    )
    return Problem(
        name=name,
        source=source,
        graph=graph,
        cluster=cluster,
        job=job,
        model=text_of_model(model),
    )


def _mixed_problem(
    model: Architecture, parts: Sequence[tuple[Machine, int]], choices: Choices
) -> Problem:
    """Return the problem of :func:`build_problem` on the first machines.

    Its costs state the times on the others.
    """
    site, _ = parts[0]
    first, *others = (
        build_problem(model, machine, count, choices) for machine, count in parts
    )
    graph = first.graph
    for other in others:
        name = other.cluster.device.name
        if name != site.device.name:
            graph = _with_times(graph, other.graph, name)
    return replace(
        first,
        name=f"{model.name}-"
        + "+".join(f"{machine.name}x{count}" for machine, count in parts),
        source=first.source.replace(
            f"machine: {site.source}",
            "machines: " + ", ".join(m.source for m, _ in parts),
        ),
        graph=graph,
        cluster=mixed_cluster(parts),
    )


def _with_times(graph: Graph, other: Graph, device: str) -> Graph:
    """Return a graph with the times of another one as those of a device."""

    def priced(cost: LayerCost, there: LayerCost) -> LayerCost:
        assert cost.key == there.key
        times = DeviceTimes(device=device, **there.on(device)._asdict())
        activations = tuple(
            replace(x, transfer_ns=max(x.transfer_ns, y.transfer_ns))
            for x, y in zip(cost.activations, there.activations, strict=True)
        )
        return replace(
            cost, by_device=(*cost.by_device, times), activations=activations
        )

    kinds = tuple(
        replace(kind, costs=tuple(map(priced, kind.costs, there.costs)))
        for kind, there in zip(graph.kinds, other.kinds, strict=True)
    )
    return replace(graph, kinds=kinds)


def build_graph(
    model: Architecture,
    site: Machine,
    choices: Choices,
    execution: Execution | None = None,
) -> Graph:
    """Return the graph of a model with its cost tables.

    ``execution`` is by default that of the choices.

    Kinds are named ``embedding``, after the blocks (``decoder``), as in
    :data:`MTP_KINDS`, and ``head``; a node of unequal blocks after all of them
    (``local+global``). Names begin with that of the tower where the model has several.
    Raises ``InvalidProblemError`` if ``layers_per_node`` does not divide the layers of
    a tower.
    """
    execution = (
        execution
        or choices.execution
        or Execution(
            dtype=choices.dtype, split_backward=splits_backward(choices.schedule)
        )
    )
    if "offload" in choices.recompute:
        execution = replace(execution, offloads=True)
    return graph_of(
        model,
        choices,
        execution,
        lambda counted: layer_cost(counted.parts, counted.split, site, execution),
    )


class Counted(NamedTuple):
    """What graph nodes of a kind do on one device under one split.

    ``sequence_parallel`` is what keys of costs say of it; ``parts`` are counted layers,
    each with how often it is repeated.
    """

    kind: str
    split: Split
    sequence_parallel: bool
    parts: tuple[tuple[Node, int], ...]

    @property
    def key(self) -> tuple[int, ...]:
        """The key of its cost, :attr:`nest.ir.graph.LayerCost.key`."""
        split = self.split
        return (
            *(split.tp, split.cp, split.ep, split.etp),
            *(self.sequence_parallel, split.samples),
        )


def graph_of(
    model: Architecture,
    choices: Choices,
    execution: Execution,
    price: Callable[[Counted], LayerCost],
) -> Graph:
    """Return the graph of a model, with costs that a function says.

    As :func:`build_graph`; of what ``price`` returns, the key is not read.
    """
    costs: dict[str, list[LayerCost]] = {}
    for counted in count_kinds(model, choices, execution):
        costs.setdefault(counted.kind, []).append(
            replace(price(counted), sequence_parallel=counted.sequence_parallel)
        )
    nodes = _nodes(model, choices)
    return Graph(
        kinds=tuple(
            LayerKind(name=name, costs=tuple(kind_costs))
            for name, kind_costs in costs.items()
        ),
        layers=tuple(Layer(id=node.id, kind=node.kind) for node in nodes),
        edges=tuple(
            Edge(source=source, target=node.id, bytes_per_sample=size_bytes)
            for node in nodes
            for source, size_bytes in node.inputs
        ),
    )


def count_kinds(
    model: Architecture, choices: Choices, execution: Execution
) -> Iterator[Counted]:
    """Count every kind of graph nodes under every split that it has.

    Kinds come in the order of the graph, the splits of one together, in the
    order of its costs.
    """
    seen = set()
    for node in _nodes(model, choices):
        if node.kind not in seen:
            seen.add(node.kind)
            yield from _count_splits(node, model, choices, execution)


class _Part(NamedTuple):
    """``repeat`` equal parts of a graph node.

    ``shape`` is a tower for its embedding, a block, a module, a head, or
    ``None`` for the norm behind ``tower``.
    """

    shape: Tower | Block | Module | Head | None
    tower: Tower
    repeat: int = 1


class _GraphNode(NamedTuple):
    """A graph node: what it stands for, and its inputs with their bytes."""

    id: str
    kind: str
    parts: tuple[_Part, ...]
    inputs: tuple[tuple[str, int], ...] = ()


def _nodes(model: Architecture, choices: Choices) -> list[_GraphNode]:
    """Return the graph nodes, towers one after the other, the head last."""
    lengths = model.lengths(choices.sequence_length)
    readers = head_towers(model)
    nodes: list[_GraphNode] = []
    outputs: dict[str, tuple[str, int]] = {}
    for tower in model.towers:
        prefix = f"{tower.name}-" if tower.name else ""
        streams = tower.last.streams
        size_bytes = BF16 * lengths[tower.name] * tower.hidden * streams

        name = f"{prefix}embedding"
        fed = () if tower.follows is None else (outputs[tower.follows],)
        nodes.append(_GraphNode(name, name, (_Part(tower, tower),), fed))
        members = list(tower.blocks())
        count = choices.layers_per_node
        if len(members) % count:
            raise InvalidProblemError(
                f"layers_per_node: expected a divisor of the {len(members)} "
                f"layers of {model.name}, got {count}; choose another"
            )
        for first in range(0, len(members), count):
            inside = members[first : first + count]
            parts = tuple(
                _Part(block, tower, len(list(equal)))
                for block, equal in groupby(inside)
            )
            inputs = [(nodes[-1].id, size_bytes)]
            if tower.reads is not None and any(
                block.cross_attention is not None for block in inside
            ):
                inputs.append(outputs[tower.reads])
            last = first + count - 1
            suffix = f"-{first}" if count == 1 else f"s-{first}-{last}"
            nodes.append(
                _GraphNode(
                    f"{prefix}layer{suffix}",
                    _kind_name(model, tower, parts),
                    parts,
                    tuple(inputs),
                )
            )
        # What modules return goes to the head beside the stream.
        for index in range(tower.modules):
            module = Module(block=tower.last, table=index == 0)
            nodes.append(
                _GraphNode(
                    f"mtp-{index}",
                    MTP_KINDS[min(index, 1)],
                    (_Part(module, tower),),
                    ((nodes[-1].id, (1 + index) * size_bytes),),
                )
            )
        # The head counts the norms of the towers that it reads.
        if tower.final_norm and tower not in readers:
            name = f"{prefix}norm"
            norm = (_Part(None, tower),)
            inputs = [(nodes[-1].id, size_bytes)]
            nodes.append(_GraphNode(name, name, norm, tuple(inputs)))
        size_bytes *= 1 + tower.modules
        outputs[tower.name] = (nodes[-1].id, size_bytes)
    inputs = []
    for tower in readers:
        source, size_bytes = outputs[tower.name]
        # Of a pooled output one vector is sent.
        pooled = model.head.pooled
        inputs.append((source, BF16 * tower.hidden if pooled else size_bytes))
    parts = tuple(_Part(model.head, tower) for tower in readers)
    nodes.append(_GraphNode("head", "head", parts, tuple(inputs)))
    return nodes


def _kind_name(model: Architecture, tower: Tower, parts: tuple[_Part, ...]) -> str:
    """Return ``decoder``, or ``dense+2-sparse`` for unequal blocks.

    The tower's name comes first if another tower has blocks of that name.
    """
    names = []
    for part in parts:
        assert isinstance(part.shape, Block)
        several = part.repeat > 1 and len(parts) > 1
        names.append(f"{part.repeat}-" * several + part.shape.name)
    name = "+".join(names)
    others = {
        run.block.name
        for other in model.towers
        if other.name != tower.name
        for run in other.runs
    }
    return f"{tower.name}-{name}" if others & set(names) else name


def _count_splits(
    node: _GraphNode, model: Architecture, choices: Choices, execution: Execution
) -> Iterator[Counted]:
    """Count a graph node under every split."""
    lengths = model.lengths(choices.sequence_length)
    for tp, cp, ep, samples, etp in choices.degrees:
        for stated, sequence_parallel in choices.splits(tp).items():
            if stated and model.why_not_split(tp, cp, ep, choices.sequence_length):
                continue
            if etp and not sequence_parallel:
                continue
            parts = []
            for part in node.parts:
                reads = part.tower.reads
                split = Split(
                    tp=tp,
                    cp=cp,
                    ep=ep,
                    etp=etp,
                    samples=samples,
                    sequence_length=lengths[part.tower.name],
                    sequence_parallel=sequence_parallel,
                    source_length=0 if reads is None else lengths[reads],
                )
                counted = count_layer(part.shape, part.tower, split, execution)
                parts.append((counted, part.repeat))
            yield Counted(node.kind, split, stated, tuple(parts))


def count_layer(
    shape: Tower | Block | Module | Head | None,
    tower: Tower,
    split: Split,
    execution: Execution,
) -> Node:
    """Count the operators of a layer of a tower.

    ``shape`` is the tower for its embedding, a block, a module, a head, or
    ``None`` for the norm behind the tower.
    """
    match shape:
        case Block():
            return block_node(shape, split, execution)
        case Module():
            return module_node(shape, tower, split, execution)
        case Tower():
            node = embedding_node(shape, split, execution)
        case Head():
            norm_weights = final_norm_weights(tower)
            node = head_node(
                shape, tower.hidden, split, execution, norm_weights=norm_weights
            )
        case None:
            node = norm_node(tower, split)
    return node if execution.checkpointed_ends else node.without_checkpoint()
