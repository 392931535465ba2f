"""Every table that the command line prints, as people see it.

``python -m tests.tables`` writes how each looks on terminals of three widths
to ``tests/data/tables``; look at what changed.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import yaml
from rich.console import RenderableType

import nest
from nest import instances
from nest.analysis import offers
from nest.analysis.explain import explain
from nest.analysis.fit import StepTimeLimit, fewest_devices
from nest.analysis.fits import fits as all_fits
from nest.analysis.measured_step import explain_measured
from nest.analysis.page_facts import Wish
from nest.analysis.pareto import Curve, Frontier, FrontierPoint
from nest.analysis.prove import Proof
from nest.analysis.robust import Candidate, Robust
from nest.cli import inspecting, profiling
from nest.conform.doctor import Finding
from nest.conform.records import Check, Report, State
from nest.cost.score import score
from nest.ir import Plan, Problem, Strategy, problem_hash
from nest.operator_schedule import Cores
from nest.operator_schedule import schedule as scheduled_on_cores
from nest.operator_schedule.layer_file import decode_layer
from nest.present import (
    audit,
    benchmark,
    calibration,
    codesign,
    explanation,
    fit,
    fits,
    frontier,
    network,
    published,
    robust,
    schedule,
    screen,
    simulation,
    sweep,
    table,
    validation,
)
from nest.present import checks as found_checks
from nest.present import instances as instance_report
from nest.present.comparison import compare_screen, repeat_texts
from nest.present.table import terminal_table
from nest.present.verbosity import VERBOSE
from nest.search.frontier.staircase import Gap
from nest.simulation.events import Simulation
from nest.solvers.base import Limit, SolveOptions, Status
from nest.solvers.result import Outcome, SolveResult
from nest.studies.study import Findings, Plot, Study
from nest.topology.levels import NetworkFacts, PartitionFacts, Range
from nest.uncertainty.intervals import (
    Deviations,
    Interval,
    Measured,
    Quantiles,
    intervals_of,
)
from nest.util.tables import Column, Table
from tests import codesigns
from tests.builders import SINGLE, make_cost, make_levels, make_plan, make_problem
from tests.inside import run_inside

FOLDER = Path(__file__).parent / "data" / "tables"
ROOT = Path(__file__).parents[1]
WIDTHS = (80, 100, 160)

Parts = Sequence[RenderableType]

#: How far predictions are off here: what is stored changes with every fit.
_DEVIATIONS = Deviations(
    noise=0.05,
    device=0.05,
    network=0.1,
    host=0.1,
    unseen=0.2,
    experts=0.1,
    low_precision=0.1,
    plan_noise=0.02,
    apart=1.0,
    step=Quantiles(low_90=-2, low_50=-0.7, high_50=0.7, high_90=2),
    memory=Quantiles(low_90=-0.1, low_50=-0.02, high_50=0.04, high_90=0.1),
    memory_error=0.06,
    families={family: Measured(runs=200, sources=10) for family in ("A100", "H100")},
)


class Terminal(io.StringIO):
    """A terminal of as many columns as COLUMNS says."""

    def isatty(self) -> bool:
        """Say that it is one."""
        return True


def on_terminal(width: int, parts: Parts) -> list[str]:
    """Return the lines of a terminal without colors."""
    file = Terminal()
    with patch.dict(os.environ, COLUMNS=str(width), NO_COLOR="1"):
        table.show(file, *parts)
    return file.getvalue().splitlines()


@contextmanager
def heard() -> Iterator[list[RenderableType]]:
    """Gather what commands print instead of printing it."""
    found: list[RenderableType] = []

    def show(_file: Any, *parts: RenderableType) -> None:
        found.extend(parts)

    with patch.object(table, "show", show):
        yield found


def at_length(parts: Callable[[], Parts]) -> Parts:
    """Return what ``--verbose`` shows."""
    token = VERBOSE.set(True)
    try:
        return parts()
    finally:
        VERBOSE.reset(token)


def stored(name: str) -> tuple[Problem, Plan]:
    """Return an instance and its best known plan."""
    plan = instances.best_known(name).plan
    assert plan is not None
    return instances.problem(name), plan


def result(problem: Problem, plan: Plan, **changes: Any) -> SolveResult:
    """Return the answer of a solver with a plan that it proves."""
    found = score(problem, plan)
    fields: dict[str, Any] = {
        "solver": "dp",
        "exact": True,
        "outcome": Outcome.SOLVED,
        "status": Status.OPTIMAL,
        "problem_hash": problem_hash(problem),
        "quantum_ps": problem.quantum_ps,
        "plan": plan,
        "score": found,
        "lower_bound_quanta": found.step_quanta,
        "wall_s": 1.25,
    }
    return SolveResult(**(fields | changes))


#: A plan of eight stages, four of them equal.
EIGHT = "llama3-70b-dgx-h100x64-megatron"


def comparison() -> Parts:
    """Return all columns and all kinds of rows."""
    problem, plan = stored(EIGHT)
    best = result(problem, plan)
    assert best.score is not None
    step = best.score.step_quanta
    slower = replace(best.score, step_quanta=step + step // 15)
    results = [
        best,
        replace(
            best,
            solver="milp",
            status=Status.FEASIBLE,
            limit=Limit.TIME,
            lower_bound_quanta=step - step // 7,
            wall_s=60.0,
        ),
        replace(
            best,
            solver="galvatron",
            exact=False,
            status=Status.FEASIBLE,
            score=slower,
            lower_bound_quanta=None,
            own_objective_ns=0.9 * best.score.step_time_ns,
            detail="ZeRO 1 is not considered",
        ),
        replace(
            best,
            solver="phaze",
            outcome=Outcome.MISMATCH,
            exact=False,
            status=Status.FEASIBLE,
            lower_bound_quanta=None,
            detail="claims 1,234,567 quanta, its plan takes 62,328,301,123",
        ),
        replace(
            best,
            solver="brute",
            outcome=Outcome.SKIPPED,
            status=None,
            plan=None,
            score=None,
            lower_bound_quanta=None,
            wall_s=0.0,
            detail="more than 200000 plans; raise brute.max_plans",
        ),
    ]
    cells = {"dp": SolveOptions(time_limit_s=60, num_workers=2)}
    repeated = repeat_texts(problem, best.problem_hash, cells)
    return [
        *compare_screen(problem, results, ["launch: nest export"]),
        *at_length(lambda: compare_screen(problem, results, repeated)),
    ]


def answer(name: str) -> Parts:
    """Return what ``nest solve --verbose`` says of the best plan known."""
    problem, plan = stored(name)
    found = result(problem, plan)

    def parts() -> Parts:
        return screen.screen(problem, screen.answer_rows(problem, found))

    stages = screen.stage_parts(problem, plan, score(problem, plan))
    return [*parts(), "", *at_length(parts), *stages]


def launched() -> Parts:
    """Return what ``nest solve --launch`` says."""
    problem, plan = stored(EIGHT)
    text = "export CUDA_DEVICE_MAX_CONNECTIONS=1\nARGS=(\n  --bf16\n)"
    answer = result(problem, plan)
    rows = screen.answer_rows(problem, answer, "--target megatron", Wish(5e11, 2.0))
    return screen.screen(problem, rows, [text])


def guaranteed() -> Parts:
    """Return what ``nest solve --robust`` says besides."""
    problem, plan = stored(EIGHT)
    first = result(problem, plan)
    assert first.score is not None
    known = intervals_of(problem, plan, first.score)
    assert known is not None
    quick = Candidate(plan, first.score, known, False)
    score_of = replace(first.score, step_quanta=first.score.step_quanta * 101 // 100)
    best_known = replace(known, step_90_ns=Interval(5e10, 7e10))
    best = Candidate(plan, score_of, best_known, False)
    found = Robust(first, first, best, quick, None, 7, 4, 6.2e10)
    texts = robust.robust_texts(problem, found)
    return screen.screen(problem, [("guaranteed", text) for text in texts])


def scored(name: str) -> Parts:
    """Return what ``nest score`` says of an interleaved plan."""
    problem, plan = stored(name)
    found = score(problem, plan)
    return [
        *screen.screen(problem, screen.plan_rows(problem, plan, found)),
        *screen.stage_parts(problem, plan, found),
    ]


def simulated() -> Parts:
    """Return what ``nest simulate`` says."""
    made = Simulation(*stored(EIGHT))
    return simulation.simulation_block(made, simulation.simulation_document(made))


def _chain(**fields: Any) -> Problem:
    """Two layers of 30 ns on two devices."""
    cost = make_cost(10, 20, kept_bytes=10)
    fields = {"global_batch": 4, "devices": 2} | fields
    return make_problem({"a": cost, "b": cost}, edge=10, **fields)


def explained() -> Parts:
    """Return what ``nest explain`` says, with a preferred setting."""
    problem = _chain(devices=4, topology=make_levels((2, 10.0, 1e9), (2, 100.0, 1e8)))
    plan = make_plan(("a b", SINGLE))
    with patch("nest.analysis.explain.run_solver", run_inside):
        found = explain(problem, plan, prefer={"pp": (2,)})
    found = replace(found, measured=explain_measured(problem, plan, 200))
    return explanation.explanation_block(found, ["the problem has pp 1,2"])


def fitted() -> Parts:
    """Return what ``nest fit`` says of devices."""
    target = StepTimeLimit(130, "a step within 1.3e-07 s")
    with patch("nest.analysis.fit.run_solver", run_inside):
        found = fewest_devices(_chain(), target)
    return fit.fit_block(_chain(), found, "--pin zero=0")


def fitted_at_length() -> Parts:
    """Return what ``nest fit --verbose`` says of devices."""
    return at_length(fitted)


def fitting() -> Parts:
    """Return what ``nest fits`` says of a launch that does not fit."""
    problem = nest.problem(model="llama2-7b", cluster="h100x8", global_batch=64)
    strategy = Strategy(dp=8)
    layers = " ".join(layer.id for layer in problem.graph.layers)
    plan = make_plan((layers, strategy), micro_batch=16)
    return fits.fits_block(all_fits(problem, plan), "run.sh")


def varied() -> Parts:
    """Return what ``nest sweep --vary`` says."""
    return sweep.sweep_block(document("sweep-vary"))


def offered() -> Parts:
    """Return what ``nest fit`` says of offers."""
    problem = offers.with_prices(_chain(), {"device": 2.5})
    with patch("nest.analysis.fit.run_solver", run_inside):
        found = offers.best_offer(problem, "fastest", offers.Limits())
    return fit.fit_block(problem, found, "")


def points() -> Parts:
    """Return what ``nest pareto`` says, with a proof and a gap."""
    problem, plan = stored(EIGHT)
    found = score(problem, plan)
    memory = max(block.memory_bytes for block in found.blocks)
    made = tuple(
        FrontierPoint(64, found.step_quanta + more, memory - more, plan, found)
        for more in (5 * 10**9, 10**9, 0)
    )
    gap = Gap(memory - 10**9, memory, found.step_quanta - 10**6)
    curve = Curve(64, problem, made, (gap,))
    traced = Frontier(problem, ("time", "memory"), (curve,), made, 2.5)
    within = result(problem, plan, solver="cpsat")
    proof = Proof(made[-1], within, within, "open", "a byte less is as fast")
    return [
        *frontier.frontier_block(traced, [], 100_000, "cpsat", [proof]),
        "",
        terminal_table(frontier.frontier_table(traced, top=2)),
    ]


def validated() -> Parts:
    """Return what ``nest validate`` says."""
    return validation.validation_block(document("validate"))


def calibrated() -> Parts:
    """Return what ``nest calibrate`` says."""
    return calibration.calibration_block(document("calibrate"))


def conforming() -> Parts:
    """Return what ``nest conform`` says."""
    reason = "on 'tiny' it says optimal at 120, and a plan of 90 is known"
    checks = (
        Check("plans are legal", State.PASSED, "12 plans on 9 problems"),
        Check("what is called optimal is", State.FAILED, reason),
        Check("seeds repeat", State.NOT_APPLICABLE, "it makes no choices"),
    )
    return found_checks.conform_block(Report("mine", "1.2", 10.0, checks))


def described() -> Parts:
    """Return what ``nest topology show`` says."""
    ports = Range(5e10, 4.5e11)
    part = PartitionFacts(8, Range(8, 8), ports, Range(1, 2.25), 1.6e12)
    facts = NetworkFacts(
        name="two racks of four nodes, rails joined above",
        num_devices=64,
        num_switches=18,
        num_links=144,
        port_bytes_per_s=ports,
        bisection_bytes_per_s=1.6e12,
        diameter_hops=6,
        diameter_latency_ns=5000.0,
        bounds_ns_per_byte={"all_reduce": 0.04, "all_to_all": 0.02},
        partitions=(part, replace(part, num_units=2)),
    )
    return list(network.facts_block(facts, []))


def priced() -> Parts:
    """Return what ``nest topology bench`` and ``price`` say."""
    kinds = {
        kind: {"ns": 2.5e6, "algorithm": "ring", "bound_ns": 1.9e6}
        for kind in network.get_args(network.CollectiveKind)
    }
    rows = [{"bytes": 2**16, **kinds}, {"bytes": 2**30, **kinds}]
    case = SimpleNamespace(collective="all_reduce", bytes=1e9, groups=[[0, 1, 2, 3]])
    return [
        *network.bench_block("dgx:nodes=8", [[0, 1], [2, 3]], rows),
        "",
        *network.price_block(case, document("topology-price")),  # type: ignore[arg-type]
    ]


def listed() -> Parts:
    """Return lists: some solvers, instances, classes and problems."""
    names = ("dp", "cpsat", "alpa", "random")
    found = ["llama2-7b-quad-a100-40gbx4", "t5-11b-a100-40gbx4", EIGHT]
    with heard() as parts:
        entries = [
            entry for entry in inspecting._solver_entries() if entry["solver"] in names
        ]
        entries[-1]["reason"] = "expected ortools, got none; install it"
        with patch.object(inspecting, "_solver_entries", lambda: entries):
            context = inspecting.solvers_command.make_context("solvers", [])
            with context:
                inspecting.solvers_command.invoke(context)
        inspecting._list("problem", "", inspecting._problems(), None)
    # Instances are added now and then.
    with patch.object(instance_report, "names", lambda _: range(12)):
        classes = instance_report.class_table()
    known = instance_report.instance_table(found)
    spaced = [part for item in parts for part in (item, "")]
    return [*spaced, known, "", classes]


def examined() -> Parts:
    """Return what ``nest doctor`` says."""
    return found_checks.doctor_block([Finding(*found) for found in document("doctor")])


def profiled() -> Parts:
    """Return what ``nest profile`` says."""
    entry = SimpleNamespace(**document("profile"))
    with heard() as parts, patch("nest.cli.profiling.encode_profile", lambda _: b""):
        made = SimpleNamespace(entries=[entry, entry])
        profiling._write(os.devnull, made)  # type: ignore[arg-type]
    return parts


def ran() -> Parts:
    """Return what ``nest bench``, and ``nest compare`` of several, say."""
    return benchmark.benchmark_block(document("bench"), cells=True)


@cache
def _documents() -> dict[str, Any]:
    text = (FOLDER.parent / "documents.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def document(name: str) -> dict[str, Any]:
    """Return a stored document of a command."""
    return deepcopy(_documents()[name])


def swept() -> Parts:
    """Return what ``nest sweep`` says."""
    made = document("bench")
    made["answers"] |= document("sweep")
    return benchmark.benchmark_block(made)


def audited() -> Parts:
    """Return what ``nest audit`` says on a terminal."""
    study = Study(
        name="tiny",
        question="What is lost by not seeing the network?",
        method="Plans of blinded planners are scored by the shared model.",
        quick="Four instances.",
        limits=("Instances are those of the library.",),
        run=lambda _: findings,
    )
    columns = [Column(*fields) for fields in document("audit")["columns"]]
    name = "llama3-70b-dgx-h100x64-megatron"
    costs = Table(
        key="costs",
        title="What blinded plans cost",
        text="A row each.",
        columns=columns,
        rows=[(name, "topology", 62.3283, 66.4835, 6.67, 12.5, 8, None)],
    )
    findings = Findings(
        ("Blind to topology, plans take 6.67 % more.",), (costs,), Plot("", "", "", ())
    )
    return list(audit.audit_block(study, findings, quick=True))


#: What people see, by the name of its file.
def codesigned() -> Parts:
    """Return what ``nest codesign`` says, with everything there can be."""
    document = codesigns.document()
    return [
        *codesign.read_block(document["spec"]),
        "",
        *codesign.answers_block(document),
    ]


def cores_scheduled() -> Parts:
    """Return what ``nest schedule`` says of a layer."""
    path = ROOT / "examples" / "codesign" / "layer.json"
    layer = decode_layer(path.read_bytes())
    cores = Cores(8, 2)
    found = {
        name: scheduled_on_cores(operators, cores)
        for name, operators in layer.passes.items()
    }
    return schedule.schedule_block(layer, cores, found)


TABLES: dict[str, Callable[[], Parts]] = {
    "audit": audited,
    "bench": ran,
    "calibrate": calibrated,
    "codesign": codesigned,
    "compare": comparison,
    "conform": conforming,
    "doctor": examined,
    "explain": explained,
    "fit-devices": fitted,
    "fit-verbose": fitted_at_length,
    "fit-offers": offered,
    "fits": fitting,
    "lists": listed,
    "pareto": points,
    "profile": profiled,
    "published": lambda: [*published.peaks_block(), *published.blocks_block()],
    "robust": guaranteed,
    "schedule": cores_scheduled,
    "score-interleaved": lambda: scored("gpt3-13b-dgx-a100x16-interleaved"),
    "simulate": simulated,
    "solve": lambda: answer(EIGHT),
    "solve-launch": launched,
    "solve-replicas": lambda: answer("bloom-176b-jean-zay-a100x192"),
    "sweep": swept,
    "sweep-vary": varied,
    "topology-bench": priced,
    "topology-show": described,
    "validate": validated,
}


def made(name: str) -> Parts:
    """Return what people see, by stored figures that no fit changes."""
    deviations = lambda: _DEVIATIONS  # noqa: E731
    with (
        patch("nest.uncertainty.intervals.stored_deviations", deviations),
        patch.object(validation, "MEAN_ERROR", 0.06),
    ):
        return TABLES[name]()


def snapshot(parts: Parts) -> str:
    """Return how parts look at all widths, in one text."""
    return "".join(
        f"== {width} columns\n" + "".join(f"{line}\n" for line in lines)
        for width in WIDTHS
        for lines in (on_terminal(width, parts),)
    )


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in TABLES:
        (FOLDER / f"{name}.txt").write_text(snapshot(made(name)))
