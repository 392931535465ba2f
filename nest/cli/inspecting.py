"""Commands that look and do not solve."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from nest.cli.declare import json_option, option
from nest.cli.inputs import write_json, write_record
from nest.cli.options import TALK, Files, takes
from nest.cli.saying import say
from nest.constraints.targets import ANY
from nest.constraints.targets import target as find_target
from nest.cost.space import batch_splits, strategies
from nest.errors import InvalidOptionError, SolverNotInstalledError, UnknownNameError
from nest.ir.io import problem_hash
from nest.requests.explaining import CheckRequest, ScoreRequest
from nest.requests.problems import ProblemRequest, named_problem
from nest.requests.settings import Request, setting
from nest.requests.values import also_needed
from nest.units import format_bytes
from nest.util.files import check_output
from nest.util.versions import machine, versions

if TYPE_CHECKING:
    from nest.ir.problem import Problem


@click.command("score")
@takes(
    ScoreRequest,
    "json_path",
    json_path="Also write the score as JSON; '-' is standard output.",
)
def score_command(request: ScoreRequest, files: Files) -> int:
    """Score a plan with the shared cost model.

    Exits with 1 if the plan is infeasible and with 2 if it is no plan for this problem.
    """
    from nest.cost.score import score
    from nest.present.screen import plan_rows, screen, stage_parts
    from nest.uncertainty.intervals import intervals_of
    from nest.validation.flop_rates import flop_rates

    files.check(request)
    problem, plan = request.find_problem_and_plan(TALK)
    plan_score = score(problem, plan)
    intervals = intervals_of(problem, plan, plan_score)
    document = plan_score.to_json() | {
        "intervals": intervals and intervals.to_json(),
        "flop_rates": [rate._asdict() for rate in flop_rates(problem, plan_score)],
    }
    files.show(
        *screen(problem, plan_rows(problem, plan, plan_score)),
        *stage_parts(problem, plan, plan_score),
    )
    files.write_json(document)
    return 0 if document["feasible"] else 1


@click.command("check")
@takes(CheckRequest)
def check_command(request: CheckRequest) -> int:
    """Say what a problem is, and whether a plan is one for it.

    Exits with 1 if the plan is infeasible and with 2 if the problem or the
    plan is invalid.
    """
    from nest.analysis.feasible import why_no_split
    from nest.cost.score import score
    from nest.present.table import key_lines, show

    problem = request.find_problem()
    rows = _describe(problem)
    code = 0
    plan = request.find_plan(problem, TALK)
    if plan is not None:
        violations = score(problem, plan).violations
        rows.append(("plan", "infeasible" if violations else "feasible"))
        rows += [("violation", text) for text in violations]
        code = int(bool(violations))
    if request.why:
        rows += _reasons(problem)
    show(sys.stdout, key_lines(rows))
    why = why_no_split(problem)
    if why:
        say(f"nest: warning: no plan is possible: {why}", err=True)
    return code


def _reasons(problem: Problem) -> Iterator[tuple[str, str]]:
    """Yield what was found in the module of a problem, if it was captured."""
    from nest.capture.problem import source_of

    source = source_of(problem)
    if source is None:
        yield "not available", "unknown: the problem is not of 'nest import torch'"
        return
    yield "module", f"{source.file}:{source.factory}, {source.layers} layers"
    yield "closed sets", str(source.closed_sets)
    for reason in source.reasons:
        yield "not available", reason
    for note in source.assumed:
        yield "assumed", note


@click.command("solvers")
@takes(
    Request,
    "json_path",
    json_path="Write the list as JSON instead; '-' is standard output.",
)
def solvers_command(_: Request, files: Files) -> int:
    """List the solvers and say which can run here."""
    from nest.present.table import show, terminal_table
    from nest.solvers.registry import ignored_plugins
    from nest.util.tables import Column, Table

    files.check()
    entries = _solver_entries()
    if files.json_path is not None:
        files.write_json({"schema": "nest-solvers/1", "solvers": entries})
        return 0
    columns = (
        Column("solver"),
        Column("exact", rank=1),
        Column("installed", rank=2),
        Column("method", min_width=24),
    )
    rows = [
        (
            entry["solver"],
            {True: "yes", False: "no", None: "?"}[entry["exact"]],
            "yes" if entry["reason"] is None else "no",
            entry["reason"] or entry["method"],
        )
        for entry in entries
    ]
    show(sys.stdout, terminal_table(Table(columns, rows)))
    show(
        sys.stdout,
        *(
            f"--option {entry['solver']}.{key}=VALUE  {meaning}"
            for entry in entries
            for key, meaning in entry["options"].items()
        ),
    )
    for plugin, reason in ignored_plugins().items():
        say(f"ignored: {plugin}: {reason}", err=True)
    return 0


@dataclass(frozen=True, kw_only=True)
class ProblemsRequest(ProblemRequest, command="nest problems"):
    """A built-in problem, or that of a model."""

    problem: str | None = setting("[NAME]", "A built-in problem.")


@click.command("problems")
@option("--show NAME", "Print one as JSON.", None, "shown")
@option("--models", "List the models for --model.")
@option("--clusters", "List the machines for --cluster.")
@takes(
    ProblemsRequest,
    "output",
    target="Framework whose gradients and optimizer the problem keeps: that "
    "of 'nest solve --model' with the same --target.  [default: any]",
    output="Write the problem to a file.",
)
@json_option("the list")
def problems_command(
    request: ProblemsRequest,
    files: Files,
    shown: str | None,
    models: bool,
    clusters: bool,
    json_path: str | None,
) -> int:
    """List the built-in problems, or write one to a file.

    With --model and --cluster, write the problem of training that model.
    """
    name: Any = request.problem
    if name is not None and shown is not None:
        raise InvalidOptionError(
            f"--show: expected one problem, got {name!r} and {shown!r}; remove one"
        )
    check_output(json_path, "--json")
    name = name or shown
    modeled, output = bool(request.given_job), files.output
    find_target(request.target or ANY, "--target")
    if request.target is not None and not modeled:
        remedy = "a built-in problem keeps what it says"
        raise also_needed("--target", "--model", remedy)
    if models or clusters:
        flag = "--models" if models else "--clusters"
        if (models and clusters) or modeled or name or output:
            raise InvalidOptionError(
                f"{flag}: expected no other option than --json, got more; remove one"
            )
        if models:
            _list("model", "nest-model-list/1", _models(), json_path)
        else:
            _list("machine", "nest-machine-list/1", _machines(), json_path)
        return 0
    if json_path is not None and (modeled or name is not None):
        raise InvalidOptionError(
            "--json: expected no problem to write, which is JSON, got one; "
            "leave out --json, and name the file with -o"
        )
    if json_path is not None and named_problem(json_path) is not None:
        raise InvalidOptionError(
            f"--json: expected a file, got the name of a problem, "
            f"{json_path!r}; write it with 'nest problems {json_path} -o "
            f"FILE', or pass --json - for the list"
        )
    if modeled or name is not None:
        files.check(request)
        if modeled:
            problem = replace(request, problem=name).find_problem()
        else:
            named = named_problem(name or "")
            if named is None:
                from nest.models import builtin

                raise UnknownNameError("built-in problem", name or "", builtin.names())
            problem = named
        write_record(output or "-", problem)
        return 0
    if output is not None:
        raise InvalidOptionError(
            f"-o {output}: expected the NAME of a problem to write, got "
            f"none; see 'nest problems'"
        )
    _list("problem", "nest-problems/1", _problems(), json_path)
    return 0


#: An entry of a list: its record in JSON, and its description.
_Entry = tuple[dict[str, Any], str]


def _list(
    what: str, schema: str, entries: Iterable[_Entry], json_path: str | None
) -> None:
    """Print names with a description each, or write all records."""
    from nest.present.table import show, terminal_table
    from nest.util.tables import Column, Table

    entries = list(entries)
    if json_path is not None:
        records = [record for record, _ in entries]
        write_json(json_path, {"schema": schema, f"{what}s": records})
    else:
        rows = [(record["name"], text) for record, text in entries]
        columns = (Column(what, min_width=16), Column("description", min_width=24))
        show(sys.stdout, terminal_table(Table(columns, rows)))


def _problems() -> Iterator[_Entry]:
    from nest.models import builtin

    for name in builtin.names():
        text, is_default = builtin.describe(name), name == builtin.DEFAULT
        record = {"name": name, "description": text, "default": is_default}
        yield record, text + (" (default)" if is_default else "")


def _models() -> Iterator[_Entry]:
    from nest.models.zoo import ARCHITECTURES, kind_of

    for model in ARCHITECTURES:
        record = {
            "name": model.name,
            "kind": kind_of(model),
            "layers": model.layers,
            "parameters": model.parameters,
            "active_parameters": model.active_parameters,
            "source": model.source,
        }
        yield (
            record,
            f"{kind_of(model)}, {model.parameters / 1e9:.3g} B parameters, "
            f"{model.layers} layers",
        )


def _machines() -> Iterator[_Entry]:
    from nest.hardware import machines

    for site in machines():
        record = {
            "name": site.name,
            "device": site.device.name,
            "node_size": site.node.fan_out,
            "network": site.network.name,
            "source": site.source,
            "confirmed_by": site.confirmed_by or None,
        }
        yield (
            record,
            f"nodes of {site.node.fan_out} {site.device.name}, {site.network.name}",
        )


@click.command("versions")
def versions_command() -> None:
    """Print what a bug report should contain."""
    from nest.present.table import key_lines, show

    rows = {**versions(), **machine()}
    show(
        sys.stdout,
        key_lines([(key, str(v or "not installed")) for key, v in rows.items()]),
    )


def _describe(problem: Problem) -> list[tuple[str, str]]:
    from nest.cost.model import CostModel

    CostModel(problem)  # refuses a problem whose preset does not fit
    graph, cluster, job = problem.graph, problem.cluster, problem.job
    splits = batch_splits(problem)
    rows = [
        ("problem", problem.name),
        ("hash", problem_hash(problem)),
        ("preset", problem.preset),
        (
            "graph",
            f"{len(graph.layers)} layers of {len(graph.kinds)} kinds, "
            f"{len(graph.edges)} edges",
        ),
        (
            "cluster",
            f"{cluster.num_devices} × {cluster.device_name} "
            f"({format_bytes(cluster.memory_bytes())}), {cluster.topology.text}"
            + (
                f", {format_bytes(cluster.reserve_bytes())} of each reserved"
                if cluster.reserve_bytes()
                else ""
            ),
        ),
        (
            "job",
            f"global batch {job.global_batch}, schedule {job.schedule_text}, "
            f"zero {_join(job.zero)}, recompute {_join(job.recompute)}",
        ),
        (
            "replicas R",
            _join(sorted({case.replicas for case in splits})) or "none fits",
        ),
        (
            "micro-batch B",
            _join(sorted({case.micro_batch for case in splits})) or "none fits",
        ),
        (
            "strategies",
            ", ".join(
                f"{len(strategies(problem, size))} for B = {size}"
                for size in sorted(job.micro_batches)
            ),
        ),
    ]
    allowed = [
        *(f"virtual stages {v}" for v in job.virtual_stages if v > 1),
        *(f"overlap of {name} ({f:g})" for name, f in job.overlap.items()),
        *(["distributed optimizer"] if job.distributed_optimizer else []),
        *(["a strategy per layer"] if job.granularity == "layer" else []),
        *(["sequence parallelism or none"] if len(job.sequence_choices(2)) > 1 else []),
    ]
    if allowed:
        rows.append(("also allowed", _join(allowed)))
    if problem.source:
        rows.insert(1, ("source", " ".join(problem.source.split())))
    return rows


def _join(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


def _solver_entries() -> list[dict[str, Any]]:
    from nest.solvers import registry
    from nest.solvers.base import Capabilities

    registry.try_plugins(registry.LISTING_S)
    entries: list[dict[str, Any]] = []
    for name in registry.solver_names():
        capabilities, version = None, None
        with contextlib.suppress(SolverNotInstalledError):
            capabilities = registry.solver_class(name).capabilities
            version = registry.solver_version(name)
        promised = capabilities or Capabilities(exact=False, method="")
        entries.append(
            {
                "solver": name,
                "exact": capabilities and capabilities.exact,
                "method": promised.method,
                "version": version,
                "searches": sorted(promised.searches),
                "options": dict(promised.options),
                "reason": registry.availability(name),
            }
        )
    return entries
