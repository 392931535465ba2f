"""Problems and scores are the same on every Python.

From 3.12 on the builtin ``sum`` of floats is compensated; before, it rounds
after every addition.
"""

from __future__ import annotations

import builtins
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from nest.cost.score import score
from nest.ir import problem_hash
from nest.models import builtin
from tests.children import python
from tests.regression.store import load, solve, stored

SCRIPT = Path(__file__).parents[3] / "bench" / "identity.py"
VALUES = json.loads(SCRIPT.with_suffix(".json").read_text())["values"]
SCORED = [name for name in stored() if load(name).status == "optimal"]


def naive(items: Iterable[Any], /, start: Any = 0) -> Any:
    """Round after every addition, as up to Python 3.11."""
    for item in items:
        start = start + item
    return start


def compensated(items: Iterable[Any], /, start: Any = 0) -> Any:
    """Round floats once, close to what Python does from 3.12 on."""
    items = list(items)
    if any(isinstance(item, float) for item in items):
        return math.fsum([start, *items])
    return naive(items, start)


def refusing(items: Iterable[Any], /, start: Any = 0) -> Any:
    """Take no floats."""
    items = list(items)
    assert not any(isinstance(item, float) for item in items)
    return naive(items, start)


@pytest.mark.parametrize("name", builtin.names())
@pytest.mark.parametrize("summation", [naive, compensated, refusing])
def test_a_built_in_problem_is_the_stored_one_however_floats_are_summed(
    monkeypatch: pytest.MonkeyPatch, summation: Callable[..., Any], name: str
):
    monkeypatch.setattr(builtins, "sum", summation)
    assert problem_hash(builtin.load(name)) == VALUES[f"hash of {name}"]


@pytest.mark.parametrize("name", SCORED)
def test_scores_add_no_floats_with_the_builtin_sum(
    monkeypatch: pytest.MonkeyPatch, name: str
):
    problem = load(name).problem
    plan = solve("dp", problem).plan
    assert plan is not None
    before = score(problem, plan)
    monkeypatch.setattr(builtins, "sum", refusing)
    assert score(problem, plan) == before


def test_the_script_for_other_pythons_finds_what_is_stored():
    found = python(SCRIPT)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.count(" ok\n") == len(VALUES)
