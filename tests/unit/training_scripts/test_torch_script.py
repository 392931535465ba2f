"""Training scripts of captured modules, run on CPUs.

Each script trains a tiny model of ``tests/capture_models.py`` as a plan says, on up to
four processes over gloo. Its losses are those of one process with the same batch, and
each rank holds the bytes that the plan has.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import itertools
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from nest.cost.score import score
from nest.cost.verdict import Score
from nest.errors import InvalidPlanError
from nest.hardware import find_cluster, mixed_cluster
from nest.ir.plan import Plan, Stage, Strategy
from nest.ir.problem import Problem
from tests.builders import SINGLE, make_plan, two_stages
from tests.properties.profiles import PROFILE
from tests.torch_scripts import run_scripts

FILE = Path(__file__).parents[2] / "capture_models.py"
#: Modules with something unusual in each.
UNUSUAL_FILE = FILE.with_name("unusual_modules.py")
#: Losses may differ by so much, relatively; the peak of saved tensors from the plan's.
LOSS, PEAK = 1e-5, 0.05
#: Models whose stages copy what they receive, which the plan does not count, or whose
#: weights ZeRO puts in another order.
COPIED = ("resnet", "early_relu", "assigned", "channels_last")
#: ``HYPOTHESIS_PROFILE=full make test-torch`` runs every plan, CI each third or fourth.
EVERY_PLAN = PROFILE == "full"


class Case(NamedTuple):
    """A plan of a model, with one strategy."""

    model: str
    pp: int = 1
    dp: int = 1
    tp: int = 1
    zero: int = 0
    recompute: str = "none"
    replicas: int = 1
    #: Micro-batches, and samples of each on all data ranks together.
    count: int = 4
    samples: int = 4
    schedule: str = "1f1b"
    virtual: int = 1
    optimizer: str = "sgd"
    #: Layers before each stage but the first; else about as many on each.
    cuts: tuple[int, ...] = ()
    order: Any = None
    sharded_over_replicas: bool = False
    file: Path = FILE

    @property
    def world(self) -> int:
        """Number of ranks."""
        return self.pp * self.dp * self.tp * self.replicas


@functools.cache
def captures(name: str, file: Path = FILE):
    """Return a model at two batch sizes."""
    from nest.capture.factory import build, load
    from nest.capture.layers import layers_of
    from nest.capture.local import capture_rank
    from nest.capture.problem import Captures
    from nest.capture.trace import capture

    factory, text = load(f"{file}:{name}")
    small, large = (capture(build(factory, text, size)) for size in (2, 4))
    return Captures(
        small,
        large,
        layers_of(small),
        lambda styles, tp: capture_rank(factory, text, 2, styles, tp),
    )


def planned(case: Case) -> tuple[Problem, Plan]:
    """Return the problem and the plan of a case."""
    from nest.capture.problem import ModuleJob, ModuleSource, problem_of_module
    from nest.ir.job import SPLIT_BACKWARD

    machines, network = find_cluster("a100x8")
    recompute = ("none",) if case.schedule in SPLIT_BACKWARD else ("none", "full")
    problem = problem_of_module(
        captures(case.model, case.file),
        ModuleJob(
            global_batch=case.replicas * case.samples * case.count,
            micro_batches=(case.samples,),
            tp=tuple({1, case.tp}),
            recompute=recompute,
            schedule=case.schedule,
            optimizer=case.optimizer,
        ),
        machines[0][0],
        network or mixed_cluster(machines),
        ModuleSource(
            file=str(case.file),
            factory=case.model,
            sha256=hashlib.sha256(case.file.read_bytes()).hexdigest(),
        ),
    )
    job = problem.job
    if case.virtual > 1 and case.schedule == "1f1b":
        job = replace(job, virtual_stages=(1, case.virtual))
    if case.order is not None:
        job = replace(job, schedule="any")
    job = replace(job, distributed_optimizer=case.sharded_over_replicas)
    problem = replace(problem, job=job)
    ids = [layer.id for layer in problem.graph.layers]
    count = case.pp * case.virtual
    inner = case.cuts or [round(len(ids) * i / count) for i in range(1, count)]
    ends = [0, *inner, len(ids)]
    strategy = Strategy(
        dp=case.dp, tp=case.tp, zero=case.zero, recompute=case.recompute
    )
    stages = tuple(
        Stage(layers=tuple(ids[a:b]), devices=strategy.devices, strategy=strategy)
        for a, b in itertools.pairwise(ends)
    )
    plan = Plan(
        replicas=case.replicas,
        micro_batch=case.samples,
        stages=stages,
        virtual_stages=case.virtual,
        placement="v" if case.schedule in ("zb-v", "dualpipe-v") else "loop",
        order=case.order,
        distributed_optimizer=case.sharded_over_replicas,
    )
    return problem, plan


@functools.cache
def losses(name: str, rows: int, file: Path = FILE) -> list[float]:
    """Return the losses of one process with so many rows."""
    import torch

    from nest.capture.factory import load, seed_all, with_samples

    factory, _ = load(f"{file}:{name}")
    seed_all(0)
    model, inputs = factory()
    inputs = with_samples(inputs, rows)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    found = []
    for _ in range(3):
        loss = model(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def export(case: Case, folder: Path) -> tuple[Problem, Plan, Score]:
    """Write the script of a case."""
    from nest.frameworks.torch_script import export as files_of

    problem, plan = planned(case)
    for name, text in files_of(problem, plan).items():
        (folder / name).write_text(text)
    return problem, plan, score(problem, plan)


def check(
    case: Case, result: dict[str, Any], plan: Plan, verdict: Score, spare: int = 0
) -> list[str]:
    """Return what is otherwise than the plan says, by more than some spare bytes."""
    if "error" in result:
        return [result["error"]]
    wrong = []
    if case.optimizer == "sgd":
        rows = case.replicas * case.samples * case.count
        wanted = losses(case.model, rows, case.file)
        for ours, theirs in zip(result["losses"], wanted, strict=True):
            if abs(ours - theirs) > LOSS * abs(theirs):
                wrong.append(f"losses {result['losses']}, not {wanted}")
    per_stage = plan.stages[0].devices
    blocks = [verdict.blocks[rank // per_stage % case.pp] for rank in range(case.world)]
    for key, field in (
        ("parameter_bytes", "weight_bytes"),
        ("optimizer_bytes", "state_bytes"),
    ):
        expected = [getattr(block, field) for block in blocks]
        pairs = zip(result[key], expected, strict=True)
        if any(abs(x - y) > spare * (1 + (field != "weight_bytes")) for x, y in pairs):
            wrong.append(f"{key} {result[key]}, not {expected}")
    for peak, block in zip(result["peak_bytes"], blocks, strict=True):
        # In split backward passes, the hooks that count keep tensors alive.
        counted = case.model not in COPIED and case.schedule in ("1f1b", "gpipe")
        if counted and abs(peak - block.kept_bytes) > PEAK * block.kept_bytes:
            wrong.append(f"peak_bytes {peak}, not {block.kept_bytes}")
    return wrong


def run(cases: list[Case], folder: Path) -> None:
    """Run scripts; all of them do what their plans say."""
    made, jobs = [], []
    for number, case in enumerate(cases):
        place = folder / str(number)
        place.mkdir()
        made.append(export(case, place))
        options = ["--steps", "3", "--lr", "0.01", "--optimizer", case.optimizer]
        jobs.append({"folder": str(place), "world": case.world, "options": options})
    results = run_scripts(folder, jobs)
    wrong = {
        str(case): faults
        for case, result, (_, plan, verdict) in zip(cases, results, made, strict=True)
        if (faults := check(case, result, plan, verdict))
    }
    assert not wrong, "\n".join(f"{case}: {x}" for case, x in wrong.items())


#: One of each part of a script.
QUICK = [
    Case("gpt", pp=2, dp=2, zero=1, optimizer="adamw"),
    Case("llama", pp=2, dp=2, zero=3, recompute="full"),
    Case("llama", pp=2, tp=2),
    Case("gpt", pp=4, count=2),
    Case("unet", pp=2, dp=2),
]
#: Pure pipelines and data ranks; embeddings are tied in ``gpt`` and ``bert``.
PLAIN = (
    "gpt", "llama", "sliding", "latent", "state_space", "short_conv", "vit", "mixer",
    "dit", "unlike_widths", "heads_beside", "parallel", "bert",
)  # fmt: skip
TWO = [Case(name, pp=2) for name in PLAIN]
#: Blocks of the others also get tensors that stages make again, which plans leave out.
RECOMPUTED = [name for name in PLAIN if name not in ("heads_beside", "parallel")]
TWO += [Case(name, pp=2, recompute="full", optimizer="adamw") for name in RECOMPUTED]
TWO += [Case(name, dp=2, zero=3, recompute="full") for name in ("llama", "vit", "dit")]
TWO += [Case("llama", pp=2, virtual=2, count=n) for n in (2, 4, 6)]
TWO += [Case(name, tp=2) for name in ("llama", "sliding", "latent", "heads_beside")]
TWO += [Case("llama", dp=2, zero=zero, optimizer="adamw") for zero in range(4)]
TWO += [Case("llama", replicas=2, optimizer="adamw", sharded_over_replicas=True)]
TWO += [Case("resnet", pp=2, count=1, samples=4), Case("unet", pp=2, schedule="gpipe")]
TWO += [Case("gpt", pp=2, cuts=(n,)) for n in (1, 2, 4, 5)]
TWO += [Case(name, pp=2, schedule="zb-h1") for name in ("llama", "vit")]
TWO += [Case("llama", pp=2, virtual=2, schedule="zb-v", count=6)]
FOUR = [Case(name, pp=2, dp=2, zero=2, recompute="full") for name in RECOMPUTED]
FOUR += [Case(name, pp=2, dp=2, zero=3, recompute="full") for name in RECOMPUTED]
FOUR += [Case(name, pp=4, count=n) for name in ("gpt", "vit") for n in (1, 3, 4)]
FOUR += [Case("llama", pp=2, tp=2, zero=zero) for zero in (0,)]
FOUR += [Case("llama", dp=2, tp=2, zero=zero, optimizer="adamw") for zero in range(4)]
FOUR += [
    Case("llama", pp=2, dp=2, zero=zero, recompute=recompute, optimizer="adamw")
    for zero in range(4)
    for recompute in ("none", "full")
]
FOUR += [
    Case("vit", replicas=2, dp=2, zero=zero, optimizer="adamw") for zero in range(4)
]
FOUR += [Case("vit", pp=2, dp=2, zero=zero, samples=8) for zero in range(4)]
FOUR += [Case("gpt", replicas=2, pp=2), Case("gpt", pp=4, cuts=(1, 2, 5))]
FOUR += [Case("llama", pp=4, schedule="gpipe"), Case("gpt", pp=2, virtual=2, dp=2)]
#: Passes in an order of their own: the first stage is up to three passes ahead.
ORDER = (
    ("0F0", "0F1", "0F2", "0B0", "0F3", "0B1", "0B2", "0B3"),
    ("1F0", "1F1", "1B0", "1B1", "1F2", "1B2", "1F3", "1B3"),
)
FOUR += [Case("vit", pp=2, dp=2, order=ORDER), Case("llama", pp=2, tp=2, order=ORDER)]

#: Each trains a module that was refused, failed or trained something else once.
UNUSUAL = [
    Case("double_loss", pp=2, file=UNUSUAL_FILE),
    Case("scaled", pp=2, optimizer="adamw", file=UNUSUAL_FILE),
    Case("early_relu", pp=2, file=UNUSUAL_FILE),
    Case("assigned", pp=2, file=UNUSUAL_FILE),
    Case("other_weights", dp=2, file=UNUSUAL_FILE),
    Case("listed", pp=2, file=UNUSUAL_FILE),
    Case("masked", pp=2, file=UNUSUAL_FILE),
    Case("early_penalty", dp=2, zero=3, file=UNUSUAL_FILE),
    Case("late_penalty", pp=2, recompute="full", file=UNUSUAL_FILE),
    Case("recurrent", pp=2, schedule="zb-h1", file=UNUSUAL_FILE),
    Case("unet", pp=2, schedule="zb-h1"),
]


def test_scripts_train_as_one_process(torch, tmp_path):
    run(QUICK, tmp_path)


def test_scripts_of_two_ranks_train_as_one_process(torch, tmp_path):
    run(TWO if EVERY_PLAN else TWO[::3], tmp_path)


def test_scripts_of_four_ranks_train_as_one_process(torch, tmp_path):
    run(FOUR if EVERY_PLAN else FOUR[::4], tmp_path)


def test_scripts_of_unusual_modules_train_as_one_process(torch, tmp_path):
    run(UNUSUAL, tmp_path)


def test_at_least_a_hundred_plans_run():
    assert len({*QUICK, *TWO, *FOUR}) >= 100


def refusal(case: Case, change: Any = lambda problem, plan: (problem, plan)) -> str:
    """Return why a plan has no script."""
    from nest.frameworks.torch_script import export as files_of

    with pytest.raises(InvalidPlanError) as caught:
        files_of(*change(*planned(case)))
    return str(caught.value)


def with_strategies(plan: Plan, *strategies: Strategy) -> Plan:
    """Return a plan whose stages have other strategies."""
    stages = tuple(
        Stage(layers=stage.layers, devices=strategy.devices, strategy=strategy)
        for stage, strategy in zip(plan.stages, strategies, strict=True)
    )
    return replace(plan, stages=stages)


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (Strategy(cp=2), "stage 2: expected cp 1, .* got cp2; solve with cp 1"),
        (Strategy(tp=2, sequence_parallel=True), "sequence parallelism"),
        (Strategy(dp=2, recompute="selective"), "none or full, got selective"),
        (Strategy(tp=2), "dp, tp and the ZeRO stage of stage 1 .* got tp2"),
    ],
)
def test_strategies_without_a_script_are_refused(torch, strategy, said):
    def change(problem, plan):
        return problem, with_strategies(plan, Strategy(dp=2), strategy)

    assert re.search(f"--to torch: .*{said}", refusal(Case("vit", pp=2, dp=2), change))


#: Models with parameters of which data ranks get no equal parts.
UNEVEN = [
    Case("unet", dp=2, zero=1, optimizer="adamw"),
    Case("unet", pp=2, dp=2, zero=2),
    Case("unet", dp=2, zero=3, optimizer="adamw"),
    Case("channels_last", dp=2, zero=1, file=UNUSUAL_FILE),
    Case("channels_last", dp=2, zero=3, file=UNUSUAL_FILE),
]


@pytest.mark.parametrize("case", UNEVEN, ids=str)
def test_parameters_without_equal_parts(torch, tmp_path, case):
    """Some ranks hold a little more or less than planned, as a note says."""
    from nest.frameworks.torch_script import export as files_of

    problem, plan = planned(case)
    notes = []
    files = files_of(problem, plan, tell=lambda text, _: notes.append(text))
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    said = re.search(
        r"2 data ranks get no equal parts of \w+\.bias and \d others: a rank holds up "
        r"to (\d+) values more than planned",
        notes[-1],
    )
    assert said
    options = ["--steps", "3", "--lr", "0.01", "--optimizer", case.optimizer]
    job = {"folder": str(tmp_path), "world": case.world, "options": options}
    (result,) = run_scripts(tmp_path, [job])
    found = check(case, result, plan, score(problem, plan), spare=int(said[1]) * 4)
    assert found == []


def test_parameters_without_an_axis_have_no_part(torch):
    said = refusal(Case("scaled", dp=2, zero=3, file=UNUSUAL_FILE))
    assert said == (
        "--to torch: blocks.0.scale: expected a parameter with an axis, for ZeRO 3, as "
        "fully_shard cuts it, got (); solve with --zero 0,1,2, or give it the shape "
        "(1,)"
    )


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (
            Case("changed_input", pp=2),
            "--to torch: the module itself: expected inputs that stay as they are, "
            "since every stage reads them, got torch.Tensor.mul_ on x; change a copy "
            "of it in the module, or solve with pp 1",
        ),
        (
            Case("early_relu", dp=2, recompute="full"),
            "--to torch: blocks.0: expected a block that keeps what it is given, since "
            "PyTorch computes it again from that, got torch.nn.functional.relu in "
            "place, in blocks.0.relu; solve with --recompute none, or change a copy in "
            "the block",
        ),
        (
            Case("unlike", dp=2, zero=3),
            "--to torch: blocks.0.gain, blocks.0.down.bias: expected one data type of "
            "all weights that ZeRO 3 gathers together, as fully_shard has it, got "
            "float64, float32; solve with zero 0, 1 or 2, or convert them",
        ),
        (
            Case("late_penalty", dp=2, zero=3),
            "--to torch: blocks.0: expected a block that makes what it returns last, "
            "since ZeRO 3 gathers its weights for that, got penalty; compute that "
            "first, or solve with zero 0, 1 or 2",
        ),
        (
            Case("penalized", pp=2, schedule="zb-h1"),
            "--to torch: stage 2: last.weight: expected a weight that meets "
            "what the stage receives in one operation, as PyTorch's split backward "
            "passes need, got 2; solve with --schedule 1f1b",
        ),
    ],
)
def test_what_training_scripts_cannot_run_is_refused(torch, case, said):
    assert refusal(case._replace(file=UNUSUAL_FILE)) == said


def test_blocks_that_run_again_without_gradients_stay_whole(torch):
    from nest.capture.problem import source_of

    problem, _ = planned(Case("reread", tp=2, file=UNUSUAL_FILE))
    source = source_of(problem)
    assert source is not None
    assert not any(source.shared.values())
    said = "tp 2: blocks.0.up: blocks.0.up also reads its weights apart"
    assert any(said in reason for reason in source.reasons)


def test_uneven_batches_are_refused(torch):
    case = Case("vit", dp=4, samples=4)
    said = refusal(case, lambda problem, plan: (problem, replace(plan, micro_batch=6)))
    assert "micro_batch: expected equal shares of the global batch of 16" in said


def test_split_backward_passes_of_sharded_weights_are_refused(torch):
    said = refusal(Case("vit", pp=2, dp=2, zero=3, schedule="zb-h1"))
    assert "order: expected whole backward passes, since PyTorch's ZeRO 3" in said


def test_orders_that_swap_micro_batches_are_refused(torch):
    order = (
        ("0F0", "0F1", "0F2", "0B1", "0F3", "0B0", "0B3", "0B2"),
        ("1F1", "1B1", "1F0", "1B0", "1F3", "1B3", "1F2", "1B2"),
    )
    said = refusal(Case("vit", pp=2, order=order))
    assert "in the order of its micro-batches, as PyTorch sends them, got 0B0" in said


def test_a_problem_without_a_module_is_refused():
    from nest.frameworks.torch_script import export as files_of

    problem, plan = two_stages(), make_plan(("a", SINGLE), ("b", SINGLE))
    said = f"--to torch: problem: expected one of 'nest import torch'.*{problem.name}"
    with pytest.raises(InvalidPlanError, match=said):
        files_of(problem, plan)


EVIL = 'a""" + __import__("os").system("touch PWNED") + """\\N {{file}}'


def test_texts_of_problems_are_no_code(torch):
    from nest.frameworks.torch_script import export as files_of

    problem, plan = planned(Case("vit"))
    files = files_of(replace(problem, name=EVIL), plan)
    tree = ast.parse(files["train.py"])
    calls = [ast.unparse(x.func) for x in ast.walk(tree) if isinstance(x, ast.Call)]
    assert "__import__" not in calls
    assert "__import__(_os_)" in (ast.get_docstring(tree) or "")
    assert [x[:1] for x in files["README"].splitlines()] == ["#", "#", "t"]


def test_names_in_scripts_are_written_as_python_writes_them():
    from nest.frameworks.torch_stages import listed, quoted, renamed

    for text in (EVIL, "\n", "it's", 'a"b', "'\"", "\x00\u2028", "\\", ""):
        assert ast.literal_eval(quoted(text)) == text
    assert quoted("plain") == '"plain"'
    owners = ["blocks", '{print()}"']
    for owner in owners:
        paths = [f"{owner}.{i}" for i in range(4)]
        assert eval(listed(paths), {"__builtins__": {"range": range}}) == paths
    assert renamed(["x", "model", "", "target", "target_input", "class", ""]) == [
        *("x", "model_input", "", "target_input", "target_input_input"),
        *("class_input", ""),
    ]


ODD = """
import torch
from torch import nn


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        names = ("class", "a b", "0", "it's", '\"\"\"')
        self.heads = nn.ModuleDict({name: nn.Linear(4, 4) for name in names})
        self.scales = nn.ParameterDict({"a-b": nn.Parameter(torch.ones(4))})

    def forward(self, model, target):
        for head in self.heads.values():
            model = head(model)
        return (model * self.scales["a-b"] - target).square().mean()


