"""What one layer adds to its stage: times in quanta, sizes in bytes."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from nest.cost.groups import (
    DATA_GROUPS,
    STEP_GROUPS,
    SYNC_GROUPS,
    GroupKeys,
    GroupTable,
)
from nest.cost.quanta import Quanta
from nest.cost.schedules import schedule_of
from nest.cost.space import PLAIN, Runtime, why_not_strategy
from nest.ir.graph import Activations, CollectiveKind, ComputeTimes, LayerCost
from nest.ir.job import Optimizer
from nest.ir.plan import COST_AXES, Overlap, Strategy
from nest.ir.problem import Problem
from nest.topology.alphabeta import NS_PER_S
from nest.topology.protocol import Block, Network
from nest.units import ceil_div

if TYPE_CHECKING:
    from nest.cost.rules import CostRules


class Passes(NamedTuple):
    """What one micro-batch takes in a layer, in quanta; see LayerTerms."""

    forward: int
    backward: int
    weight_backward: int
    pairable_forward: int
    pairable_backward: int
    recomputed: int


class LayerTerms(NamedTuple):
    """What one layer adds to its stage."""

    #: Quanta per micro-batch; collectives, recomputation and per micro-batch ZeRO
    #: traffic included.
    forward: int
    backward: int
    #: The part of ``backward`` that computes gradients of weights, and scatters them
    #: per micro-batch.
    weight_backward: int
    #: Parts of the passes that may hide behind a pass of another micro-batch, where the
    #: schedule runs two at a time.
    pairable_forward: int
    pairable_backward: int
    #: The part of ``backward`` that is the recomputed forward pass.
    recomputed: int
    #: Quanta per step: its share of gradient sync and optimizer update.
    sync: int
    #: The part of ``sync`` that is gradient sync, if the plan overlaps it with the
    #: backward pass; else 0.
    hideable_sync: int
    #: Kept all the time, per device, after sharding.
    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    buffer_bytes: int
    #: Kept per in-flight micro-batch, per device.
    kept_bytes: int
    #: Needed while the layer runs, the device's reserve included: so every sum of the
    #: parts is the device's memory.
    working_bytes: int

    @property
    def static_bytes(self) -> int:
        """Weights, gradients, optimizer state and buffers."""
        return (
            self.weight_bytes
            + self.gradient_bytes
            + self.state_bytes
            + self.buffer_bytes
        )


class Sizes(NamedTuple):
    """Bytes per device before sharding, and over how many ranks to shard."""

    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    buffer_bytes: int
    ranks: int


class WeightSizes(NamedTuple):
    """What a layer's weights take: dense ones and experts apart."""

    dense: Sizes
    expert: Sizes

    def over(self, replicas: int) -> WeightSizes:
        """Return the same, sharded over replicas too."""
        return WeightSizes(
            *(size._replace(ranks=size.ranks * replicas) for size in self)
        )

    def kept(self, sharded: bool, field: str) -> int:
        """Bytes that a device keeps; shards round up."""
        return sum(
            ceil_div(getattr(size, field), size.ranks if sharded else 1)
            for size in self
        )

    def gathered(self, sharded: bool, field: str) -> int:
        """Bytes of the whole tensors while the layer runs, if sharded."""
        if not sharded:
            return 0
        return sum(getattr(size, field) if size.ranks > 1 else 0 for size in self)


class Held(NamedTuple):
    """What a layer holds on a device, in bytes; see :class:`LayerTerms`.

    ``sizes`` are those of its weights, before any sharding; the reserve of
    the device is not in ``working_bytes``.
    """

    sizes: WeightSizes
    weight_bytes: int
    gradient_bytes: int
    state_bytes: int
    buffer_bytes: int
    kept_bytes: int
    working_bytes: int


