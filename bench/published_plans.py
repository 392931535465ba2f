"""Published hand-tuned plans beside the plans that ``dp`` finds.

Every plan of ``bench/published_plans.json`` is a run that its authors describe: model,
cluster, batch, and the degrees that they chose. It is written down as published, scored
by the shared cost model, and compared with what ``dp`` finds for the same model,
cluster, batch, schedule and kinds of parallelism: first without interleaving, with a
proof, then with the numbers of virtual stages that divide the layers, without one.
Under a schedule of fixed chunks, which is timed pass by pass, plain plans (one
pipeline, one strategy, nodes spread evenly) are tried first: ``dp`` starts from the
best of them, and where it does not search that schedule they are all that is tried.

Where the run is a row of the shared measurements, ``nest validate`` predicts
it too, with the kernels and the overlap of its software; the plans here have
those of today, and no overlap. Writes ``bench/results/published_plans.json``
and the table of docs/results/published-plans.md.

    python bench/published_plans.py [--only NAME ...] [--time-limit 600]
                                    [--interleaved 400] [--tables]
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from published_cases import CASES, Published, allowed, build, cut, plan_of
from result_files import fill, page_path, result_path, table, write_result

from nest.constraints.targets import optimizer_of, target
from nest.cost.model import CostModel
from nest.cost.score import Score, score
from nest.errors import InvalidPlanError
from nest.ir.job import FIXED_CHUNKS
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import SolveOptions
from nest.solvers.run import run_solver
from nest.validation.predict import Skip, predict
from nest.validation.reading import read_rows

ROOT = Path(__file__).resolve().parent.parent
MEASUREMENTS = ROOT.parent / "shared" / "data" / "measured" / "measurements.csv"
#: Seconds for the search with interleaving, at most.
INTERLEAVED_S = 400


def kept_by_megatron(case: Published) -> dict[str, Any]:
    """Return what the plan takes with Megatron-LM's default optimizer."""
    problem = build(case)
    job = replace(
        problem.job,
        virtual_stages=allowed(case, problem),
        optimizer=optimizer_of(target("megatron")),
    )
    problem = replace(problem, job=job)
    plan = plan_of(case, problem, case.virtual_stages)
    return describe(problem, plan, score(problem, plan))


def describe(problem: Problem, plan: Plan, verdict: Score) -> dict[str, Any]:
    """Return what a plan is and why it takes as long as it does."""
    loads = [block.load for block in verdict.blocks]
    busiest = max(loads)
    passes = verdict.num_micro_batches
    step = verdict.step_quanta
    idle = step - passes * busiest - max(b.sync for b in verdict.blocks)
    paired = problem.job.schedule == "dualpipe-v"
    return {
        "step_time_s": round(verdict.step_quanta * problem.quantum_ps / 1e12, 4),
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
        # Where passes hide behind one another loads do not add up to this.
        "busiest_block_share": None if paired else round(passes * busiest / step, 4),
        "fill_and_drain_share": None if paired else round(idle / step, 4),
        "sync_share": round(max(b.sync for b in verdict.blocks) / step, 4),
        "imbalance": round(busiest * len(loads) / sum(loads) - 1, 4),
        "memory_gib": round(max(b.memory_bytes for b in verdict.blocks) / 2**30, 2),
    }


def as_it_ran(case: Published) -> float | None:
    """Return what ``nest validate`` says of the run, in seconds."""
    if case.row_id is None or not MEASUREMENTS.exists():
        return None
    (row,) = (row for row in read_rows(MEASUREMENTS) if row.row_id == case.row_id)
    prediction = predict(row)
    return None if isinstance(prediction, Skip) else prediction.step_time_s


