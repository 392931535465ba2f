"""From a row of measurements to a problem, a plan and a prediction."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nest.hardware import machine_for
from nest.hardware.calibration import (
    Software,
    stored_calibration,
)
from nest.models.blocks import Attention, Block, Head, Mlp, Run, Tower
from nest.models.operators import (
    Execution,
    Split,
    block_node,
    embedding_node,
    head_node,
    layer_cost,
)
from nest.validation.predict import (
    ModelledRun,
    Prediction,
    PredictOptions,
    Skip,
    build,
    predict,
    recomputations,
)
from nest.validation.rows import Row


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
        framework="Megatron-LM",
        precision_class="fp16",
    )
    return replace(plain, **changes)


def case(**changes: Any) -> ModelledRun:
    found = build(row(**changes), "none")
    assert isinstance(found, ModelledRun), found
    return found


#: The model of :func:`row` as Megatron-LM trains it.
GPT = (
    Tower(
        runs=(
            Run(
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
    execution = Execution(
        dtype="fp16", flash_attention=False, fused_loss=False
    )
    kinds = {kind.name: kind.costs[0] for kind in found.problem.graph.kinds}
    tower, head = GPT
    nodes = {
        "embedding": embedding_node(tower, split, execution),
        "decoder": block_node(tower.runs[0].block, split, execution),
        "head": head_node(head, 1024, split, execution, norm_weights=2048),
    }
    pass_ns = 0.0
    for name, node in nodes.items():
        cost = layer_cost([(node, 1)], split, site, execution)
        assert kinds[name] == cost
        pass_ns += (2 if name == "decoder" else 1) * (
            cost.forward_ns + cost.backward_ns
        )
    weights = sum(
        (2 if name == "decoder" else 1) * node.weights
        for name, node in nodes.items()
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


def test_pipeline_chunks() -> None:
    """Layers spread evenly; embedding first, head last.

    6 layers over 4: 2, 2, 1, 1. 6 layers and 2 more divide by 4: embedding
    and head count as layers, two nodes a stage.
    """
    sizes = {
        layers: [
            len(stage.layers)
            for stage in case(layers=layers, pp=4, num_devices=4).plan.stages
        ]
        for layers in (8, 7, 6)
    }
    assert sizes == {8: [3, 2, 2, 3], 7: [3, 2, 2, 2], 6: [2, 2, 2, 2]}


def test_redistributed_layers() -> None:
    """A head that takes three layers' time has none beside it.

    8 layers over 4: embedding and 2 or 3, then 3 and 3, and the head, whose
    51200 · 1024 weights compare with 12 · 1024² of a layer: 4.2 layers.
    """
    found = case(
        layers=8,
        pp=4,
        num_devices=4,
        framework="Megatron-LM 1F1B Redis (layer redistribution)",
    )
    sizes = [len(stage.layers) for stage in found.plan.stages]
    assert sizes == [3, 3, 3, 1]


def test_interleaved_chunks() -> None:
    found = case(layers=8, pp=2, vpp=2, num_devices=2)
    assert found.plan.virtual_stages == 2
    assert [len(stage.layers) for stage in found.plan.stages] == [3, 2, 2, 3]
    # Without a pipeline there is nothing to interleave.
    assert case(layers=8, vpp=2).plan.virtual_stages == 1


@pytest.mark.parametrize(
    ("text", "group"),
    [
        ("", 16),
        ("ZeRO-1 within groups of 8", 8),
        ("FSDP within node (8)", 8),
        ("FSDP2 shard=4", 4),
        ("FSDP2 shard=3", 16),
        ("FSDP within slice (16), DP across 2 slice(s)", 16),
    ],
)
def test_sharding_groups(text: str, group: int) -> None:
    """States are sharded in groups; the groups are replicas."""
    found = case(
        dp=16,
        num_devices=16,
        global_batch=64,
        zero_stage=1,
        shard_mode=text,
    )
    assert found.plan.stages[0].strategies[0].dp == group
    assert found.plan.replicas == 16 // group
    assert found.plan.micro_batch == 2 * group


def test_only_layers_recompute() -> None:
    found = build(row(recompute="full"), "full")
    assert isinstance(found, ModelledRun)
    (stage,) = found.plan.stages
    assert [s.recompute for s in stage.strategies] == [
        "none",
        "full",
        "full",
        "none",
    ]


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
        ("selective (every other layer)", ()),
        ("selective (qkv_proj_offloaded)", ()),
        ("custom", ()),
    ],
)
def test_stated_recomputation(
    text: str | None, choices: tuple[str, ...]
) -> None:
    assert recomputations(row(recompute=text)) == choices


def test_selective_of_fsdp_recomputes_some_layers() -> None:
    fsdp = {"framework": "PyTorch FSDP + torch.compile"}
    assert recomputations(row(**fsdp, recompute="selective")) == ()
    assert recomputations(row(**fsdp, recompute="full")) == ("full",)


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


@pytest.mark.parametrize(
    ("framework", "precision", "sizes"),
    [
        ("Megatron-LM", "fp16", (2, 12, 0)),
        ("Megatron-LM", "bf16", (4, 12, 0)),
        ("Megatron-DeepSpeed", "fp16", (2, 16, 0)),
        ("Megatron-DeepSpeed", "bf16", (2, 12, 6)),
        ("NeMo 25.04", "bf16", (2, 12, 0)),
        ("Composer/llm-foundry FSDP", "bf16", (2, 12, 0)),
        ("nanotron", "bf16", (4, 12, 0)),
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


def kept_bytes(**changes: Any) -> int:
    kinds = case(**changes).problem.graph.kinds
    decoder = next(kind for kind in kinds if kind.name == "decoder")
    return decoder.costs[0].activations[0].kept_bytes


def test_attention_kernel() -> None:
    """Stated, or what the software has; fused keeps no 5 a s² b."""
    unfused = kept_bytes()
    assert kept_bytes(attention_impl="flash") < unfused / 2
    assert kept_bytes(attention_impl="unfused (pre-flash)") == unfused
    assert kept_bytes(framework="NeMo") < unfused / 2
    assert kept_bytes(framework="NeMo", attention_impl="torch") > unfused / 2


def test_first_flash_attention_is_half_as_fast() -> None:
    both = {"attention_impl": "flash", "seq_len": 8192}
    first = case(framework="Composer", **both).problem.graph.kinds
    later = case(framework="NeMo", **both).problem.graph.kinds
    assert first[1].costs[0].forward_ns > 1.2 * later[1].costs[0].forward_ns


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

    def forward_ns(name: str) -> float:
        kinds = case(**long, attention_impl=name).problem.graph.kinds
        return kinds[1].costs[0].forward_ns

    rates = stored_calibration().families["A100"]
    flops = 4 * 32768 * 16384 * 1024
    core_ns = flops / (312e3 * rates.attention_fraction * share)
    slower = forward_ns(text) - forward_ns("flash_attn2")
    fastest = flops / (312e3 * rates.attention_fraction)
    assert slower == pytest.approx(core_ns - fastest, rel=1e-6, abs=1)


def test_unfused_operators_of_a_framework() -> None:
    """Hagemann et al. name the kernel of RMSNorm where there is one.

    Their torch attention does not fuse the softmax either.
    """
    llama = {"gated_mlp": True, "ffn_hidden": 2816, "framework": "aleph"}

    def forward_ns(name: str, **more: Any) -> float:
        kinds = case(**llama, attention_impl=name, **more).problem.graph.kinds
        return kinds[1].costs[0].forward_ns

    fused = forward_ns("flash_attn2 + RMSNorm kernel")
    loose = forward_ns("flash_attn2")
    assert fused < loose < forward_ns("megatron") < forward_ns("torch")
    assert forward_ns("flash_attn2", notes="RMS kernel") == fused
    named = {"framework": None, "source": "Hagemann et al. 2311.05610"}
    assert build(row(**{**llama, **named}), "none") == build(
        row(**llama, source="Hagemann et al. 2311.05610"), "none"
    )


def test_overlap_of_software() -> None:
    stored = stored_calibration().software.overlap
    plain = case()
    assert (plain.problem.job.overlap, plain.plan.overlap) == ({}, ())
    nemo = case(framework="NeMo")
    assert set(nemo.plan.overlap) == {"tp", "cp", "weights", "gradients"}
    assert nemo.problem.job.overlap["tp"] == stored["tp"]


def test_memory_in_the_sense_of_the_row() -> None:
    """Largest of all, or last rank; nvidia-smi adds cache and reserve."""
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
        "buffers",
        "cached",
        "reserve",
    }


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
        launch_ns=2 * a100.launch_ns,
    )
    changed = build(row(), "none", PredictOptions(calibration={"A100": half}))
    assert isinstance(changed, ModelledRun)
    for before, after in zip(
        case().problem.graph.kinds, changed.problem.graph.kinds, strict=True
    ):
        assert after.costs[0].forward_ns == pytest.approx(
            2 * before.costs[0].forward_ns
        )
    software = Software(
        overlap=dict.fromkeys(stored.software.overlap, 0.25),
        cached_fraction=0.5,
    )
    options = PredictOptions(software=software)
    found = build(row(framework="NeMo"), "none", options)
    assert isinstance(found, ModelledRun)
    assert found.problem.job.overlap["weights"] == 0.25


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"layers": None}, "not stated: layers"),
        ({"hardware": None}, "unknown device"),
        ({"hardware": "Cerebras WSE-3"}, "unknown device"),
        ({"overlap": "schedule ZB-1p"}, "zero-bubble schedule"),
        ({"model": "LLAMA2-70B LoRA"}, "fine-tuning"),
        (
            {"precision_class": "fp4"},
            "precision that operators are not counted in",
        ),
        ({"recompute": "custom"}, "recomputation that no plan expresses"),
        ({"dp": 2}, "tp·cp·pp·dp is not the number of devices"),
        (
            {"global_batch": 7},
            "the micro-batches do not divide the global batch",
        ),
        ({"ep": 2, "experts": 4}, "expert parallelism over tensor parallel"),
        ({"pp": 4, "num_devices": 4}, "more pipeline stages than layers"),
        ({"precision_class": "fp8"}, "the device does not multiply fp8"),
        ({"heads": 12, "tp": 8, "num_devices": 8}, "tp does not divide"),
    ],
)
def test_reasons_to_skip(changes: dict[str, Any], reason: str) -> None:
    found = predict(row(**changes))
    assert isinstance(found, Skip)
    assert found.reason.startswith(reason)
