"""Phaze's front end: latencies of a layer from a schedule of its operators.

Citation: as :mod:`baselines.phaze`; there an integer program (Gurobi, gap
1 %) schedules the operators of a layer on the cores of an accelerator, once
for the forward and once for the backward pass, and the makespans are the
layer's latencies. Here CP-SAT solves the same problem to optimality.

An accelerator has ``T`` tensor cores and ``V`` vector cores. An operator runs
on a tensor core, a vector core, or one of each (a fused operator), or is free
(a view). It uses one core of its type, or the whole chip: all cores of its
type, and alone, unless ``simultaneous`` says that the other type may work
meanwhile. With start ``t_i``, duration ``p_i`` and ``y_i`` = 1 for the whole
chip::

    p_i = y_i whole_i + (1 - y_i) single_i
    t_i + p_i <= t_j                    for every edge i -> j
    one operator at a time on a core; a fused one on cores of equal number
    minimise max_i t_i + p_i

Two operators of one type on the whole chip exclude each other, which the
published program writes as an order of every pair of operators.

Operators that all others precede or follow cut a layer into parts, which are
scheduled one by one.

Deviations: optimal, not within 1 %; the constraints of both core types are
always on, where the code adds those that a schedule without them breaks;
times are whole cycles; communication between operators and the capacity of
the buffers cost nothing, as in the code.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import msgspec

from nest.errors import InvalidProblemError
from nest.ir.graph import LayerCost, LayerKind
from nest.solvers.base import Deadline

#: What an operator runs on: a tensor core, a vector core, one of each at the
#: same time, or nothing.
Engine = Literal["tensor", "vector", "both", "none"]

NS_PER_S = 1e9

#: What the engine adds up without loss.
MAX_CYCLES = 2**53


class Cores(NamedTuple):
    """The cores of an accelerator."""

    tensor: int
    vector: int


@dataclass(frozen=True, kw_only=True)
class Operator:
    """An operator of a layer.

    Attributes
    ----------
    name
        Unique among the operators of a pass.
    engine
        What it runs on.
    single_cycles
        Cycles on one core of its type; ``None`` if it cannot.
    whole_cycles
        Cycles on all cores of its type; ``None`` if it cannot.
    after
        Names of the operators whose results it reads.
    """

    name: str
    engine: Engine
    single_cycles: int | None = None
    whole_cycles: int | None = None
    after: tuple[str, ...] = ()


class Placed(NamedTuple):
    """When and where an operator runs.

    Attributes
    ----------
    start_cycle, end_cycle
        ``[start, end)``.
    whole
        Whether it uses all cores of its type.
    core
        Number of its core (of both, if fused); ``None`` on the whole chip,
        or if it runs on nothing.
    """

    start_cycle: int
    end_cycle: int
    whole: bool
    core: int | None


@dataclass(frozen=True)
class Schedule:
    """A schedule of one pass.

    Attributes
    ----------
    makespan_cycles
        Its length.
    operators
        Where every operator runs.
    lower_bound_cycles
        No schedule is shorter.
    """

    makespan_cycles: int
    operators: Mapping[str, Placed]
    lower_bound_cycles: int

    @property
    def optimal(self) -> bool:
        """Whether it is proven to be the shortest."""
        return self.makespan_cycles == self.lower_bound_cycles


def schedule(
    operators: Sequence[Operator],
    cores: Cores,
    *,
    simultaneous: bool = False,
    time_limit_s: float | None = None,
    num_workers: int = 8,
    seed: int = 0,
) -> Schedule:
    """Return the shortest schedule, or the best one when time runs out.

    Parameters
    ----------
    operators
        A DAG, in any order.
    cores
        The cores.
    simultaneous
        Whether an operator on the whole chip leaves the cores of the other
        type to others.
    time_limit_s, num_workers, seed
        Options of the engine. Its strategies complement each other, so that
        eight workers prove in a second, also on two cores, what one does not
        in a minute; only with one is the schedule the same every time, the
        proven makespan always is.

    Raises
    ------
    InvalidProblemError
        If the operators are no such DAG, one has nothing to run on, or all
        of them could take more than 2**53 cycles.
    """
    deadline = Deadline(time_limit_s)
    _check(operators, cores)
    start = bound = 0
    placed: dict[str, Placed] = {}
    for part in in_series(operators):
        found = _schedule_part(
            part, cores, simultaneous, deadline, num_workers, seed
        )
        for name, place in found.operators.items():
            placed[name] = place._replace(
                start_cycle=start + place.start_cycle,
                end_cycle=start + place.end_cycle,
            )
        start += found.makespan_cycles
        bound += found.lower_bound_cycles
    return Schedule(start, placed, bound)


def in_series(operators: Sequence[Operator]) -> list[list[Operator]]:
    """Cut a DAG where everything before depends on nothing after.

    Every operator of a part precedes every operator of the next one, so the
    shortest schedule is that of the parts, one after the other. Each part
    names only its own operators in ``after``.
    """
    bit = {operator.name: 1 << i for i, operator in enumerate(operators)}
    before: dict[str, int] = {}
    left = list(operators)
    order: list[Operator] = []
    while left:
        # The reads of those that are ready are known.
        ready = [x for x in left if all(name in before for name in x.after)]
        for operator in ready:
            before[operator.name] = 0
            for name in operator.after:
                before[operator.name] |= before[name] | bit[name]
        order += ready
        left = [x for x in left if x.name not in before]
    order.sort(key=lambda x: before[x.name].bit_count())
    parts: list[list[Operator]] = []
    needed = [before[x.name] for x in order]
    for i in range(len(needed) - 1, 0, -1):
        needed[i - 1] &= needed[i]
    done = start = 0
    for i, operator in enumerate(order, 1):
        done |= bit[operator.name]
        if i == len(order) or done & ~needed[i] == 0:
            names = {x.name for x in order[start:i]}
            parts.append(
                [
                    replace(x, after=tuple(n for n in x.after if n in names))
                    for x in order[start:i]
                ]
            )
            start = i
    return parts


def _schedule_part(
    operators: Sequence[Operator],
    cores: Cores,
    simultaneous: bool,
    deadline: Deadline,
    num_workers: int,
    seed: int,
) -> Schedule:
    """Schedule operators that CP-SAT has to look at together."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    variables = _Variables(model, operators, cores)
    for operator in operators:
        variables.add(operator, simultaneous)
    makespan = variables.finish()
    variables.hint()
    engine = cp_model.CpSolver()
    engine.parameters.num_workers = num_workers
    engine.parameters.random_seed = seed
    if deadline.remaining_s is not None:
        engine.parameters.max_time_in_seconds = deadline.remaining_s
    status = engine.solve(model)
    bound = max(0, round(engine.best_objective_bound))
    if status == cp_model.UNKNOWN:
        return _one_by_one(operators, bound)
    # One after the other always works.
    assert status in (cp_model.OPTIMAL, cp_model.FEASIBLE), status
    placed = {
        operator.name: variables.placed(engine, operator.name)
        for operator in operators
    }
    return Schedule(
        engine.value(makespan),
        _with_cores(operators, placed),
        bound,
    )


