"""A tiny decoder that trains as an exported plan cuts it."""

from __future__ import annotations

import multiprocessing
from functools import cache

import pytest

from nest.cost.score import score
from nest.frameworks.export import export
from nest.frameworks.launch import Settings
from nest.hardware import machine
from nest.ir import Plan, Problem, Strategy
from nest.models.architectures import Architecture
from nest.models.blocks import Attention, Block, Head, Mlp, RepeatedBlock, Tower
from nest.models.choices import Request, choose
from nest.models.graphs import build_problem
from tests.exports import small_plan
from tests.pipelines import Trained, read_job, train_alone, train_in_parts

#: Blocks of every part; of the second, every block of devices has two parts,
#: the last of which is the head alone.
CUTS = {"1f1b": (3, 2, 2, 1), "interleaved": (2, 1, 1, 1, 1, 1, 1, 0)}
#: Relative to losses of about 4.
TOLERANCE = 1e-4


@cache
def tiny_model() -> Architecture:
    block = Block(
        name="decoder",
        hidden=32,
        attention=Attention(heads=4, kv_heads=2, head_size=8),
        mlp=Mlp(hidden=64, gated=True),
    )
    return Architecture(
        name="tiny",
        towers=(Tower(runs=(RepeatedBlock(block=block, count=8),), vocabulary=64),),
        head=Head(outputs=64),
        max_sequence=16,
    )


@cache
def tiny_problem() -> Problem:
    model, site = tiny_model(), machine("dgx-h100")
    request = Request(
        global_batch=16,
        sequence_length=16,
        micro_batches=(2,),
        tp=(1,),
        layers_per_node=1,
        virtual_stages=(1, 2),
        target="torchtitan",
    )
    return build_problem(model, site, 8, choose(model, site, 8, request))


def plan_of(name: str) -> Plan:
    counts = CUTS[name]
    return small_plan(
        tiny_problem(),
        Strategy(dp=2, zero=2),
        counts,
        micro_batch=2,
        virtual_stages=len(counts) // 4,
    )


def job_of(name: str):
    files = export(
        tiny_problem(),
        plan_of(name),
        "torchtitan",
        Settings(model=tiny_model(), flavor="llama3/tiny"),
    )
    return read_job(files["job.toml"])


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> dict[str, Trained]:
    """Both jobs, trained one after the other by the same processes."""
    # Before the fixture of each test would say so.
    pytest.importorskip("torch", reason="PyTorch is not installed")
    folder = tmp_path_factory.mktemp("training")
    found = train_in_parts(tiny_model(), [job_of(x) for x in CUTS], folder)
    return dict(zip(CUTS, found, strict=True))


@pytest.mark.parametrize("name", CUTS)
def test_the_parts_train_as_the_whole(torch, trained, name):
    """Ten steps of Adam on four processes, the parts read from the file."""
    job = job_of(name)
    assert [
        sum(module.startswith("layers.") for module in part) for part in job.parts
    ] == [*CUTS[name]]
    alone = train_alone(tiny_model(), job)
    assert trained[name].losses == pytest.approx(alone, rel=TOLERANCE)
    assert len(alone) == 10
    assert alone[-1] < 0.5 * alone[0]


@pytest.mark.parametrize("name", CUTS)
def test_as_many_passes_are_in_flight_as_is_charged(torch, trained, name):
    blocks = score(tiny_problem(), plan_of(name)).blocks
    assert trained[name].inflight == [x.inflight for x in blocks]


def test_layers_in_another_order_train_otherwise(torch):
    """The comparison can fail."""
    job = job_of("1f1b")
    alone = train_alone(tiny_model(), job)
    other = train_alone(tiny_model(), job, order=[*"10234567"])
    assert other != pytest.approx(alone, rel=TOLERANCE)


def test_a_failing_process_ends_all(torch, tmp_path):
    """Its traceback is told, and nobody is left."""
    job = job_of("1f1b")._replace(stages=2, parts=(("layers.9",),) * 2)
    with pytest.raises(AssertionError, match="in part_of"):
        train_in_parts(tiny_model(), [job], tmp_path)
    assert not multiprocessing.active_children()
