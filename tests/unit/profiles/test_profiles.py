"""Profiles: the file, the roofline, how costs are replaced, the importer."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from nest.cost.score import score
from nest.errors import InvalidOptionError, UnknownNameError
from nest.ir.cluster import Cluster, Device, Hierarchy, Level
from nest.ir.graph import (
    Activations,
    CollectiveCall,
    Edge,
    Graph,
    Layer,
    LayerCost,
    LayerKind,
)
from nest.ir.job import Job
from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem
from nest.models.blocks import Attention, Block, Head, Mlp, RepeatedBlock, Tower
from nest.models.choices import Degrees
from nest.models.operators.base import Split
from nest.profiles import (
    Entry,
    InvalidProfileError,
    Profile,
    apply_profile,
    encode_profile,
    load_profile,
    torch_profiler,
    write_profile,
)
from nest.profiles.aceso import import_aceso
from nest.profiles.apply import same_device
from nest.profiles.format import check_roofline, decode_profile, peak_of
from nest.profiles.torch_profiler import (
    LayerShape,
    Timing,
    TorchNotInstalledError,
    count_layer,
    layer_shapes,
    profile_layers,
    time_passes,
)


def entry(**changes: Any) -> Entry:
    fields = {
        "model": "toy",
        "kind": "decoder",
        "sequence_length": 128,
        "forward_ns": 4000.0,
        "backward_ns": 9000.0,
    }
    return Entry(**{**fields, **changes})


def profile(*entries: Entry, **changes: Any) -> Profile:
    fields = {"device": "toy-device", "dtype": "bf16", "entries": entries}
    return Profile(**{**fields, **changes})


# The file


def test_a_profile_is_read_as_it_was_written(tmp_path):
    path = tmp_path / "profile.json"
    written = profile(
        entry(tp=2, kept_bytes=7, forward_flops=1e9),
        entry(kind="head", samples=3, includes_tp_collectives=True),
        framework="PyTorch",
        warm_up=2,
        repeats=5,
    )
    write_profile(path, written)
    assert load_profile(path) == written
    assert path.read_text().startswith('{\n "schema": "nest-profile/1",\n')


def test_what_is_not_known_is_left_out_of_the_file():
    text = encode_profile(profile(entry())).decode()
    assert "kept_bytes" not in text
    assert "flops" not in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schema": "nest-profile/2"}, r"expected 'nest-profile/1', got"),
        ({"color": 1}, r"\$: expected a known key, got 'color'; remove"),
        ({"device": None}, r"\$.device: expected `str`, got `null`"),
        ({"dtype": "int8"}, r"dtype: expected one of bf16, fp16, fp32, got"),
        ({"warm_up": -1}, r"warm_up: expected >= 0, got -1"),
        ({"repeats": 0}, r"repeats: expected >= 1, got 0"),
        ({"entries": []}, r"entries: expected at least one value, got none"),
    ],
)
def test_what_is_no_profile_is_refused(changes, message):
    document = msgspec.json.decode(encode_profile(profile(entry())))
    data = msgspec.json.encode({**document, **changes})
    with pytest.raises(InvalidProfileError, match=message) as caught:
        decode_profile(data, "p.json")
    assert str(caught.value).startswith("p.json: ")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("forward_ns", 0, r"forward_ns: expected a finite number > 0"),
        ("backward_ns", -1, r"backward_ns: expected a finite number > 0"),
        ("tp", 0, r"entries\[0\]: tp: expected >= 1, got 0"),
        ("samples", 0, r"samples: expected >= 1, got 0"),
        ("sequence_length", 0, r"sequence_length: expected >= 1, got 0"),
        ("kept_bytes", -1, r"kept_bytes: expected >= 0, got -1"),
        ("forward_flops", -1, r"forward_flops: expected a finite number"),
        ("forward_us", 1, r"expected a known key, got 'forward_us'"),
    ],
)
def test_an_entry_that_cannot_be_is_refused(field, value, message):
    document = msgspec.json.decode(encode_profile(profile(entry())))
    document["entries"][0][field] = value
    with pytest.raises(InvalidProfileError, match=message):
        decode_profile(msgspec.json.encode(document))


def test_an_entry_without_its_time_is_refused():
    document = msgspec.json.decode(encode_profile(profile(entry())))
    del document["entries"][0]["forward_ns"]
    with pytest.raises(InvalidProfileError, match="expected key 'forward_ns'"):
        decode_profile(msgspec.json.encode(document))


def test_a_layer_that_occurs_twice_is_refused():
    twice = r"got 'toy decoder tp=1 samples=1 sequence_length=128' twice; remove"
    with pytest.raises(ValueError, match=twice):
        profile(entry(), entry(forward_ns=1.0))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    missing = tmp_path / "none.json"
    with pytest.raises(InvalidProfileError, match=r"none.json: expected a re"):
        load_profile(missing)
    with pytest.raises(
        InvalidProfileError, match=r"expected a profile, got a directory"
    ):
        load_profile(tmp_path)
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(
        InvalidProfileError, match=r"broken.json: line 1: expected a profile"
    ):
        load_profile(broken)


def test_the_example_of_the_documentation_is_a_profile():
    page = Path(__file__).parents[3] / "docs" / "profiles.md"
    (text,) = re.findall(r"```json\n(.*?)```", page.read_text(), re.DOTALL)
    example = decode_profile(text.encode())
    assert example.entries[0].name == "decoder tp=2 samples=1"
    check_roofline(example.entries[0], 312e12)


# The roofline


def test_no_layer_is_faster_than_the_peak():
    """1e12 FLOP at 1.02 · 100 TFLOP/s take 9,803,921.57 ns."""
    flops = {"forward_flops": 1e12, "backward_flops": 2e12}
    check_roofline(entry(forward_ns=9_803_922, backward_ns=19_607_844, **flops), 1e14)
    with pytest.raises(
        InvalidProfileError,
        match=r"p.json: decoder tp=1 samples=1: forward_ns: expected >= "
        r"9803922 \(1e\+12 FLOP at 100 TFLOP/s\), got 9803.92; check the "
        r"units: forward_ns is in ns",
    ):
        check_roofline(
            entry(forward_ns=9803.922, backward_ns=19_607_844, **flops), 1e14, "p.json"
        )
    with pytest.raises(InvalidProfileError, match="backward_ns: expected >= "):
        check_roofline(
            entry(forward_ns=9_803_922, backward_ns=19_607_843, **flops), 1e14
        )


def test_without_a_peak_or_flops_there_is_no_roofline():
    fast = entry(forward_ns=1e-3, backward_ns=1e-3)
    check_roofline(fast, 1e14)
    check_roofline(entry(forward_ns=1e-3, forward_flops=1e12), None)


def test_the_peak_is_that_of_the_data_type_or_the_highest():
    assert peak_of({"bf16": 3.0, "fp8": 6.0}, "bf16") == 3.0
    assert peak_of({"bf16": 3.0, "fp8": 6.0}, "fp32") == 6.0
    assert peak_of({}, "bf16") is None


# Costs replaced

REGION = CollectiveCall(kind="all-reduce", axis="tp", phase="forward", size_bytes=100)
EXCHANGE = CollectiveCall(kind="all-to-all", axis="ep", phase="forward", size_bytes=100)


def cost(tp: int, layers: int = 1, **changes: Any) -> LayerCost:
    fields = {
        "tp": tp,
        "forward_ns": 1000.0 * layers,
        "backward_ns": 2000.0 * layers,
        "weight_bytes": 800 * layers,
        "working_bytes": 10,
        "activations": (
            Activations(recompute="none", kept_bytes=60 * layers),
            Activations(
                recompute="selective",
                kept_bytes=40 * layers,
                extra_ns=100.0 * layers,
                working_bytes=20,
            ),
            Activations(recompute="full", kept_bytes=10 * layers, working_bytes=50),
        ),
        "collectives": (REGION, EXCHANGE) if tp > 1 else (),
    }
    return LayerCost(**{**fields, **changes})


def problem(**job: Any) -> Problem:
    """Return two nodes of two layers each between an embedding and a head."""
    return Problem(
        name="toy",
        source="analytic",
        graph=Graph(
            kinds=(
                LayerKind(name="embedding", costs=(cost(1),)),
                LayerKind(name="decoder", costs=(cost(1, 2), cost(2, 2))),
                LayerKind(name="head", costs=(cost(1),)),
            ),
            layers=(
                Layer(id="embedding", kind="embedding"),
                Layer(id="a", kind="decoder"),
                Layer(id="b", kind="decoder"),
                Layer(id="head", kind="head"),
            ),
            edges=(
                Edge(source="embedding", target="a", bytes_per_sample=8),
                Edge(source="a", target="b", bytes_per_sample=8),
                Edge(source="b", target="head", bytes_per_sample=8),
            ),
        ),
        cluster=Cluster(
            num_devices=2,
            device=Device(
                name="toy-device", memory_bytes=10**9, peak_flops={"bf16": 1e12}
            ),
            topology=Hierarchy(levels=(Level(fan_out=2, bandwidth_bytes_per_s=1e9),)),
        ),
        job=Job(**{"global_batch": 3, "sequence_length": 128, **job}),
    )


def costs_of(result: Problem, kind: str) -> dict[int, LayerCost]:
    (found,) = (k for k in result.graph.kinds if k.name == kind)
    return {cost.tp: cost for cost in found.costs}


def with_costs(
    result: Problem, change: Callable[[LayerCost], tuple[LayerCost, ...]]
) -> Problem:
    """Return a problem with other costs in place of each."""
    kinds = tuple(
        replace(kind, costs=tuple(x for cost in kind.costs for x in change(cost)))
        for kind in result.graph.kinds
    )
    graph = replace(result.graph, kinds=kinds)
    return replace(result, graph=graph)


def test_a_measured_layer_replaces_the_analytic_cost():
    """A node of two layers takes twice what was measured of one.

    The layer keeps 70 bytes, so full recomputation, which keeps 10 of a
    layer, brings back 60, and selective, which keeps 40, 30. Selective took
    a tenth of the forward pass and still does.
    """
    before = problem()
    after = apply_profile(
        before,
        profile(entry(kept_bytes=70, working_bytes=5, weight_bytes=800)),
        layers_per_node=2,
    )
    assert costs_of(after, "decoder")[1] == LayerCost(
        tp=1,
        forward_ns=8000.0,
        backward_ns=18000.0,
        weight_bytes=1600,
        working_bytes=5,
        activations=(
            Activations(recompute="none", kept_bytes=140),
            Activations(
                recompute="selective", kept_bytes=80, extra_ns=800.0, working_bytes=30
            ),
            Activations(recompute="full", kept_bytes=20, working_bytes=60),
        ),
        measured=True,
    )
    for kind in ("embedding", "head"):
        assert costs_of(after, kind) == costs_of(before, kind)
    assert costs_of(after, "decoder")[2] == costs_of(before, "decoder")[2]


def test_gradients_of_weights_keep_their_share_of_what_was_measured():
    """1500 of 4000 ns in two layers; 18000 were measured: 6750."""
    before = with_costs(problem(), lambda x: (replace(x, weight_backward_ns=1500.0),))
    after = apply_profile(before, profile(entry()), layers_per_node=2)
    found = costs_of(after, "decoder")[1]
    assert (found.backward_ns, found.weight_backward_ns) == (18000, 6750)
    assert after.source == (
        "analytic; 1 of 4 layer costs measured (toy on toy-device, bf16), 3 analytic"
    )


def test_what_the_host_takes_stays():
    """Nobody measured it; what is repeated is scaled, its issuing is not."""

    def issued(cost):
        none, selective, full = cost.activations
        again = replace(selective, extra_host_ns=20.0)
        return (
            replace(
                cost,
                forward_host_ns=30.0,
                backward_host_ns=70.0,
                activations=(none, again, full),
            ),
        )

    before = with_costs(problem(), issued)
    after = apply_profile(before, profile(entry()), layers_per_node=2)
    found = costs_of(after, "decoder")[1]
    assert (found.forward_host_ns, found.backward_host_ns) == (30, 70)
    (_, selective, _) = found.activations
    assert (selective.extra_ns, selective.extra_host_ns) == (800, 20)


def test_what_was_not_measured_stays():
    """Without memory in the profile, memory is that of the analytic cost."""
    after = apply_profile(problem(), profile(entry()))
    (kept, selective, _) = costs_of(after, "decoder")[1].activations
    assert kept.kept_bytes == 120
    assert selective.working_bytes == 20
    assert costs_of(after, "decoder")[1].working_bytes == 10


def test_no_recompute_choice_keeps_more_than_keeping_all():
    """The layer keeps 30 bytes; selective, which keeps 40, then keeps 30."""
    after = apply_profile(problem(), profile(entry(kept_bytes=30)), layers_per_node=2)
    activations = costs_of(after, "decoder")[1].activations
    assert [a.kept_bytes for a in activations] == [60, 60, 20]
    assert [a.working_bytes for a in activations] == [0, 0, 20]


def test_a_number_of_layers_counts_for_blocks_only():
    entries = [entry(kind=kind) for kind in ("embedding", "decoder", "head")]
    after = apply_profile(problem(), profile(*entries), layers_per_node=2)
    assert costs_of(after, "embedding")[1].forward_ns == 4000
    assert costs_of(after, "decoder")[1].forward_ns == 8000
    assert costs_of(after, "head")[1].forward_ns == 4000


@pytest.mark.parametrize(
    ("included", "left"), [(False, (REGION, EXCHANGE)), (True, (EXCHANGE,))]
)
def test_measured_collectives_are_not_counted_twice(included, left):
    after = apply_profile(
        problem(), profile(entry(tp=2, includes_tp_collectives=included))
    )
    assert costs_of(after, "decoder")[2].collectives == left
    assert costs_of(after, "decoder")[2].forward_ns == 4000


def test_plans_are_scored_with_measured_times():
    """One device, three micro-batches, each of 1 + 8 + 8 + 1 µs forward and 2
    + 18 + 18 + 2 µs backward; before, 1 + 2 + 2 + 1 and 2 + 4 + 4 + 2.
    """
    after = apply_profile(problem(), profile(entry()), layers_per_node=2)
    plan = Plan(
        replicas=1,
        micro_batch=1,
        stages=(
            Stage(
                layers=("embedding", "a", "b", "head"), devices=1, strategy=Strategy()
            ),
        ),
    )
    assert score(after, plan).step_time_ns == 3 * 58_000
    assert score(problem(), plan).step_time_ns == 3 * 18_000


def test_the_model_is_named_where_there_are_several():
    two = profile(entry(), entry(model="other", forward_ns=5000.0))
    with pytest.raises(
        InvalidProfileError,
        match="model: expected entries of one model, got toy, other; name",
    ):
        apply_profile(problem(), two)
    with pytest.raises(UnknownNameError, match="profile: model: expected one"):
        apply_profile(problem(), two, model="third")
    after = apply_profile(problem(), two, model="other")
    assert costs_of(after, "decoder")[1].forward_ns == 5000


@pytest.mark.parametrize(
    ("entries", "changes", "message"),
    [
        (
            (entry(),),
            {"device": "H100"},
            "device: expected 'toy-device', as the cluster has, got 'H100'",
        ),
        (
            (entry(),),
            {"dtype": "fp16"},
            "dtype: expected 'bf16', as the job has, got 'fp16'; profile in",
        ),
        (
            (entry(tp=2),),
            {"sequence_parallel": True},
            "sequence_parallel: expected false, as the job has, got true",
        ),
        (
            (entry(weight_bytes=1600),),
            {},
            r"decoder tp=1 samples=1: weight_bytes: expected about 800, as "
            r"one layer of the graph's has \(layers_per_node 2\), got 1600",
        ),
    ],
)
def test_a_profile_of_something_else_is_refused(entries, changes, message):
    other = profile(*entries, **changes)
    with pytest.raises(InvalidProfileError, match=message):
        apply_profile(problem(), other, layers_per_node=2)


def test_activations_that_nothing_splits_may_be_of_either_kind():
    after = apply_profile(problem(), profile(entry(), sequence_parallel=True))
    assert costs_of(after, "decoder")[1].forward_ns == 4000


@pytest.mark.parametrize("split", [False, True])
def test_where_plans_choose_only_costs_split_so_are_measured(split):
    def either(cost):
        if cost.tp == 1:
            return (cost,)
        return cost, replace(cost, sequence_parallel=True)

    before = with_costs(problem(sequence_parallel=(False, True)), either)
    after = apply_profile(before, profile(entry(tp=2), sequence_parallel=split))
    (decoder,) = (k for k in after.graph.kinds if k.name == "decoder")
    assert [
        (cost.tp, cost.sequence_parallel)
        for cost in decoder.costs
        if cost.forward_ns == 4000
    ] == [(2, split)]
    # With tp = 1 both are the same.
    whole = apply_profile(before, profile(entry(), sequence_parallel=split))
    assert costs_of(whole, "decoder")[1].forward_ns == 4000


def test_weights_may_differ_by_padding():
    """400 weights of 4 bytes in the profile, 2 · 400 bytes in the graph."""
    job = {"dtype": "fp32"}
    right = profile(entry(weight_bytes=1600), dtype="fp32")
    apply_profile(problem(**job), right, layers_per_node=2)
    near = profile(entry(weight_bytes=840))
    apply_profile(problem(), near, layers_per_node=2)
    far = profile(entry(weight_bytes=860))
    with pytest.raises(InvalidProfileError, match="got 860; check the model"):
        apply_profile(problem(), far, layers_per_node=2)


def test_another_sequence_length_is_refused():
    two = profile(entry(sequence_length=64), entry(sequence_length=32, kind="head"))
    with pytest.raises(
        InvalidProfileError,
        match=r"p\.json: sequence_length: expected 128, as the job has, got "
        r"32 and 64; profile with that length",
    ):
        apply_profile(problem(), two, where="p.json")


def test_a_layer_faster_than_the_cluster_device_is_refused():
    """1e9 FLOP at 1 TFLOP/s take about 1e6 ns."""
    fast = profile(entry(forward_flops=1e9))
    with pytest.raises(InvalidProfileError, match="forward_ns: expected >= 980392 "):
        apply_profile(problem(), fast)


def test_a_profile_without_a_layer_of_the_problem_is_refused():
    other = profile(*(entry(tp=2**i) for i in range(2, 6)))
    with pytest.raises(
        InvalidProfileError,
        match="profile: expected a layer of the problem, for example "
        "embedding tp=1 samples=1, got decoder tp=4 samples=1, decoder tp=8 "
        "samples=1, decoder tp=16 samples=1 and 1 more; profile the layers",
    ):
        apply_profile(problem(), other)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("H100-80GB-SXM", "NVIDIA H100 80GB SXM", True),
        ("my chip", "My-Chip", True),
        ("H100-80GB-SXM", "A100-80GB-SXM", False),
        ("NVIDIA", "AMD", True),
    ],
)
def test_names_of_devices(one, other, same):
    assert same_device(one, other) is same


# Timing, without PyTorch


def test_the_median_of_the_passes_after_the_warm_up_counts():
    """The passes take 1, 10, 2, 20, 3, 30, … ticks of 7 ns."""
    now = 0
    forwards = iter([90, 1, 5, 3])
    calls = []

    def forward() -> str:
        nonlocal now
        calls.append("forward")
        now += next(forwards)
        return "result"

    def backward(result: str) -> None:
        nonlocal now
        calls.append(f"backward of the {result}")
        now += 10 * len(calls)

    times = time_passes(
        forward,
        backward,
        lambda: now,
        lambda start, end: 7.0 * (end - start),
        warm_up=1,
        repeats=3,
    )
    assert times == (7 * 3, 7 * 60)
    assert calls == ["forward", "backward of the result"] * 4


def test_missing_pytorch_is_one_line(monkeypatch):
    monkeypatch.setattr(torch_profiler.util, "find_spec", lambda name: None)
    with pytest.raises(
        TorchNotInstalledError,
        match=r"nest profile: expected package 'torch', got none; install it "
        r"with: pip install 'nest-planner\[profile\]'",
    ):
        profile_layers("toy", [], [], 8)


# Layers in PyTorch

HIDDEN, HEADS, SIZE, LENGTH, SAMPLES = 32, 4, 8, 16, 2
ATTENTION = Attention(heads=HEADS, kv_heads=2, head_size=SIZE, rotary=True)
PLAIN = Attention(heads=HEADS, kv_heads=HEADS, head_size=SIZE)
GPT = Block(
    name="decoder",
    hidden=HIDDEN,
    attention=replace(PLAIN, biases=True, output_bias=True),
    mlp=Mlp(hidden=64, biases=True),
    layer_norm=True,
)
LLAMA = Block(
    name="llama", hidden=HIDDEN, attention=ATTENTION, mlp=Mlp(hidden=48, gated=True)
)
GEMMA = Block(
    name="gemma",
    hidden=HIDDEN,
    attention=replace(ATTENTION, window=4, query_key_norm=True),
    mlp=Mlp(hidden=48, gated=True),
    norms=4,
    dropout=True,
)
MOE = Block(
    name="moe",
    hidden=HIDDEN,
    attention=ATTENTION,
    mlp=Mlp(hidden=16, gated=True, experts=4, experts_per_token=2, shared_hidden=16),
)
LATENT = Block(
    name="latent",
    hidden=HIDDEN,
    attention=Attention(
        heads=HEADS,
        kv_heads=HEADS,
        head_size=12,
        value_size=8,
        query_rank=16,
        key_value_rank=8,
        rotary_size=4,
    ),
    mlp=Mlp(hidden=48),
)
LATENT_PLAIN_QUERY = replace(
    LATENT, name="latent-plain-query", attention=replace(LATENT.attention, query_rank=0)
)
DECODERS = (GPT, LLAMA, GEMMA, MOE, LATENT, LATENT_PLAIN_QUERY)
TOWER = Tower(
    runs=tuple(RepeatedBlock(block=block, count=2) for block in DECODERS),
    vocabulary=300,
    learned_positions=20,
    token_types=2,
    embedding_norm=True,
)
READING = Block(
    name="reader",
    hidden=HIDDEN,
    attention=ATTENTION,
    cross_attention=replace(PLAIN, cross=True),
    mlp=Mlp(hidden=48),
    norms=3,
)
SEEING = Block(
    name="encoder",
    hidden=HIDDEN,
    attention=replace(PLAIN, causal=False),
    mlp=Mlp(hidden=48),
)
ENCODER = Tower(
    name="encoder",
    runs=(RepeatedBlock(block=SEEING, count=1),),
    patch_values=12,
    sequence_length=8,
)
READER = Tower(
    name="decoder",
    runs=(RepeatedBlock(block=READING, count=1),),
    vocabulary=300,
    reads="encoder",
)
HEAD = Head(outputs=300, transform=True, bias=True)
CLASSES = Head(outputs=10, pooled=True)


def test_every_kind_of_layer_occurs_once_under_the_name_of_its_node():
    kinds = [layer.kind for layer in layer_shapes((TOWER,), HEAD)]
    assert kinds == [
        "embedding",
        "decoder",
        "llama",
        "gemma",
        "moe",
        "latent",
        "latent-plain-query",
        "head",
    ]
    layers = {x.kind: x for x in layer_shapes((ENCODER, READER), HEAD)}
    assert list(layers) == [
        "encoder-embedding",
        "encoder",
        "decoder-embedding",
        "reader",
        "head",
    ]
    assert layers["reader"].source_length == 8
    assert layers["encoder"].source_length == 0
    assert layers["head"].tower is READER


def test_blocks_of_one_name_and_other_shape_are_named_after_their_tower():
    wide = replace(GPT, mlp=Mlp(hidden=96))
    towers = [
        Tower(name=name, runs=(RepeatedBlock(block=block, count=1),), vocabulary=300)
        for name, block in (("decoder", GPT), ("wide", wide))
    ]
    kinds = [layer.kind for layer in layer_shapes(towers, HEAD)]
    assert kinds == [
        "decoder-embedding",
        "decoder",
        "wide-embedding",
        "wide-decoder",
        "head",
    ]


def all_layers() -> list[LayerShape]:
    return [
        *layer_shapes((TOWER,), HEAD),
        *layer_shapes((ENCODER, READER), HEAD)[:-1],
        LayerShape("classes", ENCODER, CLASSES),
    ]


def split_of(layer: LayerShape, **changes: Any) -> Split:
    return Split(
        samples=SAMPLES,
        sequence_length=layer.tower.sequence_length or LENGTH,
        source_length=layer.source_length or 0,
        **changes,
    )


@pytest.fixture
def build(torch: Any) -> Callable[..., Any]:
    from nest.profiles.torch_layers import Shard, build_part

    def make(layer: LayerShape, **changes: Any) -> Any:
        torch.manual_seed(1)
        shard = Shard(split_of(layer, **changes), torch.device("cpu"), torch.float64)
        return build_part(shard, layer.shape, layer.tower)

    return make


@pytest.mark.parametrize("layer", all_layers(), ids=lambda x: x.kind)
@pytest.mark.parametrize(
    "changes",
    [{}, {"tp": 2, "sequence_parallel": True}, {"tp": 2, "sequence_parallel": False}],
    ids=["tp1", "tp2-sp", "tp2"],
)
def test_layers_have_the_weights_that_are_counted(build, layer, changes):
    """As many weights as the analytic model counts, all with a gradient."""
    part = build(layer, **changes)
    node = count_layer(layer, split_of(layer, **changes))
    weights = part.shard.weights
    counted = node.weights + node.expert_weights
    assert sum(weight.numel() for weight in weights) == counted
    result = part.forward(*part.inputs)
    result.sum().backward()
    assert all(weight.grad is not None for weight in weights)
    if not isinstance(layer.shape, Head):
        outer = split_of(layer, **changes).outer_tokens // SAMPLES
        assert result.shape == (SAMPLES, outer, HIDDEN)


def test_experts_are_spread_over_expert_parallel_ranks(build):
    layer = LayerShape("moe", TOWER, MOE)
    part = build(layer, ep=2)
    node = count_layer(layer, split_of(layer, ep=2))
    assert node.expert_weights == 2 * 3 * HIDDEN * 16
    counted = node.weights + node.expert_weights
    assert sum(w.numel() for w in part.shard.weights) == counted


def only_attention(block: Block) -> Block:
    """Return the block with an MLP that adds nothing once it is zeroed."""
    return replace(block, mlp=Mlp(hidden=1), norms=2)


def test_attention_is_softmax_attention(torch, build):
    """Against the textbook formula, four query heads on two of keys."""
    plain = replace(ATTENTION, rotary=False)
    block = only_attention(replace(LLAMA, attention=plain))
    part = build(LayerShape("llama", TOWER, block))
    qkv, output, *mlp, norm, _ = part.shard.weights
    mlp[-1].data.zero_()
    (x,) = part.inputs
    got = part.forward(x)

    rows = x * (x.pow(2).mean(-1, keepdim=True) + 2.3e-16).rsqrt() * norm
    query, key, value = (rows @ qkv.T).split((32, 16, 16), dim=-1)
    result = []
    for head in range(HEADS):
        own = slice(head * SIZE, (head + 1) * SIZE)
        shared = slice(head // 2 * SIZE, (head // 2 + 1) * SIZE)
        scores = query[..., own] @ key[..., shared].mT / SIZE**0.5
        later = torch.ones(LENGTH, LENGTH).triu(1).bool()
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        result.append(weights @ value[..., shared])
    expected = x + torch.cat(result, -1) @ output.T
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize(
    ("block", "reach"), [(LLAMA, LENGTH), (GEMMA, 4), (LATENT, LENGTH)]
)
def test_a_token_sees_only_its_window_before_it(torch, build, block, reach):
    part = build(LayerShape("block", TOWER, block))
    torch.manual_seed(2)
    (x,) = part.inputs
    before = part.forward(x)
    changed = x.detach().clone()
    changed[:, 6] += 1
    torch.manual_seed(2)
    part = build(LayerShape("block", TOWER, block))
    torch.manual_seed(2)
    after = part.forward(changed)
    differs = (before - after).abs().amax(dim=(0, 2)) > 1e-12
    last = min(6 + reach, LENGTH)
    assert differs.tolist() == [6 <= i < last for i in range(LENGTH)]


def test_rotary_attention_depends_on_distances_only(torch):
    """Products of rotated queries and keys are equal along diagonals."""
    from nest.profiles.torch_layers import Shard, _rotary

    shard = Shard(Split(sequence_length=LENGTH), torch.device("cpu"), torch.float64)
    rotate = _rotary(shard, SIZE)
    query, key = torch.randn(2, SIZE, dtype=torch.float64)
    rows = [rotate(t.expand(1, 1, LENGTH, SIZE))[0, 0] for t in (query, key)]
    products = rows[0] @ rows[1].T
    torch.testing.assert_close(
        products[1:, 1:], products[:-1, :-1], rtol=1e-4, atol=1e-5
    )
    assert not torch.allclose(products[0, 1:], products[0, :-1])


def test_experts_get_the_tokens_and_send_them_back(torch, build):
    """With equal experts a token gets the MLP's output times its gates."""
    from nest.profiles.torch_layers import Shard, _expert_mlp

    block = replace(MOE, mlp=replace(MOE.mlp, shared_hidden=0))
    shard = Shard(
        Split(samples=SAMPLES, sequence_length=LENGTH),
        torch.device("cpu"),
        torch.float64,
    )
    run = _expert_mlp(shard, block)
    router, up, down, *others = shard.weights
    for other_up, other_down in zip(others[::2], others[1::2], strict=True):
        other_up.data.copy_(up.data)
        other_down.data.copy_(down.data)
    x = torch.randn(SAMPLES, LENGTH, HIDDEN, dtype=torch.float64)
    gate, value = (x @ up.T).chunk(2, -1)
    mlp = (gate * torch.sigmoid(gate) * value) @ down.T
    gates = (x @ router.T).float().softmax(-1).topk(2, -1).values.sum(-1)
    expected = mlp * gates.double().unsqueeze(-1)
    torch.testing.assert_close(run(x), expected, rtol=1e-6, atol=1e-7)


