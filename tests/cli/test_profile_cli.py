"""``nest profile`` and ``nest import profile-csv``: texts and files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nest.models.blocks import Attention, Block, Head, Mlp, RepeatedBlock, Tower
from nest.profiles import load_profile, torch_profiler
from nest.profiles.format import decode_profile
from tests.cli.conftest import Cli
from tests.unit.profiles.test_profiles import GPT_TOWER, LINES, NAME, write_lines

TOY = SimpleNamespace(
    towers=(
        Tower(
            runs=(
                RepeatedBlock(
                    block=Block(
                        name="decoder",
                        hidden=32,
                        attention=Attention(heads=4, kv_heads=2, head_size=8),
                        mlp=Mlp(hidden=48, gated=True),
                    ),
                    count=2,
                ),
            ),
            vocabulary=300,
        ),
    ),
    head=Head(outputs=300),
    max_sequence=16,
    why_not_split=lambda tp, cp, ep, sequence_length: (
        None if 4 % tp == 0 else f"tp: expected a divisor of 4, got {tp}"
    ),
)
GPT = SimpleNamespace(towers=(GPT_TOWER,), head=Head(outputs=51200, tied=True))
TWO = SimpleNamespace(towers=(GPT_TOWER, GPT_TOWER), head=GPT.head)


@pytest.fixture(autouse=True)
def _models(monkeypatch: pytest.MonkeyPatch) -> None:
    from nest.models import zoo

    real = zoo.architecture
    known = {"toy": TOY, "gpt-toy": GPT, "two": TWO}
    monkeypatch.setattr(
        zoo, "architecture", lambda name: known[name] if name in known else real(name)
    )


def test_a_model_is_profiled(cli: Cli, torch: Any) -> None:
    options = "--device cpu --warm-up 0 --repeats 1 --tp 1,2 --samples 1,3"
    cli.succeeds("profile --model toy -o profile.json", *options.split())
    profile = load_profile("profile.json")
    assert [(e.kind, e.tp, e.samples) for e in profile.entries] == [
        (kind, tp, samples)
        for kind in ("embedding", "decoder", "head")
        for tp in (1, 2)
        for samples in (1, 3)
    ]
    assert {e.sequence_length for e in profile.entries} == {16}
    assert (profile.warm_up, profile.repeats) == (0, 1)
    assert profile.sequence_parallel
    assert cli.err.splitlines()[-1] == "head tp=2 samples=3"
    table = cli.out.splitlines()
    assert table[0].split() == [
        "layer",
        "tp",
        "ep",
        "samples",
        "forward_ms",
        "backward_ms",
        "TFLOP/s",
        "kept_MiB",
    ]
    assert len([line for line in table if line.startswith("decoder")]) == 4


def test_layers_and_settings_are_chosen(cli: Cli, torch: Any) -> None:
    options = (
        "--device cpu --repeats 1 --layers head,embedding --dtype fp32 "
        "--sequence-length 8 --no-sequence-parallel --device-name chip -o -"
    )
    cli.succeeds("profile --model toy", *options.split())
    profile = decode_profile(cli.out.encode())
    assert [e.kind for e in profile.entries] == ["head", "embedding"]
    assert {e.sequence_length for e in profile.entries} == {8}
    assert not profile.sequence_parallel
    assert (profile.dtype, profile.device) == ("fp32", "chip")
    assert "forward_ms" in cli.err


def test_without_pytorch_one_line_says_what_to_install(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_profiler.util, "find_spec", lambda name: None)
    assert cli.refuses("profile --model toy -o -") == (
        "nest profile: expected package 'torch', got none; install it with: "
        "pip install 'nest-planner[profile]'"
    )


def test_per_operator_files_are_imported(cli: Cli, tmp_path: Path) -> None:
    source = write_lines(tmp_path / NAME)
    options = "--model gpt-toy --device V100-16GB-SXM2"
    cli.succeeds(f"import profile-csv {tmp_path} {options} -o -")
    written = decode_profile(cli.out.encode())
    cli.succeeds(f"import profile-csv {source} {options} -o profile.json")
    assert load_profile("profile.json") == written
    assert written.device == "V100-16GB-SXM2"
    assert [e.forward_ns for e in written.entries] == [50e3, 573e3, 910e3]
    row = next(x for x in cli.out.splitlines() if x.startswith("decoder"))
    # 13.96 + 27.92 GFLOP in 0.573 + 1.107 ms.
    assert row.split() == [
        *("decoder", "1", "1", "1", "0.573", "1.107", "24.93", "27.0")
    ]


def test_milliseconds_for_microseconds_are_refused(cli: Cli, tmp_path: Path) -> None:
    lines = tuple((x[0], x[1] / 1e3, x[2] / 1e3, *x[3:]) for x in LINES)
    path = write_lines(tmp_path / NAME, lines)
    said = cli.refuses(
        f"import profile-csv {path} --model gpt-toy --device V100-16GB-SXM2 -o -"
    )
    assert said == (
        f"{path}:4: forward-compute: expected >= 25.265 (3.221e+09 FLOP at "
        f"125 TFLOP/s), got 0.1; check the units: forward-compute is in µs"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "--model two --device V100-16GB-SXM2",
            "--model: expected a decoder-only model, got two; choose the "
            "model that was profiled",
        ),
        (
            "--device V100-16GB-SXM2",
            "nest import profile-csv: expected --model, got none; see 'nest "
            "import profile-csv --help'",
        ),
    ],
)
def test_what_cannot_be_imported_is_refused(
    cli: Cli, tmp_path: Path, options: str, message: str
) -> None:
    path = str(write_lines(tmp_path / NAME))
    assert cli.refuses(f"import profile-csv {path} {options} -o -") == message


def test_an_unknown_device_is_refused(cli: Cli, tmp_path: Path) -> None:
    path = str(write_lines(tmp_path / NAME))
    said = cli.refuses(f"import profile-csv {path} --model gpt-toy --device V101 -o -")
    assert "got 'V101'" in said


def test_the_source_is_not_overwritten(cli: Cli, tmp_path: Path) -> None:
    path = str(write_lines(tmp_path / NAME))
    said = cli.refuses(
        f"import profile-csv {path} --model gpt-toy --device V100-16GB-SXM2 -o {path}"
    )
    assert said.startswith(f"-o: expected another file than for {path}, got")
