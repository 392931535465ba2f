"""``solve``, ``compare`` and ``report``: requests and limits of solvers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import structs

from nest.errors import InvalidOptionError, UnknownSolverError
from nest.ir.io import problem_hash
from nest.requests import values as read
from nest.requests.plans import SILENT, Talk, plan_of_text, read_plan_like
from nest.requests.restricted import RestrictedRequest
from nest.requests.settings import Request, record, redeclared, setting
from nest.requests.values import Pairs, Reader, Words, shown
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from nest.analysis.compare import Comparison
    from nest.analysis.robust import Robust
    from nest.analysis.safe import Faster
    from nest.analysis.target_loss import TargetLoss
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem
    from nest.requests.plans import PlanLike
    from nest.requests.restricted import Restricted
    from nest.solvers.base import SolveOptions
    from nest.solvers.cell import OnProgress
    from nest.solvers.result import SolveResult

#: The solver that answers by default.
DEFAULT_SOLVER = "dp"

#: The solvers that are compared by default.
DEFAULT_SOLVERS = "dp,milp,cpsat"

#: Stands for every solver that can run here.
ALL = "all"

#: The options of every solver that runs.
Cells = dict[str, "SolveOptions"]

#: Runs solvers on a problem, and returns their answers.
Run = Callable[["Restricted", Cells], Sequence["SolveResult"]]


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TimeLimitRequest(Request, group="Search"):
    """How long an answer may take."""

    time_limit: float | None = setting(
        "--time-limit S",
        "Wall-clock seconds for the run of the solver.  [default: none, 60 "
        "with --model]",
        read.seconds,
        unit="s",
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class WorkersRequest(Request, group="Search"):
    """How many threads or processes a solver gets."""

    workers: int | None = setting(
        "--workers N",
        "Threads or processes per solver.  [default: all available CPUs if "
        "the solver's answer does not depend on the number, else 1]",
        read.integer(1, num_cpus()),
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class GapRequest(Request, group="Search"):
    """How close to the best plan is close enough."""

    gap: float = setting(
        "--gap F",
        "Let exact solvers stop at a plan proven to be so close to the best, "
        "such as 0.02 for 2 %.",
        read.fraction,
        default=0,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SolverOptionsRequest(
    TimeLimitRequest, WorkersRequest, GapRequest, group="Search"
):
    """Limits of one or several solvers, without a problem."""

    repair: bool = setting(
        "--repair",
        "Make plans that exceed the memory fit: more recomputation, more "
        "ZeRO, a smaller micro-batch.",
    )
    option: Pairs = setting(
        "--option SOLVER.KEY=VALUE",
        "Option of one solver, see 'nest solvers'; repeatable.",
        read.pairs,
        multiple=True,
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class SeedRequest(Request, group="Search"):
    """The seed of random choices."""

    seed: int = setting(
        "--seed N", "Seed of random choices.", read.integer(0), default=0
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class OneSolverRequest(Request):
    """The solver that answers a question."""

    solver: str = setting(
        "--solver NAME", "See 'nest solvers'.", read.read_solver, default=DEFAULT_SOLVER
    )


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class LimitedRequest(
    RestrictedRequest, SolverOptionsRequest, SeedRequest, group="Search"
):
    """A problem under restrictions, and limits of the solvers it goes to."""

    SAFE: ClassVar[bool] = True

    headroom: str | None = redeclared(
        RestrictedRequest,
        "headroom",
        "Memory of every device that plans leave free, such as 8GB or 10%; 0 "
        "for none.  [default: none; with --model what 3 of 4 runs need]",
    )

    warm_start: PlanLike | None = setting(
        "--warm-start PLAN",
        "Plan to start from, a file or settings such as tp=8,pp=4, for "
        "solvers that can.",
        read_plan_like,
    )

    def find_warm_start(self, problem: Problem, talk: Talk = SILENT) -> Plan | None:
        """Return the plan to start from, if there is one."""
        start = self.warm_start
        if isinstance(start, str):
            return plan_of_text(start, problem, "--warm-start", talk)
        return start  # type: ignore[return-value]

    def limits(
        self, solvers: Sequence[str], problem: Problem, talk: Talk = SILENT
    ) -> dict[str, SolveOptions]:
        """Return the options of every solver that runs."""
        start = self.find_warm_start(problem, talk)
        extra = parse_extra(self.option, solvers)
        return {
            name: replace(
                solver_limits(self, name), warm_start=start, extra=extra.get(name, {})
            )
            for name in solvers
        }


@dataclass(frozen=True, kw_only=True, init=False, repr=False, eq=False)
class TargetLossRequest(LimitedRequest):
    """Solvers on a problem, and what its target costs."""

    target_loss: bool = setting(
        "--target-loss",
        "Also solve without --target, and say how much longer its best plan takes.",
    )

    def check_questions(self, restricted: Restricted) -> None:
        """Refuse questions that the problem cannot answer."""
        if self.target_loss and restricted.untargeted is None:
            remedy = "add a target with rules, such as --target megatron"
            raise read.also_needed("--target-loss", "--target", remedy)


@dataclass(frozen=True)
class SolveRequest(TargetLossRequest, command="nest solve"):
    """One solver on one problem."""

    solver: str = setting(
        "--solver NAME|FILE",
        "See 'nest solvers'; or a file that describes a command "
        "(docs/your-planner.md).",
        read.read_solver,
        default=DEFAULT_SOLVER,
    )
    options: SolveOptions | None = record(
        "Limits as a record, instead of the arguments for them."
    )
    on_progress: OnProgress | None = record("Called now and then.")
    _: KW_ONLY
    robust: bool = setting(
        "--robust",
        "Take the plan with the best guaranteed step time, the upper end of the "
        "90 % interval, instead of the fastest one: a few searches.",
    )

    def check_questions(self, restricted: Restricted) -> None:
        """Refuse questions that the problem cannot answer."""
        from nest.uncertainty.intervals import why_none

        super().check_questions(restricted)
        if not self.robust:
            return
        if self.target_loss:
            other = "--target-loss, which compares the fastest plans"
            raise read.both_given("--robust", other)
        why = why_none(restricted.problem)
        if why:
            raise InvalidOptionError(
                f"--robust: expected a problem made from a model, whose errors "
                f"are known, got {why}; leave --robust out"
            )

    def check_limits(self) -> None:
        """Refuse arguments that a record of options holds, too."""
        from nest.solvers.base import SolveOptions

        if self.options is None:
            return
        if not isinstance(self.options, SolveOptions):
            raise InvalidOptionError(
                f"options: expected a nest.SolveOptions, got "
                f"{shown(self.options)}; pass one, or the arguments for it"
            )
        names = ("time_limit", "gap", "workers", "seed", "warm_start")
        for name in (*names, "repair", "option"):
            if getattr(self, name) not in (None, 0, ()):
                raise InvalidOptionError(
                    f"{name}: expected either options or arguments for them, "
                    f"got both; remove one"
                )


def _solver_names(value: Any) -> str:
    """Return solvers as one text with commas."""
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        parts = tuple(value)
        if all(isinstance(part, str) for part in parts):
            return ",".join(parts)
    raise TypeError


read_solvers = Reader(
    _solver_names, lambda _: True, "names in one text or apart", "for example 'dp,milp'"
)


def solvers_option(default: str | None = DEFAULT_SOLVERS) -> Any:
    """Declare the solvers that run."""
    return setting(
        "--solvers A,B,…",
        f"Solvers to compare, or {ALL!r}: names, or files that describe "
        f"commands (docs/your-planner.md).",
        read_solvers,
        default=default,
    )


@dataclass(frozen=True)
class CompareRequest(TargetLossRequest, command="nest compare"):
    """Several solvers on one problem."""

    solvers: Words = solvers_option()


@dataclass(frozen=True, kw_only=True)
class ReportRequest(
    RestrictedRequest,
    OneSolverRequest,
    TimeLimitRequest,
    WorkersRequest,
    GapRequest,
    SeedRequest,
    command="nest report",
):
    """A problem, and the plans that a page shows; or a solver finds one."""

    plans: Words = setting(
        "[PLAN]…", "Files, or settings of plans.", read.names, multiple=True
    )

    @property
    def plan_texts(self) -> tuple[str, ...]:
        """The plans that are settings or files."""
        return tuple(self.plans)


def solver_limits(request: Any, name: str) -> SolveOptions:
    """Return the options of a solver, without its own ones.

    The request has some of time limit, gap, workers, seed and repair.
    """
    from nest.solvers.base import SolveOptions
    from nest.solvers.registry import default_workers

    limit_s = request.time_limit
    workers = getattr(request, "workers", None)
    return SolveOptions(
        time_limit_s=limit_s,
        gap=getattr(request, "gap", 0.0),
        num_workers=workers or default_workers(name, limit_s),
        seed=getattr(request, "seed", 0),
        repair=getattr(request, "repair", False),
    )


def split_solvers(text: str) -> list[str]:
    """Return the keywords of ``--solvers``."""
    from nest.solvers.registry import availability, is_built_in, solver_names

    if text == ALL:
        # Those of other packages are imported where they run.
        return [
            name
            for name in solver_names()
            if not is_built_in(name) or not availability(name)
        ]
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise InvalidOptionError(
            f"--solvers: expected keywords separated by commas, got "
            f"{text!r}; see 'nest solvers'"
        )
    names = [read.solver_keyword(name) for name in names]
    for name in names:
        if names.count(name) > 1:
            raise InvalidOptionError(
                f"--solvers: expected every solver once, got {name!r} again; remove one"
            )
    return names


def check_solvers(names: Sequence[str], time_limit_s: float | None) -> None:
    """Refuse names of no solver, and a single solver that cannot run."""
    from nest.solvers.registry import get_solver, is_built_in, is_plugin, solver_names

    for name in names:
        # Looking at the solvers of other packages takes time.
        if not is_built_in(name) and name not in solver_names():
            raise UnknownSolverError(name, solver_names())
    for name in names:
        # A broken entry point costs its result, if there are others.
        if not is_plugin(name) or len(names) == 1:
            get_solver(name, time_limit_s)


def parse_extra(
    texts: Iterable[str], solvers: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Return ``SOLVER.KEY=VALUE`` texts as a dict per solver."""
    options: dict[str, dict[str, str]] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        keyword, dot, key = name.partition(".")
        if not (equals and dot and keyword and key):
            raise InvalidOptionError(
                f"--option: expected SOLVER.KEY=VALUE, got {text!r}; "
                f"for example --option {solvers[0]}.key=value"
            )
        if keyword not in solvers:
            raise InvalidOptionError(
                f"--option {text}: expected one of the solvers that run "
                f"({', '.join(solvers)}), got {keyword!r}; correct it or add the solver"
            )
        if key in options.setdefault(keyword, {}):
            raise InvalidOptionError(
                f"--option {text}: expected {keyword}.{key} once, got it "
                f"twice; remove one"
            )
        options[keyword][key] = value
    return options


