"""Windows of step time: what a model has to tell apart stays small.

The plans of one sub-problem may take up to 10^6 times as long as its best one,
and an engine that allows an integer to be off by 1e-9 of itself then misses
more than 1e-6 of the optimum. So a model covers step times between some bound
and a small multiple of it; only where it has no plan there is one for longer
times. What alone takes longer than a window is left out of its model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from formulations.common import BACKWARD, FORWARD, Choice, Profile, Slot, Task
from nest.cost.schedules import Times
from nest.cost.schedules.base import weighted

#: The longest step time of a window is so many times the shortest one.
SPREAD = 64

#: Relative difference of step times that is put down to floats.
TOLERANCE = 1e-6

#: Half of that. Rows that keep a step time within a window leave out no plan
#: that an engine's arithmetic moves by less: engines work to 1e-9 of it, and a
#: file has 13 digits of its numbers.
SLACK = TOLERANCE / 2


def windows(task: Task) -> Iterator[Task]:
    """Yield the task for one window after the other, ascending.

    No plan of a window that has no task is left out. A plan within floats of
    the end of one window is in the next one, too.

    Raises ``OutOfTimeError`` if the deadline passes.
    """
    low = task.sub_problem.bound
    most = task.cutoff
    if most is None:
        most = longest(task)
        most += int(most * TOLERANCE)
    while low <= most:
        high = min(most, SPREAD * max(low, 1))
        slots = _within(task, high)
        if _complete(task, slots):
            of_window = dataclasses.replace(task.sub_problem, bound=low)
            yield task._replace(sub_problem=of_window, slots=slots, cutoff=high)
        if high == most:
            return
        low = int(high * (1 - TOLERANCE))


def limits(least: int, most: int) -> tuple[float, float]:
    """Return between what rows of a window keep the step time, in quanta.

    Every plan from ``least`` to ``most`` is inside by :data:`SLACK` of its
    step time, but for those less than :data:`TOLERANCE` faster than
    ``most + 1``.
    """
    return least * (1 - SLACK), (most + 1) * (1 - SLACK)


def longest(task: Task) -> int:
    """Return a step time that no plan of a task exceeds.

    Every layer takes the dearest choice of any slot, every slot receives all
    there is, and every edge moves on both sides.
    """
    instance, slots = task.instance, task.slots.values()
    rounds = instance.rounds(task.sub_problem.split, len(task.slots))
    profiles = {profile for slot in slots for profile in slot.profiles}
    most = max(slot.sync_constant for slot in slots)
    for kind, members in enumerate(instance.graph.members):
        most += len(members) * max(
            (
                _alone(choice, instance.once, rounds) + choice.sync
                for profile in profiles
                for choice in profile.choices[kind]
            ),
            default=0,
        )
    received = [0, 0]
    for slot in slots:
        for side in slot.sides:
            rows = [row for table in slot.receives[side] for row in table]
            times = [message + sum(times) for message, times in rows]
            count = max(1, len(instance.graph.increments))
            received[side] += count * max(times, default=0)
    moved = len(instance.graph.edges) * max(
        (max(row) for profile in profiles for row in profile.moves if row), default=0
    )
    paces = instance.paces(Times(received[FORWARD] + moved, received[BACKWARD] + moved))
    once: int = weighted(instance.once, paces)
    wait: int = weighted(rounds, paces)
    return most + once + wait


def _complete(task: Task, slots: dict[int, Slot]) -> bool:
    """Whether every slot has some place, and every kind some choice."""
    kinds = range(len(task.instance.graph.members))
    profiles = [x for slot in slots.values() for x in slot.profiles]
    return all(slot.options for slot in slots.values()) and all(
        any(profile.choices[kind] for profile in profiles) for kind in kinds
    )


def _alone(choice: Choice, once: tuple[int, ...], rounds: tuple[int, ...]) -> int:
    """Return what a layer adds to the step if its slot is the slowest."""
    recomputed = choice.recomputed * (sum(once) + sum(rounds))
    total: int = weighted(once, choice.loads) + weighted(rounds, choice.loads)
    return total + recomputed


def _within(task: Task, high: int) -> dict[int, Slot]:
    """Return the slots of plans that take no longer.

    A choice that alone takes longer is in none of them. A message or a tensor
    that takes longer may as well take just too long.
    """
    instance = task.instance
    rounds = instance.rounds(task.sub_problem.split, len(task.slots))
    # Sync hides behind no more than the backward pass: what that counts.
    backward = weighted(instance.once, instance.paces(Times(0, 1)))

    def useful(number: int, choice: Choice) -> bool:
        alone = _alone(choice, instance.once, rounds)
        if instance.artifact and number < len(task.slots):
            return alone <= high
        late = choice.sync if backward else 0
        return max(alone + choice.sync - choice.hidden, late) <= high

    def narrowed(number: int, profile: Profile) -> Profile:
        return profile._replace(
            choices=tuple(
                tuple(c for c in kind if useful(number, c)) for kind in profile.choices
            ),
            moves=tuple(
                tuple(min(time, high + 1) for time in row) for row in profile.moves
            ),
        )

    found = {}
    for number, slot in task.slots.items():
        instance.deadline.check()
        profiles = tuple(narrowed(number, x) for x in slot.profiles)
        found[number] = dataclasses.replace(
            slot,
            options=tuple(
                option
                for option in slot.options
                if any(profiles[option.profile].choices)
            ),
            profiles=profiles,
            receives=tuple(
                tuple(
                    tuple(
                        (
                            min(message, high + 1),
                            tuple(min(time, high + 1) for time in times),
                        )
                        for message, times in table
                    )
                    for table in side
                )
                for side in slot.receives
            ),
            sync_constant=min(slot.sync_constant, high + 1),
        )
    return found
