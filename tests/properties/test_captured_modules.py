"""Exact solvers agree on the problems of captured modules."""

from random import Random

import pytest

from tests.captured import problem, random_module
from tests.properties.test_solvers_agree import check


def drawn(seed: int):
    """Return the problem of a seed."""
    random = Random(seed)
    return problem(
        random_module(random),
        random.choice(("a100x2", "a100x2", "a100x3")),
        micro_batches=random.choice(((1, 2), (2,), (1, 4))),
        tp=random.choice(((1,), (1, 2))),
        zero=random.choice(((0,), (0, 3), (1, 2))),
        optimizer=random.choice(("adamw", "sgd")),
    )


@pytest.mark.parametrize("seed", range(30))
def test_exact_solvers_prove_the_same_plan(seed):
    check(("dp", "cpsat"), drawn(seed))


def test_many_captured_modules_are_solved_alike():
    for seed in range(30, 330):
        check(("dp", "cpsat"), drawn(seed))
