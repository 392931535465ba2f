"""Frontiers for people and programs: a table, a plot and a document."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding

from nest.analysis.compare import proof_scope
from nest.analysis.pareto import (
    Curve,
    Frontier,
    FrontierPoint,
    bulges,
    knee,
    points_to_show,
)
from nest.analysis.pareto_plot import draw, frontier_ns, frontier_scale
from nest.analysis.prove import Proof
from nest.ir.io import plan_to_json, problem_hash
from nest.present.screen import lines, plans_text, title
from nest.present.table import count, terminal_table
from nest.present.verbosity import VERBOSE
from nest.solvers.result import SolveResult
from nest.units import format_bytes, quanta_to_ns
from nest.util.plots import save_plot
from nest.util.tables import Column, Table
from nest.util.versions import provenance

#: What is said of a frontier without one.
NO_KNEE = "no knee: no point is better than the plane of the extremes"


# Tables


def frontier_block(
    frontier: Frontier,
    notes: Sequence[str],
    steps: int | None,
    prover: str | None,
    proofs: Sequence[Proof],
    top: int | None = None,
    stopped: str = "",
    within: Fraction | None = None,
) -> list[RenderableType]:
    """Return the table, the proofs, and what is proven.

    ``top`` and ``within`` select the points of the table, see
    :func:`nest.analysis.pareto.points_to_show`. ``stopped`` says what was
    known when the user stopped it.
    """
    names = "–".join(frontier.objectives)
    total = f"{count(len(frontier.points), 'plan')} on the {names} frontier"
    items = [lines([title(frontier.problem), total])]
    if frontier.points:
        points = frontier_table(frontier, steps, top, within)
        items.append(terminal_table(points))
    if prover is not None and proofs:
        table = proof_table(frontier, prover, proofs)
        items += [Padding(table, (1, 0, 1, 0))]
    if top is not None and frontier.points and knee(bulges(frontier)) is None:
        notes = [NO_KNEE, *notes]
    shown = points_to_show(frontier, top, within)
    if len(shown) < len(frontier.points):
        given = {"--top": top, "--within": within}
        options = " and ".join(name for name, x in given.items() if x)
        hidden = count(len(frontier.points) - len(shown), "point")
        notes = [*notes, f"{hidden} not shown; without {options} all are"]
    return [*items, frontier_footer(frontier, notes, stopped)]


def stopped_text(
    frontier: Frontier, prover: str | None, proofs: Sequence[Proof], num_requested: int
) -> str:
    """Return what was known of a frontier when the user stopped it.

    ``num_requested`` is how many points the prover was to examine.
    """
    total = count(len(frontier.points), "point")
    proven = [point for point in frontier.points if point.proven]
    if not frontier.proven:
        return (
            f"stopped before the end: {total} known by then, "
            f"{len(proven)} of them proven"
        )
    if not frontier.points:
        return "stopped before the end: what would make plans fit is open"
    return (
        f"stopped before the end: the frontier was known by then, {prover} "
        f"had examined {len(proofs)} of {count(num_requested, 'point')}"
    )


def frontier_table(
    frontier: Frontier,
    steps: int | None = None,
    top: int | None = None,
    within: Fraction | None = None,
) -> Table:
    """Return the table of a frontier, one row per point.

    ``steps`` is the number of steps of a training run, to price it; ``top`` and
    ``within`` select points, see :func:`nest.analysis.pareto.points_to_show`.
    """
    scale = frontier_scale(frontier)
    knee_index = knee(bulges(frontier))
    steps_quanta = [point.step_quanta for point in frontier.points]
    fastest, size = min(steps_quanta), frontier.points[-1].memory_bytes
    indices = {id(p): index for index, p in enumerate(frontier.points, 1)}
    unit = format_bytes(size).split()[1]

    def point_name(point: FrontierPoint) -> str:
        index = indices[id(point)]
        return f"{index} knee" if index == knee_index else str(index)

    def step(point: FrontierPoint) -> str:
        ns = frontier_ns(frontier, point.step_quanta)
        return scale.short(ns).removesuffix(f" {scale.unit}")

    def slower(point: FrontierPoint) -> str:
        if point.step_quanta == fastest:
            return "fastest"
        return f"{100 * (point.step_quanta / fastest - 1):.1f}"

    def usd(name: str, num_steps: int) -> Column:
        return Column(
            name,
            value=lambda p: f"{num_steps * (frontier.step_usd(p) or 0):.6g}",
            right=True,
        )

    def degree(name: str, rank: int) -> Column:
        return Column(
            name if name == "ZeRO" else name.lower(),
            value=lambda point: point.plan.degrees[name],
            rank=rank,
        )

    def order(point: FrontierPoint) -> str:
        order = point.plan.order
        return order if isinstance(order, str) else "list"

    def recompute(point: FrontierPoint) -> str:
        first, *_, last = point.plan.recomputations * 2
        return first if first == last else f"{first}–{last}"

    columns = [
        Column("point", value=point_name),
        Column(
            "memory",
            f"memory, {unit}",
            value=lambda p: format_bytes(p.memory_bytes).removesuffix(f" {unit}"),
            right=True,
        ),
        Column("step", f"step time, {scale.unit}", value=step, right=True),
        Column("slower", "slower, %", value=slower, right=True),
    ]
    if len(frontier.curves) > 1:
        columns.append(Column("devices", right=True))
    if frontier.price_usd_per_hour is not None:
        columns.append(usd("$/step", 1))
        if steps is not None:
            columns.append(usd("$/run", steps))
    if not frontier.proven:
        columns.append(Column("proven", form=lambda x: "yes" if x else "no"))
    if frontier.problem.job.plans_order_passes:
        columns.append(Column("order", value=order))
    columns += [degree("PP", 1), degree("TP", 2), degree("DP", 3)]
    columns += [degree("CP", 6), degree("ZeRO", 5)]
    columns.append(Column("recompute", value=recompute, rank=4))
    if VERBOSE.get():
        columns.append(Column("plan", value=lambda p: p.plan.text))
    positions = points_to_show(frontier, top, within)
    points = [frontier.points[position] for position in positions]
    points.sort(key=lambda point: point.step_quanta)
    return Table.of(columns, points)


def frontier_footer(
    frontier: Frontier, notes: Sequence[str] = (), stopped: str = ""
) -> RenderableType:
    """Return what is proven, and what to do next."""
    texts = [stopped] if stopped else []
    if not frontier.points:
        is_proven = all(curve.proven for curve in frontier.curves)
        texts.append("no plan fits" if is_proven else "no plan was found")
    texts += proof_lines(frontier)
    if frontier.price_usd_per_hour is not None:
        texts.append(f"{frontier.price_usd_per_hour:g} $ per device and hour")
    texts += notes
    if frontier.points:
        texts.append("write plans: -o DIR; more of a plan: nest explain")
    if VERBOSE.get():
        problem = frontier.problem
        texts.append(
            f"preset {problem.preset} · granularity "
            f"{problem.job.granularity} · hash {problem_hash(problem)[:12]}"
        )
    return lines(texts)


def proof_lines(frontier: Frontier) -> list[str]:
    """Return what is proven and what is not, a line each, and of which plans."""
    plans = plans_text(frontier.problem)
    if frontier.proven and not frontier.points:
        return [f"proven of {plans}: there is none"]
    if frontier.proven:
        return [f"proven of {plans}: each is matched or beaten by a point"]
    texts = [f"searched: {plans}"]
    scale = frontier_scale(frontier)
    for curve in frontier.curves:
        for gap in curve.gaps:
            low = max(0, gap.above_bytes)
            bound = scale(frontier_ns(frontier, gap.lower_bound_quanta))
            known = f"a step takes at least {bound}"
            if not gap.lower_bound_quanta:
                known = "nothing is known of the step time"
            texts.append(
                f"not proven: {count(curve.devices, 'device')} from "
                f"{format_bytes(low)} to {format_bytes(gap.up_to_bytes)}, where {known}"
            )
    return texts


def proof_table(
    frontier: Frontier, prover: str, proofs: Sequence[Proof]
) -> RenderableType:
    """Return what another solver says about points."""
    scale = frontier_scale(frontier)

    def answer(result: SolveResult | None) -> str:
        if result is None:
            return "no plan (less than the reserve)"
        if result.status is None:
            return str(result.outcome)
        if result.step_quanta is None:
            return str(result.status)
        return f"{scale(result.step_time_ns)} ({result.status})"

    def wall_s(proof: Proof) -> str:
        return f"{sum(result.wall_s for result in proof.results):.2f}"

    columns = (
        Column("point", value=lambda proof: frontier.points.index(proof.point) + 1),
        Column("verdict", f"{prover} says"),
        Column("within", "within its memory", answer, rank=1, min_width=12),
        Column("below", "one byte less", answer, rank=2, min_width=12),
        Column("wall s", value=wall_s, rank=4),
        Column("detail", "note", rank=3, min_width=16),
    )
    return terminal_table(Table.of(columns, proofs))


def contradictions(
    frontier: Frontier, prover: str | None, proofs: Sequence[Proof]
) -> list[str]:
    """Return a line for every point that another solver contradicts."""
    return [
        f"solver {prover!r} contradicts point "
        f"{frontier.points.index(proof.point) + 1}: {proof.detail}; one of "
        f"them has a bug, please report it"
        for proof in proofs
        if proof.verdict == "contradiction"
    ]


# Plot


def write_plot(path: str, frontier: Frontier) -> None:
    """Draw step time against memory, one line per number of devices.

    A line says how fast a step can be with so much memory per device; it is dashed
    where that is not proven. Dots are points of the frontier in the chosen objectives.
    """
    save_plot(path, lambda axes: draw(axes, frontier))


# Document


def to_document(
    frontier: Frontier,
    *,
    steps: int | None = None,
    prover: str | None = None,
    proofs: Sequence[Proof] = (),
    target: str | None = None,
) -> dict[str, Any]:
    """Return the ``nest-pareto/1`` document of a frontier.

    ``steps`` are those of a training run, to price it; ``target`` names the
    framework that the plans are for.
    """
    problem = frontier.problem

    def ns(quanta: int) -> int | float:
        return quanta_to_ns(quanta, problem.quantum_ps)

    def brief(point: FrontierPoint) -> dict[str, Any]:
        return {
            "num_devices": point.devices,
            "step_time_ns": ns(point.step_quanta),
            "step_time_quanta": point.step_quanta,
            "memory_bytes": point.memory_bytes,
            "proven": point.proven,
        }

    sizes = bulges(frontier)

    def full(position: int, point: FrontierPoint) -> dict[str, Any]:
        step_usd = frontier.step_usd(point)
        return {
            "number": position,
            **brief(point),
            "bulge": float(sizes[position - 1]),
            "usd_per_step": step_usd,
            "usd_per_run": (
                None if step_usd is None or steps is None else steps * step_usd
            ),
            "problem_hash": point.plan.problem_hash,
            "plan": plan_to_json(point.plan),
            "score": point.score.to_json(),
        }

    def curve(item: Curve) -> dict[str, Any]:
        return {
            "num_devices": item.devices,
            "problem_hash": problem_hash(item.problem),
            "proven": item.proven,
            "wall_s": round(item.wall_s, 6),
            "points": [brief(point) for point in item.points],
            "gaps": [
                {
                    "above_bytes": gap.above_bytes,
                    "up_to_bytes": gap.up_to_bytes,
                    "lower_bound_ns": ns(gap.lower_bound_quanta),
                }
                for gap in item.gaps
            ],
        }

    return {
        "schema": "nest-pareto/1",
        "problem": problem.name,
        "problem_hash": problem_hash(problem),
        "preset": problem.preset,
        "granularity": problem.job.granularity,
        "objectives": list(frontier.objectives),
        "price_usd_per_device_hour": frontier.price_usd_per_hour,
        "steps": steps,
        "proven": frontier.proven,
        "proof": proof_scope(problem, target),
        # Until 0.2 fields of the job whose plans were left out.
        "unsearched": [],
        "knee": knee(sizes),
        "points": [full(i, p) for i, p in enumerate(frontier.points, 1)],
        "curves": [curve(item) for item in frontier.curves],
        "prover": prover,
        "proofs": [
            {
                "number": frontier.points.index(proof.point) + 1,
                "verdict": proof.verdict,
                "detail": proof.detail,
                "within": proof.within.summary(),
                "below": proof.below and proof.below.summary(),
            }
            for proof in proofs
        ],
        **provenance(),
    }


def page_frontier(frontier: Frontier, steps: int | None) -> dict[str, Any]:
    """Return the document of a frontier, with what a page shows of it."""
    number, texts = knee(bulges(frontier)), proof_lines(frontier)
    table = Table((), ())
    if frontier.points:
        table = frontier_table(frontier, steps)
        text = f"knee: point {number}, the farthest from the extremes"
        texts.append(NO_KNEE if number is None else text)
    return {
        **to_document(frontier, steps=steps),
        "lines": texts,
        "headings": table.headings,
        "cells": table.texts(),
        "capacities_bytes": [
            curve.problem.cluster.memory_bytes() for curve in frontier.curves
        ],
    }