def test_the_loss_is_the_mean_cross_entropy(torch, build):
    head = Head(outputs=300)
    tower = replace(TOWER, final_norm=False)
    part = build(LayerShape("head", tower, head))
    (table,) = part.shard.weights
    (targets,) = part.shard.buffers
    assert table.shape == (384, HIDDEN)  # 300 padded to a multiple of 128
    (x,) = part.inputs
    logits = (x @ table.T).flatten(0, 1)
    chosen = logits.gather(1, targets[:, None])[:, 0]
    expected = (logits.logsumexp(-1) - chosen).mean()
    torch.testing.assert_close(part.forward(x).double(), expected, rtol=1e-5, atol=1e-5)


def run_profile(layers: list[LayerShape], **changes: Any) -> Profile:
    options: dict[str, Any] = {
        "device": "cpu",
        "dtype": "bf16",
        "warm_up": 1,
        "repeats": 2,
    }
    degrees = changes.pop("degrees", [Degrees(samples=SAMPLES)])
    say = changes.pop("say", lambda text: None)
    timing = Timing(**{**options, **changes})
    return profile_layers("toy", layers, degrees, LENGTH, timing, say)


def test_a_tiny_model_is_profiled_on_the_cpu(torch):
    lines: list[str] = []
    got = run_profile(
        all_layers(),
        degrees=[Degrees(), Degrees(tp=2)],
        device_name="toy-device",
        say=lines.append,
    )
    assert [e.kind for e in got.entries[::2]] == [x.kind for x in all_layers()]
    assert [e.tp for e in got.entries[:4]] == [1, 2, 1, 2]
    assert (got.device, got.framework) == ("toy-device", "PyTorch")
    assert (got.framework_version, got.warm_up, got.repeats) == (
        torch.__version__,
        1,
        2,
    )
    assert lines[:2] == ["embedding tp=1 samples=1", "embedding tp=2 samples=1"]
    for e in got.entries:
        assert 0 < e.forward_ns < 1e9
        assert 0 < e.backward_ns < 1e9
        assert e.working_bytes is None
        check_roofline(e, 1e15)
    assert decode_profile(encode_profile(got)) == got


