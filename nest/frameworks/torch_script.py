"""A training script in plain PyTorch that runs a plan of a captured module.

The script is a template (``data/torch_train.py.txt``) with the code of the stages in
it, see :mod:`nest.frameworks.torch_stages`.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from math import prod
from pathlib import Path
from typing import NamedTuple, get_args

from nest.capture.imports import hashes_of_imports, module_of
from nest.capture.layers import Granularity, layers_of
from nest.capture.problem import STATES, ModuleSource, checkpointed, covered, source_of
from nest.capture.records import ModuleCall, ModuleLayer, Parameter, Tensor
from nest.capture.strategies import path_of, tensor_cut
from nest.cost.orders import plan_schedule
from nest.errors import InvalidPlanError
from nest.frameworks.schedule_csv import FILE, cells_of, csv_text
from nest.frameworks.torch_stages import (
    INDENT,
    WIDTH,
    PlanStage,
    Source,
    StageCode,
    TensorGraph,
    listed,
    plain,
    quoted,
    refused,
    renamed,
)
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem
from nest.profiles.torch_profiler import require_torch
from nest.units import ceil_div

NAME = "torch"
SCRIPT = "train.py"

#: PyTorch's classes of schedules, for those that it runs as nest times them.
_SCHEDULES = {"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe"}
_PASS = re.compile(r"(\d+)([FBIW])(\d+)")
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_META = 'meta = functools.partial(torch.empty, device="meta", requires_grad=True)'
_STYLES = {
    "colwise": "ColwiseParallel()",
    "rowwise": "RowwiseParallel()",
    "table": "RowwiseParallel(input_layouts=Replicate())",
}


def export(
    problem: Problem,
    plan: Plan,
    folder: Path = Path(),
    tell: Callable[[str, bool], None] = lambda text, is_warning: None,
) -> dict[str, str]:
    """Return the files that run a plan of a captured module, by name.

    The user's file is executed, since its module is captured again with the samples
    of the plan's micro-batch. It is looked for in ``folder``, then from the current
    one, and must be the one that was imported. ``tell`` gets a line about it.

    Raises
    ------
    InvalidPlanError
        If the problem has no module, its file has changed, or PyTorch's parts cannot
        run the plan with exactly its bytes; the text names the stage or layer.
    InvalidModuleError
        If the module cannot be captured.
    """
    module = source_of(problem)
    if module is None:
        raise refused(
            "problem",
            "one of 'nest import torch', whose module the script trains",
            problem.name,
            "import the module, or choose another target",
        )
    mesh = _mesh_of(problem, plan)
    require_torch(f"nest export --to {NAME}")
    from torch.nn import ModuleList, ParameterList, Sequential

    from nest.capture.factory import batch_inputs, batch_of, build, load
    from nest.capture.trace import capture

    path = _file_of(module, folder)
    tell(f"note: --to {NAME} runs {path}", True)
    factory, name = load(f"{path}:{module.factory}")
    built = build(factory, name)
    captured = capture(build(factory, name, mesh.samples))
    source = Source(
        file=str(path),
        factory=module.factory,
        captured=captured,
        layers=layers_of(captured, module.granularity),  # type: ignore[arg-type]
        inputs=renamed(batch_inputs(built)),
        batch=batch_of(built.inputs),
        dictionaries=frozenset(
            name
            for name, module_part in built.module.named_modules()
            if not isinstance(module_part, (ModuleList, ParameterList, Sequential))
        ),
    )
    return script(problem, plan, source, tell)


def _file_of(module: ModuleSource, folder: Path) -> Path:
    """Return the file that was imported, with the bytes that it had then."""
    granularities = get_args(Granularity)
    if module.granularity not in granularities:
        raise refused(
            "problem.model.granularity", f"one of {', '.join(granularities)}",
            repr(module.granularity), "import the module again",
        )  # fmt: skip
    hashes = {}
    file = Path(module.file)
    for path in dict.fromkeys((folder / file, folder / file.name, file)):
        if path.is_file():
            hashes[path] = hashlib.sha256(path.read_bytes()).hexdigest()
            if hashes[path] == module.sha256:
                _check_imports(module, path)
                return path.resolve()
    states = "; ".join(f"{path} with {x[:12]}" for path, x in hashes.items()) or "none"
    raise refused(
        "module", f"{module.file!r} with the sha256 {module.sha256[:12] or '(none)'} "
        f"that the problem has", states, "import the module again",
    )  # fmt: skip


def _check_imports(module: ModuleSource, path: Path) -> None:
    """Refuse a file that imports other code than it did."""
    now = hashes_of_imports(path)
    for name in sorted({*now, *module.imported}):
        stored, current = (x.get(name, "none") for x in (module.imported, now))
        if stored != current:
            raise refused(
                str(module_of(path)[0] / name),
                f"the sha256 {stored[:12]} that the problem has",
                current[:12],
                "import the module again",
            )


def script(
    problem: Problem,
    plan: Plan,
    source: Source,
    tell: Callable[[str, bool], None] = lambda text, is_warning: None,
) -> dict[str, str]:
    """Return the files that run a plan of a module, captured with ``B / dp`` samples.

    Errors are those of :func:`export`.
    """
    mesh = _mesh_of(problem, plan)
    stages = _stages_of(problem, plan, source, mesh)
    made = _Script(problem, plan, source, mesh, stages)
    if mesh.zero and made.uneven:
        tell(f"note: --to {NAME}: {made.uneven}", True)
    return made.files()


class _Mesh(NamedTuple):
    """Sizes of the axes of a rank, the slowest first but for the pipeline."""

    pipeline: int
    replicas: int
    shards: int
    tensor: int
    samples: int
    micro_batches: int
    #: The ZeRO stage, 0 if nothing is sharded.
    zero: int


def _mesh_of(problem: Problem, plan: Plan) -> _Mesh:
    """Return the axes that all stages share, or refuse the plan."""
    first = plan.stages[0].layer_strategies[0]
    for stage_idx, stage in enumerate(plan.stages, 1):
        for strategy in stage.layer_strategies:
            _check_strategy(f"stage {stage_idx}", strategy)
            expected = (first.dp, first.tp, first.zero)
            if (strategy.dp, strategy.tp, strategy.zero) != expected:
                raise refused(
                    f"stage {stage_idx}",
                    f"dp, tp and the ZeRO stage of stage 1 ({first})",
                    strategy,
                    "solve with --granularity stage and one strategy for all stages",
                )
    batch, share = problem.job.global_batch, plan.replicas * plan.micro_batch
    if batch % share or plan.micro_batch % first.dp:
        raise refused(
            "micro_batch",
            f"equal shares of the global batch of {batch} on {plan.replicas} replicas "
            f"of {first.dp} data ranks",
            plan.micro_batch,
            "choose a divisor",
        )
    replicas, shards, zero = plan.replicas, first.dp, first.zero
    if plan.distributed_optimizer:  # It is ZeRO 1 over all data ranks.
        replicas, shards, zero = 1, plan.replicas * first.dp, 1
    return _Mesh(
        plan.num_blocks, replicas, shards, first.tp,
        plan.micro_batch // first.dp, batch // share, zero if shards > 1 else 0,
    )  # fmt: skip


def _check_strategy(where: str, strategy: Strategy) -> None:
    for name in ("cp", "ep"):
        if getattr(strategy, name) > 1:
            raise refused(
                where, f"{name} 1, since the script does not cut sequences or experts",
                strategy, f"solve with {name} 1",
            )  # fmt: skip
    if strategy.sequence_parallel or strategy.etp:
        raise refused(
            where, "neither sequence parallelism nor etp", strategy, "solve without"
        )
    if strategy.recompute not in ("none", "full"):
        raise refused(
            where, "recomputation none or full", strategy.recompute,
            "solve with --recompute none,full",
        )  # fmt: skip


def _stages_of(
    problem: Problem, plan: Plan, source: Source, mesh: _Mesh
) -> list[PlanStage]:
    """Return the stages, each with the tensors that cross its ends."""
    graph = TensorGraph(source)
    ids = [str(layer.id) for layer in problem.graph.layers]
    try:
        nodes = dict(zip(ids, covered(source.layers, ids), strict=True))
    except ValueError as error:
        raise InvalidPlanError(
            f"--to torch: {source.file}: {error}; the file or PyTorch has changed, "
            f"import the module again"
        ) from None
    members = []
    for stage in plan.stages:
        pairs = sorted(
            (position, strategy)
            for name, strategy in zip(stage.layers, stage.layer_strategies, strict=True)
            for position in nodes[str(name)]
        )
        layers = [source.layers[position] for position, _ in pairs]
        steps = graph.with_masks(x for layer in layers for x in layer.steps)
        members.append((layers, [strategy for _, strategy in pairs], steps))
    maker = {
        tensor.name: index
        for index, (_, _, steps) in reversed([*enumerate(members)])
        for step in steps
        for tensor in graph.record_of(step).outputs
    }
    last: dict[str, int] = {}
    for index, (_, _, steps) in enumerate(members):
        for step in steps:
            last |= dict.fromkeys(graph.reads(step), index)
    crossing = [
        [
            graph.tensors[name]
            for name in graph.made
            if name not in graph.remade and maker[name] < cut <= last.get(name, -1)
        ]
        for cut in range(len(members))
    ]
    crossing.append([graph.tensors[source.captured.loss]])
    stages = [
        PlanStage(index, *member, crossing[index], crossing[index + 1])
        for index, member in enumerate(members)
    ]
    for each in stages:
        _check_stage(each, graph, mesh, problem.job.optimizer.name)
        if len(stages) > 1:
            _check_inputs(each, graph, source)
    return stages


def _check_stage(
    stage: PlanStage, graph: TensorGraph, mesh: _Mesh, optimizer: str
) -> None:
    """Refuse what no script can say."""
    for name, parameter in graph.trained(graph.paths(stage.steps)).values():
        needs_dense = mesh.zero or mesh.tensor > 1 or optimizer == "adamw"
        if parameter.sparse and needs_dense:
            raise refused(
                name,
                "dense gradients, as ZeRO, tensor parallelism and AdamW need them",
                "sparse ones",
                "leave out sparse=True, or import with --optimizer sgd --zero 0 --tp 1",
            )
        if mesh.zero == 3 and not parameter.shape:
            raise refused(
                name,
                "a parameter with an axis, for ZeRO 3, as fully_shard cuts it",
                parameter.shape,
                "solve with --zero 0,1,2, or give it the shape (1,)",
            )


def _uneven(stages: Sequence[PlanStage], graph: TensorGraph, mesh: _Mesh) -> str:
    """Return what data ranks hold beyond equal parts, or nothing."""
    uneven: dict[str, int] = {}
    for stage in stages:
        for name, parameter in graph.trained(graph.paths(stage.steps)).values():
            shape = parameter.shape
            size = prod(shape)
            if mesh.zero < 3:
                largest = ceil_div(size, mesh.shards)
            elif any(x % mesh.shards == 0 for x in shape):
                continue
            else:
                largest = ceil_div(shape[0], mesh.shards) * prod(shape[1:])
            if largest * mesh.shards > size:
                uneven[name] = ceil_div(largest * mesh.shards - size, mesh.shards)
    if not uneven:
        return ""
    return (
        f"{mesh.shards} data ranks get no equal parts of {next(iter(uneven))} and "
        f"{len(uneven) - 1} others: a rank holds up to {sum(uneven.values()):,} values "
        f"more than planned"
    )


def _check_dtypes(parameters: Iterable[tuple[str, Parameter]]) -> None:
    """Refuse parameters that PyTorch cannot gather in one message."""
    names = {parameter.dtype: name for name, parameter in parameters}
    if len(names) > 1:
        raise refused(
            ", ".join(names.values()),
            "one data type of all weights that ZeRO 3 gathers together, as "
            "fully_shard has it",
            ", ".join(names),
            "solve with zero 0, 1 or 2, or convert them",
        )


def _check_kept(layer: ModuleLayer, graph: TensorGraph) -> None:
    """Refuse a block that makes a tensor last which it keeps, and does not return."""
    record = graph.record_of(layer.steps[0])
    last = [x.name for x in graph.captured.operations[layer.end - 1].outputs]
    for tensor, accessor in zip(record.outputs, record.accessors, strict=True):
        if accessor.startswith("@") and tensor.has_gradient and tensor.name in last:
            raise refused(
                layer.name,
                "a block that makes what it returns last, since ZeRO 3 gathers its "
                "weights for that",
                accessor[1:],
                "compute that first, or solve with zero 0, 1 or 2",
            )


def _check_joins(stage: PlanStage, graph: TensorGraph) -> None:
    """Refuse weights whose gradients PyTorch does not compute apart from the others.

    It starts the pass of a weight at every operation where the weight, or what is made
    of weights alone, meets what the stage receives. It frees what is behind, and
    leaves out weights that meet nothing.
    """
    received = {x.name for x in stage.received if x.has_gradient}
    made_of: dict[str, set[str]] = {}
    joins: Counter[str] = Counter()
    weights = graph.trained(graph.paths(stage.steps)).values()
    for name, parameter in weights:
        made_of |= {other: {name} for other in parameter.names}
    for operation in graph.operations(stage.steps):
        sources = set().union(*(made_of.get(x, set()) for x in operation.inputs))
        outputs = [x.name for x in operation.outputs if x.has_gradient]
        if received.isdisjoint(operation.inputs):
            made_of |= dict.fromkeys(outputs, sources)
        elif outputs:
            received.update(outputs)
            joins.update(sources)
    for tensor in stage.handed:
        joins.update(made_of.get(tensor.name, ()))
    for name, _ in weights:
        if joins[name] != 1:
            raise refused(
                f"stage {stage.position + 1}: {name}",
                "a weight that meets what the stage receives in one operation, as "
                "PyTorch's split backward passes need",
                f"{joins[name] or 'none'}",
                "solve with --schedule 1f1b",
            )


def _check_inputs(stage: PlanStage, graph: TensorGraph, source: Source) -> None:
    """Refuse changes of the example inputs, of which each stage has its own."""
    storages = {
        tensor.storage: name or f"input {index}"
        for index, (tensor, name) in enumerate(
            zip(source.captured.inputs, source.inputs, strict=True)
        )
    }
    for operation, storage in graph.written(stage.steps):
        if storage in storages:
            raise refused(
                path_of(operation),
                "inputs that stay as they are, since every stage reads them",
                f"{operation.function} on {storages[storage]}",
                "change a copy of it in the module, or solve with pp 1",
            )


# ------------------------------------------------------------------- the script


class _Script:
    """The files of a plan."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        source: Source,
        mesh: _Mesh,
        stages: Sequence[PlanStage],
    ) -> None:
        self.problem, self.plan, self.source = problem, plan, source
        self.mesh, self.stages = mesh, stages
        self.graph = TensorGraph(source)

    @cached_property
    def schedule(self) -> str:
        """PyTorch's class for the plan's schedule; empty if it runs the passes."""
        plan, job = self.plan, self.problem.job
        named = plan.order if isinstance(plan.order, str) else job.schedule
        if plan.virtual_stages > 1 or isinstance(plan.order, tuple):
            return ""
        if not isinstance(named, str) or self.mesh.micro_batches < self.mesh.pipeline:
            return ""
        return _SCHEDULES.get(named, "")

    def files(self) -> dict[str, str]:
        """Return the script, its README, and the passes where they are needed."""
        text = self._text()
        try:
            compile(text, SCRIPT, "exec", dont_inherit=True)
        except (SyntaxError, ValueError, RecursionError) as error:
            raise refused(
                SCRIPT, "a script that Python reads", error,
                "give modules and inputs plain names, or report this",
            ) from error  # fmt: skip
        result = {SCRIPT: text}
        title, world = self._title(), self._world()
        if self.mesh.pipeline > 1 and not self.schedule:
            count, blocks = self.mesh.micro_batches, self.plan.num_blocks
            passes = cells_of(
                plan_schedule(self.problem.job, self.plan, count), blocks, count
            )
            self._check_passes(passes)
            result[FILE] = csv_text(passes)
        result["README"] = (
            f"# {title}\n"
            f"# {world} ranks of PyTorch, nothing else; on CPUs add --backend gloo.\n"
            f"torchrun --nproc-per-node {world} {SCRIPT} --steps 10 --json out.json\n"
        )
        return result

    def _check_passes(self, passes: Sequence[Sequence[str]]) -> None:
        """Refuse orders that PyTorch's runtime mixes up, or whose parts hooks miss."""
        latest: dict[str, int] = {}
        for text in (x for row in passes for cell in row for x in _PASS.findall(cell)):
            kind, micro_batch = text[0] + text[1], int(text[2])
            if micro_batch < latest.setdefault(kind, micro_batch):
                raise refused(
                    "order",
                    "passes of a stage in the order of its micro-batches, as PyTorch "
                    "sends them",
                    f"{kind}{micro_batch} after {kind}{latest[kind]}",
                    "solve with --schedule 1f1b",
                )
            latest[kind] = micro_batch
        split = next((x for row in passes for x in row if "I" in x or "W" in x), None)
        if split is None:
            return
        needs = [
            f"ZeRO {self.mesh.zero}" if self.mesh.zero > 1 else "recomputation"
            for stage in self.stages
            if self.mesh.zero > 1 or self._recomputed(stage)
        ]
        if needs:
            raise refused(
                "order",
                f"whole backward passes, since PyTorch's {needs[0]} runs with them",
                split,
                "solve with --schedule 1f1b",
            )
        for stage in self.stages[1:]:
            _check_joins(stage, self.graph)

    @cached_property
    def uneven(self) -> str:
        """What data ranks hold beyond equal parts, if ZeRO shards; or nothing."""
        return _uneven(self.stages, self.graph, self.mesh)

    def _optimizer(self) -> str:
        """Return the optimizer whose state the plan counts."""
        name = self.problem.job.optimizer.name
        return name if name in STATES else "adamw"

    def _title(self) -> str:
        return plain(f"{self.problem.name}: {self.plan.text}")

    def _world(self) -> int:
        mesh = self.mesh
        return mesh.pipeline * mesh.replicas * mesh.shards * mesh.tensor

    def _text(self) -> str:
        mesh, stages = self.mesh, self.stages
        tied = self._tied()
        replicas = mesh.replicas > 1 and mesh.zero < 3
        shards = mesh.shards > 1 and not mesh.zero
        constants = [i for i, name in enumerate(self.source.inputs) if not name]
        names = [name for name in self.source.inputs if name]
        code = self._stages_text(tied, names)
        several = mesh.pipeline > 1 and self.plan.virtual_stages > 1
        module = module_of(Path(self.source.file))[1]
        flags = {
            "single": mesh.pipeline == 1,
            "pipeline": mesh.pipeline > 1,
            "one": mesh.pipeline > 1 and not several,
            "several": several,
            "unsharded": mesh.zero < 3,
            "keep": self._leaves_out,
            "named_schedule": mesh.pipeline > 1 and bool(self.schedule),
            "csv": mesh.pipeline > 1 and not self.schedule,
            "tensor": mesh.tensor > 1,
            "table": _STYLES["table"] in code,
            "recompute": any(self._recomputed(stage) for stage in stages),
            "slices": mesh.zero in (1, 2),
            "uneven": bool(self.uneven),
            "even": not self.uneven,
            "sharded": bool(mesh.zero),
            "zero1": mesh.zero == 1,
            "zero2": mesh.zero == 2,
            "zero3": mesh.zero == 3,
            "frozen": any(
                not x.trained and not x.buffer for x in self.source.captured.parameters
            ),
            "average": replicas or shards,
            "replicas": replicas,
            "shards": shards,
            "tied": bool(tied),
            "constants": bool(constants),
            "package": "." in module,
        }
        values = {
            "title": textwrap.fill(
                f"Train {self.source.factory} as nest planned: {self._title()}.",
                WIDTH - 3,
            ),
            "start": f"torchrun --nproc-per-node {self._world()} {SCRIPT} --steps 10",
            "schedule_class": self.schedule,
            "file": quoted(self.source.file),
            "factory": quoted(self.source.factory),
            "module": quoted(module) if "." in module else "FILE.stem",
            "package": quoted(module.rpartition(".")[0]),
            "above": str(module.count(".")),
            "mesh": f"{mesh.pipeline}, {mesh.replicas}, {mesh.shards}, {mesh.tensor}",
            "micro_batches": str(mesh.micro_batches),
            "samples": str(mesh.samples),
            "stages": code,
            "batch": str(self.source.batch),
            "optimizer": quoted(self._optimizer()),
            "inside": "Stage(stage, nn.Module.__call__)" if mesh.zero == 3 else "stage",
            "name": 'name.replace(WRAPPED, "")' if flags["recompute"] else "name",
            "constants": str(constants),
            "zero": str(mesh.zero),
            "owner": "OWNERS[i]" if several else "i",
        }
        template = files("nest.frameworks").joinpath("data", "torch_train.py.txt")
        return _rendered(template.read_text(), flags, values)

    def _stages_text(
        self, tied: Sequence[Sequence[tuple[int, str]]], names: Sequence[str]
    ) -> str:
        """Return the functions of the stages, and the tables that describe them."""
        codes = [
            StageCode(stage, self.graph, self.source).text() for stage in self.stages
        ]
        lines = ["\n\n".join(codes), "", "STAGES = ["]
        for stage in self.stages:
            items = [f'"run": stage_{stage.position}']
            items += [f'"{key}": {x}' for key, x in self._plan_of(stage)]
            lines += _row(items, "{}")
        lines.append("]")
        if self.mesh.pipeline > 1:
            if self.plan.virtual_stages > 1:
                owners = [self.plan.block_of(stage.position) for stage in self.stages]
                lines.append(f"OWNERS = {owners}  # The pipeline rank of each stage.")
            lines += ["# What enters each stage, and the loss, without values.", _META]
            lines.append("BETWEEN = [")
            for stage in self.stages:
                lines += _row([*map(_without_values, stage.received)], "[]")
            loss = self.graph.tensors[self.source.captured.loss]
            lines += [f"    [meta((1,), dtype=torch.{loss.dtype})],", "]"]
        if tied:
            lines.append("TIED = [  # Copies of a weight: their stages and names.")
            for copies in tied:
                lines += _row([f"({i}, {quoted(name)})" for i, name in copies], "[]")
            lines.append("]")
        index = [i for i, name in enumerate(self.source.inputs) if name]
        pairs = ", ".join(
            f"{quoted(name)}: {i}" for name, i in zip(names, index, strict=True)
        )
        lines.append(f"INPUTS = {{{pairs}}}  # Those whose first axis is the batch.")
        return "\n".join(lines)

    def _plan_of(self, stage: PlanStage) -> Iterator[tuple[str, str]]:
        """Yield what the plan says about a stage."""
        if self._leaves_out:
            yield "keep", listed(self.graph.paths(stage.steps))
        if self.mesh.zero == 3:
            yield "shard", listed(self._sharded(stage))
        if any(self._recomputed(x) for x in self.stages):
            yield "recompute", listed(self._recomputed(stage))
        if self.mesh.tensor > 1:
            yield "styles", self._styles(stage)

    @cached_property
    def _leaves_out(self) -> bool:
        """Whether a stage lacks something of the model: unused parameters, if one."""
        paths = self.graph.paths(self.stages[0].steps)
        return self.mesh.pipeline > 1 or not all(
            any(f"{name}.".startswith(f"{path}.") for path in paths for name in x.names)
            for x in self.source.captured.parameters
            if not x.buffer
        )

    def _blocks(self, stage: PlanStage) -> Iterator[tuple[str, bool]]:
        """Yield the paths of blocks, each once, with how they are recomputed."""
        seen = set()
        for layer, strategy in zip(stage.layers, stage.strategies, strict=True):
            record = self.graph.record_of(layer.steps[0])
            if layer.can_rerun and isinstance(record, ModuleCall):
                if record.call.path not in seen:
                    full = strategy.recompute == "full" and layer.name in self.helped
                    if full:
                        self._check_given(layer)
                    yield record.call.path, full
                seen.add(record.call.path)

    @cached_property
    def helped(self) -> frozenset[str]:
        """Layers that keep less if they are computed again."""
        return checkpointed(self.source.captured, self.source.layers)

    def _recomputed(self, stage: PlanStage) -> list[str]:
        return [path for path, full in self._blocks(stage) if full]

    def _check_given(self, layer: ModuleLayer) -> None:
        """Refuse a block that would run again with what it has changed."""
        tensors = self.graph.tensors
        record = self.graph.record_of(layer.steps[0])
        storages = {tensors[x].storage for x in record.inputs if x in tensors}
        for operation, storage in self.graph.written(layer.steps):
            if storage in storages:
                raise refused(
                    layer.name,
                    "a block that keeps what it is given, since PyTorch computes it "
                    "again from that",
                    f"{operation.function} in place, in {path_of(operation)}",
                    "solve with --recompute none, or change a copy in the block",
                )

    def _sharded(self, stage: PlanStage) -> list[str]:
        """Return the blocks that gather their weights apart from the rest.

        Those that share a weight with others are gathered with the stage.
        """
        paths = self.graph.paths(stage.steps)
        uses = Counter(x for path in paths for x in self.graph.trained([path]))
        rest = self.graph.trained(paths)
        blocks = []
        for path, _ in self._blocks(stage):
            storages = self.graph.trained([path])
            if storages and all(uses[x] == 1 for x in storages):
                blocks.append(path)
                _check_dtypes(storages.values())
                rest = {key: x for key, x in rest.items() if key not in storages}
        _check_dtypes(rest.values())
        for layer in stage.layers:
            if layer.can_rerun:
                _check_kept(layer, self.graph)
        return blocks

    @cached_property
    def _cut_layers(self) -> set[str]:
        """Layers that tensor ranks share, as the problem has it."""
        module = source_of(self.problem)
        assert module is not None
        return {*module.shared.get(str(self.mesh.tensor), ())}

    def _styles(self, stage: PlanStage) -> str:
        """Return which modules are cut, with blocks of a kind as one pattern."""
        styles: dict[str, str] = {}
        for layer in stage.layers:
            if layer.name in self._cut_layers:
                cut = tensor_cut(self.source.captured, layer, self.mesh.tensor)
                styles |= {path: _STYLES[x] for path, x in cut.styles.items()}
        needed = self.graph.paths(stage.steps)
        inside = [
            x.call.path
            for x in self.source.captured.modules
            if any(x.call.path == k or x.call.path.startswith(f"{k}.") for k in needed)
        ]
        patterns: dict[str, set[str]] = {}
        for path in inside:
            patterns.setdefault(_pattern(path), set()).add(styles.get(path, ""))
        merged: dict[str, str] = {}
        for path, style in styles.items():
            same = len(patterns[_pattern(path)]) == 1
            merged[_pattern(path) if same else path] = style
        items = "".join(
            f"{INDENT * 3}{quoted(path)}: {style},\n" for path, style in merged.items()
        )
        return f"{{\n{items}{INDENT * 2}}}" if items else "{}"

    def _tied(self) -> list[list[tuple[int, str]]]:
        """Return weights of which several stages have a copy."""
        copies: dict[int, list[tuple[int, str]]] = {}
        for stage in self.stages:
            trained = self.graph.trained(self.graph.paths(stage.steps))
            for storage, (name, _) in trained.items():
                copies.setdefault(storage, []).append((stage.position, name))
        return [x for x in copies.values() if len(x) > 1]


