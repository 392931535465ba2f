"""Cost rules: what a cost model says about stages, schedules and the step.

:class:`CostRules` is the project's own model, ``standard``, as docs/cost-model.md
states it. A published model is a subclass in a room of its own under
:mod:`nest.audits`, beside its citation, and overrides what it does differently.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from nest.cost.schedules import SCHEDULES, InFlight, Schedule
from nest.cost.transfers import passing_bytes
from nest.cost.verdict import BlockScore, StageScore
from nest.errors import InvalidProblemError, UnknownNameError
from nest.ir.job import Job
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.topology.protocol import Block, Network
from nest.units import decimal

if TYPE_CHECKING:
    from nest.cost.model import CostModel
    from nest.cost.space import BatchSplit, Runtime
    from nest.cost.terms import LayerTerms, WeightSizes

#: Layers of a stage with their strategies, sources first.
Members = list[tuple[int, Strategy]]


@dataclass(frozen=True)
class Pipeline:
    """A plan laid out on its devices; chunks are counted from 0.

    ``members`` has the layers and strategies of every chunk, ``terms`` the terms of
    these layers, and ``blocks`` where every chunk sits.
    """

    model: CostModel
    plan: Plan
    split: BatchSplit
    runtime: Runtime
    schedule: Schedule
    members: Sequence[Members]
    blocks: Sequence[Block]
    terms: Sequence[Sequence[LayerTerms]]

    def chunks(self, block: int) -> tuple[int, ...]:
        """Return the chunks of a block of devices."""
        return self.plan.chunks_of(block)

    @cached_property
    def crossings(self) -> tuple[dict[int, int], ...]:
        """What crosses the cut in front of every chunk, and behind the last.

        As of :meth:`~nest.cost.transfers.Transfers.crossing`.
        """
        crossing = self.model.transfers.crossing
        before: set[int] = set()
        crossings = [crossing(before)]
        for members in self.members:
            before.update(layer for layer, _ in members)
            crossings.append(crossing(before))
        return tuple(crossings)


class Loads(NamedTuple):
    """Quanta of a stage per micro-batch, as in ``StageScore``."""

    forward: int
    backward: int
    weight_backward: int = 0
    pairable_forward: int = 0
    pairable_backward: int = 0
    receive_forward: int = 0
    receive_backward: int = 0
    redistribution: int = 0


#: Fields of a job that only some presets let differ from their defaults.
_EXTENSIONS = (
    *("virtual_stages", "overlap", "distributed_optimizer", "granularity", "uniform"),
    *("even_layers", "one_stage", "idle_devices", "zero_with", "sharded_with"),
    *("micro_batch_count", "overlap_needs"),
)


class CostRules:
    """The project's own model."""

    name: ClassVar[str] = "standard"
    summary: ClassVar[str] = "the project's own model"
    #: Whether a job may allow interleaving, overlap, the distributed
    #: optimizer, and a strategy per layer.
    extensions: ClassVar[bool] = True
    #: Whether all stages of a plan share one strategy.
    one_strategy: ClassVar[bool] = False
    #: Whether the data ranks of a stage take whole micro-batches in turn:
    #: round-robin data parallelism.
    round_robin: ClassVar[bool] = False
    #: Whether the step time is the time per micro-batch in a steady state.
    steady_state: ClassVar[bool] = False
    #: Whether a layer costs the same on all blocks with the same groups and
    #: types of devices: no sync but collectives, see :meth:`layer_sync_ns`.
    by_groups: ClassVar[bool] = True
    #: Whether the layers of a stage each choose their recomputation.
    recompute_per_layer: ClassVar[bool] = False
    #: The exact search of its plans as ``module:function``, if another than
    #: that of the project's own.
    search: ClassVar[str | None] = None
    #: Whether that search is as quick as another of as many placements.
    is_search_quick: ClassVar[bool] = False

    # Which problems and plans there are

    def check(self, problem: Problem) -> None:
        """Refuse a problem that the model cannot express.

        Raises ``InvalidProblemError`` with the place, what it must be, and what it is.
        """
        if not self.extensions:
            plain = Job(global_batch=1)
            for field in _EXTENSIONS:
                value = getattr(problem.job, field)
                if value != getattr(plain, field):
                    raise InvalidProblemError(
                        f"$.job.{field}: expected the default under preset "
                        f"{self.name!r}, got {value}; remove it or use "
                        f"preset 'standard'"
                    )
            if problem.job.plans_split_sequences:
                raise InvalidProblemError(
                    f"$.job.sequence_parallel: expected true or false under preset "
                    f"{self.name!r}, got a list; decide it or use preset 'standard'"
                )
            if "offload" in problem.job.recompute:
                raise InvalidProblemError(
                    f"$.job.recompute: expected no 'offload' under preset "
                    f"{self.name!r}, got {list(problem.job.recompute)}; remove it or "
                    f"use preset 'standard'"
                )
            if problem.job.schedule not in SCHEDULES:
                raise InvalidProblemError(
                    f"$.job.schedule: expected one of {', '.join(SCHEDULES)} under "
                    f"preset {self.name!r}, got {problem.job.schedule!r}; change it or "
                    f"use preset 'standard'"
                )
            if problem.cluster.others:
                raise InvalidProblemError(
                    f"$.cluster.others: expected one type of devices under "
                    f"preset {self.name!r}, got {problem.cluster.device_name}"
                    f"; remove it or use preset 'standard'"
                )
        for field, remedy in self.refused_sizes.items():
            for edge in problem.graph.edges:
                if getattr(edge, field):
                    raise InvalidProblemError(
                        f"$.graph.edges: expected no {field} under preset "
                        f"{self.name!r}, got it on the edge from "
                        f"{edge.source!r} to {edge.target!r}; {remedy}"
                    )

    #: Sizes of edges that the model has no use for, and what to do.
    refused_sizes: ClassVar[dict[str, str]] = {
        "source_extra_bytes_by_tp": "remove it or use preset 'piper'",
        "target_extra_bytes_by_tp": "remove it or use preset 'piper'",
        "bytes_per_sample_by_tp": "give one size",
    }

    def plain(self, problem: Problem, tp: int | None = None) -> Problem:
        """Return a problem for planners that know the preset ``standard``.

        With the same plans, and cost tables that mean what they mean there; the problem
        itself, if there is no other way to say it. Tensors with several sizes have that
        of width ``tp``, by default of the least one.
        """
        return problem

    def samples_per_rank(self, strategy: Strategy, micro_batch: int) -> int:
        """Return the samples that one data rank runs at a time."""
        return micro_batch // strategy.dp

    def data_degrees(
        self, problem: Problem, micro_batch: int, samples: int, devices: int
    ) -> Iterable[int]:
        """Return the degrees ``dp`` for which a cost entry stands.

        The entry is of so many ``samples``, and one data rank has so many ``devices``.
        """
        dp, rest = divmod(micro_batch, samples)
        return () if rest else (dp,)

    def why_not_data_degree(
        self, problem: Problem, dp: int, micro_batch: int
    ) -> str | None:
        """Return why ``dp`` ranks cannot share the work, or ``None``."""
        if micro_batch % dp:
            return f"dp: expected a divisor of micro_batch {micro_batch}, got {dp}"
        return None

    def why_not_stages(self, plan: Plan, num_micro_batches: int) -> str | None:
        """Return which rule of its own forbids stages, or ``None``."""
        return None

    # What a layer costs

    def groups_at(self, block: Block) -> Block:
        """Return the block whose replicas' groups count."""
        return block

    def recomputation(self, forward: int, backward: int) -> int:
        """Return what full recomputation takes, given a layer's passes."""
        return forward

    def layer_sync_ns(
        self, network: Network, block: Block | None, weight_bytes: int
    ) -> float | None:
        """Return a layer's gradient sync, if it is no collective, in ns.

        Without an update, and none of it hides. ``None`` if it is what
        :meth:`~nest.cost.terms.LayerPrices.sync` says.
        """
        return None

    def longest_sync_ns(
        self,
        network: Network,
        num_devices: int,
        weight_bytes: float,
        grown_bytes: float,
    ) -> float:
        """Return a time that no layer's gradient sync exceeds, in ns.

        ``grown_bytes`` are those of a layer's weights with their gradients and state.
        """
        return 3 * network.longest_ns(grown_bytes, num_devices)

    def held(self, sizes: WeightSizes) -> WeightSizes:
        """Return what of a layer's weights takes memory."""
        return sizes

    # What a stage costs

    def blocks(self, plan: Plan, share: int) -> list[Block]:
        """Return where every chunk sits.

        Side by side from the first of the ``share`` devices of a replica.
        """
        offset, blocks = 0, []
        for stage in plan.stages[: plan.num_blocks]:
            blocks.append(Block(plan.replicas, share, offset, stage.devices))
            offset += stage.devices
        return [blocks[plan.block_of(i)] for i in range(len(plan.stages))]

    def layer_block(self, block: Block) -> Block | None:
        """Return the block on which layers are priced, if it matters."""
        return block

    def loads(self, pipeline: Pipeline, chunk: int) -> Loads:
        """Return what a chunk does per micro-batch.

        Passes of its layers, strategy changes between them, and what it
        receives across the cuts in front of it and behind it.
        """
        received = received_back = 0
        if chunk > 0:
            received = receive(pipeline, chunk, chunk - 1)
        if chunk < len(pipeline.members) - 1:
            received_back = receive(pipeline, chunk, chunk + 1)
        change, change_back = redistribution(pipeline, chunk)
        terms = pipeline.terms[chunk]
        return Loads(
            forward=sum(t.forward for t in terms) + change + received,
            backward=sum(t.backward for t in terms) + change_back + received_back,
            weight_backward=sum(t.weight_backward for t in terms),
            pairable_forward=sum(t.pairable_forward for t in terms),
            pairable_backward=sum(t.pairable_backward for t in terms),
            receive_forward=received,
            receive_backward=received_back,
            redistribution=change + change_back,
        )

    def recomputed(
        self, members: Members, terms: Sequence[LayerTerms], last: bool
    ) -> int:
        """Return what of a chunk's load is recomputation.

        ``last`` says whether the chunk is the last of its pipeline.
        """
        return sum(t.recomputed for t in terms)

    def sync(self, pipeline: Pipeline, chunk: int) -> int:
        """Return a chunk's gradient sync and update before any hides."""
        return sum(t.sync for t in pipeline.terms[chunk])

    def stash_bytes(
        self,
        model: CostModel,
        members: Members,
        terms: Sequence[LayerTerms],
        micro_batch: int,
    ) -> int:
        """Return what a stage's layers keep for a further micro-batch."""
        return sum(t.kept_bytes for t in terms)

    def kept_by_chunk(self, pipeline: Pipeline, block: int) -> list[int]:
        """Return what a micro-batch in flight keeps in a block's chunks.

        Their layers' activations and the tensors that pass them, in bytes.
        """
        return [
            sum(t.kept_bytes for t in pipeline.terms[chunk]) + passing(pipeline, chunk)
            for chunk in pipeline.chunks(block)
        ]

    def kept(self, pipeline: Pipeline, block: int) -> InFlight:
        """Return what a block keeps for the passes in flight."""
        return pipeline.schedule.kept(
            self.kept_by_chunk(pipeline, block),
            block,
            pipeline.plan.num_blocks,
            pipeline.split.num_micro_batches,
        )

    # What a step takes

    def step(
        self,
        pipeline: Pipeline,
        stages: Sequence[StageScore],
        blocks: Sequence[BlockScore],
    ) -> int:
        """Return the step time in quanta."""
        time = pipeline.schedule.pipeline_time(stages, pipeline.split.num_micro_batches)
        return time + max(block.sync for block in blocks)

    def slowest(self, blocks: Sequence[BlockScore]) -> tuple[int, int]:
        """Return the blocks that hold up micro-batches, and the step's end.

        The first with the longest load, and the first with the longest sync.
        """
        loads = [block.load for block in blocks]
        syncs = [block.sync for block in blocks]
        return loads.index(max(loads)), syncs.index(max(syncs))

    def samples_per_step(self, problem: Problem, plan: Plan) -> int:
        """Return the samples trained in the time that ``step`` returns."""
        return problem.job.global_batch


