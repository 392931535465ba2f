"""A rank of training scripts on CPUs: several scripts, one after the other.

``python -m tests.torch_scripts FOLDER RANK`` runs those scripts of ``cases.json`` in a
folder that have such a rank, over gloo, each as ``torchrun`` would. An import of
PyTorch takes longer than most of them.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import runpy
import subprocess
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def run_rank(folder: Path, rank: int) -> None:
    """Run all scripts as one rank of several; a failure goes to a file."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    start = dist.init_process_group
    os.environ["LOCAL_RANK"] = str(rank)
    for number, case in enumerate(json.loads((folder / "cases.json").read_text())):
        if rank >= case["world"]:
            continue
        script = Path(case["folder"]) / "train.py"
        dist.init_process_group = functools.partial(
            start,
            store=dist.FileStore(str(folder / f"store-{number}"), case["world"]),
            rank=rank,
            world_size=case["world"],
            timeout=timedelta(seconds=120),
        )
        sys.argv = [str(script), "--backend", "gloo", *case["options"]]
        sys.argv += ["--json", str(script.with_name("out.json"))]
        said = io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                runpy.run_path(str(script), run_name="__main__")
        except (Exception, SystemExit):
            script.with_name(f"error-{rank}").write_text(
                f"{traceback.format_exc()}{said.getvalue()}"
            )
            if dist.is_initialized():
                dist.destroy_process_group()


def run_scripts(folder: Path, cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run scripts, and return what each writes; ``error`` of those that fail.

    A case has the ``folder`` of its script, the ranks of its ``world``, and
    ``options``.
    """
    (folder / "cases.json").write_text(json.dumps(cases))
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-W", "ignore", "-m", "tests.torch_scripts"]
    size = max(case["world"] for case in cases)
    ranks = [
        subprocess.Popen(
            [*program, str(folder), str(rank)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        for process in ranks:
            _, said = process.communicate(timeout=60 + 60 * len(cases))
            assert process.returncode == 0, said[-3000:]
    finally:
        for process in ranks:
            process.kill()
    return [_result_of(Path(case["folder"])) for case in cases]


def _result_of(folder: Path) -> dict[str, Any]:
    """Return what a script wrote, or the end of what its first failure says."""
    errors = sorted(folder.glob("error-*"))
    if errors:
        return {"error": errors[0].read_text()[-1500:]}
    result: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return result


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), int(sys.argv[2]))
