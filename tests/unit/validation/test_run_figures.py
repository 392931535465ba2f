"""What cells of a run may say, and what its figures say about each other."""

from __future__ import annotations

import pytest

from nest.units import GIB
from nest.validation.report import assess, details_csv, validation_document
from nest.validation.rows import measured_memory_bytes, why_no_memory
from nest.validation.software import meant_software
from nest.validation.usable import impossible, why_unusable
from nest.validation.words import not_understood
from tests.unit.validation.test_validation import TIMED, make, time_s

# Memory


@pytest.mark.parametrize("unit", ["", "GB", "gb", "GiB", "GB as printed"])
def test_memory_in_any_unit_is_held_against_the_device(unit):
    """An A100 has 80 GiB less what the driver keeps, whatever GB means."""
    why = impossible(make(peak_mem_gb="500", mem_unit=unit))
    assert why is not None
    assert why.startswith("memory: expected at most 79.")


def test_memory_in_mebibytes():
    assert measured_memory_bytes(make(peak_mem_gb="2048", mem_unit="MiB")) == (2 * GIB)


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        ({"mem_unit": "percent"}, "mem_unit 'percent': expected GiB or MiB"),
        ({"mem_class": "formula"}, "mem_class 'formula': not measured"),
        ({}, None),
        ({"peak_mem_gb": ""}, None),
    ],
)
def test_memory_that_is_not_compared_says_why(cells, text):
    assert why_no_memory(make(**{"peak_mem_gb": "40"} | cells)) == text


def test_memory_that_is_not_compared_is_counted():
    row = make(peak_mem_gb="40", mem_unit="percent")
    document = validation_document([assess(row, lambda row: time_s(1.0))])
    assert document["memory"]["left_out"] == {
        "mem_unit 'percent': expected GiB or MiB": 1
    }
    assert document["memory"]["used"] == 0


# Cells


@pytest.mark.parametrize(
    ("cells", "text"),
    [
        (
            {"mem_class": "torch_alocated"},
            "mem_class: expected nvidia-smi, torch_allocated, "
            "torch_allocated_last_rank, torch_reserved, formula, unspecified "
            "(the nearest is torch_allocated), got 'torch_alocated'",
        ),
        ({"zero_stage": "7"}, "zero_stage: expected an integer >= 0 and <= 3, got '7'"),
    ],
)
def test_cells_that_hold_one_of_a_few_values(cells, text):
    row = make(**cells)
    assert row.unreadable == (text,)
    (column,) = cells
    reason = why_unusable(row)
    assert reason is not None
    assert reason.reason == f"unreadable cell: {column}"
    document = validation_document([assess(row, lambda row: time_s(1.0))])
    assert document["unreadable"] == [f"line 2: {text}"]


@pytest.mark.parametrize(
    ("cells", "detail"),
    [
        (
            {"experts": "8", "topk": "9"},
            "topk 9, experts 8: no more experts than there are",
        ),
        (
            {"heads": "8", "kv_heads": "3"},
            "heads 8, kv_heads 3: a whole number of heads for each",
        ),
        (
            {"experts": "8", "topk": "2", "ep": "3"},
            "experts 8, ep 3: as many experts on every rank",
        ),
    ],
)
def test_shapes_that_contradict_themselves(cells, detail):
    assert why_unusable(make(**cells)) == (
        "the model's shape contradicts itself",
        detail,
    )


# Figures


def test_every_figure_is_held_against_the_peak():
    """As of iter_time_s: 1.01 ms are needed, 1e10 tokens/s are not."""
    fast = {"iter_time_s": "1", "tokens_per_s_per_gpu": "1e10"}
    why = impossible(make(**TIMED, **fast))
    assert why is not None
    assert why.startswith("step time: expected at least 0.00101 s")
    assert why.endswith("s, by tokens_per_s_per_gpu; correct the row")


def test_figures_are_of_one_step():
    """8 samples at 4 per second are a step of 2 s."""
    assert impossible(make(iter_time_s="2.03", samples_per_s="4")) is None
    assert impossible(make(iter_time_s="2.2", samples_per_s="4")) == (
        "samples_per_s: expected a figure of the same step as iter_time_s, "
        "2.2 s, got one of 2 s; correct or remove one"
    )


def test_flops_are_of_the_same_step():
    """Megatron-LM's count of :data:`TIMED` of one step in 1 s.

    4 layers of 12 · 1024² weights and 12 · 1024 · 1024 for attention, 8192
    tokens, with the head 6 · 1024 · 1000: 2.9e12 FLOPs on 8 devices.
    """
    kind = "model (Megatron-LM num_floating_point_operations; non-causal attention)"
    flops = 4 * (72 * 1024**2 + 12 * 1024**2) + 6 * 1024 * 1000
    rate = flops * 8192 / 8 / 1e12
    cells = TIMED | {"iter_time_s": "1", "tflops_kind": kind}
    assert impossible(make(**cells, tflops_per_gpu=str(rate))) is None
    why = impossible(make(**cells, tflops_per_gpu=str(2 * rate)))
    assert why is not None
    assert why.startswith(
        "tflops_per_gpu: expected a figure of the same step as iter_time_s, "
        "1 s, got one of 0.5 s as Megatron-LM"
    )


