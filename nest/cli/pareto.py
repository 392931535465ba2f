"""``nest pareto``: the exact trade-off of time, memory, devices and cost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nest.cli.declare import integer, integers, option, positive
from nest.cli.inputs import Restricted, check_output, write_record
from nest.cli.options import MODEL, RESTRICTIONS, Options, takes
from nest.cli.pages import (
    HTML,
    Paging,
    check_page,
    context_of,
    plot_option,
)
from nest.cli.progress import ProgressLine
from nest.cli.saying import say
from nest.errors import InvalidOptionError
from nest.units import quanta_to_ns
from nest.util.interrupts import Interrupted
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from nest.analysis.pareto import Frontier
    from nest.analysis.prove import Proof


@click.command("pareto")
@option(
    "--objectives A,…",
    "What to minimise, of time, memory, devices, cost.",
    default="time,memory",
)
@option(
    "--devices N,…",
    "Sizes of clusters to compare, each the first devices of the cluster.  "
    "[default: all; also half, a quarter, … with devices or cost]",
    integers(),
)
@option(
    "--price-usd-per-device-hour X",
    "Price of a device.  [default: as the problem says]",
    positive("dollars", "for example 2.5"),
    "price_usd",
)
@option(
    "--steps N",
    "Steps of a training run, to price it.",
    integer(1, 2**53),
)
@option(
    "--top N",
    "Show only the N points that say most: the knee, which bulges most, and "
    "the corners beside it (docs/frontier.md).",
    integer(),
)
@option(
    "--prove SOLVER",
    "Let another exact solver prove points, such as cpsat.",
    None,
    "prover",
)
@option(
    "--points N,…",
    "Numbers of the points to --prove.  [default: all]",
    integers(),
    "numbers",
)
@plot_option("Draw time against memory")
@HTML
@option(
    "-o --output DIR",
    "Write a plan file per point, and the problem of every smaller cluster, "
    "to a new or empty directory.",
    None,
    "folder",
)
@takes(
    *("problem_text", "granularity", "workers", "time_limit", "json_path"),
    *(*RESTRICTIONS, *MODEL),
    workers="Processes that share the work; threads of --prove.  [default: "
    "the CPUs at hand]",
    time_limit="Wall-clock seconds for the whole frontier, and again for each "
    "run of --prove.  [default: none]",
)
def pareto_command(  # noqa: C901, PLR0913, PLR0915
    options: Options,
    objectives: str,
    devices: tuple[int, ...] | None,
    price_usd: float | None,
    steps: int | None,
    top: int | None,
    prover: str | None,
    numbers: tuple[int, ...] | None,
    plot_path: str | None,
    html_path: str | None,
    folder: str | None,
) -> int:
    """Find the exact frontier: all plans that no other plan beats.

    Objectives are the step time, the memory of the fullest device, the number
    of devices, and what a step costs (price × devices × time). Each point has
    a plan; no plan is as good in all objectives and better in one.

    Exits with 1 if a solver of --prove contradicts the frontier.
    """
    from nest.analysis.feasible import remedies_within
    from nest.analysis.pareto import check_objectives, frontier, known_price
    from nest.analysis.prove import check_prover
    from nest.present.frontier import (
        contradictions,
        frontier_block,
        stopped_text,
        to_document,
        write_plot,
    )
    from nest.present.table import show
    from nest.util.plots import check_plot

    options.check_problem_choice()
    workers = options.workers or num_cpus()
    options = replace(options, workers=workers)
    chosen = check_objectives([part.strip() for part in objectives.split(",")])
    if numbers is not None and prover is None:
        raise InvalidOptionError(
            "--points: expected --prove too, got none; add it, or leave out "
            "--points"
        )
    if prover is not None:
        check_prover(prover)
    check_plot(plot_path)
    check_page(html_path)
    options.check_files(writes={"--plot": plot_path, "--html": html_path})
    check_output(folder, "-o", folder=True)
    restricted = options.restricted()
    if steps is not None:
        _check_steps(known_price(restricted.problem, chosen, price_usd))
    with ProgressLine(
        restricted.problem.time_unit,
        limit_s=options.time_limit,
        cells=1 if prover is None else None,
    ) as progress:
        stop: KeyboardInterrupt | None = None
        try:
            found = frontier(
                restricted.problem,
                chosen,
                devices=devices,
                price_usd_per_hour=price_usd,
                time_limit_s=options.time_limit,
                workers=workers,
                on_progress=progress,
            )
        except Interrupted as interrupt:
            found, stop = interrupt.found, interrupt
        proofs: list[Proof] = []
        if prover is not None and stop is None:
            try:
                _prove(found, prover, numbers, options, progress, proofs)
            except KeyboardInterrupt as interrupt:
                stop = interrupt
        remedied = None
        if stop is None and found.proven and not found.points:
            try:
                remedied = remedies_within(
                    restricted.problem, options.time_limit, progress
                )
            except KeyboardInterrupt as interrupt:
                stop = interrupt
    notes = options.notes(restricted)
    if remedied is not None:
        notes += remedied.lines
    stopped = ""
    if stop is not None:
        asked = len(found.points if numbers is None else numbers)
        stopped = stopped_text(found, prover, proofs, asked)
    parts = frontier_block(found, notes, steps, prover, proofs, top, stopped)
    show(options.people, *parts)
    for line in contradictions(found, prover, proofs):
        say(f"nest: {line}", err=True)
    if plot_path is not None:
        write_plot(plot_path, found)
    if html_path is not None:
        lines = [] if remedied is None else remedied.lines
        _write_page(
            html_path, options, restricted, found, steps, lines, stopped
        )
    document = to_document(found, steps=steps, prover=prover, proofs=proofs)
    if remedied is not None:
        document["infeasible"] = remedied.to_json()
    options.write_json(document | restricted.document())
    if folder is not None:
        _write_plans(folder, restricted, found)
    if stop is not None:
        raise stop
    return int(any(proof.verdict == "contradiction" for proof in proofs))


def _check_steps(price_usd: float | None) -> None:
    if price_usd is None:
        raise InvalidOptionError(
            "--steps: expected a price per device and a step time in "
            "seconds, got none; pass --price-usd-per-device-hour, or leave "
            "out --steps"
        )


def _prove(
    found: Frontier,
    prover: str,
    numbers: Sequence[int] | None,
    options: Options,
    progress: ProgressLine,
    proofs: list[Proof],
) -> None:
    """Let another solver examine the points that were asked for."""
    from nest.analysis.prove import prove

    count = len(found.points)
    for number in numbers or ():
        if number > count:
            raise InvalidOptionError(
                f"--points: expected numbers of the frontier's {count} "
                f"points, got {number}; remove it"
            )
    limits = options.solve_options(prover)
    for number in numbers or range(1, count + 1):
        point = found.points[number - 1]
        proofs.append(prove(found, point, prover, limits, progress))


def _write_page(
    path: str,
    options: Options,
    restricted: Restricted,
    found: Frontier,
    steps: int | None,
    notes: Sequence[str],
    stopped: str,
) -> None:
    """Write a page of the frontier and of its fastest plan."""
    from nest.present.pages.document import (
        Answer,
        Wish,
        frontier_facts,
        page_document,
    )

    problem, answer, tokens = found.problem, None, None
    if found.points:
        fastest = min(found.points, key=lambda point: point.step_quanta)
        curve = found.curve(fastest.devices)
        problem = curve.problem
        bound = curve.lower_bound_quanta
        answer = Answer(
            *(fastest.plan, fastest.score),
            f"point {found.points.index(fastest) + 1}",
            "the fastest of the frontier",
            None if bound is None else quanta_to_ns(bound, problem.quantum_ps),
        )
    length = problem.job.sequence_length
    if steps is not None and length is not None:
        tokens = float(steps * problem.job.global_batch * length)
    limits = {"processes": str(options.workers)}
    if options.time_limit is not None:
        limits["time limit"] = f"{options.time_limit:g} s"
    context = context_of(options, restricted, {}, notes)
    Paging(path).write(
        page_document(
            "pareto",
            problem,
            answer,
            context=replace(context, limits=limits),
            wish=Wish(tokens, found.price_usd_per_hour),
            frontier=frontier_facts(found, steps),
            unfinished=f"The run was {stopped}." if stopped else "",
        )
    )


def _write_plans(folder: str, restricted: Restricted, found: Frontier) -> None:
    """Write every point's plan, and the problems they are for."""
    from nest.analysis.fit import with_devices

    place = Path(folder)
    place.mkdir(exist_ok=True)
    width = len(str(len(found.points)))
    sizes = {}
    for number, point in enumerate(found.points, 1):
        whole = with_devices(restricted.whole, point.devices)
        sizes[point.devices] = whole
        plan = replace(restricted, whole=whole).adopt(point.plan)
        name = f"plan-{number:0{width}}.json"
        write_record(str(place / name), plan)
    for size, whole in sizes.items():
        if size < restricted.whole.cluster.num_devices:
            name = f"problem-{size}-devices.json"
            write_record(str(place / name), whole)
