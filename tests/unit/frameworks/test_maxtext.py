"""Configurations of MaxText that users have: what is read, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from nest.constraints.targets import for_target
from nest.errors import InvalidOptionError, InvalidPlanError
from nest.frameworks import maxtext
from nest.frameworks.export import export
from nest.frameworks.faults import FaultsError
from nest.frameworks.importing import Freedom, Site, build
from nest.frameworks.launch import Settings, rank_map_of, usual_mesh
from nest.frameworks.maxtext_script import is_script, read_configuration
from nest.hardware import machine
from nest.ir import Strategy
from nest.models.choices import Request, choose
from nest.models.graphs import build_problem
from nest.models.hf import from_hf
from nest.requests.launch_files import MaxTextRequest
from tests.exports import small_model, small_plan, small_problem, uniform_plans
from tests.unit.frameworks.test_launch_scripts import blocks
from tests.unit.frameworks.test_megatron_details import LLAMA, LLAMA3

FILE = """
base_config: "base.yml"
run_name: mine
model_name: llama3-8b
per_device_batch_size: 2
max_target_length: 8192
ici_tensor_parallelism: 4
"""


def read(text=FILE, world=16, said=(), **more):
    found = maxtext.configuration_of(text, "run.yml")
    return maxtext.read_foreign(found, "run.yml", world, said, **more)


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
        ("remat_policy: minimal", "^run.yml:8: remat_policy: expected none or full, "
         "which plans have, got 'minimal'; the closest is none, as it computes no "
         "product with weights again: --say remat_policy=none$"),
        ("remat_policy: custom", "the closest is full, as it computes large products"),
        ("remat_policy: minimal_offloaded", "the closest is full, .* no offloading"),
        ("scale: 3", "scale: expected 1, got 3; name the model with model_name or"),
        ("remat_policy: minimul", "run.yml:8: remat_policy: expected one of none,"),
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


def of_config(**more):
    """Return the keys of an export of a small configuration."""
    config = {**LLAMA, "num_hidden_layers": 8, **more}
    model = replace(from_hf(config), name="small")
    site = machine("dgx-h100")
    request = Request(global_batch=64, sequence_length=64, micro_batches=(8,))
    problem = build_problem(model, site, 16, choose(model, site, 16, request))
    problem = for_target(problem, "maxtext")
    plan = small_plan(problem, Strategy(dp=8), replicas=2)
    text = export(problem, plan, "maxtext", Settings(model))["config.yml"]
    return yaml.safe_load(text)


@pytest.mark.parametrize(
    ("more", "keys"),
    [
        ({}, {"normalization_layer_epsilon": 1e-5, "rope_max_timescale": 10_000}),
        ({"rms_norm_eps": 1e-6}, {"normalization_layer_epsilon": 1e-6}),
        ({"rope_theta": 1e6}, {"rope_max_timescale": 1_000_000}),
        ({"rope_scaling": {**LLAMA3, "factor": 8.0}}, {"rope_type": "llama3.1"}),
        (
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            {"rope_linear_scaling_factor": 4.0},
        ),
        ({"model_type": "ernie4_5"}, {"rope_max_timescale": 10_000}),
    ],
)
def test_what_shapes_do_not_say_is_written(more, keys):
    """The export reads it back, so it is what the configuration says."""
    written = of_config(**more)
    assert {name: written[name] for name in keys} == keys
    assert "rope_type" in keys or "rope_type" not in written


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rope_scaling": LLAMA3}, "rotary positions: expected those of Llama 2 or 3"),
        ({"hidden_act": "gelu"}, "activation: expected silu, got gelu in small; this"),
        (
            {"model_type": "granite", "residual_multiplier": 0.22},
            "residual_multiplier: expected a plain transformer",
        ),
    ],
)
def test_what_keys_cannot_say_is_refused(more, message):
    with pytest.raises(InvalidPlanError, match=f"^model: {message}"):
        of_config(**more)


def test_logits_of_tied_embeddings_are_not_divided():
    """MaxText divides them by the root of the width unless it is told otherwise."""
    written = of_config(tie_word_embeddings=True)
    assert written["logits_via_embedding"]
    assert written["normalize_embedding_logits"] is False
    assert "normalize_embedding_logits" not in of_config()
    written = {**written, "logits_via_embedding": True}
    del written["normalize_embedding_logits"]
    with pytest.raises(
        InvalidPlanError,
        match="normalize_embedding_logits: expected false with tied embeddings, got "
        "true; models of nest do not divide",
    ):
        read(yaml.safe_dump(written), 16)


def test_numbers_are_read_as_omegaconf_does():
    """In YAML 1.2 1e-6 and 8_192 are texts."""
    shape = FILE.replace("model_name: llama3-8b", "normalization_layer_epsilon: 1e-6")
    launch, model, _ = read(shape.replace(": 8192", ": 8_192"))
    assert launch.sequence_length == 8192
    assert model.details.norm_epsilon == 1e-6
    scaled = f"{shape}rope_type: llama3.1\n"
    assert read(scaled)[1].details.rotary.factor == 8
    unscaled = read(f"{scaled}rope_use_scale: false\n")[1]
    assert unscaled.details.rotary == model.details.rotary


SCRIPT = """
export EXECUTABLE=train.py
RUN="llama-$(date)"
SIZE=${SIZE:-2}
echo "python MaxText/train.py configs/base.yml model_name=other"
# 2 hosts
python3 MaxText/$EXECUTABLE MaxText/configs/base.yml run_name=$RUN \\
    model_name=llama3-8b per_device_batch_size=$SIZE max_target_length=8192 \\
    enable_checkpointing: False ici_tensor_parallelism=4 steps=$STEPS