def test_the_device_is_named_after_the_processor(torch):
    from nest.util.versions import machine

    got = run_profile([LayerShape("llama", TOWER, LLAMA)])
    assert got.device == machine()["cpu"]


#: Kept by :data:`GPT`, T tokens of 2-byte values: the inputs of two norms with mean and
#: deviation of each token, their outputs, Q, K and V, the output of the attention with
#: a 4-byte sum of each row of scores, and input and output of the activation function.
def kept_by_gpt(tokens: int, outer: int, tp: int) -> int:
    norms = 2 * (2 * HIDDEN + 2 + 2) * outer
    inputs = 2 * 2 * HIDDEN * outer
    heads = 4 * 2 * HIDDEN * tokens // tp + 4 * HEADS * tokens // tp
    mlp = 2 * 2 * 64 * tokens // tp
    return norms + inputs + heads + mlp


@pytest.mark.parametrize(
    ("tp", "parallel", "outer"), [(1, True, 32), (2, True, 16), (2, False, 32)]
)
def test_kept_activations_are_counted_once(torch, tp, parallel, outer):
    """Views share a storage, weights and gathered inputs do not count."""
    got = run_profile(
        [LayerShape("decoder", TOWER, GPT)],
        degrees=[Degrees(tp=tp, samples=SAMPLES)],
        sequence_parallel=parallel,
    )
    tokens = SAMPLES * LENGTH
    assert got.entries[0].kept_bytes == kept_by_gpt(tokens, outer, tp)


