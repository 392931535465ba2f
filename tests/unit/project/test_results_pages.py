"""The tables of docs/results are those of the stored results."""

from __future__ import annotations

import csv
import importlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from bench import ablation, kernels, measured_facts, own_runs, refit, validation
from bench.result_files import ROOT, page_path, read_rows, result_path


def stored(name: str) -> Any:
    return json.loads(result_path(name).read_text())


def accuracy() -> str:
    found, fits = stored("validation"), stored("calibration")
    return validation.accuracy(found["files"], fits["fitted"], fits["held_out"])


def facts() -> str:
    with measured_facts.FACTS.open(newline="", encoding="utf-8") as file:
        return measured_facts.notices(list(csv.DictReader(file)))


def script(name: str, make: str, *arguments: Any) -> str:
    """Return what a function of a script makes that is no module."""
    text: str = getattr(importlib.import_module(name), make)(*arguments)
    return text


def of_study(name: str) -> list[dict[str, Any]]:
    return [row for row in read_rows("topologies") if row["study"] == name]


TABLES: list[tuple[str, str, Callable[[], str]]] = [
    ("accuracy", "validation", accuracy),
    ("bundled-runs", "facts", facts),
    ("kernels", "kernels", lambda: kernels.tables(stored("kernels")["families"])),
    ("ablation", "ablation", lambda: ablation.tables(stored("ablation"))),
    ("kernels", "refit", lambda: refit.tables(stored("refit"))),
    ("own-runs", "own runs", lambda: own_runs.table(stored("own_runs")["sources"])),
    (
        "published-plans",
        "best plans",
        lambda: validation.mfu_table(stored("validation")["best_plans"]),
    ),
    (
        "published-plans",
        "published",
        lambda: script("published_plans", "markdown", stored("published_plans")),
    ),
    (
        "intervals",
        "intervals",
        lambda: script("intervals", "page", stored("intervals")),
    ),
    (
        "device-order",
        "device-order",
        lambda: script("device_order", "markdown", read_rows("device_order")),
    ),
    (
        "frontier",
        "tracking",
        lambda: script("frontier_tracking", "markdown", read_rows("frontier_tracking")),
    ),
    (
        "networks",
        "topologies",
        lambda: script("topologies", "losses_table", of_study("networks")),
    ),
    (
        "networks",
        "nest-inputs",
        lambda: script("topologies", "inputs_table", of_study("nest-inputs")),
    ),
    (
        "speed",
        "questions",
        lambda: script("speed", "questions_table", read_rows("speed")),
    ),
    ("speed", "others", lambda: script("speed", "others_table", read_rows("speed"))),
]


@pytest.mark.parametrize(
    ("page", "mark", "made"), TABLES, ids=[mark for _, mark, _ in TABLES]
)
def test_pages_show_what_is_stored(
    page: str, mark: str, made: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    text = page_path(page).read_text(encoding="utf-8")
    _, _, rest = text.partition(f"<!-- {mark}: begin -->\n")
    assert rest.partition(f"\n<!-- {mark}: end -->")[0] == made()


def test_every_page_is_in_the_index() -> None:
    """By its name, beside the question that it answers."""
    index = page_path("index").read_text(encoding="utf-8")
    for path in page_path("index").parent.glob("*.md"):
        assert path.name == "index.md" or f"({path.name})" in index


def test_commits_that_pages_name_are_in_the_history() -> None:
    """Results come from clones; readers have this repository."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no clone")
    if (ROOT / ".git" / "shallow").exists():
        pytest.skip("the history of this clone is cut")
    text = " ".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md")
    )
    named = re.findall(r"\bcommits?\s+([0-9a-f]{7,})\b", text)
    named += re.findall(r"\b(?:to|of)\s+([0-9a-f]{7,})\b", text)
    assert len(named) > 15
    git = ["git", "-C", str(ROOT), "cat-file", "--batch-check"]
    done = subprocess.run(
        git, input="\n".join(named), capture_output=True, text=True, check=True
    )
    assert [x for x in done.stdout.splitlines() if "commit" not in x] == []
