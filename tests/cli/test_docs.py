"""What the documentation shows is what the program takes and prints."""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from rich.console import Group
from rich.padding import Padding

from nest.benchmarks.instances import find_set
from nest.benchmarks.sweep import expand, read_sweep
from nest.cli.main import cli
from nest.cost.score import score
from nest.errors import NestError
from nest.hardware import read_cluster
from nest.instances import store
from nest.ir import read_plan, read_problem, write
from nest.ir.io import decode
from nest.models import builtin
from nest.present.fitted import FittedTable
from nest.solvers.command import Answer, read_planner
from nest.solvers.registry import is_built_in, solver_names
from tests.inside import run_inside
from tests.loopback import tiny_problem
from tests.tables import made

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def test_the_example_files_belong_together(tmp_path):
    """The plan of docs/files.md fits its problem and its memory."""
    problem_text, *_ = blocks("docs/files.md", "yaml")
    (plan_text,) = blocks("docs/files.md", "json")
    problem, plan = tmp_path / "tiny.yaml", tmp_path / "plan.json"
    problem.write_text(problem_text)
    plan.write_text(plan_text)
    assert score(read_problem(problem), read_plan(plan)).feasible


def test_the_example_graph_is_a_network_for_the_example(tmp_path):
    """Its devices have the ranks of the order."""
    problem_text, *_, graph_text = blocks("docs/files.md", "yaml")
    (plan_text,) = blocks("docs/files.md", "json")
    document = yaml.safe_load(problem_text)
    document["cluster"] |= yaml.safe_load(graph_text) | {"num_devices": 2}
    problem, plan = tmp_path / "tiny.json", tmp_path / "plan.json"
    problem.write_text(json.dumps(document))
    plan.write_text(plan_text.replace('"replicas": 2', '"replicas": 1'))
    assert read_problem(problem).cluster.topology.ranks[:2] == ("gpu1", "gpu0")
    assert score(read_problem(problem), read_plan(plan)).feasible


def test_the_example_cluster_has_two_types(tmp_path):
    _, cluster_text, own_text, _ = blocks("docs/files.md", "yaml")
    path = tmp_path / "ours.yaml"
    path.write_text(cluster_text)
    cluster, parts = read_cluster(path)
    assert [count for _, count in parts] == [32, 32]
    assert [device.name for device in cluster.types] == ["H100-80GB-SXM", "H100-94GB"]
    path.write_text(own_text)
    cluster, _ = read_cluster(path)
    assert cluster.device.name == "our-chip"


def readme_commands() -> list[str]:
    lines = "\n".join(blocks("README.md", "")).splitlines()
    return [
        line.partition("#")[0].strip() for line in lines if line.startswith("nest ")
    ]


@pytest.mark.parametrize("command", readme_commands())
def test_commands_of_the_readme_exist(command):
    """Their options are in the help of the command."""
    words = shlex.split(command)[1:]
    # A group's options are those of its commands.
    count = 2 if words[0] in ("import", "new", "topology") else 1
    result = CliRunner().invoke(cli, [*words[:count], "--help"])
    assert result.exit_code == 0
    for option in (word for word in words if word.startswith("--")):
        assert option in result.output


def test_the_readme_lists_every_solver():
    listed = re.findall(r"^\| `(\w+)` \|", (ROOT / "README.md").read_text(), re.M)
    assert sorted(listed) == sorted(solver_names())


def test_the_figures_below_the_first_table_of_the_readme():
    """What dp proves, and what Alpa estimates and gets."""
    text = " ".join((ROOT / "README.md").read_text().split())
    problem = builtin.load("llama2-7b-8")
    best, alpa = (run_inside(problem, name) for name in ("dp", "alpa"))
    assert best.status == "optimal"
    assert f"the same step time, {best.step_time_ns:,} ns" in text
    more = alpa.step_time_ns / best.step_time_ns - 1
    assert (
        f"estimates {alpa.own_objective_ns / 1e9:.2f} s for its plan; "
        f"by the shared model it takes {alpa.step_time_ns / 1e9:.2f} s, "
        f"{100 * more:.2f} % more than the optimum"
    ) in text


