"""Whether a plan fits, rank by rank, and which changes would make it fit.

A change gives one setting of the plan another value, and everything that must
follow it: the ranks that a degree takes or frees are data-parallel ranks, each
rank keeps its micro-batch size, and the global batch stays. Every changed plan
is scored. Of the values of a setting that fit, the cheapest one is shown. Its
cost is the time of the step times the number of devices. If no single change
fits, or all are dear, two settings change together.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain, combinations, islice
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

from nest.analysis.feasible import larger, remedies_within
from nest.analysis.neighbors import with_degrees, with_strategies
from nest.constraints.targets import inexpressible
from nest.cost.magnitude import in_range
from nest.cost.model import CostModel
from nest.cost.score import Score, lay_out, score
from nest.errors import InvalidPlanError
from nest.ir.base import LayerId
from nest.ir.io import plan_to_json, problem_hash
from nest.ir.job import Job
from nest.ir.plan import RECOMPUTE, Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.ir.views import Row, Tabular
from nest.solvers.cell import OnProgress
from nest.uncertainty.headroom import FITS, FitsWord, fits_word
from nest.uncertainty.intervals import (
    Interval,
    Intervals,
    intervals_of,
    memory_interval,
    why_none,
)
from nest.units import format_bytes
from nest.util.versions import provenance

#: Factors by which a change multiplies or divides a degree.
_FACTORS = tuple(
    factor for k in (2, 4, 8) for factor in (Fraction(k), Fraction(1, k))
)

#: Changes of two settings that an answer lists at most.
_MAX_PAIRS = 5

#: Cost above which changes of two settings that are cheaper are shown too.
_DEAR = 0.1

#: Gain in device time below which a change is not worth a line.
_LEAST_GAIN = 0.005

#: Returns layers of so many equal stages, ``None`` if there are no such.
EvenCut = Callable[[Problem, int], list[list[LayerId]] | None]

#: Returns the lines with which a framework runs a plan, none if it cannot.
Lines = Callable[[Problem, Plan], Sequence[str]]

#: Seconds of the search for any plan that fits, if no change does.
_REMEDIES_S = 20.0


@dataclass(frozen=True)
class StageMemory:
    """The memory of the ranks of a pipeline stage; all have the same.

    Attributes
    ----------
    stage
        Number of the stage from 1; of an interleaved plan its pipeline rank.
    ranks
        First rank and end, in every replica.
    bytes_by_kind
        Bytes of weights, gradients and so on.
    device_bytes
        Memory of each device.
    memory_50_bytes, memory_90_bytes
        Prediction intervals; ``None`` if the errors are not known.
    fits
        Whether the ranks have enough memory, and how sure that is.
    """

    stage: int
    ranks: tuple[tuple[int, int], ...]
    bytes_by_kind: dict[str, int]
    device_bytes: int
    memory_50_bytes: Interval | None
    memory_90_bytes: Interval | None
    fits: FitsWord

    @property
    def memory_bytes(self) -> int:
        """Predicted memory of each rank."""
        return sum(self.bytes_by_kind.values())


class SettingChange(NamedTuple):
    """A setting with its values before and after a change."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name} {self.before} → {self.after}"


@dataclass(frozen=True)
class Change:
    """A plan that fits, one or two settings away.

    Attributes
    ----------
    names
        The settings that change.
    settings
        All values that differ, those that follow included.
    problem, plan, score
        The changed plan, a problem that allows it, and its score.
    cost
        Device time of a step, step time times devices, as a fraction more
        than that of the plan; negative for less.
    fits
        How sure it is that it fits.
    added, removed
        Lines of the framework's files that differ; empty without a framework.
    """

    names: tuple[str, ...]
    settings: tuple[SettingChange, ...]
    problem: Problem
    plan: Plan
    score: Score
    cost: float
    fits: FitsWord
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def memory_bytes(self) -> int:
        """Memory of the fullest device."""
        return max(block.memory_bytes for block in self.score.blocks)

    @property
    def num_devices(self) -> int:
        """Devices of the cluster after the change."""
        return self.problem.cluster.num_devices

    @property
    def text(self) -> str:
        """The values that differ, for people."""
        return ", ".join(map(str, self.settings))

    def to_json(self) -> dict[str, Any]:
        """Return what a document says about the change."""
        return {
            "settings": [change._asdict() for change in self.settings],
            "num_devices": self.num_devices,
            "step_time_ns": self.score.step_time_ns,
            "device_time_difference": self.cost,
            "memory_bytes": self.memory_bytes,
            "fits": self.fits,
            "added": list(self.added),
            "removed": list(self.removed),
            "plan": plan_to_json(self.plan),
        }


