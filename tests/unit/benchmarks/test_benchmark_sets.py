"""Which problems a set has, and a grid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from nest import instances as library
from nest.benchmarks.instances import find_set, named, set_names
from nest.benchmarks.sweep import Sweep, expand, read_sweep, widened
from nest.errors import InvalidOptionError, InvalidProblemError
from nest.ir import Cluster, Device, Hierarchy, Level, write
from nest.ir.graph_topology import GraphTopology, NetworkLink, NetworkNode
from nest.models import builtin
from nest.models.choices import Request
from nest.solvers.registry import is_built_in, solver_names
from tests.loopback import tiny_problem


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Return a directory with problems and lists of them."""
    (tmp_path / "set").mkdir()
    for name in ("b", "a", "c"):
        write(tmp_path / "set" / f"{name}.json", tiny_problem(name))
    (tmp_path / "set" / ".hidden.json").write_text("{")
    (tmp_path / "set" / "notes.md").write_text("no problem")
    return tmp_path


def names(*texts: object) -> list[str]:
    return [instance.name for instance in find_set(map(str, texts))]


def test_files_directories_patterns_and_names(place):
    files = place / "set"
    assert names(files / "b.json") == ["b"]
    assert names(files) == ["a", "b", "c"]
    assert names(files / "[bc].json", "llama2-7b-8") == [*("b", "c", "llama2-7b-8")]
    assert names("built-in") == list(builtin.names())


def test_every_problem_comes_once(place):
    files = place / "set"
    assert names(files / "c.json", files) == ["c", "a", "b"]


def test_problems_of_one_name_are_told_apart(place):
    other = tiny_problem("a", memory_bytes=200)
    write(place / "other.json", other)
    found = find_set([str(place / "set" / "a.json"), str(place)])
    assert [instance.name for instance in found] == [
        f"a ({instance.hash[:8]})" for instance in found
    ]
    assert len({instance.name for instance in found}) == 2


def test_lists(place):
    """Paths are from where the list is; lists may name lists."""
    (place / "list.txt").write_text(
        "# two of them\nset/c.json  # first\n\nset/a.json\n"
    )
    (place / "list.yaml").write_text(
        "- list.txt\n"
        "- {name: mine, model: llama2-7b, cluster: dgx-a100x8,\n"
        "   layers_per_node: 8}\n"
    )
    assert names(place / "list.txt") == ["c", "a"]
    assert names(place / "list.yaml") == ["c", "a", "mine"]


def test_a_yaml_file_may_be_a_problem(place):
    path = place / "one.yaml"
    path.write_bytes((place / "set" / "a.json").read_bytes())
    assert names(path) == ["a"]


def test_the_door_for_named_sets():
    quick = named("quick")
    assert quick is not None
    assert len(quick) == 9
    assert named("no-such-set") is None
    assert set_names()[:2] == ["quick", "built-in"]
    assert {"tiny", "moe", "open", "closed"} < {*set_names()}


def test_make_bench_quick_has_every_solver_but_brute():
    """Which refuses most of its problems: they have too many plans."""
    makefile = Path(__file__).resolve().parents[3] / "Makefile"
    (line,) = re.findall(r"^BENCH_SOLVERS := (.*)$", makefile.read_text(), re.MULTILINE)
    expected = [name for name in solver_names() if is_built_in(name)]
    expected.remove("brute")
    assert line.split(",") == expected


def test_classes_of_the_library_are_sets():
    """With several joined, the instances of all of them.

    In the words of ``nest instances --class``.
    """
    tiny, closed = named("tiny"), named("tiny+closed")
    assert tiny is not None
    assert closed is not None
    assert {x.name for x in closed} < {x.name for x in tiny}
    unsolvable = {x.name for x in named("infeasible") or ()}
    assert {x.name for x in closed if x.best_quanta is None} <= unsolvable
    (one,) = named(tiny[0].name) or ()
    assert one == tiny[0]
    assert named("tiny,closed") == closed
    assert named("open+tiny,closed") == []
    assert named("tiny+unknown") is None
    mixed = library.names(["mixed"])
    assert [x.name for text in mixed for x in named(text) or ()] == [*mixed]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("llama2-7b-9", "expected a file, a directory, a set or a built-in"),
        ("llama2-7b-9", "did you mean 'llama2-7b-8'"),
        ("none.json", "none.json: expected a readable file"),
        ("none/*.json", "expected a pattern of files, got one that none"),
        ("empty", "expected a directory with problems .*, got none"),
        ("cut.json", r"cut.json: line \d+: expected a problem in JSON, got"),
        ("bad.txt", "none.json: expected a readable file"),
        ("self.txt", "self.txt: expected a list of problems, got one that"),
        ("typo.yaml", "typo.yaml: entry 2: .*expected a known key, got 'mdl'"),
        ("model.yaml", "model.yaml: entry 1: .*got 'lama'"),
        ("job.yaml", r"job.yaml: entry 1: tp: .*3"),
        ("nothing.txt", "SET: expected at least one problem, got none"),
    ],
)
def test_what_is_no_set(place, monkeypatch, text, expected):
    """One line says which part of it is not; none is left out."""
    monkeypatch.chdir(place)
    (place / "empty").mkdir()
    whole = (place / "set" / "a.json").read_text()
    (place / "cut.json").write_text(whole[:200])
    (place / "bad.txt").write_text("set/a.json\nnone.json\n")
    (place / "self.txt").write_text("self.txt\n")
    (place / "typo.yaml").write_text("- set\n- {mdl: llama2-7b}\n")
    (place / "model.yaml").write_text("- {model: lama, cluster: h100x8}\n")
    (place / "job.yaml").write_text(
        "- {model: llama2-7b, cluster: dgx-a100x8, tp: [3]}\n"
    )
    (place / "nothing.txt").write_text("# nothing\n")
    error = (InvalidOptionError, InvalidProblemError)
    with pytest.raises(error, match=expected) as caught:
        find_set([text])
    assert "\n" not in str(caught.value)


