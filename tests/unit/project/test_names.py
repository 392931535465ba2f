"""Vague names: none is new, and the list gets shorter."""

from __future__ import annotations

import ast
from collections import Counter

from tests.names import counted, names_of, stored
from tests.rooms import modules, room_of, tree_of

#: Public classes of one room that share a name. The list may only get shorter.
SHARED = {
    *("Choice", "Key", "Model", "PathModel", "Place", "Program"),
    *("Routes", "Tables"),
}


def test_vague_names_get_fewer() -> None:
    counts, allowed = counted(), stored()
    more = {
        name: f"{count} uses, at most {allowed.get(name, 0)}"
        for name, count in counts.items()
        if count > allowed.get(name, 0)
    }
    assert not more, "name variables by what they hold (CONTRIBUTING.md)"
    fewer = {name for name, most in allowed.items() if counts.get(name, 0) < most}
    assert not fewer, "well done: store it with python -m tests.names"


def test_classes_of_a_room_have_different_names() -> None:
    counts = Counter(
        (room_of(name).name, node.name)
        for name, path in modules().items()
        for node in tree_of(path).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for (_, name), count in counts.items() if count > 1} == SHARED


def test_what_counts_as_a_use() -> None:
    source = '''
class Part: pass
class Parts: pass
def ask(found, *, known=1):
    """What is found."""
    found.left = place(word=found_it)  # own
    return "known"
'''
    assert sorted(names_of(source)) == [
        *("ask", "class Part", "found", "found", "known", "left", "place"),
        "word",
    ]
