"""Pages for tests: a plan made by hand, and its document."""

from __future__ import annotations

from functools import cache
from html.parser import HTMLParser
from typing import Any

from msgspec.structs import replace

from nest.analysis.page_facts import Answer, Context, Document, Wish
from nest.cost.score import Score, score
from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.models import builtin
from nest.present.pages.answers import answer_document, solver_rows

#: Tags that have no end.
_VOID = {"meta", "link", "br", "img", "input"}


@cache
def problem() -> Problem:
    """Return the built-in problem of 2 nodes with 4 devices."""
    return builtin.load("llama2-7b-8")


def plan(whole: Problem | None = None) -> Plan:
    """Return two stages of four devices, a node each."""
    ids = tuple(layer.id for layer in (whole or problem()).graph.layers)
    first = Strategy(dp=2, tp=2, zero=1, recompute="full")
    last = Strategy(dp=1, tp=4, zero=0, recompute="full")
    return Plan(
        replicas=1,
        micro_batch=2,
        stages=(
            Stage(layers=ids[:5], devices=4, strategy=first),
            Stage(layers=ids[5:], devices=4, strategy=last),
        ),
    )


@cache
def scored() -> Score:
    """Return the score of that plan."""
    return score(problem(), plan())


def document(**changes: Any) -> Document:
    """Return the document of a report on that plan."""
    answer = Answer(plan(), scored(), "by-hand.json")
    settings: dict[str, Any] = {
        "context": Context("nest report llama2-7b-8 by-hand.json"),
        "wish": Wish(tokens=1e12, price_usd_per_hour=2.0),
    }
    return answer_document("report", problem(), answer, **(settings | changes))


def cells(name: str, slower: str, proof: str) -> Document:
    """Return the cells of a solver with a plan."""
    return {
        "solver": name,
        "fits": "likely",
        "memory, GiB of 39.40": "35.40",
        "step time, s (90 %)": "122.0 (105–146)",
        "slower, %": slower,
        "proof": proof,
        "search, s": "2.50",
    }


def full() -> Document:
    """Return a document with every part and every chart, made by hand."""
    step_ns = scored().step_time_ns
    late = {"step_time_ns": step_ns, "lower_bound_ns": step_ns}
    proven: Document = {
        **solver_rows([], problem(), missing=["dp"])[0],
        **late,
        "outcome": "solved",
        "status": "optimal",
        "intervals": {"fits": "likely"},
        "cells": cells("dp", "fastest", "optimal"),
        "trace": [
            {"wall_s": 0.5, "step_time_ns": None, "lower_bound_ns": 1e11},
            {"wall_s": 1.0, "step_time_ns": 2e11, "lower_bound_ns": 1.2e11},
            {"wall_s": 2.5, **late},
        ],
    }
    found = proven | {
        "name": "alpa",
        "status": "feasible",
        "step_time_ns": 1.1 * step_ns,
        "lower_bound_ns": None,
        "cells": cells("alpa", "10.0 *", "none"),
        "note": "10 clusters",
        "trace": [],
    }
    crashed = found | {
        "name": "mine",
        "outcome": "error",
        "status": "no-solution",
        "failed": True,
        "step_time_ns": None,
        "cells": {"solver": "mine", "proof": "ERROR"},
        "note": "a sentence about what went wrong that does not end " * 3,
    }
    points = [
        {
            "number": number,
            "num_devices": 8,
            "step_time_ns": time * step_ns,
            "memory_bytes": size * 2**30,
        }
        for number, time, size in ((1, 1.5, 20), (2, 1.2, 25), (3, 1.0, 35))
    ]
    frontier = {
        "objectives": ["time", "memory"],
        "proven": False,
        "points": points,
        "curves": [{"num_devices": 8, "points": points}],
        "capacities_bytes": [40 * 10**9],
        "lines": ["not proven: 8 devices from 25 GiB to 30 GiB"],
        "headings": ["point", "step time", "plan"],
        "cells": [["1", "9 s", "tp4"], ["2", "8 s", "a long text " * 9]],
    }
    return document(
        solvers=[proven, found, crashed],
        frontier=frontier,
        unfinished="The run was stopped: late did not finish.",
        context=Context(
            "nest compare llama2-7b-8 --solvers dp,alpa,mine",
            {"zero": "--zero", "replicas": "--pin r="},
            {"time limit": "60 s each"},
        ),
    )


def named(name: str) -> Document:
    """Return a document in which everything with a name has this one."""
    whole = problem()
    hostile = replace(
        whole,
        name=name,
        source=name,
        cluster=replace(
            whole.cluster,
            name=name,
            device=replace(whole.cluster.device, name=name),
            topology=replace(
                whole.cluster.topology,
                levels=tuple(
                    replace(level, name=f"{name} {i}")
                    for i, level in enumerate(whole.cluster.topology.levels)
                ),
            ),
        ),
        graph=replace(
            whole.graph,
            layers=tuple(
                replace(layer, id=f"{name} {i}")
                for i, layer in enumerate(whole.graph.layers)
            ),
            edges=(),
        ),
    )
    made = plan(hostile)
    return answer_document(
        "report",
        hostile,
        Answer(made, score(hostile, made), name),
        context=Context(f"nest report '{name}'"),
        rows=[("fits", name), ("plan", name), ("assumed", name)],
        launch=name,
        unfinished=name,
    )


class Page(HTMLParser):
    """What is in a page: elements with their attributes, and texts.

    Raises
    ------
    AssertionError
        If an element is not closed in its turn.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.rows: list[list[str]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {k: v or "" for k, v in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
        if {"td", "th"} & {*self._open[-1:]}:
            self.rows[-1][-1] += data

    @property
    def text(self) -> str:
        """All its text."""
        return " ".join(" ".join(self.texts).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of all elements of a kind."""
        return [attributes for name, attributes in self.elements if name == tag]
