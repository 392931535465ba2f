"""The neighbors of a plan: what one change of a setting leads to.

A move changes one setting everywhere (or trades two so that a stage keeps its number of
devices), merges or splits stages, or hands one layer across a boundary. Every plan that
a move leads to is priced by ``score``; of those that one move can lead to (which
boundary, which layer) the best is kept: legal before illegal, what fits before what
does not, then the step time, or the memory where nothing fits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import chain, groupby, permutations
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from nest.cost.axes import AXES, RANK_AXES
from nest.cost.model import CostModel
from nest.cost.score import Score, score
from nest.errors import InvalidPlanError
from nest.ir.base import LayerId
from nest.ir.plan import RECOMPUTE, Plan, Stage, Strategy
from nest.ir.problem import Problem

MoveVerdict = Literal["fits", "too large", "illegal"]

#: What settings of a plan, and degrees of all strategies, are multiplied by.
Factors = Mapping[str, Fraction]
_OF_PLANS = ("replicas", "micro_batch")

DOUBLE, HALF = Fraction(2), Fraction(1, 2)
_WORDS = {DOUBLE: "doubled", HALF: "halved"}
_RANKS = [axis.name for axis in RANK_AXES]

#: What the neighbors of a plan double and halve. With a micro-batch dp may
#: change too: its ranks then keep their samples.
_FACTORS: tuple[Factors, ...] = (
    *({"micro_batch": by, **dp} for by in _WORDS for dp in ({}, {"dp": by})),
    *({"replicas": by} for by in _WORDS),
    *({up: DOUBLE, down: HALF} for up, down in permutations(_RANKS, 2)),
    *({name: by, "replicas": 1 / by} for name in _RANKS for by in _WORDS),
    *({axis.name: by} for axis in AXES for by in _WORDS),
)


class Move(NamedTuple):
    """A change, and a plan that it leads to, or why there is none.

    Moves of one name are alternatives; ``detail`` tells them apart.
    """

    name: str
    detail: str
    plan: Plan | str


@dataclass(frozen=True)
class Neighbor:
    """The best plan that a move leads to, and whether it fits memory.

    An illegal plan has no score; ``reason`` is why it is illegal, and empty otherwise.
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


