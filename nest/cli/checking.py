"""``nest conform``, ``doctor`` and ``cite``: solvers, the machine, papers."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import click

from nest.cli.declare import option
from nest.cli.options import Files, takes
from nest.cli.progress import ProgressLine, StatusLine
from nest.cli.saying import say
from nest.requests.settings import Request, redeclared
from nest.requests.solving import SolverOptionsRequest, TimeLimitRequest, parse_extra
from nest.requests.values import Pairs, solver_keyword
from nest.util.interrupts import until_interrupted


@dataclass(frozen=True, kw_only=True)
class ConformRequest(TimeLimitRequest, command="nest conform"):
    """Limits of the runs of a solver."""

    time_limit: float | None = redeclared(
        TimeLimitRequest, "time_limit", "Wall-clock seconds per run.  [default: 10]"
    )
    option: Pairs = redeclared(SolverOptionsRequest, "option")


@click.command("conform")
@click.argument("solver_text", metavar="SOLVER")
@option("--promises", "Say what is checked, and run nothing.")
@takes(ConformRequest, "json_path")
def conform_command(
    request: ConformRequest, files: Files, solver_text: str, promises: bool
) -> int:
    """Check that a solver keeps its promises, on problems with known optima.

    SOLVER is a name, see 'nest solvers', or a file that describes a command.
    Every run goes through the runner and the judge of 'nest compare';
    docs/your-planner.md describes planners.

    Exits with 1 if a promise is broken. Ctrl-C shows what is known by then.
    """
    from nest.conform import CHECKS, conform
    from nest.conform.run import TIME_LIMIT_S
    from nest.present.checks import conform_block
    from nest.present.table import key_lines
    from nest.solvers.registry import solver_target

    name = solver_keyword(solver_text)
    solver_target(name)  # refuses unknown ones
    if promises:
        files.show(key_lines([(check.name, check.meaning) for check in CHECKS]))
        return 0
    files.check()
    extra = parse_extra(request.option, [name]).get(name, {})
    with ProgressLine("s") as progress:
        report, stop = until_interrupted(
            lambda: conform(
                name,
                time_limit_s=request.time_limit or TIME_LIMIT_S,
                extra=extra,
                on_progress=progress,
            )
        )
    files.show(*conform_block(report))
    files.write_json(report.to_json())
    if stop is not None:
        raise stop
    return int(bool(report.failed))


@click.command("doctor")
@takes(Request, "json_path")
def doctor_command(_: Request, files: Files) -> int:
    """Say what can run here, what is missing and how to get it.

    Packages, engines, which prove a stored optimum each, optional parts,
    processors, memory, terminal and folders. Exits with 1 if nest itself
    cannot work here; what is optional may be missing.
    """
    from nest.conform.doctor import examine
    from nest.present.checks import doctor_block, doctor_document

    files.check()
    findings = []
    with StatusLine() as line:
        for finding in examine(sys.stdout):
            findings.append(finding)
            line.update(f"{finding.what}: done")
    document = doctor_document(findings)
    if files.json_path != "-":
        files.show(*doctor_block(findings))
    files.write_json(document)
    return 0 if document["works"] else 1


@click.command("cite")
@click.argument("solvers", metavar="[SOLVER]…", nargs=-1)
@option("--bibtex", "Only entries of BibTeX.")
def cite_command(solvers: tuple[str, ...], bibtex: bool) -> None:
    """Say how to cite nest, and the papers of the planners you used.

    A line each, and entries of BibTeX. SOLVER is a re-implemented planner,
    see 'nest solvers'.
    """
    from nest.present.table import show
    from nest.util.citations import works

    publications = works(solvers)
    if not bibtex:
        show(sys.stdout, *(work.text() for work in publications), "")
    say("\n\n".join(work.bibtex() for work in publications))
