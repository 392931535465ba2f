"""Every solver on every input of NEST at hand and every planner problem.

The cells are those of a ``nest bench`` run: each in processes of its own,
finished cells stay finished. Every cell is answered (a plan that fits, or a
proof that there is none), explained in one line (no such plan in the
planner's space, a plan that does not fit, a problem that it cannot search) or
failed; and no plan may be better than what ``dp`` proves.

Takes any piece of it at a time: what is finished is kept in ``build/every-cell``, with
the reports of ``nest bench`` at the end of every piece, and its rows are added to
``bench/results/every_cell.json``, from which the tables of docs/results/planners.md are
made. Rows of planner problems have what the tables of planners say besides: plans, what
repairing takes, own objectives.

    python bench/every_cell.py                  all that is missing
    python bench/every_cell.py --only 'rnd1*' 't5-*' --solvers dp,alpa
    python bench/every_cell.py --stop-after 600 begin nothing after 10 minutes
    python bench/every_cell.py --tables         fill the docs, run nothing
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).resolve().parent))

import planners
from planners import PIPELINED, REFERENCE
from result_files import ROOT, fill, page_path, read_rows, table, write_rows

from nest.audits.nest_artifact.importer import import_nest_artifact
from nest.benchmarks.cells import Entry
from nest.benchmarks.execute import CellTask, run_cell
from nest.benchmarks.instances import Instance
from nest.benchmarks.rows import Row
from nest.benchmarks.session import Ended, plan_run
from nest.benchmarks.store import RunFolder, open_run
from nest.present.pages.benchmark import write_reports
from nest.solvers.base import SolveOptions, Status
from nest.solvers.registry import solver_names, solver_target
from nest.solvers.result import Outcome

DATA = ROOT.parent / "shared" / "data" / "nest-artifact"
FOLDER = ROOT / "build" / "every-cell"
TIME_LIMIT_S = 60.0

#: Sets of problems, with what tables call them.
SHIPPED, SMALL, PLANNERS = "NEST's", "NEST's, small", "planners"

#: What is run besides all solvers on all problems: on which sets, with which options.
FORMS = {PIPELINED: ((PLANNERS,), {"mcmc": {"pipelines": "yes"}})}

#: What a cell came to; the first two are answers, the next three explain.
KINDS = ("plan", "infeasible", "over memory", "no plan", "skipped")
KINDS += ("out of time", "failed")
ANSWERED, EXPLAINED = KINDS[:2], KINDS[2:5]


def instances() -> dict[str, list[Instance]]:
    """Return the problems of every set; those of NEST, if they are here."""
    by_set: dict[str, list[Instance]] = {
        name: [
            Instance(path.stem, import_nest_artifact(path), path.name)
            for path in sorted((DATA / folder).glob("*.json"), key=_numbered)
        ]
        for name, folder in ((SHIPPED, "instances"), (SMALL, "small"))
    }
    by_set[PLANNERS] = planners.instances()
    return by_set


def _numbered(path: Path) -> tuple[str, int]:
    """Return a key by which 2 comes before 10."""
    head, digits = re.fullmatch(r"(.*?)(\d*)", path.stem).groups()  # type: ignore[union-attr]
    return head, int(digits or 0)


def kind_of(row: Row) -> str:
    """Return what a cell came to, one of :data:`KINDS`.

    What is said must be one line, or it explains nothing.
    """
    one_line = bool(row.detail) and "\n" not in row.detail
    if row.outcome is Outcome.SKIPPED:
        return "skipped" if one_line else "failed"
    if row.outcome is not Outcome.SOLVED:
        return "failed"
    if row.status is Status.INFEASIBLE:
        return "infeasible"
    if row.status is Status.OVER_MEMORY:
        return "over memory" if one_line else "failed"
    if row.step_quanta is not None:
        return "plan"
    if row.limit is not None:
        return "out of time"
    return "no plan" if one_line else "failed"


def to_result(group: str, form: str | None, row: Row) -> dict[str, Any]:
    """Return a row of the results."""
    return {
        "set": group,
        "instance": row.problem,
        "problem_hash": row.entry.hash,
        "solver": form or row.solver,
        "kind": kind_of(row),
        "status": None if row.status is None else str(row.status),
        "limit": None if row.limit is None else str(row.limit),
        "detail": row.detail,
        "step_quanta": row.step_quanta,
        "bound_quanta": row.bound_quanta,
        "over_memory_bytes": row.over_memory_bytes,
        "time_limit_s": row.cell.time_limit_s,
        "wall_s": round(row.wall_s, 2),
    }


def beaten(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line for every answer that refutes a proof of ``dp``."""
    rows = list(rows)
    proofs = {
        row["problem_hash"]: row
        for row in rows
        if row["solver"] == REFERENCE and row["status"] in ("optimal", "infeasible")
    }
    rows_beaten = []
    for row in rows:
        proof = proofs.get(row["problem_hash"])
        if proof is None or row["kind"] not in ANSWERED:
            continue
        step, best = row["step_quanta"], proof["step_quanta"]
        if (
            (step is None) != (best is None)
            or (step is not None and step < best)
            or (row["status"] == "optimal" and row["bound_quanta"] > best)
        ):
            rows_beaten.append(
                f"{row['instance']}: {row['solver']}: {row['status']} with "
                f"{step} quanta, where {REFERENCE} proves {best}"
            )
    return rows_beaten


