"""Searches do no more work than they did (``bench/results/work.json``)."""

from __future__ import annotations

import json

import pytest

from bench.work import QUESTIONS, STORED, grown, work
from nest.search import algorithm

COUNTS: dict[str, dict[str, int]] = json.loads(STORED.read_text())
QUICK = "llama2-7b, 8 devices"


def test_every_question_has_counts() -> None:
    assert COUNTS.keys() == QUESTIONS.keys()


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_search_does_more_work(name: str) -> None:
    assert not grown(COUNTS[name], work(QUESTIONS[name]))


def test_a_search_without_early_plans_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of paths are not scored: labels and stages grow."""
    monkeypatch.setattr(algorithm, "promising", lambda *_: False)
    counts = work(QUESTIONS[QUICK])
    texts = grown(COUNTS[QUICK], counts)
    assert f"stages: {COUNTS[QUICK]['stages']} stored, {counts['stages']} now" in texts
