"""The screen of ``nest solve --launch``: rows, and arguments side by side."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

import nest
from nest.present.launch import launch_screen, launch_texts
from nest.present.table import show
from nest.solvers.base import Limit, Status
from nest.solvers.result import SolveResult
from tests.builders import make_cost, make_levels, make_problem

TEXTS = ["# what starts it"]


def one_layer(**job: object) -> nest.Problem:
    """Four samples of 290 ns each on one device: F = 90, G = 200."""
    return make_problem(
        {"a": make_cost(90, 200)},
        devices=1,
        topology=make_levels((1, 0.0, 1e18)),
        global_batch=4,
        replicas=(1,),
        **job,
    )


def screen(problem: nest.Problem, result: SolveResult, under: str = "") -> str:
    file = io.StringIO()
    show(file, *launch_screen(problem, result, TEXTS, under))
    return file.getvalue()


def test_rows_that_are_not_known_are_left_out() -> None:
    problem = one_layer()
    text = screen(problem, nest.solve(problem, "dp"))
    assert "MFU" not in text
    assert "tokens" not in text
    assert re.search(
        r"^solver      dp, \S+ s; optimal: no plan is faster$", text, re.M
    )
    assert "batch       4 samples, 4 micro-batches of 1 per replica\n" in text
    assert "plan        1 replica × 1 stage of " in text
    assert text.endswith("\n\n# what starts it\n")


@pytest.mark.parametrize(
    ("bound", "limit", "line"),
    [
        (870, None, "within 25.00 % of the best plan"),
        (870, Limit.TIME, "within 25.00 % of the best plan (time limit)"),
        (None, Limit.TIME, "nothing proven, feasible (time limit)"),
        (None, None, "nothing proven, feasible"),
    ],
)
def test_how_much_is_proven(
    bound: int | None, limit: Limit | None, line: str
) -> None:
    """The step is 4 · 290 = 1160 ns; a bound of 870 is a quarter less."""
    problem = one_layer()
    result = nest.solve(problem, "dp")
    assert result.step_quanta == 1160
    found = replace(
        result,
        status=Status.FEASIBLE,
        lower_bound_quanta=bound,
        limit=limit,
        detail="",
    )
    assert f" s; {line}\n" in screen(problem, found)
    under = line.replace("plan", "plan under --pin tp=1").replace(
        "feasible", "feasible under --pin tp=1"
    )
    text = screen(problem, found, "--pin tp=1")
    assert f" s; {under} " in f"{' '.join(text.split())} "


def test_arguments_stand_side_by_side() -> None:
    """As many as fit 79 columns; what is no argument keeps its line."""
    files = {
        "ds.json": '{\n  "a": 1\n}\n',
        "args.sh": "# x\nexport A=1\nARGS=(\n"
        + "".join(f"  --{name * 30} 1\n" for name in "abcd")
        + ")\nexport B=1\n",
        "hostfile": "node0 slots=8\n",
        "rank_map.json": "[1, 0]\n",
        "README": "what it is\nstart it so\nrank i is device i\n",
    }
    first, second = launch_texts(files)
    assert first == '{\n  "a": 1\n}'
    assert second.splitlines() == [
        "# x",
        "export A=1",
        "ARGS=(",
        f"  --{'a' * 30} 1 --{'b' * 30} 1",
        f"  --{'c' * 30} 1 --{'d' * 30} 1",
        ")",
        "export B=1",
        "# start it so",
        "# rank i is device i",
    ]


def test_the_last_column_is_79() -> None:
    """2 + 38 + 1 + 38 columns stand on one line, one more does not."""
    for more, lines in ((0, 1), (1, 2)):
        array = f"ARGS=(\n  --{'a' * 36}\n  --{'b' * (36 + more)}\n)\n"
        (text,) = launch_texts({"args.sh": array, "README": "x\ny\n"})
        assert len(text.splitlines()) == lines + 3
