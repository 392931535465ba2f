"""The neighbours of a plan: what one change of a setting leads to.

A move changes one setting everywhere (or trades two so that a stage keeps its
number of devices), merges or splits stages, or hands one layer across a
boundary. Every plan that a move leads to is priced by ``score``; of those
that one move can lead to (which boundary, which layer) the best is kept:
legal before illegal, what fits before what does not, then the step time, or
the memory where nothing fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import groupby, permutations
from typing import Literal, NamedTuple

from msgspec.structs import replace

from nest.cost.axes import AXES, RANK_AXES
from nest.cost.model import CostModel
from nest.cost.score import Score, score
from nest.errors import InvalidPlanError
from nest.ir.base import LayerId
from nest.ir.plan import RECOMPUTE, Plan, Recompute, Stage, Strategy
from nest.ir.problem import Problem

MoveVerdict = Literal["fits", "too large", "illegal"]


class Move(NamedTuple):
    """A change, and a plan that it leads to.

    Attributes
    ----------
    name
        For people; moves of one name are alternatives.
    detail
        Which of them this is.
    plan
        The plan, or why there is none.
    """

    name: str
    detail: str
    plan: Plan | str


@dataclass(frozen=True)
class Neighbour:
    """The best plan that a move leads to, and what it is worth.

    Attributes
    ----------
    name, detail
        The move.
    verdict
        Whether the plan fits memory, or is none.
    plan, score
        The plan and its score; ``None`` if it is illegal.
    reason
        Why it is illegal; empty otherwise.
    """

    name: str
    detail: str
    verdict: MoveVerdict
    plan: Plan | None
    score: Score | None
    reason: str = ""

    @property
    def memory_bytes(self) -> int:
        """Memory of the fullest device, 0 if illegal."""
        if self.score is None:
            return 0
        return max(block.memory_bytes for block in self.score.blocks)


def neighbours(
    problem: Problem, plan: Plan, model: CostModel | None = None
) -> list[Neighbour]:
    """Price every move from a plan.

    Parameters
    ----------
    problem, plan
        The problem, and a legal plan for it.
    model
        The problem's cost model, if the caller has one already.

    Returns
    -------
    list of Neighbour
        One per move, in a fixed order; moves that change nothing are left
        out.
    """
    model = model or CostModel(problem)
    found = []
    moves = list(_moves(problem, plan))
    for _, group in groupby(moves, key=lambda move: move.name):
        priced = [_price(problem, move, model) for move in group]
        found.append(min(priced, key=_rank))
    return found


def settings_moves(
    problem: Problem, plan: Plan, model: CostModel
) -> Iterator[Neighbour]:
    """Yield the plans with one setting changed in all stages, one by one."""
    for moves in (_batches(plan), _degrees(plan), _choices(problem, plan)):
        yield from (_price(problem, move, model) for move in moves)


def halved(plan: Plan, recompute: Collection[Recompute]) -> Iterator[Plan]:
    """Yield plans on half the devices, with every choice of recomputation.

    Half the replicas or data-parallel ranks do the work; a rank has as many
    samples at a time as before, or twice as many.
    """
    bases = []
    if plan.replicas % 2 == 0:
        bases.append(replace(plan, replicas=plan.replicas // 2))
    for move in _changed(plan, "", {"dp": -2}):
        if isinstance(move.plan, Plan):
            bases.append(move.plan)
            if plan.micro_batch % 2 == 0:
                size = plan.micro_batch // 2
                bases.append(replace(move.plan, micro_batch=size))
    for base in bases:
        yield base
        for choice in recompute:
            yield _recomputing(base, choice)


def _rank(neighbour: Neighbour) -> tuple[int, int]:
    if neighbour.score is None:
        return 2, 0
    if neighbour.verdict == "fits":
        return 0, neighbour.score.step_quanta
    return 1, neighbour.memory_bytes


def _price(problem: Problem, move: Move, model: CostModel) -> Neighbour:
    reason = move.plan
    if isinstance(reason, Plan):
        try:
            found = score(problem, reason, model)
        except InvalidPlanError as error:
            reason = str(error)
        else:
            return Neighbour(
                move.name,
                move.detail,
                "fits" if found.feasible else "too large",
                reason,
                found,
            )
    return Neighbour(move.name, move.detail, "illegal", None, None, reason)


# Moves


def _moves(problem: Problem, plan: Plan) -> Iterator[Move]:
    """Yield every move, those of one name one after the other."""
    plan = replace(plan, problem_hash=None, solver=None)
    yield from _batches(plan)
    yield from _degrees(plan)
    yield from _choices(problem, plan)
    if plan.virtual_stages == 1:
        yield from _merges(plan)
        yield from _splits(plan)
    yield from _layer_moves(problem, plan)


def _batches(plan: Plan) -> Iterator[Move]:
    """Yield micro-batches and replicas doubled and halved.

    With a micro-batch dp may change too: its ranks then keep their samples.
    """
    size, replicas = plan.micro_batch, plan.replicas
    for name, factor in (("doubled", 2), ("halved", -2)):
        if factor < 0 and size % 2:
            continue
        other = size * 2 if factor > 0 else size // 2
        changed = replace(plan, micro_batch=other)
        yield Move(f"micro-batch {name}", "", changed)
        for move in _changed(changed, f"micro-batch {name}", {"dp": factor}):
            yield move._replace(detail=f"dp {name} too")
    yield Move("replicas doubled", "", replace(plan, replicas=2 * replicas))
    if replicas % 2 == 0:
        half = replace(plan, replicas=replicas // 2)
        yield Move("replicas halved", "", half)


def _degrees(plan: Plan) -> Iterator[Move]:
    """Yield degrees doubled and halved, alone and traded for another."""
    wide = [axis.name for axis in RANK_AXES]
    for up, down in permutations(wide, 2):
        name = f"{up} doubled, {down} halved"
        yield from _changed(plan, name, {up: 2, down: -2})
    for degree in wide:
        if plan.replicas % 2 == 0:
            name = f"{degree} doubled, replicas halved"
            fewer = replace(plan, replicas=plan.replicas // 2)
            yield from _changed(fewer, name, {degree: 2})
        name = f"{degree} halved, replicas doubled"
        more = replace(plan, replicas=2 * plan.replicas)
        yield from _changed(more, name, {degree: -2})
    for axis in AXES:
        yield from _changed(plan, f"{axis.name} doubled", {axis.name: 2})
        yield from _changed(plan, f"{axis.name} halved", {axis.name: -2})


def _changed(plan: Plan, name: str, factors: dict[str, int]) -> Iterator[Move]:
    """Yield the plan with degrees times 2 or by 2 (-2) in all strategies.

    Where a degree is halved that no strategy has two of, there is no move.
    """

    def change(strategy: Strategy) -> Strategy:
        values = {}
        for degree, factor in factors.items():
            value = getattr(strategy, degree)
            if factor < 0 and value % -factor:
                raise ValueError(
                    f"{degree}: expected an even degree in every strategy, "
                    f"got {value}"
                )
            values[degree] = value * factor if factor > 0 else value // -factor
        return with_degrees(strategy, values)

    halved = [degree for degree, factor in factors.items() if factor < 0]
    for degree in halved:
        if all(getattr(s, degree) % 2 for s in _strategies(plan)):
            return
    yield Move(name, "", with_strategies(plan, change))


def with_degrees(strategy: Strategy, values: dict[str, int]) -> Strategy:
    """Return a strategy with other degrees; one tensor rank splits nothing."""
    split = strategy.sequence_parallel and values.get("tp", strategy.tp) > 1
    return replace(strategy, sequence_parallel=split, **values)


def _strategies(plan: Plan) -> set[Strategy]:
    return {
        strategy
        for stage in plan.stages
        for strategy in stage.layer_strategies
    }


def with_strategies(
    plan: Plan, change: Callable[[Strategy], Strategy]
) -> Plan | str:
    """Return the plan with all strategies changed, or why none can be."""
    try:
        stages = tuple(
            Stage.of(stage.layers, tuple(map(change, stage.layer_strategies)))
            for stage in plan.stages
        )
    except ValueError as error:
        return str(error)
    return replace(plan, stages=stages)


def _choices(problem: Problem, plan: Plan) -> Iterator[Move]:
    """Yield ZeRO a stage up and down, and every other recompute choice."""
    used = _strategies(plan)
    for step, word in ((1, "raised"), (-1, "lowered")):
        if all(0 <= strategy.zero + step <= 3 for strategy in used):

            def shard(old: Strategy, step: int = step) -> Strategy:
                return replace(old, zero=old.zero + step)

            changed = with_strategies(plan, shard)
            yield Move(f"zero {word} by 1", "", changed)
    if problem.job.plans_split_sequences:
        yield from _sequences(plan)
    for choice in RECOMPUTE:
        if any(strategy.recompute != choice for strategy in used):
            changed = _recomputing(plan, choice)
            yield Move(f"recompute {choice} everywhere", "", changed)


def _recomputing(plan: Plan, choice: Recompute) -> Plan:
    """Return the plan with one choice of recomputation in all strategies."""
    changed = with_strategies(plan, lambda old: replace(old, recompute=choice))
    assert isinstance(changed, Plan)
    return changed


def _sequences(plan: Plan) -> Iterator[Move]:
    """Yield sequences split wherever they can be, and nowhere."""
    for split, word in ((True, "everywhere"), (False, "nowhere")):

        def change(old: Strategy, split: bool = split) -> Strategy:
            return replace(old, sequence_parallel=split and old.tp > 1)

        if any(change(strategy) != strategy for strategy in _strategies(plan)):
            changed = with_strategies(plan, change)
            yield Move(f"sequence parallelism {word}", "", changed)


def _merges(plan: Plan) -> Iterator[Move]:
    """Yield plans with two neighbouring stages merged into one.

    Under the strategies of either, or on the devices of both if these have
    equal strategies: then dp is doubled, or tp.
    """
    stages = plan.stages
    for i in range(len(stages) - 1):
        first, second = stages[i], stages[i + 1]
        layers = (*first.layers, *second.layers)
        ways: dict[str, Strategy] = {}
        for stage in (first, second):
            if stage.strategy is not None:
                ways.setdefault(str(stage.strategy), stage.strategy)
                if first.strategy == second.strategy:
                    for degree in ("dp", "tp"):
                        value = 2 * getattr(stage.strategy, degree)
                        wide = replace(stage.strategy, **{degree: value})
                        ways[str(wide)] = wide
        for text, strategy in ways.items():
            merged = Stage.of(layers, (strategy,) * len(layers))
            yield Move(
                "one stage less",
                f"stages {i + 1} and {i + 2} merged, {text}",
                replace(plan, stages=(*stages[:i], merged, *stages[i + 2 :])),
            )


def _splits(plan: Plan) -> Iterator[Move]:
    """Yield plans with a stage split in two, in the order of its layers.

    Each part runs as the stage did, on as many devices more, or on half of
    them each with dp or tp halved.
    """
    stages = plan.stages
    for i, stage in enumerate(stages):
        if stage.strategy is None:
            continue
        ways = [stage.strategy]
        for degree in ("dp", "tp"):
            value, odd = divmod(getattr(stage.strategy, degree), 2)
            if not odd:
                try:
                    ways.append(with_degrees(stage.strategy, {degree: value}))
                except ValueError:  # fewer ranks than experts are spread over
                    continue
        for strategy in ways:
            for cut in range(1, len(stage.layers)):
                parts = tuple(
                    Stage.of(layers, (strategy,) * len(layers))
                    for layers in (stage.layers[:cut], stage.layers[cut:])
                )
                yield Move(
                    "one stage more",
                    f"stage {i + 1} split before {stage.layers[cut]}, "
                    f"{strategy}",
                    replace(
                        plan, stages=(*stages[:i], *parts, *stages[i + 1 :])
                    ),
                )


def _layer_moves(problem: Problem, plan: Plan) -> Iterator[Move]:
    """Yield plans with one layer handed across a boundary.

    To the next stage what no layer of its stage reads, to the one before
    what reads no layer of its stage. The layer takes the strategy of its new
    neighbour, the last or first of that stage.
    """
    reads: dict[str, set[str]] = defaultdict(set)
    read_by: dict[str, set[str]] = defaultdict(set)
    for edge in problem.graph.edges:
        reads[str(edge.target)].add(str(edge.source))
        read_by[str(edge.source)].add(str(edge.target))
    for i in range(len(plan.stages) - 1):
        for source, target, ties in ((i, i + 1, read_by), (i + 1, i, reads)):
            stage = plan.stages[source]
            name = f"a layer from stage {source + 1} to {target + 1}"
            if len(stage.layers) == 1:
                continue
            for layer in stage.layers:
                if ties[str(layer)].isdisjoint(map(str, stage.layers)):
                    yield Move(
                        name, str(layer), _handed(plan, source, target, layer)
                    )


def _handed(plan: Plan, source: int, target: int, layer: LayerId) -> Plan:
    stages = list(plan.stages)
    pairs = zip(
        stages[source].layers, stages[source].layer_strategies, strict=True
    )
    left = {name: strategy for name, strategy in pairs if name != layer}
    stages[source] = Stage.of(tuple(left), tuple(left.values()))
    layers, strategies = stages[target].layers, stages[target].layer_strategies
    if target > source:
        layers, strategies = (layer, *layers), (strategies[0], *strategies)
    else:
        layers, strategies = (*layers, layer), (*strategies, strategies[-1])
    stages[target] = Stage.of(layers, strategies)
    return replace(plan, stages=tuple(stages))
