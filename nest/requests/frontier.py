"""``pareto``: all plans that no other plan beats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from nest.errors import InvalidOptionError
from nest.requests.prices import PRICE_HELP, PRICE_USAGE, priced
from nest.requests.restricted import RestrictedRequest
from nest.requests.settings import record, redeclared, setting
from nest.requests.solving import TimeLimitRequest, WorkersRequest, solver_limits
from nest.requests.values import (
    Integers,
    Pairs,
    Words,
    also_needed,
    integers,
    names,
    pairs,
)
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from nest.analysis.pareto import Frontier
    from nest.analysis.prove import Proof
    from nest.ir.problem import Problem
    from nest.solvers.cell import OnProgress


@dataclass(frozen=True)
class ParetoRequest(
    RestrictedRequest, TimeLimitRequest, WorkersRequest, command="nest pareto"
):
    """The frontier of a problem."""

    objectives: Words = setting(
        "--objectives A,…",
        "What to minimize, of time, memory, devices, cost.",
        names,
        default="time,memory",
    )
    _: KW_ONLY
    devices: Integers | None = setting(
        "--devices N,…",
        "Sizes of clusters to compare, each the first devices of the cluster.  "
        "[default: all; also half, a quarter, … with devices or cost]",
        integers(),
        unit="devices",
    )
    price: Pairs = setting(PRICE_USAGE, PRICE_HELP, pairs, unit="USD/h", multiple=True)
    workers: int | None = redeclared(
        WorkersRequest,
        "workers",
        "Processes that share the work; threads of --prove.  [default: all "
        "available CPUs]",
    )
    time_limit: float | None = redeclared(
        TimeLimitRequest,
        "time_limit",
        "Wall-clock seconds for the whole frontier, and again for each run "
        "of --prove.  [default: none]",
    )
    prove: str | None = setting(
        "--prove SOLVER", "Let another exact solver prove points, such as cpsat."
    )
    points: Integers | None = setting(
        "--points N,…", "Numbers of the points to --prove.  [default: all]", integers()
    )
    on_progress: OnProgress | None = record("Called now and then.")

    def check_proofs(self) -> None:
        """Refuse points to prove without a solver that proves them."""
        from nest.analysis.prove import check_prover

        if self.points is not None and self.prove is None:
            raise also_needed("--points", "--prove", "add it, or leave out --points")
        if self.prove is not None:
            check_prover(self.prove)

    def price_usd_per_hour(self, problem: Problem) -> float | None:
        """Return the price of a device, if it is said and of all types."""
        cluster = priced(problem, self.price)
        return cluster.price_usd_per_hour if self.price else None


def find_frontier(
    request: ParetoRequest, problem: Problem, on_progress: OnProgress | None = None
) -> Frontier:
    """Answer a request for its restricted problem."""
    from nest.analysis.pareto import check_objectives, frontier

    return frontier(
        problem,
        check_objectives([*request.objectives]),
        devices=request.devices,  # type: ignore[arg-type]
        price_usd_per_hour=request.price_usd_per_hour(problem),
        time_limit_s=request.time_limit,
        workers=request.workers or num_cpus(),
        on_progress=on_progress or request.on_progress,
    )


def prove_points(
    request: ParetoRequest, frontier: Frontier, on_progress: OnProgress | None = None
) -> Iterator[Proof]:
    """Let the solver of ``prove`` examine the points that were asked for."""
    from nest.analysis.prove import prove

    if request.prove is None:
        return
    count = len(frontier.points)
    numbers: Any = request.points or range(1, count + 1)
    for index in numbers:
        if index > count:
            raise InvalidOptionError(
                f"--points: expected numbers of the frontier's {count} "
                f"points, got {index}; remove it"
            )
    limits = solver_limits(request, request.prove)
    for index in numbers:
        point = frontier.points[index - 1]
        yield prove(frontier, point, request.prove, limits, on_progress)
