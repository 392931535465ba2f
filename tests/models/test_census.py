"""What nest makes of every default configuration of ``transformers``.

``make test-models`` counts them anew; the stored table is looked at everywhere.
"""

from __future__ import annotations

import importlib.util
from collections import Counter

import pytest

from tests.models import census


def stored() -> list[list[str]]:
    return [line.split(" | ") for line in census.STORED.read_text().splitlines()]


def test_no_default_configuration_is_counted_wrong() -> None:
    """What is not equal to the last weight is refused by name."""
    states = Counter(state for _, state, _ in stored())
    assert set(states) == {"equal", "text model equal", "refused", "not built"}
    assert states["equal"] >= 138
    assert states["text model equal"] >= 66
    reasons = {reason for _, state, reason in stored() if state == "refused"}
    assert reasons == {"model_type", "text_config"}


@pytest.mark.models
@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="make test-models has it"
)
@pytest.mark.filterwarnings("ignore")
def test_the_stored_table_is_what_the_package_says() -> None:
    assert [list(row) for row in census.rows()] == stored()
