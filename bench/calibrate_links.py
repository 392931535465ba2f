"""Fit what links reach to published timings of collectives.

    python bench/calibrate_links.py [--data ../shared/data]

Per link family at most three parameters of these: the fraction of the data-sheet
bandwidth, the latency of a step, the launch cost of a collective and what small groups
lose of the bandwidth. They minimize the weighted mean of |ln(predicted/measured)|:
collectives count alike, and so do the cells (group, octave of the size) of each.
Predicted are the times that the planner itself would use. The search is a pattern
search from one starting point, so the result depends on the data only. It is written to
``nest/hardware/data/link_calibration.json``. Then families that were measured at many
sizes are fitted to every other size, and tested on the rest from 1 MB on, which
is printed.

Data (see ../shared/data/measured/README.md and ../shared/data/ORIGINS.md):
vTrain's all-reduce tables (A100, one node of 8), Aceso's primitives (V100,
one node of 8), the NCCL tables of stas00/ml-engineering (A100, H200 and B200
nodes; four nodes of B200 with EFA), Galvatron's timings (A100), the
collectives of the ultrascale playbook (H100; those over EFA as a check).
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from nest.hardware.links import reached
from nest.hardware.machines import machine
from nest.ir.cluster import Hierarchy, Level
from nest.topology import HierarchyNetwork

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "nest" / "hardware" / "data" / "link_calibration.json"
GB = 1e9
MIB = 2**20
#: Aceso writes this for what it could not run.
FAILED_MS = 1e9


class LinkFigures(NamedTuple):
    """What is reached of a link; fields of a calibration."""

    efficiency: float
    latency_ns: float
    launch_ns: float
    group_loss: float = 0.0


#: The data sheet's bandwidth, 3 µs a step, no launch cost.
UNFITTED = LinkFigures(1.0, 3e3, 0.0)
#: Where the search begins.
START = LinkFigures(0.8, 5e3, 2e4, 0.3)
#: A step over NVLink, between the 0.6 and 4.0 µs of NCCL's own tables: what a
#: 32 KiB all-reduce on 8 devices leaves room for beside a launch.
NVLINK_STEP_NS = 1.4e3
#: From here on sizes are tested that the fit has not seen.
LARGE_BYTES = 1e6
#: Families with so many points are fitted to half of their sizes, too.
MANY = 100


class Point(NamedTuple):
    """One timing: ``nodes`` of ``per_node`` ranks."""

    kind: str
    nodes: int
    per_node: int
    size_bytes: float
    time_ns: float


class Family(NamedTuple):
    """What is fitted: a link, alone in a node or between nodes.

    ``given`` has the parameters that are not fitted, as a value or as the
    name of the family that they are taken from, because groups of one size
    cannot tell steps from the launch, nor what small groups lose.
    """

    name: str
    bytes_per_s: float
    points: list[Point]
    provenance: str
    checks: tuple[Point, ...] = ()
    given: Mapping[str, str | float] = {}
    machine: str = ""
    node: str = ""
    node_bytes_per_s: float = 0.0


def level(fan_out: int, bytes_per_s: float, link: LinkFigures) -> Level:
    sheet = Level(fan_out=fan_out, bandwidth_bytes_per_s=bytes_per_s)
    return reached(sheet, link)


def predict(
    family: Family, link: LinkFigures, node: LinkFigures | None, points: list[Point]
) -> list[float]:
    """Times of the points in ns, in the planner's own terms."""
    networks: dict[int, HierarchyNetwork] = {}
    times = []
    for point in points:
        if point.nodes not in networks:
            levels: tuple[Level, ...]
            if node is None and family.machine:
                levels = (reached(machine(family.machine).node, link),)
            elif node is None:
                levels = (level(8, family.bytes_per_s, link),)
            else:
                inner = level(8, family.node_bytes_per_s, node)
                outer = level(point.nodes, family.bytes_per_s, link)
                levels = (inner, outer)
            networks[point.nodes] = HierarchyNetwork(
                Hierarchy(levels=levels, algorithms="nccl")
            )
        network = networks[point.nodes]
        shape = network.shape(
            [8 * i + j for i in range(point.nodes) for j in range(point.per_node)]
        )
        times.append(network.collective_ns(point.kind, [shape], point.size_bytes))
    return times


def weights(points: list[Point]) -> list[float]:
    """Weight of each point: cells of a collective, then collectives, equal."""
    cells = [
        (p.kind, p.nodes, p.per_node, int(math.log2(p.size_bytes))) for p in points
    ]
    sizes = Counter(cells)
    kinds = Counter(cell[0] for cell in sizes)
    return [1 / (sizes[cell] * kinds[cell[0]]) for cell in cells]


