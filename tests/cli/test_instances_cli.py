"""``nest instances``, and instances where commands take a problem."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from bench.best_known import update_command
from bench.instance_updates import encode_best_known
from nest.certificates.certify import certify
from nest.certificates.documents import digest
from nest.cli.instances import instances_group
from nest.cli.progress import StatusLine
from nest.cost.score import score
from nest.instances import CLASSES, best_known, instance, names, problem, store
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

    There is the command that changes it. Solvers that prove bounds show no signs of
    life, however slow they are.
    """
    monkeypatch.setitem(instances_group.commands, "update", update_command)
    monkeypatch.setattr(StatusLine, "FIRST_S", math.inf)
    path = tmp_path / "known.json"
    path.write_bytes(encode_best_known({}))
    monkeypatch.setattr(store, "best_known_path", lambda: path)
    return path


def test_list(cli: Cli) -> None:
    cli.succeeds("instances")
    rows = cli.out.splitlines()
    assert rows[-1] == f"{len(names())} instances"
    assert [row.split()[0] for row in rows[2:-1]] == list(names())
    cli.succeeds("instances --class tight,moe --status closed")
    wanted = names(["tight", "moe"], "closed")
    assert cli.out.splitlines()[-1] == f"{len(wanted)} instances"


def test_sets_of_classes_are_written_as_for_benchmarks(cli: Cli) -> None:
    """Joined by ',' or '+', states among them; names may have a '+'."""
    cli.succeeds("instances --class tight,moe,closed")
    text = cli.out
    cli.succeeds("instances --class tight+moe+closed")
    assert cli.out == text
    cli.succeeds("instances --class tight,moe --status closed")
    assert cli.out == text
    cli.succeeds("instances fetch tiny+moe,closed -o out")
    assert len([*Path("out").iterdir()]) == len(names(["tiny", "moe"], "closed"))
    (one, *_) = names(["mixed"])
    assert "+" in one
    cli.succeeds(f"instances fetch {one} -o one")
    assert cli.out.startswith("1 file in ")


def test_list_as_json(cli: Cli) -> None:
    document = cli.document("instances --class tiny")
    assert document["schema"] == "nest-instance-list/1"
    found = {record["name"]: record for record in document["instances"]}
    assert tuple(found) == names(["tiny"])
    record, known = found[NAME], best_known(NAME)
    assert record["value_quanta"] == known.value_quanta
    assert record["value_ns"] == known.value_quanta
    assert record["status"] == "closed"
    assert {"tiny", "tight"} <= {*record["classes"]}


def test_list_of_classes(cli: Cli) -> None:
    cli.succeeds("instances --classes")
    for item in CLASSES:
        assert item.meaning in cli.out
    records = cli.document("instances --classes")["classes"]
    assert [record["name"] for record in records] == [x.name for x in CLASSES]
    assert records[0]["instances"] == len(names(["tiny"]))


@pytest.mark.parametrize(
    "command",
    [
        "instances --class huge",
        "instances --classes",
        f"instances show {NAME}",
        "problems",
        "problems --models",
    ],
)
def test_json_goes_to_a_file_or_to_standard_output(cli: Cli, command: str) -> None:
    """Alone it is standard output, as it was before it took a file."""
    path = Path("list.json")
    cli.succeeds(f"{command} --json {path}")
    assert cli.out == ""
    for option in ("--json -", "--json"):
        cli.succeeds(f"{command} {option}")
        assert json.loads(cli.out) == json.loads(path.read_text())


def test_show(cli: Cli) -> None:
    cli.succeeds(f"instances show {NAME}")
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
    document = cli.document(f"instances show {NAME}")
    assert document["plan"] == json.loads(encode(known.plan))
    assert document["recipe"] == instance(NAME).recipe
    assert document["unlimited"]["value_quanta"] < known.value_quanta