def over_best(
    rows: Sequence[Mapping[str, Any]], solver: str, groups: Sequence[str]
) -> str:
    """Return the geometric mean of a solver's plans over those of ``dp``."""
    best = {
        row["problem_hash"]: row["step_quanta"]
        for row in rows
        if row["solver"] == REFERENCE and row["status"] == "optimal"
    }
    ratios = [
        row["step_quanta"] / best[row["problem_hash"]]
        for row in rows
        if row["solver"] == solver
        and row["set"] in groups
        and row["kind"] == "plan"
        and row["problem_hash"] in best
    ]
    if not ratios:
        return "–"
    mean = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    return f"{mean:.3f} ({len(ratios)})"


def markdown(rows: Sequence[Mapping[str, Any]], num_all: int) -> str:
    """Return the table of what cells came to."""
    sets = (SHIPPED, SMALL, PLANNERS)
    solvers = [
        name
        for name in (*solver_names(), *FORMS)
        if any(row["solver"] == name for row in rows)
    ]
    head = ["solver", *("answered", "out of time"), f"{SMALL}: step time / `dp`"]
    num_problems = {
        name: len({r["problem_hash"] for r in rows if r["set"] == name})
        for name in sets
    }
    places = ", ".join(f"{n} of *{name}*" for name, n in num_problems.items())
    lines = [
        f"{len(rows)} of {num_all} cells were run, on {places}. {_verdict(rows)}",
        *not_run(rows),
        "",
    ]
    counted = []
    for solver in solvers:
        of_one = [row for row in rows if row["solver"] == solver]
        count = Counter(row["kind"] for row in of_one)
        answered = sum(count[kind] for kind in ANSWERED)
        ratio = over_best(rows, solver, [SMALL])
        counted.append([solver, answered, count["out of time"], ratio])
    lines.append(table(" | ".join(head), counted))
    return "\n".join(lines)


def _verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    count = Counter(row["kind"] for row in rows)
    answered = sum(count[kind] for kind in ANSWERED)
    explained = sum(count[kind] for kind in EXPLAINED)
    proven = sum(row["solver"] == REFERENCE and row["kind"] in ANSWERED for row in rows)
    lost = len(beaten(rows))
    return (
        f"{answered} are answered, {explained} explained, "
        f"{count['out of time']} out of time without a plan and "
        f"{count['failed']} failed. `{REFERENCE}` answers {proven} and is "
        f"beaten {lost} times."
    )


