"""``nest doctor`` and ``nest cite``."""

from __future__ import annotations

import sys

import click

from nest.cli.declare import option
from nest.cli.options import Files, takes
from nest.cli.progress import StatusLine
from nest.cli.saying import say
from nest.requests.settings import Request


@click.command("doctor")
@takes(Request, "json_path")
def doctor_command(_: Request, files: Files) -> int:
    """Say what can run here, what is missing and how to get it.

    Packages, engines, which prove a stored optimum each, optional parts,
    processors, memory, terminal and folders. Exits with 1 if nest itself
    cannot work here; what is optional may be missing.
    """
    from nest.conform.doctor import examine
    from nest.present.doctor import doctor_block, doctor_document

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
