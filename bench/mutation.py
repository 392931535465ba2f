"""Mutation check: break one thing at a time; some test must notice.

Each row of the table replaces one snippet of one file by another one, in a
temporary copy of the repository (the working tree is never touched), and runs
the tests that should fail. Prints a table; exits 1 if a mutation survives or
a snippet is not found exactly once.

    python bench/mutation.py            all mutations
    python bench/mutation.py dp milp    those whose name starts so
    python bench/mutation.py --list     the table, without running
"""

from __future__ import annotations

import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKERS = 2
TIMEOUT_S = 300

UNIT = ("tests/unit/test_cost_terms.py", "tests/unit/test_score.py")
TOPOLOGY = ("tests/unit/test_topology.py",)
NEST = ("tests/unit/test_nest_artifact_preset.py",)
EXTENSIONS = ("tests/semantics/test_extensions.py",)
COUNTS = ("tests/unit/test_operators.py",)
ALLOWED = (
    "tests/unit/test_formulations.py",
    "-k",
    "numbers_that_the_job_allows or numbers_of_stages",
)
ROWS = ("tests/unit/test_predict.py",)
TURNS = ("tests/unit/test_piper.py", "tests/properties/test_piper.py")


def agree(solver: str) -> tuple[str, ...]:
    """Return the stored instances of a solver, then random problems."""
    test = (
        "test_milp_proves_the_optimum_of_brute_force"
        if solver == "milp"
        else "test_dp_and_cpsat_prove_the_optimum_of_brute_force"
    )
    return (
        "tests/regression",
        "-k",
        f"{solver} or {test}",
        f"tests/properties/test_solvers_agree.py::{test}",
    )


def agree_layers(solver: str) -> tuple[str, ...]:
    """Return the same for problems with a strategy per layer."""
    test = (
        "test_milp_proves_the_optimum_with_a_strategy_per_layer"
        if solver == "milp"
        else "test_dp_and_cpsat_prove_the_optimum_with_a_strategy_per_layer"
    )
    return (
        "tests/semantics/test_layerwise.py",
        "tests/regression",
        "-k",
        f"({solver} and layer) or {test}",
        f"tests/properties/test_solvers_agree.py::{test}",
    )


