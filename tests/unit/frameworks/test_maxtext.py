"""Configurations of MaxText that users have: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from nest.constraints.targets import for_target
from nest.errors import InvalidPlanError
from nest.frameworks import maxtext
from nest.frameworks.export import export
from nest.frameworks.importing import Freedom, Site, build
from nest.frameworks.launch import Settings, rank_map_of, usual_mesh
from nest.hardware import machine
from tests.exports import small_model, small_problem, uniform_plans
from tests.unit.frameworks.test_launch_scripts import blocks

FILE = """
base_config: "base.yml"
run_name: mine
model_name: llama3-8b
per_device_batch_size: 2
max_target_length: 8192
ici_tensor_parallelism: 4
"""


def read(text=FILE, world=16, said=(), **more):
    return maxtext.read_foreign(text, "run.yml", world, said, **more)


def test_a_named_model_and_defaults_are_read():
    launch, model, notes = read()
    assert model.name == "llama3-8b"
    # fsdp takes what is left, 2 samples of each device are 8 of a data rank.
    assert (launch.tp, launch.dp, launch.zero) == (4, 4, 3)
    assert (launch.global_batch, launch.samples, launch.recompute) == (32, 8, "full")
    assert notes == ("run.yml: ignored 1 key that nest does not read: run_name",)


def test_slices_are_replicas():
    """The axis across slices takes what is left where fsdp is stated."""
    launch, _, _ = read(f"{FILE}ici_fsdp_parallelism: 2\n")
    assert (launch.replicas, launch.dp, launch.tp) == (2, 2, 4)


def test_a_shape_and_the_command_line_are_read():
    text = FILE.replace("model_name: llama3-8b", "base_emb_dim: 1024")
    said = [("ici_pipeline_parallelism", "2"), ("num_layers_per_pipeline_stage", "8")]
    launch, model, _ = read(text, said=said)
    assert (model.towers[0].hidden, model.layers) == (1024, 16)
    # As many micro-batches as stages by default.
    assert (launch.stages, launch.micro_batches, launch.schedule) == (2, 2, "gpipe")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("fully_made_up: 7", "^run.yml:8: fully_made_up: expected a key that is known, "
         "got fully_made_up; remove it, or pass --ignore fully_made_up"),
        ("remat_polcy: full", "did you mean 'remat_policy'"),
        ("remat_policy: minimal", "run.yml:8: remat_policy: expected one of none,"),
        ("optimizer_memory_host_offload: true", "plans know no offloading"),
        ("opt_type: sgd", 'expected "adamw" or "adam_pax", got "sgd"; plans keep'),
        ("base_emb_dim: 64", "expected it or the name of a model, got both"),
        ("ici_fsdp_parallelism: 3", "whose product is the 16 devices"),
        ("ici_fsdp_parallelism: 0", "whose product is the 16 devices"),
        ("ici_pipeline_parallelism: 2", "num_layers_per_pipeline_stage: expected 32 "),
    ],
)  # fmt: skip
def test_what_plans_cannot_say_is_refused(more, message):
    with pytest.raises(InvalidPlanError, match=message):
        read(f"{FILE}{more}\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "^run.yml: expected keys with values, got something else"),
        ("model_name: wild", "expected a model that is known, or --model, got wild"),
    ],
)
def test_other_files_are_refused(text, message):
    with pytest.raises(InvalidPlanError, match=message):
        read(text)


def test_a_model_is_named_beside_the_file():
    text = FILE.replace("model_name: llama3-8b\n", "")
    assert read(text, model=small_model())[1].name == "small"
    said = [("made_up", "1")]
    assert read(said=said, ignore=["made_up"])[0] == read()[0]


@pytest.mark.parametrize("experts", [0, 4])
def test_exports_are_read_as_users_have_them(experts):
    problem = for_target(small_problem(experts), "maxtext")
    settings, done = Settings(model=small_model(experts)), 0
    site = Site([(machine("dgx-h100"), 16)])
    for plan in uniform_plans(problem, every=29):
        plan = replace(plan, distributed_optimizer=False)
        try:
            files = export(problem, plan, "maxtext", settings)
        except InvalidPlanError:
            continue
        launch, model, notes = read(files["config.yml"])
        outside = launch.zero < 2 and launch.stages > 1
        devices = None
        if not outside:
            devices = rank_map_of(launch, 16 // launch.replicas, usual_mesh(launch))
        elif plan.stages[0].strategy.dp > 1:
            continue  # MaxText has other ranks for the replicas of a weight
        made = build(
            launch, model, site, None, Freedom(), devices, outside, target="maxtext"
        )
        assert blocks(made.problem, made.plan) == blocks(problem, plan)
        assert not notes
        done += 1
    assert done > 3


def test_defaults_are_those_of_base_yml():
    """Where the package's own file is there, which is not part of this project."""
    path = Path(maxtext.__file__).parents[2] / ".maxtext" / "base.yml"
    if not path.is_file():
        pytest.skip("no base.yml of MaxText in .maxtext")
    base = yaml.safe_load(path.read_text())
    assert base.keys() - maxtext.TABLE.classed == set()
    assert {name: base[name] for name in maxtext._BASE} == maxtext._BASE
