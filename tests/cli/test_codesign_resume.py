"""A search that is killed again and again ends with the same answer."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from nest.accelerators.answers import problem_on
from nest.accelerators.records import ModelResult
from nest.accelerators.spec import read_spec
from nest.accelerators.workload import QUANTUM_PS
from nest.cost.score import score
from nest.ir import read_plan, read_problem, write
from tests.children import wait_until
from tests.cli.conftest import Cli

ROOT = Path(__file__).parents[2]

SPEC = """\
schema: nest-codesign/1
space:
  tensor_cores: [2, 4, 8]
  rows: [16, 32]
  columns: 16
  vector_cores: [1, 2]
  sram: 1 MiB
  hbm: 16 GiB
  hbm_bandwidth: 100 GB/s
  frequency: 1 GHz
  link_bandwidth: 10 GB/s
  network_bandwidth: 1 GB/s
models: [gpt2]
devices: 2
job: {global_batch: 4, layers_per_node: 12, micro_batches: [1], tp: [1]}
objective:
  base: {name: small, tensor_cores: 2, rows: 16, columns: 16, vector_cores: 1,
         sram: 1 MiB}
"""

#: Kills, each as soon as one more answer is there.
KILLS = 5


def command(spec: Path, folder: Path, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "nest", "codesign", str(spec)),
        *("--frontier", "-q", "-o", str(folder), *more),
    ]


def answers(folder: Path) -> list[Path]:
    return sorted((folder / "points").glob("[!.]*.json"))


def finished(folder: Path) -> dict[str, int]:
    """Return when each exact step time was written, in ns.

    Bounds may be asked for again, up to a longer step.
    """
    return {
        file.name: file.stat().st_mtime_ns
        for file in answers(folder)
        if json.loads(file.read_text())["exact"]
    }


def killed(arguments: list[str], folder: Path, count: int) -> None:
    """Run a search, and kill it when there are so many answers."""
    process = subprocess.Popen(
        arguments,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(
        lambda: (
            process.poll() is not None
            or (folder.exists() and len(answers(folder)) >= count)
        )
    )
    assert process.poll() is None, "it ended before it was killed"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def best(document: Path) -> object:
    found = json.loads(document.read_text())
    return found["best"], found["frontier"]


def test_killed_and_resumed(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text(SPEC)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    first, last = tmp_path / "first.json", tmp_path / "last.json"
    done = subprocess.run(
        command(spec, whole, "--json", str(first)), cwd=ROOT, check=False
    )
    assert done.returncode == 0
    expected = finished(whole)
    assert len(answers(whole)) > KILLS + 1
    written: dict[str, int] = {}
    for number in range(1, KILLS + 1):
        more = ("--resume",) if number > 1 else ()
        killed(command(spec, parts, *more), parts, number)
        found = finished(parts)
        # Nothing that was finished is written again.
        assert written.items() <= found.items()
        written = found
    done = subprocess.run(
        command(spec, parts, "--resume", "--json", str(last)), cwd=ROOT, check=False
    )
    assert done.returncode == 0
    found = finished(parts)
    assert written.items() <= found.items()
    assert found.keys() == expected.keys()
    assert best(last) == best(first)
    scored = score(
        read_problem(parts / "gpt2-problem.json"), read_plan(parts / "gpt2-plan.json")
    )
    (on,) = json.loads(last.read_text())["best"][0]["found"]["on"]
    with (parts / "points" / answers(parts)[0].name).open("w") as broken:
        broken.write("{")
    done = subprocess.run(
        [*command(spec, parts, "--resume"), "--csv", "-"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert "it counts as not solved" in done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert {row["devices_per_node"] for row in rows} == {"1"}
    assert scored.feasible
    assert scored.step_quanta * QUANTUM_PS == on["step_ps"]


def test_scores_say_what_costs_rest_on(cli: Cli) -> None:
    """No interval of predictions for GPUs."""
    spec = Path("spec.yaml")
    spec.write_text(SPEC)
    asked = read_spec(spec)
    (point, *_) = asked.space.points
    on = ModelResult("gpt2", None, None)
    write("problem.json", problem_on(asked, on, point.architecture))
    cli.succeeds("score problem.json --plan tp=1,pp=1")
    assert "from analytic accelerator model" in " ".join(cli.out.split())
    assert "90 %" not in cli.out
