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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from itertools import combinations, islice, product
from types import MappingProxyType
from typing import Any, NamedTuple

from msgspec.structs import replace

from nest.analysis.feasible import larger, remedies_within
from nest.analysis.neighbors import (
    Factors,
    strategies_of,
    with_factors,
    with_strategies,
)
from nest.constraints.targets import inexpressible
from nest.cost.magnitude import in_range
from nest.cost.model import CostModel
from nest.cost.score import Score, lay_out, score
from nest.errors import InvalidPlanError
from nest.ir.base import LayerId
from nest.ir.io import plan_to_json, problem_hash
from nest.ir.plan import RECOMPUTE, Plan, Stage
from nest.ir.problem import Problem
from nest.ir.views import Row, Tabular
from nest.models.stated import shape_of
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

#: How many times as many devices a change may need.
_TIMES = (2, 4, 8)

#: Factors by which a change multiplies or divides a degree.
_FACTORS = tuple(x for k in _TIMES for x in (Fraction(k), Fraction(1, k)))

_NONE: Factors = MappingProxyType({})

#: A plan that fits as surely as this needs no change.
_FINE = ("yes", "likely")

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
    """The memory of the ranks of a pipeline stage, by kind; all have the same.

    Stages are numbered from 1; of an interleaved plan they are its pipeline ranks.
    ``ranks`` are the first rank and the end, in every replica. Prediction intervals are
    ``None`` if the errors are not known.
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

    def to_json(self) -> dict[str, Any]:
        """Return what a document says about the stage."""
        return {
            "stage": self.stage,
            "ranks": [[a, end - 1] for a, end in self.ranks],
            "fits": self.fits,
            "memory_bytes": self.memory_bytes,
            "memory_50_bytes": _rounded(self.memory_50_bytes),
            "memory_90_bytes": _rounded(self.memory_90_bytes),
            "device_bytes": self.device_bytes,
            "memory": self.bytes_by_kind,
        }


def _rounded(interval: Interval | None) -> list[int] | None:
    return None if interval is None else [round(x) for x in interval]


def _least_sure(stages: Iterable[StageMemory]) -> FitsWord:
    return max((x.fits for x in stages), key=FITS.index)


class SettingChange(NamedTuple):
    """A setting with its values before and after a change."""

    name: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.name} {self.before} → {self.after}"


@dataclass(frozen=True)
class Change:
    """A plan that fits, one or two settings away, and a problem that allows it.

    ``names`` are the settings that change, and ``settings`` all values that differ
    then. The cost is the device time of a step (step time times devices) as a fraction
    more than that of the plan, negative for less. ``added`` and ``removed`` are lines
    of the framework's files that differ.
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
    def step_time_ns(self) -> float:
        """Predicted time of a step."""
        return self.score.step_time_ns

    @property
    def memory_bytes(self) -> int:
        """Memory of the fullest device."""
        return max(block.memory_bytes for block in self.score.blocks)

    @property
    def num_devices(self) -> int:
        """Devices of the cluster after the change."""
        return self.problem.cluster.num_devices

    @property
    def rank(self) -> tuple[bool, float]:
        """The key that sorts changes: more devices last, then by cost."""
        return "devices" in self.names, self.cost

    @property
    def text(self) -> str:
        """The values that differ, for people."""
        return ", ".join(map(str, self.settings))

    def to_json(self) -> dict[str, Any]:
        """Return what a document says about the change."""
        return {
            "settings": [change._asdict() for change in self.settings],
            "num_devices": self.num_devices,
            "step_time_ns": self.step_time_ns,
            "device_time_difference": self.cost,
            "memory_bytes": self.memory_bytes,
            "fits": self.fits,
            "added": list(self.added),
            "removed": list(self.removed),
            "plan": plan_to_json(self.plan),
        }


