"""The published baselines of the NEST artifact, evaluated like NEST's plans.

The artifact's inputs name a plan of each baseline (stages, replicas, tensor
parallel width). As coded it evaluates them with the stages in reverse and
the layers off by one. This scores them with the shared cost model (preset
``nest-artifact``): in pipeline order, and with the embedding apart from an
even split of the layers. Prints the ratios to NEST's own step time beside
the recorded ones, writes ``bench/results/artifact_baselines.json`` and fills
the table of docs/planners.md.

    python bench/artifact_baselines.py
"""

from __future__ import annotations

import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

from result_files import ROOT, fill, write_rows

from nest.audits.nest_artifact.importer import import_nest_artifact
from nest.cost.score import score
from nest.errors import InvalidPlanError
from nest.ir import Plan, Problem, Stage, Strategy

DATA = ROOT.parent / "shared" / "data" / "nest-artifact"
#: Chains are priced alike to the last digit that is printed. A tensor that
#: skips stages is forwarded through them by the shared model, which the
#: artifact does not charge.
RELATIVE_CHAIN, RELATIVE_SKIPPING = 1e-7, 2e-4
#: The rows that the published means are over.
SERIES = "tpuv4_fatTree__"
WAYS = ("as_coded", "order_fixed", "intended")


def sizes(named: dict[str, Any], num_nodes: int, way: str) -> list[int]:
    """Return the nodes of every stage; the first node is the embedding.

    Every stage has ``⌈L/p⌉`` nodes, or what the input lists, and the last
    one the rest. The intended split does not count the embedding.
    """
    num_layers, stages = named["num_transformer_layers"], named["p"]
    each = -(-num_layers // stages)
    front = named.get("layer_partition", [each] * stages)[:-1]
    if way == "intended" and front:
        front[0] += 1
    found = []
    for size in [*front, num_nodes]:
        found.append(min(size, num_nodes - sum(found)))
    return [size for size in found if size]


def step_time(
    problem: Problem, stages: list[int], replicas: int, tp: int
) -> float | None:
    """Return the step time in the instance's unit; ``None`` if it is none."""
    order = problem.graph.topological_order()
    ids = iter(problem.graph.layers[i].id for i in order)
    strategy = Strategy(tp=tp, recompute=problem.job.recompute[0])
    plan = Plan(
        replicas=replicas,
        micro_batch=1,
        stages=tuple(
            Stage(
                layers=tuple(next(ids) for _ in range(size)),
                devices=strategy.devices,
                strategy=strategy,
            )
            for size in stages
        ),
    )
    try:
        verdict = score(problem, plan)
    except InvalidPlanError:  # more devices than there are
        return None
    if not verdict.feasible:
        return None
    return verdict.step_quanta * problem.quantum_ps / 1e12


def study() -> list[dict[str, object]]:
    """Score every recorded baseline plan; exit if a figure differs."""
    rows: list[dict[str, object]] = []
    with (DATA / "expected.csv").open() as file:
        table = [row for row in csv.DictReader(file) if row["baseline"]]
    for row in table:
        path = DATA / "instances" / f"{row['instance']}.json"
        problem = import_nest_artifact(path)
        named = json.loads(path.read_text())["baselines"][row["baseline"]]
        found: dict[str, object] = {
            "instance": row["instance"],
            "baseline": row["baseline"],
            "nest": float(row["nest_T"]),
            "as_coded": number(row["baseline_T_as_coded"]),
        }
        for way in WAYS[1:]:
            split = sizes(named, len(problem.graph.layers), way)
            value = step_time(problem, split, named["d"], named["t"])
            recorded = number(row[f"baseline_T_{way}"])
            if not agree(value, recorded, is_chain(problem)):
                sys.exit(
                    f"{row['instance']}, {row['baseline']}, {way}: expected "
                    f"{recorded}, got {value}"
                )
            found[way] = value
        rows.append(found)
    return rows


def number(text: str) -> float | None:
    """Return the number of a cell, ``None`` if it is empty."""
    return float(text) if text else None


def is_chain(problem: Problem) -> bool:
    """Whether every edge joins neighbours."""
    return len(problem.graph.edges) == len(problem.graph.layers) - 1


def agree(value: float | None, recorded: float | None, chain: bool) -> bool:
    """Whether both are the same time, or both none."""
    if value is None or recorded is None:
        return value is recorded
    relative = RELATIVE_CHAIN if chain else RELATIVE_SKIPPING
    return math.isclose(value, recorded, rel_tol=relative)


def means(rows: list[dict[str, object]]) -> dict[str, dict[str, float]]:
    """Return the geometric means of the ratios per baseline and way."""
    found: dict[str, dict[str, float]] = {}
    for name in dict.fromkeys(str(row["baseline"]) for row in rows):
        chosen = [
            row
            for row in rows
            if row["baseline"] == name and SERIES in str(row["instance"])
        ]
        for way in WAYS:
            ratios = [
                row[way] / row["nest"]  # type: ignore[operator]
                for row in chosen
                if all(row[other] is not None for other in WAYS)
            ]
            found.setdefault(name, {"rows": len(ratios)})[way] = math.exp(
                sum(map(math.log, ratios)) / len(ratios)
            )
    return found


def main() -> None:
    if not DATA.is_dir():
        sys.exit(f"no {Path('shared') / 'data' / DATA.name} data")
    rows = study()
    lines = [
        "| baseline | rows | as coded | order fixed | "
        "order fixed and embedding + even split |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, found in means(rows).items():
        cells = " | ".join(f"{found[way]:.3f}" for way in WAYS)
        lines.append(f"| {name} | {found['rows']:.0f} | {cells} |")
    text = "\n".join(lines)
    print(text)
    write_rows("artifact_baselines", rows)
    fill(ROOT / "docs" / "planners.md", "artifact", text)


if __name__ == "__main__":
    main()