def receive(pipeline: Pipeline, chunk: int, sender: int) -> int:
    """Return what a chunk pays to receive from the one before or after.

    With one strategy per layer, the layer next to the cut receives. A block
    that runs both chunks has what it needs, unless the layouts differ.
    """
    model, forward = pipeline.model, sender < chunk
    members, others = pipeline.members[chunk], pipeline.members[sender]
    _, strategy = members[0] if forward else members[-1]
    crossing = pipeline.crossings[chunk if forward else sender]
    block, other = pipeline.blocks[chunk], pipeline.blocks[sender]
    if block == other:
        _, beside = others[-1] if forward else others[0]
        if beside.layout == strategy.layout:
            return 0
        route = model.network.inside(block)
    else:
        route = model.network.route(block, other)
    return model.transfers.receive(
        route, crossing.values(), pipeline.plan.micro_batch, model.shards(strategy)
    )


def passing(pipeline: Pipeline, chunk: int) -> int:
    """Return the bytes of tensors that pass a chunk, per micro-batch."""
    model = pipeline.model
    _, strategy = pipeline.members[chunk][0]
    return passing_bytes(
        pipeline.crossings[chunk],
        pipeline.crossings[chunk + 1],
        pipeline.plan.micro_batch,
        model.shards(strategy),
    )


