"""The events of one step of a plan, block by block.

Nothing is priced here: times are those of the plan's score. A pass begins with
what it receives, which occupies its block as all of the pass does, so events
of a block never overlap, but for two passes that a schedule runs as a pair.
Rules: docs/cost-model.md, *Simulation*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from nest.cost.schedules import Pass
from nest.cost.schedules.timeline import MOST_PASSES, Timeline, pair_time, pass_times
from nest.cost.score import Score, score
from nest.errors import UnsupportedProblemError
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.ir.views import Row, Tabular, ns_text
from nest.units import quanta_to_ns

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Kind = Literal[
    "forward",
    "backward",
    "input-gradient",
    "weight-gradient",
    "receive-forward",
    "receive-backward",
    "sync",
]


_BACKWARD: dict[str, Kind] = {
    "all": "backward",
    "inputs": "input-gradient",
    "weights": "weight-gradient",
}


def kind_of(run: Pass) -> Kind:
    """Return the kind of a pass."""
    return _BACKWARD[run.gradients] if run.backward else "forward"


class Event(NamedTuple):
    """Something that a block does; times in quanta.

    Attributes
    ----------
    kind
        What it is; ``backward`` computes both gradients.
    start, duration
        From the start of the step.
    chunk, micro_batch
        Both from 0; ``None`` of a sync.
    paired
        Whether it is one of two passes that run together, which both take
        as long as the pair, receives included.
    """

    kind: Kind
    start: int
    duration: int
    chunk: int | None = None
    micro_batch: int | None = None
    paired: bool = False


@dataclass(frozen=True)
class BlockUse:
    """How a block spends a step; times in quanta.

    Attributes
    ----------
    stages
        Numbers of its chunks, from 1.
    forward, backward, weight_backward
        Its passes without what they receive; ``backward`` without the
        gradients of weights where the schedule computes them apart.
    receive
        What it receives, both ways.
    sync
        Gradient sync and update, as far as it is not hidden.
    hidden
        What of its passes ran behind others, counted in these once more.
    passes_end, end
        When its last pass and its sync end.
    step
        When the last block ends.
    """

    stages: tuple[int, ...]
    forward: int
    backward: int
    weight_backward: int
    receive: int
    sync: int
    hidden: int
    passes_end: int
    end: int
    step: int

    @property
    def busy(self) -> int:
        """How long it does anything."""
        passes = self.forward + self.backward + self.weight_backward - self.hidden
        return passes + self.receive + self.sync

    @property
    def idle(self) -> int:
        """How long it does nothing."""
        return self.step - self.busy

    @property
    def bubble_share(self) -> float:
        """The part of the step in which it does nothing."""
        return self.idle / self.step if self.step else 0.0


#: More passes of a step are not written to traces, which would take hundreds
#: of megabytes.
MOST_TRACED = 2**17


def check_passes(verdict: Score, max_passes: int) -> None:
    """Refuse a step that has too many passes.

    Raises
    ------
    UnsupportedProblemError
        If it has more than ``max_passes``.
    """
    if verdict.num_passes > max_passes:
        raise UnsupportedProblemError(
            f"plan: expected a step of at most {max_passes:,} passes to run "
            f"one by one, got {verdict.num_passes:,}; simulate a smaller "
            f"$.job.global_batch, as a step only repeats"
        )


class Simulation(Tabular):
    """One step of a plan, run pass by pass.

    Parameters
    ----------
    problem, plan
        The problem, and a legal plan for it.
    verdict
        The plan's score, if the caller has it.

    Attributes
    ----------
    problem, plan, score
        The same.
    timeline
        When every pass ends.
    step
        The simulated step time in quanta.

    Raises
    ------
    UnsupportedProblemError
        If the problem's preset prices no step but a steady state, or a step
        has too many passes.
    InvalidPlanError
        If the plan does not belong to the problem.
    """

    def __init__(
        self, problem: Problem, plan: Plan, verdict: Score | None = None
    ) -> None:
        verdict = verdict or score(problem, plan)
        check_passes(verdict, MOST_PASSES)
        timeline, step = verdict.timeline, verdict.simulated_quanta
        if timeline is None or step is None:
            raise UnsupportedProblemError(
                f"$.preset: expected one that prices a whole step, got "
                f"{problem.preset!r}, whose step time is that of a steady "
                f"state; use 'nest score'"
            )
        self.problem, self.plan, self.score = problem, plan, verdict
        self.timeline: Timeline = timeline
        self.step: int = step
        self._times = [pass_times(stage) for stage in verdict.stages]

    def __repr__(self) -> str:
        """Return what it is in a line."""
        step = quanta_to_ns(self.step, self.score.quantum_ps)
        return (
            f"<Simulation of {self.problem.name}: {ns_text(step)} a step on "
            f"{len(self.score.blocks)} blocks>"
        )

    def to_rows(self) -> list[Row]:
        """Return a row per event, those of the first block first."""
        quantum_ps = self.score.quantum_ps
        return [
            {
                "block": block + 1,
                "kind": event.kind,
                "start_ns": quanta_to_ns(event.start, quantum_ps),
                "duration_ns": quanta_to_ns(event.duration, quantum_ps),
                "chunk": event.chunk,
                "micro_batch": event.micro_batch,
            }
            for block in range(len(self.score.blocks))
            for event in self.events(block)
        ]

    def plot_timeline(self, axes: Axes | None = None) -> Axes:
        """Draw what every block does when, see :mod:`nest.util.plots`."""
        from nest.util.plots import timeline

        return timeline(self.to_rows(), axes)

    def events(self, block: int) -> Iterator[Event]:
        """Yield what a block (from 0) does, in order.

        What takes no time is left out, passes apart.
        """
        for run, partner, end in self.passes(block):
            if partner is not None:
                time = self.pair_time(run, partner)
                for one in (run, partner):
                    start = end - time
                    yield Event(kind_of(one), start, time, *one[:2], paired=True)
                continue
            time, received = self.cost_of(run)
            if received:
                receives: Kind = (
                    "receive-backward" if run.backward else "receive-forward"
                )
                yield Event(receives, end - time, received, *run[:2])
            start = end - time + received
            yield Event(kind_of(run), start, time - received, *run[:2])
        end = self.timeline.block_ends[block]
        if sync := self.score.blocks[block].sync:
            yield Event("sync", end, sync)

    def passes(self, block: int) -> Iterator[tuple[Pass, Pass | None, int]]:
        """Yield the passes of a block (from 0) in order.

        Yields
        ------
        tuple
            A pass, the one that runs together with it, if any, and when both end.
        """
        first: Pass | None = None
        for run, end in self.timeline.passes(block):
            if run.paired:
                first = run
                continue
            yield (run, None, end) if first is None else (first, run, end)
            first = None

    def pair_time(self, first: Pass, second: Pass) -> int:
        """Return how long two passes take that run together."""
        stages = self.score.stages
        time: int = pair_time(stages[first.chunk], stages[second.chunk])
        return time

    def cost_of(self, run: Pass) -> tuple[int, int]:
        """Return how long a pass takes, and how long of it it receives."""
        stage = self.score.stages[run.chunk]
        forward, backward, inputs, weights = self._times[run.chunk]
        if not run.backward:
            return forward, stage.receive_forward
        if run.gradients == "weights":
            return weights, 0
        time = backward if run.gradients == "all" else inputs
        return time, stage.receive_backward

    def uses(self) -> list[BlockUse]:
        """Return what every block does, and for how long."""
        count = self.score.num_micro_batches
        uses = []
        for index, block in enumerate(self.score.blocks):
            stages = [self.score.stages[stage - 1] for stage in block.stages]
            apart, hidden = self._apart(index)
            receive = sum(x.receive_forward + x.receive_backward for x in stages)
            forward = sum(x.forward - x.receive_forward for x in stages)
            backward = sum(x.backward - x.receive_backward for x in stages)
            end = self.timeline.block_ends[index]
            uses.append(
                BlockUse(
                    stages=block.stages,
                    forward=count * forward,
                    backward=count * backward - apart,
                    weight_backward=apart,
                    receive=count * receive,
                    sync=block.sync,
                    hidden=hidden,
                    passes_end=end,
                    end=end + block.sync,
                    step=self.step,
                )
            )
        return uses

    def _apart(self, block: int) -> tuple[int, int]:
        """Return how long weights take apart, and what pairs hide."""
        stages = self.score.stages
        apart = hidden = 0
        for run, partner, _ in self.passes(block):
            if run.gradients == "weights":
                apart += stages[run.chunk].weight_backward
            if partner is not None:
                hidden += stages[run.chunk].forward
                hidden += stages[partner.chunk].backward
                hidden -= self.pair_time(run, partner)
        return apart, hidden