def test_the_head_keeps_its_logits_in_fp32(torch):
    """Input of the norm, its output, mean and deviation, 384 fp32 logits.

    And the number of rows that the loss divides by, in fp32.
    """
    tower = replace(TOWER, runs=(RepeatedBlock(block=GPT, count=1),))
    got = run_profile([LayerShape("head", tower, Head(outputs=300))])
    tokens = SAMPLES * LENGTH
    assert got.entries[0].kept_bytes == tokens * (2 * 2 * HIDDEN + 2 * 2 + 4 * 384) + 4


def test_weights_are_counted_in_the_data_type(torch):
    layer = LayerShape("head", TOWER, Head(outputs=300))
    weights = 384 * HIDDEN + HIDDEN
    for dtype, size in (("fp32", 4), ("bf16", 2)):
        got = run_profile([layer], dtype=dtype)
        assert got.entries[0].weight_bytes == size * weights


def test_flops_are_those_of_the_analytic_model(torch):
    """Output layer: 2 · tokens · hidden · rows forward, twice that back."""
    got = run_profile([LayerShape("head", TOWER, Head(outputs=300))])
    flops = 2 * SAMPLES * LENGTH * HIDDEN * 384
    assert got.entries[0].forward_flops == flops
    assert got.entries[0].backward_flops == 2 * flops