@dataclass(frozen=True, repr=False)
class Fits(Tabular):
    """Whether a plan fits, and what would make it fit."""

    problem: Problem
    plan: Plan
    score: Score
    #: The memory of every stage, the fullest first.
    stages: tuple[StageMemory, ...]
    #: Of the step time and of the fullest device; ``None`` if not known.
    intervals: Intervals | None
    #: Changes that fit, the cheapest first, and last those that need more devices. If
    #: the plan fits, only those that are cheaper than the plan.
    changes: tuple[Change, ...]
    #: What any plan needs; empty unless no change fits.
    remedies: tuple[str, ...] = ()
    #: What the file of the launch leaves open.
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
        return _least_sure(self.stages)

    @property
    def smallest(self) -> Change | None:
        """The cheapest of the changes of the fewest settings, if one is due.

        It needs more devices only if every change does. ``None`` if the plan
        fits as it is, or no change makes it fit.
        """
        if self.fits in _FINE or not self.changes:
            return None

        def size(change: Change) -> tuple[bool, int, float]:
            more_devices, cost = change.rank
            return more_devices, len(change.names), cost

        return min(self.changes, key=size)

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
            "stages": [stage.to_json() for stage in self.stages],
            "changes": [change.to_json() for change in self.changes],
            "smallest_change": self.smallest and self.smallest.to_json(),
            "remedies": list(self.remedies),
            "notes": list(self.notes),
            **provenance(),
        }


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

    The plan is legal, but may need too much memory. ``target`` is the framework that
    shall run it: changes that it cannot express are left out, unless it cannot express
    the plan either. ``cut`` gives the layers of plans with other numbers of stages,
    ``lines`` those of the framework's files; by default there are none.

    Raises ``InvalidPlanError`` if the plan does not belong to the problem.
    """
    costs = CostModel(problem)
    verdict = score(problem, plan, costs)
    stages = _stages(problem, plan, verdict, costs)
    is_fine = _least_sure(stages) in _FINE
    search = _Search(problem, plan, verdict, target, cut)
    changes = search.singles()
    if is_fine:
        changes = tuple(x for x in changes if x.cost < -_LEAST_GAIN)
    elif not changes or changes[0].rank > (False, _DEAR):
        changes = (*changes, *search.pairs(changes))
        changes = tuple(sorted(changes, key=lambda change: change.rank))
    remedies: Sequence[str] = ()
    if not changes and not is_fine:
        remedies = remedies_within(problem, _REMEDIES_S, on_progress).lines
    before = lines(problem, plan) if changes else ()
    return Fits(
        problem=problem,
        plan=plan,
        score=verdict,
        stages=stages,
        intervals=intervals_of(problem, plan, verdict),
        changes=tuple(_with_lines(x, before, lines) for x in changes),
        remedies=tuple(remedies),
        notes=tuple(notes),
    )


def _with_lines(change: Change, before: Sequence[str], lines: Lines) -> Change:
    """Return a change with the lines that it adds and removes."""
    after = before and lines(change.problem, change.plan)
    if not after:
        return change
    return dataclasses.replace(
        change,
        added=tuple(line for line in after if line not in before),
        removed=tuple(line for line in before if line not in after),
    )


def _stages(
    problem: Problem, plan: Plan, verdict: Score, model: CostModel
) -> tuple[StageMemory, ...]:
    """Return the memory of every stage, the fullest first."""
    stages = []
    device_ranges = lay_out(problem, plan, model).blocks
    is_known = not why_none(problem)
    for index, block in enumerate(verdict.blocks):
        ranks = tuple(device_ranges[index].ranges())
        intervals: tuple[Interval | None, Interval | None] = (None, None)
        if is_known:
            intervals = memory_interval(problem, block.memory_bytes)
        stages.append(
            StageMemory(
                index + 1,
                ranks,
                block.memory,
                problem.cluster.memory_bytes(ranks)
                + problem.cluster.headroom_bytes(ranks),
                *intervals,
                fits_word(problem, block.memory_bytes, ranks),
            )
        )

    def free_fraction(stage: StageMemory) -> tuple[float, int]:
        return -stage.memory_bytes / stage.device_bytes, stage.stage

    return tuple(sorted(stages, key=free_fraction))


class _Option(NamedTuple):
    """Another value of a setting; ``change`` raises ``ValueError`` for none.

    It needs so many ``times`` the devices.
    """

    name: str
    change: Callable[[Plan], Plan]
    times: int = 1


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
        wide = _with_all_batches(problem)
        self.devices = problem.cluster.num_devices
        self.problems = {
            each.cluster.num_devices: each for each in (wide, *larger(wide))
        }
        self.models: dict[int, CostModel] = {}
        self.plan = replace(plan, problem_hash=None, solver=None)
        self.device_time_ns = verdict.step_time_ns * self.devices
        self.before = settings_of_plan(problem, plan)
        self.target, self.shape = target, shape_of(problem)
        if target is not None and inexpressible(target, problem, plan, self.shape):
            self.target = None
        self.options = list(_options(wide, partial(cut, wide)))

    def singles(self) -> tuple[Change, ...]:
        """Return changes of one setting, the cheapest value of each."""
        return self._cheapest((option,) for option in self.options)

    def pairs(self, singles: Sequence[Change]) -> tuple[Change, ...]:
        """Return changes of two settings, the cheapest values of each two.

        Only those that come before all changes of one.
        """
        two = combinations(self.options, 2)
        changes = self._cheapest(x for x in two if x[0].name != x[1].name)
        cheapest = min((x.rank for x in singles), default=(True, math.inf))
        cheap = (pair for pair in changes if pair.rank < cheapest)
        return tuple(islice(cheap, _MAX_PAIRS))

    def _cheapest(
        self, all_options: Iterable[tuple[_Option, ...]]
    ) -> tuple[Change, ...]:
        best: dict[tuple[str, ...], Change] = {}
        for change in filter(None, map(self._change, all_options)):
            other = best.setdefault(change.names, change)
            if change.cost < other.cost:
                best[change.names] = change
        return tuple(sorted(best.values(), key=lambda change: change.rank))

    def _change(self, options: Sequence[_Option]) -> Change | None:
        """Return what options lead to, if that is a plan that fits."""
        plan = self.plan
        devices = self.devices * math.prod(x.times for x in options)
        problem = self.problems.get(devices)
        if problem is None:
            return None
        try:
            for option in options:
                plan = option.change(plan)
        except ValueError:  # no plan has such settings
            return None
        after = settings_of_plan(problem, plan)
        # Unless they are said, the degree of experts is that of the rest.
        after.setdefault("ETP", after["TP"])
        changed = tuple(
            SettingChange(name, value, after[name])
            for name, value in self.before.items()
            if after[name] != value
        )
        if not changed:
            return None
        if devices not in self.models:
            self.models[devices] = CostModel(problem)
        model = self.models[devices]
        try:
            verdict = score(problem, plan, model)
            if self.target and inexpressible(self.target, problem, plan, self.shape):
                return None
        except InvalidPlanError:
            return None
        if not verdict.feasible:
            return None
        fits_how = _least_sure(_stages(problem, plan, verdict, model))
        if fits_how not in _FINE:
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


def _with_all_batches(problem: Problem) -> Problem:
    """Return the problem with every micro-batch that divides the batch."""
    job = problem.job
    batch = job.global_batch
    small = [n for n in range(1, math.isqrt(batch) + 1) if batch % n == 0]
    sizes = {*job.micro_batches, *small, *(batch // n for n in small)}
    wider = replace(problem, job=replace(job, micro_batches=tuple(sorted(sizes))))
    return wider if in_range(wider) else problem


# The settings of a plan as frameworks count them


def settings_of_plan(problem: Problem, plan: Plan) -> dict[str, str]:
    """Return the settings of a plan, for people, by name."""
    strategies = strategies_of(plan)
    size = plan.micro_batch

    def text(values: Iterator[Any]) -> str:
        return "|".join(map(str, dict.fromkeys(values)))

    return {
        **plan.degrees,
        "micro-batch size": text(Fraction(size, s.dp) for s in strategies),
        "distributed optimizer": _on(plan.distributed_optimizer),
        "recomputation": "|".join(plan.recomputations),
        "sequence parallelism": text(
            _on(problem.job.splits_sequence(s) and s.tp > 1) for s in strategies
        ),
        "devices": str(problem.cluster.num_devices),
    }


def _on(value: bool) -> str:
    return "on" if value else "off"


# Changes


def _options(
    problem: Problem, cut: Callable[[int], list[list[LayerId]] | None]
) -> Iterator[_Option]:
    """Yield other values of every setting.

    More devices come first, as other changes need the ranks that they add.
    """

    def strategies(name: str, **values: Any) -> _Option:
        change = partial(replace, **values)
        return _Option(name, partial(with_strategies, change=change))

    for times in _TIMES:
        yield _Option("devices", partial(_resized, Fraction(times)), times)
    for choice in RECOMPUTE:
        yield strategies("recomputation", recompute=choice)
    for zero, merges in product(problem.job.zero, (False, True)):
        yield _Option("ZeRO stage", partial(_sharded, zero, merges))
    distribute = partial(replace, distributed_optimizer=True)
    yield _Option("distributed optimizer", distribute)
    for split in (False, True):
        yield strategies("sequence parallelism", sequence_parallel=split)
    for factor in _FACTORS:
        size = {"micro_batch": factor}
        yield _Option("micro-batch size", partial(with_factors, factors=size))
        for name in ("tp", "cp", "ep"):
            scale = Fraction(1) if name == "ep" else 1 / factor
            resize = partial(_resized, scale, factors={name: factor})
            yield _Option(name, resize)
        yield _Option("pp", partial(_recut, cut, factor))
    for chunks in problem.job.virtual_stages:
        recut = partial(_recut, cut, Fraction(1), chunks=chunks)
        yield _Option("virtual stages", recut)


def _resized(scale: Fraction, plan: Plan, factors: Factors = _NONE) -> Plan:
    """Return a plan with so many times the data-parallel ranks.

    Their micro-batch size stays; ``factors`` multiply other degrees.
    """
    more = scale.numerator if plan.replicas > 1 else 1
    replicas = Fraction(more, math.gcd(plan.replicas, scale.denominator))
    ranks = scale / replicas
    return with_factors(
        plan, {"replicas": replicas, "micro_batch": ranks, "dp": ranks, **factors}
    )


def _sharded(zero: int, merges: bool, plan: Plan) -> Plan:
    """Return a plan with a ZeRO stage.

    With ``merges`` all replicas become one, whose ranks are data-parallel.
    """
    ranks = Fraction(plan.replicas if merges else 1)
    factors = {"replicas": 1 / ranks, "micro_batch": ranks, "dp": ranks}
    merged = with_factors(plan, factors)
    return with_strategies(merged, partial(replace, zero=zero))


def _recut(
    cut: Callable[[int], list[list[LayerId]] | None],
    factor: Fraction,
    plan: Plan,
    chunks: int | None = None,
) -> Plan:
    """Return a plan with other stages, which have equally many layers."""
    chunks, count = chunks or plan.virtual_stages, plan.num_blocks * factor
    resized = _resized(1 / factor, plan)
    strategy, *others = strategies_of(resized)
    layers_of_stages = None
    if count.denominator == 1 and plan.placement == "loop" and not others:
        layers_of_stages = cut(int(count) * chunks)
    if layers_of_stages is None:
        raise ValueError("expected equal stages, got others")
    stages = tuple(
        Stage.of(layers, (strategy,) * len(layers)) for layers in layers_of_stages
    )
    return replace(resized, stages=stages, virtual_stages=chunks)
