"""From a row of measurements to a problem, a plan and a prediction."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nest.cost.score import score
from nest.hardware import machine_for
from nest.hardware.calibration import Software, stored_calibration
from nest.ir.graph import LayerCost
from nest.ir.plan import Recompute
from nest.models.blocks import Attention, Block, Head, Mlp, RepeatedBlock, Tower
from nest.models.operators.base import Execution, Split
from nest.models.operators.nodes import block_node, embedding_node, head_node
from nest.models.operators.timing import layer_cost
from nest.uncertainty.headroom import MEAN_ERROR
from nest.units import GIB
from nest.validation.complete import complete
from nest.validation.predict import (
    ModeledRun,
    Prediction,
    PredictOptions,
    Skip,
    build,
    predict,
    reached_by,
)
from nest.validation.reading import parse_rows
from nest.validation.report import assess
from nest.validation.rows import Row
from nest.validation.settings import is_flash, periods, recomputations
from nest.validation.software import software_of
from nest.validation.words import not_understood


def row(**changes: Any) -> Row:
    """Return a GPT of two layers on one device, four micro-batches of 2."""
    plain = Row(
        row_id="T1",
        hardware="A100-80GB-SXM",
        num_devices=1,
        devices_per_node=8,
        layers=2,
        hidden=1024,
        heads=16,
        vocab=51200,
        seq_len=1024,
        global_batch=8,
        micro_batch=2,
        tp=1,
        pp=1,
        dp=1,
        recompute="none",
        framework="Megatron-LM of 2022",
        precision_class="fp16",
    )
    return replace(plain, **changes)


def built(
    row: Row, recompute: Recompute = "none", *rest: Any, **more: Any
) -> ModeledRun:
    run = build(row, recompute, *rest, **more)
    assert isinstance(run, ModeledRun), run
    return run


def case(**changes: Any) -> ModeledRun:
    return built(row(**changes))


def decoder_cost(run: ModeledRun) -> LayerCost:
    """Return the cost of a run's first kind of block."""
    return run.problem.graph.kinds[1].costs[0]


def chosen(run: ModeledRun) -> list[str]:
    """Return what the layers of a plan of one stage recompute."""
    (stage,) = run.plan.stages
    return [strategy.recompute for strategy in stage.strategies or ()]


#: The model of :func:`row` as Megatron-LM of 2022 trains it.
GPT = (
    Tower(
        runs=(
            RepeatedBlock(
                block=Block(
                    name="decoder",
                    hidden=1024,
                    attention=Attention(
                        heads=16,
                        kv_heads=16,
                        head_size=64,
                        biases=True,
                        output_bias=True,
                    ),
                    mlp=Mlp(hidden=4096, biases=True),
                    layer_norm=True,
                    dropout=True,
                ),
                count=2,
            ),
        ),
        vocabulary=51200,
        learned_positions=1024,
    ),
    Head(outputs=51200),
)


def prediction(**changes: Any) -> Prediction:
    found = predict(row(**changes))
    assert isinstance(found, Prediction), found
    return found


def test_step_time_of_one_device() -> None:
    """Four micro-batches of embedding, two layers and head; the update."""
    found = case()
    site = machine_for("A100-80GB-SXM", None, 8)
    split = Split(samples=2, sequence_length=1024, sequence_parallel=False)
    execution = Execution(dtype="fp16", flash_attention=False, fused_loss=False)
    kinds = {kind.name: kind.costs[0] for kind in found.problem.graph.kinds}
    tower, head = GPT
    nodes = {
        "embedding": embedding_node(tower, split, execution),
        "decoder": block_node(tower.runs[0].block, split, execution),
        "head": head_node(head, 1024, split, execution, norm_weights=2048),
    }
    pass_ns = 0.0
    for name, node in nodes.items():
        if name != "decoder":
            node = node.without_checkpoint()
        cost = layer_cost([(node, 1)], split, site, execution)
        assert kinds[name] == cost
        pass_ns += (2 if name == "decoder" else 1) * (
            cost.forward_ns + cost.backward_ns
        )
    weights = sum(
        (2 if name == "decoder" else 1) * node.weights for name, node in nodes.items()
    )
    hbm = found.problem.cluster.device.hbm_bytes_per_s
    assert hbm is not None
    optimizer = found.problem.job.optimizer
    update_ns = (
        weights
        * (
            2 * optimizer.weight_bytes
            + optimizer.gradient_bytes
            + 2 * optimizer.state_bytes
        )
        / hbm
        * 1e9
    )
    step = prediction().step_time_s
    assert step == pytest.approx((4 * pass_ns + update_ns) / 1e9, rel=1e-6)


PIPELINE = {"layers": 8, "pp": 4, "num_devices": 4}


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        # Layers spread evenly; embedding first, head last.
        ({}, [3, 2, 2, 3]),
        ({"layers": 7}, [3, 2, 2, 2]),
        # 6 layers and 2 more divide by 4: embedding and head count as layers.
        ({"layers": 6}, [2, 2, 2, 2]),
        ({"layers": 6, "vpp": 2}, [1] * 8),
        ({"pp": 2, "vpp": 2, "num_devices": 2}, [3, 2, 2, 3]),
        # 8 layers and 2 over 4 stages; others keep 2 blocks each.
        ({"framework": "torchtitan (FSDP2)"}, [3, 3, 2, 2]),
        # A head that takes three layers' time has no other: its 51200 · 1024
        # weights compare with 12 · 1024² of a layer, 4.2 layers.
        ({"framework": "Megatron-LM 1F1B Redis (layer redistribution)"}, [3, 3, 3, 1]),
    ],
)
def test_pipeline_chunks(changes: dict[str, Any], sizes: list[int]) -> None:
    run = case(**PIPELINE | changes)
    assert [len(stage.layers) for stage in run.plan.stages] == sizes
    assert run.plan.virtual_stages == changes.get("vpp", 1)