# Grids


def levels(*bandwidths: float) -> Cluster:
    return Cluster(
        num_devices=8,
        device=Device(memory_bytes=1),
        topology=Hierarchy(
            levels=tuple(
                Level(
                    fan_out=fan_out,
                    bandwidth_bytes_per_s=bandwidth,
                    peer_bandwidth_bytes_per_s=bandwidth,
                    latency_ns=5,
                )
                for fan_out, bandwidth in zip((1, 4, 2), bandwidths, strict=True)
            )
        ),
    )


def test_wider_networks():
    """The first level that joins devices is the node; latencies stay."""
    assert widened(levels(1, 2, 3), 2, False) == replace(
        levels(1, 2, 6), topology=levels(1, 2, 6).topology
    )
    assert widened(levels(1, 2, 3), 2, True) == levels(2, 4, 6)
    assert widened(levels(1, 2, 3), 1, False) == levels(1, 2, 3)


def test_wider_graphs():
    """Where nodes cannot be told all links are scaled, or none."""

    def graph(bandwidth: float) -> Cluster:
        return Cluster(
            num_devices=2,
            device=Device(memory_bytes=1),
            topology=GraphTopology(
                nodes=(NetworkNode(id="a"), NetworkNode(id="b")),
                links=(
                    NetworkLink(
                        source="a",
                        target="b",
                        bandwidth_bytes_per_s=bandwidth,
                        latency_ns=7,
                    ),
                ),
            ),
        )

    assert widened(graph(4), 1.5, True) == graph(6)
    with pytest.raises(InvalidOptionError, match="add within_nodes: true"):
        widened(graph(4), 2, False)


def test_a_grid():
    sweep = Sweep(
        models=("llama2-7b", "gpt3-1.3b"),
        clusters=("dgx-a100x8",),
        batches=(32, 64),
        bandwidths=(1, 2),
        job=Request(layers_per_node=8),
    )
    found = expand(sweep, "grid.yaml")
    assert [instance.name for instance in found][:3] == [
        "llama2-7b dgx-a100x8 b32 ×1",
        "llama2-7b dgx-a100x8 b32 ×2",
        "llama2-7b dgx-a100x8 b64 ×1",
    ]
    assert len({instance.hash for instance in found}) == 8
    assert found[-1].axes == {
        "model": "gpt3-1.3b",
        "cluster": "dgx-a100x8",
        "batch": 64,
        "bandwidth": 2,
    }


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("models: []", "models: expected at least one, got none"),
        ("batches: [8, 8]", "batches: expected each once, got some twice"),
        ("batches: [0]", "batches: expected >= 1, got 0"),
        ("bandwidths: [0]", "bandwidths: expected a finite number > 0"),
        ("seeds: [-1]", "seeds: expected >= 0, got -1"),
        ("job: {global_batch: 8}", "job.global_batch: expected it or batches"),
        ("nodes: 3", "expected a known key, got 'nodes'"),
        ("schema: nest-sweep/2", "expected 'nest-sweep/1'"),
    ],
)
def test_what_is_no_grid(tmp_path, change, expected):
    fields = {
        "schema": "schema: nest-sweep/1",
        "models": "models: [llama2-7b]",
        "clusters": "clusters: [h100x8]",
        "batches": "batches: [8]",
    }
    fields[change.partition(":")[0]] = change
    path = tmp_path / "grid.yaml"
    path.write_text("\n".join(fields.values()))
    with pytest.raises(InvalidOptionError, match=expected) as caught:
        read_sweep(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_grid_with_a_problem_that_cannot_be():
    sweep = Sweep(models=("llama2-7b",), clusters=("h100x8", "h200y8"))
    with pytest.raises(InvalidProblemError, match=r"^grid.yaml: llama2-7b on h200y8: "):
        expand(sweep, "grid.yaml")
