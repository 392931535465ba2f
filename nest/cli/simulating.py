"""``nest simulate`` and ``nest trace``: a plan's step, pass by pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from nest.cli.declare import output_option
from nest.cli.inputs import write_text
from nest.cli.options import KEPT_TARGET, PLANNED, Options, takes

if TYPE_CHECKING:
    from nest.simulation.events import Simulation


@click.command("simulate")
@takes(
    *(*PLANNED, "target", "json_path"),
    target=KEPT_TARGET,
    json_path="Also write the simulation as JSON; '-' is standard output.",
)
def simulate_command(options: Options) -> int:
    """Run the passes of a plan one by one.

    Shows the simulated step beside the step time of the score, and how long
    every block works and idles. Exits with 1 if the plan is infeasible and
    with 2 if it is no plan for this problem.
    """
    from nest.present.simulation import simulation_block, simulation_document
    from nest.present.table import show

    options.check_files()
    simulation = _simulation(options)
    document = simulation_document(simulation)
    show(options.people, *simulation_block(simulation, document))
    options.write_json(document)
    return 0 if document["feasible"] else 1


@click.command("trace")
@output_option("trace")
@takes(*PLANNED, "target", target=KEPT_TARGET)
def trace_command(options: Options, output: str) -> int:
    """Write a plan's step as a trace for Perfetto or chrome://tracing.

    A row per block of devices; every event says its chunk and micro-batch,
    from 0. Exits with 1 if the plan is infeasible and with 2 if it is no plan
    for this problem.
    """
    import msgspec

    from nest.simulation.trace import trace

    options.check_files(writes={"-o": output})
    simulation = _simulation(options)
    text = msgspec.json.encode(trace(simulation)).decode()
    write_text(output, f"{text}\n")
    return 0 if simulation.score.feasible else 1


def _simulation(options: Options) -> Simulation:
    from nest.simulation.events import Simulation

    return Simulation(*options.find_problem_and_plan())
