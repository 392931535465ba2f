"""Why no plan fits, and what would do: so much memory, or so many devices.

How little memory per device some plan needs has a search of its own,
:mod:`nest.search.frontier.least`; clusters with twice, four times, … as many devices of
the same kind are tried until one has a plan. What that search does not cover is asked
of an exact solver, as :mod:`nest.analysis.fit` asks for a target that every plan keeps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from msgspec import structs

from nest.analysis.fit import (
    ANY_PLAN,
    Asker,
    Decision,
    Trial,
    most_memory_bytes,
    shrunk,
    with_memory,
)
from nest.cost.magnitude import coarsened
from nest.cost.score import score
from nest.cost.space import batch_splits, fills_batches, has_plain, why_not_split
from nest.errors import NestError
from nest.ir.cluster import Hierarchy, Level
from nest.ir.io import plan_to_json
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Deadline, SolveOptions
from nest.solvers.cell import OnProgress, Running, one_process
from nest.units import MAX_TOTAL, ceil_div, format_bytes
from nest.util.plots import MEMORY_LABELS

if TYPE_CHECKING:
    from nest.search.frontier.least import MemoryBounds

#: Wall-clock seconds for all questions together.
TIME_LIMIT_S = 20.0

#: Where an interval of memory is but such a part of it, a byte less is tried.
NEAR = 16

#: At most so many times the devices are tried.
MOST_TIMES = 64


@dataclass(frozen=True)
class LeastMemory:
    """How little memory per device some plan needs.

    With ``refuted_bytes`` no plan fits, which is proven. ``memory_bytes`` are the least
    known to do, for a plan. ``impossible`` is whether it is proven that there is no
    plan, whatever the memory; ``possible`` whether there is one with more, if nothing
    else was asked.
    """

    refuted_bytes: int
    memory_bytes: int | None = None
    plan: Plan | None = None
    impossible: bool = False
    possible: bool = False

    @property
    def proven(self) -> bool:
        """Whether a byte less would not do."""
        return self.memory_bytes == self.refuted_bytes + 1


@dataclass(frozen=True, repr=False)
class Remedies:
    """What would make a problem feasible, as far as there was time to ask.

    Attributes
    ----------
    problem
        The problem.
    memory
        The least memory that would do; of devices of several types only
        whether any would.
    num_devices
        So many devices would do, the least of those tried; ``None`` if none is known.
    refuted_devices
        The most devices tried that, proven, would not do.
    why_no_split
        Why no replicas and micro-batch go with the batch; empty if some do.
    """

    problem: Problem
    memory: LeastMemory
    num_devices: int | None
    refuted_devices: int
    why_no_split: str = ""

    def __repr__(self) -> str:
        """Return what would do, in a line."""
        text = "; ".join(self.lines) or "nothing is known"
        return f"<Remedies of {self.problem.name}: {text}>"

    @property
    def fits(self) -> bool:
        """Whether there is a plan after all."""
        known = self.memory.memory_bytes
        own = self.problem.cluster.memory_bytes()
        return known is not None and known <= own

    @property
    def lines(self) -> list[str]:
        """Why no plan fits, and what would do, for people."""
        found = [*self._why()]
        if self.num_devices is not None:
            joined = self.problem.cluster.topology.kind == "hierarchy"
            found.append(
                f"would do: {self.num_devices} such devices"
                f"{'' if joined else ', however they are joined'} "
                f"({self.refuted_devices} would not)"
            )
        elif self.refuted_devices > self.problem.cluster.num_devices:
            found.append(f"more devices alone: {self.refuted_devices} would not do")
        return found

    def _why(self) -> Iterator[str]:
        memory = self.memory
        if self.why_no_split:
            yield f"why: {self.why_no_split}"
        elif memory.impossible:
            yield (
                "why: no plan exists, whatever the memory: batch, degrees "
                "and stages that the job allows do not go together on "
                f"{self.problem.cluster.num_devices} devices"
            )
        elif memory.possible:
            yield "why: memory is short: with more on every device plans fit"
        elif self.fits:
            yield "a plan that fits was found: the claim is wrong"
        elif memory.plan is not None and memory.memory_bytes is not None:
            own = self.problem.cluster.memory_bytes()
            short = format_bytes(memory.memory_bytes - own)
            least = format_bytes(memory.refuted_bytes - own)
            if memory.proven:
                between = f"{short} per device at best"
            elif memory.refuted_bytes > own:
                between = f"at least {least} and at most {short} per device"
            else:
                between = f"at most {short} per device"
            yield (
                f"why: memory is short by {between}; "
                f"{_holds(self.problem, memory.plan)}"
            )
            yield (
                f"would do: {format_bytes(memory.memory_bytes)} per device "
                f"instead of {format_bytes(own)}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return what a document says about them."""
        plan = self.memory.plan
        document = None if plan is None else plan_to_json(plan)
        if document is not None:
            document.pop("problem_hash", None)
        return {
            "num_devices": self.num_devices,
            "refuted_devices": self.refuted_devices,
            "whatever_the_memory": self.memory.impossible,
            "memory_bytes": self.memory.memory_bytes,
            "refuted_memory_bytes": self.memory.refuted_bytes,
            "plan": document,
        }