def listed(case: Published, problem: Problem) -> tuple[dict[str, Any], Plan | None]:
    """Return the best of the plain plans under a schedule timed by passes.

    And what is known of them. Plain are plans of one pipeline on all devices,
    with one strategy, as many blocks as a power of two, and nodes spread as
    evenly as they can be.
    """
    model, job = CostModel(problem), problem.job
    names = [layer.id for layer in problem.graph.layers]
    costs = problem.graph.kinds[0].costs
    plans: list[tuple[bool, int, Plan, Score]] = []
    for blocks, cost, zero, recompute in product(
        (2, 4, 8, 16, 32), costs, job.zero, job.recompute
    ):
        devices = problem.cluster.num_devices // blocks
        dp, chunks = devices // cost.tp, 2 * blocks
        if dp % cost.ep or job.global_batch % (dp * cost.samples):
            continue
        if chunks > len(names):
            continue
        strategy = Strategy(
            dp=dp, tp=cost.tp, ep=cost.ep, zero=zero, recompute=recompute
        )
        more = len(names) % chunks
        plan = cut(
            [len(names) // chunks + (n < more) for n in range(chunks)],
            names,
            strategy,
            dp * cost.samples,
            case.schedule,
        )
        try:
            verdict = score(problem, plan, model)
        except InvalidPlanError:
            continue
        plans.append((verdict.feasible, verdict.step_quanta, plan, verdict))
    fitting = [part for part in plans if part[0]]
    document: dict[str, Any] = {"plans": len(plans), "fitting": len(fitting)}
    if not fitting:
        return document, None
    _, _, plan, verdict = min(fitting, key=lambda part: part[1])
    return document | describe(problem, plan, verdict), plan


def study(case: Published, time_limit_s: float, interleaved_s: float) -> dict[str, Any]:
    """Score the published plan, solve the problem, compare."""
    problem = build(case)
    interleaved = replace(
        problem, job=replace(problem.job, virtual_stages=allowed(case, problem))
    )
    document: dict[str, Any] = {}
    incumbent: Plan | None = None
    if case.schedule in FIXED_CHUNKS:
        document["plain"], incumbent = listed(case, problem)
    tasks = [("dp", problem, time_limit_s)]
    if interleaved != problem:
        # The exact search was done: its plan is where this one starts.
        limit_s = min(time_limit_s, interleaved_s)
        tasks.append(("dp_interleaved", interleaved, limit_s))
    for key, task, limit_s in tasks:
        began = time.perf_counter()
        options = SolveOptions(time_limit_s=limit_s, warm_start=incumbent)
        result = run_solver(task, "dp", options)
        incumbent = result.plan or incumbent
        document[key] = {
            "status": str(result.status) if result.outcome.ran else "not searched",
            "detail": result.detail,
            "wall_s": round(time.perf_counter() - began, 1),
            "lower_bound_s": None
            if result.lower_bound_quanta is None
            else round(result.lower_bound_quanta * task.quantum_ps / 1e12, 4),
        }
        if result.plan is not None:
            document[key] |= describe(task, result.plan, score(task, result.plan))
    return document


def stated(case: Published) -> dict[str, Any]:
    """Return what the source says, and the scores of its plan."""
    problem = build(case)
    plain = problem
    problem = replace(
        problem, job=replace(problem.job, virtual_stages=allowed(case, problem))
    )
    plan = plan_of(case, problem, case.virtual_stages)
    measured_s, measured_how = case.measured_s, case.measured_how
    if case.printed_tflops is not None:
        flops = problem.job.model_flops_per_sample
        assert flops is not None
        rate = case.printed_tflops * 1e12 * problem.cluster.num_devices
        measured_s = round(flops * case.global_batch / rate, 4)
        measured_how = f"{case.printed_tflops:g} TFLOP/s, by our count"
    document = {
        "source": case.source,
        "assumed": case.assumed,
        "cluster": case.cluster,
        "measured_s": measured_s,
        "measured_how": measured_how,
        "as_it_ran_s": as_it_ran(case),
        "published": describe(problem, plan, score(problem, plan)),
        "layout": layout(case),
        "fp32_gradients": kept_by_megatron(case),
    }
    even = not case.whole_chunks and case.nodes_per_chunk is None
    if case.virtual_stages > 1 and even:
        plan = plan_of(case, plain, 1)
        document["published_without_interleaving"] = describe(
            plain, plan, score(plain, plan)
        )
    return document


def best_of(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return the fastest plan that was found for a case."""
    parts = [
        record[key]
        for key in ("dp", "dp_interleaved")
        if "step_time_s" in record.get(key, {})
    ]
    return min(parts, key=lambda part: part["step_time_s"], default=None)


def layout(case: Published) -> dict[str, Any]:
    """Return the published degrees with ZeRO 1 and what fits best with it.

    Says how much of a gap comes from the layout, and how much from
    recomputation and sharding, which are cheaper to change.
    """
    problem = build(case)
    problem = replace(
        problem, job=replace(problem.job, virtual_stages=allowed(case, problem))
    )
    described = []
    for recompute in problem.job.recompute:
        changed = replace(case, zero=1, recompute=recompute)
        plan = plan_of(changed, problem, case.virtual_stages)
        described.append(describe(problem, plan, score(problem, plan)))
    fitting = [part for part in described if part["feasible"]]
    if not fitting:
        return min(described, key=lambda part: part["memory_gib"])
    return min(fitting, key=lambda part: part["step_time_s"])


def ratio(ours: float | None, theirs: float | None) -> str:
    """Return by how much the first is more, in per cent."""
    return f"{ours / theirs - 1:+.1%}" if ours and theirs else ""


def against(part: dict[str, Any], best: dict[str, Any] | None) -> str:
    """Return by how much a plan is slower than the best, if it fits."""
    if not part["feasible"]:
        return "does not fit"
    return ratio(part["step_time_s"], None if best is None else best["step_time_s"])


def searched(part: dict[str, Any] | None, plain: dict[str, Any] | None = None) -> str:
    """Return what a search found: seconds, and what that is."""
    if part is None:
        return ""
    if "step_time_s" in part:
        proof = "" if part["status"] == "optimal" else f" ({part['status']})"
        return f"{part['step_time_s']:.2f}{proof}"
    if plain is None or "step_time_s" not in plain:
        return str(part["status"])
    return f"{part['status']}; plain {plain['step_time_s']:.2f}"


def markdown(records: dict[str, Any]) -> str:
    """Return the table of docs/results/published-plans.md."""
    lines = []
    for name, record in records.items():
        published, best = record["published"], best_of(record)
        measured_s, then_s = record["measured_s"], record["as_it_ran_s"]
        lines.append(
            [
                name,
                "" if measured_s is None else ratio(then_s, measured_s),
                searched(best_of(record), record.get("plain")),
                against(published, best),
                against(record["layout"], best),
            ]
        )
    return table(
        "run | prediction error | "
        "`dp`, s | published against best | "
        "its layout against best",
        lines,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=None)
    parser.add_argument("--time-limit", type=float, default=600)
    parser.add_argument("--interleaved", type=float, default=INTERLEAVED_S)
    parser.add_argument(
        "--tables",
        action="store_true",
        help="solve nothing, write the tables of what is stored",
    )
    arguments = parser.parse_args()
    stored: dict[str, Any] = {}
    results = result_path("published_plans")
    if results.exists():
        stored = json.loads(results.read_text())
    for case in CASES:
        if arguments.tables or (
            arguments.only is not None and case.name not in arguments.only
        ):
            continue
        print(case.name, flush=True)
        stored[case.name] = study(case, arguments.time_limit, arguments.interleaved)
        write_result("published_plans", stored)
    records = {case.name: stored[case.name] for case in CASES if case.name in stored}
    for case in CASES:
        if case.name in records:
            records[case.name] |= stated(case)
    write_result("published_plans", records)
    fill(page_path("published-plans"), "published", markdown(records))


if __name__ == "__main__":
    main()
