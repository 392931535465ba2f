"""What PyTorch allocates for weights, gradients, optimizer and activations.

Against what the score charges: to the byte for what stays, within 2 % for
what a layer keeps from its forward to its backward pass.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from nest.cost.score import score
from nest.hardware import machine
from nest.ir import Plan, Problem, Strategy
from nest.models.architectures import Architecture
from nest.models.blocks import Attention, Block, Head, Mlp, RepeatedBlock, Tower
from nest.models.choices import Request, choose
from nest.models.graphs import build_problem
from nest.models.operators.base import Execution, Split
from nest.models.operators.nodes import block_node
from tests.exports import LAYERS, small_plan

HIDDEN = 64
LENGTH = 32
ATTENTION = Attention(heads=8, kv_heads=2, head_size=8)
#: Padded to 384 rows for one tensor parallel rank, to 512 for two and four.
VOCABULARY = 300


def model_of(experts: int) -> Architecture:
    mlp = Mlp(hidden=96, gated=True)
    if experts:
        mlp = replace(mlp, experts=experts, experts_per_token=2)
    block = Block(name="decoder", hidden=HIDDEN, attention=ATTENTION, mlp=mlp)
    return Architecture(
        name="tiny",
        towers=(
            Tower(
                runs=(RepeatedBlock(block=block, count=LAYERS),), vocabulary=VOCABULARY
            ),
        ),
        head=Head(outputs=VOCABULARY),
        max_sequence=LENGTH,
    )


@cache
def problem_of(experts: int = 0, **kept: str) -> Problem:
    model, site = model_of(experts), machine("dgx-h100")
    request = Request(
        global_batch=48,
        sequence_length=LENGTH,
        micro_batches=(12,),
        tp=(1, 2, 4),
        cp=(1, 2),
        ep=(1, 2) if experts else (1,),
        layers_per_node=1,
        virtual_stages=(1, 2),
        **kept,
    )
    problem = build_problem(model, site, 32, choose(model, site, 32, request))
    job = replace(problem.job, distributed_optimizer=True)
    return replace(problem, job=job)


class Case(NamedTuple):
    """A plan: its strategy, and the blocks of its stages or chunks."""

    strategy: Strategy
    counts: tuple[int, ...] = (LAYERS,)
    virtual_stages: int = 1
    replicas: int = 1
    distributed: bool = False
    experts: int = 0
    gradients: str = "bf16"
    optimizer: str = "adam"

    @property
    def problem(self) -> Problem:
        return problem_of(
            self.experts, gradients=self.gradients, optimizer=self.optimizer
        )

    @property
    def plan(self) -> Plan:
        return small_plan(
            self.problem,
            self.strategy,
            self.counts,
            micro_batch=12,
            replicas=self.replicas,
            virtual_stages=self.virtual_stages,
            distributed_optimizer=self.distributed,
        )


class Bytes(NamedTuple):
    """What one rank of a block keeps."""

    weights: int
    gradients: int
    state: int


def charged(case: Case) -> list[Bytes]:
    """Return what the score charges every block for."""
    return [
        Bytes(block.weight_bytes, block.gradient_bytes, block.state_bytes)
        for block in score(case.problem, case.plan).blocks
    ]


def parts_of(case: Case, rank: int) -> list[Any]:
    """Return what a tensor parallel rank of every chunk holds."""
    import torch

    from tests.transformer import Transformer, cut, part_of

    parts, first = [], 0
    for number, count in enumerate(case.counts):
        last = first + count
        names = [f"layers.{i}" for i in range(first, last)]
        if number == 0:
            names += ["tok_embeddings"]
        if number == len(case.counts) - 1:
            names += ["norm", "output"]
        # Tensors on it have sizes and take no memory.
        with torch.device("meta"):
            whole = Transformer(model_of(case.experts)).to(torch.bfloat16)
            part = part_of(whole, names)
            parts.append(cut(part, case.strategy.tp, rank, case.strategy.ep))
        first = last
    return parts


def run(part: Any) -> None:
    """Run a forward and a backward pass of a part."""
    import torch

    if part.tok_embeddings is not None:
        x = torch.zeros((1, LENGTH), dtype=torch.int64, device="meta")
    else:
        shape = (1, LENGTH, HIDDEN)
        x = torch.zeros(shape, dtype=torch.bfloat16, device="meta")
    part(x).sum().backward()


def allocated(case: Case, rank: int = 0) -> list[Bytes]:
    """Return what PyTorch allocates on a rank of every block."""
    parts = parts_of(case, rank)
    for part in parts:
        run(part)
    blocks = len(parts) // case.virtual_stages
    found = []
    for number in range(blocks):
        own = [kept_of(case, part) for part in parts[number::blocks]]
        found.append(Bytes(*map(sum, zip(*own, strict=True))))
    return found


def kept_of(case: Case, part: Any) -> Bytes:
    """Return what a chunk keeps, sharded as its ZeRO stage says."""
    import torch

    from tests.transformer import buckets, flat_shard, optimizer_tensors, size_bytes

    make = {
        "adam": torch.optim.Adam,
        "sgd": lambda x: torch.optim.SGD(x, lr=1e-3, momentum=0.9),
    }[case.optimizer]
    dtype = {"bf16": torch.bfloat16, "fp32": torch.float32}[case.gradients]
    strategy = case.strategy
    ranks = {"dense": strategy.data_ranks}
    ranks["expert"] = strategy.data_ranks // strategy.ep
    over = case.replicas if case.distributed else 1
    kept: list[list[Any]] = [[], [], []]
    for bucket in buckets(part):
        for kind, weights in bucket.items():
            if not weights:
                continue

            def sharded(tensors, stage, more=1, ranks=ranks[kind]):
                # The distributed optimizer is ZeRO 1, over replicas too.
                zero = max(strategy.zero, int(case.distributed))
                if zero < stage:
                    return tensors
                return [flat_shard(tensors, ranks * more)]

            gradients = [weight.grad.to(dtype) for weight in weights]
            kept[0] += sharded(weights, 3)
            kept[1] += sharded(gradients, 2)
            kept[2] += optimizer_tensors(sharded(weights, 1, over), make)
    return Bytes(*map(size_bytes, kept))


CASES = {
    "whole": Case(Strategy()),
    "tp 2": Case(Strategy(tp=2)),
    # Two ranks have the same key and value head.
    "tp 4": Case(Strategy(tp=4)),
    "uneven stages": Case(Strategy(), (3, 2, 2, 1)),
    "no block with the head": Case(Strategy(tp=2), (5, 3, 0)),
    "chunks": Case(Strategy(), (2, 1, 2, 3), virtual_stages=2),
    "8 uneven chunks": Case(
        Strategy(tp=2, dp=2, zero=1), (2, 1, 1, 1, 1, 1, 1, 0), virtual_stages=2
    ),
    **{f"zero {zero}": Case(Strategy(dp=4, zero=zero), (5, 3)) for zero in range(4)},
    **{
        f"zero {zero}, tp, cp, replicas": Case(
            Strategy(dp=2, cp=2, tp=2, zero=zero), (5, 3), replicas=2
        )
        for zero in range(4)
    },
    "distributed optimizer": Case(
        Strategy(dp=2, tp=2), (5, 3), replicas=2, distributed=True
    ),
    "fp32 gradients": Case(Strategy(dp=2, zero=2), (5, 3), gradients="fp32"),
    "SGD with momentum": Case(Strategy(dp=2, zero=1), (5, 3), optimizer="sgd"),
    **{
        f"experts, zero {zero}": Case(
            Strategy(dp=4, ep=2, tp=2, zero=zero), (5, 3), experts=4
        )
        for zero in range(4)
    },
}


@pytest.mark.parametrize("name", CASES)
def test_what_stays_is_charged_to_the_byte(torch, name):
    case = CASES[name]
    assert allocated(case) == charged(case)


@pytest.mark.parametrize("tp", [2, 4])
def test_every_tensor_parallel_rank_allocates_the_same(torch, tp):
    case = Case(Strategy(tp=tp), (5, 3))
    assert {tuple(allocated(case, rank)) for rank in range(tp)} == {
        tuple(charged(case))
    }


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_shards_that_do_not_come_out_even_are_elements_longer(torch, zero):
    """Three ranks share what three does not divide.

    Embedding and blocks have multiples of three, the head 384·64 + 64 =
    3·8213 + 1 values. The cost model rounds its bytes up, PyTorch its values:
    8214 of 2 bytes, 16428, where 49280/3 is charged as 16427, and likewise
    gradients; the state 12·8214 = 98568 where 12·24640/3 = 98560 is charged.
    """
    case = Case(Strategy(dp=3, zero=zero), (4, 4))
    first, last = charged(case)
    longer = Bytes(
        last.weights + (1 if zero == 3 else 0),
        last.gradients + (1 if zero >= 2 else 0),
        last.state + 8,
    )
    assert allocated(case) == [first, longer]


@pytest.fixture
def ranks(torch):
    """Start a process group of four ranks, of which this is the first.

    Its collectives do nothing: sizes are right, values are not.
    """
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield dist.device_mesh.init_device_mesh("cpu", (4,))
    dist.destroy_process_group()


def test_fully_sharded_data_parallel_keeps_as_much(torch, ranks):
    """FSDP2 with torchtitan's fp32 weights, and ZeRO 3 on four ranks.

    Weights take 4 bytes, of which the cost model counts 2 as weights and 2 as
    state. FSDP2 cuts rows of every matrix, and they come out even.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    from tests.transformer import Transformer, size_bytes

    problem = problem_of(target="torchtitan")
    plan = small_plan(problem, Strategy(dp=4, zero=3), micro_batch=12)
    (block,) = score(problem, plan).blocks
    model = model_of(0)
    # Padded as everywhere, which torchtitan leaves to the user.
    (tower,) = model.towers
    towers = (replace(tower, vocabulary=384),)
    net = Transformer(replace(model, towers=towers, head=Head(outputs=384)))
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16, reduce_dtype=torch.float32
    )
    for part in (*net.layers.values(), net):
        fully_shard(part, mesh=ranks, mp_policy=policy)
    tokens = torch.zeros((1, LENGTH), dtype=torch.int64)
    optimizer = torch.optim.Adam(net.parameters())
    net(tokens).sum().backward()
    optimizer.step()
    weights = list(net.parameters())
    moments = [
        state[name]
        for state in optimizer.state.values()
        for name in ("exp_avg", "exp_avg_sq")
    ]
    found = [
        size_bytes(tensor.to_local() for tensor in tensors)
        for tensors in (weights, [weight.grad for weight in weights], moments)
    ]
    assert found[1] == block.gradient_bytes
    assert found[0] + found[2] == block.weight_bytes + block.state_bytes


