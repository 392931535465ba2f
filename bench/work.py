"""Count the work of searches, which is the same on every machine.

Seconds depend on the machine and on what else it does; how many rows are priced
does not. :data:`QUESTIONS` are searched in this process by one worker without a
limit of time, and four steps of every search are counted:

- ``rows``: terms of a layer that were computed (:class:`~nest.cost.terms.LayerPrices`);
- ``stages``: stages that were priced at an offset;
- ``labels``: labels that were made, over stages or over layers;
- ``splits``: searches of one choice of replicas and samples per step.

``bench/results/work.json`` keeps the counts. A test compares them, so that a
search that does more work fails with the name of what grew.

    python -m bench.work [--only TEXT ...] [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from nest.cost.terms import FREE, LayerPrices
from nest.requests.solving import SolveRequest
from nest.search.best import BestSearch
from nest.search.layers.best import LayerStages
from nest.search.layers.growth import Growth
from nest.search.solver import DpSolver
from nest.search.stages.labels import Labels
from nest.search.stages.options import StageOptions
from nest.search.tracer import trace
from nest.solvers.base import Deadline, SolveOptions

STORED = Path(__file__).resolve().parent / "results" / "work.json"
#: Counts may grow by this factor before a test fails.
ALLOWED = 1.1

Settings = dict[str, Any]
GPT3 = {"model": "gpt3-175b"}
LLAMA3_70B = {"model": "llama3-70b"}
#: What is asked, by name: the best plan, or the frontier, of a problem.
QUESTIONS: dict[str, Settings] = {
    "llama2-7b, 8 devices": {"model": "llama2-7b", "cluster": "h100x8"},
    "llama2-7b, 8 devices, per layer": {
        "model": "llama2-7b",
        "cluster": "h100x8",
        "granularity": "layer",
    },
    "llama2-7b, 16 devices": {"model": "llama2-7b", "cluster": "a100x16"},
    "gpt2-xl, 16 devices, frontier": {
        "model": "gpt2-xl",
        "cluster": "h100x16",
        "frontier": True,
    },
    "mixtral-8x7b, 32 devices": {"model": "mixtral-8x7b", "cluster": "h100x32"},
    "mixtral-8x7b, 32 devices, zero-bubble": {
        "model": "mixtral-8x7b",
        "cluster": "h100x32",
        "schedule": "zb-h1",
    },
    "llama2-70b, 64 devices": {"model": "llama2-70b", "cluster": "h100x64"},
    "llama2-70b, 64 devices, Megatron-LM": {
        "model": "llama2-70b",
        "cluster": "h100x64",
        "target": "megatron",
    },
    "llama2-70b, 64 devices, interleaved": {
        "model": "llama2-70b",
        "cluster": "h100x64",
        "virtual_stages": (1, 2),
    },
    "llama3-70b, 32 H100 and 32 A100": {**LLAMA3_70B, "cluster": "h100x32+a100x32"},
    "llama3-70b, 512 devices": {**LLAMA3_70B, "cluster": "h100x512"},
    "llama3-70b, 1024 devices, fat tree": {
        **LLAMA3_70B,
        "cluster": "h100x1024",
        "topology": "fat-tree:k=16",
    },
    "llama3-70b, 4096 devices": {**LLAMA3_70B, "cluster": "h100x4096"},
    "gpt3-175b, 64 devices": {**GPT3, "cluster": "h100x64"},
    "gpt3-175b, 64 devices, frontier": {**GPT3, "cluster": "h100x64", "frontier": True},
    "gpt3-175b, 256 devices": {**GPT3, "cluster": "h100x256"},
    "gpt3-175b, 1024 devices": {**GPT3, "cluster": "h100x1024"},
    "gpt3-175b, 1024 devices, within 2 %": {
        **GPT3,
        "cluster": "h100x1024",
        "gap": 0.02,
    },
    "deepseek-v3, 2048 devices": {"model": "deepseek-v3", "cluster": "h100x2048"},
    "llama3-405b, 16384 devices, Megatron-LM": {
        "model": "llama3-405b",
        "cluster": "h100x16384",
        "target": "megatron",
    },
}


@contextmanager
def counted() -> Iterator[Counter[str]]:
    """Count the steps of all searches inside."""
    counts: Counter[str] = Counter()

    def wrapped(
        owner: type, name: str, counter: str, size: Callable[..., int]
    ) -> mock._patch[Any]:
        original = owner.__dict__[name]

        def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            counts[counter] += size(result, *args)
            return result

        return mock.patch.object(owner, name, counting)

    def one(*_: object) -> int:
        return 1

    with ExitStack() as stack:
        for patch in (
            wrapped(LayerPrices, "_price", "rows", one),
            wrapped(StageOptions, "_priced", "stages", lambda table, *_: len(table)),
            wrapped(LayerStages, "_priced", "stages", lambda table, *_: len(table)),
            wrapped(Labels, "append", "labels", lambda _, columns: columns.shape[1]),
            wrapped(Growth, "_extended", "labels", lambda made, *_: len(made[0].sync)),
            wrapped(BestSearch, "_search_split", "splits", one),
        ):
            stack.enter_context(patch)
        yield counts


def work(settings: Settings) -> dict[str, int]:
    """Return the counts of one question."""
    settings = dict(settings)
    frontier, gap = settings.pop("frontier", False), settings.pop("gap", 0.0)
    problem = SolveRequest(**settings).restricted().problem
    FREE.clear()  # what questions before it priced
    with counted() as counts:
        if frontier:
            trace(problem, Deadline(None))
        else:
            DpSolver().solve(problem, SolveOptions(gap=gap, num_workers=1))
    return dict(sorted(counts.items()))


def grown(stored: dict[str, int], counts: dict[str, int]) -> list[str]:
    """Return what is more than :data:`ALLOWED` times the stored count."""
    return [
        f"{name}: {stored.get(name, 0)} stored, {count} now"
        for name, count in counts.items()
        if count > ALLOWED * stored.get(name, 0)
    ]


def main() -> int:
    """Count, print, and compare or store."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[""], help="names with a text")
    parser.add_argument("--write", action="store_true", help="store the counts")
    options = parser.parse_args()
    stored = json.loads(STORED.read_text()) if STORED.exists() else {}
    status = 0
    for name, settings in QUESTIONS.items():
        if not any(text in name for text in options.only):
            continue
        start = time.process_time()
        counts = work(settings)
        seconds = time.process_time() - start
        text = ", ".join(f"{key} {count}" for key, count in counts.items())
        print(f"{name:42} {seconds:7.2f} s of CPU  {text}", flush=True)
        if options.write:
            stored[name] = counts
        elif more := grown(stored.get(name, {}), counts):
            status = 1
            print(f"  more work: {'; '.join(more)}")
    if options.write:
        STORED.write_text(json.dumps(stored, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
