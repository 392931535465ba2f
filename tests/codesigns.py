"""Answers about a space of accelerators, made by hand."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

from msgspec.structs import replace

from nest.accelerators.answers import setting_of
from nest.accelerators.document import Document, answers_document, base_point
from nest.accelerators.points import Point, unlisted
from nest.accelerators.records import (
    Answers,
    Baseline,
    Best,
    Contribution,
    Counts,
    DesignResult,
    ModelResult,
    Neighbor,
)
from nest.accelerators.spec import Spec, read_spec
from nest.accelerators.tasks import workload_of
from nest.ir.plan import Plan, Stage, Strategy

#: A space of 16 points, of which the limits keep 13.
SPEC = """\
schema: nest-codesign/1
space:
  tensor_cores: [2, 4]
  rows: [32, 64]
  columns: 64
  vector_cores: [1, 2]
  sram: [2 MiB, 4 MiB]
  hbm: 16 GiB
  hbm_bandwidth: 600 GB/s
  frequency: 1 GHz
  link_bandwidth: 50 GB/s
  network_bandwidth: 10 GB/s
  devices_per_node: 2
limits:
  area: {most: 56 mm2}
models: [gpt2, bert-large]
devices: 4
job:
  global_batch: 16
  sequence_length: 128
  micro_batches: [1, 2]
objective:
  base: {name: ours, tensor_cores: 2, rows: 32, columns: 64, vector_cores: 1,
         sram: 2 MiB}
"""


@cache
def spec_of(text: str = SPEC) -> Spec:
    """Return what a specification says."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "spec.yaml"
        path.write_text(text)
        return read_spec(path)


def on(model: str, step_ps: int | None) -> ModelResult:
    """Return a model with a plan of one stage per node."""
    base = workload_of(setting_of(spec_of(), model, 2)).base
    ids = tuple(layer.id for layer in base.graph.layers)
    plan = Plan(
        replicas=1,
        micro_batch=2,
        stages=tuple(
            Stage(layers=layers, devices=2, strategy=Strategy(dp=2))
            for layers in (ids[:5], ids[5:])
        ),
    )
    return ModelResult(model, step_ps, None if step_ps is None else plan)


def found(point: Point, relative: float, *steps_ps: int | None) -> DesignResult:
    """Return a point with the step times of both models, or of some."""
    placed = tuple(map(on, ("gpt2", "bert-large"), steps_ps))
    return DesignResult(point, placed, relative)


def answers(**changes: object) -> Answers:
    """Return answers with everything that there can be."""
    spec = spec_of()
    points = spec.space.points
    best = points[-1]
    larger = replace(best.architecture, sram_bytes=2**23)
    outside = unlisted(larger, spec.process, spec.prices)
    second = 10**12
    base = found(base_point(spec), 1.0, second, 2 * second)
    both = found(best, 2**0.5 * 2, second // 2, second // 2)
    alone = DesignResult(best, both.on[:1], 2.0)
    steps = {
        (a, s, p): second - 10**11 * (2 * a + s + p)
        for a in (False, True)
        for s in (False, True)
        for p in (False, True)
    }
    made = Answers(
        spec=spec,
        base=base,
        best=(
            Best(("gpt2",), alone, Counts(6, 3, 2, 1, 1), 2.0),
            Best(("bert-large",), None, Counts(0, 13, 0, 0, 0), 0.0),
            Best(("gpt2", "bert-large"), both, Counts(4, 4, 3, 1, 1), both.relative),
        ),
        frontier=(found(points[0], 1.0, second, 2 * second), both),
        sensitivity=(
            Neighbor(
                "sram_bytes", 2**23, False, found(outside, 3.0, 4 * 10**11, 5 * 10**11)
            ),
            Neighbor(
                "tensor_cores", 2, True, found(points[3], 1.5, 7 * 10**11, 12 * 10**11)
            ),
        ),
        contributions=(
            Contribution("gpt2", steps, (1.5, 1.1, 1.25)),
            Contribution("bert-large", dict.fromkeys(steps), None),
        ),
        baselines=(
            Baseline("tpu-v4-like", (0,), base, 1.8284, 1.8284),
            Baseline("phaze-order", tuple(range(8)), both, 0.0, 0.0),
            Baseline("sample 0", (3, 4), None, None, None),
        ),
        solved=23,
        stored=4,
    )
    return made._replace(**changes)  # type: ignore[arg-type]


def stopped() -> Answers:
    """Return answers of a search that ran out of time."""
    made = answers()
    first, none, both = made.best
    return answers(
        best=(
            first._replace(counts=Counts(6, 3, 1, 0, 1, 2), most_relative=2.5),
            none._replace(counts=Counts(0, 0, 0, 0, 0, 13), most_relative=None),
            both._replace(counts=Counts(4, 4, 3, 0, 1, 1), most_relative=3.0),
        ),
        frontier=(),
        sensitivity=(),
        contributions=(),
        baselines=(
            made.baselines[0]._replace(most_regret=2.0),
            made.baselines[1]._replace(most_regret=None),
        ),
        out_of_time=True,
    )


@cache
def document() -> Document:
    """Return the document of all that."""
    return answers_document(answers())