def weight_sizes(
    cost: LayerCost, strategy: Strategy, optimizer: Optimizer
) -> WeightSizes:
    """Return what a layer's weights take under an optimizer."""
    unit = optimizer.weight_bytes

    def sizes(weight_bytes: int, ranks: int) -> Sizes:
        return Sizes(
            weight_bytes,
            ceil_div(weight_bytes * optimizer.gradient_bytes, unit),
            ceil_div(weight_bytes * optimizer.state_bytes, unit),
            math.ceil(weight_bytes * optimizer.buffer_bytes / unit),
            ranks,
        )

    return WeightSizes(
        sizes(cost.weight_bytes, strategy.data_ranks),
        sizes(cost.expert_weight_bytes, strategy.expert_ranks),
    )


class SyncCall(NamedTuple):
    """A collective over the ranks that share weights.

    ``parts`` has names of groups, each with the bytes of the whole tensors: dense
    weights and experts have ranks of their own.
    """

    kind: CollectiveKind
    parts: tuple[tuple[str, int], ...]


def sync_calls(
    sizes: WeightSizes, strategy: Strategy, runtime: Runtime
) -> list[SyncCall]:
    """Return the collectives that a layer's gradient sync is made of.

    ZeRO 0: all-reduce of the gradients over replicas and data ranks.
    ZeRO 1: reduce-scatter and all-gather over the data ranks, all-reduce of
    the shard over the replicas. ZeRO 2 has paid its reduce-scatter, ZeRO 3
    also its all-gather, per micro-batch. The distributed optimizer
    reduce-scatters and all-gathers over replicas and data ranks together.
    """
    if runtime.distributed_optimizer:
        return [_scatter(sizes, SYNC_GROUPS), _gather(sizes, SYNC_GROUPS)]
    if strategy.zero == 0:
        gradients = _scatter(sizes, SYNC_GROUPS)
        return [gradients._replace(kind="all-reduce")]
    calls = []
    if strategy.zero == 1:
        calls.append(_scatter(sizes, STEP_GROUPS))
    if strategy.zero <= 2:
        calls.append(_gather(sizes, STEP_GROUPS))
    for size in sizes:
        shard_bytes = ceil_div(size.gradient_bytes, size.ranks)
        calls.append(SyncCall("all-reduce", (("replicas", shard_bytes),)))
    return calls


def _gather(sizes: WeightSizes, names: tuple[str, str]) -> SyncCall:
    """Return the all-gather of dense weights and experts."""
    dense, expert = (size.weight_bytes for size in sizes)
    return SyncCall("all-gather", ((names[0], dense), (names[1], expert)))


def _scatter(sizes: WeightSizes, names: tuple[str, str]) -> SyncCall:
    """Return the reduce-scatter of their gradients."""
    dense, expert = (size.gradient_bytes for size in sizes)
    return SyncCall("reduce-scatter", ((names[0], dense), (names[1], expert)))


#: Terms and passes without a block, by what they depend on.
FreePrices = tuple[dict[object, LayerTerms | None], dict[object, Passes | None]]

#: Those of the last problems. Devices of the same types agree on them, however many
#: there are and however they are joined.
FREE: deque[tuple[object, FreePrices]] = deque(maxlen=4)


def free_prices(problem: Problem, rules: CostRules) -> FreePrices:
    """Return what is known of a problem without a block."""
    types = problem.cluster.types
    key = rules, problem.graph, problem.job, problem.quantum_ps, types
    for other, prices in FREE:
        if other == key:
            return prices
    FREE.appendleft((key, ({}, {})))
    return FREE[0][1]