def _one_by_one(operators: Sequence[Operator], bound: int) -> Schedule:
    """Run operators, sources first, one after the other the faster way."""
    at = 0
    placed = {}
    for operator in operators:
        cycles = _least_cycles(operator)
        whole = operator.engine != "none" and operator.single_cycles != cycles
        core = None if whole or operator.engine == "none" else 0
        placed[operator.name] = Placed(at, at + cycles, whole, core)
        at += cycles
    return Schedule(at, placed, bound)


def _with_cores(
    operators: Sequence[Operator], placed: Mapping[str, Placed]
) -> dict[str, Placed]:
    """Give operators without a number the first core that is free.

    They never need more cores than there are, as intervals do not.
    """
    found = dict(placed)
    free_at: dict[str, dict[int, int]] = {}
    for operator in sorted(
        operators, key=lambda x: placed[x.name].start_cycle
    ):
        place = placed[operator.name]
        if operator.engine == "none" or place.whole or place.core is not None:
            continue
        ends = free_at.setdefault(operator.engine, {})
        core = 0
        while ends.get(core, 0) > place.start_cycle:
            core += 1
        ends[core] = place.end_cycle
        found[operator.name] = place._replace(core=core)
    return found


def _check(operators: Sequence[Operator], cores: Cores) -> None:
    for field, count in zip(("tensor", "vector"), cores, strict=True):
        if count < 0:
            raise InvalidProblemError(
                f"cores.{field}: expected a number >= 0, got {count}; correct "
                f"it"
            )
    names = [operator.name for operator in operators]
    for name in names:
        if names.count(name) > 1:
            raise InvalidProblemError(
                f"operator {name!r}: expected distinct names, got it "
                f"{names.count(name)} times; rename one"
            )
    for operator in operators:
        _check_operator(operator, set(names), cores)
    total = sum(map(_most_cycles, operators))
    if total > MAX_CYCLES:
        raise InvalidProblemError(
            f"operators: expected at most {MAX_CYCLES} cycles together, got "
            f"{total}; count in larger units"
        )
    done: set[str] = set()
    while len(done) < len(names):
        ready = {
            operator.name
            for operator in operators
            if operator.name not in done and done.issuperset(operator.after)
        }
        if not ready:
            left = ", ".join(name for name in names if name not in done)
            raise InvalidProblemError(
                f"operators: expected no cycle, got one among {left}; remove "
                f"an entry of after"
            )
        done |= ready


