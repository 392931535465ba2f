"""Stored hardware: lookup, free text, cluster names, calibration of links."""

import csv
import re
from pathlib import Path

import msgspec
import pytest

from bench.hardware_tables import devices_table, links_table
from nest.errors import InvalidOptionError, UnknownNameError
from nest.hardware import (
    device_spec,
    device_specs,
    link_spec,
    machine,
    machine_for,
    parse_cluster,
)
from nest.hardware.calibration import calibration_of
from nest.hardware.describe import network_bytes_per_s
from nest.hardware.devices import DeviceFile, known_device
from nest.hardware.links import calibrated, link_specs, reached, stored_link_calibration
from nest.hardware.machines import machine_specs, machines
from nest.ir.cluster import Level
from tests.rows import rows

DOCS = Path(__file__).resolve().parents[3] / "docs"


# Devices


@pytest.mark.parametrize(("text", "name"), rows("hardware", "devices"))
def test_device_goes_by_many_names(text, name):
    assert device_spec(text).name == name


def test_drivers_name_devices_exactly():
    """A device that only resembles a stored one keeps its own name."""
    device = known_device("NVIDIA H100 80GB HBM3")
    assert device is not None
    assert device.name == "H100-80GB-SXM"
    assert known_device("NVIDIA A100-PCIE-40GB") is None


def test_family_matches_whole_words_only():
    """GB200 is no B200."""
    assert device_spec("NVIDIA GB200 Superchip").name == "GB200"
    assert device_spec("HGX B200 8-GPU").name == "B200-180GB"


def test_unknown_device():
    with pytest.raises(
        UnknownNameError, match=r"hardware: expected one of 41 names, .*; got 'Abacus'"
    ):
        device_spec("Abacus")


@pytest.mark.parametrize(("text", "known"), rows("hardware", "refused_devices"))
def test_no_other_device_is_taken(text, known):
    """The message lists the devices that a name may mean, or all."""
    with pytest.raises(UnknownNameError, match=rf"expected one of {known}[;,]"):
        device_spec(text)


def test_every_device_can_be_built_and_priced():
    for spec in device_specs():
        assert 0 < spec.reserve_bytes < spec.memory_bytes / 4
        assert spec.device.peak_flops == spec.peak_flops
        assert calibration_of(spec.family).matmul_fraction > 0
        assert link_spec(spec.link).bytes_per_s > 0


def test_figures_of_a_device():
    """A100-80GB: 312 TFLOP/s, 79.15 GiB, 12 links of 25 GB/s each way."""
    device = device_spec("A100-80GB-SXM").device
    assert device.peak_flops["bf16"] == 312e12
    assert device.memory_bytes == int(79.15 * 2**30)
    assert device.reserve_bytes == 3 * 10**9
    assert device_spec("A100-80GB-SXM").link_bytes_per_s == 12 * 25e9


def device_file(**fields):
    """Read a file of one device, with other fields."""
    device = {
        **dict.fromkeys(("name", "family"), "X"),
        **dict.fromkeys(("peak_source", "memory_source", "hbm_source"), ""),
        **dict.fromkeys(("link", "link_source"), ""),
        **{"peak_flops": {}, "memory_bytes": 1, "hbm_bytes_per_s": 1},
        **{"link_bytes_per_s": 1, "reserve": "a"},
        **fields,
    }
    document = {
        "schema": "nest-devices/1",
        "reserves": {"a": {"reserve_bytes": 1, "source": ""}},
        "devices": [device],
    }
    return msgspec.convert(document, DeviceFile)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reserve": "b"}, "devices: X: reserve: expected one of a, got 'b'"),
        ({"memory_bytes": 0}, "memory_bytes: expected >= 1, got 0"),
        ({"hbm_bytes_per_s": 0}, "hbm_bytes_per_s: expected a finite number"),
        (
            {"peak_flops": {"bf16": -1}},
            "peak_flops.bf16: expected a finite number > 0, got -1",
        ),
    ],
)
def test_device_file_refuses_bad_figures(fields, message):
    assert device_file().devices[0].name == "X"
    with pytest.raises(msgspec.ValidationError, match=re.escape(message)):
        device_file(**fields)


# Machines and clusters


def test_names_are_distinct():
    names = [
        name.casefold()
        for spec in device_specs()
        for name in {n.casefold() for n in (spec.name, *spec.aliases)}
    ]
    assert len(names) == len(set(names))
    names = [n for s in machine_specs() for n in (s.name, *s.aliases)]
    assert len(names) == len(set(names))
    names = [spec.name for spec in link_specs()]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("record", machines(), ids=lambda record: record.name)
def test_every_machine_makes_clusters(record):
    for count in (1, 8, 100):
        cluster = record.cluster(count)
        assert cluster.num_devices == count
        assert cluster.device == record.device


def test_every_device_has_a_default_machine():
    used = {spec.device for spec in machine_specs()}
    assert used == {spec.name for spec in device_specs()}


