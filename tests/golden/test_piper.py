"""Optima and recorded plans of Piper's workloads.

``expected.csv`` holds, per setting, Piper's answer and the exact optimum of
the same problem by an independent program; ``recorded_plans.json`` holds plans
of Piper and its baselines with their time per sample.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from nest.audits.piper.importer import ALTERNATIVES, import_piper
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir import Plan, Problem, Stage, Strategy
from nest.search.solver import DpSolver
from nest.solvers.base import SolveOptions, Status

RELATIVE = 1e-9
PS_PER_S = 10**12


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    return shared_data / "piper"


def in_own_unit(quanta: int, problem: Problem) -> float:
    """One unit of the file is imported as a second."""
    return quanta * problem.quantum_ps / PS_PER_S


def check_optima(folder: Path, file: str) -> int:
    """Solve every setting of a file; return how often Piper was beaten."""
    beaten = 0
    with (folder / "expected.csv").open() as text:
        rows = [row for row in csv.DictReader(text) if row["file"] == file]
    assert rows
    for row in rows:
        problem = import_piper(
            folder / file,
            devices=int(row["max_devices"]),
            micro_batches=int(row["micro_batches"]),
            memory_bytes=int(row["memory_bytes"]),
            bandwidth_bytes_per_s=float(row["bandwidth_bytes_per_s"]),
        )
        output = DpSolver().solve(problem, SolveOptions())
        assert output.status is Status.OPTIMAL, row
        assert output.plan is not None
        verdict = score(problem, output.plan)
        assert verdict.feasible
        assert verdict.step_quanta == output.claimed_quanta
        step = in_own_unit(verdict.step_quanta, problem)
        assert step == pytest.approx(float(row["exact_tps"]), rel=RELATIVE), row
        beaten += step < float(row["piper_tps"]) * (1 - RELATIVE)
    return beaten


def test_dp_finds_the_optimum_of_every_bert_setting(folder):
    """Piper's own answers are optimal here."""
    assert check_optima(folder, "bert32a100.json") == 0


def test_dp_finds_the_optimum_of_every_resnet_setting(folder):
    """242 closed sets, 28,729 pairs."""
    check_optima(folder, "resnet.json")


def recorded_plan(record: dict[str, Any]) -> Plan:
    return Plan(
        replicas=1,
        micro_batch=1,
        stages=tuple(
            Stage(
                layers=tuple(stage["nodes"]),
                devices=stage["d"] * stage["t"],
                strategies=tuple(
                    Strategy(dp=stage["d"], tp=stage["t"], recompute=ALTERNATIVES[name])
                    for name in stage["tmpc"]
                ),
            )
            for stage in record["stages"]
        ),
    )


def test_scoring_recorded_plans_reproduces_their_figures(folder):
    """Stages are listed in pipeline order; all recorded plans fit."""
    records = json.loads((folder / "recorded_plans.json").read_text())
    models: dict[tuple[Any, ...], CostModel] = {}
    scored = 0
    for record in records:
        if not record["feasible"]:
            continue
        key = (
            record["file"],
            record["maxDevices"],
            record["mbsInBatch"],
            int(record["maxMemoryPerDevice"]),
            record["bandwidth"],
        )
        if key not in models:
            file, *setting = key
            names = (
                *("devices", "micro_batches"),
                *("memory_bytes", "bandwidth_bytes_per_s"),
            )
            models[key] = CostModel(
                import_piper(folder / file, **dict(zip(names, setting, strict=True)))
            )
        model = models[key]
        verdict = score(model.problem, recorded_plan(record), model)
        assert verdict.feasible, record["mode"]
        step = in_own_unit(verdict.step_quanta, model.problem)
        assert step == pytest.approx(record["tps"], rel=RELATIVE), key
        scored += 1
    assert scored == 316
