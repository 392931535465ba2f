"""Counts of parameters against the models that ``transformers`` builds.

``make test-models`` installs it; without it all is skipped.
"""

from __future__ import annotations

import importlib.util

import pytest

from nest.models.hf import from_hf
from tests.models import generate

#: Configurations that are drawn of every family.
DRAWN_PER_FAMILY = 12

pytestmark = [
    pytest.mark.models,
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None,
        reason="make test-models has it",
    ),
    # Of the package, about itself.
    pytest.mark.filterwarnings("ignore"),
]


@pytest.mark.parametrize("family", generate.FAMILIES)
def test_parameters_are_those_of_the_package(family: str) -> None:
    """Sizes are others than those of the stored examples."""
    for config, total in generate.examples(family, DRAWN_PER_FAMILY, seed=1):
        assert from_hf(config).parameters == total, config


@pytest.mark.parametrize("family", generate.FAMILIES)
def test_stored_examples_are_what_the_package_builds(family: str) -> None:
    examples = generate.examples(family, generate.STORED_PER_FAMILY)
    stored = generate.stored()[family]
    assert [entry["config"] for entry in stored] == [config for config, _ in examples]


@pytest.mark.parametrize("family", generate.COUNTED)
def test_stored_flops_are_what_pytorch_counts(family: str) -> None:
    assert generate.flops(family, generate.COUNTED_LENGTH) in generate.stored_flops()
