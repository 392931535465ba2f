"""``nest export``: a plan as the files of a training framework."""

from __future__ import annotations

import click

from nest.cli.declare import integer, option
from nest.cli.inputs import (
    check_distinct_files,
    check_output,
    load_model,
    load_problem,
)


@click.command("export")
@click.argument("problem_text", metavar="PROBLEM")
@click.argument("plan_path", metavar="PLAN")
@option("--to TARGET", "The framework; see docs/exports.md.", required=True)
@option("-o --output DIR", "New or empty directory to write.", required=True)
@option(
    "--model NAME",
    "The problem's model, where it does not name one: a name, or a "
    "config.json of Hugging Face.",
)
@option(
    "--gpus-per-node N",
    "Devices of a node.  [default: the lowest level of the network]",
    integer(),
)
@option(
    "--flavor NAME/FLAVOR",
    "What torchtitan calls the model, such as llama3/8B, where that is not "
    "known.",
)
@option(
    "--nearest",
    "Write the nearest plan that the framework can run instead, and say what "
    "that costs.",
)
def export_command(
    problem_text: str,
    plan_path: str,
    to: str,
    output: str,
    model: str | None,
    gpus_per_node: int | None,
    flavor: str | None,
    nearest: bool,
) -> int:
    """Write a plan as arguments or configuration of a framework.

    What was written is read again, and must give the plan's layers on every
    rank and its process groups. A plan that the framework cannot run is
    refused by the name of the field, or replaced with --nearest.
    """
    from nest.cli.inspecting import warn_if_foreign
    from nest.cost.score import score
    from nest.export.export import as_run_by, export, target_of, write_folder
    from nest.export.settings import Settings
    from nest.ir.io import encode, read_plan

    target_of(to)
    check_distinct_files({"PROBLEM": problem_text, "PLAN": plan_path})
    check_output(output, "-o", folder=True)
    problem, plan = load_problem(problem_text), read_plan(plan_path)
    warn_if_foreign(problem, plan)
    score(problem, plan)  # refuses a plan that is none of the problem
    there, changes = as_run_by(problem, to)
    for change in changes:
        click.echo(f"nest: note: with {to}, {change}", err=True)
    for violation in score(there, plan).violations:
        click.echo(
            f"nest: warning: the plan is infeasible: {violation}", err=True
        )
    settings = Settings(
        None if model is None else load_model(model), gpus_per_node, flavor
    )
    if not nearest:
        files = export(problem, plan, to, settings)
    else:
        from nest.export.nearest import nearest as find_nearest

        found = find_nearest(problem, plan, to, settings)
        files = {**found.files, "plan.json": encode(found.plan).decode()}
        click.echo(f"nearest plan: {found.text}")
    write_folder(output, files)
    click.echo(files["README"], nl=False)
    return 0