def adopted_by(problem: Problem, result: SolveResult) -> SolveResult:
    """Return a result whose plan is one of a problem with more memory."""
    name, plan = problem_hash(problem), result.plan
    plan = plan and structs.replace(plan, problem_hash=name)
    return replace(result, plan=plan, problem_hash=name)


def adopted(restricted: Restricted, result: SolveResult) -> SolveResult:
    """Return a result whose plan is one of the whole problem."""
    plan, extra = result.plan and restricted.adopt(result.plan), result.extra
    if restricted.headroom is not None:
        extra = {**extra, "headroom": restricted.headroom}
    return replace(result, plan=plan, problem=restricted.whole, extra=extra)


def solve_restricted(
    restricted: Restricted, name: str, options: SolveOptions, run: Run
) -> tuple[Restricted, SolveResult, Faster | None]:
    """Return the answer of one solver, and what is faster but may not fit.

    The problem is the one that the answer is for: it has no default headroom
    if no plan leaves that free.
    """
    from nest.analysis.safe import options_for, solve_safely

    free = restricted.free
    if free is None:
        (result,) = run(restricted, {name: options})
        return restricted, result, None

    def search(problem: Problem, limit_s: float | None) -> SolveResult:
        searched = restricted if problem is restricted.problem else free
        limited = options_for(problem, options, limit_s)
        (result,) = run(searched, {name: limited})
        return replace(result, options=options)

    safe = solve_safely(restricted.problem, free.problem, search, options.time_limit_s)
    return restricted if safe.has_margin else free, safe.answer, safe.faster


