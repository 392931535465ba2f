"""How many examples each property test gets, by profile."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

#: ``quick`` for make test, ``ci`` for make test-all, ``dev``, or ``full``;
#: ``break`` is for broken code, where any counterexample will do.
PROFILE = os.environ.get("HYPOTHESIS_PROFILE", "ci")

PROFILES = {
    name: settings(
        deadline=None,
        database=None,
        derandomize=name in ("quick", "ci", "break"),
        print_blob=name in ("dev", "full"),
        phases=[
            phase
            for phase in Phase
            if name != "break" or phase not in (Phase.shrink, Phase.explain)
        ],
        # Problems are large values; slow draws are the price.
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.large_base_example,
        ],
    )
    for name in ("quick", "dev", "ci", "full", "break")
}

if PROFILES[PROFILE].derandomize:
    # Constants of whatever modules happen to be imported would be drawn too:
    # other examples in other processes, and alone others than among all.
    providers._get_local_constants = Constants


def examples(number: int, full: int | None = None) -> settings:
    """Return the settings of a test.

    It gets so many examples for broken code, half of them for ``ci``, a tenth for
    ``quick`` and ``dev``, and ten times as many, or those of ``full``, for ``full``.
    """
    counts = {
        "quick": max(3, number // 10),
        "dev": max(5, number // 10),
        "ci": -(-number // 2),
        "break": number,
        "full": 10 * number if full is None else full,
    }
    return settings(PROFILES[PROFILE], max_examples=counts[PROFILE])
