"""Primitives of ``aceso``: what it tries on a bottleneck, and in what order.

A primitive changes a configuration at one stage, and finds the partner stages
that gain or lose what the stage loses or gains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from baselines.aceso_view import (
    PENALTY_NS_PER_BYTE,
    Config,
    Degrees,
    Judged,
    Load,
    View,
)

#: Places of :data:`~baselines.aceso_view.Degrees`.
DP, TP = 0, 1

#: Migrations of layers that one primitive strings together at most.
MOST_MIGRATIONS = 5

#: What part of the gap to the partner a migration leaves, in fifths.
GAPS = (2, 1, 0)

PS_PER_NS = 1000


class Ledger:
    """What a search has tried, and what it may still try."""

    def __init__(self, effort: int, out_of_time: Callable[[], bool]) -> None:
        self.effort = effort
        self.out_of_time = out_of_time
        self.tried = 0
        self._targets: dict[tuple[Config, str], set[int]] = {}
        self._partners: dict[tuple[Config, int, str], set[int]] = {}

    @property
    def spent(self) -> bool:
        """Whether the search has to end."""
        return self.tried >= self.effort or self.out_of_time()

    def forget_partners(self) -> None:
        """Let every stage be a partner again."""
        self._partners.clear()

    def target(
        self,
        config: Config,
        judged: Judged,
        step: str = "",
        *,
        by_time: bool = False,
        again: bool = False,
    ) -> int | None:
        """Return the bottleneck of a configuration that was none so far.

        The stage with the longest time, or if something does not fit that
        with most memory; the first of several.

        Stages count again with another ``step``, or with ``again``; time counts with
        ``by_time`` even if something does not fit.
        """
        seen = self._targets.setdefault((config, step), set())
        values: Sequence[int] = judged.times
        if not (by_time or judged.fits):
            values = [load.memory_bytes for load in judged.loads]
        stage = _largest(values, () if again else seen)
        if stage is not None:
            seen.add(stage)
        return stage

    def partner(
        self,
        view: View,
        config: Config,
        target: int,
        step: str = "",
        *,
        by_memory: bool,
    ) -> int | None:
        """Return the stage that may take layers from another one.

        That with most idle time to make use of, or the least memory; none
        that was a partner before.
        """
        judged = view.judged(config)
        seen = self._partners.setdefault((config, target, step), set())
        if by_memory:
            values = [-load.memory_bytes for load in judged.loads]
            free = [i for i in range(len(values)) if i not in {*seen, target}]
            stage = max(free, key=lambda i: values[i], default=None)
        else:
            stage = _largest(idle_time(view, config), {*seen, target})
        if stage is not None:
            seen.add(stage)
        return stage


def _largest(values: Sequence[float], without: Sequence[int] | set[int]) -> int | None:
    """Return where the first largest value above 0 is."""
    position, largest = None, 0.0
    for index, value in enumerate(values):
        if value > largest and index not in without:
            position, largest = index, value
    return position


def idle_time(view: View, config: Config) -> list[float]:
    """Return the idle time of every stage that could be made use of.

    The time to the slowest stage, on all devices, times what part of theirs is
    not lost to splitting. Half of it where layers are computed again, and half
    of what is beyond the memory: as much of its time as it has memory free.
    """
    judged = view.judged(config)
    times = []
    for (start, stop), load, overhead, used in zip(
        config.stages, judged.loads, judged.own, judged.times, strict=True
    ):
        idle: float = judged.step - used
        if load.recomputed:
            idle /= 2
        else:
            free = view.capacity - load.memory_bytes
            room = free / load.memory_bytes * used if load.memory_bytes else idle
            if room <= idle:
                idle = room + (idle - room) / 2
        ideal = sum(view.ideal(config.split, i) for i in range(start, stop))
        ideal += sum(view.receive_whole(config.split, cut) for cut in (start, stop))
        times.append(idle * ideal / overhead if overhead else 0.0)
    return times


# The order of tries


class Primitive(NamedTuple):
    """A primitive and what it changes at the bottleneck.

    Time of computing, memory and losses by splitting fall (-1), rise (1) or stay (0).
    """

    name: str
    time: int
    memory: int
    comm: int

    @property
    def changes(self) -> tuple[int, int, int]:
        """What it does to ideal time, losses and recomputation."""
        return self.time, self.comm, self.memory


#: The table of resources.
PRIMITIVES = (
    Primitive("dec_op", -1, -1, 0),
    Primitive("inc_dp", -1, -1, 1),
    Primitive("dec_dp", 1, 1, -1),
    Primitive("inc_tp", -1, -1, 1),
    Primitive("dec_tp", 1, 1, -1),
    Primitive("inc_mbs", -1, 1, 0),
    Primitive("dec_mbs", 1, -1, 0),
)


class Shares(NamedTuple):
    """Where the time of a stage goes; per device, in quanta.

    ``ideal`` are passes as if splitting cost nothing, ``lost`` is what splitting adds
    to them, ``recomputed`` what is computed again.
    """

    ideal: float
    lost: float
    recomputed: float


def shares(view: View, config: Config) -> list[Shares]:
    """Return where the time of every stage goes."""
    judged = view.judged(config)
    fractions = []
    for (start, stop), load in zip(config.stages, judged.loads, strict=True):
        ideal = sum(view.ideal(config.split, i) for i in range(start, stop))
        ratio = ideal / load.devices
        fractions.append(Shares(ratio, load.passes - ratio, load.recomputed))
    return fractions


def groups(view: View, config: Config, bottleneck: int) -> Iterator[list[Primitive]]:
    """Yield primitives in the order of tries, those worth the same together.

    Where something does not fit, those that lower memory and no other. Else
    first what lowers that of ideal time, losses and recomputation of which the
    bottleneck has the largest part of all stages', and so on; of several equal
    parts only the first counts. What raises something else that the bottleneck
    has more of than the average comes later; at the end all that is left.
    """
    judged = view.judged(config)
    if not judged.fits:
        yield [p for p in PRIMITIVES if p.memory < 0]
        return
    every = shares(view, config)
    fractions = every[bottleneck]
    sums = Shares(*(sum(values) for values in zip(*every, strict=True)))
    components = [
        value / total if value > 0 and total else 0.0
        for value, total in zip(fractions, sums, strict=True)
    ]
    # Computing, losses, memory.
    may_not_rise = (
        fractions.ideal * len(every) > sums.ideal,
        fractions.lost * len(every) > sums.lost,
        fractions.recomputed > 0,
    )
    remaining = list(PRIMITIVES)
    done: set[float] = set()
    for index in sorted(range(3), key=lambda i: -components[i]):
        if components[index] in done:
            continue
        done.add(components[index])
        lowered = [p for p in remaining if p.changes[index] < 0]
        held = [other for other in range(3) if may_not_rise[other] and other != index]
        first = [p for p in lowered if all(p.changes[other] <= 0 for other in held)]
        yield first
        yield [p for p in lowered if p not in first]
        remaining = [p for p in remaining if p not in lowered]
    yield remaining


def apply(
    view: View, ledger: Ledger, name: str, config: Config, bottleneck: int
) -> Config | None:
    """Return what a primitive makes of a configuration, if anything."""
    if name == "dec_op":
        return migrate(view, ledger, config, bottleneck)
    direction, what = name.split("_")
    step = 1 if direction == "inc" else -1
    if what == "mbs":
        return rebatch(view, ledger, config, step)
    which = DP if what == "dp" else TP
    if view.alike:
        return widen(view, ledger, config, which, step)
    return trade(view, ledger, config, bottleneck, which, step)


# Layers


def migrate(
    view: View, ledger: Ledger, config: Config, bottleneck: int
) -> Config | None:
    """Move layers from the bottleneck to the idlest stage, and so on.

    Every stage between them hands on what it gets beyond the goal. The goal
    is a time, of which less and less is asked, or the memory. Up to
    :data:`MOST_MIGRATIONS` in a row, each from the then slowest stage.
    """
    judged = view.judged(config)
    by_memory = not judged.fits
    target: int | None = bottleneck
    partner = ledger.partner(view, config, bottleneck, by_memory=by_memory)
    best = None
    for index in range(MOST_MIGRATIONS):
        if target is None or partner is None:
            break
        new = _migrated(view, ledger, config, target, partner, by_memory)
        if new is None:
            break
        config = best = new
        judged = view.judged(config)
        step = f"migration {index}"
        target = ledger.target(config, judged, step, by_time=True)
        if target is not None:
            partner = ledger.partner(view, config, target, step, by_memory=by_memory)
    return best


def _migrated(
    view: View,
    ledger: Ledger,
    config: Config,
    target: int,
    partner: int,
    by_memory: bool,
) -> Config | None:
    """Return the first migration that reaches a goal."""
    judged = view.judged(config)
    if by_memory:
        goals = [5 * view.capacity]
    else:
        compute = judged.loads[target].compute
        gap = compute - judged.loads[partner].compute
        goals = [5 * compute - gap * fifths for fifths in GAPS]
    for goal in goals:
        if ledger.spent:
            return None
        ledger.tried += 1
        new, end = _pushed(view, config, target, partner, goal, by_memory)
        if _below(view.stage(new, end), goal, by_memory) and view.judge(new):
            return new
    return None


def _pushed(
    view: View, config: Config, target: int, partner: int, goal: int, by_memory: bool
) -> tuple[Config, int]:
    """Move layers stage by stage; return where that ended too.

    From every stage as few as bring it below the goal.
    """
    step = 1 if target < partner else -1
    while target != partner:
        start, stop = config.span(target)
        for count in range(stop - start):
            load = view.stage(config, target, dropped=step * count)
            if _below(load, goal, by_memory):
                config = config.moved(target, step, count)
                break
        else:
            break
        target += step
    return config, target


def _below(load: Load | None, goal: int, by_memory: bool) -> bool:
    """Whether a stage is below a goal in fifths."""
    return load is not None and 5 * load.value(by_memory=by_memory) < goal


# Devices


def trade(
    view: View, ledger: Ledger, config: Config, bottleneck: int, which: int, step: int
) -> Config | None:
    """Double or halve a degree of the bottleneck, with devices of others.

    The others are those that are fastest afterwards, one after another until
    the numbers match.
    """
    if not _may_change(view, config, bottleneck, which, step):
        return None
    visited = {bottleneck}
    for _ in range(config.num_stages - 1):
        ledger.tried += 1
        partner = _fastest(view, config, visited, -step)
        if partner is None:
            return None
        visited.add(partner[0])
        new = _matched(view, config, (bottleneck, which), partner, step)
        if new is not None and is_legal(view, new):
            return new
    return None


def _matched(
    view: View,
    config: Config,
    change: tuple[int, int],
    partner: tuple[int, int],
    step: int,
) -> Config | None:
    """Change two stages, and more of the kind that lacks devices."""
    giver, taken = (partner, change) if step > 0 else (change, partner)
    new = _scaled(config, *giver, -1)
    new = _scaled(new, *taken, 1)
    bottleneck = change[0]
    visited = {bottleneck, partner[0]}
    # Devices given, less those taken.
    free = view.stage_devices(config, giver[0]) // 2
    free -= view.stage_devices(config, taken[0])
    direction = 1 if free > 0 else -1
    while free:
        other = _fastest(view, config, visited, direction, abs(free))
        if other is None:
            return None
        visited.add(other[0])
        new = _scaled(new, *other, direction)
        size = view.stage_devices(config, other[0])
        free -= size if direction > 0 else -(size // 2)
    return new


def _fastest(
    view: View, config: Config, visited: set[int], step: int, limit: int | None = None
) -> tuple[int, int] | None:
    """Return the stage and degree that is fastest once it has changed.

    Of those that need at most so many devices more, or free so many.
    """
    times: dict[tuple[int, int], int] = {}
    for stage in range(config.num_stages):
        size = view.stage_devices(config, stage)
        size = size if step > 0 else size // 2
        if stage in visited or (limit is not None and size > limit):
            continue
        for which in (TP, DP):
            if not _may_change(view, config, stage, which, step):
                continue
            degrees = _changed(config.of(stage), which, step)
            load = view.stage(config, stage, degrees=degrees)
            if load is not None:
                times[stage, which] = load.near
    return min(times, key=lambda change: times[change], default=None)


def _may_change(view: View, config: Config, stage: int, which: int, step: int) -> bool:
    """Whether a degree of a stage can be doubled, or halved."""
    size = view.stage_devices(config, stage)
    others = config.num_stages - 1
    if step > 0 and 2 * size > config.split.devices - others:
        return False
    degrees = config.of(stage)
    if step < 0 and any(each[which] % 2 for each in degrees):
        return False
    pool = view.pool(config.split)
    return all(each in pool for each in _changed(degrees, which, step))


def _changed(degrees: Sequence[Degrees], which: int, step: int) -> list[Degrees]:
    """Return degrees doubled, or halved."""

    def scaled(degree: int) -> int:
        return 2 * degree if step > 0 else degree // 2

    if which == DP:
        return [(scaled(dp), tp) for dp, tp in degrees]
    return [(dp, scaled(tp)) for dp, tp in degrees]


def _scaled(config: Config, stage: int, which: int, step: int) -> Config:
    return config.with_stage(stage, _changed(config.of(stage), which, step))


def is_legal(view: View, config: Config) -> bool:
    """Whether all devices are used, in powers of two, and no stage is torn.

    Where a node ends a stage ends.
    """
    ends, offset = set(), 0
    for stage in range(config.num_stages):
        size = view.stage_devices(config, stage)
        if size & (size - 1) or size > view.node:
            return False
        offset += size
        ends.add(offset)
    share = config.split.devices
    nodes = range(view.node, share + 1, view.node)
    return offset == share and all(end in ends for end in nodes)


def widen(
    view: View, ledger: Ledger, config: Config, which: int, step: int
) -> Config | None:
    """Double or halve a degree of all stages, with devices of replicas."""
    ledger.tried += 1
    if step < 0 and config.degrees[0][which] % 2:
        return None
    degrees = _changed(config.degrees, which, step)
    split = view.widest(config.split.micro_batch, config.num_stages, degrees[0])
    if split is None:
        return None
    return config._replace(split=split, degrees=tuple(degrees))


# Micro-batches


def rebatch(view: View, ledger: Ledger, config: Config, step: int) -> Config | None:
    """Take the next micro-batch, and the best degrees for every stage."""
    ledger.tried += 1
    sizes = sorted({split.micro_batch for split in view.splits})
    at = sizes.index(config.split.micro_batch) + step
    if not 0 <= at < len(sizes):
        return None
    if view.alike:
        return _rebatched_alike(view, config, sizes[at])
    split = view.split(config.split.replicas, sizes[at])
    if split is None:
        return None
    return refit(view, config._replace(split=split), config)


def refit(view: View, config: Config, old: Config) -> Config | None:
    """Return a configuration with the best degrees for every stage.

    On as many devices as the stage had in an old one; none if a stage has none.
    """
    for stage in range(config.num_stages):
        size = view.stage_devices(old, stage)
        chosen = best_degrees(view, config, stage, size)
        if chosen is None:
            return None
        start, stop = config.span(stage)
        config = config.with_stage(stage, [chosen] * (stop - start))
    return config


def best_degrees(
    view: View, config: Config, stage: int, devices: int
) -> Degrees | None:
    """Return the fastest degrees of a stage on so many devices.

    Memory beyond the budget counts as time: all that the stage holds.
    """
    num_layers = len(config.of(stage))
    values = {
        degrees: weighed(view, load)
        for degrees in view.pool(config.split)
        if view.devices(config.split, degrees) == devices
        if (load := view.stage(config, stage, degrees=[degrees] * num_layers))
    }
    return min(values, key=lambda degrees: values[degrees], default=None)


def weighed(view: View, load: Load) -> int:
    """Return device-quanta of a stage, and the penalty if it does not fit."""
    value = load.near * load.devices
    if load.memory_bytes > view.capacity:
        penalty_ns = PENALTY_NS_PER_BYTE * load.memory_bytes
        value += penalty_ns * PS_PER_NS // view.problem.quantum_ps
    return value


def _rebatched_alike(view: View, config: Config, micro_batch: int) -> Config | None:
    """Return the best degrees for all stages on as many devices each."""
    values: dict[Config, int] = {}
    size = view.stage_devices(config, 0)
    for degrees in sorted(view.degrees(micro_batch), key=lambda x: (x[TP], x[DP])):
        split = view.widest(micro_batch, config.num_stages, degrees)
        if split is None or view.devices(split, degrees) != size:
            continue
        layers = (degrees,) * view.num_layers
        new = config._replace(split=split, degrees=layers)
        judged = view.judge(new)
        if judged is not None:
            values[new] = sum(weighed(view, load) for load in judged.loads)
    return min(values, key=lambda new: values[new], default=None)


# Fine-tuning


def tune_layers(view: View, ledger: Ledger, config: Config) -> Config:
    """Shift degrees between dp and tp for runs of layers, stage by stage.

    A run begins at any layer and is as long as it can be, in either
    direction. The fastest that fits is taken if its stage is then faster.
    """
    for stage in range(config.num_stages):
        before = view.judged(config)
        new = _tuned(view, ledger, config, stage)
        after = None if new is None else view.judge(new)
        if (
            new is not None
            and after is not None
            and after.times[stage] < before.times[stage]
            and after.loads[stage].memory_bytes <= view.capacity
        ):
            config = new
    return config


def _tuned(view: View, ledger: Ledger, config: Config, stage: int) -> Config | None:
    """Return the best change of a run of layers in a stage."""
    best: tuple[bool, int, list[Degrees]] | None = None
    for degrees in _runs(view, config, stage):
        if ledger.spent:
            break
        ledger.tried += 1
        load = view.stage(config, stage, degrees=degrees)
        if load is None:
            continue
        lacks = load.memory_bytes > view.capacity
        value = load.memory_bytes if lacks else load.near
        if best is None or (lacks, value) < best[:2]:
            best = (lacks, value, degrees)
    return None if best is None else config.with_stage(stage, best[2])


def _runs(view: View, config: Config, stage: int) -> Iterator[list[Degrees]]:
    """Yield the degrees of a stage with a run of them shifted."""
    layers = config.of(stage)
    pool = view.pool(config.split)
    for first in range(len(layers)):
        for halved in (DP, TP):
            for run in (range(first, len(layers)), range(first, -1, -1)):
                new = list(layers)
                for position in run:
                    dp, tp = layers[position]
                    shifted = (dp // 2, 2 * tp) if halved == DP else (2 * dp, tp // 2)
                    if layers[position][halved] % 2 or shifted not in pool:
                        break
                    new[position] = shifted
                if new != list(layers):
                    yield new


def tune_stages(view: View, ledger: Ledger, config: Config) -> Config:
    """Choose the degrees of every stage anew."""
    ledger.tried += 1
    if view.alike:
        new = _rebatched_alike(view, config, config.split.micro_batch)
        return new or config
    return refit(view, config, config) or config
