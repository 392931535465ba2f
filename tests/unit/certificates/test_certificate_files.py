"""What files ``nest-check`` reads, and why it refuses others."""

from __future__ import annotations

import copy
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from nest.certificates import check, documents, prices
from nest.certificates.certify import certify, certify_infeasible
from nest.ir.io import decode_problem, encode
from tests.builders import SINGLE, make_cost, make_plan, make_problem, two_stages
from tests.certified import NCCL, put
from tests.children import python
from tests.rows import rows

Document = dict[str, Any]


@pytest.fixture(scope="module")
def problem() -> Document:
    text = encode(decode_problem(encode(two_stages(topology=NCCL))))
    found: Document = json.loads(text)
    return found


@pytest.fixture(scope="module")
def certificate() -> Document:
    plan = make_plan(("a b", SINGLE), replicas=2)
    return certify(two_stages(topology=NCCL), plan)


def nest_check(
    folder: Path, problem: Document, certificate: Document
) -> tuple[int, str]:
    """Return exit code and output of the program for two documents."""
    paths = folder / "problem.json", folder / "certificate.json"
    paths[0].write_text(json.dumps(problem))
    paths[1].write_text(json.dumps(certificate))
    return run(*paths)


def run(*paths: Path) -> tuple[int, str]:
    done = python("-m", "nest.certificates.check", *paths)
    return done.returncode, done.stdout + done.stderr


def changed(document: Document, path: str, value: Any) -> Document:
    """Return a sealed document in which a field has another value."""
    other = copy.deepcopy(document)
    put(other, path, value)
    if "seal" in other:
        other["seal"] = documents.digest(other)
    return other


# Files


@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_only_regular_files_are_read(tmp_path: Path, kind: str) -> None:
    """Of another kind they may never end; so do not even open them."""
    path = {"device": Path("/dev/zero"), "folder": tmp_path}.get(
        kind, tmp_path / "pipe"
    )
    if kind == "pipe":
        os.mkfifo(path)
    empty = tmp_path / "empty.json"
    empty.write_text("{}")
    text = f"nest-check: {path}: expected a regular file, got another kind; "
    for paths in ((path, empty), (empty, path)):
        code, said = run(*paths)
        assert (code, said) == (2, f"{text}copy it to a file\n")


def test_files_that_are_too_long_are_not_read_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "long.json"
    with path.open("wb") as file:
        file.truncate(2**24)  # takes no room on the disk
    monkeypatch.setattr(documents, "MOST_BYTES", 2**10)
    data = documents.read(path)
    assert len(data) == 2**10 + 1
    with pytest.raises(documents.BadInputError, match="more than 1024 bytes"):
        documents.parse(data, "long")
    documents.parse(b"{}" + b" " * (2**10 - 2), "just")