def _holds(problem: Problem, plan: Plan) -> str:
    """Say what the fullest device of a plan holds, the largest parts."""
    block = max(score(problem, plan).blocks, key=lambda x: x.memory_bytes)
    parts = sorted(block.memory.items(), key=lambda part: -part[1])[:3]
    texts = [
        f"{MEMORY_LABELS[name]} {format_bytes(size)}" for name, size in parts if size
    ]
    return f"the fullest device then holds {', '.join(texts)}"


def why_no_split(problem: Problem) -> str:
    """Return why no replicas and micro-batch are allowed; empty if some are.

    Those that divide the global batch come closest.
    """
    if batch_splits(problem):
        return ""
    job = problem.job
    every = job.replicas or range(1, problem.cluster.num_devices + 1)
    counts = [count for count in every if fills_batches(job, count)]
    sizes = [size for size in job.micro_batches if fills_batches(job, size)]
    closest = [
        (count, size)
        for count in counts
        for size in sizes
        if fills_batches(job, count * size)
    ]
    if not closest:
        least = min(every) * min(job.micro_batches)
        more = ceil_div(job.global_batch, least) * least
        listed = ", ".join(map(str, job.micro_batches))
        return (
            f"job: expected replicas * micro_batch to divide the global batch "
            f"{job.global_batch}, got none that does with micro-batches "
            f"{listed}; change either, for example to a batch of {more}"
        )
    reason = why_not_split(problem, *closest[0])
    return f"job: {reason}; change the job or the cluster"


@one_process()
def remedies(
    problem: Problem,
    time_limit_s: float = TIME_LIMIT_S,
    solver: str = "dp",
    on_progress: OnProgress | None = None,
) -> Remedies:
    """Find out what would make a problem without a plan feasible.

    All questions share the time limit. The solver answers what
    :mod:`nest.search.frontier.least` cannot.
    """
    search = _FitSearch(Deadline(time_limit_s), solver, on_progress)
    own = problem.cluster.memory_bytes()
    refuted, num_devices = problem.cluster.num_devices, None
    why = why_no_split(problem)
    if why:
        memory = LeastMemory(own, impossible=True)
    elif len(problem.cluster.types) == 1:
        # What is asked here may take all the time; else devices get half.
        limit_s = time_limit_s if _covers(problem) else time_limit_s / 2
        memory = least_memory(problem, own, limit_s, solver, on_progress)
    else:
        half = replace(search, clock=Deadline(time_limit_s / 2))
        trial = half.any_plan(with_memory(problem, most_memory_bytes(problem)))
        said = "open" if trial is None else trial.answer
        memory = LeastMemory(own, impossible=said == "no", possible=said == "yes")
    if Remedies(problem, memory, None, refuted).fits:
        return Remedies(problem, memory, None, refuted)
    for wider in larger(problem):
        answer = search.fits(wider)
        if answer == "open":
            break
        if answer == "yes":
            num_devices = wider.cluster.num_devices
            break
        refuted = wider.cluster.num_devices
    return Remedies(problem, memory, num_devices, refuted, why)


def remedies_within(
    problem: Problem, time_limit_s: float | None, on_progress: OnProgress | None = None
) -> Remedies:
    """Return :func:`remedies` within the limit of a solver, if it is less."""
    limit_s = TIME_LIMIT_S
    if time_limit_s is not None:
        limit_s = min(time_limit_s, TIME_LIMIT_S)
    return remedies(problem, limit_s, on_progress=on_progress)


def least_memory(
    problem: Problem,
    refuted_bytes: int,
    time_limit_s: float = TIME_LIMIT_S,
    solver: str = "dp",
    on_progress: OnProgress | None = None,
) -> LeastMemory:
    """Return how little memory per device some plan needs.

    To the byte if there is time, and some plan that needs no more. The devices are of
    one type, and ``refuted_bytes`` are known not to do. The rest is as of
    :func:`remedies`.
    """
    search = _FitSearch(Deadline(time_limit_s), solver, on_progress)
    if _covers(problem):
        return search.least_memory(problem, refuted_bytes)
    start = None
    plain = _plain(problem)
    if plain is not None and _covers(plain):
        # Some of the plans, whose least one is found soon.
        first = replace(search, clock=Deadline(time_limit_s / 2))
        start = first.least_memory(plain, refuted_bytes)
    return search.closed(problem, refuted_bytes, start)


def _plain(problem: Problem) -> Problem | None:
    """Return the problem with one strategy per stage, none interleaved.

    ``None`` if the job allows interleaved plans only.
    """
    if not has_plain(problem):
        return None
    job = structs.replace(problem.job, granularity="stage", virtual_stages=(1,))
    return structs.replace(problem, job=job)