def test_without_a_pipeline_there_is_nothing_to_interleave() -> None:
    assert case(layers=8, vpp=2).plan.virtual_stages == 1


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("", 16),
        ("ZeRO-1 within groups of 8", 8),
        ("FSDP within node (8)", 8),
        ("ZeRO-3 via SageMaker MiCS (4 copies of 4 GPUs)", 4),
        ("HSDP", 8),
        ("FSDP2 shard=4", 4),
        ("FSDP2 shard=3", 16),
        ("FSDP within slice (16), DP across 2 slice(s)", 16),
    ],
)
def test_sharding_groups(text: str, group: int) -> None:
    """States are sharded in groups; the groups are replicas."""
    found = case(dp=16, num_devices=16, global_batch=64, zero_stage=1, shard_mode=text)
    assert found.plan.stages[0].strategies[0].dp == group
    assert found.plan.replicas == 16 // group
    assert found.plan.micro_batch == 2 * group


def test_only_layers_recompute() -> None:
    run = built(row(recompute="full"), "full")
    assert chosen(run) == ["none", "full", "full", "none"]


def test_every_other_layer_recomputes() -> None:
    text = "selective (every other layer)"
    run = built(row(layers=5, recompute=text), "full")
    layers = ("none", "full", "none", "full", "none")
    assert chosen(run) == ["none", *layers, "none"]


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        (None, ("none", "selective", "full")),
        ("none", ("none",)),
        ("selective", ("selective",)),
        ("selective (remat_policy=minimal)", ("selective",)),
        ("minimal_with_context", ("selective",)),
        ("Full", ("full",)),
        ("full (every layer)", ("full",)),
        ("selective (every other layer)", ("full",)),
        ("selective (every 4 layers)", ("full",)),
        ("selective (per-op SAC, config default)", ("selective",)),
        ("per-op", ("selective",)),
        ("per-operator SAC", ("selective",)),
        ("selective (qkv_proj_offloaded)", ("full",)),
        ("qkv_proj_offloaded", ("full",)),
        ("offload", ("offload",)),
        ("Activation offloading to the host", ("offload",)),
        ("offload optimizer", ()),
        ("custom", ("none", "selective", "full")),
        ("save_dot_except_logits", ()),
    ],
)
def test_stated_recomputation(text: str | None, choices: tuple[str, ...]) -> None:
    assert recomputations(row(recompute=text)) == choices


def test_checkpointing_by_operator_is_read_of_any_software() -> None:
    """ "per-op" means torchtitan's, which keeps other values than "selective"."""
    kept = {
        words: decoder_cost(
            built(
                row(
                    framework="PyTorch FSDP2",
                    precision_class="bf16",
                    gated_mlp=True,
                    recompute=words,
                ),
                "selective",
            )
        )
        for words in ("per-op", "selective (per-op SAC)", "selective")
    }
    assert kept["per-op"] == kept["selective (per-op SAC)"] != kept["selective"]


def test_selective_of_fsdp_recomputes_some_layers() -> None:
    """The fewest with which the plan fits, of 24 every 8th or every other."""
    fsdp = {
        "framework": "PyTorch FSDP + torch.compile",
        "recompute": "selective",
        "hidden": 4096,
        "heads": 32,
        "layers": 24,
        "dp": 8,
        "num_devices": 8,
        "zero_stage": 3,
        "precision_class": "bf16",
    }
    assert recomputations(row(**fsdp)) == ("full",)
    assert periods(row(**fsdp)) == (8, 4, 3, 2)

    def whole(samples: int, every: int) -> float | None:
        size = {"micro_batch": samples, "global_batch": 8 * samples}
        run = built(row(**fsdp | size), "full", every=every)
        assert chosen(run).count("full") == 24 // every
        step = score(run.problem, run.plan)
        if not step.feasible:
            return None
        return float(step.step_time_ns) / 1e9

    for samples in (4, 24, 28):
        size = {"micro_batch": samples, "global_batch": 8 * samples}
        fitting = [whole(samples, every) for every in (8, 4, 3, 2)]
        least = next(filter(None, fitting))
        assert prediction(**fsdp | size).step_time_s == least
    assert whole(4, 8) is not None
    assert whole(24, 8) is None


def test_unstated_recomputation_is_the_least_that_fits() -> None:
    """32 samples, unfused: 6.5 GB a layer with ``none``, 67 MB with ``full``.

    34 sbh + 5 a s² b = 34 · 33.6e6 + 80 · 33.6e6 bytes, 40 % of that with
    ``selective``; 64 layers fit 80 GB only with ``full``.
    """
    long = {"layers": 96, "micro_batch": 32, "global_batch": 32}
    assert predict(row(**long, recompute=None)) == predict(
        row(**long, recompute="full")
    )
    assert predict(row(recompute=None)) == predict(row(recompute="none"))
    assert not prediction(**long).fits


def test_what_fits_nowhere_recomputes_all() -> None:
    """600 layers of 200 MB of weights, gradients and state."""
    deep = {"layers": 600, "micro_batch": 8}
    found = prediction(**deep)
    assert not found.fits
    assert predict(row(**deep, recompute=None)) == predict(
        row(**deep, recompute="full")
    )
    assert predict(row(**deep, recompute=None)) != found