def test_show_who_confirmed_what_was_recalled(cli: Cli) -> None:
    """Of every machine of a mixed cluster; the stored source stays."""
    cli.succeeds("instances show gpt3-2.7b-a10gx4+l4x4")
    assert "100 Gb/s per node, recalled" in cli.out
    for text in ("a10g: 8 devices, 100 Gb/s: docs.aws.", "l4: 100 Gb/s: clou"):
        assert f"confirmed   {text}" in cli.out


def test_show_what_memory_does_not_bind(cli: Cli) -> None:
    name, *_ = names(["tiny", "loose"])
    cli.succeeds(f"instances show {name}")
    assert "fitting or not, none takes less than " in cli.out


def test_show_what_fits_nowhere(cli: Cli) -> None:
    (name, *_) = names(["infeasible"])
    cli.succeeds(f"instances show {name}")
    assert "no plan fits" in cli.out
    cli.succeeds("instances --class infeasible")
    assert "none fits" in cli.out


def test_fetch_one_and_a_class(cli: Cli) -> None:
    """Files are the problems, and plans take what is said."""
    cli.succeeds(f"instances fetch {NAME} -o one")
    (path,) = Path("one").iterdir()
    assert problem_hash(read_problem(path)) == best_known(NAME).problem_hash
    folder = Path("some")
    folder.mkdir()
    cli.succeeds("instances fetch tiny,moe -o some --plans")
    for name in names(["tiny", "moe"]):
        whole = read_problem(folder / f"{name}.json")
        assert whole == problem(name)
        if not best_known(name).infeasible:
            found = score(whole, read_plan(folder / f"{name}.plan.json")).step_quanta
            assert found == best_known(name).value_quanta


def test_fetch_without_memory_limit(cli: Cli) -> None:
    cli.succeeds(f"instances fetch {NAME} -o free --unlimited")
    found = read_problem(Path("free") / f"{NAME}.json")
    assert problem_hash(found) == store.find(NAME).unlimited_hash


def test_a_name_is_a_problem_everywhere(cli: Cli) -> None:
    plan = best_known(NAME).plan
    assert plan is not None
    write("plan.json", plan)
    cli.succeeds(f"check {NAME} plan.json")
    assert best_known(NAME).problem_hash in cli.out
    assert (
        cli.document(f"score {NAME} plan.json")["step_time_quanta"]
        == best_known(NAME).value_quanta
    )
    cli.succeeds(f"problems {NAME} -o p.json")
    assert read_problem(Path("p.json")) == problem(NAME)


def test_update(cli: Cli, copy: Path) -> None:
    Path("r.json").write_text(json.dumps(answer(NAME)))
    other = Path("other.json")
    update = "instances update r.json"
    cli.succeeds(f"{update} -o other.json")
    assert f"{NAME}: value none -> " in cli.out
    assert store.read_best_known() == {}
    assert store.read_best_known(other)[NAME].status == "closed"
    cli.succeeds(update)
    assert copy.read_bytes() == other.read_bytes()
    cli.succeeds(update)
    assert cli.out == f"{NAME}: nothing better\n"


def test_a_bound_typed_by_hand_closes_nothing(cli: Cli, copy: Path) -> None:
    """dp bounds plans in chunks, and does not prove them."""
    (name, *_) = names(["tiny", "chunks"], "open")
    value = best_known(name).value_quanta
    Path("r.json").write_text(json.dumps(answer(name, lower_bound_quanta=value)))
    before = copy.read_bytes()
    assert cli.refuses("instances update r.json --time-limit=20").startswith(
        f"r.json: dp: expected a bound that it proves here as well, "
        f"{value} quanta, got {best_known(name).bound_quanta} quanta ("
    )
    assert copy.read_bytes() == before


def test_update_with_a_plan(cli: Cli, copy: Path) -> None:
    plan = best_known(NAME).plan
    assert plan is not None
    write("plan.json", plan)
    cli.succeeds(f"instances update {NAME} --plan plan.json --by hand")
    known = store.read_best_known()[NAME]
    assert known.value_quanta == best_known(NAME).value_quanta
    assert (known.found_by, known.status) == ("hand", "open")


