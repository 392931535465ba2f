"""Update the best known plans and bounds of instances.

This is the only code that changes ``best_known.json``. The shared cost model scores
every plan again. A bound counts if an exact solver proves it again on this machine, or
if ``nest-check`` accepts its certificate; a bound in a document is only a claim. An
update that contradicts a plan or a bound is refused, and nothing changes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from nest.cost.score import score
from nest.errors import InvalidPlanError, NestError, SolverNotInstalledError
from nest.instances import store
from nest.instances.records import BestKnown, Proof, Unlimited
from nest.ir.io import convert, decode_problem, encode
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.solvers.base import Status
from nest.solvers.registry import is_built_in, solver_class
from nest.units import MAX_TERM
from nest.util.versions import nest_version

#: Documents that are read: answers of solvers to one problem, and one answer of many.
COMPARED, BENCHED = "nest-compare/1", "nest-bench-cell/1"


#: The program that verifies certificates.
CHECKER = "nest-check"

#: Runs it without modules of the user: neither the working directory, nor
#: ``PYTHONPATH``, nor ``sitecustomize`` can answer in its place.
_CHECK = (
    *("-I", "-S", "-c"),
    "import sys; sys.path.append(sys.argv.pop()); "
    "from nest.certificates.check import main; sys.exit(main())",
)

#: Lets a solver work on a problem; returns its answer, as documents have it.
Prover = Callable[[Problem, str], Mapping[str, Any]]

#: A time, as stored ones are.
_Quanta = Annotated[int, msgspec.Meta(ge=0, le=MAX_TERM)]


class _Cell(msgspec.Struct, frozen=True):
    """The fields that an update reads of one solver's answer."""

    solver: str
    outcome: str
    status: str | None = None
    version: str | None = None
    step_time_quanta: _Quanta | None = None
    lower_bound_quanta: _Quanta | None = None
    plan: Plan | None = None
    detail: str = ""

    @property
    def by(self) -> str:
        """The solver with its version."""
        return " ".join(filter(None, (self.solver, self.version)))

    def scored(self, problem: Problem, where: str) -> tuple[Plan, int] | None:
        """Return the plan that it says fits, if any, and what it takes."""
        if self.plan is None or self.status not in (Status.OPTIMAL, Status.FEASIBLE):
            return None
        quanta = _scored(problem, self.plan, where)
        if self.step_time_quanta != quanta:
            raise NestError(
                f"{where}: step_time_quanta: expected {quanta}, what its plan "
                f"takes by the shared cost model, got {self.step_time_quanta}; "
                f"solve it again with this version"
            )
        return self.plan, quanta


class _Compared(msgspec.Struct, frozen=True):
    """The fields that an update reads of a comparison."""

    problem_hash: str
    cells: tuple[_Cell, ...]


class _BenchedProblem(msgspec.Struct, frozen=True):
    problem_hash: str


class _Benched(msgspec.Struct, frozen=True):
    """The fields that an update reads of a cell of a benchmark."""

    cell: _BenchedProblem
    result: _Cell


class _Certificate(msgspec.Struct, frozen=True):
    """The part of a certificate that an update reads."""

    plan: Plan | None
    step_time_quanta: int | None
    lower_bound_quanta: int | None
    status: str

    @property
    def verified(self) -> str:
        """The line that ``nest-check`` prints if the certificate holds."""
        if self.plan is None:
            return f"verified: {self.status}, no plan fits"
        return (
            f"verified: {self.status}, step time {self.step_time_quanta} "
            f"quanta, lower bound {self.lower_bound_quanta}"
        )


def encode_best_known(records: Mapping[str, BestKnown]) -> bytes:
    """Return the file of what is known: a line per instance, by name."""
    lines = [
        f"{json.dumps(name)}: {msgspec.json.encode(records[name]).decode()}"
        for name in sorted(records)
    ]
    body = ",\n ".join(lines)
    return (
        f'{{"schema": "nest-best-known/1", "instances": {{\n {body}\n}}}}\n'
    ).encode()


class Change(NamedTuple):
    """What an update did to an instance, in words."""

    name: str
    text: str