def fit(
    family: Family,
    node: LinkFigures | None,
    fixed: Mapping[str, float],
    points: list[Point],
) -> LinkFigures:
    """Search the parameters, each over factors of its start."""
    share = weights(points)
    logs = [math.log(point.time_ns) for point in points]

    def loss(link: LinkFigures) -> float:
        times = predict(family, link, node, points)
        return sum(
            w * abs(math.log(t) - m) for w, t, m in zip(share, times, logs, strict=True)
        )

    best = START._replace(**fixed)
    value = loss(best)
    step = 2.0
    while step > 1.005:
        improved = False
        for field in (f for f in LinkFigures._fields if f not in fixed):
            for factor in (step, 1 / step):
                trial = best._replace(**{field: getattr(best, field) * factor})
                if trial.efficiency > 1 or trial.launch_ns < 100:
                    continue
                if trial.group_loss > 1:
                    continue
                trial_loss = loss(trial)
                if trial_loss < value * (1 - 1e-9):
                    best, value, improved = trial, trial_loss, True
        if not improved:
            step = math.sqrt(step)
    return best


def relative(
    family: Family, link: LinkFigures, node: LinkFigures | None, points: list[Point]
) -> list[float]:
    """Relative error of each point."""
    times = predict(family, link, node, points)
    return [
        abs(time_ns / point.time_ns - 1)
        for point, time_ns in zip(points, times, strict=True)
    ]


def errors(
    family: Family, link: LinkFigures, node: LinkFigures | None, points: list[Point]
) -> dict[str, list[float]]:
    """Relative errors by group."""
    by_group: dict[str, list[float]] = defaultdict(list)
    values = relative(family, link, node, points)
    for point, value in zip(points, values, strict=True):
        by_group[f"{point.nodes}x{point.per_node} {point.kind}"].append(value)
    return by_group


def mean(values: list[float], points: list[Point]) -> float:
    """Mean with the weights of the fit."""
    share = weights(points)
    total = sum(w * v for w, v in zip(share, values, strict=True))
    return total / sum(share)


# Reading


def vtrain(data: Path) -> list[Point]:
    """NCCL tests: out-of-place times of all-reduces on 2, 4, 8 A100."""
    points = []
    for ranks in (2, 4, 8):
        path = data / f"collectives/vtrain-allreduce/AR_GPU{ranks}_1M_1024M_LUT"
        with path.open() as stream:
            rows = list(csv.reader(stream))[1:]
        points += [
            Point("all-reduce", 1, ranks, float(row[0]), float(row[3])) for row in rows
        ]
    return points


def aceso(data: Path) -> list[Point]:
    """Aceso: mean time of distinct (collective, ranks, size in MiB).

    Sizes of all-gathers are those of one rank's part.
    """
    found: dict[tuple[str, int, float], list[float]] = defaultdict(list)
    for path in sorted((data / "collectives/aceso-v100").glob("prim_*.csv")):
        name = re.search(
            r"_(all_gather|all_reduce|all_to_all|reduce_scatter)_(\d)gpus", path.name
        )
        assert name is not None, path.name
        ranks = int(name.group(2))
        kind = name.group(1).replace("_", "-")
        with path.open() as stream:
            rows = list(csv.reader(stream))[1:]
        for size, time_ms in ((float(a), float(b)) for a, b in rows):
            if size >= 1 and time_ms < FAILED_MS:
                whole = size * (ranks if kind == "all-gather" else 1)
                found[kind, ranks, whole * MIB].append(time_ms * 1e6)
    return [
        Point(kind, 1, ranks, size, statistics.fmean(times))
        for (kind, ranks, size), times in sorted(found.items())
    ]


def from_bus(kind: str, nodes: int, size_bytes: float, bus_gb_per_s: float) -> Point:
    """Turn a bus bandwidth over nodes of 8 into a time."""
    ranks = 8 * nodes
    rounds = 2 if kind == "all-reduce" else 1
    volume = rounds * (ranks - 1) / ranks * size_bytes
    return Point(kind, nodes, 8, size_bytes, volume / bus_gb_per_s)


