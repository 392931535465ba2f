"""Piper's greedy choice of alternatives against the exact one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from nest.audits.piper.importer import ALTERNATIVES, import_piper
from nest.cost.model import CostModel
from nest.cost.score import score
from nest.errors import InvalidPlanError, NestError
from nest.ir.base import Count
from nest.ir.io import read_bytes
from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.solvers.base import SolveOptions
from nest.solvers.registry import get_solver
from nest.studies.solving import optimum, step_quanta
from nest.studies.study import (
    Findings,
    Plot,
    Series,
    StudySetting,
    Value,
    number,
    read_rows,
)
from nest.studies.texts import read_texts
from nest.units import GIB
from nest.util.tables import Table

TEXTS = read_texts("piper")
FOLDER = "piper"

#: Another program's floats against our rounded integers.
ROUNDED = 1e-9

_COLUMNS = (
    *("file", "max_devices", "micro_batches", "memory_bytes"),
    *("bandwidth_bytes_per_s", "piper_tps", "exact_tps"),
)

#: Settings that no file records: input, micro-batches, bandwidth in GiB/s,
#: devices and GiB.
_SWEEPS = (
    ("bert32a100.json", 1920, 25, (16, 32), (2, 3, 4, 6)),
    ("resnet.json", 7680, 25, (16, 32, 64), (1, 1.5, 2, 3, 4, 6)),
)
_QUICK_SWEEPS = (
    ("bert32a100.json", 1920, 25, (16,), (3, 6)),
    ("resnet.json", 7680, 25, (32,), (2,)),
)
#: Devices of the recorded settings that a quick run takes.
_QUICK_DEVICES = 32


class _Stage(msgspec.Struct, frozen=True, kw_only=True):
    """A stage of a recorded plan."""

    nodes: tuple[int, ...]
    d: Count
    t: Count
    tmpc: tuple[str, ...]


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded plan, its setting and its figure."""

    file: str
    mode: str
    maxDevices: Count
    mbsInBatch: Count
    maxMemoryPerDevice: float
    bandwidth: float
    feasible: bool
    tps: float | None = None
    stages: tuple[_Stage, ...] = ()

    @property
    def setting(self) -> tuple[Any, ...]:
        """What the problem follows from."""
        memory_bytes = int(self.maxMemoryPerDevice)
        sizes = self.maxDevices, self.mbsInBatch, memory_bytes
        return self.file, *sizes, self.bandwidth

    def plan(self) -> Plan:
        """Return the plan; stages are in pipeline order."""
        return Plan(
            replicas=1,
            micro_batch=1,
            stages=tuple(
                Stage(
                    layers=stage.nodes,
                    devices=stage.d * stage.t,
                    strategies=tuple(
                        Strategy(dp=stage.d, tp=stage.t, recompute=ALTERNATIVES[x])
                        for x in stage.tmpc
                    ),
                )
                for stage in self.stages
            ),
        )


class _StepTimes(NamedTuple):
    """Step times of both searches, in quanta; ``None`` where nothing fits."""

    exact: int | None
    greedy: int | None

    @property
    def loss(self) -> float | None:
        """By how much greedy lies above exact."""
        if self.exact is None or self.greedy is None:
            return None
        return self.greedy / self.exact - 1


def run(setting: StudySetting) -> Findings:
    """Compare the two on recorded settings and on own ones."""
    folder = setting.data / FOLDER
    plans = _recorded_plans(folder, setting)
    recorded, recorded_answers = _recorded(folder, setting)
    sweep, sweep_answers = _sweep(folder, setting)
    lines: dict[str, list[tuple[float, float]]] = {}
    for file, devices, gib, *_, loss in sweep.rows:
        if isinstance(gib, (int, float)) and isinstance(loss, float):
            name = f"{file}, {devices} devices"
            lines.setdefault(name, []).append((gib, 100 * loss))
    return Findings(
        answers=(plans, *recorded_answers, *sweep_answers),
        tables=(recorded, sweep),
        plot=Plot(
            "What Piper's greedy choice loses, by memory",
            "memory per device (GiB)",
            "% above the optimum",
            [Series(*line) for line in lines.items()],
        ),
    )