def _check_operator(operator: Operator, names: set[str], cores: Cores) -> None:
    where = f"operator {operator.name!r}"
    for before in operator.after:
        if before not in names:
            raise InvalidProblemError(
                f"{where}: expected names of operators in after, got "
                f"{before!r}; correct it"
            )
    for field in ("single_cycles", "whole_cycles"):
        cycles: int | None = getattr(operator, field)
        if cycles is not None and cycles < 1:
            raise InvalidProblemError(
                f"{where}: {field}: expected at least 1, got {cycles}; "
                f"correct it or use engine 'none'"
            )
    if operator.engine == "none":
        return
    if operator.single_cycles is None and operator.whole_cycles is None:
        raise InvalidProblemError(
            f"{where}: expected single_cycles or whole_cycles, got neither; "
            f"the layer cannot run on this accelerator"
        )
    for engine, count in zip(("tensor", "vector"), cores, strict=True):
        if operator.engine in (engine, "both") and not count:
            raise InvalidProblemError(
                f"{where}: expected at least one {engine} core, got none; add "
                f"one or change its engine"
            )


def _most_cycles(operator: Operator) -> int:
    """Return how long an operator takes at most."""
    return max(operator.single_cycles or 0, operator.whole_cycles or 0)


def _least_cycles(operator: Operator) -> int:
    """Return how long an operator takes at least."""
    ways = (operator.single_cycles, operator.whole_cycles)
    if operator.engine == "none":
        return 0
    return min(cycles for cycles in ways if cycles is not None)


