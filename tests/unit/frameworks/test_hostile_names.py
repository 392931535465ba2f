"""Names that want to be commands, in every file that nest writes."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nest.constraints.targets import for_target
from nest.errors import InvalidProblemError, NestError
from nest.frameworks import chakra
from nest.frameworks.export import TARGETS, export, write_folder
from nest.frameworks.launch import Settings
from nest.frameworks.megatron import array
from nest.hardware import machine, read_cluster
from nest.hardware.template import ClusterTemplate, cluster_text
from nest.ir import Problem, Strategy, encode
from nest.ir.io import decode_problem
from nest.present.pages.benchmark import joint_csv, reports
from nest.present.screen import launch_texts
from nest.simulation.events import Simulation
from tests.benchmarks import go, instances, make_run
from tests.exports import small_model, small_plan, small_problem
from tests.fuzz import complaint
from tests.loopback import tiny_problem
from tests.readers import READERS

#: Names of one line: nest takes them, and they mean nothing to a shell.
COMMANDS = (
    "$(touch PWNED)",
    "`touch PWNED`",
    "x; touch PWNED #",
    "x' ; touch PWNED ; '",
    'x" ; touch PWNED ; "',
    "x) ; touch PWNED ; (",
    "> PWNED",
    "../../PWNED",
    "--load=PWNED",
    "-rf",
    "x\\",
    "{touch,PWNED}",
    "<script>touch PWNED</script>",
)

#: Ends of lines, what terminals act on, and what turns the direction of text.
CONTROLS = (
    *("\n", "\r", "\t", "\v", "\f", "\x1b[2J", "\x7f", "\x85", "\x9b"),
    *("\u2028", "\u2029", "\u202e", "\u2066", "\u200b", "\ufeff"),
)


#: A ZeRO stage that each framework can run, with pipeline stages if it has any.
ZERO = {"megatron": 1, "torchtitan": 2, "deepspeed": 1, "maxtext": 0, "accelerate": 3}


def named(problem: Problem, name: str) -> Problem:
    """Return the same problem with another name for all that has one."""
    cluster, graph = problem.cluster, problem.graph
    topology: Any = cluster.topology
    levels = tuple(replace(level, name=name) for level in topology.levels)
    kinds = {kind.name: f"{name} {kind.name}" for kind in graph.kinds}
    return replace(
        problem,
        name=name,
        source=name,
        cluster=replace(
            cluster,
            name=name,
            device=replace(cluster.device, name=name),
            topology=replace(topology, levels=levels),
        ),
        graph=replace(
            graph,
            kinds=tuple(replace(kind, name=kinds[kind.name]) for kind in graph.kinds),
            layers=tuple(
                replace(layer, kind=kinds[layer.kind]) for layer in graph.layers
            ),
        ),
    )


def run_all(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Let a shell run every file, and see that nothing comes of it."""
    folder.parent.mkdir()
    write_folder(folder, files)
    before = sorted(folder.rglob("*"))
    for path in before:
        for words in (("bash", path.name), ("bash", "-c", f". ./{path.name}")):
            subprocess.run(words, cwd=folder, capture_output=True, timeout=60)
    assert sorted(folder.rglob("*")) == before
    assert not any(folder.parent.glob("*PWNED*"))


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("target", TARGETS)
def test_no_export_runs_a_name(target, name, tmp_path):
    problem = named(for_target(small_problem(), target), name)
    strategy = Strategy(dp=8, zero=ZERO[target])
    counts = (8,) if target == "accelerate" else (4, 4)
    plan = replace(small_plan(problem, strategy, counts), solver=name)
    model = replace(small_model(), name=name)
    settings = Settings(model=model, flavor="llama3/8B")
    files = export(problem, plan, target, settings)
    screen = {f"screen-{i}": text for i, text in enumerate(launch_texts(files))}
    run_all(tmp_path / "inner" / "out", {**files, **screen})