def _without_values(tensor: Tensor) -> str:
    """Return how a script makes a tensor with a shape and no values."""
    gradient = "" if tensor.has_gradient else ", requires_grad=False"
    return f"meta({tensor.shape}, dtype=torch.{tensor.dtype}{gradient})"


def _row(items: Sequence[str], brackets: str) -> list[str]:
    """Return an item of a table in one line if it fits, else between its brackets."""
    line = f"{INDENT}{brackets[0]}{', '.join(items)}{brackets[1]},"
    if len(line) <= WIDTH and "\n" not in line:
        return [line]
    rows: list[str] = []
    for item in items:
        if rows and "\n" not in item and len(rows[-1]) + len(item) + 2 <= WIDTH:
            rows[-1] += f" {item},"
        else:
            rows.append(f"{INDENT * 2}{item},")
    return [f"{INDENT}{brackets[0]}", *rows, f"{INDENT}{brackets[1]},"]


def _pattern(path: str) -> str:
    return ".".join("*" if x.isdigit() else x for x in path.split("."))


def _rendered(text: str, flags: Mapping[str, bool], values: Mapping[str, str]) -> str:
    """Fill in a template: lines between ``#: if NAME`` and ``#: end``, and values."""
    lines, shown = [], [True]
    for line in text.splitlines():
        if line.startswith("#: if "):
            shown.append(shown[-1] and flags[line.removeprefix("#: if ")])
        elif line == "#: end":
            shown.pop()
        elif shown[-1]:
            lines.append(line)
    # In one pass, so that no value fills in another one.
    return _PLACE.sub(lambda match: values[match[1]], "\n".join(lines) + "\n")
