"""The cost terms: everything that is ever added up, as integers.

:class:`CostModel` answers four questions about one problem, each answer
rounded once: the terms of a layer on a block of devices, the receive of a
tensor, the constant part of a gradient sync, and which network levels a
block's boundary crosses. ``score``, the tables of the dynamic program and the
formulations all read these and compute no cost of their own.

Symbols follow docs/cost-model.md: ``R`` replicas at pitch ``P``, a stage's
block ``[k, k+n)`` of every replica, ``M`` micro-batches of ``B`` samples.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from nest.cost.magnitude import check_magnitude
from nest.cost.presets import get_preset
from nest.cost.space import (
    PLAIN,
    Runtime,
    samples_per_rank,
    why_not_strategy,
)
from nest.cost.turns import check_turns
from nest.errors import InvalidProblemError
from nest.ir.graph import Activations, CollectiveKind, LayerCost
from nest.ir.plan import Overlap, Strategy
from nest.ir.problem import Problem
from nest.topology.alphabeta import NS_PER_S
from nest.topology.hierarchy import GroupShape, HierarchyNetwork
from nest.units import ceil_div, quantise, quantise_all

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Shapes = frozenset[GroupShape]
_Groups = dict[str, Shapes]

#: Ranks that share dense weights, and those that share experts.
_DATA_AXES = ("data", "expert-data")
#: The same over all replicas.
_SYNC_AXES = ("sync", "expert-sync")
_AXES = (
    *("tp", "cp", "dp", "ep"),
    *_DATA_AXES,
    *_SYNC_AXES,
    "replicas",
)


class Block(NamedTuple):
    """A stage's devices: ``[rP + k, rP + k + n)`` of each replica ``r``."""

    replicas: int
    pitch: int
    offset: int
    devices: int


class LayerTerms(NamedTuple):
    """What one layer adds to its stage.

    Attributes
    ----------
    forward, backward
        Quanta per micro-batch; collectives, recomputation and per
        micro-batch ZeRO traffic included.
    recomputed
        The part of ``backward`` that is the recomputed forward pass.
    sync
        Quanta per step: its share of gradient sync and optimiser update.
    hideable_sync
        The part of ``sync`` that is gradient sync, if the plan overlaps it
        with the backward pass; else 0.
    weight_bytes, gradient_bytes, state_bytes, buffer_bytes
        Kept all the time, per device, after sharding.
    kept_bytes
        Kept per in-flight micro-batch, per device.
    working_bytes
        Needed while the layer runs, the device's reserve included: so every
        sum of the parts is the device's memory.
    """

    forward: int
    backward: int
    recomputed: int
    sync: int
    hideable_sync: int
    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    buffer_bytes: int
    kept_bytes: int
    working_bytes: int

    @property
    def static_bytes(self) -> int:
        """Weights, gradients, optimiser state and buffers."""
        return (
            self.weight_bytes
            + self.gradient_bytes
            + self.state_bytes
            + self.buffer_bytes
        )


class Tensor(NamedTuple):
    """What one layer hands on: its consumers with their sizes per sample."""

    producer: int
    consumers: tuple[tuple[int, int], ...]


