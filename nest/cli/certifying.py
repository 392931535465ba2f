"""``nest certify``: proofs that ``nest-check`` can check."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nest.cli.declare import output_option
from nest.cli.inputs import write_text
from nest.cli.options import TALK, Files, takes
from nest.cli.saying import say
from nest.requests.explaining import CertifyRequest
from nest.units import quanta_to_ns
from nest.util.interrupts import Interrupted
from nest.util.time_scale import TimeScale

if TYPE_CHECKING:
    from nest.ir.problem import Problem


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
