"""SPEC.yaml of ``nest codesign``: the space, and what is asked of it.

Whatever has a unit is written with it, as ``128 MiB``; counts are whole
numbers. Every figure is compared as an integer.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from math import ceil, floor
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from nest.accelerators import phaze
from nest.accelerators.architecture import PARAMETERS, Architecture
from nest.accelerators.points import FIGURES, Figure, Limit, Space, listed, within
from nest.accelerators.silicon import Prices, Technology, technology
from nest.accelerators.systolic import CONVENTIONS, Convention
from nest.errors import InvalidProblemError, UnknownNameError
from nest.ir.base import FileStruct, Struct
from nest.ir.io import decode, read_bytes
from nest.models.choices import Request
from nest.units import MAX_TERM
from nest.util.quantities import (
    AREA,
    DENSITY,
    FREQUENCY,
    LENGTH,
    MONEY,
    MONEY_PER_SIZE,
    POWER,
    POWER_DENSITY,
    RATE,
    SIZE,
    TIME,
    Kind,
    read_quantity,
    read_whole,
)

N = TypeVar("N", bound=str)

#: Spaces that need no lists.
BUILT_IN = ("phaze",)

#: Attention as Phaze's graphs have it, or as one operator.
ATTENTION = ("unfused", "fused")

#: How throughputs of several models become one figure.
OBJECTIVES = ("geometric-mean", "worst-case")

#: Largest weight of a model: step times are compared as powers.
MAX_WEIGHT = 1000

#: The base that throughputs are relative to, unless there is an own one.
TPU_V4_LIKE = "tpu-v4-like"

#: Samples of a step: Phaze's (Solver/solver.py).
GLOBAL_BATCH = 4096

#: Process of spaces that are not built in.
PROCESS = "7nm"


class Key(NamedTuple):
    """The parameter that a key of the file sets; a count has no kind."""

    parameter: str
    kind: Kind | None = None


KEYS: Mapping[str, Key] = {
    "tensor_cores": Key("tensor_cores"),
    "rows": Key("rows"),
    "columns": Key("columns"),
    "vector_cores": Key("vector_cores"),
    "lanes": Key("lanes"),
    "sram": Key("sram_bytes", SIZE),
    "core_buffer": Key("core_buffer_bytes", SIZE),
    "hbm": Key("hbm_bytes", SIZE),
    "hbm_bandwidth": Key("hbm_bytes_per_s", RATE),
    "frequency": Key("frequency_hz", FREQUENCY),
    "link_bandwidth": Key("link_bytes_per_s", RATE),
    "network_bandwidth": Key("network_bytes_per_s", RATE),
    "devices_per_node": Key("devices_per_node"),
}

#: Parameters that need not be said: lanes are as many as columns, a core's
#: buffer follows from its array, and a node is a device.
_OWN_RULE = ("lanes", "core_buffer", "devices_per_node")

#: Keys that a space must have, and those that the base must have.
_REQUIRED = tuple(key for key in KEYS if key not in _OWN_RULE)
_REQUIRED_OF_BASE = ("tensor_cores", "rows", "columns", "vector_cores", "sram")

#: Key whose value stands for the columns of the same point.
_AS_COLUMNS = "columns"


class ObjectiveSpec(Struct, frozen=True, kw_only=True):
    """How throughputs of several models become one figure.

    ``weights`` are whole numbers per model, 1 for one that is not named: how often it
    counts.
    """

    kind: str
    weights: dict[str, int]
    base_name: str
    base: Architecture


class Spec(Struct, frozen=True, kw_only=True):
    """All that SPEC.yaml says."""

    space: Space
    #: What ``--model`` takes: names, or paths of ``config.json``; none if the command
    #: line says them.
    models: tuple[str, ...]
    devices: int
    #: What all problems ask for, of 4,096 samples by default.
    job: Request
    objective: ObjectiveSpec
    #: How arrays are timed, see :mod:`nest.accelerators.systolic`; of
    #: :data:`ATTENTION`.
    convention: Convention
    attention: str
    link_latency_ns: int
    network_latency_ns: int
    process: Technology
    prices: Prices


# The file as it is: values are looked at below, so that messages can say what
# a unit is for.


class _Parameters(Struct, frozen=True, kw_only=True):
    tensor_cores: Any = None
    rows: Any = None
    columns: Any = None
    vector_cores: Any = None
    lanes: Any = None
    sram: Any = None
    core_buffer: Any = None
    hbm: Any = None
    hbm_bandwidth: Any = None
    frequency: Any = None
    link_bandwidth: Any = None
    network_bandwidth: Any = None
    devices_per_node: Any = None

    @property
    def said(self) -> dict[str, Any]:
        """The values that the file states, by key."""
        values = {key: getattr(self, key) for key in KEYS}
        return {key: x for key, x in values.items() if x is not None}


class _Base(_Parameters, frozen=True, kw_only=True):
    name: str = "own"


class _Space(_Parameters, frozen=True, kw_only=True):
    builtin: str | None = None
    points: tuple[_Parameters, ...] | None = None


class _Bounds(Struct, frozen=True, kw_only=True):
    least: Any = None
    most: Any = None


class _Limits(Struct, frozen=True, kw_only=True):
    area: _Bounds = _Bounds()
    power: _Bounds = _Bounds()
    power_density: _Bounds = _Bounds()
    price: _Bounds = _Bounds()


class _StatedObjective(Struct, frozen=True, kw_only=True):
    kind: str = OBJECTIVES[0]
    weights: dict[str, Any] = {}
    base: str | _Base = TPU_V4_LIKE


class _Latency(Struct, frozen=True, kw_only=True):
    # As nest/hardware/data/links.json has them of NVLink and InfiniBand.
    link: Any = "3 us"
    network: Any = "5 us"


class _Prices(Struct, frozen=True, kw_only=True):
    wafer: Any = None
    wafer_diameter: Any = None
    defect_density: Any = None
    clustering: Any = None
    hbm: Any = None
    package: Any = None


class _File(FileStruct, frozen=True, kw_only=True, tag="nest-codesign/1"):
    space: str | _Space
    devices: Any
    models: tuple[str, ...] = ()
    limits: _Limits = _Limits()
    job: Request = Request()
    objective: _StatedObjective = _StatedObjective()
    latency: _Latency = _Latency()
    convention: str = CONVENTIONS[0]
    attention: str = ATTENTION[0]
    technology: str | None = None
    prices: _Prices = _Prices()


def read_spec(path: str | Path) -> Spec:
    """Read SPEC.yaml.

    The file is in YAML, or in JSON if its name does not end so.

    Raises ``InvalidProblemError`` if it is none, says what cannot be, or its limits
    leave no point.
    """
    where = str(path)
    data = read_bytes(path, InvalidProblemError, "specification")
    file = decode(data, where, _File, "specification", InvalidProblemError)
    try:
        return _spec(_placed(file, Path(path).parent))
    except InvalidProblemError as error:
        raise InvalidProblemError(f"{where}: {error}") from None


def _placed(file: _File, folder: Path) -> _File:
    """Return the file with paths of models as they are from here."""

    def placed(name: str) -> str:
        return str(folder / name) if name.endswith(".json") else name

    goal = file.objective
    weights = {placed(name): each for name, each in goal.weights.items()}
    return replace(
        file,
        models=tuple(map(placed, file.models)),
        objective=replace(goal, weights=weights),
    )


def _spec(file: _File) -> Spec:
    listed = file.space
    if isinstance(listed, str):
        listed = _Space(builtin=listed)
    if listed.builtin is not None:
        _named("$.space", listed.builtin, BUILT_IN)
    process = _process(file, listed.builtin)
    prices = _prices(file.prices)
    models = _distinct("$.models", file.models)
    space = _space(listed, _limits(file.limits), process, prices)
    job = file.job
    if job.global_batch is None:
        job = replace(job, global_batch=GLOBAL_BATCH)
    return Spec(
        space=space,
        models=models,
        devices=_count("$.devices", file.devices),
        job=job,
        objective=_objective(file.objective, space, models),
        convention=_named("$.convention", file.convention, CONVENTIONS),
        attention=_named("$.attention", file.attention, ATTENTION),
        link_latency_ns=_whole("$.latency.link", file.latency.link, TIME, 0),
        network_latency_ns=_whole("$.latency.network", file.latency.network, TIME, 0),
        process=process,
        prices=prices,
    )


# Values


@contextlib.contextmanager
def _at(where: str) -> Iterator[None]:
    """Say of what place a ``ValueError`` is, as an error of the file."""
    try:
        yield
    except InvalidProblemError:
        raise
    except ValueError as error:
        raise InvalidProblemError(f"{where}: {error}") from None


def _named(where: str, name: str, names: tuple[N, ...]) -> N:
    for other in names:
        if name == other:
            return other
    raise InvalidProblemError(str(UnknownNameError(where, name, names)))


def _count(where: str, value: object, minimum: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidProblemError(
            f"{where}: expected a whole number, got {value!r}; counts have "
            f"neither fractions nor units"
        )
    if not minimum <= value <= MAX_TERM:
        raise InvalidProblemError(
            f"{where}: expected a whole number from {minimum} to 2**53, got "
            f"{value}; correct it"
        )
    return value


def _value(where: str, key: str, value: object) -> int:
    kind = KEYS[key].kind
    return _count(where, value) if kind is None else _whole(where, value, kind)


def _whole(where: str, value: object, kind: Kind, minimum: int = 1) -> int:
    with _at(where):
        return read_whole(value, kind, minimum)


def _values(where: str, key: str, values: object) -> tuple[int, ...]:
    """Return the listed values of a parameter; one stands for a list of it."""
    if not isinstance(values, list):
        return (_value(where, key, values),)
    if not values:
        raise InvalidProblemError(
            f"{where}: expected at least one value, got none; list some"
        )
    located = ((f"{where}[{index}]", value) for index, value in enumerate(values))
    return _distinct(where, tuple(_value(name, key, value) for name, value in located))


def _distinct(where: str, values: tuple[Any, ...]) -> tuple[Any, ...]:
    seen = set()
    for value in values:
        if value in seen:
            raise InvalidProblemError(
                f"{where}: expected each value once, got {value!r} twice; remove one"
            )
        seen.add(value)
    return values


# The space


def _space(
    values: _Space, limits: Mapping[str, Limit], process: Technology, prices: Prices
) -> Space:
    if values.builtin is not None:
        return _built_in(values, limits, prices)
    if values.points is not None:
        return within(_points(values), limits, process, prices)
    keys = values.said
    as_columns = keys.get("lanes", _AS_COLUMNS) == _AS_COLUMNS
    if as_columns:
        keys.pop("lanes", None)
    _complete("$.space", keys)
    return within(
        listed(_axes(keys), as_columns),
        limits,
        process,
        prices,
        lanes_are_columns=as_columns,
    )


def _built_in(values: _Space, limits: Mapping[str, Limit], prices: Prices) -> Space:
    """Return Phaze's space with what is said beside its lists."""
    if values.points is not None:
        raise InvalidProblemError(
            "$.space.points: expected none beside 'builtin', got some; remove "
            "one of both"
        )
    for key in values.said:
        if KEYS[key].parameter in (*phaze.CORES, "lanes"):
            raise InvalidProblemError(
                f"$.space.{key}: expected no list beside 'builtin', which has "
                f"its own, got one; remove it, or 'builtin'"
            )
    return phaze.phaze_space(_axes(values.said), limits, prices)


