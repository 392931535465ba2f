"""Plans that a proof has to withstand, built without the search that made it.

Exact solvers share what they assume about costs, so a false assumption makes
all of them prove the same wrong bound. At the end of an exact search the
runner therefore builds plans of the batch splits that the search discarded,
scores them, and holds each against the bound that discarded it.
"""

from __future__ import annotations

import heapq
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from nest.cost import space
from nest.cost.even import even_plan
from nest.cost.model import CostModel
from nest.cost.schedules import schedule_of
from nest.cost.score import score
from nest.errors import InvalidPlanError
from nest.ir.io import encode, problem_hash
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import Capabilities, Deadline, wrong_proof

#: Share of the time of a search that holding plans against it may take.
SHARE = 0.03

#: What a strategy has in common with another one, most telling first.
_FIELDS = ("recompute", "zero", "tp", "cp", "ep", "etp", "sequence_parallel")


class Challenger(NamedTuple):
    """A feasible plan, its step time, and the memory of its fullest device."""

    plan: Plan
    step_quanta: int
    memory_bytes: int


def challengers(
    model: CostModel,
    best: Plan | None,
    deadline: Deadline,
    capabilities: Capabilities | None = None,
) -> Iterator[Challenger]:
    """Yield feasible plans, of every batch split one before the next ones.

    Plans with one strategy and stages of about equal loads. Those that are most like
    ``best``, the plan of a search, come first; without one, those that need least
    memory. Plans that a solver of some ``capabilities`` does not search are left out.
    """
    problem = model.problem
    splits = space.batch_splits(problem)
    if best is not None:
        splits.sort(key=lambda split: _distance(split, best))
    listed = cache(
        lambda runtime, micro_batch: runtime.strategies(problem, micro_batch)
    )
    queue = [
        (0, number, _plans_of_split(model, split, best, listed))
        for number, split in enumerate(splits)
    ]
    while queue and not deadline.passed:
        turn, number, plans = heapq.heappop(queue)
        plan = next(plans, None)
        if plan is None:
            continue
        heapq.heappush(queue, (turn + 1, number, plans))
        if capabilities is not None and capabilities.beyond(plan):
            continue
        try:
            verdict = score(problem, plan, model)
        except InvalidPlanError:
            # It breaks a rule about whole plans, which even stages do not always keep.
            continue
        if verdict.feasible:
            memory_bytes = max(x.memory_bytes for x in verdict.blocks)
            yield Challenger(plan, verdict.step_quanta, memory_bytes)


def _distance(split: space.BatchSplit, best: Plan) -> int:
    """Return how many doublings lie between a split and that of a plan."""
    return sum(
        abs(x.bit_length() - y.bit_length())
        for x, y in (
            (split.replicas, best.replicas),
            (split.micro_batch, best.micro_batch),
        )
    )


def _plans_of_split(
    model: CostModel,
    split: space.BatchSplit,
    best: Plan | None,
    listed: Callable[[space.Runtime, int], list[Strategy]],
) -> Iterator[Plan]:
    """Yield plans of a batch split, the most promising ones first."""
    problem = model.problem
    ways = [*space.leading_runtimes(problem), *space.runtimes(problem)]
    if best is not None:
        ways.insert(0, space.runtime_of(best))
    for runtime in dict.fromkeys(ways):
        schedule = schedule_of(problem.job.schedule, runtime.virtual_stages)
        choices = [
            (strategy, count)
            for family in space.families(
                *(problem, split, listed(runtime, split.micro_batch)), runtime
            )
            for strategy in family.strategies
            for count in _stage_counts(family.stage_counts, strategy, split)
            if schedule.why_not(count, split.num_micro_batches) is None
            and (count > 1 or runtime.virtual_stages == 1)
        ]
        choices.sort(key=lambda x: _rank(x[0], x[1], split, best))
        for strategy, count in choices:
            plan = _plan(model, split, runtime, strategy, count)
            if plan is not None:
                yield plan


def _stage_counts(
    counts: tuple[int, ...], strategy: Strategy, split: space.BatchSplit
) -> set[int]:
    """Return the fewest and the most stages that a strategy can have."""
    most = split.devices // strategy.devices
    fitting = [n for n in counts if n <= most]
    return {*fitting[:1], *fitting[-1:]}


def _rank(
    strategy: Strategy, num_stages: int, split: space.BatchSplit, best: Plan | None
) -> tuple[int, ...]:
    """Return the place of a choice among all of its split, least first."""
    idle = split.devices - num_stages * strategy.devices
    if best is None:
        lean = {"full": 0, "selective": 1}.get(strategy.recompute, 2)
        return lean, -strategy.zero, idle, -num_stages
    guide = best.stages[0].layer_strategies[0]
    other = [int(getattr(strategy, name) != getattr(guide, name)) for name in _FIELDS]
    return sum(other), idle, abs(num_stages - best.num_blocks), *other


def _plan(
    model: CostModel,
    split: space.BatchSplit,
    runtime: space.Runtime,
    strategy: Strategy,
    num_stages: int,
) -> Plan | None:
    """Return the plan of one strategy, ``None`` if a layer cannot have it."""
    graph = model.problem.graph
    terms = {
        kind: model.layer_terms(*(position, strategy, split.micro_batch, None), runtime)
        for kind, position in {
            layer.kind: i for i, layer in enumerate(graph.layers)
        }.items()
    }
    if None in terms.values():
        return None
    return even_plan(
        *(model.problem, split, runtime, strategy, num_stages),
        [terms[layer.kind] for layer in graph.layers],
    )


def contradiction(
    challenger: Challenger,
    lower_bound_quanta: int,
    split_bounds: Mapping[tuple[int, int], int],
) -> str | None:
    """Return what is wrong with a proof that a plan contradicts, if it does.

    Bounds are in quanta: what no plan takes less than, and what no plan of some batch
    splits ``(R, B)`` takes less than.
    """
    plan = challenger.plan
    split = (plan.replicas, plan.micro_batch)
    bound = max(lower_bound_quanta, split_bounds.get(split, 0))
    if challenger.step_quanta >= bound:
        return None
    return wrong_proof(split, bound, challenger.step_quanta, f" ({plan.text})")


def reported(problem: Problem, reason: str) -> str:
    """Store a problem with a wrong proof; return what to tell the user.

    The file is in the working directory, or in that of temporary files.
    """
    name = f"nest-contradiction-{problem_hash(problem)[:12]}.json"
    place = f"problem {problem.name}"
    for folder in (os.curdir, tempfile.gettempdir()):
        path = os.path.join(folder, name)
        with suppress(OSError):
            with suppress(FileExistsError), open(path, "xb") as file:
                file.write(encode(problem))
            place = path
            break
    return f"{reason}; please report {place}"
