"""A simulated step, as tables and as a document."""

from __future__ import annotations

from typing import Any

from rich.console import RenderableType
from rich.padding import Padding

from nest.ir.io import problem_hash
from nest.present.screen import plan_rows, screen
from nest.present.table import number_form, terminal_table
from nest.simulation.events import Simulation
from nest.units import quanta_to_ns
from nest.util.tables import Column, Table
from nest.util.time_scale import TimeScale


def simulation_document(simulation: Simulation) -> dict[str, Any]:
    """Return the document of ``nest simulate --json``."""
    score, problem = simulation.score, simulation.problem

    def ns(quanta: int) -> int | float:
        return quanta_to_ns(quanta, score.quantum_ps)

    assert score.schedule is not None
    return {
        "schema": "nest-simulation/1",
        "problem": problem.name,
        "problem_hash": problem_hash(problem),
        "schedule": score.schedule.name,
        "num_micro_batches": score.num_micro_batches,
        "step_time_ns": score.step_time_ns,
        "simulated_step_time_ns": score.simulated_step_time_ns,
        "feasible": score.feasible,
        "violations": list(score.violations),
        "blocks": [
            {
                "stages": list(use.stages),
                "busy_ns": ns(use.busy),
                "idle_ns": ns(use.idle),
                "bubble_share": use.bubble_share,
                "forward_ns": ns(use.forward),
                "backward_ns": ns(use.backward),
                "weight_backward_ns": ns(use.weight_backward),
                "receive_ns": ns(use.receive),
                "sync_ns": ns(use.sync),
                "hidden_ns": ns(use.hidden),
                "passes_end_ns": ns(use.passes_end),
                "end_ns": ns(use.end),
            }
            for use in simulation.uses()
        ],
    }


def simulation_block(
    simulation: Simulation, document: dict[str, Any]
) -> list[RenderableType]:
    """Return what is known of the plan, and its blocks in the simulation.

    ``document`` is that of the simulation.
    """
    problem, plan = simulation.problem, simulation.plan
    formula = document["step_time_ns"]
    simulated = document["simulated_step_time_ns"]
    scale = TimeScale.fitting(formula, problem.time_unit)
    share = f" ({100 * (simulated - formula) / formula:+z.2f} %)"
    if not formula or simulated == formula:
        share = ""
    rows = [
        *plan_rows(problem, plan, simulation.score),
        ("step time", f"simulated {scale(simulated)}{share}"),
    ]

    def joined(stages: list[int]) -> str:
        return ", ".join(map(str, stages))

    columns = (
        Column("block", right=True),
        Column("stages", form=joined, rank=4, min_width=8),
        Column("busy_ns", "busy", scale, right=True, rank=1),
        Column("idle_ns", "idle", scale, right=True, rank=2),
        Column("bubble_share", "bubble %", number_form(".2f", 100), right=True),
        Column("receive_ns", "receive", scale, right=True, rank=5),
        Column("sync_ns", "sync", scale, right=True, rank=6),
        Column("end_ns", "end", scale, right=True, rank=3),
    )
    blocks = [
        {"block": index, **use} for index, use in enumerate(document["blocks"], 1)
    ]
    table = terminal_table(Table.of(columns, blocks))
    return [*screen(problem, rows), Padding(table, (1, 0, 0, 0))]
