"""The records, their checks, their files and their hash."""

import itertools
import json
import os
import stat
from functools import cache
from pathlib import Path

import msgspec
import pytest
import yaml
from msgspec.structs import replace

from nest.errors import InvalidPlanError, InvalidProblemError, NestError
from nest.ir import (
    Activations,
    Cluster,
    CollectiveCall,
    Device,
    DeviceRange,
    DeviceTimes,
    Edge,
    Graph,
    GroupFraction,
    Hierarchy,
    Job,
    Layer,
    LayerCost,
    LayerKind,
    Level,
    Optimizer,
    Plan,
    Stage,
    Strategy,
    decode_problem,
    encode,
    problem_hash,
    read_plan,
    read_problem,
    write,
)
from nest.ir.io import convert
from nest.ir.problem import OwnRuns
from tests.builders import make_cost, make_levels, make_problem
from tests.rows import rows

DATA = Path(__file__).parents[2] / "data"
LEVEL = Level(fan_out=2, bandwidth_bytes_per_s=1e9)
COST = make_cost()


@cache
def full_problem():
    """Return a problem that sets every field to something of its own."""
    return read_problem(DATA / "full-problem.yaml")


def mixed_cluster(*ranges, num_devices=4, **fields):
    """Build four devices, some of other types: (first, count, name)."""
    return Cluster(
        num_devices=num_devices,
        device=Device(memory_bytes=10, price_usd_per_hour=1.0),
        others=tuple(
            DeviceRange(
                first=first,
                count=count,
                device=Device(name=name, memory_bytes=20, **fields),
            )
            for first, count, name in ranges
        ),
        topology=Hierarchy(levels=(replace(LEVEL, fan_out=4),)),
    )


def test_types_are_those_that_occur():
    """The first device is old, then two, then one of another type."""
    cluster = mixed_cluster((1, 2, "x"), (3, 1, "y"))
    assert [device.name for device in cluster.types] == ["device", "x", "y"]
    assert [cluster.devices_of(i) for i in range(3)] == [1, 2, 1]
    assert cluster.types_in([(0, 1)]) == (0,)
    assert cluster.types_in([(1, 3)]) == (1,)
    assert cluster.types_in([(0, 1), (3, 4)]) == (0, 2)
    assert cluster.types_in([(2, 4)]) == (1, 2)
    assert cluster.types_in([(0, 4)]) == cluster.types_in() == (0, 1, 2)
    everywhere = mixed_cluster((0, 3, "x"), (3, 1, "x"))
    assert [device.name for device in everywhere.types] == ["x"]
    assert everywhere.types_in([(2, 4)]) == (0,)


def test_the_first_devices_keep_their_types():
    cluster = mixed_cluster((1, 2, "x"), (3, 1, "y"))
    two = cluster.first_devices(2)
    assert [device.name for device in two.types] == ["device", "x"]
    assert (two.num_devices, two.others[0].count) == (2, 1)
    assert cluster.first_devices(1).types == (cluster.device,)


def test_capacities_of_types_are_capped_apart():
    capped = mixed_cluster((1, 3, "x")).within(15)
    assert [device.memory_bytes for device in capped.types] == [10, 15]
    alike = mixed_cluster((1, 3, "x")).with_memory(15)
    assert [device.memory_bytes for device in alike.types] == [15, 15]
    # no less than what is reserved
    full = mixed_cluster((1, 3, "x"), reserve_bytes=18).within(15)
    assert [device.memory_bytes for device in full.types] == [10, 18]


@pytest.mark.parametrize(("price", "known"), [(1.0, 1.0), (3.0, None)])
def test_types_of_one_price_have_it(price, known):
    """Sizes of a cluster are priced by devices, whichever these are."""
    mixed = mixed_cluster((1, 3, "x"), price_usd_per_hour=price)
    assert mixed.price_usd_per_hour == known
    assert mixed_cluster((1, 3, "x")).price_usd_per_hour is None


