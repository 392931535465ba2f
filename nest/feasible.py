"""Why no plan fits, and what would do: so much memory, or so many devices.

Both are asked of an exact solver, as :mod:`nest.fit` asks for a target that
every plan keeps: an interval closes around the least memory per device that
some plan needs, and clusters with twice, four times, … as many devices of the
same kind are tried until one has a plan.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from nest.errors import NestError
from nest.fit import Asker, Trial, most_memory_bytes, shrunk, with_memory
from nest.ir.cluster import Hierarchy, Level
from nest.ir.io import plan_to_json
from nest.ir.plan import RECOMPUTE
from nest.ir.problem import Problem
from nest.solvers.base import Deadline, SolveOptions
from nest.solvers.cell import OnProgress
from nest.units import MAX_TOTAL, ceil_div, format_bytes

#: Wall-clock seconds for all questions together.
TIME_LIMIT_S = 20.0

#: Where an interval of memory is but such a part of it, a byte less is tried.
NEAR = 16

#: At most so many times the devices are tried.
MOST_TIMES = 64

#: What the parts of a device's memory are called.
_PARTS = {
    "weight_bytes": "weights",
    "gradient_bytes": "gradients",
    "state_bytes": "optimizer state",
    "buffer_bytes": "buffers",
    "kept_bytes": "activations",
    "working_bytes": "working memory",
    "reserve_bytes": "reserve",
}


@dataclass(frozen=True)
class LeastMemory:
    """How little memory per device some plan needs.

    Attributes
    ----------
    refuted_bytes
        With so much, proven, no plan fits.
    trial
        The problem with the least memory known to do, and a plan for it;
        ``None`` if none is known.
    impossible
        Whether it is proven that there is no plan, whatever the memory.
    possible
        Whether there is a plan with more memory, if nothing else was asked.
    """

    refuted_bytes: int
    trial: Trial | None
    impossible: bool = False
    possible: bool = False

    @property
    def memory_bytes(self) -> int | None:
        """The least memory per device known to do."""
        return None if self.trial is None else self.trial.memory_bytes

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
        So many devices would do, the least of those tried; ``None`` if none
        is known.
    refuted_devices
        The most devices tried that, proven, would not do.
    """

    problem: Problem
    memory: LeastMemory
    num_devices: int | None
    refuted_devices: int

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
            joined = isinstance(self.problem.cluster.topology, Hierarchy)
            found.append(
                f"would do: {self.num_devices} such devices"
                f"{'' if joined else ', however they are joined'} "
                f"({self.refuted_devices} would not)"
            )
        elif self.refuted_devices > self.problem.cluster.num_devices:
            found.append(
                f"more devices alone: {self.refuted_devices} would not do"
            )
        return found

    def _why(self) -> Iterator[str]:
        memory = self.memory
        if memory.impossible:
            yield (
                "why: no plan exists, whatever the memory: batch, degrees "
                "and stages that the job allows do not go together on "
                f"{self.problem.cluster.num_devices} devices"
            )
        elif memory.possible:
            yield "why: memory is short: with more on every device plans fit"
        elif self.fits:
            yield "a plan that fits was found: the claim is wrong"
        elif memory.trial is not None and memory.memory_bytes is not None:
            own = self.problem.cluster.memory_bytes()
            short = format_bytes(memory.memory_bytes - own)
            least = format_bytes(memory.refuted_bytes - own)
            if memory.proven:
                between = f"{short} per device at best"
            elif memory.refuted_bytes > own:
                between = f"{least} to {short} per device at best"
            else:
                between = f"at most {short} per device at best"
            yield f"why: memory is short by {between}; {_holds(memory.trial)}"
            yield (
                f"would do: {format_bytes(memory.memory_bytes)} per device "
                f"instead of {format_bytes(own)}"
            )

    def to_json(self) -> dict[str, Any]:
        """Return what a document says about them."""
        trial = self.memory.trial
        plan = plan_to_json(trial.result.plan) if trial else None
        if plan is not None:
            plan.pop("problem_hash", None)
        return {
            "num_devices": self.num_devices,
            "refuted_devices": self.refuted_devices,
            "whatever_the_memory": self.memory.impossible,
            "memory_bytes": self.memory.memory_bytes,
            "refuted_memory_bytes": self.memory.refuted_bytes,
            "plan": plan,
        }


def _holds(trial: Trial) -> str:
    """Say what the fullest device of a plan holds, the largest parts."""
    assert trial.result.score is not None
    block = max(trial.result.score.blocks, key=lambda x: x.memory_bytes)
    parts = sorted(block.memory.items(), key=lambda part: -part[1])[:3]
    texts = [
        f"{_PARTS[name]} {format_bytes(size)}" for name, size in parts if size
    ]
    return f"the fullest device then holds {', '.join(texts)}"