@pytest.mark.parametrize(("text", "name", "count"), rows("hardware", "clusters"))
def test_cluster_names(text, name, count):
    record, number = parse_cluster(text)
    assert (record.name, number) == (name, count)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("abacusx8", "machine: expected one of 70 names, .*; got 'abacus'"),
        (
            "h100x0",
            "cluster: expected 1 to 1048576 devices, got 'h100x0'; name a "
            "part of the cluster, such as h100x64",
        ),
        (
            "16x4xh100",
            "cluster: expected nodes of 8 devices for dgx-h100, got "
            "'16x4xh100'; correct it, or describe your nodes with 'nest new "
            "cluster'",
        ),
        *(
            (
                text,
                f"cluster: expected <machine>x<devices> such as h100x64, got '{text}'",
            )
            for text in ("h100", "h100x-8", "")
        ),
    ],
)
def test_bad_cluster_names(text, message):
    error = UnknownNameError if text == "abacusx8" else InvalidOptionError
    with pytest.raises(error, match=message):
        parse_cluster(text)


def test_unknown_machine():
    with pytest.raises(
        UnknownNameError, match=r"machine: expected one of 70 names, .*'dgx-z100'"
    ):
        machine("dgx-z100")


def test_cluster_has_calibrated_levels():
    """DGX A100, 20 devices: three nodes, rates times their efficiency."""
    cluster = machine("dgx-a100").cluster(20)
    node, network = cluster.topology.levels
    assert (node.fan_out, network.fan_out) == (8, 3)
    nvlink = stored_link_calibration().of("NVLink 3")
    infiniband = stored_link_calibration().of("InfiniBand HDR")
    assert nvlink is not None
    assert infiniband is not None
    assert node.bandwidth_bytes_per_s == 300e9 * nvlink.efficiency
    assert network.bandwidth_bytes_per_s == 25e9 * infiniband.efficiency
    assert node.launch_ns == nvlink.launch_ns > 0
    assert network.latency_ns == infiniband.latency_ns > node.latency_ns
    assert cluster.topology.algorithms == "nccl"


@pytest.mark.parametrize(
    ("count", "fan_outs"),
    [
        (64, (72, 1)),
        (144, (72, 2)),
        # four domains hold 256, 64 each; 1024 need 15, but 16 divide them
        (256, (64, 4)),
        (1024, (64, 16)),
        (73, (1, 73)),
    ],
)
def test_domains_are_used_alike(count, fan_outs):
    levels = machine("gb200").cluster(count).topology.levels
    assert tuple(level.fan_out for level in levels) == fan_outs


def test_peers_of_a_mesh():
    """MI300X: seven links, one to each peer; 448/7 = 64 GB/s."""
    node = machine("mi300x").node
    assert node.peer_bandwidth_bytes_per_s == pytest.approx(64e9)
    assert machine("dgx-a100").node.peer_bandwidth_bytes_per_s is None
    built = machine("mi300x").cluster(8).topology.levels[0]
    fitted = stored_link_calibration().of("xGMI 4")
    assert fitted is not None
    # a link to a peer reaches what all eight together do
    assert built.peer_bandwidth_bytes_per_s == pytest.approx(
        64e9 * fitted.efficiency * (1 - fitted.group_loss / 8)
    )


def test_wires_of_a_dgx_1():
    """Two of a DGX-1 share 2 of 6 links, four 4, eight all of them."""
    node = machine("dgx-1").cluster(8).topology.levels[0]
    assert [node.fraction(m) for m in (2, 3, 4, 7, 8)] == pytest.approx(
        [1 / 3, 1 / 3, 2 / 3, 2 / 3, 1]
    )


def test_power_sets_clocks_within_a_generation():
    """H20 has 3.8 times the power per FLOP of H100, and no product exceeds its peak.

    L40S takes the rates of another generation, whose power says nothing.
    """
    h20, nvl = machine("h20"), machine("h100-nvl")
    rates = h20.calibration
    assert h20.power_share * rates.matmul_fraction == pytest.approx(1)
    ratio = (400 / 835) / rates.watts_per_tflops
    assert nvl.power_share == pytest.approx(ratio**rates.power_exponent)
    assert device_spec("L40S").power_w == 350
    assert machine("l40s").power_share == 1


def test_own_calibration_replaces_the_stored_one():
    record = machine("h100")
    assert record.calibration == calibration_of("H100")
    other = calibration_of("V100")
    assert other != record.calibration
    assert record.with_calibration(other).calibration == other


# Free text


@pytest.mark.parametrize(("text", "size", "gb_per_s"), rows("hardware", "networks"))
def test_network_of_a_text(text, size, gb_per_s):
    expected = None if gb_per_s is None else gb_per_s * 1e9
    assert network_bytes_per_s(text, size) == expected


@pytest.mark.parametrize(
    ("hardware", "text", "size", "family", "gb_per_s", "node"),
    rows("hardware", "machines"),
)
def test_machine_of_a_text(hardware, text, size, family, gb_per_s, node):
    record = machine_for(hardware, text, size)
    assert record.network.name == family
    assert record.network.bandwidth_bytes_per_s == gb_per_s * 1e9
    assert record.node.fan_out == node


