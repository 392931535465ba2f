"""What a problem keeps of its model, where no name stands for it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nest.frameworks.layers import placement_of
from nest.frameworks.models import model_of
from nest.hardware import machine
from nest.ir.io import decode_problem, encode
from nest.models.architectures import Architecture
from nest.models.choices import Choices, Degrees
from nest.models.graphs import build_problem
from nest.models.named import model_of_text, text_of_model
from nest.models.stated import stated_models
from nest.models.zoo import architecture


@pytest.fixture
def other() -> Architecture:
    """Return the shape of a published model, of another name."""
    return replace(architecture("gpt2"), name="mine", source="a file", aliases=())


def test_models_of_the_zoo_are_not_kept() -> None:
    assert text_of_model(architecture("gpt2")) == ""
    assert model_of_text("") is None


def test_other_models_come_back(other: Architecture) -> None:
    assert model_of_text(text_of_model(other)) == other
    for text in ("{", "[]", '{"name": 1}'):
        assert model_of_text(text) is None


def test_a_problem_keeps_its_model(other: Architecture) -> None:
    choices = Choices(
        global_batch=8, sequence_length=1024, micro_batches=(1,), degrees=(Degrees(),)
    )
    made = build_problem(other, machine("h100"), 1, choices)
    problem = decode_problem(encode(made))
    assert model_of(problem, placement_of(problem.graph)) == other
    # One with other FLOPs than the job says is not its model.
    doubled = replace(other, head=replace(other.head, outputs=2 * other.head.outputs))
    changed = replace(problem, model=text_of_model(doubled))
    assert list(stated_models(changed)) == []
