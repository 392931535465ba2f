"""The order of passes that a plan has of its own.

Where a job leaves the order to plans, a plan names a schedule or lists the passes of
every block. Either way its step is timed pass by pass, so that plans of different
orders compare. Rules: docs/cost-model.md, *Orders of plans*.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from nest.cost.schedules.base import Gradients, Pass, Schedule, Times
from nest.cost.schedules.listed import ListedSchedule
from nest.cost.schedules.timeline import run
from nest.errors import InvalidPlanError
from nest.ir.plan import PassLists, Placement

#: A pass in text: chunk, kind, micro-batch.
_PASS = re.compile(r"(\d{1,9})([FBIW])(\d{1,9})", re.ASCII)

#: Which gradients a backward pass of each letter computes.
_GRADIENTS: dict[str, Gradients] = {
    "F": "all",
    "B": "all",
    "I": "inputs",
    "W": "weights",
}

#: Passes that do what a pass does, or a part of it.
_SAME_WORK = {"F": "F", "B": "BIW", "I": "BI", "W": "BW"}

#: What a block runs before a pass of the same chunk and micro-batch.
_NEEDED = {"F": "", "B": "F", "I": "F", "W": "I"}

_LETTERS = {"all": "B", "inputs": "I", "weights": "W"}


def pass_text(run: Pass) -> str:
    """Return a pass as plans write it, such as ``3F5``."""
    letter = _LETTERS[run.gradients] if run.backward else "F"
    return f"{run.chunk}{letter}{run.micro_batch}"


class TimedSchedule(ListedSchedule):
    """A schedule with a name, timed pass by pass."""

    def __init__(self, schedule: Schedule) -> None:
        self._schedule = schedule
        self.name, self.title = schedule.name, schedule.title
        self.virtual_stages = schedule.virtual_stages
        self.placement = schedule.placement

    def why_not(self, num_blocks: int, num_micro_batches: int) -> str | None:
        """Return why so many blocks cannot run so many micro-batches."""
        return self._schedule.why_not(num_blocks, num_micro_batches)

    def passes(
        self, block: int, num_blocks: int, num_micro_batches: int
    ) -> Iterator[Pass]:
        """Yield the passes of the schedule."""
        return self._schedule.passes(block, num_blocks, num_micro_batches)


class OrderedSchedule(ListedSchedule):
    """The passes that a plan lists.

    ``lists`` has the passes of every block, in the order they run.
    """

    name = "order"
    title = "its own order of passes"

    def __init__(
        self,
        lists: tuple[tuple[Pass, ...], ...],
        virtual_stages: int,
        placement: Placement,
    ) -> None:
        self.lists = lists
        self.virtual_stages, self.placement = virtual_stages, placement

    def passes(
        self, block: int, num_blocks: int, num_micro_batches: int
    ) -> Iterator[Pass]:
        """Yield the passes that the plan lists for a block."""
        return iter(self.lists[block])


@lru_cache(maxsize=64)
def read_order(
    order: PassLists,
    num_blocks: int,
    virtual_stages: int,
    placement: Placement,
    num_micro_batches: int,
    where: str = "order, block",
) -> OrderedSchedule:
    """Return the schedule of a plan's list of passes.

    Messages call a block ``where``, before its number.

    Raises ``InvalidPlanError`` if a pass has no meaning, is missing, twice, on another
    block than its chunk, or before what it needs, or if passes wait for each other.
    """
    if len(order) != num_blocks:
        raise InvalidPlanError(
            f"order: expected a list of passes for each of {num_blocks} "
            f"blocks, got {len(order)}; add or remove lists"
        )
    lists = tuple(
        tuple(_read_pass(text, f"{where} {block}") for text in texts)
        for block, texts in enumerate(order, 1)
    )
    schedule = OrderedSchedule(lists, virtual_stages, placement)
    for block, passes in enumerate(lists):
        chunks = schedule.chunks_of(block, num_blocks)
        _check_block(where, block + 1, passes, chunks, num_micro_batches)
    times = [Times(1, 2, 1)] * (num_blocks * virtual_stages)
    try:
        run(schedule, times, num_micro_batches)
    except ValueError:
        source, _, block_word = where.rpartition(", ")
        stuck = _stuck(lists, num_blocks * virtual_stages, block_word)
        raise InvalidPlanError(
            f"{source}: expected passes that can all run, got some that wait "
            f"for each other: {stuck}; reorder them"
        ) from None
    return schedule


def _read_pass(text: str, where: str) -> Pass:
    match = _PASS.fullmatch(text)
    if match is None:
        raise InvalidPlanError(
            f"{where}: expected passes such as 3F5 (chunk 3, micro-batch 5; "
            f"F, B, I or W), got {text[:40]!r}; correct it"
        )
    chunk, letter, micro_batch = match.groups()
    return Pass(int(chunk), int(micro_batch), letter != "F", _GRADIENTS[letter])


def _check_block(
    where: str,
    block_number: int,
    passes: tuple[Pass, ...],
    chunks: list[int],
    num_micro_batches: int,
) -> None:
    """Check that a block runs every pass of its chunks once, and in turn."""
    done, block_word = set(), where.rpartition(", ")[2]
    where = f"{where} {block_number}"
    for one in passes:
        text = pass_text(one)
        chunk, micro_batch, is_backward, gradients, _ = one
        here = chunk, micro_batch
        if chunk not in chunks:
            raise InvalidPlanError(
                f"{where}: expected passes of its chunks {chunks}, got {text}; move it "
                f"to the {block_word} of chunk {chunk}, or remove it"
            )
        if micro_batch >= num_micro_batches:
            raise InvalidPlanError(
                f"{where}: expected micro-batches 0 to "
                f"{num_micro_batches - 1}, got {text}; remove it"
            )
        letter = _LETTERS[gradients] if is_backward else "F"
        if any((*here, other) in done for other in _SAME_WORK[letter]):
            raise InvalidPlanError(
                f"{where}: expected every pass once, got {text} again; remove one"
            )
        needed = _NEEDED[letter]
        if needed and (*here, needed) not in done:
            raise InvalidPlanError(
                f"{where}: expected {chunk}{needed}{micro_batch} in front of "
                f"{text}, got it later or not at all; reorder them"
            )
        done.add((*here, letter))
    for chunk in chunks:
        for micro_batch in range(num_micro_batches):
            here = chunk, micro_batch
            for letters in ("F", "IWB", "BI", "BW"):
                if not any((*here, x) in done for x in letters):
                    raise InvalidPlanError(
                        f"{where}: expected every pass of chunk {chunk}, got "
                        f"no {chunk}{letters[-1]}{micro_batch}; add it"
                    )


def _stuck(
    lists: tuple[tuple[Pass, ...], ...], num_chunks: int, block_word: str
) -> str:
    """Return the first passes that cannot run, as text."""
    ended: set[tuple[int, int, bool]] = set()
    position = [0] * len(lists)
    moved = True
    while moved:
        moved = False
        for block, passes in enumerate(lists):
            while position[block] < len(passes):
                one = passes[position[block]]
                needed = _input(one, num_chunks)
                if needed is not None and needed not in ended:
                    break
                if one.gradients != "weights":
                    ended.add((one.chunk, one.micro_batch, one.backward))
                position[block] += 1
                moved = True
    return ", ".join(
        f"{pass_text(passes[at])} on {block_word} {block}"
        for block, (passes, at) in enumerate(zip(lists, position, strict=True), 1)
        if at < len(passes)
    )


def _input(one: Pass, num_chunks: int) -> tuple[int, int, bool] | None:
    """Return the pass of another chunk, or its own, that a pass waits for."""
    chunk, micro_batch, is_backward, gradients, _ = one
    if not is_backward:
        return (chunk - 1, micro_batch, False) if chunk else None
    if gradients == "weights":
        return (chunk, micro_batch, True)
    if chunk == num_chunks - 1:
        return (chunk, micro_batch, False)
    return (chunk + 1, micro_batch, True)
