"""How far ``aceso`` is from the proven optimum, and from its own code.

Runs ``nest compare`` with ``dp`` and ``aceso``, 60 s each, on built-in problems, on
instances of the library and on inputs of NEST's artifact, then ``dp`` with the
replicas, ZeRO and expert parallelism of Aceso's plan; and ``aceso`` on the profile of
GPT-13B that comes with Aceso, whose predicted step time was recorded. The last two need
the shared data. Writes ``bench/results/aceso.json`` and fills docs/results/aceso.md.

    python bench/aceso.py [--tables]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from result_files import ROOT, fill, page_path, read_rows, table, write_rows
from speed import COMMAND

DATA = ROOT.parent / "shared" / "data"
TIME_LIMIT_S = 60

#: Of GPT-13B, ``results/ref/perf_model_time_large_gpt.csv`` of Aceso's code.
PREDICTED_S, MEASURED_S = 84.61, 86.57

#: Problem or instance, and granularity.
PROBLEMS = [
    *(("llama2-7b-8", "stage"), ("llama2-7b-16", "stage")),
    *(("llama2-7b-16", "layer"), ("mixtral-8x7b-32", "stage")),
    *(("llama2-70b-64", "stage"), ("gpt3-175b-64", "stage")),
    *(("gpt3-175b-256", "stage"), ("gpt3-13b-jean-zay-v100x32", "stage")),
    *(("t5-11b-dgx-a100x16", "stage"), ("t5-large-v100x8", "stage")),
    *(("resnet50-v100x8", "stage"), ("googlenet-v100x4", "stage")),
    *(("unet-v100-16gbx8-dgx1", "stage"), ("dlrm-v100x8", "stage")),
    ("llama3-70b-dgx-h100x64-torus", "stage"),
    ("gpt3-2.7b-a10gx4+l4x4", "stage"),
    ("llama3-8b-dgx-h100x16-megatron", "stage"),
    ("llama2-13b-a10gx8", "stage"),
]
#: Step time of a plan over the optimum that is worth a line of its own.
SHOWN = 1.1
ARTIFACT = (
    *("tpuv4_fatTree__bert_mbs1_64", "tpuv4_fatTree__gpt3_mbs1_64"),
    *("tpuv4_fatTree__gpt3_mbs1_1024", "tpuv4_fatTree__llama2_mbs1_1024"),
)


def run(*arguments: str) -> None:
    """Run a command of ``nest``; what it prints is dropped."""
    subprocess.run(
        [*COMMAND, *arguments],
        cwd=ROOT,
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def compare(
    problem: str, solvers: str, granularity: str, *options: str
) -> list[dict[str, Any]]:
    """Return the cells of a comparison, without plans."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "answer.json"
        run(
            *("compare", problem, "--solvers", solvers, "--json", str(path)),
            *("--granularity", granularity, *options),
        )
        cells = json.loads(path.read_text())["cells"]
    keys = ("solver", "outcome", "status", "detail", "limit", "wall_s")
    keys += ("step_time_ns", "own_objective_ns", "over_memory_bytes")
    return [
        {**{key: cell.get(key) for key in keys}, "pins": pins(cell["plan"])}
        for cell in cells
    ]


def pins(plan: dict[str, Any] | None) -> str:
    """Return what a plan has of what Aceso does not choose."""
    if plan is None:
        return ""
    strategies = [
        strategy
        for stage in plan["stages"]
        for strategy in stage.get("strategies") or [stage["strategy"]]
    ]
    chosen = [
        f"{name}={'|'.join(map(str, sorted({s[name] for s in strategies})))}"
        for name in ("zero", "ep")
    ]
    return ",".join([f"r={plan['replicas']}", *chosen])


def gaps(only: str) -> list[dict[str, object]]:
    """Return ``dp``, ``aceso`` and ``dp`` with pins on every problem.

    Of those with such a name.
    """
    limit = ("--time-limit", str(TIME_LIMIT_S))
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder:
        todo = [(name, name, layers) for name, layers in PROBLEMS]
        for name in ARTIFACT:
            problem = str(Path(folder) / f"{name}.json")
            source = DATA / "nest-artifact" / "instances" / f"{name}.json"
            run("import", "nest-artifact", str(source), "-o", problem)
            todo.append((name, problem, "stage"))
        for name, problem, layers in todo:
            if only not in name:
                continue
            answer = compare(problem, "dp,aceso", layers, *limit)
            # Presets that are as they are have no choice of these.
            pinned = answer[1]["pins"] if name not in ARTIFACT else ""
            if pinned:
                answer += compare(problem, "dp", layers, *limit, "--pin", pinned)
            rows += [
                {"problem": name, "granularity": layers, "pinned": number == 2, **cell}
                for number, cell in enumerate(answer)
            ]
            print(*rows[-len(answer) :], sep="\n", flush=True)
    return rows