@pytest.mark.parametrize(
    ("framework", "precision", "sizes"),
    [
        ("Megatron-LM of 2022", "fp16", (2, 12, 0)),
        ("Megatron-LM of 2022", "bf16", (4, 12, 0)),
        ("Megatron-DeepSpeed", "fp16", (2, 16, 0)),
        ("Megatron-DeepSpeed", "bf16", (2, 12, 4)),
        ("NeMo 25.04", "bf16", (2, 12, 0)),
        ("Composer/llm-foundry FSDP", "bf16", (2, 12, 0)),
        ("nanotron", "bf16", (4, 12, 0)),
        ("MaxText", "bf16", (2, 12, 0)),
        ("some other", "bf16", (2, 12, 0)),
        (None, "bf16", (2, 12, 0)),
    ],
)
def test_bytes_per_weight(
    framework: str | None, precision: str, sizes: tuple[int, int, int]
) -> None:
    optimizer = case(
        framework=framework, precision_class=precision
    ).problem.job.optimizer
    assert (
        optimizer.gradient_bytes,
        optimizer.state_bytes,
        optimizer.buffer_bytes,
    ) == sizes


@pytest.mark.parametrize(
    ("framework", "zero", "size"),
    [
        # buckets of 5e8 gradients, two of them where they overlap, 2 bytes each
        ("DeepSpeed", 1, 0),
        ("DeepSpeed", 2, 2 * 2 * 500_000_000),
        # one bucket, and 1e9 weights that are used again
        ("DeepSpeed", 3, 2 * 500_000_000 + 2 * 1_000_000_000),
        # sums of all gradients in fp32, which ZeRO 2 and 3 shard instead
        ("Megatron-DeepSpeed", 2, 0),
        ("Megatron-DeepSpeed", 3, 0),
    ],
)
def test_buffers_of_deepspeed_by_stage(framework: str, zero: int, size: int) -> None:
    large = {"layers": 32, "hidden": 4096, "heads": 32, "precision_class": "bf16"}
    ranks = {"dp": 8, "num_devices": 8, "global_batch": 64}
    stated = {"framework": framework, "zero_stage": zero, "recompute": "full"}
    assert prediction(**large, **ranks, **stated).breakdown["buffers"] == size


def test_deepspeed_keeps_no_more_weights_than_a_model_has() -> None:
    """Two tables, positions, 2 layers of 12 h² and their norms, and one more.

    Buckets are as large for every model.
    """
    h = 1024
    weights = 2 * 51200 * h + 1024 * h + 2 * (12 * h + 4) * h + 2 * h
    stated = {"framework": "DeepSpeed", "zero_stage": 3, "precision_class": "bf16"}
    size = prediction(**stated, dp=2, num_devices=2).breakdown["buffers"]
    assert size == 2 * 500_000_000 + 2 * weights


def kept_bytes(**changes: Any) -> int:
    return decoder_cost(case(**changes)).activations[0].kept_bytes


def forward_ns(**changes: Any) -> float:
    return decoder_cost(case(**changes)).forward_ns


def test_attention_kernel() -> None:
    """Stated, or what the software has; fused keeps no 5 a s² b."""
    unfused = kept_bytes()
    assert kept_bytes(attention_impl="flash") < unfused / 2
    assert kept_bytes(attention_impl="unfused (pre-flash)") == unfused
    assert kept_bytes(framework="NeMo") < unfused / 2
    assert kept_bytes(framework="NeMo", attention_impl="torch") > unfused / 2


@pytest.mark.parametrize(
    ("text", "is_one_kernel"),
    [
        *((x, False) for x in ("unfused", "eager", "math", "off", "none", "torch")),
        *((x, False) for x in ("no flash attention", "without FlashAttention")),
        *((x, False) for x in ("non-flash", "flash off", "flash_attn=none")),
        *((x, True) for x in ("flash", "sdpa", "FA3", "fa2", "cuDNN", "flash_attn2")),
    ],
)
@pytest.mark.parametrize("framework", ["NeMo 1.10", "torchtitan"])
def test_a_text_says_whether_attention_is_one_kernel(
    framework: str, text: str, is_one_kernel: bool
) -> None:
    run = row(framework=framework, attention_impl=text)
    assert is_flash(run, software_of(run)) is is_one_kernel
    assert "attention_impl" not in not_understood(run)


def test_first_flash_attention_is_half_as_fast() -> None:
    both = {"attention_impl": "flash", "seq_len": 8192}
    first = forward_ns(framework="Composer", **both)
    assert first > 1.2 * forward_ns(framework="NeMo", **both)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("flash_attn2", 1.0),
        ("FlashAttention-3", 1.0),
        ("flash attn 1.0.8", 0.5),
        ("flash_attn v1", 0.5),
        ("flash", 0.5),
    ],
)
def test_the_version_of_the_attention_kernel(text: str, share: float) -> None:
    """Stated, or Composer's: at 32 Ki tokens attention is nearly all."""
    long = {"seq_len": 32768, "micro_batch": 1, "framework": "Composer"}
    rates = stored_calibration().families["A100"]
    flops = 4 * 32768 * 16384 * 1024
    blocks = 32768 // 128 * 16
    occupied = blocks / (blocks + rates.attention_half_blocks)
    # Heads of 64 values, where the rate holds for 128: exponentials of A100.
    size = 312 / 4 / 2.44
    held = rates.exponential_size
    busy = (64 / (64 + size)) / (128 / (128 + held)) if held else 1.0
    # Power of 400 W for 312 TFLOP/s, which the stored figure rounds.
    clock = (400 / 312 / rates.watts_per_tflops) ** rates.power_exponent
    share_of_peak = rates.attention_fraction * occupied * busy * clock
    fastest_ns = flops / (312e3 * share_of_peak)
    slower = forward_ns(**long, attention_impl=text)
    slower -= forward_ns(**long, attention_impl="flash_attn2")
    assert slower == pytest.approx(fastest_ns / share - fastest_ns, rel=1e-6, abs=1)


