"""Piper's published answers, by the re-implemented planner.

``recorded_plans.json`` holds answers of Piper and of three restrictions of
it that its paper compares with; ``expected.csv`` the settings of its figures.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from baselines.piper import PiperSolver
from nest.audits.piper.importer import import_piper
from nest.cost.score import score
from nest.ir import Problem
from nest.solvers.base import SolveOptions, SolverOutput
from tests.builders import with_job

RELATIVE = 1e-9
NS_PER_UNIT = 1e9

#: Restrictions of Piper as restrictions of a job.
MODES: dict[str, dict[str, Any]] = {
    "piper": {},
    "noAR": {"recompute": ("none",)},
    "noDP": {"data_parallel": (1,)},
    "noTP": {"tensor_parallel": (1,)},
}

#: The largest that is solved here; larger ones give no other case.
MOST_DEVICES = 16


@pytest.fixture(scope="module")
def folder(shared_data: Path) -> Path:
    return shared_data / "piper"


def check(problem: Problem, tps: float) -> SolverOutput:
    """Its own objective and the shared score are Piper's figure."""
    output = PiperSolver().solve(problem, SolveOptions())
    assert output.plan is not None
    assert output.own_objective_ns is not None
    own = output.own_objective_ns / NS_PER_UNIT
    assert own == pytest.approx(tps, rel=RELATIVE)
    verdict = score(problem, output.plan)
    assert verdict.feasible
    shared = verdict.step_quanta * problem.quantum_ps / 1e12
    assert shared == pytest.approx(tps, rel=RELATIVE)
    return output


@pytest.mark.parametrize("file", ["bert32a100.json", "resnet.json"])
def test_every_setting_reaches_pipers_figure(folder, file):
    with (folder / "expected.csv").open() as text:
        rows = [row for row in csv.DictReader(text) if row["file"] == file]
    assert len(rows) == {"bert32a100.json": 24, "resnet.json": 8}[file]
    for row in rows:
        problem = import_piper(
            folder / file,
            devices=int(row["max_devices"]),
            micro_batches=int(row["micro_batches"]),
            memory_bytes=int(row["memory_bytes"]),
            bandwidth_bytes_per_s=float(row["bandwidth_bytes_per_s"]),
        )
        check(problem, float(row["piper_tps"]))


@pytest.mark.parametrize("mode", MODES)
def test_recorded_answers_and_their_devices_are_reproduced(folder, mode):
    """Infeasible settings included; every answer uses as many devices."""
    records = json.loads((folder / "recorded_plans.json").read_text())
    settings = {}
    for record in records:
        if (
            record["mode"] == mode
            and record["file"] == "bert32a100.json"
            and record["maxDevices"] <= MOST_DEVICES
        ):
            key = (
                record["maxDevices"],
                record["mbsInBatch"],
                int(record["maxMemoryPerDevice"]),
                record["bandwidth"],
            )
            settings[key] = record
    assert len(settings) > 6
    for key, record in settings.items():
        devices, micro_batches, memory_bytes, bandwidth = key
        problem = import_piper(
            folder / record["file"],
            devices=devices,
            micro_batches=micro_batches,
            memory_bytes=memory_bytes,
            bandwidth_bytes_per_s=bandwidth,
        )
        problem = with_job(problem, **MODES[mode])
        if not record["feasible"]:
            output = PiperSolver().solve(problem, SolveOptions())
            assert output.plan is None, key
            continue
        output = check(problem, record["tps"])
        assert output.plan is not None
        assert output.plan.devices_used == record["devices_used"], key
