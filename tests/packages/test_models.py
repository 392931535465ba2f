"""The model that a launch trains is that of the configuration, to the weight.

Megatron's own parser reads the exported arguments of every family that they say, and
its own model is built of them; torchtitan's is that of the flavor.
"""

from __future__ import annotations

import importlib.util
import math
from typing import Any

import pytest
from msgspec.structs import replace

from nest.constraints.targets import for_target
from nest.frameworks import torchtitan_shapes
from nest.frameworks.export import export, write_folder
from nest.frameworks.launch import Settings
from nest.frameworks.megatron import array
from nest.frameworks.megatron_model import model_flags
from nest.frameworks.torchtitan import FLAVORS
from nest.hardware import machine
from nest.ir import Plan, Stage, Strategy
from nest.models.choices import Request, choose
from nest.models.graphs import build_problem
from nest.models.hf import from_hf
from nest.models.zoo import architecture
from tests.packages import parsers
from tests.unit.frameworks.test_megatron_details import LENGTH, LLAMA, LONG, expressible
from tests.unit.frameworks.test_torchtitan_shapes import BUILT

pytestmark = [
    pytest.mark.packages,
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("megatron", "torch")),
        reason="make test-exports has them",
    ),
    pytest.mark.filterwarnings("ignore"),
]

#: One configuration of each family.
FAMILIES = {entry.id.rpartition("-")[0]: entry.values[0] for entry in expressible()}


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def stated(config: dict[str, Any]) -> dict[str, Any]:
    """Return what a configuration says, by the names of Megatron's arguments."""
    rotary = config.get("rope_parameters") or {}
    width = config.get("hidden_size", config.get("n_embd"))
    heads = config.get("num_attention_heads", config.get("n_head"))
    epsilons = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
    fields = {
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_layers": config.get("num_hidden_layers", config.get("n_layer")),
        "vocab_size": config["vocab_size"],
        "layernorm_epsilon": next(
            config[name] for name in epsilons if config.get(name)
        ),
        "untie_embeddings_and_output_weights": not config.get(
            "tie_word_embeddings", config["model_type"].startswith("gpt")
        ),
        "rotary_base": rotary.get("rope_theta", 10000),
        "rotary_percent": rotary.get("partial_rotary_factor", 1.0),
        "num_experts": next(filter(None, map(config.get, _EXPERTS)), None),
        "use_rope_scaling": rotary.get("rope_type") == "llama3",
    }
    groups = config.get("num_key_value_heads") or heads
    if groups != heads and not config.get("kv_lora_rank"):
        fields["num_query_groups"] = groups
    return fields


@pytest.mark.parametrize("family", FAMILIES)
def test_megatron_builds_the_model_of_the_configuration(family, tmp_path):
    config = FAMILIES[family]
    model = from_hf(config)
    run = [("--micro-batch-size", (1,)), ("--global-batch-size", (1,)), ("--bf16", ())]
    text = array(family, [*model_flags(model, LENGTH), *run])
    (tmp_path / "args.sh").write_text(text)
    args = parsers.megatron(tmp_path, 1)
    fields = stated(config)
    if all(block.mlp.experts == 0 for block in model.towers[0].blocks()):
        # The first layers are dense, and a drawn model may have no others.
        fields["num_experts"] = None
    for name, value in fields.items():
        got = getattr(args, name)
        same = got == value
        if isinstance(value, float) and got is not None:
            same = math.isclose(got, value)
        assert same, (name, got, value)
    built = parsers.megatron_model(args)
    assert sum(p.numel() for p in built.parameters()) == model.parameters


def test_megatron_scales_positions_by_yarn(tmp_path):
    """Its parser and its model have what the configuration says."""
    model = from_hf({**LLAMA, "rope_scaling": {**LONG, "beta_fast": 16}})
    run = [("--micro-batch-size", (1,)), ("--global-batch-size", (1,)), ("--bf16", ())]
    text = array("yarn", [*model_flags(model, LENGTH), *run])
    (tmp_path / "args.sh").write_text(text)
    built = parsers.megatron_model(parsers.megatron(tmp_path, 1)).rotary_pos_emb
    assert built.scaling_factor == 4
    assert built.original_max_position_embeddings == 32768
    assert (built.beta_fast, built.beta_slow) == (16, 1)
    assert (built.mscale, built.mscale_all_dim) == (1, 0)
    assert built.correction_range_round_to_int


def test_enough_families_are_built():
    assert len(FAMILIES) >= 20


#: Rotary bases of flavors that are those of a later release of the same shape.
OTHER_BASES = {"qwen3-235b-a22b": 5_000_000}
#: Epsilons of norms that differ from those of the released configurations.
OTHER_EPSILONS = {"deepseek-v3": 1e-5}


@pytest.mark.parametrize("name", FLAVORS)
def test_torchtitan_builds_the_model_of_a_flavor(name):
    model = architecture(name)
    built, shape = parsers.torchtitan_model(*FLAVORS[name].split("/"))
    assert sum(p.numel() for p in built.parameters()) == model.parameters
    base = OTHER_BASES.get(name, model.details.rotary.base)
    assert shape.rope_theta == base
    epsilon = getattr(shape, "norm_eps", None) or shape.rms_norm_eps
    assert epsilon == OTHER_EPSILONS.get(name, model.details.norm_epsilon)


@pytest.mark.parametrize("kind", torchtitan_shapes.RECORDS)
def test_defaults_are_those_of_torchtitan(kind):
    """So that what a module leaves out is what it says."""
    package = parsers.torchtitan_package(torchtitan_shapes.RECORDS[kind])
    theirs = getattr(package, kind.__name__)()
    for name in kind.__struct_fields__:
        value = getattr(theirs, name)
        if hasattr(value, "__dataclass_fields__"):
            continue
        assert getattr(kind(), name) == value, name


@pytest.mark.parametrize("name", [*BUILT])
def test_torchtitan_builds_shapes_that_it_has_not(name, tmp_path):
    """Its parser takes the job file, and the module registers the model."""
    model = replace(architecture(name), name=f"own {name}")
    site = machine("dgx-h100")
    request = Request(global_batch=8, sequence_length=1024, micro_batches=(8,))
    problem = build_problem(model, site, 8, choose(model, site, 8, request))
    problem = for_target(problem, "torchtitan")
    layers = [layer.id for layer in problem.graph.layers]
    strategy = Strategy(dp=8, zero=3)
    plan = Plan(
        replicas=1, micro_batch=8, stages=(Stage.of(layers, [strategy] * len(layers)),)
    )
    folder = tmp_path / "out"
    write_folder(folder, export(problem, plan, "torchtitan", Settings(model)))
    config = parsers.torchtitan(folder, 8)
    built, spec = parsers.torchtitan_registered(config, folder)
    assert sum(p.numel() for p in built.parameters()) == model.parameters
    assert spec.pipelining_fn is not None
    shape = spec.model_args[config.model.flavor]
    assert shape.rope_theta == model.details.rotary.base
    assert shape.norm_eps == model.details.norm_epsilon
