"""``sweep --vary``: what each value of a setting buys, all others as they are.

The first value of every axis is the base; each other value is solved with the
first values of the other axes.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from msgspec import structs

from nest.cost.magnitude import with_quantum
from nest.errors import InvalidOptionError, NestError, UnknownNameError
from nest.hardware import find_cluster
from nest.hardware.cluster_file import SUFFIXES
from nest.hardware.machines import parse_cluster
from nest.requests.restricted import restricted_by
from nest.requests.settings import settings_of
from nest.requests.solving import DEFAULT_SOLVER, solver_limits
from nest.requests.values import (
    RefusedValueError,
    also_needed,
    amount,
    integer,
    pairs,
    settings_text,
)
from nest.units import format_bytes
from nest.util.quantities import RATE, SIZE, Kind, read_quantity
from nest.util.versions import provenance

if TYPE_CHECKING:
    from nest.ir.problem import Problem
    from nest.requests.benchmarks import SweepRequest
    from nest.solvers.cell import OnProgress

#: Axes whose values are those of an option with another name.
_OPTIONS = {"sequence": "sequence_length", "batch": "global_batch"}

#: Options of one value that are axes by their own names.
_SAME = (
    *("schedule", "target", "topology", "model", "cluster", "headroom"),
    *("dtype", "optimizer", "price"),
)

#: Axes that change the network between nodes only.
_BETWEEN_NODES = ("network", "rails", "oversubscription")

#: Options that count with ``--vary`` only.
_OF_VARY = ("tokens", "price", "target", "pin", "forbid", "headroom")

#: The value that leaves everything as it is.
AS_IT_IS = "default"

#: How often a value is what the cluster has: 2x.
_TIMES = re.compile(r"(\d{1,6}(?:\.\d{1,6})?)[x×]")


def read_axes(value: Any) -> tuple[str, ...]:
    """Read texts such as ``memory=80GB,141GB``; in Python also a mapping."""
    if isinstance(value, Mapping):
        return tuple(settings_text({axis: x}) for axis, x in value.items())
    return pairs(value)


def _split(text: str) -> list[str]:
    """Return the values of an axis; parameters of a network stay together."""
    if "|" in text:
        return [value.strip() for value in text.split("|")]
    values: list[str] = []
    for item in text.split(","):
        if values and ":" in values[-1] and "=" in item and ":" not in item:
            values[-1] += f",{item}"
        else:
            values.append(item.strip())
    return values


def axes_of(texts: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the values of every axis of ``--vary``.

    Raises ``InvalidOptionError`` or ``UnknownNameError`` if there is no such axis, or a
    text is malformed.
    """
    axes: dict[str, list[str]] = {}
    for text in texts:
        axis, _, rest = text.partition("=")
        axis, values = axis.strip(), _split(rest)
        if axis not in AXES:
            raise UnknownNameError("--vary", axis, AXES)
        if axis in axes or not all(values) or len(set(values)) < len(values):
            raise InvalidOptionError(
                f"--vary {axis}: expected the axis once, with distinct values "
                f"separated by commas, got {text!r}; for example --vary "
                f"memory=80GB,141GB"
            )
        axes[axis] = values
    sizes = [axis for axis in ("devices", "nodes", "cluster") if axis in axes]
    if len(sizes) > 1:
        raise InvalidOptionError(
            f"--vary {sizes[1]}: expected one axis that sets the devices, got "
            f"{sizes[0]} too; remove one"
        )
    return axes


# What the value of an axis changes


#: A request, and what a value then changes in its problem.
_Changed = tuple["SweepRequest", Callable[["Problem"], "Problem"]]


def _count(request: SweepRequest, axis: str, value: str) -> _Changed:
    """Return a request on so many devices, or nodes."""
    count = integer()(value)
    text = os.fspath(request.cluster or "")
    if "+" in text or text.endswith(SUFFIXES):
        raise InvalidOptionError(
            f"expected --cluster <machine>x<devices> with it, got {text!r}; "
            f"for example --cluster h100x64"
        )
    site, _ = parse_cluster(text)
    if axis == "nodes":
        count *= site.node.fan_out
    return _option(request, "cluster", f"{site.name}x{count}")


def _factor(value: str, kind: Kind, present: float) -> Fraction:
    """Return how many times what is present a value is."""
    match = _TIMES.fullmatch(value)
    if match is not None:
        return Fraction(match[1])
    return read_quantity(value, kind) / Fraction(present)


