"""``nest fit``, ``fits`` and ``explain``: questions about plans."""

from __future__ import annotations

import click

from nest.cli.options import TALK, Files, takes
from nest.cli.progress import ProgressLine
from nest.requests.explaining import ExplainRequest, explain_plan
from nest.requests.fits import FitsRequest, find_fits
from nest.requests.fitting import FitRequest, fit_problem, priced_problem
from nest.requests.restricted import offered
from nest.util.interrupts import until_interrupted


@click.command("fit")
@takes(FitRequest, "output", "json_path")
def fit_command(request: FitRequest, files: Files) -> int:
    """Find the fewest devices, or the smallest memory, for a target.

    Or, at the prices of devices, the fastest plan within a budget or the cheapest one
    that keeps a target, among the counts of each type that are powers of two inside a
    node, doubling nodes, or all there may be (--quota), for example: nest fit --model
    llama2-7b --cluster h100x16+a100x16 --price h100=2.5,a100=1.2 --hourly-budget 40

    The target is a step time (--within), a throughput (--tokens-per-s) or a
    whole run (--days with --tokens). The devices are the first ones of the
    cluster of PROBLEM, or of --cluster with --model.

    Exits with 1 if no candidate is known to keep the target; says then what
    the best possible step time is.
    """
    from nest.analysis import offers
    from nest.analysis.feasible import remedies_within
    from nest.analysis.fit import to_document
    from nest.present.fit import fit_block
    from nest.solvers.base import Deadline

    request = request.limited()
    request.check()
    files.check(request)
    restricted = request.restricted()
    problem, has_offers = restricted.problem, bool(request.offer_options)
    clock = Deadline(request.time_limit)
    remedies = None
    with ProgressLine(problem.time_unit, limit_s=request.time_limit) as progress:
        fit, stop = until_interrupted(lambda: fit_problem(request, problem, progress))
        if not has_offers and stop is None and fit.without_plan:
            remedies = remedies_within(
                fit.trials[-1].problem, clock.remaining_s, progress
            )
    if has_offers:
        problem, _ = priced_problem(request, problem)
    parts = fit_block(
        *(problem, fit, restricted.text),
        () if remedies is None else remedies.lines,
        request.default_notes(restricted),
    )
    files.show(*parts)
    document = to_document(problem, fit, request.solver)
    if remedies is not None:
        document["infeasible"] = remedies.to_json()
    if has_offers:
        document = offers.to_document(document, fit)
    files.write_json(document | restricted.document())
    files.write_plan(fit.best.result.plan if fit.best else None)
    if stop is not None:
        raise stop
    return 0 if fit.best is not None else 1


@click.command("explain")
@takes(ExplainRequest, "json_path")
def explain_command(request: ExplainRequest, files: Files) -> int:
    """Explain a plan: its terms, what bounds it, and its neighbors.

    Where the step time goes, what memory is left, which constraint binds (the
    best plan without a memory limit, with a faster network, with other
    batches), what every neighboring plan takes, and how far the plan is from
    the best one. With --pin and --forbid, among such plans only. With
    --measured, which term would explain a measured step.

    Exits with 1 if the plan does not fit memory, or a solver failed.
    """
    from nest.analysis.explain import to_document
    from nest.present.explanation import explanation_block

    request.check()
    request = request.limited()
    files.check(request)
    whole, plan = request.find_problem_and_plan(TALK)
    restricted = request.restricted(whole)
    problem = restricted.problem
    with ProgressLine(problem.time_unit, limit_s=request.time_limit) as progress:
        explanation, stop = until_interrupted(
            lambda: explain_plan(request, problem, plan, progress)
        )
    has = ", ".join(" ".join(pair) for pair in offered(whole).values())
    notes = [*restricted.notes, f"the problem has {has}"]
    files.show(*explanation_block(explanation, notes, request.target or ""))
    document = to_document(explanation, request.solver)
    files.write_json(document | restricted.document())
    if stop is not None:
        raise stop
    is_fine = explanation.score.feasible and not explanation.failed
    return 0 if is_fine else 1


@click.command("fits")
@takes(FitsRequest, "json_path")
def fits_command(request: FitsRequest, files: Files) -> int:
    """Say whether a launch or a plan fits, and what would make it fit.

    PROBLEM may be a launch file, which is read and never run: a script or a
    configuration of Megatron-LM or DeepSpeed, or a job file of torchtitan. For every
    pipeline stage nest shows the memory of a rank by its parts, its prediction
    intervals, and how sure it is that the rank fits. If that is doubtful, nest shows
    the smallest changes of one setting that make the plan fit, with what each costs.

    Exits with 1 if the predicted memory is larger than that of a device.
    """
    from nest.present.fits import fits_block

    path = request.launch_path
    files.check(request)
    with ProgressLine("ns", limit_s=None) as progress:
        answer = find_fits(request, TALK, progress)
    name = path or answer.problem.name
    files.show(*fits_block(answer, name))
    files.write_json(answer.to_json())
    return int(answer.fits == "no")