@pytest.mark.parametrize("layers", [40, 50])
def test_cuts_are_counted_before_there_are_too_many(
    layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A set of layers without edges has very many sets beside it."""
    monkeypatch.setattr(prices, "MOST_SETS", 45)
    text = "below 45" if layers == 50 else "over 45 cuts"
    with pytest.raises(documents.BadInputError, match=text):
        prices.Problem(chain(layers, edges=False))


def chain(count: int, edges: bool = True) -> Document:
    """Return a document of layers that are each of their own kind."""
    costs = {f"l{i}": make_cost(1, 1) for i in range(count)}
    linked = tuple((f"l{i}", f"l{i + 1}", 1) for i in range(count - 1))
    document = encode(make_problem(costs, edges=linked if edges else (), topology=NCCL))
    found: Document = documents.parse(document, "chain")[0]
    return found


def test_memory_does_not_grow_with_all_stages_of_all_kinds() -> None:
    """A chain of 120 kinds has 7,260 stages: 120 counts each are 7 MB."""
    document = chain(120)
    tracemalloc.start()
    try:
        prices.Problem(document)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 10**6


def test_stages_are_counted_before_there_are_too_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = two_stages(topology=NCCL)
    terms = prices.Problem(documents.parse(encode(problem), "problem")[0])
    split = check.Split(terms, terms.rules.cases()[0])
    edges = len(split.bounds(201))
    monkeypatch.setattr(check, "MOST_STAGES", edges)
    assert len(split.bounds(201)) == edges > 0
    monkeypatch.setattr(check, "MOST_STAGES", edges - 1)
    with pytest.raises(check.RejectedError, match="proof: too many stages"):
        split.bounds(201)


# Fields


def test_the_layers_of_a_plan_are_a_list(
    tmp_path: Path, problem: Document, certificate: Document
) -> None:
    """An object of the same names was one stage of these layers."""
    other = changed(certificate, "plan.stages.0.layers", {"a": 0, "b": 0})
    code, said = nest_check(tmp_path, problem, other)
    assert code == 2
    assert said == (
        f"nest-check: {tmp_path}/certificate.json.plan.stages.layers: "
        "expected a list, got {'a': 0, 'b': 0}; write it as nest does\n"
    )


@pytest.mark.parametrize(
    ("field", "value", "message"), rows("certificates", "fields_of_a_certificate")
)
def test_every_field_of_a_certificate_has_a_form(
    certificate: Document, field: str, value: Any, message: str
) -> None:
    document = changed(certificate, field, value)
    with pytest.raises(documents.BadInputError, match=message):
        documents.parse(json.dumps(document), "certificate")


@pytest.mark.parametrize(
    ("field", "value", "message"), rows("certificates", "fields_of_a_problem")
)
def test_every_field_of_a_problem_has_a_form(
    problem: Document, field: str, value: Any, message: str
) -> None:
    document = changed(problem, field, value)
    with pytest.raises(documents.BadInputError, match=message):
        documents.parse(json.dumps(document), "problem")


# Words: whether it is another problem, or which claim is false


@pytest.mark.parametrize(
    ("field", "value", "message"),
    rows("certificates", "false_claims"),
)  # fmt: skip
def test_every_false_claim_has_words_of_its_own(
    tmp_path: Path,
    problem: Document,
    certificate: Document,
    field: str,
    value: Any,
    message: str,
) -> None:
    code, said = nest_check(tmp_path, problem, changed(certificate, field, value))
    assert (code, said.count("\n")) == (1, 1)
    assert said.startswith(f"rejected: {message}")


def test_another_problem_is_told_from_a_changed_certificate(
    tmp_path: Path, problem: Document, certificate: Document
) -> None:
    other = changed(problem, "job.global_batch", 4)
    code, said = nest_check(tmp_path, other, certificate)
    own, its = documents.digest(other), certificate["problem_hash"]
    assert (code, said) == (
        1,
        f"rejected: problem_hash: expected {own}, got {its}; it is for "
        "another problem\n",
    )
    forged = certificate | {"lower_bound_quanta": 5}
    code, said = nest_check(tmp_path, problem, forged)
    assert code == 1
    assert said == (
        f"rejected: seal: expected {documents.digest(forged)}, got "
        f"{certificate['seal']}; it was changed after it was written\n"
    )


def test_a_bound_above_the_best_plan_is_told_with_that_plan(
    tmp_path: Path, problem: Document
) -> None:
    """One replica takes 200, two take 143: no bound of 144 holds."""
    plan = make_plan(("a b", SINGLE))
    document = certify(two_stages(topology=NCCL), plan)
    forged = changed(document, "lower_bound_quanta", 144)
    code, said = nest_check(tmp_path, problem, forged)
    assert (code, said) == (
        1,
        "rejected: lower_bound_quanta: expected at most 143, what some plan "
        "takes, got 144\n",
    )
    forged = changed(forged, "lower_bound_quanta", 201)
    code, said = nest_check(tmp_path, problem, forged)
    assert said == (
        "rejected: lower_bound_quanta: expected at most 200, what the plan "
        "takes, got 201\n"
    )


def test_where_no_plan_fits_no_time_is_claimed(tmp_path: Path) -> None:
    tight = two_stages(topology=NCCL, memory_bytes=1)
    problem = json.loads(encode(decode_problem(encode(tight))))
    document = certify_infeasible(tight)
    assert nest_check(tmp_path, problem, document) == (
        0,
        "verified: infeasible, no plan fits\n",
    )
    for name in ("step_time_quanta", "lower_bound_quanta"):
        code, said = nest_check(tmp_path, problem, changed(document, name, 5))
        assert code == 1
        assert said.startswith(f"rejected: {name}: expected None, got 5")
        assert said.endswith("; there is no plan\n")
