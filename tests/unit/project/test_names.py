"""Vague names: none is new, and the list gets shorter."""

from __future__ import annotations

from tests.names import counted, names_of, stored


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
