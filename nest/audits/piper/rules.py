"""The objective of Piper (NeurIPS 2021), as coded.

Source: Tarnawski, Narayanan and Phanishayee, *Piper: Multidimensional Planner
for DNN Parallelization*; reference/piper.md states what its code does.
Round-robin data parallelism: the data ranks of a stage take whole
micro-batches in turn. One flat network without latency, two degrees of
parallelism; whatever else a problem asks for is refused rather than left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from nest.audits.foreign import tree_of
from nest.cost.rules import CostRules, Loads, Members, Pipeline
from nest.cost.schedules import InFlight
from nest.cost.verdict import BlockScore, StageScore
from nest.errors import InvalidProblemError
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.topology.alphabeta import NS_PER_S
from nest.topology.protocol import Block, Network
from nest.units import ceil_div

if TYPE_CHECKING:
    from nest.cost.model import CostModel
    from nest.cost.terms import LayerTerms, WeightSizes


class PiperRules(CostRules):
    """``T = max (τ + Y)``: the time per micro-batch in the steady state."""

    name: ClassVar[str] = "piper"
    summary: ClassVar[str] = "Piper (NeurIPS'21), time per sample as coded"
    extensions: ClassVar[bool] = False
    by_groups: ClassVar[bool] = False
    round_robin: ClassVar[bool] = True
    steady_state: ClassVar[bool] = True
    recompute_per_layer: ClassVar[bool] = True
    search: ClassVar[str | None] = "nest.audits.piper.search:search"
    refused_sizes: ClassVar[dict[str, str]] = {
        "bytes_per_sample_by_tp": "give one size"
    }

    def check(self, problem: Problem) -> None:
        """Refuse what these rules cannot express."""
        super().check(problem)
        for field, expected, got in _demands(problem):
            if got != expected:
                raise InvalidProblemError(
                    f"$.{field}: expected {_shown(expected)} under preset "
                    f"{self.name!r}, got {_shown(got)}; change it or use "
                    f"preset 'standard'"
                )

    def longest_sync_ns(
        self,
        network: Network,
        num_devices: int,
        weight_bytes: float,
        grown_bytes: float,
    ) -> float:
        """Return a time that no layer's gradient sync exceeds, in ns."""
        beta = min(link.beta for link in network.links)
        return 4 * weight_bytes / beta * NS_PER_S

    def samples_per_rank(self, strategy: Strategy, micro_batch: int) -> int:
        """Return ``B``: a rank takes whole micro-batches."""
        return micro_batch

    def data_degrees(
        self, problem: Problem, micro_batch: int, samples: int, devices: int
    ) -> range:
        """Return every degree that there are devices for."""
        if samples != micro_batch:
            return range(0)
        return range(1, problem.cluster.num_devices // devices + 1)

    def why_not_data_degree(
        self, problem: Problem, dp: int, micro_batch: int
    ) -> str | None:
        """Return why not: every rank takes as many micro-batches."""
        num_micro_batches = problem.job.global_batch // micro_batch
        if num_micro_batches % dp:
            return (
                f"dp: expected a divisor of the {num_micro_batches} "
                f"micro-batches, got {dp}"
            )
        return None

    def why_not_stages(self, plan: Plan, num_micro_batches: int) -> str | None:
        """Return why not: stages share dp and tp, and ``Σ dp <= M``."""
        for number, stage in enumerate(plan.stages, 1):
            degrees = {(s.dp, s.tp) for s in stage.layer_strategies}
            if len(degrees) > 1:
                return (
                    f"stage {number}: expected one dp and one tp for its "
                    f"layers under preset {self.name!r}, got (dp, tp) = "
                    f"{', '.join(map(str, sorted(degrees)))}"
                )
        ranks = sum(stage.layer_strategies[0].dp for stage in plan.stages)
        if ranks > num_micro_batches:
            return (
                f"stages: expected dp to add up to at most one rank per "
                f"micro-batch ({num_micro_batches}), got {ranks}"
            )
        return None

    def layer_sync_ns(
        self, network: Network, block: Block | None, weight_bytes: int
    ) -> float:
        """Return nothing: the sync is rounded once for the stage."""
        return 0.0

    def held(self, sizes: WeightSizes) -> WeightSizes:
        """Return nothing: the static bytes of activations hold weights."""
        dense, expert = (type(size)(0, 0, 0, 0, size.ranks) for size in sizes)
        return type(sizes)(dense, expert)

    def layer_block(self, block: Block) -> None:
        """Return no block: a place costs nothing."""

    def loads(self, pipeline: Pipeline, chunk: int) -> Loads:
        """Return what one rank of a stage does per micro-batch of all."""
        terms = pipeline.terms[chunk]
        _, first = pipeline.members[chunk][0]
        forward = self.in_turn(sum(t.forward for t in terms), first.dp)
        work = self.in_turn(sum(t.forward + t.backward for t in terms), first.dp)
        received, received_back = self._exchange(pipeline, chunk)
        return Loads(
            forward=forward + received,
            backward=work - forward + received_back,
            receive_forward=received,
            receive_backward=received_back,
        )

    def recomputed(
        self, members: Members, terms: Sequence[LayerTerms], last: bool
    ) -> int:
        """Return what of a rank's work is recomputation."""
        _, first = members[0]
        work = sum(t.forward + t.backward for t in terms)
        without = work - super().recomputed(members, terms, last)
        return int(self.in_turn(work, first.dp) - self.in_turn(without, first.dp))

    def _exchange(self, pipeline: Pipeline, chunk: int) -> tuple[int, int]:
        """Return what a stage pays for edges that enter and leave it.

        Every cut edge counts, one for each consumer, activation and
        gradient, and at both its stages; rounded once for the sum.
        """
        model, members = pipeline.model, pipeline.members[chunk]
        inside = {layer for layer, _ in members}
        _, strategy = members[0]
        entering = leaving = 0
        for source, target, at_source, at_target in model.transfers.edge_ends(
            strategy.tp, pipeline.plan.micro_batch
        ):
            if target in inside and source not in inside:
                entering += at_target
            if source in inside and target not in inside:
                leaving += at_source
        received, both = (
            model.quanta.round(
                self.exchange_ns(model, size_bytes, strategy.dp), "an edge"
            )
            for size_bytes in (entering, entering + leaving)
        )
        return received, both - received

    def sync(self, pipeline: Pipeline, chunk: int) -> int:
        """Return the share of the gradient sync per micro-batch."""
        model, members = pipeline.model, pipeline.members[chunk]
        _, strategy = members[0]
        micro_batch = pipeline.plan.micro_batch
        weight_bytes = sum(
            model.layers.weight_bytes(layer, strategy, micro_batch)
            for layer, strategy in members
        )
        sync_ns = self.sync_ns(
            model, float(weight_bytes), strategy.dp, pipeline.split.num_micro_batches
        )
        return model.quanta.round(sync_ns, "gradient sync")

    def kept(self, pipeline: Pipeline, block: int) -> InFlight:
        """Return what is kept: ``⌈Σ dp from here on / dp⌉`` micro-batches."""
        ranks = [strategy.dp for (_, strategy), *_ in pipeline.members]
        inflight = ceil_div(sum(ranks[block:]), ranks[block])
        once = sum(t.kept_bytes for t in pipeline.terms[block])
        kept_bytes = inflight * once
        return InFlight((inflight,), (kept_bytes,), inflight, kept_bytes)

    def step(
        self,
        pipeline: Pipeline,
        stages: Sequence[StageScore],
        blocks: Sequence[BlockScore],
    ) -> int:
        """Return ``max (τ + Y)``."""
        return max(block.load + block.sync for block in blocks)

    def slowest(self, blocks: Sequence[BlockScore]) -> tuple[int, int]:
        """Return the block with the longest ``τ + Y``, twice."""
        times = [block.load + block.sync for block in blocks]
        slowest = times.index(max(times))
        return slowest, slowest

    def samples_per_step(self, problem: Problem, plan: Plan) -> int:
        """Return ``B``."""
        return plan.micro_batch

    # Terms that the search of such plans asks for

    def in_turn(self, quanta: Any, dp: int) -> Any:
        """Return what work per micro-batch takes of ``dp`` ranks in turn.

        ``quanta / dp`` rounded half up; a number or an array of integers.
        """
        return (2 * quanta + dp) // (2 * dp)

    def exchange_ns(self, model: CostModel, size_bytes: Any, dp: int) -> Any:
        """Return the time of a stage's cut edges, ``X / (dp β)``.

        ``size_bytes`` crosses its boundaries per micro-batch, both ways: a number or an
        array of floats.
        """
        return size_bytes / (dp * bandwidth(model.problem)) * NS_PER_S

    def sync_ns(
        self, model: CostModel, weight_bytes: Any, dp: int, num_micro_batches: int
    ) -> Any:
        """Return a stage's gradient sync, ``4 (dp-1)/dp W / (M β)``.

        ``weight_bytes`` of the stage are per device: a float or an array of floats.
        """
        rate = dp * num_micro_batches * bandwidth(model.problem)
        return 4 * (dp - 1) * weight_bytes / rate * NS_PER_S


def piper_rules(model: CostModel) -> PiperRules:
    """Return the rules of a model that has these."""
    assert isinstance(model.rules, PiperRules)
    return model.rules


def bandwidth(problem: Problem) -> float:
    """Return the bandwidth of the flat network in bytes/s."""
    (level,) = tree_of(problem).levels
    return level.bandwidth_bytes_per_s


def _shown(value: object) -> str:
    return str(list(value) if isinstance(value, tuple) else value)


def _demands(problem: Problem) -> Iterator[tuple[str, object, object]]:
    """Yield (place, what it must be, what it is)."""
    job = problem.job
    yield "job.replicas", (1,), job.replicas
    yield "job.micro_batches", job.micro_batches[:1], job.micro_batches
    yield "job.zero", (0,), job.zero
    yield "job.schedule", "1f1b", job.schedule
    yield "job.uneven_batches", False, job.uneven_batches
    yield "job.sequence_parallel", False, job.sequence_parallel
    yield "job.gradient_sync_overlap", 0.0, job.gradient_sync_overlap
    levels = tree_of(problem).levels
    yield "cluster.topology.levels: number", 1, len(levels)
    (level,) = levels
    where = "cluster.topology.levels[0]"
    yield f"{where}.latency_ns", 0.0, level.latency_ns
    yield f"{where}.launch_ns", 0.0, level.launch_ns
    yield (
        f"{where}.peer_bandwidth_bytes_per_s",
        None,
        level.peer_bandwidth_bytes_per_s,
    )
    for i, kind in enumerate(problem.graph.kinds):
        for j, cost in enumerate(kind.costs):
            where = f"graph.kinds[{i}].costs[{j}]"
            yield f"{where}.cp", 1, cost.cp
            yield f"{where}.ep", 1, cost.ep
            yield (f"{where}.expert_weight_bytes", 0, cost.expert_weight_bytes)
            yield f"{where}.working_bytes", 0, cost.working_bytes
            yield f"{where}.collectives: number", 0, len(cost.collectives)
            for k, choice in enumerate(cost.activations):
                yield (
                    f"{where}.activations[{k}].working_bytes",
                    0,
                    choice.working_bytes,
                )
