"""Vague names in the shipped code, and how often each is still used.

The counts are in ``tests/vague_names.json`` and may only get smaller;
``python -m tests.names`` stores smaller ones. What to write instead: the noun
of what a variable holds (CONTRIBUTING.md, *Names*).
"""

from __future__ import annotations

import json
import re
from collections import Counter
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


#: Text that is no name: strings without expressions, and comments.
_NO_NAMES = re.compile(
    r'''"""(?:[^\\]|\\.)*?"""|"(?:[^"\\\n]|\\.)*"|#[^\n]*''', re.DOTALL
)
_NAME = re.compile(
    rf"\b_?(?:{'|'.join(sorted(VAGUE))})\b"
    rf"|\bclass _?(?:{'|'.join(sorted(VAGUE_CLASSES))})\b"
)


def names_of(source: str) -> list[str]:
    """Return every vague name that a module uses, as often as it does."""
    return _NAME.findall(_NO_NAMES.sub('""', source))


def counted() -> dict[str, int]:
    """Return how often the shipped code uses each vague name."""
    counts: Counter[str] = Counter()
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            counts.update(names_of(path.read_text()))
    return dict(sorted(counts.items()))


def stored() -> dict[str, int]:
    """Return how often each may be used."""
    counts: dict[str, int] = json.loads(STORED.read_text())
    return counts


if __name__ == "__main__":
    most = stored()
    counts = {name: min(count, most.get(name, 0)) for name, count in counted().items()}
    STORED.write_text(json.dumps(counts, indent=1) + "\n")