def not_run(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the sentence about problems that not all solvers have run."""
    sets = {name: [*solver_names()] for name in (SHIPPED, SMALL, PLANNERS)}
    for form, (names, _) in FORMS.items():
        for name in names:
            sets[name].append(form)
    sentences = []
    for name, solvers in sets.items():
        done = Counter(row["solver"] for row in rows if row["set"] == name)
        most = len({r["problem_hash"] for r in rows if r["set"] == name})
        sentences += [
            f"`{solver}` on {most - done[solver]} of *{name}*"
            for solver in solvers
            if done[solver] < most
        ]
    return [f"Not run: {', '.join(sentences)}."] if sentences else []


def read_results() -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of earlier pieces, by problem and solver."""
    rows = read_rows("every_cell")
    return {(row["problem_hash"], row["solver"]): row for row in rows}


def run_piece(
    folder: RunFolder,
    group_of: Mapping[str, str],
    options: argparse.Namespace,
    end: float,
) -> None:
    """Run what is missing and asked for, until the time is up."""
    entries: dict[str, Entry] = {x.hash: x for x in folder.run.problems}
    for cell in folder.missing():
        name = entries[cell.problem_hash].name
        if options.solvers and cell.solver not in options.solvers.split(","):
            continue
        if options.only and not any(fnmatch(name, p) for p in options.only):
            continue
        if time.monotonic() > end:
            return
        problem = msgspec.json.encode(folder.problems[cell.problem_hash])
        finished = folder.keep(
            run_cell(CellTask(cell, problem, solver_target(cell.solver)))
        )
        result = finished.result
        print(
            f"{group_of[cell.problem_hash]:14} {name:36} {cell.solver:10} "
            f"{result['status'] or result['outcome']!s:12} "
            f"{result['detail']}",
            flush=True,
        )


def runs(
    by_set: Mapping[str, Sequence[Instance]], time_limit_s: float
) -> Iterator[tuple[str | None, Any, list[Instance]]]:
    """Yield the runs: the form of the solver, what to run, its problems."""
    limits = SolveOptions(time_limit_s=time_limit_s)
    every = [x for group in by_set.values() for x in group]
    solvers = solver_names()
    yield None, plan_run("every cell", every, solvers, options=limits), every
    for form, (sets, extra) in FORMS.items():
        some = [x for name in sets for x in by_set[name]]
        run = plan_run(form, some, list(extra), options=limits, extra=extra)
        yield form, run, some


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", metavar="PATTERN")
    parser.add_argument("--solvers", metavar="A,B,…")
    parser.add_argument("--time-limit", type=float, default=TIME_LIMIT_S)
    parser.add_argument("--stop-after", type=float, default=math.inf)
    parser.add_argument(
        "--tables", action="store_true", help="fill the docs, run nothing"
    )
    options = parser.parse_args()
    if not DATA.is_dir():
        sys.exit(f"no {Path('shared') / 'data' / DATA.name} data")
    end = time.monotonic() + options.stop_after
    by_set = instances()
    group_of = {x.hash: name for name, group in by_set.items() for x in group}
    results = read_results()
    num_all = 0
    missing: set[tuple[str, str]] = set()
    for form, run, problems in runs(by_set, options.time_limit):
        num_all += run.size
        missing |= {(cell.problem_hash, form or cell.solver) for _, cell in run.cells()}
        if options.tables:
            continue
        path = FOLDER / (form or "all").replace(", ", "-")
        with open_run(path, run, problems, resume=True) as folder:
            try:
                run_piece(folder, group_of, options, end)
            finally:
                ended = Ended(folder)
                write_reports(ended)
                for row in ended.rows:
                    group = group_of[row.entry.hash]
                    result = to_result(group, form, row)
                    if group == PLANNERS:
                        result |= planners.details(
                            folder.problems[row.entry.hash],
                            folder.finished[row.cell.key].result,
                        )
                    key = (row.entry.hash, result["solver"])
                    results[key] = result
    rows = [row for key, row in sorted(results.items()) if key in missing]
    if not options.tables:
        write_rows("every_cell", rows)
    tables = {
        "planners": planners.markdown(
            [x.name for x in by_set[PLANNERS]],
            [row for row in rows if row["set"] == PLANNERS],
        ),
        "every cell": markdown(rows, num_all),
    }
    for mark, text in tables.items():
        fill(page_path("planners"), mark, text)
        print(text, end="\n\n")
    bad = beaten(rows)
    bad += [
        f"{row['instance']}: {row['solver']}: {row['detail']}"
        for row in rows
        if row["kind"] == "failed"
    ]
    if bad:
        sys.exit("\n".join(bad))


if __name__ == "__main__":
    main()