def remedies(
    problem: Problem,
    time_limit_s: float = TIME_LIMIT_S,
    solver: str = "dp",
    on_progress: OnProgress | None = None,
) -> Remedies:
    """Find out what would make an infeasible problem feasible.

    Parameters
    ----------
    problem
        A problem without a plan.
    time_limit_s
        For all questions together; memory gets half of it.
    solver, on_progress
        Who answers; called meanwhile.
    """
    clock = Deadline(time_limit_s)
    own, half_s = problem.cluster.memory_bytes(), time_limit_s / 2
    if len(problem.cluster.types) == 1:
        memory = least_memory(problem, own, half_s, solver, on_progress)
    else:
        unlimited = with_memory(problem, most_memory_bytes(problem))
        trial = _ask(unlimited, Deadline(half_s), solver, on_progress)
        said = "open" if trial is None else trial.answer
        memory = LeastMemory(own, None, said == "no", said == "yes")
    num_devices, refuted = None, problem.cluster.num_devices
    if Remedies(problem, memory, None, refuted).fits:
        return Remedies(problem, memory, None, refuted)
    for larger in _larger(problem):
        answer = _ask(larger, clock, solver, on_progress)
        if answer is None or answer.answer == "open":
            break
        if answer.answer == "yes":
            num_devices = larger.cluster.num_devices
            break
        refuted = larger.cluster.num_devices
    return Remedies(problem, memory, num_devices, refuted)


def remedies_within(
    problem: Problem,
    time_limit_s: float | None,
    on_progress: OnProgress | None = None,
) -> Remedies:
    """Return :func:`remedies` within the limit of a solver, if it is less."""
    limit_s = min(time_limit_s or TIME_LIMIT_S, TIME_LIMIT_S)
    return remedies(problem, limit_s, on_progress=on_progress)


def least_memory(
    problem: Problem,
    refuted_bytes: int,
    time_limit_s: float = TIME_LIMIT_S,
    solver: str = "dp",
    on_progress: OnProgress | None = None,
) -> LeastMemory:
    """Return how little memory per device some plan needs.

    To the byte if there is time. The plan is the fastest one with so much
    memory, or the one in hand when time is up.

    Parameters
    ----------
    problem
        A problem whose devices are of one type.
    refuted_bytes
        So much is known not to do.
    time_limit_s, solver, on_progress
        As of :func:`remedies`.
    """
    clock = Deadline(time_limit_s)
    best = None
    lean = _lean(problem)
    if lean != problem:
        # Among fewer plans a good one is found sooner.
        first = Deadline(time_limit_s / 2)
        _, best, _ = _closed(lean, refuted_bytes, None, first, solver)
    if best is not None:
        whole = with_memory(problem, best.memory_bytes)
        best = replace(best, problem=whole)
    low, best, impossible = _closed(
        problem, refuted_bytes, best, clock, solver, on_progress
    )
    ask = _asker(clock, solver, on_progress)
    if ask is not None and best is not None:
        best = ask.improved(best)
    return LeastMemory(low, best, impossible)


def _lean(problem: Problem) -> Problem:
    """Return the problem with the settings that use to need least memory."""
    job = problem.job
    return structs.replace(
        problem,
        job=structs.replace(
            job,
            zero=(max(job.zero),),
            recompute=(max(job.recompute, key=RECOMPUTE.index),),
            micro_batches=(
                min(
                    (b for b in job.micro_batches if not job.global_batch % b),
                    default=min(job.micro_batches),
                ),
            ),
        ),
    )


def _closed(
    problem: Problem,
    low: int,
    best: Trial | None,
    clock: Deadline,
    solver: str,
    on_progress: OnProgress | None = None,
) -> tuple[int, Trial | None, bool]:
    """Close the interval around the least memory while there is time.

    Returns
    -------
    tuple
        A refuted size, the least one known to do, and whether none does.
    """
    at_edge = best is not None
    if best is None:
        unlimited = with_memory(problem, most_memory_bytes(problem))
        first = _ask(unlimited, clock, solver, on_progress)
        if first is None or first.answer != "yes":
            impossible = first is not None and first.answer == "no"
            return low, None, impossible
        best = shrunk(first)
    found = False
    while low + 1 < best.memory_bytes:
        middle = (low + best.memory_bytes) // 2
        if not found:
            # What any plan needs may be far from what the best one does.
            middle = min(middle, max(2 * low, 1))
        if at_edge:
            middle = best.memory_bytes - 1
        trial = _ask(with_memory(problem, middle), clock, solver, on_progress)
        if trial is None or trial.answer == "open":
            break
        if trial.answer == "yes":
            best, found = shrunk(trial), True
        else:
            low = middle
        # A byte below a plan found settles it where nothing is in between.
        near = best.memory_bytes - low <= best.memory_bytes // NEAR
        at_edge = near and not at_edge
    return low, best, False


def _ask(
    problem: Problem,
    clock: Deadline,
    solver: str,
    on_progress: OnProgress | None,
) -> Trial | None:
    """Ask for any plan; ``None`` if there is no time left."""
    ask = _asker(clock, solver, on_progress)
    return None if ask is None else ask(problem, MAX_TOTAL)


def _asker(
    clock: Deadline, solver: str, on_progress: OnProgress | None
) -> Asker | None:
    left_s = clock.remaining_s
    if not left_s:
        return None
    return Asker(solver, SolveOptions(time_limit_s=left_s), on_progress)


def _larger(problem: Problem) -> Iterator[Problem]:
    """Yield the problem on twice, four times, … as many devices.

    More units of the highest level of the network, which stays as it is
    otherwise. A graph does not say how more devices are joined; one switch
    takes its place, as whether a plan fits is not up to the network. None
    where devices differ.
    """
    cluster = problem.cluster
    network = cluster.topology
    if len(cluster.types) > 1:
        return
    if not isinstance(network, Hierarchy):
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
            yield structs.replace(
                problem,
                cluster=structs.replace(
                    cluster,
                    num_devices=count,
                    topology=structs.replace(network, levels=(*lower, wider)),
                ),
            )
        except NestError:
            return
        times *= 2
