"""Prices of devices: the option, and what it says of a problem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from nest.errors import InvalidOptionError
from nest.requests.values import Pairs, RefusedValueError, dollars

if TYPE_CHECKING:
    from nest.ir.cluster import Cluster, Device
    from nest.ir.problem import Problem

T = TypeVar("T")

PRICE_USAGE = "--price USD|TYPE=USD,…"
PRICE_HELP = (
    "Price of a device per hour, of all types or by type, such as 2.5 or "
    "h100=2.5.  [default: as the problem says]"
)


def read_prices(text: str) -> str:
    """Return the text of prices, each of which must be above 0."""
    for entry in text.split(","):
        dollars(entry.rpartition("=")[2])
    return text


def mean_price(problem: Problem, prices: str | None) -> float | None:
    """Return the mean price of a device per hour; ``None`` if none is said."""
    if prices is None:
        return None
    from nest.analysis.offers import hourly_usd

    cluster = priced(problem, (prices,))
    if any(x.price_usd_per_hour is None for x in cluster.types):
        return None
    return float(hourly_usd(cluster)) / cluster.num_devices


def priced(problem: Problem, texts: Pairs) -> Cluster:
    """Return the cluster of a problem with the prices that are said."""
    cluster = problem.cluster
    return cluster.priced(values_by_type("--price", texts, cluster.types, dollars))


def values_by_type(
    option: str, texts: Pairs, types: Sequence[Device], read: Callable[[Any], T]
) -> dict[str, T]:
    """Return values by the type of devices that they are for.

    The name of a type, or its beginning, selects the type, in any case.
    """
    names = [device.name for device in types]
    values: dict[str, T] = {}
    for entry in (entry for text in texts for entry in text.split(",")):
        key, equals, value = entry.partition("=")
        where = f"{option} {entry}"
        if option == "--price" and not equals:
            values |= dict.fromkeys(names, _read(where, entry, read))
            continue
        matches = [n for n in names if n.lower().startswith(key.lower())]
        exact = [n for n in names if n.lower() == key.lower()]
        matches = exact or matches
        if not equals or not key or len(matches) != 1:
            raise InvalidOptionError(
                f"{where}: expected TYPE=VALUE with a type of the "
                f"cluster, {' or '.join(names)}, got {key!r}; correct it"
            )
        (name,) = matches
        if name in values:
            raise InvalidOptionError(
                f"{where}: expected {name} once, got it twice; keep one"
            )
        values[name] = _read(where, value, read)
    return values


def _read(where: str, value: str, read: Callable[[Any], T]) -> T:
    try:
        return read(value)
    except RefusedValueError as error:
        raise InvalidOptionError(f"{where}: {error}") from None
