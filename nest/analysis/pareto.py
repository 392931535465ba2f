"""``frontier(problem)``: the exact trade-off between time, memory, devices.

The frontier of a problem is the set of its plans that no other plan beats;
docs/frontier.md has the definitions and the proof that every subset of the
objectives is a filter of time, memory and devices.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import structs

import nest.errors
from nest.analysis.fit import with_devices
from nest.cost.model import CostModel
from nest.cost.rules import get_rules
from nest.cost.score import Score, score
from nest.errors import InvalidOptionError, SolverError, UnknownNameError
from nest.ir.base import check_real
from nest.ir.io import problem_hash
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.ir.views import Row, Tabular
from nest.search.frontier.staircase import Gap, Point, leave_room
from nest.solvers.base import Deadline, SolveOptions, check_limits
from nest.solvers.cell import Cell, OnProgress, Running, about, run_cells
from nest.solvers.challenge import SHARE, challengers, reported
from nest.solvers.messages import Failure, OutputMessage
from nest.units import quanta_to_ns
from nest.util.interrupts import Ending

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from nest.analysis.prove import Proof

PS_PER_HOUR = 3600 * 10**12

#: What traces a curve in a process of its own.
_TRACER = "nest.search.tracer:FrontierTracer"


@dataclass(frozen=True)
class FrontierPoint:
    """A plan that no other plan beats, and what it reaches.

    Attributes
    ----------
    devices
        Devices of the cluster that the plan is for.
    step_quanta
        Step time ``T``.
    memory_bytes
        What the fullest device holds.
    plan, score
        The plan, and its price by the shared cost model on that cluster.
    proven
        Whether it is proven that no plan for as many devices beats it.
    """

    devices: int
    step_quanta: int
    memory_bytes: int
    plan: Plan
    score: Score
    proven: bool = True

    @property
    def device_quanta(self) -> int:
        """Devices times step time: what a step is charged for."""
        return self.devices * self.step_quanta


#: What can be minimized. The cost is that of one unit of price, which is the
#: same for all points.
OBJECTIVES: dict[str, Callable[[FrontierPoint], int]] = {
    "time": lambda point: point.step_quanta,
    "memory": lambda point: point.memory_bytes,
    "devices": lambda point: point.devices,
    "cost": lambda point: point.device_quanta,
}


@dataclass(frozen=True)
class Curve:
    """Step time against memory on a cluster of some size, and how long it took.

    Points come by ascending memory, hence descending step time; there are none if
    nothing fits, or nothing was found in time. Gaps are what is not proven; there are
    none unless the time limit passed.
    """

    devices: int
    problem: Problem
    points: tuple[FrontierPoint, ...]
    gaps: tuple[Gap, ...] = ()
    wall_s: float = 0.0

    @property
    def proven(self) -> bool:
        """Whether the curve is the exact frontier."""
        return not self.gaps

    @property
    def lower_bound_quanta(self) -> int | None:
        """What no plan on the cluster is faster than; ``None`` if unknown."""
        steps = [point.step_quanta for point in self.points[-1:]]
        steps += [gap.lower_bound_quanta for gap in self.gaps]
        return min(steps, default=None) or None

    def at_most(self, memory_bytes: int) -> FrontierPoint | None:
        """Return the fastest point that needs no more memory, if any."""
        fitting = [p for p in self.points if p.memory_bytes <= memory_bytes]
        return fitting[-1] if fitting else None


@dataclass(frozen=True, repr=False)
class Frontier(Tabular):
    """The frontier of a problem.

    Attributes
    ----------
    problem
        The problem on its whole cluster.
    objectives
        What is minimized.
    curves
        Time against memory for every number of devices, ascending.
    points
        The frontier in the chosen objectives, ordered by devices and
        memory; one plan per point.
    price_usd_per_hour
        Of a device; ``None`` if unknown.
    proofs
        What another solver says about points, if one was asked.
    """

    problem: Problem
    objectives: tuple[str, ...]
    curves: tuple[Curve, ...]
    points: tuple[FrontierPoint, ...]
    price_usd_per_hour: float | None = None
    proofs: tuple[Proof, ...] = ()

    @property
    def proven(self) -> bool:
        """Whether all of it is proven."""
        return all(c.proven for c in self.curves)

    def step_usd(self, point: FrontierPoint) -> float | None:
        """Return what a step of a point costs: price × devices × time."""
        if self.price_usd_per_hour is None:
            return None
        hours = Fraction(point.device_quanta * self.problem.quantum_ps, PS_PER_HOUR)
        return float(hours * Fraction(self.price_usd_per_hour))

    def __repr__(self) -> str:
        """Return what it is in a line."""
        return (
            f"<Frontier of {self.problem.name} in "
            f"{', '.join(self.objectives)}: {len(self.points)} points, "
            f"{'proven' if self.proven else 'not all proven'}>"
        )

    def plot(self, axes: Axes | None = None) -> Axes:
        """Draw step time against memory.

        Raises
        ------
        NestError
            If Matplotlib is not installed.
        """
        from nest.analysis.pareto_plot import draw
        from nest.util.plots import new_axes

        axes = axes or new_axes()
        draw(axes, self)
        return axes

    def to_rows(self) -> list[Row]:
        """Return a row per point."""
        quantum_ps = self.problem.quantum_ps
        return [
            {
                "point": number,
                "devices": point.devices,
                "step_time_ns": quanta_to_ns(point.step_quanta, quantum_ps),
                "memory_bytes": point.memory_bytes,
                "step_usd": self.step_usd(point),
                "proven": point.proven,
                "plan": point.plan.text,
            }
            for number, point in enumerate(self.points, 1)
        ]

    def curve(self, devices: int) -> Curve:
        """Return the curve of one number of devices."""
        return next(c for c in self.curves if c.devices == devices)


def frontier(
    problem: Problem,
    objectives: Sequence[str] = ("time", "memory"),
    *,
    devices: Sequence[int] | None = None,
    price_usd_per_hour: float | None = None,
    time_limit_s: float | None = None,
    workers: int = 1,
    on_progress: OnProgress | None = None,
) -> Frontier:
    """Return the exact frontier of a problem.

    Parameters
    ----------
    problem
        The problem.
    objectives
        What to minimize, of :data:`OBJECTIVES`.
    devices
        Sizes of clusters to compare, each the first devices of the
        problem's. By default the whole cluster, and its halves, quarters
        and so on too if ``devices`` or ``cost`` is an objective.
    price_usd_per_hour
        Of a device; by default what the problem says.
    time_limit_s
        Wall-clock limit for all of it. Sizes that have to wait for a process
        share what is left, small ones first.
    workers
        Processes that share the sizes of clusters, or the cases of a single
        size; with 1 this process does it all.
    on_progress
        Called now and then.

    Raises
    ------
    InvalidOptionError
        If an objective is twice, ``cost`` is one and there is no price or
        no second, or a number of devices does not fit.
    UnknownNameError
        If there is no such objective.
    InvalidProblemError
        If the cost model cannot price the problem.
    UnsupportedProblemError
        If the graph has too many predecessor-closed sets.
    SolverError
        If the shared score contradicts the search, or a process failed.
    Interrupted
        On Ctrl-C, with the frontier as far as it is known; a second one ends
        it at once.
    """
    chosen = check_objectives(objectives)
    price = known_price(problem, chosen, price_usd_per_hour)
    if devices is None:
        devices = _halves(problem, chosen)
    sizes = _check_devices(problem, devices)
    check_limits("workers", workers, time_limit_s)
    CostModel(problem)
    problems = [with_devices(problem, size) for size in sizes]
    alone = workers == 1 or len(sizes) == 1
    trace = _trace_here if alone else _trace_apart
    deadline = Deadline(time_limit_s)
    with Ending(deadline.expire) as ending:
        traced = trace(problems, deadline, on_progress, workers)
    curves = tuple(map(_checked_curve, traced))
    found = Frontier(
        problem=problem,
        objectives=chosen,
        curves=curves,
        points=_non_dominated(
            (point for curve in curves for point in curve.points), chosen
        ),
        price_usd_per_hour=price,
    )
    if ending.asked is not None:
        ending.stop(found)
    return found


# What is asked for


def check_objectives(objectives: Sequence[str]) -> tuple[str, ...]:
    """Return the objectives if each is known and there once.

    Raises
    ------
    UnknownNameError, InvalidOptionError
        If not.
    """
    for number, name in enumerate(objectives):
        if name not in OBJECTIVES:
            raise UnknownNameError("objective", name, OBJECTIVES)
        if name in objectives[:number]:
            raise InvalidOptionError(
                f"objective: expected each once, got {name!r} twice; remove one"
            )
    if not objectives:
        raise InvalidOptionError(
            f"objective: expected some of {', '.join(OBJECTIVES)}, got none; name one"
        )
    return tuple(objectives)


def known_price(
    problem: Problem, objectives: Sequence[str], given: float | None
) -> float | None:
    """Return what a device costs per hour, in USD: as given or as stated.

    ``None`` if unknown, or of no use as steps take no seconds.

    Raises
    ------
    InvalidOptionError
        If the price is bad, or there is none and ``cost`` is an objective.
    """
    price = given
    if price is None:
        price = problem.cluster.price_usd_per_hour
    else:
        try:
            check_real("price_usd_per_hour", price, positive=True)
        except ValueError as error:
            raise InvalidOptionError(f"{error}; correct the value") from None
    no_seconds = problem.time_unit != "s" or get_rules(problem.preset).steady_state
    if no_seconds:
        if "cost" in objectives:
            raise InvalidOptionError(
                f"objective cost: expected the time of a step in seconds, got one in "
                f"{problem.time_unit!r} under preset {problem.preset!r}; leave cost out"
            )
        return None
    if price is None and "cost" in objectives:
        raise InvalidOptionError(
            "objective cost: expected a price per device, got none in "
            "$.cluster.device.price_usd_per_hour; pass --price"
        )
    return price


def _halves(problem: Problem, objectives: Sequence[str]) -> tuple[int, ...]:
    """Return the default sizes: all devices, their half, quarter, …."""
    most = problem.cluster.num_devices
    if not {"devices", "cost"} & set(objectives):
        return (most,)
    return tuple(most >> i for i in range(most.bit_length()))


def _check_devices(problem: Problem, devices: Sequence[int]) -> list[int]:
    """Return the sizes, ascending."""
    most = problem.cluster.num_devices
    for size in devices:
        if not 1 <= size <= most:
            raise InvalidOptionError(
                f"--devices: expected numbers from 1 to {most}, the devices "
                f"of the cluster, got {size}; remove it"
            )
    if not devices or len(set(devices)) < len(devices):
        raise InvalidOptionError(
            f"--devices: expected distinct numbers, at least one, got "
            f"{list(devices)}; correct them"
        )
    return sorted(devices)


# Tracing one curve per size


class _Traced(NamedTuple):
    """What a search says about one size: claims, to be checked."""

    problem: Problem
    points: Sequence[Point]
    gaps: Sequence[Gap]
    wall_s: float


def _share(deadline: Deadline, left: int, workers: int) -> Deadline:
    """Return the clock of the next of so many sizes that are left."""
    remaining_s = deadline.remaining_s
    if remaining_s is None or left <= workers:
        return deadline.shortened(remaining_s)
    return deadline.shortened(remaining_s * workers / left)


def _signs(
    problem: Problem, deadline: Deadline, on_progress: OnProgress | None
) -> OnProgress:
    """Return what hands on signs of life, on the clock of the whole."""
    show = about(f"{problem.cluster.num_devices} devices", on_progress)
    return lambda running: show(replace(running, elapsed_s=deadline.elapsed_s))


def _trace_here(
    problems: Sequence[Problem],
    deadline: Deadline,
    on_progress: OnProgress | None,
    workers: int,
) -> list[_Traced]:
    """Trace the sizes in this process, one after the other."""
    from nest.search.tracer import trace

    found = []
    for number, problem in enumerate(problems):
        clock = _share(deadline, len(problems) - number, 1)
        show = _signs(problem, deadline, on_progress)

        def say(text: str, show: OnProgress = show) -> None:
            show(Running("pareto", message=text))

        points, gaps = trace(problem, clock, say, workers)
        found.append(_Traced(problem, points, gaps, clock.elapsed_s))
    return found


def _trace_apart(
    problems: Sequence[Problem],
    deadline: Deadline,
    on_progress: OnProgress | None,
    workers: int,
) -> list[_Traced]:
    """Trace the sizes in processes of their own, some at the same time."""
    # Without a limit the longest first: all end soonest.
    order = problems if deadline.limit_s else problems[::-1]
    traced: dict[int, _Traced] = {}
    limited = deadline.limit_s

    def is_over() -> bool:
        """Whether the user ended it, rather than the clock."""
        return deadline.limit_s != limited

    def cells() -> Iterator[Cell]:
        for number, problem in enumerate(order):
            if is_over():
                return
            # Those that run already have their share.
            free = workers - (number - len(traced))
            clock = _share(deadline, len(order) - number, free)
            show = _signs(problem, deadline, on_progress)
            cell = Cell("pareto", _TRACER, problem, SolveOptions(), clock, show)
            clock.at_expiry = cell.interrupt
            yield cell

    def take(cell: Cell) -> None:
        cluster, last = cell.problem.cluster, cell.last
        extra = last.output.extra if isinstance(last, OutputMessage) else {}
        if "gaps" not in extra:
            wall_s = cell.clock.elapsed_s
            lost = _untraced(cell.problem)._replace(wall_s=wall_s)
            traced[cluster.num_devices] = lost
            # A process that ends as it begins has nothing to say.
            if is_over() or isinstance(last, OutputMessage):
                return
            if isinstance(last, Failure):
                raise _failure(last)
            if cell.out_of_time:
                return
            assert cell.usage is not None
            raise SolverError(
                f"frontier of {cluster.num_devices} devices: the process "
                f"ended with code {cell.usage.exit_code}, no answer; give it "
                f"more memory, or use fewer --workers"
            )
        traced[cluster.num_devices] = _Traced(
            cell.problem,
            tuple(
                Point(quanta, memory_bytes, msgspec.convert(plan, Plan))
                for quanta, memory_bytes, plan in extra.get("points", ())
            ),
            tuple(Gap(*gap) for gap in extra["gaps"]),
            cell.clock.elapsed_s,
        )

    try:
        run_cells(cells(), workers, take)
    except OSError as error:
        raise SolverError(f"cannot start a process: {error}") from error
    return [
        traced.get(problem.cluster.num_devices, _untraced(problem))
        for problem in problems
    ]


def _untraced(problem: Problem) -> _Traced:
    """Return that nothing is known of a size."""
    everything = Gap(-1, problem.cluster.memory_bytes(), 0)
    return _Traced(problem, (), (everything,), 0.0)


def _failure(failure: Failure) -> Exception:
    """Return the exception that a process reported."""
    if failure.error in ("InvalidProblemError", "UnsupportedProblemError"):
        error: type[Exception] = getattr(nest.errors, failure.error)
        return error(failure.text)
    if failure.error == "MemoryError":
        return SolverError(
            "frontier: expected enough memory, got none left; use fewer "
            "--workers or --devices"
        )
    return SolverError(f"frontier: {failure.text}")


def _checked_curve(traced: _Traced) -> Curve:
    """Score every plan again; raise where the search said otherwise."""
    problem = traced.problem
    model = CostModel(problem)
    size = problem.cluster.num_devices
    points: list[FrontierPoint] = []
    for claim in traced.points:
        found = score(problem, claim.plan, model)
        step = found.step_quanta
        memory_bytes = max(block.memory_bytes for block in found.blocks)
        claimed = (claim.step_quanta, claim.memory_bytes)
        ordered = not points or (
            points[-1].memory_bytes < memory_bytes and points[-1].step_quanta > step
        )
        if not found.feasible or claimed != (step, memory_bytes) or not ordered:
            reason = "".join(f"; {text}" for text in found.violations[:1])
            raise SolverError(
                f"frontier of {size} devices: expected a feasible plan of {claimed[0]} "
                f"quanta with {claimed[1]} bytes, faster and larger than the one "
                f"before it, got one that the shared cost model puts at {step} quanta "
                f"with {memory_bytes} bytes{reason}; this is a bug of the search, "
                f"please report it"
            )
        points.append(
            FrontierPoint(
                devices=size,
                step_quanta=step,
                memory_bytes=memory_bytes,
                plan=structs.replace(claim.plan, problem_hash=problem_hash(problem)),
                score=found,
                proven=not (
                    leave_room(traced.gaps, memory_bytes, step - 1)
                    or leave_room(traced.gaps, memory_bytes - 1, step)
                ),
            )
        )
    gaps = tuple(traced.gaps)
    _challenge(model, points, gaps, Deadline(SHARE * traced.wall_s))
    return Curve(size, problem, tuple(points), gaps, traced.wall_s)


def _challenge(
    model: CostModel,
    points: Sequence[FrontierPoint],
    gaps: Sequence[Gap],
    deadline: Deadline,
) -> None:
    """Raise where a plan that the search did not return refutes a curve."""
    fastest = points[-1].plan if points else None
    for plan, step_quanta, memory_bytes in challengers(model, fastest, deadline):
        matched = any(
            point.step_quanta <= step_quanta and point.memory_bytes <= memory_bytes
            for point in points
        )
        if not matched and not leave_room(gaps, memory_bytes, step_quanta):
            size = model.problem.cluster.num_devices
            reason = (
                f"wrong proof: expected no plan of {size} devices within "
                f"{memory_bytes} bytes that takes {step_quanta} quanta, got "
                f"one ({plan.text})"
            )
            raise SolverError(reported(model.problem, reason))


# Knees


def bulges(found: Frontier) -> list[Fraction]:
    """Return how far every point bulges from the plane of the extremes.

    Every objective is scaled to 0 at its least and 1 at its greatest value on
    the frontier. The plane goes through the points that are worst in one
    objective and best in all others; in two objectives it is the chord between
    the ends of the frontier. The bulge is ``1 - Σ`` of the scaled values, the
    distance from the plane towards what is better but for the factor
    ``1/sqrt(k)`` in ``k`` objectives; it is exact. The point that bulges most
    is the knee (Das, "On characterizing the 'knee' of the Pareto curve based
    on Normal-Boundary Intersection", Structural Optimization 18, 1999).

    Returns
    -------
    One per point, below 1; 0 for the ends in two objectives, and for all
    points where no objective varies.
    """
    return [1 - sum(row, Fraction(0)) if row else Fraction(0) for row in _scaled(found)]


def knee(sizes: Sequence[Fraction]) -> int | None:
    """Return the number of the point that bulges most, from 1.

    ``None`` if none bulges: where more than two objectives vary all points
    may be behind the plane.
    """
    most = max(sizes, default=Fraction(0))
    return sizes.index(most) + 1 if most > 0 else None


def _scaled(found: Frontier) -> list[list[Fraction]]:
    """Return the objectives that vary, from 0 at the best to 1, by point."""
    columns = []
    for name in found.objectives:
        values = [OBJECTIVES[name](point) for point in found.points]
        low, high = min(values, default=0), max(values, default=0)
        if low < high:
            columns.append([Fraction(v - low, high - low) for v in values])
    return [list(row) for row in zip(*columns, strict=True)] or [
        [] for _ in found.points
    ]


def knees(found: Frontier, count: int) -> list[int]:
    """Return the positions of the points that say most, ascending.

    The first is the knee, the point that bulges most. Where two objectives
    vary it parts the frontier, and the next one is the point that is farthest
    below the chord of its part, and so on, as Ramer (1972) and Douglas and
    Peucker (1973) outline a curve: so they are not all neighbors of the knee.
    When no point is below its chord, and where more objectives vary, it is the
    next one by its bulge. Of points that are alike the first one counts.
    """
    rows, sizes = _scaled(found), bulges(found)
    chosen = _corners(rows, count) if rows and len(rows[0]) == 2 else []
    order = sorted(range(len(sizes)), key=lambda i: -sizes[i])
    rest = [i for i in order if i not in chosen]
    return sorted([*chosen, *rest][:count])


def points_to_show(
    found: Frontier, top: int | None = None, within: Fraction | None = None
) -> list[int]:
    """Return the positions of the points that a table shows, ascending.

    The best point of every objective is always among them.

    Parameters
    ----------
    found
        The frontier.
    top
        How many points :func:`knees` adds to these. Default: all.
    within
        A relative difference. A point is left out if one that is shown is at
        most so much worse in every objective: an ε-approximate Pareto set
        (Papadimitriou and Yannakakis, FOCS 2000). Default: none is left out.
    """
    rows = [
        [OBJECTIVES[name](point) for name in found.objectives] for point in found.points
    ]
    best = {
        min(range(len(rows)), key=lambda index: (rows[index][i], index))
        for i in range(len(found.objectives) if rows else 0)
    }
    chosen = range(len(rows)) if top is None else knees(found, top)
    if within is None:
        return sorted({*chosen, *best})
    shown = [*best]
    for index in chosen:
        limits = [(1 + within) * value for value in rows[index]]
        if not any(all(map(operator.le, rows[other], limits)) for other in shown):
            shown.append(index)
    return sorted(shown)


def _corners(rows: Sequence[Sequence[Fraction]], count: int) -> list[int]:
    """Return points below the chords of parts, the farthest first."""
    order = sorted(range(len(rows)), key=lambda i: tuple(rows[i]))
    parts = [(0, len(order) - 1)]
    found: list[int] = []
    while len(found) < count:
        best = max(
            (
                (_below(rows, order, part, i), -i, part)
                for part in parts
                for i in range(part[0] + 1, part[1])
            ),
            default=(Fraction(0), 0, (0, 0)),
        )
        distance, i, part = best
        if distance <= 0:
            break
        found.append(order[-i])
        parts.remove(part)
        parts += [(part[0], -i), (-i, part[1])]
    return found


def _below(
    rows: Sequence[Sequence[Fraction]],
    order: Sequence[int],
    part: tuple[int, int],
    i: int,
) -> Fraction:
    """Return the squared distance of a point from the chord of its part.

    Below 0 for a point that is above it.
    """
    (x0, y0), (x1, y1), (x, y) = (rows[order[n]] for n in (*part, i))
    across = (x - x0) * (y1 - y0) - (y - y0) * (x1 - x0)
    length = (x1 - x0) ** 2 + (y1 - y0) ** 2
    return across * abs(across) / length


# The frontier in the chosen objectives


def _non_dominated(
    points: Iterable[FrontierPoint], objectives: Sequence[str]
) -> tuple[FrontierPoint, ...]:
    """Return the points that no other one beats, one of equal ones."""

    def values(point: FrontierPoint, names: Iterable[str]) -> tuple[int, ...]:
        return tuple(OBJECTIVES[name](point) for name in names)

    kept: dict[tuple[int, ...], FrontierPoint] = {}
    # What beats a point comes before it; so does the best of equal ones.
    for point in sorted(points, key=lambda p: values(p, (*objectives, *OBJECTIVES))):
        own = values(point, objectives)
        if not any(
            all(a <= b for a, b in zip(other, own, strict=True)) for other in kept
        ):
            kept[own] = point
    return tuple(sorted(kept.values(), key=lambda p: (p.devices, p.memory_bytes)))