def test_kernels_of_attention_made_for_hopper() -> None:
    """NeMo's by itself, others' where stated; the second reaches 0.63 of it.

    32 Ki tokens of 16 heads of 64 are 256 · 16 blocks, and half of 4 · 32768²
    · 1024 FLOPs, which wait for exponentials more than heads of 128 do.
    """
    long = {"seq_len": 32768, "micro_batch": 1, "recompute": "none"}

    def core_of(hardware: str, framework: str, kernel: str) -> float:
        run = {"hardware": hardware, "precision_class": "bf16"}
        stated = {"framework": framework, "attention_impl": kernel}
        return forward_ns(**long, **run, **stated)

    second = "flash_attn2"
    rates = stored_calibration().families["H100"]
    occupied = 4096 / (4096 + rates.attention_half_blocks)
    own = 989 / 4 / 3.9
    busy = (64 / (64 + own)) / (128 / (128 + rates.exponential_size))
    core_ns = 2 * 32768**2 * 1024 / (989e3 * rates.attention_fraction)
    # Power of 700 W for 989 TFLOP/s, which the stored figure rounds.
    clock = (700 / 989 / rates.watts_per_tflops) ** rates.power_exponent
    core_ns /= occupied * busy * clock
    for framework, kernel in (
        ("NeMo", "flash"),
        ("NeMo", "flash_attn3"),
        ("torchtitan", "FlashAttention-3"),
    ):
        faster = core_of("H100", framework, second)
        faster -= core_of("H100", framework, kernel)
        assert faster == pytest.approx(core_ns * (1 / 0.63 - 1), rel=1e-6)
    for hardware, framework, kernel in (
        ("H100", "torchtitan", "flash"),
        ("A100", "NeMo", "flash"),
        ("A100", "NeMo", "flash_attn3"),
    ):
        same = core_of(hardware, framework, second)
        assert core_of(hardware, framework, kernel) == same


def test_unfused_operators_of_a_framework() -> None:
    """Hagemann et al. name the kernel of RMSNorm where there is one.

    Their torch attention does not fuse the softmax either.
    """
    llama = {"gated_mlp": True, "ffn_hidden": 2816, "framework": "aleph"}

    fused, loose, megatron, torch = (
        forward_ns(**llama, attention_impl=name)
        for name in (
            *("flash_attn2 + RMSNorm kernel", "flash_attn2"),
            *("megatron", "torch"),
        )
    )
    assert fused < loose < megatron < torch
    noted = {"attention_impl": "flash_attn2", "notes": "RMS kernel"}
    assert forward_ns(**llama, **noted) == fused
    named = {"framework": None, "source": "Hagemann et al. 2311.05610"}
    assert case(**{**llama, **named}).problem.graph == (
        case(**llama, source="Hagemann et al. 2311.05610").problem.graph
    )


def test_overlap_of_software() -> None:
    stored = stored_calibration().software.overlap
    plain = case()
    assert (plain.problem.job.overlap, plain.plan.overlap) == ({}, ())
    nemo = case(framework="NeMo")
    assert set(nemo.plan.overlap) == {"tp", "cp", "weights", "gradients"}
    assert nemo.problem.job.overlap["tp"] == stored["tp"]


def test_memory_in_the_sense_of_the_row() -> None:
    """Largest of all, or last rank; what is reserved has the cache of the
    allocator too, and nvidia-smi shows the reserve besides."""
    two = {"layers": 8, "pp": 2, "num_devices": 2}
    largest = prediction(**two)
    last = prediction(**two, mem_class="torch_allocated_last_rank")
    assert largest.memory_bytes is not None
    assert last.memory_bytes is not None
    assert last.memory_bytes < largest.memory_bytes
    assert largest.memory_bytes == sum(largest.breakdown.values())
    seen = prediction(**two, mem_class="nvidia-smi")
    fraction = stored_calibration().software.cached_fraction
    reserve = machine_for("A100-80GB-SXM", None, 8).device.reserve_bytes
    assert seen.breakdown["reserve"] == reserve > 0
    assert seen.memory_bytes == pytest.approx(
        largest.memory_bytes * (1 + fraction) + reserve, abs=1
    )
    assert set(seen.breakdown) == {
        "weights",
        "gradients",
        "optimizer",
        "activations",
        "outputs",
        "buffers",
        "workspaces",
        "cached",
        "reserve",
    }
    kept = prediction(**two, mem_class="torch_reserved")
    assert kept.memory_bytes == seen.memory_bytes - reserve


