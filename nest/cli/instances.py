"""``nest instances``: stored problems, and what is known about them."""

from __future__ import annotations

import sys

import click

from nest.cli.declare import json_option, option
from nest.cli.inputs import Group, write_json
from nest.cli.saying import say
from nest.errors import InvalidOptionError
from nest.instances import CLASSES, STATES, class_words, names, store
from nest.ir.io import encode
from nest.present import instances as report
from nest.present.table import show
from nest.requests.values import one_of, several_of
from nest.util.files import check_output

#: Statuses that instances have.
STATUSES = ("open", "closed")


def _classes(text: str) -> tuple[str, ...]:
    allowed = [*(item.name for item in CLASSES), *STATES]
    return several_of(allowed, class_words)(text)


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