# Activations.

WIDE = 256
SAMPLES, TOKENS = 2, 128
GATED = Block(
    name="gated",
    hidden=WIDE,
    attention=Attention(heads=8, kv_heads=4, head_size=32),
    mlp=Mlp(hidden=512, gated=True),
)
GPT = Block(
    name="gpt",
    hidden=WIDE,
    attention=Attention(
        heads=8, kv_heads=8, head_size=32, biases=True, output_bias=True
    ),
    mlp=Mlp(hidden=1024, biases=True),
    layer_norm=True,
)
#: Products with weights whose outputs stay under selective recomputation:
#: all but the last of a block.
GATED_PRODUCTS, GPT_PRODUCTS = 7, 4


def counted(block: Block, split: Split, choice: str, **execution) -> int:
    return block_node(block, split, Execution(**execution)).kept_bytes[choice]


def gated_block(torch, is_fused: bool):
    """Return a block, its input and its weights, in bf16."""
    from tests.transformer import Block as Layer
    from tests.transformer import fused

    torch.manual_seed(0)
    layer = Layer(GATED).to(torch.bfloat16)
    x = torch.randn(SAMPLES, TOKENS, WIDE, dtype=torch.bfloat16)
    weights = list(layer.parameters())
    return fused(layer) if is_fused else layer, x.requires_grad_(), weights


