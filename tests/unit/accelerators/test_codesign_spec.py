"""SPEC.yaml: spaces, limits, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from nest.accelerators import points
from nest.accelerators.phaze import tpu_v4_like
from nest.accelerators.points import Limit, listed, unlisted, within
from nest.accelerators.silicon import (
    MM2,
    Prices,
    area_e6_um2,
    price_micro_usd,
    tdp_mw,
    technology,
)
from nest.accelerators.spec import Spec, read_spec
from nest.errors import InvalidProblemError

EXAMPLES = Path(__file__).parents[3] / "examples" / "codesign"

SPACE = """
  tensor_cores: [2, 1]
  rows: [4, 8]
  columns: 16
  vector_cores: 1
  sram: [1 MiB, 2 MiB]
  hbm: 32 GiB
  hbm_bandwidth: 1200 GB/s
  frequency: 1.05 GHz
  link_bandwidth: 150 GB/s
  network_bandwidth: 25 GB/s
"""
SPEC = f"schema: nest-codesign/1\ndevices: 8\nspace:{SPACE}"


@pytest.fixture
def read(tmp_path: Path):
    def read(text: str) -> Spec:
        path = tmp_path / "spec.yaml"
        path.write_text(text)
        return read_spec(path)

    return read


def with_space(*lines: str) -> str:
    """Return a file whose space has other keys."""
    parts = yaml.safe_load(SPACE)
    for line in lines:
        parts |= yaml.safe_load(line)
    parts = {key: value for key, value in parts.items() if value != "none"}
    document = {"schema": "nest-codesign/1", "devices": 8, "space": parts}
    return yaml.safe_dump(document)


# What is read


def test_all_combinations_in_order(read) -> None:
    spec = read(SPEC)
    found = [
        (p.architecture.tensor_cores, p.architecture.rows, p.architecture.sram_bytes)
        for p in spec.space.points
    ]
    mib = 2**20
    assert found == [
        (2, 4, mib), (2, 4, 2 * mib), (2, 8, mib), (2, 8, 2 * mib),
        (1, 4, mib), (1, 4, 2 * mib), (1, 8, mib), (1, 8, 2 * mib),
    ]  # fmt: skip
    first = spec.space.points[0].architecture
    assert (first.columns, first.lanes, first.vector_cores) == (16, 16, 1)
    assert (first.hbm_bytes, first.hbm_bytes_per_s) == (2**35, 12 * 10**11)
    assert first.frequency_hz == 1_050_000_000
    assert first.link_bytes_per_s == 150 * 10**9
    assert first.network_bytes_per_s == 25 * 10**9
    assert (first.devices_per_node, first.core_buffer_bytes) == (1, 0)
    assert spec.space.axes["rows"] == (4, 8)
    assert spec.space.axes["tensor_cores"] == (1, 2)
    assert spec.space.lanes_are_columns
    assert (spec.space.raw, spec.space.cut, spec.space.limits) == (8, {}, {})


def test_defaults(read) -> None:
    spec = read(SPEC)
    assert spec.models == ()
    assert spec.devices == 8
    assert spec.job.global_batch == 4096
    assert spec.job.sequence_length is None
    assert spec.objective.kind == "geometric-mean"
    assert spec.objective.weights == {}
    assert spec.objective.base_name == "tpu-v4-like"
    assert (spec.convention, spec.attention) == ("in-use", "unfused")
    assert (spec.link_latency_ns, spec.network_latency_ns) == (3000, 5000)
    assert spec.process == technology("7nm")
    assert spec.prices == Prices()


def test_figures_of_points(read) -> None:
    spec = read(SPEC)
    for point in spec.space.points:
        a = point.architecture
        assert point.area_e6_um2 == area_e6_um2(a, spec.process)
        assert point.tdp_mw == tdp_mw(a, spec.process)
        assert point.price_micro_usd == price_micro_usd(
            a, point.area_e6_um2, spec.prices
        )


def test_examples() -> None:
    spec = read_spec(EXAMPLES / "own.yaml")
    assert spec.space.raw == 288
    assert all(spec.space.cut.values())
    assert len(spec.space.points) == 288 - sum(spec.space.cut.values())
    assert spec.prices == Prices()
    assert spec.objective.base.hbm_bytes == 32 * 2**30


def test_phaze_in_a_word_is_its_example(read) -> None:
    word = read("{schema: nest-codesign/1, devices: 1024, space: phaze}")
    example = read_spec(EXAMPLES / "phaze.yaml")
    assert len(word.space.points) == 29_360
    assert word.space.first == example.space.first
    assert word.space.axes == example.space.axes
    assert word.process == technology("45nm")
    assert word.objective.base == tpu_v4_like()
    assert example.models == ("bert-large", "gpt3-350m")


@pytest.mark.parametrize("name", ["own", "phaze"])
def test_examples_limit_the_power_per_area(name: str) -> None:
    """To the base's own figure, or to somewhat more than published chips'."""
    spec = read_spec(EXAMPLES / f"{name}.yaml")
    limit = spec.space.limits["power_density"].most
    densest = max(p.power_density_uw_per_mm2 for p in spec.space.points)
    assert densest <= limit < 3 * 10**6
    base = unlisted(spec.objective.base, spec.process, spec.prices)
    assert base.power_density_uw_per_mm2 <= limit
    assert spec.space.cut["power_density-most"]


def test_points_one_by_one(read) -> None:
    """What is said beside them is for all; each may say another value."""
    spec = read(
        with_space(
            "tensor_cores: none",
            "rows: 4",
            "sram: none",
            "points: [{tensor_cores: 3, sram: 1 MiB}, "
            "{tensor_cores: 1, sram: 2 MiB, rows: 5, lanes: 7}]",
        )
    )
    first, second = (point.architecture for point in spec.space.points)
    assert (first.tensor_cores, first.rows, first.lanes) == (3, 4, 16)
    assert (second.tensor_cores, second.rows, second.lanes) == (1, 5, 7)
    assert second.sram_bytes == 2**21
    assert spec.space.axes["lanes"] == (7, 16)
    assert not spec.space.lanes_are_columns


def test_own_lanes_and_buffers(read) -> None:
    spec = read(
        with_space("lanes: [32, 64]", "core_buffer: 8 KiB", "devices_per_node: 4")
    )
    assert spec.space.axes["lanes"] == (32, 64)
    assert spec.space.axes["core_buffer_bytes"] == (8192,)
    assert spec.space.axes["devices_per_node"] == (4,)
    assert not spec.space.lanes_are_columns
    same = read(with_space("lanes: columns"))
    assert same.space == read(SPEC).space


def test_what_is_asked(read) -> None:
    spec = read(
        SPEC
        + "models: [bert-large, gpt2]\n"
        + "job: {global_batch: 64, sequence_length: 128}\n"
        + "objective: {kind: geometric-mean, weights: {gpt2: 3}, base: {name: "
        + "mine, tensor_cores: 1, rows: 2, columns: 4, vector_cores: 1, "
        + "sram: 1 MiB, frequency: 1 GHz}}\n"
        + "latency: {link: 0 ns, network: 1.5 us}\n"
        + "convention: scale-sim\nattention: fused\ntechnology: 45nm\n"
        + "prices: {wafer: 5 kUSD, wafer_diameter: 200 mm, defect_density: "
        + "0.2 /cm2, clustering: 3, hbm: 8 USD/GB, package: 0 USD}\n"
    )
    assert spec.models == ("bert-large", "gpt2")
    assert (spec.job.global_batch, spec.job.sequence_length) == (64, 128)
    assert spec.objective.kind == "geometric-mean"
    assert spec.objective.weights == {"gpt2": 3}
    assert spec.objective.base_name == "mine"
    base = spec.objective.base
    assert (base.rows, base.columns, base.lanes) == (2, 4, 4)
    assert (base.frequency_hz, base.hbm_bytes) == (10**9, 2**35)
    assert (spec.link_latency_ns, spec.network_latency_ns) == (0, 1500)
    assert (spec.convention, spec.attention) == ("scale-sim", "fused")
    assert spec.process == technology("45nm")
    assert spec.prices == Prices(
        wafer_micro_usd=5 * 10**9,
        wafer_um=200_000,
        defects_per_m2=2000,
        clustering=3,
        hbm_micro_usd_per_gb=8 * 10**6,
        package_micro_usd=0,
    )


# Limits


def limited(**limits: Limit):
    process = technology("45nm")
    axes = {**phaze_axes(), "rows": (8, 4, 2, 1)}
    return within(listed(axes, True), limits, process, Prices())


def phaze_axes() -> dict[str, tuple[int, ...]]:
    a = tpu_v4_like()
    return {name: (getattr(a, name),) for name in a.__struct_fields__}


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("area", "area_e6_um2"),
        ("power", "tdp_mw"),
        ("power_density", "power_density_uw_per_mm2"),
        ("price", "price_micro_usd"),
    ],
)
def test_limits_are_inclusive(name: str, field: str) -> None:
    """To the last unit counted, on both sides."""
    amounts = [getattr(point, field) for point in limited().points]
    assert amounts == sorted(set(amounts), reverse=True)
    middle = amounts[1]
    for bounds, kept in (
        (Limit(most=middle), amounts[1:]),
        (Limit(most=middle - 1), amounts[2:]),
        (Limit(least=middle), amounts[:2]),
        (Limit(least=middle + 1), amounts[:1]),
        (Limit(least=middle, most=middle), [middle]),
    ):
        found = limited(**{name: bounds})
        assert [getattr(point, field) for point in found.points] == kept
        assert sum(found.cut.values()) == 4 - len(kept)
        assert [point.index for point in found.points] == list(range(len(kept)))


def test_limits_in_a_file_are_rounded_inwards(read) -> None:
    """Areas are whole: within 1.5 of what is counted is within 1."""
    text = SPEC + "limits: {area: {least: %s um2, most: %s um2}}\n"
    area = read(SPEC).space.points[0].area_e6_um2
    whole = f"{area // 10**6}.{area % 10**6:06d}"
    assert read(text % (whole, whole)).space.points[0].area_e6_um2 == area
    limit = read(text % (whole[:-1], whole + "5")).space.limits["area"]
    assert limit == Limit(least=area // 10 * 10, most=area)
    with pytest.raises(InvalidProblemError, match="expected 'least' to be at"):
        read(text % (whole + "5", whole + "9"))


def test_the_first_limit_that_cuts_a_point_counts() -> None:
    """Of 8, 4, 2 and 1 rows area cuts one, power and its density one each."""
    every = limited().points
    found = limited(
        area=Limit(most=every[1].area_e6_um2),
        power=Limit(most=every[2].tdp_mw),
        power_density=Limit(most=every[3].power_density_uw_per_mm2),
        price=Limit(most=every[0].price_micro_usd),
    )
    assert found.cut == {
        "area-most": 1,
        "power-most": 1,
        "power_density-most": 1,
        "price-most": 0,
    }
    assert [point.architecture.rows for point in found.points] == [1]


def test_a_die_that_fits_no_wafer_is_cut() -> None:
    axes = {**phaze_axes(), "rows": (128, 2**20)}
    found = within(listed(axes), {}, technology("45nm"), Prices())
    assert found.cut == {"wafer": 1}
    assert len(found.points) == 1


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("area: {most: 1 mm2}", r"spec.yaml: \$\.limits\.area\.most: expected "
         r"at least AREA mm2, the area of the smallest point \(1 x 4x16 "
         r"tensor, 1 x 16 vector, 1 MiB SRAM, 32 GiB HBM\), got 1 mm2; raise "
         r"the lim"),
        ("power: {most: 1 W}",
         r"power\.most: expected at least [\d.]+ W, the TDP of the"),
        ("power_density: {most: 1 W/cm2}", r"power_density\.most: expected at "
         r"least [\d.]+ W/mm2, the TDP per area of the smallest point"),
        ("price: {most: 1 USD}",
         r"price\.most: expected at least [\d.]+ USD, the price of the"),
        ("area: {least: 9000 mm2}", r"\$\.limits\.area\.least: expected at "
         r"most [\d.]+ mm2, the area of the largest point \(2 x 8x16 tensor, "
         r".*\), got 9000 mm2; lo"),
    ],
)  # fmt: skip
def test_limits_beyond_all_points(read, limit: str, message: str) -> None:
    area = f"{read(SPEC).space.points[4].area_e6_um2 / MM2:.12f}"
    with pytest.raises(InvalidProblemError, match=message.replace("AREA", area)):
        read(f"{SPEC}limits: {{{limit}}}\n")


def test_limits_that_leave_nothing_together(read) -> None:
    every = read(SPEC).space.points
    areas = sorted({point.area_e6_um2 for point in every})
    power = min(point.tdp_mw for point in every)
    with pytest.raises(
        InvalidProblemError,
        match=r"\$\.limits: expected a point within all of them, got none "
        r"of 8 \(area-least cuts 7, power-most cuts 1\); change one",
    ):
        read(
            f"{SPEC}limits: {{area: {{least: {areas[-1] // 10**6} um2}}, "
            f"power: {{most: {power} mW}}}}\n"
        )


# What is refused


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["rows: none"], r"\$\.space: expected key 'rows', got none; add it"),
        (["rows: []"], r"rows: expected at least one value, got none"),
        (["rows: [4, 4]"], r"rows: expected each value once, got 4 tw"),
        (["rows: 4.5"], r"rows: expected a whole number, got 4.5; cou"),
        (["rows: .nan"], r"expected a finite number, got .nan"),
        (["rows: [8, '4']"], r"rows\[1\]: expected a whole number, got '4';"),
        (["rows: true"], r"rows: expected a whole number, got True"),
        (["rows: 0"], r"rows: expected a whole number from 1 to 2\*\*"),
        (["row: 4"], r"\$\.space: expected a known key, got 'row'; remove or"),
        (["sram: 64"], r"sram: expected a size with its unit such as '128 "
         r"MiB', got 64 without one; write a number and one of B, kB, MB"),
        (["sram: .nan"], r"line \d+: expected a finite number"),
        (["sram: [1 MiB, 2]"], r"sram\[1\]: expected a size"),
        (["sram: [1 MiB, 1024 KiB]"], r"sram: expected each value once"),
        (["frequency: 1.05e9"], r"frequency: expected a frequency with its u"),
        (["hbm_bandwidth: 1 GB"], r"hbm_bandwidth: expected a bandwidth with"),
        (["lanes: rows"], r"lanes: expected a whole number, got 'rows'"),
        (["points: []", "tensor_cores: 1", "rows: 4", "sram: 1 MiB"],
         r"\$\.space: expected at least one point, got none; list some"),
        (["points: [{rows: 4}]"],
         r"tensor_cores: expected one value beside 'points', got a l"),
        (["points: [{rows: 4}]", "tensor_cores: 1", "rows: 2", "sram: none"],
         r"points\[0\]: expected key 'sram', got none; add it"),
        (["points: [{rows: [4]}]", "tensor_cores: 1", "rows: 4", "sram: 1 B"],
         r"points\[0\]\.rows: expected a whole number, got \[4\]"),
        (["points: [{rows: 4}, {rows: 5}, {rows: 4}]", "tensor_cores: 1",
          "rows: none", "sram: 1 MiB"],
         r"expected each point once, got point 2 \(1 x 4x16 tensor, .*\) as "
         r"point 0 too; remove one"),
        (["builtin: phase"], r"\$\.space: expected one of phaze; got 'phase'"),
        (["builtin: phaze"], r"tensor_cores: expected no list beside "
         r"'builtin', which has its own, got one; remove it, or 'builtin'"),
        (["builtin: phaze", "points: []"],
         r"points: expected none beside 'builtin', got some"),
    ],
)  # fmt: skip
def test_spaces_that_are_refused(read, lines: list[str], message: str) -> None:
    with pytest.raises(InvalidProblemError, match=message) as caught:
        read(with_space(*lines))
    assert str(caught.value).startswith(str(Path(str(caught.value).split(":")[0])))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("limits: {area: {most: 300}}", r"area\.most: expected an area with"),
        ("limits: {power: {least: .nan}}", r"expected a finite number"),
        ("limits: {price: {most: 9 EUR}}", r"price\.most: expected a price w"),
        ("limits: {area: 3 mm2}", r"area: expected `object`, got `str`"),
        ("limits: {area: {least: 2 mm2, most: 1 mm2}}",
         r"area: expected 'least' to be at most 'most', got 2 mm2 and "
         r"1 mm2; change one"),
        ("models: [gpt2, gpt2]", r"\$\.models: expected each value once"),
        ("objective: {kind: mean}", r"kind: expected one of"),
        ("objective: {base: tpu}", r"base: expected one of tpu-v4-"),
        ("objective: {base: {rows: 4}}", r"objective\.base: expected key 'te"),
        ("objective: {weights: {gpt2: 0.5}}",
         r"weights\.gpt2: expected a whole number, got 0.5"),
        ("objective: {kind: worst-case, weights: {gpt2: 1}}",
         r"weights: expected none for the worst case, got some"),
        ("models: [gpt2]\nobjective: {weights: {gpt3: 1}}",
         r"weights: expected models of the list, got 'gpt3'"),
        ("models: [gpt2]\nobjective: {weights: {gpt2: 1001}}",
         r"weights\.gpt2: expected at most 1000, got 1001; divide all weigh"),
        ("objective: {base: {name: ' ', tensor_cores: 1, rows: 1, columns: 1,"
         " vector_cores: 1, sram: 1 MiB}}",
         r"base\.name: expected a name in one line, got ' '; choose another"),
        ("latency: {link: 3}", r"link: expected a time with its unit"),
        ("latency: {network: 3 m}", r"network: expected a time"),
        ("convention: papers", r"\$\.convention: expected one of .*did you m"),
        ("attention: flash", r"\$\.attention: expected one of fused, unfused"),
        ("technology: 3nm", r"\$\.technology: expected one of 45nm, 7nm"),
        ("prices: {wafer: 100}", r"wafer: expected a price with its"),
        ("prices: {wafer: 0 USD}", r"wafer: expected 1 to 2\*\*53 mill"),
        ("prices: {clustering: 1.5}", r"clustering: expected a whole"),
        ("prices: {defect_density: 0.1}", r"defect_density: expected a densi"),
        ("job: {batch: 3}", r"\$\.job: expected a known key, got 'batch'"),
        ("limit: {}", r"\$: expected a known key, got 'limit'"),
    ],
)  # fmt: skip
def test_files_that_are_refused(read, more: str, message: str) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        read(f"{SPEC}{more}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SPEC.replace("schema: nest-codesign/1\n", ""),
         "expected key 'schema'"),
        (SPEC.replace("devices: 8\n", ""), "expected key 'devices'"),
        ("schema: nest-codesign/1\nspace:\n  a: 1\n  a: 2\n",
         "line 4: expected key 'a' once"),
        (SPEC.replace("devices: 8", "devices: 8.5"),
         r"\$\.devices: expected a whole number, got 8.5"),
        ("{schema: nest-codesign/1, devices: 8, space: phaze, technology: "
         "7nm}", r"\$\.technology: expected '45nm' with the built-in space"),
        (f"{SPEC}prices: {{wafer_diameter: 5 mm}}\n",
         r"\$\.prices\.wafer_diameter: expected a wafer that some point fits, "
         r"got one of 5 mm, too small for all 8; raise it"),
    ],
)  # fmt: skip
def test_other_files_that_are_refused(read, text: str, message: str) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        read(text)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidProblemError, match="expected a readable spec"):
        read_spec(tmp_path / "none.yaml")


def test_limits_do_not_change_the_base(read) -> None:
    """What it leaves out is as in the first point listed, cut or not."""
    base = (
        "objective: {base: {tensor_cores: 2, rows: 8, columns: 8, "
        "vector_cores: 1, sram: 1 MiB}}\n"
    )
    listed_first = read(f"{SPEC}{base}")
    first = listed_first.space.points[0]
    assert listed_first.space.first == first.architecture
    least = first.area_e6_um2
    cut = read(f"{SPEC}{base}limits: {{area: {{least: {least // 10**6 + 1} um2}}}}\n")
    assert cut.space.points[0].architecture != first.architecture
    assert cut.space.first == first.architecture
    assert cut.objective.base == listed_first.objective.base


def test_too_many_points(read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "MAX_POINTS", 7)
    with pytest.raises(
        InvalidProblemError,
        match=r"\$\.space: expected at most 7 points, got 8; list fewer value",
    ):
        read(SPEC)


def test_excused_points_pass_a_limit() -> None:
    """Phaze's exception, on two points: only the one that is not excused."""
    axes = {**phaze_axes(), "rows": (128, 2, 1)}
    every = tuple(listed(axes))
    most = area_e6_um2(every[0], technology("45nm"))
    found = within(
        every,
        {"area": Limit(least=most)},
        technology("45nm"),
        Prices(),
        lambda cut, a: cut == "area-least" and a.rows == 1,
    )
    assert [p.architecture.rows for p in found.points] == [128, 1]
    assert found.cut == {"area-least": 1}
    assert replace(every[0], rows=1) == every[2]
