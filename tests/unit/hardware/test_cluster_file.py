"""Clusters in files: what they leave out, and what is refused."""

from __future__ import annotations

import pytest

from nest.errors import InvalidProblemError
from nest.hardware import find_cluster, machine, mixed_cluster, read_cluster
from nest.ir import Level
from tests.rows import rows


@pytest.fixture
def write(tmp_path):
    def write(text: str, name: str = "ours.yaml") -> str:
        path = tmp_path / name
        path.write_text(text)
        return str(path)

    return write


def test_a_machine_is_enough(write):
    cluster, parts = read_cluster(write("{num_devices: 16, device: {machine: h100}}"))
    h100 = machine("h100")
    assert parts == [(h100, 16)]
    assert cluster.name == "ours"
    assert cluster.device == h100.device
    assert cluster.topology == h100.cluster(16).topology


def test_json_and_a_name_of_its_own(write):
    text = '{"name": "x", "num_devices": 8, "device": {"machine": "a100"}}'
    cluster, _ = read_cluster(write(text, "ours.json"))
    assert (cluster.name, cluster.num_devices) == ("x", 8)


def test_figures_of_a_device_overrule_the_machine(write):
    """Costs are computed from the same figures."""
    cluster, ((site, _),) = read_cluster(
        write(
            "num_devices: 8\n"
            "device: {machine: h100, name: big, memory_bytes: 140000000000,"
            " price_usd_per_hour: 2.5}\n"
        )
    )
    assert site.device == cluster.device
    assert cluster.device.name == "big"
    assert cluster.device.memory_bytes == 140_000_000_000
    assert cluster.device.price_usd_per_hour == 2.5
    h100 = machine("h100")
    assert cluster.device.peak_flops == h100.device.peak_flops
    assert site.calibration == h100.calibration


def test_sizes_and_bandwidths_may_have_units(write):
    text = (
        "num_devices: 8\n"
        "device: {{machine: h100, memory_bytes: {}}}\n"
        "topology: {{kind: hierarchy, levels: [{{fan_out: 8,"
        " bandwidth_bytes_per_s: {}}}]}}\n"
    )
    with_units, _ = read_cluster(write(text.format("141 GB", "400Gb/s")))
    plain, _ = read_cluster(write(text.format(141 * 10**9, 5e10)))
    assert with_units == plain
    with pytest.raises(InvalidProblemError, match=r"memory_bytes: expected"):
        read_cluster(write(text.format("141 GX", 5e10)))


def test_ranges_of_other_devices(write):
    cluster, parts = read_cluster(
        write(
            "num_devices: 24\n"
            "device: {machine: h100}\n"
            "others: [{first: 8, count: 8, device: {machine: a100}}]\n"
        )
    )
    h100, a100 = machine("h100"), machine("a100")
    assert parts == [(h100, 8), (a100, 8), (h100, 8)]
    assert cluster.topology == mixed_cluster(parts).topology
    assert cluster.others[0].device == a100.device


def test_a_network_of_its_own(write):
    cluster, _ = read_cluster(
        write(
            "num_devices: 4\n"
            "device: {machine: h100}\n"
            "topology: {kind: hierarchy, levels: [{fan_out: 4, "
            "bandwidth_bytes_per_s: 1.0e+9, latency_ns: 5}]}\n"
        )
    )
    (level,) = cluster.topology.levels
    assert level == Level(fan_out=4, bandwidth_bytes_per_s=1e9, latency_ns=5.0)


OWN = """\
num_devices: 8
device:
  name: ours
  kernels: h100
  memory_bytes: 100000000000
  hbm_bytes_per_s: 2.0e+12
  peak_flops: {bf16: 5.0e+14}
  price_usd_per_hour: 1.5
"""
NETWORK = """\
topology:
  kind: hierarchy
  levels:
    - {fan_out: 4, bandwidth_bytes_per_s: 1.0e+11, latency_ns: 2000}
    - {fan_out: 2, bandwidth_bytes_per_s: 1.0e+10, latency_ns: 9000}
"""


def test_a_device_of_no_known_machine(write):
    """Its own figures and no others, but what kernels reach of a peak.

    No power and no exponentials of the other machine count, and nodes are
    those of its network.
    """
    cluster, ((site, count),) = read_cluster(write(OWN + NETWORK))
    assert cluster.device.name == "ours"
    assert cluster.device.reserve_bytes == 0
    assert cluster.device.peak_flops == {"bf16": 5e14}
    assert cluster.device.price_usd_per_hour == 1.5
    assert (site.device, count) == (cluster.device, 8)
    assert site.calibration == machine("h100").calibration
    assert (site.power_share, site.exponential_size) == (1.0, 0.0)
    assert site.node.fan_out == 4


def test_names_are_no_files():
    ((site, count),), cluster = find_cluster("h100x64")
    assert (site, count, cluster) == (machine("h100"), 64, None)


def test_neighbours_of_one_machine_are_one():
    h100, a100 = machine("h100"), machine("a100")
    parts, _ = find_cluster("h100x8+dgx-h100x8+a100x8+h100x4")
    assert parts == [(h100, 16), (a100, 8), (h100, 4)]


BAD = {name: rest for name, *rest in rows("clusters", "files")}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_bad_files_are_refused(write, text, message):
    with pytest.raises(InvalidProblemError, match=message) as error:
        read_cluster(write(text))
    assert "\n" not in str(error.value)


def test_no_file():
    with pytest.raises(InvalidProblemError, match=r"none.yaml: expected a rea"):
        find_cluster("none.yaml")