def example_plan():
    return Plan(
        replicas=2,
        micro_batch=4,
        stages=(
            Stage(layers=("a",), devices=2, strategy=Strategy(dp=2, zero=1)),
            Stage(
                layers=("b", 3),
                devices=2,
                strategies=(Strategy(tp=2), Strategy(cp=2, ep=2)),
            ),
        ),
        solver="dp",
    )


# Checks of single records

RECORDS = {
    record.__name__: record
    for record in (
        Activations, CollectiveCall, Device, Edge, Hierarchy, Job, LayerKind,
        Level, Optimizer, Plan, Stage, Strategy, make_cost,
    )
}  # fmt: skip
#: What fields of records hold that are records themselves.
INNER = {
    "activations": Activations,
    "costs": make_cost,
    "strategy": Strategy,
    "strategies": Strategy,
}


def value_of(field, value):
    """Return a field's value from what a row of a table has."""
    make = INNER.get(field)
    if isinstance(value, list):
        return tuple(make(**part) if make else part for part in value)
    return make(**value) if make else value


@pytest.mark.parametrize(("record", "fields", "reason"), rows("records", "records"))
def test_a_wrong_value_is_refused_by_name(record, fields, reason):
    values = {name: value_of(name, value) for name, value in fields.items()}
    with pytest.raises(ValueError, match=rf"^{reason}"):
        RECORDS[record](**values)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: mixed_cluster(num_devices=0), "num_devices: expected >= 1, got 0"),
        (
            lambda: mixed_cluster(num_devices=5),
            r"num_devices: expected <= 4 \(the product of the fan-outs\), got "
            r"5; raise a fan_out",
        ),
        (
            lambda: mixed_cluster((0, 2, "x"), (1, 1, "y")),
            r"others\[1\]\.first: expected >= 2, where the range before ends, "
            r"got 1; correct it",
        ),
        (
            lambda: mixed_cluster((0, 1, "x"), (2, 3, "y")),
            r"others\[1\]\.count: expected ranges within num_devices = 4, got "
            r"an end of 5; correct it",
        ),
        (
            lambda: mixed_cluster((0, 1, "device")),
            "others: expected types of distinct names, got 'device' twice; "
            "name them apart",
        ),
        (
            lambda: make_problem({"a": make_cost()}, quantum_ps=0),
            "quantum_ps: expected >= 1, got 0",
        ),
        (
            lambda: make_problem({"a": make_cost(tp=2, sequence_parallel=True)}),
            r"job.sequence_parallel: expected a list such as \[false, true\], "
            r"as kind 'a' has costs with sequence_parallel, got false; "
            r"correct it, or remove those costs",
        ),
        (
            lambda: make_problem({"a": make_cost()}, one_stage=("a", "m")),
            r"job.one_stage: expected kinds of the graph \(a\), got 'm'; "
            r"correct or remove it",
        ),
    ],
)
def test_values_that_do_not_go_together_are_refused(build, reason):
    with pytest.raises(ValueError, match=rf"^{reason}"):
        build()


# Graphs


def make_graph(ids, edges, kinds=("k",)):
    return Graph(
        kinds=tuple(LayerKind(name=name, costs=(COST,)) for name in kinds),
        layers=tuple(Layer(id=i, kind="k") for i in ids),
        edges=tuple(Edge(source=s, target=t, bytes_per_sample=1) for s, t in edges),
    )


@pytest.mark.parametrize(("ids", "edges", "kinds", "reason"), rows("records", "graphs"))
def test_a_wrong_graph_is_refused(ids, edges, kinds, reason):
    with pytest.raises(ValueError, match=f"^{reason}"):
        make_graph(ids, edges, kinds)


def test_topological_order_keeps_the_file_order_of_ties():
    """c -> a; b free: positions 1 (b) and 2 (c) are ready, b comes first."""
    assert make_graph("abc", ("ca",)).topological_order() == [1, 2, 0]
    assert make_graph("abc", ()).topological_order() == [0, 1, 2]
    assert make_graph("abc", ("ca", "ab")).topological_order() == [2, 0, 1]
    assert make_graph("abc", ("ac", "bc")).topological_order() == [0, 1, 2]


