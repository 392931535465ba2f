"""Studies: hand-made inputs, and what must hold whatever comes out."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nest.audits.nest_artifact.evaluate import named_plans, printed_time
from nest.audits.nest_artifact.importer import import_nest_artifact, read_artifact_file
from nest.benchmarks.instances import Instance
from nest.cost.model import CostModel
from nest.errors import InvalidProblemError, NestError, SolverError
from nest.instances.store import load
from nest.ir import GraphTopology, Problem
from nest.present.pages.study import files, to_markdown
from nest.solvers.base import SolveOptions
from nest.solvers.registry import get_solver
from nest.studies import (
    artifact,
    blindness,
    effort,
    get_study,
    piper,
    planners,
    rankings,
    study_names,
)
from nest.studies.contention import Alone
from nest.studies.solving import geometric_mean, optimum, step_quanta, step_units
from nest.studies.study import (
    Findings,
    Plot,
    Series,
    Study,
    StudySetting,
    published_data,
    read_rows,
)
from nest.util.tables import Column, Table
from tests.loopback import tiny_problem

MIB = 2**20


def write_csv(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def cells(findings: Findings, key: str) -> list[dict[str, Any]]:
    """Return the rows of a table by the keys of its columns."""
    table = next(table for table in findings.tables if table.key == key)
    return [
        {column.key: x for column, x in zip(table.columns, row, strict=True)}
        for row in table.rows
    ]


# NEST's artifact


def chain(**changes: Any) -> dict[str, Any]:
    """Return an embedding and two layers of twice its size, 64 bytes apart."""

    def node(layer: int, scale: int) -> dict[str, Any]:
        return {
            "id": layer,
            "parameterSize": 100 * scale,
            "activationSize": 1000 * scale,
            "optimalLatencyFw": 0.25 * scale,
            "optimalLatencyBw": 0.5 * scale,
        }

    return {
        "nodes": {"1": [node(0, 2), node(-1, 1), node(1, 2)]},
        "edges": {
            "1": [
                {"sourceId": i, "destId": i + 1, "communicationCost": 64}
                for i in (-1, 0)
            ]
        },
        "maxDevices": 8,
        "maxMemoryPerDevice": 50_000,
        "bws": [900, 100.0],
        "latency_per_level": [0.001, 0.002],
        "devices_per_level": [4, 2],
        "mbsInBatch": 16.0,
        "ep_degree": 1,
        "cp_degree": 1,
        "activationRecomputation": True,
        "optimizerAlgorithm": "SGD",
        "baselines": {"Manual": {"num_transformer_layers": 2, "p": 2, "d": 1, "t": 1}},
        **changes,
    }


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "chain.json"
    path.write_text(json.dumps(chain(**changes)))
    return path


RECEIVE = 64 / 900 + 0.001


@pytest.mark.parametrize(
    ("replicas", "stages", "expected"),
    [
        # 0.75 + 1.5 + 1.5 recomputing, against receive + 0.5 + 1
        (1, [[-1, 0], [1]], 17 * 3.75),
        # the last layer comes first: it recomputes, and pays to receive; the
        # others pay to receive its gradient
        (1, [[1], [-1, 0]], 17 * (RECEIVE + 0.5 + 1 + 1)),
        # 8 micro-batches, one round of the first stage's 300 bytes
        (2, [[-1, 0], [1]], 9 * 3.75 + 0.001 + 300 / 900),
        # replicas 5 devices apart: another level, 2 (0.002 + 500/100)
        (8, [[-1, 0, 1]], 2 * 3.75 + 3 * 0.001 + 875 / 900 + 10.004),
        # more devices than there are
        (5, [[-1, 0], [1]], None),
    ],
)
def test_a_printed_time(
    tmp_path: Path, replicas: int, stages: list[list[int]], expected: float | None
) -> None:
    file = read_artifact_file(written(tmp_path))
    found = printed_time(file, 1, replicas, stages)
    assert found == (expected and pytest.approx(expected, rel=1e-12))


def test_a_printed_time_needs_memory(tmp_path: Path) -> None:
    """Embedding and layer: 2 * 300 + 3000; the tensor in flight is none's."""
    for memory, fits in ((3600, True), (3599, False)):
        file = read_artifact_file(written(tmp_path, maxMemoryPerDevice=memory))
        assert (printed_time(file, 1, 1, [[-1, 0], [1]]) is not None) is fits