def _covers(problem: Problem) -> bool:
    from nest.search.frontier.least import covers

    return covers(problem)


@dataclass(frozen=True)
class _FitSearch:
    """The search for plans that fit: until when, by whom, and who is told."""

    clock: Deadline
    solver: str
    on_progress: OnProgress | None

    def least_memory(self, problem: Problem, refuted_bytes: int) -> LeastMemory:
        """Return the least memory of a problem that the search covers."""
        unlimited = with_memory(problem, most_memory_bytes(problem))
        found = self.leanest(unlimited)
        low, least = max(found.refuted_bytes, refuted_bytes), found.memory_bytes
        if least is not None:
            low = min(low, least - 1)
        elif found.impossible:
            low = refuted_bytes
        return LeastMemory(low, least, found.plan, found.impossible)

    def leanest(
        self, problem: Problem, enough_bytes: int | None = None
    ) -> MemoryBounds:
        """Search for the leanest plan within the memory that there is."""
        from nest.search.frontier.least import MemoryBounds, least_memory

        def say(text: str) -> None:
            if self.on_progress is not None:
                elapsed_s = self.clock.elapsed_s
                self.on_progress(Running(self.solver, elapsed_s, message=text))

        try:
            return least_memory(problem, self.clock, say, enough_bytes)
        except NestError:
            # A graph with too many closed sets.
            return MemoryBounds(problem.cluster.reserve_bytes() - 1)

    def closed(
        self, problem: Problem, low: int, start: LeastMemory | None
    ) -> LeastMemory:
        """Close the interval around the least memory while there is time.

        From what is known of some plans, if anything.
        """
        best, plan = None, None
        if start is not None:
            best, plan = start.memory_bytes, start.plan
        at_edge = best is not None
        if best is None:
            first = self.any_plan(with_memory(problem, most_memory_bytes(problem)))
            if first is None or first.answer != "yes":
                impossible = first is not None and first.answer == "no"
                return LeastMemory(low, impossible=impossible)
            best, plan = _needs(first)
        found = False
        while low + 1 < best:
            middle = (low + best) // 2
            if not found:
                # What any plan needs may be far from what the best one does.
                middle = min(middle, max(2 * low, 1))
            if at_edge:
                middle = best - 1
            trial = self.any_plan(with_memory(problem, middle))
            if trial is None or trial.answer == "open":
                break
            if trial.answer == "yes":
                (best, plan), found = _needs(trial), True
            else:
                low = middle
            # A byte below a plan found settles it where nothing is in between.
            near = best - low <= best // NEAR
            at_edge = near and not at_edge
        return LeastMemory(low, best, plan)

    def fits(self, problem: Problem) -> Decision:
        """Return whether some plan fits, as far as there is time."""
        if _covers(problem):
            found = self.leanest(problem, problem.cluster.memory_bytes())
            if found.plan is not None:
                return "yes"
            return "no" if found.impossible else "open"
        trial = self.any_plan(problem)
        return "open" if trial is None else trial.answer

    def any_plan(self, problem: Problem) -> Trial | None:
        """Ask for any plan; ``None`` if there is no time left."""
        left_s = self.clock.remaining_s
        if not left_s:
            return None
        options = SolveOptions(time_limit_s=left_s)
        asker = Asker(self.solver, options, self.on_progress, ANY_PLAN)
        return asker(problem, MAX_TOTAL)


def _needs(trial: Trial) -> tuple[int, Plan]:
    """Return what the plan of an answer needs, and the plan."""
    assert trial.result.plan is not None
    return shrunk(trial).memory_bytes, trial.result.plan


def larger(problem: Problem) -> Iterator[Problem]:
    """Yield the problem on twice, four times, … as many devices.

    More units of the highest level of the network, which stays as it is otherwise. A
    graph does not say how more devices are joined; one switch takes its place, as
    whether a plan fits is not up to the network. None where devices differ.
    """
    cluster = problem.cluster
    network = cluster.topology
    if len(cluster.types) > 1:
        return
    if network.kind != "hierarchy":
        level = Level(fan_out=network.max_devices, bandwidth_bytes_per_s=1e12)
        network = Hierarchy(levels=(level,))
    *lower, top = network.levels
    below = network.max_devices // top.fan_out
    times = 2
    while times <= MOST_TIMES:
        count = times * cluster.num_devices
        fan_out = max(top.fan_out, ceil_div(count, below))
        wider = structs.replace(top, fan_out=fan_out)
        try:
            larger = structs.replace(
                problem,
                cluster=structs.replace(
                    cluster,
                    num_devices=count,
                    topology=structs.replace(network, levels=(*lower, wider)),
                ),
            )
            # Whether a plan fits is not up to the quantum either.
            yield coarsened(larger)
        except NestError:
            return
        times *= 2