def test_a_graph_may_be_long():
    """No recursion: a chain of 5,000 operators."""
    ids = range(5000)
    graph = make_graph(ids, itertools.pairwise(ids))
    assert graph.topological_order() == list(ids)


# Small things


def test_strategy_counts():
    strategy = Strategy(dp=2, tp=3, cp=5, ep=10)
    assert strategy.devices == 30
    assert strategy.data_ranks == 10


def test_experts_are_spread_over_more_ranks_where_each_holds_whole_ones():
    """60 devices: 10 share dense weights, 10/5 an expert; whole ones 30/15."""
    cut = Strategy(dp=2, tp=3, cp=5, ep=5)
    assert (cut.expert_tp, cut.data_ranks, cut.expert_ranks) == (3, 10, 2)
    whole = Strategy(dp=2, tp=3, cp=5, ep=15, etp=1)
    assert (whole.expert_tp, whole.data_ranks, whole.expert_ranks) == (1, 10, 2)
    assert whole.layout == cut.layout
    assert whole.degrees != replace(whole, etp=0, ep=5).degrees
    alone = Strategy(tp=2)
    assert not alone.shares_weights
    assert replace(alone, etp=1).shares_weights
    assert not replace(alone, etp=1, ep=2).shares_weights


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"tp": 1, "etp": 1}, "etp: expected 1, .* got 1 with tp = 1; leave it out"),
        ({"tp": 4, "etp": 2}, "etp: expected 1, .* got 2 with tp = 4; leave it out"),
        ({"tp": 2, "ep": 2}, "ep: expected a divisor of dp \\* cp = 1, got 2"),
        (
            {"tp": 2, "ep": 4, "etp": 1},
            "ep: expected a divisor of dp \\* cp \\* tp = 2, got 4",
        ),
    ],
)
def test_experts_that_ranks_cannot_hold_so(fields, text):
    with pytest.raises(ValueError, match=text):
        Strategy(**fields)


def test_entries_differ_by_how_experts_are_cut():
    """Two entries of one key are refused, those of another etp are not."""
    split = {"tp": 2, "sequence_parallel": True}
    entries = [make_cost(tp=2), make_cost(tp=2, etp=1), make_cost(**split)]
    LayerKind(name="a", costs=(*entries, make_cost(etp=1, **split)))
    with pytest.raises(ValueError, match=r"distinct values, got .*etp=1.* twice"):
        LayerKind(name="a", costs=(*entries, entries[1]))
    with pytest.raises(ValueError, match="leave it out"):
        make_cost(etp=1)


def test_rows_have_etp_where_a_strategy_states_it():
    def names(strategy):
        stage = Stage(layers=("a",), devices=2, strategy=strategy)
        (row,) = Plan(replicas=1, micro_batch=1, stages=(stage,)).to_rows()
        return [*row]

    plain, whole = names(Strategy(tp=2)), names(Strategy(tp=2, etp=1))
    assert "etp" not in plain
    assert whole == [*plain[: plain.index("ep") + 1], "etp", *plain[-4:]]


def test_a_job_or_its_plans_split_sequences():
    whole = Strategy(dp=2, tp=3, cp=5, ep=10)
    split = replace(whole, sequence_parallel=True)
    assert split.layout != whole.layout
    assert split.degrees != whole.degrees
    for value, shards in (
        (True, [30, 30]),
        (False, [10, 10]),
        ((False, True), [10, 30]),
    ):
        job = Job(global_batch=1, sequence_parallel=value)
        assert [job.shards(s) for s in (whole, split)] == shards


