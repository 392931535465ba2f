"""``galvatron``: a strategy per layer within a memory budget, stage by stage.

Miao, Wang, Jiang, Shi, Nie, Zhang and Cui, *Galvatron: Efficient Transformer Training
over Multiple GPUs Using Automatic Parallelism*, PVLDB 16(3), 2022, and the code
published with it, Hetu-Galvatron, main branch at cea12ff. docs/baselines/galvatron.md
compares this re-implementation with recorded answers of that code.

Search space
    A decision tree: pipeline degree first, the same devices for every stage;
    then tensor and data parallelism in powers of two, DDP or ZeRO-2 (the job's
    default) or ZeRO-3, recomputation or not — a leaf per layer. One more leaf,
    without recomputation, for what is no layer: embedding and head. The outer
    loops go through micro-batches, pipeline degrees and the largest tensor
    parallel degree (whose buffer every device pays). Layers are divided evenly
    if they are of one kind, else by memory. Where a job wants one strategy per
    stage, Galvatron's coarse mode: one strategy for the whole model.

Objective
    Every stage minimizes the sum of its own layers by a dynamic program over whole MiB;
    a formula for 1F1B compares what comes out (:mod:`baselines.galvatron_core`).
    Gradient sync overlaps the backward pass, both slowed down by 1.1256 meanwhile.

Ignored
    Where stages sit and how fast their links are, beyond the first devices; a slow
    stage in the middle of the pipeline; the gradient sync of embedding and head; the
    second gather of ZeRO-3 and the scatter per micro-batch of ZeRO-2; strategy changes
    between stages; the optimizer update; working sets of recomputation and of gathered
    weights. Changes of the tensor parallel degree are charged 100 times the bandwidth's
    time (a slip of units in the code). A fifth of a memory above 20 GiB is left to the
    allocator's cache, so plans rarely overrun.

Deviations
    - Times and memory come from the shared cost model instead of profiles:
      computation and collectives of the layer on the first devices, gradient
      sync of a plain all-reduce, what the layer keeps, the static bytes of
      its ZeRO stage (without the code's 0.003 per shard). The context of
      1 GiB is the device's reserve, the buffer of the largest tensor parallel
      degree the largest working set at it.
    - Its data parallel degree ``D`` becomes ``R`` replicas times ``dp`` inside
      a stage; all legal ``(R, B)`` with ``R dp = D`` are tried, the smallest ``R``
      first: ZeRO shards over ``dp`` only. Gradients are synchronized over all of ``D``.
      Where ``D`` does not fit the batch, the most devices that do are used.
    - Embedding and head are the layers before and behind all others whose
      kinds occur once. In coarse mode they are recomputed like the layers, as
      one strategy per stage demands.
    - No loop over Ulysses sequence parallelism, which the plan space does not
      have; Megatron's follows the job. Context parallelism is off, as in the
      shipped settings. Experts are spread by the least ``ep`` with a plan that
      fits, a setting its users make by hand. Selective recomputation is used
      only where a job does not allow to keep everything.
    - A point-to-point transfer moves the largest tensors that cross a cut of
      the division. Devices below 1 GiB count memory in smaller units.
    - The bi-objective search for pipeline divisions of Galvatron-BMW (arXiv
      2307.02031) is in no branch of the code and not here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from baselines import galvatron_core as core
from baselines.common import (
    Planner,
    Search,
    chain,
    front_terms,
    in_flight,
    make_plan,
    one_strategy_per_stage,
    ranges,
    repeated_range,
    why_not_alike,
    why_not_contexts,
    why_not_turns,
)
from baselines.galvatron_core import Choice, Integers, Tables
from baselines.transfers import Transfers
from nest.cost.axes import groups_of
from nest.cost.model import Block, CostModel, LayerTerms
from nest.cost.space import BatchSplit, batch_splits, stage_counts, strategies
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import SolverOutput
from nest.topology import ParallelGroups
from nest.units import ceil_div

MIB = 2**20
NS_PER_S = 10**9
PS_PER_S = 10**12

#: The published overlap_coefficient.json.
OVERLAP_SLOWDOWN = 1.125552573612729

#: Strategy changes as coded take this many times what the bandwidth says.
TRANSITION_FACTOR = 100

#: Memory is counted in at least so many units.
MIN_UNITS = 1024


class GalvatronSolver(Planner):
    """Galvatron's search on the per-layer terms of the shared cost model."""

    name = "galvatron"
    capabilities = Planner.promises(
        method="Galvatron (re-impl.): DP over layers and memory per stage",
        objective="Galvatron's pipeline time",
    )

    refusals = (why_not_turns, why_not_alike, why_not_contexts)

    def run(self, search: Search) -> SolverOutput:
        """Return the plan with the best time by Galvatron's formula.

        Under a time limit the coarse mode goes first; its plan is the answer
        if no task is solved layer by layer in time.
        """
        problem = search.problem
        if search.deadline.limit_s is not None and not one_strategy_per_stage(problem):
            job = replace(problem.job, granularity="stage")
            solve_all(search, replace(problem, job=job))
        coarse, search.plan = search.plan, None
        coarse_ns = search.own_ns
        num_tasks = solve_all(search, problem)
        if search.plan is not None:
            notes = ["not all tasks were solved"] if search.stopped else []
            return search.answer(*notes)
        if search.stopped and coarse is not None:
            search.plan, search.own_ns = coarse, coarse_ns
            return search.answer(
                "one strategy for all layers: no other task was solved in time"
            )
        search.own_ns = None
        if search.stopped:
            return search.answer("no task was solved in time")
        if num_tasks:
            return search.answer("no plan fits by Galvatron's memory model")
        return search.answer(
            "no plan is in Galvatron's search space: tp and the number of "
            "stages are powers of two"
        )


