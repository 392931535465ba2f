"""The promises of a solver, and how each is checked.

A check says whether a promise was kept and why, in one line. That an answer
agrees with the shared cost model is the word of the runner's judge; what
only a known optimum can refute is said here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple

from nest.analysis.compare import claimed
from nest.conform.records import State
from nest.conform.trials import Candidate, Trial
from nest.cost.score import score
from nest.cost.space import timed_by_passes
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.solvers.base import Progress, Status
from nest.solvers.cell import GRACE_S
from nest.solvers.consistency import refuted
from nest.solvers.descendants import visible
from nest.solvers.registry import is_command, solver_class, solver_target
from nest.solvers.result import Outcome, SolveResult
from nest.solvers.run import check_request
from nest.util.stored import read_stored
from nest.util.versions import num_cpus

Finding = tuple[State, str]

#: The most runs that are repeated to see whether they say the same.
_REPEATED = 2

#: What options are given that take no such value.
_BAD_VALUE = "no such value"

#: Why there is nothing to run again.
_NO_PLANS = "limits stopped it everywhere, or it had no plan"

#: How long a reason of a solver may be, in characters.
_REASON_SIZE = 500


class Promise(NamedTuple):
    """A promise: its name, what it means, and how it is checked."""

    name: str
    meaning: str
    check: Callable[[Candidate], Finding]


def _passed(reason: str) -> Finding:
    return State.PASSED, reason


def _failed(reason: str) -> Finding:
    return State.FAILED, " ".join(reason.split())


def _nothing(reason: str) -> Finding:
    return State.NOT_APPLICABLE, reason


def _first(wrong: Iterable[str], fine: str) -> Finding:
    """Return the first thing that is wrong, and how many there are."""
    failures = list(wrong)
    if not failures:
        return _passed(fine)
    more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
    return _failed(f"{failures[0]}{more}")


def _count(trials: Iterable[object], noun: str) -> str:
    count = len(list(trials))
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _check_loads(candidate: Candidate) -> Finding:
    name = candidate.name
    solver = solver_class(name)
    class_name = getattr(solver, "name", None)
    if class_name != name:
        return _failed(
            f"expected the class to have the name {name!r}, got {class_name!r}"
        )
    for method in ("unsupported", "solve"):
        if not callable(getattr(solver, method, None)):
            return _failed(f"expected a method {method!r}, got none")
    kind = "a command" if is_command(name) else "a class"
    return _passed(f"{kind}; {candidate.capabilities.method}")


def _check_runs(candidate: Candidate) -> Finding:
    trials = [*candidate.trials]
    if candidate.large is not None:
        trials.append(candidate.large)
    bad = (Outcome.ERROR, Outcome.NOT_INSTALLED)
    return _first(
        (f"{t.name}: {t.detail}" for t in trials if t.outcome in bad),
        f"{_count(trials, 'run')}, each with an answer",
    )


def _check_answers(candidate: Candidate) -> Finding:
    trials = [t for t in candidate.trials if t.reference.plan is not None]
    solved = [t for t in trials if t.result and t.result.plan is not None]
    text = f"a plan for {len(solved)} of {len(trials)} problems that have one"
    if candidate.large is None and not solved:
        return _nothing(text)
    return _passed(text) if solved else _failed(text)


def _check_skips(candidate: Candidate) -> Finding:
    trials = [t for t in candidate.every if t.outcome is Outcome.SKIPPED]
    if not trials:
        return _nothing("it skips no problem")
    return _first(
        (
            f"{t.name}: expected a reason of 1 to {_REASON_SIZE} characters, "
            f"got {t.detail[:40]!r}"
            for t in trials
            if not 0 < len(t.detail) <= _REASON_SIZE or t.detail == "it gives no reason"
        ),
        f"{trials[0].name}: {trials[0].detail}",
    )


def _check_plans(candidate: Candidate) -> Finding:
    bad = [t for t in candidate.every if _rejected(t)]
    good = [t for t in candidate.every if t.result and t.result.plan]
    if not bad and not good:
        return _nothing("it hands in no plan")
    over = [t for t in good if t.status is Status.OVER_MEMORY]
    text = _count(good, "legal plan")
    if over:
        text += f", {len(over)} of them over memory, which it may be"
    return _first((f"{t.name}: {t.detail}" for t in bad), text)


def _rejected(trial: Trial) -> bool:
    """Whether its plan is none, whatever else is wrong."""
    if trial.outcome is Outcome.MISMATCH and trial.result is not None:
        return "rejected_plan" in trial.result.extra
    return trial.outcome is Outcome.INVALID_PLAN


def _check_claims(candidate: Candidate) -> Finding:
    bad = [t for t in candidate.every if t.outcome is Outcome.MISMATCH]
    solved = [t for t in candidate.every if t.outcome is Outcome.SOLVED]
    if not bad and not solved:
        return _nothing("it says nothing of any problem")
    claimed = [t for t in solved if t.result and t.result.claimed_quanta]
    text = f"{_count(claimed, 'claim')} equal to the quantum"
    if not claimed:
        text = "it claims no step time"
    return _first((f"{t.name}: {t.detail}" for t in bad), text)


def _check_proofs(candidate: Candidate) -> Finding:
    wrong, proven = [], 0
    for trial in candidate.every:
        result, best = trial.result, trial.reference.optimum_quanta
        answered = (Outcome.SOLVED, Outcome.INVALID_PLAN, Outcome.MISMATCH)
        if result is None or result.outcome not in answered:
            continue
        status, bound = claimed(result)
        proven += bound is not None or status is Status.INFEASIBLE
        if best is None:
            if result.step_quanta is not None:
                wrong.append(f"{trial.name}: has a plan, but none fits: report it")
            continue
        false = _false_proof(trial)
        if false is not None:
            wrong.append(f"{trial.name}: {false}")
        elif result.step_quanta is not None and result.step_quanta < best:
            wrong.append(
                f"{trial.name}: {result.step_quanta} quanta are below the "
                f"proven optimum of {best}: report it"
            )
    if not wrong and not proven:
        return _nothing("it proves nothing")
    return _first(wrong, f"{proven} bounds and proofs, all true")


def _false_proof(trial: Trial) -> str | None:
    """Return why what is proven cannot be, by a plan that is known."""
    result, best = trial.result, trial.reference.optimum_quanta
    if result is None or best is None:
        return None
    # What else is wrong with an answer makes no proof of it true.
    claim = refuted(*claimed(result), best)
    return None if claim is None else f"{claim}, but a plan takes {best}"


def _check_decides(candidate: Candidate) -> Finding:
    able = candidate.capabilities
    if not able.exact:
        return _nothing("it is not exact")
    trials = [
        t
        for t in candidate.trials
        if t.ended is not None and not able.unsearched(t.reference.problem)
    ]
    if not trials:
        return _nothing("limits stopped it everywhere")
    wrong = [
        f"{t.name}: expected optimal or infeasible from an exact solver that "
        f"no limit stopped, got {t.status}"
        for t in trials
        if t.status not in (Status.OPTIMAL, Status.INFEASIBLE)
        and not _is_bounded_by_passes(t)
    ]
    wrong += [
        f"{t.name}: expected a proof, got a false one"
        for t in trials
        if _false_proof(t) is not None
    ]
    return _first(wrong, f"{len(trials)} of {len(candidate.trials)} problems proven")


def _is_bounded_by_passes(trial: Trial) -> bool:
    """Whether a bound is the proof, as plans are timed pass by pass."""
    result = trial.result
    return (
        timed_by_passes(trial.reference.problem.job)
        and result is not None
        and result.lower_bound_quanta is not None
    )


def _check_limits(candidate: Candidate) -> Finding:
    late = [t for t in candidate.every if t.killed]
    if late and not _is_told_limits(candidate):
        return _nothing(
            f"{late[0].name}: its command does not take {{time_limit_s}}, so "
            f"it was stopped"
        )
    fine, large = "", candidate.large
    if large is not None:
        took_s = 0.0 if large.result is None else large.result.wall_s
        fine = (
            f"{large.name}: {took_s:.1f} s of {large.options.time_limit_s:g} "
            f"s ({GRACE_S:g} s of grace)"
        )
    return _first(
        (
            f"{t.name}: expected it to stop within {t.options.time_limit_s:g} "
            f"s and {GRACE_S:g} s of grace, got none: it was killed"
            for t in late
        ),
        fine,
    )


def _is_told_limits(candidate: Candidate) -> bool:
    from nest.solvers.command import planner_of

    if not is_command(candidate.name):
        return True
    return planner_of(solver_target(candidate.name)).takes("time_limit_s")


def _check_repeats(candidate: Candidate) -> Finding:
    if not candidate.capabilities.deterministic:
        return _nothing("it does not promise to")
    trials = _planned(candidate)[:_REPEATED]
    if not trials:
        return _nothing(_NO_PLANS)
    wrong = []
    for trial in trials:
        again = candidate.run(trial.reference)
        if again.ended is not None and _gist(again) != _gist(trial):
            wrong.append(
                f"{trial.name}: {_text(trial.result)}, then "
                f"{_text(again.result)}, another plan or value"
            )
    return _first(wrong, f"the same answer twice on {len(trials)} problems")


def _planned(candidate: Candidate) -> list[Trial]:
    """Return the runs with a plan that no limit stopped."""
    return [t for t in candidate.trials if t.ended and t.ended.plan]


def _gist(trial: Trial) -> object:
    result = trial.result
    assert result is not None
    return _text(result), result.lower_bound_quanta, result.plan


def _text(result: SolveResult | None) -> str:
    assert result is not None
    return f"{result.status} with {result.step_quanta} quanta"


def _check_workers(candidate: Candidate) -> Finding:
    if not candidate.capabilities.parallel:
        return _nothing("it uses one worker")
    if num_cpus() < 2:
        return _nothing("there is one CPU here")
    trials = _planned(candidate)
    if not trials:
        return _nothing(_NO_PLANS)
    first = trials[0]
    options = replace(candidate.options, num_workers=2)
    both = candidate.run(first.reference, options)
    if both.ended is None:
        return _nothing(f"{first.name}: {both.detail}")
    one, two = _text(first.result), _text(both.result)
    if one != two:
        return _failed(f"{first.name}: {one} with 1 worker, {two} with 2")
    return _passed(f"{first.name}: the same with 1 and 2 workers")


def _check_options(candidate: Candidate) -> Finding:
    option_names = candidate.capabilities.options
    if not candidate.trials:
        return _nothing("it was not run")
    reference = candidate.trials[0].reference
    unknown = "no-such-option"
    while unknown in option_names:
        unknown += "-"
    try:
        check_request(
            reference.problem,
            candidate.name,
            replace(candidate.options, extra={unknown: "1"}),
        )
    except InvalidOptionError:
        pass
    else:
        return _failed(f"expected option {unknown!r} to be refused")
    wrong, refused = [], 0
    for key in option_names:
        extra = {**candidate.options.extra, key: _BAD_VALUE}
        trial = candidate.run(reference, replace(candidate.options, extra=extra))
        refused += trial.result is None
        if trial.outcome is Outcome.ERROR and trial.result is not None:
            wrong.append(
                f"{key}={_BAD_VALUE!r}: expected it to be refused in one "
                f"line or to do no harm, got {trial.detail}"
            )
    text = "an unknown one is refused"
    if option_names:
        text += f", {refused} of {len(option_names)} refuse a bad value"
    return _first(wrong, text)


def _check_warm_start(candidate: Candidate) -> Finding:
    able = candidate.capabilities
    if not able.warm_start:
        return _nothing("it does not make use of one")
    for trial in candidate.trials:
        reference = trial.reference
        plan = reference.plan
        if plan is None or able.beyond(plan) or not trial.outcome.ran:
            continue
        again = candidate.run(reference, replace(candidate.options, warm_start=plan))
        step = None if again.result is None else again.result.step_quanta
        if step is None or step > (reference.optimum_quanta or 0):
            got = f"{step} quanta" if step else f"no plan ({again.detail})"
            return _failed(
                f"{again.name}: expected the {reference.optimum_quanta} "
                f"quanta of the plan to start from, got {got}"
            )
        return _passed(f"{again.name}: as good as the plan to start from")
    return _nothing("no problem has a plan that it searches")


def _check_reports(candidate: Candidate) -> Finding:
    wrong, count = [], 0
    for trial in candidate.every:
        count += len(trial.reports)
        for report in trial.reports:
            why = _untrue(candidate, trial, report)
            if why is not None:
                wrong.append(f"{trial.name}: {why}")
    if not count:
        return _nothing("it reports nothing on the way")
    return _first(wrong, f"{count} reports, all true")


def _untrue(candidate: Candidate, trial: Trial, report: Progress) -> str | None:
    """Return what is wrong with a report, or ``None``."""
    able, best = candidate.capabilities, trial.reference.optimum_quanta
    bound = report.lower_bound_quanta
    if bound is not None and best is not None and bound > best:
        return f"reports a bound of {bound} quanta, but a plan takes {best}"
    if bound is not None and not able.exact:
        return f"reports a bound of {bound} quanta and is not exact"
    if report.plan is None:
        return None
    try:
        verdict = score(trial.reference.problem, report.plan)
    except InvalidPlanError as error:
        return f"reports a plan that is none: {error}"
    if not verdict.feasible and not able.overruns:
        return f"reports a plan that does not fit: {verdict.violations[0]}"
    if report.claimed_quanta not in (None, verdict.step_quanta):
        return (
            f"reports {report.claimed_quanta} quanta for a plan that takes "
            f"{verdict.step_quanta}"
        )
    return None


def _check_quiet(candidate: Candidate) -> Finding:
    if is_command(candidate.name):
        return _nothing("what a command prints is its log")
    logged = [t for t in candidate.every if t.log and t.outcome.ran]
    return _first(
        (
            f"{t.name}: expected no output, got {t.log.splitlines()[0]!r}"
            for t in logged
            if not t.outcome.failed
        ),
        f"nothing in {_count(candidate.every, 'run')}",
    )


def _check_tidy(candidate: Candidate) -> Finding:
    # An option that names a file to write takes that value, too.
    names = [x for x in candidate.left_behind() if x != _BAD_VALUE]
    wrong = [f"expected no file where it runs, got {name!r}" for name in names]
    wrong += [
        f"{t.name}: expected no process after its end, got "
        f"{_count(range(t.num_detached), 'detached one')}"
        for t in candidate.every
        if t.num_detached
    ]
    text = "no file where it runs"
    text += ", no process" if visible() else " (processes: unknown)"
    return _first(wrong, text)


_CHECKS = {
    "loads": _check_loads,
    "runs": _check_runs,
    "answers": _check_answers,
    "options": _check_options,
    "repeatable": _check_repeats,
    "workers": _check_workers,
    "warm start": _check_warm_start,
    "unsupported": _check_skips,
    "plans": _check_plans,
    "claims": _check_claims,
    "proofs": _check_proofs,
    "decides": _check_decides,
    "reports": _check_reports,
    "time limit": _check_limits,
    "quiet": _check_quiet,
    "tidy": _check_tidy,
}

_MEANINGS = read_stored("nest.conform", "promises", dict[str, str])

#: In the order of reports. The last ones look at all runs before them.
CHECKS = tuple(Promise(name, _MEANINGS[name], check) for name, check in _CHECKS.items())
