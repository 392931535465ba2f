"""Exports: what is written, what is read back, and what is refused."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from nest.constraints.targets import for_target, inexpressible
from nest.cost.schedules import schedule_of
from nest.cost.score import score
from nest.cost.space import strategies
from nest.errors import (
    InvalidOptionError,
    InvalidPlanError,
    InvalidProblemError,
    NestError,
    UnknownNameError,
)
from nest.frameworks import torchtitan
from nest.frameworks.export import (
    TARGETS,
    as_run_by,
    check,
    export,
    target_of,
    write_folder,
)
from nest.frameworks.hosts import node_size
from nest.frameworks.importing import Site, build
from nest.frameworks.launch import Settings, launch_of
from nest.frameworks.layers import Chunk, placement_of
from nest.frameworks.nearest import nearest
from nest.frameworks.schedule_csv import cells_of, csv_text
from nest.hardware import machine
from nest.ir import Edge, Optimizer, Strategy
from nest.models import builtin
from tests.exports import (
    LAYERS,
    cut_plan,
    small_model,
    small_plan,
    small_problem,
    uniform_plans,
)


def settings(experts=0, modules=0):
    return Settings(model=small_model(experts, modules), flavor="llama3/8B")


def problem_for(target, experts=0, modules=0, etp=None, **job):
    problem = small_problem(experts, modules=modules, etp=etp)
    problem = for_target(problem, target)
    return replace(problem, job=replace(problem.job, **job))


#: Plans that broken exports are made of: target, strategy, blocks per chunk,
#: fields of the plan, experts, modules for multi-token prediction, and what etp may be.
BASES = {
    "plain": ("megatron", {"dp": 2, "tp": 2, "zero": 1}, (2, 2, 2, 2), {}, 0),
    "uneven": ("megatron", {"dp": 2, "tp": 2, "zero": 1}, (3, 2, 2, 1), {}, 0),
    "chunks": ("megatron", {"dp": 2, "tp": 2}, (1,) * 8,
               {"virtual_stages": 2}, 0),
    "replicas": ("megatron", {"dp": 2, "tp": 2, "zero": 1}, (4, 4),
                 {"replicas": 2}, 0),
    "wide": ("megatron", {"dp": 8, "zero": 1}, (8,), {"replicas": 2}, 0),
    "experts": ("megatron", {"dp": 4, "tp": 2, "ep": 4}, (4, 4), {}, 4),
    "expert-chunks": ("megatron", {"dp": 4, "tp": 2, "ep": 4}, (2, 2, 2, 2),
                      {"virtual_stages": 2}, 4),
    "whole": ("megatron", {"dp": 4, "tp": 2, "ep": 4, "etp": 1}, (4, 4), {}, 4,
              0, (1,)),
    "fsdp": ("megatron", {"dp": 4, "tp": 2, "zero": 3, "recompute": "full"},
             (4, 4), {}, 0),
    "modules": ("megatron", {"dp": 2, "tp": 2, "zero": 1}, (3, 2, 2, 1), {},
                0, 2),
    "titan": ("torchtitan", {"dp": 2, "tp": 2, "zero": 3}, (3, 2, 2, 1), {},
              0),
    "titan-experts": ("torchtitan", {"dp": 4, "tp": 2, "ep": 4, "zero": 2},
                      (4, 4), {}, 4),
    "titan-whole": ("torchtitan",
                    {"dp": 2, "tp": 4, "ep": 4, "etp": 1, "zero": 2}, (4, 4), {},
                    4, 0, (1,)),
    "speed": ("deepspeed", {"dp": 8, "zero": 1}, (4, 4), {}, 0),
    "max": ("maxtext", {"dp": 4, "tp": 2, "zero": 3}, (4, 4), {}, 0),
}  # fmt: skip


def exported(target, strategy, counts=(8,), experts=0, job=None, **fields):
    """Export a plan with one strategy, of a problem for the target."""
    problem = problem_for(target, experts, **(job or {}))
    plan = small_plan(problem, strategy, counts, **fields)
    return export(problem, plan, target, settings(experts))


def base(name):
    target, degrees, counts, fields, *shape = BASES[name]
    problem = problem_for(target, *shape)
    plan = small_plan(problem, Strategy(**degrees), counts, **fields)
    score(problem, plan)
    return problem, plan, target, settings(*shape[:2])


@pytest.fixture(scope="module")
def exports():
    return {name: export(*base(name)) for name in BASES}


def reread(name, files):
    problem, plan, target, known = base(name)
    launch = launch_of(problem, plan, placement_of(problem.graph))
    check(problem, plan, launch, known.model, target_of(target), files)


@pytest.mark.parametrize("name", BASES)
def test_exports_are_read_back(exports, name):
    reread(name, exports[name])


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("target", TARGETS)
def test_equal_stages_of_every_kind_are_exported(target, experts):
    problem = problem_for(target, experts)
    done, reasons = 0, set()
    for plan in uniform_plans(problem, every=29):
        try:
            export(problem, plan, target, settings(experts))
        except InvalidPlanError as error:
            reasons.add(str(error).partition(":")[0])
        else:
            done += 1
    # What only the module of the target knows.
    own = {"maxtext": {"zero", "ep", "model"}, "deepspeed": {"model"}}
    assert reasons <= own.get(target, set())
    assert done > 5 or (target, experts) == ("deepspeed", 4)


#: Plans of whole experts: shared by no ranks or several; by experts alone; with the
#: pipelines of replicas inside, which Megatron numbers so where ``ep`` is ``tp`` only.
WHOLE_EXPERTS = [
    ("megatron", {"dp": 4, "tp": 2, "ep": 4}, (4, 4), {}),
    ("megatron", {"dp": 4, "tp": 2, "zero": 2}, (8,), {}),
    ("megatron", {"tp": 4, "ep": 2, "zero": 1}, (8,), {"replicas": 2}),
    ("megatron", {"tp": 4, "ep": 4}, (4, 4), {"replicas": 2}),
    ("megatron", {"tp": 4, "ep": 2}, (4, 4), {"replicas": 2}),
    ("torchtitan", {"dp": 2, "tp": 4, "ep": 4, "zero": 2}, (4, 4), {}),
]


@pytest.mark.parametrize(("target", "degrees", "counts", "fields"), WHOLE_EXPERTS)
def test_whole_experts_are_exported(target, degrees, counts, fields):
    """What is written is read back as the plan, its groups of devices too."""
    problem = problem_for(target, 4, etp=(1, 2, 4))
    fields = {"micro_batch": 2 * degrees.get("dp", 1), **fields}
    plan = small_plan(problem, Strategy(**degrees, etp=1), counts, **fields)
    score(problem, plan)
    files = export(problem, plan, target, settings(4))
    name, said = {
        "megatron": ("args.sh", "--expert-tensor-parallel-size 1\n"),
        "torchtitan": ("job.toml", "expert_tensor_parallel_degree = 1\n"),
    }[target]
    assert said in files[name]


def test_targets_refuse_whole_experts_that_they_do_not_have():
    problem = small_problem(4, etp=(1,))
    for target, ep, text in (
        ("torchtitan", 1, "stage 1: expected etp ep >= 2 with it, got etp=1"),
        ("deepspeed", 2, "stage 1: expected etp none, got etp=1"),
        ("maxtext", 4, "stage 1: expected etp none, got etp=1"),
    ):
        plan = small_plan(problem, Strategy(dp=4, tp=2, ep=ep, etp=1, zero=3))
        obstacles = [str(x) for x in inexpressible(target, problem, plan)]
        assert any(x.startswith(text) for x in obstacles), obstacles
    pinned = replace(
        problem,
        graph=replace(
            problem.graph,
            kinds=tuple(
                replace(kind, costs=tuple(x for x in kind.costs if x.etp))
                for kind in problem.graph.kinds
            ),
        ),
    )
    with pytest.raises(InvalidOptionError, match="expected costs without etp"):
        for_target(pinned, "maxtext")


#: What was changed in an export, and what the refusal says. Frameworks
#: accept those marked with a star.
BROKEN = [
    # Megatron: degrees and devices
    ("plain", "args.sh", "parallel-size 2", "parallel-size 3",
     r"args.sh:\d+: --tensor-model-parallel-size: expected .* to divide the "
     r"16 devices, got 12"),
    ("plain", "args.sh", "parallel-size 2", "parallel-size 0",
     r"--tensor-model-parallel-size: expected an integer >= 1, got '0'"),
    ("plain", "args.sh", "parallel-size 2", "parallel-size two",
     r"expected an integer >= 1, got 'two'"),
    ("plain", "args.sh", "parallel-size 2", "parallel-size 2 2",
     r"--tensor-model-parallel-size: expected one value, got 2"),
    ("plain", "args.sh", "parallel-size 2", "parallel-size $TP",
     r"got \$TP, which the script does not set"),
    ("plain", "args.sh", "--bf16", "--bf16\n  --fp16",
     "expected one data type"),
    ("plain", "args.sh", "  --bf16\n", "", "none, which is fp32; add one"),
    ("plain", "args.sh", "--bf16", "--bf-16",
     "--bf16: expected --bf16 or --fp16|--bf-16: expected an option"),
    ("plain", "args.sh", "--swiglu", "--swiglu\n  --unknown-flag 1",
     "--unknown-flag: expected an option that exports write"),
    ("plain", "args.sh", "--swiglu", "--swiglu 1",
     "--swiglu: expected no value, got '1'"),
    ("plain", "args.sh", "--swiglu\n", "--swiglu\n  --num-layers 9\n",
     r"--num-layers: expected it once, got 9 here and 8 in line \d+"),
    ("plain", "args.sh", "--num-layers 8", "--num-layers 9",
     "--pipeline-model-parallel-size: expected a divisor of the 9 layers"),
    ("plain", "args.sh", "--num-layers 8\n", "",
     "--num-layers: expected a value, got none; add it"),
    ("plain", "args.sh", "--hidden-size 256", "--hidden-size 512",
     "expected the shape of small, got another one"),
    ("plain", "args.sh", "heads 8", "heads 9",
     "--num-query-groups: expected a divisor of the 9|a multiple of"),
    ("plain", "args.sh", "--ffn-hidden-size 512", "--ffn-hidden-size 511",
     "--ffn-hidden-size: expected a multiple of --tensor"),
    ("plain", "args.sh", "--max-position-embeddings 1024",
     "--max-position-embeddings 512", "expected at least --seq-length 1024"),
    ("plain", "args.sh", "--global-batch-size 64", "--global-batch-size 60",
     "--global-batch-size: expected a multiple of"),
    ("plain", "args.sh", "--global-batch-size 64", "--global-batch-size 128",
     "export: global_batch: expected 64, got 128"),
    ("plain", "args.sh", "--micro-batch-size 4", "--micro-batch-size 2",
     "export: micro_batch: expected 8, got 4"),
    ("plain", "args.sh", "--use-distributed-optimizer\n", "",
     "export: zero: expected 1, got 0"),
    ("plain", "args.sh", "--bf16", "--bf16\n  --grad-reduce-in-bf16",
     "export: gradient_bytes: expected 4, got 2"),
    ("plain", "args.sh", "  --sequence-parallel\n", "",
     "export: sequence_parallel: expected true, got false"),
    ("plain", "args.sh", "export CUDA_DEVICE_MAX_CONNECTIONS=1\n", "",
     "CUDA_DEVICE_MAX_CONNECTIONS: expected 1 with these degrees"),
    ("plain", "args.sh", "ARGS=(", "rm -r x\nARGS=(",
     r"args.sh:3: expected the array ARGS and settings only"),
    ("plain", "args.sh", "--swiglu",
     "--swiglu\n  --recompute-granularity full",
     "--recompute-method: expected uniform or block"),
    # * more layers than there are
    ("fsdp", "args.sh", "--recompute-num-layers 1",
     "--recompute-num-layers 99",
     "--recompute-num-layers: expected 1 with the method uniform, got 99"),
    # * blocks of 40 of 4
    ("fsdp", "args.sh", "uniform\n  --recompute-num-layers 1",
     "block\n  --recompute-num-layers 40",
     "expected all 4 layers of a chunk with the method block, got 40"),
    ("fsdp", "args.sh", "--ckpt-format fsdp_dtensor",
     "--ckpt-format torch_dist", "--ckpt-format: expected fsdp_dtensor"),
    ("fsdp", "args.sh", "optim_grads_params", "optim_grads",
     "export: zero: expected 3, got 2"),
    # * selective recomputation of another part
    ("plain", "args.sh", "--swiglu",
     "--swiglu\n  --recompute-activations\n  --recompute-modules mlp",
     "--recompute-modules: expected core_attn, got mlp"),
    ("plain", "args.sh", "--swiglu", "--swiglu\n  --tp-comm-overlap",
     r"export: overlap: expected \[\], got \[\"tp\"\]"),
    ("plain", "args.sh", "--swiglu", "--swiglu\n  --overlap-param-gather",
     "--overlap-param-gather: expected --overlap-grad-reduce and"),
    # Megatron: layouts
    ("uneven", "args.sh", "Et*3|", "Et*2|",
     "layout: expected --num-layers 8 times t, got 7"),
    # * an empty chunk
    ("uneven", "args.sh", "Et*3|t*2|", "Et*5||",
     "layout: expected something in every stage, got nothing in stage 2"),
    ("uneven", "args.sh", "|tL", "tL",
     "layout: expected a multiple of --pipeline-model-parallel-size 4"),
    ("uneven", "args.sh", "'Et*3", "'t*3", "layout: expected one E first"),
    ("uneven", "args.sh", "tL'", "Lt'", "layout: expected one E first"),
    ("uneven", "args.sh", "t*2|t*2", "t*2|x*2",
     "expected stages of E, t, t.N, m and L between .*, got 'x.2' as stage 3"),
    ("uneven", "args.sh", "--swiglu",
     "--swiglu\n  --decoder-first-pipeline-num-layers 2",
     "layout: expected no other argument about layers of stages"),
    ("uneven", "args.sh", "Et*3|t*2|", "Et*2|t*3|",
     r"export: chunks: expected \[\[true,3,false,0\]"),
    # Megatron: modules for multi-token prediction
    ("modules", "args.sh", "|tm*2L", "|mtmL",
     "layout: expected every m behind every t, got 'Et.3|t.2|t.2|mtmL'"),
    ("modules", "args.sh", "tm*2L", "tmLm",
     "layout: expected one E first and one L last"),
    ("modules", "args.sh", "t*2|tm*2L", "t*3m|mL",
     "layout: expected every m in the same stage, got them in stages 3 and 4"),
    ("modules", "args.sh", "tm*2L", "tmL",
     "layout: expected --mtp-num-layers 2 times m, got 1"),
    ("modules", "args.sh", "tm*2L", "tL",
     "layout: expected --mtp-num-layers 2 times m, got 0"),
    ("modules", "args.sh", "  --mtp-num-layers 2\n", "",
     "layout: expected no m without --mtp-num-layers, got 2"),
    ("modules", "args.sh", "--mtp-num-layers 2", "--mtp-num-layers 0",
     "layout: expected no m without --mtp-num-layers, got 2"),
    ("modules", "args.sh", "--mtp-num-layers 2", "--mtp-num-layers -1",
     "--mtp-num-layers: expected an integer >= 0, got '-1'"),
    ("modules", "args.sh", "t*2|tm*2L", "t*3|m*2L",
     r"export: chunks: expected .*\[false,1,true,2\]\], got "),
    ("uneven", "args.sh", "--num-layers 8", "--num-layers 8\n  "
     "--mtp-num-layers 1", "layout: expected --mtp-num-layers 1 times m"),
    ("plain", "args.sh", "--num-layers 8", "--num-layers 8\n  "
     "--mtp-num-layers 1", "expected the shape of small, got another one"),
    ("modules", "args.sh", "rope", "learned_absolute",
     "--position-embedding-type: expected rope with --mtp-num-layers, got "
     "learned_absolute"),
    # * Megatron computes no module again then
    ("modules", "args.sh", "--swiglu", "--swiglu\n  --recompute-granularity "
     "full\n  --recompute-method block\n  --recompute-num-layers 2",
     "--recompute-method: expected uniform with --mtp-num-layers, got block"),
    ("modules", "args.sh", "--swiglu", "--swiglu\n  --mtp-detach-heads",
     "--mtp-detach-heads: expected no such argument with --mtp-num-layers, "
     "got it; plans send gradients on to the model"),
    ("modules", "args.sh", "--swiglu",
     "--swiglu\n  --mtp-use-repeated-layer",
     "--mtp-use-repeated-layer: expected no such argument with --mtp-num"),
    ("modules", "args.sh", "--swiglu",
     "--swiglu\n  --overlap-moe-expert-parallel-comm",
     "--overlap-moe-expert-parallel-comm: expected --mtp-num-layers of 1 at "
     "most, got 2"),
    # What Megatron does not run beside the exchange of experts
    ("experts", "args.sh", "--swiglu",
     "--swiglu\n  --overlap-moe-expert-parallel-comm",
     "--overlap-moe-expert-parallel-comm: expected virtual stages with 2 "
     "pipeline stages, got none"),
    ("expert-chunks", "args.sh", "--swiglu",
     "--swiglu\n  --overlap-moe-expert-parallel-comm\n  "
     "--recompute-granularity full\n  --recompute-method uniform",
     "--overlap-moe-expert-parallel-comm: expected no full recomputation, "
     r"got args.sh:\d+: --recompute-granularity full too"),
    # * interleaving with micro-batches that the stages do not divide
    ("chunks", "args.sh", "--global-batch-size 64", "--global-batch-size 72",
     "expected a number of micro-batches that the 4 interleaved pipeline "
     "stages divide, got 9 micro-batches"),
    # * ... or groups of others
    ("chunks", "args.sh", "--swiglu", "--swiglu\n  "
     "--microbatch-group-size-per-virtual-pipeline-stage 8",
     "--microbatch-group-size-per-virtual-pipeline-stage: expected as many "
     "micro-batches as the 4 pipeline stages, got 8"),
    # * ... or fewer than there are stages
    ("chunks", "args.sh", "--global-batch-size 64", "--global-batch-size 16",
     "interleaved pipeline stages divide, got 2 micro-batches"),
    ("chunks", "args.sh", "pipeline-rank 2", "pipeline-rank 3",
     "--num-virtual-stages-per-pipeline-rank: expected a divisor of the 2"),
    # Megatron: optimizer, experts, hosts
    # * 3 instances on 16 data ranks
    ("wide", "args.sh", "optimizer-instances 2", "optimizer-instances 3",
     "--num-distributed-optimizer-instances: expected a divisor of the 16 "
     "data ranks, got 3"),
    ("wide", "args.sh", "  --num-distributed-optimizer-instances 2\n", "",
     "export: dp: expected 8, got 16"),
    ("replicas", "rank_map.json", "[0, 1, 2, 3, 8", "[0, 1, 2, 3, 4",
     "rank_map.json: expected every device once, got one twice"),
    ("replicas", "rank_map.json", "[0, ", "[",
     "expected one device for each of the 16 slots"),
    ("replicas", "rank_map.json", "[0, ", "[0.5, ",
     "rank_map.json: expected a list of devices, got something else"),
    ("replicas", "rank_map.json", "[0, ", "{0, ",
     "rank_map.json: line 1: expected a list of devices, got malformed"),
    # * the framework's own order of ranks
    ("replicas", "rank_map.json", None,
     json.dumps(list(range(16))), "groups: expected the plan's devices"),
    ("plain", "hostfile", "node0 slots=8", "node0", "expected 'name slots=N'"),
    ("plain", "hostfile", "node1 slots=8\n", "",
     "export: dp: expected 2, got 1"),
    # * experts that the data ranks of a stage do not divide
    ("experts", "args.sh", "expert-model-parallel-size 4",
     "expert-model-parallel-size 3",
     "--expert-model-parallel-size: expected a divisor of the 4 experts"),
    ("experts", "args.sh", "--num-experts 4", "--num-experts 8",
     "expected the shape of small"),
    # * experts cut over some tensor ranks, or whole ones of another plan
    ("experts", "args.sh", "expert-tensor-parallel-size 2",
     "expert-tensor-parallel-size 3",
     "--expert-tensor-parallel-size: expected --tensor-model-parallel-size 2 or 1"),
    ("experts", "args.sh", "expert-tensor-parallel-size 2",
     "expert-tensor-parallel-size 1", "etp: expected 0, got 1"),
    # * experts and tensor parallelism without sequence parallelism
    ("experts", "args.sh", "  --sequence-parallel\n", "",
     "--sequence-parallel: expected it with experts and tensor"),
    ("experts", "args.sh", "--moe-router-topk 2", "--moe-router-topk 9",
     "--moe-router-topk: expected at most --num-experts 4, got 9"),
    ("experts", "args.sh", "expert-model-parallel-size 4",
     "expert-model-parallel-size 2", "export: ep: expected 4, got 2"),
    # torchtitan; it takes any type and any name
    # * texts for numbers
    ("titan", "job.toml", "tensor_parallel_degree = 2",
     'tensor_parallel_degree = "2"',
     r"job.toml:\d+: parallelism.tensor_parallel_degree: expected an "
     r"integer, got .2"),
    # * true is no number
    ("titan", "job.toml", "context_parallel_degree = 1",
     "context_parallel_degree = true", "expected an integer, got true"),
    ("titan", "job.toml", "tensor_parallel_degree = 2",
     "tensor_parallel_degree = 3", "expected degrees whose product is the 16"),
    ("titan", "job.toml", "tensor_parallel_degree", "tensor_parallel_size",
     "parallelism.tensor_parallel_size: expected a known key"),
    ("titan", "job.toml", "[training]", "[trainings]",
     "trainings: expected a known key"),
    ("titan", "job.toml", "[training]", "[training",
     "job.toml: expected TOML, got a syntax error"),
    # * a schedule that nobody has
    ("titan", "job.toml", '"1F1B"', '"1F2B"',
     "parallelism.pipeline_parallel_schedule: expected one of 1F1B"),
    ("titan", "job.toml", '"1F1B"', '"Interleaved1F1B"',
     "expected a schedule of 1 parts per stage, got 'Interleaved1F1B'"),
    ("titan", "job.toml", '"1F1B"', '"GPipe"',
     'export: schedule: expected "1f1b", got "gpipe"'),
    # * modules that the model has not
    ("titan", "job.toml", '"layers.3"', '"layer.3"',
     "expected 11 modules in order, got 'layer.3' instead of 'layers.3'"),
    # * a layer twice
    ("titan", "job.toml", '"layers.3"', '"layers.2", "layers.3"',
     "expected 11 modules in order, got 'layers.2' instead of 'layers.3'"),
    # * a layer missing
    ("titan", "job.toml", '"layers.7", ', "", "expected 11 modules in order"),
    # * batches that micro-batches do not divide
    ("titan", "job.toml", "microbatch_size = 4", "microbatch_size = 3",
     "pipeline_parallel_microbatch_size: expected a divisor of training"),
    ("titan", "job.toml", "global_batch_size = 64", "global_batch_size = 128",
     "training.global_batch_size: expected local_batch_size .* with a pipe"),
    ("titan", "job.toml", 'mode = "none"', 'mode = "selective"',
     "activation_checkpoint.selective_ac_option: expected 'op', got '2'"),
    ("titan", "job.toml", '"always"', '"never"',
     "export: zero: expected 3, got 2"),
    ("titan", "job.toml", 'dtype = "float32"', 'dtype = "bfloat16"',
     "mixed_precision_reduce: expected bfloat16 as training.dtype"),
    ("titan", "job.toml", "shard_degree = 2", "shard_degree = 0",
     "data_parallel_shard_degree: expected degrees whose product"),
    # * experts over ranks that they do not divide
    ("titan-experts", "job.toml", "expert_parallel_degree = 4",
     "expert_parallel_degree = 64",
     "expert_parallel_degree: expected a divisor of the 4 shard"),
    ("titan-experts", "job.toml", "expert_tensor_parallel_degree = 2",
     "expert_tensor_parallel_degree = 4",
     "expert_tensor_parallel_degree: expected tensor_parallel_degree 2 or 1"),
    ("titan-experts", "job.toml", "expert_tensor_parallel_degree = 2",
     "expert_tensor_parallel_degree = 1", "etp: expected 0, got 1"),
    # DeepSpeed
    # * an unknown block
    ("speed", "ds.json", '"zero_optimization"', '"zero_optimisation"',
     "ds.json: zero_optimisation: expected a known key"),
    ("speed", "ds.json", '"stage"', '"stages"',
     "ds.json: zero_optimization.stages: expected a known key"),
    ("speed", "ds.json", '"stage": 1', '"stage": 4',
     "stage: expected one of 0, 1, 2, 3, got 4"),
    ("speed", "ds.json", '"stage": 1', '"stage": 2',
     "zero_optimization.stage: expected 0 or 1 with a pipeline, got 2"),
    ("speed", "ds.json", '"stage": 1', '"stage": true',
     "zero_optimization.stage: expected an integer, got true"),
    ("speed", "ds.json", '"stage": 1', '"stage": 0',
     "--zero-stage: expected 0 as in ds.json, got 1"),
    ("speed", "ds.json", '"gradient_accumulation_steps": 8',
     '"gradient_accumulation_steps": 4',
     "train_batch_size: expected .* = 1 . 4 . 8, got 64"),
    ("speed", "ds.json", '_gpu": 1', '_gpu": 2',
     "train_micro_batch_size_per_gpu: expected 1 as in the arguments, got 2"),
    # * a data type that does not exist
    ("speed", "ds.json", '"grad_accum_dtype": "bf16"',
     '"grad_accum_dtype": "int3"',
     "data_types.grad_accum_dtype: expected bf16 or fp32, got int3"),
    ("speed", "ds.json", '"enabled": true', '"enabled": false',
     "bf16.enabled: expected one of bf16 and fp16, got none"),
    ("speed", "ds.json", "{\n", "[\n",
     "ds.json: line 2: expected JSON, got malformed"),
    ("speed", "ds.json", '"stage": 1', '"stage": 1, "stage": 0',
     "ds.json: line 6: expected key 'stage' once, got it in the same line"),
    ("speed", "ds.json", None, "[]", "ds.json: expected a JSON object"),
    ("speed", "ds.json", None, "[" * 99_999, "values inside values"),
    ("speed", "megatron-args.sh", "--bf16", "--fp16",
     "expected bf16 as in ds.json, got another"),
    ("speed", "megatron-args.sh", "  --deepspeed\n", "",
     "--deepspeed: expected it, got none"),
    ("speed", "megatron-args.sh", "--swiglu", "--swiglu\n  --no-pipeline-parallel",
     "--no-pipeline-parallel: expected no such argument with 2 stages"),
    # MaxText
    # * axes that are not all devices
    ("max", "config.yml", "per_device_batch_size: ",
     "per_device_batch_size: .nan #",
     "config.yml: line 25: expected a finite number, got .nan"),
    ("max", "config.yml", "tensor_sequence_parallelism: 2",
     "tensor_sequence_parallelism: 3",
     "expected axes whose product is the 16 devices, got 24"),
    ("max", "config.yml", "ici_fsdp_parallelism: 4",
     "ici_fsdp_parallelism: 4\nici_fsdp_parallelism: 8",
     "config.yml: line 16: expected key 'ici_fsdp_parallelism' once, got it"),
    ("max", "config.yml", "fsdp_parallelism: 4", "fsdp_parallelism: 2",
     "expected axes whose product is the 16 devices, got 8"),
    # * experts over ranks of a model that has none
    ("max", "config.yml",
     "expert_parallelism: 1", "expert_parallelism: 2",
     "expected axes whose product is the 16 devices, got 32"),
    # * a policy that nobody has
    ("max", "config.yml", "remat_policy: none", "remat_policy: nope",
     "config.yml: remat_policy: expected one of none, full, got 'nope'"),
    ("max", "config.yml", "remat_policy: none", "remat: none",
     "remat: expected a known key"),
    ("max", "config.yml", "per_pipeline_stage: 4", "per_pipeline_stage: 3",
     "num_layers_per_pipeline_stage: expected 8 layers / 2 stages, got 3"),
    ("max", "config.yml", "num_pipeline_microbatches: 8",
     "num_pipeline_microbatches: 16",
     "per_device_batch_size|export: micro_batch: expected 8, got 4"),
    ("max", "config.yml", "num_pipeline_microbatches: 8",
     "num_pipeline_microbatches: 1",
     "num_pipeline_microbatches: expected a multiple of the 2 stages"),
    ("max", "config.yml", "vocab_size: 1024", "vocab_size: '1024'",
     'vocab_size: expected an integer, got "1024"'),
    ("max", "config.yml", "weight_dtype: float32", "weight_dtype: bfloat16",
     "weight_dtype: expected one of float32"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "file", "old", "new", "message"),
    BROKEN,
    ids=[f"{row[0]}-{row[3]}"[:60].replace("\n", " ") for row in BROKEN],
)
def test_broken_exports_are_refused(exports, name, file, old, new, message):
    files = dict(exports[name])
    if old is not None:
        assert old in files[file]
        new = files[file].replace(old, new, 1)
    files[file] = new
    with pytest.raises(InvalidPlanError, match=message):
        reread(name, files)


@pytest.mark.parametrize(
    ("modules", "bounds", "layout"),
    [
        # Embedding and head alone.
        (0, (0, 1, 4, 9, 10), "E|t*3|t*5|L"),
        (1, (0, 5, 9, 10, 11), "Et*4|t*4|m|L"),
        (1, (0, 3, 5, 7, 11), "Et*2|t*2|t*2|t*2mL"),
        (2, (0, 5, 11, 12), "Et*4|t*4m*2|L"),
        (2, (0, 5, 9, 12), "Et*4|t*4|m*2L"),
    ],
)
def test_layouts_say_what_stages_hold(modules, bounds, layout):
    problem = problem_for("megatron", modules=modules)
    plan = cut_plan(problem, Strategy(dp=2, tp=2), *bounds)
    known = settings(modules=modules)
    args = export(problem, plan, "megatron", known)["args.sh"]
    assert f"--pipeline-model-parallel-layout '{layout}'\n" in args
    assert (f"--mtp-num-layers {modules}\n" in args) == (modules > 0)


def test_modules_of_predictions_on_one_stage_need_no_layout():
    problem = problem_for("megatron", modules=1)
    plan = small_plan(problem, Strategy(dp=4))
    args = export(problem, plan, "megatron", settings(modules=1))["args.sh"]
    assert "--mtp-num-layers 1\n" in args
    assert "layout" not in args


def test_parted_modules_of_predictions_are_refused():
    problem = small_problem(modules=2)
    plan = cut_plan(problem, Strategy(dp=4), 0, 10, 12)
    with pytest.raises(
        InvalidPlanError,
        match="^stage 1: expected all 2 layers of kind 'mtp' or 'mtp-next', "
        r"or none, got 1 \(tested, validate_layer_layout .*\); choose another "
        "plan, or --nearest$",
    ):
        export(problem, plan, "megatron", settings(modules=2))


@pytest.mark.parametrize("target", ["torchtitan", "deepspeed", "maxtext"])
def test_modules_of_predictions_are_refused_elsewhere(target):
    problem = small_problem(modules=1)
    plan = small_plan(problem, Strategy(dp=4))
    with pytest.raises(
        InvalidPlanError,
        match=f"graph: expected no layers of kind 'mtp', got 1 \\(read in "
        rf"{target}.*\); choose another target$",
    ):
        export(problem, plan, target, settings(modules=1))


def test_several_modules_of_predictions_run_beside_no_exchange_of_experts():
    for modules in (1, 2):
        problem = problem_for("megatron", 4, modules, overlap={"ep": 0.5})
        plan = small_plan(problem, Strategy(dp=4, ep=4), overlap=("ep",), micro_batch=8)
        known = settings(4, modules)
        if modules == 1:
            files = export(problem, plan, "megatron", known)
            assert "--overlap-moe-expert-parallel-comm\n" in files["args.sh"]
            continue
        with pytest.raises(
            InvalidPlanError,
            match=r"^overlap: expected tp or cp or weights or gradients, got ep "
            r"\(read in megatron-core 0.19.2, TransformerConfig asserts one",
        ):
            export(problem, plan, "megatron", known)


@pytest.mark.parametrize(
    ("counts", "recompute", "message"),
    [
        (
            (4, 4),
            "none",
            "overlap: expected ep only with virtual_stages > 1 if there are "
            "several stages, got 2 stages of one chunk",
        ),
        (
            (8,),
            "full",
            "overlap: expected ep only without full recomputation, got stage 1 with it",
        ),
        ((2, 2, 2, 2), "none", None),
    ],
)
def test_what_megatron_refuses_beside_the_exchange_of_experts(
    counts, recompute, message
):
    """Stages of one chunk, and full recomputation; two chunks are fine."""
    job = {"overlap": {"ep": 0.5}, "virtual_stages": (1, 2)}
    problem = problem_for("megatron", 4, **job)
    plan = small_plan(
        problem,
        Strategy(dp=4, ep=4, recompute=recompute),
        counts,
        overlap=("ep",),
        micro_batch=8,
        virtual_stages=2 if len(counts) == 4 else 1,
    )
    known = settings(4)
    if message is None:
        files = export(problem, plan, "megatron", known)
        assert "--overlap-moe-expert-parallel-comm\n" in files["args.sh"]
        return
    with pytest.raises(InvalidPlanError, match=message):
        export(problem, plan, "megatron", known)


def test_models_with_other_modules_of_predictions_are_refused():
    problem = problem_for("megatron", modules=1)
    plan = small_plan(problem, Strategy(dp=4))
    with pytest.raises(
        InvalidOptionError,
        match="--model: expected a model with as many modules for multi-token "
        "prediction as the graph, 1, got small with 0; name the model of",
    ):
        export(problem, plan, "megatron", settings())
    learned = small_model(modules=1)
    tower = learned.towers[0]
    (run,) = tower.runs
    attention = replace(run.block.attention, rotary=False)
    block = replace(run.block, attention=attention)
    tower = replace(tower, runs=(replace(run, block=block),), learned_positions=1024)
    with pytest.raises(
        InvalidPlanError,
        match="model: expected rotary positions with modules for multi-token "
        "prediction, got small",
    ):
        export(
            problem, plan, "megatron", Settings(model=replace(learned, towers=(tower,)))
        )


def test_modules_of_predictions_in_front_of_blocks_are_refused():
    graph = small_problem(modules=1).graph
    names = ["layer-7", "mtp-0"]
    ids = dict(zip(names, names[::-1], strict=True))

    def renamed(name):
        return ids.get(str(name), name)

    swapped = replace(
        graph,
        layers=tuple(replace(x, id=renamed(x.id)) for x in graph.layers),
        edges=tuple(
            replace(x, source=renamed(x.source), target=renamed(x.target))
            for x in graph.edges
        ),
    )
    with pytest.raises(
        InvalidProblemError,
        match="graph: expected an embedding, blocks, modules for multi-token "
        "prediction if there are any, and a head, in this order",
    ):
        placement_of(swapped)


def test_nearest_keeps_modules_of_predictions_with_the_head():
    problem = small_problem(modules=2)
    plan = small_plan(problem, Strategy(dp=4), (4, 4))
    other = small_plan(problem, Strategy(dp=2, tp=2), (4, 4))
    mixed = replace(plan, stages=(plan.stages[0], other.stages[1]))
    found = nearest(problem, mixed, "megatron", settings(modules=2))
    layout = "--pipeline-model-parallel-layout 'Et*4|t*4m*2L'"
    assert layout in found.files["args.sh"]


def test_gradients_of_two_bytes_are_said():
    # Without the flag Megatron keeps 18 bytes per weight, not 16.
    narrow, wide = (
        exported(
            "megatron",
            Strategy(dp=8),
            job={"optimizer": Optimizer(gradient_bytes=size)},
        )["args.sh"]
        for size in (2, 4)
    )
    assert "--grad-reduce-in-bf16\n" in narrow
    assert "--grad-reduce-in-bf16" not in wide


def test_the_rank_map_is_the_plans_devices(exports):
    # Megatron's rank ((s·2 + r)·2 + d)·2 + t is device r·8 + s·4 + d·2 + t.
    expected = [
        r * 8 + s * 4 + d * 2 + t
        for s in range(2)
        for r in range(2)
        for d in range(2)
        for t in range(2)
    ]
    assert json.loads(exports["replicas"]["rank_map.json"]) == expected
    for name in ("plain", "uneven", "wide", "experts"):
        assert "rank_map.json" not in exports[name]


def test_pipelines_of_one_data_rank_need_no_rank_map():
    fields = {"replicas": 2, "micro_batch": 1}
    files = exported("megatron", Strategy(tp=4), (4, 4), **fields)
    assert "--use-tp-pp-dp-mapping\n" in files["args.sh"]
    assert "rank_map.json" not in files


def test_idle_devices_start_fewer_ranks():
    # Replicas of 4 on 5 devices each: the last of each 8 idles.
    fields = {"replicas": 2, "micro_batch": 1}
    files = exported("megatron", Strategy(tp=4), **fields)
    assert files["hostfile"] == "node0 slots=4\nnode1 slots=4\n"
    assert json.loads(files["rank_map.json"]) == [0, 1, 2, 3, 8, 9, 10, 11]


@pytest.mark.parametrize(
    ("target", "degrees", "fields", "message"),
    [
        ("torchtitan", {"dp": 4, "zero": 1}, {}, "expected zero 0 or 2 or 3"),
        ("deepspeed", {"dp": 4, "cp": 2}, {}, "expected cp 1, got cp=2"),
        (
            "torchtitan",
            {"dp": 4, "zero": 3},
            {"overlap": ("cp",)},
            "overlap: expected tp or weights or gradients, got cp",
        ),
    ],
)
def test_what_a_target_cannot_say_is_refused(target, degrees, fields, message):
    problem = small_problem()
    job = replace(
        problem.job,
        optimizer=for_target(problem, target).job.optimizer,
        overlap={"cp": 0.5},
    )
    problem = replace(problem, job=job)
    plan = small_plan(problem, Strategy(**degrees), **fields)
    with pytest.raises(InvalidPlanError, match=message):
        export(problem, plan, target, settings())


def test_unequal_stages_are_refused_by_the_field():
    problem = small_problem()
    plan = small_plan(problem, Strategy(dp=4), (4, 4))
    other = small_plan(problem, Strategy(dp=2, tp=2), (4, 4))
    mixed = replace(plan, stages=(plan.stages[0], other.stages[1]))
    with pytest.raises(InvalidPlanError, match="stage 2: expected dp=4 as in"):
        export(problem, mixed, "megatron", settings())
    with pytest.raises(InvalidPlanError, match="dp: expected one value for"):
        launch_of(problem, mixed, placement_of(problem.graph))


WHOLE = {"sequence_parallel": False}


@pytest.mark.parametrize(
    ("degrees", "overlap", "experts", "job", "message"),
    [
        ({"dp": 4}, (), 0, {"optimizer": Optimizer(weight_bytes=4)},
         "optimizer.weight_bytes: expected 2, got 4"),
        ({"dp": 4}, (), 0, {"optimizer": Optimizer(state_bytes=8)},
         "optimizer.state_bytes: expected 12, got 8"),
        # What Megatron wants together.
        ({"dp": 2, "tp": 2}, ("tp",), 0, WHOLE,
         "overlap: expected tp only with sequence"),
        ({"dp": 4, "zero": 3}, ("weights",), 0, WHOLE,
         "overlap: expected weights only together with gradients, got it "
         r"without \(read in megatron-core 0.19.2"),
        ({"dp": 2, "tp": 2}, (), 4, WHOLE,
         "stage 1: expected tp 1, or more with sequence parallelism"),
    ],
)  # fmt: skip
def test_what_megatron_cannot_run_is_refused(degrees, overlap, experts, job, message):
    strategy = Strategy(**degrees)
    with pytest.raises(InvalidPlanError, match=message):
        exported("megatron", strategy, (8,), experts, job, overlap=overlap)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gb200x144", 4), ("gb300x8", 4), ("gb200x256", 4), ("tpu-v5px64", 4),
     ("h100x64", 8)],
)  # fmt: skip
def test_racks_and_pods_have_hosts_of_four(name, expected):
    """Their links join more devices than one host has, which starts the ranks."""
    device, _, count = name.rpartition("x")
    assert node_size(machine(device).cluster(int(count))) == expected


@pytest.mark.parametrize(
    ("degrees", "counts", "stage"),
    [({"dp": 2}, (8,), None), ({"dp": 2, "zero": 1}, (8,), 1), ({}, (4, 4), 1)],
)
def test_deepspeed_has_gradients_in_fp32_with_a_stage_alone(degrees, counts, stage):
    """Over one rank stage 1 is the same as 0."""
    job = {"optimizer": Optimizer(gradient_bytes=4, state_bytes=12)}
    strategy = Strategy(**degrees)
    if stage is None:
        with pytest.raises(InvalidPlanError, match=r"^zero: expected a ZeRO stage"):
            exported("deepspeed", strategy, counts, job=job)
        return
    files = exported("deepspeed", strategy, counts, job=job)
    assert f'"stage": {stage}' in files["ds.json"]
    assert f"--zero-stage {stage}\n" in files["megatron-args.sh"]


@pytest.mark.parametrize(
    ("target", "degrees", "split", "file", "said", "not_said"),
    [
        ("megatron", {}, True, "args.sh", "--sequence-parallel\n", None),
        ("megatron", {}, False, "args.sh", "tensor-model-", "--sequence"),
        ("torchtitan", {"zero": 2}, True, None, None, None),
        ("deepspeed", {"zero": 1}, False, None, None, None),
        ("maxtext", {"zero": 3}, True, None, "tensor_sequence", None),
    ],
)
def test_a_plan_s_own_split_of_sequences_is_written(
    target, degrees, split, file, said, not_said
):
    """And read back: exports are compared with the plan."""
    whole = small_problem(0, 16, (False, True))
    problem = for_target(whole, target)
    assert problem.job.plans_split_sequences
    strategy = Strategy(dp=4, tp=2, sequence_parallel=split, **degrees)
    plan = small_plan(problem, strategy, (4, 4))
    files = export(problem, plan, target, settings())
    launch = launch_of(problem, plan, placement_of(problem.graph))
    assert launch.sequence_parallel == split
    text = files[file] if file else "".join(files.values())
    assert said is None or said in text
    assert not_said is None or not_said not in text


@pytest.mark.parametrize(
    ("target", "split", "message"),
    [
        ("deepspeed", True, "more without sequence parallelism, got tp=2"),
        ("torchtitan", False, "more with sequence parallelism, got tp=2"),
    ],
)
def test_a_split_of_sequences_that_a_target_has_not_is_refused(target, split, message):
    problem = small_problem(0, 16, (False, True))
    strategy = Strategy(dp=4, tp=2, sequence_parallel=split, zero=2)
    plan = small_plan(problem, strategy)
    with pytest.raises(InvalidPlanError, match=message):
        export(problem, plan, target, settings())


def test_stages_that_split_differently_are_no_launch():
    problem = small_problem(0, 16, (False, True))
    plan = small_plan(problem, Strategy(dp=4, tp=2), (4, 4))
    first, last = plan.stages
    split = Strategy(dp=4, tp=2, sequence_parallel=True)
    plan = replace(plan, stages=(first, replace(last, strategy=split)))
    with pytest.raises(
        InvalidPlanError,
        match="stage 2: expected sequence_parallel=False as in stage 1, as "
        "all stages share it, got sequence_parallel=True",
    ):
        export(problem, plan, "megatron", settings())
    found = nearest(problem, plan, "megatron", settings())
    used = {x for s in found.plan.stages for x in s.layer_strategies}
    assert len(used) == 1


def test_models_are_told_from_builtin_problems():
    problem = builtin.load("llama2-7b-16")
    plan = small_plan_of_llama(problem)
    files = export(problem, plan, "megatron")
    assert "--num-layers 32\n" in files["args.sh"]
    renamed = replace(problem, name="mine")
    with pytest.raises(
        InvalidOptionError, match="--model: expected the model of mine, got none"
    ):
        export(renamed, plan, "megatron")
    other = Settings(model=small_model())
    with pytest.raises(
        InvalidOptionError,
        match="--model: expected a model "
        "of 32 blocks, as the graph has, got small with 8",
    ):
        export(problem, plan, "megatron", other)


def small_plan_of_llama(problem):
    strategy = Strategy(dp=8, zero=1)
    names = [layer.id for layer in problem.graph.layers]
    plan = small_plan(small_problem(), strategy)
    stage = replace(plan.stages[0], layers=tuple(names))
    return replace(plan, stages=(stage,), replicas=2)


def test_models_of_other_flops_are_refused():
    job = {"model_flops_per_sample": 1e9}
    with pytest.raises(InvalidOptionError, match="of 1e\\+09 FLOPs per"):
        exported("megatron", Strategy(dp=4), job=job)


def test_torchtitan_checkpoints_by_operator():
    """Where the costs of the problem are those; else no plan can say it."""
    strategy = Strategy(dp=4, zero=3, recompute="selective")
    whole = problem_for("torchtitan", selective_operators=True)
    files = export(whole, small_plan(whole, strategy), "torchtitan", settings())
    assert 'mode = "selective"\nselective_ac_option = "op"\n' in files["job.toml"]
    problem = small_problem()
    with pytest.raises(InvalidPlanError, match="expected recompute none or full, got"):
        export(problem, small_plan(problem, strategy), "torchtitan", settings())


def test_torchtitan_gets_shapes_that_it_has_not():
    """A module registers the model, and is read back with the job file."""
    problem = problem_for("torchtitan")
    plan = small_plan(problem, Strategy(dp=4, zero=3))
    own = Settings(model=small_model())
    files = export(problem, plan, "torchtitan", own)
    assert 'name = "nest"\nflavor = "small"' in files["job.toml"]
    assert 'custom_import = "nest_model"' in files["job.toml"]
    there, _ = as_run_by(problem, "torchtitan")
    launch = launch_of(there, plan, placement_of(there.graph))
    module = target_of("torchtitan")
    for name, old, new, message in (
        ("nest_model.py", "dim=256", "dim=512", "nest_model.py: expected the shape of"),
        ("nest_model.py", "multiple_of=512", "multiple_of=513", "the shape of small"),
        ("job.toml", 'name = "nest"', 'name = "llama3"', "model.name: expected 'nest'"),
        ("job.toml", '"small"', '"large"', "with a flavor 'large', got another one"),
    ):
        assert old in files[name]
        broken = files | {name: files[name].replace(old, new)}
        with pytest.raises(InvalidPlanError, match=message):
            check(there, plan, launch, small_model(), module, broken)


@pytest.mark.parametrize(
    ("flavor", "message"),
    [
        ("8B", "name and flavor of small, such as llama3/8B, got '8B'; correct it"),
        ("qwen3/8B", "that torchtitan runs on several stages, got qwen3/8B; leave"),
        ("deepseek_v3/16B", "runs with context parallelism, got deepseek_v3/16B"),
    ],
)
def test_flavors_that_cannot_run_are_refused(flavor, message):
    problem = problem_for("torchtitan")
    plan = small_plan(problem, Strategy(dp=2, cp=2, zero=3), (4, 4))
    with pytest.raises(InvalidOptionError, match=f"--flavor: expected .*{message}"):
        export(problem, plan, "torchtitan", Settings(small_model(), flavor=flavor))


def test_branches_and_foreign_names_are_refused():
    problem = small_problem()
    graph = problem.graph
    first, last = graph.layers[0].id, graph.layers[-1].id
    extra = Edge(source=first, target=last, bytes_per_sample=1)
    branched = replace(graph, edges=(*graph.edges, extra))
    with pytest.raises(InvalidProblemError, match="graph: expected a chain"):
        placement_of(branched)
    named = replace(
        graph,
        layers=(replace(graph.layers[0], id="start"), *graph.layers[1:]),
        edges=(replace(graph.edges[0], source="start"), *graph.edges[1:]),
    )
    with pytest.raises(InvalidProblemError, match="graph: expected layers na"):
        placement_of(named)


def test_cuts_inside_a_layer_are_refused():
    problem = builtin.load("llama2-7b-8")
    placement = placement_of(problem.graph)
    chunks = (Chunk(True, 3, False), Chunk(False, 29, True))
    with pytest.raises(InvalidPlanError, match="stages: expected cuts betw"):
        placement.cut(chunks)
    with pytest.raises(InvalidPlanError, match="stages: expected all 32 bl"):
        placement.cut((Chunk(True, 4, False),))


def test_unknown_targets_list_the_known_ones():
    with pytest.raises(
        UnknownNameError, match="--to: expected one of accelerate, chakra"
    ):
        export(small_problem(), None, "megatrom")


def test_folders_are_written_whole_or_not_at_all(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    write_folder(target, {"a": "1", "b": "2"})
    assert sorted(p.name for p in target.iterdir()) == ["a", "b"]
    with pytest.raises(NestError, match=r"-o .*: expected a new or empty dir"):
        write_folder(target, {"c": "3"})
    assert sorted(p.name for p in tmp_path.iterdir()) == ["out"]


def test_nearest_changes_nothing_that_can_be_said():
    problem = problem_for("megatron")
    plan = small_plan(problem, Strategy(dp=4, zero=1))
    found = nearest(problem, plan, "megatron", settings())
    assert found.plan == plan
    assert found.text.endswith("(+0.00 %)")


def test_nearest_keeps_stages_and_says_its_price():
    problem = small_problem()
    plan = small_plan(problem, Strategy(dp=4), (4, 4))
    other = small_plan(problem, Strategy(dp=2, tp=2), (4, 4))
    mixed = replace(plan, stages=(plan.stages[0], other.stages[1]))
    found = nearest(problem, mixed, "megatron", settings())
    assert [s.layers for s in found.plan.stages] == [s.layers for s in mixed.stages]
    assert found.after == score(found.problem, found.plan)
    # No other strategy for all of these stages is faster.
    fastest = min(
        verdict.step_quanta
        for strategy in strategies(found.problem, 8)
        if strategy.devices <= 8
        for verdict in [score(found.problem, small_plan(problem, strategy, (4, 4)))]
        if verdict.feasible
    )
    assert found.after.step_quanta == fastest


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v", "dualpipe-v"])
def test_schedules_that_split_backward_passes_are_replaced_or_refused(schedule, target):
    problem = small_problem()
    job = replace(
        problem.job, schedule=schedule, recompute=("none",), virtual_stages=(1,)
    )
    problem = replace(problem, job=job)
    plan = small_plan(problem, Strategy(dp=4, zero=1), (4, 4), micro_batch=4)
    if schedule != "zb-h1":
        plan = small_plan(
            problem,
            Strategy(dp=4, zero=1),
            (2, 2, 2, 2),
            virtual_stages=2,
            placement="v",
            micro_batch=4,
        )
    by_passes = target == "torchtitan" and schedule != "dualpipe-v"
    with pytest.raises(
        InvalidPlanError,
        match=r"^stage 1: expected zero 0 or 2 or 3, got zero=1"
        if by_passes
        else rf"^schedule: expected .*, got {schedule} \(.*\); solve with "
        rf"--target {target}, or --nearest$",
    ):
        export(problem, plan, target, settings())
    found = nearest(problem, plan, target, settings())
    own = found.problem.job.schedule
    assert f"schedule is {own}, not {schedule}" in found.text
    assert found.plan.placement == "loop"
    assert found.after == score(found.problem, found.plan)
    assert found.before == score(problem, plan)


def ordered(name, counts=(4, 4), placement="loop", listed=True):
    """Return a problem and a plan with the passes of a schedule."""
    virtual = len(counts) // 2
    problem = small_problem()
    job = replace(
        problem.job,
        schedule="any" if listed else name,
        recompute=("none",),
        virtual_stages=(virtual,),
        overlap={"tp": 0.5},
    )
    schedule = schedule_of(name, virtual)
    plan = small_plan(
        problem,
        Strategy(dp=4, zero=2),
        counts,
        virtual_stages=virtual,
        placement=placement,
        order=cells_of(schedule, 2, 8) if listed else None,
    )
    return replace(problem, job=job), plan


#: Schedules whose passes torchtitan reads, with what it calls the parts of a rank.
BY_PASSES = [
    ("zb-h1", (5, 3), "loop", True, "PipelineScheduleMulti"),
    ("zb-h1", (5, 3), "loop", False, "PipelineScheduleMulti"),
    ("1f1b", (2, 1, 3, 2), "loop", True, "PipelineScheduleMulti"),
    ("zb-v", (2, 1, 3, 2), "v", True, "ZBVZeroBubble"),
    ("zb-v", (2, 1, 3, 2), "v", False, "ZBVZeroBubble"),
]


@pytest.mark.parametrize(("name", "counts", "placement", "listed", "title"), BY_PASSES)
def test_orders_of_passes_are_written_for_torchtitan(
    name, counts, placement, listed, title
):
    problem, plan = ordered(name, counts, placement, listed)
    files = export(problem, plan, "torchtitan", settings())
    job = files["job.toml"]
    assert f'pipeline_parallel_schedule = "{title}"' in job
    assert 'pipeline_parallel_schedule_csv = "schedule.csv"' in job
    order = cells_of(schedule_of(name, len(counts) // 2), 2, 8)
    assert files["schedule.csv"] == csv_text(order)
    found = nearest(problem, plan, "torchtitan", settings())
    assert (found.plan, found.files) == (plan, files)
    for target in ("megatron", "deepspeed", "maxtext"):
        got = "an order of its own" if listed else name
        with pytest.raises(InvalidPlanError, match=f"^schedule: .* got {got}"):
            export(problem, plan, target, settings())


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("job.toml", "PipelineScheduleMulti", "ZBVZeroBubble",
         r"pipeline_parallel_schedule: expected PipelineScheduleMulti with "
         r"chunks placed as 'loop' in schedule.csv, got 'ZBVZeroBubble'"),
        ("job.toml", '"schedule.csv"', '"other.csv"',
         r"other.csv: expected 2 rows, one for each block of the plan, got 0"),
        ("job.toml", 'schedule_csv = "schedule.csv"', 'schedule_csv = ""',
         r"pipeline_parallel_schedule: expected a schedule of 1 parts"),
        ("schedule.csv", "1W7", "1W6",
         r"schedule.csv, row 2: expected every pass once, got 1W6 again"),
        # This runs: it is another order than the plan's.
        ("schedule.csv", "1F1,1I1,1W0", "1F1,1W0,1I1",
         r"export: order: expected .*; the files do not say the plan"),
    ],
)  # fmt: skip
def test_broken_orders_for_torchtitan_are_refused(name, old, new, message):
    problem, plan = ordered("zb-h1", (5, 3))
    files = export(problem, plan, "torchtitan", settings())
    assert old in files[name]
    files[name] = files[name].replace(old, new)
    there, _ = as_run_by(problem, "torchtitan")
    launch = launch_of(there, plan, placement_of(problem.graph))
    with pytest.raises(InvalidPlanError, match=message):
        check(*(there, plan, launch, small_model()), *(target_of("torchtitan"), files))


@pytest.mark.parametrize(
    ("name", "counts", "placement"),
    [("zb-h1", (5, 3), "loop"), ("zb-v", (2, 1, 3, 2), "v")],
)
def test_imports_of_orders_score_the_same(name, counts, placement):
    problem, plan = ordered(name, counts, placement)
    files = export(problem, plan, "torchtitan", settings())
    launch, model, *_ = torchtitan.read_foreign(
        *(files["job.toml"], "job.toml", 8, (), small_model()), files.__getitem__
    )
    made = build(launch, model, Site([(machine("dgx-h100"), 8)]))
    assert made.plan.order == plan.order
    assert made.plan.placement == placement
    assert made.problem.job.schedule == "any"
    there, _ = as_run_by(problem, "torchtitan")
    after = score(made.problem, made.plan)
    assert after.step_time_ns == score(there, plan).step_time_ns


def test_torch_compile_cannot_compute_weights_apart():
    problem, plan = ordered("zb-h1")
    wide = Strategy(dp=2, tp=2, zero=2)
    plan = replace(
        plan,
        stages=tuple(replace(x, strategy=wide) for x in plan.stages),
        overlap=("tp",),
    )
    job = replace(problem.job, sequence_parallel=True)
    with pytest.raises(InvalidPlanError, match=r"^overlap: expected none of tp where"):
        export(replace(problem, job=job), plan, "torchtitan", settings())


def test_nearest_says_what_the_framework_keeps_otherwise():
    problem = small_problem()
    plan = small_plan(problem, Strategy(dp=4, zero=1), (4, 4))
    found = nearest(problem, plan, "maxtext", settings())
    assert found.changes == (
        "schedule is gpipe, not 1f1b",
        "optimizer.state_bytes is 10, not 12",
    )
    assert "as planned" in found.text


def test_nearest_fails_where_nothing_can_be_written():
    problem = problem_for("deepspeed", 4, replicas=(1,), micro_batches=(8,))
    plan = small_plan(problem, Strategy(dp=4, tp=1))
    with pytest.raises(
        InvalidPlanError,
        match=r"--nearest: expected a plan "
        r"that fits .*model: expected one without experts",
    ):
        nearest(problem, plan, "deepspeed", settings(4))


def test_small_problems_have_the_blocks_they_say():
    assert placement_of(small_problem().graph).layers == LAYERS


def optimized(name, state_bytes):
    problem, plan, target, known = base("wide")
    own = replace(problem.job.optimizer, name=name, state_bytes=state_bytes)
    job = replace(problem.job, optimizer=own)
    return replace(problem, job=job), plan, target, known


def test_sgd_is_written_with_its_momentum():
    """A copy in fp32 and one moment: 4 + 4 bytes."""
    text = export(*optimized("sgd", 8))["args.sh"]
    assert "  --optimizer sgd\n  --sgd-momentum 0.9\n" in text
    assert "--optimizer" not in export(*optimized("adam", 12))["args.sh"]


def test_moments_in_bf16_are_written_and_read_back():
    """A copy in fp32 and two moments in bf16: 4 + 2 · 2 bytes; exports read back."""
    flags = "--use-precision-aware-optimizer\n  --exp-avg-dtype bf16\n  --exp-avg-sq-dt"
    assert flags in export(*optimized("adam-bf16", 8))["args.sh"]


@pytest.mark.parametrize(
    ("name", "state_bytes", "message"),
    [
        ("muon", 8, r"^optimizer.name: expected adam or sgd, got muon; "
         r"Megatron-LM keeps other state for matrices"),
        ("sgd", 4, r"^optimizer.state_bytes: expected 12, got 4"),
        ("adam", 6, r"^optimizer.state_bytes: expected 12, got 6"),
    ],
)  # fmt: skip
def test_optimisers_that_megatron_has_not_so_are_refused(name, state_bytes, message):
    with pytest.raises(InvalidPlanError, match=message):
        export(*optimized(name, state_bytes))
