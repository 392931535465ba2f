"""Schedules of operators by the definition alone: drawn, replayed, the best.

Nothing here is computed by ``nest.operator_schedule``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from nest.operator_schedule import Cores, Operator, Schedule
from nest.operator_schedule.parts import JobGroup
from nest.operator_schedule.timetable import Timetable

DATA = Path(__file__).parent / "data"


def operator(
    name: str,
    engine: Any = "tensor",
    single: int | None = None,
    whole: int | None = None,
    after: Sequence[str] = (),
    channel: tuple[int, int] = (0, 0),
) -> Operator:
    return Operator(
        name=name,
        engine=engine,
        single_ticks=single,
        whole_ticks=whole,
        single_channel_ticks=channel[0],
        whole_channel_ticks=channel[1],
        after=tuple(after),
    )


def tensor(name: str, *args: Any, **fields: Any) -> Operator:
    return operator(name, "tensor", *args, **fields)


def vector(name: str, *args: Any, **fields: Any) -> Operator:
    return operator(name, "vector", *args, **fields)


def fused(name: str, *args: Any, **fields: Any) -> Operator:
    return operator(name, "both", *args, **fields)


def free(name: str, after: Sequence[str] = ()) -> Operator:
    return operator(name, "none", after=after)


def stored_passes() -> dict[str, tuple[list[Operator], Cores, int]]:
    """Return the operators, cores and makespan of stored passes."""
    engines = {"fused": "both", "free": "none"}
    stored = yaml.safe_load((DATA / "schedules.yaml").read_text())

    def numbers(text: str) -> list[int | None]:
        return [None if x == "-" else int(x) for x in text.split("/")]

    def parsed(name: str, text: str) -> Operator:
        text, _, after = text.partition(" after ")
        text, _, channel = text.partition(" channel ")
        engine, _, ticks = text.partition(" ")
        single, whole = (*numbers(ticks or "-"), None)[:2]
        return operator(
            *(name, engines.get(engine, engine), single, whole),
            *(after.split(), numbers(channel or "0/0")),
        )

    return {
        name: (
            [parsed(*item) for item in case["operators"].items()],
            Cores(*case["cores"]),
            case["makespan"],
        )
        for name, case in stored.items()
    }


@st.composite
def passes(draw: Any, most: int = 10, channel: bool = True) -> Any:
    """Draw operators of one pass, and cores."""
    operators = []
    sparse = draw(st.integers(1, 9))
    for number in range(draw(st.integers(min(4, most), most))):
        engine = draw(
            st.sampled_from(("tensor", "tensor", "vector", "vector", "both", "none"))
        )
        after = [
            str(before) for before in range(number) if draw(st.integers(0, sparse)) == 0
        ]
        if engine == "none":
            operators.append(free(str(number), after))
            continue
        ways = draw(st.sampled_from(("single", "whole", "two", "two")))
        single = whole = None
        if ways != "whole":
            single = draw(st.integers(1, 9))
        if ways != "single":
            whole = draw(st.integers(1, 9 if single is None else single + 1))
        served = tuple(
            draw(st.integers(0, ticks)) if ticks and channel else 0
            for ticks in (single, whole)
        )
        operators.append(operator(str(number), engine, single, whole, after, served))
    return operators, Cores(draw(st.integers(1, 3)), draw(st.integers(1, 3)))


def preceding(operators: Sequence[Operator]) -> dict[str, set[str]]:
    """Return what must be done before each operator begins."""
    reads = {x.name: set(x.after) for x in operators}
    found: dict[str, set[str]] = {}
    while len(found) < len(reads):
        for name, names in reads.items():
            if names <= found.keys():
                found[name] = names.union(*(found[x] for x in names))
    return found


def series(operators: Sequence[Operator]) -> list[list[Operator]]:
    """Return the parts: all of one precede all of the next ones."""
    before = preceding(operators)
    left = [x for x in operators if x.engine != "none"]
    found = []
    while left:
        left.sort(key=lambda x: len(before[x.name]))
        for count in range(1, len(left) + 1):
            part, rest = left[:count], left[count:]
            names = {x.name for x in part}
            if all(names <= before[x.name] for x in rest):
                break
        found.append(part)
        left = rest
    return found


def ways(x: Operator) -> Iterator[tuple[bool, int, int]]:
    """Yield modes: whether whole, ticks, ticks of the channel."""
    if x.single_ticks is not None:
        yield False, x.single_ticks, x.single_channel_ticks
    if x.whole_ticks is not None:
        yield True, x.whole_ticks, x.whole_channel_ticks


def least_makespan(operators: Sequence[Operator], cores: Cores) -> int:
    """Return the length of the shortest schedule, by trying all.

    In one of them every operator begins at 0 or when another one ends: else
    it could begin earlier.
    """
    before = preceding(operators)
    return sum(least_of_part(part, before, cores) for part in series(operators))


def one_by_one(part: JobGroup) -> Timetable:
    """Return a timetable of a part without thought."""
    now, starts, whole = 0, [], []
    for job in part.jobs:
        mode = job.whole or job.single
        assert mode is not None
        starts.append(now)
        whole.append(job.whole is not None)
        now += mode.ticks
    return Timetable(tuple(starts), tuple(whole))


def least_of_part(
    part: Sequence[Operator], before: dict[str, set[str]], cores: Cores
) -> int:
    names = {x.name for x in part}
    by_name = {x.name: x for x in part}

    @cache
    def rest(
        left: frozenset[str], running: tuple[tuple[int, str], ...]
    ) -> frozenset[tuple[int, int]]:
        """Return all (ticks, channel ticks) from now to the end."""
        if not left and not running:
            return frozenset({(0, 0)})
        found = set()
        busy = {name for _, name in running}
        used = [
            sum(by_name[name].engine in (side, "both") for name in busy)
            for side in Cores._fields
        ]
        for name in left:
            if before[name] & names & (left | busy):
                continue
            x = by_name[name]
            for whole, ticks, channel in ways(x):
                if whole:
                    if running:
                        continue
                    after = rest(left - {name}, ())
                    found |= {(ticks + t, channel + c) for t, c in after}
                    continue
                needs = [x.engine in (side, "both") for side in Cores._fields]
                if any(
                    n + u > count
                    for n, u, count in zip(needs, used, cores, strict=True)
                ):
                    continue
                now = tuple(sorted((*running, (ticks, name))))
                after = rest(left - {name}, now)
                found |= {(t, channel + c) for t, c in after}
        if running:
            first = running[0][0]
            now = tuple((t - first, name) for t, name in running if t > first)
            found |= {(first + t, c) for t, c in rest(left, now)}
        return frozenset(
            one
            for one in found
            if not any(
                other != one and other[0] <= one[0] and other[1] <= one[1]
                for other in found
            )
        )

    return min(max(both) for both in rest(frozenset(names), ()))


def replay(operators: Sequence[Operator], cores: Cores, found: Schedule) -> None:
    """Fail unless a schedule keeps every rule, and is as long as it says."""
    places = found.operators
    assert list(places) == [x.name for x in operators]
    lanes: dict[tuple[str, int], list[tuple[int, int]]] = {}
    alone = []
    for x in operators:
        place = places[x.name]
        assert place.start_tick >= 0
        for name in x.after:
            assert places[name].end_tick <= place.start_tick
        ticks = place.end_tick - place.start_tick
        numbers = place.tensor_core, place.vector_core
        if x.engine == "none":
            assert (ticks, place.whole, numbers) == (0, False, (None, None))
            continue
        assert ticks == (x.whole_ticks if place.whole else x.single_ticks)
        if place.whole:
            assert numbers == (None, None)
            alone.append(x.name)
            continue
        for side, number, count in zip(Cores._fields, numbers, cores, strict=True):
            if x.engine not in (side, "both"):
                assert number is None
                continue
            assert number is not None
            assert 0 <= number < count
            lanes.setdefault((side, number), []).append(place[:2])
    for lane in lanes.values():
        lane.sort()
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(lane))
    for name in alone:
        for x in operators:
            if x.name != name and x.engine != "none":
                one, other = places[name], places[x.name]
                assert (
                    one.end_tick <= other.start_tick or other.end_tick <= one.start_tick
                )
    # Part by part: it lasts till its operators end, and its channel is done.
    now = 0
    for part in series(operators):
        assert all(places[x.name].start_tick >= now for x in part)
        served = sum(
            x.whole_channel_ticks if places[x.name].whole else x.single_channel_ticks
            for x in part
        )
        now = max(now + served, *(places[x.name].end_tick for x in part))
    assert found.makespan_ticks == now
    assert found.lower_bound_ticks <= now
