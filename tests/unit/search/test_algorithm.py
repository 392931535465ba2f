"""The example of docs/architecture.md, and which rooms of the search import which."""

from __future__ import annotations

from pathlib import Path

import pytest

from nest.cost.model import CostModel
from nest.cost.score import score
from nest.ir import Activations, LayerCost, Problem
from nest.ir.plan import Strategy
from nest.search.best import BestSearch
from nest.search.stages.closed_sets import closed_sets
from nest.search.stages.labels import Labels
from nest.search.stages.splits import open_splits
from nest.search.task import SearchTask
from nest.solvers.base import Deadline, Status
from tests.builders import make_cost, make_plan, make_problem
from tests.rooms import imports, modules

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"
TIMES = {"a": (20, 14), "b": (30, 20), "c": (50, 30)}
BYTES = 10, 5
#: What each room may import of the others; ``search`` is what is in no room.
ALLOWED: dict[str, set[str]] = {"stages": set(), "layers": {"stages", "search"}}


def example() -> Problem:
    """Build the problem of the page."""

    def costs(times: tuple[int, int]) -> tuple[LayerCost, ...]:
        return tuple(
            make_cost(
                time,
                0,
                tp=tp,
                activations=(Activations(kept_bytes=0, static_bytes=held),),
            )
            for tp, time, held in zip((1, 2), times, BYTES, strict=True)
        )

    return make_problem(
        {name: costs(times) for name, times in TIMES.items()},
        edge=0,
        global_batch=8,
        micro_batches=(1,),
        memory_bytes=25,
    )


class Recorded(BestSearch):
    """The search, with what it does."""

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        self.guesses: list[tuple[int, dict[int, int]]] = []
        self.offers: list[int] = []
        self.cells: list[tuple[int, int, int]] = []

    def _share_bounds(self, groups, guess):
        super()._share_bounds(groups, guess)
        bounds = {x.options.split.replicas: x.bound for x in self.splits or ()}
        self.guesses.append((guess, bounds))

    def _offer(self, item, plan):
        quanta = super()._offer(item, plan)
        self.offers.append(quanta)
        return quanta

    def _placement_graph(self, item, goal):
        graph = super()._placement_graph(item, goal)
        edges = graph.edges
        columns = edges.offset, edges.source, edges.target
        self.cells = list(zip(*(x.tolist() for x in columns), strict=True))
        return graph


def numbers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the texts of the page, with what the code computes."""
    problem = example()
    model, sets = CostModel(problem), closed_sets(problem.graph)
    single = [one for one, _ in TIMES.values()]
    tp2 = [two for _, two in TIMES.values()]
    texts = [
        "| 1 | " + " | ".join(f"{x} ns" for x in single) + f" | {BYTES[0]} |",
        "| 2 (`tp` = 2) | " + " | ".join(f"{x} ns" for x in tp2) + f" | {BYTES[1]} |",
    ]
    splits = open_splits(model, sets, Deadline(None))
    for split in splits:
        size, batch = split.options.split, split.options.split.num_micro_batches
        longest = (split.bound - split.min_total) // (batch - 1)
        texts.append(
            f"| {size.replicas} | {size.devices} | {batch} | {longest} "
            f"| {split.min_total} + {batch - 1} · {longest} = {split.bound} |"
        )
    assert [x.options.split.replicas for x in splits] == [1, 2]
    (first, open_pair), labels = (split.bound for split in splits), []
    append = Labels.append

    def record(self, columns):
        labels.extend(columns.T.tolist())
        append(self, columns)

    monkeypatch.setattr(Labels, "append", record)
    search = Recorded(SearchTask(model, sets, Deadline(None)))
    output = search.run()
    best = output.claimed_quanta
    assert output.status is Status.OPTIMAL
    assert [set(stage.layers) for stage in output.plan.stages] == [{"a", "b"}, {"c"}]
    (guess, bounds), (wider, closer) = search.guesses
    assert bounds == {1: first, 2: guess}
    assert closer == {1: first, 2: best}
    assert {*search.offers} == {best}
    # Cells: offset, and the closed sets before and after.
    assert sorted(search.cells) == [(0, 0, 2), (1, 2, 3)]
    (end_sum, end_longest), (whole, longest) = (x[1:3] for x in labels[:2])
    assert labels[2:] == labels[:2]
    one_stage = make_plan(("a b c", Strategy(tp=2)), replicas=2)
    uneven = make_plan(("a", Strategy()), ("b c", Strategy()), replicas=2)
    return [
        *texts,
        f"one device needs {len(TIMES) * BYTES[0]} bytes",
        f"1.15 · {open_pair}, so plans must take less than {guess}.",
        f"becomes the incumbent: {whole} + 3 · {longest} = {best}.",
        f"since {first} > {best}.",
        f"Up to the next guess, {wider}, paths bound `R` = 2 by {best}.",
        f"plans of at most {best}. The bounds leave {len(search.cells)} cells",
        f"(4 · {sum(tp2)} = {score(problem, one_stage).step_quanta})",
        f"({whole} + 3 · {sum(single[1:])} = {score(problem, uneven).step_quanta})",
        f"1 stage left): sum {end_sum}, longest {end_longest}.",
        f"stages left): sum {whole}, longest {longest}, so {best}.",
    ]


def test_the_page_has_the_numbers_of_the_search(monkeypatch):
    page = " ".join(PAGE.read_text().split())
    assert [x for x in numbers(monkeypatch) if x not in page] == []


@pytest.mark.parametrize("room", ALLOWED)
def test_rooms_of_the_search_import_in_one_direction(room: str):
    known = modules()
    imported = set()
    for name, path in known.items():
        if name.startswith(f"nest.search.{room}"):
            for module in imports(path, known):
                if module.module.startswith("nest.search."):
                    parts = module.module.split(".")
                    imported.add(parts[2] if len(parts) > 3 else "search")
    assert imported <= ALLOWED[room] | {room}