def test_no_device_does_more_than_its_peak():
    assert impossible(make(tflops_per_gpu="300")) is None
    assert impossible(make(tflops_per_gpu="400")) == (
        "tflops_per_gpu: expected at most 312, the peak of A100-80GB-SXM "
        "in bf16, got 400; correct the row"
    )
    assert impossible(make(mfu="45")) == (
        "mfu: expected a fraction up to 1, got 45; divide per cent by 100"
    )


# Words


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ({}, {}),
        ({"framework": "Megatron-LM"}, {}),
        ({"framework": "bananas"}, {"framework": "bananas"}),
        ({"framework": "not stated"}, {}),
        ({"interconnect": "8x200 Gb/s per node"}, {}),
        ({"interconnect": "NDR"}, {}),
        ({"interconnect": "single node NVLink"}, {}),
        ({"interconnect": "1 Gb/s Ethernet"}, {}),
        ({"interconnect": "DGX node NVLink/NVSwitch"}, {}),
        ({"interconnect": "NVLink; 5 Gb/s x"}, {"interconnect": "NVLink; 5 Gb/s x"}),
        ({"interconnect": "very fast"}, {"interconnect": "very fast"}),
        ({"interconnect": "dual 100G RoCE"}, {"interconnect": "dual 100G RoCE"}),
        ({"interconnect": "RoCE 200"}, {"interconnect": "RoCE 200"}),
        ({"interconnect": "RDMA"}, {"interconnect": "RDMA"}),
        ({"interconnect": "RDMA, 400 Gb/s per GPU"}, {}),
        ({"interconnect": "200 Gb/s RoCE"}, {"interconnect": "200 Gb/s RoCE"}),
        ({"interconnect": "400 Gb/s InfiniBand per node"}, {}),
        ({"interconnect": "NVL72", "hardware": "GB200"}, {}),
        ({"interconnect": "NVL72", "hardware": "H100"}, {"interconnect": "NVL72"}),
        ({"overlap": "none (all off)"}, {}),
        ({"overlap": "schedule ZB-1p"}, {}),
        ({"overlap": "schedule of ours"}, {"overlap": "schedule of ours"}),
        ({"overlap": "lots"}, {"overlap": "lots"}),
        ({"attention_impl": "flash"}, {}),
        ({"attention_impl": "ours"}, {"attention_impl": "ours"}),
    ],
)
def test_words_that_no_rule_reads(cells, found):
    assert not_understood(make(**cells)) == found


def test_words_that_no_rule_reads_are_told_once_per_column():
    rows = [make(overlap="lots"), make(overlap="more"), make()]
    outcomes = [assess(row, lambda row: time_s(1.0)) for row in rows]
    assert validation_document(outcomes)["not_understood"] == [
        "overlap of 2 rows not understood, so as the device and the software "
        "have it: 'lots' (line 2)"
    ]
    details = details_csv(outcomes).splitlines()
    assert "overlap: lots" in details[1]


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("RoCE 200", ", taken as 200 Gb/s per device"),
        ("dual 100G RoCE", ", taken as 25 Gb/s per device"),
        ("dual-port 200 Gb/s RoCE", ", taken as 50 Gb/s per device"),
        ("OCI RDMA cluster network", ", taken as 400 Gb/s per device"),
        ("400 Gb/s InfiniBand", ", taken as 50 Gb/s per device"),
        ("0 Gb/s InfiniBand", ""),
    ],
)
def test_what_an_uncertain_network_is_taken_for_is_told(text, taken):
    row = make(interconnect=text, hardware="H100-80GB-SXM", devices_per_node=8)
    (line,) = validation_document([assess(row, lambda row: time_s(1.0))])[
        "not_understood"
    ]
    assert line.endswith(f"{text!r} (line 2){taken}")


def test_a_misspelt_software_is_asked_for():
    outcomes = [assess(make(framework="Megtron-LM"), lambda row: time_s(1.0))]
    assert validation_document(outcomes)["not_understood"] == [
        "framework of 1 row not understood, so as the device and the software "
        "have it: 'Megtron-LM' (line 2), did you mean 'Megatron-LM'?"
    ]


@pytest.mark.parametrize(
    ("name", "question"),
    [
        ("DeepSped release 0.9.3", "did you mean 'DeepSpeed'?"),
        ("torchtitn", "did you mean 'torchtitan'?"),
        ("torchax", ""),
        ("DeepSpeed release 0.9.3", ""),
        ("our own", ""),
        ("", ""),
    ],
)
def test_only_names_near_to_a_known_one_are_asked_for(name, question):
    assert meant_software(name) == question


@pytest.mark.parametrize(
    ("text", "told"),
    [
        # Ten words of five letters and nine blanks: 59 characters.
        (" ".join(["lots!"] * 10), " ".join(["lots!"] * 10)),
        # With an eleventh one ten and a blank are 60, and the mark a 61st.
        (" ".join(["lots!"] * 11), " ".join(["lots!"] * 9) + " …"),
        (f"{'x' * 50} --tp-comm-overlap", f"{'x' * 50} …"),
        ("x" * 61, "x" * 59 + "…"),
    ],
)
def test_texts_that_are_told_end_with_a_word(text, told):
    outcomes = [assess(make(overlap=text), lambda row: time_s(1.0))]
    assert validation_document(outcomes)["not_understood"] == [
        f"overlap of 1 row not understood, so as the device and the software "
        f"have it: {told!r} (line 2)"
    ]