def odd():
    return Odd(), (torch.randn(4, 4), torch.randn(4, 4))
"""


def imported(
    folder: Path, text: str = ODD, dp: int = 1, optimizer: str = "sgd"
) -> tuple[Problem, Plan]:
    """Return the problem of a module of a file, and a plan on data ranks."""
    from nest.requests.modules import ModuleRequest

    (folder / "odd.py").write_text(text)
    factory = f"{folder / 'odd.py'}:odd"
    request = ModuleRequest(
        factory=factory,
        cluster=f"a100x{dp}",
        batch=4,
        granularity="module",
        optimizer=optimizer,
    )
    problem = request.build_problem()
    ids = tuple(layer.id for layer in problem.graph.layers)
    stage = Stage(layers=ids, devices=dp, strategy=Strategy(dp=dp))
    return problem, Plan(replicas=1, micro_batch=4, stages=(stage,))


def test_modules_and_inputs_may_have_odd_names(torch, tmp_path):
    from nest.capture.factory import load
    from nest.frameworks.torch_script import export as files_of

    for name, text in files_of(*imported(tmp_path)).items():
        (tmp_path / name).write_text(text)
    options = ["--steps", "1"]
    job = {"folder": str(tmp_path), "world": 1, "options": options}
    (result,) = run_scripts(tmp_path, [job])
    torch.manual_seed(0)
    model, inputs = load(f"{tmp_path}/odd.py:odd")[0]()
    assert result["losses"] == pytest.approx([model(*inputs).item()], rel=LOSS)


DROPPED = """
import torch
from torch import nn


