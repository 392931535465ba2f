"""How far from the best architecture other searches of Phaze's list end.

Every model on every cluster is a specification with Phaze's 29,360 architectures, as
examples/codesign/phaze.yaml has them but for links of 50 GB/s, those of TPU v4, and 4
samples of a step per device: with Phaze's own 4 GiB/s the architecture hardly matters.
What Phaze's order and stop rule look at, and samples of as many points as the search
had to place, are solved exactly and compared with the best one. A regret is ``[least,
most]``: against the best point that is known, and against what no point has more than;
they are equal where the best one is proven. Step times are those of the analytic
accelerator model of nest, not Phaze's.

Then the same question is asked within limits of TDP per area, and with fused attention
(:data:`LIMITED`). ``--limits-only`` asks no more than that: neither the best point of
the whole list nor the regrets against it depend on the base or on limits.

    python bench/codesign.py [--model NAME …] [--devices N …] [--jobs N]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from bench.result_files import commit, fill, page_path, read_rows, table, write_rows
from nest.accelerators.answers import answer
from nest.accelerators.points import Point
from nest.accelerators.records import Answers, Baseline, ExtraAnalyses
from nest.accelerators.spec import Spec, read_spec

ROOT = Path(__file__).parents[1]
SPEC = ROOT / "examples" / "codesign" / "phaze.yaml"
MODELS = (*("bert-large", "gpt2", "gpt3-350m", "gpt3-1.3b", "vit-huge"), "llama2-7b")
DEVICES = (8, 64)
NAME = "codesign"
SAMPLES = (1, 2, 3, 4, 5)

#: Of links and of the network: what TPU v4 has per link and direction.
RATE = "50 GB/s"
SAMPLES_PER_DEVICE = 4

#: Largest TDP per area in W/mm², and attention. 2.9 is what the base has in these
#: constants, 1.1 somewhat more than the 0.86 of H100, the most of the published chips.
LIMITED = (("2.9", "unfused"), ("1.1", "unfused"), ("2.9", "fused"))


def spec_of(model: str, devices: int, density: str | None = None) -> Spec:
    """Return Phaze's question about a model on a cluster.

    Parameters
    ----------
    model, devices
        What is trained on how many devices.
    density
        Largest TDP per area in W/mm²; ``None`` keeps all of Phaze's list.
    """
    document = yaml.safe_load(SPEC.read_text())
    document.pop("limits")
    if density is not None:
        bound = {"most": f"{density} W/mm2"}
        document["limits"] = {"power_density": bound}
    document["space"] |= {"link_bandwidth": RATE, "network_bandwidth": RATE}
    document["job"] = {"global_batch": SAMPLES_PER_DEVICE * devices}
    document |= {"models": [model], "devices": devices}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / SPEC.name
        path.write_text(yaml.safe_dump(document))
        return read_spec(path)


def study(model: str, devices: int, jobs: int, folder: str | None) -> dict[str, Any]:
    """Return what is found of a model on a cluster."""
    answers = answer(
        spec_of(model, devices),
        ExtraAnalyses(phaze_order=True, samples=SAMPLES),
        folder=folder,
        resume=True,
        jobs=jobs,
    )
    return {
        "model": model,
        "devices": devices,
        "commit": commit(),
        "placements": answers.solved,
        **figures(answers),
    }


def limited(model: str, devices: int, jobs: int, folder: str | None) -> dict[str, Any]:
    """Return the best point within each limit."""
    rows = []
    for density, attention in LIMITED:
        spec = replace(spec_of(model, devices, density), attention=attention)
        answers = answer(spec, folder=folder, resume=True, jobs=jobs)
        (best,) = answers.best
        assert best.found is not None
        assert best.proven
        rows.append(
            {
                "density": density,
                "attention": attention,
                "points": len(spec.space.points),
                "step_ps": best.found.on[0].step_ps,
                "base_step_ps": answers.base.on[0].step_ps,
                **point_figures(best.found.point),
            }
        )
    return {"limits_commit": commit(), "limits": rows}


def point_figures(point: Point) -> dict[str, Any]:
    """Return what a point is, and its TDP per area."""
    a = point.architecture
    return {
        "chip": f"{a.tensor_cores} × {a.rows}×{a.columns}, "
        f"{a.vector_cores} × {a.lanes}, {a.sram_bytes >> 20} MiB",
        "w_per_mm2": point.power_density_uw_per_mm2 / 1e6,
    }


def figures(answers: Answers) -> dict[str, Any]:
    """Return the figures of one specification."""
    (best,) = answers.best
    assert best.found is not None
    by_name = {baseline.name: baseline for baseline in answers.baselines}
    return {
        "best": best.found.point.index,
        "step_ps": best.found.on[0].step_ps,
        "counts": best.counts._asdict(),
        **point_figures(best.found.point),
        "regret_phaze": interval(by_name["phaze-order"]),
        "looked_at_by_phaze": len(by_name["phaze-order"].evaluated),
        "sample_size": len(by_name[f"sample {SAMPLES[0]}"].evaluated),
        "regret_samples": [interval(by_name[f"sample {seed}"]) for seed in SAMPLES],
    }


def interval(baseline: Baseline) -> list[float | None]:
    """Return the least and the most regret."""
    return [baseline.regret, baseline.most_regret]


def markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the first table of docs/results/codesign.md."""
    lines = []
    for each in fewest_devices(rows):
        samples = each["regret_samples"]
        ends = [
            None if None in part else pick(part)
            for pick, part in (
                (min, [least for least, _ in samples]),
                (max, [most for _, most in samples]),
            )
        ]
        proven = "" if not each["counts"]["open"] else ", not proven"
        relative = each["limits"][0]["base_step_ps"] / each["step_ps"]
        regret = regret_text(each["regret_phaze"])
        lines.append(
            (
                *(each["model"], f"{relative:.2f}{proven}"),
                f"{each['w_per_mm2']:.1f}",
                f"{each['looked_at_by_phaze']}, {regret}",
                f"{each['sample_size']}, {regret_text(ends)}",
            )
        )
    heads = (
        "model | best of the list, × base | its W/mm² | "
        "Phaze's order: points, regret | samples: points, regret"
    )
    return table(heads, lines, "l" * 5)


def fewest_devices(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows that the page shows; others differ little."""
    fewest = min(each["devices"] for each in rows)
    return [each for each in rows if each["devices"] == fewest]


def regret_text(ends: Sequence[float | None]) -> str:
    """Return a regret in per cent, or from where to where it is."""
    low, high = ("–" if x is None else f"{100 * x:.2f}" for x in ends)
    return f"{low} %" if low == high else f"{low} to {high} %"


def main() -> None:
    """Run what is asked for, and write it over what was known of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", action="append")
    parser.add_argument("--devices", action="append", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--folder")
    parser.add_argument("--limits-only", action="store_true")
    args = parser.parse_args()
    rows = {(row["devices"], row["model"]): row for row in read_rows(NAME)}
    page = page_path(NAME)
    for devices in args.devices or DEVICES:
        for model in args.model or MODELS:
            where = model, devices, args.jobs, args.folder
            row = rows[devices, model] if args.limits_only else study(*where)
            row |= limited(*where)
            print(row, flush=True)
            rows[devices, model] = row
            measured = [rows[key] for key in sorted(rows, key=_place)]
            write_rows(NAME, measured)
            fill(page, "regret", markdown(measured))


def _place(key: tuple[int, str]) -> tuple[int, int]:
    """Return where a row stands: by devices, then by models as listed."""
    devices, model = key
    return devices, (*MODELS, model).index(model)


if __name__ == "__main__":
    main()
