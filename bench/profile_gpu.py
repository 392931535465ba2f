"""Measured layers against the analytic cost model, on the device at hand.

Times every layer of some models with PyTorch, writes one profile per model
to ``bench/results/profile-DEVICE-MODEL.json`` and one table to
``bench/results/profile-DEVICE.txt``: what was measured, and what the analytic
model of the named machine says.

    python bench/profile_gpu.py --machine h100 [--models llama2-7b,…]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from nest.hardware import Machine, machine  # noqa: E402
from nest.models.choices import Degrees  # noqa: E402
from nest.models.operators.timing import layer_cost  # noqa: E402
from nest.models.zoo import architecture  # noqa: E402
from nest.profiles.format import Entry, write_profile  # noqa: E402
from nest.profiles.torch_profiler import (  # noqa: E402
    LayerShape,
    Timing,
    count_layer,
    layer_shapes,
    profile_layers,
    split_layer,
)

RESULTS = ROOT / "bench" / "results"
MODELS = "gpt3-1.3b,llama2-7b,llama3-8b"
HEADER = (
    f"{'model':12} {'layer':22} {'fwd_ms':>9} {'model':>9} {'ratio':>6} "
    f"{'bwd_ms':>9} {'model':>9} {'ratio':>6} {'kept_MiB':>9} {'model':>9}"
)


def row(model: str, entry: Entry, layer: LayerShape, site: Machine) -> str:
    """Return one line: measured, analytic, measured over analytic."""
    split = split_layer(
        layer,
        Degrees(tp=entry.tp, ep=entry.ep, samples=entry.samples),
        entry.sequence_length,
    )
    cost = layer_cost([(count_layer(layer, split), 1)], split, site)
    activations = next(a for a in cost.activations if a.recompute == "none")
    cells = [f"{model:12} {entry.name:22}"]
    for measured, analytic in (
        (entry.forward_ns, cost.forward_ns),
        (entry.backward_ns, cost.backward_ns),
    ):
        cells.append(
            f"{measured / 1e6:9.3f} {analytic / 1e6:9.3f} {measured / analytic:6.2f}"
        )
    cells.append(
        f"{(entry.kept_bytes or 0) / 2**20:9.1f} {activations.kept_bytes / 2**20:9.1f}"
    )
    return " ".join(cells)


def main() -> None:
    """Profile the models and write profiles and table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tp", default="1,2,4,8")
    parser.add_argument("--samples", default="1,2,4")
    parser.add_argument("--sequence-length", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    site = machine(arguments.machine)
    name = site.device.name
    degrees = [
        Degrees(tp=int(tp), samples=int(samples))
        for tp in arguments.tp.split(",")
        for samples in arguments.samples.split(",")
    ]
    lines = [HEADER]
    for model in arguments.models.split(","):
        shape = architecture(model)
        length = min(arguments.sequence_length, shape.max_sequence)
        layers = layer_shapes(shape.towers, shape.head)
        profile = profile_layers(
            model,
            layers,
            degrees,
            length,
            Timing(
                device=arguments.device,
                warm_up=5,
                repeats=arguments.repeats,
                device_name=name if arguments.device == "cuda" else None,
            ),
            say=lambda text: print(text, file=sys.stderr),
        )
        write_profile(arguments.results / f"profile-{name}-{model}.json", profile)
        by_kind = {layer.kind: layer for layer in layers}
        lines += [
            row(model, entry, by_kind[entry.kind], site) for entry in profile.entries
        ]
        lines[0] = (
            f"{profile.device}, {profile.framework} "
            f"{profile.framework_version}, {profile.dtype}, median of "
            f"{profile.repeats}; model: analytic cost of {site.name}\n{HEADER}"
        )
    text = "\n".join(lines) + "\n"
    (arguments.results / f"profile-{name}.txt").write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main()