def with_document(
    records: Mapping[str, BestKnown], document: Any, where: str, prove: Prover
) -> tuple[dict[str, BestKnown], list[Change]]:
    """Return what is known after the answers of a document.

    It is a ``nest-compare/1`` or ``nest-bench-cell/1`` about an instance, or about the
    same problem without a memory limit. ``prove`` is called for every proof that it
    claims and that is news.

    Raises ``NestError`` if the document is about no instance, a plan does not take what
    it says, or a bound contradicts a plan or is not proven once more.
    """
    answers = _read(document, where)
    for name, instance in store.index().items():
        if answers.problem_hash == instance.problem_hash:
            take_plan, take_proof = _with_plan, _with_proof
            problem = solved = store.load(name)
        elif answers.problem_hash == instance.unlimited_hash:
            take_plan, take_proof = _with_unlimited_plan, _with_unlimited_proof
            problem = store.load(name)
            solved = store.unlimited(problem)
        else:
            continue
        new = store.known_about(name, records)
        for cell in answers.cells:
            label = f"{where}: {cell.solver}"
            if cell.outcome != "solved":
                continue
            new = take_plan(new, problem, cell, label)
            claim = _proof(cell, label)
            if claim is None or take_proof(new, claim, label) == new:
                continue
            # What cannot be is refused before a solver works on it.
            _check(take_proof(new, claim, label), f"{where}: {name}")
            answer = prove(solved, cell.solver)
            repeated = convert(answer, label, _Cell, NestError)
            new = take_plan(new, problem, repeated, label)
            new = take_proof(new, _proven(claim, repeated, label), label)
        return _updated(records, name, new, where)
    raise NestError(
        f"{where}: problem_hash: expected that of an instance, got "
        f"{answers.problem_hash[:12]}; solve the problem that 'nest instances "
        f"fetch' writes, without options that change it"
    )


def _read(document: Any, where: str) -> _Compared:
    """Return the answers of a document."""
    got = document.get("schema") if isinstance(document, dict) else None
    if got == COMPARED:
        return convert(document, where, _Compared, NestError)
    if got == BENCHED:
        benched = convert(document, where, _Benched, NestError)
        return _Compared(benched.cell.problem_hash, (benched.result,))
    raise NestError(
        f"{where}: schema: expected {COMPARED} or {BENCHED}, got "
        f"{'none' if got is None else repr(got)}; pass what 'nest solve "
        f"--json', 'nest compare --json' or a benchmark wrote"
    )


def with_plan(
    records: Mapping[str, BestKnown],
    name: str,
    plan: Plan,
    where: str,
    by: str | None = None,
) -> tuple[dict[str, BestKnown], list[Change]]:
    """Return what is known after a plan for an instance.

    ``by`` is who found it; without, the plan says it.

    Raises ``NestError`` if the plan does not belong to the instance, does not fit, or
    is faster than a proven bound.
    """
    problem = store.load(name)
    old = store.known_about(name, records)
    quanta = _scored(problem, plan, where)
    new = _with_value(old, plan, quanta, by or plan.solver or "unknown")
    return _updated(records, name, new, where)


def with_certificate(
    records: Mapping[str, BestKnown],
    name: str,
    data: bytes,
    where: str,
    by: str | None = None,
    limit_s: float | None = None,
) -> tuple[dict[str, BestKnown], list[Change]]:
    """Return what is known after a certificate for an instance.

    ``by`` found its plan; ``nest-check`` may work ``limit_s`` seconds.

    Raises ``NestError`` if ``nest-check`` does not accept it, or it contradicts what is
    known.
    """
    problem = store.load(name)
    printed = _checked(problem, data, where, limit_s)
    certificate = convert(json.loads(data), where, _Certificate, NestError)
    if printed != certificate.verified:
        raise _not_accepted(problem, where, printed)
    new = store.known_about(name, records)
    if certificate.plan is not None:
        quanta = _scored(problem, certificate.plan, where)
        new = _with_value(new, certificate.plan, quanta, by or "unknown")
    proof = Proof(
        solver=CHECKER,
        version=f"nest {nest_version()}",
        method="certificate, docs/certificates.md",
        bound_quanta=certificate.lower_bound_quanta,
    )
    new = _with_proof(new, proof, where)
    return _updated(records, name, new, where)


