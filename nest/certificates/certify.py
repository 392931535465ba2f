"""Find what a certificate says: a bound, and prices that prove it.

Whoever reads the result trusts nothing of this module: ``check`` proves the
bound again, from the problem alone. Its terms are used here as well, so that
what is written is what it will find.
"""

from __future__ import annotations

from typing import Any

import msgspec

from nest.certificates import check
from nest.certificates.documents import BadInputError, digest, parse
from nest.certificates.prices import NEVER
from nest.certificates.prices import Problem as Prices
from nest.certificates.rules import ProofCase
from nest.cost.score import score
from nest.errors import InvalidPlanError, UnsupportedProblemError
from nest.ir.io import decode_problem, encode, plan_to_json
from nest.ir.plan import Plan, Stage
from nest.ir.problem import Problem
from nest.util.interrupts import Interrupted

#: What of the step time a bound gives up, one after the other, until it is proven.
GAPS = (0.0, 1e-6, 1e-5, 1e-4, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.3, 1.0)

#: Passes with a price each for one split, at most.
MOST_PRICES = 40

#: How often a price is changed.
ROUNDS = 60

Edges = list[tuple[int, int, int, int]]


def certify(
    problem: Problem, plan: Plan, document: bytes | None = None
) -> dict[str, Any]:
    """Return the certificate of a plan.

    Parameters
    ----------
    problem, plan
        What is certified.
    document
        The JSON file of the problem that the certificate is for; what nest
        writes by default.

    Raises
    ------
    UnsupportedProblemError
        If the problem has something that no certificate covers.
    InvalidPlanError
        If the plan is infeasible, or has a strategy per layer.
    Interrupted
        If the user stops it: the certificate then has the step time, and a bound of 0.
    """
    plan = msgspec.structs.replace(
        plan,
        stages=tuple(
            Stage.of(stage.layers, stage.layer_strategies) for stage in plan.stages
        ),
        problem_hash=None,
        solver=None,
    )
    step_quanta = _step_quanta(problem, plan)
    terms, problem_hash = _terms(problem, document)
    written = plan_to_json(plan)
    checked = check.score(terms, written)
    if checked != step_quanta:
        raise AssertionError(f"two scores: {step_quanta} and {checked} quanta")
    stop: KeyboardInterrupt | None = None
    try:
        bound, proof = _prove(terms, step_quanta)
    except KeyboardInterrupt as interrupt:
        stop, bound = interrupt, 0
        proof = [prove_split(terms, x, 0) for x in terms.rules.cases()]
    status = "optimal" if bound == step_quanta else "feasible"
    certificate = _certificate(problem_hash, status, proof, written, step_quanta, bound)
    if stop is not None:
        raise Interrupted(certificate) from stop
    return certificate


def certify_infeasible(
    problem: Problem, document: bytes | None = None
) -> dict[str, Any]:
    """Return the certificate that no plan fits.

    Without times every plan takes 0, so that none does if none is below 1.

    Parameters
    ----------
    problem, document
        As for :func:`certify`.

    Raises
    ------
    UnsupportedProblemError
        If the problem has something that no certificate covers, or nearly
        has a plan, so that the proof would be too long.
    InvalidPlanError
        If some plan fits.
    Interrupted
        If the user stops it, with the numbers of batch splits in which no
        plan fits, and of all.
    """
    terms, problem_hash = _terms(problem, document)
    terms.forget_times()
    proof: list[dict[str, Any]] = []
    splits = terms.rules.cases()
    try:
        for split in splits:
            proof.append(prove_split(terms, split, 1))
    except KeyboardInterrupt as stop:
        raise Interrupted((len(proof), len(splits))) from stop
    except check.RejectedError as error:
        if len(error.args) == 2:
            raise InvalidPlanError(
                "PLAN: expected one, as there are plans that fit, got none; "
                "solve the problem and name its plan"
            ) from error
        why = f"the search would have more than {check.MOST_LABELS} labels"
        if len(error.args) > 2:
            why = "the bounds leave some that may"
        raise UnsupportedProblemError(
            f"{problem.name}: no certificate that no plan fits: {why}"
        ) from error
    return _certificate(problem_hash, "infeasible", proof)


def _terms(problem: Problem, document: bytes | None) -> tuple[Prices, str]:
    """Return what the checker reads of a problem's file, and its hash."""
    if document is None:
        # Numbers of the type of their field, as in files.
        document = encode(decode_problem(encode(problem)))
    try:
        data, problem_hash = parse(document, problem.name)
        return Prices(data, problem.name), problem_hash
    except BadInputError as error:
        raise UnsupportedProblemError(str(error)) from error


