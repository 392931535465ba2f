"""Commands as functions, with the words of the command line.

A word is an option of the command without its dashes: ``--time-limit 60`` is
``time_limit=60``, ``--tp 4,8`` is ``tp=(4, 8)``, ``--pin tp=8,pp=4`` is
``pin="tp=8,pp=4"`` or ``pin={"tp": 8, "pp": 4}``. Values are read and checked
as on the command line, and errors name the same options.

Problems are given as such, by name or file, or by ``model=`` and ``cluster=``;
plans as such, by file, by their settings (``"tp=8,pp=4"``), or as the result
that has one. docs/python.md shows all of it.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nest.errors import (
    InvalidOptionError,
    InvalidPlanError,
    InvalidProblemError,
)

if TYPE_CHECKING:
    from typing import TypeAlias

    import click

    from nest.accelerators.document import Codesign
    from nest.accelerators.records import Wave
    from nest.accelerators.spec import Spec
    from nest.analysis.compare import Comparison
    from nest.analysis.explain import Explanation
    from nest.analysis.fit import Fit
    from nest.analysis.pareto import Frontier
    from nest.cli.inputs import Restricted
    from nest.cli.options import Options
    from nest.cost.verdict import Score
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem
    from nest.simulation.events import Simulation
    from nest.solvers.base import SolveOptions
    from nest.solvers.cell import OnProgress
    from nest.solvers.result import SolveResult

    #: A file, or text: a name, or the settings of a plan.
    Text: TypeAlias = str | os.PathLike[str]


def load(source: Text) -> Problem:
    """Return the problem in a file, or the built-in one or instance of a name.

    Parameters
    ----------
    source
        A file goes before a name.

    Raises
    ------
    InvalidProblemError
        If there is no such file or name, or it is no problem.

    Examples
    --------
    >>> import nest
    >>> nest.load("llama2-7b-8").job.global_batch
    1024
    """
    from nest.cli.inputs import load_problem

    return load_problem(_path(source, "nest.load"))


def problem(source: Problem | Text | None = None, **words: Any) -> Problem:
    """Return a problem: of a model on a cluster, or of a name or file.

    Parameters
    ----------
    source
        A problem, a name or a file; otherwise ``model`` and ``cluster``.
    words
        ``model``, ``cluster`` and the options of the job of ``nest
        problems``: ``global_batch``, ``sequence_length``, ``micro_batches``,
        ``tp``, ``schedule``, …, ``topology``, ``target``.

    Raises
    ------
    NestError
        As the command line does.

    Examples
    --------
    >>> import nest
    >>> small = nest.problem(
    ...     model="llama2-7b", cluster="h100x8", global_batch=64, tp=(1, 8)
    ... )
    >>> small.job.global_batch, small.cluster.num_devices
    (64, 8)
    """
    return _Asked("nest.problem", ("target",), source, words).problem


def solve(
    problem: Problem | Text | None = None,
    solver: str = "dp",
    options: SolveOptions | None = None,
    on_progress: OnProgress | None = None,
    **words: Any,
) -> SolveResult:
    """Return the answer of one solver, as ``nest solve`` does.

    Parameters
    ----------
    problem
        A problem, a name or a file; otherwise ``model`` and ``cluster``.
    solver
        Its keyword, or a file that describes a command.
    options
        Limits as a record, instead of the words for them.
    on_progress
        Called now and then.
    words
        Options of the command: ``time_limit`` (seconds; 60 with ``model``,
        else none), ``gap``, ``workers``, ``seed``, ``warm_start``,
        ``repair``, ``option``, ``pin``, ``forbid``, ``target``,
        ``headroom``, ``granularity``; those of :func:`problem`.

    Raises
    ------
    NestError
        If the request makes no sense.

    Examples
    --------
    >>> import nest
    >>> result = nest.solve("llama2-7b-8", pin="tp=1,pp=4", workers=1)
    >>> str(result.status), result.plan
    ('optimal', <Plan r=1, b=2, pp=4, strategies dp2·zero1>)
    >>> len(result.to_rows())
    4
    """
    from nest.solvers.run import run_solver

    asked = _Asked("nest.solve", _SOLVE, problem, words)
    name = asked.solver(solver)
    if options is None:
        options = asked.limits(name, [name])
    else:
        asked.refuse_limits()
    found = run_solver(asked.narrow, name, options, on_progress)
    return asked.owned(found)


def compare(
    problem: Problem | Text | None = None,
    solvers: str | Sequence[str] = "dp,milp,cpsat",
    **words: Any,
) -> Comparison:
    """Return the answers of several solvers, as ``nest compare`` does.

    Parameters
    ----------
    problem
        A problem, a name or a file; otherwise ``model`` and ``cluster``.
    solvers
        Keywords, in one text with commas or apart; ``"all"`` for all.
    words
        As of :func:`solve`; the time limit is that of each solver.

    Raises
    ------
    NestError
        If the request makes no sense.

    Examples
    --------
    >>> import nest
    >>> found = nest.compare("llama2-7b-8", ["dp", "megatron"], workers=1)
    >>> found
    <Comparison of dp, megatron on llama2-7b-8: best dp>
    >>> [row["solver"] for row in found.to_rows()]
    ['dp', 'megatron']
    """
    from nest.analysis.compare import Comparison
    from nest.analysis.compare import compare as run
    from nest.cli.benching import ALL, split_solvers

    text = ",".join(_names(solvers, "solvers", "'dp,milp'"))
    asked = _Asked("nest.compare", _SOLVE, problem, words, slow=text == ALL)
    names = split_solvers(text)
    cells = {name: asked.limits(name, names) for name in names}
    results = run(asked.narrow, cells)
    return Comparison(asked.problem, tuple(map(asked.owned, results)))


def pareto(
    problem: Problem | Text | None = None,
    objectives: str | Sequence[str] = "time,memory",
    *,
    devices: Sequence[int] | None = None,
    price_usd_per_device_hour: float | None = None,
    on_progress: OnProgress | None = None,
    **words: Any,
) -> Frontier:
    """Return all plans that no other beats, as ``nest pareto`` does.

    Parameters
    ----------
    problem
        A problem, a name or a file; otherwise ``model`` and ``cluster``.
    objectives
        Some of ``time``, ``memory``, ``devices``, ``cost``.
    devices
        Sizes of clusters to compare.
    price_usd_per_device_hour
        Price of a device, if it is not that of the problem.
    on_progress
        Called now and then.
    words
        ``time_limit``, ``workers``, ``pin``, ``forbid``, ``target``,
        ``headroom``, ``granularity``; those of :func:`problem`.

    Raises
    ------
    NestError
        If the request makes no sense.

    Examples
    --------
    >>> import nest
    >>> found = nest.pareto("llama2-7b-8", pin="pp=4,r=1", workers=1)
    >>> found.proven, found.to_rows()[0]["devices"]
    (True, 8)
    """
    from nest.analysis.pareto import check_objectives, frontier
    from nest.util.versions import num_cpus

    known = ("time_limit", "workers", "granularity", *_restrictions())
    asked = _Asked("nest.pareto", known, problem, words, limited=False)
    return frontier(
        asked.narrow,
        check_objectives(_names(objectives, "objectives", "'time,memory'")),
        devices=_counts(devices, "devices"),
        price_usd_per_hour=price_usd_per_device_hour,
        time_limit_s=asked.options.time_limit,
        workers=asked.options.workers or num_cpus(),
        on_progress=on_progress,
    )


def fit(
    problem: Problem | Text | None = None,
    *,
    within: float | str | None = None,
    tokens_per_s: float | str | None = None,
    days: float | str | None = None,
    tokens: float | str | None = None,
    memory: bool = False,
    devices_list: Sequence[int] | None = None,
    on_progress: OnProgress | None = None,
    **words: Any,
) -> Fit:
    """Return how few devices or how little memory do, as ``nest fit`` does.

    Offers at prices (``--budget``, ``--cheapest``) are
    :func:`nest.analysis.offers.best_offer`.

    Parameters
    ----------
    problem
        A problem, a name or a file; otherwise ``model`` and ``cluster``.
    within, tokens_per_s, days, tokens
        The target: seconds of a step, a throughput, or the days for so many
        tokens.
    memory
        Ask for the least memory per device instead of the fewest devices.
    devices_list
        Numbers of devices to try.
    on_progress
        Called now and then.
    words
        ``solver``, ``time_limit``, ``pin``, ``forbid``, ``target``,
        ``headroom``, ``granularity``; those of :func:`problem`.

    Raises
    ------
    NestError
        If the request makes no sense.

    Examples
    --------
    >>> import nest
    >>> found = nest.fit("llama2-7b-8", within=150, devices_list=(8,))
    >>> found.best.num_devices, found.proven
    (8, True)
    """
    from nest.analysis.fit import fewest_devices, smallest_memory
    from nest.cli.declare import amount
    from nest.cli.questions import check_target, find_target

    known = ("solver", "time_limit", "granularity", *_restrictions())
    asked = _Asked("nest.fit", known, problem, words)
    given = {
        "within": within,
        "tokens_per_s": tokens_per_s,
        "days": days,
        "tokens": tokens,
    }
    target = {
        name: None if value is None else _read(amount, name, value)
        for name, value in given.items()
    }
    check_target(target, with_budget=False, optional=False)
    if memory and devices_list is not None:
        raise InvalidOptionError(
            "--devices-list: expected either it or --memory, got both; "
            "remove one"
        )
    goal = find_target(asked.narrow, target)
    assert goal is not None
    solver = asked.solver(asked.options.solver)
    limits = asked.limits(solver, [solver])
    if memory:
        return smallest_memory(asked.narrow, goal, solver, limits, on_progress)
    return fewest_devices(
        *(asked.narrow, goal, _counts(devices_list, "devices_list"), solver),
        *(limits, on_progress),
    )


def codesign(  # noqa: PLR0913
    spec: Spec | Text,
    model: str | Sequence[str] = (),
    *,
    frontier: bool = False,
    sensitivity: bool = False,
    contributions: bool = False,
    phaze_order: bool = False,
    samples: int = 0,
    output: Text | None = None,
    resume: bool = False,
    jobs: int = 1,
    dask: str | None = None,
    time_limit: float | None = None,
    on_wave: Callable[[Wave], None] | None = None,
) -> Codesign:
    """Return the best accelerators of a space, as ``nest codesign`` does.

    Parameters
    ----------
    spec
        A file, see docs/codesign.md, or what ``read_spec`` of
        ``nest.accelerators.spec`` returns.
    model
        Models, instead of those of the file: names, or paths of
        ``config.json``.
    frontier, sensitivity, contributions, phaze_order, samples
        What is asked beside the best points, and how many random samples.
    output, resume
        Directory that keeps solved points, and whether to go on with it.
    jobs, dask
        Points that are solved at the same time, or where.
    time_limit
        Seconds after which the best points known, and bounds on all others,
        are returned.
    on_wave
        Called now and then with how far a question is.

    Raises
    ------
    NestError
        If the request makes no sense.

    Examples
    --------
    >>> import nest
    >>> found = nest.codesign(
    ...     "examples/codesign/own.yaml", frontier=True, jobs=2
    ... )  # doctest: +SKIP
    >>> found.to_pandas()  # doctest: +SKIP
    """
    from nest.accelerators.answers import answer
    from nest.accelerators.document import Codesign
    from nest.accelerators.records import Wanted
    from nest.accelerators.spec import Spec, read_spec
    from nest.cli.codesigning import with_models
    from nest.cli.declare import integer, seconds
    from nest.util.versions import num_cpus

    where = "spec"
    if not isinstance(spec, Spec):
        where = os.fspath(spec)
        spec = read_spec(where)
    names = (model,) if isinstance(model, str) else tuple(model)
    wanted = Wanted(
        frontier=frontier,
        sensitivity=sensitivity,
        contributions=contributions,
        phaze_order=phaze_order,
        samples=tuple(range(_read(integer(0), "samples", samples))),
    )
    found = answer(
        with_models(spec, names, where),
        wanted,
        folder=None if output is None else os.fspath(output),
        resume=resume,
        jobs=_read(integer(1, num_cpus()), "jobs", jobs),
        dask=dask,
        time_limit_s=time_limit
        if time_limit is None
        else _read(seconds, "time_limit", time_limit),
        on_wave=on_wave,
    )
    return Codesign(found)


def score(
    problem: Problem | Text,
    plan: Plan | SolveResult | Text | Mapping[str, Any],
) -> Score:
    """Return what a plan costs, see :class:`nest.cost.verdict.Score`.

    Parameters
    ----------
    problem
        A problem, a name or a file.
    plan
        A plan, a file, settings (a text or a mapping), or a result.

    Raises
    ------
    InvalidPlanError
        If it is no plan of the problem.

    Examples
    --------
    >>> import nest
    >>> nest.score("llama2-7b-8", "tp=1,pp=4,r=1").feasible
    True
    """
    from nest.cost.score import score as price
    from nest.ir.plan import Plan
    from nest.ir.problem import Problem

    if isinstance(problem, Problem) and isinstance(plan, Plan):
        return price(problem, plan)
    asked = _Asked("nest.score", (), problem, {})
    return price(asked.problem, asked.plan(plan))


def explain(
    problem: Problem | Text | None = None,
    plan: Plan | SolveResult | Text | None = None,
    *,
    prefer: str | Mapping[str, Any] | None = None,
    search: bool = True,
    on_progress: OnProgress | None = None,
    **words: Any,
) -> Explanation:
    """Return where the time of a plan goes, as ``nest explain`` does.

    Parameters
    ----------
    problem
        A problem, a name or a file; otherwise ``model`` and ``cluster``.
    plan
        A plan, a file, settings, or a result.
    prefer
        Settings to compare with.
    search
        Whether to solve anything.
    on_progress
        Called now and then.
    words
        ``solver``, ``time_limit``, ``pin``, ``forbid``, ``target``,
        ``headroom``, ``granularity``; those of :func:`problem`.

    Raises
    ------
    NestError
        If the request makes no sense.

    Examples
    --------
    >>> import nest
    >>> found = nest.explain("llama2-7b-8", "tp=1,pp=4,r=1", search=False)
    >>> found.to_rows()[0]["term"]
    'computation'
    """
    from nest.analysis.explain import explain as run
    from nest.constraints.pins import parse

    known = ("solver", "time_limit", "granularity", *_restrictions())
    asked = _Asked("nest.explain", known, problem, words, plan)
    solver = asked.solver(asked.options.solver)
    text = "" if prefer is None else _text(prefer)
    return run(
        asked.narrow,
        asked.plan(plan),
        prefer=parse([text], "--prefer") if text else None,
        search=search,
        solver=solver,
        options=asked.limits(solver, [solver]),
        on_progress=on_progress,
    )


def simulate(
    problem: Problem | Text | None = None,
    plan: Plan | SolveResult | Text | None = None,
    **words: Any,
) -> Simulation:
    """Return a plan's step pass by pass, as ``nest simulate`` does.

    Parameters
    ----------
    problem
        A problem, a name or a file; otherwise ``model`` and ``cluster``.
    plan
        A plan, a file, settings, or a result.
    words
        Those of :func:`problem`.

    Raises
    ------
    NestError
        If the request makes no sense.

    Examples
    --------
    >>> import nest
    >>> step = nest.simulate("llama2-7b-8", "tp=1,pp=4,r=1")
    >>> step.to_rows()[0]["kind"]
    'forward'
    """
    from nest.simulation.events import Simulation

    asked = _Asked("nest.simulate", ("target",), problem, words, plan)
    return Simulation(asked.problem, asked.plan(plan))


def export(
    problem: Problem | Text | None = None,
    plan: Plan | SolveResult | Text | None = None,
    *,
    to: str,
    output: Text | None = None,
    gpus_per_node: int | None = None,
    flavor: str | None = None,
    nearest: bool = False,
    **words: Any,
) -> dict[str, str]:
    """Return the files that start a plan, by name, as ``nest export`` does.

    Parameters
    ----------
    problem
        A problem, a name or a file; otherwise ``model`` and ``cluster``.
    plan
        A plan, a file, settings, or a result.
    to
        The framework, see docs/exports.md.
    output
        New or empty directory to write them to.
    gpus_per_node, flavor
        As the command's options.
    nearest
        Whether to write the nearest plan that the framework can run instead
        of one that it cannot; it is among the files then.
    words
        Those of :func:`problem`. With a problem that does not name its model
        ``model`` does.

    Raises
    ------
    NestError
        If the request makes no sense, or the framework cannot run the plan.

    Examples
    --------
    >>> import nest
    >>> files = nest.export(
    ...     model="llama2-7b", cluster="h100x8", plan="tp=8,r=1",
    ...     to="megatron", global_batch=8, micro_batches=1,
    ... )
    >>> sorted(files)
    ['README', 'args.sh', 'hostfile']
    """
    from nest.cli.inputs import check_output
    from nest.frameworks.export import export as write
    from nest.frameworks.export import write_folder
    from nest.frameworks.layers import placement_of
    from nest.frameworks.settings import Settings
    from nest.models.named import load_model

    named = words.pop("model", None) if problem is not None else None
    words.setdefault("target", to)
    asked = _Asked("nest.export", ("target",), problem, words, plan)
    folder = None if output is None else os.fspath(output)
    check_output(folder, "-o", folder=True)
    shape = None
    if named is not None:
        modules = placement_of(asked.problem.graph).mtp
        shape = load_model(named, mtp=modules > 0)
    settings = Settings(shape, gpus_per_node, flavor)
    known = asked.plan(plan)
    if nearest:
        from nest.frameworks.nearest import nearest as find_nearest
        from nest.ir.io import encode

        found = find_nearest(asked.problem, known, to, settings)
        files = {**found.files, "plan.json": encode(found.plan).decode()}
    else:
        files = write(asked.problem, known, to, settings)
    if folder is not None:
        write_folder(folder, files)
    return files


# What is asked


def _restrictions() -> tuple[str, ...]:
    from nest.cli.options import RESTRICTIONS

    return RESTRICTIONS


#: What :class:`Options` calls the words for a record of options.
_LIMITS = (
    *("time_limit", "gap", "workers", "seed", "warm_start", "repair"),
    "extra",
)
_SOLVE = (
    *("pin", "forbid", "target", "headroom", "granularity"),
    *_LIMITS,
)


class _Asked:
    """What a call says: its problem, and the options of the command line.

    Parameters
    ----------
    command
        What is called, for messages.
    names
        Options besides those of a model, as :class:`Options` calls them.
    source, words
        The problem, and what the options say.
    plan
        What is asked about, if anything: settings may name values that the
        job of a model gets.
    limited, slow
        Whether models get a time limit; whether all problems do.
    """

    def __init__(
        self,
        command: str,
        names: Collection[str],
        source: Problem | Text | None,
        words: Mapping[str, Any],
        plan: object = None,
        limited: bool = True,
        slow: bool = False,
    ) -> None:
        from nest.ir.problem import Problem

        self._words = given = dict(words)
        self._start = None
        if not isinstance(given.get("warm_start"), str | os.PathLike):
            self._start = given.pop("warm_start", None)
        options = _read_words(command, tuple(names), given)
        known = None
        if isinstance(source, Problem):
            known = source
            options = replace(options, problem_text=known.name)
        elif source is not None:
            options = replace(options, problem_text=_path(source, command))
        try:
            options.check_problem_choice()
        except InvalidOptionError as error:
            raise _in_python(command, str(error)) from None
        if isinstance(plan, Mapping):
            plan = _text(plan)
        if isinstance(plan, str):
            options = replace(options, plans=(plan,))
        self.options = options.limited(slow) if limited else options
        self.problem = known or options.find_problem()

    @functools.cached_property
    def restricted(self) -> Restricted:
        """The problem as the words that narrow it down leave it."""
        return self.options.restricted(self.problem)

    @property
    def narrow(self) -> Problem:
        """The problem that is solved."""
        return self.restricted.problem

    def plan(
        self, plan: Plan | SolveResult | Text | Mapping[str, Any] | None
    ) -> Plan:
        """Return the plan that is asked about."""
        from nest.ir.plan import Plan

        if isinstance(plan, Plan):
            return plan
        if isinstance(plan, Mapping):
            plan = _text(plan)
        if isinstance(plan, str | os.PathLike):
            from nest.analysis.plan_by_settings import (
                are_settings,
                plan_by_settings,
            )
            from nest.cli.inputs import load_plan

            text = os.fspath(plan)
            if are_settings(text):
                return plan_by_settings(self.narrow, text, "plan").plan
            return load_plan(text, self.problem)
        found = getattr(plan, "plan", None)
        if not isinstance(found, Plan):
            raise InvalidPlanError(
                f"plan: expected a plan, a file, settings such as "
                f"'tp=8,pp=4' or a result with a plan, got {_shown(plan)}; "
                f"pass one"
            )
        return found

    def solver(self, text: str) -> str:
        """Return the keyword of a solver that a text names."""
        from nest.cli.inputs import solver_keyword

        if not isinstance(text, str | os.PathLike):
            raise InvalidOptionError(
                f"solver: expected a keyword such as 'dp', or a file, got "
                f"{_shown(text)}; see nest.solver_names()"
            )
        text = os.fspath(text)
        return solver_keyword(text)

    def limits(self, solver: str, solvers: Sequence[str]) -> SolveOptions:
        """Return the options of a solver, out of several that run."""
        from nest.cli.inputs import parse_extra

        start = self._start
        if start is not None:
            start = self.plan(start)
        else:
            start = self.options.find_warm_start(self.narrow)
        extra = parse_extra(self.options.extra, list(solvers))
        found = self.options.solve_options(solver, start)
        return replace(found, extra=extra.get(solver, {}))

    def refuse_limits(self) -> None:
        """Refuse words that a record of options says, too."""
        for name in (*_LIMITS, "option"):
            if name in self._words:
                raise InvalidOptionError(
                    f"{name}: expected either options or words for them, "
                    f"got both; remove one"
                )

    def owned(self, result: SolveResult) -> SolveResult:
        """Return a result whose plan is one of the whole problem."""
        plan = result.plan and self.restricted.adopt(result.plan)
        return replace(result, plan=plan, problem=self.problem)


@functools.cache
def _parser(names: tuple[str, ...]) -> click.Command:
    """Return a command that does nothing but read options."""
    import click

    from nest.cli.options import MODEL, takes

    @click.command()
    @takes(*names, *(name for name in MODEL if name not in names))
    def collect(options: Options) -> Options:
        return options

    return collect


def _read_words(
    command: str, names: tuple[str, ...], words: Mapping[str, Any]
) -> Options:
    """Return the options that words stand for."""
    import click

    from nest.cli.inputs import flag
    from nest.cli.main import describe_usage

    arguments: list[str] = []
    for name, value in words.items():
        if name == "option":
            for part in _texts(value):
                arguments += [flag(name), part]
        elif name == "sequence_parallel" and value is not None:
            arguments += [flag(name), _text(value)]
        elif value is True:
            arguments.append(flag(name))
        elif value is not None and value is not False:
            arguments += [flag(name), _text(value)]
    try:
        with _parser(names).make_context(command, arguments) as context:
            options: Options = _parser(names).invoke(context)
    except click.ClickException as error:
        raise _in_python(command, describe_usage(error)) from None
    return replace(options, command=command)


def _in_python(command: str, text: str) -> InvalidOptionError:
    """Return an error of the command line with where to look in Python."""
    return InvalidOptionError(
        text.replace(f"'{command} --help'", f"help({command})")
    )


def _read(read: Any, name: str, value: Any) -> Any:
    """Return the value of an option that a command reads by itself."""
    import click

    from nest.cli.inputs import flag

    try:
        return read(str(value))
    except click.BadParameter as error:
        raise InvalidOptionError(f"{flag(name)}: {error.message}") from None


def _shown(value: Any) -> str:
    """Return a wrong value for a message; long ones by their type."""
    text = repr(value)
    return text if len(text) <= 80 else f"a {type(value).__name__}"


def _path(source: Any, command: str) -> str:
    """Return the name or the file that stands for a problem."""
    text = os.fspath(source) if isinstance(source, os.PathLike) else source
    if isinstance(text, str):
        return text
    raise InvalidProblemError(
        f"{command}: expected a problem, a name or a file, got "
        f"{_shown(source)}; pass one, the problem before a plan"
    )


def _names(value: Any, name: str, example: str) -> list[str]:
    """Return names, which come in one text with commas or apart."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    if isinstance(value, Sequence | AbstractSet) and all(
        isinstance(part, str) for part in value
    ):
        return list(value)
    raise InvalidOptionError(
        f"{name}: expected names in one text or apart, got {_shown(value)}; "
        f"for example {example}"
    )


def _counts(value: Any, name: str) -> list[int] | None:
    """Return numbers of devices, if any are said."""
    if value is None:
        return None
    if isinstance(value, Sequence | AbstractSet) and all(
        isinstance(part, int) for part in value
    ):
        return list(value)
    raise InvalidOptionError(
        f"{name}: expected numbers of devices, got {_shown(value)}; for "
        f"example (4, 8)"
    )


def _texts(value: Any) -> list[str]:
    """Return the uses of an option that may come several times."""
    if isinstance(value, Mapping):
        return [f"{name}={x}" for name, x in value.items()]
    return [value] if isinstance(value, str) else list(value)


def _text(value: Any) -> str:
    """Return a value as the command line has it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_any(x)}" for name, x in value.items())
    if isinstance(value, Sequence | set) and not isinstance(value, str):
        return ",".join(map(_text, value))
    return os.fspath(value) if isinstance(value, os.PathLike) else str(value)


def _any(value: Any) -> str:
    """Return values of a setting, any of which will do."""
    if isinstance(value, Sequence | set) and not isinstance(value, str):
        return "|".join(map(str, value))
    return str(value)
