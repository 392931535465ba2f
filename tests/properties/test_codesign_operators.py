"""What holds for operators on every accelerator.

More of anything never makes an operator slower: without that a larger
accelerator would not stand for the smaller ones.
"""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.accelerators.architecture import Architecture
from nest.accelerators.operators import (
    Gemm,
    OperatorWork,
    Vector,
    core_cycles,
    energy_fj,
    operations,
    spread,
    timed,
)
from nest.accelerators.silicon import UnitEnergies
from nest.accelerators.systolic import (
    CONVENTIONS,
    DATAFLOWS,
    Mapping,
    cycles,
    cycles_at_least,
    least_cycles,
)
from nest.accelerators.traffic import least_words
from tests.properties.profiles import examples

conventions = st.sampled_from(CONVENTIONS)
flows = st.sampled_from(DATAFLOWS)
#: Mostly small, so that folds are few and parts of them count.
sizes = st.integers(1, 12) | st.integers(1, 300)
gemms = st.builds(Gemm, sizes, sizes, sizes, st.integers(1, 20))
vectors = st.builds(
    Vector, st.integers(1, 10**6), st.sampled_from(sorted(operations()))
)
works = st.builds(
    OperatorWork,
    name=st.just("operator"),
    gemms=st.lists(gemms, max_size=2).map(tuple),
    vectors=st.lists(vectors, max_size=2).map(tuple),
    vector_bytes=st.integers(0, 10**7),
    traffic_bytes=st.none() | st.integers(0, 10**7),
)
cores = st.integers(1, 40) | st.sampled_from([64, 108, 432, 4096])
architectures = st.builds(
    Architecture,
    tensor_cores=cores,
    rows=st.integers(1, 40),
    columns=st.integers(1, 40),
    vector_cores=cores,
    lanes=st.integers(1, 200),
    sram_bytes=st.integers(1, 10**6),
    hbm_bytes=st.just(2**30),
    hbm_bytes_per_s=st.integers(10**9, 10**13),
    frequency_hz=st.integers(10**6, 3 * 10**9),
    link_bytes_per_s=st.just(10**9),
    network_bytes_per_s=st.just(10**9),
    core_buffer_bytes=st.integers(0, 5000),
)
#: What may grow without an operator becoming slower.
GROWING = (
    *("tensor_cores", "rows", "columns", "vector_cores", "lanes"),
    *("sram_bytes", "hbm_bytes_per_s", "frequency_hz", "core_buffer_bytes"),
)


# Arrays


@examples(150)
@given(
    st.builds(Mapping, *[st.integers(1, 40)] * 3),
    st.integers(1, 12),
    st.integers(1, 12),
    conventions,
    flows,
)
def test_least_cycles_are_those_of_the_best_part(
    mapping, rows, columns, convention, flow
):
    parts = itertools.product(range(1, rows + 1), range(1, columns + 1))
    least = min(cycles(mapping, *part, convention, flow) for part in parts)
    assert least_cycles(mapping, rows, columns, convention, flow) == least


@examples(200)
@given(
    st.builds(Mapping, sizes, sizes, sizes),
    st.integers(1, 60),
    st.integers(1, 60),
    conventions,
    flows,
    st.data(),
)
def test_larger_arrays_and_smaller_products_take_no_longer(
    mapping, rows, columns, convention, flow, data
):
    found = least_cycles(mapping, rows, columns, convention, flow)
    more = st.integers(0, 60)
    larger = rows + data.draw(more), columns + data.draw(more)
    smaller = Mapping(*(data.draw(st.integers(1, size)) for size in mapping))
    assert least_cycles(mapping, *larger, convention, flow) <= found
    assert least_cycles(smaller, rows, columns, convention, flow) <= found
    assert found <= cycles(mapping, rows, columns, convention, flow)