class _Variables:
    """The variables of a model, and its constraints.

    Every operator is one interval whose size and demands depend on ``y``.
    Pairs of optional intervals on the same start and end would be shorter,
    but the presolve of OR-tools 9.15 then loses optima.
    """

    def __init__(
        self, model: Any, operators: Sequence[Operator], cores: Cores
    ) -> None:
        self._model, self._cores = model, cores
        self._operators = operators
        # One after the other, each the slower way: with less room the engine
        # hardly finds a first schedule.
        self._horizon = sum(map(_most_cycles, operators))
        self._starts: dict[str, Any] = {}
        self._ends: dict[str, Any] = {}
        self._whole: dict[str, Any] = {}
        self._on: dict[str, list[Any]] = {}
        self._intervals: tuple[list[Any], list[Any]] = ([], [])
        self._demands: tuple[list[Any], list[Any]] = ([], [])
        self._work: tuple[list[Any], list[Any]] = ([], [])

    def add(self, operator: Operator, simultaneous: bool) -> None:
        """Add an operator."""
        model, name = self._model, operator.name
        start = model.new_int_var(0, self._horizon, f"start {name}")
        end = model.new_int_var(0, self._horizon, f"end {name}")
        self._starts[name], self._ends[name] = start, end
        if operator.engine == "none":
            self._whole[name] = model.new_constant(0)
            model.add(end == start)
            return
        whole = model.new_bool_var(f"whole {name}")
        self._whole[name] = whole
        single_cycles, whole_cycles = (
            operator.single_cycles,
            operator.whole_cycles,
        )
        if whole_cycles is None:
            model.add(whole == 0)
            whole_cycles = single_cycles
        elif single_cycles is None:
            model.add(whole == 1)
            single_cycles = whole_cycles
        assert single_cycles is not None
        assert whole_cycles is not None
        interval = model.new_interval_var(
            start,
            single_cycles + (whole_cycles - single_cycles) * whole,
            end,
            name,
        )
        for side, count in enumerate(self._cores):
            if self._uses(operator, side):
                self._intervals[side].append(interval)
                self._demands[side].append(1 + (count - 1) * whole)
                self._work[side].append(
                    single_cycles
                    + (count * whole_cycles - single_cycles) * whole
                )
            elif count and not simultaneous:
                self._intervals[side].append(interval)
                self._demands[side].append(count * whole)
                self._work[side].append(count * whole_cycles * whole)

    def finish(self) -> Any:
        """Add what ties operators together; return the makespan."""
        model = self._model
        for side, count in enumerate(self._cores):
            if self._intervals[side]:
                model.add_cumulative(
                    self._intervals[side], self._demands[side], count
                )
        for operator in self._operators:
            for before in operator.after:
                model.add(self._ends[before] <= self._starts[operator.name])
        # Fused operators tie the numbers of their cores; without them any
        # core will do, and counting is enough.
        if max(self._cores) > 1 and any(
            operator.engine == "both" for operator in self._operators
        ):
            self._number()
        makespan = model.new_int_var(0, self._horizon, "makespan")
        model.add_max_equality(makespan, list(self._ends.values()))
        # Implied, for the bound: core-cycles of work and of the cores.
        for side, count in enumerate(self._cores):
            model.add(sum(self._work[side]) <= count * makespan)
        model.minimize(makespan)
        return makespan

    def hint(self) -> None:
        """Start from one after the other, each the faster way.

        Operators are listed sources first.
        """
        start = _one_by_one(self._operators, 0)
        for operator in self._operators:
            name = operator.name
            place = start.operators[name]
            self._model.add_hint(self._starts[name], place.start_cycle)
            self._model.add_hint(self._ends[name], place.end_cycle)
            if operator.engine != "none":
                self._model.add_hint(self._whole[name], place.whole)
            for core, literal in enumerate(self._on.get(name, ())):
                self._model.add_hint(literal, core == place.core)

    def _number(self) -> None:
        """Give every operator that uses one core of its type a number."""
        model = self._model
        for operator in self._operators:
            if operator.engine != "none":
                count = min(
                    count
                    for side, count in enumerate(self._cores)
                    if self._uses(operator, side)
                )
                name = operator.name
                self._on[name] = [
                    model.new_bool_var(f"{name} on core {core}")
                    for core in range(count)
                ]
                model.add_exactly_one([*self._on[name], self._whole[name]])
        for one, other in itertools.combinations(self._operators, 2):
            if one.name in self._on and other.name in self._on:
                sides = [self._uses(x, 0) for x in (one, other)]
                if "both" in (one.engine, other.engine) or len(set(sides)) < 2:
                    self._order(one.name, other.name)

    def _order(self, one: str, other: str) -> None:
        """Order two operators if they use the same core."""
        model = self._model
        first = model.new_bool_var(f"{one} before {other}")
        second = model.new_bool_var(f"{other} before {one}")
        model.add(self._ends[one] <= self._starts[other]).only_enforce_if(
            first
        )
        model.add(self._ends[other] <= self._starts[one]).only_enforce_if(
            second
        )
        for on_one, on_other in zip(
            self._on[one], self._on[other], strict=False
        ):
            model.add_bool_or([~on_one, ~on_other, first, second])

    def _uses(self, operator: Operator, side: int) -> bool:
        return operator.engine in (("tensor", "vector")[side], "both")

    def placed(self, engine: Any, name: str) -> Placed:
        """Return what the engine chose for an operator."""
        core = next(
            (
                core
                for core, literal in enumerate(self._on.get(name, ()))
                if engine.boolean_value(literal)
            ),
            None,
        )
        return Placed(
            engine.value(self._starts[name]),
            engine.value(self._ends[name]),
            bool(engine.value(self._whole[name])),
            core,
        )