class LayerPrices:
    """The terms of every layer of a problem; remembers them.

    ``kinds`` has the kind of every layer: layers of one kind have equal terms.
    """

    def __init__(
        self,
        problem: Problem,
        rules: CostRules,
        network: Network,
        groups: GroupTable,
        quanta: Quanta,
    ) -> None:
        self.problem, self.rules = problem, rules
        self.network, self.groups, self.quanta = network, groups, quanta
        schedule = schedule_of(problem.job.schedule)
        self._paired_axes = schedule.paired_axes
        graph = problem.graph
        costs = {
            kind.name: {cost.key: cost for cost in kind.costs} for kind in graph.kinds
        }
        self._costs = [costs[layer.kind] for layer in graph.layers]
        self.kinds = [layer.kind for layer in graph.layers]
        self._terms: dict[object, LayerTerms | None] = {}
        self._free_terms, self._free_passes = free_prices(problem, rules)
        self._available: dict[object, bool] = {}
        self._places: dict[object, object] = {}
        self._known_held: dict[object, Held] = {}
        self._types: dict[Block | None, tuple[int, ...] | None] = {None: None}
        self._known_times: dict[object, ComputeTimes] = {}
        self._hbm: dict[object, float | None] = {}
        self._reserve_bytes: dict[object, int] = {}
        self._collectives: dict[object, float] = {}
        self._known_passes: dict[object, tuple[int, int, int, int]] = {}
        self._known_sync: dict[object, tuple[int, int]] = {}

    def cost(
        self, layer: int, strategy: Strategy, micro_batch: int
    ) -> LayerCost | None:
        """Return the entry of a layer's cost table; ``None``: there is none.

        A missing cost means "not available", never zero.
        """
        samples = self.rules.samples_per_rank(strategy, micro_batch)
        return self._costs[layer].get((*strategy.degrees, samples))

    def weight_bytes(self, layer: int, strategy: Strategy, micro_batch: int) -> int:
        """Return the dense weights of an available layer, unsharded."""
        cost = self.cost(layer, strategy, micro_batch)
        assert cost is not None
        return cost.weight_bytes

    def why_not(self, layer: int, strategy: Strategy, micro_batch: int) -> str | None:
        """Return why a layer cannot run under a strategy, or ``None``."""
        if self._is_available(layer, strategy, micro_batch):
            return None
        return self._obstacle(layer, strategy, micro_batch)

    def _obstacle(self, layer: int, strategy: Strategy, micro_batch: int) -> str | None:
        reason = why_not_strategy(self.problem, strategy, micro_batch)
        if reason is not None:
            return reason
        cost = self.cost(layer, strategy, micro_batch)
        name = self.problem.graph.layers[layer].id
        kind = self.kinds[layer]
        if cost is None:
            degrees = "".join(
                f"{axis}={str(degree).lower()}, "
                for axis, degree in zip(COST_AXES, strategy.degrees, strict=True)
                if degree
            )
            samples = self.rules.samples_per_rank(strategy, micro_batch)
            return (
                f"layer {name!r}: expected a cost for {degrees}samples={samples}, got "
                f"none in kind {kind!r}; choose another strategy or add the cost"
            )
        if _activations(cost, strategy) is None:
            return (
                f"layer {name!r}: expected activations for recompute "
                f"{strategy.recompute!r}, got none in kind {kind!r}; choose "
                f"another recompute"
            )
        return None

    def place(self, strategy: Strategy, block: Block) -> object:
        """Return a key for what a strategy's terms depend on of a block."""
        key = (strategy, block)
        if key not in self._places:
            where: object = self.network.alike(block)
            if self.rules.by_groups:
                where = block.replicas, self.groups.number(strategy, block)
            self._places[key] = where, self._types_of(block)
        return self._places[key]

    def _types_of(self, block: Block | None) -> tuple[int, ...] | None:
        """Return the types of devices that a block has, if there is one."""
        if block not in self._types:
            types = self.problem.cluster.types_in(_ranges(block))
            self._types[block] = types
        return self._types[block]

    def terms(
        self,
        layer: int,
        strategy: Strategy,
        micro_batch: int,
        block: Block | None,
        runtime: Runtime,
        replicas: int = 1,
    ) -> LayerTerms | None:
        """Return the terms of a layer, or ``None`` if it is not available.

        Without a block they are the terms without any communication, for so
        many replicas: no block of one of them has smaller ones.
        """
        block_key: object = replicas
        prices = self._free_terms
        if block is not None:
            block_key, replicas = self.place(strategy, block), block.replicas
            prices = self._terms
        key = (
            self.kinds[layer],
            strategy,
            micro_batch,
            block_key,
            runtime.overlap,
            runtime.distributed_optimizer,
        )
        if key not in prices:
            prices[key] = (
                self._price(*(layer, strategy, micro_batch, block, runtime, replicas))
                if self._is_available(layer, strategy, micro_batch)
                else None
            )
        return prices[key]

    def passes(
        self,
        layer: int,
        strategy: Strategy,
        micro_batch: int,
        block: Block | None,
        overlap: frozenset[Overlap],
    ) -> Passes | None:
        """Return the passes of :meth:`terms` alone."""
        key = self.kinds[layer], strategy, micro_batch, overlap
        if block is None and key in self._free_passes:
            return self._free_passes[key]
        passes = None
        if self._is_available(layer, strategy, micro_batch):
            passes = self._with_traffic(
                *(layer, strategy, micro_batch, block),
                self._groups_of(strategy, block),
                overlap,
            )
        if block is None:
            self._free_passes[key] = passes
        return passes

    def layer_sync(
        self,
        layer: int,
        strategy: Strategy,
        micro_batch: int,
        block: Block,
        runtime: Runtime,
    ) -> int:
        """Return the sync of :meth:`terms` alone, where groups tell it; 0 for none.

        Most strategies share it: recomputation and samples do not change it.
        """
        if not self._is_available(layer, strategy, micro_batch):
            return 0
        sizes = self._held(layer, strategy, micro_batch, PLAIN, 1).sizes
        key = (
            *(sizes, strategy.spread, strategy.zero),
            *(self.place(strategy, block), "gradients" in runtime.overlap),
            runtime.distributed_optimizer,
        )
        if key not in self._known_sync:
            groups, where = self._groups_of(strategy, block), self.kinds[layer]
            replicas = block.replicas if runtime.distributed_optimizer else 1
            self._known_sync[key] = self.sync(
                *(sizes, strategy, groups, block, runtime, replicas, where)
            )
        return self._known_sync[key][0]

    def _is_available(self, layer: int, strategy: Strategy, micro_batch: int) -> bool:
        """Whether a layer can run under a strategy."""
        key = (self.kinds[layer], strategy, micro_batch)
        if key not in self._available:
            reason = self._obstacle(layer, strategy, micro_batch)
            self._available[key] = reason is None
        return self._available[key]

    def _groups_of(self, strategy: Strategy, block: Block | None) -> GroupKeys | None:
        if block is None:
            return None
        return self.groups.keys(strategy, self.rules.groups_at(block))

    def _price(
        self,
        layer: int,
        strategy: Strategy,
        micro_batch: int,
        block: Block | None,
        runtime: Runtime,
        replicas: int,
    ) -> LayerTerms:
        where = f"kind {self.kinds[layer]!r}"
        groups = self._groups_of(strategy, block)
        passes = self._with_traffic(
            layer, strategy, micro_batch, block, groups, runtime.overlap
        )
        if not runtime.distributed_optimizer:
            replicas = 1
        held = self._held(layer, strategy, micro_batch, runtime, replicas)
        sync_ns = self.rules.layer_sync_ns(
            self.network, block, sum(size.weight_bytes for size in held.sizes)
        )
        if sync_ns is None:
            sync, hideable = self.sync(
                *(held.sizes, strategy, groups, block, runtime, replicas, where)
            )
        else:
            sync, hideable = self.quanta.round(sync_ns, where), 0
        types = self._types_of(block)
        if types not in self._reserve_bytes:
            reserve_bytes = self.problem.cluster.reserve_bytes(_ranges(block))
            self._reserve_bytes[types] = reserve_bytes
        return LayerTerms(
            *passes,
            sync=sync,
            hideable_sync=hideable,
            weight_bytes=held.weight_bytes,
            gradient_bytes=held.gradient_bytes,
            state_bytes=held.state_bytes,
            buffer_bytes=held.buffer_bytes,
            kept_bytes=held.kept_bytes,
            working_bytes=held.working_bytes + self._reserve_bytes[types],
        )

    def _with_traffic(
        self,
        layer: int,
        strategy: Strategy,
        micro_batch: int,
        block: Block | None,
        groups: GroupKeys | None,
        overlap: frozenset[Overlap],
    ) -> Passes:
        """Return the passes with recomputation and per micro-batch ZeRO."""
        cost = self.cost(layer, strategy, micro_batch)
        assert cost is not None
        where = f"kind {self.kinds[layer]!r}"
        times = self._times(layer, cost, block)
        transfer = self._transfer(cost, strategy, where)

        def passes(*traffic_ns: float) -> tuple[int, int, int, int]:
            forward, backward, there, back = self._passes(
                cost, times, groups, where, overlap, *traffic_ns
            )
            return max(forward, transfer), max(backward, transfer), there, back

        forward, backward, there, back = passes()
        recomputed = 0
        if strategy.recompute == "selective":
            recomputed = self.quanta.round(
                max(times.extra_ns, times.extra_host_ns), where
            )
        elif strategy.recompute == "full" and _reruns(cost):
            recomputed = self.rules.recomputation(forward, backward)
        fraction = self.problem.job.weight_backward_fraction
        weights = self.quanta.round(times.weights_ns(fraction), where)
        if strategy.zero < 2:
            return Passes(
                forward, backward + recomputed, weights, there, back, recomputed
            )

        sizes = self._held(layer, strategy, micro_batch, PLAIN, 1).sizes
        gather_ns = 0.0
        if strategy.zero == 3:
            gather_ns = self.gather_ns(sizes, groups, DATA_GROUPS)
        scatter_ns = self.scatter_ns(sizes, groups, DATA_GROUPS)
        if "weights" in overlap:
            forward, backward, there, back = passes(gather_ns, scatter_ns)
        else:
            gather = self.quanta.round(gather_ns, where)
            forward += gather
            scatter = self.quanta.round(scatter_ns, where)
            backward += gather + scatter
            weights += scatter
        return Passes(forward, backward + recomputed, weights, there, back, recomputed)

    def _transfer(self, cost: LayerCost, strategy: Strategy, where: str) -> int:
        """Return what activations take to the host, and as long back."""
        entry = _activations(cost, strategy)
        return self.quanta.round(entry.transfer_ns, where) if entry is not None else 0

    def _held(
        self,
        layer: int,
        strategy: Strategy,
        micro_batch: int,
        runtime: Runtime,
        replicas: int,
    ) -> Held:
        """Return what a layer holds on a device, wherever it is.

        Sharded over so many replicas too.
        """
        distributed = runtime.distributed_optimizer
        key = (*(self.kinds[layer], strategy, micro_batch), *(distributed, replicas))
        if key not in self._known_held:
            cost = self.cost(layer, strategy, micro_batch)
            assert cost is not None
            activations = _activations(cost, strategy)
            assert activations is not None
            optimizer = self.problem.job.optimizer
            whole = weight_sizes(cost, strategy, optimizer)
            sizes, zero = self.rules.held(whole), strategy.zero
            self._known_held[key] = Held(
                sizes=whole,
                weight_bytes=sizes.kept(zero >= 3, "weight_bytes"),
                gradient_bytes=sizes.kept(zero >= 2, "gradient_bytes"),
                state_bytes=sizes.over(replicas).kept(
                    zero >= 1 or distributed, "state_bytes"
                ),
                buffer_bytes=sizes.kept(False, "buffer_bytes")
                + activations.static_bytes,
                kept_bytes=activations.kept_bytes,
                working_bytes=cost.working_bytes
                + activations.working_bytes
                + sizes.gathered(zero >= 3, "weight_bytes")
                + sizes.gathered(zero >= 2, "gradient_bytes")
                + optimizer.bucket_bytes(strategy),
            )
        return self._known_held[key]

    def _times(self, layer: int, cost: LayerCost, block: Block | None) -> ComputeTimes:
        """Return the times on the slowest devices of a block, pass by pass.

        Without a block on the fastest of all: no block has smaller ones.
        """
        types = self._types_of(block)
        key = (self.kinds[layer], cost.key, types)
        if key not in self._known_times:
            every = self.problem.cluster.types
            times = [
                cost.on(every[i].name)
                for i in (range(len(every)) if types is None else types)
            ]
            pick = min if types is None else max
            fraction = self.problem.job.weight_backward_fraction
            self._known_times[key] = ComputeTimes(
                pick(x.forward_ns for x in times),
                pick(x.backward_ns for x in times),
                pick(x.extra_ns for x in times),
                pick(x.weights_ns(fraction) for x in times),
                pick(x.forward_host_ns for x in times),
                pick(x.backward_host_ns for x in times),
                pick(x.extra_host_ns for x in times),
            )
        return self._known_times[key]

    def _passes(
        self,
        cost: LayerCost,
        times: ComputeTimes,
        groups: GroupKeys | None,
        where: str,
        overlap: frozenset[Overlap],
        gather_ns: float = 0.0,
        scatter_ns: float = 0.0,
    ) -> tuple[int, int, int, int]:
        """Return forward and backward pass with their collectives.

        And what of each may hide behind another micro-batch: collectives of
        the axes that the schedule hides so, unless the plan hides them inside
        their own pass. They are rounded apart, so that what is left does not
        depend on them; at least what the host takes is.

        ``max(g + Σ x, c + (1 - f_w) g + Σ (1 - f) x, h)``: computation
        ``c``, ZeRO traffic ``g``, collectives ``x`` of each axis, the
        fractions ``f`` of what overlaps that can hide behind the computation,
        and what the host takes to issue the pass ``h``. Nothing is taken
        away, so that in floats, too, no part makes it shorter.

        ``gather_ns`` is the all-gather of the weights in either pass, ``scatter_ns``
        the reduce-scatter of the gradients in the backward one, if they overlap;
        ``where`` is the name for messages.
        """
        used = tuple(
            None if groups is None else groups[call.axis] for call in cost.collectives
        )
        compute_ns = {"forward": times.forward_ns, "backward": times.backward_ns}
        host_ns = {"forward": times.forward_host_ns, "backward": times.backward_host_ns}
        key = (
            *(where, cost.key, *compute_ns.values(), *host_ns.values()),
            *(used, overlap, gather_ns, scatter_ns),
        )
        if key not in self._known_passes:
            fractions = self.problem.job.overlap
            traffic_ns = {"forward": gather_ns, "backward": gather_ns + scatter_ns}
            moved_ns, apart_ns = (dict(traffic_ns), dict.fromkeys(traffic_ns, 0.0))
            exposed = 1.0 - fractions.get("weights", 0.0)
            shown_ns = {
                phase: time_ns + exposed * traffic_ns[phase]
                for phase, time_ns in compute_ns.items()
            }
            for call, group in zip(cost.collectives, used, strict=True):
                time_ns = call.count * self.collective_ns(
                    call.kind, group, call.size_bytes
                )
                if call.axis in self._paired_axes - overlap:
                    apart_ns[call.phase] += time_ns
                    continue
                moved_ns[call.phase] += time_ns
                if call.axis != "dp" and call.axis in overlap:
                    time_ns *= 1.0 - fractions[call.axis]
                shown_ns[call.phase] += time_ns
            whole, hides = [], []
            for phase, time_ns in shown_ns.items():
                own, apart, issued = (
                    self.quanta.round(x, where)
                    for x in (
                        max(moved_ns[phase], time_ns),
                        apart_ns[phase],
                        host_ns[phase],
                    )
                )
                whole.append(max(own + apart, issued))
                hides.append(whole[-1] - max(own, issued))
            forward, backward = whole
            self._known_passes[key] = forward, backward, hides[0], hides[1]
        return self._known_passes[key]

    def collective_ns(
        self, kind: CollectiveKind, groups: Hashable, size_bytes: int
    ) -> float:
        """Return the time of a collective; none without groups."""
        if groups is None:
            return 0.0
        key = (kind, groups, size_bytes)
        if key not in self._collectives:
            self._collectives[key] = self.network.collective_ns(
                kind, groups, size_bytes
            )
        return self._collectives[key]

    def gather_ns(
        self, sizes: WeightSizes, groups: GroupKeys | None, names: tuple[str, str]
    ) -> float:
        """All-gather of the weights over the ranks that share them."""
        return self.call_ns(_gather(sizes, names), groups)

    def scatter_ns(
        self, sizes: WeightSizes, groups: GroupKeys | None, names: tuple[str, str]
    ) -> float:
        """Reduce-scatter of the gradients over the same ranks."""
        return self.call_ns(_scatter(sizes, names), groups)

    def call_ns(self, call: SyncCall, groups: GroupKeys | None) -> float:
        """Return the time of a collective of the step; none without groups."""
        if groups is None:
            return 0.0
        return math.fsum(
            self.collective_ns(call.kind, groups[name], size_bytes)
            for name, size_bytes in call.parts
        )

    def sync(
        self,
        sizes: WeightSizes,
        strategy: Strategy,
        groups: GroupKeys | None,
        block: Block | None,
        runtime: Runtime,
        replicas: int,
        where: str,
    ) -> tuple[int, int]:
        """Gradient sync and optimizer update of one layer, in quanta.

        Returned with the part that may hide behind the backward pass: the
        sync, rounded apart from the update, if the plan overlaps it.

        The sync is what :func:`sync_calls` says.
        """
        sync_ns, sharded = 0.0, strategy.zero >= 1
        for call in sync_calls(sizes, strategy, runtime):
            sync_ns += self.call_ns(call, groups)
        if runtime.distributed_optimizer:
            sizes, sharded = sizes.over(replicas), True
        sync_ns *= 1.0 - self.problem.job.gradient_sync_overlap
        update_ns = self._update_ns(sizes, sharded, block)
        if "gradients" in runtime.overlap:
            sync = self.quanta.round(sync_ns, where)
            return sync + self.quanta.round(update_ns, where), sync
        return self.quanta.round(sync_ns + update_ns, where), 0

    def _update_ns(
        self, sizes: WeightSizes, sharded: bool, block: Block | None
    ) -> float:
        """Optimizer update: memory traffic only.

        Gradients are read, weights and state are read and written, at HBM
        bandwidth; from ZeRO 1 on each rank updates its shard.
        """
        types = self._types_of(block)
        if types not in self._hbm:
            cluster = self.problem.cluster
            self._hbm[types] = (
                # That of the fastest device: no block has a smaller one.
                max(x.hbm_bytes_per_s or math.inf for x in cluster.types)
                if block is None
                else cluster.hbm_bytes_per_s(block.ranges())
            )
        hbm = self._hbm[types]
        if hbm is None:
            return 0.0
        traffic = (
            sizes.kept(sharded, "gradient_bytes")
            + 2 * sizes.kept(sharded, "weight_bytes")
            + 2 * sizes.kept(sharded, "state_bytes")
        )
        return traffic / hbm * NS_PER_S


def _ranges(block: Block | None) -> Iterator[tuple[int, int]] | None:
    return None if block is None else block.ranges()


def _reruns(cost: LayerCost) -> bool:
    """Return whether full recomputation repeats the forward pass of a layer."""
    return all(x.reruns for x in cost.activations if x.recompute == "full")


def _activations(cost: LayerCost, strategy: Strategy) -> Activations | None:
    for activations in cost.activations:
        if activations.recompute == strategy.recompute:
            return activations
    return None
