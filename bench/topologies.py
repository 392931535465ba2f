"""What it costs a planner not to know the network.

Several models on several networks of 64 equal devices. Of each pair the optimum, and
what planners lose that know less, by their own optimum scored on the true network:

- *blind*: communication takes no time;
- *contention-blind*: every group and every replica's message is priced alone;
- *wrong network*: the optimum on each of the other networks.

Writes ``bench/results/topologies.json`` and docs/results/networks.md. Then NEST's own
inputs, blind and not.

    python bench/topologies.py [--workers 2]
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any
from unittest import mock

from msgspec.structs import replace
from result_files import ROOT, fill, page_path, table, write_rows

from nest.audits.nest_artifact.importer import import_nest_artifact
from nest.benchmarks.instances import Recipe, build
from nest.cost.score import score
from nest.ir import GraphTopology, Plan, Problem
from nest.search.solver import DpSolver
from nest.solvers.base import SolveOptions, Status
from nest.studies.artifact import free
from nest.studies.contention import Alone
from nest.topology import NETWORKS
from nest.topology.generators import generate
from nest.topology.graph.convert import topology_of

CLUSTER = "h100x64"

#: Networks of at least 64 devices, by a name for people.
TOPOLOGIES = {
    "NVL72 rack": "nvl72:racks=1",
    "DGX, a port per GPU": "dgx:nodes=8",
    "rails without spines": "rail:nodes=8,spines=0",
    "DGX, leaves 4:1": "dgx:nodes=8,nodes_per_leaf=2,oversubscription=4",
    "DGX, a port per node": "dgx:nodes=8,ports=shared",
    "leaf–spine 2:1, no NVLink": "leaf-spine:leaves=8,hosts=8,oversubscription=2",
    "DGX-1 meshes": "dgx1:nodes=8",
    "torus 4×4×4": "tpu-v5p:4x4x4",
    "torus 8×8": "torus:8x8",
    "dragonfly": "dragonfly:p=2,a=4,h=2,g=8",
}

#: Dense, mixture of experts, long sequences.
MODELS = {
    **{
        model: Recipe(model=model, cluster=CLUSTER)
        for model in (
            *("llama2-7b", "llama3-70b", "gpt3-175b", "mixtral-8x7b"),
            "qwen3-30b-a3b",
        )
    },
    "llama3-8b, 32k tokens": Recipe(
        model="llama3-8b", cluster=CLUSTER, sequence_length=32768, cp=(1, 2, 4, 8)
    ),
}


DATA = ROOT.parent / "shared" / "data" / "nest-artifact"


# Problems and planners


def problem_of(model: str, network: str) -> Problem:
    """Return a model on the devices, joined by a network."""
    problem = build(MODELS[model])
    topology = topology_of(generate(TOPOLOGIES[network]), network)
    return replace(problem, cluster=replace(problem.cluster, topology=topology))


def fastest(problem: Problem) -> Plan | None:
    """Return a plan that is proven to be the fastest, if any fits."""
    output = DpSolver().solve(problem, SolveOptions(num_workers=1))
    if output.status not in (Status.OPTIMAL, Status.INFEASIBLE):
        sys.exit(f"{problem.name}: expected an optimum, got {output.status}")
    return output.plan


def optimum(problem: Problem) -> Plan:
    """Return the fastest plan of a problem that some plan fits."""
    plan = fastest(problem)
    if plan is None:
        sys.exit(f"{problem.name}: expected a plan that fits")
    return plan


def step_ns(problem: Problem, plan: Plan) -> float:
    """Return the step time of a plan on the true network."""
    verdict = score(problem, plan)
    if not verdict.feasible:
        sys.exit(f"{problem.name}: expected a plan that fits")
    return verdict.step_time_ns


def plans_of(task: tuple[str, str]) -> tuple[Plan, Plan]:
    """Return the optimum of a model on a network, contention seen or not."""
    model, network = task
    problem = problem_of(model, network)
    best = optimum(problem)
    with mock.patch.dict(NETWORKS, {GraphTopology.kind: Alone}):
        return best, optimum(problem)


def blind_plan(model: str) -> Plan:
    """Return what is fastest where no communication takes time."""
    return optimum(free(problem_of(model, "NVL72 rack")))


# The study


def study(workers: int) -> list[dict[str, Any]]:
    """Return a row per model and network."""
    cells = list(itertools.product(MODELS, TOPOLOGIES))
    with ProcessPoolExecutor(workers) as pool:
        blind = dict(zip(MODELS, pool.map(blind_plan, MODELS), strict=True))
        plans = dict(zip(cells, pool.map(plans_of, cells), strict=True))
    rows = []
    for model, network in cells:
        problem = problem_of(model, network)
        best, unshared = plans[model, network]
        best_ns = step_ns(problem, best)

        def loss(
            plan: Plan, problem: Problem = problem, best_ns: float = best_ns
        ) -> float:
            ratio = step_ns(problem, plan) / best_ns - 1
            if ratio < 0:
                sys.exit(f"{problem.name}: a plan beats the optimum")
            return ratio

        rows.append(
            {
                "model": model,
                "network": network,
                "step_ns": best_ns,
                "plan": best.text,
                "blind": loss(blind[model]),
                "contention_blind": loss(unshared),
                "wrong": {
                    other: loss(plans[model, other][0])
                    for other in TOPOLOGIES
                    if other != network
                },
            }
        )
        print(f"{model} on {network}: {rows[-1]}", file=sys.stderr)
    return rows


def nest_inputs() -> list[dict[str, Any]]:
    """Return what a blind optimum loses on NEST's own inputs.

    Those that it came with, and random chains; some fit nowhere.
    """
    rows = []
    for folder in ("instances", "small"):
        for path in sorted((DATA / folder).glob("*.json")):
            problem = import_nest_artifact(path)
            best = fastest(problem)
            if best is None:
                continue
            best_ns = step_ns(problem, best)
            alone = free(problem)
            rows.append(
                {
                    "folder": folder,
                    "instance": path.stem,
                    "step_ns": best_ns,
                    "communication": 1 - step_ns(alone, best) / best_ns,
                    "blind": step_ns(problem, optimum(alone)) / best_ns - 1,
                }
            )
    return rows


# Tables


def geometric(losses: Iterable[float]) -> float:
    """Return the geometric mean of 1 + loss, less 1."""
    logs = [math.log1p(loss) for loss in losses]
    return math.expm1(sum(logs) / len(logs))


def percent(loss: float) -> str:
    """Return a loss for people."""
    if 0 < loss < 0.0005:
        return "< 0.1 %"
    return f"{100 * loss:.0f} %" if loss >= 0.0995 else f"{100 * loss:.1f} %"


def line(name: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return mean and largest losses of some rows."""
    kinds: dict[str, list[float]] = {
        kind: [row[kind] for row in rows] for kind in ("blind", "contention_blind")
    }
    kinds["wrong"] = [loss for row in rows for loss in row["wrong"].values()]
    return [
        name,
        *(
            percent(figure(losses))
            for losses in kinds.values()
            for figure in (geometric, max)
        ),
    ]