def test_baselines_count_the_embedding_as_a_layer(tmp_path: Path) -> None:
    file = read_artifact_file(written(tmp_path))
    plan = named_plans(file, "chain")["Manual"]
    assert plan.sizes(3, intended=False) == [1, 2]
    assert plan.sizes(3, intended=True) == [2, 1]


def test_other_baselines_are_refused(tmp_path: Path) -> None:
    file = read_artifact_file(written(tmp_path, baselines={"Manual": {"p": 0}}))
    with pytest.raises(
        InvalidProblemError,
        match=r"chain: baselines: expected plans with p, d, t and num_",
    ):
        named_plans(file, "chain")


@pytest.fixture
def artifact_data(tmp_path: Path) -> Path:
    """Return published data: the chain on two devices, twice."""
    folder = tmp_path / "nest-artifact"
    for name in ("instances", "small"):
        (folder / name).mkdir(parents=True)
        path = folder / name / "tpuv4_fatTree__chain.json"
        text = chain(maxDevices=2, devices_per_level=[2, 1])
        path.write_text(json.dumps(text))
    row = {
        "instance": "tpuv4_fatTree__chain",
        "nest_T": "63.75",
        "nest_d": 1,
        "nest_t": 1,
        "nest_stage_sizes": "2 1",
        "exact_T": "",
        "baseline": "Manual",
        "baseline_T_as_coded": "1.5",
        "baseline_T_order_fixed": "",
        "baseline_T_intended": "63.75",
    }
    write_csv(folder / "expected.csv", [row])
    small = {
        "instance": row["instance"],
        "exact_T": "",
        "nest_T_own_placement": "63.75",
        "nest_rc": 0,
    }
    write_csv(folder / "small_expected.csv", [small])
    return tmp_path


def test_the_artifact_study(artifact_data: Path) -> None:
    """Two replicas beat NEST's pipeline: 8 * 3.75, a round of 500 bytes."""
    study = get_study("nest-artifact")
    found = study.run(StudySetting(quick=True, data=artifact_data))
    (own,) = cells(found, "own_column")
    best = 8 * 3.75 + 0.001 + 500 / 900
    assert own["every_digit"] == "yes"
    assert own["printed"] == "63.75"
    assert own["optimum"] == pytest.approx(best)
    assert own["loss"] == pytest.approx(63.75 / best - 1)
    assert abs(own["shared_above"]) < 1e-9
    (manual,) = cells(found, "baselines")
    assert manual["intended"] == 1
    # 17 (receive + 1 + 2 + 2), then 17 (receive + 1 + 2): no recomputation
    assert manual["as_coded"] == pytest.approx(17 * (RECEIVE + 5) / 63.75)
    assert manual["order_fixed"] == pytest.approx(17 * (RECEIVE + 3) / 63.75)
    assert "153" not in found.answers[1]
    assert "3 figures (three readings of each plan) 1 are" in found.answers[1]
    assert "misses the optimum of its own objective on 1 of 1" in " ".join(
        found.answers
    )


def test_a_network_that_takes_no_time_is_worth_nothing(tmp_path: Path) -> None:
    """As on a fat tree fast enough; a slow spine costs, more the slower.

    Eight replicas need the spine, four do not: 4 * 3.75 and two rounds
    against 2 * 3.75, three rounds and 2 * 500/bandwidth.
    """
    fast = written(tmp_path, bws=[1e20, 1e20], latency_per_level=[0, 0])
    slow = chain(bws=[1e20, 1e3], latency_per_level=[0, 0])
    (tmp_path / "slow.json").write_text(json.dumps(slow))
    rows = {}
    for path in (fast, tmp_path / "slow.json"):
        item = artifact._Input(
            path.stem, read_artifact_file(path), import_nest_artifact(path), []
        )
        table, _ = artifact._network([item], StudySetting(quick=True))
        rows[path.stem] = {
            (unit, spine): (share, loss)
            for unit, spine, _, _, share, _, _, loss in table.rows
        }
    assert set(rows["chain"].values()) == {(0.0, 0.0)}
    share, loss = rows["slow"]["as printed", 1]
    assert (share, loss) == (pytest.approx(1 / 7.5), 0)
    share, loss = rows["slow"]["as printed", 4]
    assert (share, loss) == (pytest.approx(4 / 7.5), 0)
    # A thousandth of the computation: four replicas without the spine win.
    share, loss = rows["slow"]["in seconds", 1]
    assert (share, loss) == (pytest.approx(1), pytest.approx(1.0075 / 0.015 - 1))


