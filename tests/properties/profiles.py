"""How many examples each property test gets, by profile."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

#: ``dev``, ``ci`` or ``full``.
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")

PROFILES = {
    name: settings(
        deadline=None,
        database=None,
        derandomize=name == "ci",
        print_blob=name != "ci",
        # Problems are large values; slow draws are the price.
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
    )
    for name in ("dev", "ci", "full")
}


def examples(ci: int, full: int | None = None) -> settings:
    """Return the settings of a test: a tenth for dev, ten times for full."""
    counts = {
        "dev": max(5, ci // 10),
        "ci": ci,
        "full": 10 * ci if full is None else full,
    }
    return settings(PROFILES[PROFILE], max_examples=counts[PROFILE])