@dataclass(frozen=True)
class Mutation:
    """One way to break the code, and the tests that should see it."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


STAGES = "nest/dp/stages.py"
PIPELINE = "nest/dp/pipeline.py"
CASES = "nest/dp/cases.py"
UNIFORM = "nest/audits/nest_artifact/search.py"
CPSAT = "formulations/cpsat/constraints.py"
MILP = "formulations/milp/constraints.py"
SCORE = "nest/cost/score.py"
MODEL = "nest/cost/model.py"
HIERARCHY = "nest/topology/hierarchy.py"
ATTENTION = "nest/models/operators/attention.py"
TIMING = "nest/models/operators/timing.py"
PREDICT = "nest/validation/predict.py"
PIPER = "nest/audits/piper/search.py"
SPACE = "nest/cost/space.py"
BRUTE = "formulations/brute.py"
COMMON = "formulations/common.py"

MUTATIONS = (
    # The dynamic program
    Mutation(
        "dp: a stage's sync is free",
        STAGES,
        "sync = sync_of[b] - sync_of[a]",
        "sync = 0 * (sync_of[b] - sync_of[a])",
        agree("dp"),
    ),
    Mutation(
        "dp: gradients are received for free",
        STAGES,
        "load += self._receive(after, shards)[target]",
        "load += 0 * self._receive(after, shards)[target]",
        agree("dp"),
    ),
    Mutation(
        "dp: the working set needs no memory",
        STAGES,
        "free -= working",
        "free -= 0 * working",
        agree("dp"),
    ),
    Mutation(
        "dp: one micro-batch in flight too few",
        PIPELINE,
        "return np.minimum(stages, micro_batches)",
        "return np.minimum(stages - 1, micro_batches)",
        agree("dp"),
    ),
    Mutation(
        "dp: gpipe keeps no more than 1f1b",
        STAGES,
        "if self._gpipe:",
        "if False:",
        agree("dp"),
    ),
    Mutation(
        "dp: the smallest copy of a tensor crosses a cut",
        STAGES,
        "sizes.append(max(beyond))",
        "sizes.append(min(beyond))",
        agree("dp"),
    ),
    Mutation(
        "dp: a missing cost is available",
        STAGES,
        "(missing_of[target] == missing_of[source])",
        "(missing_of[target] >= missing_of[source])",
        agree("dp"),
    ),
    Mutation(
        "dp: dominance forgets max τ",
        PIPELINE,
        "& (worst[rest] >= worst[head])",
        "",
        agree("dp"),
    ),
    Mutation(
        "dp: dominance forgets the sync",
        PIPELINE,
        "& (sync[rest] >= sync[head])",
        "",
        agree("dp"),
    ),
    Mutation(
        "dp: dominance forgets the stages behind",
        PIPELINE,
        "& (need[rest] >= need[head])",
        "",
        agree("dp"),
    ),
    Mutation(
        "dp: dominance forgets restricted numbers of stages",
        PIPELINE,
        "+ self._rule.group[stages]",
        "",
        agree("dp"),
    ),
    Mutation(
        "dp: the bound of a case is too high",
        CASES,
        "least_total + (case.num_micro_batches - 1) * worst",
        "least_total + case.num_micro_batches * worst",
        agree("dp"),
    ),
    Mutation(
        "dp: long stages are dropped too early",
        CASES,
        "ceil_div(best - item.least_total, extra)",
        "ceil_div(best - item.least_total, extra + 1)",
        agree("dp"),
    ),
    Mutation(
        "dp: nest-artifact forgets the stash",
        UNIFORM,
        "room // further if further else INFINITE",
        "INFINITE",
        (
            "tests/properties/test_solvers_agree.py"
            "::test_exact_solvers_agree_under_the_nest_artifact_preset",
        ),
    ),
    Mutation(
        "dp: nest-artifact adds hidden receives",
        UNIFORM,
        "np.maximum(gradient, place.recomputed)",
        "(gradient + place.recomputed)",
        (
            "tests/properties/test_solvers_agree.py"
            "::test_exact_solvers_agree_under_the_nest_artifact_preset",
        ),
    ),
    # CP-SAT
    Mutation(
        "cpsat: no precedence",
        CPSAT,
        "precedence,",
        "",
        agree("cpsat"),
    ),
    Mutation(
        "cpsat: no memory",
        CPSAT,
        "memory,",
        "",
        agree("cpsat"),
    ),
    Mutation(
        "cpsat: blocks need not be consecutive",
        CPSAT,
        "consecutive_blocks,",
        "",
        agree("cpsat"),
    ),
    Mutation(
        "cpsat: one consumer of a tensor counts",
        CPSAT,
        "for consumer in increment.consumers:",
        "for consumer in increment.consumers[:1]:",
        agree("cpsat"),
    ),
    Mutation(
        "cpsat: only the first stage synchronises",
        CPSAT,
        "counted = list(model.slots)",
        "counted = [max(model.slots)]",
        agree("cpsat"),
    ),
    Mutation(
        "cpsat: the slowest stage is the last one",
        CPSAT,
        "model.slowest, list(model.load.values())",
        "model.slowest, list(model.load.values())[:1]",
        agree("cpsat"),
    ),
    Mutation(
        "cpsat: gradients cross the wrong boundary",
        CPSAT,
        "model.receive_backward,\n                s - 1,",
        "model.receive_backward,\n                1,",
        agree("cpsat"),
    ),
    Mutation(
        "cpsat: one micro-batch too many",
        "formulations/cpsat/objective.py",
        "(num_micro_batches - 1) * model.slowest",
        "num_micro_batches * model.slowest",
        agree("cpsat"),
    ),
    Mutation(
        "cpsat: the work bound cuts plans off",
        CPSAT,
        "model.sub_problem.case.devices * model.slowest >= work",
        "model.slowest >= work",
        agree("cpsat"),
    ),
    Mutation(
        "cpsat: a change of layout is free",
        CPSAT,
        "change, load,",
        "load,",
        agree_layers("cpsat"),
    ),
    Mutation(
        "cpsat: a change of layout costs one way",
        CPSAT,
        "for moved in (model.into, model.out_of):",
        "for moved in (model.into,):",
        agree_layers("cpsat"),
    ),
    Mutation(
        "cpsat: a change costs what the other end's layout does",
        CPSAT,
        "here, there = (target, source) if forward else (source, target)",
        "there, here = (target, source) if forward else (source, target)",
        agree_layers("cpsat"),
    ),
    Mutation(
        "cpsat: the last layer receives the activations",
        CPSAT,
        "_end(model, s, order, model.first)",
        "_end(model, s, order[::-1], model.first)",
        agree_layers("cpsat"),
    ),
    Mutation(
        "cpsat: a stage receives in any layout",
        CPSAT,
        "receiver, receive,",
        "receive,",
        agree_layers("cpsat"),
    ),
    Mutation(
        "cpsat: layers of a stage differ in devices",
        CPSAT,
        "engine.add_implication(z, model.w[s, g])",
        "pass",
        agree_layers("cpsat"),
    ),
    Mutation(
        "cpsat: the working set of a choice needs no memory",
        CPSAT,
        "engine.add(working >= choice.working_bytes * z)",
        "pass",
        agree_layers("cpsat"),
    ),
    # MILP
    Mutation(
        "milp: no precedence",
        MILP,
        "precedence,",
        "",
        agree("milp"),
    ),
    Mutation(
        "milp: a hundredth of the memory is lost",
        MILP,
        "capacity * (1 + MEMORY_SLACK)",
        "capacity * (1 - 1e-2)",
        agree("milp"),
    ),
    Mutation(
        "milp: gradients cross the wrong boundary",
        MILP,
        "s - 1,\n                [option.backward",
        "1,\n                [option.backward",
        agree("milp"),
    ),
    Mutation(
        "milp: blocks need not be consecutive",
        MILP,
        "consecutive_blocks,",
        "",
        agree("milp"),
    ),
    Mutation(
        "milp: one consumer of a tensor counts",
        MILP,
        "for consumer in increment.consumers:",
        "for consumer in increment.consumers[:1]:",
        agree("milp"),
    ),
    Mutation(
        "milp: only the first stage synchronises",
        MILP,
        "counted = list(model.slots)",
        "counted = [max(model.slots)]",
        agree("milp"),
    ),
    Mutation(
        "milp: the slowest stage is the last one",
        MILP,
        "for s, tau in model.load.items():",
        "for s, tau in list(model.load.items())[:1]:",
        agree("milp"),
    ),
    Mutation(
        "milp: one micro-batch too many",
        "formulations/milp/objective.py",
        "(model.slowest, num_micro_batches - 1)",
        "(model.slowest, num_micro_batches)",
        agree("milp"),
    ),
    Mutation(
        "milp: a strategy may differ between layers",
        MILP,
        'model.add(f"{name}_{g}_{h}_profile", [(p, 1), (w, -1)], LESS)',
        "pass",
        agree("milp"),
    ),
    Mutation(
        "milp: a change of layout is free",
        MILP,
        "change, load,",
        "load,",
        agree_layers("milp"),
    ),
    Mutation(
        "milp: a change of layout costs one way",
        MILP,
        "for moved in (model.into, model.out_of):",
        "for moved in (model.into,):",
        agree_layers("milp"),
    ),
    Mutation(
        "milp: the last layer receives the activations",
        MILP,
        "_end(model, name, s, order_of, ends)",
        "_end(model, name, s, order_of[::-1], ends)",
        agree_layers("milp"),
    ),
    Mutation(
        "milp: a stage receives in any layout",
        MILP,
        "receiver, receive,",
        "receive,",
        agree_layers("milp"),
    ),
    Mutation(
        "milp: the counts of choices forget the layouts",
        MILP,
        'model.add(f"linking_{kind}_{s}_{g}_layout_{j}", terms, EQUAL)',
        "pass",
        agree_layers("milp"),
    ),
    Mutation(
        "milp: a part of a layer takes a choice",
        "formulations/milp/variables.py",
        'model.integer(f"q_{name}", num_layers)',
        'model.variable(f"q_{name}", num_layers)',
        agree_layers("milp"),
    ),
    Mutation(
        "milp: too much is cut off with what does not fit",
        MILP,
        "many, LESS, len(many) - 1",
        "many, LESS, len(many) - 2",
        (
            "tests/unit/test_formulations.py",
            "-k",
            "choices_that_floats_cannot_tell_apart",
        ),
    ),
    Mutation(
        "milp: CBC preprocesses general integers",
        "formulations/milp/engines.py",
        'options.append("preprocess off")',
        "pass",
        (
            "tests/unit/test_formulations.py",
            "-k",
            "cbc_preprocessing_loses_the_optimum",
        ),
    ),
    # What both formulations start from, and enumeration
    Mutation(
        "common: a choice beats those of other layouts",
        COMMON,
        "groups.setdefault(_layout(strategy), {})",
        "groups.setdefault(Strategy(), {})",
        agree_layers("cpsat"),
    ),
    Mutation(
        "common: changes of layout stay at the lowest level",
        COMMON,
        "model.network.level(start, start + block.devices - 1)",
        "model.network.level(start, start)",
        agree_layers("cpsat"),
    ),
    Mutation(
        "common: changes of layout count in one replica",
        COMMON,
        "for replica in range(block.replicas)",
        "for replica in range(1)",
        agree_layers("cpsat"),
    ),
    Mutation(
        "common: any number of stages",
        SPACE,
        "if allowed is None or count in allowed",
        "if True",
        ALLOWED,
    ),
    Mutation(
        "brute: any number of stages",
        BRUTE,
        "return self._stage_counts is None or num_stages in "
        "self._stage_counts",
        "return True",
        ALLOWED,
    ),
    # The shared cost model: no solver can notice, hand-derived figures must
    Mutation(
        "cost: one micro-batch too many",
        SCORE,
        "step = num_micro_batches * max(loads) + ",
        "step = (num_micro_batches + 1) * max(loads) + ",
        UNIT,
    ),
    Mutation(
        "cost: a tensor crosses once per consumer",
        SCORE,
        "crossing.append(max(sizes))",
        "crossing.extend(sizes)",
        UNIT,
    ),
    Mutation(
        "cost: the sender's shards count",
        SCORE,
        "_, strategy = members[0] if forward else members[-1]",
        "_, strategy = stages[number - 1 if forward else number + 1][0]",
        UNIT,
    ),
    Mutation(
        "cost: memory may be exceeded by a byte",
        SCORE,
        "if block.memory_bytes > capacity",
        "if block.memory_bytes > capacity + 1",
        UNIT,
    ),
    Mutation(
        "cost: overlap hides the update too",
        MODEL,
        "update_ns = self._update_ns(sizes, sharded)",
        "update_ns = self._update_ns(sizes, sharded)"
        " * (1.0 - self.problem.job.gradient_sync_overlap)",
        UNIT,
    ),
    Mutation(
        "cost: experts synchronise like dense weights",
        MODEL,
        '"expert-sync": (data // ep, tp * ep),',
        '"expert-sync": (data, tp),',
        UNIT,
    ),
    Mutation(
        "cost: context ranks come before tensor ranks",
        MODEL,
        '"cp": (cp, tp),',
        '"cp": (cp, 1),',
        UNIT,
    ),
    Mutation(
        "cost: a fast link above a slow one is fast",
        "nest/topology/hierarchy.py",
        "itertools.accumulate(self.raw_bandwidths, min)",
        "self.raw_bandwidths",
        TOPOLOGY,
    ),
    Mutation(
        "cost: nest-artifact forgets the lower levels",
        MODEL,
        "per_byte += 2 * factors[level] + before_per_byte",
        "per_byte += 2 * factors[level]",
        NEST,
    ),
    # Preset piper
    Mutation(
        "piper: ranks may outnumber micro-batches",
        PIPER,
        "ranks = min(\n            self.num_micro_batches,",
        "ranks = min(\n            self.num_devices,",
        TURNS,
    ),
    Mutation(
        "piper: memory counts at the most in flight only",
        PIPER,
        "if least[0] == least.min() == least.max():",
        "if True:",
        TURNS,
    ),
    Mutation(
        "piper: options are dropped too early",
        PIPER,
        "[x.memory(self.most_inflight) for x in found],",
        "[x.memory(1) for x in found],",
        TURNS,
    ),
    Mutation(
        "piper: the knapsacks stop short of the bound",
        PIPER,
        "program.refine(min(reached, best))",
        "program.refine(bound)",
        TURNS,
    ),
    Mutation(
        "piper: leaving edges are charged to the target's degree",
        PIPER,
        "at_source[source, target] = sent",
        "at_source[source, target] = received",
        TURNS,
    ),
    Mutation(
        "piper: the sync is divided by dp again",
        MODEL,
        "return 4 * (dp - 1) * weight_bytes / rate * NS_PER_S",
        "return 4 * (dp - 1) / dp * weight_bytes / rate * NS_PER_S",
        TURNS,
    ),
    Mutation(
        "piper: a turn is rounded down",
        MODEL,
        "return (2 * quanta + dp) // (2 * dp)",
        "return quanta // dp",
        TURNS,
    ),
    # Extensions, operators, predictions
    Mutation(
        "score: interleaving does not shorten the bubble",
        SCORE,
        "others, plan.virtual_stages",
        "others, 1",
        EXTENSIONS,
    ),
    Mutation(
        "score: all of the gradient sync hides",
        SCORE,
        "math.floor(fraction * sum(",
        "math.floor(sum(",
        EXTENSIONS,
    ),
    Mutation(
        "score: chunks of a block share one working set each",
        SCORE,
        "working_bytes=max(stage.working_bytes for stage in stages),",
        'working_bytes=total("working_bytes"),',
        EXTENSIONS,
    ),
    Mutation(
        "model: the reserve is free",
        MODEL,
        "+ self.problem.cluster.device.reserve_bytes,",
        "+ 0 * self.problem.cluster.device.reserve_bytes,",
        EXTENSIONS,
    ),
    Mutation(
        "network: NCCL launches for free",
        HIERARCHY,
        "return launch_ns + 2 * ring_ns",
        "return 2 * ring_ns",
        TOPOLOGY,
    ),
    Mutation(
        "operators: a causal mask saves nothing",
        ATTENTION,
        "seen = length / 2",
        "seen = length",
        COUNTS,
    ),
    Mutation(
        "operators: one half-size dimension counts",
        TIMING,
        "fraction *= size / (size + calibration.matmul_half_size)",
        "fraction = size / (size + calibration.matmul_half_size)",
        COUNTS,
    ),
    Mutation(
        "operators: the host always runs ahead",
        TIMING,
        "return ahead + calibration.waiting_fraction * (waiting - ahead)",
        "return ahead",
        COUNTS,
    ),
    Mutation(
        "predict: nvidia-smi sees no cache",
        PREDICT,
        '"cached": round(cached)',
        '"cached": 0',
        ROWS,
    ),
)


def tracked_files() -> list[str]:
    """Return the files of the working tree that git does not ignore."""
    output = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
    ).stdout.decode()
    return [name for name in output.split("\0") if name]


def copy_tree(target: Path) -> None:
    for name in tracked_files():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def run_tests(
    tree: Path, tests: tuple[str, ...]
) -> subprocess.CompletedProcess[str]:
    """Run pytest on a copy; it must import the copy's code."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-x", "-q", "--tb=line"),
            *("-p", "no:cacheprovider", *tests),
        ],
        cwd=tree,
        env={
            **os.environ,
            "PYTHONPATH": str(tree),
            "PYTHONDONTWRITEBYTECODE": "1",
            "HYPOTHESIS_PROFILE": "ci",
        },
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def import_path(tree: Path) -> Path:
    output = subprocess.run(
        [sys.executable, "-c", "import nest; print(nest.__file__)"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return Path(output.strip())


def killer(output: str) -> str:
    """Return the first failing test that pytest names."""
    match = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
    return match[1] if match else "?"


def check(mutation: Mutation, tree: Path) -> tuple[bool, str]:
    """Return whether the mutation was killed, and by what."""
    path = tree / mutation.file
    source = path.read_text()
    # Line breaks and indentation are the formatter's business.
    pattern = r"\s+".join(map(re.escape, mutation.old.split()))
    broken, found = re.subn(pattern, lambda _: mutation.new, source)
    if found != 1:
        return False, f"snippet found {found} times in {mutation.file}"
    path.write_text(broken)
    try:
        result = run_tests(tree, mutation.tests)
    except subprocess.TimeoutExpired:
        return True, f"no end after {TIMEOUT_S} s"
    finally:
        path.write_text(source)
    if result.returncode == 0:
        return False, "SURVIVED"
    if result.returncode != 1:
        return False, f"pytest exit {result.returncode}; see {mutation.tests}"
    return True, killer(result.stdout)


def main(arguments: list[str]) -> int:
    listed = [
        mutation
        for mutation in MUTATIONS
        if not arguments
        or any(mutation.name.startswith(a) for a in arguments)
        or arguments == ["--list"]
    ]
    if arguments == ["--list"]:
        for mutation in listed:
            print(f"{mutation.name:50} {mutation.file}")
        return 0
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nest-mutation-") as folder:
        trees: queue.Queue[Path] = queue.Queue()
        for number in range(WORKERS):
            tree = Path(folder, str(number), "main")
            copy_tree(tree)
            trees.put(tree)
        first = trees.queue[0]
        if not import_path(first).is_relative_to(first):
            print(f"expected the copy's code, got {import_path(first)}")
            return 1
        selections = list(dict.fromkeys(m.tests for m in listed))

        def on_a_tree(task, *values):
            tree = trees.get()
            try:
                return task(tree, *values)
            finally:
                trees.put(tree)

        with ThreadPoolExecutor(WORKERS) as pool:
            # Nothing broken: every selection must pass, or it proves nothing.
            clean = list(
                pool.map(lambda t: on_a_tree(run_tests, t), selections)
            )
            for tests, result in zip(selections, clean, strict=True):
                if result.returncode != 0:
                    print(f"these fail without a mutation: {' '.join(tests)}")
                    print(result.stdout[-2000:])
                    return 1
            print(f"{'mutation':50} killed by")
            survived = 0
            for mutation, (killed, text) in zip(
                listed,
                pool.map(
                    lambda m: on_a_tree(lambda tree: check(m, tree)), listed
                ),
                strict=True,
            ):
                survived += not killed
                print(f"{mutation.name:50} {text}", flush=True)
    print(
        f"{len(listed) - survived} of {len(listed)} mutations killed in "
        f"{time.monotonic() - start:.0f} s"
    )
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
