"""Small benchmarks with solvers that do as they are told."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nest.benchmarks.cells import BenchmarkSpec
from nest.benchmarks.instances import Instance
from nest.benchmarks.session import Ended, execute, plan_run, ready
from nest.benchmarks.store import RunFolder
from nest.present.pages.benchmark import write_reports
from nest.solvers.base import SolveOptions
from tests.loopback import tiny_problem


def instances(count: int) -> list[Instance]:
    """Return tiny problems of different names."""
    problems = [tiny_problem(f"tiny-{number}") for number in range(count)]
    return [Instance(problem.name, problem, "test") for problem in problems]


def make_run(
    problems: Sequence[Instance],
    solvers: Sequence[str],
    extra: Mapping[str, Mapping[str, str]] | None = None,
    seeds: Sequence[int] = (0,),
    time_limit_s: float | None = 600.0,
) -> BenchmarkSpec:
    """Return a run of them."""
    options = SolveOptions(time_limit_s=time_limit_s)
    return plan_run(
        "Test", problems, solvers, seeds=seeds, options=options, extra=extra
    )


def go(
    path: Path,
    run: BenchmarkSpec | None,
    problems: Sequence[Instance],
    resume: bool = False,
    on_open: Callable[[RunFolder], object] = lambda folder: None,
    **settings: Any,
) -> Ended:
    """Run it with its report, and return the outcome."""
    settings.setdefault("on_end", write_reports)
    with ready(path, run, problems, resume=resume) as folder:
        on_open(folder)
        return execute(folder, **settings)
