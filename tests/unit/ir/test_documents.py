"""JSON and YAML without traps: what is read, and what is refused."""

from __future__ import annotations

import io
import math
from pathlib import Path

import pytest

from nest.certificates import documents as checked
from nest.errors import InvalidPlanError, InvalidProblemError
from nest.ir import documents, encode, read_plan, read_problem, yaml_documents
from nest.ir.documents import MalformedError, parse_json, read_limited, text_of
from nest.ir.io import decode_problem
from nest.ir.yaml_documents import parse_yaml
from tests.loopback import good_plan, tiny_problem
from tests.rows import rows

PROBLEM = encode(tiny_problem()).decode()


def aliases(rows: int, merged: bool) -> str:
    """Return YAML whose last line stands for two to the power of rows."""
    first, row = ("[x, x]", "[*a{0}, *a{0}]")
    if merged:
        first, row = ("{x: 1}", "{{<<: [*a{0}, *a{0}]}}")
    lines = [f"a0: &a0 {first}"]
    lines += [f"a{i}: &a{i} {row.format(i - 1)}" for i in range(1, rows)]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *rows("documents", "json"),
        (
            '{"a": "' + "1" * 5000 + '",\n"b": ' + "2" * 5000 + "}",
            "line 2: expected at most 4300 digits, got " + "2" * 5000 + "; "
            "correct the number",
        ),
        (
            "[" * 100_000,
            "expected JSON, got malformed text (values inside values, "
            "hundreds deep); check that it is the right file",
        ),
    ],
)
def test_json_with_traps(text: str, reason: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_json(text)
    assert str(caught.value) == reason


def test_json_that_is_fine() -> None:
    text = '{"a": ["NaN", 1, 2.5, {"a": null}], "b": {"a": "\\"a\\": 1"}}'
    assert parse_json(text) == {"a": ["NaN", 1, 2.5, {"a": None}], "b": {"a": '"a": 1'}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *rows("documents", "yaml"),
        (
            aliases(60, merged=False),
            "line 18: expected aliases for at most 1000000 values, got more; "
            "remove aliases",
        ),
        (
            aliases(60, merged=True),
            "line 18: expected aliases for at most 1000000 values, got more; "
            "remove aliases",
        ),
        (
            "[" * 100_000,
            "line 1: expected YAML, got malformed text (values inside "
            "values, hundreds deep); check that it is the right file",
        ),
        (
            f"a: {'9' * 5000}",
            f"line 1: expected at most 4300 digits, got {'9' * 5000}; "
            f"correct the number",
        ),
    ],
)
def test_yaml_with_traps(text: str, reason: str) -> None:
    with pytest.raises(MalformedError) as caught:
        parse_yaml(text)
    assert str(caught.value) == reason


def test_yaml_that_is_fine() -> None:
    """Aliases and merges are read; values are never altered."""
    found = parse_yaml(
        "a: &a {x: 1}\nb: {<<: *a, y: *a}\nc: [010, 1:30, 1_000, -5, 1.5]\n"
        "d: 2024-13-01\ne: =\nf: .inf\ng: !!str 5\n1: one\n'1': text\n"
    )
    assert found == {
        "a": {"x": 1},
        "b": {"x": 1, "y": {"x": 1}},
        "c": ["010", "1:30", "1_000", -5, 1.5],
        "d": "2024-13-01",
        "e": "=",
        "f": math.inf,
        "g": "5",
        1: "one",
        "1": "text",
    }