@pytest.mark.parametrize("choice", ["none", "selective", "full"])
def test_a_layer_keeps_what_is_charged(torch, choice):
    """One block with RMSNorm, grouped queries and a gate.

    Its norms and its gate keep their inputs only, as fused kernels do.
    """
    from tests.transformer import kept_by, recomputed

    layer, x, weights = gated_block(torch, is_fused=choice == "none")
    run = recomputed(layer, choice, GATED_PRODUCTS - 1)
    kept = kept_by(run, x, weights)
    split = Split(samples=SAMPLES, sequence_length=TOKENS)
    wanted = counted(GATED, split, choice)
    assert kept.alive_bytes == pytest.approx(wanted, rel=0.02)
    # Hooks do not see what a policy of recomputation caches.
    if choice != "selective":
        assert kept.hooked_bytes == kept.alive_bytes


def test_a_layer_of_single_operators_keeps_what_is_counted(torch):
    """Norms and gate as a CPU runs them, with copies in fp32."""
    from tests.transformer import kept_by

    kept = kept_by(*gated_block(torch, is_fused=False))
    split = Split(samples=SAMPLES, sequence_length=TOKENS)
    wanted = counted(GATED, split, "none", fused=False)
    assert kept.hooked_bytes == pytest.approx(wanted, rel=0.02)
    assert kept.alive_bytes == kept.hooked_bytes


