"""``nest simulate`` and ``nest trace``: a plan's step, pass by pass."""

from __future__ import annotations

import click
import msgspec

from nest.cli.declare import output_option
from nest.cli.inputs import write_text
from nest.cli.options import TALK, Files, takes
from nest.requests.explaining import SimulateRequest, TraceRequest


@click.command("simulate")
@takes(
    SimulateRequest,
    "json_path",
    json_path="Also write the simulation as JSON; '-' is standard output.",
)
def simulate_command(request: SimulateRequest, files: Files) -> int:
    """Run the passes of a plan one by one.

    Shows the simulated step beside the step time of the score, and how long
    every block works and idles. Exits with 1 if the plan is infeasible and
    with 2 if it is no plan for this problem.

    With --schedule FILE the plan's stages run the passes that a file lists.
    """
    from nest.present.simulation import simulation_block, simulation_document
    from nest.simulation.events import Simulation

    files.check(request, {"--schedule": request.schedule_path})
    simulation = Simulation(*request.find_problem_and_plan(TALK))
    document = simulation_document(simulation)
    files.show(*simulation_block(simulation, document))
    files.write_json(document)
    return 0 if document["feasible"] else 1


@click.command("trace")
@output_option("trace")
@takes(TraceRequest)
def trace_command(request: TraceRequest, output: str) -> int:
    """Write a plan's step as a trace for Perfetto or chrome://tracing.

    A row per block of devices; every event says its chunk and micro-batch, from 0.
    Exits with 1 if the plan is infeasible and with 2 if it is no plan for this problem.
    """
    from nest.simulation.events import Simulation
    from nest.simulation.trace import trace

    Files().check(request, writes={"-o": output})
    simulation = Simulation(*request.find_problem_and_plan(TALK))
    text = msgspec.json.encode(trace(simulation)).decode()
    write_text(output, f"{text}\n")
    return 0 if simulation.score.feasible else 1