@dataclass(frozen=True, repr=False)
class Fits(Tabular):
    """Whether a plan fits, and what would make it fit.

    Attributes
    ----------
    problem, plan, score
        The problem, the plan, and its score.
    stages
        The memory of every stage, the fullest first.
    intervals
        Of the step time and of the fullest device; ``None`` if not known.
    changes
        Changes that fit, the cheapest first. If the plan fits, only those
        that are cheaper than the plan.
    remedies
        What any plan needs; empty unless no change fits.
    notes
        What the file of the launch leaves open.
    """

    problem: Problem
    plan: Plan
    score: Score
    stages: tuple[StageMemory, ...]
    intervals: Intervals | None
    changes: tuple[Change, ...]
    remedies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """Return what it is in a line."""
        full = self.stages[0]
        return (
            f"<Fits {self.fits}: {format_bytes(full.memory_bytes)} of "
            f"{format_bytes(full.device_bytes)} on stage {full.stage}, "
            f"{len(self.changes)} changes>"
        )

    @property
    def fits(self) -> FitsWord:
        """Whether all ranks have enough memory, and how sure that is."""
        return max((x.fits for x in self.stages), key=FITS.index)

    def to_rows(self) -> list[Row]:
        """Return a row per stage, the fullest first."""
        return [
            {
                "stage": stage.stage,
                "first_rank": stage.ranks[0][0],
                "fits": stage.fits,
                "memory_bytes": stage.memory_bytes,
                "device_bytes": stage.device_bytes,
                **stage.bytes_by_kind,
            }
            for stage in self.stages
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the ``nest-fits/1`` document."""
        return {
            "schema": "nest-fits/1",
            "problem": self.problem.name,
            "problem_hash": problem_hash(self.problem),
            "plan": plan_to_json(self.plan),
            "fits": self.fits,
            "step_time_ns": self.score.step_time_ns,
            "intervals": self.intervals and self.intervals.to_json(),
            "stages": [
                {
                    "stage": stage.stage,
                    "ranks": [[a, end - 1] for a, end in stage.ranks],
                    "fits": stage.fits,
                    "memory_bytes": stage.memory_bytes,
                    "memory_50_bytes": _rounded(stage.memory_50_bytes),
                    "memory_90_bytes": _rounded(stage.memory_90_bytes),
                    "device_bytes": stage.device_bytes,
                    "memory": stage.bytes_by_kind,
                }
                for stage in self.stages
            ],
            "changes": [change.to_json() for change in self.changes],
            "remedies": list(self.remedies),
            "notes": list(self.notes),
            **provenance(),
        }


def _rounded(interval: Interval | None) -> list[int] | None:
    return None if interval is None else [round(x) for x in interval]


def fits(
    problem: Problem,
    plan: Plan,
    *,
    target: str | None = None,
    cut: EvenCut = lambda problem, count: None,
    lines: Lines = lambda problem, plan: (),
    notes: Sequence[str] = (),
    on_progress: OnProgress | None = None,
) -> Fits:
    """Return whether a plan fits, and what would make it fit.

    Parameters
    ----------
    problem, plan
        The problem, and a legal plan for it; it may need too much memory.
    target
        The framework that shall run the plan: changes that it cannot express
        are left out, unless it cannot express the plan either.
    cut
        Gives the layers of plans with other numbers of stages; none by
        default.
    lines
        Gives the lines of the framework's files; none by default.
    notes
        For :attr:`Fits.notes`.
    on_progress
        Called while nest searches for any plan that fits.

    Raises
    ------
    InvalidPlanError
        If the plan does not belong to the problem.
    """
    costs = CostModel(problem)
    verdict = score(problem, plan, costs)
    stages = _stages(problem, plan, verdict, costs)
    result = Fits(
        problem=problem,
        plan=plan,
        score=verdict,
        stages=stages,
        intervals=intervals_of(problem, plan, verdict),
        changes=(),
        notes=tuple(notes),
    )
    search = _Search(problem, plan, verdict, target, cut)
    changes = search.singles()
    if result.fits in ("yes", "likely"):
        changes = tuple(x for x in changes if x.cost < -_LEAST_GAIN)
    elif not changes or changes[0].cost > _DEAR:
        changes = (*changes, *search.pairs(changes))
        changes = tuple(sorted(changes, key=lambda change: change.cost))
    if changes:
        shown = _with_lines(changes, lines(problem, plan), lines)
        return dataclasses.replace(result, changes=tuple(shown))
    if result.fits in ("yes", "likely"):
        return result
    remedies = remedies_within(problem, _REMEDIES_S, on_progress)
    return dataclasses.replace(result, remedies=tuple(remedies.lines))


def _with_lines(
    changes: Sequence[Change], before: Sequence[str], lines: Lines
) -> Iterator[Change]:
    """Yield changes with the lines that they add and remove."""
    for change in changes:
        after = before and lines(change.problem, change.plan)
        if not after:
            yield change
            continue
        yield dataclasses.replace(
            change,
            added=tuple(line for line in after if line not in before),
            removed=tuple(line for line in before if line not in after),
        )


def _stages(
    problem: Problem, plan: Plan, verdict: Score, model: CostModel
) -> tuple[StageMemory, ...]:
    """Return the memory of every stage, the fullest first."""
    cluster, stages = problem.cluster, []
    device_ranges = lay_out(problem, plan, model).blocks
    is_unknown = bool(why_none(problem))
    for index, block in enumerate(verdict.blocks):
        ranks = tuple(device_ranges[index].ranges())
        within_50, within_90 = memory_interval(block.memory_bytes)
        stages.append(
            StageMemory(
                index + 1,
                ranks,
                block.memory,
                cluster.memory_bytes(ranks),
                None if is_unknown else within_50,
                None if is_unknown else within_90,
                fits_word(problem, block.memory_bytes, ranks),
            )
        )

    def free_fraction(stage: StageMemory) -> tuple[float, int]:
        return -stage.memory_bytes / stage.device_bytes, stage.stage

    return tuple(sorted(stages, key=free_fraction))


class _Option(NamedTuple):
    """Another value of a setting: what all strategies get, or a factor.

    With ``merges`` all replicas become one, whose ranks are data-parallel.
    """

    name: str
    values: Mapping[str, Any] = MappingProxyType({})
    factor: Fraction = Fraction(1)
    merges: bool = False


class _Search:
    """Scores the plans that changes lead to, and keeps those that fit."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        verdict: Score,
        target: str | None,
        cut: EvenCut,
    ) -> None:
        self.problem = _with_all_batches(problem)
        self.plan = replace(plan, problem_hash=None, solver=None)
        self.devices = problem.cluster.num_devices
        self.device_time_ns = verdict.step_time_ns * self.devices
        self.before = settings_of_plan(problem, plan)
        self.target = target
        if target is not None and inexpressible(target, problem, plan):
            self.target = None
        self.models = {self.devices: CostModel(self.problem)}
        self.options = list(_options(self.problem.job))
        self.cut = cut

    def singles(self) -> tuple[Change, ...]:
        """Return changes of one setting, the cheapest value of each."""
        return self._cheapest((option,) for option in self.options)

    def pairs(self, singles: Sequence[Change]) -> tuple[Change, ...]:
        """Return changes of two settings, the cheapest values of each two.

        Only those that are cheaper than all changes of one.
        """
        two = (
            (one, other)
            for one, other in combinations(self.options, 2)
            if one.name != other.name
        )
        cheapest = min((single.cost for single in singles), default=math.inf)
        cheap = (pair for pair in self._cheapest(two) if pair.cost < cheapest)
        return tuple(islice(cheap, _MAX_PAIRS))

    def _cheapest(
        self, all_options: Iterator[tuple[_Option, ...]]
    ) -> tuple[Change, ...]:
        best: dict[tuple[str, ...], Change] = {}
        for options in all_options:
            change = self._change(options)
            if change is None:
                continue
            other = best.get(change.names)
            if other is None or change.cost < other.cost:
                best[change.names] = change
        return tuple(sorted(best.values(), key=lambda change: change.cost))

    def _change(self, options: Sequence[_Option]) -> Change | None:
        """Return what options lead to, if that is a plan that fits."""
        problem, plan = self.problem, self.plan
        try:
            for option in options:
                problem, plan = self._applied(option, problem, plan)
        except ValueError:  # no plan has such settings
            return None
        after = settings_of_plan(problem, plan)
        changed = tuple(
            SettingChange(name, value, after[name])
            for name, value in self.before.items()
            if after[name] != value
        )
        if not changed:
            return None
        devices = problem.cluster.num_devices
        if devices not in self.models:
            self.models[devices] = CostModel(problem)
        model = self.models[devices]
        try:
            verdict = score(problem, plan, model)
            if self.target is not None and inexpressible(
                self.target, problem, plan
            ):
                return None
        except InvalidPlanError:
            return None
        if not verdict.feasible:
            return None
        stages = _stages(problem, plan, verdict, model)
        fits_how = max((x.fits for x in stages), key=FITS.index)
        if fits_how not in ("yes", "likely"):
            return None
        time_ns = verdict.step_time_ns * devices
        return Change(
            tuple(option.name for option in options),
            changed,
            problem,
            plan,
            verdict,
            time_ns / self.device_time_ns - 1 if self.device_time_ns else 0.0,
            fits_how,
        )

    def _applied(
        self, option: _Option, problem: Problem, plan: Plan
    ) -> tuple[Problem, Plan]:
        """Return a plan with another value of a setting.

        Raises
        ------
        ValueError
            If no plan has it.
        """
        name, factor = option.name, option.factor
        if name == "devices":
            num_devices = factor * problem.cluster.num_devices
            for wider in larger(problem):
                if wider.cluster.num_devices == num_devices:
                    return wider, _resized(plan, factor)
            raise ValueError("expected equal devices, got several types")
        if name == "distributed optimizer":
            return problem, replace(plan, distributed_optimizer=True)
        if name == "micro-batch size":
            size = _whole(plan.micro_batch * factor)
            for strategy in plan_strategies(plan):
                _whole(Fraction(size, strategy.dp))
            return problem, replace(plan, micro_batch=size)
        if name in ("pp", "virtual stages"):
            chunks = option.values.get("chunks", plan.virtual_stages)
            return problem, self._recut(problem, plan, factor, chunks)
        if not option.values:
            scale = Fraction(1) if name == "ep" else 1 / factor
            return problem, _resized(plan, scale, {name: factor})
        replicas = plan.replicas if option.merges else 1
        plan = replace(
            plan,
            replicas=plan.replicas // replicas,
            micro_batch=plan.micro_batch * replicas,
        )

        def change(old: Strategy) -> Strategy:
            return replace(old, dp=old.dp * replicas, **option.values)

        return problem, _changed(plan, change)

    def _recut(
        self, problem: Problem, plan: Plan, factor: Fraction, chunks: int
    ) -> Plan:
        """Return a plan with other stages, which have equally many layers."""
        count = _whole(plan.num_blocks * factor)
        layers_of_stages = self.cut(problem, count * chunks)
        strategies = plan_strategies(plan)
        if (
            layers_of_stages is None
            or len(strategies) > 1
            or plan.placement != "loop"
        ):
            raise ValueError("expected equal stages, got others")
        resized = _resized(plan, 1 / factor)
        (strategy,) = plan_strategies(resized)
        stages = tuple(
            Stage.of(layers, (strategy,) * len(layers))
            for layers in layers_of_stages
        )
        return replace(resized, stages=stages, virtual_stages=chunks)