def test_norms_of_single_operators_that_run_again_are_counted_twice(torch):
    """Selective recomputation of such norms: a known excess.

    They are computed again, so PyTorch keeps their inputs alone; the operator
    count adds 6 bytes for every value of both norms all the same. Only
    predictions of old software count like this, no problem of a model does.
    """
    from tests.transformer import kept_by, recomputed

    layer, x, weights = gated_block(torch, is_fused=False)
    run = recomputed(layer, "selective", GATED_PRODUCTS - 1)
    kept = kept_by(run, x, weights)
    split = Split(samples=SAMPLES, sequence_length=TOKENS)
    wanted = counted(GATED, split, "selective", fused=False)
    excess = 2 * 6 * SAMPLES * TOKENS * WIDE
    assert kept.alive_bytes == pytest.approx(wanted - excess, rel=0.02)


def test_selective_recomputation_repeats_what_is_timed(torch):
    """Both norms, the attention core and the gate, and no product.

    Of products there are the two of every gradient.
    """
    from tests.transformer import kept_by, recomputed

    layer, x, weights = gated_block(torch, is_fused=False)
    run = recomputed(layer, "selective", GATED_PRODUCTS - 1)
    again = kept_by(run, x, weights).again
    assert (again["mm"], again["rsqrt"], again["silu"]) == (14, 2, 1)
    assert again["_scaled_dot_product_flash_attention_for_cpu"] == 1
    split = Split(samples=SAMPLES, sequence_length=TOKENS)
    assert sorted(block_node(GATED, split).repeated) == [
        "activation function",
        "attention core",
        "norm 1",
        "norm 2",
    ]


@pytest.mark.parametrize("choice", ["none", "selective", "full"])
@pytest.mark.parametrize(
    ("tp", "sequence_parallel"), [(1, True), (2, True), (2, False)]
)
def test_a_rank_keeps_what_is_charged(torch, choice, tp, sequence_parallel):
    """One block of GPT, as ``nest profile`` runs the shard of a rank.

    There the part of a sum that a reduce-scatter leaves a rank is a view of
    the whole. Where selective recomputation keeps it, before the second norm,
    the other ranks' parts are held, too; no plan is charged for them.
    """
    from nest.profiles.torch_layers import Shard, build_part
    from tests.transformer import kept_by, recomputed

    split = Split(
        tp=tp,
        samples=SAMPLES,
        sequence_length=TOKENS,
        sequence_parallel=sequence_parallel,
    )
    shard = Shard(split, torch.device("cpu"), torch.bfloat16)
    part = build_part(shard, GPT, Tower(runs=(RepeatedBlock(block=GPT, count=1),)))
    run = recomputed(part.forward, choice, GPT_PRODUCTS - 1)
    kept = kept_by(run, *part.inputs, [*shard.weights, *shard.buffers])
    wanted = counted(GPT, split, choice)
    if choice == "selective":
        wanted += 2 * (split.tokens - split.outer_tokens) * WIDE
    assert kept.alive_bytes == pytest.approx(wanted, rel=0.02)
    # Hooks do not see what a policy of recomputation caches.
    if choice != "selective":
        assert kept.hooked_bytes == kept.alive_bytes