def test_cuda_is_refused_where_there_is_none(torch, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(
        InvalidOptionError,
        match="--device: expected a CUDA device, got none; choose cpu",
    ):
        run_profile([], device="cuda")


def test_half_precision_is_refused_on_a_cpu(torch):
    with pytest.raises(
        InvalidOptionError,
        match="--dtype: expected bf16 or fp32 on a CPU, got 'fp16'; choose",
    ):
        run_profile([], dtype="fp16")


def test_what_does_not_fit_is_left_out(torch, monkeypatch):
    measure = torch_profiler._measure

    def fail(layer: LayerShape, split: Split, *rest: Any) -> Any:
        if split.samples > 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
        return measure(layer, split, *rest)

    monkeypatch.setattr(torch_profiler, "_measure", fail)
    layers = [LayerShape("llama", TOWER, LLAMA)]
    lines: list[str] = []
    got = run_profile(layers, degrees=[Degrees(), Degrees(samples=2)], say=lines.append)
    assert [e.samples for e in got.entries] == [1]
    assert lines[-1] == (
        "llama tp=1 samples=2: does not fit the device's memory; left out"
    )
    with pytest.raises(
        InvalidProfileError,
        match=r"expected a layer that fits the device's memory, got none "
        r"\(llama tp=1 samples=2\); choose fewer samples",
    ):
        run_profile(layers)


def test_other_failures_are_not_taken_for_memory(torch, monkeypatch):
    def fail(*arguments: Any) -> Any:
        raise RuntimeError("an illegal memory access was encountered")

    monkeypatch.setattr(torch_profiler, "_measure", fail)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        run_profile([LayerShape("llama", TOWER, LLAMA)])


# Per-operator files

GPT_BLOCK = Block(
    name="decoder",
    hidden=1024,
    layer_norm=True,
    dropout=True,
    attention=Attention(heads=8, kv_heads=8, head_size=128, biases=True),
    mlp=Mlp(hidden=4096, biases=True),
)
GPT_TOWER = Tower(
    runs=(RepeatedBlock(block=GPT_BLOCK, count=4),),
    vocabulary=51200,
    learned_positions=512,
)
COLUMNS = (
    "op_name",
    "forward-compute",
    "backward-compute",
    "input_size",
    "output_size",
    "weights",
    "activations",
)
#: One sample of 512 tokens at width 1024: 1 MB of activations.
LINES = (
    ("encoder-embedding", 50.0, 400.0, 0.002, 1.0, 101.0, 1.5),
    ("enc-1st-layernorm", 10.0, 20.0, 1.0, 2.0, 0.0, 1.0),
    ("enc-attention-qkv", 100.0, 200.0, 2.0, 4.0, 6.0, 3.0),
    ("enc-attention-score", 30.0, 60.0, 4.0, 8.0, 0.0, 4.0),
    ("enc-attention-softmax", 20.0, 40.0, 8.0, 8.0, 0.0, 4.0),
    ("enc-attention-dropout", 25.0, 25.0, 8.0, 8.0, 0.0, 6.0),
    ("enc-attention-context", 30.0, 60.0, 8.0, 2.0, 0.0, 1.0),
    ("enc-attention-dense", 40.0, 80.0, 2.0, 2.0, 2.0, 1.0),
    ("enc-post-attention-dropout", 5.0, 5.0, 2.0, 1.0, 0.0, 1.5),
    ("enc-2nd-layernorm", 10.0, 20.0, 1.0, 2.0, 0.0, 1.0),
    ("enc-MLP-GEMM-1", 150.0, 300.0, 2.0, 5.0, 8.0, 4.0),
    ("enc-MLP-gelu", 8.0, 12.0, 5.0, 5.0, 0.0, 4.0),
    ("enc-MLP-GEMM-2", 140.0, 280.0, 5.0, 2.0, 8.0, 1.0),
    ("enc-post-MLP-dropout", 5.0, 5.0, 2.0, 1.0, 0.0, 1.5),
    ("final-layernorm", 10.0, 30.0, 1.0, 1.0, 0.0, 1.0),
    ("gpt-post-process", 900.0, 1800.0, 1.0, 0.0, 100.0, 100.0),
)
NAME = "gpt_toy_mbs1_tp1_algo0.csv"


def write_lines(
    path: Path,
    lines: tuple[tuple[Any, ...], ...] = LINES,
    columns: tuple[str, ...] = COLUMNS,
) -> Path:
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(lines)
    return path


def changed(name: str, column: str, value: Any) -> tuple[tuple[Any, ...], ...]:
    place = COLUMNS.index(column)
    return tuple(
        (*line[:place], value, *line[place + 1 :]) if line[0] == name else line
        for line in LINES
    )


def run_import(*paths: Path, **changes: Any) -> Profile:
    options: dict[str, Any] = {
        "model": "toy",
        "tower": GPT_TOWER,
        "head": Head(outputs=51200, tied=True),
        "device": "V100",
        "peak_flops": {"fp16": 125e12},
    }
    return import_aceso(paths, **{**options, **changes})


def refused(message: str, *paths: Path, **changes: Any) -> None:
    with pytest.raises((InvalidProfileError, InvalidOptionError), match=message):
        run_import(*paths, **changes)


def test_layers_that_take_no_time_are_refused(tmp_path):
    lines = changed("encoder-embedding", "forward-compute", 1e-9)
    refused(
        rf"{NAME}: embedding: forward_ns: expected a finite number > 0, got "
        r"0; measure it again$",
        write_lines(tmp_path / NAME, lines),
    )


def test_operators_are_summed_to_layers(tmp_path):
    """Forward of a layer: 10+100+30+20+25+30+40+5+10+150+8+140+5 = 573 µs.

    Backward: 20+200+60+40+25+60+80+5+20+300+12+280+5 = 1107 µs. Kept: 33 MB less the
    scores (4) and the two sums (1 + 1), which is 27; of the embedding 1.5 MB less its
    output. FLOPs of a layer: 24 h² + 4 s h per token.
    """
    got = run_import(write_lines(tmp_path / NAME))
    embedding, decoder, head = got.entries
    flops = 512 * (24 * 1024**2 + 4 * 512 * 1024)
    assert decoder == Entry(
        model="toy",
        kind="decoder",
        sequence_length=512,
        forward_ns=573_000,
        backward_ns=1_107_000,
        kept_bytes=27 * 2**20,
        weight_bytes=24 * 2**20,
        forward_flops=flops,
        backward_flops=2 * flops,
    )
    assert (embedding.kind, embedding.forward_ns) == ("embedding", 50_000)
    assert embedding.kept_bytes == 2**19
    assert (head.kind, head.forward_ns) == ("head", 910_000)
    assert head.kept_bytes == 101 * 2**20
    assert (got.device, got.dtype, got.sequence_parallel) == ("V100", "fp16", False)
    assert got.source == "per-operator files of gpt_toy, algorithm 0"


def test_a_folder_is_read_whole_and_in_order(tmp_path):
    for samples, algorithm in ((2, 0), (1, 0), (1, 1)):
        name = f"gpt_toy_mbs{samples}_tp1_algo{algorithm}.csv"
        lines = changed("encoder-embedding", "output_size", float(samples))
        write_lines(
            tmp_path / name, tuple((x[0], 2 * x[1], 2 * x[2], *x[3:]) for x in lines)
        )
    got = run_import(tmp_path)
    assert [(e.kind, e.samples) for e in got.entries] == [
        ("embedding", 1),
        ("decoder", 1),
        ("head", 1),
        ("embedding", 2),
        ("decoder", 2),
        ("head", 2),
    ]
    other = run_import(tmp_path, algorithm=1)
    assert {e.samples for e in other.entries} == {1}
    refused(
        "--algorithm: expected one of 0, 1, which the files have, got 2",
        tmp_path,
        algorithm=2,
    )


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (
            changed("enc-MLP-gelu", "forward-compute", -8.0),
            r":13: forward-compute: expected a number of µs > 0, got '-8.0'; "
            r"correct",
        ),
        (
            changed("enc-MLP-gelu", "backward-compute", 0),
            r":13: backward-compute: expected a number of µs > 0, got '0'",
        ),
        (
            changed("enc-MLP-gelu", "activations", "much"),
            r":13: activations: expected a number of MB >= 0, got 'much'",
        ),
        (
            changed("enc-MLP-gelu", "weights", "nan"),
            r":13: weights: expected a number of MB >= 0, got 'nan'",
        ),
        # 2 · 512 · 1024 · 3072 FLOP at 1.02 · 125 TFLOP/s take 25.2645 µs.
        (
            changed("enc-attention-qkv", "forward-compute", 0.1),
            r":4: forward-compute: expected >= 25.265 \(3.221e\+09 FLOP at "
            r"125 TFLOP/s\), got 0.1; check the units: forward-compute is in "
            r"µs",
        ),
        (
            changed("gpt-post-process", "backward-compute", 1.8),
            r":17: backward-compute: expected >= 842.150 .*, got 1.8; check",
        ),
        (
            changed("enc-attention-qkv", "weights", 12.0),
            r":3: weights: expected about 24.\d+ MB \(decoder of toy\), got "
            r"30.000; check --model",
        ),
        (
            changed("encoder-embedding", "output_size", 1.1005),
            r":2: output_size: expected a whole number of tokens of 2048 "
            r"bytes \(1 samples, hidden width 1024, fp16\), got 563.456 in "
            r"1.1005 MB; check --model and --dtype",
        ),
        (
            changed("encoder-embedding", "output_size", 0.0),
            r":2: output_size: expected a whole number of tokens",
        ),
        (
            (*LINES, ("enc-MLP-GEMM-3", *LINES[0][1:])),
            r":18: op_name: expected one of .*; got 'enc-MLP-GEMM-3'; did you",
        ),
        (
            (*LINES, LINES[3]),
            r":18: op_name: expected every operator once, got "
            r"enc-attention-score again; remove one line",
        ),
        (
            LINES[:-1],
            r"csv: expected a line for operator gpt-post-process, got none; "
            r"add it",
        ),
        (
            (*LINES[:3], LINES[3][:4], *LINES[4:]),
            r":5: expected 7 cells, got 4; complete the line",
        ),
    ],
)
def test_figures_that_cannot_be_right_are_refused(tmp_path, lines, message):
    path = write_lines(tmp_path / NAME, lines)
    with pytest.raises(
        (InvalidProfileError, UnknownNameError), match=message
    ) as caught:
        run_import(path)
    assert str(caught.value).startswith(str(path))


