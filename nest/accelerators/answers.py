"""The questions about a space, in their order, and their answers.

The order of questions is fixed: the base, the best point of every model, the best one
of all together, then what was asked besides. Each finds what the ones before it solved.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any, get_args

import numpy as np
from msgspec.structs import replace

from nest.accelerators.architecture import CATEGORIES, PARAMETERS, Architecture
from nest.accelerators.evaluate import best_plan, prove_point
from nest.accelerators.objective import NO_PLAN, Objective
from nest.accelerators.oracle import PointOracle
from nest.accelerators.phaze import best_of, phaze_order
from nest.accelerators.points import Point, unlisted
from nest.accelerators.records import (
    NOTHING_MORE,
    Answers,
    Baseline,
    Best,
    Contribution,
    Counts,
    DesignResult,
    ExtraAnalyses,
    ModelResult,
    Neighbor,
    QuestionProgress,
    questions_of,
)
from nest.accelerators.search import (
    Listed,
    OnProgress,
    Question,
    QuestionStatus,
    Reason,
    State,
    best_points,
)
from nest.accelerators.search import frontier as frontier_of
from nest.accelerators.spec import Spec
from nest.accelerators.tasks import WorkloadSetting, open_store, workload_of
from nest.accelerators.workload import QUANTUM_PS, Workload
from nest.cost.score import score
from nest.errors import InvalidOptionError, InvalidProblemError, SolverError
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.models.named import load_model
from nest.solvers.base import Deadline, OutOfTimeError, SolveOptions, Status
from nest.tasks.parallel import dask_client
from nest.units import MAX_TOTAL
from nest.util.interrupts import Interrupted

#: Whose plan stands in where the placement is not the best one.
PLANNER = "megatron"


def answer(  # noqa: PLR0913
    spec: Spec,
    extra: ExtraAnalyses = NOTHING_MORE,
    *,
    folder: str | None = None,
    resume: bool = False,
    jobs: int = 1,
    dask: str | None = None,
    time_limit_s: float | None = None,
    on_wave: Callable[[QuestionProgress], None] | None = None,
    on_complaint: Callable[[str], None] | None = None,
) -> Answers:
    """Answer what is asked of a space, with ``extra`` beside the best points.

    :func:`nest.accelerators.tasks.open_store` describes ``folder`` and ``resume``,
    :func:`nest.tasks.parallel.answers` ``jobs`` and ``dask``. After ``time_limit_s`` it
    ends with what is known; the questions about best points that are left share what is
    left. ``on_wave`` is called now and then with how far a question is, and
    ``on_complaint`` with a line for every file of the directory that is broken.

    Raises ``Interrupted`` on Ctrl-C, with the answers that are known by then;
    ``InvalidOptionError`` if no model is named, ``InvalidProblemError`` if a model has
    no plan on the base, ``NestError`` if the directory cannot be used, and
    ``SolverError`` if an answer is wrong, or the base is not solved in time.
    """
    if not spec.models:
        raise InvalidOptionError(
            "models: expected the name of a model, got none; name one in the "
            "file, or with --model"
        )
    deadline = Deadline(time_limit_s)
    with contextlib.ExitStack() as stack:
        client = dask and stack.enter_context(dask_client(dask))
        store = stack.enter_context(open_store(folder, resume))
        if on_complaint is not None:
            for text in store.complaints:
                on_complaint(text)
        oracle = PointOracle(
            [p.architecture for p in spec.space.points],
            listed(spec.space.points),
            [setting_of(spec, model) for model in spec.models],
            store,
            jobs=jobs,
            dask=dask,
            client=client,
        )
        return _Study(spec, oracle, deadline, on_wave).answers(extra)


class _Study:
    """The questions about one space, in their order."""

    def __init__(
        self,
        spec: Spec,
        oracle: PointOracle,
        deadline: Deadline,
        on_wave: Callable[[QuestionProgress], None] | None,
    ) -> None:
        self.spec, self.oracle = spec, oracle
        self._tell = on_wave or (lambda progress: None)
        self.architectures = oracle.architectures
        self.models = range(len(spec.models))
        self.state = State(oracle.points, len(spec.models))
        self.deadline = deadline
        try:
            self.base_quanta = self._base_quanta()
            self._bound_all()
        except OutOfTimeError:
            raise SolverError(
                f"--time-limit: expected enough time to solve "
                f"{spec.objective.base_name}, to which all points are compared, got "
                f"too little, so nothing is proven; allow more time"
            ) from None
        self.objective = self._objective(self.models)

    def answers(self, extra: ExtraAnalyses) -> Answers:
        """Return what is asked for; on Ctrl-C, raise ``Interrupted`` with it."""
        base = self._found(self._add(self.spec.objective.base))
        answers = Answers(self.spec, base, (), (), (), (), (), 0, 0)
        store = self.oracle.store
        try:
            for more in self._answered(extra):
                answers = answers._replace(
                    **more, solved=store.evaluated, stored=store.found
                )
        except OutOfTimeError:
            answers = answers._replace(out_of_time=True)
        except KeyboardInterrupt as cause:
            raise Interrupted(answers) from cause
        return answers

    def _answered(self, extra: ExtraAnalyses) -> Iterator[dict[str, Any]]:
        """Yield fields of answers as they are known."""
        best: list[Best] = []
        questions = questions_of(self.models)
        for position, models in enumerate(questions):
            try:
                best.append(self._best(models, len(questions) - position))
            except Interrupted as stopped:
                yield {"best": (*best, stopped.found)}
                raise
            yield {"best": tuple(best)}
        if not all(each.proven for each in best):
            yield {"out_of_time": True}
        top = best[-1].found
        if extra.frontier:
            yield {"frontier": self._frontier()}
        if top is not None:
            baselines: list[Baseline] = []
            for baseline in self._baselines(extra, best[-1], top):
                baselines.append(baseline)
                yield {"baselines": tuple(baselines)}
        if extra.sensitivity:
            yield {"sensitivity": self._sensitivity(top)}
        if extra.contributions:
            contributions = tuple(
                self._contribution(model, result.found)
                for model, result in zip(self.models, best, strict=False)
                if result.found is not None
            )
            yield {"contributions": contributions}

    def _best(self, models: tuple[int, ...], num_left: int) -> Best:
        """Find the best point in the share of one of the questions left.

        On Ctrl-C ``Interrupted`` has the best point that is known by then.
        """
        names = tuple(self.spec.models[model] for model in models)
        left_s = self.deadline.remaining_s
        try:
            status = best_points(
                *(self.state, self.oracle, self._objective(models), models),
                Deadline(None if left_s is None else left_s / num_left),
                self._watch(", ".join(names), models),
            )
        except Interrupted as stopped:
            raise Interrupted(self._made(models, stopped.found)) from stopped
        return self._made(models, status)

    def _made(self, models: tuple[int, ...], status: QuestionStatus) -> Best:
        """Return the best point that is known."""
        return Best(
            tuple(self.spec.models[model] for model in models),
            None if status.best is None else self._found(status.best, models),
            counts_of(status.counts),
            self._objective(models).relative_of(status.bound),
        )

    def _frontier(self) -> tuple[DesignResult, ...]:
        def on_counts(counts: Counter[Reason]) -> None:
            self._tell(QuestionProgress("the frontier", counts_of(counts)))

        indices = frontier_of(
            *(self.state, self.oracle, self.objective, self.models),
            self.deadline,
            on_counts,
        )
        points = (self._found(point) for point in indices)
        return tuple(sorted(points, key=lambda x: (x.point.area_e6_um2, x.point.index)))

    def _sensitivity(self, top: DesignResult | None) -> tuple[Neighbor, ...]:
        """Solve the next listed value of every parameter, both ways."""
        if top is None:
            return ()
        space, here = self.spec.space, top.point.architecture
        index_of = {a: i for i, a in enumerate(self.architectures)}
        neighbors = []
        for parameter in PARAMETERS:
            values = space.axes.get(parameter, ())
            current = getattr(here, parameter)
            if len(values) < 2 or current not in values:
                continue
            if parameter == "lanes" and space.lanes_are_columns:
                continue
            at = values.index(current)
            for value in (*values[max(0, at - 1) : at], *values[at + 1 :][:1]):
                other = {parameter: value}
                if parameter == "columns" and space.lanes_are_columns:
                    other["lanes"] = value
                architecture = replace(here, **other)
                index = index_of.get(architecture)
                is_listed = index is not None and index < self.size
                if index is None:
                    index = self._add(architecture)
                design = self._found(index)
                neighbors.append(Neighbor(parameter, value, is_listed, design))
        return tuple(neighbors)

    def _contribution(self, model: int, best: DesignResult) -> Contribution:
        """Solve the eight ways to have the best of some and the base's."""
        base = self.spec.objective.base
        steps: dict[tuple[bool, bool, bool], int | None] = {}
        for chip, schedule, placement in itertools.product((False, True), repeat=3):
            architecture = best.point.architecture if chip else base
            steps[chip, schedule, placement] = self._step_ps(
                model, architecture, schedule, placement
            )
        return Contribution(self.spec.models[model], steps, shapley_factors(steps))

    def _step_ps(
        self, model: int, architecture: Architecture, schedule: bool, placement: bool
    ) -> int | None:
        from nest.solvers.run import run_solver

        index = self._add(architecture)
        if schedule and placement:
            self._exact([index], (model,))
            return self._on(index, model).step_ps
        workload = self.oracle.workload(index, model)
        times = (
            workload.shortest(architecture, self.deadline)
            if schedule
            else workload.in_sequence(architecture)
        )
        problem = workload.problem(architecture, workload.entries(times))
        if placement:
            step, _ = best_plan(problem, limit_s=self.deadline.remaining_s)
            return None if step >= NO_PLAN else step * QUANTUM_PS
        left_s = self.deadline.remaining_s
        if left_s == 0:
            raise OutOfTimeError
        limits = SolveOptions(num_workers=1, time_limit_s=left_s)
        result = run_solver(problem, PLANNER, limits)
        self.deadline.check()
        if result.status is Status.OVER_MEMORY or not result.step_quanta:
            return None
        return result.step_quanta * QUANTUM_PS

    def _baselines(
        self, extra: ExtraAnalyses, best: Best, top: DesignResult
    ) -> Iterator[Baseline]:
        """Yield what other searches find, as far as time allows."""

        def against(
            name: str, evaluated: tuple[int, ...], one: DesignResult | None
        ) -> Baseline:
            if one is None or not one.relative:
                return Baseline(name, evaluated, one, None, None)
            regret = top.relative / one.relative - 1
            max_regret: float | None = regret
            if not best.proven:
                max_regret = best.most_relative and (
                    best.most_relative / one.relative - 1
                )
            return Baseline(name, evaluated, one, regret, max_regret)

        base = self._found(self._add(self.spec.objective.base))
        yield against(self.spec.objective.base_name, (base.point.index,), base)
        if extra.phaze_order:
            yield against("phaze-order", *self._phaze())
        counts = best.counts
        size = min(counts.exact + counts.placement, self.size)
        for seed in extra.samples:
            yield against(f"sample {seed}", *self._sample(seed, size))

    def _phaze(self) -> tuple[tuple[int, ...], DesignResult | None]:
        """Look at points as Phaze does, with the mean of throughputs."""

        def throughput(point: Point) -> Fraction | None:
            self._exact([point.index], self.models)
            steps = [self._on(point.index, m).step_ps for m in self.models]
            if None in steps:
                return None
            return sum(
                (Fraction(1, step) for step in steps if step is not None), Fraction(0)
            )

        evaluated = phaze_order(self.spec.space.points, throughput)
        best = best_of(evaluated)
        indices = tuple(point.index for point, _ in evaluated)
        return indices, None if best is None else self._found(best.index)

    def _sample(
        self, seed: int, size: int
    ) -> tuple[tuple[int, ...], DesignResult | None]:
        """Find the best of a random sample."""
        chosen = random.Random(seed).sample(range(self.size), size)
        among = np.zeros(self.size, dtype=bool)
        among[chosen] = True
        status = best_points(
            *(self.state, self.oracle, self.objective, self.models),
            self.deadline,
            self._watch(f"sample {seed}", self.models),
            among,
        )
        if not status.proven:
            raise OutOfTimeError
        best = None if status.best is None else self._found(status.best)
        return tuple(chosen), best

    # What the questions share

    @property
    def size(self) -> int:
        """Points of the list; those added come after them."""
        return len(self.spec.space.points)

    def _watch(self, question: str, models: Sequence[int]) -> OnProgress:
        relative_of = self._objective(models).relative_of

        def on_wave(status: QuestionStatus) -> None:
            counts, bound = counts_of(status.counts), relative_of(status.bound)
            best = None if status.best is None else relative_of(status.cost)
            self._tell(QuestionProgress(question, counts, best, bound))

        return on_wave

    def _add(self, architecture: Architecture) -> int:
        """Return the place of an architecture, of the list or beside it."""
        if architecture not in self.architectures:
            self.architectures.append(architecture)
        return self.architectures.index(architecture)

    def _base_quanta(self) -> tuple[int, ...]:
        index = self._add(self.spec.objective.base)
        self._exact([index], self.models)
        quanta = []
        for model in self.models:
            step_ps = self._on(index, model).step_ps
            if step_ps is None:
                raise InvalidProblemError(
                    f"$.objective.base: expected an architecture with a plan "
                    f"of {self.spec.models[model]} on {self.spec.devices} "
                    f"devices, got none for {self.spec.objective.base_name}; "
                    f"name another base, or leave the model out"
                )
            quanta.append(step_ps // QUANTUM_PS)
        return tuple(quanta)

    def _bound_all(self) -> None:
        """Bound all points by one that has as much of everything as any.

        So that something is known at any moment.
        """
        for category, largest in largest_of(self.oracle.points).items():
            index = self._add(largest)
            for model in self.models:
                self.deadline.check()
                quanta = self.oracle.bound(index, model)
                self.state.raise_all(category, model, quanta)

    def _objective(self, models: Sequence[int]) -> Objective:
        goal = self.spec.objective
        return Objective(
            "worst-case" if goal.kind == "worst-case" else "geometric-mean",
            tuple(goal.weights.get(self.spec.models[m], 1) for m in models),
            tuple(self.base_quanta[m] for m in models),
        )

    def _exact(self, points: Sequence[int], models: Sequence[int]) -> None:
        """Solve step times, however long they are."""
        questions = [
            Question(point, model, MAX_TOTAL) for point in points for model in models
        ]
        for bound in self.oracle.solve(questions, self.deadline):
            if not bound.exact:
                raise OutOfTimeError
            if bound.point < self.size:
                self.state.take(bound)

    def _on(self, index: int, model: int) -> ModelResult:
        solved = self.oracle.known(index, model)
        assert solved is not None
        assert solved.exact
        name = self.spec.models[model]
        if solved.plan is None:
            return ModelResult(name, None, None)
        workload = self.oracle.workload(index, model)
        _check(workload, self.architectures[index], solved.plan, solved)
        return ModelResult(name, solved.lower_quanta * QUANTUM_PS, solved.plan)

    def _found(self, index: int, models: Sequence[int] | None = None) -> DesignResult:
        chosen = tuple(self.models if models is None else models)
        self._exact([index], chosen)
        on = tuple(self._on(index, model) for model in chosen)
        quanta = [
            NO_PLAN if one.step_ps is None else one.step_ps // QUANTUM_PS for one in on
        ]
        spec = self.spec
        if index < self.size:
            point = spec.space.points[index]
        else:
            point = unlisted(self.architectures[index], spec.process, spec.prices)
        return DesignResult(point, on, self._objective(chosen).relative(quanta))


def counts_of(counts: Counter[Reason]) -> Counts:
    """Return what settled how many points."""
    return Counts(*(counts[reason] for reason in get_args(Reason)))


#: Parameters of which more is never slower, in the order of arrays.
_NAMES = [name for name in PARAMETERS if name not in CATEGORIES]


def largest_of(points: Listed) -> dict[int, Architecture]:
    """Return, by nodes' size, what has as much of everything as any point."""
    largest_by_category = {}
    for category in np.unique(points.category).tolist():
        parameters = points.parameters[points.category == category]
        maxima = dict(zip(_NAMES, parameters.max(axis=0).tolist(), strict=True))
        largest_by_category[category] = Architecture(
            **maxima, devices_per_node=category
        )
    return largest_by_category


def listed(points: Sequence[Point]) -> Listed:
    """Return the points of a space as arrays."""

    def value(architecture: Architecture, name: str) -> int:
        if name == "core_buffer_bytes":  # 0 stands for a rule
            return architecture.core_sram_bytes
        return int(getattr(architecture, name))

    architectures = [point.architecture for point in points]
    parameters = [[value(each, name) for name in _NAMES] for each in architectures]
    category = [each.devices_per_node for each in architectures]
    prices = [(p.area_e6_um2, p.tdp_mw, p.price_micro_usd) for p in points]
    return Listed(
        np.array(parameters, dtype=np.int64),
        np.array(category, dtype=np.int64),
        np.array(prices, dtype=object).T,
    )


def shapley_factors(
    steps: dict[tuple[bool, bool, bool], int | None],
) -> tuple[float, float, float] | None:
    """Return what three choices multiply the throughput by.

    The mean of the logarithms over the six orders of making them (Shapley
    1953). ``None`` if one of the eight step times is unknown.
    """
    logs = {
        choice: -math.log(step) for choice, step in steps.items() if step is not None
    }
    if len(logs) < len(steps):
        return None
    totals = [0.0, 0.0, 0.0]
    orders = list(itertools.permutations(range(3)))
    for order in orders:
        made = [False, False, False]
        for which in order:
            before = logs[made[0], made[1], made[2]]
            made[which] = True
            totals[which] += logs[made[0], made[1], made[2]] - before
    first, second, third = (math.exp(total / len(orders)) for total in totals)
    return first, second, third


def problem_on(spec: Spec, on: ModelResult, architecture: Architecture) -> Problem:
    """Return the problem of a model on an architecture that is solved.

    Its best plan is that of the architecture, and takes as long. Passes take
    what shortest schedules of their operators take, where these are quickly
    known or the proof needs them; bounds stand for the others.
    """
    workload = workload_of(setting_of(spec, on.model, architecture.devices_per_node))
    target = 0 if on.step_ps is None else on.step_ps // QUANTUM_PS
    *_, times = prove_point(workload, architecture, (), target, Deadline(None))
    return workload.problem(architecture, workload.entries(times))


def setting_of(spec: Spec, model: str, devices_per_node: int = 1) -> WorkloadSetting:
    """Return what a model depends on with nodes of some size.

    Raises ``NestError`` if there is no such model.
    """
    return WorkloadSetting(
        model=load_model(model),
        num_devices=spec.devices,
        devices_per_node=devices_per_node,
        job=spec.job,
        convention=spec.convention,
        attention=spec.attention,
        link_latency_ns=spec.link_latency_ns,
        network_latency_ns=spec.network_latency_ns,
    )


def _check(
    workload: Workload, architecture: Architecture, plan: Plan, solved: Any
) -> None:
    """Score a plan again, on a problem that is made anew.

    Of passes that it does not run bounds do.
    """
    times = workload.least(architecture)
    used = workload.passes_of(plan)
    times |= workload.shortest(architecture, numbers=used)
    entries = workload.entries(times)
    rescored = score(workload.problem(architecture, entries), plan)
    if not rescored.feasible or rescored.step_quanta != solved.lower_quanta:
        raise SolverError(
            f"{workload.name}: expected a step of {solved.lower_quanta} quanta on "
            f"{architecture}, got {rescored.step_quanta}; please report it"
        )
