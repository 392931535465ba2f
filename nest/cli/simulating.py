"""``nest simulate`` and ``nest trace``: a plan's step, pass by pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nest.cli.declare import output_option
from nest.cli.inputs import load_problem_and_plan, write_text
from nest.cli.options import Options, takes

if TYPE_CHECKING:
    from nest.simulate.events import Simulation


@click.command("simulate")
@click.argument("problem_text", metavar="PROBLEM")
@click.argument("plan_path", metavar="PLAN")
@takes(
    "json_path",
    json_path="Also write the simulation as JSON; '-' is standard output.",
)
def simulate_command(
    options: Options, problem_text: str, plan_path: str
) -> int:
    """Run the passes of a plan one by one.

    Shows the simulated step beside the step time of the score, and how long
    every block works and idles. Exits with 1 if the plan is infeasible and
    with 2 if it is no plan for this problem.
    """
    from nest.report.simulation import simulation_block, simulation_document
    from nest.report.table import show

    options.check_files({"PROBLEM": problem_text, "PLAN": plan_path})
    simulation = _simulation(problem_text, plan_path)
    document = simulation_document(simulation)
    show(options.people, *simulation_block(simulation, document))
    options.write_json(document)
    return 0 if document["feasible"] else 1


@click.command("trace")
@click.argument("problem_text", metavar="PROBLEM")
@click.argument("plan_path", metavar="PLAN")
@output_option("trace")
@takes()
def trace_command(
    options: Options, problem_text: str, plan_path: str, output: str
) -> int:
    """Write a plan's step as a trace for Perfetto or chrome://tracing.

    A row per block of devices; every event says its chunk and micro-batch,
    from 0. Exits with 1 if the plan is infeasible and with 2 if it is no plan
    for this problem.
    """
    import msgspec

    from nest.simulate.trace import trace

    options.check_files(
        {"PROBLEM": problem_text, "PLAN": plan_path}, {"-o": output}
    )
    simulation = _simulation(problem_text, plan_path)
    text = msgspec.json.encode(trace(simulation)).decode()
    write_text(output, f"{text}\n")
    return 0 if simulation.score.feasible else 1


def _simulation(problem_text: str, plan_path: str) -> Simulation:
    from nest.simulate.events import Simulation

    problem, plan = load_problem_and_plan(problem_text, plan_path)
    return Simulation(problem, plan)