def redistribution(pipeline: Pipeline, chunk: int) -> tuple[int, int]:
    """Return the cost of strategy changes inside a chunk, (fwd, bwd).

    Every edge between layers of different layouts moves its tensor across the block, a
    message of its own: forward to the consumer's layout, backward to the producer's.
    """
    model, strategy_of = pipeline.model, dict(pipeline.members[chunk])
    if len({strategy.layout for strategy in strategy_of.values()}) == 1:
        return 0, 0
    route = model.network.inside(pipeline.blocks[chunk])
    samples = pipeline.plan.micro_batch
    forward = backward = 0
    for source, target, size_bytes in model.transfers.edges:
        if source not in strategy_of or target not in strategy_of:
            continue
        before, after = strategy_of[source], strategy_of[target]
        if before.layout != after.layout and size_bytes:
            back, there = (
                model.transfers.receive(route, [size_bytes], samples, shards)
                for shards in map(model.shards, (before, after))
            )
            forward += there
            backward += back
    return forward, backward


def most_hidden(hideable: Any, fraction: float) -> Any:
    """Return what of gradient sync can hide, if the backward pass is long.

    ``⌊φ s + 1/2⌋`` exactly, whatever the size: of a quantum more, no more than a
    quantum more hides. ``hideable`` has the quanta of sync that may hide: an integer,
    or an array of objects; ``fraction`` is what of the sync can run behind computation.
    """
    part, whole = decimal(fraction).as_integer_ratio()
    return (2 * part * hideable + whole) // (2 * whole)


def hidden_sync(hideable: int, backward: int, fraction: float) -> int:
    """Return what of a block's gradient sync hides behind its backward load.

    ``hideable`` and ``fraction`` are those of :func:`most_hidden`; ``backward`` has the
    quanta of one micro-batch's backward passes.
    """
    return min(int(most_hidden(hideable, fraction)), backward)


#: Rules by name, as ``module:class``, read when asked for.
_RULES = {
    "standard": "nest.cost.rules:CostRules",
    "nest-artifact": "nest.audits.nest_artifact.rules:NestArtifactRules",
    "piper": "nest.audits.piper.rules:PiperRules",
}


@cache
def get_rules(name: str) -> CostRules:
    """Return the cost rules of that name.

    Raises ``UnknownNameError`` if there are none; the text lists them.
    """
    if name not in _RULES:
        raise UnknownNameError("preset", name, _RULES)
    module, _, attribute = _RULES[name].partition(":")
    rules: CostRules = getattr(import_module(module), attribute)()
    return rules