def test_files_state_sequence_parallelism_only_where_it_is():
    text = encode(Strategy(tp=2)).decode()
    assert "sequence_parallel" not in text
    assert json.loads(text) == {
        **{"dp": 1, "tp": 2, "cp": 1, "ep": 1},
        **{"zero": 0, "recompute": "none"},
    }
    split = json.loads(encode(Strategy(tp=2, sequence_parallel=True)))
    assert list(split)[3:6] == ["ep", "sequence_parallel", "zero"]
    assert "sequence_parallel" not in encode(make_cost(tp=2)).decode()


def test_a_problem_with_the_choice_can_be_read_back():
    problem = make_problem(
        {"a": (make_cost(tp=2), make_cost(tp=2, sequence_parallel=True))},
        sequence_parallel=(False, True),
    )
    assert decode_problem(encode(problem)) == problem


@pytest.mark.parametrize(
    ("strategy", "text"),
    [
        (Strategy(), "single"),
        (Strategy(dp=2, tp=4, ep=2, zero=1), "dp2·tp4·ep2·zero1"),
        (Strategy(cp=2, recompute="full"), "cp2·recompute-full"),
        (Strategy(tp=8, sequence_parallel=True), "tp8·sp"),
        (Strategy(tp=8, ep=8, etp=1), "tp8·ep8·etp1"),
        (
            Strategy(dp=2, tp=2, cp=2, ep=2, sequence_parallel=True),
            "dp2·tp2·sp·cp2·ep2",
        ),
    ],
)
def test_strategy_text(strategy, text):
    assert str(strategy) == text


def test_plan_counts_its_devices():
    assert example_plan().devices_used == 4


def test_capacities_multiply_up():
    tree = make_levels((2, 0, 1), (3, 0, 1), (4, 0, 1))
    assert tree.capacities == (2, 6, 24)


def test_records_cannot_be_changed():
    with pytest.raises(AttributeError, match="immutable"):
        Strategy().dp = 2  # type: ignore[misc]


# Files


def document():
    """Return a problem as the object that its file holds."""
    return json.loads(encode(full_problem()))


def put(where, value):
    """Return the problem's document with one place changed."""
    changed = document()
    *path, last = where
    place = changed
    for step in path:
        place = place[step]
    if value == "DELETE":
        del place[last]
    else:
        place[last] = value
    return json.dumps(changed).encode()


COSTS = ("graph", "kinds", 0, "costs", 0)


