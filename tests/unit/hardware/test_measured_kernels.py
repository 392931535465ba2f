"""Kernels of a wheel: which count, what they are predicted to take, and the fit."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from bench import kernels, refit
from nest.hardware.machines import machine

A100 = machine("dgx-a100")


def test_without_pyarrow_the_message_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(SystemExit, match=r"expected pyarrow, .* 'pip install pyarrow'"):
        kernels.read_kernels(Path("a.whl"), "a100_sxm", "attention")


@pytest.mark.parametrize(
    ("kind", "shape", "counts"),
    [
        ("bf16 product", (1024, 1024, 1024), True),
        ("bf16 product", (1023, 1024, 1024), False),
        ("bf16 product", (1025, 1024, 1024), False),
        ("attention", (1, 1024, 8, 8, 128), True),
        ("attention", (1, 1024, 8, 8, 96), False),
        ("experts", (1024, 4096, 14336, 2, 8), True),
        ("experts", (1024, 2688, 1856, 6, 128), False),
        ("all-reduce", (8, 2**19), True),
        ("all-reduce", (8, 2**18), False),
    ],
)
def test_which_shapes_a_training_step_may_have(
    kind: str, shape: tuple[int, ...], counts: bool
) -> None:
    assert kernels.concerns_training(kind, shape) is counts


def test_kernels_are_drawn_alike() -> None:
    many: kernels.Kernels = {(i,): float(i) for i in range(100)}
    few = kernels.drawn(many, 10, "a")
    assert few == kernels.drawn(many, 10, "a")
    assert len(few) == 10
    assert few.items() <= many.items()
    assert kernels.drawn(many, 100, "a") == many


def test_the_time_of_a_product() -> None:
    """2 · 2048³ FLOPs at what three dimensions of 2048 leave of the rate."""
    rates = A100.calibration
    share = (2048 / (2048 + rates.matmul_half_size)) ** 3
    expected = 2 * 2048**3 / (312e12 * rates.matmul_fraction * share) * 1e9
    time_ns = kernels.kernel_ns("bf16 product", (2048, 2048, 2048), A100)
    assert time_ns == pytest.approx(expected, rel=1e-3)


def test_the_time_of_attention() -> None:
    """Causal: 2 products of 2 FLOPs for half of the scores of 8 heads."""
    rates = A100.calibration
    blocks = 8 * 4096 / 128
    reached = rates.attention_fraction * blocks / (blocks + rates.attention_half_blocks)
    expected = 4 * 4096**2 / 2 * 8 * 128 / (312e12 * reached) * 1e9
    time_ns = kernels.kernel_ns("attention", (1, 4096, 8, 8, 128), A100)
    assert time_ns == pytest.approx(expected, rel=1e-3)


def test_a_search_finds_two_values_that_nearly_make_up_for_each_other() -> None:
    def loss(values: dict[str, float]) -> float:
        x, y = math.log(values["x"] / 0.8), math.log(values["y"] / 120)
        return abs(x - y / 2) + 0.05 * abs(y)

    start = {"x": 0.5, "y": 300.0}
    best = kernels.minimize(loss, start, {"x": 1.0})
    assert best == pytest.approx({"x": 0.8, "y": 120}, rel=0.02)
    assert kernels.minimize(loss, start, {"x": 0.6})["x"] <= 0.6


def test_frozen_rates_have_the_clock_of_their_family() -> None:
    values = {"A100.clock": 0.9, "every.attention_passes": 0.8, "every.host_ns": 5.0}
    frozen = {
        "A100.matmul_fraction": 0.8,
        "A100.attention_fraction": 0.5,
        "A100.matmul_half_size": 100.0,
    }
    stated = refit.full_values(frozen, values)
    assert stated["A100.matmul_fraction"] == pytest.approx(0.72)
    assert stated["A100.attention_fraction"] == pytest.approx(0.36)
    assert stated["A100.matmul_half_size"] == 100.0
    assert stated["every.host_ns"] == 5.0


def test_clocks_of_generations_are_known_together() -> None:
    """One that is measured tells about another: the correlation is 0.64."""
    known = refit.new_prior({"A100.matmul_fraction": 0.8})
    names = [parameter.name for parameter in known.parameters]
    assert names[:4] == [
        *("A100.clock", "H100.clock", "Blackwell.clock"),
        "every.attention_passes",
    ]
    assert "A100.matmul_fraction" not in names
    first, second = known.covariance[0, :2]
    assert second / first == pytest.approx(0.08**2 / (0.08**2 + 0.06**2))
    assert known.covariance[0, 3] == 0.0