@pytest.mark.parametrize(
    ("framework", "changes", "size_bytes"),
    [
        # cuBLAS twice 8 MiB and 128 KiB, Transformer Engine 4 MiB.
        ("Megatron-Core 0.9", {}, 2 * (2**23 + 2**17) + 2**22),
        # Each 32 MiB from Hopper on, where cuBLAS is made deterministic before too.
        ("Megatron-Core 0.9", {"hardware": "H100-80GB-SXM"}, 3 * 2**25),
        ("Megatron-Core @HEAD (dev)", {}, 2 * 2**25 + 2**22),
        (
            "Megatron-Core @HEAD (dev)",
            {"cp": 2, "num_devices": 2},
            2 * (2**23 + 2**17) + 2**22,
        ),
        # Four more for grouped products, which a row has to state.
        (
            "Megatron-Core 0.9",
            {
                "hardware": "H100-80GB-SXM",
                "experts": 4,
                "topk": 1,
                "notes": 'args: {"moe-grouped-gemm":true}',
            },
            7 * 2**25,
        ),
        ("nanotron", {}, 0),
    ],
)
def test_workspaces_of_matrix_products(
    framework: str, changes: dict[str, Any], size_bytes: int
) -> None:
    found = prediction(framework=framework, **changes)
    assert found.breakdown["workspaces"] == size_bytes


def test_deepspeed_keeps_what_stages_send() -> None:
    """Two micro-batches of 2 · 1024 · 1024 values of 2 bytes are in flight on
    the first of two stages; the last sends nothing."""
    two = {"layers": 8, "pp": 2, "num_devices": 2}
    deepspeed = {**two, "framework": "Megatron-DeepSpeed"}
    assert prediction(**deepspeed).breakdown["outputs"] == 2 * 2**22
    assert prediction(**two).breakdown["outputs"] == 0
    last = prediction(**deepspeed, mem_class="torch_allocated_last_rank")
    assert last.breakdown["outputs"] == 0


def test_a_shared_matrix_is_held_once_on_one_stage() -> None:
    """The head of 51200 · 1024 weights is the embedding; two stages have a
    copy each."""
    matrix_bytes = 2 * 51200 * 1024

    def weight_bytes(**changes: Any) -> float:
        return prediction(**changes).breakdown["weights"]

    tied = {"tied_embeddings": True}
    assert weight_bytes() - weight_bytes(**tied) == matrix_bytes
    half = {"tp": 2, "num_devices": 2}
    assert weight_bytes(**half) - weight_bytes(**half, **tied) == (matrix_bytes / 2)
    two = {"pp": 2, "num_devices": 2}
    assert weight_bytes(**two) == weight_bytes(**two, **tied)


def test_what_fits_with_headroom_of_the_models_error() -> None:
    """Of 80 GiB 2.8 are the reserve; of what is left 5.2 are head-room."""
    verdicts = []
    for layers in (10, 180, 190):
        found = prediction(layers=layers)
        assert found.memory_bytes is not None
        left_bytes = (80 * GIB - 3_000_000_000) - found.memory_bytes
        assert found.fits == (left_bytes >= 0)
        assert found.fits_with_headroom == (left_bytes >= MEAN_ERROR * 80 * GIB)
        verdicts.append((found.fits, found.fits_with_headroom))
    assert verdicts == [(True, True), (True, False), (False, False)]


def test_headroom_may_take_more_recomputation() -> None:
    """A layer keeps 4.6 GB with ``none`` and 67 MB with ``full``: where a few
    GB more are left free, tuners would choose another one."""
    verdicts = set()
    for layers in range(2, 24):
        stated = {"layers": layers, "micro_batch": 32, "global_batch": 32}
        unstated = prediction(**stated, recompute=None)
        none = prediction(**stated)
        full = prediction(**stated, recompute="full")
        assert full.fits_with_headroom
        assert unstated.fits_with_headroom
        if none.fits:
            assert unstated.step_time_s == none.step_time_s
        verdicts.add((none.fits, none.fits_with_headroom))
    assert verdicts == {(True, True), (True, False), (False, False)}


def test_a_run_that_went_out_of_memory_recomputed_the_least() -> None:
    """Whoever runs out of memory has not chosen what fits."""
    long = {"layers": 96, "micro_batch": 32, "global_batch": 32}
    assert prediction(**long, recompute=None).fits
    assert not prediction(**long, recompute=None, status="OOM").fits
    assert prediction(**long, recompute="full", status="OOM").fits


def test_deepspeed_copies_one_gradient_at_a_time_in_bf16() -> None:
    """A matrix of 51200 · 1024 values of 4 bytes, on the first of two stages.

    Two passes of 32 tokens are in flight there: when one is over, half of
    their activations are left. In fp16 there is no copy, and passes of 2048
    tokens take more than it.
    """
    short = {
        "layers": 8,
        "pp": 2,
        "num_devices": 2,
        "micro_batch": 2,
        "seq_len": 16,
        "framework": "Megatron-DeepSpeed",
    }

    def activations(**changes: Any) -> float:
        return prediction(**short | changes).breakdown["activations"]

    run = case(**short)
    first = score(run.problem, run.plan).blocks[0]
    assert first.inflight == 2
    assert activations() < 4 * 51200 * 1024
    assert activations(precision_class="bf16") == (
        first.kept_bytes / 2 + 4 * 51200 * 1024
    )
    two = {"precision_class": "bf16", "tp": 2, "num_devices": 4}
    assert activations(**two) < activations(precision_class="bf16")
    long = {"seq_len": 1024}
    assert activations(**long, precision_class="bf16") == activations(**long)