def losses_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the losses by network, and of all."""
    lines = [
        line(value, [row for row in rows if row["network"] == value])
        for value in dict.fromkeys(row["network"] for row in rows)
    ]
    return table(
        "64 equal GPUs on | blind: mean | largest | contention-blind: mean | "
        "largest | wrong network: mean | largest",
        [*lines, line("all", rows)],
    )


def inputs_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what blind planning loses on NEST's inputs."""
    lines = []
    for folder, name in (("instances", "shipped"), ("small", "random chains")):
        of_folder = [row for row in rows if row["folder"] == folder]
        if of_folder:
            losses = [row["blind"] for row in of_folder]
            share = max(row["communication"] for row in of_folder)
            figures = (share, geometric(losses), max(losses))
            lines.append((name, len(of_folder), *map(percent, figures)))
    return table(
        "NEST's inputs | with a plan | largest share of communication | "
        "blind: mean loss | largest",
        lines,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--workers", type=int, default=2)
    workers = parser.parse_args().workers
    rows = study(workers)
    inputs = nest_inputs() if DATA.is_dir() else []
    write_rows(
        "topologies",
        [
            *({"study": "networks"} | row for row in rows),
            *({"study": "nest-inputs"} | row for row in inputs),
        ],
    )
    text = losses_table(rows)
    print(text)
    fill(page_path("networks"), "topologies", text)
    text = inputs_table(inputs)
    print(text)
    if inputs:
        fill(page_path("networks"), "nest-inputs", text)


if __name__ == "__main__":
    main()