def compare_restricted(
    restricted: Restricted, cells: Cells, run: Run
) -> tuple[Restricted, Sequence[SolveResult]]:
    """Return the answers of several solvers, and the problem they are for.

    It has no default headroom if no solver finds a plan that leaves it free.
    """
    from nest.analysis.safe import options_for

    if restricted.free is None:
        return restricted, run(restricted, cells)
    problem = restricted.problem
    starts = {
        name: options_for(problem, options, options.time_limit_s)
        for name, options in cells.items()
    }
    results = run(restricted, starts)
    if all(result.step_quanta is None for result in results):
        return restricted.free, run(restricted.free, cells)
    return restricted, results


def find_loss(
    restricted: Restricted,
    results: Sequence[SolveResult],
    cells: Cells,
    on_progress: OnProgress | None = None,
) -> TargetLoss:
    """Return what the target costs, by the first solver without it."""
    from nest.analysis.target_loss import loss_of
    from nest.solvers.run import run_solver

    assert restricted.untargeted is not None
    (name, options), *_ = cells.items()
    cold = replace(options, warm_start=None)
    return loss_of(results, run_solver(restricted.untargeted, name, cold, on_progress))


def find_robust(
    problem: Problem,
    fastest: SolveResult,
    cells: Cells,
    on_progress: OnProgress | None = None,
) -> Robust:
    """Return the plan with the best guaranteed step time, beside the fastest."""
    from nest.analysis.robust import robust_of
    from nest.solvers.run import run_solver

    ((name, options),) = cells.items()
    cold = replace(options, warm_start=None)
    return robust_of(
        problem, fastest, lambda other: run_solver(other, name, cold, on_progress)
    )