def test_a_missing_column_is_named(tmp_path):
    path = write_lines(tmp_path / NAME, columns=("op_name", "forward", *COLUMNS[2:]))
    refused(
        r"csv:1: expected column 'forward-compute', got op_name, forward, "
        r"backward-compute, .*; add it",
        path,
    )
    path.write_text("")
    refused("expected column 'op_name', got an empty f", path)


def test_empty_lines_do_not_count(tmp_path):
    path = write_lines(tmp_path / NAME)
    path.write_text(path.read_text() + "\n\n")
    assert len(run_import(path).entries) == 3


def test_files_that_do_not_belong_together_are_refused(tmp_path):
    path = write_lines(tmp_path / NAME)
    other = write_lines(tmp_path / "bert_mbs1_tp2_algo0.csv")
    refused(r"bert_mbs1_tp2_algo0.csv: expected a file of gpt_toy, as", path, other)
    (tmp_path / "copy").mkdir()
    twin = write_lines(tmp_path / "copy" / NAME)
    refused(r"expected one file of tp 1 and mbs 1, got", path, twin)


def test_files_that_cannot_be_read_are_named(tmp_path):
    refused("expected CSV files in the folder, got no", tmp_path)
    refused(
        r"gpt.csv: expected a name such as gpt_13B_mbs1_tp2_algo0.csv",
        write_lines(tmp_path / "gpt.csv"),
    )
    refused(
        r"tp0_algo0.csv: tp: expected >= 1, got 0", tmp_path / "gpt_mbs1_tp0_algo0.csv"
    )
    path = tmp_path / NAME
    refused("expected a readable CSV file, got", path)
    path.write_bytes(b"\xff\xfe\x00")
    refused("line 1: expected text in UTF-8, got", path)


