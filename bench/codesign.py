"""How far from the best architecture other searches of Phaze's list end.

Every model on every cluster is a specification with Phaze's 29,360
architectures. The best one is proven; what Phaze's order and stop rule look
at, samples of as many points as the proof had to place, and the point like
TPU v4 are solved exactly and compared with it. Step times are those of the
analytic accelerator model of nest, not Phaze's.

    python bench/codesign.py [--model NAME …] [--devices N …] [--jobs N]
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from bench.result_files import write_rows
from nest.codesign.answers import Answers, Wanted, answer
from nest.codesign.spec import read_spec

ROOT = Path(__file__).parents[1]
SPEC = ROOT / "examples" / "codesign" / "phaze.yaml"
MODELS = (
    "bert-large",
    "gpt2",
    "gpt3-350m",
    "gpt3-1.3b",
    "gpt2-medium",
    "vit-huge",
)
DEVICES = (8, 64)
SAMPLES = (1, 2, 3, 4, 5)


def study(
    model: str, devices: int, jobs: int, folder: str | None
) -> dict[str, Any]:
    """Return what is found of a model on a cluster."""
    spec = read_spec(SPEC)
    spec = replace(
        spec,
        models=(model,),
        devices=devices,
        job=replace(spec.job, global_batch=4 * devices),
    )
    began = time.perf_counter()
    found = answer(
        spec,
        Wanted(phaze_order=True, samples=SAMPLES),
        folder=folder,
        resume=True,
        jobs=jobs,
    )
    return {
        "model": model,
        "devices": devices,
        "wall_s": round(time.perf_counter() - began, 1),
        **row(found),
    }


def row(found: Answers) -> dict[str, Any]:
    """Return the figures of one specification."""
    (best,) = found.best
    assert best.found is not None
    regrets = {baseline.name: baseline.regret for baseline in found.baselines}
    samples = sorted(
        regret
        for name, regret in regrets.items()
        if name.startswith("sample") and regret is not None
    )
    looked = {x.name: len(x.evaluated) for x in found.baselines}
    return {
        "best": best.found.point.index,
        "step_ps": best.found.on[0].step_ps,
        "counts": best.counts._asdict(),
        "regret_tpu_v4_like": regrets[found.spec.objective.base_name],
        "regret_phaze": regrets["phaze-order"],
        "looked_at_by_phaze": looked["phaze-order"],
        "sample_size": looked[f"sample {SAMPLES[0]}"],
        "regret_samples": samples,
    }


def main() -> None:
    """Run what is asked for, and write what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append")
    parser.add_argument("--devices", action="append", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder")
    asked = parser.parse_args()
    rows = []
    for devices in asked.devices or DEVICES:
        for model in asked.model or MODELS:
            rows.append(study(model, devices, asked.jobs, asked.folder))
            print(rows[-1], flush=True)
    write_rows("codesign", rows)


if __name__ == "__main__":
    main()