def _checked(problem: Problem, data: bytes, where: str, limit_s: float | None) -> str:
    """Return what ``nest-check`` prints of a certificate that it accepts."""
    root = Path(__file__).parents[1]
    with tempfile.TemporaryDirectory() as folder:
        files = Path(folder, "problem.json"), Path(folder, "certificate.json")
        # Numbers of the type of their field, as 'nest certify' has them.
        files[0].write_bytes(encode(decode_problem(encode(problem))))
        files[1].write_bytes(data)
        try:
            done = subprocess.run(
                [sys.executable, *_CHECK, *files, root],
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NestError(
                f"{where}: expected {CHECKER} to end within {limit_s:g} s, "
                f"got no answer; raise --time-limit"
            ) from None
    if done.returncode:
        message = " ".join((done.stdout or done.stderr).split())
        message = message.replace(f"{files[1]}: ", "")
        raise _not_accepted(problem, where, message)
    return done.stdout.strip()


def _not_accepted(problem: Problem, where: str, message: str) -> NestError:
    return NestError(
        f"{where}: expected a certificate for {problem.name} that "
        f"{CHECKER} accepts, got one that it does not ({message}); make it "
        f"with 'nest certify {problem.name} PLAN'"
    )


def _scored(problem: Problem, plan: Plan, where: str) -> int:
    """Return the step time of a plan that fits."""
    try:
        verdict = score(problem, plan)
    except InvalidPlanError as error:
        raise NestError(
            f"{where}: expected a plan for {problem.name}, got one that is "
            f"none ({error}); pass a plan of this instance"
        ) from error
    if verdict.violations:
        raise NestError(
            f"{where}: expected a plan that fits the memory of "
            f"{problem.name}, got {verdict.violations[0]}; pass one that fits"
        )
    return verdict.step_quanta


def _with_value(record: BestKnown, plan: Plan, quanta: int, by: str) -> BestKnown:
    """Return what is known after a plan that fits: the better one stays."""
    if record.value_quanta is not None and record.value_quanta <= quanta:
        return record
    plan = replace(plan, problem_hash=record.problem_hash)
    return replace(record, value_quanta=quanta, plan=plan, found_by=by)


def _with_plan(
    record: BestKnown, problem: Problem, cell: _Cell, where: str
) -> BestKnown:
    """Return what is known after the plan of an answer, if it has one."""
    scored = cell.scored(problem, where)
    return _with_value(record, *scored, cell.by) if scored else record


def _with_unlimited_plan(
    record: BestKnown, problem: Problem, cell: _Cell, where: str
) -> BestKnown:
    """Return the same after a plan that need not fit the memory."""
    scored = cell.scored(store.unlimited(problem), where)
    if scored is None:
        return record
    plan, quanta = scored
    if not score(problem, plan).violations:
        return _with_value(record, plan, quanta, cell.by)
    beyond = record.unlimited or Unlimited()
    if beyond.value_quanta is not None and beyond.value_quanta <= quanta:
        return record
    plan = replace(plan, problem_hash=record.problem_hash)
    beyond = replace(beyond, plan=plan, value_quanta=quanta)
    return replace(record, unlimited=beyond)


def _with_proof(record: BestKnown, proof: Proof, where: str) -> BestKnown:
    """Return what is known after a proof."""
    return replace(record, proofs=_better(record.proofs, proof))


def _with_unlimited_proof(record: BestKnown, proof: Proof, where: str) -> BestKnown:
    """Return what is known after a proof about plans that need not fit."""
    if proof.bound_quanta is None:
        raise NestError(
            f"{where}: expected a plan or a bound without a memory limit, got "
            f"infeasible; no instance is so by its counts"
        )
    beyond = record.unlimited or Unlimited()
    best = _better(tuple(filter(None, [beyond.proof])), proof)
    beyond = replace(beyond, proof=max(best, key=lambda p: p.bound_quanta or 0))
    return replace(record, unlimited=beyond)


def _proof(cell: _Cell, where: str) -> Proof | None:
    """Return what an answer proves, if anything.

    A solver of another package is refused, as are those that prove nothing here: who
    would check that?
    """
    infeasible = cell.status == Status.INFEASIBLE
    if not infeasible and cell.lower_bound_quanta is None:
        return None
    try:
        built_in = is_built_in(cell.solver)
        promised = solver_class(cell.solver).capabilities if built_in else None
    except SolverNotInstalledError:
        promised = None
    if promised is None or not promised.exact:
        raise NestError(
            f"{where}: expected bounds from solvers of nest that are exact "
            f"and installed here, got one from {cell.solver!r}; pass its "
            f"plans alone, with --plan"
        )
    return Proof(
        solver=cell.solver,
        version=cell.version or "unknown",
        method=promised.method,
        bound_quanta=None if infeasible else cell.lower_bound_quanta,
    )


def _proven(claim: Proof, answer: _Cell, where: str) -> Proof:
    """Return what a solver proves here, no less than what was claimed."""
    repeated = _proof(answer, where) if answer.outcome == "solved" else None
    if repeated is not None and (
        repeated.bound_quanta is None
        or (
            claim.bound_quanta is not None
            and repeated.bound_quanta >= claim.bound_quanta
        )
    ):
        return repeated
    expected, got = (
        "none"
        if proof is None
        else "that no plan fits"
        if proof.bound_quanta is None
        else f"{proof.bound_quanta} quanta"
        for proof in (claim, repeated)
    )
    detail = f" ({answer.detail})" if answer.detail else ""
    raise NestError(
        f"{where}: expected a bound that it proves here as well, {expected}, got "
        f"{got}{detail}; raise --time-limit, or pass its plan alone, with --plan"
    )


def _better(proofs: Iterable[Proof], new: Proof) -> tuple[Proof, ...]:
    """Return proofs with another one in, the best of each solver."""
    by_solver = {proof.solver: proof for proof in proofs}
    old = by_solver.get(new.solver)
    if old is None or (
        old.bound_quanta is not None
        and (new.bound_quanta is None or new.bound_quanta > old.bound_quanta)
    ):
        by_solver[new.solver] = new
    return tuple(by_solver[name] for name in sorted(by_solver))


def _check(record: BestKnown, where: str) -> None:
    """Refuse a bound above the step time of the best known plan."""
    value = record.value_quanta
    if value is None:
        return
    unlimited = record.unlimited and record.unlimited.proof
    for proof in (*record.proofs, *([unlimited] if unlimited else [])):
        bound = proof.bound_quanta
        if bound is None:
            raise NestError(
                f"{where}: expected no plan, as {proof.solver} "
                f"{proof.version} proved that none fits, got one that takes "
                f"{value} quanta; one of both is wrong: please report it"
            )
        if bound > value:
            raise NestError(
                f"{where}: expected bounds of at most {value} quanta, which "
                f"the best known plan takes, got {bound} from {proof.solver} "
                f"{proof.version}; one of both is wrong: please report it"
            )


def _updated(
    records: Mapping[str, BestKnown], name: str, new: BestKnown, where: str
) -> tuple[dict[str, BestKnown], list[Change]]:
    """Return the records with a new one, and what is new about it."""
    _check(new, f"{where}: {name}")
    old = store.known_about(name, records)
    return {**records, name: new}, _changes(name, old, new)


def _changes(name: str, old: BestKnown, new: BestKnown) -> list[Change]:
    """Say what is new, in words."""

    def told(what: str, before: object, after: object) -> str | None:
        if before == after:
            return None
        before, after = ("none" if x is None else x for x in (before, after))
        return f"{what} {before} -> {after}"

    texts = [
        told("value", old.value_quanta, new.value_quanta),
        told("bound", old.bound_quanta, new.bound_quanta),
        told("status", old.status, new.status),
        told("memory", old.memory_class, new.memory_class),
    ]
    solvers = {proof.solver for proof in old.proofs}
    texts += [
        f"confirmed by {proof.solver} {proof.version}"
        for proof in new.proofs
        if proof.solver not in solvers and old.proofs
    ]
    changes = [Change(name, text) for text in texts if text is not None]
    return changes or [Change(name, "nothing better")]
