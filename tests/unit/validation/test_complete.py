"""What the stated cells of a row imply, and what is known of software."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from nest.util.stored import read_stored
from nest.validation.complete import KNOWN_MODELS, architecture_of, complete
from nest.validation.rows import Row
from nest.validation.software import MATCHERS, SOFTWARE, software_of, year_of


def filled(**cells: Any) -> Row:
    return complete(Row(**cells))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("bf16", "bf16"),
        ("BF16 autocast + fp32 optimizer", "bf16"),
        ("float16", "fp16"),
        ("mxfp8", "fp8"),
        ("fp8-cs", "fp8"),
        ("float8 tensorwise", "fp8"),
        ("nvfp4", "fp4"),
        ("int8 (AQT) matmuls", "int8"),
        ("fp8 or fp4 (not extracted)", None),
        ("fp32", None),
    ],
)
def test_the_class_of_a_precision(text: str, found: str | None) -> None:
    row = filled(precision=text)
    assert row.precision_class == found
    assert filled(precision=text, precision_class="x").precision_class == "x"
    assert row.assumed == (
        () if found is None else (f"precision_class: precision {text}",)
    )


@pytest.mark.parametrize(
    ("cells", "num_devices", "dp"),
    [
        ({"num_devices": 64, "tp": 2, "pp": 4}, 64, 8),
        ({"num_devices": 64, "tp": 2, "pp": 4, "cp": 2}, 64, 4),
        ({"dp": 3, "tp": 2, "pp": 4}, 24, 3),
        ({"num_devices": 60, "tp": 8, "pp": 1}, 60, None),
        ({"tp": 2, "pp": 4}, None, None),
        ({"num_devices": 8, "dp": 8}, 8, 8),
        ({"num_devices": 8, "tp": 8}, 8, None),
    ],
)
def test_devices_are_the_product_of_the_degrees(
    cells: dict[str, int], num_devices: int | None, dp: int | None
) -> None:
    row = filled(**cells)
    assert (row.num_devices, row.dp) == (num_devices, dp)


def test_functional_tests_run_on_one_node() -> None:
    test = {"framework": "Megatron-Core @HEAD (dev)", "tp": 2, "pp": 2}
    row = filled(**test, hardware="A100-80GB-SXM", model="gpt tp2_pp2")
    assert (row.num_devices, row.dp) == (8, 2)
    assert row.assumed == (
        "dp, num_devices: Megatron-Core, functional tests: devices of a job",
    )
    small = filled(**test, hardware="GB200", model="gpt tp2_pp2_1node")
    assert (small.num_devices, small.dp) == (4, 1)
    release = filled(**test, hardware="H100", model="release gpt 15b")
    assert (release.num_devices, release.dp) == (None, None)


@pytest.mark.parametrize(
    ("cells", "micro_batch"),
    [
        ({"global_batch": 64, "dp": 8, "grad_accum": 4}, 2),
        ({"global_batch": 64, "dp": 8, "grad_accum": 3}, None),
        ({"global_batch": 64, "dp": 64}, 1),
        ({"global_batch": 64, "dp": 8}, None),
        ({"global_batch": 63, "dp": 8, "grad_accum": 1}, None),
        ({"global_batch": 64, "grad_accum": 4}, None),
    ],
)
def test_the_micro_batch_that_batch_and_steps_leave(
    cells: dict[str, int], micro_batch: int | None
) -> None:
    assert filled(**cells).micro_batch == micro_batch


def test_the_vocabulary_of_a_model_known_by_its_name() -> None:
    source = "Zero Bubble Pipeline Parallelism Table 4"
    row = filled(model="GPT 6.2B", source=source, layers=30, hidden=4096)
    assert (row.vocab, row.heads) == (32000, None)
    assert row.assumed[0].startswith("vocab: arXiv 2401.10241, table 3")
    assert filled(model="GPT 6.2B", source="x", layers=30).vocab is None
    assert filled(model="GPT 6.2B", source=source, vocab=7).vocab == 7


def test_a_shape_that_columns_can_say() -> None:
    row = filled(model="Nemotron-22B")
    assert (row.layers, row.hidden, row.heads) == (40, 6144, 48)
    assert (row.ffn_hidden, row.gated_mlp, row.vocab) == (24576, False, 256000)
    assert architecture_of(row) is None
    # A stated depth is another model: its shape is not filled in.
    cut = filled(model="Nemotron-22B", layers=4)
    assert (cut.layers, cut.hidden, cut.vocab) == (4, None, 256000)


@pytest.mark.parametrize(
    ("name", "layers", "billions", "active"),
    [
        ("Nemotron_3_Nano", 52, 31.6, 3.6),
        ("Nemotron_3_5_Lightning", 52, 31.6, 3.6),
        ("nemotron-3-super-120b-a12b", 88, 120.7, 12.8),
    ],
)
def test_a_shape_that_columns_cannot_say(
    name: str, layers: int, billions: float, active: float
) -> None:
    """The counts are those that the models are published with."""
    row = filled(model=name)
    model = architecture_of(row)
    assert model is not None
    assert row.layers == model.layers == layers
    assert model.parameters / 1e9 == pytest.approx(billions, abs=0.05)
    assert model.active_parameters / 1e9 == pytest.approx(active, abs=0.05)
    assert row.experts in (128, 512)
    assert architecture_of(filled(model=name, layers=4)) is None


@pytest.mark.parametrize(
    ("name", "zoo"),
    [
        ("LLAMA3_70B", "llama3-70b"),
        ("Llama 3.1 405B", "llama3-405b"),
        ("Qwen2.5-7B", "qwen2.5-7b"),
        ("mixtral-8x7b", "mixtral-8x7b"),
    ],
)
def test_models_of_the_zoo(name: str, zoo: str) -> None:
    """By their names, however these are written; stated shapes stand."""
    row = filled(model=name)
    model = architecture_of(row)
    assert model is not None
    assert model.name == zoo
    stated = filled(model=name, layers=row.layers, hidden=row.hidden, heads=row.heads)
    assert (stated.vocab, architecture_of(stated)) == (row.vocab, None)


def test_unknown_models_stay_unknown() -> None:
    for name in ("T5-large", "Llama", "a model", None):
        row = filled(model=name)
        assert (row.layers, architecture_of(row), row.assumed) == (None, None, ())


def test_known_models_have_a_source_each() -> None:
    for known in KNOWN_MODELS:
        assert known.reference
        ways = (bool(known.columns), bool(known.zoo), bool(known.config))
        assert ways.count(True) == 1


# Software


def test_every_stated_fact_of_software_has_a_source() -> None:
    stored = read_stored("nest.validation", "software", list[dict[str, Any]])
    for entry in stored:
        # The kind sums up what other facts say.
        facts = set(entry) - {*MATCHERS, "kind"}
        sources = entry.get("sources", {})
        assert facts <= set(sources) or "" in sources, entry["name"]
        assert set(sources) - {""} <= facts, entry["name"]
        assert all(sources.values())


def test_names_of_software_are_distinct_and_known() -> None:
    names = [entry.name for entry in SOFTWARE]
    assert len(set(names)) == len(names)
    assert all(entry.based_on in ("", *names) for entry in SOFTWARE)
    assert SOFTWARE[-1].matches(Row())
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"name": "x", "color": 1}, type(SOFTWARE[0]))


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({}, "unknown software"),
        ({"framework": "megatron-lm"}, "Megatron-LM"),
        ({"framework": "megatron lm"}, "Megatron-LM"),
        ({"framework": "Megatron_LM"}, "Megatron-LM"),
        ({"framework": "Megatron LM core 0.13"}, "Megatron-LM"),
        ({"framework": "HF Trainer with Liger"}, "Hugging Face, Liger kernels"),
        ({"framework": "Megatron-LM", "source": "a page of 2024"}, "Megatron-LM"),
        ({"framework": "Megatron-LM core_v0.13"}, "Megatron-LM"),
        ({"framework": "Megatron-LM v2.4"}, "Megatron-LM 1 to 3"),
        ({"framework": "Megatron-LM", "hardware": "V100-32GB"}, "Megatron-LM on V100"),
        (
            {"framework": "Megatron-LM", "source": "SC 21, Table 9"},
            "Megatron-LM to 2022",
        ),
        (
            {
                "framework": "Megatron-LM",
                "source": "arXiv 2205.05198",
                "precision_class": "bf16",
            },
            "Megatron-LM to 2022, bf16",
        ),
        ({"framework": "Megatron-LLaMA"}, "Megatron-LLaMA"),
        ({"framework": "Megatron-SWIFT"}, "Megatron, later than 2022"),
        ({"framework": "Alibaba Megatron Core"}, "Megatron-Core"),
        ({"framework": "NeMo"}, "NeMo"),
        ({"framework": "NeMo 2.0"}, "NeMo"),
        ({"framework": "NeMo 24.07"}, "NeMo"),
        ({"framework": "NeMo 23.05"}, "NeMo of 2022 and 2023"),
        ({"framework": "NeMo", "source": "blog, 2022"}, "NeMo of 2022 and 2023"),
        ({"framework": "NeMo 1.18"}, "NeMo 1.0 to 1.22"),
        ({"framework": "NVIDIA NeMo AutoModel 26.02"}, "NeMo AutoModel"),
        ({"framework": "DeepSpeed"}, "DeepSpeed"),
        ({"framework": "HF Trainer with DeepSpeed"}, "DeepSpeed"),
        ({"framework": "DeepSpeed ZeRO-3", "source": "SC21"}, "DeepSpeed to 2022"),
        ({"framework": "XTuner + DeepSpeed"}, "XTuner and ATorch"),
        ({"framework": "HF Trainer"}, "Hugging Face"),
        ({"framework": "torchtitan (FSDP2)"}, "torchtitan"),
        (
            {"framework": "torchtitan", "notes": "with torch.compile"},
            "torchtitan, compiled",
        ),
        ({"framework": "torchtitan", "notes": "no compile stated"}, "torchtitan"),
        ({"framework": "FSDP"}, "PyTorch, eager"),
        ({"framework": "PyTorch 2.4"}, "PyTorch, eager"),
        ({"framework": "PyTorch FSDP + torch.compile"}, "PyTorch, compiled"),
        ({"framework": "FSDPlike"}, "unknown software"),
        ({"framework": "Megatron-LM + ZB-1p"}, "Zero Bubble"),
        ({"framework": "Megatron-LM 1F1B Baseline"}, "Vocabulary Parallelism"),
        ({"source": "Hagemann et al. 2311.05610"}, "Hagemann et al."),
        (
            {
                "framework": "Megatron-Bridge/Megatron-Core 26.06",
                "model": "LLAMA3_8B",
                "hardware": "GB200",
                "precision_class": "fp8",
            },
            "Megatron-Bridge, Llama 3 8B on Blackwell",
        ),
        (
            {
                "framework": "Megatron-Bridge/Megatron-Core 26.06",
                "model": "LLAMA3_8B",
                "hardware": "H100-80GB-SXM",
                "precision_class": "fp8",
            },
            "Megatron-Bridge",
        ),
        ({"framework": "NeMo/Megatron-Core (ROCm)", "source": "MLPerf"}, "NeMo"),
        (
            {
                "framework": "Megatron-Core (Megatron-LM @x)",
                "source": "MooreThreads SimuMax",
            },
            "Megatron-Core in SimuMax's runs",
        ),
    ],
)
def test_the_entry_of_a_row(cells: dict[str, str], name: str) -> None:
    assert software_of(Row(**cells)).name == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("release", "model", "hardware", "precision", "facts"),
    [
        # Whether kernels are replayed and grouped products fused, whether
        # the all-to-all overlaps, and whether tokens are dispatched once.
        ("26.06", "DeepSeekV3", "GB300", "fp8", (True, True, True)),
        ("26.06", "DeepSeekV3", "GB300", "bf16", (False, False, True)),
        ("26.06", "DeepSeekV3", "B300", "fp8", (False, False, True)),
        ("26.06.01", "DeepSeekV3", "B300", "fp8", (True, True, True)),
        ("26.04.01", "DeepSeekV3", "GB300", "fp8", (False, False, True)),
        ("26.04", "DeepSeekV3", "B200-180GB", "fp8", (False, False, True)),
        ("26.04.01", "DeepSeekV3", "B200-180GB", "fp8", (False, True, True)),
        ("26.06", "Qwen3_30B_a3B", "B300", "fp8", (True, True, True)),
        ("26.06", "Kimi_K2", "GB300", "fp8", (False, False, True)),
        ("26.08", "Kimi_K2", "GB300", "fp8", (True, True, True)),
        ("26.06", "GPT OSS 120B", "GB200", "fp8", (True, True, True)),
        ("26.04", "Qwen3_235B_a22B", "H100", "fp8", (False, True, False)),
        ("26.04", "Qwen3_235B_a22B", "B300", "fp8", (False, False, False)),
        ("26.06", "Llama3_70B", "GB300", "fp8", (False, False, False)),
    ],
)
def test_facts_of_experts_go_by_release(
    release: str,
    model: str,
    hardware: str,
    precision: str,
    facts: tuple[bool, bool, bool],
) -> None:
    found = software_of(
        Row(
            framework=f"Megatron-Bridge/Megatron-Core {release} NeMo",
            model=model,
            hardware=hardware,
            precision_class=precision,
        )
    )
    assert facts == (found.cuda_graphs, "ep" in found.overlap, found.dispatch_once)
    assert found.fused_experts == found.cuda_graphs


def test_facts_come_from_what_an_entry_is_based_on() -> None:
    facts = {entry.name: entry for entry in SOFTWARE}
    core = facts["Megatron-Core"]
    bridge = facts["Megatron-Bridge, Llama 3 8B on Blackwell"]
    assert bridge.overlap == core.overlap
    assert (bridge.gradient_bytes, core.gradient_bytes) == (2, 4)
    assert bridge.cuda_graphs
    assert not core.cuda_graphs
    assert facts["Megatron-Core, functional tests"].host_share == 2.6
    assert (bridge.fused_router, core.fused_router) == (True, False)


@pytest.mark.parametrize(
    ("framework", "source", "year"),
    [
        ("NeMo 24.03.01/25.04", "2022", 2024),
        ("Megatron-Core 2025-04", None, 2025),
        (None, "MegaScale (NSDI 24, arXiv 2402.15627) Table 2", 2024),
        ("Megatron-LM core_v0.16.1", "SC21 Table 2 (arXiv 2104.04473)", 2021),
        ("Megatron-LM @20231105ab", "MLPerf Training v4.1, 12.5 s", None),
    ],
)
def test_the_year_of_a_row(
    framework: str | None, source: str | None, year: int | None
) -> None:
    """That of the release goes before that of the source."""
    assert year_of(Row(framework=framework, source=source)) == year


def test_only_the_last_entry_is_of_unknown_software() -> None:
    assert [entry.name for entry in SOFTWARE if not entry.is_known] == [
        "unknown software"
    ]
    assert not software_of(Row(framework="a trainer of our own")).is_known


def test_virtual_stages_of_coarse_experts() -> None:
    """One layer a chunk in one paper's models, not in fine-grained ones."""
    paper = {"framework": "Megatron-Core 2025-04"}
    chunks = [
        software_of(Row(model=model, **paper)).chunk_layers
        for model in ("Mixtral 8x22B", "Mixtral-8x22B-G8T8")
    ]
    assert chunks == [1, 0]
