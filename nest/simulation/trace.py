"""Traces for chrome://tracing and Perfetto.

Source: Google, *Trace Event Format*: complete events (``X``) with times in
microseconds, and metadata (``M``) that name processes and threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nest.cost.rules import get_rules
from nest.cost.space import make_split
from nest.simulation.events import MOST_TRACED, Event, Simulation, check_passes

#: How events are called; passes with their micro-batch behind.
_NAMES = {
    "forward": "F",
    "backward": "B",
    "input-gradient": "B",
    "weight-gradient": "W",
    "receive-forward": "receive F",
    "receive-backward": "receive B",
    "sync": "sync",
}


def trace(simulation: Simulation) -> dict[str, Any]:
    """Return the trace of a step: a process with a thread per block.

    All replicas do the same at the same time; it shows one.

    Raises ``UnsupportedProblemError`` if it has more than :data:`MOST_TRACED` passes.
    """
    check_passes(simulation.score, MOST_TRACED)
    problem, verdict = simulation.problem, simulation.score
    return {
        "traceEvents": list(_events(simulation)),
        "displayTimeUnit": "ms",
        "otherData": {
            "problem": problem.name,
            "preset": problem.preset,
            "replicas": simulation.plan.replicas,
            "num_micro_batches": verdict.num_micro_batches,
            "step_time_ns": verdict.step_time_ns,
            "simulated_step_time_ns": verdict.simulated_step_time_ns,
        },
    }


def _events(simulation: Simulation) -> Iterator[dict[str, Any]]:
    problem, plan = simulation.problem, simulation.plan
    split = make_split(problem, plan.replicas, plan.micro_batch)
    blocks = get_rules(problem.preset).blocks(plan, split.devices)
    text = f"replica 1 of {plan.replicas}"
    yield _name("process_name", text)
    for index, block in enumerate(simulation.score.blocks):
        stages = ", ".join(map(str, block.stages))
        first, end = next(blocks[index].ranges())
        text = f"block {index + 1}: stage {stages}, devices {first}–{end - 1}"
        yield _name("thread_name", text, index)
        yield {**_name("thread_sort_index", "", index), "args": {"sort_index": index}}
        for event in simulation.events(index):
            yield _complete(event, index, problem.quantum_ps)


def _name(what: str, text: str, block: int = 0) -> dict[str, Any]:
    """Return what names a row."""
    return {"name": what, "ph": "M", "pid": 0, "tid": block, "args": {"name": text}}


def _complete(event: Event, block: int, quantum_ps: int) -> dict[str, Any]:
    """Return an event that has a start and a duration."""
    name = _NAMES[event.kind]
    args: dict[str, int | None] = {}
    if event.chunk is not None:
        name = f"{name} {event.micro_batch}"
        args = {"micro_batch": event.micro_batch, "chunk": event.chunk}
    if event.paired:
        args["paired"] = True
    return {
        "name": name,
        "cat": event.kind,
        "ph": "X",
        "pid": 0,
        "tid": block,
        "ts": _us(event.start, quantum_ps),
        "dur": _us(event.duration, quantum_ps),
        "args": args,
    }


def _us(quanta: int, quantum_ps: int) -> int | float:
    """Return a time in µs: an integer if it is whole, else a float."""
    whole, rest = divmod(quanta * quantum_ps, 10**6)
    return whole if rest == 0 else quanta * quantum_ps / 10**6