# Piper


@pytest.fixture
def piper_data(tmp_path: Path) -> Path:
    """Return two layers that save 60 MiB for 6, three that save 10 for 2.

    On one device of 345 MiB, 5 too few for all of them at their fastest.
    """

    def node(number: int, times: tuple[int, int], mib: tuple[int, int]) -> Any:
        return {
            "id": number,
            "TMPCs": {
                "1": [
                    {
                        "id": name,
                        "timePerSample": time,
                        "parameterSize": 0,
                        "memoryUsageA": size * MIB,
                        "memoryUsageB": 0,
                        "syncTimeFw": {},
                        "syncTimeBw": {},
                    }
                    for name, time, size in zip(
                        ("vanilla", "activation recomp"), times, mib, strict=True
                    )
                ]
            },
        }

    big = [node(i, (10, 16), (100, 40)) for i in range(2)]
    small = [node(i, (10, 12), (50, 40)) for i in range(2, 5)]
    folder = tmp_path / "piper"
    folder.mkdir()
    text = json.dumps({"nodes": [*big, *small], "edges": []})
    for name in ("bert32a100", "resnet"):
        (folder / f"{name}.json").write_text(text)
    setting = {
        "file": "bert32a100.json",
        "max_devices": 1,
        "micro_batches": 1,
        "memory_bytes": 345 * MIB,
        "bandwidth_bytes_per_s": 10**9,
        "piper_tps": 56,
        "exact_tps": 52,
    }
    write_csv(folder / "expected.csv", [setting])
    record = {
        "file": "bert32a100.json",
        "mode": "exact",
        "maxDevices": 1,
        "mbsInBatch": 1,
        "maxMemoryPerDevice": 345 * MIB,
        "bandwidth": 1e9,
        "feasible": True,
        "tps": 52.0,
        "stages": [
            {
                "nodes": [0, 1, 2, 3, 4],
                "d": 1,
                "t": 1,
                "tmpc": [*["vanilla"] * 4, "activation recomp"],
            }
        ],
    }
    (folder / "recorded_plans.json").write_text(json.dumps([record]))
    return tmp_path