def _axes(keys: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {
        KEYS[key].parameter: _values(f"$.space.{key}", key, values)
        for key, values in keys.items()
    }


def _complete(
    where: str, keys: Mapping[str, Any], required: Iterable[str] = _REQUIRED
) -> None:
    for key in required:
        if key not in keys:
            raise InvalidProblemError(
                f"{where}: expected key {key!r}, got none; add it"
            )


def _points(values: _Space) -> Iterator[Architecture]:
    """Yield the points of a list; what is said beside it is for all."""
    shared = values.said
    for key, value in shared.items():
        if isinstance(value, list):
            raise InvalidProblemError(
                f"$.space.{key}: expected one value beside 'points', got a "
                f"list; say it in each point"
            )
    for index, point in enumerate(values.points or ()):
        where = f"$.space.points[{index}]"
        yield _architecture(where, {**shared, **point.said})


def _architecture(where: str, keys: Mapping[str, Any]) -> Architecture:
    _complete(where, keys)
    values = {
        KEYS[key].parameter: _value(f"{where}.{key}", key, value)
        for key, value in keys.items()
        if not (key == "lanes" and value == _AS_COLUMNS)
    }
    values.setdefault("lanes", values["columns"])
    return Architecture(**values)


def _limits(values: _Limits) -> dict[str, Limit]:
    """Return the limits in what figures are counted in.

    A figure is whole, so an upper bound may be rounded down, a lower one up.
    """
    limits = {}
    kinds = (AREA, POWER, POWER_DENSITY, MONEY)
    for figure, kind in zip(FIGURES, kinds, strict=True):
        bounds: _Bounds = getattr(values, figure.name)
        limit = _limit(figure, kind, bounds)
        if limit != Limit():
            limits[figure.name] = limit
    return limits


def _limit(figure: Figure, kind: Kind, bounds: _Bounds) -> Limit:
    where = f"$.limits.{figure.name}"
    ends = {}
    for end, rounded in (("least", ceil), ("most", floor)):
        value = getattr(bounds, end)
        if value is not None:
            with _at(f"{where}.{end}"):
                ends[end] = rounded(read_quantity(value, kind))
    if len(ends) == 2 and ends["least"] > ends["most"]:
        raise InvalidProblemError(
            f"{where}: expected 'least' to be at most 'most', got "
            f"{figure.say(ends['least'])} and {figure.say(ends['most'])}; change one"
        )
    return Limit(**ends)


# What is asked


def _process(file: _File, builtin: str | None) -> Technology:
    name = file.technology
    if name is None:
        name = PROCESS if builtin is None else phaze.PROCESS
    if builtin is not None and name != phaze.PROCESS:
        raise InvalidProblemError(
            f"$.technology: expected {phaze.PROCESS!r} with the built-in "
            f"space, whose areas are of it, got {name!r}; remove it"
        )
    try:
        return technology(name)
    except UnknownNameError as error:
        raise InvalidProblemError(f"$.{error}") from None


def _prices(values: _Prices) -> Prices:
    prices: dict[str, int] = {}
    for key, field, kind, minimum in (
        ("wafer", "wafer_micro_usd", MONEY, 1),
        ("wafer_diameter", "wafer_um", LENGTH, 1),
        ("defect_density", "defects_per_m2", DENSITY, 0),
        ("hbm", "hbm_micro_usd_per_gb", MONEY_PER_SIZE, 0),
        ("package", "package_micro_usd", MONEY, 0),
    ):
        value = getattr(values, key)
        if value is not None:
            prices[field] = _whole(f"$.prices.{key}", value, kind, minimum)
    if values.clustering is not None:
        prices["clustering"] = _count("$.prices.clustering", values.clustering)
    return Prices(**prices)


def _objective(
    values: _StatedObjective, space: Space, models: tuple[str, ...]
) -> ObjectiveSpec:
    kind = _named("$.objective.kind", values.kind, OBJECTIVES)
    where = "$.objective.weights"
    weights = {
        model: _count(f"{where}.{model}", weight)
        for model, weight in values.weights.items()
    }
    for model, weight in weights.items():
        if weight > MAX_WEIGHT:
            raise InvalidProblemError(
                f"{where}.{model}: expected at most {MAX_WEIGHT}, got "
                f"{weight}; divide all weights"
            )
    if weights and kind == "worst-case":
        raise InvalidProblemError(
            f"{where}: expected none for the worst case, got some; remove "
            f"them, or choose another kind"
        )
    for model in weights:
        if models and model not in models:
            raise InvalidProblemError(
                f"{where}: expected models of the list, got {model!r}; correct the name"
            )
    name, base = _base(values.base, space)
    return ObjectiveSpec(kind=kind, weights=weights, base_name=name, base=base)


def _base(values: str | _Base, space: Space) -> tuple[str, Architecture]:
    """Return the base; what it leaves out is as in the first point listed."""
    first = space.first
    defaults = {
        name: getattr(first, name)
        for name in PARAMETERS
        if name not in phaze.TPU_V4_LIKE
    }
    if isinstance(values, str):
        _named("$.objective.base", values, (TPU_V4_LIKE,))
        return values, phaze.tpu_v4_like(defaults)
    where = "$.objective.base"
    chosen = {
        KEYS[key].parameter: _value(f"{where}.{key}", key, value)
        for key, value in values.said.items()
    }
    _complete(where, values.said, _REQUIRED_OF_BASE)
    if not values.name.strip() or not values.name.isprintable():
        raise InvalidProblemError(
            f"{where}.name: expected a name in one line, got {values.name!r}; "
            f"choose another"
        )
    return values.name, Architecture(
        **{"lanes": chosen["columns"], **defaults, **chosen}
    )
