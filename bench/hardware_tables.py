"""Print the stored data as the tables of the documentation.

They stand in docs/hardware.md, docs/models.md and docs/results/links.md.

python bench/hardware_tables.py
"""

from __future__ import annotations

from bench.result_files import table
from nest.hardware.devices import DeviceSpec, device_specs
from nest.hardware.links import link_specs, stored_link_calibration
from nest.hardware.machines import MachineSpec, machine_specs
from nest.models.zoo import ARCHITECTURES, kind_of
from nest.units import GIB


def devices_table() -> str:
    """Return a row per device and machine: peaks, memory, bandwidths, network.

    The first machine of a device is its default; further ones have rows of their own.
    """
    rows = []
    for spec in device_specs():
        cells: tuple[str, ...] = (
            spec.name,
            f"{_peak(spec, 'bf16', 'fp16')} / {_peak(spec, 'fp8')}",
            f"{round(spec.memory_bytes / GIB, 2):g}",
            f"{spec.hbm_bytes_per_s / 1e9:g}",
            f"{spec.link} {spec.link_bytes_per_s / 1e9:g}",
            f"{spec.power_w:g}" if spec.power_w else "–",
        )
        for site in machine_specs():
            if site.device == spec.name:
                rows.append((*cells, *_machine(site)))
                cells = ("",) * len(cells)
    return table(
        "device | 16 bits / fp8, TFLOP/s | memory, GiB | HBM, GB/s | link in a node, "
        "GB/s | power, W | machine, aliases | devices per node | network, GB/s",
        rows,
        "l" * 9,
    )


def _peak(spec: DeviceSpec, *dtypes: str) -> str:
    """Return the peak of the first of some data types that a device has."""
    peaks = (spec.peak_flops[dtype] for dtype in dtypes if dtype in spec.peak_flops)
    return next((f"{flops / 1e12:g}" for flops in peaks), "–")


def _machine(spec: MachineSpec) -> tuple[str, str, str]:
    return (
        ", ".join((spec.name, *spec.aliases)),
        str(spec.node_size),
        f"{spec.network} {spec.network_bytes_per_s / 1e9:g}",
    )


def links_table() -> str:
    """Return one row per fitted link family, and who inherits from it."""
    stored = stored_link_calibration()
    rows = [
        (
            name,
            f"{fitted.efficiency:g}",
            f"{fitted.latency_ns / 1e3:g}",
            f"{fitted.launch_ns / 1e3:g}",
            f"{fitted.group_loss:g}",
            f"{fitted.mean_error_before:.1%}",
            f"{fitted.mean_error:.1%}",
            ", ".join(
                spec.name
                for spec in link_specs()
                if stored.inherits.get(spec.name) == name
            ),
        )
        for name, fitted in stored.families.items()
    ]
    return table(
        "link | efficiency | step, µs | launch, µs | loss of small groups | "
        "mean error before | after | also used for",
        rows,
        "l" * 8,
    )


def models_table() -> str:
    """Return a row per type of model: names."""
    rows: dict[str, list[str]] = {}
    for model in ARCHITECTURES:
        rows.setdefault(kind_of(model), []).append(model.name)
    return table(
        "type | models",
        ((kind, ", ".join(names)) for kind, names in rows.items()),
        "ll",
    )


if __name__ == "__main__":
    for text in (devices_table, links_table, models_table):
        print(text(), end="\n\n")
