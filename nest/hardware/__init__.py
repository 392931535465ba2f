"""Devices, links and machines: data-sheet figures and what is reached."""

from nest.hardware.cluster_file import find_cluster, read_cluster
from nest.hardware.describe import machine_for
from nest.hardware.devices import device_spec, device_specs
from nest.hardware.fabric import mixed_cluster
from nest.hardware.links import link_spec
from nest.hardware.machines import (
    Machine,
    machine,
    machines,
    parse_cluster,
    parse_clusters,
)

__all__ = [
    "Machine",
    "device_spec",
    "device_specs",
    "find_cluster",
    "link_spec",
    "machine",
    "machine_for",
    "machines",
    "mixed_cluster",
    "parse_cluster",
    "parse_clusters",
    "read_cluster",
]
