"""The instance library: what is stored is what it says it is.

Every problem and every plan, not a sample: all of it takes seconds.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import msgspec
import pytest

from bench import instance_recipes
from bench import instances as script
from bench.instance_classes import HOLDS, SIZES, classes_of, size_of
from nest.cost.score import score
from nest.errors import InvalidProblemError, UnknownInstanceError, UnknownNameError
from nest.instances import CLASSES, best_known, instance, names, problem, store
from nest.instances.records import BestKnown, Proof, Unlimited
from nest.ir import problem_hash
from nest.models import builtin
from tests.builders import make_levels, two_stages

FOLDER = store.problem_path("x").parent
HASH = "0" * 64


def test_there_are_enough_of_every_class() -> None:
    assert len(names()) >= 100
    assert {item.name: len(names([item.name])) for item in CLASSES} == {
        item.name: max(5, len(names([item.name]))) for item in CLASSES
    }


def test_files_are_those_of_the_index_and_small() -> None:
    files = {path.name.removesuffix(".json.gz") for path in FOLDER.iterdir()}
    assert files == {*names()} == {*store.read_best_known()}
    size = sum(path.stat().st_size for path in FOLDER.parent.rglob("*.*"))
    assert size < 4_000_000


def test_names_are_no_others() -> None:
    taken = {*builtin.names(), *(item.name for item in CLASSES)}
    assert not taken & {*names()}


@pytest.mark.parametrize("name", names())
def test_a_problem_is_the_one_of_the_index(name: str) -> None:
    found, its = problem(name), instance(name)
    assert found.name == name
    assert problem_hash(found) == its.problem_hash
    assert problem_hash(store.unlimited(found)) == its.unlimited_hash
    assert classes_of(found) == its.classes
    assert found.source == its.source
    assert (found.cluster.num_devices, len(found.graph.layers), found.quantum_ps) == (
        its.num_devices,
        its.num_layers,
        its.quantum_ps,
    )
    # Stored as it is encoded, whatever zlib made of it.
    stored = gzip.decompress(store.problem_path(name).read_bytes())
    assert stored == msgspec.json.encode(found)


@pytest.mark.parametrize("name", names())
def test_what_is_known_holds(name: str) -> None:
    """Plans are scored again; bounds do not exceed what plans take."""
    whole, known = problem(name), best_known(name)
    assert known.problem_hash == instance(name).problem_hash
    value, bound = known.value_quanta, known.bound_quanta
    assert (known.plan is None) == (value is None) == (known.found_by is None)
    if known.plan is not None:
        found = score(whole, known.plan)
        assert found.feasible
        assert found.step_quanta == value
        assert known.plan.problem_hash == known.problem_hash
    assert not (known.infeasible and value is not None)
    assert value is None or bound is None or bound <= value
    closed = known.infeasible or (value is not None and value == bound)
    assert known.status == ("closed" if closed else "open")
    beyond = known.unlimited
    if beyond is not None and beyond.plan is not None:
        free = score(store.unlimited(whole), beyond.plan)
        assert free.feasible
        assert free.step_quanta == beyond.value_quanta
        assert not score(whole, beyond.plan).feasible
    match known.memory_class:
        case "tight":
            assert beyond is not None
            assert beyond.value_quanta is not None
            assert bound is not None
            assert beyond.value_quanta < bound
        case "loose":
            assert beyond is not None
            assert beyond.proof is not None
            assert beyond.proof.bound_quanta is not None
            assert beyond.proof.bound_quanta >= (value or 0)
        case "infeasible":
            # Memory is why: some plan would do without its limit.
            assert beyond is not None
            assert beyond.plan is not None


def test_recipes_make_these_problems() -> None:
    """Every fourth: 'python bench/instances.py --check' compares all.

    Another calibration or other code makes other problems of the recipes:
    then the stored ones stay what they are, and this has nothing to compare.
    """
    recipes = {
        instance_recipes.name_of(recipe): recipe
        for recipe in instance_recipes.recipes()
    }
    assert {*recipes} == {*names()}
    for name in names():
        assert instance(name).recipe == recipes[name]
    made_of = script.calibration_sha256(), script.sources_sha256()
    library = store.library()
    if made_of != (library.calibration_sha256, library.sources_sha256):
        pytest.skip("calibration or code of models changed since")
    for name in names()[::4]:
        assert instance_recipes.instance_of(recipes[name])[0] == instance(name)


# Classes, by hand


def test_every_class_is_computed_or_needs_a_proof() -> None:
    assert {item.name for item in CLASSES} == {*HOLDS, "loose", "tight", "infeasible"}
    for item in CLASSES:
        if item.dimension == "size":
            assert item.meaning.startswith(f"{SIZES[item.name]:,} ")


@pytest.mark.parametrize(
    ("num_devices", "expected"),
    [
        *((1, "tiny"), (8, "tiny"), (9, "small"), (63, "small")),
        *((64, "medium"), (255, "medium"), (256, "large"), (4095, "large")),
        (4096, "huge"),
    ],
)
def test_sizes(num_devices: int, expected: str) -> None:
    found = two_stages(devices=num_devices, topology=make_levels((num_devices, 0, 1e9)))
    assert size_of(found) == expected
    assert expected in classes_of(found)


@pytest.mark.parametrize(
    ("levels", "devices", "expected"),
    [
        (((8, 400), (4, 40)), 32, {"fast"}),
        (((8, 400), (4, 20)), 32, set()),
        (((8, 400), (4, 10)), 32, {"slow"}),
        # What counts are the levels that the devices reach.
        (((8, 400), (4, 10)), 8, {"fast"}),
        (((8, 400), (2, 40), (4, 20)), 64, {"oversubscribed"}),
        (((8, 400), (2, 40), (4, 20)), 16, {"fast"}),
        (((8, 400), (2, 40), (4, 21)), 64, set()),
    ],
)
def test_networks(
    levels: tuple[tuple[int, float], ...], devices: int, expected: set[str]
) -> None:
    """Gigabytes per second and device, from the device up."""
    tree = make_levels(*((fan_out, 0, 1e9 * speed) for fan_out, speed in levels))
    found = {*classes_of(two_stages(devices=devices, topology=tree))}
    assert found & {"fast", "slow", "oversubscribed"} == expected


@pytest.mark.parametrize(
    ("name", "inside", "outside"),
    [
        ("llama2-7b-dgx-h100x16-torus", {"non-tree"}, {"oversubscribed"}),
        (
            "gpt3-6.7b-dgx-h100x32-leaf-spine",
            {"oversubscribed", "non-tree"},
            {"fast", "slow"},
        ),
        ("mixtral-8x7b-dgx-h100x16", {"moe", "chain"}, {"dense", "dag"}),
        ("t5-11b-dgx-a100x16", {"encoder-decoder", "dag"}, {"chain"}),
        ("clip-vit-l-14-dgx-a100x8", {"dag"}, {"encoder-decoder"}),
        ("llama3-8b-dgx-h100x16-megatron", {"target", "megatron"}, {"maxtext"}),
        ("llama2-7b-dgx-h100x16", {"chain"}, {"target", "mixed"}),
    ],
)
def test_classes_of_some(name: str, inside: set[str], outside: set[str]) -> None:
    found = {*instance(name).classes}
    assert inside <= found
    assert not outside & found


def proof(bound_quanta: int | None) -> Proof:
    return Proof(solver="dp", version="1", method="", bound_quanta=bound_quanta)


@pytest.mark.parametrize(
    ("value", "bound", "free_value", "free_bound", "status", "memory"),
    [
        (10, 10, None, 10, "closed", "loose"),
        (10, 10, 9, None, "closed", "tight"),
        (10, 10, None, 9, "closed", None),
        (10, 8, 9, None, "open", None),
        (10, 8, 7, None, "open", "tight"),
        (10, 8, None, None, "open", None),
        (None, 8, 7, None, "open", None),
    ],
)
def test_status_and_memory(
    value: int | None,
    bound: int,
    free_value: int | None,
    free_bound: int | None,
    status: str,
    memory: str | None,
) -> None:
    """Tight needs a plan below the bound, loose a bound at the value."""
    found = BestKnown(
        problem_hash=HASH,
        value_quanta=value,
        proofs=(proof(bound),),
        unlimited=Unlimited(
            value_quanta=free_value,
            proof=None if free_bound is None else proof(free_bound),
        ),
    )
    assert (found.status, found.memory_class) == (status, memory)


def test_infeasible_is_closed() -> None:
    found = BestKnown(problem_hash=HASH, proofs=(proof(None),))
    assert (found.status, found.memory_class) == ("closed", "infeasible")
    assert found.bound_quanta is None
    nothing = BestKnown(problem_hash=HASH)
    assert (nothing.status, nothing.memory_class) == ("open", None)


def test_names_by_class_and_status() -> None:
    both = names(["tiny", "moe"])
    assert both == tuple(x for x in names(["tiny"]) if x in names(["moe"]))
    states = names(status="open"), names(status="closed")
    assert len(states[0]) + len(states[1]) == len(names())
    for name in names(["infeasible"]):
        assert best_known(name).infeasible


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="class: expected one of chain"):
        names(["tinny"])
    with pytest.raises(UnknownNameError, match="status: expected one of clo"):
        names(status="solved")
    wanted = "instance: .* got 'gpt2-v100-16gbx5'; did you mean 'gpt2-v100-16"
    for ask in (problem, instance, best_known):
        with pytest.raises(UnknownInstanceError, match=wanted):
            ask("gpt2-v100-16gbx5")
    with pytest.raises(UnknownInstanceError, match="choose another"):
        problem("???")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"no gzip", "expected a problem in gzip, got a damaged file"),
        (gzip.compress(b"{}", mtime=0)[:-9], "expected a problem in gzip"),
        (gzip.compress(b"{}", mtime=0), "expected key 'graph', got none"),
        (None, "expected a readable file"),
    ],
)
def test_a_damaged_file_is_refused(
    data: bytes | None, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.json.gz"
    if data is not None:
        path.write_bytes(data)
    monkeypatch.setattr(store, "problem_path", lambda name: path)
    with pytest.raises(InvalidProblemError, match=match):
        problem(names()[0])


def test_another_problem_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = names()[:2]
    path = store.problem_path(second)
    monkeypatch.setattr(store, "problem_path", lambda name: path)
    with pytest.raises(InvalidProblemError, match="an instance never changes"):
        problem(first)