@examples(150)
@given(
    st.builds(Mapping, sizes, sizes, sizes),
    st.tuples(sizes, sizes),
    conventions,
    flows,
    st.data(),
)
def test_bounds_on_folds_hold_for_all_that_follow(
    mapping, array, convention, flow, data
):
    """For arrays whose folds are cut evenly: others are not tried."""
    row_folds = -(-mapping.rows // array[0])
    column_folds = -(-mapping.columns // array[1])
    taken = cycles(
        mapping,
        -(-mapping.rows // row_folds),
        -(-mapping.columns // column_folds),
        convention,
        flow,
    )
    fewer = [data.draw(st.integers(1, folds)) for folds in (row_folds, column_folds)]
    assert cycles_at_least(mapping, *fewer, convention, flow) <= taken


@examples(150)
@given(gemms, cores, st.integers(1, 40), st.integers(1, 40), conventions)
def test_no_array_does_more_than_one_product_per_element_and_cycle(
    gemm, count, rows, columns, convention
):
    taken = spread(gemm, count, rows, columns, convention).cycles
    macs = gemm.m * gemm.k * gemm.n * gemm.batch
    assert taken * count * rows * columns >= macs


@examples(100)
@given(gemms, cores, st.integers(0, 100), conventions)
def test_more_cores_take_no_longer(gemm, count, more, convention):
    fewer = spread(gemm, count, 8, 8, convention)
    assert spread(gemm, count + more, 8, 8, convention).cycles <= fewer.cycles
    one, _ = core_cycles(gemm.m, gemm.k, gemm.n, 8, 8, convention)
    assert fewer.cycles <= gemm.batch * one


# Traffic


def every_tiling(m: int, k: int, n: int, held: int) -> int:
    """Return the least words over all tiles and orders of the three loops."""
    sizes = {"m": m, "k": k, "n": n}
    least = None
    for tile in itertools.product(*(range(1, x + 1) for x in (m, k, n))):
        tm, tk, tn = tile
        if tm * tk + tk * tn + tm * tn > held:
            continue
        trips = {
            loop: -(-sizes[loop] // size)
            for loop, size in zip("mkn", tile, strict=True)
        }
        for order in itertools.permutations("mkn"):
            fetches = {}
            for operand in ("mk", "kn", "mn"):
                inside = max(order.index(loop) for loop in operand)
                fetches[operand] = 1
                for loop in order[:inside]:
                    if loop not in operand:
                        fetches[operand] *= trips[loop]
            words = m * k * fetches["mk"] + k * n * fetches["kn"]
            words += m * n * (2 * fetches["mn"] - 1)
            least = words if least is None else min(least, words)
    assert least is not None
    return least


@examples(150)
@given(*[st.integers(1, 8)] * 3, st.integers(3, 60))
def test_no_tiling_moves_less(m, k, n, held):
    assert least_words(m, k, n, held) == every_tiling(m, k, n, held)


@examples(300)
@given(
    *[sizes | st.integers(1, 10**5)] * 3,
    st.integers(3, 100) | st.integers(3, 10**7),
    st.integers(0, 1000),
)
def test_traffic_is_bounded_and_falls_with_the_buffer(m, k, n, held, more):
    """No order moves less than each value once, nor 2 mnk / √S - 2 S."""
    words = least_words(m, k, n, held)
    assert words >= m * k + k * n + m * n
    bound = words + 2 * held
    assert bound * bound * held >= 4 * (m * n * k) ** 2
    assert least_words(m, k, n, held + more) <= words
    assert least_words(n, k, m, held) == words


# Operators


@examples(200)
@given(works, architectures, st.sampled_from(GROWING), conventions, st.data())
def test_more_of_anything_makes_no_operator_slower(work, chip, name, convention, data):
    """Lanes and a core's buffer included, which may follow the array."""
    now = timed(work, chip, convention)
    value = getattr(chip, name) or chip.core_sram_bytes
    grown = replace(chip, **{name: value + data.draw(st.integers(0, 3 * value))})
    for before, after in zip(now, timed(work, grown, convention), strict=True):
        assert after <= before


@examples(100)
@given(works, architectures, conventions)
def test_the_whole_chip_is_no_slower_than_a_core(work, chip, convention):
    found = timed(work, chip, convention)
    assert found.whole_ps <= found.single_ps
    assert found.whole_traffic_ps <= found.single_traffic_ps
    assert found.single_traffic_ps <= found.single_ps
    assert found.whole_traffic_ps <= found.whole_ps


@examples(100)
@given(works, architectures, st.booleans())
def test_energy_grows_with_work(work, chip, whole):
    energies = UnitEnergies(*range(1, 7))
    less = energy_fj(work, chip, energies, whole=whole)
    assert less >= sum(g.m * g.k * g.n * g.batch for g in work.gemms)
    more = replace(
        work,
        vectors=(*work.vectors, Vector(10, "add")),
        vector_bytes=work.vector_bytes + 40,
    )
    assert energy_fj(more, chip, energies, whole=whole) > less


# Many at once
