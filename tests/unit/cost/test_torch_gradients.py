"""Orders of passes, executed by PyTorch: gradients are those of one process.

Schedules with a name and orders that list scheduling makes, on two and four
processes over gloo, read from the files that ``nest export --to csv`` writes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from nest.cost.schedules import Schedule, Times, schedule_of
from nest.cost.schedules.ordered import OrderedSchedule
from nest.frameworks.schedule_csv import cells_of, csv_text
from nest.ir.plan import Placement
from nest.search.passes.list_orders import OrderScope, OrderSearch

ROOT = Path(__file__).parents[3]
NAMED = [
    ("1f1b", 1),
    ("gpipe", 1),
    ("1f1b", 2),
    ("zb-h1", 1),
    ("zb-v", 2),
    ("dualpipe-v", 2),
]
PLACES: list[tuple[int, Placement]] = [(1, "loop"), (2, "loop"), (2, "v")]
#: A gradient may differ by so much, as a part of its length.
MOST = 1e-6


def synthesized(size: int, seed: int) -> Iterator[tuple[Schedule, int]]:
    """Yield orders of uneven stages, each with its micro-batches.

    Six for each number of chunks and place; some have little memory, and a
    stage that computes all gradients at once.
    """
    rng = Random(seed)
    for virtual, placement in PLACES:
        for number in range(6):
            num_chunks, count = size * virtual, rng.randint(2, 7)
            probe = OrderedSchedule((), virtual, placement)
            free = rng.choice((2, 4, 20)) * virtual
            scope = OrderScope(
                times=[
                    Times(rng.randint(2, 9), rng.randint(4, 20), 2)
                    for _ in range(num_chunks)
                ],
                kept_bytes=(1,) * num_chunks,
                free_bytes=(free,) * size,
                block_of=tuple(
                    probe.block_of(chunk, size) for chunk in range(num_chunks)
                ),
                whole=frozenset([rng.randrange(num_chunks)][: number % 2]),
                num_micro_batches=count,
            )
            search = OrderSearch(scope, 0, seed)
            search.run(lambda: False, 30)
            assert search.best is not None
            yield OrderedSchedule(search.best.lists, virtual, placement), count


def cases(size: int) -> Iterator[tuple[Schedule, int]]:
    """Yield schedules with numbers of micro-batches."""
    for name, virtual in NAMED:
        yield schedule_of(name, virtual), 2 * size + 2 * (name != "1f1b")
    yield from synthesized(size, size)


@pytest.mark.parametrize("size", [2, 4])
def test_gradients_are_those_of_one_process(torch, size, tmp_path):
    wanted, rng = [], Random(size)
    for number, (schedule, count) in enumerate(cases(size)):
        cells = cells_of(schedule, size, count)
        (tmp_path / f"{number}.csv").write_text(csv_text(cells))
        chunks = range(size * schedule.virtual_stages)
        wanted.append(
            {
                "file": f"{number}.csv",
                "count": count,
                "layers": [rng.randint(1, 3) for _ in chunks],
                "ranks": [schedule.block_of(chunk, size) for chunk in chunks],
                "cells": cells,
            }
        )
    assert len(wanted) == len(NAMED) + 6 * len(PLACES)
    (tmp_path / "cases.json").write_text(json.dumps(wanted))
    results = run_ranks(tmp_path, size)
    for index, case in enumerate(wanted):
        for rank in range(size):
            result = results[rank][index]
            assert result["error"] <= MOST, (case, rank)
            ran = [x for x in result["passes"] if x in case["cells"][rank]]
            assert tuple(ran) == case["cells"][rank]


def run_ranks(folder: Path, size: int) -> list[list[dict]]:
    """Run one process for each rank, and return what they found."""
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    program = [sys.executable, "-m", "tests.torch_pipeline"]
    ranks = [
        subprocess.Popen(
            [*program, str(folder), str(rank), str(size)],
            cwd=ROOT,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        for rank in ranks:
            _, said = rank.communicate(timeout=300)
            assert rank.returncode == 0, said[-3000:]
    finally:
        for rank in ranks:
            rank.kill()
    return [
        json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(size)
    ]
