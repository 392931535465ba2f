"""What files ``nest-check`` reads, and why it refuses others."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from nest.certificates import check, documents, prices
from nest.certificates.certify import certify, certify_infeasible
from nest.ir.io import decode_problem, encode
from tests.builders import SINGLE, make_cost, make_plan, make_problem, two_stages
from tests.certified import NCCL, put

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
    command = [sys.executable, "-m", "nest.certificates.check"]
    done = subprocess.run(
        [*command, *paths], capture_output=True, text=True, timeout=60
    )
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
    ("field", "value", "message"),
    [
        ("plan.stages.0.layers", "ab", "expected a list, got ab"),
        ("plan.stages.0.layers", [["a"], "b"], "expected a value"),
        ("plan.stages.0.layers", [0, 1], "expected text, got 0"),
        ("plan.stages.0.devices", True, "expected a whole number"),
        ("plan.stages.0.devices", 1.0, "expected a whole number"),
        ("plan.stages.0.devices", "1", "expected a whole number"),
        ("plan.stages.0", [], "stages: expected an object"),
        ("plan.stages", {}, "stages: expected a list"),
        ("plan.stages", "a", "stages: expected a list"),
        ("plan.replicas", 2.0, "expected a whole number, got 2.0"),
        ("plan.micro_batch", True, "expected a whole number, got True"),
        ("plan.stages.0.strategy", [1], "expected an object"),
        ("plan.stages.0.strategy.zero", False, "whole number"),
        ("plan.stages.0.strategy.tp", [1], "expected a value"),
        ("plan.stages.0.strategy.recompute", 0, "expected text"),
        ("plan.stages.0.strategy.sequence_parallel", 0, "true or"),
        ("plan.virtual_stages", 1, "virtual_stages: expected nothing"),
        ("plan", [], "plan: expected an object"),
        ("proof", {}, "proof: expected a list"),
        ("proof.0", [], "proof: expected an object"),
        ("proof.0.prices", {}, "prices: expected a list, got {}"),
        ("proof.1.prices.0", {"0": 100}, "prices: expected a list"),
        ("proof.1.prices.0", "ab", "prices: expected a list"),
        ("proof.1.prices.0.1", 100.0, "expected a whole number"),
        ("proof.1.prices.0.0", False, "expected a whole number"),
        ("proof.0.labels", False, "expected a whole number, got False"),
        ("proof.0.micro_batch", 1.0, "expected a whole number"),
        ("lower_bound_quanta", 143.0, "expected a whole number"),
        ("step_time_quanta", [143], "expected a value, got"),
        ("status", ["optimal"], "status: expected a value"),
        ("problem_hash", 5, "expected text, got 5"),
        ("members", 5, "members: expected nothing"),
    ],
)
def test_every_field_of_a_certificate_has_a_form(
    certificate: Document, field: str, value: Any, message: str
) -> None:
    document = changed(certificate, field, value)
    with pytest.raises(documents.BadInputError, match=message):
        documents.parse(json.dumps(document), "certificate")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("graph.layers", {}, "layers: expected a list"),
        ("graph.layers.0.id", 5, "id: expected text, got 5"),
        ("graph.edges", {}, "edges: expected a list"),
        ("graph.edges", "", "edges: expected a list"),
        ("graph.edges.0.bytes_per_sample", 1.5, "a whole number"),
        ("graph.kinds.0.costs", {}, "costs: expected a list"),
        ("graph.kinds.0.costs.0", [], "costs: expected an object"),
        ("graph.kinds.0.costs.0.forward_ns", "1", "a number"),
        ("graph.kinds.0.costs.0.forward_ns", [1], "a value"),
        ("job", [], "job: expected an object"),
        ("job.replicas", {"1": 1}, "replicas: expected a list"),
        ("job.zero", "0", "zero: expected a list"),
        ("job.recompute", "none", "recompute: expected a list"),
        ("job.recompute", [None], "recompute: expected text, got None"),
        ("job.micro_batches", [[1]], "micro_batches: expected a value"),
        ("job.sequence_parallel", {}, "parallel: expected a value"),
        ("cluster.topology.levels", {}, "levels: expected a list"),
        ("cluster.device", 5, "device: expected an object"),
        ("cluster.topology.algorithms", "best", "expected nccl, for"),
        ("job.schedule", "zb-h1", "schedule: expected 1f1b or gpipe"),
    ],
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
    [
        ("schema", "nest-plan/1",
         "schema: expected nest-certificate/1, got nest-plan/1; pass a "),
        ("plan.schema", "nest-plan/2",
         "plan.schema: expected nest-plan/1, got nest-plan/2; pass a plan"),
        ("status", "feasible",
         "status: expected optimal, got feasible; a false claim"),
        ("step_time_quanta", 144,
         "status: expected feasible, got optimal; a false claim"),
        ("plan.stages.0.layers", ["a", "c"],
         "plan: stage 1 is illegal or too large"),
        ("plan.replicas", 9, "plan: replicas and samples that the job"),
        ("plan.stages.0.layers", ["a"],
         "plan: not all layers, or the wrong stages"),
        ("proof.0.micro_batch", 2,
         "proof: expected [(1, 1), (2, 1)], got [(1, 2), (2, 1)]; all "),
        ("proof.1.prices.0.1", 101,
         "proof: replicas 2, micro_batch 1: prices: expected [[0, 100]], got "
         "[[0, 101]]; the checker computes other figures"),
        ("proof.0.labels", 7,
         "proof: replicas 1, micro_batch 1: labels: expected 0, got 7; "),
    ],
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
