"""Pins: search only plans with the settings that a user asks for.

A pin says which values a setting may have (``tp=8``, ``zero=0|1``), the
opposite says which it may not. Both turn into the fields of the job that
every solver honors; nothing else about the problem changes, and every plan
of the restricted problem is one of the problem itself, at the same cost.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from nest.cost.axes import AXES, EXPERT_TENSOR_AXIS, degree_of
from nest.cost.schedules import schedule_of
from nest.cost.space import (
    PLAIN,
    BatchSplit,
    Family,
    batch_splits,
    families,
    max_stages,
    strategies,
    zero_is_named,
)
from nest.errors import InvalidOptionError, UnknownNameError
from nest.ir.plan import RECOMPUTE, Strategy
from nest.ir.problem import Problem
from nest.util.text import whole_number

Value = int | str
#: Values by the short names of settings.
Restrictions = Mapping[str, tuple[Value, ...]]

#: Values that a message lists at most.
_SHOWN = 12


class PlanSetting(NamedTuple):
    """One setting that can be pinned.

    Attributes
    ----------
    field
        The field of the job that holds its allowed values.
    meaning
        For messages.
    long
        Its other name on the command line, if any.
    of_strategy
        Whether it is a field of a strategy.
    words, numbers
        Its values: the one or the other.
    """

    field: str
    meaning: str
    long: str | None = None
    of_strategy: bool = False
    words: tuple[str, ...] = ()
    numbers: range = range(1, 2**31)


SETTINGS = {
    "r": PlanSetting("replicas", "pipeline replicas", long="replicas"),
    "b": PlanSetting("micro_batches", "micro-batches", long="micro_batch"),
    "pp": PlanSetting("pipeline_parallel", "numbers of stages"),
    **{
        axis.name: PlanSetting(axis.field, axis.meaning, of_strategy=True)
        for axis in (*AXES, EXPERT_TENSOR_AXIS)
    },
    "zero": PlanSetting("zero", "ZeRO stages", of_strategy=True, numbers=range(4)),
    "recompute": PlanSetting(
        "recompute",
        "recompute choices",
        of_strategy=True,
        words=RECOMPUTE,
        numbers=range(0),
    ),
    "v": PlanSetting("virtual_stages", "chunks per stage", long="virtual_stages"),
}

_SHORT = {name: name for name in SETTINGS} | {
    setting.long: name for name, setting in SETTINGS.items() if setting.long
}


def parse(texts: Sequence[str], option: str) -> dict[str, tuple[Value, ...]]:
    """Read texts such as ``tp=8,zero=0|1``.

    Parameters
    ----------
    texts
        One per use of the option.
    option
        Its name, for messages: ``--pin``, which takes every setting once,
        or ``--forbid``, where a setting may come again.

    Raises
    ------
    InvalidOptionError
        If a text is malformed, a value is none of its setting, or two pins
        of a setting contradict each other.
    UnknownNameError
        If there is no such setting.
    """
    settings: dict[str, tuple[Value, ...]] = {}
    for assignment in (assignment for text in texts for assignment in text.split(",")):
        name, equals, values_text = assignment.strip().partition("=")
        if not (name and equals and values_text):
            raise InvalidOptionError(
                f"{option}: expected SETTING=VALUE, several separated by "
                f"commas, got {assignment!r}; {_hint(option, texts)}"
            )
        if name not in _SHORT:
            raise UnknownNameError(option, name, _SHORT)
        name = _SHORT[name]
        values = tuple(
            dict.fromkeys(_read(option, name, text) for text in values_text.split("|"))
        )
        if option == "--forbid":
            values = tuple(dict.fromkeys((*settings.get(name, ()), *values)))
        elif set(settings.get(name, values)) != set(values):
            raise InvalidOptionError(
                f"{option}: expected {name} once, got {_text(name, settings[name])} "
                f"and {_text(name, values)}, which contradict each other; keep one, or "
                f"write {_text(name, (*settings[name], *values))} for either"
            )
        settings[name] = values
    return settings


def _hint(option: str, texts: Sequence[str]) -> str:
    """Return what was meant by settings without a sign of equality."""
    tokens = [token.strip() for text in texts for token in text.split(",")]
    matches = [re.fullmatch(r"([a-z]+)=?(\d+)", token) for token in tokens]
    pairs = [f"{x[1]}={x[2]}" for x in matches if x and x[1] in _SHORT]
    if tokens and len(pairs) == len(tokens):
        return f"did you mean {','.join(pairs)!r}?"
    return f"for example {option} tp=8,zero=0|1"


def are_settings(text: str) -> bool:
    """Whether a text means settings, not a file; a file goes first.

    ``tp2,pp2`` was meant so, too.
    """
    was_meant = _hint("", [text]).startswith("did you")
    return (
        (was_meant or "=" in text or not text.strip())
        and os.sep not in text
        and not text.endswith((".json", ".yaml", ".yml"))
        and not os.path.exists(text)
    )


def _read(option: str, name: str, text: str) -> Value:
    text, setting = text.strip(), SETTINGS[name]
    if text in setting.words:
        return text
    value = whole_number(text)
    if value is not None and value in setting.numbers:
        return value
    expected = f"an integer >= {setting.numbers.start}"
    if setting.words:
        expected = f"one of {', '.join(setting.words)}"
    elif len(setting.numbers) < _SHOWN:
        *others, last = map(str, setting.numbers)
        expected = f"{', '.join(others)} or {last}"
    raise InvalidOptionError(
        f"{option} {name}: expected {expected}, got {text!r}; correct the value"
    )


def describe(pins: Restrictions, forbids: Restrictions, option: str = "--pin") -> str:
    """Return the restrictions as on the command line; empty for none.

    ``option`` is the one that the pins come from.
    """
    options = []
    for name, restrictions in ((option, pins), ("--forbid", forbids)):
        if restrictions:
            texts = (_text(key, values) for key, values in restrictions.items())
            options.append(f"{name} {','.join(texts)}")
    return " ".join(options)


def _text(name: str, values: Iterable[Value]) -> str:
    return f"{name}={'|'.join(map(str, dict.fromkeys(values)))}"


def choices(problem: Problem) -> dict[str, tuple[Value, ...]]:
    """Return the values that each setting has in some plan of a problem.

    By the counting rules and the layers' costs; memory is not looked at.
    """
    values_of: dict[str, set[Any]] = {name: set() for name in SETTINGS}
    used: set[Strategy] = set()
    for case, virtual, family in _families(problem):
        values_of["r"].add(case.replicas)
        values_of["b"].add(case.micro_batch)
        values_of["pp"].update(family.stage_counts)
        values_of["v"].add(virtual)
        used.update(family.strategies)
    for strategy in used:
        for name, setting in SETTINGS.items():
            if setting.of_strategy:
                values_of[name].add(degree_of(strategy, name))
    # Where no ranks share weights all ZeRO stages are one plan, and one is listed.
    if not zero_is_named(problem) and any(not s.shares_weights for s in used):
        values_of["zero"].update(problem.job.zero)
    # In the order of their words, numbers ascending.
    return {
        name: tuple(sorted(values, key=SETTINGS[name].words.index))
        if SETTINGS[name].words
        else tuple(sorted(values))
        for name, values in values_of.items()
    }


def _families(problem: Problem) -> Iterator[tuple[BatchSplit, int, Family]]:
    """Yield the families of plans, with ``(R, B)`` and chunks per block.

    With the numbers of blocks that the schedule can run.
    """
    job = problem.job
    by_size: dict[int, list[Strategy]] = {}
    for case in batch_splits(problem):
        size = case.micro_batch
        if size not in by_size:
            by_size[size] = strategies(problem, size)
        for virtual in job.chunk_counts if by_size[size] else ():
            schedule = schedule_of(job.schedule, virtual)
            runtime = PLAIN._replace(virtual_stages=virtual)
            for family in families(problem, case, by_size[size], runtime):
                blocks = tuple(
                    count
                    for count in family.stage_counts
                    if (count > 1 or virtual == 1)
                    and schedule.why_not(count, case.num_micro_batches) is None
                )
                if blocks:
                    yield case, virtual, family._replace(stage_counts=blocks)


def restrict(
    problem: Problem,
    pins: Restrictions | None = None,
    forbids: Restrictions | None = None,
    option: str = "--pin",
) -> Problem:
    """Return the problem with a job that allows only what is asked for.

    Parameters
    ----------
    problem
        The problem.
    pins
        Allowed values of settings, by the names of :data:`SETTINGS`.
    forbids
        Values that settings must not have. A value that no plan has anyway
        changes nothing.
    option
        The option that the pins come from, for messages.

    Raises
    ------
    InvalidOptionError
        If a value is pinned that no plan of the problem has, or forbidden
        too, if nothing is left of a setting, or if no plan fulfills all pins
        together; the text names those that contradict each other.
    """
    pins, forbids = dict(pins or {}), dict(forbids or {})
    if not pins and not forbids:
        return problem
    possible = choices(problem)
    allowed: dict[str, tuple[Value, ...]] = {}
    for name, values in pins.items():
        both = [value for value in values if value in forbids.get(name, ())]
        if both:
            raise InvalidOptionError(
                f"{option} {_text(name, values)}: expected values that are not "
                f"forbidden, got {_text(name, both)} in --forbid too; remove one"
            )
    for name, values in pins.items():
        for value in values:
            if value not in possible[name]:
                hint = _hint_of_ranks(problem, pins, forbids, possible)
                _refuse_value(problem, name, value, possible, option, hint)
        allowed[name] = values
    for name, values in forbids.items():
        if name not in pins:
            allowed[name] = tuple(v for v in possible[name] if v not in values)
        if not allowed[name]:
            raise InvalidOptionError(
                f"--forbid {_text(name, values)}: expected at least one of "
                f"the {SETTINGS[name].meaning} ({_some(possible[name])}) to "
                f"be left, got all forbidden; allow one"
            )
    if _shards_nothing(problem, pins):
        stages = {name: pins[name] for name in ("zero", "b")}
        ranks = _ranks(problem, pins)
        hint = _hint_of_ranks(problem, {**pins, "dp": (ranks,)}, forbids, possible)
        raise InvalidOptionError(
            f"{describe(stages, {}, option)}: expected replicas of several "
            f"data-parallel ranks, which ZeRO shards over, got replicas of one, as b "
            f"counts the samples of a replica; {hint or 'pin dp, too'}"
        )
    narrow = _apply(problem, allowed)
    if _is_possible(problem) and not _is_possible(narrow):
        _refuse(problem, allowed, pins, forbids, option)
    return narrow


def _shards_nothing(problem: Problem, pins: Restrictions) -> bool:
    """Whether ZeRO is pinned, and one sample per replica leaves it nothing to shard.

    Not where degrees are pinned that say so.
    """
    return (
        {"zero", "b"} <= pins.keys()
        and not {"r", "dp"} & pins.keys()
        and 0 not in pins["zero"]
        and pins["b"] == (1,)
        and not problem.job.distributed_optimizer
        and _ranks(problem, pins) > 1
    )


def _ranks(problem: Problem, pins: Restrictions) -> int:
    """Return the data-parallel ranks in all, if all other degrees are pinned."""
    degrees = [pins.get(name, (1,)) for name in ("tp", "pp", "cp")]
    if any(len(values) > 1 for values in degrees):
        return 1
    return problem.cluster.num_devices // math.prod(int(x) for (x,) in degrees)


def _refuse_value(
    problem: Problem,
    name: str,
    value: Value,
    possible: Restrictions,
    option: str,
    hint: str,
) -> None:
    largest = max(
        (max_stages(problem, case) for case in batch_splits(problem)), default=0
    )
    # Where stages must be even, fewer may be no number of them either.
    if name == "pp" and problem.job.pipeline_parallel is None and int(value) > largest:
        layers = len(problem.graph.layers)
        raise InvalidOptionError(
            f"{option} pp={value}: expected at most {largest} stages ({layers} layers, "
            f"{problem.cluster.num_devices} devices), got {value}; pin fewer"
        )
    raise InvalidOptionError(
        f"{option} {name}={value}: expected one of the {SETTINGS[name].meaning} that "
        f"the job allows and the layers have costs for ({_some(possible[name])}), got "
        f"{value}; {hint or 'choose one of them'}"
    )


def _hint_of_ranks(
    problem: Problem, pins: Restrictions, forbids: Restrictions, possible: Restrictions
) -> str:
    """Return which pins mean the data-parallel ranks that were named.

    ``r * dp`` ranks are replicas of ``dp`` ranks each, and ``b`` counts the
    samples of the ranks of one replica. Empty if no such pins have a plan.
    """
    if any(len(pins.get(name, (1,))) > 1 for name in ("r", "dp", "b")):
        return ""
    (replicas,), (dp,) = pins.get("r", (1,)), pins.get("dp", (1,))
    ranks = int(replicas) * int(dp)
    batch = int(pins["b"][0]) if "b" in pins else None
    allowed = {
        name: tuple(value for value in possible[name] if value not in values)
        for name, values in forbids.items()
    }
    alternatives = []
    for inside in possible["dp"]:
        outside, rest = divmod(ranks, int(inside))
        if rest or ranks == 1:
            continue
        meant = {**pins, "r": (outside,), "dp": (inside,)}
        if batch is not None:
            samples = batch if batch % int(dp) else batch // int(dp)
            meant["b"] = (samples * int(inside),)
        if all(
            value in {**possible, **allowed}[name]
            for name, values in meant.items()
            for value in values
        ) and _is_possible(_apply(problem, {**allowed, **meant})):
            changed = ("r", "dp", "b")
            alternatives.append(
                ",".join(_text(x, meant[x]) for x in changed if x in meant)
            )
    if not alternatives:
        return ""
    either = " or ".join(dict.fromkeys((alternatives[-1], alternatives[0])))
    return (
        f"for {ranks} data-parallel ranks in all write {either} (r replicas "
        f"of dp ranks, b samples per replica); --distributed-optimizer "
        f"shards over all of them"
    )


def _some(values: Sequence[Value]) -> str:
    shown = [str(value) for value in values[:_SHOWN]]
    if len(values) > _SHOWN:
        shown[-2:] = ["…", str(values[-1])]
    return ", ".join(shown) or "none"


def _apply(problem: Problem, allowed: Mapping[str, tuple[Value, ...]]) -> Problem:
    fields = {SETTINGS[name].field: values for name, values in allowed.items()}
    return replace(problem, job=replace(problem.job, **fields))


def _is_possible(problem: Problem) -> bool:
    """Whether some case has a strategy and room for its stages."""
    return any(
        family.stage_counts[0] * strategy.devices <= case.devices
        for case, _, family in _families(problem)
        for strategy in family.strategies
    )


def _refuse(
    problem: Problem,
    allowed: Mapping[str, tuple[Value, ...]],
    pins: Restrictions,
    forbids: Restrictions,
    option: str,
) -> None:
    """Name as few restrictions as exclude every plan together."""
    needed = dict(allowed)
    for name in allowed:
        rest = {key: value for key, value in needed.items() if key != name}
        if not _is_possible(_apply(problem, rest)):
            needed = rest
    named = {name: pins[name] for name in needed if name in pins}
    text = describe(
        named, {name: forbids[name] for name in needed if name not in pins}, option
    )
    job, possible = problem.job, choices(problem)
    hint = ""
    if "dp" in needed:
        hint = _hint_of_ranks(problem, pins, forbids, possible)
    hint = hint or _changes(problem, allowed, named, forbids, possible)
    raise InvalidOptionError(
        f"{text}: expected a plan that fulfills "
        f"{'it' if len(needed) == 1 else 'all of it'} on {problem.cluster.num_devices} "
        f"devices with a global batch of {job.global_batch}, got a contradiction: "
        f"{_too_many_devices(problem, needed)}{_unsharded(problem, needed)}"
        f"no such plan exists, whatever the memory; {hint or 'drop or change one'}"
    )


def _too_many_devices(problem: Problem, needed: Restrictions) -> str:
    """Return that the smallest degrees need too many devices, if so."""
    smallest = {
        name: min(map(int, needed[name]))
        for name in ("r", "pp", "dp", "tp", "cp")
        if name in needed
    }
    count = math.prod(smallest.values())
    if count <= problem.cluster.num_devices:
        return ""
    return f"{' × '.join(smallest)} is {count:,} devices; "


def _unsharded(problem: Problem, needed: Restrictions) -> str:
    """Return that no data ranks are left to shard what has to be, if so."""
    degrees = {
        name: min(map(int, needed[name]))
        for name in ("pp", "tp", "cp")
        if name in needed
    }
    several = [x for x in problem.job.sharded_with if degrees.get(x, 1) > 1]
    if not several or math.prod(degrees.values()) != problem.cluster.num_devices:
        return ""
    return (
        f"that is dp 1, and with {' or '.join(several)} above 1 data-parallel ranks "
        f"have to shard gradients (mixed precision comes with it); "
    )


def _changes(
    problem: Problem,
    allowed: Restrictions,
    pins: Restrictions,
    forbids: Restrictions,
    possible: Restrictions,
) -> str:
    """Return which value of one pin has plans with the rest, or nothing.

    It is the nearest such value; only the nearest few are tried.
    """

    def distance(one: Value, other: Value) -> float:
        if isinstance(one, str) or isinstance(other, str):
            return 0.0
        return abs(math.log((one + 1) / (other + 1)))

    changes = []
    for name, pinned in pins.items():
        refused = {*pinned, *forbids.get(name, ())}
        others = sorted(
            (value for value in possible[name] if value not in refused),
            key=lambda value: distance(value, pinned[0]),
        )
        for other in others[:_SHOWN]:
            if _is_possible(_apply(problem, {**allowed, name: (other,)})):
                changes.append(f"{_text(name, (other,))} for {_text(name, pinned)}")
                break
    return f"write {' or '.join(changes)}" if changes else ""