def solve_all(search: Search, problem: Problem) -> int:
    """Solve the tasks of a problem, and return how many there are.

    By ``ep``, until one of them has a plan.
    """
    pricing = Pricing(problem)
    tasks = list_tasks(pricing.model)
    for ep, group in groupby(tasks, lambda task: task.ep):
        made = [
            (task, pricing.make_tables(task))
            for task in group
            if not search.out_of_time()
        ]
        search.say(f"{len(made)} tasks with ep {ep}")

        def improve(
            position: int, choice: Choice, made: list[tuple[Task, Tables]] = made
        ) -> None:
            search.improve(
                pricing.make_plan(*made[position], choice),
                choice.time_s * NS_PER_S,
                f"predicted {choice.time_s:.6g} s",
            )

        best = core.solve_tasks(
            [tables for _, tables in made],
            budget_units(problem.cluster.memory_bytes()),
            coarse=pricing.coarse,
            stop=search.out_of_time,
            report=improve,
        )
        if best is not None:
            break
    return len(tasks)


class Task(NamedTuple):
    """One turn of the outer loops.

    ``devices`` are those of a stage, ``offered`` the strategies of the layers,
    ``heads`` those of embedding and head.
    """

    case: BatchSplit
    num_stages: int
    devices: int
    offered: tuple[Strategy, ...]
    heads: tuple[Strategy, ...]

    @property
    def ep(self) -> int:
        """Expert parallel degree of all its strategies."""
        return self.offered[0].ep


