"""What the heuristic elimination of ``ft`` loses against exact frontiers.

TensorOpt's eliminations are exact as long as the graph shrinks to a path.
Where a layer's output is needed in several places they may not apply, and the
layer gets the configuration that is best for it alone. Here the models of the
zoo get such edges, once, and ``ft`` is held against the exact frontier of the
plans that it chooses from: one stage on all devices, one replica, the least
ZeRO and recomputation. All of its points are priced by the shared cost model.
Writes ``bench/results/frontier_tracking.json`` and fills the table of
docs/results/frontier.md.

    python bench/frontier_tracking.py [--only TEXT]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable

from msgspec.structs import replace
from result_files import fill, page_path, read_rows, table, write_rows

from baselines.ft import HEURISTICS, frontier, offers
from nest.analysis.pareto import frontier as exact_frontier
from nest.benchmarks.instances import Recipe, build
from nest.cost.model import CostModel
from nest.ir import Edge, Problem
from nest.ir.plan import RECOMPUTE
from nest.search.frontier.staircase import Staircase, make_point

#: Edges that are added to a chain of layers, by position.
Skips = Callable[[int], Iterable[tuple[int, int]]]

SKIPS: dict[str, Skips] = {
    "none": lambda count: (),
    "every other layer": lambda count: ((i, i + 2) for i in range(1, count - 3)),
    "first layer to all": lambda count: ((1, i) for i in range(3, count - 1)),
    "both": lambda count: (
        *SKIPS["every other layer"](count),
        *((1, i) for i in range(4, count - 1)),
    ),
}

#: Model, cluster, edges.
RUNS = [
    (model, cluster, skips)
    for model, cluster in (("bert-large", "v100x16"), ("llama2-7b", "h100x8"))
    for skips in SKIPS
]


def load(model: str, cluster: str, skips: str) -> Problem:
    """Return the problem of a chain with more edges, as ft sees it."""
    problem = build(Recipe(model=model, cluster=cluster))
    graph = problem.graph
    order = [graph.layers[i].id for i in graph.topological_order()]
    # As large as what the layers hand on anyway.
    size = max(edge.bytes_per_sample for edge in graph.edges)
    more = tuple(
        Edge(source=order[a], target=order[b], bytes_per_sample=size)
        for a, b in SKIPS[skips](len(order))
    )
    job = replace(
        problem.job,
        granularity="layer",
        pipeline_parallel=(1,),
        replicas=(1,),
        zero=(min(problem.job.zero),),
        recompute=(min(problem.job.recompute, key=RECOMPUTE.index),),
    )
    graph = replace(graph, edges=(*graph.edges, *more))
    return replace(problem, graph=graph, job=job)


def run(model: str, cluster: str, skips: str) -> list[dict[str, object]]:
    """Return a row per heuristic."""
    problem = load(model, cluster, skips)
    costs = CostModel(problem)
    started = time.perf_counter()
    (curve,) = exact_frontier(problem).curves
    exact_s = time.perf_counter() - started
    assert curve.proven
    truth = [(p.memory_bytes, p.step_quanta) for p in curve.points]
    capacity = problem.cluster.memory_bytes()
    rows = []
    for name, heuristic in HEURISTICS.items():
        if heuristic is None:
            continue
        started = time.perf_counter()
        staircase = Staircase()
        fixed: set[int] = set()
        for offer in offers(problem):
            answers, chosen = frontier(costs, offer, heuristic)
            fixed.update(chosen)
            for answer in answers:
                point = make_point(costs, answer.plan)
                if point.memory_bytes <= capacity:
                    staircase.add(point)
        ft_s = time.perf_counter() - started
        reached = {(p.memory_bytes, p.step_quanta) for p in staircase.points}
        times = [staircase.least_time(memory) for memory, _ in truth]
        losses = [
            ours / best - 1
            for ours, (_, best) in zip(times, truth, strict=True)
            if ours < 2**61
        ]
        rows.append(
            {
                "model": model,
                "cluster": cluster,
                "edges": skips,
                "heuristic": name,
                "fixed_layers": len(fixed),
                "exact_points": len(truth),
                "points": len(staircase.points),
                "points_on_the_exact_frontier": len(reached & {*truth}),
                "budgets_without_a_plan": len(truth) - len(losses),
                "mean_loss": sum(losses) / max(1, len(losses)),
                "largest_loss": max(losses, default=0.0),
                "exact_s": round(exact_s, 3),
                "ft_s": round(ft_s, 3),
            }
        )
        # What is exact is never beaten.
        assert min(losses, default=0.0) >= 0
    return rows


def markdown(rows: list[dict[str, object]]) -> str:
    """Return the table of the docs: chains with most edges."""
    counts = ("exact_points", "points_on_the_exact_frontier")
    return table(
        "chain | heuristic | exact points | found by `ft` | mean loss | largest loss",
        (
            (
                f"{row['model']} on {row['cluster']}",
                row["heuristic"],
                *(row[name] for name in counts),
                *(f"{row[x]:.1%}" for x in ("mean_loss", "largest_loss")),
            )
            for row in rows
            if row["edges"] == "both"
        ),
        "llrrrr",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT")
    options = parser.parse_args()
    rows = read_rows("frontier_tracking")
    for what in RUNS:
        if options.only not in " ".join(what):
            continue
        rows = [
            row for row in rows if (row["model"], row["cluster"], row["edges"]) != what
        ]
        new_rows = run(*what)
        rows += new_rows
        for row in new_rows:
            print(row, flush=True)
        write_rows("frontier_tracking", rows)
    fill(page_path("frontier"), "tracking", markdown(rows))


if __name__ == "__main__":
    main()