class CostModel:
    """Cost terms of one problem; remembers what it computed.

    Parameters
    ----------
    problem
        A validated problem.

    Raises
    ------
    UnknownNameError
        If the problem's preset does not exist.
    InvalidProblemError
        If the preset cannot express the problem, or a step could take more
        than 2**61 quanta.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.preset = get_preset(problem.preset)
        self.network = HierarchyNetwork(problem.cluster.topology)
        self._check_preset()
        check_magnitude(problem)
        graph = problem.graph
        costs = {
            kind.name: {cost.key: cost for cost in kind.costs}
            for kind in graph.kinds
        }
        self._costs = [costs[layer.kind] for layer in graph.layers]
        self._kinds = [layer.kind for layer in graph.layers]
        self._terms: dict[object, LayerTerms | None] = {}
        self._shapes: dict[object, Shapes] = {}
        self._tables: dict[object, _Groups] = {}
        self._table_numbers: dict[object, int] = {}
        self._numbers: dict[object, int] = {}
        self._collectives: dict[object, float] = {}
        self._known_passes: dict[object, tuple[int, int]] = {}
        self._levels: dict[object, frozenset[int]] = {}
        self.edges = graph.index_edges()
        self._extras = [
            (edge.source_extra_bytes_by_tp, edge.target_extra_bytes_by_tp)
            for edge in graph.edges
        ]
        consumers: dict[int, list[tuple[int, int]]] = {}
        for source, target, size_bytes in self.edges:
            consumers.setdefault(source, []).append((target, size_bytes))
        self.tensors = tuple(
            Tensor(producer, tuple(sorted(consumers[producer])))
            for producer in sorted(consumers)
        )

    def within(self, memory_bytes: int) -> CostModel:
        """Return the model of the problem with another capacity.

        Both share what they have computed: no term depends on it.
        """
        device = replace(
            self.problem.cluster.device, memory_bytes=memory_bytes
        )
        cluster = replace(self.problem.cluster, device=device)
        other = copy.copy(self)
        other.problem = replace(self.problem, cluster=cluster)
        return other

    def _check_preset(self) -> None:
        if not self.preset.extensions:
            job = self.problem.job
            for field, default in (
                ("virtual_stages", (1,)),
                ("overlap", {}),
                ("distributed_optimizer", False),
                ("granularity", "stage"),
            ):
                value = getattr(job, field)
                if value != default:
                    raise InvalidProblemError(
                        f"$.job.{field}: expected the default under preset "
                        f"{self.preset.name!r}, got {value}; remove it or "
                        f"use preset 'standard'"
                    )
        if self.preset.ranks_take_turns:
            check_turns(self.problem)
        if not self.preset.both_ends_pay:
            for edge in self.problem.graph.edges:
                for field in (
                    "source_extra_bytes_by_tp",
                    "target_extra_bytes_by_tp",
                ):
                    if getattr(edge, field):
                        raise InvalidProblemError(
                            f"$.graph.edges: expected no {field} under preset "
                            f"{self.preset.name!r}, got it on the edge from "
                            f"{edge.source!r} to {edge.target!r}; remove it "
                            f"or use preset 'piper'"
                        )
        if self.preset.uniform:
            return
        for edge in self.problem.graph.edges:
            if edge.bytes_per_sample_by_tp:
                raise InvalidProblemError(
                    f"$.graph.edges: expected no bytes_per_sample_by_tp under "
                    f"preset {self.preset.name!r}, got it on the edge from "
                    f"{edge.source!r} to {edge.target!r}; give one size"
                )

    # Layers

    def available(
        self, layer: int, strategy: Strategy, micro_batch: int
    ) -> str | None:
        """Return why a layer cannot run under a strategy, or ``None``.

        A missing cost means "not available", never zero.
        """
        reason = why_not_strategy(self.problem, strategy, micro_batch)
        if reason is not None:
            return reason
        samples = samples_per_rank(self.problem, strategy, micro_batch)
        key = (strategy.tp, strategy.cp, strategy.ep, samples)
        cost = self._costs[layer].get(key)
        name = self.problem.graph.layers[layer].id
        if cost is None:
            return (
                f"layer {name!r}: expected a cost for tp={strategy.tp}, "
                f"cp={strategy.cp}, ep={strategy.ep}, samples={samples}, got "
                f"none in kind {self._kinds[layer]!r}; choose another "
                f"strategy or add the cost"
            )
        if _activations(cost, strategy) is None:
            return (
                f"layer {name!r}: expected activations for recompute "
                f"{strategy.recompute!r}, got none in kind "
                f"{self._kinds[layer]!r}; choose another recompute"
            )
        return None

    def layer_terms(
        self,
        layer: int,
        strategy: Strategy,
        micro_batch: int,
        block: Block | None,
        runtime: Runtime = PLAIN,
    ) -> LayerTerms | None:
        """Return the terms of a layer, or ``None`` if it is not available.

        Without a block they are the terms without any communication: no
        block has smaller ones, unless the optimiser is sharded over the
        replicas of a block.
        """
        key = (
            self._kinds[layer],
            strategy,
            micro_batch,
            None if block is None else self.aligned(block),
            runtime.overlap,
            runtime.distributed_optimizer,
        )
        if key not in self._terms:
            self._terms[key] = (
                None
                if self.available(layer, strategy, micro_batch)
                else self._layer_terms(
                    layer, strategy, micro_batch, block, runtime
                )
            )
        return self._terms[key]

    def _layer_terms(
        self,
        layer: int,
        strategy: Strategy,
        micro_batch: int,
        block: Block | None,
        runtime: Runtime,
    ) -> LayerTerms:
        samples = samples_per_rank(self.problem, strategy, micro_batch)
        key = (strategy.tp, strategy.cp, strategy.ep, samples)
        cost = self._costs[layer][key]
        activations = _activations(cost, strategy)
        assert activations is not None
        where = f"kind {self._kinds[layer]!r}"
        groups = self._group_table(strategy, block)

        overlap = runtime.overlap
        forward, backward = self._passes(cost, groups, where, overlap)
        recomputed = 0
        if strategy.recompute == "selective":
            recomputed = self.quanta(activations.extra_ns, where)
        elif strategy.recompute == "full":
            recomputed = (
                backward if self.preset.recompute_costs_backward else forward
            )

        sizes = self._weight_sizes(cost, strategy)
        gather_ns = scatter_ns = 0.0
        if strategy.zero == 3:
            gather_ns = self._gather_ns(sizes, groups)
        if strategy.zero >= 2:
            scatter_ns = self._scatter_ns(sizes, groups)
        if "weights" in overlap:
            forward, backward = self._passes(
                cost, groups, where, overlap, gather_ns, scatter_ns
            )
        else:
            gather = self.quanta(gather_ns, where)
            forward += gather
            backward += gather + self.quanta(scatter_ns, where)

        sync, hideable = self._sync(
            sizes, strategy, groups, block, runtime, where
        )
        shards = sizes
        if runtime.distributed_optimizer:
            assert block is not None
            shards = sizes.over(block.replicas)
        sharded = strategy.zero >= 1 or runtime.distributed_optimizer
        if not self.preset.weights_take_memory:
            sizes = shards = _NOTHING
        return LayerTerms(
            forward=forward,
            backward=backward + recomputed,
            recomputed=recomputed,
            sync=sync,
            hideable_sync=hideable,
            weight_bytes=sizes.kept(strategy.zero >= 3, "weight_bytes"),
            gradient_bytes=sizes.kept(strategy.zero >= 2, "gradient_bytes"),
            state_bytes=shards.kept(sharded, "state_bytes"),
            buffer_bytes=sizes.kept(False, "buffer_bytes")
            + activations.static_bytes,
            kept_bytes=activations.kept_bytes,
            working_bytes=cost.working_bytes
            + activations.working_bytes
            + sizes.gathered(strategy.zero >= 3, "weight_bytes")
            + sizes.gathered(strategy.zero >= 2, "gradient_bytes")
            + self.problem.cluster.device.reserve_bytes,
        )

    def _passes(
        self,
        cost: LayerCost,
        groups: _Groups,
        where: str,
        overlap: frozenset[Overlap],
        gather_ns: float = 0.0,
        scatter_ns: float = 0.0,
    ) -> tuple[int, int]:
        """Return forward and backward pass with their collectives.

        ``c + Σ x + g - min(c, Σ f x + f_w g)``: computation ``c``,
        collectives ``x`` of each axis, and ZeRO traffic ``g``, of which the
        fractions ``f`` of what overlaps can hide behind the computation.

        Parameters
        ----------
        cost, groups, where
            The layer's cost entry, the groups of every axis, and the name
            for messages.
        overlap
            What overlaps.
        gather_ns, scatter_ns
            All-gather of the weights in either pass, and reduce-scatter of
            the gradients in the backward one, if they overlap.
        """
        used = tuple(groups[call.axis] for call in cost.collectives)
        key = (where, cost.key, used, overlap, gather_ns, scatter_ns)
        passes = self._known_passes.get(key)
        if passes is None:
            fractions = self.problem.job.overlap
            compute_ns = {
                "forward": cost.forward_ns,
                "backward": cost.backward_ns,
            }
            traffic_ns = {
                "forward": gather_ns,
                "backward": gather_ns + scatter_ns,
            }
            times_ns = {
                phase: time_ns + traffic_ns[phase]
                for phase, time_ns in compute_ns.items()
            }
            hideable_ns = {
                phase: time_ns * fractions.get("weights", 0.0)
                for phase, time_ns in traffic_ns.items()
            }
            for call, shapes in zip(cost.collectives, used, strict=True):
                time_ns = call.count * self._collective_ns(
                    call.kind, shapes, call.size_bytes
                )
                times_ns[call.phase] += time_ns
                if call.axis != "dp" and call.axis in overlap:
                    hideable_ns[call.phase] += time_ns * fractions[call.axis]
            forward, backward = (
                self.quanta(
                    time_ns - min(compute_ns[phase], hideable_ns[phase]), where
                )
                for phase, time_ns in times_ns.items()
            )
            passes = forward, backward
            self._known_passes[key] = passes
        return passes

    def _gather_ns(
        self,
        sizes: _WeightSizes,
        groups: _Groups,
        axes: tuple[str, str] = _DATA_AXES,
    ) -> float:
        """All-gather of the weights over the ranks that share them."""
        return math.fsum(
            self._collective_ns("all-gather", groups[axis], size.weight_bytes)
            for size, axis in zip(sizes, axes, strict=True)
        )

    def _scatter_ns(
        self,
        sizes: _WeightSizes,
        groups: _Groups,
        axes: tuple[str, str] = _DATA_AXES,
    ) -> float:
        """Reduce-scatter of the gradients over the same ranks."""
        return math.fsum(
            self._collective_ns(
                "reduce-scatter", groups[axis], size.gradient_bytes
            )
            for size, axis in zip(sizes, axes, strict=True)
        )

    def _collective_ns(
        self, kind: CollectiveKind, shapes: Shapes, size_bytes: int
    ) -> float:
        key = (kind, shapes, size_bytes)
        time_ns = self._collectives.get(key)
        if time_ns is None:
            time_ns = self.network.collective_ns(kind, shapes, size_bytes)
            self._collectives[key] = time_ns
        return time_ns

    def _weight_sizes(
        self, cost: LayerCost, strategy: Strategy
    ) -> _WeightSizes:
        optimizer = self.problem.job.optimizer
        unit = optimizer.weight_bytes

        def sizes(weight_bytes: int, ranks: int) -> _Sizes:
            return _Sizes(
                weight_bytes,
                ceil_div(weight_bytes * optimizer.gradient_bytes, unit),
                ceil_div(weight_bytes * optimizer.state_bytes, unit),
                math.ceil(weight_bytes * optimizer.buffer_bytes / unit),
                ranks,
            )

        return _WeightSizes(
            sizes(cost.weight_bytes, strategy.data_ranks),
            sizes(
                cost.expert_weight_bytes, strategy.data_ranks // strategy.ep
            ),
        )

    def _sync(
        self,
        sizes: _WeightSizes,
        strategy: Strategy,
        groups: _Groups,
        block: Block | None,
        runtime: Runtime,
        where: str,
    ) -> tuple[int, int]:
        """Gradient sync and optimiser update of one layer, in quanta.

        Returned with the part that may hide behind the backward pass: the
        sync, rounded apart from the update, if the plan overlaps it.

        ZeRO 0: all-reduce of the gradients over replicas and data ranks.
        ZeRO 1: reduce-scatter and all-gather over the data ranks,
        all-reduce of the shard over the replicas. ZeRO 2 has paid its
        reduce-scatter, ZeRO 3 also its all-gather, per micro-batch. The
        distributed optimiser reduce-scatters and all-gathers over replicas
        and data ranks together.
        """
        if self.preset.server_sync:
            return 0, 0  # rounded once per stage
        if self.preset.switch_tree_sync:
            if block is None:
                return 0, 0
            factor_ns, _ = self._switch_tree(block)
            weight_bytes = sizes.dense.weight_bytes + sizes.expert.weight_bytes
            return self.quanta(factor_ns * weight_bytes, where), 0
        sync_ns = 0.0
        sharded = strategy.zero >= 1
        if runtime.distributed_optimizer:
            assert block is not None
            sync_ns += self._scatter_ns(sizes, groups, _SYNC_AXES)
            sync_ns += self._gather_ns(sizes, groups, _SYNC_AXES)
            sizes, sharded = sizes.over(block.replicas), True
        elif strategy.zero == 0:
            for size, axis in zip(sizes, _SYNC_AXES, strict=True):
                sync_ns += self._collective_ns(
                    "all-reduce", groups[axis], size.gradient_bytes
                )
        else:
            if strategy.zero == 1:
                sync_ns += self._scatter_ns(sizes, groups)
            if strategy.zero <= 2:
                sync_ns += self._gather_ns(sizes, groups)
            for size in sizes:
                sync_ns += self._collective_ns(
                    "all-reduce",
                    groups["replicas"],
                    ceil_div(size.gradient_bytes, size.ranks),
                )
        sync_ns *= 1.0 - self.problem.job.gradient_sync_overlap
        update_ns = self._update_ns(sizes, sharded)
        if "gradients" in runtime.overlap:
            sync = self.quanta(sync_ns, where)
            return sync + self.quanta(update_ns, where), sync
        return self.quanta(sync_ns + update_ns, where), 0

    def _update_ns(self, sizes: _WeightSizes, sharded: bool) -> float:
        """Optimiser update: memory traffic only.

        Gradients are read, weights and state are read and written, at HBM
        bandwidth; from ZeRO 1 on each rank updates its shard.
        """
        hbm = self.problem.cluster.device.hbm_bytes_per_s
        if hbm is None or not self.preset.optimizer_update:
            return 0.0
        traffic = (
            sizes.kept(sharded, "gradient_bytes")
            + 2 * sizes.kept(sharded, "weight_bytes")
            + 2 * sizes.kept(sharded, "state_bytes")
        )
        return traffic / hbm * NS_PER_S

    # Groups of devices

    def aligned(self, block: Block) -> Block:
        """Return the first block on which every layer costs the same.

        Shifting all replicas by whole subtrees just below the top level
        changes no group's shape.
        """
        capacities = self.network.capacities
        period = capacities[-2] if len(capacities) > 1 else 1
        return block._replace(offset=block.offset % period)

    def _group_table(self, strategy: Strategy, block: Block | None) -> _Groups:
        """Return the groups of every axis; empty ones without a block."""
        if block is None:
            return dict.fromkeys(_AXES, frozenset())
        block = self.aligned(block)
        dp, tp, cp, ep = strategy.dp, strategy.tp, strategy.cp, strategy.ep
        key = (dp, tp, cp, ep, block)
        if key not in self._tables:
            self._tables[key] = {
                axis: self.groups(axis, strategy, block) for axis in _AXES
            }
        return self._tables[key]

    def groups_number(self, strategy: Strategy, block: Block) -> int:
        """Return a number that stands for the groups of every axis.

        Where a strategy has the same groups on two blocks, with as many
        replicas, every layer costs the same on both.
        """
        key = (strategy.dp, strategy.tp, strategy.cp, strategy.ep, block)
        if key not in self._numbers:
            shapes = tuple(self._group_table(strategy, block).values())
            self._numbers[key] = self._table_numbers.setdefault(
                shapes, len(self._table_numbers)
            )
        return self._numbers[key]

    def groups(self, axis: str, strategy: Strategy, block: Block) -> Shapes:
        """Return the shapes of the parallel groups of an axis.

        Ranks run tp fastest, then cp, then dp inside a block; experts are
        spread over ``ep`` consecutive data ranks.

        Parameters
        ----------
        axis
            ``tp``, ``cp``, ``dp``, ``ep``; ``data`` (the ``dp * cp`` ranks
            that share dense weights), ``expert-data`` (those that share
            experts); ``sync`` and ``expert-sync`` (the same over all
            replicas); ``replicas`` (one rank of every replica).
        strategy, block
            The strategy, and where the stage sits.
        """
        dp, tp, cp, ep = strategy.dp, strategy.tp, strategy.cp, strategy.ep
        data = dp * cp
        # (size, stride) of one group inside the block
        size, stride = {
            "tp": (tp, 1),
            "cp": (cp, tp),
            "dp": (dp, tp * cp),
            "ep": (ep, tp),
            "data": (data, tp),
            "expert-data": (data // ep, tp * ep),
            "sync": (data, tp),
            "expert-sync": (data // ep, tp * ep),
            "replicas": (1, 1),
        }[axis]
        block = self.aligned(block)
        across = axis in ("sync", "expert-sync", "replicas")
        if across and block.replicas > 1:
            key: tuple[object, ...] = (size, stride, block)
            if key not in self._shapes:
                self._shapes[key] = frozenset(
                    self.network.shape(
                        [
                            replica * block.pitch + device
                            for replica in range(block.replicas)
                            for device in group
                        ]
                    )
                    for group in _groups(block, size, stride)
                )
            return self._shapes[key]
        if size == 1:
            return frozenset()
        return frozenset().union(
            *(
                self._block_shapes(start, block.devices, size, stride)
                for start in self._starts(block)
            )
        )

    def _starts(self, block: Block) -> frozenset[int]:
        """Return the block's first device in each replica, up to symmetry.

        Shifting a block by whole subtrees of the level that holds it changes
        nothing; only replica 0 counts where the preset says so.
        """
        key = ("starts", block)
        if key not in self._levels:
            replicas = 1 if self.preset.pitch_is_used else block.replicas
            starts = set()
            for replica in range(replicas):
                start = replica * block.pitch + block.offset
                level = self.network.level(start, start + block.devices - 1)
                starts.add(start % self.network.capacities[level])
            self._levels[key] = frozenset(starts)
        return self._levels[key]

    def _block_shapes(
        self, start: int, devices: int, size: int, stride: int
    ) -> Shapes:
        key = (start, devices, size, stride)
        if key not in self._shapes:
            block = Block(1, 0, start, devices)
            self._shapes[key] = frozenset(
                self.network.shape(group)
                for group in _groups(block, size, stride)
            )
        return self._shapes[key]

    # Boundaries

    def boundary_levels(
        self, block: Block, *, forward: bool, neighbour: int = 0
    ) -> frozenset[int]:
        """Return the network levels at which a stage receives.

        The lowest level whose subtree holds the block and its neighbour
        device (``k-1`` forward, ``k+n`` backward), over all replicas.

        Parameters
        ----------
        block
            The receiving stage's block.
        forward
            Receive of activations (else of gradients).
        neighbour
            First device of the sending stage; used only by presets that put
            the last stage first, where the two blocks' first devices meet.
        """
        if self.preset.last_stage_first:
            first, second = sorted((block.offset, neighbour))
            return frozenset((self.network.level(first, second),))
        key = (block, forward)
        if key not in self._levels:
            levels = set()
            for replica in range(block.replicas):
                first = replica * block.pitch + block.offset
                last = first + block.devices - 1
                levels.add(
                    self.network.level(first - 1, last)
                    if forward
                    else self.network.level(first, last + 1)
                )
            self._levels[key] = frozenset(levels)
        return self._levels[key]

    def wrap_levels(self, first: Block, last: Block) -> frozenset[int]:
        """Return the levels at which interleaved chunks wrap around.

        The last block of a replica hands on to its first: the lowest level
        whose subtree holds both, over all replicas.
        """
        return frozenset(
            self.network.level(
                replica * first.pitch + first.offset,
                replica * last.pitch + last.offset + last.devices - 1,
            )
            for replica in range(first.replicas)
        )

    def message(self, level: int) -> int:
        """Quanta that a boundary message costs whatever its size."""
        return self.quanta(self._p2p_ns(level, 0), f"level {level}")

    def tensor(
        self, level: int, size_bytes: int, samples: int, shards: int
    ) -> int:
        """Quanta that one tensor adds to a boundary message.

        ``X / (shards β)`` with ``X = size_bytes * samples``.
        """
        size = size_bytes * samples / shards
        time_ns = size / self.network.bandwidths[level] * NS_PER_S
        return self.quanta(self._trips(level) * time_ns, "an edge")

    def edge(self, level: int, size_bytes: int, samples: int) -> int:
        """Quanta of one edge sent as a message of its own."""
        return self.quanta(
            self._p2p_ns(level, size_bytes * samples), "an edge"
        )

    def _p2p_ns(self, level: int, size_bytes: float) -> float:
        return self._trips(level) * self.network.transfer_ns(level, size_bytes)

    def _trips(self, level: int) -> int:
        return 2 if self.preset.round_trip and level > 0 else 1

    def edge_bytes(self, tp: int) -> list[tuple[int, int, int]]:
        """Return (source, target, bytes per sample) at a tensor width."""
        return [
            (source, target, edge.bytes_per_sample_by_tp.get(tp, size_bytes))
            for (source, target, size_bytes), edge in zip(
                self.edges, self.problem.graph.edges, strict=True
            )
        ]

    # Ranks that take turns (reference/piper.md §3)

    def turn(self, quanta: Any, dp: int) -> Any:
        """Return what work per micro-batch takes of ``dp`` ranks in turn.

        ``quanta / dp`` rounded half up; a number or an array of integers.
        """
        return (2 * quanta + dp) // (2 * dp)

    def exchange_ns(self, size_bytes: Any, dp: int) -> Any:
        """Return the time of a stage's cut edges, ``X / (dp β)``.

        Parameters
        ----------
        size_bytes
            What crosses its boundaries per micro-batch, both ways; a number
            or an array of floats.
        dp
            Ranks that take turns.
        """
        return size_bytes / (dp * self.network.bandwidths[0]) * NS_PER_S

    def server_sync_ns(
        self, weight_bytes: Any, dp: int, num_micro_batches: int
    ) -> Any:
        """Return a stage's gradient sync, ``4 (dp-1)/dp W / (M β)``.

        Parameters
        ----------
        weight_bytes
            Weights of the stage per device; a float or an array of floats.
        dp, num_micro_batches
            Ranks that share them, and micro-batches per step.
        """
        rate = dp * num_micro_batches * self.network.bandwidths[0]
        return 4 * (dp - 1) * weight_bytes / rate * NS_PER_S

    def weight_bytes(
        self, layer: int, strategy: Strategy, micro_batch: int
    ) -> int:
        """Return the dense weights of a layer per device."""
        samples = samples_per_rank(self.problem, strategy, micro_batch)
        key = (strategy.tp, strategy.cp, strategy.ep, samples)
        return self._costs[layer][key].weight_bytes

    def edge_ends(
        self, tp: int, micro_batch: int
    ) -> list[tuple[int, int, int, int]]:
        """Return (source, target, bytes at the source, bytes at the target).

        Activation and gradient of a micro-batch, ``2 (X + extra)``, for the
        end whose stage has tensor parallel degree ``tp``.
        """
        return [
            (
                source,
                target,
                2 * micro_batch * (size_bytes + by_source.get(tp, 0)),
                2 * micro_batch * (size_bytes + by_target.get(tp, 0)),
            )
            for (source, target, size_bytes), (by_source, by_target) in zip(
                self.edges, self._extras, strict=True
            )
        ]

    # The rest

    def sync_constant(self, block: Block) -> int:
        """Quanta of a stage's gradient sync that no layer accounts for."""
        if not self.preset.switch_tree_sync:
            return 0
        _, constant_ns = self._switch_tree(block)
        return self.quanta(constant_ns, "gradient sync")

    def _switch_tree(self, block: Block) -> tuple[float, float]:
        """Return (ns per byte, ns) of NEST's gradient sync as coded.

        Reference: reference/nest-artifact.md §2. Ranks 0, P, 2P, … meet at
        level ``L``. Level 0 is charged ``⌊lg R⌋`` rounds
        ``lat_0 + X/2^i/bw_0``; every level above
        ``2(lat + X/bw)`` and once more the totals reached at the levels
        between.
        """
        rounds = block.replicas.bit_length() - 1
        latencies = self.network.latencies_ns
        factors = [NS_PER_S / bw for bw in self.network.raw_bandwidths]
        per_byte = math.fsum(factors[0] / 2**i for i in range(rounds))
        constant = rounds * latencies[0]
        top = self.network.level(0, (block.replicas - 1) * block.pitch)
        before_per_byte = before = 0.0
        for level in range(1, top + 1):
            per_byte += 2 * factors[level] + before_per_byte
            constant += 2 * latencies[level] + before
            before_per_byte += per_byte
            before += constant
        return per_byte, constant

    def quanta(self, time_ns: float, where: str) -> int:
        """Round a time once; report one that is too long."""
        try:
            return quantise(time_ns, self.problem.quantum_ps)
        except OverflowError as error:
            raise self._too_long(error, where) from error

    def all_quanta(
        self, times_ns: NDArray[np.float64], where: str
    ) -> NDArray[np.int64]:
        """Round an array of times, as :meth:`quanta` would each."""
        try:
            return quantise_all(times_ns, self.problem.quantum_ps)
        except OverflowError as error:
            raise self._too_long(error, where) from error

    def _too_long(
        self, error: OverflowError, where: str
    ) -> InvalidProblemError:
        return InvalidProblemError(
            f"$.quantum_ps: expected a quantum that keeps every time "
            f"below 2**53 quanta, got {self.problem.quantum_ps} ps, and "
            f"{error} ({where}); correct the cost or raise quantum_ps"
        )