def memory_unit_bytes(memory_bytes: int) -> int:
    """Return the unit that memory is counted in: 1 MiB, if that is small.

    Else the largest power of two of which the device has at least 1024.
    """
    if memory_bytes >= MIN_UNITS * MIB:
        return MIB
    return 1 << max(0, (memory_bytes // MIN_UNITS).bit_length() - 1)


def budget_units(memory_bytes: int) -> int:
    """Return the units of memory that layers, embedding and head may fill."""
    return core.usable_mib(memory_bytes // memory_unit_bytes(memory_bytes))


def cut_bytes(transfers: Transfers) -> list[int]:
    """Return the bytes per sample that cross the chain before each layer."""
    return [sum(sizes) for sizes in transfers.crossing[:-1]]


def list_tasks(model: CostModel) -> list[Task]:
    """Return the turns of the outer loops, by ``ep`` and then in order.

    Of each pipeline degree only those that use the most devices.
    """
    problem = model.problem
    order = chain(problem)
    first, last = repeated_range(problem)
    ends = [*order[:first], *order[last:]]
    tasks: list[Task] = []
    most_used: dict[tuple[int, int], int] = {}
    for case in batch_splits(problem):
        offers = _offers(problem, case)
        choices = {
            key: list(_choices(model, case, offered, order[first:last], ends))
            for key, offered in offers.items()
        }
        for num_stages in stage_counts(problem, case):
            max_stages = min(last - first, case.num_micro_batches)
            if not _is_power_of_two(num_stages) or num_stages > max_stages:
                continue
            room = case.devices // num_stages
            for ep in sorted({ep for ep, _ in offers}):
                widths = [
                    devices
                    for other, devices in offers
                    if other == ep and devices <= room and choices[ep, devices]
                ]
                if not widths:
                    continue
                devices = max(widths)
                used = case.replicas * devices
                key = (ep, num_stages)
                most_used[key] = max(used, most_used.get(key, 0))
                tasks += [
                    Task(case, num_stages, devices, *choice)
                    for choice in choices[ep, devices]
                ]
    return sorted(
        (
            task
            for task in tasks
            if task.case.replicas * task.devices == most_used[task.ep, task.num_stages]
        ),
        key=lambda task: task.ep,
    )


def _is_power_of_two(count: int) -> bool:
    return not count & (count - 1)


def _offers(
    problem: Problem, case: BatchSplit
) -> dict[tuple[int, int], list[Strategy]]:
    """Return Galvatron's strategies by ``ep`` and devices."""
    job = problem.job
    default_zero = max((z for z in job.zero if z < 3), default=3)
    keep_all = "none" if "none" in job.recompute else "selective"
    offers: dict[tuple[int, int], list[Strategy]] = {}
    for strategy in strategies(problem, case.micro_batch):
        if (
            strategy.cp == 1
            and _is_power_of_two(strategy.tp)
            and (strategy.dp == 1 or strategy.zero in (default_zero, 3))
            and strategy.recompute in (keep_all, "full")
        ):
            key = (strategy.ep, strategy.devices)
            offers.setdefault(key, []).append(strategy)
    for offered in offers.values():
        offered.sort(key=lambda s: (s.tp, s.zero, s.recompute == "full"))
    return offers


def _choices(
    model: CostModel,
    case: BatchSplit,
    offered: Sequence[Strategy],
    layers: Sequence[int],
    ends: Sequence[int],
) -> Iterator[tuple[tuple[Strategy, ...], tuple[Strategy, ...]]]:
    """Return what layers, and embedding and head, may use, for every task.

    Only tasks in which every layer can use something, and embedding and head
    something in common.
    """
    kinds = [layer.kind for layer in model.problem.graph.layers]

    def usable(nodes: Sequence[int], strategy: Strategy) -> list[bool]:
        one_each = {kinds[node]: node for node in nodes}
        return [
            model.available(node, strategy, case.micro_batch) is None
            for node in one_each.values()
        ]

    if one_strategy_per_stage(model.problem):
        common = tuple(s for s in offered if all(usable([*layers, *ends], s)))
        if common:
            yield common, common
        return
    heads = [s for s in offered if all(usable(ends, s))]
    table = {s: usable(layers, s) for s in offered}
    for tp in sorted({s.tp for s in offered}):
        narrow = tuple(s for s in offered if s.tp <= tp and any(table[s]))
        at_ends = tuple(s for s in heads if s.tp <= tp)
        plain = tuple(s for s in at_ends if s.recompute != "full")
        columns = zip(*(table[s] for s in narrow), strict=True)
        if narrow and at_ends and all(map(any, columns)):
            yield narrow, plain or at_ends


class _Pass(NamedTuple):
    """What a layer takes per micro-batch, in s, and its gradient sync."""

    forward_s: float
    backward_s: float
    messages_s: float
    sync_s: float


class Pricing:
    """The tables of all tasks of one problem."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.model = CostModel(problem)
        # the same layers under plain data parallelism, nothing hidden
        self.plain = CostModel(
            replace(
                problem, job=replace(problem.job, zero=(0,), gradient_sync_overlap=0.0)
            )
        )
        self.order = chain(problem)
        self.kinds = [problem.graph.layers[i].kind for i in self.order]
        self.first, self.last = repeated_range(problem)
        self.cuts = cut_bytes(Transfers(self.model))
        self.coarse = one_strategy_per_stage(problem)
        self.unit_bytes = memory_unit_bytes(problem.cluster.memory_bytes())
        self.layer_pass = cache(self._layer_pass)

    def make_plan(self, task: Task, tables: Tables, choice: Choice) -> Plan:
        """Return the plan of what a task chose."""
        head = task.heads[choice.other]
        chosen = [head] * self.first
        chosen += [task.offered[s] for s in choice.strategies]
        chosen += [head] * (len(self.order) - self.last)
        ends = [self.first + stop for _, stop in tables.stages[:-1]]
        return make_plan(
            self.problem,
            task.case,
            [
                (start, stop, chosen[start:stop])
                for start, stop in ranges([*ends, len(self.order)])
            ],
        )

    def make_tables(self, task: Task) -> Tables:
        """Return the tables of a task."""
        inner = range(self.first, self.last)
        names = sorted(set(self.kinds[self.first : self.last]))
        row = {name: i for i, name in enumerate(names)}
        rows = np.array([row[self.kinds[i]] for i in inner])
        position = {self.kinds[i]: i for i in inner}

        size = (len(names), len(task.offered))
        with_sync, without = np.full(size, np.inf), np.full(size, np.inf)
        static, kept = np.zeros((2, *size), np.int64)
        for i, name in enumerate(names):
            for j, strategy in enumerate(task.offered):
                times = self.layer_pass(task.case, position[name], strategy)
                terms = self.terms(task, position[name], strategy)
                if times is not None and terms is not None:
                    with_sync[i, j] = _layer_s(times, strategy, times.sync_s)
                    without[i, j] = _layer_s(times, strategy, 0.0)
                    static[i, j] = terms.static_bytes
                    kept[i, j] = terms.kept_bytes
        counts = np.array(self.in_flight(task), np.int64)[:, None, None]
        memory: Integers = -(-(static + counts * kept) // self.unit_bytes)
        stages = self.divide(task)
        transfers = self.transfers_s(task, stages)
        return Tables(
            num_chunks=task.case.num_micro_batches,
            stages=stages,
            layer_sync_s=(with_sync + transfers)[rows],
            layer_no_sync_s=(without + transfers)[rows],
            memory_units=memory[:, rows],
            transition_s=self.transitions_s(task),
            others=self.others(task),
        )

    def seconds(self, quanta: int) -> float:
        """Return a time of the shared model in s."""
        return quanta * self.problem.quantum_ps / PS_PER_S

    def _layer_pass(
        self, case: BatchSplit, position: int, strategy: Strategy
    ) -> _Pass | None:
        """Return computation, collectives and gradient sync of a layer.

        Of the layer at a position of the chain under plain data parallelism,
        on the first devices; ``None`` if it has no cost.
        """
        node, plain = self.order[position], replace(strategy, zero=0)
        block = front_terms(self.plain, case, node, plain)
        alone = self.plain.layer_terms(node, plain, case.micro_batch, None)
        if block is None or alone is None:
            return None
        computation = alone.forward + alone.backward
        return _Pass(
            self.seconds(alone.forward),
            self.seconds(alone.backward),
            self.seconds(block.forward + block.backward - computation),
            self.seconds(block.sync - alone.sync),
        )

    def terms(self, task: Task, position: int, strategy: Strategy) -> LayerTerms | None:
        """Return the shared model's terms of a layer on the first devices."""
        return front_terms(self.model, task.case, self.order[position], strategy)

    def in_flight(self, task: Task) -> list[int]:
        """Return the micro-batches that every stage keeps."""
        if task.num_stages == 1:
            return [1]
        return [
            in_flight(self.problem, task.case, task.num_stages - stage)
            for stage in range(task.num_stages)
        ]

    def ends(self, task: Task) -> list[tuple[int, int]]:
        """Return position and stage of embedding and head layers."""
        heads = range(self.last, len(self.order))
        return [
            *((i, 0) for i in range(self.first)),
            *((i, task.num_stages - 1) for i in heads),
        ]

    def others(self, task: Task) -> tuple[core.Other, ...]:
        """Return the strategies of embedding and head.

        Time per micro-batch and memory of every stage, with the device's
        reserve and the working sets in it.
        """
        others = []
        counts = self.in_flight(task)
        for head in task.heads:
            times = [0.0] * task.num_stages
            reserve = self.reserve_bytes(task, head)
            memory = [reserve] * task.num_stages
            for position, stage in self.ends(task):
                head_pass = self.layer_pass(task.case, position, head)
                assert head_pass is not None
                gather_s = head_pass.sync_s / 2 if head.zero == 3 else 0.0
                times[stage] += (
                    core.hidden_s(gather_s, head_pass.forward_s, OVERLAP_SLOWDOWN)
                    + head_pass.backward_s
                    + head_pass.messages_s
                )
                terms = self.terms(task, position, head)
                assert terms is not None
                memory[stage] += terms.static_bytes
                memory[stage] += counts[stage] * terms.kept_bytes
            units = (ceil_div(size, self.unit_bytes) for size in memory)
            others.append(core.Other(tuple(times), tuple(units)))
        return tuple(others)

    def reserve_bytes(self, task: Task, head: Strategy) -> int:
        """Return the reserve of a device and the largest working set.

        Of all layers at the largest tensor parallel degree of the task (of
        the strategy itself in coarse mode), nothing sharded or recomputed.
        """
        tp = head.tp if self.coarse else max(s.tp for s in task.offered)
        wide = [s for s in task.offered if s.tp == tp]
        wide = [s for s in wide if s.recompute != "full"] or wide
        sizes = [
            terms.working_bytes
            for strategy in wide
            for position in {k: i for i, k in enumerate(self.kinds)}.values()
            if (
                terms := front_terms(
                    self.plain,
                    task.case,
                    self.order[position],
                    replace(strategy, zero=0),
                )
            )
        ]
        return max(sizes, default=0)

    def divide(self, task: Task) -> tuple[tuple[int, int], ...]:
        """Return the stages as ranges of the layers."""
        num_layers = self.last - self.first
        kinds = self.kinds[self.first : self.last]
        if task.num_stages == 1 or len(set(kinds)) == 1:
            return core.stages_of(core.divide_even(num_layers, task.num_stages))
        # least tensor parallel degree, least sharded, nothing recomputed
        strategy = task.offered[0]
        in_flight = task.case.num_micro_batches

        def need(position: int) -> int:
            terms = self.terms(task, position, strategy)
            if terms is None:
                return 0
            return terms.static_bytes + in_flight * terms.kept_bytes

        others = [0] * task.num_stages
        for position, stage in self.ends(task):
            others[stage] += need(position)
        layers = [need(i) for i in range(self.first, self.last)]
        return core.stages_of(core.divide_by_memory(layers, others))

    def transfers_s(self, task: Task, stages: Sequence[tuple[int, int]]) -> np.ndarray:
        """Return every strategy's share of a point-to-point transfer.

        ``2 P`` messages, one each way per stage, spread over all layers (§5).
        """
        if task.num_stages == 1:
            return np.zeros(len(task.offered))
        case, devices = task.case, task.devices
        largest = max(self.cuts[start + self.first] for start, _ in stages[1:])
        block = Block(case.replicas, case.devices, devices, devices)
        route = self.model.network.route(block, block.before(devices))
        num_layers = self.last - self.first
        times = [
            self.model.transfers.receive(route, [largest], case.micro_batch, s.dp)
            for s in task.offered
        ]
        return np.array(
            [2 * task.num_stages * self.seconds(time) / num_layers for time in times]
        )

    def transitions_s(self, task: Task) -> np.ndarray:
        """Return the times between strategies of neighboring layers.

        An all-gather of the activation at the larger tensor parallel degree, times 100,
        under sequence parallelism; else the biases that order equally good strategies.
        """
        offered = task.offered
        num, num_layers = len(offered), self.last - self.first
        if self.coarse:
            return np.broadcast_to(0.0, (num_layers, num, num))
        # without sequence parallelism no transition depends on a size
        sizes = [0]
        gathers_s = {s.tp: [0.0] for s in offered}
        job = self.problem.job
        if job.sequence_parallel is True or True in job.sequence_choices(2):
            sizes = self.cuts[self.first : self.last]
            for tp in gathers_s.keys() - {min(gathers_s)}:
                by_size = {x: self.gather_s(task, tp, x) for x in set(sizes)}
                gathers_s[tp] = [TRANSITION_FACTOR * by_size[x] for x in sizes]
        table = np.zeros((len(sizes), num, num))
        for i, before in enumerate(offered):
            for j, after in enumerate(offered):
                if before.tp != after.tp:
                    table[:, i, j] = gathers_s[max(before.tp, after.tp)]
                else:
                    table[:, i, j] = core.bias_s(
                        (before.zero == 3, before.recompute == "full"),
                        (after.zero == 3, after.recompute == "full"),
                    )
        return np.broadcast_to(table, (num_layers, num, num))

    def gather_s(self, task: Task, tp: int, size_bytes: int) -> float:
        """Return the all-gather of an activation over ``tp`` ranks."""
        case = task.case
        strategy = next(s for s in task.offered if s.tp == tp)
        block = Block(case.replicas, case.devices, 0, task.devices)
        samples = case.micro_batch // strategy.dp
        network = self.model.network
        groups = network.groups(ParallelGroups(block, *groups_of(strategy)["tp"]))
        time_ns = network.collective_ns("all-gather", groups, size_bytes * samples)
        return time_ns / NS_PER_S


def _layer_s(times: _Pass, strategy: Strategy, sync_s: float) -> float:
    """Return the time of a layer with so much gradient sync.

    ZeRO-3 adds half of a whole sync, overlapping nothing.
    """
    gather_s = times.sync_s / 2 if strategy.zero == 3 else 0.0
    return (
        times.forward_s
        + core.overlapped_s(sync_s, times.backward_s, OVERLAP_SLOWDOWN)
        + times.messages_s
        + gather_s
    )