def fidelity() -> dict[str, object]:
    """Return ``aceso`` on its own profile of GPT-13B, 32 V100.

    What is left of 32 GB is 28,000 MiB: the budget of its scripts.
    """
    with tempfile.TemporaryDirectory() as folder:
        profile, problem = (f"{folder}/{x}.json" for x in ("profile", "gpt"))
        run(
            *("import", "profile-csv"),
            str(DATA / "profiles" / "aceso-v100-gpt"),
            *("--model", "gpt3-13b", "--device", "V100-32GB-SXM2"),
            *("-o", profile),
        )
        run(
            *("problems", "--model", "gpt3-13b", "--cluster", "v100x32"),
            *("--global-batch", "1024", "--sequence-length", "2048"),
            *("--micro-batches", "1,2,4,8", "--dtype", "fp16", "--zero", "0"),
            *("--sequence-parallel", "off", "--profile", profile),
            *("-o", problem),
        )
        (cell,) = compare(problem, "aceso", "layer", "--headroom", "1.731GB")
    return {"problem": "GPT-13B's profile", "granularity": "layer", **cell}


def grouped(rows: list[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the rows of every problem."""
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        key = (row["problem"], row["granularity"])
        groups.setdefault(key, []).append(row)
    return groups


def markdown(rows: list[dict[str, Any]]) -> str:
    """Return the table of the larger gaps, and a sentence on the others."""
    lines, small = [], []
    for key, (best, plan, *pinned) in grouped(rows).items():
        problem, granularity = key
        optimum = best["step_time_ns"]
        name = problem + (", per layer" if granularity == "layer" else "")
        relative = believed = inside = "–"
        if optimum and plan["step_time_ns"]:
            ratio = plan["step_time_ns"] / optimum
            if ratio < SHOWN and not plan["over_memory_bytes"]:
                small.append(ratio)
                continue
            relative = f"{ratio:.3f}"
            believed = f"{plan['own_objective_ns'] / plan['step_time_ns']:.3f}"
        if plan["over_memory_bytes"]:
            relative = f"over memory by {plan['over_memory_bytes']} bytes"
        for cell in pinned:
            inside = f"{cell['step_time_ns'] / optimum:.3f}{_proof(cell)}"
        lines.append((name, _time(best), relative, believed, inside))
    heads = "problem | `dp` | relative | own estimate | `dp` in its space"
    return (
        f"{table(heads, lines)}\n\nOn {len(small)} other problems, the plan "
        f"is at most {100 * (max(small) - 1):.1f} % slower than the optimum."
    )


def recorded_steps(cell: dict[str, Any]) -> str:
    """Return the table of GPT-13B's steps."""
    steps = {
        "predicted by the code, recorded": PREDICTED_S,
        "measured, recorded": MEASURED_S,
        "predicted here": cell["own_objective_ns"] / 1e9,
        "its plan by the shared model": cell["step_time_ns"] / 1e9,
    }
    lines = ((name, f"{value:.2f}") for name, value in steps.items())
    return table("step | s", lines)


def _proof(cell: dict[str, Any]) -> str:
    proven = cell["solver"] != "dp" or cell["status"] == "optimal"
    return "" if proven else " (no proof)"


def _time(cell: dict[str, Any]) -> str:
    if not cell["step_time_ns"]:
        return "none fits" if cell["status"] == "infeasible" else "none"
    seconds = cell["step_time_ns"] / 1e9
    if cell["problem"] in ARTIFACT:
        # In the time unit of its file.
        return f"{seconds:,.0f}"
    return f"{seconds:.4g} s{_proof(cell)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="TEXT")
    parser.add_argument("--tables", action="store_true", help="from the stored rows")
    options = parser.parse_args()
    if not options.tables:
        rows = gaps(options.only)
        if options.only:
            new = grouped(rows)
            rows = [
                row
                for key, old in grouped(read_rows("aceso")).items()
                for row in new.get(key, old)
            ]
        else:
            rows.append(fidelity())
        write_rows("aceso", rows)
    *rows, recorded = read_rows("aceso")
    page = page_path("aceso")
    fill(page, "gaps", markdown(rows))
    fill(page, "fidelity", recorded_steps(recorded))


if __name__ == "__main__":
    main()