class Dropped(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.drop = nn.Linear(64, 64), nn.Dropout(0.5)
        self.unused = nn.Linear(64, 64)

    def forward(self, x):
        return self.drop(self.linear(x)).square().mean()


def odd():
    return Dropped(), (torch.ones(4, 64),)
"""


def test_data_ranks_draw_other_numbers_with_the_optimizer_of_the_problem(
    torch, tmp_path
):
    """Each rank adds its number to the seed, and SGD needs no state.

    No rank holds the linear layer that is never called.
    """
    from nest.capture.factory import load
    from nest.frameworks.torch_script import export as files_of

    for name, text in files_of(*imported(tmp_path, DROPPED, dp=2)).items():
        (tmp_path / name).write_text(text)
    job = {"folder": str(tmp_path), "world": 2, "options": ["--steps", "1"]}
    (result,) = run_scripts(tmp_path, [job])
    assert result["optimizer_bytes"] == [0, 0]
    assert result["parameter_bytes"] == [4 * (64 * 64 + 64)] * 2
    torch.manual_seed(0)
    model, _ = load(f"{tmp_path}/odd.py:odd")[0]()
    expected = []
    for rank in range(2):
        torch.manual_seed(1 + rank)
        expected.append(model(torch.ones(2, 64)).item())
    assert expected[0] != expected[1]
    assert result["losses"] == pytest.approx([sum(expected) / 2], rel=LOSS)


FROZEN = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("turn", torch.ones(8))
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x, self.turn)
        return x.square().mean()


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 8, bias=False).requires_grad_(False)
        self.down, self.up = (nn.Linear(8, 8, bias=False) for _ in range(2))

    def forward(self, x, turn):
        return self.base(x) * turn + self.up(self.down(x))


def odd():
    return Model(), (torch.ones(4, 8),)
"""


def test_frozen_weights_and_shared_buffers(torch, tmp_path):
    """Under ZeRO 3 all data ranks hold frozen weights; two stages hold the buffer."""
    from nest.frameworks.torch_script import export as files_of

    problem, plan = imported(tmp_path, FROZEN, dp=2)
    assert problem.job.one_stage == ()
    (stage,) = plan.stages
    sharded = Stage(layers=stage.layers, devices=2, strategy=Strategy(dp=2, zero=3))
    half = [*stage.layers].index("blocks.1.base")
    two = tuple(
        Stage(layers=tuple(layers), devices=1, strategy=SINGLE)
        for layers in (stage.layers[:half], stage.layers[half:])
    )
    jobs, verdicts = [], []
    for i, stages in enumerate((plan.stages, (sharded,), two)):
        folder = tmp_path / str(i)
        folder.mkdir()
        this = replace(plan, stages=stages)
        verdicts.append(score(problem, this))
        for name, text in files_of(problem, this).items():
            (folder / name).write_text(text)
        jobs.append({"folder": str(folder), "world": 2, "options": ["--steps", "2"]})
    whole, zero, pipeline = run_scripts(tmp_path, jobs)
    assert whole["losses"] == pytest.approx(zero["losses"], rel=LOSS)
    assert whole["losses"] == pytest.approx(pipeline["losses"], rel=LOSS)
    trained, frozen = 2 * 2 * 8 * 8 * 4, 2 * 8 * 8 * 4
    assert verdicts[0].blocks[0].weight_bytes == trained
    assert verdicts[1].blocks[0].weight_bytes == trained // 2
    assert whole["parameter_bytes"] == [trained + frozen] * 2
    assert zero["parameter_bytes"] == [trained // 2 + frozen] * 2
    assert pipeline["parameter_bytes"] == [(trained + frozen) // 2] * 2


GIVEN = """
import torch
from torch import nn


class Head(nn.Module):
    def forward(self, x, weight):
        return (x @ weight.T).square().mean()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(8, 8), nn.Linear(8, 8), Head()

    def forward(self, x):
        return self.head(self.second(self.first(x)), self.first.weight)


def odd():
    return Model(), (torch.ones(4, 8),)
"""


def test_stages_hold_the_weights_that_their_modules_are_given(torch, tmp_path):
    from nest.frameworks.torch_script import export as files_of

    problem, plan = imported(tmp_path, GIVEN)
    (first, *others) = plan.stages[0].layers
    stages = tuple(
        Stage(layers=tuple(layers), devices=1, strategy=SINGLE)
        for layers in ([first], others)
    )
    text = files_of(problem, replace(plan, stages=stages))["train.py"]
    assert '"keep": ["second", "head", "first.weight"]' in text


def test_only_the_file_that_was_imported_runs(torch, tmp_path):
    from nest.frameworks.torch_script import export as files_of

    problem, plan = imported(tmp_path)
    (tmp_path / "odd.py").write_text(f"{ODD}\nraise SystemExit\n")
    with pytest.raises(InvalidPlanError, match=r"sha256 .*; import the module again"):
        files_of(problem, plan)
    unknown = re.sub('"sha256":"[^"]*"', '"sha256":""', problem.model)
    with pytest.raises(InvalidPlanError, match=r"sha256 \(none\)"):
        files_of(replace(problem, model=unknown), plan)


def test_what_it_imports_is_as_it_was(torch, tmp_path):
    from nest.frameworks.torch_script import export as files_of

    (tmp_path / "beside.py").write_text("WIDTH = 8\n")
    problem, plan = imported(tmp_path, f"import beside\n{GIVEN}")
    assert files_of(problem, plan)
    (tmp_path / "beside.py").write_text("raise SystemExit\n")
    with pytest.raises(
        InvalidPlanError, match=r"beside.py: expected the sha256 \w{12}"
    ):
        files_of(problem, plan)
    (tmp_path / "beside.py").unlink()
    with pytest.raises(InvalidPlanError, match="got none; import the module again"):
        files_of(problem, plan)


SPARSE = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(8, 4, sparse=True), nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.table(x)).square().mean()


def odd():
    return Model(), (torch.zeros(4, dtype=torch.long),)
"""


def test_sparse_gradients_are_for_sgd_alone(torch, tmp_path):
    from nest.frameworks.torch_script import export as files_of

    assert files_of(*imported(tmp_path, SPARSE, dp=2))
    adamw = imported(tmp_path, SPARSE, dp=2, optimizer="adamw")
    with pytest.raises(InvalidPlanError, match=r"table.weight: .*AdamW need them"):
        files_of(*adamw)
    problem, plan = imported(tmp_path, SPARSE, dp=2)
    sharded = with_strategies(plan, Strategy(dp=2, zero=1))
    with pytest.raises(InvalidPlanError, match=r"as ZeRO, .* need them, got"):
        files_of(problem, sharded)


def test_unknown_granularities_are_refused(torch, tmp_path):
    from nest.frameworks.torch_script import export as files_of

    problem, plan = imported(tmp_path)
    other = problem.model.replace('"granularity":"module"', '"granularity":"tiny"')
    with pytest.raises(InvalidPlanError, match="granularity: expected one of block"):
        files_of(replace(problem, model=other), plan)


def test_layers_of_another_module_are_refused(torch):
    def change(problem, plan):
        model = problem.model.replace('"vit"', '"gpt"')
        return replace(problem, model=model), plan

    said = refusal(Case("vit", pp=2), change)
    assert said.endswith("the file or PyTorch has changed, import the module again")


def test_a_stage_reads_as_a_user_writes_it(torch):
    from nest.frameworks.torch_script import export as files_of

    text = files_of(*planned(Case("gpt", pp=2, dp=2, cuts=(3,))))["train.py"]
    stage = text[text.index("def stage_1(") :]
    stage = stage[: stage.index("\n\n\n")]
    assert (
        stage
        == '''\
def stage_1(model, x, tokens, labels):
    """Run blocks.2 to norm."""
    for block in model.blocks[2:4]:
        x = block(x)
    x = model.norm(x)
    x = model.head(x)
    x = x.flatten(0, 1)
    flatten = labels.flatten()
    x = torch.nn.functional.cross_entropy(x, flatten)
    return x.view(1)'''
    )
    assert "nest" not in re.findall(r"^(?:import|from) (\w+)", text, re.MULTILINE)


@pytest.mark.parametrize("zero", range(4))
def test_scripts_of_a_gpt_are_short(torch, zero):
    from nest.frameworks.torch_script import export as files_of

    text = files_of(*planned(Case("gpt", pp=2, dp=2, zero=zero)))["train.py"]
    assert len(text.splitlines()) <= 300


def test_a_checkpoint_replaces_the_weights_of_the_seed(torch, tmp_path):
    from nest.capture.factory import load

    case = Case("gpt", pp=2)
    export(case, tmp_path)
    torch.manual_seed(0)
    model, inputs = load(f"{FILE}:gpt")[0]()
    torch.save(model.state_dict(), tmp_path / "weights.pt")
    options = ["--steps", "1", "--checkpoint", str(tmp_path / "weights.pt")]
    job = {"folder": str(tmp_path), "world": 2, "options": [*options, "--seed", "1"]}
    (result,) = run_scripts(tmp_path, [job])
    torch.manual_seed(1)
    _, inputs = load(f"{FILE}:gpt")[0]()
    assert result["losses"] == pytest.approx([model(*inputs).item()], rel=LOSS)


def test_weights_that_no_seed_reaches_are_refused(torch, tmp_path):
    export(Case("unseeded", dp=2, file=UNUSUAL_FILE), tmp_path)
    (result,) = run_scripts(
        tmp_path, [{"folder": str(tmp_path), "world": 2, "options": []}]
    )
    assert "expected the same weights on all ranks" in result["error"]


def test_a_wrong_number_of_ranks_is_refused(torch, tmp_path):
    case = Case("vit", dp=2)
    export(case, tmp_path)
    (result,) = run_scripts(
        tmp_path, [{"folder": str(tmp_path), "world": 1, "options": []}]
    )
    assert "expected 2 ranks, got 1" in result["error"]