def test_the_first_screens_of_the_readme_are_printed():
    """All but how long the solvers take is what the commands print."""
    readme = (ROOT / "README.md").read_text()
    launch = (
        "solve --model llama3-70b --cluster h100x64 --solver dp --target "
        "megatron --target-loss --launch"
    )
    assert f"`nest {launch}`" in readme
    compared, launched, *_ = re.findall(r"```\n(.*?)```", readme, re.DOTALL)
    for command, shown in (
        ("compare --solvers dp,milp,alpa", compared),
        (launch, launched.removesuffix("  …\n")),
    ):
        result = CliRunner().invoke(cli, shlex.split(command), env={"COLUMNS": "80"})
        assert result.exit_code == 0
        seconds = re.compile(r"\b\d+\.\d\d( s)?$", re.MULTILINE)
        printed = seconds.sub("…", result.stdout)
        assert printed.startswith(seconds.sub("…", shown))
        assert max(map(len, printed.splitlines())) <= 80
    assert len(readme.splitlines()) <= 150


def test_the_example_of_targets_runs(capsys):
    """It prints figures, arguments, and what rules the free plan out."""
    (example,) = blocks("docs/targets.md", "python")
    exec(compile(example, "docs/targets.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "--pipeline-model-parallel-size" in printed
    mfu, tokens_per_s = map(float, printed.splitlines()[0].split())
    assert 0 < mfu < 1
    assert tokens_per_s > 0


def test_the_example_of_sweeps_is_a_grid(tmp_path):
    (grid,) = (
        text
        for text in blocks("docs/benchmarks.md", "yaml")
        if text.startswith("schema")
    )
    path = tmp_path / "grid.yaml"
    path.write_text(grid)
    assert [
        tuple(instance.axes.values())
        for instance in expand(read_sweep(path), "grid.yaml")
    ] == [("qwen3-30b-a3b", "dgx-a100x64", 256, x) for x in (0.25, 0.5, 1, 2)]


def test_the_example_set_names_a_problem_and_a_model(tmp_path):
    text, *_ = blocks("docs/benchmarks.md", "yaml")
    (tmp_path / "problems").mkdir()
    write(tmp_path / "problems" / "mine.json", tiny_problem("mine"))
    path = tmp_path / "set.yaml"
    path.write_text(text)
    found = [instance.name for instance in find_set([str(path)])]
    assert found == ["mine", "mixtral-16"]


def test_the_examples_of_planners_are_read(tmp_path):
    (description,) = blocks("docs/your-planner.md", "yaml")
    plan, answer = blocks("docs/your-planner.md", "json")
    path = tmp_path / "mine.yaml"
    path.write_text(description)
    assert read_planner(path).takes("time_limit_s")
    (tmp_path / "plan.json").write_text(plan)
    assert read_plan(tmp_path / "plan.json").devices_used == 4
    found = decode(answer.encode(), "answer", Answer, "answer", NestError)
    assert (found.status, found.claimed_quanta) == ("feasible", 4182400)


def test_every_solver_of_the_project_is_to_conform():
    page = (ROOT / "docs/your-planner.md").read_text()
    (listed,) = re.findall(r"^    for s in (.+)$", page, re.M)
    assert listed.split() == [*filter(is_built_in, solver_names())]


def test_the_table_of_certificates_is_what_was_measured():
    """Of every instance of the library, and of no other."""
    path = ROOT / "bench/results/certificates_library.json"
    rows = json.loads(path.read_text())["rows"]
    assert {row["problem"] for row in rows} == {*store.index()}
    held = Counter(row["status"] for row in rows if row.get("verdict") == "verified")
    page = (ROOT / "docs/results/certificates.md").read_text()
    table = page.partition("library: begin")[2].partition("<!--")[0]
    for what, count in (
        ("instances", len(rows)),
        ("certificates (all verified)", held.total()),
        ("best known plans proven optimal", held["optimal"]),
        ("proven to have no plan", held["infeasible"]),
        ("with a bound below the best known plan", held["feasible"]),
        ("refused", sum("refused" in row for row in rows)),
    ):
        assert f"| {what} | {count} |" in table


def fitted(parts):
    """Yield the tables among what is printed."""
    for part in parts:
        if isinstance(part, FittedTable):
            yield part
        elif isinstance(part, Group):
            yield from fitted(part.renderables)
        elif isinstance(part, Padding):
            yield from fitted([part.renderable])


def test_the_page_about_terminals_shows_in_which_order_columns_go():
    page = (ROOT / "docs/terminal.md").read_text()
    table = page.partition("order: begin")[2].partition("<!--")[0]
    rows = re.findall(r"^\| ([a-z]+) \| (.+) \|$", table, re.M)[1:]
    assert len(rows) == 4
    for name, order in rows:
        orders = [
            [
                column.heading
                for _, column in sorted(
                    enumerate(found.columns), key=lambda pair: (-pair[1].rank, -pair[0])
                )
                if column.rank
            ]
            for found in fitted(made(name))
        ]
        assert order.split(", ") in orders
