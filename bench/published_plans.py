"""Published hand-tuned plans beside the plans that ``dp`` finds.

Every case is a run that its authors describe: model, cluster, batch, and the
degrees that they chose. The plan is written down as published, scored by the
shared cost model, and compared with what ``dp`` finds for the same model,
cluster, batch and kinds of parallelism: first without interleaving, with a
proof, then with the numbers of virtual stages that divide the layers, without
one. Writes ``bench/results/published_plans.json`` and prints a table.

    python bench/published_plans.py [--only NAME ...] [--time-limit 600]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from result_files import fill, result_path, write_result
from validation import table

from nest.cost.score import Score, score
from nest.hardware import parse_cluster
from nest.ir.plan import RECOMPUTE, Plan, Recompute, Stage, Strategy
from nest.ir.problem import Problem
from nest.models.choices import Request, choose
from nest.models.graphs import build_problem
from nest.models.zoo import architecture
from nest.solvers.base import SolveOptions
from nest.solvers.run import run_solver

ROOT = Path(__file__).resolve().parent.parent
#: Seconds for the search with interleaving, at most.
INTERLEAVED_S = 400

#: Samples per data-parallel rank and pipeline step that are searched.
MAX_SAMPLES = 8


@dataclass(frozen=True)
class Published:
    """A published run.

    ``measured_s`` is its step time as printed, or derived from the printed
    FLOP/s per GPU by the source's own formula; ``None`` where only the plan
    is published. ``stated`` says what of the plan is not.
    """

    name: str
    source: str
    model: str
    cluster: str
    global_batch: int
    sequence_length: int
    tp: int
    pp: int
    dp: int
    virtual_stages: int
    zero: int
    recompute: Recompute
    sequence_parallel: bool
    measured_s: float | None
    micro_batch: int = 1
    whole_chunks: bool = False
    stated: str = ""


KORTHIKANTI = "Korthikanti et al. 2022, arXiv 2205.05198, table 5"
NARAYANAN = "Narayanan et al. 2021, arXiv 2104.04473"
LLAMA = "Grattafiori et al. 2024, arXiv 2407.21783, table 4"
LLAMA_STATED = (
    "micro-batch 1, 8 virtual stages (one layer each; the first and the last "
    "chunk hold embedding and head alone, as §3.3.2 describes), ZeRO 2 and no "
    "recomputation are assumed"
)

CASES = (
    Published(
        "megatron-175b-64",
        KORTHIKANTI,
        "gpt3-175b",
        "dgx-a100x64",
        global_batch=64,
        sequence_length=2048,
        tp=8,
        pp=8,
        dp=1,
        virtual_stages=3,
        zero=0,
        recompute="selective",
        sequence_parallel=True,
        measured_s=13.75,
    ),
    Published(
        "megatron-1t-512",
        KORTHIKANTI,
        "megatron-1t",
        "dgx-a100x512",
        global_batch=512,
        sequence_length=2048,
        tp=8,
        pp=64,
        dp=1,
        virtual_stages=1,
        zero=0,
        recompute="selective",
        sequence_parallel=True,
        measured_s=71.49,
    ),
    Published(
        "megatron-175b-1536",
        f"{NARAYANAN}, table 2",
        "gpt3-175b",
        "dgx-a100x1536",
        global_batch=1536,
        sequence_length=2048,
        tp=8,
        pp=12,
        dp=16,
        virtual_stages=1,
        zero=0,
        recompute="full",
        sequence_parallel=False,
        measured_s=None,
        stated="without interleaving, as the comparison with ZeRO-3 ran",
    ),
    Published(
        "megatron-1t-3072",
        f"{NARAYANAN}, table 1",
        "megatron-1t",
        "dgx-a100x3072",
        global_batch=3072,
        sequence_length=2048,
        tp=8,
        pp=64,
        dp=6,
        virtual_stages=1,
        zero=0,
        recompute="full",
        sequence_parallel=False,
        measured_s=102.63,
    ),
    Published(
        "llama3-405b-8192",
        LLAMA,
        "llama3-405b",
        "h100x8192",
        global_batch=2048,
        sequence_length=8192,
        tp=8,
        pp=16,
        dp=64,
        virtual_stages=8,
        zero=2,
        recompute="none",
        sequence_parallel=True,
        measured_s=None,
        whole_chunks=True,
        stated=LLAMA_STATED,
    ),
    Published(
        "llama3-405b-16384",
        LLAMA,
        "llama3-405b",
        "h100x16384",
        global_batch=2048,
        sequence_length=8192,
        tp=8,
        pp=16,
        dp=128,
        virtual_stages=8,
        zero=2,
        recompute="none",
        sequence_parallel=True,
        measured_s=None,
        whole_chunks=True,
        stated=LLAMA_STATED,
    ),
)


def build(case: Published) -> Problem:
    """Return the problem with all choices that the techniques allow."""
    site, num_devices = parse_cluster(case.cluster)
    model = architecture(case.model)
    sizes = {odd << power for odd in (1, 3) for power in range(8)}
    sizes = {
        size for size in sizes if size <= 128 and case.global_batch % size == 0
    }
    choices = choose(
        model,
        site,
        num_devices,
        Request(
            global_batch=case.global_batch,
            sequence_length=case.sequence_length,
            micro_batches=tuple(sorted(sizes | {case.micro_batch * case.dp})),
            layers_per_node=1,
            cp=(1,),
        ),
    )
    choices = replace(
        choices,
        degrees=tuple(
            key for key in choices.degrees if key.samples <= MAX_SAMPLES
        ),
        sequence_parallel=case.sequence_parallel,
    )
    return build_problem(model, site, num_devices, choices, case.name)


def plan_of(case: Published, problem: Problem, virtual: int) -> Plan:
    """Write the published plan down, with ``virtual`` stages per block.

    Layers are spread evenly, embedding and head go with the first and the
    last chunk; with ``whole_chunks`` they count as layers.
    """
    names = [layer.id for layer in problem.graph.layers]
    chunks = case.pp * virtual
    if case.whole_chunks:
        sizes = [len(names) // chunks] * chunks
    else:
        sizes = [(len(names) - 2) // chunks] * chunks
        sizes[0] += 1
        sizes[-1] += 1
    assert sum(sizes) == len(names), case.name
    strategy = Strategy(
        dp=case.dp, tp=case.tp, zero=case.zero, recompute=case.recompute
    )
    stages = []
    first = 0
    for size in sizes:
        stages.append(
            Stage(
                layers=tuple(names[first : first + size]),
                devices=case.tp * case.dp,
                strategy=strategy,
            )
        )
        first += size
    return Plan(
        replicas=1,
        micro_batch=case.micro_batch * case.dp,
        stages=tuple(stages),
        virtual_stages=virtual,
    )


def allowed(case: Published, problem: Problem) -> tuple[int, ...]:
    """Return the numbers of virtual stages up to 16 that divide the layers."""
    layers = len(problem.graph.layers) - 2
    found = {v for v in range(1, 17) if layers % v == 0}
    return tuple(sorted(found | {case.virtual_stages}))


def describe(problem: Problem, plan: Plan, verdict: Score) -> dict[str, Any]:
    """Return what a plan is and why it takes as long as it does."""
    loads = [block.load for block in verdict.blocks]
    busiest = max(loads)
    passes = verdict.num_micro_batches
    step = verdict.step_quanta
    idle = step - passes * busiest - max(b.sync for b in verdict.blocks)
    return {
        "step_time_s": round(
            verdict.step_quanta * problem.quantum_ps / 1e12, 4
        ),
        "mfu": verdict.mfu,
        "feasible": verdict.feasible,
        "replicas": plan.replicas,
        "micro_batch": plan.micro_batch,
        "num_micro_batches": passes,
        "blocks": plan.num_blocks,
        "virtual_stages": plan.virtual_stages,
        "devices_used": plan.devices_used * plan.replicas,
        "strategies": sorted(
            {
                " ".join(
                    f"{key} {getattr(strategy, key)}"
                    for key in Strategy.__struct_fields__
                    if getattr(strategy, key) not in (0, 1, "none")
                    or (key, getattr(strategy, key)) == ("zero", 1)
                )
                for stage in plan.stages
                for strategy in ([stage.strategy] if stage.strategy else [])
            }
        ),
        "busiest_block_share": round(passes * busiest / step, 4),
        "fill_and_drain_share": round(idle / step, 4),
        "sync_share": round(max(b.sync for b in verdict.blocks) / step, 4),
        "imbalance": round(busiest * len(loads) / sum(loads) - 1, 4),
        "memory_gib": round(
            max(b.memory_bytes for b in verdict.blocks) / 2**30, 2
        ),
    }


def study(case: Published, time_limit_s: float) -> dict[str, Any]:
    """Score the published plan, solve the problem, compare."""
    problem = build(case)
    interleaved = replace(
        problem,
        job=replace(problem.job, virtual_stages=allowed(case, problem)),
    )
    document: dict[str, Any] = {
        "source": case.source,
        "assumed": case.stated,
        "cluster": case.cluster,
        "measured_s": case.measured_s,
    }
    plan = plan_of(case, problem, case.virtual_stages)
    document["published"] = describe(
        interleaved, plan, score(interleaved, plan)
    )
    if case.virtual_stages > 1 and not case.whole_chunks:
        plain = plan_of(case, problem, 1)
        document["published_without_interleaving"] = describe(
            problem, plain, score(problem, plain)
        )
    known: Plan | None = None
    for key, task, limit_s in (
        ("dp", problem, time_limit_s),
        # The exact search was done: its plan is where this one starts.
        ("dp_interleaved", interleaved, min(time_limit_s, INTERLEAVED_S)),
    ):
        began = time.perf_counter()
        options = SolveOptions(time_limit_s=limit_s, warm_start=known)
        result = run_solver(task, "dp", options)
        known = result.plan
        document[key] = {
            "status": str(result.status),
            "wall_s": round(time.perf_counter() - began, 1),
            "lower_bound_s": None
            if result.lower_bound_quanta is None
            else round(result.lower_bound_quanta * task.quantum_ps / 1e12, 4),
        }
        if result.plan is not None:
            document[key] |= describe(
                task, result.plan, score(task, result.plan)
            )
    best = min(
        document[key]["step_time_s"]
        for key in ("dp", "dp_interleaved")
        if "step_time_s" in document[key]
    )
    document["published_over_best"] = round(
        document["published"]["step_time_s"] / best - 1, 4
    )
    return document


def layout(case: Published) -> dict[str, Any]:
    """Return the published degrees with ZeRO 1 and what fits best with it.

    Says how much of a gap comes from the layout, and how much from
    recomputation and sharding, which are cheaper to change.
    """
    problem = build(case)
    problem = replace(
        problem,
        job=replace(problem.job, virtual_stages=allowed(case, problem)),
    )
    found = []
    for recompute in RECOMPUTE:
        changed = dataclasses.replace(case, zero=1, recompute=recompute)
        plan = plan_of(changed, problem, case.virtual_stages)
        found.append(describe(problem, plan, score(problem, plan)))
    fitting = [part for part in found if part["feasible"]]
    return min(fitting, key=lambda part: part["step_time_s"])


def markdown(found: dict[str, Any]) -> str:
    """Return the tables of docs/validation.md."""
    lines = []
    reasons = []
    for name, record in found.items():
        published, proven = record["published"], record["dp"]
        best = record["dp_interleaved"]
        if best.get("step_time_s", 1e99) > proven.get("step_time_s", 1e99):
            best = proven
        measured = record["measured_s"]
        lines.append(
            [
                f"{name}, {record['cluster']}",
                "" if measured is None else f"{measured:.2f}",
                f"{published['step_time_s']:.2f}",
                f"{record['layout']['step_time_s']:.2f}",
                f"{proven['step_time_s']:.2f} ({proven['status']})",
                f"{best['step_time_s']:.2f}",
                f"{record['published_over_best']:+.1%}",
                f"{record['layout_over_best']:+.1%}",
            ]
        )
        for kind, part in (
            ("published", published),
            ("its layout", record["layout"]),
            ("best", best),
        ):
            reasons.append(
                [
                    f"{name}, {kind}",
                    "; ".join(part["strategies"]),
                    f"{part['blocks']} · {part['virtual_stages']}",
                    str(part["num_micro_batches"]),
                    f"{part['fill_and_drain_share']:.1%}",
                    f"{part['sync_share']:.1%}",
                    f"{part['imbalance']:.1%}",
                    f"{part['memory_gib']:.0f}"
                    + ("" if part["feasible"] else ", does not fit"),
                ]
            )
    return "\n\n".join(
        [
            table(
                [
                    "run",
                    "measured, s",
                    "published plan, s",
                    "its layout, s",
                    "`dp`, s",
                    "`dp` with interleaving, s",
                    "published against best",
                    "its layout against best",
                ],
                lines,
            ),
            table(
                [
                    "plan",
                    "strategies",
                    "blocks · virtual stages",
                    "micro-batches",
                    "fill and drain",
                    "sync",
                    "imbalance",
                    "memory, GiB",
                ],
                reasons,
            ),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--time-limit", type=float, default=600)
    arguments = parser.parse_args()
    found: dict[str, Any] = {}
    results = result_path("published_plans")
    if results.exists():
        found = json.loads(results.read_text())
    for case in CASES:
        if arguments.only is not None and case.name not in arguments.only:
            continue
        found[case.name] = study(case, arguments.time_limit)
        write_result("published_plans", found)
    for case in CASES:
        record = found.get(case.name)
        if record is None:
            continue
        record["layout"] = layout(case)
        best = record["published"]["step_time_s"] / (
            1 + record["published_over_best"]
        )
        record["layout_over_best"] = round(
            record["layout"]["step_time_s"] / best - 1, 4
        )
    write_result("published_plans", found)
    fill(ROOT / "docs" / "validation.md", "published", markdown(found))
    for name, record in found.items():
        cells = [f"{name:20}"]
        for key in ("published", "dp", "dp_interleaved"):
            part = record[key]
            cells.append(
                f"{key} {part.get('step_time_s', 0):9.3f} s"
                f" ({part.get('status', '')})"
            )
        cells.append(f"published {record['published_over_best']:+.1%}")
        print("  ".join(cells))


if __name__ == "__main__":
    main()
