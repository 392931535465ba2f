"""``nest doctor`` and ``nest cite``: what is here, and whom to name."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nest.conform import doctor
from nest.present.checks import doctor_block, verdict
from nest.present.table import show
from nest.solvers import registry, run
from nest.solvers.base import Status
from nest.util import citations
from nest.util.versions import nest_version
from tests.inside import run_inside
from tests.tables import Terminal

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _inside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_solver", run_inside)


def by_name(cli, code: int = 0) -> dict[str, dict[str, str]]:
    assert cli("doctor --json -") == code
    document = json.loads(cli.out)
    assert document["schema"] == "nest-doctor/1"
    assert document["works"] is (code == 0)
    return {finding["what"]: finding for finding in document["findings"]}


def test_what_works_is_shown(cli, monkeypatch):
    monkeypatch.setattr(doctor, "ENGINES", ("dp",))
    cli.succeeds("doctor")
    words = [line.split() for line in cli.out.splitlines()]
    assert ["nest", "ok", nest_version()] in words
    (row,) = (row for row in words if row[:2] == ["solver", "dp"])
    assert row[2:7] == ["ok", "proves", "a", "stored", "optimum"]
    assert cli.out.splitlines()[-1].startswith("nest works")


def test_what_an_extra_needs_is_said(cli, monkeypatch):
    monkeypatch.setattr(doctor, "ENGINES", ("dp",))
    wanted = {"": [("click", ">=8.1")], "tea": [("no-such-package", ">=1")]}
    monkeypatch.setattr(doctor, "_required", lambda: wanted)
    found = by_name(cli)
    assert found["click"]["state"] == "ok"
    assert found["extra tea"] == {
        "what": "extra tea",
        "state": "missing",
        "found": "no-such-package not installed",
        "remedy": "pip install 'nest-planner[tea]'",
    }


def test_a_package_that_is_too_old_breaks_the_core(cli, monkeypatch):
    monkeypatch.setattr(doctor, "ENGINES", ("dp",))
    wanted = {"": [("click", ">=99"), ("no-such-package", ">=1")]}
    monkeypatch.setattr(doctor, "_required", lambda: wanted)
    found = by_name(cli, code=1)
    assert found["click"]["remedy"] == "pip install 'click>=99'"
    assert found["no-such-package"]["found"] == "not installed (wanted >=1)"
    assert cli("doctor") == 1
    assert "BROKEN" in cli.out
    assert cli.out.endswith("nest cannot work here: click, no-such-package\n")


@pytest.mark.parametrize(
    ("version", "wanted", "kept"),
    [
        ("3.3.2", "<4,>=3.1", True),
        ("4.0a1", "<4,>=3.1", False),
        ("3.0.9", "<4,>=3.1", False),
        ("3.10", ">=3.9", True),
        ("1", "", True),
    ],
)
def test_bounds_of_versions(version, wanted, kept):
    assert doctor.satisfies(version, wanted) is kept


def test_an_engine_that_proves_nothing_is_found(cli, monkeypatch):
    """The core must; others may be missing."""

    def lazy(problem, name, options=None, on_progress=None):
        found = run_inside(problem, "dp", options)
        if name == "milp":
            return replace(
                found,
                solver="milp",
                status=Status.FEASIBLE,
                lower_bound_quanta=None,
                detail="stopped early",
            )
        return found

    monkeypatch.setattr(run, "run_solver", lazy)
    found = by_name(cli)
    assert found["solver cpsat"]["state"] == "ok"
    assert found["solver milp"]["state"] == "missing"
    assert found["solver milp"]["found"] == (
        "expected the proof of a stored optimum, got stopped early"
    )
    monkeypatch.setattr(doctor, "ENGINES", ("milp",))
    assert by_name(cli, code=1)["solver milp"]["state"] == "broken"


def test_a_solver_without_its_engine_is_named(cli, monkeypatch):
    monkeypatch.setattr(doctor, "ENGINES", ("dp", "cpsat"))
    original = registry.availability

    def without(name):
        if name in ("cpsat", "alpa"):
            return "expected package 'x', got none; install it with: pip x"
        return original(name)

    monkeypatch.setattr(registry, "availability", without)
    found = by_name(cli)
    for name in ("solver cpsat", "solver alpa"):
        assert found[name]["state"] == "missing"
        assert found[name]["remedy"] == "install it with: pip x"
    assert "alpa" not in found["other solvers"]["found"]


def test_folders_that_may_not_be_written(tmp_path):
    missing = str(tmp_path / "nowhere")
    found = doctor._folder("temporary files", missing, "broken")
    assert (found.state, found.remedy) == (
        "broken",
        "set TMPDIR to a folder that may be written",
    )
    assert doctor._folder("cache", missing, "missing").remedy.startswith(
        "set MPLCONFIGDIR"
    )
    assert doctor._folder("cache", str(tmp_path), "missing").state == "ok"


def test_the_memory_of_the_machine():
    free, total = doctor.memory_bytes()
    assert total is None or 0 < total < 2**60
    assert free is None or free <= total


def test_what_the_findings_come_to():
    fine = doctor.Finding("a", "ok", "1")
    missing = doctor.Finding("b", "missing", "none", "get it")
    assert verdict([fine]) == "nest works, and nothing is missing"
    assert verdict([fine, missing]) == ("nest works; optional and not here: b")


def test_the_citation_is_that_of_the_file():
    stated = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    own = citations.project()
    assert own.title == stated["title"]
    assert list(own.authors) == [x["name"] for x in stated["authors"]]
    assert str(stated["date-released"]) == citations.RELEASED
    assert ("license", stated["license"]) in own.more
    assert ("version", stated["version"]) in own.more
    assert own.year == stated["date-released"].year


def test_every_published_planner_has_a_paper():
    """Its module names title or first author."""
    names = {
        name
        for name in registry.solver_names()
        if registry.solver_target(name).startswith("baselines.")
    }
    assert set(citations.papers()) == names - {"random"}
    for name, work in citations.papers().items():
        module = registry.solver_target(name).partition(":")[0]
        text = (ROOT / f"{module.replace('.', '/')}.py").read_text()
        head = " ".join(text.partition('"""\n')[0].split()).lower()
        assert work.title.lower() in head
        assert work.authors[0].partition(",")[0].lower() in head
        assert str(work.year) in head or f"'{work.year % 100}" in head


