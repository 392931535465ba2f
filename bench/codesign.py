"""How far from the best architecture other searches of Phaze's list end.

Every model on every cluster is a specification with Phaze's 29,360
architectures, as examples/codesign/phaze.yaml has them but for links of 50
GB/s, those of TPU v4, and 4 samples of a step per device: with Phaze's own 4
GiB/s the architecture hardly matters. What Phaze's order and stop rule look
at, samples of as many points as the search had to place, and the point like
TPU v4 are solved exactly and compared with the best one. A regret is
``[least, most]``: against the best point that is known, and against what no
point has more than; they are equal where the best one is proven. Step times
are those of the analytic accelerator model of nest, not Phaze's.

    python bench/codesign.py [--model NAME …] [--devices N …] [--jobs N]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bench.result_files import commit, fill, read_rows, write_rows
from nest.codesign.answers import answer
from nest.codesign.records import Answers, Baseline, Wanted
from nest.codesign.spec import Spec, read_spec

ROOT = Path(__file__).parents[1]
SPEC = ROOT / "examples" / "codesign" / "phaze.yaml"
MODELS = (
    "bert-large",
    "gpt2",
    "gpt3-350m",
    "gpt3-1.3b",
    "vit-huge",
    "llama2-7b",
)
DEVICES = (8, 64)
NAME = "codesign"
SAMPLES = (1, 2, 3, 4, 5)

#: Of links and of the network: what TPU v4 has per link and direction.
RATE = "50 GB/s"
SAMPLES_PER_DEVICE = 4


def spec_of(model: str, devices: int) -> Spec:
    """Return Phaze's question about a model on a cluster."""
    document = yaml.safe_load(SPEC.read_text())
    document["space"] |= {"link_bandwidth": RATE, "network_bandwidth": RATE}
    document["job"] = {"global_batch": SAMPLES_PER_DEVICE * devices}
    document |= {"models": [model], "devices": devices}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / SPEC.name
        path.write_text(yaml.safe_dump(document))
        return read_spec(path)


def study(
    model: str,
    devices: int,
    jobs: int,
    folder: str | None,
) -> dict[str, Any]:
    """Return what is found of a model on a cluster."""
    found = answer(
        spec_of(model, devices),
        Wanted(phaze_order=True, samples=SAMPLES),
        folder=folder,
        resume=True,
        jobs=jobs,
    )
    return {
        "model": model,
        "devices": devices,
        "commit": commit(),
        "placements": found.solved,
        **figures(found),
    }


def figures(found: Answers) -> dict[str, Any]:
    """Return the figures of one specification."""
    (best,) = found.best
    assert best.found is not None
    by_name = {baseline.name: baseline for baseline in found.baselines}
    return {
        "best": best.found.point.index,
        "step_ps": best.found.on[0].step_ps,
        "relative": best.found.relative,
        "most_relative": best.most_relative,
        "counts": best.counts._asdict(),
        "regret_tpu_v4_like": interval(
            by_name[found.spec.objective.base_name]
        ),
        "regret_phaze": interval(by_name["phaze-order"]),
        "looked_at_by_phaze": len(by_name["phaze-order"].evaluated),
        "sample_size": len(by_name[f"sample {SAMPLES[0]}"].evaluated),
        "regret_samples": [
            interval(by_name[f"sample {seed}"]) for seed in SAMPLES
        ],
    }


def interval(baseline: Baseline) -> list[float | None]:
    """Return the least and the most regret."""
    return [baseline.regret, baseline.most_regret]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table of docs/codesign.md."""
    lines = [
        "| model | devices | best, × TPU v4-like | Phaze's order: points, "
        "regret | samples: points, regret | TPU v4-like: regret |",
        "|---|---|---|---|---|---|",
    ]
    for each in rows:
        samples = each["regret_samples"]
        ends = [
            None if None in part else pick(part)
            for pick, part in (
                (min, [least for least, _ in samples]),
                (max, [most for _, most in samples]),
            )
        ]
        counts = each["counts"]
        proven = "" if not counts["open"] else ", not proven"
        lines.append(
            f"| {each['model']} | {each['devices']} | "
            f"{each['relative']:.3f}{proven} | "
            f"{each['looked_at_by_phaze']}, "
            f"{regret_text(each['regret_phaze'])} | "
            f"{each['sample_size']}, {regret_text(ends)} | "
            f"{regret_text(each['regret_tpu_v4_like'])} |"
        )
    return "\n".join(lines)


def regret_text(ends: Sequence[float | None]) -> str:
    """Return a regret in per cent, or from where to where it is."""
    least, most = ("–" if x is None else f"{100 * x:.2f}" for x in ends)
    return f"{least} %" if least == most else f"{least} to {most} %"


def main() -> None:
    """Run what is asked for, and write it over what was known of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append")
    parser.add_argument("--devices", action="append", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder")
    asked = parser.parse_args()
    rows = {(row["devices"], row["model"]): row for row in read_rows(NAME)}
    for devices in asked.devices or DEVICES:
        for model in asked.model or MODELS:
            row = study(model, devices, asked.jobs, asked.folder)
            print(row, flush=True)
            rows[devices, model] = row
            known = [rows[key] for key in sorted(rows, key=_place)]
            write_rows(NAME, known)
            fill(ROOT / "docs" / "codesign.md", "regret", markdown(known))


def _place(key: tuple[int, str]) -> tuple[int, int]:
    """Return where a row stands: by devices, then by models as listed."""
    devices, model = key
    return devices, (*MODELS, model).index(model)


if __name__ == "__main__":
    main()
