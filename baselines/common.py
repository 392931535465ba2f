"""What the planners share: chains of layers, plans, options, answers.

Planners see a problem as a chain: its layers in topological order, cut into
contiguous ranges. Any such range is the difference of two closed sets, so
every partition of the chain is a legal sequence of stages.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import ClassVar, Literal, TypeVar

from msgspec.structs import replace

from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.rules import get_rules
from nest.cost.schedules import paced
from nest.cost.space import BatchSplit, strategies
from nest.errors import InvalidOptionError
from nest.ir.plan import RECOMPUTE, Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import (
    Capabilities,
    Deadline,
    Limit,
    Progress,
    Report,
    SolveOptions,
    SolverOutput,
    Status,
    ignore_progress,
)
from nest.util.text import whole_number

T = TypeVar("T")

#: What a planner chose for one stage: its layers ``[start, stop)`` of the
#: chain, and one strategy for all of them or one per layer.
StageChoice = tuple[int, int, Strategy | Sequence[Strategy]]


def chain(problem: Problem) -> list[int]:
    """Return the positions of all layers in topological order."""
    return list(problem.graph.topological_order())


def one_strategy_per_stage(problem: Problem) -> bool:
    """Whether the layers of a stage must all have the same strategy."""
    return (
        problem.job.granularity == "stage"
        and not get_rules(problem.preset).recompute_per_layer
    )


def why_not_turns(problem: Problem) -> str | None:
    """Return why a planner that splits micro-batches cannot search, if so."""
    if get_rules(problem.preset).round_robin:
        return (
            f"$.preset: expected data parallel ranks that share a "
            f"micro-batch, got preset {problem.preset!r}, under which they "
            f"take turns; use preset 'standard' or another solver"
        )
    return None


def why_not_whole(problem: Problem) -> str | None:
    """Return which rule about whole plans no planner keeps, if there is one.

    Numbers of stages and what all stages share they do keep.
    """
    job = problem.job
    several = {name: list(z) for name, z in job.zero_with.items()}
    # Which strategies there are takes care of that.
    several.pop("cp", None)
    staged = [name for name in job.sharded_with if name == "pp"]
    for field, value, default in (
        ("even_layers", job.even_layers, False),
        ("one_stage", list(job.one_stage), []),
        ("idle_devices", job.idle_devices, True),
        ("zero_with", several, {}),
        ("sharded_with", staged, []),
    ):
        if value != default:
            return (
                f"$.job.{field}: expected none of the rules about whole plans, which "
                f"the planner does not know, got {value}; use another solver or target"
            )
    return None


def why_not_alike(problem: Problem) -> str | None:
    """Return why a planner whose stages differ cannot search, if so."""
    if problem.job.uniform:
        return (
            f"$.job.uniform: expected an empty list, because this planner "
            f"chooses a strategy for each stage, got "
            f"{list(problem.job.uniform)}; use solver dp, or remove --target"
        )
    return None


def why_not_contexts(problem: Problem) -> str | None:
    """Return why a planner without context parallelism cannot search, if so.

    Layers that have costs on several context ranks alone.
    """
    for kind in problem.graph.kinds:
        cps = sorted({cost.cp for cost in kind.costs})
        if cps and 1 not in cps:
            return (
                f"$.graph.kinds: expected costs of kind {kind.name!r} at cp 1, as the "
                f"planner knows no context parallelism, got cp "
                f"{', '.join(map(str, cps))} alone; add them or use another solver"
            )
    return None


def why_not_experts(problem: Problem) -> str | None:
    """Return why a planner that cuts experts as other layers cannot search, if so."""
    for kind in problem.graph.kinds:
        if any(cost.etp for cost in kind.costs):
            return (
                f"$.graph.kinds: expected costs without etp, as the planner cuts "
                f"experts over all tensor ranks, got some in kind {kind.name!r}; "
                f"leave --etp out or use solver dp"
            )
    return None


def alone(problem: Problem) -> list[Problem]:
    """Return a problem per strategy that all stages of a plan may share.

    Of a preset under which they share one, as a planner reads it that knows
    the preset ``standard``; the plans of each are plans of the problem.
    Strategies that some layer has no cost for are left out.
    """
    job, model = problem.job, CostModel(problem)
    everywhere = range(len(problem.graph.layers))
    usable = dict.fromkeys(
        strategy
        for micro_batch in sorted(job.micro_batches)
        for strategy in strategies(problem, micro_batch)
        if all(
            model.available(layer, strategy, micro_batch) is None
            for layer in everywhere
        )
    )
    plain = {
        tp: model.rules.plain(problem, tp)
        for tp in {strategy.tp for strategy in usable}
    }
    return [
        replace(
            plain[strategy.tp],
            job=replace(
                job,
                data_parallel=(strategy.dp,),
                tensor_parallel=(strategy.tp,),
                context_parallel=(strategy.cp,),
                expert_parallel=(strategy.ep,),
                zero=(strategy.zero,),
                recompute=(strategy.recompute,),
            ),
        )
        for strategy in usable
    ]


def decided(problem: Problem) -> Problem:
    """Return the problem with no choice of sequence parallelism.

    All plans have it wherever ``tp > 1``, if the job allows that and no kind
    has costs without it alone; else none has. Every plan is one of the
    problem itself, at the same cost.
    """
    job = problem.job
    if len(job.sequence_choices(2)) == 1:
        return problem
    split = all(
        any(cost.sequence_parallel for cost in kind.costs)
        or all(cost.tp == 1 for cost in kind.costs)
        for kind in problem.graph.kinds
    )
    return replace(problem, job=replace(job, sequence_parallel=(split,)))


@dataclasses.dataclass
class Search:
    """A planner at work on one problem: its clock, options and best plan."""

    planner: str
    problem: Problem
    options: SolveOptions
    report: Report
    #: Whether data ranks are replicas of the pipeline alone: all stages have the one
    #: strategy of this problem, see :func:`alone`.
    by_replicas: bool = False
    #: The least value of a plan of another search, by the planner's own objective.
    least_ns: float = math.inf
    #: The best plan so far, and its value in ns by the planner's own objective, if any.
    plan: Plan | None = None
    own_ns: float | None = None
    #: Whether the time limit ended the search, and what the answer says of it.
    stopped: bool = False
    notes: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.deadline = Deadline(self.options.time_limit_s)
        self.model = CostModel(self.problem)

    def count(self, key: str, default: int) -> int:
        """Return an option that is a whole number above 0.

        Raises ``InvalidOptionError`` if it is something else.
        """
        text = self.options.extra.get(key, str(default))
        value = whole_number(text)
        if not value:
            raise self.refusal(key, "a whole number >= 1")
        return value

    def choice(self, key: str, choices: Mapping[str, T], default: str) -> T:
        """Return what an option chooses, of values by their texts.

        Raises ``InvalidOptionError`` if it is no text of ``choices``.
        """
        text = self.options.extra.get(key, default)
        if text not in choices:
            raise self.refusal(key, " or ".join(choices))
        return choices[text]

    def refusal(self, key: str, expected: str) -> InvalidOptionError:
        """Return the error of an option that is not what was expected."""
        return InvalidOptionError(
            f"option {self.planner}.{key}: expected {expected}, got "
            f"{self.options.extra[key]!r}; correct the value"
        )

    def out_of_time(self) -> bool:
        """Whether the time is up; then the answer says so."""
        self.stopped = self.stopped or self.deadline.passed
        return self.stopped

    def say(self, message: str) -> None:
        """Report how far the search is."""
        self.report(Progress(message=message))

    def improve(
        self, plan: Plan, own_ns: float | None = None, message: str = ""
    ) -> None:
        """Keep a plan that is better than those before, and report it.

        Unless one of another search is as good by its own objective.
        """
        self.plan, self.own_ns = plan, own_ns
        if own_ns is None or own_ns < self.least_ns:
            self.report(Progress(plan=plan, message=message))

    def answer(self, *notes: str) -> SolverOutput:
        """Return the best plan, without any proof, or none."""
        remarks = [*self.notes, *notes]
        if self.stopped and self.plan is None and not notes:
            remarks.append("the limit passed before it had a plan")
        return SolverOutput(
            status=Status.FEASIBLE if self.plan else Status.NO_SOLUTION,
            plan=self.plan,
            limit=Limit.TIME if self.stopped else None,
            detail="; ".join(remarks),
            own_objective_ns=self.own_ns,
        )


class Planner(ABC):
    """A solver without proofs."""

    name: ClassVar[str]
    capabilities: ClassVar[Capabilities]
    #: Makes those of most planners: no proof, but plans while they search, which may
    #: exceed the memory by the shared cost model.
    promises = staticmethod(
        partial(
            Capabilities,
            exact=False,
            anytime=True,
            overruns=True,
            searches=frozenset({"granularity"}),
        )
    )
    #: Each returns why a problem cannot be searched, or ``None``.
    refusals: ClassVar[tuple[Callable[[Problem], str | None], ...]] = ()
    #: How a problem is searched under a preset whose stages share one strategy:
    #: ``alone``, one strategy after the other, and the best plan by the planner's own
    #: objective is the answer; ``together``, by planners whose stages are alike anyway;
    #: both in the terms of the preset ``standard``. ``as it is`` by planners that know
    #: such presets.
    shared_strategy: ClassVar[Literal["alone", "together", "as it is"]] = "alone"

    def unsupported(self, problem: Problem) -> str | None:
        """Return why this problem cannot be searched, or ``None``."""
        refusals = (*self.refusals, why_not_whole, why_not_experts)
        reasons = (why_not(problem) for why_not in refusals)
        return next(filter(None, reasons), None)

    def solve(
        self, problem: Problem, options: SolveOptions, report: Report = ignore_progress
    ) -> SolverOutput:
        """Return the plan that the planner chooses.

        Raises ``InvalidOptionError`` if an option is not what :attr:`capabilities` say.
        """
        rules = get_rules(problem.preset)
        if rules.one_strategy and self.shared_strategy != "as it is":
            if self.shared_strategy == "alone":
                return self._one_by_one(alone(problem), options, report)
            problem = rules.plain(problem)
        search = Search(self.name, decided(problem), options, report)
        if search.problem is not problem:
            chosen = search.problem.job.sequence_choices(2)
            search.notes.append(
                f"with{'' if True in chosen else 'out'} sequence parallelism "
                f"wherever tp > 1, as it knows no choice of it"
            )
        return self.run(search)

    def _one_by_one(
        self, problems: Sequence[Problem], options: SolveOptions, report: Report
    ) -> SolverOutput:
        """Return the best answer to several problems, by own objective.

        Each has an even share of the time that is left.
        """
        deadline = Deadline(options.time_limit_s)
        outputs: list[SolverOutput] = []
        values_ns: list[float] = []
        for index, problem in enumerate(problems):
            share_s = deadline.remaining_s
            if share_s is not None:
                share_s /= len(problems) - index
            search = Search(
                self.name,
                problem,
                dataclasses.replace(options, time_limit_s=share_s),
                report,
                by_replicas=True,
                least_ns=min(values_ns, default=math.inf),
            )
            outputs.append(self.run(search))
            value_ns = outputs[-1].own_objective_ns
            values_ns.append(math.inf if value_ns is None else value_ns)
        if not outputs:
            return SolverOutput(
                status=Status.NO_SOLUTION, detail="no strategy has costs for all layers"
            )
        best = outputs[values_ns.index(min(values_ns))]
        if len(outputs) == 1:
            return best
        details = dict.fromkeys(output.detail for output in outputs)
        which = "none"
        if best.plan is not None:
            details, which = {best.detail: None}, "best"
        text = f"{which} of {len(outputs)} strategies, each searched alone"
        limits = (output.limit for output in outputs)
        return dataclasses.replace(
            best,
            limit=next(filter(None, limits), None),
            detail="; ".join(filter(None, [*details, text])),
        )

    @abstractmethod
    def run(self, search: Search) -> SolverOutput:
        """Search, and return ``search.answer``."""


def case_strategies(problem: Problem, case: BatchSplit) -> list[Strategy]:
    """Return the strategies that a replica has the devices for."""
    return [
        strategy
        for strategy in strategies(problem, case.micro_batch)
        if strategy.devices <= case.devices
    ]


def in_flight(problem: Problem, case: BatchSplit, stages_left: int) -> int:
    """Return the micro-batches whose activations a stage keeps at most.

    Of the preset ``standard``; ``stages_left`` are counted from the stage
    itself to the end of the pipeline.
    """
    schedule = paced(problem.job.schedule)
    return schedule.inflight(stages_left, case.num_micro_batches)


def node_size(problem: Problem) -> int:
    """Return the devices of a node: the lowest level that joins several."""
    cluster = problem.cluster
    return min([*cluster.topology.unit_sizes, cluster.num_devices])


def check_num_stages(num_layers: int, num_stages: int) -> None:
    """Raise ``ValueError`` unless every stage can have a layer."""
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"num_stages: expected 1 to {num_layers}, got {num_stages}")


def even_split(num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    """Return ranges of a chain whose lengths differ by at most one.

    The longer ones come first. Raises ``ValueError`` if there are fewer layers than
    stages.
    """
    check_num_stages(num_layers, num_stages)
    length, longer = divmod(num_layers, num_stages)
    return ranges(
        [count * length + min(count, longer) for count in range(1, num_stages + 1)]
    )


def ranges(stops: Sequence[int]) -> list[tuple[int, int]]:
    """Return the ranges that end at rising stops, the first from 0."""
    return list(zip([0, *stops[:-1]], stops, strict=True))


def repeated_range(problem: Problem) -> tuple[int, int]:
    """Return the range of the chain between single layers at its ends.

    Single layers are those whose kind occurs only once: an embedding, an
    output layer. The whole chain if no kind occurs twice.
    """
    kinds = [problem.graph.layers[i].kind for i in chain(problem)]
    count = Counter(kinds)
    repeated = [i for i, kind in enumerate(kinds) if count[kind] > 1]
    if not repeated:
        return 0, len(kinds)
    return repeated[0], repeated[-1] + 1


def plainest(
    problem: Problem, found: Sequence[Strategy], more_zero: Sequence[int] = ()
) -> list[Strategy]:
    """Return the strategies of planners that know ``dp`` and ``tp`` only.

    They have the least recomputation, ``cp``, ``ep`` and ZeRO stage that
    job and costs allow, or one of the ZeRO stages ``more_zero``.
    """
    recompute = min(problem.job.recompute, key=RECOMPUTE.index)
    cp = min((strategy.cp for strategy in found), default=1)
    ep = min((strategy.ep for strategy in found), default=1)
    zero = {min(problem.job.zero), *more_zero}
    return [
        strategy
        for strategy in found
        if (strategy.recompute, strategy.cp, strategy.ep) == (recompute, cp, ep)
        and strategy.zero in zero
    ]


def front_terms(
    model: CostModel, case: BatchSplit, position: int, strategy: Strategy
) -> LayerTerms | None:
    """Return the terms of a layer on the first devices of every replica.

    Planners without a notion of where a stage sits price every stage as if
    it sat there. ``None`` if the layer has no cost under the strategy.
    """
    block = Block(case.replicas, case.devices, 0, strategy.devices)
    return model.layer_terms(position, strategy, case.micro_batch, block)


def make_stage(
    problem: Problem, layers: Iterable[int], chosen: Sequence[Strategy]
) -> Stage:
    """Return a stage of layers, by position.

    ``chosen`` is the strategy of each, or one for all.
    """
    return Stage.of([problem.graph.layers[i].id for i in layers], chosen)


def make_plan(
    problem: Problem, case: BatchSplit, stages: Sequence[StageChoice]
) -> Plan:
    """Return the plan of a partition of the chain, in pipeline order."""
    order = chain(problem)
    return Plan(
        replicas=case.replicas,
        micro_batch=case.micro_batch,
        stages=tuple(
            make_stage(
                problem,
                order[start:stop],
                [chosen] if isinstance(chosen, Strategy) else chosen,
            )
            for start, stop, chosen in stages
        ),
    )
