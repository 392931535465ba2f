"""A rank of a pipeline on CPUs: orders of passes, run by PyTorch.

``python -m tests.torch_pipeline FOLDER RANK SIZE`` runs every schedule of
``cases.json`` in a folder with PyTorch's pipeline runtime over gloo, and
writes how far the gradients of its stages are from those of one process, and
which passes ran, in the order they did.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

#: Features of every layer, and samples of a micro-batch.
WIDTH, SAMPLES = 6, 2


def run_rank(folder: Path, rank: int, size: int) -> None:
    """Run all cases as one rank of several."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    store = dist.FileStore(str(folder / "store"), size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    cases = json.loads((folder / "cases.json").read_text())
    results = [_run_case(torch, folder, rank, case) for case in cases]
    (folder / f"rank-{rank}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()


def _run_case(
    torch: Any, folder: Path, rank: int, case: dict[str, Any]
) -> dict[str, Any]:
    """Run a schedule, and compare with one process.

    ``layers`` are those of every stage, ``ranks`` where stages are.
    """
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    count, layers, ranks = case["count"], case["layers"], case["ranks"]
    torch.manual_seed(1)
    whole = [_stage(torch, number) for number in layers]
    samples = torch.randn(count * SAMPLES, WIDTH, dtype=torch.float64)
    targets = torch.randn(count * SAMPLES, WIDTH, dtype=torch.float64)
    mine = [index for index, owner in enumerate(ranks) if owner == rank]
    parts = {index: copy.deepcopy(whole[index]) for index in mine}
    stages = [
        PipelineStage(parts[index], index, len(layers), torch.device("cpu"))
        for index in mine
    ]
    loss = torch.nn.functional.mse_loss
    schedule = _PipelineScheduleRuntime(stages, count, loss_fn=loss)
    schedule._load_csv(str(folder / case["file"]), format="compute_only")
    schedule.step(
        *([samples] if 0 in mine else []),
        **({"target": targets} if len(layers) - 1 in mine else {}),
        return_outputs=False,
    )
    output = samples
    for part in whole:
        output = part(output)
    loss(output, targets).backward()
    worst = 0.0
    for index in mine:
        for ours, theirs in zip(
            parts[index].parameters(), whole[index].parameters(), strict=True
        ):
            difference = (ours.grad - theirs.grad).norm() / theirs.grad.norm()
            worst = max(worst, float(difference))
    passes = [str(x) for x in schedule.pipeline_order_with_comms[rank]]
    return {"error": worst, "stages": mine, "passes": passes}


def _stage(torch: Any, num_layers: int) -> Any:
    """Return a stage of so many layers."""
    parts = []
    for _ in range(num_layers):
        parts += [torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64), torch.nn.Tanh()]
    return torch.nn.Sequential(*parts)


if __name__ == "__main__":
    run_rank(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