def solve(request: SolveRequest) -> SolveResult:
    """Return the answer of one solver.

    What else was asked is in its field ``extra``: ``robust`` and ``target_loss``.
    """
    from nest.solvers.run import run_solver

    request.check_limits()
    request = request.limited()
    restricted, name = request.restricted(), request.solver
    request.check_questions(restricted)
    options, call = request.options, request.on_progress
    if options is None:
        options = request.limits([name], restricted.problem)[name]
    cells = {name: options}

    def run(searched: Restricted, cells: Cells) -> Sequence[SolveResult]:
        return [run_solver(searched.problem, name, cells[name], call, alone=True)]

    more: dict[str, Faster | Robust | TargetLoss | None] = {}
    if request.robust:  # which keeps more memory free than the default
        answered = restricted.free or restricted
        (answer,) = run(answered, cells)
        robust = find_robust(answered.problem, answer, cells, call)
        answer, more["robust"] = robust.answer, robust
    else:
        answered, answer, faster = solve_restricted(restricted, name, options, run)
        more["faster"] = faster
    if request.target_loss:
        more["target_loss"] = find_loss(answered, [answer], cells, call)
    result = adopted(answered, answer)
    extra = {key: x.to_json() for key, x in more.items() if x is not None}
    return replace(result, extra={**result.extra, **extra})


def compare(request: CompareRequest) -> Comparison:
    """Return the answers of several solvers."""
    from nest.analysis.compare import Comparison
    from nest.analysis.compare import compare as run_solvers

    names = split_solvers(str(request.solvers))
    request = request.limited(slow=request.solvers == ALL)
    restricted = request.restricted()
    request.check_questions(restricted)
    cells = request.limits(names, restricted.problem)
    answered, results = compare_restricted(
        restricted, cells, lambda searched, cells: run_solvers(searched.problem, cells)
    )
    loss = find_loss(answered, results, cells) if request.target_loss else None
    results = [adopted(answered, x) for x in results]
    return Comparison(answered.whole, tuple(results), loss)