# The front end


@dataclass(frozen=True, kw_only=True)
class LayerOperators:
    """The operators of a layer at one key of its cost table.

    Attributes
    ----------
    forward, backward
        The operators of the two passes.
    """

    forward: Sequence[Operator]
    backward: Sequence[Operator]


def layer_times_ns(
    operators: LayerOperators,
    cores: Cores,
    clock_hz: float,
    **options: Any,
) -> tuple[float, float]:
    """Return the forward and backward time of a layer, in ns.

    Parameters
    ----------
    operators, cores
        Its operators, and the accelerator's cores.
    clock_hz
        Cycles per second.
    **options
        As for :func:`schedule`.

    Raises
    ------
    InvalidProblemError
        As :func:`schedule` does.
    """
    times = []
    for graph in (operators.forward, operators.backward):
        found = schedule(graph, cores, **options)
        times.append(found.makespan_cycles / clock_hz * NS_PER_S)
    return times[0], times[1]


def schedule_kind(
    kind: LayerKind,
    operators: Mapping[tuple[int, ...], LayerOperators],
    cores: Cores,
    clock_hz: float,
    **options: Any,
) -> LayerKind:
    """Return a kind of layer that takes as long as its operators do.

    As Phaze's own front end does before it searches: the times of the
    problem's cost tables become makespans, whatever else a table says stays.
    A key without operators is left out, which means that it is not
    available.

    Parameters
    ----------
    kind
        The kind.
    operators
        Its operators, by key ``(tp, cp, ep, samples)``.
    cores, clock_hz, **options
        As for :func:`layer_times_ns`.

    Raises
    ------
    InvalidProblemError
        If a key is not in the kind's table, or as :func:`schedule` does.
    """
    costs = {(c.tp, c.cp, c.ep, c.samples): c for c in kind.costs}
    for key in operators:
        if key not in costs:
            raise InvalidProblemError(
                f"kind {kind.name!r}: expected keys (tp, cp, ep, samples) of "
                f"its cost table ({_listed(costs)}), got {key}; correct it"
            )
    return msgspec.structs.replace(
        kind,
        costs=tuple(
            _timed(cost, operators[key], cores, clock_hz, options)
            for key, cost in costs.items()
            if key in operators
        ),
    )


def _timed(
    cost: LayerCost,
    operators: LayerOperators,
    cores: Cores,
    clock_hz: float,
    options: Mapping[str, Any],
) -> LayerCost:
    forward_ns, backward_ns = layer_times_ns(
        operators, cores, clock_hz, **options
    )
    return msgspec.structs.replace(
        cost, forward_ns=forward_ns, backward_ns=backward_ns
    )


def _listed(keys: Iterable[object]) -> str:
    return ", ".join(map(str, keys)) or "none"