def test_update_with_a_certificate(cli: Cli, copy: Path) -> None:
    """nest-check says whether it holds; its plan comes with it."""
    known = best_known(NAME)
    assert known.plan is not None
    write("plan.json", known.plan)
    cli.succeeds(f"certify {NAME} plan.json -o certificate.json")
    update = "instances update {} --certificate certificate.json --by me"
    cli.succeeds(update.format(NAME))
    found = store.read_best_known()[NAME]
    assert (found.status, found.found_by) == ("closed", "me")
    assert found.value_quanta == known.value_quanta
    assert [proof.solver for proof in found.proofs] == ["nest-check"]
    (fits_nowhere, *_) = names(["tiny", "infeasible"])
    cli.succeeds(f"certify {fits_nowhere} -o certificate.json")
    cli.succeeds(update.format(fits_nowhere))
    assert store.read_best_known()[fits_nowhere].infeasible


def test_a_certificate_that_does_not_hold_changes_nothing(cli: Cli, copy: Path) -> None:
    """A bound that is too high, sealed anew, and what is no certificate."""
    known = best_known(NAME)
    assert known.plan is not None
    path = Path("certificate.json")
    found = certify(problem(NAME), known.plan)
    found["lower_bound_quanta"] += 1
    found["step_time_quanta"] += 1
    found["seal"] = digest(found)
    path.write_text(json.dumps(found))
    before = copy.read_bytes()
    update = f"instances update {NAME} --certificate certificate.json"
    text = cli.refuses(update)
    assert text.startswith(f"certificate.json: expected a certificate for {NAME} that")
    assert "rejected: step_time_quanta: the plan takes " in text
    path.write_text("{")
    assert "(nest-check: expected JSON, got " in cli.refuses(update)
    text = cli.refuses(f"{update} --time-limit 0.001")
    assert "expected nest-check to end within 0.001 s, got no answer" in text
    assert copy.read_bytes() == before


def test_a_checker_that_says_nothing_has_verified_nothing(
    cli: Cli, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However its process ends."""
    known = best_known(NAME)
    assert known.plan is not None
    path = Path("certificate.json")
    path.write_text(json.dumps(certify(problem(NAME), known.plan)))
    before = copy.read_bytes()
    monkeypatch.setattr("bench.instance_updates._CHECK", ("-c", "pass"))
    text = cli.refuses(f"instances update {NAME} --certificate certificate.json")
    assert text.startswith(f"certificate.json: expected a certificate for {NAME} that")
    assert copy.read_bytes() == before


def test_refused_results_change_nothing(cli: Cli, copy: Path) -> None:
    """Not even those of the files before."""
    good, bad = Path("good.json"), Path("bad.json")
    good.write_text(json.dumps(answer(NAME)))
    bad.write_text(json.dumps(answer(NAME, step_time_quanta=1)))
    before = copy.read_bytes()
    text = cli.refuses("instances update good.json bad.json")
    assert text.startswith("bad.json: dp: step_time_quanta: expected ")
    assert copy.read_bytes() == before
    bad.write_text(json.dumps(answer(NAME))[:-50])
    text = cli.refuses("instances update bad.json")
    assert "expected a document of results in JSON, got malformed" in text


@pytest.mark.usefixtures("copy")
@pytest.mark.parametrize(
    ("words", "text"),
    [
        (f"{NAME} x --plan p", "--plan: expected the NAME of one instance, got 2"),
        ("x --by me", "--by: expected --plan or --certificate too, got none"),
        (f"{NAME} --certificate c --plan p", "--certificate: expected either it or"),
        (f"{NAME} x --certificate c", "--certificate: expected the NAME of one"),
        (f"{NAME} --certificate nowhere", "nowhere: expected a readable file, got"),
        ("nowhere", "nowhere: expected a readable file, got No such file"),
        ("", "nest instances update: expected RESULTS…|NAME, got none"),
        ("x --time-limit 0", "--time-limit: expected a finite number of seconds > 0"),
    ],
)
def test_arguments_of_updates_are_refused(cli: Cli, words: str, text: str) -> None:
    assert cli.refuses(f"instances update {words}").startswith(text)