@pytest.mark.parametrize(
    "changes",
    [{"tower": TOWER}, {"head": Head(outputs=51200, tied=True, predictions=2)}],
)
def test_only_plain_models_are_imported(tmp_path, changes):
    refused(
        "--model: expected a model of equal dense layers with ordinary",
        write_lines(tmp_path / NAME),
        **changes,
    )


def test_without_a_peak_no_product_is_too_fast(tmp_path):
    lines = changed("enc-attention-qkv", "forward-compute", 0.1)
    got = run_import(write_lines(tmp_path / NAME, lines), peak_flops={})
    assert got.entries[1].forward_ns == 473_100


GPT_13B = Tower(
    runs=(
        RepeatedBlock(
            block=replace(
                GPT_BLOCK,
                hidden=5120,
                attention=Attention(heads=40, kv_heads=40, head_size=128, biases=True),
                mlp=Mlp(hidden=20480, biases=True),
            ),
            count=40,
        ),
    ),
    vocabulary=50257,
    learned_positions=2048,
)


def test_the_published_profile_of_a_13b_model(shared_data):
    """The lines of tp 1 and mbs 1, summed by hand, in µs and MB.

    Kept by a layer: ``34sbh + 5as²b`` = 340 + 800 MB, and four vectors of
    means and deviations of 8 KB.
    """
    folder = shared_data / "profiles" / "aceso-v100-gpt"
    got = run_import(
        folder, tower=GPT_13B, head=Head(outputs=50257, tied=True), model="gpt3-13b"
    )
    found = {(e.kind, e.tp, e.samples): e for e in got.entries}
    assert len(found) == 3 * 4 * 3
    assert {e.sequence_length for e in got.entries} == {2048}
    layer = found["decoder", 1, 1]
    assert layer.forward_ns == 20_053_788
    assert layer.backward_ns == 33_269_076
    assert layer.weight_bytes == 600 * 2**20
    assert layer.kept_bytes == round(1140.032 * 2**20)
    head = found["head", 1, 1]
    assert head.forward_ns == 116_771 + 16_199_875
    assert head.backward_ns == 936_290 + 22_757_840
    embedding = found["embedding", 1, 1]
    assert (embedding.forward_ns, embedding.backward_ns) == (419_899, 3_232_898)
    assert not layer.includes_tp_collectives
    assert found["decoder", 2, 1].includes_tp_collectives
    for e in got.entries:
        check_roofline(e, 125e12)
