"""Run an engine through PuLP and find out what it really proved.

PuLP calls a time-out optimal, so its status is never used. CBC is judged by the result
line of its log, HiGHS and SCIP by their own status. Of any other engine only an optimum
or infeasibility well before the limit is believed, and no bound.
"""

from __future__ import annotations

import enum
import math
import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from formulations.engine_log import printing_to
from nest.errors import InvalidOptionError, KilledError, SolverError
from nest.solvers.base import Deadline, OutOfTimeError
from nest.util.versions import DISTRIBUTION

#: The engine that comes with PuLP.
DEFAULT = "PULP_CBC_CMD"

#: Short names.
ALIASES = {"cbc": DEFAULT, "highs": "HiGHS", "scip": "SCIP_PY"}

#: What installs an engine that does not come with PuLP.
EXTRAS = {"SCIP_PY": "scip"}

#: Absolute; the step time is about 2**10 in the engine's units.
TOLERANCE = 1e-9

#: Not worth starting an engine for.
LEAST_TIME_S = 0.01


class Verdict(enum.Enum):
    """What an engine proved."""

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Outcome:
    """What an engine says, in its units."""

    #: What is proven.
    verdict: Verdict
    #: Of the solution that the variables hold; ``None`` if there is none.
    objective: float | None = None
    #: Lower bound on the objective; ``None`` if unknown.
    bound: float | None = None


def engine_name(text: str) -> str:
    """Return PuLP's name of an available engine.

    Raises ``InvalidOptionError`` if it is not available here.
    """
    import pulp

    available = pulp.listSolvers(onlyAvailable=True)
    name = ALIASES.get(text.lower(), text)
    if name not in available:
        short = {name: alias for alias, name in ALIASES.items()}
        named = sorted(short.get(name, name) for name in available)
        install = "install it"
        if name in EXTRAS:
            install = f"pip install '{DISTRIBUTION}[{EXTRAS[name]}]'"
        raise InvalidOptionError(
            f"milp: expected option engine to be one of "
            f"{', '.join(named)}, got {text!r}; choose one or {install}"
        )
    return name


@dataclass(frozen=True)
class EngineSettings:
    """What an engine has to know besides the problem."""

    #: PuLP's name of the engine.
    name: str
    #: What is left is the engine's, less the time that it takes to hand over the
    #: problem and the solution.
    deadline: Deadline
    #: How long it took to build the problem: to hand it over takes no longer, nor to
    #: read a solution as it took to hand over the problem.
    building_s: float
    #: Of the engine; SCIP has one thread.
    num_workers: int
    seed: int
    #: Of the engine, by its own names: :mod:`formulations.milp.parameters`.
    parameters: Mapping[str, str] = field(default_factory=dict)
    #: File to whose end its log is written; ``None`` for none.
    log: str | None = None

    def left_s(self, kept_s: float) -> float | None:
        """Return what is left beyond a time to keep; ``None`` for no limit.

        Raises ``OutOfTimeError`` if that is not worth while.
        """
        remaining_s = self.deadline.remaining_s
        if remaining_s is None:
            return None
        if remaining_s - kept_s < LEAST_TIME_S:
            raise OutOfTimeError
        return remaining_s - kept_s


def run(problem: Any, how: EngineSettings) -> Outcome:
    """Solve a PuLP problem to proven optimality or until time is up.

    Raises ``OutOfTimeError`` if there is no time for the engine; ``SolverError`` if the
    engine fails, or says something that is not known here.
    """
    how.left_s(how.building_s)
    runners = {DEFAULT: _run_cbc, "HiGHS": _run_highs, "SCIP_PY": _run_scip}
    try:
        with printing_to(how.log):
            return runners.get(how.name, _run_other)(problem, how)
    except (SolverError, OutOfTimeError):
        raise
    except Exception as error:  # an engine may raise anything
        killed = getattr(error, "returncode", 0) < 0
        kind = KilledError if killed else SolverError
        raise kind(f"milp: engine {how.name}: {error}") from error


#: Result lines of CBC; the first that matches counts.
_CBC_RESULTS = (
    (r"Result - Optimal solution found\s*$", Verdict.OPTIMAL),
    (r"Result - Problem proven infeasible", Verdict.INFEASIBLE),
    (r"Result - Linear relaxation infeasible", Verdict.INFEASIBLE),
    (r"^Problem is infeasible( - |!)", Verdict.INFEASIBLE),
    (r"Pre-processing says infeasible", Verdict.INFEASIBLE),
    (r"Result - Stopped on \w+ limit", Verdict.STOPPED),
)


