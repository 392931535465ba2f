"""Runs that are all off by one factor: which fact would explain it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from nest.calibration.causes import Cause, _switches_of, causes
from nest.calibration.runs import InvalidRunsError, learn, runs_of
from nest.validation.complete import complete
from nest.validation.flops import counted_flops
from nest.validation.predict import STORED, Prediction, predict
from nest.validation.rows import Row

#: Peaks in bf16, and networks that are usual with them.
DEVICES = {
    "H100-80GB-SXM": (989e12, "NDR 400 Gb/s per GPU"),
    "A100-80GB-SXM": (312e12, "HDR 200 Gb/s per GPU"),
}

_Run = tuple[str, int, int, float, dict[str, Any]]

#: What people run with tensor and pipeline parallelism, and with sharded weights:
#: model, devices, batch, and share of the peak on H100, attention in full.
MEGATRON: tuple[_Run, ...] = (
    ("llama3-8b", 8, 128, 0.42, {"tp": 2, "zero_stage": 1}),
    ("llama3-8b", 64, 512, 0.40, {"tp": 2, "zero_stage": 1}),
    ("llama3-70b", 64, 256, 0.43, {"tp": 8, "pp": 2, "zero_stage": 1}),
)
SHARDED: tuple[_Run, ...] = (
    ("llama3-8b", 8, 64, 0.40, {"zero_stage": 3, "recompute": "full"}),
    ("llama3-8b", 32, 128, 0.38, {"zero_stage": 3, "recompute": "full"}),
    ("llama3-70b", 64, 128, 0.38, {"zero_stage": 3, "recompute": "full"}),
)

WORDS = {
    "Megatron-LM": MEGATRON,
    "Megatron-LM core_v0.16.1": MEGATRON,
    "Megatron-Core": MEGATRON,
    "NeMo": MEGATRON,
    "NeMo 2.0": MEGATRON,
    "DeepSpeed": SHARDED,
    "HF Trainer": SHARDED,
    "torchtitan": SHARDED,
    "FSDP": SHARDED,
    "PyTorch": SHARDED,
}


def ordinary(device: str, framework: str, share: float = 1.0) -> list[Row]:
    """Return three runs as a person would write them down.

    An A100 reaches more of its peak than an H100, 44 to 50 %.
    """
    peak, network = DEVICES[device]
    rows = []
    for line, (model, count, batch, mfu, cells) in enumerate(WORDS[framework], 2):
        row = complete(
            Row(
                line=line,
                hardware=device,
                interconnect=network,
                devices_per_node=8,
                framework=framework,
                model=model,
                num_devices=count,
                global_batch=batch,
                micro_batch=1,
                seq_len=8192,
                precision_class="bf16",
                tp=1,
                pp=1,
                cp=1,
            )
        )
        row = complete(replace(row, dp=None, **cells))
        flops = counted_flops(row, causal=False)
        assert flops
        reached = mfu * share * peak * (1.16 if "A100" in device else 1)
        rows.append(replace(row, iter_time_s=flops / (reached * count)))
    return rows


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("framework", WORDS)
def test_ordinary_runs_are_believed_or_refused_with_the_cause(
    device: str, framework: str
) -> None:
    """Whatever word a person writes for the framework."""
    runs = runs_of(ordinary(device, framework))
    try:
        learned = learn(runs)
    except InvalidRunsError:
        with pytest.raises(InvalidRunsError, match=r"likely cause: \S+="):
            learn(runs)
        return
    assert 0.7 <= learned.factor <= 1.4
    assert 0.65 <= learned.after.values["every.slowdown"] <= 1.5


def run(**cells: Any) -> Row:
    """Return a run that takes what it is predicted to, as other cells have it."""
    row = complete(
        Row(
            hardware="A100-80GB-SXM",
            devices_per_node=8,
            num_devices=8,
            model="llama2-7b",
            global_batch=64,
            micro_batch=1,
            seq_len=4096,
            tp=1,
            pp=1,
            zero_stage=3,
            precision_class="bf16",
            framework="Megatron-Core",
            recompute="none",
        )
    )
    answer = predict(replace(row, **cells))
    assert isinstance(answer, Prediction)
    return replace(row, iter_time_s=answer.step_time_s)


@pytest.mark.parametrize(
    ("truth", "change"),
    [
        ({"attention_impl": "unfused", "seq_len": 16384}, "attention_impl=unfused"),
        ({"recompute": "full"}, "recompute=full"),
        ({"hardware": "H100-80GB-SXM"}, "hardware=H100-80GB-SXM"),
        ({"framework": "torchtitan", "notes": "torch.compile"}, "notes=torch.compile"),
        ({"framework": "torchtitan"}, "no torch.compile"),
    ],
)
def test_the_fact_that_is_false_is_found(truth: dict[str, Any], change: str) -> None:
    """It leaves a factor of 1."""
    length = truth.get("seq_len", 4096)
    row = replace(run(**truth), seq_len=length)
    if "framework" in truth:
        framework = "torchtitan" if "notes" in truth else "torchtitan, torch.compile"
        row = replace(row, framework=framework)
    by_change = {cause.change: cause for cause in causes([row, row], STORED)}
    assert by_change[change].factor == pytest.approx(1)
    assert by_change[change].explains


def test_only_software_that_may_be_compiled_is() -> None:
    """DeepSpeed's kernels are eager too, but no entry has them compiled."""
    for framework, expected in (
        ("PyTorch FSDP", ["notes=torch.compile"]),
        ("Transformers", ["notes=torch.compile"]),
        ("PyTorch FSDP, compiled", ["no torch.compile"]),
        *((name, []) for name in ("DeepSpeed", "Megatron-Core", "MaxText")),
    ):
        changes = _switches_of(replace(run(), framework=framework))
        told = [change for change, _ in changes if "torch.compile" in change]
        assert told == expected, framework


