"""Compare the independent scorer with ``nest.score``."""

from __future__ import annotations

import math
from typing import Any

from nest.cost.score import score as product_score
from nest.errors import InvalidPlanError
from nest.ir import Plan, Problem
from tests.independent.record import MEMORY
from tests.independent.rules import IllegalPlan
from tests.independent.scorer import score

_STAGE = (
    "forward",
    "backward",
    "receive_forward",
    "receive_backward",
    "redistribution",
    "sync",
    "inflight",
)
RATES = ("throughput", "tokens", "tokens per device", "mfu")
_BLOCK = ("stages", "load", "sync", "inflight")


def said_by_scorer(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Return every field of the independent score."""
    try:
        record = score(problem, plan)
    except IllegalPlan as error:
        return {"illegal": True, "why": error.args}
    said: dict[str, Any] = {
        "illegal": False,
        "step": record.step,
        "simulated": record.simulated,
        "M": record.num_micro_batches,
        "feasible": record.feasible,
        "throughput": record.throughput,
        "tokens": record.tokens,
        "tokens per device": record.tokens_per_device,
        "memory left": record.memory_left,
        "mfu": record.mfu,
    }
    for i, stage in enumerate(record.stages, 1):
        said |= {f"stage {i} {x}": getattr(stage, x) for x in _STAGE}
        said |= {f"stage {i} {x}": stage.memory[x] for x in MEMORY}
    for i, block in enumerate(record.blocks, 1):
        said |= {f"block {i} {x}": getattr(block, x) for x in _BLOCK}
        said |= {f"block {i} {x}": block.memory[x] for x in MEMORY}
    return said


def said_by_product(problem: Problem, plan: Plan) -> dict[str, Any]:
    """Return the same fields of the product's score."""
    try:
        record = product_score(problem, plan)
    except InvalidPlanError as error:
        return {"illegal": True, "why": str(error)}
    said: dict[str, Any] = {
        "illegal": False,
        "step": record.step_quanta,
        "simulated": record.simulated_quanta,
        "M": record.num_micro_batches,
        "feasible": record.feasible and not record.violations,
        "throughput": record.throughput_samples_per_s,
        "tokens": record.throughput_tokens_per_s,
        "tokens per device": record.throughput_tokens_per_s_per_device,
        "memory left": record.memory_left_bytes,
        "mfu": record.mfu,
    }
    for i, stage in enumerate(record.stages, 1):
        said |= {f"stage {i} {x}": getattr(stage, x) for x in (*_STAGE, *MEMORY)}
    for i, block in enumerate(record.blocks, 1):
        said |= {f"block {i} {x}": getattr(block, x) for x in (*_BLOCK, *MEMORY)}
    return said


def differences(problem: Problem, plan: Plan) -> tuple[str, list[str]]:
    """Return what both say of a plan and in what they differ.

    The first is ``illegal``, ``feasible`` or ``infeasible``.
    """
    ours = said_by_scorer(problem, plan)
    theirs = said_by_product(problem, plan)
    if ours["illegal"] and theirs["illegal"]:
        return "illegal", []
    found = [
        f"{name}: independent {ours.get(name)}, product {theirs.get(name)}"
        for name in {**ours, **theirs}
        if not alike(name, ours.get(name), theirs.get(name))
    ]
    if ours["illegal"]:
        return "illegal", found
    return "feasible" if ours["feasible"] else "infeasible", found


def alike(name: str, ours: Any, theirs: Any) -> bool:
    if name in RATES and ours and theirs:
        # not quanta: the page leaves their last bit open
        return math.isclose(ours, theirs, rel_tol=1e-12)
    return bool(ours == theirs)