def _run_cbc(problem: Any, how: EngineSettings) -> Outcome:
    import pulp

    options = [
        "ratio 0",
        "allow 0",
        # By default solutions that are better by 1e-5 are not looked for.
        f"increment {TOLERANCE}",
        "timeMode elapsed",
        f"integerTolerance {TOLERANCE}",
        f"primalTolerance {TOLERANCE}",
        # With it CBC 2.10 called solutions optimal that are not; no case is
        # known since rows have slack.
        "preprocess off",
    ]
    if how.num_workers > 1:
        options.append(f"threads {how.num_workers}")
    if how.seed:
        options.append(f"randomCbcSeed {how.seed % 2**31}")
    options += [f"{name} {value}" for name, value in how.parameters.items()]
    solver = pulp.PULP_CBC_CMD()
    with tempfile.TemporaryDirectory(prefix="nest-milp-") as folder:
        model, solution, log = (
            Path(folder, f"cbc.{kind}") for kind in ("mps", "sol", "log")
        )
        started_s = how.deadline.elapsed_s
        variables, *names, _ = problem.writeMPS(str(model), rename=1)
        left_s = how.left_s(how.deadline.elapsed_s - started_s)
        if left_s is not None:
            # Between two relaxations it looks at the clock, and still hands
            # out what it has.
            options.append(f"seconds {left_s - min(1.0, 0.1 * left_s)}")
        command = " -".join(
            [f"{solver.path} {model}", *options, "solve", f"solution {solution}"]
        )
        words = command.split()
        if how.log is not None:
            log = Path(how.log)
        begin = log.stat().st_size if log.exists() else 0
        try:
            try:
                _run_program(words, log, left_s)
            except subprocess.CalledProcessError as error:
                # CBC 2.10 dies when asked for the solution of a problem that
                # it found infeasible before it began.
                if error.returncode >= 0:
                    raise
                _run_program(words[:-2], log, left_s)
                text = _text_from(log, begin)
                if read_cbc_log(text).verdict is not Verdict.INFEASIBLE:
                    raise
                solution.unlink(missing_ok=True)
        except subprocess.TimeoutExpired:
            return Outcome(Verdict.STOPPED)
        if solution.exists():
            _, values, *_ = solver.readsol_MPS(
                str(solution), problem, variables, *names
            )
            problem.assignVarsVals(values)
        text = _text_from(log, begin)
    return read_cbc_log(text)


def _text_from(log: Path, begin: int) -> str:
    """Return what a log says from some byte on."""
    return log.read_bytes()[begin:].decode(encoding="utf-8", errors="replace")


def _run_program(words: list[str], log: Path, left_s: float | None) -> None:
    """Run a program; kill it and raise ``TimeoutExpired`` if it overstays."""
    with log.open("ab") as file:
        subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            timeout=left_s,
            check=True,
        )


def read_cbc_log(text: str) -> Outcome:
    """Return what CBC proved, by its log.

    Raises ``SolverError`` if the log has no known result.
    """
    verdict = next(
        (
            verdict
            for pattern, verdict in _CBC_RESULTS
            if re.search(pattern, text, re.MULTILINE)
        ),
        None,
    )
    if verdict is None:
        lines = [line for line in text.splitlines() if line.strip()]
        raise SolverError(
            "milp: engine CBC: expected a known result in its log, got "
            + " / ".join(lines[-6:])
        )
    if verdict is Verdict.INFEASIBLE:
        return Outcome(verdict)
    objective = _number(text, "Objective value")
    if verdict is Verdict.OPTIMAL:
        if objective is None:
            raise SolverError(
                "milp: engine CBC: expected an objective value with an "
                "optimum, got none"
            )
        return Outcome(verdict, objective, objective)
    bound = _number(text, "Lower bound")
    if bound is not None:
        # Printed with three decimals.
        bound -= 1e-3
    return Outcome(verdict, objective, bound)


def _number(text: str, label: str) -> float | None:
    found = re.search(rf"^{label}:\s+(\S+)", text, re.MULTILINE)
    if found is None:
        return None
    value = float(found[1])
    return value if math.isfinite(value) and abs(value) < 1e50 else None


