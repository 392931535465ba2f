"""``nest instances``, and instances where commands take a problem."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from nest.certificates.certify import certify
from nest.certificates.documents import digest
from nest.cli.progress import StatusLine
from nest.cost.score import score
from nest.instances import (
    CLASSES,
    best_known,
    instance,
    names,
    problem,
    store,
)
from nest.ir import encode, problem_hash, read_plan, read_problem, write
from tests.cli.conftest import Cli

NAME, *_ = names(["tiny", "chain", "tight"], "closed")


def answer(name: str, **changes: Any) -> dict[str, Any]:
    """Return what ``nest solve --json`` says of the best known plan."""
    known = best_known(name)
    plan = json.loads(encode(known.plan)) if known.plan else None
    cell = {
        "solver": "dp",
        "version": "nest 9",
        "outcome": "solved",
        "status": "optimal",
        "step_time_quanta": known.value_quanta,
        "lower_bound_quanta": known.bound_quanta,
        "plan": plan,
    }
    return {
        "schema": "nest-compare/1",
        "problem_hash": known.problem_hash,
        "cells": [cell | changes],
    }


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of what is known that may be changed: nothing yet.

    Solvers that prove bounds show no signs of life, however slow they are.
    """
    monkeypatch.setattr(StatusLine, "FIRST_S", math.inf)
    path = tmp_path / "known.json"
    path.write_bytes(store.encode_best_known({}))
    monkeypatch.setattr(store, "best_known_path", lambda: path)
    return path


def test_list(cli: Cli) -> None:
    assert cli("instances") == 0
    rows = cli.out.splitlines()
    assert rows[-1] == f"{len(names())} instances"
    assert [row.split()[0] for row in rows[2:-1]] == list(names())
    assert cli("instances", "--class", "tight,moe", "--status", "closed") == 0
    wanted = names(["tight", "moe"], "closed")
    assert cli.out.splitlines()[-1] == f"{len(wanted)} instances"


def test_sets_of_classes_are_written_as_for_benchmarks(
    cli: Cli, tmp_path: Path
) -> None:
    """Joined by ',' or '+', states among them; names may have a '+'."""
    assert cli("instances", "--class", "tight,moe,closed") == 0
    text = cli.out
    assert cli("instances", "--class", "tight+moe+closed") == 0
    assert cli.out == text
    assert cli("instances", "--class", "tight,moe", "--status", "closed") == 0
    assert cli.out == text
    out = str(tmp_path / "out")
    assert cli("instances", "fetch", "tiny+moe,closed", "-o", out) == 0
    assert len([*Path(out).iterdir()]) == len(names(["tiny", "moe"], "closed"))
    (one, *_) = names(["mixed"])
    assert "+" in one
    assert cli("instances", "fetch", one, "-o", str(tmp_path / "one")) == 0
    assert cli.out.startswith("1 file in ")


def test_list_as_json(cli: Cli) -> None:
    assert cli("instances", "--class", "tiny", "--json") == 0
    document = json.loads(cli.out)
    assert document["schema"] == "nest-instance-list/1"
    found = {record["name"]: record for record in document["instances"]}
    assert tuple(found) == names(["tiny"])
    record, known = found[NAME], best_known(NAME)
    assert record["value_quanta"] == known.value_quanta
    assert record["value_ns"] == known.value_quanta
    assert record["status"] == "closed"
    assert {"tiny", "tight"} <= {*record["classes"]}


def test_list_of_classes(cli: Cli) -> None:
    assert cli("instances", "--classes") == 0
    for item in CLASSES:
        assert item.meaning in cli.out
    assert cli("instances", "--classes", "--json") == 0
    records = json.loads(cli.out)["classes"]
    assert [record["name"] for record in records] == [x.name for x in CLASSES]
    assert records[0]["instances"] == len(names(["tiny"]))