def test_the_piper_study(piper_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy saves 60 MiB for 6, where 10 for 2 would do."""
    sweep = ("resnet.json", 1, 1, (1,), (0.25, 345 / 1024, 1))
    monkeypatch.setattr(piper, "_QUICK_SWEEPS", (sweep,))
    found = piper.STUDY.run(StudySetting(quick=True, data=piper_data))
    assert found.answers[0].startswith("1 of 1 recorded plans")
    (recorded,) = cells(found, "recorded")
    assert recorded["greedy_repeated"] == recorded["exact_repeated"] == "yes"
    assert recorded["loss"] == 56 / 52 - 1
    tight, loose, ample = cells(found, "sweep")
    # 256 MiB: both save 120, or one and two small ones 80, and 94 are asked
    assert (tight["optimum"], tight["greedy"]) == (62, 62)
    assert loose["loss"] == 56 / 52 - 1
    assert (ample["optimum"], ample["loss"]) == (50, 0)


# Blindness


@pytest.fixture(scope="module")
def tree() -> Problem:
    """Return an instance on two levels, few choices of it."""
    problem = load("bert-large-a10gx16")
    job = replace(problem.job, micro_batches=(1, 4), zero=(0,))
    return replace(problem, job=job)


def test_blind_optima_are_never_better(tree: Problem) -> None:
    """And whoever does not see a cost takes the optimum for no slower."""
    best = optimum(tree)
    best_quanta = step_quanta(tree, best)
    assert best_quanta is not None
    for view, blinded in blindness.VIEWS.items():
        seen = blinded(tree)
        plan = optimum(seen)
        assert plan is not None
        cost = blindness.cost_of(tree, seen, plan, best_quanta)
        assert cost.loss is None or cost.loss >= 0, view
        assert cost.over_bytes == 0 or cost.repairs, view
        if view == "topology, all slow":
            assert cost.belief > 0
        elif view in ("memory", "a fifth of the need"):  # it is loose here
            assert cost.belief == 0, view
        else:
            assert cost.belief < 0, view


def test_a_plan_that_beats_the_optimum_is_no_finding(tree: Problem) -> None:
    best = optimum(tree)
    quanta = step_quanta(tree, best)
    assert best is not None
    assert quanta is not None
    with pytest.raises(
        SolverError, match=r"expected a plan no faster than the optimum of"
    ):
        blindness.cost_of(tree, tree, best, quanta + 1)


def test_one_switch_joins_all_devices(tree: Problem) -> None:
    inner, outer = tree.cluster.topology.levels
    for view, level in ((blindness.flat_fast, inner), (blindness.flat_slow, outer)):
        (found,) = view(tree).cluster.topology.levels
        assert found.fan_out == tree.cluster.num_devices
        assert found.bandwidth_bytes_per_s == level.bandwidth_bytes_per_s


def test_blind_plans_that_do_not_fit_are_counted() -> None:
    costs = [
        blindness.Cost(0, "", 0.0, -0.1),
        blindness.Cost(5, "zero 1", 0.21, -0.1),
        blindness.Cost(9, "none helps", None, -0.1),
        None,
    ]
    found = blindness.report([], {"memory": costs})
    (row,) = cells(found, "views")
    assert (row["instances"], row["fit"]) == (3, 1)
    assert (row["repaired"], row["lost"]) == (1, 1)
    assert row["loss_mean"] == pytest.approx(0.1)
    assert found.answers == [
        "Blind to memory: 10.0% slower than the optimum in the geometric mean, 21% at "
        "most; 2 of 3 plans do not fit, 1 of them do after repair."
    ]


# Planners, rankings, effort


@pytest.fixture
def one_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the studies find one tiny problem, and one planner or two."""
    tiny = [Instance("tiny", tiny_problem(), "a test")]
    nothing = {rules: {"megatron": [None]} for rules in rankings.CONTENTION}
    monkeypatch.setattr(rankings, "QUICK_INSTANCES", ("tiny",))
    monkeypatch.setattr("nest.studies.study.find_set", lambda names: tiny)
    monkeypatch.setattr(rankings, "QUICK_PLANNERS", ("megatron",))
    monkeypatch.setattr(effort, "QUICK_SOLVERS", ("megatron",))
    rules = {name: rankings.RULES[name] for name in ("1F1B", "GPipe")}
    monkeypatch.setattr(rankings, "RULES", rules)
    monkeypatch.setattr(rankings, "KEEPING", ("1F1B",))
    monkeypatch.setattr(rankings, "contention", lambda *_: nothing)


@pytest.mark.usefixtures("one_tiny")
def test_a_planner_on_a_tiny_problem() -> None:
    """One plan fits, so there is nothing to lose."""
    found = planners.study_of("alpa", StudySetting(quick=True))
    (row,) = cells(found, "instances")
    assert (row["ratio"], row["outer"], row["inner"]) == (1, 1, 1)
    assert row["over_gb"] == 0


@pytest.mark.usefixtures("one_tiny")
def test_rankings_and_effort_of_a_tiny_problem() -> None:
    found = rankings.STUDY.run(StudySetting(quick=True))
    (row,) = cells(found, "again")
    assert (row["1F1B_mean"], row["GPipe_rank"]) == (1, 1)
    assert "0 of 0 pairs change their order" in found.answers[0]
    assert [row["ratio"] for row in cells(found, "plans")] == [1] * 3 + [None] * 2
    found = effort.STUDY.run(StudySetting(quick=True))
    (row,) = cells(found, "solvers")
    assert (row["usable"], row["ratio"]) == (1, 1)
    (row,) = cells(found, "dp")
    assert 0 < row["within_0_percent_s"] <= row["proof_s"]


def test_pairs_that_swap() -> None:
    before = {"a": 1.0, "b": 1.1, "c": 1.2}
    after = {"a": 1.0, "b": 1.4, "c": 1.3}
    assert rankings.ranks(after) == {"a": 1, "c": 2, "b": 3}
    assert rankings.swaps(before, after) == [("b", "c")]
    assert rankings.ranks({"a": 1.0, "b": 1.0, "c": 2.0}) == {"a": 1, "b": 1, "c": 3}


def test_only_instances_that_all_answer_are_ranked() -> None:
    ratios = {
        "1F1B": {"a": [1.0, 2.0, 4.0], "b": [1.0, None, 1.0]},
        "GPipe": {"a": [1.0, 1.0, 4.0], "b": [1.0, 1.0, 9.0]},
    }
    assert rankings.ranked(ratios) == ["a", "b"]
    assert rankings.common(ratios, ["a", "b"]) == [0, 2]
    assert rankings.means(ratios, ["a", "b"], [0, 2]) == {
        "a": [pytest.approx(2), pytest.approx(2)],
        "b": [pytest.approx(1), pytest.approx(3)],
    }
    found = rankings.report(ratios, ratios, ratios)
    assert "Planned again, GPipe: 1 of 1 pairs change their order: a and b." in (
        found.answers
    )
    assert cells(found, "missing")[1] == {
        "planner": "b",
        "1F1B_missing": 1,
        "GPipe_missing": 0,
    }


def test_planners_with_few_plans_are_not_ranked() -> None:
    rare: list[float | None] = [1.0, None, None]
    ratios = {"1F1B": {"a": [1.0, 1.0, 1.0], "b": rare}}
    assert rankings.ranked(ratios) == ["a"]
    found = rankings.report(ratios, ratios, ratios)
    assert [row["planner"] for row in cells(found, "again")] == ["a"]
    assert found.tables[0].text.startswith("Planners know the rules")
    assert "under some rules: b." in found.tables[0].text


def test_links_of_one_s_own_are_faster() -> None:
    """Four replicas of four stages on a ring: their sync groups meet."""
    problem = load("bert-large-v100x16-ring")
    plan = get_solver("piper")().solve(problem, SolveOptions()).plan
    assert plan is not None
    assert (plan.replicas, len(plan.stages)) == (4, 4)
    topology = problem.cluster.topology
    assert isinstance(topology, GraphTopology)
    shared = step_quanta(problem, plan)
    alone = step_quanta(problem, plan, CostModel(problem, Alone(topology)))
    assert shared is not None
    assert alone is not None
    assert alone < shared


def test_a_trace_says_what_was_known_when() -> None:
    trace = effort.Trace([(1.0, 120), (2.0, 104), (3.0, 100)], 100, 4.0)
    assert [trace.within(x) for x in effort.WITHIN] == [2.0, 3.0, 3.0]
    assert (trace.at(0.5), trace.at(2.5)) == (None, 104)


# Pages


def page_of(**changes: Any) -> tuple[Study, Findings]:
    study = Study(
        name="tiny",
        question="Why?",
        method="Look.",
        quick="Half of it.",
        limits=("All of them.",),
        run=lambda setting: findings,
    )
    findings = Findings(
        answers=("Because.",),
        tables=(
            Table(
                key="things",
                title="Things",
                text="Counted.",
                columns=(Column("name", "name"), Column("share", "share", ".1%")),
                rows=[("a|b", 0.5), ("c", None)],
            ),
        ),
        plot=Plot("Shares", "x", "y", (Series("a", [("p", 1.0)]),), "bars"),
    )
    return study, findings


def test_a_page_has_question_method_table_and_limits() -> None:
    text = to_markdown(*page_of(), quick=True)
    parts = (
        *("# Audit: tiny", "**Question.** Why?", "**Method.** Look."),
        *("**Quick run.** Half of it.", "- Because.", "### Things"),
        *("| name | share |", "| a\\|b | 50.0% |", "| c | – |"),
        *("## Limits", "- All of them."),
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_the_files_of_a_study() -> None:
    pytest.importorskip("matplotlib")
    found = files(*page_of(), quick=False)
    assert list(found) == ["audit.md", "audit.json", "plot.svg"]
    assert "![Shares](plot.svg)" in found["audit.md"]
    document = json.loads(found["audit.json"])
    assert document["schema"] == "nest-audit/1"
    assert document["tables"]["things"][1] == {"name": "c", "share": None}
    assert found["plot.svg"].startswith("<svg")
    assert files(*page_of(), quick=False)["plot.svg"] == found["plot.svg"]


def test_without_matplotlib_the_page_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nest.present.pages.study.can_draw", lambda: False)
    found = files(*page_of(), quick=False)
    assert list(found) == ["audit.md", "audit.json"]
    assert "pip install 'nest-planner[plot]'" in found["audit.md"]


def test_every_study_says_what_it_does() -> None:
    for name in study_names():
        study = get_study(name)
        assert study.name == name
        assert study.question.endswith("?")
        assert study.method.endswith(".")
        assert all(limit.endswith(".") for limit in study.limits)


# Damaged data


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", r"expected the columns a, c, got none called 'c'"),
        ("a,c\n1\n", r"line 2: expected 2 cells, got another number"),
        ("a,c\n1,2,3\n", r"line 2: expected 2 cells, got another number"),
        ("", r"expected the columns a, c, got none called 'a'"),
    ],
)
def test_damaged_rows_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(NestError, match=message):
        read_rows(path, ("a", "c"))