def test_entries_fit_a_terminal(cli):
    cli.succeeds("cite --bibtex")
    assert max(map(len, cli.out.splitlines())) < 80


def test_width_of_a_pipe_is_told(monkeypatch):
    monkeypatch.setattr("nest.util.terminal.USUAL_COLUMNS", 80)
    for columns, told in (
        ("120", "not a terminal: lines have at most 120 columns"),
        ("-1", "not a terminal: lines have at most 80 columns"),
    ):
        monkeypatch.setenv("COLUMNS", columns)
        [finding] = [
            found
            for found in doctor._surroundings(io.StringIO())
            if found.what == "terminal"
        ]
        assert finding.found.startswith(told)


def test_commands_that_get_what_is_missing_are_whole(monkeypatch):
    """However narrow: they are copied."""
    monkeypatch.setenv("COLUMNS", "60")
    file = Terminal()
    remedy = "pip install 'nest-planner[profile]' or what it is called"
    finding = doctor.Finding("extra profile", "missing", "no torch", remedy)
    show(file, *doctor_block([finding]))
    assert f"  extra profile  {remedy}\n" in file.getvalue()


def test_citations_for_people_and_for_bibtex(cli):
    cli.succeeds("cite piper")
    lines = cli.out.splitlines()
    assert lines[1] == (
        "Tarnawski, Narayanan, Phanishayee (2021). Piper: Multidimensional "
        "Planner for DNN Parallelization. NeurIPS."
    )
    assert lines[2:5] == ["", "@software{nest,", "  author  = {{The nest developers}},"]
    cli.succeeds("cite mcmc --bibtex")
    assert cli.out.split("\n\n")[1] == (
        "@inproceedings{flexflow,\n"
        "  author    = {Jia, Zhihao and Zaharia, Matei and Aiken, Alex},\n"
        "  title     = {{Beyond Data and Model Parallelism for Deep Neural "
        "Networks}},\n"
        "  year      = {2019},\n"
        "  booktitle = {MLSys},\n"
        "  note      = {arXiv 1807.05358},\n"
        "}\n"
    )