@pytest.mark.parametrize(
    "words",
    [
        ("instances", "--class", "huge"),
        ("instances", "--classes"),
        ("instances", "show", NAME),
        ("problems",),
        ("problems", "--models"),
    ],
)
def test_json_goes_to_a_file_or_to_standard_output(
    cli: Cli, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """Alone it is standard output, as it was before it took a file."""
    path = tmp_path / "list.json"
    assert cli(*words, "--json", str(path)) == 0
    assert cli.out == ""
    for json_words in ("--json", "-"), ("--json",):
        assert cli(*words, *json_words) == 0
        assert json.loads(cli.out) == json.loads(path.read_text())
    text = cli.refuses(*words, "--json", "/no/x.json")
    assert text.startswith("--json /no/x.json: expected a writable file")


def test_show(cli: Cli) -> None:
    assert cli("instances", "show", NAME) == 0
    known = best_known(NAME)
    for text in (
        f"{known.value_quanta:,} quanta",
        "proven by   dp (",
        known.problem_hash,
        "a plan that does not fit takes ",
        instance(NAME).source.split(";")[0],
        "bench/instances.py, nest ",
    ):
        assert text in cli.out
    assert cli("instances", "show", NAME, "--json") == 0
    document = json.loads(cli.out)
    assert document["plan"] == json.loads(encode(known.plan))
    assert document["recipe"] == instance(NAME).recipe
    assert document["unlimited"]["value_quanta"] < known.value_quanta


def test_show_who_confirmed_what_was_recalled(cli: Cli) -> None:
    """Of every machine of a mixed cluster; the stored source stays."""
    name = "gpt3-2.7b-a10gx4+l4x4"
    assert cli("instances", "show", name) == 0
    assert "100 Gb/s per node, recalled" in cli.out
    for text in ("a10g: 8 devices, 100 Gb/s: docs.aws.", "l4: 100 Gb/s: clou"):
        assert f"confirmed   {text}" in cli.out


def test_show_what_memory_does_not_bind(cli: Cli) -> None:
    name, *_ = names(["tiny", "loose"])
    assert cli("instances", "show", name) == 0
    assert "fitting or not, none takes less than " in cli.out


def test_show_what_fits_nowhere(cli: Cli) -> None:
    (name, *_) = names(["infeasible"])
    assert cli("instances", "show", name) == 0
    assert "no plan fits" in cli.out
    assert cli("instances", "--class", "infeasible") == 0
    assert "none fits" in cli.out


def test_fetch_one_and_a_class(cli: Cli, tmp_path: Path) -> None:
    """Files are the problems, and plans take what is said."""
    assert cli("instances", "fetch", NAME, "-o", str(tmp_path / "one")) == 0
    (path,) = (tmp_path / "one").iterdir()
    assert problem_hash(read_problem(path)) == best_known(NAME).problem_hash
    folder = tmp_path / "some"
    folder.mkdir()
    wanted = "tiny,moe"
    assert cli("instances", "fetch", wanted, "-o", str(folder), "--plans") == 0
    for name in names(["tiny", "moe"]):
        whole = read_problem(folder / f"{name}.json")
        assert whole == problem(name)
        if not best_known(name).infeasible:
            plan = read_plan(folder / f"{name}.plan.json")
            found = score(whole, plan).step_quanta
            assert found == best_known(name).value_quanta


def test_fetch_without_memory_limit(cli: Cli, tmp_path: Path) -> None:
    folder = str(tmp_path / "free")
    assert cli("instances", "fetch", NAME, "-o", folder, "--unlimited") == 0
    found = read_problem(Path(folder) / f"{NAME}.json")
    assert problem_hash(found) == store.find(NAME).unlimited_hash


def test_a_name_is_a_problem_everywhere(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = best_known(NAME).plan
    assert plan is not None
    write(path, plan)
    assert cli("check", NAME, str(path)) == 0
    assert best_known(NAME).problem_hash in cli.out
    assert cli("score", NAME, str(path), "--json", "-") == 0
    quanta = json.loads(cli.out)["step_time_quanta"]
    assert quanta == best_known(NAME).value_quanta
    assert cli("problems", NAME, "-o", str(tmp_path / "p.json")) == 0
    assert read_problem(tmp_path / "p.json") == problem(NAME)


def test_update(cli: Cli, copy: Path, tmp_path: Path) -> None:
    results = tmp_path / "r.json"
    results.write_text(json.dumps(answer(NAME)))
    other = tmp_path / "other.json"
    update = ("instances", "update", str(results))
    assert cli(*update, "-o", str(other)) == 0
    assert f"{NAME}: value none -> " in cli.out
    assert store.read_best_known() == {}
    assert store.read_best_known(other)[NAME].status == "closed"
    assert cli(*update) == 0
    assert copy.read_bytes() == other.read_bytes()
    assert cli(*update) == 0
    assert cli.out == f"{NAME}: nothing better\n"


def test_a_bound_typed_by_hand_closes_nothing(
    cli: Cli, copy: Path, tmp_path: Path
) -> None:
    """dp bounds plans in chunks, and does not prove them."""
    (name, *_) = names(["tiny", "chunks"], "open")
    value = best_known(name).value_quanta
    results = tmp_path / "r.json"
    results.write_text(json.dumps(answer(name, lower_bound_quanta=value)))
    before = copy.read_bytes()
    text = cli.refuses("instances", "update", str(results), "--time-limit=20")
    assert text.startswith(
        f"{results}: dp: expected a bound that it proves here as well, "
        f"{value} quanta, got {best_known(name).bound_quanta} quanta ("
    )
    assert copy.read_bytes() == before


def test_update_with_a_plan(cli: Cli, copy: Path, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan = best_known(NAME).plan
    assert plan is not None
    write(path, plan)
    update = ("instances", "update", NAME, "--plan", str(path))
    assert cli(*update, "--by", "hand") == 0
    known = store.read_best_known()[NAME]
    assert known.value_quanta == best_known(NAME).value_quanta
    assert (known.found_by, known.status) == ("hand", "open")


def test_update_with_a_certificate(
    cli: Cli, copy: Path, tmp_path: Path
) -> None:
    """nest-check says whether it holds; its plan comes with it."""
    plan, path = tmp_path / "plan.json", tmp_path / "certificate.json"
    known = best_known(NAME)
    assert known.plan is not None
    write(plan, known.plan)
    assert cli("certify", NAME, str(plan), "-o", str(path)) == 0
    update = ("instances", "update", NAME, "--certificate", str(path))
    assert cli(*update, "--by", "me") == 0
    found = store.read_best_known()[NAME]
    assert (found.status, found.found_by) == ("closed", "me")
    assert found.value_quanta == known.value_quanta
    assert [proof.solver for proof in found.proofs] == ["nest-check"]
    (fits_nowhere, *_) = names(["tiny", "infeasible"])
    assert cli("certify", fits_nowhere, "-o", str(path)) == 0
    assert cli(*update[:2], fits_nowhere, *update[3:]) == 0
    assert store.read_best_known()[fits_nowhere].infeasible


def test_a_certificate_that_does_not_hold_changes_nothing(
    cli: Cli, copy: Path, tmp_path: Path
) -> None:
    """A bound that is too high, sealed anew, and what is no certificate."""
    known = best_known(NAME)
    assert known.plan is not None
    path = tmp_path / "certificate.json"
    found = certify(problem(NAME), known.plan)
    found["lower_bound_quanta"] += 1
    found["step_time_quanta"] += 1
    found["seal"] = digest(found)
    path.write_text(json.dumps(found))
    before = copy.read_bytes()
    update = ("instances", "update", NAME, "--certificate", str(path))
    text = cli.refuses(*update)
    assert text.startswith(f"{path}: expected a certificate for {NAME} that")
    assert "rejected: step_time_quanta: the plan takes " in text
    path.write_text("{")
    assert "(nest-check: expected JSON, got " in cli.refuses(*update)
    text = cli.refuses(*update, "--time-limit", "0.001")
    assert "expected nest-check to end within 0.001 s, got no answer" in text
    assert copy.read_bytes() == before


def test_a_checker_that_says_nothing_has_verified_nothing(
    cli: Cli, copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However its process ends."""
    known = best_known(NAME)
    assert known.plan is not None
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps(certify(problem(NAME), known.plan)))
    before = copy.read_bytes()
    monkeypatch.setattr("nest.instances.update._CHECK", ("-c", "pass"))
    text = cli.refuses("instances", "update", NAME, "--certificate", str(path))
    assert text.startswith(f"{path}: expected a certificate for {NAME} that")
    assert copy.read_bytes() == before


def test_refused_results_change_nothing(
    cli: Cli, copy: Path, tmp_path: Path
) -> None:
    """Not even those of the files before."""
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_text(json.dumps(answer(NAME)))
    bad.write_text(json.dumps(answer(NAME, step_time_quanta=1)))
    before = copy.read_bytes()
    text = cli.refuses("instances", "update", str(good), str(bad))
    assert text.startswith(f"{bad}: dp: step_time_quanta: expected ")
    assert copy.read_bytes() == before
    bad.write_text(json.dumps(answer(NAME))[:-50])
    text = cli.refuses("instances", "update", str(bad))
    assert "expected a document of results in JSON, got malformed" in text


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nope",), "nest instances COMMAND: expected one of fetch, show"),
        (("--class", "tight,small,vast"), "--class: expected some of tiny,"),
        (("--status", "solved"), "--status: expected one of open, closed"),
        (
            ("--classes", "--status", "open"),
            "--classes: expected no other option than --json, got more",
        ),
        (
            ("--json", "-", "show", NAME),
            "--json: expected it without a command, or behind 'show', got it",
        ),
        (("show", "gpt2"), "instance: expected a name that 'nest instances'"),
        (("fetch", "gpt2", "-o", "x"), "instance: expected a name that"),
        (("fetch", "tiny,vast", "-o", "x"), "class: expected one of chain"),
        (("fetch", "tiny,huge", "-o", "x"), "tiny,huge: expected classes"),
        (("fetch", NAME, "-o", __file__), f"-o {__file__}: expected a new or"),
        (
            ("update", NAME, "x", "--plan", "p"),
            "--plan: expected the NAME of one instance, got 2 arguments",
        ),
        (("update", "x", "--by", "me"), "--by: expected --plan or --certi"),
        (
            ("update", NAME, "--certificate", "c", "--plan", "p"),
            "--certificate: expected either it or --plan, got both",
        ),
        (
            ("update", NAME, "x", "--certificate", "c"),
            "--certificate: expected the NAME of one instance, got 2 argum",
        ),
        (
            ("update", NAME, "--certificate", "nowhere.json"),
            "nowhere.json: expected a readable file",
        ),
        (("update", "nowhere.json"), "nowhere.json: expected a readable file"),
        (("update",), "nest instances update: expected RESULTS"),
        (
            ("update", "x", "--time-limit", "0"),
            "--time-limit: expected a finite number of seconds > 0",
        ),
    ],
)
def test_bad_calls(
    cli: Cli, arguments: tuple[str, ...], expected: str
) -> None:
    assert cli.refuses("instances", *arguments).startswith(expected)


def test_close_names_are_offered(cli: Cli) -> None:
    text = cli.refuses("check", "gpt2-large-a10gx3")
    assert "or an instance, got no such file" in text
    assert "did you mean 'gpt2-large-a10gx2'?" in text
