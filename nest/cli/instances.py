"""``nest instances``: stored problems, and what is known about them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nest.cli.declare import json_option, option
from nest.cli.inputs import Group, write_json
from nest.cli.progress import ProgressLine
from nest.cli.saying import say
from nest.errors import InvalidOptionError, NestError
from nest.instances import CLASSES, STATES, class_words, names, store, update
from nest.ir.io import decode, encode, read_bytes, read_plan
from nest.present import instances as report
from nest.present.table import show
from nest.requests.values import also_needed, integer, one_of, seconds, words
from nest.solvers.base import SolveOptions
from nest.util.files import check_output, write_atomically
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from nest.instances.update import Prover
    from nest.ir.problem import Problem

#: Statuses that instances have.
STATUSES = ("open", "closed")


def _classes(text: str) -> tuple[str, ...]:
    allowed = [*(item.name for item in CLASSES), *STATES]
    return words(allowed, class_words)(text)


@click.group("instances", cls=Group, invoke_without_command=True)
@option(
    "--class CLASS,…",
    "Only instances in all of these classes, or open, or closed; '+' joins "
    "them as well.",
    _classes,
    "classes",
)
@option(
    f"--status {'|'.join(STATUSES)}",
    "Only instances of that status.",
    one_of(*STATUSES),
)
@option("--classes", "List the classes instead.", None, "list_classes")
@json_option("the list")
@click.pass_context
def instances_group(
    context: click.Context,
    classes: tuple[str, ...] | None,
    status: str | None,
    list_classes: bool,
    json_path: str | None,
) -> None:
    """List stored problems with the best known plans and proven bounds.

    Every command that takes PROBLEM takes the name of an instance.
    """
    if context.invoked_subcommand is not None:
        if json_path is not None:
            raise InvalidOptionError(
                f"--json: expected it without a command, or behind 'show', got it in "
                f"front of {context.invoked_subcommand!r}; move or remove it"
            )
        return

    if list_classes and (classes or status):
        raise InvalidOptionError(
            "--classes: expected no other option than --json, got more; remove one"
        )
    check_output(json_path, "--json")
    selected = names(classes or (), status)
    if json_path is not None:
        document = (
            report.class_document() if list_classes else report.list_document(selected)
        )
        write_json(json_path, document)
    elif list_classes:
        show(sys.stdout, report.class_table())
    else:
        show(sys.stdout, report.instance_table(selected))
        say(f"{len(selected)} instance{'s' * (len(selected) != 1)}")


@instances_group.command("show")
@click.argument("name", metavar="NAME")
@json_option("all of it, with the plan,")
def show_command(name: str, json_path: str | None) -> None:
    """Say what an instance is, and what is known about it."""
    check_output(json_path, "--json")
    if json_path is not None:
        write_json(json_path, report.instance_document(name))
    else:
        show(sys.stdout, report.instance_lines(name))


@instances_group.command("fetch")
@click.argument("selection", metavar="NAME|CLASS,…")
@option("-o --output DIR", "New or empty folder for the files.", required=True)
@option("--plans", "Also write the best known plans, as NAME.plan.json.")
@option(
    "--unlimited",
    "Write problems without their memory limit: what decides between tight and loose.",
)
def fetch_command(selection: str, output: str, plans: bool, unlimited: bool) -> None:
    """Write problems to files, NAME.json each: one, or those of classes.

    With CLASS,… those that are in all of these classes, or open, or closed;
    '+' joins them as well.
    """
    from nest.frameworks.export import write_folder
    from nest.instances import best_known, problem

    tokens, keywords = class_words(selection), {x.name for x in CLASSES}
    if "," in selection or {*keywords, *STATES} & {*tokens}:
        selected = names(tokens)
    else:
        selected = (store.find(selection).name,)
    if not selected:
        raise InvalidOptionError(
            f"{selection}: expected classes that share an instance, got none "
            f"in all of them; see 'nest instances --classes'"
        )
    check_output(output, "-o", folder=True)
    files: dict[str, bytes] = {}
    for name in selected:
        record, plan = problem(name), best_known(name).plan
        if unlimited:
            record = store.unlimited(record)
        files[f"{name}.json"] = encode(record)
        if plans and plan is not None:
            files[f"{name}.plan.json"] = encode(plan)
    write_folder(output, files)
    say(f"{len(files)} file{'s' * (len(files) != 1)} in {output}")


@instances_group.command("update")
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
    changes: list[update.Change] = []
    if plan is not None:
        records, changes = update.with_plan(
            records, files[0], read_plan(plan), plan, by
        )
    elif certificate is not None:
        records, changes = update.with_certificate(
            *(records, files[0], read_bytes(certificate, NestError)),
            *(certificate, by, time_limit),
        )
    else:
        for text in files:
            data = read_bytes(text, NestError)
            document = decode(data, text, dict, "document of results", NestError)
            records, new_changes = update.with_document(
                records, document, text, _prover(time_limit, workers)
            )
            changes += new_changes
    write_atomically(target, store.encode_best_known(records))
    for change in changes:
        say(f"{change.name}: {change.text}")


def _prover(time_limit_s: float, workers: int) -> Prover:
    """Return what runs a solver, with signs of life."""
    from nest.solvers.run import run_solver

    limits = SolveOptions(time_limit_s=time_limit_s, num_workers=workers)

    def prove(problem: Problem, solver: str) -> dict[str, Any]:
        with ProgressLine(problem.time_unit) as progress:
            return run_solver(problem, solver, limits, progress).to_json()

    return prove