def tables(hardware: dict, device: str, nodes: int) -> list[Point]:
    """Tables of bus bandwidth by size; below 0.1 GB/s they say too little."""
    points = []
    for record in hardware["measured_collectives"]:
        columns = record["columns"]
        if (
            record.get("hardware") == device
            and record.get("nodes") == nodes
            and columns[0] == "bytes"
        ):
            bus = columns.index("busbw_GBps")
            points += [
                from_bus("all-reduce", nodes, row[0], row[bus])
                for row in record["rows"]
                if row[bus] >= 0.1
            ]
    return points


def playbook(hardware: dict, *, several: bool) -> list[Point]:
    """256 MiB on H100 nodes; the figure's bandwidth read as bus bandwidth."""
    points = []
    for record in hardware["measured_collectives"]:
        if record["columns"] == ["nodes", "bandwidth_GBps"]:
            kind = record["collective"].replace("_", "-")
            points += [
                from_bus(kind, nodes, record["payload_bytes"], bus)
                for nodes, bus in record["rows"]
                if (nodes > 1) == several
            ]
    return points


def constants(hardware: dict) -> list[Point]:
    """All-gather and reduce-scatter of 16 GiB on 8 H200."""
    points = []
    for record in hardware["measured_collectives"]:
        if record["columns"] == ["collective", "algo", "busbw_GBps"]:
            points += [
                from_bus(kind, 1, record["payload_bytes"], bus)
                for kind, _, bus in record["rows"]
                if kind in ("all-gather", "reduce-scatter")
            ]
    return points


def galvatron(hardware: dict) -> list[Point]:
    """Times in ms of all-reduce and all-to-all on 2, 4, 8 devices."""
    points = []
    for record in hardware["measured_collectives"]:
        if record["collective"] != "galvatron all-reduce and all-to-all time":
            continue
        for key, time_ms in record["rows"]:
            name = re.fullmatch(r"(\w+)_size_(\d)_(\d+)MB_time", key)
            assert name is not None, key
            kind = {"allreduce": "all-reduce", "all2all": "all-to-all"}
            points.append(
                Point(
                    kind[name.group(1)],
                    1,
                    int(name.group(2)),
                    int(name.group(3)) * MIB,
                    time_ms * 1e6,
                )
            )
    return points


def families(data: Path) -> list[Family]:
    hardware = json.loads((data / "measured/hardware.json").read_text())
    v100 = aceso(data)
    return [
        Family(
            "NVLink 2",
            150 * GB,
            [p for p in v100 if p.kind == "all-reduce"],
            "Aceso's all-reduces on 2, 4 and 8 V100 of one node; the other "
            "primitives there time copies into lists too",
            checks=tuple(p for p in v100 if p.kind != "all-reduce"),
            machine="v100",
            given={"group_loss": 0.0},
        ),
        Family(
            "NVLink 3",
            300 * GB,
            vtrain(data) + tables(hardware, "A100-SXM", 1),
            "vTrain's all-reduce tables on 2, 4 and 8 A100, an NCCL test on 8 "
            "A100 in stas00/ml-engineering",
            checks=tuple(galvatron(hardware)),
            given={"latency_ns": NVLINK_STEP_NS},
        ),
        Family(
            "NVLink 4",
            450 * GB,
            tables(hardware, "H200-141GB-SXM", 1)
            + constants(hardware)
            + playbook(hardware, several=False),
            "NCCL tests on 8 H200 in stas00/ml-engineering, ultrascale "
            "playbook on 8 H100",
            given={"latency_ns": "NVLink 3", "group_loss": "NVLink 3"},
        ),
        Family(
            "NVLink 5",
            900 * GB,
            tables(hardware, "B200-180GB", 1),
            "an NCCL test on 8 B200 in stas00/ml-engineering",
            given={"latency_ns": "NVLink 3", "group_loss": "NVLink 3"},
        ),
        Family(
            "InfiniBand",
            12.5 * GB,
            tables(hardware, "A100-class (4 nodes; GPU not named)", 4),
            "an NCCL test on 4 nodes of 8 in stas00/ml-engineering, whose "
            "network is not named; 100 Gb/s per device assumed",
            node="NVLink 3",
            node_bytes_per_s=300 * GB,
            given={"launch_ns": "NVLink 3", "group_loss": 0.0},
        ),
        Family(
            "AWS EFA v4",
            50 * GB,
            tables(hardware, "B200-180GB", 4),
            "an NCCL test on 4 nodes of 8 B200 (P6) in stas00/ml-engineering",
            checks=tuple(playbook(hardware, several=True)),
            node="NVLink 5",
            node_bytes_per_s=900 * GB,
            given={"launch_ns": "NVLink 5", "group_loss": 0.0},
        ),
    ]


