"""``uniap``: pipeline stages and strategies of layers in one integer program.

Source: Lin, Wu, Li, Li and Li, "UniAP: unifying inter- and intra-layer
automatic parallelism by mixed integer quadratic programming", CVPR'25 (arXiv
2307.16375). There is no public code, and the full text was not at hand: the
program below follows a summary of the paper, and was not checked against it.

Search space
    Data and tensor parallelism and FSDP (ZeRO 3, where the job allows it) of every
    layer, or of every stage if the job wants one strategy per stage; pipelines of ``S``
    stages of ``n`` devices each, ``n S`` the devices of a replica. No recomputation,
    context or expert parallelism: the least that the job and its costs allow of each.

Search
    An outer loop over ``S`` and the number ``c`` of micro-batches, an integer
    program for each, solved with CP-SAT: the products of placement and
    strategy ``P_ui S_uk`` of the quadratic program are one binary here.

Objective
    ``Σ p_i + Σ o_j + (c - 1) max(p ∪ o)``: the times ``p_i`` of the stages
    for one micro-batch and ``o_j`` of moving activations and gradients
    between them, as in GPipe. ``p_i`` is the passes of the layers, their
    share ``1/c`` of gradient synchronization and update (rounded up), and the
    changes of strategy between neighbors in the chain.

Memory
    Weights, gradients and optimizer state, and the activations in flight
    under the job's schedule: ``c`` micro-batches under GPipe,
    ``min(c, S - i)`` under 1F1B. No working sets, no reserve.

Ignored
    Where a stage sits: layers cost what they cost on the first devices of a replica,
    and every move between stages what it costs between the first two. Of a DAG, changes
    of strategy between layers that are not neighbors in the topological order.

Deviations
    ``c`` stands for all ``(R, B)`` with as many micro-batches; of them the one with the
    fewest replicas is searched, as it leaves the most choice of ``dp`` and FSDP shards
    over all of it. Pairs ``(S, c)`` that would leave devices idle are searched only if
    all do. Layers of the chain are grouped, at most ``groups`` of equal length besides
    single layers at the ends; a group has one strategy and is not cut, and ``S`` is at
    most their number. The search starts from the best even split with one strategy. A
    pair is left out if a bound without memory and communication shows that it cannot
    win, and its program stops after ``effort`` units of CP-SAT's deterministic time.
    The original enumerates all pairs, solves MIQPs, and places DAGs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from baselines.common import (
    Planner,
    Search,
    case_strategies,
    even_split,
    front_terms,
    in_flight,
    make_plan,
    one_strategy_per_stage,
    plainest,
    ranges,
    repeated_range,
    why_not_alike,
    why_not_turns,
)
from baselines.transfers import Transfers
from nest.cost.model import Block, CostModel
from nest.cost.space import BatchSplit, batch_splits, stage_counts
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import SolverOutput
from nest.units import ceil_div, divisors, quanta_to_ns

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

GROUPS = 48
EFFORT = 20


class Pair(NamedTuple):
    """One turn of the outer loop: ``(S, c)``, and who may run it."""

    case: BatchSplit
    num_stages: int
    devices: int


@dataclass(frozen=True)
class Program:
    """The numbers of one integer program, in quanta and bytes per device."""

    pair: Pair
    groups: Sequence[tuple[int, int]]
    choices: Sequence[Strategy]
    #: By group and strategy; ``None`` where there is no cost.
    passes: Sequence[Sequence[int | None]]
    static_bytes: Sequence[Sequence[int]]
    kept_bytes: Sequence[Sequence[int]]
    #: By group but the first, strategy in front and its own: a change of strategy
    #: between the two, in one stage.
    change: Sequence[Sequence[Sequence[int]]]
    #: By group but the first, and strategy: receive of activations by the group if it
    #: starts a stage, of gradients by the group in front.
    receive: Sequence[Sequence[int]]
    send: Sequence[Sequence[int]]
    #: Micro-batches in flight of every stage, and the memory of a device.
    in_flight: Sequence[int]
    capacity_bytes: int
    #: Whether all groups of a stage must have one strategy.
    alike: bool

    @property
    def num_micro_batches(self) -> int:
        """``c``."""
        return self.pair.case.num_micro_batches

    def bound(self) -> int | None:
        """Return what no solution is below, ``None`` if there is none."""
        fastest = []
        for row in self.passes:
            times = [time for time in row if time is not None]
            if not times:
                return None
            fastest.append(min(times))
        total = sum(fastest)
        longest = max(ceil_div(total, self.pair.num_stages), *fastest, 0)
        return total + (self.num_micro_batches - 1) * longest

    def start(self) -> Solution | None:
        """Return the best even split with one strategy, if one fits."""
        size = len(self.groups)
        stops = [stop for _, stop in even_split(size, self.pair.num_stages)]
        solutions = [
            Solution(stops, [k] * size, value)
            for k in range(len(self.choices))
            if (value := self.value(stops, [k] * size)) is not None
        ]
        return min(solutions, key=lambda x: x.value, default=None)

    def value(self, stops: Sequence[int], chosen: Sequence[int]) -> int | None:
        """Return the objective, ``None`` if something does not fit.

        The stages end at the groups ``stops``.
        """
        total = longest = 0
        for stage, (start, stop) in enumerate(ranges(stops)):
            time = need_bytes = 0
            for g in range(start, stop):
                passes = self.passes[g][chosen[g]]
                if passes is None:
                    return None
                time += passes
                need_bytes += self.static_bytes[g][chosen[g]]
                need_bytes += self.in_flight[stage] * self.kept_bytes[g][chosen[g]]
                if g > start:
                    time += self.change[g - 1][chosen[g - 1]][chosen[g]]
            if need_bytes > self.capacity_bytes:
                return None
            if self.alike and len(set(chosen[start:stop])) > 1:
                return None
            move = 0
            if start:
                move = (
                    self.receive[start - 1][chosen[start]]
                    + self.send[start - 1][chosen[start - 1]]
                )
            total += time + move
            longest = max(longest, time, move)
        return total + (self.num_micro_batches - 1) * longest


class Solution(NamedTuple):
    """The stops and strategies of a program, and their value in quanta."""

    stops: list[int]
    chosen: list[int]
    value: int


class UniapSolver(Planner):
    """Solve an integer program for every ``(S, c)`` that may win."""

    name = "uniap"
    capabilities = Planner.promises(
        method="UniAP (re-impl.): one integer program for stages and layers",
        requires=("ortools",),
        objective="sum p + sum o + (c - 1) max of both, as in GPipe",
        options={
            "groups": (f"join the layers to this many groups (default {GROUPS})"),
            "effort": (
                f"stop each program after this much deterministic time of "
                f"CP-SAT (default {EFFORT})"
            ),
        },
    )

    refusals = (why_not_turns, why_not_alike)

    def run(self, search: Search) -> SolverOutput:
        """Return the best plan found."""
        # It takes a while: before the clock is looked at for a program.
        from ortools.sat.python import cp_model  # noqa: F401

        num_groups = search.count("groups", GROUPS)
        effort = search.count("effort", EFFORT)
        builder = Builder(search.model, num_groups)
        programs: list[tuple[int, int, Program]] = []
        for pair in builder.pairs():
            if search.out_of_time():
                return search.answer()
            program = builder.program(pair)
            bound = program.bound()
            if bound is not None:
                programs.append((bound, len(programs), program))
        if not programs:
            return search.answer("no stages of equal size have costs")
        best: int | None = None

        def improve(program: Program, new: Solution, text: str = "") -> None:
            nonlocal best
            best = new.value
            own_ns = quanta_to_ns(best, search.problem.quantum_ps)
            search.improve(builder.plan(program, new), own_ns, text)

        starts = [
            (start, program) for _, _, program in programs if (start := program.start())
        ]
        if starts:
            start, program = min(starts, key=lambda pair: pair[0].value)
            improve(program, start, "even split")
        num_solved = num_stopped = 0
        for bound, _, program in sorted(programs, key=lambda x: x[:2]):
            if best is not None and bound >= best:
                break
            if search.out_of_time():
                break
            search.say(
                f"{program.pair.num_stages} stages, {program.num_micro_batches} "
                f"micro-batches, {num_solved} of {len(programs)} programs done"
            )
            better, finished = optimize(program, best, search, effort)
            num_solved += 1
            num_stopped += not finished
            if better is not None:
                improve(program, better)
        detail = f"{num_solved} of {len(programs)} programs"
        if num_stopped:
            detail += f", {num_stopped} stopped early"
        search.out_of_time()
        if search.plan is None:
            detail = f"no plan fits by its memory model ({detail})"
        return search.answer(detail)


class Builder:
    """Makes the programs of a problem, and plans of their solutions."""

    def __init__(self, model: CostModel, num_groups: int) -> None:
        self.problem = problem = model.problem
        self.model = model
        self.transfers = Transfers(model)
        self.order = self.transfers.order
        self.groups = group_layers(problem, num_groups)
        self.cases = batch_splits(problem)
        # bytes per sample between neighbors in the chain, by the second one
        self._links: dict[int, list[int]] = {}
        for source, target, size_bytes in self.transfers.edges:
            if target == source + 1:
                self._links.setdefault(target, []).append(size_bytes)

    def pairs(self) -> list[Pair]:
        """Return the turns of the outer loop."""
        by_count: dict[int, BatchSplit] = {}
        for case in self.cases:
            by_count.setdefault(case.num_micro_batches, case)
        full, idle = [], []
        for case in by_count.values():
            sizes = {strategy.devices for strategy in self._pool(case)}
            for count in stage_counts(self.problem, case):
                if count > len(self.groups):
                    break
                share = case.devices // count
                fitting = [size for size in sizes if size <= share]
                if not fitting:
                    continue
                pair = Pair(case, count, max(fitting))
                used = case.replicas * count * pair.devices
                if used == self.problem.cluster.num_devices:
                    full.append(pair)
                else:
                    idle.append(pair)
        return full or idle

    def _pool(self, case: BatchSplit) -> list[Strategy]:
        zero = [3] if 3 in self.problem.job.zero else []
        usable = case_strategies(self.problem, case)
        return plainest(self.problem, usable, zero)

    def program(self, pair: Pair) -> Program:
        """Return the numbers of a program."""
        case = pair.case
        choices = [s for s in self._pool(case) if s.devices == pair.devices]
        passes, static_bytes, kept_bytes = [], [], []
        for group in self.groups:
            terms = [self._terms(case, group, s) for s in choices]
            passes.append([t and t[0] for t in terms])
            static_bytes.append([t[1] if t else 0 for t in terms])
            kept_bytes.append([t[2] if t else 0 for t in terms])
        first = Block(case.replicas, case.devices, 0, pair.devices)
        second = first._replace(offset=pair.devices)
        starts = [start for start, _ in self.groups[1:]]

        def received(start: int, strategy: Strategy, *, forward: bool) -> int:
            if pair.num_stages == 1:
                return 0
            block = second if forward else first
            return self.transfers.receive(
                start, block, case.micro_batch, strategy, forward=forward
            )

        return Program(
            pair=pair,
            groups=self.groups,
            choices=choices,
            passes=passes,
            static_bytes=static_bytes,
            kept_bytes=kept_bytes,
            change=[self._changes(start, first, case, choices) for start in starts],
            receive=[[received(x, s, forward=True) for s in choices] for x in starts],
            send=[[received(x, s, forward=False) for s in choices] for x in starts],
            in_flight=[
                in_flight(self.problem, case, pair.num_stages - i)
                for i in range(pair.num_stages)
            ],
            capacity_bytes=self.problem.cluster.memory_bytes(),
            alike=one_strategy_per_stage(self.problem),
        )

    def _terms(
        self, case: BatchSplit, group: tuple[int, int], strategy: Strategy
    ) -> tuple[int, int, int] | None:
        """Return (passes, static bytes, kept bytes) of a group."""
        passes = sync = static_bytes = kept_bytes = 0
        for position in self.order[slice(*group)]:
            terms = front_terms(self.model, case, position, strategy)
            if terms is None:
                return None
            passes += terms.forward + terms.backward
            sync += terms.sync
            static_bytes += terms.static_bytes
            kept_bytes += terms.kept_bytes
        passes += ceil_div(sync, case.num_micro_batches)
        return passes, static_bytes, kept_bytes

    def _changes(
        self, start: int, block: Block, case: BatchSplit, choices: Sequence[Strategy]
    ) -> list[list[int]]:
        """Return all changes of strategy in front of a layer of the chain."""

        def change(*ends: Strategy) -> int:
            sizes = self._links.get(start, ())
            times = (
                self.transfers.change(x, block, case.micro_batch, *ends) for x in sizes
            )
            return sum(map(sum, times))

        return [[change(before, after) for after in choices] for before in choices]

    def plan(self, program: Program, solution: Solution) -> Plan:
        """Return the plan of a solution."""
        stages = []
        for first, stop in ranges(solution.stops):
            chosen = [
                program.choices[solution.chosen[g]]
                for g in range(first, stop)
                for _ in range(*self.groups[g])
            ]
            start, end = self.groups[first][0], self.groups[stop - 1][1]
            stages.append((start, end, chosen))
        return make_plan(self.problem, program.pair.case, stages)


def group_layers(problem: Problem, num_groups: int) -> list[tuple[int, int]]:
    """Return ranges of the chain that are planned as one layer.

    Single layers at the ends (embedding, output layer) stay alone. Of the
    rest as many groups of equal length as possible, or, where that is less
    than half of what is allowed, of lengths that differ by one.
    """
    start, stop = repeated_range(problem)
    length = stop - start
    max_groups = min(length, num_groups)
    count = max(n for n in divisors(length) if n <= max_groups)
    if 2 * count <= max_groups:
        count = max_groups
    return [
        *((i, i + 1) for i in range(start)),
        *((start + a, start + b) for a, b in even_split(length, count)),
        *((i, i + 1) for i in range(stop, len(problem.graph.layers))),
    ]


def optimize(
    program: Program, cutoff: int | None, search: Search, effort: int
) -> tuple[Solution | None, bool]:
    """Return the best solution of a program, and whether there is proof of that.

    It has to be below ``cutoff``; ``effort`` is how much deterministic time there is.
    """
    from ortools.sat.python import cp_model

    formulation = Formulation(program, cutoff)
    if search.deadline.passed:
        return None, False
    solver = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.num_workers = search.options.num_workers
    parameters.random_seed = search.options.seed
    parameters.max_deterministic_time = float(effort)
    parameters.relative_gap_limit = 0.0
    parameters.absolute_gap_limit = 0.0
    parameters.linearization_level = 2
    if search.deadline.remaining_s is not None:
        parameters.max_time_in_seconds = search.deadline.remaining_s
    status = solver.solve(formulation.engine)
    finished = status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, finished
    stops, chosen = formulation.decode(solver)
    value = program.value(stops, chosen)
    assert value is not None
    return Solution(stops, chosen, value), finished


class Formulation:
    """The integer program, linearised.

    Binaries ``z[g, s, k]``: group ``g`` is on stage ``s`` with strategy ``k``. From
    them ``x[g, k] = Σ_s z``, ``y[g, s] = Σ_k z``, and ``cut[g]``: ``g`` starts a stage.
    """

    def __init__(self, program: Program, cutoff: int | None) -> None:
        from ortools.sat.python import cp_model

        self.program = program
        self.engine = cp_model.CpModel()
        self.stages = range(program.pair.num_stages)
        self.numbers = range(len(program.groups))
        self.known = [
            [k for k, time in enumerate(row) if time is not None]
            for row in program.passes
        ]
        self._place()
        self._objective(cutoff)

    def _place(self) -> None:
        """Every group once, stages contiguous, in order and not empty."""
        engine, last = self.engine, self.program.pair.num_stages - 1
        size = len(self.numbers)
        self.z: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self.y: dict[tuple[int, int], Any] = {}
        self.x: dict[tuple[int, int], cp_model.IntVar] = {}
        for g in self.numbers:
            # at least one group for every stage before and after
            here = [s for s in self.stages if s <= g and last - s < size - g]
            for k in self.known[g]:
                self.x[g, k] = engine.new_bool_var(f"x{g}_{k}")
            engine.add_exactly_one(self.x[g, k] for k in self.known[g])
            for s in self.stages:
                self.y[g, s] = engine.new_bool_var(f"y{g}_{s}")
                if s not in here:
                    engine.add(self.y[g, s] == 0)
                    continue
                for k in self.known[g]:
                    self.z[g, s, k] = engine.new_bool_var(f"z{g}_{s}_{k}")
                engine.add(sum(self.z[g, s, k] for k in self.known[g]) == self.y[g, s])
            engine.add_exactly_one(self.y[g, s] for s in here)
            for k in self.known[g]:
                engine.add(sum(self.z[g, s, k] for s in here) == self.x[g, k])
        self.cut: dict[int, Any] = {}
        for g in self.numbers[1:]:
            self.cut[g] = engine.new_bool_var(f"cut{g}")
            # g is on the stage of the group in front, or on the next one
            stage = sum(s * self.y[g, s] for s in self.stages)
            before = sum(s * self.y[g - 1, s] for s in self.stages)
            engine.add(stage - before == self.cut[g])
            for s in self.stages:
                in_front = sum(self.y[g - 1, r] for r in self.stages[: s + 1])
                until = sum(self.y[g, r] for r in self.stages[: s + 1])
                engine.add(until <= in_front)
        if self.program.alike:
            for g in self.numbers[1:]:
                for k in {*self.known[g], *self.known[g - 1]}:
                    this = self.x.get((g, k), 0)
                    other = self.x.get((g - 1, k), 0)
                    engine.add(this - other <= self.cut[g])
                    engine.add(other - this <= self.cut[g])

    def _objective(self, cutoff: int | None) -> None:
        program, engine = self.program, self.engine
        longest = engine.new_int_var(0, self._most(), "longest")
        total: list[Any] = []
        changes = {g: self._changes(g) for g in self.numbers[1:]}
        for s in self.stages:
            time: list[Any] = []
            need: list[Any] = []
            for g in self.numbers:
                for k in self.known[g]:
                    if (g, s, k) not in self.z:
                        continue
                    z = self.z[g, s, k]
                    time.append((program.passes[g][k] or 0) * z)
                    need.append(
                        (
                            program.static_bytes[g][k]
                            + program.in_flight[s] * program.kept_bytes[g][k]
                        )
                        * z
                    )
                if g and (change := changes[g]) is not None:
                    # it counts if the group is on the stage
                    quanta, largest = change
                    here = engine.new_int_var(0, largest, f"change{g}_{s}")
                    engine.add(here >= quanta - largest * (1 - self.y[g, s]))
                    time.append(here)
            engine.add(sum(time) <= longest)
            engine.add(sum(need) <= program.capacity_bytes)
            total += time
        for g in self.numbers[1:] if len(self.stages) > 1 else []:
            move = self._move(g)
            engine.add(sum(move) <= longest)
            total += move
        value = sum(total) + (program.num_micro_batches - 1) * longest
        if cutoff is not None:
            engine.add(value <= cutoff - 1)
        engine.minimize(value)

    def _most(self) -> int:
        """Return what no stage and no move takes longer than."""
        program = self.program
        rows = [[time or 0 for time in row] for row in program.passes]
        return (
            sum(map(max, rows))
            + sum(max(map(max, table)) for table in program.change)
            + sum(map(max, program.receive))
            + sum(map(max, program.send))
        )

    def _changes(self, g: int) -> tuple[Any, int] | None:
        """Return the change in front of a group, and the most it can be."""
        if self.program.alike:
            return None
        table = self.program.change[g - 1]
        terms, largest = [], 0
        for k in self.known[g - 1]:
            for m in self.known[g]:
                if not table[k][m]:
                    continue
                both = self.engine.new_bool_var(f"w{g}_{k}_{m}")
                self.engine.add(
                    both >= self.x[g - 1, k] + self.x[g, m] - 1 - self.cut[g]
                )
                terms.append(table[k][m] * both)
                largest = max(largest, table[k][m])
        return (sum(terms), largest) if terms else None

    def _move(self, g: int) -> list[Any]:
        """Return what a stage boundary in front of a group takes."""
        terms = []
        for row, group in (
            (self.program.receive[g - 1], g),
            (self.program.send[g - 1], g - 1),
        ):
            for k in self.known[group]:
                both = self.engine.new_bool_var(f"m{g}_{group}_{k}")
                self.engine.add(both >= self.x[group, k] + self.cut[g] - 1)
                terms.append(row[k] * both)
        return terms

    def decode(self, solver: cp_model.CpSolver) -> tuple[list[int], list[int]]:
        """Return the stops and the strategies of the solution found."""
        stops = [g for g in self.numbers[1:] if solver.value(self.cut[g])]
        chosen = [
            next(k for k in self.known[g] if solver.value(self.x[g, k]))
            for g in self.numbers
        ]
        return [*stops, len(self.numbers)], chosen