class _Sizes(NamedTuple):
    """Bytes per device before sharding, and over how many ranks to shard."""

    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    buffer_bytes: int
    ranks: int


class _WeightSizes(NamedTuple):
    dense: _Sizes
    expert: _Sizes

    def over(self, replicas: int) -> _WeightSizes:
        """Return the same, sharded over replicas too."""
        return _WeightSizes(
            *(size._replace(ranks=size.ranks * replicas) for size in self)
        )

    def kept(self, sharded: bool, field: str) -> int:
        return sum(
            ceil_div(getattr(size, field), size.ranks if sharded else 1)
            for size in self
        )

    def gathered(self, sharded: bool, field: str) -> int:
        """Bytes of the whole tensors while the layer runs, if sharded."""
        if not sharded:
            return 0
        return sum(
            getattr(size, field) if size.ranks > 1 else 0 for size in self
        )


_NOTHING = _WeightSizes(_Sizes(0, 0, 0, 0, 1), _Sizes(0, 0, 0, 0, 1))


def _activations(cost: LayerCost, strategy: Strategy) -> Activations | None:
    for activations in cost.activations:
        if activations.recompute == strategy.recompute:
            return activations
    return None


def _groups(block: Block, size: int, stride: int) -> list[list[int]]:
    """Split replica 0's block into groups of ``size`` ranks ``stride`` apart.

    Groups tile the block: ``stride`` interleaved groups fill
    ``size * stride`` consecutive devices.
    """
    end = block.offset + block.devices
    return [
        [start + shift + stride * i for i in range(size)]
        for start in range(block.offset, end, size * stride)
        for shift in range(stride)
    ]
