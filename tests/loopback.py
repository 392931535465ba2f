"""Solvers that say what they are told to, truth or lie, and a tiny problem.

The option ``act`` chooses what they do. The problem has two layers of 80
bytes (weights, gradients, optimizer state) and two devices of 100 bytes, so
a plan with one stage is too big and ``good_plan`` is the only feasible one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from nest.errors import (
    InvalidOptionError,
    InvalidProblemError,
    SolverError,
    SolverNotInstalledError,
    UnsupportedProblemError,
)
from nest.ir import (
    Activations,
    Cluster,
    Device,
    Edge,
    Graph,
    Hierarchy,
    Job,
    Layer,
    LayerCost,
    LayerKind,
    Level,
    Plan,
    Problem,
    Stage,
    Strategy,
)
from nest.solvers.base import (
    Capabilities,
    Limit,
    Progress,
    Report,
    SolveOptions,
    SolverOutput,
    Status,
    ignore_progress,
)

TARGET = "tests.loopback:Loopback"
BASELINE = "tests.loopback:LoopbackBaseline"
OVERRUNNER = "tests.loopback:LoopbackOverrunner"
EXACT_OVERRUNNER = "tests.loopback:LoopbackExactOverrunner"

#: Step time of ``good_plan``: two micro-batches, two stages of 30 ns, and no
#: time on the wire: 30 + 30 + (2 - 1) * 30.
GOOD_NS = 90


def tiny_problem(name: str = "tiny", memory_bytes: int = 100) -> Problem:
    cost = LayerCost(
        forward_ns=10,
        backward_ns=20,
        weight_bytes=10,
        activations=(Activations(kept_bytes=0),),
    )
    return Problem(
        name=name,
        graph=Graph(
            kinds=(LayerKind(name="block", costs=(cost,)),),
            layers=(Layer(id=0, kind="block"), Layer(id=1, kind="block")),
            edges=(Edge(source=0, target=1, bytes_per_sample=0),),
        ),
        cluster=Cluster(
            num_devices=2,
            device=Device(memory_bytes=memory_bytes),
            topology=Hierarchy(levels=(Level(fan_out=2, bandwidth_bytes_per_s=1e9),)),
        ),
        job=Job(global_batch=2),
    )


def crowded_problem() -> Problem:
    """Return a problem in which one stage fits if it recomputes.

    Per layer 16 bytes of weights, gradients and optimizer state, and 40 of
    activations or 10 with full recomputation: 2 * 56 = 112 or 52 bytes of
    100. Without, a step takes 2 * 60 = 120 ns, with it 2 * 80 = 160.
    """
    problem = tiny_problem("crowded")
    kind = problem.graph.kinds[0]
    cost = replace(
        kind.costs[0],
        weight_bytes=2,
        activations=(
            Activations(kept_bytes=40),
            Activations(recompute="full", kept_bytes=10),
        ),
    )
    return replace(
        problem,
        graph=replace(problem.graph, kinds=(replace(kind, costs=(cost,)),)),
        job=replace(problem.job, recompute=("none", "full")),
    )


def good_plan() -> Plan:
    return make_plan((0,), (1,))


def big_plan() -> Plan:
    return make_plan((0, 1))


def foreign_plan() -> Plan:
    return make_plan((0,), (7,))


def make_plan(*stages: tuple[int, ...]) -> Plan:
    return Plan(
        replicas=1,
        micro_batch=1,
        stages=tuple(
            Stage(layers=layers, devices=1, strategy=Strategy()) for layers in stages
        ),
    )


def good_output(**changes: Any) -> SolverOutput:
    fields: dict[str, Any] = {
        "status": Status.OPTIMAL,
        "plan": good_plan(),
        "claimed_quanta": GOOD_NS,
        "lower_bound_quanta": GOOD_NS,
    }
    return SolverOutput(**(fields | changes))


FEASIBLE: dict[str, Any] = {"status": Status.FEASIBLE, "limit": Limit.TIME}

CLAIMS: dict[str, SolverOutput] = {
    "optimal": good_output(),
    "optimal-without-claims": good_output(claimed_quanta=None, lower_bound_quanta=None),
    "feasible": good_output(**FEASIBLE, lower_bound_quanta=60),
    "close": good_output(
        status=Status.FEASIBLE, lower_bound_quanta=88, detail="enough"
    ),
    "heuristic": good_output(
        status=Status.FEASIBLE, lower_bound_quanta=None, detail="optimal in own space"
    ),
    "infeasible": SolverOutput(status=Status.INFEASIBLE, detail="no room"),
    "no-solution": SolverOutput(
        status=Status.NO_SOLUTION, limit=Limit.TIME, lower_bound_quanta=60
    ),
    "wrong-claim": good_output(claimed_quanta=89),
    "high-bound": good_output(**FEASIBLE, lower_bound_quanta=91),
    "low-optimum": good_output(lower_bound_quanta=89),
    "optimal-with-limit": good_output(limit=Limit.TIME),
    "optimal-without-plan": SolverOutput(status=Status.OPTIMAL),
    "infeasible-with-plan": good_output(status=Status.INFEASIBLE),
    "claim-without-plan": SolverOutput(status=Status.INFEASIBLE, claimed_quanta=90),
    "nothing": SolverOutput(status=Status.NO_SOLUTION),
    "endless": SolverOutput(status=Status.INFEASIBLE, lower_bound_quanta=2**61 + 1),
    "foreign-plan": SolverOutput(
        status=Status.FEASIBLE, plan=foreign_plan(), claimed_quanta=90
    ),
    "big-plan": SolverOutput(status=Status.FEASIBLE, plan=big_plan()),
    "big-plan-and-bound": SolverOutput(
        status=Status.FEASIBLE, plan=big_plan(), lower_bound_quanta=91
    ),
    "big-optimum": good_output(plan=big_plan(), claimed_quanta=None),
    "too-big": SolverOutput(
        status=Status.FEASIBLE,
        plan=big_plan(),
        own_objective_ns=75.5,
        detail="best of 7",
    ),
    "too-big-and-claim": SolverOutput(
        status=Status.FEASIBLE, plan=big_plan(), claimed_quanta=120
    ),
    "too-big-and-lie": SolverOutput(
        status=Status.FEASIBLE, plan=big_plan(), claimed_quanta=119
    ),
    "too-big-and-bound": SolverOutput(
        status=Status.FEASIBLE, plan=big_plan(), lower_bound_quanta=161
    ),
    "too-big-and-optimal": SolverOutput(status=Status.OPTIMAL, plan=big_plan()),
    "over-memory": good_output(status=Status.OVER_MEMORY, lower_bound_quanta=None),
    "unjsonable": good_output(extra={"engine": object()}),
}

ERRORS: dict[str, Callable[[], BaseException]] = {
    "raise": lambda: ZeroDivisionError("two\nlines"),
    "raise-engine": lambda: SolverError("the engine failed"),
    "raise-unsupported": lambda: UnsupportedProblemError("too many layers"),
    "raise-not-installed": lambda: SolverNotInstalledError("no engine"),
    "raise-option": lambda: InvalidOptionError("option pids: expected none"),
    "raise-problem": lambda: InvalidProblemError("layer 1: expected a cost"),
    "raise-memory": MemoryError,
    "exit": lambda: SystemExit(3),
}


#: What is reported before the answer, by option ``report``.
REPORTS: dict[str, tuple[Progress, ...]] = {
    "good": (Progress(good_plan(), GOOD_NS, 60, "found one"),),
    "weaker": (Progress(good_plan(), GOOD_NS, 60), Progress(lower_bound_quanta=50)),
    "close": (Progress(good_plan(), GOOD_NS, 88),),
    "endless": (Progress(lower_bound_quanta=2**61 + 2**58),),
    "proof": (Progress(good_plan(), GOOD_NS, GOOD_NS),),
    "lie": (Progress(good_plan(), GOOD_NS - 1, 60),),
    "infeasible": (Progress(big_plan()),),
    "foreign": (Progress(foreign_plan()),),
}


def start_daemon(how: str) -> int:
    """Start a process whose parent ends, in a session of its own."""
    code = (
        "import subprocess as s; print(s.Popen(['sleep', '60'], "
        f"stdout=s.DEVNULL, start_new_session=True{how}).pid)"
    )
    return int(subprocess.check_output([sys.executable, "-c", code]))


class Loopback:
    """Does what option ``act`` says."""

    name: ClassVar[str] = "loopback"
    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=True,
        anytime=True,
        method="says what it is told to",
        options={
            "act": "what to do (default optimal)",
            "pids": "file that takes the ids of all processes",
            "report": "report the good plan and a bound first",
            "until": "file that ends the act await",
        },
    )

    def unsupported(self, problem: Problem) -> str | None:
        return "it is unsupported" if problem.name == "unsupported" else None

    def solve(
        self, problem: Problem, options: SolveOptions, report: Report = ignore_progress
    ) -> SolverOutput:
        act = options.extra.get("act", "optimal")
        pids = [os.getpid()]
        if act.endswith("-grandchild"):
            pids.append(subprocess.Popen(["sleep", "1000"]).pid)
            act = act.removesuffix("-grandchild")
        for ending, code in (("-daemon", ""), ("-hidden", ", env={}")):
            if act.endswith(ending):
                pids.append(start_daemon(code))
                act = act.removesuffix(ending)
        if "pids" in options.extra:
            text = " ".join(map(str, pids))
            Path(options.extra["pids"]).write_text(text)
        for progress in REPORTS.get(options.extra.get("report", ""), ()):
            report(progress)
        if act in CLAIMS:
            return CLAIMS[act]
        if act in ERRORS:
            error = ERRORS[act]()
            raise error
        return self._misbehave(act, options)

    def _misbehave(self, act: str, options: SolveOptions) -> SolverOutput:
        if act == "hang":
            while True:
                time.sleep(60)
        if act == "await":
            while not os.path.exists(options.extra["until"]):
                time.sleep(0.01)
            return good_output()
        if act == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if act == "abort":
            os.abort()
        if act == "leave":
            os._exit(5)
        if act == "print":
            print("noise on stdout")
            print("noise on stderr", file=sys.stderr)
            return good_output()
        if act == "wait":
            assert options.time_limit_s is not None
            time.sleep(options.time_limit_s)
            return CLAIMS["feasible"]
        if act == "wrong-type":
            return None  # type: ignore[return-value]
        if act == "say-options":
            return good_output(
                extra={
                    "time_limit_s": options.time_limit_s,
                    "num_workers": options.num_workers,
                    "seed": options.seed,
                    "warm_start": options.warm_start == good_plan(),
                    "hash_seed": os.environ["PYTHONHASHSEED"],
                    "threads": os.environ["OMP_NUM_THREADS"],
                }
            )
        raise AssertionError(f"unknown act {act!r}")


def _promising(**changes: Any) -> Capabilities:
    """Return capabilities of solvers that do what they are told to."""
    fields: dict[str, Any] = {
        "exact": False,
        "method": "says what it is told to",
        "options": Loopback.capabilities.options,
    }
    return Capabilities(**(fields | changes))


class LoopbackBaseline(Loopback):
    """The same, but it promises no proofs."""

    name: ClassVar[str] = "baseline"
    capabilities: ClassVar[Capabilities] = _promising()


class LoopbackOverrunner(Loopback):
    """A baseline whose plans may exceed the memory."""

    name: ClassVar[str] = "overrunner"
    capabilities: ClassVar[Capabilities] = _promising(
        objective="what it is told to", overruns=True
    )


class LoopbackExactOverrunner(Loopback):
    """It proves bounds, and its plans may exceed the memory."""

    name: ClassVar[str] = "exact-overrunner"
    capabilities: ClassVar[Capabilities] = _promising(exact=True, overruns=True)


class NeedsEngine(Loopback):
    """Its engine does not exist."""

    capabilities: ClassVar[Capabilities] = Capabilities(
        exact=True, method="none", requires=("no_such_engine.api",), extra="engine"
    )


NOT_A_SOLVER = object()
