"""What the frameworks' own parsers say about exports.

``make test-exports`` installs the packages; without them all is skipped.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import warnings
from pathlib import Path

import msgspec
import pytest

from nest.cli.main import cli
from nest.constraints.targets import for_target
from nest.cost.schedules import schedule_of
from nest.errors import InvalidPlanError, NestError
from nest.frameworks import deepspeed, megatron, torchtitan
from nest.frameworks.export import as_run_by, export, write_folder
from nest.frameworks.hosts import read_hosts
from nest.frameworks.launch import Settings, launch_of
from nest.frameworks.layers import placement_of
from nest.frameworks.megatron_options import MEGATRON
from nest.frameworks.nearest import nearest
from nest.frameworks.schedule_csv import cells_of
from nest.ir import Plan, Stage, Strategy, read_problem
from nest.models import builtin
from tests.builders import with_job
from tests.exports import small_model, small_problem, uniform_plans
from tests.packages import parsers
from tests.unit.frameworks.test_export import BY_PASSES, ordered

ROOT = Path(__file__).parents[2]
PACKAGES = {
    "megatron": "megatron.training",
    "torchtitan": "torchtitan",
    "deepspeed": "deepspeed",
}
MISSING = [
    name
    for name in PACKAGES.values()
    if importlib.util.find_spec(name.partition(".")[0]) is None
]

pytestmark = [
    pytest.mark.packages,
    pytest.mark.skipif(bool(MISSING), reason="make test-exports has them"),
    # Of the packages, about each other and about GPUs.
    pytest.mark.filterwarnings("ignore"),
]


def parse(target, folder, problem, plan, files):
    """Let the real package read an export; its errors come through."""
    write_folder(folder, files)
    launch = launch_of(problem, plan, placement_of(problem.graph))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        match target:
            case "megatron":
                return parsers.megatron(folder, launch.world)
            case "torchtitan":
                return parsers.torchtitan(folder, launch.world)
        data = launch.dp * launch.replicas
        return parsers.deepspeed(folder, launch.world, data)


@pytest.mark.parametrize(("experts", "etp"), [(0, None), (4, None), (4, (1,))])
@pytest.mark.parametrize("target", PACKAGES)
def test_exports_are_accepted(target, experts, etp, tmp_path):
    if etp and target == "deepspeed":
        pytest.skip("DeepSpeed spreads experts over data ranks")
    by_operator = target == "torchtitan"
    whole = with_job(small_problem(experts, etp=etp), selective_operators=by_operator)
    problem = for_target(whole, target)
    settings = Settings(small_model(experts), flavor="llama3/8B")
    done = 0
    for number, plan in enumerate(uniform_plans(problem, every=307)):
        try:
            files = export(problem, plan, target, settings)
        except InvalidPlanError:
            continue
        parse(target, tmp_path / str(number), problem, plan, files)
        done += 1
    assert done or (target, experts) == ("deepspeed", 4)


def test_every_key_of_a_job_file_has_a_class():
    """So that none that changes a plan is passed over."""
    assert parsers.torchtitan_keys() - torchtitan.TABLE.classed == set()


def test_every_key_of_a_configuration_has_a_class():
    removed = {"nebula"}  # DeepSpeed refuses it
    assert parsers.deepspeed_keys() - deepspeed.TABLE.classed == removed


def cut(problem, *ends, **fields):
    """Return a plan whose stages end behind so many layers."""
    names = [layer.id for layer in problem.graph.layers]
    strategy = Strategy(dp=2, tp=2)
    return Plan(
        replicas=1,
        micro_batch=8,
        stages=tuple(
            Stage.of(names[a:b], [strategy] * (b - a))
            for a, b in itertools.pairwise((0, *ends, len(names)))
        ),
        **fields,
    )


def test_every_option_of_megatron_has_a_class():
    """``data/megatron.yaml`` lists what its parser has, and marks what takes values."""
    present = {f"--{name}" for name in MEGATRON.present}
    older = {*MEGATRON.older_names}
    listed = {k: v for k, v in MEGATRON.classed.items() if k not in older | present}
    options = parsers.megatron_options()
    assert {k: v for k, v in options.items() if k not in present} == listed
    assert not older & {*options}


@pytest.mark.parametrize("experts", [0, 4])
@pytest.mark.parametrize("modules", [1, 2])
def test_modules_of_predictions_are_accepted(experts, modules, tmp_path):
    """Megatron-LM finds them where the plan has them, and no copy."""
    problem = for_target(small_problem(experts, modules=modules), "megatron")
    settings = Settings(small_model(experts, modules))
    behind = 9 + modules
    plans = [
        cut(problem),
        cut(problem, 5),
        cut(problem, behind),
        cut(problem, 5, 9, behind),
        cut(problem, 3, 5, 9),
        cut(problem, 3, 5, 7, virtual_stages=2),
        cut(problem, 3, 9, behind, virtual_stages=2),
    ]
    for number, plan in enumerate(plans):
        files = export(problem, plan, "megatron", settings)
        folder = tmp_path / str(number)
        write_folder(folder, files)
        launch = launch_of(problem, plan, placement_of(problem.graph))
        args = parsers.megatron(folder, launch.world)
        assert args.mtp_num_layers == modules
        layout = args.pipeline_model_parallel_layout
        if launch.stages == 1:
            assert layout is None
            continue
        found = parsers.megatron_layout(str(layout), launch.stages)
        found.validate_layer_layout(8, modules)
        chunks = [
            found.layout[rank][chunk]
            for chunk in range(launch.virtual_stages)
            for rank in range(launch.stages)
        ]
        assert [
            tuple(
                [x.name for x in held].count(name)
                for name in ("embedding", "decoder", "loss", "mtp")
            )
            for held in chunks
        ] == [tuple(map(int, chunk)) for chunk in launch.chunks]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("t*3m*2L'", "t*2mtmL'"),
        ("t*5|t*3m*2L'", "t*7m|tmL'"),
        ("m*2L'", "mL'"),
        ("  --mtp-num-layers 2\n", ""),
        ("rope", "learned_absolute"),
    ],
)
def test_broken_modules_of_predictions_are_refused_there_too(old, new, tmp_path):
    problem = for_target(small_problem(modules=2), "megatron")
    plan = cut(problem, 6)
    files = export(problem, plan, "megatron", Settings(small_model(modules=2)))
    assert old in files["args.sh"]
    files["args.sh"] = files["args.sh"].replace(old, new)
    write_folder(tmp_path / "out", files)
    launch = launch_of(problem, plan, placement_of(problem.graph))
    with pytest.raises(AssertionError):
        parsers.megatron(tmp_path / "out", launch.world)


@pytest.mark.parametrize(("experts", "etp"), [(0, None), (4, None), (4, (1,))])
def test_megatron_makes_the_plans_groups(experts, etp, tmp_path):
    problem = for_target(small_problem(experts, etp=etp), "megatron")
    settings = Settings(small_model(experts))
    parsers.stub_triton()
    from megatron.core.parallel_state import RankGenerator

    for plan in uniform_plans(problem, every=499):
        files = export(problem, plan, "megatron", settings)
        launch = launch_of(problem, plan, placement_of(problem.graph))
        devices = read_hosts(files)
        _, groups = megatron.read(files, settings.model)
        order = "tp-cp-ep-dp-pp"
        if "--use-tp-pp-dp-mapping" in files["args.sh"]:
            order = "tp-cp-ep-pp-dp"
        data = launch.dp * launch.replicas
        sizes = {"tp": launch.tp, "pp": launch.stages, "order": order}
        dense = RankGenerator(ep=1, dp=data, cp=launch.cp, **sizes)
        expert_tp = launch.strategy.expert_tp
        ranks = data * launch.cp * launch.tp // (launch.ep * expert_tp)
        sizes["tp"] = expert_tp
        sparse = RankGenerator(ep=launch.ep, dp=ranks, cp=1, **sizes)
        for generator, token, name in (
            (dense, "tp", "tp"),
            (dense, "cp", "cp"),
            (dense, "dp-cp", "sync"),
            (dense, "pp", "pp"),
            (sparse, "ep", "ep"),
            (sparse, "dp", "expert-sync"),
        ):
            there = [
                tuple(devices[rank] for rank in ranks)
                for ranks in generator.get_ranks(token)
            ]
            if name != "pp":
                there = [tuple(sorted(group)) for group in there]
            assert frozenset(there) == groups[name], (name, plan)


def instances():
    return json.loads((ROOT / "bench/instances/planners.json").read_text())


@pytest.fixture(scope="module")
def optima():
    """The stored optimal plans, by instance."""
    rows = json.loads((ROOT / "bench/results/every_cell.json").read_text())
    return {
        row["instance"]: msgspec.convert(row["plan"], Plan)
        for row in rows["rows"]
        if (row["set"], row["solver"]) == ("planners", "dp")
    }


#: What the frameworks, or the modules that write for them, cannot run of the
#: stored instances, whatever the plan.
REFUSED = {
    **{
        ("t5-11b-16", target): "graph: expected a chain of layers"
        for target in PACKAGES
    },
    ("bert-large-16", "megatron"): "model: expected causal attention",
    ("bert-large-16", "deepspeed"): "model: expected causal attention",
    ("bert-large-16", "torchtitan"): "dtype: expected bf16 or fp8, got fp16",
    ("gpt3-6.7b-32", "torchtitan"): "dtype: expected bf16 or fp8, got fp16",
    ("llama2-7b-8", "torchtitan"): "--nearest: expected a plan that fits",
    ("mixtral-8x7b-32", "deepspeed"): "model: expected one without experts",
    ("mixtral-8x22b-64", "deepspeed"): "model: expected one without experts",
}


@pytest.fixture(scope="module")
def optima_of_targets():
    """What is known of the best plans of each framework."""
    text = (ROOT / "bench/results/launchability.json").read_text()
    return {(row["instance"], row["target"]): row for row in json.loads(text)["rows"]}


def problem_of(instance, tmp_path):
    if not instance["arguments"]:
        return builtin.load(instance["problem"])
    path = tmp_path / "problem.json"
    arguments = ["problems", *instance["arguments"], "-o", str(path)]
    cli.main(arguments, standalone_mode=False)
    return read_problem(path)


def settings_of(instance):
    # Of these torchtitan has no model; its parser takes any flavor.
    absent = instance["name"].startswith(("gpt3", "bert", "t5"))
    return Settings(flavor="llama3/8B" if absent else None)


@pytest.mark.parametrize("instance", instances(), ids=lambda row: row["name"])
@pytest.mark.parametrize("target", PACKAGES)
def test_optima_of_targets_are_accepted(instance, target, optima_of_targets, tmp_path):
    problem = for_target(problem_of(instance, tmp_path), target)
    row = optima_of_targets[instance["name"], target]
    if row["plan"] is None:
        assert row["status"] == "infeasible"
        return
    plan = msgspec.convert(row["plan"], Plan)
    settings = settings_of(instance)
    refusal = REFUSED.get((instance["name"], target))
    if refusal is not None:
        with pytest.raises(NestError, match=refusal):
            export(problem, plan, target, settings)
        return
    files = export(problem, plan, target, settings)
    parse(target, tmp_path / "out", problem, plan, files)


@pytest.mark.parametrize("instance", instances(), ids=lambda row: row["name"])
@pytest.mark.parametrize("target", PACKAGES)
def test_stored_optima_are_accepted(instance, target, optima, tmp_path):
    problem = problem_of(instance, tmp_path)
    plan = optima[instance["name"]]
    settings = settings_of(instance)
    refusal = REFUSED.get((instance["name"], target))
    if refusal is not None:
        with pytest.raises(NestError, match=refusal):
            nearest(problem, plan, target, settings)
        return
    found = nearest(problem, plan, target, settings)
    parse(target, tmp_path / "out", found.problem, found.plan, found.files)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(("name", "counts", "placement", "listed", "_"), BY_PASSES)
def test_torchtitan_runs_the_order_of_a_plan(
    name, counts, placement, listed, _, rank, tmp_path, monkeypatch
):
    """Its own code puts the plan's layers and passes on every rank."""
    problem, plan = ordered(name, counts, placement, listed)
    settings = Settings(model=small_model(), flavor="llama3/8B")
    files = export(problem, plan, "torchtitan", settings)
    there, _ = as_run_by(problem, "torchtitan")
    config = parse("torchtitan", tmp_path / "out", there, plan, files)
    monkeypatch.chdir(tmp_path / "out")
    schedule = parsers.torchtitan_pipeline(config, rank, sum(counts))
    order = cells_of(schedule_of(name, plan.virtual_stages), 2, 8)
    ran = schedule.pipeline_order
    assert tuple(tuple(map(str, ran[block])) for block in (0, 1)) == order
    assert type(schedule).__name__ == "_PipelineScheduleRuntime"
    held = {}
    for stage in schedule._stages:
        held[stage.stage_index] = [int(index) for index in stage.submod.layers]
    firsts = [0, *itertools.accumulate(counts)]
    assert held == {
        chunk: [*range(firsts[chunk], firsts[chunk + 1])]
        for chunk in plan.chunks_of(rank)
    }


def test_default_stages_are_those_of_torchtitan():
    from nest.frameworks.torchtitan import _default_split, job_file

    split = parsers.torchtitan_split()
    done = 0
    for stages, layers, first, last in itertools.product(
        (2, 3, 4, 8), (1, 2, 5, 8, 16, 31, 32), (0, 1, 2, 5), (0, 1, 3)
    ):
        job = job_file(
            f"[parallelism]\n"
            f"pipeline_parallel_degree = {stages}\n"
            f"pipeline_parallel_first_stage_less_layers = {first}\n"
            f"pipeline_parallel_last_stage_less_layers = {last}\n",
            "job.toml",
        )
        try:
            theirs = split(stages, layers, first, last)
        except ValueError:
            with pytest.raises(InvalidPlanError):
                _default_split(job, layers)
            continue
        _default_split(job, layers)
        ours = job.document["parallelism"]["module_fqns_per_model_part"]
        assert ours == theirs, (stages, layers, first, last)
        done += 1
    assert done > 50
