"""Questions as functions, with the settings of the command line.

Each function takes the fields of a request of :mod:`nest.requests` as
arguments; editors complete them, and ``help(nest.solve)`` shows them with
units and defaults. The option ``--time-limit 60`` is ``time_limit=60``,
``--tp 4,8`` is ``tp=(4, 8)``, ``--pin tp=8,pp=4`` is ``pin="tp=8,pp=4"`` or
``pin={"tp": 8, "pp": 4}``. Text is read as on the command line.

A problem is a record, a name or a file, or ``model=`` on ``cluster=``. A plan
is a record, a file, its settings (``"tp=8,pp=4"``), or a result that has one.
docs/python.md shows all of it.
"""

from __future__ import annotations

import functools
import inspect
import os
import textwrap
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from nest.errors import InvalidOptionError
from nest.ir.problem import Problem
from nest.requests import (
    accelerators,
    benchmarks,
    explaining,
    fitting,
    frontier,
    launching,
    measured,
    solving,
)
from nest.requests import fits as memory
from nest.requests.problems import ProblemRequest
from nest.requests.settings import Request, in_python, python_errors, settings_of
from nest.requests.values import PathText
from nest.util.files import check_output
from nest.util.text import closest
from nest.util.versions import num_cpus

if TYPE_CHECKING:
    from nest.accelerators.document import Codesign
    from nest.analysis.compare import Comparison
    from nest.analysis.explain import Explanation
    from nest.analysis.fit import Fit
    from nest.analysis.fits import Fits
    from nest.analysis.pareto import Frontier
    from nest.cost.verdict import Score
    from nest.hardware.calibration import CalibrationFile
    from nest.simulation.events import Simulation
    from nest.solvers.result import SolveResult

#: The modules of the types of answers, which :func:`typing.get_type_hints` imports.
_TYPES = {
    "CalibrationFile": "nest.hardware.calibration",
    "Codesign": "nest.accelerators.document",
    "Comparison": "nest.analysis.compare",
    "Explanation": "nest.analysis.explain",
    "Fit": "nest.analysis.fit",
    "Fits": "nest.analysis.fits",
    "Frontier": "nest.analysis.pareto",
    "Score": "nest.cost.verdict",
    "Simulation": "nest.simulation.events",
    "SolveResult": "nest.solvers.result",
}

Arguments = ParamSpec("Arguments")
Asked = TypeVar("Asked", bound=Request)
Answer = TypeVar("Answer")