"""


def read_script(text=SCRIPT, said=(), variables=None, files=None):
    found = read_configuration(text, "run.sh", variables or {}, (files or {}).get)
    return maxtext.read_foreign(found, "run.sh", 16, said)


@pytest.mark.parametrize(
    "program",
    [
        "python3 MaxText/$EXECUTABLE",
        "python -m MaxText.train",
        "python -m maxtext.trainers.pre_train.train",
        "srun python3 -u src/MaxText/train_compile.py",
    ],
)
def test_scripts_are_read_as_their_configurations(program):
    text = SCRIPT.replace("python3 MaxText/$EXECUTABLE", program)
    launch, model, notes = read_script(text)
    assert (launch, model) == read()[:2]
    assert notes[0].endswith("not read: run_name, steps")
    inside = f'xpk workload create --command "{text.splitlines()[-3][:-1]}'
    inside = text.replace(text.splitlines()[-3], inside.replace("$RUN", "x") + "\\")
    inside = inside.replace("steps=$STEPS", 'steps=3"')
    assert read_script(inside)[0] == launch


def test_scripts_name_a_configuration():
    text = SCRIPT.replace("configs/base.yml", "configs/mine.yml")
    text = text.replace("per_device_batch_size=$SIZE", "")
    name = "MaxText/configs/mine.yml"
    launch = read_script(text, files={name: "per_device_batch_size: 4\nsteps: 3"})[0]
    assert launch.global_batch == 64
    with pytest.raises(InvalidPlanError, match=f"run.sh:7: {name}: expected the conf"):
        read_script(text)


def test_values_of_scripts_that_are_not_stated_are_asked_for():
    assert read_script(variables={"SIZE": "4"})[0].global_batch == 64
    text = SCRIPT.replace("=4 steps", "=$TP steps").replace("=8192", "=$(length)")
    with pytest.raises(FaultsError) as raised:
        read_script(text)
    assert str(raised.value) == (
        "run.sh:8: max_target_length: expected a value that the script states, got the "
        "output of length; say it with --say max_target_length=VALUE\n"
        "run.sh:9: ici_tensor_parallelism: expected a value that the script states, "
        "got $TP, which the script does not set; say it with --set TP=VALUE"
    )
    said = [("max_target_length", "8192"), ("ici_tensor_parallelism", "4")]
    assert read_script(text, said)[0] == read()[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("train.py", "decode.py", "^run.sh: expected one command such as python -m "),
        (
            "# 2 hosts",
            "python -m MaxText.train base.yml",
            "got those of lines 6, 7; leave one",
        ),
        ("model_name=llama3-8b", "made_up=7", "run.sh:8: made_up: expected a key"),
        ("=8192", "=8192:1:[", "run.sh:8: max_target_length: "),
    ],
)
def test_other_scripts_are_refused(old, new, message):
    with pytest.raises(InvalidPlanError, match=message):
        read_script(SCRIPT.replace(old, new))


def test_configurations_are_no_scripts():
    assert is_script(SCRIPT, "run.sh")
    assert not is_script(SCRIPT, "run.yml")


def test_requests_find_the_configuration_beside_the_script(tmp_path):
    text = SCRIPT.replace("configs/base.yml", "configs/mine.yml")
    path = tmp_path / "run.sh"
    path.write_text(text)
    request = MaxTextRequest(path=str(path), cluster="h100x16")
    with pytest.raises(InvalidPlanError, match="copy it there from MaxText"):
        request.read(16)
    (tmp_path / "mine.yml").write_text("remat_policy: none")
    assert request.read(16).launch.recompute == "none"
    path = tmp_path / "run.yml"
    path.write_text(FILE)
    request = MaxTextRequest(path=str(path), cluster="h100x16", variables=["TP=4"])
    with pytest.raises(InvalidOptionError, match="--set TP: expected a variable that"):
        request.read(16)
