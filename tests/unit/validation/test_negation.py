"""Words that a text denies are not what ran."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from nest.validation.negation import affirmed, says
from nest.validation.rows import Row
from nest.validation.settings import has_cuda_graphs
from nest.validation.software import COMPILED, SOFTWARE, software_of
from nest.validation.words import not_understood


@pytest.mark.parametrize(
    ("cells", "name"),
    [
        ({"framework": "torchtitan without torch.compile"}, "torchtitan"),
        ({"framework": "torchtitan, no torch.compile"}, "torchtitan"),
        ({"framework": "torchtitan w/o torch.compile"}, "torchtitan"),
        ({"framework": "PyTorch (eager, no torch.compile)"}, "PyTorch, eager"),
        ({"framework": "PyTorch FSDP, not compiled"}, "PyTorch, eager"),
        ({"framework": "torchtitan", "notes": "torch.compile disabled"}, "torchtitan"),
        ({"framework": "torchtitan", "notes": "torch.compile=0"}, "torchtitan"),
        ({"framework": "torchtitan", "notes": "compile: false"}, "torchtitan"),
        ({"framework": "torchtitan", "notes": "torch.compile is off"}, "torchtitan"),
        ({"framework": "torchtitan + compile"}, "torchtitan, compiled"),
        (
            {"framework": "torchtitan", "notes": "compile.enable = true"},
            "torchtitan, compiled",
        ),
        ({"framework": "Transformers + torch.compile"}, "Hugging Face, compiled"),
        ({"framework": "plain PyTorch, not Megatron-LM"}, "PyTorch, eager"),
        ({"framework": "PyTorch instead of Megatron-LM"}, "PyTorch, eager"),
        ({"framework": "not Megatron-LM but torchtitan"}, "torchtitan"),
        ({"framework": "no Megatron-LM"}, "unknown software"),
    ],
)
def test_software_by_what_a_text_affirms(cells: dict[str, Any], name: str) -> None:
    assert software_of(Row(**cells)).name == name


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("a, no b c, d", "a, , d"),
        ("a without b with c", "a with c"),
        ("a=0.5, b = 0", "a=0.5,"),
        ("nothing notable", "nothing notable"),
        ("overlap: no DeepEP", "overlap:"),
    ],
)
def test_what_a_text_affirms(text: str, rest: str) -> None:
    assert affirmed(text).split() == rest.split()


def test_a_pattern_is_affirmed_denied_or_absent() -> None:
    assert says("deepep", "no DeepEP, but DeepEP between nodes")
    assert says("deepep", "no DeepEP") is False
    assert says("deepep", "all-to-all") is None


@pytest.mark.parametrize(
    ("dispatcher", "once", "told"),
    [
        ("DeepEP", True, False),
        ("flex with DeepEP", True, False),
        ("no DeepEP, alltoall", False, False),
        ("DeepEP=false", False, False),
        ("alltoall", False, False),
        ("zzz", None, True),
        ("flex", None, True),
    ],
)
def test_dispatchers_that_no_rule_reads(
    dispatcher: str, once: bool | None, told: bool
) -> None:
    """Megatron-Core sends a token to each expert, Megatron-Bridge once to a node."""
    for framework, usual in (("Megatron-Core", False), ("Megatron-Bridge", True)):
        row = Row(framework=framework, model="qwen3_30b", dispatcher=dispatcher)
        expected = usual if once is None else once
        assert software_of(row).dispatch_once == expected
        assert ("dispatcher" in not_understood(row)) == told


def test_a_compiler_that_the_software_is_not_known_with_is_told() -> None:
    text = "DeepSpeed with torch.compile"
    assert not_understood(Row(framework=text)) == {"framework": text}
    noted = Row(framework="DeepSpeed", notes="torch.compile")
    assert not_understood(noted) == {"notes": "torch.compile"}
    assert not_understood(Row(framework="DeepSpeed", notes="no torch.compile")) == {}


def test_all_compiled_entries_have_the_same_words() -> None:
    named = [entry for entry in SOFTWARE if entry.kind == "compiled" and entry.notes]
    assert {entry.notes for entry in named} == {COMPILED}


def test_graphs_that_a_row_denies() -> None:
    row = Row(
        framework="Megatron-Bridge",
        model="llama3-8b",
        hardware="B200-180GB",
        precision_class="bf16",
    )
    assert has_cuda_graphs(row, software_of(row))
    off = replace(row, notes="no CUDA graphs")
    assert not has_cuda_graphs(off, software_of(off))