def _asks(
    request: Callable[Arguments, Asked], *without: str
) -> Callable[[Callable[[Asked], Answer]], Callable[Arguments, Answer]]:
    """Turn a function of a request into one of the request's fields.

    The function gets the signature of the request, but for the fields that it
    does ``without``, its docstring a section on every field, and its errors the
    names of Python arguments.
    """
    kind: Any = request

    def decorate(answer: Callable[[Asked], Answer]) -> Callable[Arguments, Answer]:
        signature = inspect.signature(kind)
        fields = signature.parameters.values()
        signature = signature.replace(
            parameters=[field for field in fields if field.name not in without]
        )

        @functools.wraps(answer)
        def function(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
            name = f"nest.{answer.__name__}"
            for key in kwargs:
                if key not in signature.parameters:
                    near = closest(key, signature.parameters)
                    remedy = f"did you mean {near!r}?" if near else ""
                    raise InvalidOptionError(
                        f"{name}: expected a known argument, got {key!r}; "
                        f"{remedy or f'see help({name})'}"
                    )
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise InvalidOptionError(
                    f"{name}: expected the arguments of its signature, got "
                    f"another call ({error}); see help({name})"
                ) from None
            with python_errors(kind):
                return answer(request(*args, **kwargs))

        returned = answer.__annotations__["return"]
        function.__signature__ = signature.replace(  # type: ignore[attr-defined]
            return_annotation=returned
        )
        is_lazy = returned in _TYPES
        function.__annotations__ = {
            "return": f"_imported({returned!r})" if is_lazy else returned
        }
        function.__doc__ = _with_parameters(answer.__doc__ or "", kind, signature)
        return function

    return decorate


def _imported(name: str) -> Any:
    """Return a type of answers."""
    return getattr(import_module(_TYPES[name]), name)


def _with_parameters(
    doc: str, request: type[Request], signature: inspect.Signature
) -> str:
    """Return a docstring with a section on the fields of a request."""
    lines = ["Parameters", "----------"]
    settings = settings_of(request)
    for name in signature.parameters:
        declared = settings[name]
        lines.append(f"{name} [{declared.unit}]" if declared.unit else name)
        lines += textwrap.wrap(
            in_python(" ".join(declared.help.split()), request),
            70,
            break_on_hyphens=False,
            initial_indent="    ",
            subsequent_indent="    ",
        )
    head, found, tail = doc.partition("    Examples\n")
    section = textwrap.indent("\n".join(lines), "    ").lstrip()
    return f"{head}    {section}\n\n{found}{tail}"


def load(source: PathText) -> Problem:
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
    with python_errors(ProblemRequest):
        return ProblemRequest(problem=source).find_problem()


@_asks(ProblemRequest)
def problem(request: ProblemRequest) -> Problem:
    """Return a problem: of a model on a cluster, or of a name or file.

    Examples
    --------
    >>> import nest
    >>> small = nest.problem(
    ...     model="llama2-7b", cluster="h100x8", global_batch=64, tp=(1, 8)
    ... )
    >>> small.job.global_batch, small.cluster.num_devices
    (64, 8)
    """
    return request.find_problem()


@_asks(solving.SolveRequest)
def solve(request: solving.SolveRequest) -> SolveResult:
    """Return the answer of one solver, as ``nest solve`` does.

    Examples
    --------
    >>> import nest
    >>> result = nest.solve("llama2-7b-8", pin="tp=1,pp=4", workers=1)
    >>> str(result.status), result.plan
    ('optimal', <Plan r=1, b=2, pp=4, strategies dp2·zero1>)
    >>> len(result.to_rows())
    4
    """
    return solving.solve(request)


@_asks(solving.CompareRequest)
def compare(request: solving.CompareRequest) -> Comparison:
    """Return the answers of several solvers, as ``nest compare`` does.

    The time limit is that of each solver.

    Examples
    --------
    >>> import nest
    >>> comparison = nest.compare("llama2-7b-8", ["dp", "megatron"], workers=1)
    >>> comparison
    <Comparison of dp, megatron on llama2-7b-8: best dp>
    >>> [row["solver"] for row in comparison.to_rows()]
    ['dp', 'megatron']
    """
    return solving.compare(request)


@_asks(frontier.ParetoRequest)
def pareto(request: frontier.ParetoRequest) -> Frontier:
    """Return all plans that no other beats, as ``nest pareto`` does.

    Examples
    --------
    >>> import nest
    >>> points = nest.pareto("llama2-7b-8", pin="pp=4,r=1", workers=1)
    >>> points.proven, points.to_rows()[0]["devices"]
    (True, 8)
    """
    request = replace(request, workers=request.workers or num_cpus())
    request.check_proofs()
    points = frontier.find_frontier(request, request.restricted().problem)
    proofs = frontier.prove_points(request, points, request.on_progress)
    return replace(points, proofs=tuple(proofs))


@_asks(fitting.FitRequest)
def fit(request: fitting.FitRequest) -> Fit:
    """Return how few devices, how little memory, or which offer does.

    Examples
    --------
    >>> import nest
    >>> answer = nest.fit("llama2-7b-8", within=150, devices_list=(8,))
    >>> answer.best.num_devices, answer.proven
    (8, True)
    """
    request = request.limited()
    request.check()
    return fitting.fit_problem(request, request.restricted().problem)


@_asks(memory.FitsRequest)
def fits(request: memory.FitsRequest) -> Fits:
    """Return whether a launch or a plan fits, as ``nest fits`` does.

    Examples
    --------
    >>> import nest
    >>> answer = nest.fits("llama2-7b-8", "tp=1,pp=4,r=1")
    >>> answer.fits, answer.stages[0].stage
    ('doubtful', 1)
    """
    return memory.find_fits(request)


@_asks(accelerators.CodesignRequest)
def codesign(request: accelerators.CodesignRequest) -> Codesign:
    """Return the best accelerators of a space, as ``nest codesign`` does.

    Examples
    --------
    >>> import nest
    >>> designs = nest.codesign(
    ...     "examples/codesign/own.yaml", frontier=True, jobs=2
    ... )  # doctest: +SKIP
    >>> designs.to_pandas()  # doctest: +SKIP
    """
    from nest.accelerators.document import Codesign

    request.check()
    spec, limit_s = request.find_spec(), request.time_limit
    return Codesign(accelerators.search(request, spec, time_limit_s=limit_s))


@_asks(explaining.ScoreRequest)
def score(request: explaining.ScoreRequest) -> Score:
    """Return what a plan costs, see :class:`nest.cost.verdict.Score`.

    Examples
    --------
    >>> import nest
    >>> nest.score("llama2-7b-8", "tp=1,pp=4,r=1").feasible
    True
    """
    from nest.cost.score import score

    return score(*request.find_problem_and_plan())


@_asks(explaining.ExplainRequest)
def explain(request: explaining.ExplainRequest) -> Explanation:
    """Return where the time of a plan goes, as ``nest explain`` does.

    Examples
    --------
    >>> import nest
    >>> terms = nest.explain("llama2-7b-8", "tp=1,pp=4,r=1", search=False)
    >>> terms.to_rows()[0]["term"]
    'computation'
    """
    request.check()
    request = request.limited()
    whole, plan = request.find_problem_and_plan()
    problem = request.restricted(whole).problem
    return explaining.explain_plan(request, problem, plan)


@_asks(explaining.SimulateRequest)
def simulate(request: explaining.SimulateRequest) -> Simulation:
    """Return a plan's step pass by pass, as ``nest simulate`` does.

    Examples
    --------
    >>> import nest
    >>> step = nest.simulate("llama2-7b-8", "tp=1,pp=4,r=1")
    >>> step.to_rows()[0]["kind"]
    'forward'
    """
    from nest.simulation.events import Simulation

    return Simulation(*request.find_problem_and_plan())


@_asks(explaining.TraceRequest)
def trace(request: explaining.TraceRequest) -> dict[str, Any]:
    """Return a plan's step as a trace for Perfetto or ``chrome://tracing``.

    Examples
    --------
    >>> import nest
    >>> events = nest.trace("llama2-7b-8", "tp=1,pp=4,r=1")["traceEvents"]
    >>> events[0]["name"]
    'process_name'
    """
    from nest.simulation.events import Simulation
    from nest.simulation.trace import trace

    return trace(Simulation(*request.find_problem_and_plan()))


@_asks(explaining.CheckRequest)
def check(request: explaining.CheckRequest) -> tuple[str, ...]:
    """Return the rules that a plan violates; without a plan check a problem.

    Raises
    ------
    NestError
        If the problem is invalid, or the plan is none for it.

    Examples
    --------
    >>> import nest
    >>> nest.check("llama2-7b-8", "tp=1,pp=4,r=1")
    ()
    """
    from nest.cost.score import score

    problem = request.find_problem()
    plan = request.find_plan(problem)
    return () if plan is None else tuple(score(problem, plan).violations)


@_asks(explaining.CertifyRequest)
def certify(request: explaining.CertifyRequest) -> dict[str, Any]:
    """Return a certificate that ``nest-check`` checks, as a document.

    Without a plan it proves that no plan fits.

    Examples
    --------
    >>> import nest
    >>> proof = nest.certify("llama2-7b-8", "tp=1,pp=4,r=1")
    >>> proof["status"], proof["lower_bound_quanta"] > 0
    ('optimal', True)
    """
    from nest.certificates.certify import certify, certify_infeasible

    request.check_problem_choice()
    problem = request.find_problem()
    plan = request.find_plan(problem)
    if plan is None:
        return certify_infeasible(problem, None)
    return certify(problem, plan, None)


@_asks(launching.ExportRequest, "target")
def export(request: launching.ExportRequest) -> dict[str, str | bytes]:
    """Return the files that start a plan, by name, as ``nest export`` does.

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
    from nest.frameworks.export import write_folder

    folder = None if request.output is None else os.fspath(request.output)
    check_output(folder, "-o", folder=True)
    files = launching.export(request)
    if folder is not None:
        write_folder(folder, files)
    return files


@_asks(benchmarks.BenchRequest)
def bench(request: benchmarks.BenchRequest) -> dict[str, Any]:
    """Run solvers on a set of problems, as ``nest bench`` does.

    Returns the document of the report; ``output`` keeps every result.

    Examples
    --------
    >>> import nest
    >>> report = nest.bench(
    ...     "quick", solvers="dp", output="run"
    ... )  # doctest: +SKIP
    """
    return benchmarks.bench(request)


@_asks(benchmarks.SweepRequest)
def sweep(request: benchmarks.SweepRequest) -> dict[str, Any]:
    """Solve a grid of problems, as ``nest sweep`` does.

    Examples
    --------
    >>> import nest
    >>> report = nest.sweep("grid.yaml", output="run")  # doctest: +SKIP
    """
    return benchmarks.sweep(request)


@_asks(measured.ValidateRequest)
def validate(request: measured.ValidateRequest) -> dict[str, Any]:
    """Return how far off predictions of measured runs are.

    Examples
    --------
    >>> import nest
    >>> document = nest.validate(hardware="V100", limit=2)
    >>> document["rows"]
    2
    """
    request.check()
    rows = request.read_rows()
    return request.document([*request.predict(request.select(rows))], len(rows))


@_asks(measured.CalibrateRequest)
def calibrate(request: measured.CalibrateRequest) -> CalibrationFile:
    """Return predictions' parameters, fitted to runs of your own cluster.

    :func:`nest.write` writes it to a file for ``calibration=``.

    Examples
    --------
    >>> import nest
    >>> calibration = nest.calibrate("runs.csv")  # doctest: +SKIP
    """
    return request.learn().file
