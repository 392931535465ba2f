"""What jobs under the presets of published models must not say."""

from __future__ import annotations

import re
from typing import Any

import pytest

from nest.cost.model import CostModel
from nest.errors import InvalidProblemError
from tests.builders import make_cost, make_problem
from tests.rows import rows


@pytest.mark.parametrize(("field", "value", "text"), rows("presets", "fields"))
@pytest.mark.parametrize("preset", ["nest-artifact", "piper"])
def test_published_presets_know_no_such_field(
    preset: str, field: str, value: Any, text: str
) -> None:
    job = {field: tuple(value) if isinstance(value, list) else value}
    problem = make_problem({"a": make_cost(1, 1)}, preset=preset, replicas=(1,), **job)
    expected = re.escape(text.replace("PRESET", repr(preset)))
    with pytest.raises(
        InvalidProblemError, match=rf"^\$\.job\.{field}: expected {expected}"
    ):
        CostModel(problem)
