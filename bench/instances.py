"""The instance library: its problems from recipes, and what dp proves.

``bench/instances/recipes.yaml`` says what each problem is made of. Without
options this writes every problem and the index to ``nest/instances/data``,
the same bytes as long as the recipes, the package and its calibration are the
same. What was known about a problem that changed is dropped.

    python bench/instances.py [--only NAME …] [--check]
    python bench/instances.py --solve [--solver dp] [--time-limit 60] [--again]
    python bench/instances.py --tables

``--solve`` lets dp work on what nothing is known about, then asks it whether a
plan that does not fit is faster, and hands the answers to the code of
``bench.best_known``. It can be stopped and started again. Another exact solver
with ``--solver`` confirms what dp proved. ``--tables`` fills
docs/results/instances.md; ``--check`` compares and writes nothing.
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import hashlib
import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import msgspec
from msgspec.structs import replace

from bench.instance_recipes import instance_of, name_of, recipes
from bench.instance_updates import encode_best_known, with_document
from bench.result_files import ROOT, fill, page_path, table
from nest.analysis.compare import to_document
from nest.errors import NestError
from nest.instances import store
from nest.instances.records import CLASSES, BestKnown, Index
from nest.ir import Problem
from nest.models import builtin
from nest.solvers.base import SolveOptions
from nest.solvers.run import run_solver
from nest.units import MAX_TERM, quanta_to_ns
from nest.util.files import write_atomically
from nest.util.versions import nest_version, num_cpus

DATA = ROOT / "nest" / "instances" / "data"
SOLVER = "dp"

#: The files with what is fitted to measurements: times rest on them.
CALIBRATION = (
    "nest/hardware/data/device_calibration.json",
    "nest/hardware/data/link_calibration.json",
)

#: All else that a problem depends on: where it changed, the same recipe makes
#: another problem, and the stored one stays what it is.
SOURCES = ("nest/models", "nest/hardware", "nest/constraints/targets", "nest/topology")
SCRIPTS = (
    *("bench/instance_recipes.py", "bench/instance_graphs.py"),
    "bench/instance_classes.py",
)


def calibration_sha256() -> str:
    """Return the hash of what times rest on besides data sheets."""
    return _sha256(ROOT / path for path in CALIBRATION)


def sources_sha256() -> str:
    """Return the hash of the code and data that make problems."""
    paths = [ROOT / path for path in SCRIPTS]
    for folder in SOURCES:
        for suffix in ("*.py", "*.json"):
            paths += (ROOT / folder).rglob(suffix)
    return _sha256(sorted(paths))


def _sha256(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def made(only: list[str] | None) -> tuple[Index, dict[str, bytes]]:
    """Return the index and the stored problems, by name."""
    instances, problems = [], {}
    taken = {*builtin.names(), *(item.name for item in CLASSES)}
    for recipe in recipes():
        name = name_of(recipe)
        if only and name not in only:
            continue
        if name in taken:
            sys.exit(f"{name}: expected a name of its own; add a tag")
        taken.add(name)
        try:
            instance, problem = instance_of(recipe)
        except NestError as error:
            sys.exit(f"{name}: {error}")
        # The same bytes each time.
        plain = msgspec.json.encode(problem)
        problems[name] = gzip.compress(plain, 9, mtime=0)
        instances.append(instance)
    instances.sort(key=lambda x: (x.num_devices, x.name))
    index = Index(
        generator="bench/instances.py",
        version=nest_version(),
        calibration_sha256=calibration_sha256(),
        sources_sha256=sources_sha256(),
        instances=tuple(instances),
    )
    return index, problems


def encode_index(index: Index) -> bytes:
    """Return the index as JSON, a line per instance."""
    head = msgspec.json.encode(replace(index, instances=())).decode()
    lines = [msgspec.json.encode(x).decode() for x in index.instances]
    body = ",\n ".join(lines)
    return head.replace('"instances":[]', f'"instances":[\n {body}\n]').encode() + b"\n"


def generate(only: list[str] | None, check: bool) -> None:
    """Write index and problems, or say what of them is not as stored."""
    index, problems = made(only)
    folder = DATA / "problems"
    if check or only:
        stored = store.index()
        wrong = [
            instance.name
            for instance in index.instances
            if stored.get(instance.name) != instance
        ]
        if not only:
            wrong += sorted(set(stored) - set(problems))
        for name in wrong:
            print(f"{name}: not as stored")
        sys.exit(1 if wrong else 0)
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.glob("*.json.gz"):
        if path.name.removesuffix(".json.gz") not in problems:
            path.unlink()
    for name, data in problems.items():
        write_atomically(folder / f"{name}.json.gz", data)
    write_atomically(DATA / "index.json", encode_index(index))
    hashes = {x.name: x.problem_hash for x in index.instances}
    path = store.best_known_path()
    records = store.read_best_known() if path.exists() else {}
    unchanged = {
        name: record
        for name, record in records.items()
        if hashes.get(name) == record.problem_hash
    }
    write_atomically(path, encode_best_known(unchanged))
    size = sum(map(len, problems.values()))
    print(
        f"{len(problems)} problems, {size / 1e6:.2f} MB; of {len(unchanged)} "
        f"something is known"
    )


def solve(
    solver: str, only: list[str] | None, options: SolveOptions, again: bool
) -> None:
    """Let a solver work on what it was not tried on yet."""
    records = store.read_best_known()
    begin = time.monotonic()
    for name in store.index():
        if only and name not in only:
            continue
        if not again and was_tried(solver, records.get(name)):
            continue
        start = time.monotonic()
        problem = store.load(name)
        records = told(records, solver, problem, options)
        record = records[name]
        # Is a plan faster that does not fit? Is there one, if none fits?
        target = MAX_TERM if record.infeasible else record.value_quanta
        if (
            target is not None
            and record.status == "closed"
            and (record.unlimited is None or record.memory_class is None)
        ):
            extra = {"at_most_quanta": str(target - 1)}
            unlimited_options = dataclasses.replace(options, extra=extra)
            free = store.unlimited(problem)
            records = told(records, SOLVER, free, unlimited_options)
        path = store.best_known_path()
        write_atomically(path, encode_best_known(records))
        record = records[name]
        print(
            f"{name:45} {record.status:6} {record.memory_class or '-':10} "
            f"{record.value_quanta} {time.monotonic() - start:6.1f} s",
            flush=True,
        )
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    print(f"{time.monotonic() - begin:.0f} s, {cpu_s:.0f} s of CPU time")


def was_tried(solver: str, known: BestKnown | None) -> bool:
    """Whether a solver has worked on an instance: dp is the first to."""
    if known is None or solver == SOLVER:
        return known is not None
    return any(proof.solver == solver for proof in known.proofs)


def told(
    records: dict[str, BestKnown], solver: str, problem: Problem, options: SolveOptions
) -> dict[str, BestKnown]:
    """Return what is known after a solver worked on a problem."""
    result = run_solver(problem, solver, options)
    if result.outcome.failed:
        sys.exit(f"{problem.name}: {result.outcome}: {result.detail}")
    document = to_document(problem, {solver: options}, [result])
    written = json.loads(json.dumps(document))
    # The proof is this one: it needs no other.
    (cell,) = written["cells"]
    return with_document(
        records, written, problem.name, lambda _problem, _solver: cell
    )[0]


# Tables


def tables() -> str:
    """Return the figures of docs/results/instances.md: classes, open ones."""
    names = list(store.index())
    count = Counter(store.state(name) for name in names)
    sizes = ", ".join(
        f"{item.name} ({len(store.names([item.name]))})" for item in CLASSES
    )
    total = (
        f"Of {len(names)} instances, {count['closed']} are closed and "
        f"{count['open']} open. By class: {sizes}."
    )
    rows = []
    records = store.known()
    for name in store.names([], "open"):
        record = records.get(name)
        quantum_ps = store.find(name).quantum_ps
        value_s, bound_s = (
            quanta and quanta_to_ns(quanta, quantum_ps) / 1e9
            for quanta in (
                record and record.value_quanta,
                record and record.bound_quanta,
            )
        )
        gap = f"{100 * (1 - bound_s / value_s):.1f}" if value_s and bound_s else "–"
        texts = (f"{x:.6g}" if x else "–" for x in (value_s, bound_s))
        rows.append((name, *texts, gap))
    heads = "open instance | best known, s | lower bound, s | gap, %"
    return f"{total}\n\n{table(heads, rows)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="NAME")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--solve", action="store_true")
    parser.add_argument("--solver", default=SOLVER)
    parser.add_argument("--time-limit", type=float, default=60)
    parser.add_argument("--workers", type=int, default=min(2, num_cpus()))
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--tables", action="store_true")
    chosen = parser.parse_args()
    if chosen.solve:
        limits = SolveOptions(
            time_limit_s=chosen.time_limit, num_workers=chosen.workers
        )
        solve(chosen.solver, chosen.only, limits, chosen.again)
    elif chosen.tables:
        fill(page_path("instances"), "instances", tables())
    else:
        generate(chosen.only, chosen.check)


if __name__ == "__main__":
    main()
