"""What holds for every architecture, and for every list of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.accelerators.architecture import PARAMETERS, Architecture
from nest.accelerators.operators import Gemm, OperatorWork, Vector, energy_fj, timed
from nest.accelerators.operators import operations as vector_operations
from nest.accelerators.silicon import (
    Prices,
    Technology,
    area_e6_um2,
    die_micro_usd,
    tdp_mw,
    technologies,
    unit_energies,
)
from nest.accelerators.systolic import CONVENTIONS, Convention
from tests.properties.profiles import examples

sizes = st.integers(1, 2**28)
architectures = st.builds(
    Architecture,
    tensor_cores=st.integers(1, 64),
    rows=st.integers(1, 512),
    columns=st.integers(1, 512),
    vector_cores=st.integers(1, 64),
    lanes=st.integers(1, 2048),
    sram_bytes=sizes,
    hbm_bytes=sizes,
    hbm_bytes_per_s=st.integers(1, 4 * 10**12),
    frequency_hz=st.integers(1, 4 * 10**9),
    link_bytes_per_s=st.integers(1, 10**12),
    network_bytes_per_s=st.integers(1, 10**12),
    devices_per_node=st.integers(1, 8),
    core_buffer_bytes=st.one_of(st.just(0), sizes),
)


@examples(100)
@given(architectures, st.sampled_from(PARAMETERS), st.integers(1, 4))
def test_more_takes_no_less_area_and_power(
    point: Architecture, name: str, factor: int
) -> None:
    """An own buffer may be smaller than the rule's, so not from none."""
    if name == "core_buffer_bytes" and not point.core_buffer_bytes:
        return
    larger = replace(point, **{name: factor * getattr(point, name) + 1})
    for process in technologies():
        assert area_e6_um2(larger, process) >= area_e6_um2(point, process)
        assert tdp_mw(larger, process) >= tdp_mw(point, process)


@examples(100)
@given(st.integers(1, 10**16), st.integers(0, 10**14))
def test_larger_dies_are_no_cheaper(area: int, more: int) -> None:
    small = die_micro_usd(area, Prices())
    large = die_micro_usd(area + more, Prices())
    assert large is None or (small is not None and small <= large)


works = st.builds(
    OperatorWork,
    name=st.just("x"),
    gemms=st.lists(
        st.builds(Gemm, *[st.integers(1, 300)] * 3, st.integers(1, 4)), max_size=2
    ).map(tuple),
    vectors=st.lists(
        st.builds(
            Vector, st.integers(1, 10**6), st.sampled_from(sorted(vector_operations()))
        ),
        max_size=2,
    ).map(tuple),
    vector_bytes=st.integers(0, 10**7),
)


@examples(200)
@given(
    architectures, works, st.sampled_from(CONVENTIONS), st.sampled_from(technologies())
)
def test_no_operator_draws_more_than_the_tdp(
    chip: Architecture, work: OperatorWork, convention: Convention, process: Technology
) -> None:
    """Nothing but leakage is beside the energy of an operator."""
    tdp = tdp_mw(chip, process)
    energies = unit_energies(chip, process)
    time = timed(work, chip, convention)
    for whole, time_ps in ((False, time.single_ps), (True, time.whole_ps)):
        energy = energy_fj(work, chip, energies, whole=whole, convention=convention)
        # fJ per ps are mW.
        assert energy <= tdp * time_ps
