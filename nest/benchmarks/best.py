"""The best plan of a problem among the answers of a run."""

from __future__ import annotations

import msgspec

from nest.analysis.page_facts import Answer
from nest.benchmarks.rows import Row, known
from nest.benchmarks.session import Ended
from nest.cost.score import score
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.units import quanta_to_ns


def best_answer(ended: Ended, problem: Problem, rows: list[Row]) -> Answer | None:
    """Return the fastest plan that fits, a proven one where several do."""
    fitting = [row for row in rows if row.step_quanta is not None]
    if not fitting:
        return None
    best = min(fitting, key=lambda row: (row.step_quanta, not row.proven))
    result = ended.folder.finished[best.cell.key].result
    plan = msgspec.convert(result["plan"], Plan)
    bound = known(rows)[best.entry.hash].bound_quanta
    return Answer(
        *(plan, score(problem, plan), best.solver, str(best.status)),
        None if bound is None else quanta_to_ns(bound, problem.quantum_ps),
    )