def test_other_calibrations() -> None:
    """Half the rates and twice the launch time take twice as long."""
    stored = stored_calibration()
    a100 = stored.families["A100"]
    half = replace(
        a100,
        matmul_fraction=a100.matmul_fraction / 2,
        misaligned_fraction=a100.misaligned_fraction / 2,
        attention_fraction=a100.attention_fraction / 2,
        memory_fraction=a100.memory_fraction / 2,
        host_ns=2 * a100.host_ns,
    )
    changed = built(row(), "none", PredictOptions(calibration={"A100": half}))
    for before, after in zip(
        case().problem.graph.kinds, changed.problem.graph.kinds, strict=True
    ):
        assert after.costs[0].forward_ns == pytest.approx(
            2 * before.costs[0].forward_ns
        )
    software = Software(
        overlap=dict.fromkeys(stored.software.overlap, 0.25), cached_fraction=0.5
    )
    options = PredictOptions(software=software)
    found = built(row(framework="NeMo"), "none", options)
    assert found.problem.job.overlap["weights"] == 0.25


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layers": None}, "not stated: layers"),
        ({"hardware": None}, "unknown device"),
        ({"hardware": "Cerebras WSE-3"}, "unknown device"),
        ({"overlap": "schedule ZB-2p"}, "a schedule that no plan has"),
        ({"schedule": "Chimera"}, "a schedule that no plan has"),
        ({"model": "LLAMA2-70B LoRA"}, "fine-tuning of adapters"),
        ({"notes": "task LoRA Performance"}, "fine-tuning of adapters"),
        ({"precision_class": None}, "precision not stated"),
        ({"precision_class": "int8"}, "precision that operators are not counted in"),
        ({"precision_class": "fp4"}, "the device does not multiply fp4"),
        ({"recompute": "save_out_proj"}, "recomputation that no plan expresses"),
        ({"dp": 2}, "tp·cp·pp·dp is not the number of devices"),
        ({"global_batch": 7}, "the micro-batches do not divide the global batch"),
        ({"ep": 2, "experts": 4}, "expert parallelism over tensor parallel"),
        ({"pp": 8, "num_devices": 8}, "more pipeline stages than layers"),
        ({"precision_class": "fp8"}, "the device does not multiply fp8"),
        ({"heads": 12, "tp": 8, "num_devices": 8}, "tp does not divide"),
    ],
)
def test_reasons_to_skip(changes: dict[str, Any], reason: str) -> None:
    found = predict(row(**changes))
    assert isinstance(found, Skip)
    assert found.reason.startswith(reason)


def test_interleaving_of_zero_bubbles_baseline() -> None:
    """Every layer is a chunk: 6 layers, embedding and head are 4 x 2."""
    baseline = {"framework": "Megatron-LM + 1F1B-I", "micro_batch": 1}
    found = case(**baseline, layers=6, pp=4, num_devices=4)
    assert found.plan.virtual_stages == 2
    assert case(**baseline, layers=8, pp=4, num_devices=4).plan.stages
    # 7 and 9 are no multiple of 4.
    plain = case(**baseline, layers=7, pp=4, num_devices=4)
    assert plain.plan.virtual_stages == 1


@pytest.mark.parametrize(
    ("stated", "schedule"),
    [
        ({}, "1f1b"),
        ({"overlap": "schedule 1F1B-I; gradient overlap off"}, "1f1b"),
        ({"overlap": "schedule ZB-1p"}, "zb-h1"),
        ({"schedule": "ZB-H1", "overlap": "schedule 1F1B"}, "zb-h1"),
        ({"schedule": "GPipe"}, "gpipe"),
    ],
)
def test_schedules(stated: dict[str, Any], schedule: str) -> None:
    found = case(**PIPELINE, **stated)
    assert found.problem.job.schedule == schedule
    assert found.plan.placement == "loop"


def test_zero_bubble_plans_split_their_backward_passes() -> None:
    """The decoder states gradients of weights; chunks run down and up."""
    found = case(**PIPELINE, schedule="ZB-V")
    assert (found.plan.virtual_stages, found.plan.placement) == (2, "v")
    kinds = {kind.name: kind for kind in found.problem.graph.kinds}
    cost = kinds["decoder"].costs[0]
    assert 0 < (cost.weight_backward_ns or 0) < cost.backward_ns
    split = prediction(**PIPELINE, schedule="ZB-H1").step_time_s
    plain = prediction(**PIPELINE).step_time_s
    assert split is not None
    assert plain is not None
    assert split < plain


def test_cuda_graphs_take_no_host_time() -> None:
    """Stated, in words, or by software; the calibration's host time goes."""
    slow = replace(stored_calibration().families["H100"], host_ns=1e6)
    options = PredictOptions(calibration={"H100": slow})
    run = {"hardware": "H100-80GB-SXM", "precision_class": "bf16"}

    def times(**changes: Any) -> tuple[float, float]:
        cost = decoder_cost(built(row(**run, **changes), "none", options))
        return cost.forward_ns, cost.forward_host_ns

    nemo = times(framework="NeMo")
    replayed = times(framework="NeMo", cuda_graphs=True)
    assert replayed[0] < nemo[0]
    assert replayed[1] == 0 < nemo[1]
    assert times(framework="NeMo", notes="HybridEP; CUDA graphs") == replayed
    assert times(framework="NeMo", model="te_scoped_cudagraph") == nemo
    mlperf = {"framework": "NeMo/Megatron-Core"}
    for version, graphs in (("v5.1", True), ("v4.1", True), ("v5.0", False)):
        source = f"MLPerf Training {version} (NVIDIA)"
        known = times(**mlperf, source=source)
        assert (known == replayed) == graphs
        off = times(**mlperf, source=source, cuda_graphs=False)
        assert off == nemo


