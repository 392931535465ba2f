"""Certificates of many problems: how many hold, and what checking them takes.

Every problem is solved by ``dp``, its plan is certified, or that there is
none, and ``nest-check`` examines the certificate in a process of its own.
Writes ``bench/results/certificates.json`` and prints a row per problem: the CPU
time that solving, certifying and checking took, the start of the process included in
the last one. Exits with 1 if a certificate is rejected.

With ``--library`` the problems are the instances of the library, and what is
certified is the best known plan, or that there is none; ``dp`` solves those
with a certificate that holds. That writes
``bench/results/certificates_library.json`` and fills the tables of
docs/results/certificates.md.

    python bench/certificates.py [--library] [--only TEXT] [--time-limit S]
                                 [--models NAME ...] [--clusters NAME ...]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from result_files import fill, page_path, table, write_rows

from nest.benchmarks.instances import Recipe, build
from nest.certificates.certify import certify, certify_infeasible
from nest.errors import NestError
from nest.instances import store
from nest.ir.io import encode
from nest.ir.plan import Plan
from nest.ir.problem import Problem
from nest.models import builtin
from nest.solvers.base import SolveOptions, Status
from nest.solvers.run import run_solver

MODELS = (
    *("bert-large", "vit-huge", "t5-large", "gpt2-xl", "gpt3-1.3b"),
    *("gpt3-6.7b", "llama2-7b", "llama2-13b", "llama3-8b", "gemma2-27b"),
    *("mixtral-8x7b", "qwen3-30b-a3b", "llama2-70b", "gpt3-175b"),
)
CLUSTERS = (
    *("dgx-a100x8", "dgx-a100x16", "dgx-h100x16", "dgx-h100x32"),
    *("dgx-h100x64", "v100x16", "a100-40gbx8"),
)
#: Built-in problems of up to 64 devices.
BUILTIN = (
    *("llama2-7b-8", "llama2-7b-16", "llama2-70b-64", "gpt3-175b-64"),
    "mixtral-8x7b-32",
)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--library", action="store_true")
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--clusters", nargs="*", default=list(CLUSTERS))
    parser.add_argument("--time-limit", type=float, default=60)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    names = list(BUILTIN)
    names += [f"{m}/{c}" for c in options.clusters for m in options.models]
    if options.library:
        names = list(store.index())
    rows: list[dict[str, object]] = []
    print(
        f"{'problem':28} {'certificate':11} {'verdict':9} {'gap %':>7} "
        f"{'splits':>6} {'prices':>6} {'labels':>6} {'solve s':>8} "
        f"{'certify s':>9} {'check s':>8}"
    )
    for name in names:
        if options.only not in name:
            continue
        row = (examine_known if options.library else examine)(name, options.time_limit)
        rows.append(row)
        print(shown(row), flush=True)
    if options.library:
        summary_of_library(rows)
        write_rows("certificates_library", rows)
    else:
        summary(rows)
        write_rows("certificates", rows)
    sys.exit(any(row.get("verdict") == "rejected" for row in rows))


def load(name: str) -> Problem:
    """Return a built-in problem, or that of ``MODEL/CLUSTER``."""
    if "/" not in name:
        return builtin.load(name)
    model, cluster = name.split("/")
    return build(Recipe(model=model, cluster=cluster))


def examine(name: str, time_limit: float) -> dict[str, object]:
    """Solve a problem and certify what was found."""
    row: dict[str, object] = {"problem": name}
    problem = load(name)
    row |= solved(problem, time_limit)
    plan = row.pop("plan")
    if plan is None and row["solved"] != Status.INFEASIBLE:
        return row
    return row | certified(problem, plan)


def examine_known(name: str, time_limit: float) -> dict[str, object]:
    """Certify what is known of an instance; solve it if that holds."""
    row: dict[str, object] = {"problem": name}
    record, problem = store.known()[name], store.load(name)
    row |= {"known": record.status, "solved": "nothing is known"}
    if record.plan is None and not record.infeasible:
        return row
    row |= certified(problem, record.plan)
    if row.get("verdict") == "verified":
        row |= solved(problem, time_limit)
        del row["plan"]
    return row


def solved(problem: Problem, time_limit: float) -> dict[str, Any]:
    """Return what ``dp`` finds, and the CPU time that it takes."""
    result = run_solver(problem, "dp", SolveOptions(time_limit_s=time_limit))
    return {"plan": result.plan, "solved": str(result.status), "solve_s": result.cpu_s}


def certified(problem: Problem, plan: Plan | None) -> dict[str, Any]:
    """Return what a certificate proves, and what it takes to check."""
    row: dict[str, Any] = {}
    began = time.process_time()
    try:
        if plan is None:
            certificate = certify_infeasible(problem)
        else:
            certificate = certify(problem, plan)
    except NestError as error:
        return row | {"refused": str(error)}
    row["certify_s"] = time.process_time() - began
    step, bound = (certificate[f"{x}_quanta"] for x in ("step_time", "lower_bound"))
    proof = certificate["proof"]
    row |= {
        "status": certificate["status"],
        "step_time_quanta": step,
        "lower_bound_quanta": bound,
        "gap_percent": 100 * (1 - bound / step) if step else 0.0,
        "splits": len(proof),
        "prices": sum(len(x["prices"]) for x in proof),
        "labels": sum(x["labels"] for x in proof),
    }
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / x for x in ("problem.json", "cert.json")]
        paths[0].write_bytes(encode(problem))
        paths[1].write_text(json.dumps(certificate))
        began = children_s()
        checked = subprocess.run(
            [sys.executable, "-m", "nest.certificates.check", *paths],
            capture_output=True,
            check=False,
        )
        row["check_s"] = children_s() - began
    row["verdict"] = "rejected" if checked.returncode else "verified"
    return row


def children_s() -> float:
    """Return the CPU time of processes that have ended, in s."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def shown(row: dict[str, object]) -> str:
    if "status" not in row:
        return f"{row['problem']:28} {row.get('refused', row['solved'])}"
    return (
        f"{row['problem']:28} {row['status']:11} {row['verdict']:9} "
        f"{row['gap_percent']:7.3g} {row['splits']:6} {row['prices']:6} "
        f"{row['labels']:6} {row['solve_s']:8.2f} {row['certify_s']:9.2f} "
        f"{row['check_s']:8.2f}"
    )


