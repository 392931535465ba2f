"""Lists of architectures, and the limits that cut them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import islice, product
from math import prod
from operator import itemgetter
from typing import NamedTuple, NoReturn

from msgspec.structs import astuple

from nest.accelerators.architecture import PARAMETERS, Architecture, describe
from nest.accelerators.silicon import (
    MM2,
    Prices,
    Technology,
    area_e6_um2,
    power_density_uw_per_mm2,
    price_micro_usd,
    tdp_mw,
)
from nest.errors import InvalidProblemError
from nest.ir.base import Struct

#: Points that a list may have: eight times Phaze's with some room.
MAX_POINTS = 2**20


class Point(Struct, frozen=True):
    """One architecture of the list.

    ``index`` is its position among the points that are kept.
    """

    index: int
    architecture: Architecture
    area_e6_um2: int
    tdp_mw: int
    price_micro_usd: int

    @property
    def power_density_uw_per_mm2(self) -> int:
        """TDP per area of the die."""
        return power_density_uw_per_mm2(self.tdp_mw, self.area_e6_um2)


class Limit(Struct, frozen=True, kw_only=True):
    """Inclusive bounds of a figure; ``None`` is none."""

    least: int | None = None
    most: int | None = None


class Space(Struct, frozen=True, kw_only=True):
    """The points within the limits."""

    #: Those kept, in the order of the list.
    points: tuple[Point, ...]
    #: The first that was listed, whether it is kept or not.
    first: Architecture
    #: How many were listed.
    raw: int
    #: What cut how many points, in the order tested: ``area-most``, ``area-least``, …
    #: for the limits there are, and :data:`NO_WAFER`. A point counts for the first that
    #: cuts it.
    cut: dict[str, int]
    #: Bounds by name of a figure, see :data:`FIGURES`, if there are any.
    limits: dict[str, Limit]
    #: Listed values per parameter, ascending.
    axes: dict[str, tuple[int, ...]]
    #: Whether a vector core has as many lanes as arrays have columns.
    lanes_are_columns: bool = False


#: Whether a limit, by its name, does not count for a point, whatever its figure is.
Excused = Callable[[str, Architecture], bool]


class Figure(NamedTuple):
    """A figure that limits bound, with its unit for messages.

    ``name`` is the key of the limit, ``of`` the figure. It is printed in ``unit``;
    ``in_unit`` of what is counted make one of that.
    """

    name: str
    of: str
    unit: str
    in_unit: int

    def say(self, amount: int) -> str:
        """Return an amount with its unit, for people."""
        return f"{Decimal(amount) / self.in_unit:f} {self.unit}"


#: Figures in the order in which limits are tested.
FIGURES = (
    Figure("area", "area", "mm2", MM2),
    Figure("power", "TDP", "W", 10**3),
    Figure("power_density", "TDP per area", "W/mm2", 10**6),
    Figure("price", "price", "USD", 10**6),
)

#: What cuts a point whose die fits no wafer: it has no price.
NO_WAFER = "wafer"


def listed(
    axes: Mapping[str, tuple[int, ...]], lanes_are_columns: bool = False
) -> Iterator[Architecture]:
    """Yield all combinations of values.

    The parameters vary in the order of ``PARAMETERS``, the last the fastest,
    their values in the order in which they come.

    Raises ``InvalidProblemError`` if there are more than :data:`MAX_POINTS`.
    """
    names = [
        name
        for name in PARAMETERS
        if name in axes and not (lanes_are_columns and name == "lanes")
    ]
    count = prod(len(axes[name]) for name in names)
    if count > MAX_POINTS:
        raise InvalidProblemError(
            f"$.space: expected at most {MAX_POINTS} points, got {count}; "
            f"list fewer values"
        )
    for values in product(*(axes[name] for name in names)):
        point = dict(zip(names, values, strict=True))
        if lanes_are_columns:
            point["lanes"] = point["columns"]
        yield Architecture(**point)


def axes_of(architectures: Iterable[Architecture]) -> dict[str, tuple[int, ...]]:
    """Return the values that each parameter has, ascending."""
    columns = zip(*map(astuple, architectures), strict=True)
    names = Architecture.__struct_fields__
    return {
        name: tuple(sorted(set(values)))
        for name, values in zip(names, columns, strict=True)
    }


def within(
    architectures: Iterable[Architecture],
    limits: Mapping[str, Limit],
    process: Technology,
    prices: Prices,
    excused: Excused | None = None,
    lanes_are_columns: bool = False,
) -> Space:
    """Return the architectures that keep all limits.

    These are inclusive bounds of ``area`` (1e-6 µm²), ``power`` (mW), ``power_density``
    (µW/mm²) and ``price`` (millionths of a dollar), compared as integers.

    Raises ``InvalidProblemError`` if there is no point, one is there twice, or none is
    left; the text names the smallest one for a limit that lies below it, the largest
    for one above.
    """
    every = tuple(architectures)
    check_points(every)
    tests = [_tests(figure, limits) for figure in FIGURES]
    cut = {name: 0 for part in tests for name, _ in part}
    points: list[Point] = []
    for architecture in every:
        amounts = []
        for amount, bounds in zip(
            figures(architecture, process, prices), tests, strict=True
        ):
            name = _cut_by(amount, bounds, architecture, excused)
            if name is not None:
                cut[name] = cut.get(name, 0) + 1
                break
            amounts.append(amount or 0)
        else:
            area, tdp, _, price = amounts
            points.append(Point(len(points), architecture, area, tdp, price))
    if not points:
        _explain(every, limits, process, prices, cut)
    return Space(
        points=tuple(points),
        first=every[0],
        raw=len(every),
        cut=cut,
        limits=dict(limits),
        axes=axes_of(every),
        lanes_are_columns=lanes_are_columns,
    )


def check_points(architectures: tuple[Architecture, ...]) -> None:
    """Raise ``InvalidProblemError`` unless there are points, and each once."""
    if not architectures:
        raise InvalidProblemError(
            "$.space: expected at least one point, got none; list some"
        )
    seen: dict[Architecture, int] = {}
    for index, architecture in enumerate(architectures):
        first = seen.setdefault(architecture, index)
        if first != index:
            raise InvalidProblemError(
                f"$.space: expected each point once, got point {index} "
                f"({describe(architecture)}) as point {first} too; remove one"
            )


def figures(
    architecture: Architecture, process: Technology, prices: Prices
) -> Iterator[int | None]:
    """Yield the figures of :data:`FIGURES`, each computed only when needed.

    The price is ``None`` if the die fits no wafer.
    """
    area = area_e6_um2(architecture, process)
    yield area
    power = tdp_mw(architecture, process, area)
    yield power
    yield power_density_uw_per_mm2(power, area)
    yield price_micro_usd(architecture, area, prices)


def unlisted(architecture: Architecture, process: Technology, prices: Prices) -> Point:
    """Return an architecture outside the list with its figures.

    Its index is -1, its price 0 if the die fits no wafer.
    """
    area, power, _, price = figures(architecture, process, prices)
    return Point(-1, architecture, area or 0, power or 0, price or 0)


#: Name of what cuts, and whether it cuts an amount.
Test = tuple[str, Callable[[int], bool]]


def _tests(figure: Figure, limits: Mapping[str, Limit]) -> list[Test]:
    limit = limits.get(figure.name, Limit())
    tests: list[Test] = []
    if limit.most is not None:
        tests.append((f"{figure.name}-most", limit.most.__lt__))
    if limit.least is not None:
        tests.append((f"{figure.name}-least", limit.least.__gt__))
    return tests


def _cut_by(
    amount: int | None,
    tests: Iterable[Test],
    architecture: Architecture,
    excused: Excused | None,
) -> str | None:
    """Return what cuts a point, if anything does."""
    if amount is None:
        return NO_WAFER
    for name, outside in tests:
        if outside(amount) and not (excused and excused(name, architecture)):
            return name
    return None


def _explain(
    architectures: tuple[Architecture, ...],
    limits: Mapping[str, Limit],
    process: Technology,
    prices: Prices,
    cut: Mapping[str, int],
) -> NoReturn:
    """Say which limit leaves no point, or that all do together."""
    for index, figure in enumerate(FIGURES):
        limit = limits.get(figure.name)
        if limit is None:
            continue
        amounts = []
        for architecture in architectures:
            values = figures(architecture, process, prices)
            amount = next(islice(values, index, None))
            if amount is not None:
                amounts.append((amount, architecture))
        if not amounts:
            continue
        lowest, smallest = min(amounts, key=itemgetter(0))
        highest, largest = max(amounts, key=itemgetter(0))
        if limit.most is not None and limit.most < lowest:
            raise InvalidProblemError(
                f"$.limits.{figure.name}.most: expected at least {figure.say(lowest)}, "
                f"the {figure.of} of the smallest point ({describe(smallest)}), got "
                f"{figure.say(limit.most)}; raise the limit"
            )
        if limit.least is not None and limit.least > highest:
            raise InvalidProblemError(
                f"$.limits.{figure.name}.least: expected at most "
                f"{figure.say(highest)}, the {figure.of} of the largest point "
                f"({describe(largest)}), got {figure.say(limit.least)}; lower the limit"
            )
    if not limits:
        raise InvalidProblemError(
            f"$.prices.wafer_diameter: expected a wafer that some point fits, "
            f"got one of {prices.wafer_um / 1000:g} mm, too small for all "
            f"{len(architectures)}; raise it"
        )
    counts = ", ".join(f"{name} cuts {n}" for name, n in cut.items() if n)
    raise InvalidProblemError(
        f"$.limits: expected a point within all of them, got none of "
        f"{len(architectures)} ({counts}); change one"
    )
