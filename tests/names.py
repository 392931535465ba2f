"""Vague names in the shipped code, and how often each is still used.

The counts are in ``tests/vague_names.json`` and may only get smaller;
``python -m tests.names`` stores smaller ones. What to write instead: the noun
of what a variable holds (CONTRIBUTING.md, *Names*).
"""

from __future__ import annotations

import ast
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
STORED = ROOT / "tests" / "vague_names.json"
PACKAGES = ("nest", "formulations", "baselines")

#: Names that say where a value comes from, or nothing, instead of what it is.
VAGUE = frozenset(
    {
        *("found", "known", "most", "least", "own", "left", "given", "asked"),
        *("wanted", "said", "ask", "part", "parts", "place", "places"),
        *("number", "kept", "word", "words", "beside", "alike", "tell_apart"),
        *("behind", "front", "pace", "paces", "pitch", "hideable", "hides"),
        *("passed_over", "bulges", "unsaid"),
    }
)

#: Names of classes that several rooms have used for different things.
VAGUE_CLASSES = frozenset(
    {
        *("Answer", "Asked", "Beside", "Case", "Found", "Known", "On", "Part"),
        *("Room", "Run", "Target", "Wanted", "Wave", "Work"),
    }
)


def names_of(tree: ast.AST) -> Iterator[str]:
    """Yield every vague name that a module uses, as often as it does."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                is_vague = name in VAGUE
            case ast.arg(arg=name) | ast.keyword(arg=str(name)):
                is_vague = name in VAGUE
            case ast.FunctionDef(name=name):
                is_vague = name.strip("_") in VAGUE
            case ast.ClassDef(name=name):
                is_vague = name.strip("_") in VAGUE_CLASSES
                name = f"class {name}"
            case _:
                continue
        if is_vague:
            yield name


def counted() -> dict[str, int]:
    """Return how often the shipped code uses each vague name."""
    counts: Counter[str] = Counter()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            counts.update(names_of(ast.parse(path.read_text())))
    return dict(sorted(counts.items()))


def stored() -> dict[str, int]:
    """Return how often each may be used."""
    counts: dict[str, int] = json.loads(STORED.read_text())
    return counts


if __name__ == "__main__":
    STORED.write_text(json.dumps(counted(), indent=1) + "\n")