def test_other_devices_are_of_the_family_or_have_the_memory() -> None:
    changes = [change for change, _ in _switches_of(run())]
    assert "hardware=H100-80GB-SXM" in changes
    assert "hardware=A100-40GB-SXM" in changes
    assert not any("4090" in change for change in changes)


@pytest.mark.parametrize(
    ("change", "reading"),
    [
        (lambda row, s: {"iter_time_s": s / 8}, "iter_time_s of one micro-batch"),
        (
            lambda row, s: {"iter_time_s": None, "tokens_per_s_per_gpu": 64 * 4096 / s},
            "tokens_per_s_per_gpu of one node",
        ),
        (
            lambda row, s: {"iter_time_s": None, "samples_per_s": 8 / s},
            "samples_per_s of one device",
        ),
        (lambda row, s: {"global_batch": 8}, "global_batch of one data-parallel rank"),
    ],
)
def test_a_column_that_counts_something_else_is_found(
    change: Callable[[Row, float], dict[str, Any]], reading: str
) -> None:
    """64 samples on 8 devices of a node: 8 passes of each."""
    row = run()
    assert row.iter_time_s
    row = replace(row, **change(row, row.iter_time_s))
    by_change = {cause.change: cause.factor for cause in causes([row], STORED)}
    assert by_change[reading] == pytest.approx(1)


def test_without_an_explanation_the_nearest_is_named() -> None:
    """No fact makes a step 9.9 times as short as predicted."""
    row = run()
    assert row.iter_time_s
    (nearest,) = causes([replace(row, iter_time_s=row.iter_time_s / 50)], STORED)
    assert not nearest.explains
    assert nearest.factor < 0.5


def test_a_cause_says_what_it_leaves() -> None:
    assert Cause("overlap=none", 1.05).text == (
        "overlap=none (leaves a factor of 1.05)"
    )
    assert Cause("x", 1.24).explains
    assert not Cause("x", 1.26).explains
    assert Cause("x", 1 / 1.24).explains


def test_a_large_factor_without_a_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nest.calibration.runs.causes", lambda rows, options: [])
    row = run()
    assert row.iter_time_s
    row = replace(row, iter_time_s=row.iter_time_s / 1.5)
    rows = [replace(row, line=line) for line in (2, 3)]
    with pytest.raises(InvalidRunsError, match="no fact of these rows is known"):
        learn(runs_of(rows))


def test_a_large_factor_needs_to_be_accepted() -> None:
    """Twice as slow on the whole, which no software of these rows is."""
    rows = []
    for line, batch in enumerate((16, 32, 64), 2):
        row = replace(run(), line=line, global_batch=batch)
        answer = predict(row)
        assert isinstance(answer, Prediction)
        assert answer.step_time_s
        rows.append(replace(row, iter_time_s=2 * answer.step_time_s))
    with pytest.raises(
        InvalidRunsError,
        match=r"runs: expected step times near the predicted ones, got \S+ times as "
        r"long in the median \(line \d: .* s, predicted .* s\); (likely cause: \S+=|"
        r"no single fact explains it; nearest: \S+).* \(leaves a factor of .*; "
        r"framework 'Megatron-Core' is taken as 'Megatron-Core'; correct the rows, or "
        r"pass --accept to take the factor as the cluster's own$",
    ):
        learn(runs_of(rows))
    assert learn(runs_of(rows), accept=True).factor == pytest.approx(2, rel=0.2)