def _with_all_batches(problem: Problem) -> Problem:
    """Return the problem with every micro-batch that divides the batch."""
    job = problem.job
    batch = job.global_batch
    small = [n for n in range(1, math.isqrt(batch) + 1) if batch % n == 0]
    sizes = {*job.micro_batches, *small, *(batch // n for n in small)}
    wider = replace(
        problem, job=replace(job, micro_batches=tuple(sorted(sizes)))
    )
    return wider if in_range(wider) else problem


# The settings of a plan as frameworks count them


def settings_of_plan(problem: Problem, plan: Plan) -> dict[str, str]:
    """Return the settings of a plan, for people, by name."""
    strategies = plan_strategies(plan)
    size = plan.micro_batch

    def text(values: Iterator[Any]) -> str:
        return "|".join(map(str, dict.fromkeys(values)))

    return {
        "tp": text(s.tp for s in strategies),
        "pp": str(plan.num_blocks),
        "cp": text(s.cp for s in strategies),
        "ep": text(s.ep for s in strategies),
        "dp": text(plan.replicas * s.dp for s in strategies),
        "micro-batch size": text(Fraction(size, s.dp) for s in strategies),
        "ZeRO stage": text(s.zero for s in strategies),
        "distributed optimizer": _on(plan.distributed_optimizer),
        "recomputation": text(s.recompute for s in strategies),
        "sequence parallelism": text(
            _on(problem.job.splits_sequence(s) and s.tp > 1)
            for s in strategies
        ),
        "virtual stages": str(plan.virtual_stages),
        "devices": str(problem.cluster.num_devices),
    }


def _on(value: bool) -> str:
    return "on" if value else "off"


def plan_strategies(plan: Plan) -> list[Strategy]:
    """Return the distinct strategies of a plan, in pipeline order."""
    return list(
        dict.fromkeys(
            chain.from_iterable(s.layer_strategies for s in plan.stages)
        )
    )


# Changes


def _options(job: Job) -> Iterator[_Option]:
    """Yield other values of every setting.

    More devices come first, as other changes need the ranks that they add.
    """
    for factor in _FACTORS:
        if factor > 1:
            yield _Option("devices", factor=factor)
    for choice in RECOMPUTE:
        yield _Option("recomputation", {"recompute": choice})
    for zero in job.zero:
        for merges in (False, True):
            yield _Option("ZeRO stage", {"zero": zero}, merges=merges)
    yield _Option("distributed optimizer")
    for split in (False, True):
        yield _Option("sequence parallelism", {"sequence_parallel": split})
    for factor in _FACTORS:
        for name in ("micro-batch size", "tp", "cp", "ep", "pp"):
            yield _Option(name, factor=factor)
    for chunks in job.virtual_stages:
        yield _Option("virtual stages", {"chunks": chunks})


def _whole(value: Fraction) -> int:
    if value.denominator > 1:
        raise ValueError(f"expected a whole number, got {value}")
    return int(value)


def _changed(plan: Plan, change: Callable[[Strategy], Strategy]) -> Plan:
    changed = with_strategies(plan, change)
    if isinstance(changed, str):
        raise ValueError(changed)
    return changed


def _resized(
    plan: Plan,
    scale: Fraction,
    factors: Mapping[str, Fraction] = MappingProxyType({}),
) -> Plan:
    """Return a plan with so many times the data-parallel ranks.

    Their micro-batch size stays; ``factors`` multiply other degrees.
    """
    more, fewer = scale.numerator, scale.denominator
    common = math.gcd(plan.replicas, fewer)
    replicas, fewer = plan.replicas // common, fewer // common
    if plan.replicas > 1:
        replicas, more = replicas * more, 1
    ratio = Fraction(more, fewer)
    size = _whole(plan.micro_batch * ratio)

    def change(old: Strategy) -> Strategy:
        values = {x: _whole(getattr(old, x) * f) for x, f in factors.items()}
        return with_degrees(old, {**values, "dp": _whole(old.dp * ratio)})

    resized = replace(plan, replicas=replicas, micro_batch=size)
    return _changed(resized, change)
