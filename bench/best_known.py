"""Better plans and proofs of instances, checked before they are stored.

    python -m bench.best_known RESULTS.json …
    python -m bench.best_known NAME --plan PLAN.json --by "who found it"
    python -m bench.best_known NAME --certificate CERTIFICATE.json

It is ``nest instances update``, a command that exists in a checkout only.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from bench import instance_updates
from nest.cli.declare import option
from nest.cli.instances import instances_group
from nest.cli.main import main as run
from nest.cli.progress import ProgressLine
from nest.cli.saying import say
from nest.errors import InvalidOptionError, NestError
from nest.instances import store
from nest.ir.io import decode, read_bytes, read_plan
from nest.ir.problem import Problem
from nest.requests.values import also_needed, integer, seconds
from nest.solvers.base import SolveOptions
from nest.solvers.run import run_solver
from nest.util.files import check_output, write_atomically
from nest.util.versions import num_cpus


@click.command("update")
@click.argument("files", metavar="RESULTS…|NAME", nargs=-1, required=True)
@option("--plan FILE", "A plan for the instance NAME, instead of RESULTS.")
@option(
    "--certificate FILE",
    "A certificate for the instance NAME, of 'nest certify', instead of RESULTS.",
)
@option("--by TEXT", "Who found that plan.  [default: as the plan says]")
@option(
    "-o --output FILE",
    "Write what is known then to another file than that of the package.",
)
@option(
    "--time-limit S",
    "Wall-clock seconds for each proof that is made once more, or for nest-check.",
    seconds,
    default=60,
)
@option(
    "--workers N",
    "Threads or processes for such a proof.",
    integer(1, num_cpus()),
    default=1,
)
def update_command(
    files: tuple[str, ...],
    plan: str | None,
    certificate: str | None,
    by: str | None,
    output: str | None,
    time_limit: float,
    workers: int,
) -> None:
    """Take plans and bounds into what is known, after checking them.

    RESULTS are JSON documents of 'nest solve' or 'nest compare' about
    instances. Plans are scored again, and the better one stays. A bound
    counts if its solver proves it once more, here, or nest-check accepts its
    certificate. What contradicts itself is refused: then nothing changes.
    """
    if plan is not None and certificate is not None:
        raise InvalidOptionError(
            "--certificate: expected either it or --plan, got both; a "
            "certificate has its plan"
        )
    single = "--plan" if plan is not None else "--certificate"
    path = plan if plan is not None else certificate
    if by is not None and path is None:
        remedy = "results name their solvers"
        raise also_needed("--by", "--plan or --certificate", remedy)
    if path is not None and len(files) != 1:
        raise InvalidOptionError(
            f"{single}: expected the NAME of one instance, got {len(files)} "
            f"arguments; pass what is about one at a time"
        )
    check_output(output, "-o")
    target = store.best_known_path() if output is None else Path(output)
    records = store.read_best_known()
    changes: list[instance_updates.Change] = []
    if plan is not None:
        records, changes = instance_updates.with_plan(
            records, files[0], read_plan(plan), plan, by
        )
    elif certificate is not None:
        records, changes = instance_updates.with_certificate(
            *(records, files[0], read_bytes(certificate, NestError)),
            *(certificate, by, time_limit),
        )
    else:
        for text in files:
            data = read_bytes(text, NestError)
            document = decode(data, text, dict, "document of results", NestError)
            records, new_changes = instance_updates.with_document(
                records, document, text, _prover(time_limit, workers)
            )
            changes += new_changes
    write_atomically(target, instance_updates.encode_best_known(records))
    for change in changes:
        say(f"{change.name}: {change.text}")


def _prover(time_limit_s: float, workers: int) -> instance_updates.Prover:
    """Return what runs a solver, with signs of life."""
    limits = SolveOptions(time_limit_s=time_limit_s, num_workers=workers)

    def prove(problem: Problem, solver: str) -> dict[str, Any]:
        with ProgressLine(problem.time_unit) as progress:
            return run_solver(problem, solver, limits, progress).to_json()

    return prove


def main() -> None:
    """Run the command line with this command in it."""
    instances_group.add_command(update_command)
    run(["instances", "update", *sys.argv[1:]])


if __name__ == "__main__":
    main()