def test_tokens_are_dispatched_once_by_words_or_software() -> None:
    """Within a node of 8, 2 visits of 8 experts, four a device: 1.571 of 2.

    Both are on one of two devices with 2 · 4/8 · 3/7 = 0.429.
    """
    run = {
        "num_devices": 2,
        "dp": 2,
        "ep": 2,
        "experts": 8,
        "topk": 2,
        "precision_class": "bf16",
    }

    def sent(**changes: Any) -> set[int]:
        return {
            call.size_bytes
            for kind in case(**run, **changes).problem.graph.kinds
            for call in kind.costs[0].collectives
            if call.axis == "ep"
        }

    # 2 samples of 1024 tokens, 1024 values of 2 bytes, for each expert.
    copies = 2 * 1024 * 1024 * 2 * 2
    once = 2 * round(copies / 2 * (11 / 14))
    core, bridge = "Megatron-Core", "Megatron-Bridge 26.04"
    assert sent(framework=core) == {copies}
    assert sent(framework=core, notes="etp 1; DeepEP; dropless") == {once}
    assert sent(framework=f"{core} with DeepEP") == {once}
    known = {"framework": bridge, "model": "DeepSeekV3"}
    assert sent(**known) == {once}
    assert sent(**known, notes="AlltoAll dispatcher") == {copies}


def test_the_share_of_the_hosts_time() -> None:
    """Functional tests of Megatron-Core take 2.6 times the host's time.

    Or what a fit says.
    """
    rates = replace(stored_calibration().families["A100"], host_ns=1e4)
    stored = PredictOptions(calibration={"A100": rates})
    fitted = replace(stored, host_shares={"Megatron-Core, functional tests": 3.0})
    host = []
    for framework, options in (
        ("Megatron-LM of 2022", fitted),
        ("Megatron-Core @HEAD (dev)", stored),
        ("Megatron-Core @HEAD (dev)", fitted),
    ):
        run = built(row(framework=framework), "none", options)
        kinds = run.problem.graph.kinds
        embedding = next(kind for kind in kinds if kind.name == "embedding")
        host.append(embedding.costs[0].forward_host_ns)
    assert host[1:] == pytest.approx([2.6 * host[0], 3 * host[0]])


def test_gradients_of_micro_batches_are_added_up() -> None:
    """By Megatron-DeepSpeed, of three in four micro-batches, 6 bytes each.

    Its BF16Optimizer moves 10 bytes, and Megatron-LM of 2022 adds them in the products.
    """
    rates = replace(stored_calibration().families["A100"], host_ns=0)
    options = PredictOptions(calibration={"A100": rates})

    def backward_ns(**changes: Any) -> float:
        run = built(row(**changes), "none", options)
        return decoder_cost(run).backward_ns

    matrices = 12 * 1024**2
    vectors = (3 + 1 + 4 + 1 + 4) * 1024
    byte_ns = (matrices + vectors) / (2039 * rates.memory_fraction)
    products = backward_ns(framework="Megatron-LM of 2022")
    deepspeed = {"framework": "Megatron-DeepSpeed"}
    for more, size in (
        ({}, 0.75 * 6),
        ({"precision_class": "bf16"}, 0.75 * 10),
        ({"global_batch": 2}, 0),
        ({"zero_stage": 2}, 0),
    ):
        added = backward_ns(**deepspeed, **more) - products
        assert added == pytest.approx(size * byte_ns)
    sc21 = "Megatron-LM SC21 Table 1 (Narayanan et al., arXiv 2104.04473)"
    assert backward_ns(source=sc21) == backward_ns(**deepspeed)


@pytest.mark.parametrize(
    ("changes", "extra_us"),
    [
        # 16 of 2 · 9 tensors begin at a rank each; 1 · 9 at nine ranks.
        ({}, 16 * (39.6 + 16 * 8.27)),
        ({"layers": 1}, 9 * (39.6 + 16 * 8.27)),
        ({"shard_mode": "within groups of 8"}, 8 * (39.6 + 8 * 1.4)),
        ({"tp": 8, "dp": 2, "global_batch": 4}, 2 * (39.6 + 2 * 8.27)),
        ({"zero_stage": 0}, 0),
        ({"framework": "DeepSpeed"}, 0),
    ],
)
def test_ranks_broadcast_their_tensors_in_turn(
    changes: dict[str, Any], extra_us: float
) -> None:
    """InternEvo under ZeRO 1; 8 devices of a node are 1.4 µs apart."""
    run = {"framework": "InternEvo", "num_devices": 16, "dp": 16}
    run |= {"global_batch": 32, "zero_stage": 1, **changes}
    found = case(**run)
    step_ns = score(found.problem, found.plan).step_time_ns
    predicted_s = prediction(**run).step_time_s
    assert predicted_s is not None
    assert 1e6 * predicted_s - float(step_ns) / 1e3 == pytest.approx(
        extra_us, rel=2e-3, abs=1e-3
    )


def test_fp4_takes_the_place_of_fp8() -> None:
    """At twice the peak; what is not in low precision stays, and casts move more."""
    run = {"hardware": "B200-180GB", "framework": "NeMo", "hidden": 8192}
    found = case(**run, precision_class="fp4")
    device = found.problem.cluster.device
    assert device.peak_flops["fp8"] == device.peak_flops["fp4"] == 9e15
    slower = case(**run, precision_class="fp8")
    assert slower.problem.cluster.device.peak_flops["fp8"] == 4.5e15
    fast_ns, slow_ns = (decoder_cost(run).forward_ns for run in (found, slower))
    assert fast_ns < slow_ns < 2 * fast_ns
    rates = machine_for("B200-180GB", None, 8).calibration
    site = machine_for("B200-180GB", None, 8)
    casts = [
        reached_by(row(**run, precision_class=name), software_of(row()), site)
        for name in ("fp8", "fp4")
    ]
    assert [x.calibration.cast_bytes for x in casts] == [
        rates.cast_bytes,
        1.5 * rates.cast_bytes,
    ]


