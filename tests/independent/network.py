"""Messages and collectives on a tree network, by docs/cost-model.md.

Written from the section *Network* of that page alone. Everything works on
explicit lists of devices; times are unrounded ns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from nest.ir import Hierarchy, Level


def capacity(network: Hierarchy, level: int) -> int:
    """Return ``C_L``, the devices of a unit of a level."""
    return math.prod(x.fan_out for x in network.levels[: level + 1])


def lowest_level(network: Hierarchy, devices: Sequence[int]) -> int:
    """Return the lowest level at which all devices are in one unit."""
    for level in range(len(network.levels)):
        size = capacity(network, level)
        if len({device // size for device in devices}) == 1:
            return level
    raise ValueError(f"devices: expected some of the cluster, got {devices}")


def reach(level: Level, members: int) -> float:
    """Return what each of ``members`` that meet at a level has."""
    peer = level.peer_bandwidth_bytes_per_s
    if peer is None or members < 2:
        return level.bandwidth_bytes_per_s
    return min(level.bandwidth_bytes_per_s, (members - 1) * peer)


def through(network: Hierarchy, level: int, members: int) -> float:
    """Return what is left of it on the way up to the level."""
    below = [x.bandwidth_bytes_per_s for x in network.levels[:level]]
    return min([*below, reach(network.levels[level], members)])


def members(network: Hierarchy, ranks: Sequence[int]) -> list[list[int]]:
    """Return, per level, the members in every unit that has any."""
    shape = []
    inside = set(ranks)
    previous = 1
    for level in range(lowest_level(network, ranks) + 1):
        size = capacity(network, level)
        counts: dict[int, int] = {}
        for member in inside:
            unit = member * previous // size
            counts[unit] = counts.get(unit, 0) + 1
        shape.append(list(counts.values()))
        inside = set(counts)
        previous = size
    return shape


def ceil_log2(number: int) -> int:
    exponent = 0
    while 2**exponent < number:
        exponent += 1
    return exponent


def floor_log2(number: int) -> int:
    exponent = 0
    while 2 ** (exponent + 1) <= number:
        exponent += 1
    return exponent


def flat(
    kind: str, n: int, size: float, latency: float, bandwidth: float
) -> float:
    """Return the better of the two columns of flat algorithms."""
    volume = size / bandwidth * 1e9
    q = (n - 1) / n
    power_of_two = 2 ** floor_log2(n) == n
    if kind == "all-gather":
        times = [
            (n - 1) * latency + q * volume,
            ceil_log2(n) * latency + q * volume,
        ]
    elif kind == "reduce-scatter":
        times = [(n - 1) * latency + q * volume]
        if power_of_two:
            times.append(floor_log2(n) * latency + q * volume)
    elif kind == "all-reduce":
        times = [2 * (n - 1) * latency + 2 * q * volume]
        if power_of_two:
            times.append(2 * floor_log2(n) * latency + 2 * q * volume)
        else:
            lg_w = floor_log2(n)
            w = 2**lg_w
            times.append(
                (2 * lg_w + 2) * latency + (2 * (w - 1) / w + 2) * volume
            )
    elif kind == "all-to-all":
        times = [(n - 1) * latency + q * volume]
        if power_of_two:
            lg_n = floor_log2(n)
            times.append(lg_n * latency + lg_n / 2 * volume)
    else:
        raise ValueError(f"kind: expected a collective, got {kind!r}")
    return min(times)


def collective(
    network: Hierarchy, kind: str, ranks: Sequence[int], size_bytes: int
) -> float:
    """Return the time of a collective of one group, in ns."""
    n = len(ranks)
    if n == 1 or size_bytes == 0:
        return 0.0
    shape = members(network, ranks)
    even = all(len(set(counts)) == 1 for counts in shape)
    if network.algorithms == "nccl":
        if even:
            counts = [units[0] for units in shape]
            return even_nccl(network, kind, n, counts, size_bytes)
        return uneven_nccl(network, kind, n, shape, size_bytes)
    top = len(shape) - 1
    times = [
        network.levels[top].launch_ns
        + flat(
            kind,
            n,
            size_bytes,
            network.levels[top].latency_ns,
            least_reach(network, shape),
        )
    ]
    if even and top > 0:
        counts = [units[0] for units in shape]
        times.append(hierarchical(network, kind, counts, size_bytes))
    return min(times)


def least_reach(network: Hierarchy, shape: list[list[int]]) -> float:
    return min(
        reach(network.levels[level], count)
        for level, counts in enumerate(shape)
        for count in counts
    )


def hierarchical(
    network: Hierarchy, kind: str, counts: list[int], size_bytes: int
) -> float:
    total = 0.0
    size: float = size_bytes
    top = len(counts) - 1
    for level, count in enumerate(counts):
        if count == 1:
            continue
        launch = network.levels[level].launch_ns
        latency = network.levels[level].latency_ns
        bandwidth = through(network, level, count)
        if kind == "all-reduce" and level < top:
            total += (
                2 * launch
                + flat("reduce-scatter", count, size, latency, bandwidth)
                + flat("all-gather", count, size, latency, bandwidth)
            )
        else:
            total += launch + flat(kind, count, size, latency, bandwidth)
        if kind != "all-to-all":
            size = size / count
    return total


def even_nccl(
    network: Hierarchy, kind: str, n: int, counts: list[int], size_bytes: int
) -> float:
    top = len(counts) - 1
    used = [level for level in range(top + 1) if counts[level] > 1]
    below = [math.prod(counts[:level]) for level in range(top + 2)]
    launch = network.levels[top].launch_ns
    scaled = size_bytes * 1e9
    bandwidth = min(
        below[level] * reach(network.levels[level], counts[level])
        for level in used
    )
    hops = 0.0
    depth = 0.0
    for level in used:
        latency = network.levels[level].latency_ns
        hops += (n // below[level] - n // below[level + 1]) * latency
        if level == 0:
            depth += (counts[0] - 1) * latency
        else:
            depth += ceil_log2(counts[level]) * latency
    ring = hops + (n - 1) / n * scaled / bandwidth
    if kind in ("all-gather", "reduce-scatter"):
        return launch + ring
    if kind == "all-reduce":
        if top == 0:
            return launch + 2 * ring
        return launch + 2 * min(ring, depth + scaled / bandwidth)
    slowest = max(
        (counts[level] - 1)
        * below[level]
        / n
        * scaled
        / reach(network.levels[level], counts[level])
        for level in used
    )
    return launch + hops + slowest


def uneven_nccl(
    network: Hierarchy,
    kind: str,
    n: int,
    shape: list[list[int]],
    size_bytes: int,
) -> float:
    top = network.levels[len(shape) - 1]
    scaled = size_bytes * 1e9
    bandwidth = least_reach(network, shape)
    times = 2 if kind == "all-reduce" else 1
    return top.launch_ns + times * (
        (n - 1) * top.latency_ns + (n - 1) / n * scaled / bandwidth
    )
