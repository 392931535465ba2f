"""``nest export``: a plan as the files of a training framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from nest.cli.declare import integer, option
from nest.cli.inputs import check_output
from nest.cli.options import PLANNED, Options, takes
from nest.cli.saying import say
from nest.constraints.targets import ANY
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.models.named import load_model

if TYPE_CHECKING:
    from nest.cost.verdict import Score
    from nest.frameworks.settings import Settings
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem


@click.command("export")
@option(
    "--to TARGET",
    "A framework, or chakra; see docs/exports.md.",
    required=True,
)
@option("-o --output DIR", "New or empty directory to write.", required=True)
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
@takes(
    *PLANNED,
    model="Model instead of PROBLEM, with --cluster; or the model of PROBLEM, "
    "where that does not name one: a name, or a config.json of Hugging Face.",
)
def export_command(
    options: Options,
    to: str,
    output: str,
    gpus_per_node: int | None,
    flavor: str | None,
    nearest: bool,
) -> int:
    """Write a plan as arguments or configuration of a framework.

    What was written is read again, and must give the plan's layers on every
    rank and its process groups. A plan that the framework cannot run is
    refused by the name of the field, or replaced with --nearest.

    With --to chakra any plan's step is written as execution traces, which
    must take what 'nest simulate' says.
    """
    from nest.frameworks.export import TRACES, target_of, write_folder
    from nest.frameworks.layers import placement_of
    from nest.frameworks.settings import Settings

    # Of a problem with a name, --model says the model and nothing else.
    model = options.model
    if options.problem_text is not None and options.given_job == ["model"]:
        options = replace(options, job={**options.job, "model": None})
    elif to not in TRACES:
        options = replace(options, target=to)
    options.check_problem_choice()
    options.check_plan_choice()
    if to in TRACES:
        _refuse_options(
            to,
            {
                "--model": model if options.model is None else None,
                "--gpus-per-node": gpus_per_node,
                "--flavor": flavor,
                "--nearest": nearest or None,
            },
        )
    else:
        target_of(to)
    options.check_files()
    check_output(output, "-o", folder=True)
    problem = options.find_problem()
    plan = options.find_plan(problem, warn=False)
    assert plan is not None
    made_for = options.made_for(problem, plan)
    if made_for == ANY:
        # What the framework has otherwise is said.
        problem = replace(options, target=None).find_problem()
    _refuse_foreign(problem, plan, to, made_for)
    if to in TRACES:
        files = _traces(problem, plan)
    else:
        shape = None
        if model is not None:
            modules = placement_of(problem.graph).mtp
            shape = load_model(model, mtp=modules > 0)
        settings = Settings(shape, gpus_per_node, flavor)
        files = _launch(problem, plan, to, settings, nearest)
    write_folder(output, files)
    say(str(files["README"]), end="")
    return 0


def _refuse_options(to: str, given: Mapping[str, object]) -> None:
    """Refuse options that only frameworks have a use for."""
    for name, value in given.items():
        if value is not None:
            raise InvalidOptionError(
                f"{name}: expected no such option with --to {to}, which says "
                f"any plan as it is, got it; leave it out"
            )


def _refuse_foreign(
    problem: Problem, plan: Plan, to: str, made_for: str | None
) -> None:
    """Refuse a plan that was made for something else.

    Plans of ``nest solve PROBLEM --target`` are of the problem, too;
    ``made_for`` is the other target whose problem of ``--model`` it was.
    """
    from nest.constraints.targets import for_target
    from nest.constraints.targets import names as target_names
    from nest.frameworks.export import TRACES
    from nest.ir.io import problem_hash

    if plan.problem_hash in (None, problem_hash(problem)):
        return
    for name in target_names() if to in TRACES else (to,):
        try:
            there = for_target(problem, name)
        except InvalidOptionError:
            continue
        if plan.problem_hash == problem_hash(there):
            return
    known = "any --target" if to in TRACES else f"--target {to}"
    whose = ""
    remedy = "pass the problem that it was solved for, with its target or none"
    if made_for is not None:
        whose = f", that of --target {made_for}"
        remedy = f"solve with --target {to}"
    raise InvalidPlanError(
        f"plan: expected one that was made for problem "
        f"{problem_hash(problem)[:12]}, or for it with {known}, got one for "
        f"{plan.problem_hash[:12]}{whose}; {remedy}, or remove problem_hash "
        f"from the plan"
    )


def _traces(problem: Problem, plan: Plan) -> Mapping[str, str | bytes]:
    """Return the traces of a plan's step."""
    from nest.frameworks import chakra
    from nest.simulation.events import Simulation

    simulation = Simulation(problem, plan)
    _warn_if_infeasible(simulation.score)
    return chakra.export(simulation)


def _launch(
    problem: Problem, plan: Plan, to: str, settings: Settings, nearest: bool
) -> Mapping[str, str | bytes]:
    """Return the files of a framework, and print what is otherwise there."""
    from nest.cost.score import score
    from nest.frameworks.export import as_run_by, check_schedule, export
    from nest.ir.io import encode

    score(problem, plan)  # refuses a plan that is none of the problem
    if not nearest:
        check_schedule(problem, plan, to)
    there, changes = as_run_by(problem, to)
    for change in changes:
        say(f"nest: note: with {to}, {change}", err=True)
    if not nearest:
        _warn_if_infeasible(score(there, plan))
        return {**export(problem, plan, to, settings)}
    from nest.frameworks.nearest import nearest as find_nearest

    found = find_nearest(problem, plan, to, settings)
    say(f"nearest plan: {found.text}")
    return {**found.files, "plan.json": encode(found.plan).decode()}


def _warn_if_infeasible(found: Score) -> None:
    for violation in found.violations:
        say(f"nest: warning: the plan is infeasible: {violation}", err=True)