def _certificate(
    problem_hash: str,
    status: str,
    proof: list[dict[str, Any]],
    plan: Any = None,
    step_quanta: int | None = None,
    bound: int | None = None,
) -> dict[str, Any]:
    certificate = {
        "schema": "nest-certificate/1",
        "problem_hash": problem_hash,
        "plan": plan,
        "step_time_quanta": step_quanta,
        "lower_bound_quanta": bound,
        "status": status,
        "proof": proof,
    }
    return certificate | {"seal": digest(certificate)}


def _step_quanta(problem: Problem, plan: Plan) -> int:
    """Return the step time of a plan that can have a certificate."""
    verdict = score(problem, plan)
    if not verdict.feasible:
        raise InvalidPlanError(
            f"plan: expected one that fits, got {verdict.violations[0]}; "
            f"there is no certificate for it"
        )
    return verdict.step_quanta


def _prove(problem: Prices, step_quanta: int) -> tuple[int, list[dict[str, Any]]]:
    """Return the best bound found, with its proof split by split."""
    cases = problem.rules.cases()
    best = step_quanta
    for case in cases:
        if case.timed:
            best = _packed_bound(check.Split(problem, case), best)
    for gap in GAPS:
        bound = best - int(best * gap)
        while True:
            try:
                return bound, [prove_split(problem, split, bound) for split in cases]
            except check.RejectedError as error:
                if len(error.args) == 1:
                    break
                # A plan that takes less: no larger bound holds.
                best = bound = min(bound, error.args[1])
    raise AssertionError("a bound of 0 needs no proof")


def _packed_bound(split: check.Split, best: int) -> int:
    """Return the largest bound, up to the best known, that blocks do not meet."""
    low, high = 0, best
    while low < high:
        middle = (low + high + 1) // 2
        if split.packed(middle) > split.replica_stride:
            low = middle
        else:
            high = middle - 1
    return low


def prove_split(problem: Prices, key: ProofCase, bound: int) -> dict[str, Any]:
    """Return the proof that no plan of a split is below a bound.

    Raises
    ------
    RejectedError
        If there is such a plan, with what it takes, or if the search for
        one is too long.
    UnsupportedProblemError
        If a layer takes longer than certificates cover, in a stage that no plan has.
    """
    try:
        return _prove_split(problem, key, bound)
    except BadInputError as error:
        raise UnsupportedProblemError(str(error)) from error


def _prove_split(problem: Prices, key: ProofCase, bound: int) -> dict[str, Any]:
    split = check.Split(problem, key)
    edges = [] if key.timed else split.bounds(bound)
    high = (bound - 1) // split.count
    prices: list[tuple[int, int | None]] = []
    while edges and len(prices) < MOST_PRICES:
        price, cost = _best_price(split, edges, bound, high)
        lower = split.longest(bound, cost, price, high)
        if lower == high and prices:
            break
        prices.append((price, cost if cost < NEVER else None))
        edges = [edge for edge in edges if edge[3] <= lower]
        if lower == high:
            break
        high = lower
    costs, labels = split.prove(bound, [price for price, _ in prices])
    return {
        "replicas": key.replicas,
        "micro_batch": key.batch,
        "prices": costs,
        "labels": labels,
    }


def _best_price(
    split: check.Split, edges: Edges, bound: int, high: int
) -> tuple[int, int]:
    """Return a price of a device, and what the cheapest path costs with it.

    The one that bounds the sum of loads best, or well enough: the bound is
    concave in the price, and its slope is what the path has of devices
    beyond those that there are.
    """
    best = (-1, 0, NEVER)
    low, price, above = 0, 0, None
    for _ in range(ROUNDS):
        cost, devices = _cheapest(split, edges, price)
        best = max(best, (cost - price * split.replica_stride, price, cost))
        if best[0] >= bound or cost >= NEVER:
            break
        if devices > split.replica_stride:
            low = price
        else:
            above = price
        if above is None:
            price = max(4 * price, 1 + high // split.replica_stride)
        else:
            price = (low + above) // 2
            if price == low:
                break
    return best[1:]


def _cheapest(split: check.Split, edges: Edges, price: int) -> tuple[int, int]:
    """Return cost and devices of the cheapest path."""
    count = len(split.problem.sets)
    costs = [0] + [NEVER] * (count - 1)
    devices = [0] * count
    for source, target, size, load in reversed(edges):
        cost = costs[source] + load + price * size
        if cost < costs[target]:
            costs[target] = cost
            devices[target] = devices[source] + size
    return costs[-1], devices[-1]