@pytest.mark.parametrize("name", COMMANDS)
def test_no_trace_runs_a_name(name, tmp_path):
    problem = named(small_problem(), name)
    plan = small_plan(problem, Strategy(dp=8, zero=1), (8,))
    files = chakra.export(Simulation(problem, plan))
    # The traces themselves are binary: no shell reads them.
    run_all(tmp_path / "inner" / "out", {"README": files["README"]})


@pytest.mark.parametrize("value", [*COMMANDS, "a\nb"])
def test_a_value_is_one_word(value, tmp_path):
    script = tmp_path / "args.sh"
    script.write_text(array("heading", [("--name", (value,))]))
    shown = 'printf "%s\\0" "${ARGS[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"source args.sh; {shown}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split("\0") == ["--name", value, ""]
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_cluster_file_has_the_name(name, tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(
        cluster_text(machine("h100"), ClusterTemplate(num_devices=8, name=name))
    )
    cluster, _ = read_cluster(path)
    assert cluster.device.name == name


def test_reports_hold_names_as_text(tmp_path):
    name = "<img src=x>|$(touch PWNED)"
    named_set = [replace_name(each, name) for each in instances(1)]
    ended = go(tmp_path / "run", make_run(named_set, ["dp"]), named_set)
    texts = reports(ended.document)
    assert "<img" not in texts["report.html"]
    assert "&lt;img src=x&gt;" in texts["report.html"]
    assert "<img" not in texts["report.md"].replace("\\<", "")
    assert "\\<img src=x>\\|" in texts["report.md"]
    rows = list(csv.DictReader(io.StringIO(joint_csv(ended.document))))
    assert name in rows[0].values()


def replace_name(instance, name):
    problem = replace(instance.problem, name=name)
    return dataclasses.replace(instance, name=name, problem=problem)


def strings(value: Any, place: tuple = ()) -> Iterator[tuple]:
    """Yield the places of all texts in a document."""
    parts: Any = ()
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, list):
        parts = enumerate(value)
    elif isinstance(value, str):
        yield place
    for key, part in parts:
        yield from strings(part, (*place, key))


def at(document: Any, place: tuple) -> tuple[Any, Any]:
    """Return the container of a place, and the key in it."""
    *around, last = place
    for key in around:
        document = document[key]
    return document, last


#: Readers whose files name something, where each text of them is a name, the
#: name of a choice, or a source: none of them may hold a control character.
NAMING = (
    *("problem", "plan", "certificate", "price", "profile", "calibration"),
    *("layer", "best known"),
)


@pytest.mark.parametrize("reader", NAMING)
def test_no_reader_takes_a_control_character(reader, tmp_path):
    """Wherever a text of a file has one."""
    data = READERS[reader].examples()[0]
    places: dict[tuple, tuple] = {}
    for place in strings(json.loads(data)):
        kind = tuple("*" if isinstance(x, int) else x for x in place)
        places.setdefault(kind, place)
    assert places
    for number, place in enumerate(places.values()):
        document = json.loads(data)
        inside, key = at(document, place)
        inside[key] += CONTROLS[number % len(CONTROLS)]
        said = complaint(reader, json.dumps(document).encode(), tmp_path)
        assert said is not None, place


@pytest.mark.parametrize("control", CONTROLS)
def test_names_are_one_line(control):
    document = json.loads(encode(tiny_problem()))
    document["name"] = f"a{control}b"
    with pytest.raises(
        InvalidProblemError,
        match=r"^file: \$: name: expected one line without control char",
    ) as caught:
        decode_problem(json.dumps(document).encode(), "file")
    assert str(caught.value).isprintable()
    with pytest.raises(NestError, match=r"^name: expected one line"):
        replace(tiny_problem(), name=f"a{control}b")
    device = tiny_problem().cluster.device
    with pytest.raises(NestError, match=r"^peak_flops: expected one line"):
        replace(device, peak_flops={f"a{control}b": 1.0})


@pytest.mark.parametrize("name", ["Größe", "模型", "a\u200cb", "é", "a b", "😀"])
def test_names_of_all_languages_are_taken(name):
    problem = replace(tiny_problem(), name=name)
    assert decode_problem(encode(problem)) == problem
