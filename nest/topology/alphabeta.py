"""α–β times of collectives on a flat network.

``n`` ranks, a buffer of ``size_bytes`` (see
:class:`nest.ir.graph.CollectiveCall` for which buffer), ``alpha_ns`` per
message and ``beta`` bytes/s per rank; all results in ns.

Sources: Thakur, Rabenseifner and Gropp, *Optimization of Collective
Communication Operations in MPICH*, IJHPCA 19(1), 2005, sections 4.1-4.5 (the
term for arithmetic is left out); Chan, Heimlich, Purkayastha and van de
Geijn, *Collective communication: theory, practice, and experience*, CCPE
19(13), 2007.
"""

from __future__ import annotations

from nest.ir.graph import CollectiveKind

NS_PER_S = 1e9


def flat_collective_ns(
    kind: CollectiveKind,
    n: int,
    size_bytes: float,
    alpha_ns: float,
    beta: float,
) -> float:
    """Return the better of ring (or pairwise) and logarithmic algorithm.

    The table is in docs/cost-model.md, under "Network". Recursive halving and
    Bruck's all-to-all are used for powers of two only. Recursive
    halving-doubling on other ``n`` first folds the ranks beyond
    ``p = 2^⌊lg n⌋`` into the others.
    """
    if n == 1 or size_bytes == 0:
        return 0.0
    volume_ns = size_bytes / beta * NS_PER_S
    share = (n - 1) / n
    log_floor = n.bit_length() - 1
    power_of_two = n == 1 << log_floor
    log_ceil = log_floor if power_of_two else log_floor + 1
    if kind == "all-reduce":
        ring = 2 * (n - 1) * alpha_ns + 2 * share * volume_ns
        if power_of_two:
            other = 2 * log_floor * alpha_ns + 2 * share * volume_ns
        else:
            p = 1 << log_floor
            other = (2 * log_floor + 2) * alpha_ns + (
                2 * (p - 1) / p + 2
            ) * volume_ns
        return min(ring, other)
    ring = (n - 1) * alpha_ns + share * volume_ns
    if kind == "all-gather":
        return min(ring, log_ceil * alpha_ns + share * volume_ns)
    if not power_of_two:
        return ring
    if kind == "reduce-scatter":
        return min(ring, log_floor * alpha_ns + share * volume_ns)
    return min(ring, log_floor * alpha_ns + log_floor / 2 * volume_ns)
