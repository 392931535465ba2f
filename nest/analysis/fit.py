"""Fit: how few devices, or how little memory, keep a given step time.

Every candidate gets a verdict from a solver through the runner: a plan within the
target (*yes*), a proof that there is none (*no*), or neither before the time limit
(*open*), which all candidates share. The step time need not fall with every added
device, so the answer is the smallest candidate that says yes, and it is proven only if
every smaller one says no. With memory it never rises, so an interval closes around the
smallest size: what a plan needs above, what is refuted below.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal

from msgspec import structs

from nest.cost.model import CostModel
from nest.cost.rules import get_rules
from nest.cost.score import Score, score
from nest.cost.space import batch_splits, strategies
from nest.errors import InvalidOptionError
from nest.ir.io import plan_to_json, problem_hash
from nest.ir.problem import Problem
from nest.ir.views import Row, Tabular
from nest.solvers.base import Deadline, SolveOptions, Status
from nest.solvers.cell import OnProgress, about, one_process
from nest.solvers.registry import solver_class
from nest.solvers.result import SolveResult
from nest.solvers.run import CellInterrupted, not_run, run_solver
from nest.units import MAX_TERM, MAX_TOTAL, format_bytes, quanta_to_ns
from nest.util.interrupts import Interrupted
from nest.util.versions import provenance

Question = Literal["devices", "memory", "fastest", "cheapest"]
Decision = Literal["yes", "no", "open"]

PS_PER_S = 10**12
SECONDS_PER_DAY = 86_400

#: Up to so many nodes every number of them is a candidate.
FEW_NODES = 16

#: Option of solvers that can stop at any plan within a target.
ANY_PLAN = "at_most_quanta"


@dataclass(frozen=True)
class StepTimeLimit:
    """How long a step may take, in quanta, and what was asked for, as text."""

    quanta: int
    text: str


@dataclass(frozen=True)
class Trial:
    """One candidate: the problem with its cluster, and what a solver says.

    ``answer`` is whether some plan keeps the target.
    """

    problem: Problem
    answer: Decision
    result: SolveResult

    @property
    def num_devices(self) -> int:
        """Devices of the candidate."""
        return self.problem.cluster.num_devices

    @property
    def memory_bytes(self) -> int:
        """Memory per device of the candidate."""
        return self.problem.cluster.memory_bytes()

    def rescored(self) -> Score:
        """Return the score of the plan on the candidate's own cluster.

        That of the result may be of more memory.
        """
        plan = self.result.plan
        assert plan is not None
        return score(self.problem, plan)


@dataclass(frozen=True, repr=False)
class Fit(Tabular):
    """The answer to a question.

    Attributes
    ----------
    question
        What was to be small, or what plan was to be found.
    target
        The step time to keep.
    trials
        All candidates looked at, in this order.
    best
        The smallest candidate that keeps the target, with the best plan for
        it in the result; ``None`` if none is known.
    proven
        Whether it is proven that nothing smaller does, among the numbers of
        devices tried; without an answer, that no candidate does.
    fastest
        Without an answer: the candidate with the least step time, its plan
        in the result; ``None`` if no candidate has a plan.
    """

    question: Question
    target: StepTimeLimit
    trials: tuple[Trial, ...]
    best: Trial | None
    proven: bool
    fastest: Trial | None = None

    def __repr__(self) -> str:
        """Return what it is in a line."""
        text = "none keeps it"
        if self.best is not None:
            text = (
                f"{self.best.num_devices} devices of "
                f"{format_bytes(self.best.memory_bytes)}"
            )
        proven = f"proven{self.among}" if self.proven else "not proven"
        return f"<Fit of {self.question} for {self.target.text}: {text}, " + (
            f"{proven}>"
        )

    @property
    def among(self) -> str:
        """What a proof is about, for people; empty if about everything."""
        if self.question == "memory":
            return ""
        if self.question == "devices" and self.best is not None:
            tried = {trial.num_devices for trial in self.trials}
            if len(tried) == self.best.num_devices:
                return ""
        return " among the counts tried"

    @property
    def without_plan(self) -> bool:
        """Whether it is proven that no candidate has any plan."""
        return self.proven and self.best is None and self.fastest is None

    def to_rows(self) -> list[Row]:
        """Return a row per candidate."""
        return [
            {
                "num_devices": trial.num_devices,
                "memory_bytes": trial.memory_bytes,
                "answer": trial.answer,
                **trial.result.summary(),
            }
            for trial in self.trials
        ]


# Targets


def step_target(problem: Problem, step_s: Fraction, text: str) -> StepTimeLimit:
    """Return the target of a step time in seconds, rounded down to quanta."""
    quanta = math.floor(step_s * PS_PER_S / problem.quantum_ps)
    return StepTimeLimit(min(quanta, MAX_TOTAL), text)


def within(problem: Problem, step_s: Fraction) -> StepTimeLimit:
    """Return the target of a step within so many seconds.

    They are the problem's own time unit where it has one.
    """
    unit = problem.time_unit
    return step_target(problem, step_s, f"a step within {_g(step_s)} {unit}")


def tokens_per_s(problem: Problem, rate: Fraction) -> StepTimeLimit:
    """Return the target of a throughput, in tokens per second.

    Raises
    ------
    InvalidOptionError
        If samples have no tokens.
    """
    tokens = _tokens_per_step(problem, "--tokens-per-s")
    step_s = tokens / rate
    return step_target(
        problem, step_s, f"{_g(rate)} tokens/s (a step within {_g(step_s)} s)"
    )


def days(problem: Problem, num_days: Fraction, tokens: Fraction) -> StepTimeLimit:
    """Return the target of a whole run: so many tokens in so many days.

    Raises
    ------
    InvalidOptionError
        If samples have no tokens.
    """
    steps = num_steps(problem, tokens, "--days")
    step_s = num_days * SECONDS_PER_DAY / steps
    return step_target(
        problem,
        step_s,
        f"{_g(tokens)} tokens in {_g(num_days)} days ({steps} steps, "
        f"each within {_g(step_s)} s)",
    )


def num_steps(problem: Problem, tokens: Fraction, option: str) -> int:
    """Return the steps of a run over so many tokens, for an option.

    Raises
    ------
    InvalidOptionError
        If samples have no tokens.
    """
    return math.ceil(tokens / _tokens_per_step(problem, option))


def _tokens_per_step(problem: Problem, option: str) -> int:
    length = problem.job.sequence_length
    if length is None or problem.time_unit != "s":
        got = "none" if length is None else f"unit {problem.time_unit!r}"
        raise InvalidOptionError(
            f"{option}: expected a problem with a sequence_length and times "
            f"in seconds, got {got}; use --within"
        )
    samples = problem.job.global_batch
    if get_rules(problem.preset).steady_state:
        # the step time is that of a micro-batch
        (samples,) = problem.job.micro_batches
    return samples * length


def _g(value: Fraction) -> str:
    return f"{float(value):.9g}"


# Candidates


def device_counts(problem: Problem) -> list[int]:
    """Return the device counts worth a question, ascending.

    Powers of two inside a node (the lowest level with more than one device),
    then whole nodes up to the cluster: every number of them up to
    :data:`FEW_NODES`, then eight per doubling.
    """
    most = problem.cluster.num_devices
    node = min(problem.cluster.topology.unit_sizes, default=1)
    if node >= most:
        node = most
    counts = {2**i for i in range(node.bit_length())} | {node, most}
    nodes = 1
    while nodes * node <= most:
        counts.add(nodes * node)
        nodes += max(1, 2 ** (nodes.bit_length() - FEW_NODES.bit_length() + 1))
    return sorted(count for count in counts if count <= most)


def with_devices(problem: Problem, num_devices: int) -> Problem:
    """Return the problem on the first devices of its cluster."""
    cluster = problem.cluster.first_devices(num_devices)
    return structs.replace(problem, cluster=cluster)


def with_memory(problem: Problem, memory_bytes: int) -> Problem:
    """Return the problem on devices with so much memory."""
    cluster = problem.cluster.with_memory(memory_bytes)
    return structs.replace(problem, cluster=cluster)


def most_memory_bytes(problem: Problem) -> int:
    """Return an upper bound on what a device needs under any plan.

    All layers on it, each at its largest, with as many micro-batches in flight as there
    are, per chunk, or as there are layers; at most what a device can have.
    """
    model = CostModel(problem)
    layers = problem.graph.layers
    found = batch_splits(problem)
    inflight = len(layers) + max(problem.job.virtual_stages) * max(
        (split.num_micro_batches for split in found), default=0
    )
    entering = sum(
        max(edge.bytes_per_sample, *edge.bytes_per_sample_by_tp.values(), 0)
        for edge in problem.graph.edges
    )
    total = problem.cluster.reserve_bytes() + inflight * entering * max(
        problem.job.micro_batches
    )
    known: dict[str, int] = {}
    for position, layer in enumerate(layers):
        if layer.kind not in known:
            known[layer.kind] = max(
                (
                    terms.static_bytes
                    + inflight * terms.kept_bytes
                    + terms.working_bytes
                    for size in {split.micro_batch for split in found}
                    for strategy in strategies(problem, size)
                    if (terms := model.layer_terms(position, strategy, size, None))
                    is not None
                ),
                default=0,
            )
        total += known[layer.kind]
    if model.rules.round_robin:
        # what sums of memory in its program may reach
        most = 4 * problem.cluster.num_devices * len(layers)
        total = min(total, 2**62 // most - 1)
    return min(total, MAX_TERM)


# Questions


@one_process()
def fewest_devices(
    problem: Problem,
    target: StepTimeLimit,
    counts: Sequence[int] | None = None,
    solver: str = "dp",
    options: SolveOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Fit:
    """Find the fewest devices that keep a target.

    The first devices of the problem's cluster are used. Candidates are ``counts``, by
    default :func:`device_counts`. The time limit of ``options`` is that of the
    question.

    Raises
    ------
    InvalidOptionError
        If a candidate is larger than the cluster.
    NestError
        If the request makes no sense to the solver.
    Interrupted
        On Ctrl-C, with the answer as far as it is known.
    """
    if counts is None:
        counts = device_counts(problem)
    most = problem.cluster.num_devices
    for count in counts:
        if not 1 <= count <= most:
            raise InvalidOptionError(
                f"--devices-list: expected numbers from 1 to {most}, the "
                f"devices of the cluster, got {count}; remove it"
            )
    ask = Asker(solver, options or SolveOptions(), on_progress)
    trials: list[Trial] = []
    num_left = len(set(counts)) + 1  # the answer may be sought again
    for count in sorted(set(counts)):
        candidate = with_devices(problem, count)
        trials.append(ask(candidate, target.quanta, num_left))
        num_left -= 1
        if trials[-1].answer == "yes" or ask.stopped is not None:
            break
    if trials[-1].answer == "yes":
        proven = all(trial.answer == "no" for trial in trials[:-1])
        # The candidate is shown with the plan that is the answer.
        trials[-1] = best = ask.improved(trials[-1])
        return ask.ended(Fit("devices", target, tuple(trials), best, proven))
    # The largest ones first: their plans rule out most of the others.
    fastest = ask.fastest([trial.problem for trial in reversed(trials)])
    proven = ask.stopped is None and all(trial.answer == "no" for trial in trials)
    fit = Fit("devices", target, tuple(trials), None, proven, fastest)
    return ask.ended(fit)


@one_process()
def smallest_memory(
    problem: Problem,
    target: StepTimeLimit,
    solver: str = "dp",
    options: SolveOptions | None = None,
    on_progress: OnProgress | None = None,
) -> Fit:
    """Find the smallest memory per device that keeps a target, to the byte.

    The parameters are those of :func:`fewest_devices`. What the device has
    does not matter, only what is reserved.

    Raises
    ------
    InvalidOptionError
        If the devices are of several types.
    NestError
        If the request makes no sense to the solver.
    """
    if len(problem.cluster.types) > 1:
        raise InvalidOptionError(
            f"--memory: expected devices of one type, got "
            f"{problem.cluster.device_name}; ask for each type alone"
        )
    ask = Asker(solver, options or SolveOptions(), on_progress, ANY_PLAN)
    unlimited = with_memory(problem, most_memory_bytes(problem))
    first = ask(unlimited, target.quanta)
    trials = [first]
    if first.answer != "yes":
        fastest = ask.fastest([unlimited])
        proven = first.answer == "no"
        fit = Fit("memory", target, (first,), None, proven, fastest)
        return ask.ended(fit)
    best = shrunk(first)
    # Nothing below low keeps the target, if it is proven.
    low, proven = problem.cluster.reserve_bytes(), True
    at_edge = False
    while low < best.memory_bytes:
        if ask.stopped is not None or ask.clock.passed:
            proven = False
            break
        middle = (low + best.memory_bytes) // 2
        if at_edge:
            middle = best.memory_bytes - 1
        trial = ask(with_memory(problem, middle), target.quanta)
        trials.append(trial)
        if trial.answer == "yes":
            best = shrunk(trial)
        else:
            proven = proven and trial.answer == "no"
            low = middle + 1
        # A step below a plan found settles it where nothing is in between.
        at_edge = not at_edge
    best = ask.improved(best)
    fit = Fit("memory", target, (*trials, best), best, proven)
    return ask.ended(fit)


def shrunk(trial: Trial) -> Trial:
    """Return a trial with no more memory than its plan needs."""
    assert trial.result.score is not None
    most = max(block.memory_bytes for block in trial.result.score.blocks)
    return replace(trial, problem=with_memory(trial.problem, most))


class Asker:
    """Asks one solver about one problem after the other.

    All runs share the time limit of ``options``. On Ctrl-C ``stopped`` is the
    interrupt, and nothing more is asked. The solver gets the target by its option
    ``target_option``, if it has that; with the default it looks for the best plan
    within the target.
    """

    def __init__(
        self,
        solver: str,
        options: SolveOptions,
        on_progress: OnProgress | None,
        target_option: str = "within_quanta",
    ) -> None:
        self.solver, self.options = solver, options
        self.on_progress = on_progress
        self.clock = Deadline(options.time_limit_s)
        self.stopped: CellInterrupted | None = None
        promised = solver_class(solver, options.time_limit_s).capabilities
        self.option = target_option if target_option in promised.options else None

    def solve(
        self, problem: Problem, quanta: int | None, num_left: int = 1
    ) -> SolveResult:
        """Run the solver, up to a target if it can look there alone.

        It gets an equal share of the time, if ``num_left`` runs are left.
        """
        extra = dict(self.options.extra)
        if quanta is not None and self.option is not None:
            extra[self.option] = str(quanta)
        left_s = self.clock.remaining_s
        options = replace(
            self.options, extra=extra, time_limit_s=left_s and left_s / num_left
        )
        if left_s == 0:
            return not_run(problem, self.solver, options)
        cluster = problem.cluster
        what = (
            f"{cluster.num_devices} devices of {format_bytes(cluster.memory_bytes())}"
        )
        say = about(what, self.on_progress)
        try:
            return run_solver(problem, self.solver, options, say)
        except CellInterrupted as interrupt:
            self.stopped = interrupt
            return interrupt.result

    def ended(self, fit: Fit) -> Fit:
        """Return the answer.

        Raises
        ------
        Interrupted
            With the answer so far, if the user stopped it.
        """
        if self.stopped is not None:
            raise Interrupted(fit) from self.stopped
        return fit

    def __call__(self, problem: Problem, quanta: int, num_left: int = 1) -> Trial:
        """Return whether some plan takes at most so many quanta."""
        result = self.solve(problem, quanta, num_left)
        answer: Decision = "open"
        step, bound = result.step_quanta, result.lower_bound_quanta
        if step is not None and step <= quanta:
            answer = "yes"
        elif result.status is Status.INFEASIBLE or (
            bound is not None and bound > quanta
        ):
            answer = "no"
        return Trial(problem, answer, result)

    def improved(self, trial: Trial) -> Trial:
        """Return a trial with the best plan for its problem."""
        result = trial.result
        was_best = self.option is None and result.limit is None
        if self.stopped is not None or was_best or result.status is Status.OPTIMAL:
            return trial
        result = self.solve(trial.problem, None)
        step, known = result.step_quanta, trial.result.step_quanta
        if step is None or (known is not None and step > known):
            return trial
        return replace(trial, result=result)

    def fastest(self, problems: Sequence[Problem]) -> Trial | None:
        """Return the problem with the least step time, and its best plan."""
        best, best_quanta = None, MAX_TOTAL + 1
        for problem in problems:
            if self.stopped is not None:
                break
            # Is there anything better at all?
            trial = self(problem, best_quanta - 1)
            if trial.answer != "no":
                trial = self.improved(trial)
            quanta = trial.result.step_quanta
            if quanta is not None and quanta < best_quanta:
                best, best_quanta = replace(trial, answer="no"), quanta
        return best


# Documents


def to_document(problem: Problem, fit: Fit, solver: str) -> dict[str, Any]:
    """Return the ``nest-fit/1`` document of an answer."""

    def devices(trial: Trial) -> dict[str, Any]:
        counts = trial.problem.cluster.counts
        return {"num_devices": trial.num_devices, "devices_by_type": counts}

    def candidate(trial: Trial) -> dict[str, Any]:
        return {
            **devices(trial),
            "memory_bytes": trial.memory_bytes,
            "answer": trial.answer,
            **trial.result.summary(),
        }

    def with_plan(trial: Trial | None) -> Mapping[str, Any] | None:
        if trial is None or trial.result.score is None:
            return None
        return {
            **devices(trial),
            "memory_bytes": trial.memory_bytes,
            "problem_hash": problem_hash(trial.problem),
            "step_time_ns": trial.result.step_time_ns,
            "proven_optimal": trial.result.status is Status.OPTIMAL,
            "plan": plan_to_json(trial.result.plan),
            "score": trial.result.score.to_json(),
        }

    target_ns = quanta_to_ns(fit.target.quanta, problem.quantum_ps)
    return {
        "schema": "nest-fit/1",
        "problem": problem.name,
        "problem_hash": problem_hash(problem),
        "solver": solver,
        "question": fit.question,
        "target": {"text": fit.target.text, "step_ns": target_ns},
        "proven": fit.proven,
        "proven_among_tried": bool(fit.proven and fit.among),
        "answer": with_plan(fit.best),
        "fastest": with_plan(fit.fastest),
        "candidates": [candidate(trial) for trial in fit.trials],
        **provenance(),
    }