def _memory(request: SweepRequest, axis: str, value: str) -> _Changed:
    """Return what gives the devices another memory."""
    from nest.analysis.fit import with_memory

    def change(problem: Problem) -> Problem:
        memory_bytes = problem.cluster.memory_bytes()
        # An H100-80GB has 79.1 GiB: 141GB is so much more of what it offers.
        sold = re.search(r"\d+GB", problem.cluster.device.name)
        present = float(memory_bytes)
        if sold and value.strip().endswith("GB"):
            present = float(read_quantity(sold[0], SIZE))
        factor = _factor(value, SIZE, present)
        reserved = problem.cluster.reserve_bytes()
        if factor * memory_bytes < reserved:
            share = Fraction(reserved, memory_bytes)
            raise InvalidOptionError(
                f"expected at least the {format_bytes(reserved)} of a device "
                f"that no plan can use, got {value}; for example "
                f"{math.ceil(2 * share * Fraction(present) / 10**9)}GB"
            )
        return with_memory(problem, int(factor * memory_bytes))

    return request, change


def _network(request: SweepRequest, axis: str, value: str) -> _Changed:
    """Return what gives the network between nodes another bandwidth.

    The bandwidth is that of the data sheet: per device, in one direction.
    """
    if axis == "network":
        (site, _), *_ = find_cluster(os.fspath(request.cluster or ""))[0]
        factor = _factor(value, RATE, site.network.bandwidth_bytes_per_s)
    else:
        minimum = 1 if axis == "oversubscription" else 0
        try:
            factor = amount(value)
        except RefusedValueError:
            factor = Fraction(0)
        if factor < minimum or not factor:
            raise InvalidOptionError(
                f"expected a number {'of at least 1' if minimum else '> 0'}, "
                f"got {value!r}; for example --vary {axis}=1,2"
            )
        if minimum:
            factor = 1 / factor

    def change(problem: Problem) -> Problem:
        from nest.benchmarks.sweep import widened

        if factor == 1:
            return problem
        if request.topology or problem.cluster.topology.kind != "hierarchy":
            raise InvalidOptionError(
                "expected the network of a machine, got another one; vary the "
                "topology with its parameters instead"
            )
        cluster = widened(problem.cluster, float(factor), within_nodes=False)
        return with_quantum(structs.replace(problem, cluster=cluster))

    return request, change


def _option(request: SweepRequest, axis: str, value: str) -> _Changed:
    """Return a request with another value of an option."""
    values: dict[str, Any] = {_OPTIONS.get(axis, axis): value}
    return replace(request, **values), lambda problem: problem


#: What sets an axis to a value.
AXES: dict[str, Callable[..., _Changed]] = {
    **dict.fromkeys(("devices", "nodes"), _count),
    "memory": _memory,
    **dict.fromkeys(_BETWEEN_NODES, _network),
    **dict.fromkeys((*_OPTIONS, *_SAME), _option),
}


@dataclass(frozen=True)
class Point:
    """A value of an axis, what is asked under it, and the problem then.

    The base has no axis, and the first value of every one. ``free`` is the
    problem without the default headroom, if that was added.
    """

    axis: str
    value: str
    request: SweepRequest
    problem: Problem
    free: Problem | None = None


def points(request: SweepRequest) -> Iterator[Point]:
    """Yield the base, and every other value of every axis.

    Raises ``InvalidOptionError`` if no problem can be built for a value; the text names
    it.
    """
    axes = axes_of(tuple(request.vary))
    base = {axis: values[0] for axis, values in axes.items()}
    first = ", ".join(f"{axis}={value}" for axis, value in base.items())
    yield _point(request, "", first, base)
    for axis, values in axes.items():
        for value in values[1:]:
            yield _point(request, axis, value, base | {axis: value})


def _point(
    request: SweepRequest, axis: str, value: str, chosen: dict[str, str]
) -> Point:
    of_point = f"--vary {axis}={value}: " * bool(axis)
    changes, where = {}, ""
    try:
        # A network that is stated has its own bandwidths.
        for name in sorted(chosen, key="topology".__ne__):
            text = chosen[name]
            where = f"--vary {name}={text}: "
            if text != AS_IT_IS:
                request, changes[where] = AXES[name](request, name, text)
        where = of_point
        problem = request.model_problem(request.target)
        for source, change in changes.items():
            where = source
            problem = change(problem)
        where = of_point
        restricted = restricted_by(request, problem)  # type: ignore[arg-type]
    except (NestError, ValueError) as error:
        raise InvalidOptionError(f"{where}{error}") from None
    free = restricted.free.problem if restricted.free else None
    return Point(axis, value, request, restricted.problem, free)


# What it buys