@pytest.mark.parametrize(("where", "value", "reason"), rows("records", "places"))
def test_a_wrong_file_is_refused_with_its_place(where, value, reason):
    with pytest.raises(InvalidProblemError, match=reason) as caught:
        decode_problem(put(where, value), "p.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [b"", b"{", encode(full_problem())[:200], b"\xff\xf0", b"[" * 100_000, b"not json"],
)
def test_a_damaged_file_is_refused(data):
    with pytest.raises(
        InvalidProblemError,
        match=r"^p\.json: .*; (check that|correct the|save it as UTF-8)",
    ):
        decode_problem(data, "p.json")


@pytest.mark.parametrize("data", [b"null", b"[]", b"3", b'"text"', b"{}"])
def test_another_document_is_refused(data):
    with pytest.raises(InvalidProblemError, match=r"^p\.json: \$: expected "):
        decode_problem(data, "p.json")


def test_a_damaged_yaml_file_is_refused():
    with pytest.raises(
        InvalidProblemError,
        match=r"^p\.yaml: line 2: expected a problem in YAML, got malformed",
    ):
        decode_problem(b"graph: [", "p.yaml")


def test_a_file_of_brackets_is_refused():
    """No word of the interpreter's stack."""
    with pytest.raises(
        InvalidProblemError,
        match=r"^p\.json: expected a problem in JSON, got malformed text "
        r"\(values inside values, hundreds deep\); check that it is the right "
        r"file$",
    ):
        decode_problem(b'{"schema": ' + b"[" * 100_000, "p.json")


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(
        InvalidProblemError,
        match=r"none\.json: expected a readable file, got No such file or "
        r"directory; check the path",
    ):
        read_problem(tmp_path / "none.json")


def test_a_directory_is_refused(tmp_path):
    for read, error in (
        (read_problem, InvalidProblemError),
        (read_plan, InvalidPlanError),
    ):
        with pytest.raises(
            error, match="expected a file, got a directory; name a file in it"
        ):
            read(tmp_path)


def test_a_problem_is_not_a_plan(tmp_path):
    path = tmp_path / "problem.json"
    write(path, full_problem())
    with pytest.raises(InvalidPlanError, match=r"problem\.json: \$.*nest-problem/1"):
        read_plan(path)


def test_a_plan_says_what_is_wrong_with_it(tmp_path):
    path = tmp_path / "plan.json"
    plan = json.loads(encode(example_plan()))
    plan["stages"][0]["devices"] = 3
    path.write_text(json.dumps(plan))
    with pytest.raises(
        InvalidPlanError,
        match=r"plan\.json: \$\.stages\[.*\]: devices: expected dp \* tp \* "
        r"cp = 2 of strategy dp2·zero1, got 3",
    ):
        read_plan(path)


@pytest.mark.parametrize("suffix", ["json", "yaml", "yml"])
def test_reading_back(tmp_path, suffix):
    """Both formats give the record that was written."""
    for record, read in ((full_problem(), read_problem), (example_plan(), read_plan)):
        path = tmp_path / f"file.{suffix}"
        if suffix == "json":
            write(path, record)
        else:
            path.write_text(yaml.safe_dump(json.loads(encode(record))))
        assert read(path) == record


def test_written_text_is_stable(tmp_path):
    """Indented, one final newline, and the same after reading back."""
    path = tmp_path / "problem.json"
    write(path, decode_problem(encode(full_problem())))
    text = path.read_bytes()
    assert text.endswith(b"}\n")
    assert b'\n "graph": {' in text
    write(path, read_problem(path))
    assert path.read_bytes() == text


def test_writing_replaces_a_file_whole(tmp_path):
    """Nothing but the file is left, with the usual rights."""
    path = tmp_path / "plan.json"
    path.write_text("old")
    write(path, example_plan())
    assert os.listdir(tmp_path) == ["plan.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "expected a writable file, got it is a directory; choose"),
        ("no/such/plan.json", "expected a writable file, got no directory"),
    ],
)
def test_a_place_that_cannot_be_written(tmp_path, name, reason):
    with pytest.raises(NestError, match=reason):
        write(tmp_path / name, example_plan())


def test_a_failed_write_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    path.write_text("old")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(NestError, match="disk full"):
        write(path, example_plan())
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


# The hash


def shuffled(value):
    """Reverse the order of all keys."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(list(value))}
    if isinstance(value, list):
        return [shuffled(item) for item in value]
    return value


def test_the_hash_does_not_depend_on_how_the_file_is_written(tmp_path):
    problem = full_problem()
    expected = problem_hash(problem)
    assert len(expected) == 64
    other_order = json.dumps(shuffled(document())).encode()
    assert problem_hash(decode_problem(other_order)) == expected
    path = tmp_path / "problem.yaml"
    path.write_text(yaml.safe_dump(document()))
    assert problem_hash(read_problem(path)) == expected


def test_the_hash_does_not_depend_on_the_type_of_a_number():
    """10 and 10.0 ns; a default spelled out."""
    whole = put((*COSTS, "forward_ns"), 10)
    broken = put((*COSTS, "forward_ns"), 10.0)
    assert whole != broken
    expected = problem_hash(full_problem())
    assert problem_hash(decode_problem(whole)) == expected
    assert problem_hash(decode_problem(broken)) == expected
    spelled_out = put((*COSTS, "tp"), 1)
    assert problem_hash(decode_problem(spelled_out)) == expected
    in_python = make_problem({"a": make_cost(10, 20)})
    assert problem_hash(in_python) == problem_hash(
        make_problem({"a": make_cost(10.0, 20.0)})
    )


def leaves(value, path=()):
    """Yield the path of every number, text and truth value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, (*path, index))
    else:
        yield path, value


