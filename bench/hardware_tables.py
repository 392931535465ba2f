"""Print the stored data as the tables of the documentation.

They stand in docs/hardware.md, docs/models.md and docs/results/links.md.

python bench/hardware_tables.py
"""

from __future__ import annotations

from bench.result_files import table
from nest.hardware.devices import device_specs
from nest.hardware.links import link_specs, stored_link_calibration
from nest.hardware.machines import machine_specs
from nest.models.zoo import ARCHITECTURES, kind_of
from nest.units import GIB


def devices_table() -> str:
    """Return one row per device: peaks, memory, bandwidths."""
    rows = [
        (
            spec.name,
            " / ".join(
                f"{spec.peak_flops[dtype] / 1e12:g}"
                if dtype in spec.peak_flops
                else "–"
                for dtype in ("bf16", "fp16", "fp8")
            ),
            f"{spec.memory_bytes / GIB:.2f}",
            f"{spec.hbm_bytes_per_s / 1e9:g}",
            f"{spec.link} {spec.link_bytes_per_s / 1e9:g}",
            f"{spec.power_w:g}" if spec.power_w else "–",
        )
        for spec in device_specs()
    ]
    return table(
        "device | bf16 / fp16 / fp8, TFLOP/s | memory, GiB | HBM, GB/s | "
        "link in a node, GB/s | power, W",
        rows,
        "l" * 6,
    )


def machines_table() -> str:
    """Return one row per machine: node and network, data-sheet rates."""
    rows = [
        (
            ", ".join((spec.name, *spec.aliases)),
            spec.device,
            str(spec.node_size),
            f"{spec.network} {spec.network_bytes_per_s / 1e9:g}",
        )
        for spec in machine_specs()
    ]
    return table(
        "machine, aliases | device | devices per node | network, GB/s per device",
        rows,
        "l" * 4,
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
    """Return a row per type of model: names, parameters, those per token."""
    rows: dict[str, list[str]] = {}
    for model in ARCHITECTURES:
        size = in_billions(model.parameters)
        if model.active_parameters != model.parameters:
            size += f" ({in_billions(model.active_parameters)})"
        rows.setdefault(kind_of(model), []).append(f"`{model.name}` {size}")
    return table(
        "type | models with their parameters, in 10⁹ (active per token)",
        ((kind, ", ".join(models)) for kind, models in rows.items()),
        "ll",
    )


def in_billions(count: int) -> str:
    """Return a number of parameters in 1e9, with three digits at least."""
    return f"{count / 1e9:.{max(3 - len(str(count // 10**9)), 0)}f}"


if __name__ == "__main__":
    for text in (devices_table, machines_table, links_table, models_table):
        print(text(), end="\n\n")