def test_a_missing_or_binary_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    with pytest.raises(NestError, match=r"expected a CSV file, got"):
        read_rows(path, ())
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(NestError, match=r"expected a CSV file, got"):
        read_rows(path, ())


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("nest_T", "soon", r"nest_T: expected a number, got 'soon'"),
        ("nest_d", "x", r"nest_d: expected whole numbers, got 'x'"),
        ("baseline", "Mine", r"baselines: expected 'Mine', got none"),
    ],
)
def test_damaged_figures_are_refused(
    artifact_data: Path, column: str, value: str, message: str
) -> None:
    path = artifact_data / "nest-artifact" / "expected.csv"
    (row,) = read_rows(path, ())
    write_csv(path, [row | {column: value}])
    with pytest.raises(NestError, match=message):
        artifact.STUDY.run(StudySetting(quick=True, data=artifact_data))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"recorded_plans.json: expected a list of recorded plans"),
        ("[{}]", r"recorded_plans.json: expected a list of recorded plans"),
    ],
)
def test_damaged_plans_are_refused(piper_data: Path, text: str, message: str) -> None:
    (piper_data / "piper" / "recorded_plans.json").write_text(text)
    with pytest.raises(NestError, match=message):
        piper.STUDY.run(StudySetting(quick=True, data=piper_data))


def test_no_figure_is_missing_in_piper_rows(piper_data: Path) -> None:
    path = piper_data / "piper" / "expected.csv"
    (row,) = read_rows(path, ())
    write_csv(path, [row | {"exact_tps": ""}])
    with pytest.raises(NestError, match=r"expected figures in every row"):
        piper.STUDY.run(StudySetting(quick=True, data=piper_data))


def test_the_mean_of_nothing() -> None:
    assert geometric_mean([]) is None
    assert geometric_mean([1.0, 4.0]) == 2
    assert step_units(tiny_problem(), None) is None


# Data of the package


@pytest.mark.parametrize("study", [artifact.STUDY, piper.STUDY])
def test_the_package_has_the_published_data(study: Study, shared_data: Path) -> None:
    """With the license of each, and removed again at the end."""
    with published_data(study) as folder:
        study.check(StudySetting(data=folder))
        packed = {x.relative_to(folder): x for x in folder.rglob("*.*")}
        assert any(x.stem == "LICENSE" for x in folder.rglob("LICENSE*"))
        for name, path in packed.items():
            assert path.read_bytes() == (shared_data / name).read_bytes()
    assert not folder.exists()