def summary(group: str, after: list[float], before: list[float]) -> str:
    text = (
        f"  {group:28} {len(after):5} points, error median "
        f"{statistics.median(after):.3f}, max {max(after):.3f}"
    )
    if before:
        text += f" (before {statistics.median(before):.3f})"
    return text


def rounded(value: float) -> float:
    return float(f"{value:.3g}")


def held_out(family: Family, fixed: Mapping[str, float]) -> str:
    """Return rows: fitted to every other size, tested on the others."""
    sizes = sorted({point.size_bytes for point in family.points})
    seen = set(sizes[::2])
    points = [p for p in family.points if p.size_bytes in seen]
    unseen = [
        p
        for p in family.points
        if p.size_bytes not in seen and p.size_bytes >= LARGE_BYTES
    ]
    link = LinkFigures(*map(rounded, fit(family, None, fixed, points)))
    by_ranks: dict[str, list[Point]] = {"all": unseen}
    for point in unseen:
        by_ranks.setdefault(str(point.per_node), []).append(point)
    rows = []
    for ranks, tested in by_ranks.items():
        errors_of = relative(family, link, None, tested)
        rows.append(
            f"| {family.name} | {ranks} | {len(tested)} | "
            f"{statistics.median(errors_of):.1%} | "
            f"{statistics.fmean(errors_of):.1%} "
            f"| {max(errors_of):.1%} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=ROOT / ".." / "shared" / "data")
    options = parser.parse_args()
    fitted: dict[str, LinkFigures] = {}
    stored, tested = {}, []
    for family in families(options.data):
        node = fitted.get(family.node)
        fixed = {
            field: getattr(fitted[of], field) if isinstance(of, str) else of
            for field, of in family.given.items()
        }
        points, checks = family.points, list(family.checks)
        link = LinkFigures(*map(rounded, fit(family, node, fixed, points)))
        fitted[family.name] = link
        after = errors(family, link, node, points)
        before = errors(family, UNFITTED, node, points)
        print(f"{family.name}: {link}, {len(points)} points")
        for group, found in after.items():
            print(summary(group, found, before[group]))
        for group, found in errors(family, link, node, checks).items():
            print(summary(f"check {group}", found, []))
        if len(points) >= MANY:
            tested.append(held_out(family, fixed))
        flat_before = relative(family, UNFITTED, node, points)
        flat_after = relative(family, link, node, points)
        stored[family.name] = {
            **link._asdict(),
            "num_points": len(family.points),
            "mean_error_before": rounded(mean(flat_before, points)),
            "mean_error": rounded(mean(flat_after, points)),
            "median_error": rounded(statistics.median(flat_after)),
            "max_error": rounded(max(flat_after)),
            "provenance": family.provenance
            + "".join(
                f"; {field} of {of}"
                for field, of in family.given.items()
                if isinstance(of, str)
            ),
        }
    TARGET.write_text(
        json.dumps(
            {
                "schema": "nest-link-calibration/1",
                "families": stored,
                "inherits": INHERITS,
            },
            indent=2,
        )
        + "\n"
    )
    print("| link | ranks | points | median | mean | max |")
    print("| --- | --- | --- | --- | --- | --- |")
    print(*tested, sep="\n")


#: Families without data of their own, and whose parameters they take.
INHERITS = {
    "xGMI 4": "NVLink 3",
    "HCCS": "NVLink 3",
    "PCIe 3": "NVLink 3",
    "PCIe 4": "NVLink 3",
    "PCIe 5": "NVLink 3",
    "NeuronLink 2": "NVLink 3",
    "NeuronLink 3": "NVLink 3",
    "Gaudi RoCE": "InfiniBand",
    "InfiniBand EDR": "InfiniBand",
    "InfiniBand HDR": "InfiniBand",
    "InfiniBand NDR": "InfiniBand",
    "InfiniBand XDR": "InfiniBand",
    "RoCE 100": "InfiniBand",
    "RoCE 200": "InfiniBand",
    "RoCE 400": "InfiniBand",
    "Omni-Path 100": "InfiniBand",
    "Slingshot": "InfiniBand",
    "Ethernet 100": "AWS EFA v4",
    "AWS EFA v1": "AWS EFA v4",
    "AWS EFA v2": "AWS EFA v4",
    "AWS EFA v3": "AWS EFA v4",
    "GCP TCPX": "AWS EFA v4",
    "GCP TCPXO": "AWS EFA v4",
}


if __name__ == "__main__":
    main()