def _run_highs(problem: Any, how: EngineSettings) -> Outcome:
    import highspy
    import pulp

    solver = pulp.HiGHS(
        msg=how.log is not None,
        gapRel=0,
        gapAbs=0,
        threads=how.num_workers,
        random_seed=how.seed % 2**31,
        mip_feasibility_tolerance=TOLERANCE,
        primal_feasibility_tolerance=TOLERANCE,
        # With it HiGHS 1.11 to 1.14 call solutions optimal that are not.
        presolve="off",
    )
    started_s = how.deadline.elapsed_s
    solver.createAndConfigureSolver(problem)
    solver.buildSolverModel(problem)
    engine = problem.solverModel
    for name, value in how.parameters.items():
        engine.setOptionValue(name, value)
    left_s = how.left_s(how.deadline.elapsed_s - started_s)
    if left_s is not None:
        engine.setOptionValue("time_limit", left_s)
    solver.callSolver(problem)
    solver.findSolutionValues(problem)
    status = engine.getModelStatus()
    verdict = {
        highspy.HighsModelStatus.kOptimal: Verdict.OPTIMAL,
        highspy.HighsModelStatus.kInfeasible: Verdict.INFEASIBLE,
        highspy.HighsModelStatus.kUnboundedOrInfeasible: Verdict.INFEASIBLE,
        highspy.HighsModelStatus.kTimeLimit: Verdict.STOPPED,
        highspy.HighsModelStatus.kInterrupt: Verdict.STOPPED,
        highspy.HighsModelStatus.kIterationLimit: Verdict.STOPPED,
        highspy.HighsModelStatus.kSolutionLimit: Verdict.STOPPED,
    }.get(status)
    if verdict is None:
        raise SolverError(
            f"milp: engine HiGHS: expected a known status, got "
            f"{engine.modelStatusToString(status)}"
        )
    if verdict is Verdict.INFEASIBLE:
        return Outcome(verdict)
    info = engine.getInfo()
    objective = bound = None
    if info.primal_solution_status == 2:  # feasible
        objective = float(engine.getObjectiveValue())
    if math.isfinite(info.mip_dual_bound):
        bound = float(info.mip_dual_bound)
    return Outcome(verdict, objective, bound)


#: What SCIP calls a proof; whatever ends in "limit" is none.
_SCIP_RESULTS = {
    "optimal": Verdict.OPTIMAL,
    "infeasible": Verdict.INFEASIBLE,
    "inforunbd": Verdict.INFEASIBLE,  # no step time is below zero
    "userinterrupt": Verdict.STOPPED,
}


def _run_scip(problem: Any, how: EngineSettings) -> Outcome:
    import pulp

    solver = pulp.SCIP_PY(msg=how.log is not None, gapRel=0, gapAbs=0)
    started_s = how.deadline.elapsed_s
    solver.buildSolverModel(problem)
    engine = problem.solverModel
    engine.setParam("numerics/feastol", TOLERANCE)
    engine.setParam("randomization/randomseedshift", how.seed % 2**31)
    for name, value in how.parameters.items():
        engine.setParam(name, value)
    left_s = how.left_s(how.deadline.elapsed_s - started_s)
    if left_s is not None:
        engine.setParam("limits/time", left_s)
    solver.callSolver(problem)
    status = engine.getStatus()
    verdict = _SCIP_RESULTS.get(status)
    if verdict is None and status.endswith("limit"):
        verdict = Verdict.STOPPED
    if verdict is None:
        raise SolverError(f"milp: engine SCIP: expected a known status, got {status!r}")
    if verdict is Verdict.INFEASIBLE:
        return Outcome(verdict)
    objective = bound = None
    if engine.getNSols():
        best = engine.getBestSol()
        for variable in problem.variables():
            variable.varValue = best[variable.solverVar]
        objective = float(engine.getSolObjVal(best))
    if abs(engine.getDualbound()) < engine.infinity():
        bound = float(engine.getDualbound())
    return Outcome(verdict, objective, bound)


def _run_other(problem: Any, how: EngineSettings) -> Outcome:
    import pulp

    settings: dict[str, Any] = {"msg": how.log is not None, "gapRel": 0}
    left_s = how.left_s(2 * how.building_s)
    if left_s is not None:
        settings["timeLimit"] = left_s
    problem.solve(pulp.getSolver(how.name, **settings))
    stopped = left_s is not None and how.deadline.passed
    if problem.sol_status == pulp.LpSolutionOptimal:
        value = float(pulp.value(problem.objective))
        if stopped:
            return Outcome(Verdict.STOPPED, value)
        return Outcome(Verdict.OPTIMAL, value, value)
    if stopped:
        return Outcome(Verdict.STOPPED)
    if problem.sol_status == pulp.LpSolutionInfeasible:
        return Outcome(Verdict.INFEASIBLE)
    raise SolverError(
        f"milp: engine {how.name}: expected an optimum or infeasibility, got "
        f"{pulp.LpStatus[problem.status]!r}"
    )
