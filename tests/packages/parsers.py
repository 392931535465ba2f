"""The real parsers of frameworks, on a machine without a GPU."""

from __future__ import annotations

import argparse
import ast
import importlib.machinery
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

from nest.frameworks.megatron import read_array


def stub_triton() -> None:
    """Let packages import triton, which they need to run and not to parse.

    PyTorch looks for it first: without a stub it finds none, which is right.
    """
    if "triton" in sys.modules:
        return
    import torch._inductor.runtime.triton_compat
    import torch._inductor.runtime.triton_heuristics
    import torch.utils._triton
    import torch.utils.flop_counter

    torch.utils._triton.has_triton()

    class Stub(types.ModuleType):
        def __getattr__(self, name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *args, **_: (
                args[0] if args and callable(args[0]) else mock.MagicMock()
            )

    for name in ("triton", "triton.language", "triton.runtime"):
        module = Stub(name)
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
        sys.modules[name] = module
    sys.modules["triton"].language = sys.modules["triton.language"]
    sys.modules["triton"].__version__ = "3.7.0"


def words_of(path: Path) -> list[str]:
    """Return the words of the array ARGS, as bash would pass them on."""
    arguments = read_array(
        path.read_text(), path.name, ("CUDA_DEVICE_MAX_CONNECTIONS",)
    )
    return [
        word
        for name, option in arguments.options.items()
        for word in (name, *(value.text for value in option.values))
    ]


def megatron(folder: Path, world: int) -> argparse.Namespace:
    """Run what Megatron-LM runs before it starts: three parsers."""
    import typing

    import torch
    import typing_extensions

    if not hasattr(typing, "override"):  # Python 3.11
        typing.override = typing_extensions.override
    stub_triton()
    from megatron.training import arguments
    from megatron.training.argument_utils import core_transformer_config_from_args

    text = (folder / "args.sh").read_text()
    # Fused rotary embeddings are the default, and need a GPU's library.
    words = [*words_of(folder / "args.sh"), "--no-rope-fusion"]
    words += ["--mock-data", "--tokenizer-type", "NullTokenizer"]
    words += ["--lr", "1e-4", "--train-iters", "10"]
    environment = {"WORLD_SIZE": str(world), "RANK": "0", "LOCAL_RANK": "0"}
    if "CUDA_DEVICE_MAX_CONNECTIONS=1" in text:
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "1"
    device = types.SimpleNamespace(major=9, minor=0, total_memory=80 * 2**30)
    with (
        mock.patch.dict(os.environ, environment),
        mock.patch.object(sys, "argv", ["pretrain_gpt.py", *words]),
        mock.patch.object(torch.cuda, "get_device_capability", return_value=(9, 0)),
        mock.patch.object(torch.cuda, "get_device_properties", return_value=device),
    ):
        if "CUDA_DEVICE_MAX_CONNECTIONS=1" not in text:
            os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
        args = arguments.parse_args()
        arguments.validate_args(args)
        core_transformer_config_from_args(args)
    return args


def megatron_options() -> dict[str, bool]:
    """Return the options of Megatron-LM's parser, and whether they take values.

    With dashes, as nest spells all options.
    """
    import typing

    import typing_extensions

    if not hasattr(typing, "override"):  # Python 3.11
        typing.override = typing_extensions.override
    stub_triton()
    from megatron.training import arguments

    parser = arguments.add_megatron_arguments(argparse.ArgumentParser())
    return {
        name.replace("_", "-"): action.nargs != 0
        for action in parser._actions
        for name in action.option_strings
        if name.startswith("--")
    }


def megatron_layout(text: str, stages: int) -> Any:
    """Return a pipeline layout as Megatron-Core reads it."""
    stub_triton()
    from megatron.core.transformer.pipeline_parallel_layer_layout import (
        PipelineParallelLayerLayout,
    )

    return PipelineParallelLayerLayout(text, stages)


def torchtitan(folder: Path, world: int) -> object:
    """Read the job file and make its mesh's degrees."""
    stub_triton()
    from torchtitan.config.manager import ConfigManager
    from torchtitan.distributed.parallel_dims import ParallelDims

    path = folder / "job.toml"
    config = ConfigManager().parse_args([f"--job.config-file={path}"])
    split = config.parallelism
    ParallelDims(
        dp_replicate=split.data_parallel_replicate_degree,
        dp_shard=split.data_parallel_shard_degree,
        cp=split.context_parallel_degree,
        tp=split.tensor_parallel_degree,
        pp=split.pipeline_parallel_degree,
        ep=split.expert_parallel_degree,
        etp=split.expert_tensor_parallel_degree,
        world_size=world,
    )
    return config


def torchtitan_keys() -> set[str]:
    """Return every key that a job file may have."""
    import dataclasses

    stub_triton()
    from torchtitan.config.job_config import JobConfig

    def keys(section: Any, above: str) -> Iterator[str]:
        for field in dataclasses.fields(section):
            value = getattr(section, field.name)
            if dataclasses.is_dataclass(value):
                yield from keys(value, f"{above}{field.name}.")
            else:
                yield f"{above}{field.name}"

    return set(keys(JobConfig(), ""))


class _Recorded(dict[str, Any]):
    """A configuration that says which keys were looked up in it."""

    names: ClassVar[set[str]] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.names.add(key)
        return dict.get(self, key, default)

    def __contains__(self, key: object) -> bool:
        self.names.add(str(key))
        return dict.__contains__(self, key)

    def __getitem__(self, key: str) -> Any:
        self.names.add(key)
        return dict.__getitem__(self, key)

    def keys(self) -> Any:
        return self


def deepspeed_keys() -> set[str]:
    """Return every key that a configuration may have."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    deepspeed(_Recorded(train_batch_size=8), 8, 8)
    from deepspeed.runtime.activation_checkpointing.config import ACT_CHKPT_DEFAULT
    from deepspeed.runtime.precision_config import (
        DeepSpeedBF16Config,
        DeepSpeedFP16Config,
    )
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    sections = {
        "zero_optimization": DeepSpeedZeroConfig.model_fields,
        "bf16": DeepSpeedBF16Config.model_fields,
        "fp16": DeepSpeedFP16Config.model_fields,
    }
    inside = {
        f"{section}.{name}"
        for section, fields in sections.items()
        for field_name, field in fields.items()
        for name in {field_name, field.alias or field_name}
    }
    inside |= {f"activation_checkpointing.{name}" for name in ACT_CHKPT_DEFAULT}
    whole = {*sections, "activation_checkpointing", "data_types", "bfloat16"}
    return inside | (_Recorded.names - whole)


def deepspeed(config: Path | dict[str, Any], world: int, data: int) -> object:
    """Read a configuration, or that of a folder, with so many data ranks."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if not dist.is_initialized():
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    import deepspeed.comm
    from deepspeed.runtime.config import DeepSpeedConfig

    deepspeed.comm.init_distributed(dist_backend="fake", dist_init_required=False)
    mpu = mock.Mock()
    mpu.get_data_parallel_world_size.return_value = data
    try:
        if isinstance(config, Path):
            return DeepSpeedConfig(str(config / "ds.json"), mpu=mpu)
        return DeepSpeedConfig(config, mpu=mpu)
    finally:
        dist.destroy_process_group()


def torchtitan_split() -> Callable[[int, int, int, int], list[list[str]]]:
    """Return how torchtitan splits layers over parts."""
    name = "generate_llm_fqn_per_model_part"
    split: Callable[[int, int, int, int], list[list[str]]]
    split = _of_pipelines((name,), {})[name]
    return split


def _of_pipelines(names: tuple[str, ...], known: dict[str, Any]) -> dict[str, Any]:
    """Return functions of torchtitan's pipelines, given what they use.

    These alone: their module imports loaders of data.
    """
    (root,) = importlib.util.find_spec("torchtitan").submodule_search_locations
    path = Path(root, "distributed", "pipeline_parallel.py")
    tree = ast.parse(path.read_text())
    tree.body = [x for x in tree.body if getattr(x, "name", None) in names]
    exec(compile(tree, str(path), "exec"), known)
    return known


def torchtitan_pipeline(config: Any, rank: int, layers: int) -> Any:
    """Return the schedule that torchtitan makes on a rank of a job file.

    The working directory is that of the file. The model is one of so many
    layers, each with its number in a buffer.
    """
    import copy
    import logging

    import torch
    import torch.distributed as dist
    from torch.distributed.pipelining import PipelineStage, schedules
    from torch.testing._internal.distributed.fake_pg import FakeStore

    split = config.parallelism
    size = split.pipeline_parallel_degree
    known = {
        **vars(schedules),
        **{"copy": copy, "os": os, "torch": torch, "nn": torch.nn},
        **{"PipelineStage": PipelineStage, "Callable": Callable},
        **{"DeviceMesh": Any, "JobConfig": Any, "LossFunction": Any},
        "logger": logging.getLogger("torchtitan"),
    }
    names = ("pipeline_module_split", "build_pipeline_schedule")
    functions = _of_pipelines(names, known)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
    try:
        mesh = mock.Mock()
        mesh.get_local_rank.return_value = rank
        mesh.size.return_value = size
        mesh.get_group.return_value = None
        model = torch.nn.Module()
        for name in ("tok_embeddings", "norm", "output"):
            setattr(model, name, torch.nn.Identity())
        model.layers = torch.nn.ModuleDict(
            {str(index): torch.nn.Identity() for index in range(layers)}
        )
        stages, _ = functions[names[0]](
            *(model, mesh, split.pipeline_parallel_schedule),
            *(torch.device("cpu"), split.module_fqns_per_model_part),
        )
        return functions[names[1]](config, stages, None)
    finally:
        dist.destroy_process_group()


def megatron_model(args: argparse.Namespace) -> Any:
    """Build Megatron's own model of its arguments, without Transformer Engine.

    On the meta device; what only a GPU has is replaced where the model asks for it.
    """
    import torch
    from megatron.core import parallel_state
    from megatron.core.models.gpt import GPTModel, gpt_layer_specs
    from megatron.core.tokenizers.utils.build_tokenizer import vocab_size_with_padding
    from megatron.core.transformer.dot_product_attention import DotProductAttention
    from megatron.training.argument_utils import core_transformer_config_from_args

    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
        parallel_state.initialize_model_parallel()
    config = core_transformer_config_from_args(args)
    config.perform_initialization = config.persist_layer_norm = False
    config.gradient_accumulation_fusion = config.moe_grouped_gemm = False
    config.use_cpu_initialization = True
    if args.num_experts:
        spec = gpt_layer_specs.get_gpt_decoder_block_spec(
            config, use_transformer_engine=False, normalization=args.normalization
        )
    else:
        spec = gpt_layer_specs.get_gpt_layer_local_spec(
            qk_layernorm=args.qk_layernorm,
            multi_latent_attention=args.multi_latent_attention,
            normalization=args.normalization,
        )
    core = DotProductAttention.__init__

    def without_widths(self: object, *words: Any, **named: Any) -> None:
        # It has no weights, and none of these widths for latent attention.
        kept = {k: v for k, v in named.items() if k not in ("k_channels", "v_channels")}
        core(self, *words, **kept)

    with (
        torch.device("meta"),
        mock.patch.object(DotProductAttention, "__init__", without_widths),
        mock.patch.object(torch.cuda, "current_device", return_value="cpu"),
        mock.patch.object(torch.cuda, "Stream"),
    ):
        return GPTModel(
            config=config,
            transformer_layer_spec=spec,
            vocab_size=vocab_size_with_padding(args.vocab_size, args, False),
            max_sequence_length=args.max_position_embeddings,
            share_embeddings_and_output_weights=not (
                args.untie_embeddings_and_output_weights
            ),
            position_embedding_type=args.position_embedding_type,
            rotary_percent=args.rotary_percent,
            rotary_base=args.rotary_base,
            rope_scaling=args.use_rope_scaling,
            rope_scaling_factor=args.rope_scaling_factor,
        )


def import_without_others(name: str) -> types.ModuleType:
    """Import a module; empty classes stand for what it needs that is not installed."""

    class Stub(types.ModuleType):
        __path__: list[str] = []

        def __getattr__(self, name: str) -> object:
            if name.startswith("__"):
                raise AttributeError(name)
            return type(name, (), {})

    while True:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            missing = str(error.name)
            if missing.partition(".")[0] == "torchtitan":
                raise
            sys.modules[missing] = Stub(missing)


def torchtitan_package(name: str) -> types.ModuleType:
    """Return a package of torchtitan's models, or one that they need."""
    stub_triton()
    # What shows and loads data is not installed, and no model needs it.
    sys.modules.setdefault("torch.utils.tensorboard", mock.MagicMock())
    return import_without_others(f"torchtitan.{name}")


def torchtitan_model(name: str, flavor: str) -> tuple[Any, Any]:
    """Return torchtitan's own model of a flavor on the meta device, and its shape."""
    spec = torchtitan_package(f"models.{name}").get_train_spec()
    return _on_meta(spec, flavor), spec.model_args[flavor]


def _on_meta(spec: Any, flavor: str) -> Any:
    import torch

    shape = spec.model_args[flavor]
    # A job sets it by default.
    shape.moe_impl = getattr(shape, "moe_impl", "standard")
    with torch.device("meta"):
        return spec.model_cls(shape)


def torchtitan_registered(config: Any, folder: Path) -> tuple[Any, Any]:
    """Return the model that the module of a job file registers, and its specification.

    As ``train.py`` finds them, and fits the shape to the job.
    """
    torchtitan_package("models.deepseek_v3")
    torchtitan_package("models.qwen3")
    from torchtitan.protocols import train_spec

    name = config.experimental.custom_import
    path = folder / f"{name}.py"
    with mock.patch.dict(train_spec._extra_train_specs, clear=True):
        exec(compile(path.read_text(), str(path), "exec"), {})
        spec = train_spec.get_train_spec(config.model.name)
    shape = spec.model_args[config.model.flavor]
    shape.update_from_config(config)
    return _on_meta(spec, config.model.flavor), spec
