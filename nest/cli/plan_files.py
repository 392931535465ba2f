"""``nest export``, ``certify``, ``simulate`` and ``trace``: files of a plan."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from nest.cli.declare import output_option
from nest.cli.inputs import write_text
from nest.cli.options import TALK, Files, takes
from nest.cli.saying import say
from nest.errors import InvalidOptionError
from nest.requests.explaining import CertifyRequest, SimulateRequest, TraceRequest
from nest.requests.launching import ExportRequest, export
from nest.units import quanta_to_ns
from nest.util.files import check_output
from nest.util.interrupts import Interrupted
from nest.util.time_scale import TimeScale

if TYPE_CHECKING:
    from nest.ir.problem import Problem


@click.command("export")
@takes(ExportRequest, without=("target",))
def export_command(request: ExportRequest) -> int:
    """Write a plan as arguments or configuration of a framework.

    What was written is read again, and must give the plan's layers on every
    rank and its process groups. A plan that the framework cannot run is
    refused by the name of the field, or replaced with --nearest.

    With --to chakra any plan's step is written as execution traces, which
    must take what 'nest simulate' says; with --to csv its order of passes as
    a schedule for PyTorch, a row per pipeline rank. With --to torch the file of
    the module is executed, if it is the one that 'nest import torch' read.
    """
    from nest.frameworks.export import write_folder

    if request.output is None:
        raise InvalidOptionError(
            "nest export: expected --output, got none; see 'nest export --help'"
        )
    folder = os.fspath(request.output)
    Files().check(request)
    check_output(folder, "-o", folder=True)
    files = export(request, TALK, _tell)
    write_folder(folder, files)
    say(str(files["README"]), end="")
    return 0


def _tell(text: str, is_warning: bool) -> None:
    say(f"nest: {text}" if is_warning else text, err=is_warning)


@click.command("certify")
@output_option("certificate")
@takes(CertifyRequest)
def certify_command(request: CertifyRequest, output: str) -> int:
    """Write a certificate of a plan's step time and of a lower bound.

    Without PLAN, of that no plan fits.

    nest-check PROBLEM CERTIFICATE checks it, with nothing of nest: PROBLEM is then the
    same JSON file. The bound is the step time where that can be proven. Exits with 2 if
    the plan is none or does not fit, or if no certificate covers what the problem has.
    Ctrl-C writes the certificate of the step time, with a bound of 0.
    """
    from nest.certificates.certify import certify, certify_infeasible

    request.check_problem_choice()
    Files().check(request, writes={"-o": output})
    problem = request.find_problem()
    plan = request.find_plan(problem, TALK)
    path = Path(request.problem_text or "")
    written = path.suffix == ".json" and path.is_file()
    document = path.read_bytes() if written else None
    try:
        if plan is None:
            certificate = certify_infeasible(problem, document)
        else:
            certificate = certify(problem, plan, document)
    except Interrupted as stop:
        if plan is None:
            proven, splits = stop.found
            say(
                f"nest: {output} not written: no plan fits in {proven} of "
                f"{splits} cases, the others are open",
                err=True,
            )
        else:
            _write(output, problem, stop.found)
        raise
    _write(output, problem, certificate)
    return 0


def _write(output: str, problem: Problem, certificate: dict[str, Any]) -> None:
    """Write a certificate and say what it is."""
    text = "no plan fits"
    if certificate["plan"] is not None:
        step, bound = (
            quanta_to_ns(certificate[name], problem.quantum_ps)
            for name in ("step_time_quanta", "lower_bound_quanta")
        )
        gap = 100 * (1 - bound / step) if step else 0
        scale = TimeScale.fitting(step, problem.time_unit)
        text = (
            f"step time {scale.short(step, 5)}, lower bound "
            f"{scale.short(bound, 5)}, gap {gap:.3g} %"
        )
    write_text(output, f"{json.dumps(certificate, indent=1)}\n")
    proof = certificate["proof"]
    say(
        f"{certificate['status']}: {text}; {len(proof)} cases, "
        f"{sum(len(x['prices']) for x in proof)} prices, "
        f"{sum(x['labels'] for x in proof)} labels",
        err=output == "-",
    )


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
