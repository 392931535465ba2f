"""``pareto``: all plans that no other plan beats."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from nest.requests.prices import PRICE_HELP, PRICE_USAGE, priced
from nest.requests.restricted import RestrictedRequest
from nest.requests.settings import record, redeclared, setting
from nest.requests.solving import TimeLimitRequest, WorkersRequest
from nest.requests.values import Integers, Pairs, Words, integers, names, pairs
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from nest.analysis.pareto import Frontier
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
    on_progress: OnProgress | None = record("Called now and then.")

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