def changed_value(path, value):
    """Return another legal value for a leaf."""
    choices = {
        "kind": {"all-reduce": "all-gather", "a": "b", "b": "a"},
        "axis": {"tp": "cp"},
        "phase": {"forward": "backward"},
        "schedule": {"gpipe": "1f1b"},
        "granularity": {"layer": "stage"},
        "preset": {"standard": "nest-artifact"},
        "recompute": {"none": "selective"},
        "algorithms": {"nccl": "best"},
        "uniform": {"dp": "tp"},
        "sharded_with": {"pp": "tp"},
        "micro_batch_count": {"at-least-stages": "any"},
        "overlap_needs": {"interleaving": "gradients"},
    }
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 0.25 if isinstance(value, float) else value + 1
    for key, values in choices.items():
        if key in path and value in values:
            return values[value]
    return value + "x"


def test_the_hash_changes_with_every_value():
    """Change each leaf of the file in turn, where the file stays legal."""
    hashes = {(): problem_hash(full_problem())}
    refused = set()
    for path, value in leaves(document()):
        try:
            problem = decode_problem(put(path, changed_value(path, value)))
        except InvalidProblemError:
            refused.add(path)
            continue
        hashes[path] = problem_hash(problem)
    assert len(set(hashes.values())) == len(hashes)
    # what cannot be changed on its own: names that others refer to, tags,
    # and values that have no legal neighbor of this kind
    assert {path[-1] for path in refused if isinstance(path[-1], str)} <= {
        "schema",
        "kind",
        "name",
        "id",
        "source",
        "target",
        "recompute",
        "num_devices",
        "gradient_sync_overlap",
        "etp",
    }
    assert len(hashes) > 40


@pytest.mark.parametrize(
    "field",
    ["bytes_per_sample_by_tp", "source_extra_bytes_by_tp", "target_extra_bytes_by_tp"],
)
def test_a_table_by_tp_is_hashed_too(tmp_path, field):
    """Its keys are numbers in Python and text in the file."""
    hashes = set()
    for table in ({}, {2: 3}, {2: 4}, {4: 3}, {2: 3, 4: 3}):
        changed = document()
        if table:
            changed["graph"]["edges"][0][field] = table
        problem = decode_problem(json.dumps(changed).encode())
        path = tmp_path / "problem.json"
        write(path, problem)
        assert read_problem(path) == problem
        expected = problem_hash(problem)
        assert problem_hash(read_problem(path)) == expected
        assert (
            problem_hash(decode_problem(json.dumps(shuffled(changed)).encode()))
            == expected
        )
        hashes.add(expected)
    assert len(hashes) == 5


def test_the_hash_is_pinned():
    """The hash of a stored problem must not change by accident."""
    assert problem_hash(make_problem({"a": make_cost(1, 2)})) == (
        "21cd3e6b03a71f4ec2b479533af0b52f0c8f589a72f1fd7e95f77252f66f7260"
    )


def test_every_public_field_is_in_the_full_problem():
    """A field added to a record must be covered by the hash test.

    Only the tables by tp and the presets' own fields are left out.
    """
    text = encode(full_problem()).decode()
    records = (
        Activations, Cluster, CollectiveCall, Device, DeviceRange,
        DeviceTimes, Edge, Graph, GroupFraction, Hierarchy, Job, Layer,
        LayerCost, LayerKind, Level, Optimizer, OwnRuns,
    )  # fmt: skip
    names = set(
        itertools.chain.from_iterable(record.__struct_fields__ for record in records)
    )
    absent = {name for name in names if f'"{name}"' not in text}
    # absent because the problem gives them their defaults
    assert absent == {
        "bytes_per_sample_by_tp",
        "cp",
        "dtype",
        "ep",
        "gradient_bytes",
        "samples",
        "source_extra_bytes_by_tp",
        "target_extra_bytes_by_tp",
        "virtual_stages",
    }
    assert msgspec.json.decode(text)["schema"] == "nest-problem/1"