def solved(
    request: SweepRequest, on_progress: OnProgress | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the row of every point: its best plan, against the base."""
    from nest.solvers.cell import about

    base = None
    for point in list(points(request)):
        call = on_progress
        if call is not None:
            name = f"{point.axis}={point.value}" if point.axis else "base"
            call = about(name, call)
        row = _answer(point, base, call)
        base = base or row
        yield row


_NO_EFFECT = "no effect here, because one node or slice has all devices"


def _is_one_node(problem: Problem) -> bool:
    """Return whether the lowest level of a network joins all devices."""
    network = problem.cluster.topology
    if network.kind != "hierarchy":
        return False
    lowest = next((size for size in network.capacities if size > 1), 1)
    return problem.cluster.num_devices <= lowest


def _answer(
    point: Point, base: dict[str, Any] | None, on_progress: OnProgress | None
) -> dict[str, Any]:
    from nest.analysis.fit import num_steps
    from nest.solvers.run import run_solver
    from nest.uncertainty.headroom import fullest_device
    from nest.uncertainty.intervals import intervals_of

    request, problem = point.request.limited(), point.problem
    row: dict[str, Any] = {"axis": point.axis, "value": point.value}
    unused = point.axis in _BETWEEN_NODES and _is_one_node(problem)
    row["note"] = _NO_EFFECT if unused else ""
    if point.axis == "price" and base is not None:
        row = base | row
    else:
        limits = solver_limits(request, DEFAULT_SOLVER)
        result = run_solver(problem, DEFAULT_SOLVER, limits, on_progress)
        if result.plan is None and point.free is not None:
            problem = point.free
            result = run_solver(problem, DEFAULT_SOLVER, limits, on_progress)
        plan, score = result.plan, result.score
        row |= {
            "status": str(result.status or result.outcome),
            "devices": problem.cluster.num_devices,
            "step_time_ns": result.step_time_ns,
            "step_time_90_ns": None,
            "tokens_per_s": score and score.throughput_tokens_per_s,
            "memory_bytes": None,
            "fits": None,
            "plan": plan and plan.text,
            "degrees": plan and plan.degrees_text,
        }
        if plan is not None and score is not None:
            within = intervals_of(problem, plan, score)
            row["step_time_90_ns"] = within and list(within.step_90_ns)
            full = fullest_device(problem, plan, score)
            row |= {"memory_bytes": full.memory_bytes, "fits": full.fits}
    row |= {"speed_up": None, "days": None, "usd": None}
    step_ns, first_rate = row["step_time_ns"], (base or row)["tokens_per_s"]
    if step_ns and first_rate:
        row["speed_up"] = row["tokens_per_s"] / first_rate
    if step_ns and request.tokens is not None:
        steps = num_steps(problem, Fraction(request.tokens), "--tokens")
        row["days"] = steps * step_ns / 86400e9
        if request.price is not None:
            hours = 24 * row["days"] * row["devices"]
            row["usd"] = hours * float(request.price)
    return row


def document_of(request: SweepRequest, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the ``nest-vary/1`` document: the base, then the other rows."""
    return {
        "schema": "nest-vary/1",
        "model": os.fspath(request.model or ""),
        "cluster": os.fspath(request.cluster or ""),
        "axes": axes_of(tuple(request.vary)),
        "rows": rows,
        **provenance(),
    }


def check_vary(request: SweepRequest) -> None:
    """Refuse options of a grid with ``--vary``, and the other way round."""
    settings = settings_of(type(request))
    unused: tuple[str, ...] = ("output", "jobs", "dask", "resume", "solvers")
    other = "GRID"
    if not request.vary:
        unused, other = (*request.given_job, *_OF_VARY), "--vary"
    for name in unused:
        is_given = getattr(request, name) != settings[name].default
        if is_given and name != "calibration":
            raise InvalidOptionError(
                f"{settings[name].flags[-1]}: expected {other} with it, got "
                f"none; add it, or remove the option"
            )
    if request.vary and request.grid is not None:
        raise InvalidOptionError(
            f"--vary: expected either it or GRID, got {request.grid} too; remove one"
        )
    if request.vary and request.model is None:
        raise also_needed("--vary", "--model and --cluster", "add them")
    if "price" in axes_of(tuple(request.vary)) and request.tokens is None:
        raise InvalidOptionError(
            "--vary price: expected --tokens too, which the price is for, got "
            "none; add it"
        )
    if not request.vary and request.grid is None:
        raise InvalidOptionError(
            f"{request.COMMAND}: expected GRID or --vary, got none; for example "
            f"--model llama3-8b --cluster h100x64 --vary memory=80GB,141GB"
        )