def _recorded_plans(folder: Path, setting: StudySetting) -> str:
    """Score every recorded plan; say how many have their figure."""
    path = folder / "recorded_plans.json"
    try:
        records = msgspec.json.decode(read_bytes(path, NestError), type=list[_Record])
    except msgspec.DecodeError as error:
        raise NestError(
            f"{path}: expected a list of recorded plans, got something else "
            f"({error}); get it anew"
        ) from None
    models: dict[tuple[Any, ...], CostModel] = {}
    scored = same = 0
    for record in records:
        if not record.feasible or record.tps is None:
            continue
        file, devices, *_ = record.setting
        setting.say(f"recorded plans, {file}, {devices} devices")
        if record.setting not in models:
            models[record.setting] = CostModel(_imported(folder, *record.setting))
        model = models[record.setting]
        try:
            verdict = score(model.problem, record.plan(), model)
        except (InvalidPlanError, KeyError) as error:
            raise NestError(
                f"{path}: expected plans for {file}, got one that is none "
                f"({error}); get it anew"
            ) from None
        scored += 1
        quanta = verdict.step_quanta if verdict.feasible else None
        same += _repeats(model.problem, quanta, record.tps)
    return (
        f"{same} of {scored} recorded plans of Piper and its restrictions fit and have "
        f"their recorded figure under the shared model, to within {ROUNDED:g}."
    )


def _recorded(folder: Path, setting: StudySetting) -> tuple[Table, list[str]]:
    rows: list[tuple[Value, ...]] = []
    greedy_same = exact_same = above = 0
    for file, figures in _figures(folder):
        devices, micro_batches, memory, _, piper, exact = figures
        small = file.startswith("bert") and devices <= _QUICK_DEVICES
        if setting.quick and not small:
            continue
        setting.say(f"{file}, {devices:.0f} devices")
        problem = _imported(folder, file, *figures[:4])
        times = _solve(problem)
        same = _repeats(problem, times.greedy, piper)
        proven = _repeats(problem, times.exact, exact)
        greedy_same += same
        exact_same += proven
        above += bool(times.loss)
        sizes = file, int(devices), int(micro_batches), memory / GIB
        texts = ("yes" if repeated else "no" for repeated in (same, proven))
        rows.append((*sizes, piper, *texts, times.loss))
    return TEXTS.table("recorded", rows), [
        f"On {len(rows)} recorded settings Piper's figure is repeated "
        f"{greedy_same} times and the recorded optimum {exact_same} times; "
        f"greedy is above it {above} times."
    ]


def _figures(folder: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield the recorded settings: input file, and all numbers."""
    path = folder / "expected.csv"
    for row in read_rows(path, _COLUMNS):
        values = [number(row[name], str(path)) for name in _COLUMNS[1:]]
        figures = [value for value in values if value is not None]
        if len(figures) < len(values):
            raise NestError(
                f"{path}: expected figures in every row, got none in one of "
                f"{row['file']}; get it anew"
            )
        yield row["file"], figures


def _repeats(problem: Problem, quanta: int | None, recorded: float) -> bool:
    if quanta is None:
        return False
    time = quanta * problem.quantum_ps / 1e12
    return abs(time / recorded - 1) <= ROUNDED


def _sweep(folder: Path, setting: StudySetting) -> tuple[Table, list[str]]:
    rows: list[tuple[Value, ...]] = []
    losses: dict[str, list[float]] = {}
    for file, devices, gib, problem in setting.each(_swept(folder, setting)):
        setting.say(f"{file}, {devices} devices, {gib:g} GiB")
        times = _solve(problem)
        unit = problem.quantum_ps / 1e12
        both = (None if x is None else x * unit for x in times)
        rows.append((file, devices, gib, *both, times.loss))
        if times.loss is not None:
            losses.setdefault(file, []).append(times.loss)
    return TEXTS.table("sweep", rows), [
        f"With other memories greedy is above the optimum of {file} on "
        f"{sum(x > 0 for x in of_file)} of {len(of_file)} settings that a "
        f"plan fits, by {max(of_file):.2%} at most."
        for file, of_file in losses.items()
    ]


def _swept(
    folder: Path, setting: StudySetting
) -> Iterator[tuple[str, int, float, Problem]]:
    sweeps = _QUICK_SWEEPS if setting.quick else _SWEEPS
    for file, micro_batches, gib_per_s, all_devices, sizes in sweeps:
        for devices in all_devices:
            for gib in sizes:
                figures = devices, micro_batches, gib * GIB, gib_per_s * GIB
                yield file, devices, gib, _imported(folder, file, *figures)


def _imported(
    folder: Path,
    file: str,
    devices: float,
    micro_batches: float,
    memory_bytes: float,
    bandwidth_bytes_per_s: float,
) -> Problem:
    return import_piper(
        folder / file,
        devices=int(devices),
        micro_batches=int(micro_batches),
        memory_bytes=int(memory_bytes),
        bandwidth_bytes_per_s=float(bandwidth_bytes_per_s),
    )


def _solve(problem: Problem) -> _StepTimes:
    greedy = get_solver("piper")().solve(problem, SolveOptions())
    return _StepTimes(
        step_quanta(problem, optimum(problem)), step_quanta(problem, greedy.plan)
    )


STUDY = TEXTS.study("piper", run)
