"""What tests of engines have in common."""

from __future__ import annotations

import pytest


@pytest.fixture
def unstarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin no search from a plan: all that is found comes from the engine."""
    monkeypatch.setattr(
        "formulations.search.started", lambda problem, options, _: options
    )
