"""``nest pareto``: the exact trade-off of time, memory, devices and cost."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nest.cli.declare import option
from nest.cli.inputs import write_record
from nest.cli.options import Files, takes
from nest.cli.pages import Paging, context_of, restricted_rows
from nest.cli.progress import ProgressLine
from nest.cli.saying import say
from nest.errors import InvalidOptionError
from nest.requests.frontier import ParetoRequest, find_frontier, prove_points
from nest.requests.values import integer, percent
from nest.units import quanta_to_ns
from nest.util.files import check_output
from nest.util.interrupts import until_interrupted
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from fractions import Fraction

    from nest.analysis.feasible import Remedies
    from nest.analysis.pareto import Frontier
    from nest.analysis.prove import Proof
    from nest.requests.restricted import Restricted


@click.command("pareto")
@option("--steps N", "Steps of a training run, to price it.", integer(1, 2**53))
@option(
    "--top N",
    "Show only the ends and the N points between them that say most: the "
    "knee, which bulges most, and the corners beside it (docs/frontier.md).",
    integer(),
)
@option(
    "--within PERCENT",
    "Leave out points that gain less, such as 1%: one that is shown is at "
    "most so much worse in every objective.",
    percent,
)
@option(
    "-o --output DIR",
    "Write a plan file per point, and the problem of every smaller cluster, "
    "to a new or empty directory.",
)
@takes(
    ParetoRequest,
    *("json_path", "html_path", "plot_path"),
    plot_path="Draw time against memory; FILE ends in .svg, .png or .pdf.",
)
def pareto_command(
    request: ParetoRequest,
    files: Files,
    steps: int | None,
    top: int | None,
    within: Fraction | None,
    output: str | None,
) -> int:
    """Find the exact frontier: all plans that no other plan beats.

    Objectives are the step time, the memory of the fullest device, the number
    of devices, and what a step costs (price × devices × time). Each point has
    a plan; no plan is as good in all objectives and better in one.

    Exits with 1 if a solver of --prove contradicts the frontier.
    """
    from nest.analysis.pareto import check_objectives, known_price

    request.check_problem_choice()
    request = replace(request, workers=request.workers or num_cpus())
    objectives = check_objectives([*request.objectives])
    session = _Session(request)
    request.check_proofs()
    files.check(request)
    check_output(output, "-o", folder=True)
    session.restricted = restricted = request.restricted()
    if steps is not None:
        _check_steps(
            known_price(
                restricted.problem,
                objectives,
                request.price_usd_per_hour(restricted.problem),
            )
        )
    session.run()
    _show(session, files, steps, top, within)
    if files.plot_path is not None:
        from nest.present.frontier import write_plot

        write_plot(files.plot_path, session.frontier)
    if files.html_path is not None:
        _write_page(files.html_path, session, steps)
    _write_json(session, files, steps)
    if output is not None:
        _write_plans(output, restricted, session.frontier)
    if session.stop is not None:
        raise session.stop
    return int(any(x.verdict == "contradiction" for x in session.proofs))


@dataclass
class _Session:
    """A request, and the answers as far as they are known."""

    request: ParetoRequest
    restricted: Restricted = field(init=False)
    frontier: Frontier = field(init=False)
    proofs: list[Proof] = field(default_factory=list)
    remedies: Remedies | None = None
    stop: KeyboardInterrupt | None = None

    def run(self) -> None:
        """Find the frontier, and prove its points if that is asked."""
        from nest.analysis.feasible import remedies_within

        problem, request = self.restricted.problem, self.request
        limit_s, cells = request.time_limit, 1 if request.prove is None else None
        with ProgressLine(problem.time_unit, limit_s=limit_s, cells=cells) as progress:
            self.frontier, self.stop = until_interrupted(
                lambda: find_frontier(request, problem, progress)
            )
            if self.stop is not None:
                return
            try:
                for proof in prove_points(request, self.frontier, progress):
                    self.proofs.append(proof)
                if self.frontier.proven and not self.frontier.points:
                    self.remedies = remedies_within(problem, limit_s, progress)
            except KeyboardInterrupt as interrupt:
                self.stop = interrupt

    @property
    def stopped(self) -> str:
        """What was known when the search was stopped; empty if it was not."""
        from nest.present.frontier import stopped_text

        if self.stop is None:
            return ""
        points, request = self.frontier.points, self.request
        count = len(points if request.points is None else (*request.points,))
        return stopped_text(self.frontier, request.prove, self.proofs, count)

    @property
    def remedy_lines(self) -> list[str]:
        """What would make the problem feasible."""
        return [] if self.remedies is None else self.remedies.lines


def _show(
    session: _Session,
    files: Files,
    steps: int | None,
    top: int | None,
    within: Fraction | None,
) -> None:
    """Print the frontier, and what contradicts it."""
    from nest.present.frontier import contradictions, frontier_block

    notes = session.request.notes(session.restricted) + session.remedy_lines
    parts = frontier_block(
        session.frontier,
        notes,
        steps,
        session.request.prove,
        session.proofs,
        top,
        session.stopped,
        within,
    )
    files.show(*parts)
    for line in contradictions(session.frontier, session.request.prove, session.proofs):
        say(f"nest: {line}", err=True)


def _write_json(session: _Session, files: Files, steps: int | None) -> None:
    from nest.present.frontier import to_document

    document = to_document(
        session.frontier,
        steps=steps,
        prover=session.request.prove,
        proofs=session.proofs,
        target=session.restricted.target_name or None,
    )
    if session.remedies is not None:
        document["infeasible"] = session.remedies.to_json()
    files.write_json(document | session.restricted.document())


def _check_steps(price_usd: float | None) -> None:
    if price_usd is None:
        raise InvalidOptionError(
            "--steps: expected a price per device and a step time in seconds, got "
            "none; pass --price, or leave out --steps"
        )


def _write_page(path: str, session: _Session, steps: int | None) -> None:
    """Write a page of the frontier and of its fastest plan."""
    from nest.analysis.page_facts import Answer, Wish
    from nest.present.frontier import page_frontier
    from nest.present.pages.answers import answer_document
    from nest.present.screen import given_rows

    frontier, request = session.frontier, session.request
    problem, answer, tokens = frontier.problem, None, None
    if frontier.points:
        fastest = min(frontier.points, key=lambda point: point.step_quanta)
        curve = frontier.curve(fastest.devices)
        problem = curve.problem
        bound = curve.lower_bound_quanta
        answer = Answer(
            *(fastest.plan, fastest.score),
            f"point {frontier.points.index(fastest) + 1}",
            "the fastest of the frontier",
            None if bound is None else quanta_to_ns(bound, problem.quantum_ps),
        )
    length = problem.job.sequence_length
    if steps is not None and length is not None:
        tokens = float(steps * problem.job.global_batch * length)
    target_name = session.restricted.target_name
    wish = Wish(tokens, frontier.price_usd_per_hour, target_name)
    rows = [("fits", text) for text in session.remedy_lines]
    if answer is not None:
        rows += given_rows(problem, answer, wish, session.restricted.text)
    plan = None if answer is None else answer.plan
    rows += restricted_rows(request, session.restricted, plan)
    limits = {"processes": str(request.workers)}
    if request.time_limit is not None:
        limits["time limit"] = f"{request.time_limit:g} s"
    context = context_of(request, session.restricted, {})
    Paging(path).write(
        answer_document(
            "pareto",
            problem,
            answer,
            rows=rows,
            context=replace(context, limits=limits),
            wish=wish,
            frontier=page_frontier(frontier, steps),
            unfinished=f"The run was {session.stopped}." if session.stopped else "",
        )
    )


def _write_plans(folder: str, restricted: Restricted, frontier: Frontier) -> None:
    """Write every point's plan, and the problems they are for."""
    from nest.analysis.fit import with_devices

    Path(folder).mkdir(exist_ok=True)
    width = len(str(len(frontier.points)))
    sizes = {}
    for index, point in enumerate(frontier.points, 1):
        whole = with_devices(restricted.whole, point.devices)
        sizes[point.devices] = whole
        plan = replace(restricted, whole=whole).adopt(point.plan)
        name = f"plan-{index:0{width}}.json"
        write_record(os.path.join(folder, name), plan)
    for size, whole in sizes.items():
        if size < restricted.whole.cluster.num_devices:
            name = f"problem-{size}-devices.json"
            write_record(os.path.join(folder, name), whole)