def neighbors(
    problem: Problem, plan: Plan, model: CostModel | None = None
) -> list[Neighbor]:
    """Price every move from a legal plan, in a fixed order.

    Moves that change nothing are left out.
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
) -> Iterator[Neighbor]:
    """Yield the plans with one setting changed in all stages, one by one."""
    for move in _settings(problem, plan):
        yield _price(problem, move, model)


def _rank(neighbor: Neighbor) -> tuple[int, int]:
    if neighbor.score is None:
        return 2, 0
    if neighbor.verdict == "fits":
        return 0, neighbor.score.step_quanta
    return 1, neighbor.memory_bytes


def _price(problem: Problem, move: Move, model: CostModel) -> Neighbor:
    reason = move.plan
    if isinstance(reason, Plan):
        try:
            found = score(problem, reason, model)
        except InvalidPlanError as error:
            reason = str(error)
        else:
            return Neighbor(
                move.name,
                move.detail,
                "fits" if found.feasible else "too large",
                reason,
                found,
            )
    return Neighbor(move.name, move.detail, "illegal", None, None, reason)


# Moves


def _moves(problem: Problem, plan: Plan) -> Iterator[Move]:
    """Yield every move, those of one name one after the other."""
    plan = replace(plan, problem_hash=None, solver=None)
    yield from _settings(problem, plan)
    if plan.virtual_stages == 1:
        yield from _merges(plan)
        yield from _splits(plan)
    yield from _layer_moves(problem, plan)


def _settings(problem: Problem, plan: Plan) -> Iterator[Move]:
    """Yield the moves that change a setting in all stages.

    Where something is halved that no strategy has two of, there is no move.
    """
    for factors in _FACTORS:
        halved = [name for name, by in factors.items() if by == HALF]
        if all(any(x % 2 == 0 for x in _values(plan, y)) for y in halved):
            texts = [f"{x} {_WORDS[by]}" for x, by in factors.items()]
            name, detail = ", ".join(texts).replace("_", "-"), ""
            if texts[0].startswith("micro_batch") and len(texts) > 1:
                name, detail = name.split(", ")[0], f"{texts[1]} too"
            yield Move(name, detail, _made(with_factors, plan, factors))
    for name, change in _choices(problem, plan):
        if any(change(old) != old for old in strategies_of(plan)):
            yield Move(name, "", _made(with_strategies, plan, change))


def _made(make: Callable[..., Plan], *arguments: Any) -> Plan | str:
    """Return a plan, or why there is none."""
    try:
        return make(*arguments)
    except ValueError as error:
        return str(error)


def _choices(
    problem: Problem, plan: Plan
) -> Iterator[tuple[str, Callable[[Strategy], Strategy]]]:
    """Yield ZeRO a stage up and down, and every other choice, by name."""
    for step, change_text in ((1, "raised"), (-1, "lowered")):
        if all(0 <= x + step <= 3 for x in _values(plan, "zero")):

            def shard(old: Strategy, step: int = step) -> Strategy:
                return replace(old, zero=old.zero + step)

            yield f"zero {change_text} by 1", shard
    if problem.job.plans_split_sequences:
        for split, extent in ((True, "everywhere"), (False, "nowhere")):
            change = partial(_with_degrees, sequence_parallel=split)
            yield f"sequence parallelism {extent}", change
    for choice in RECOMPUTE:
        change = partial(replace, recompute=choice)
        yield f"recompute {choice} everywhere", change


# Plans with other settings


def strategies_of(plan: Plan) -> list[Strategy]:
    """Return the distinct strategies of a plan, in pipeline order."""
    all_strategies = (stage.layer_strategies for stage in plan.stages)
    return list(dict.fromkeys(chain.from_iterable(all_strategies)))


def with_strategies(plan: Plan, change: Callable[[Strategy], Strategy]) -> Plan:
    """Return the plan with all strategies changed.

    Raises ``ValueError`` if one of them cannot be.
    """
    stages = tuple(
        Stage.of(stage.layers, tuple(map(change, stage.layer_strategies)))
        for stage in plan.stages
    )
    return replace(plan, stages=stages)


def with_factors(plan: Plan, factors: Factors) -> Plan:
    """Return the plan with settings, and degrees of all strategies, scaled.

    Raises ``ValueError`` if a value is not whole then, or a strategy is none.
    """

    def scaled(old: Plan | Strategy, is_own: bool) -> dict[str, int]:
        values = {}
        for name, factor in factors.items():
            if (name in _OF_PLANS) == is_own:
                value = getattr(old, name)
                if value % factor.denominator:
                    raise ValueError(
                        f"{name}: expected an even degree in every strategy, "
                        f"got {value}"
                    )
                values[name] = int(value * factor)
        return values

    changed = replace(plan, **scaled(plan, True))
    if factors.keys() <= {*_OF_PLANS}:
        return changed
    return with_strategies(
        changed, lambda old: _with_degrees(old, **scaled(old, False))
    )


def _with_degrees(old: Strategy, **values: int) -> Strategy:
    """Return a strategy with other degrees; one tensor rank splits nothing."""
    split = bool(values.pop("sequence_parallel", old.sequence_parallel))
    has_ranks = values.get("tp", old.tp) > 1
    whole = old.etp if has_ranks else 0
    return replace(old, sequence_parallel=split and has_ranks, etp=whole, **values)


def _values(plan: Plan, name: str) -> set[int]:
    """Return the values of a setting of a plan, or of its strategies."""
    holders = [plan] if name in _OF_PLANS else strategies_of(plan)
    return {getattr(holder, name) for holder in holders}


def _merges(plan: Plan) -> Iterator[Move]:
    """Yield plans with two neighboring stages merged into one.

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
                    ways.append(_with_degrees(stage.strategy, **{degree: value}))
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
                    f"stage {i + 1} split before {stage.layers[cut]}, {strategy}",
                    replace(plan, stages=(*stages[:i], *parts, *stages[i + 1 :])),
                )


def _layer_moves(problem: Problem, plan: Plan) -> Iterator[Move]:
    """Yield plans with one layer handed across a boundary.

    To the next stage what no layer of its stage reads, to the one before
    what reads no layer of its stage. The layer takes the strategy of its new
    neighbor, the last or first of that stage.
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
                    yield Move(name, str(layer), _handed(plan, source, target, layer))


def _handed(plan: Plan, source: int, target: int, layer: LayerId) -> Plan:
    stages = list(plan.stages)
    pairs = zip(stages[source].layers, stages[source].layer_strategies, strict=True)
    left = {name: strategy for name, strategy in pairs if name != layer}
    stages[source] = Stage.of(tuple(left), tuple(left.values()))
    layers, strategies = stages[target].layers, stages[target].layer_strategies
    if target > source:
        layers, strategies = (layer, *layers), (strategies[0], *strategies)
    else:
        layers, strategies = (*layers, layer), (*strategies, strategies[-1])
    stages[target] = Stage.of(layers, strategies)
    return replace(plan, stages=tuple(stages))
