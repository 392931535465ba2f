"""How good orders of passes are, and the bounds of all orders.

Each of many small random problems (up to 4 blocks of 1 or 2 chunks, 8
micro-batches; memory from what one micro-batch needs to what all of them do)
gets orders by :mod:`nest.search.passes.list_orders`, a better one and a bound by
:mod:`formulations.orders`, and the best one by an
enumeration, or by CP-SAT, of :mod:`tests.orders`. Writes
``bench/results/orders.json``.

    python bench/orders.py [NUMBER [SEED [PROCESSES]]]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from result_files import write_rows

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.orders import NUM_ORDERS, Compared, compared, drawn


def row(chunks: str, results: Sequence[Compared]) -> dict[str, object]:
    """Return the figures of some problems."""
    known = [x for x in results if x.lower == x.upper]
    gaps = [100 * (x.best / max(1, x.proven) - 1) for x in results]
    return {
        "chunks_per_block": chunks,
        "problems": len(results),
        "orders_per_problem": NUM_ORDERS,
        "best_order_known": len(known),
        "bounds_above_an_order": sum(max(x.bound, x.proven) > x.upper for x in results),
        "values_below_all_orders": sum(x.best < x.lower for x in results),
        "lists_best": sum(x.listed == x.lower for x in results),
        "lists_within_1_percent": sum(x.is_near(x.listed) for x in results),
        "lists_proven_by_the_bound": sum(x.listed == x.bound for x in results),
        "values_best": sum(x.best == x.lower for x in results),
        "values_within_1_percent": sum(x.near for x in results),
        "values_proven": sum(x.best == x.proven for x in results),
        "mean_gap_percent": round(sum(gaps) / len(gaps), 2),
        "largest_gap_percent": round(max(gaps), 2),
        "cpu_s": round(sum(x.seconds for x in results), 1),
    }


def main(number: int = 1000, seed: int = 0, processes: int = 2) -> None:
    """Compare so many problems, and write the figures."""
    seeds = range(seed, seed + number)
    with ProcessPoolExecutor(processes) as pool:
        results = list(pool.map(compared, seeds, chunksize=4))
    for index, result in zip(seeds, results, strict=True):
        if result.wrong or not result.near:
            print(f"seed {index}: {result}")
    several = [len(x.times) > len(x.free_bytes) for x in map(drawn, seeds)]
    rows = [
        row(
            f"{1 + wanted}",
            [x for x, y in zip(results, several, strict=True) if y == wanted],
        )
        for wanted in (False, True)
    ]
    rows.append(row("any", results))
    write_rows("orders", rows)


if __name__ == "__main__":
    main(*(int(x) for x in sys.argv[1:]))
