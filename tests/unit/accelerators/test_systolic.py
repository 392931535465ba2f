"""Cycles on systolic arrays: tables by others, and arrays of our own."""

from __future__ import annotations

import numpy as np
import pytest

from nest.accelerators.systolic import (
    DATAFLOWS,
    Mapping,
    cycles,
    least_cycles,
    mapped,
    parts,
)
from tests.arrays import in_folds, sums_behind, weights_ahead


@pytest.mark.parametrize(
    ("rows", "columns", "flow", "shape", "printed", "paper"),
    [
        (4, 4, "os", (4, 4, 4), 9, 14),
        (4, 4, "ws", (10, 6, 9), 119, 120),
        (8, 4, "is", (33, 17, 20), 944, 945),
        (32, 16, "ws", (100, 70, 50), 1779, 1780),
        (128, 128, "ws", (256, 256, 256), 2551, 2552),
        (128, 128, "os", (256, 256, 256), 2039, 2552),
        # LLMCompass stores results of the same code.
        (128, 128, "os", (64, 16, 4096), 4349, None),
        (16, 16, "os", (32, 16, 256), 571, None),
    ],
)
def test_formulas_are_those_of_scale_sim_and_its_paper(
    rows, columns, flow, shape, printed, paper
):
    """SCALE-Sim 3.0.0 prints the number of the last cycle, from 0."""
    m, n, k = shape
    mapping = mapped(m, k, n, flow)
    assert cycles(mapping, rows, columns, "scale-sim", flow) == printed + 1
    if paper is not None:
        assert cycles(mapping, rows, columns, "paper", flow) == paper


@pytest.mark.parametrize(
    ("convention", "flow", "taken"),
    [
        # Two folds of 4 and 1 rows, two of 4 and 3 columns: 2r + c + 6 - 2.
        ("in-use", "os", 16 + 15 + 10 + 9),
        ("in-use", "ws", 16 + 15 + 10 + 9),
        ("paper", "ws", 4 * 16),
        ("scale-sim", "is", 4 * 16),
        ("scale-sim", "os", 4 * 12),
        # Loads of 4, then four times 6 that stream, then 4 + 4 - 2 to leave.
        ("overlapped", "ws", 4 + 4 * 6 + 6),
    ],
)
def test_cycles_by_hand(convention, flow, taken):
    assert cycles(Mapping(5, 7, 6), 4, 4, convention, flow) == taken


def test_folds_take_what_their_registers_take():
    """On 200 arrays, of at most 6 × 6, all three dataflows."""
    draw = np.random.default_rng(1)
    for _ in range(200):
        rows, columns = (int(x) for x in draw.integers(1, 7, 2))
        m, k, n = (int(x) for x in draw.integers(1, 11, 3))
        left = draw.integers(-9, 10, (m, k))
        right = draw.integers(-9, 10, (k, n))
        for flow in DATAFLOWS:
            result, taken = in_folds(left, right, rows, columns, flow)
            assert (result == left @ right).all()
            mapping = mapped(m, k, n, flow)
            assert taken == cycles(mapping, rows, columns, "in-use", flow)


def test_full_folds_are_those_of_the_paper():
    """In-use and paper agree where folds fill the array."""
    for flow in DATAFLOWS:
        mapping = mapped(24, 48, 72, flow)
        in_use = cycles(mapping, 8, 12, "in-use", flow)
        assert in_use == cycles(mapping, 8, 12, "paper", flow)


@pytest.mark.parametrize("machine", [weights_ahead, sums_behind])
def test_overlapped_folds_take_what_their_registers_take(machine):
    """On 200 arrays each, of one to five full folds."""
    draw = np.random.default_rng(2)
    for _ in range(200):
        rows, columns = (int(x) for x in draw.integers(1, 6, 2))
        folds, steps = (int(x) for x in draw.integers(1, [6, 9]))
        sizes = {
            weights_ahead: ((rows, columns), (steps, rows)),
            sums_behind: ((rows, steps), (steps, columns)),
        }
        pairs = [
            tuple(draw.integers(-9, 10, size) for size in sizes[machine])
            for _ in range(folds)
        ]
        results, taken = machine(pairs)
        for result, (first, second) in zip(results, pairs, strict=True):
            if machine is weights_ahead:
                first, second = second, first
            assert (result == first @ second).all()
        mapping = Mapping(folds * rows, columns, steps)
        expected = cycles(mapping, rows, columns, "overlapped", "ws")
        assert taken == expected


def test_a_larger_array_may_be_used_as_a_smaller_one():
    """One row of results on 128 × 128 takes no more than on 1 × 128.

    By the paper 2·128 + 128 + 10 - 2 cycles, of which 254 shift out rows that
    hold nothing.
    """
    mapping = mapped(1, 10, 128, "os")
    assert cycles(mapping, 128, 128, "paper", "os") == 392
    assert least_cycles(mapping, 128, 128, "paper", "os") == 138
    assert cycles(mapping, 128, 128, "in-use", "os") == 138


def test_even_parts_of_a_dimension():
    assert list(parts(10, 10)) == [10, 5, 4, 3, 2, 1]
    assert list(parts(10, 7)) == [5, 4, 3, 2, 1]
    assert list(parts(3, 8)) == [3, 2, 1]