EXPERTS = {
    "experts": 8,
    "topk": 2,
    "moe_ffn_hidden": 1024,
    "gated_mlp": True,
    "tp": 4,
    "dp": 4,
    "num_devices": 16,
    "micro_batch": 1,
}


@pytest.mark.parametrize(
    ("changes", "ep", "spread"),
    [
        # Megatron's default: experts are cut over all of tp.
        ({"ep": 4}, 4, False),
        # Whole, over 8 of 16 ranks: 2 beside each 4.
        ({"ep": 8, "etp": 1}, 2, True),
        ({"ep": 8, "notes": "expert tensor parallel 1 (not split)"}, 2, True),
        ({"ep": 8, "notes": '"expert-tensor-parallel-size":1,'}, 2, True),
        ({"ep": 8, "notes": "not split by TP (ETP 1)"}, 2, True),
        ({"ep": 4, "framework": "Megatron-Bridge", "model": "Kimi"}, 1, True),
        # No room for 8 beside all of tp.
        ({"ep": 8}, 2, True),
        # Without sequence parallelism, in part, or with copies: cut.
        ({"ep": 8, "etp": 1, "sp": False}, 2, False),
        ({"ep": 4, "model": "moe gpt3_te_tp4_ep4_etp2"}, 2, False),
        ({"ep": 2, "etp": 1}, 1, False),
    ],
)
def test_experts_over_tensor_parallel_ranks(
    changes: dict[str, Any], ep: int, spread: bool
) -> None:
    """Either way a device keeps the same weights of experts."""
    run = EXPERTS | {"framework": "NeMo", "sp": True} | changes
    found = case(**run)
    assert {s.ep for s in found.plan.stages[0].strategies or ()} == {ep}
    kinds = {kind.name: kind for kind in found.problem.graph.kinds}
    cost = kinds["decoder"].costs[0]
    axes = {c.axis for c in cost.collectives if c.kind == "all-to-all"}
    assert ("tp" in axes) == spread
    # 2 bytes x 8 experts of 3 x 1024 x 1024 over ep·tp ranks.
    expected = 2 * 8 * 3 * 1024**2 // (ep * 4)
    assert cost.expert_weight_bytes == expected


def test_fine_tuning_of_all_weights_is_training() -> None:
    assert prediction(model="LLAMA2-7B SFT").step_time_s == (prediction().step_time_s)
    both = "task SFT Performance; fine-tuning row (SFT/LoRA): different"
    assert prediction(notes=both).step_time_s == prediction().step_time_s


def test_what_a_row_switches_off_is_not_overlapped() -> None:
    nemo = {"framework": "NeMo"}
    none = case(**nemo, overlap="none (all overlap flags off)")
    assert none.plan.overlap == ()
    some = case(**nemo, overlap="gradient and parameter overlap off")
    assert some.plan.overlap == ("tp", "cp")
    more = case(**nemo, overlap="gradient and expert all-to-all overlap")
    assert more.plan.overlap == ("tp", "cp", "ep", "weights", "gradients")


def test_a_model_known_by_its_name() -> None:
    """52 blocks of three kinds between embedding and head, all in one."""
    named = complete(
        row(
            model="Nemotron_3_Nano",
            framework="Megatron-Bridge",
            hardware="GB200",
            precision_class="bf16",
            recompute=None,
            layers=None,
            hidden=None,
            heads=None,
            vocab=None,
            dp=8,
            num_devices=8,
            ep=8,
            global_batch=64,
        )
    )
    run = built(named, "full")
    assert len(run.problem.graph.kinds) == 5
    assert chosen(run) == ["none", *["full"] * 52, "none"]


def test_what_columns_cannot_say_of_a_model() -> None:
    """DeepSeek-V3's dense and sparse blocks, if the stated shape is its."""
    stated = {
        "model": "DeepSeek-V3",
        "framework": "Megatron-Core",
        "layers": 61,
        "hidden": 7168,
        "heads": 128,
        "vocab": 129280,
        "experts": 256,
        "topk": 8,
        "moe_ffn_hidden": 2048,
        "gated_mlp": True,
    }
    kinds = {kind.name for kind in case(**stated).problem.graph.kinds}
    assert kinds == {"embedding", "dense", "sparse", "head"}
    cut = case(**stated | {"layers": 4}).problem.graph.kinds
    assert {kind.name for kind in cut} == {"embedding", "decoder", "head"}


def test_a_file_with_only_what_is_needed() -> None:
    """Precision, dp, micro-batch and shape follow; nothing else is known."""
    (found,) = parse_rows(
        b"hardware,model,seq_len,global_batch,grad_accum,tp,pp,num_devices,"
        b"precision,tokens_per_s_per_gpu\n"
        b"H100,Llama 3 8B,8192,128,8,1,1,16,BF16,10000\n"
    )
    assert (found.dp, found.micro_batch, found.layers) == (16, 1, 32)
    assert len(found.assumed) == 4
    outcome = assess(found, predict)
    assert outcome.reason is None
    assert outcome.measured_s == pytest.approx(128 * 8192 / 160_000)
    assert outcome.predicted_s == pytest.approx(outcome.measured_s, rel=0.5)