def test_long_yaml_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml_documents, "MAX_YAML_CHARACTERS", 5)
    assert parse_yaml("[1,2]") == [1, 2]
    with pytest.raises(
        MalformedError,
        match=r"^expected YAML of at most 5 characters, got 6; write it as "
        r"JSON, which is read faster$",
    ):
        parse_yaml("[1,23]")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (
            b"\xff\xfe{\0",
            "line 1: expected text in UTF-8, got the byte order mark of "
            "UTF-16 or UTF-32; save it as UTF-8",
        ),
        (
            b"a\nb\xe9",
            "line 2: expected text in UTF-8, got byte 0xe9; save it as UTF-8",
        ),
        (
            b"a\n\n\0",
            "line 3: expected text in UTF-8, got binary data; check which file it is",
        ),
    ],
)
def test_bytes_that_are_no_text(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedError) as caught:
        text_of(data)
    assert str(caught.value) == reason


def test_a_byte_order_mark_of_utf_8_is_passed_over(tmp_path: Path) -> None:
    """Editors on Windows write one."""
    path = tmp_path / "problem.json"
    path.write_bytes(b"\xef\xbb\xbf" + PROBLEM.encode())
    assert read_problem(path) == tiny_problem()


def test_nothing_is_read_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_FILE_BYTES", 4)
    assert read_limited(io.BytesIO(b"1234")) == b"1234"
    with pytest.raises(
        MalformedError,
        match=r"^expected at most 4 bytes, got more; name another file, or "
        r"describe less in one$",
    ):
        read_limited(io.BytesIO(b"12345"))


def test_a_device_that_never_ends_is_refused() -> None:
    with pytest.raises(
        InvalidProblemError,
        match=r"^/dev/zero: expected at most 67108864 bytes, got more; name",
    ):
        read_problem("/dev/zero")


@pytest.mark.parametrize("name", ["p.json", "p.yaml"])
def test_a_problem_says_what_it_is(name: str) -> None:
    text = PROBLEM.replace(' "schema": "nest-problem/1",\n', "")
    assert len(text) < len(PROBLEM)
    with pytest.raises(
        InvalidProblemError,
        match=rf"^{name}: \$: expected key 'schema', got none; add 'schema' "
        rf"with the value 'nest-problem/1'$",
    ):
        decode_problem(text.encode(), name)


def test_a_plan_says_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    text = encode(good_plan()).decode()
    path.write_text(text.replace(' "schema": "nest-plan/1",\n', ""))
    with pytest.raises(InvalidPlanError, match="expected key 'schema', got"):
        read_plan(path)


@pytest.mark.parametrize("name", ["p.json", "p.yaml"])
def test_a_key_twice_in_a_problem(name: str) -> None:
    """The second one would win."""
    text = PROBLEM.replace(' "preset"', ' "quantum_ps": 1000,\n "preset"').replace(
        "{\n", '{\n "quantum_ps": 1000,\n "quantum_ps": 10,\n', 1
    )
    with pytest.raises(
        InvalidProblemError,
        match=rf"^{name}: line 3: expected key 'quantum_ps' once, got it in "
        rf"line 2 too; remove one$",
    ):
        decode_problem(text.encode(), name)


def test_a_number_that_is_none() -> None:
    text = PROBLEM.replace('"forward_ns": 10', '"forward_ns": NaN')
    line = 1 + text[: text.index("NaN")].count("\n")
    with pytest.raises(
        InvalidProblemError,
        match=rf"^p\.json: line {line}: expected a finite number, got NaN; "
        rf"JSON has no such number",
    ):
        decode_problem(text.encode(), "p.json")


def test_standard_input_is_read_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_FILE_BYTES", 4)
    for text, size in ((b"1234", 4), (b"12345", None)):
        stream = io.TextIOWrapper(io.BytesIO(text))
        monkeypatch.setattr("sys.stdin", stream)
        if size is not None:
            assert len(documents.read_stdin(InvalidProblemError)) == size
            continue
        with pytest.raises(
            InvalidProblemError,
            match=r"^standard input: expected at most 4 bytes, got more; name",
        ):
            documents.read_stdin(InvalidProblemError)


def test_the_checker_of_certificates_reads_to_the_limit() -> None:
    """It has its own, as it uses nothing of nest; see its own tests."""
    assert checked.MOST_BYTES == documents.MAX_FILE_BYTES