# Schedules that split the backward pass


@pytest.mark.parametrize(
    ("schedule", "place", "more"),
    [("zbh1", "", " or 'any'"), (["1f1b", "zbh1"], "[1]", "")],
)
def test_schedules_that_are_misspelt_are_listed(schedule, place, more):
    with pytest.raises(InvalidProblemError) as caught:
        convert(
            {"global_batch": 1, "schedule": schedule},
            *("job.json", Job, InvalidProblemError),
        )
    assert str(caught.value) == (
        f"job.json: $.schedule{place}: expected '1f1b' or 'gpipe' or 'zb-h1' "
        f"or 'zb-v' or 'dualpipe-v'{more}, got 'zbh1'; correct the value"
    )


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "dualpipe-v"])
def test_split_backward_passes_do_not_recompute_fully(schedule):
    with pytest.raises(
        ValueError,
        match=rf"recompute: expected 'none' or 'selective' with schedule "
        rf"'{schedule}', got \['none', 'full'\]; what 'full' does not keep "
        r"is needed until weights have their gradients",
    ):
        Job(global_batch=1, schedule=schedule, recompute=("none", "full"))


def test_schedules_in_v_shape_have_two_chunks_per_block():
    for given in ((1,), (2,)):
        job = Job(global_batch=1, schedule="zb-v", virtual_stages=given)
        assert job.chunk_counts == (2,)
    assert Job(global_batch=1, schedule="zb-h1").chunk_counts == (1,)
    with pytest.raises(
        ValueError,
        match=r"virtual_stages: expected \[2\] with schedule 'dualpipe-v', "
        r"got \[1, 2\]; only '1f1b' can be interleaved",
    ):
        Job(global_batch=1, schedule="dualpipe-v", virtual_stages=(1, 2))


def v_plan(*devices, **fields):
    stages = tuple(
        Stage(layers=(i,), devices=n, strategy=Strategy(dp=n))
        for i, n in enumerate(devices)
    )
    fields = {"virtual_stages": 2, "placement": "v", **fields}
    return Plan(replicas=1, micro_batch=1, stages=stages, **fields)


def test_chunks_in_v_shape_go_down_and_up():
    plan = v_plan(1, 2, 3, 3, 2, 1)
    assert [plan.block_of(i) for i in range(6)] == [0, 1, 2, 2, 1, 0]
    assert [plan.chunks_of(r) for r in range(3)] == [(0, 5), (1, 4), (2, 3)]
    assert plan.devices_used == 6
    assert b'"placement": "v"' in encode(plan)
    assert b"placement" not in encode(v_plan(1, 1, 1, 1, placement="loop"))
    with pytest.raises(
        ValueError,
        match="stages: expected 2 devices in stage 3, as in stage 2 on the "
        "same block, got 1",
    ):
        v_plan(1, 2, 1, 2)
    with pytest.raises(
        ValueError, match="virtual_stages: expected 2 with placement 'v', got 1"
    ):
        v_plan(1, 1, virtual_stages=1)


@pytest.mark.parametrize(
    "record",
    [
        lambda: make_cost(1, 2, weight_backward_ns=3),
        lambda: DeviceTimes(
            device="x", forward_ns=1, backward_ns=2, weight_backward_ns=3
        ),
    ],
)
def test_gradients_of_weights_are_part_of_the_backward_pass(record):
    with pytest.raises(
        ValueError,
        match=r"weight_backward_ns: expected at most backward_ns \(2\), of "
        r"which it is a part, got 3",
    ):
        record()


def test_clusters_have_at_most_64_levels():
    with pytest.raises(
        ValueError,
        match="levels: expected at most 64, got 65; join levels with a fan_ou",
    ):
        Hierarchy(levels=(LEVEL,) * 65)