def test_every_published_text_resolves(shared_data):
    """Between nodes, one device reaches 1 to 100 GB/s in all of them."""
    with (shared_data / "measured" / "measurements.csv").open() as stream:
        texts = {
            (
                row["hardware"],
                row["interconnect"],
                int(row["devices_per_node"] or 0) or None,
            )
            for row in csv.DictReader(stream)
        }
    assert len({text for _, text, _ in texts}) >= 60
    for hardware, interconnect, size in texts:
        record = machine_for(hardware, interconnect, size)
        rate = record.network.bandwidth_bytes_per_s
        assert 1e9 < rate <= 100e9, (hardware, interconnect)
        assert record.node.bandwidth_bytes_per_s > rate
        record.cluster(64)


# Calibration of links


def link_of(efficiency, latency_ns, launch_ns, group_loss):
    """Return a link that was fitted to these figures."""
    return msgspec.structs.replace(
        stored_link_calibration().of("NVLink 4"),
        efficiency=efficiency,
        latency_ns=latency_ns,
        launch_ns=launch_ns,
        group_loss=group_loss,
    )


def test_what_a_level_reaches():
    """Half of the rates; of two members 1 - 0.4/2 of that, of five 0.92."""
    level = Level(
        name="wire",
        fan_out=5,
        bandwidth_bytes_per_s=100.0,
        peer_bandwidth_bytes_per_s=10.0,
    )
    found = reached(level, link_of(0.5, 3.0, 7.0, 0.4))
    assert (found.name, found.fan_out) == ("wire", 5)
    assert found.bandwidth_bytes_per_s == 50
    assert found.peer_bandwidth_bytes_per_s == pytest.approx(5 * 0.92)
    assert (found.latency_ns, found.launch_ns) == (3, 7)
    assert [part.members for part in found.group_fractions] == [2, 3, 4, 5]
    assert [found.fraction(m) for m in (1, 2, 4, 5)] == pytest.approx(
        [1, 0.8, 0.9, 0.92]
    )
    assert reached(level, link_of(0.5, 3.0, 7.0, 0.0)).group_fractions == ()


def test_many_members_are_listed_by_doubles():
    level = Level(fan_out=72, bandwidth_bytes_per_s=100.0)
    found = reached(level, link_of(1.0, 0.0, 0.0, 0.4))
    assert [part.members for part in found.group_fractions] == [
        *(2, 3, 4, 5, 6, 7, 8, 16, 32, 64)
    ]


def test_levels_are_calibrated_by_name():
    level = Level(name="NVLink 4", fan_out=5, bandwidth_bytes_per_s=100.0)
    fitted = stored_link_calibration().of("NVLink 4")
    assert fitted is not None
    assert calibrated(level) == reached(level, fitted) != level
    other = Level(name="string", fan_out=5, bandwidth_bytes_per_s=100.0)
    assert calibrated(other) == other


def test_link_families_inherit_from_fitted_ones():
    stored = stored_link_calibration()
    known = {spec.name for spec in link_specs()}
    for child, parent in stored.inherits.items():
        assert child in known
        assert parent in stored.families
        assert child not in stored.families
        assert stored.of(child) == stored.families[parent]
    for fitted in stored.families.values():
        assert 0.3 < fitted.efficiency <= 1
        assert fitted.mean_error < fitted.mean_error_before
    assert stored_link_calibration().of("TPU ICI v4") is None


def test_unknown_link():
    with pytest.raises(
        UnknownNameError, match=r"link: expected one of .*; got 'NVLink 9'"
    ):
        link_spec("NVLink 9")


# Documentation


def test_what_was_recalled_of_machines_is_confirmed() -> None:
    """But for the network between pods of old TPUs, which nobody states."""
    found = {
        site.name
        for site in machines()
        if "recalled" in site.source and not site.confirmed_by
    }
    assert found == {"tpu-v3", "tpu-v4"}


@pytest.mark.parametrize(
    ("table", "page"),
    [(devices_table, "hardware.md"), (links_table, "results/links.md")],
)
def test_the_documentation_shows_the_data(table, page):
    assert table() in (DOCS / page).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "text", ["8x0 Gb/s HDR InfiniBand per node", "NVLink 0 inter-gpu connects"]
)
def test_links_without_bandwidth_are_refused(text: str) -> None:
    with pytest.raises(
        InvalidOptionError,
        match=rf"^interconnect: expected a bandwidth above 0, got '{text}'; ",
    ):
        machine_for("A100-80GB-SXM", text, 8)


def test_numbers_of_a_text_without_end_are_read_in_part() -> None:
    """Python reads no integer of 5,000 digits."""
    text = f"{'9' * 5000}x200 Gb/s HDR InfiniBand per node"
    assert machine_for("A100-80GB-SXM", text, 8).network.name


def test_names_of_machines_are_those_of_their_devices() -> None:
    """Rows may name either; GH200 has two sizes of memory, H20-3e is no H20."""
    for spec in machine_specs():
        for name in (spec.name, *spec.aliases):
            if name != "gh200":
                assert device_spec(name).name == spec.device
    for name in ("gh200", "H20-3e"):
        with pytest.raises(UnknownNameError, match="expected one of"):
            device_spec(name)