def summary(rows: list[dict[str, object]]) -> None:
    """Print what all of them come to."""
    held = [row for row in rows if row.get("verdict") == "verified"]
    optimal = [row for row in held if row["status"] == "optimal"]
    none = [row for row in held if row["status"] == "infeasible"]
    faster = [row for row in held if row["check_s"] < row["solve_s"]]
    sums = {
        name: sum(row[name] for row in held)  # type: ignore[misc]
        for name in ("solve_s", "certify_s", "check_s")
    }
    print(
        f"{len(rows)} problems, {len(held)} verified, {len(optimal)} optimal, "
        f"{len(none)} without a plan; "
        f"checked in less CPU time than solved: {len(faster)}; in all: solve "
        f"{sums['solve_s']:.1f} s, certify {sums['certify_s']:.1f} s, check "
        f"{sums['check_s']:.1f} s"
    )


def summary_of_library(rows: list[dict[str, Any]]) -> None:
    """Fill the table of the library."""
    held = [row for row in rows if row.get("verdict") == "verified"]
    by_status = Counter(row["status"] for row in held)
    lines = [
        ("instances", len(rows)),
        ("certificates (all verified)", len(held)),
        ("best known plans proven optimal", by_status["optimal"]),
        ("proven to have no plan", by_status["infeasible"]),
        ("with a bound below the best known plan", by_status["feasible"]),
        ("refused", sum("refused" in row for row in rows)),
        (
            "without a plan or a proof that there is none",
            sum("refused" not in r and "status" not in r for r in rows),
        ),
        (
            "checked in less CPU time than solved",
            sum(row["check_s"] < row["solve_s"] for row in held),
        ),
    ]
    below = [
        (f"`{row['problem']}`", f"{row['gap_percent']:.2g} %")
        for row in held
        if row["status"] == "feasible"
    ]
    heads = "a bound below the plan | gap"
    reasons = Counter(reason(row) for row in rows if "refused" in row)
    refused = ", ".join(f"`{x}` ({n})" for x, n in reasons.most_common())
    tables = (
        table("|", lines),
        table(heads, below),
        f"Refused because of (instances): {refused}.",
    )
    fill(page_path("certificates"), "library", "\n\n".join(tables))


def reason(row: dict[str, Any]) -> str:
    """Return what is not covered: a field of the problem or of the plan."""
    field = row["refused"].removeprefix(f"{row['problem']}.")
    return str(field.split(": ")[0])


if __name__ == "__main__":
    main()
