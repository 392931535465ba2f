"""A training script in plain PyTorch that runs a plan of a captured module.

The script is a template (``data/torch_train.py.txt``) with the code of the stages in
it. A stage calls the modules of its layers, and repeats the operations between them
as the capture wrote them down. What later stages need, stages hand on; masks and
other tensors without parameters are made again where they are used.
"""

from __future__ import annotations

import keyword
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib.resources import files
from typing import NamedTuple

from nest.capture.problem import covered
from nest.capture.records import (
    CapturedModule,
    ModuleCall,
    ModuleLayer,
    Operation,
    Parameter,
    Step,
    Tensor,
)
from nest.capture.strategies import path_of, remade, tensor_cut
from nest.cost.orders import plan_schedule
from nest.errors import InvalidPlanError
from nest.frameworks.schedule_csv import FILE, cells_of, csv_text
from nest.ir.plan import Plan, Strategy
from nest.ir.problem import Problem

NAME = "torch"
SCRIPT = "train.py"

#: PyTorch's classes of schedules, for those that it runs as nest times them.
_SCHEDULES = {"1f1b": "Schedule1F1B", "gpipe": "ScheduleGPipe"}
_STYLES = {"colwise": "ColwiseParallel", "rowwise": "RowwiseParallel"}
_INDENT = " " * 4
_WIDTH = 88

#: Names that variables of stages may not have.
_TAKEN = {*keyword.kwlist, "model", "torch", "block", "range", "len", "float", "slice"}


class Source(NamedTuple):
    """The module that a script trains, captured at the samples of a micro-batch."""

    file: str
    factory: str
    captured: CapturedModule
    layers: Sequence[ModuleLayer]
    #: What the module calls its inputs, without the prefix ``input.``: names of those
    #: whose first axis is the batch; the others have none.
    inputs: Sequence[str]
    #: Samples of the example inputs.
    batch: int


def script(problem: Problem, plan: Plan, source: Source) -> dict[str, str]:
    """Return the files that run a plan, by name.

    Parameters
    ----------
    source
        The problem's module, captured with ``B / dp`` samples.

    Raises
    ------
    InvalidPlanError
        If PyTorch's parts cannot run the plan with exactly its bytes; the text names
        the stage or layer.
    """
    mesh = _mesh_of(problem, plan)
    stages = _stages_of(problem, plan, source, mesh)
    return _Script(problem, plan, source, mesh, stages).files()


def samples_of(problem: Problem, plan: Plan) -> int:
    """Return the samples of a micro-batch on each data rank."""
    return _mesh_of(problem, plan).samples


class _Mesh(NamedTuple):
    """Sizes of the axes of a rank, the slowest first but for the pipeline."""

    pipeline: int
    replicas: int
    shards: int
    tensor: int
    samples: int
    micro_batches: int


def _refused(where: str, expected: str, got: object, remedy: str) -> InvalidPlanError:
    return InvalidPlanError(f"{where}: expected {expected}, got {got}; {remedy}")


def _mesh_of(problem: Problem, plan: Plan) -> _Mesh:
    """Return the axes that all stages share, or refuse the plan."""
    first = plan.stages[0].layer_strategies[0]
    for number, stage in enumerate(plan.stages, 1):
        for strategy in stage.layer_strategies:
            _check_strategy(f"--to torch: stage {number}", strategy)
            degrees = ("dp", "tp", "zero")
            ours, theirs = (
                [getattr(x, name) for name in degrees] for x in (strategy, first)
            )
            if (
                ours[:2] != theirs[:2]
                or strategy.zero != stage.layer_strategies[0].zero
            ):
                raise _refused(
                    f"--to torch: stage {number}",
                    f"dp and tp of stage 1, and one ZeRO stage ({first})",
                    strategy,
                    "solve with --granularity stage and one strategy for all stages",
                )
    batch, share = problem.job.global_batch, plan.replicas * plan.micro_batch
    if batch % share or plan.micro_batch % first.dp:
        raise _refused(
            "--to torch: micro_batch",
            f"equal shares of the global batch of {batch} on {plan.replicas} replicas "
            f"of {first.dp} data ranks",
            plan.micro_batch,
            "choose a divisor",
        )
    replicas, shards = plan.replicas, first.dp
    if plan.distributed_optimizer:
        replicas, shards = 1, plan.replicas * first.dp
    return _Mesh(
        plan.num_blocks, replicas, shards, first.tp,
        plan.micro_batch // first.dp, batch // share,
    )  # fmt: skip


def _check_strategy(where: str, strategy: Strategy) -> None:
    for name in ("cp", "ep"):
        if getattr(strategy, name) > 1:
            raise _refused(
                where, f"{name} 1, since the script does not cut sequences or experts",
                strategy, f"solve with {name} 1",
            )  # fmt: skip
    if strategy.sequence_parallel or strategy.etp:
        raise _refused(
            where, "neither sequence parallelism nor etp", strategy, "solve without"
        )
    if strategy.recompute not in ("none", "full"):
        raise _refused(
            where, "recomputation none or full", strategy.recompute,
            "solve with --recompute none,full",
        )  # fmt: skip


# ------------------------------------------------------------------- the stages


class _Stage(NamedTuple):
    """A stage of a plan, with what it calls, reads and hands on."""

    index: int
    layers: Sequence[ModuleLayer]
    strategies: Sequence[Strategy]
    #: In the order in which they run, with those that make masks and the like again.
    steps: Sequence[Step]
    received: Sequence[Tensor]
    handed: Sequence[Tensor]

    @property
    def zero(self) -> int:
        """Its ZeRO stage."""
        return self.strategies[0].zero


class _Graph:
    """Which step makes and which steps read every tensor."""

    def __init__(self, source: Source) -> None:
        self.captured = source.captured
        self.layers = source.layers
        self.made: dict[str, Step] = {}
        self.tensors: dict[str, Tensor] = {}
        self.order: dict[Step, int] = {}
        self.parameters = {
            name: x for x in source.captured.parameters for name in x.names
        }
        for layer in source.layers:
            for step in layer.steps:
                self.order[step] = len(self.order)
                for tensor in self.part(step).outputs:
                    self.made.setdefault(tensor.name, step)
                    self.tensors.setdefault(tensor.name, tensor)
        self.remade = remade(source.captured, source.layers)

    def part(self, step: Step) -> ModuleCall | Operation:
        """Return the record of a step."""
        if step.module >= 0:
            return self.captured.modules[step.module]
        return self.captured.operations[step.operation]

    def reads(self, step: Step) -> list[str]:
        """Return the tensors that a step reads and others make."""
        part = self.part(step)
        names = []
        for name in part.inputs:
            if name in self.parameters or name.startswith("input."):
                continue
            if name not in self.made:
                raise _refused(
                    f"--to torch: {_where(part)}",
                    "a tensor that a module returns",
                    f"one from inside another module ({name})",
                    "return it from that module's forward, or use --granularity module",
                )
            names.append(name)
        return names

    def with_masks(self, steps: Iterable[Step]) -> list[Step]:
        """Return steps with those before them that make tensors again."""
        open_steps = list(steps)
        needed = set(open_steps)
        while open_steps:
            for name in self.reads(open_steps.pop()):
                maker = self.made[name]
                if name in self.remade and maker not in needed:
                    needed.add(maker)
                    open_steps.append(maker)
        return sorted(needed, key=self.order.__getitem__)

    def paths(self, steps: Iterable[Step]) -> list[str]:
        """Return the modules and parameters that steps need."""
        paths: dict[str, None] = {}
        for step in steps:
            part = self.part(step)
            if isinstance(part, ModuleCall):
                paths[part.call.path] = None
            else:
                paths |= dict.fromkeys(x for x in part.inputs if x in self.parameters)
        return list(paths)

    def trained(self, paths: Sequence[str]) -> dict[int, tuple[str, Parameter]]:
        """Return the trained parameters in modules, by storage, with their names."""
        found = {}
        for parameter in self.captured.parameters:
            for name in parameter.names:
                if parameter.trained and any(
                    name == path or name.startswith(f"{path}.") for path in paths
                ):
                    found.setdefault(parameter.storage, (name, parameter))
        return found


def _where(part: ModuleCall | Operation) -> str:
    return part.call.path if isinstance(part, ModuleCall) else path_of(part)


def _stages_of(
    problem: Problem, plan: Plan, source: Source, mesh: _Mesh
) -> list[_Stage]:
    """Return the stages, each with the tensors that cross its ends."""
    graph = _Graph(source)
    ids = [layer.id for layer in problem.graph.layers]
    try:
        nodes = dict(zip(ids, covered(source.layers, ids), strict=True))
    except ValueError as error:
        raise InvalidPlanError(
            f"--to torch: {source.file}: {error}; the file or PyTorch has changed, "
            f"import the module again"
        ) from None
    parts = []
    for stage in plan.stages:
        pairs = sorted(
            (position, strategy)
            for name, strategy in zip(stage.layers, stage.layer_strategies, strict=True)
            for position in nodes[name]
        )
        layers = [source.layers[position] for position, _ in pairs]
        steps = graph.with_masks(x for layer in layers for x in layer.steps)
        parts.append((layers, [strategy for _, strategy in pairs], steps))
    maker = {
        tensor.name: index
        for index, (_, _, steps) in reversed([*enumerate(parts)])
        for step in steps
        for tensor in graph.part(step).outputs
    }
    last: dict[str, int] = {}
    for index, (_, _, steps) in enumerate(parts):
        for step in steps:
            last |= dict.fromkeys(graph.reads(step), index)
    crossing = [
        [
            graph.tensors[name]
            for name in graph.made
            if name not in graph.remade and maker[name] < cut <= last.get(name, -1)
        ]
        for cut in range(len(parts))
    ]
    crossing.append([graph.tensors[source.captured.loss]])
    stages = [
        _Stage(index, *part, crossing[index], crossing[index + 1])
        for index, part in enumerate(parts)
    ]
    for stage in stages:
        _check_stage(stage, graph, mesh)
    return stages


def _check_stage(stage: _Stage, graph: _Graph, mesh: _Mesh) -> None:
    """Refuse what no script can say."""
    for step in stage.steps:
        part = graph.part(step)
        if not part.code and (part.obstacle or isinstance(part, Operation)):
            raise _refused(
                f"--to torch: {_where(part)}",
                "a call that text repeats",
                part.obstacle or part.inputs,
                "move it into a module that takes and returns tensors",
            )
    if stage.zero and mesh.shards > 1:
        for name, parameter in graph.trained(graph.paths(stage.steps)).values():
            count = 1
            for size in parameter.shape:
                count *= size
            axes = parameter.shape if stage.zero == 3 else (count,)
            if not any(size and size % mesh.shards == 0 for size in axes):
                raise _refused(
                    f"--to torch: {name}",
                    f"a parameter that {mesh.shards} data ranks get equal parts of, "
                    f"for ZeRO {stage.zero}",
                    parameter.shape,
                    "solve with --zero 0, or another dp",
                )


# ------------------------------------------------------------------- the code


class _Code:
    """The function that runs a stage."""

    def __init__(self, stage: _Stage, graph: _Graph, source: Source) -> None:
        self.stage, self.graph, self.source = stage, graph, source
        self.names: dict[str, str] = {}
        #: Inputs are arguments of every stage.
        self.inputs = [name for name in source.inputs if name]
        self.lines: list[str] = []
        self.last: dict[str, Step | None] = {}
        for step in stage.steps:
            self.last |= dict.fromkeys(graph.part(step).inputs, step)
        self.last |= {tensor.name: None for tensor in stage.handed}

    def text(self) -> str:
        """Return the function."""
        received = [self._name(tensor, None) for tensor in self.stage.received]
        arguments = ", ".join(["model", *received, *self.inputs])
        self._copy_changed()
        for step in self.stage.steps:
            self._add(step)
        results = [self.names[tensor.name] for tensor in self.stage.handed]
        if self.stage.handed[-1].name == self.source.captured.loss:
            results = [f"{results[-1]}.view(1)"]
        lines = [*_folded(self.lines), f"return {', '.join(results)}"]
        names = [layer.name for layer in self.stage.layers]
        title = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
        head = f'"""Run {title}."""'
        body = "\n".join(f"{_INDENT}{line}" for line in (head, *lines))
        return f"def stage_{self.stage.index}({arguments}):\n{body}\n"

    def _copy_changed(self) -> None:
        """Copy what the stage receives and then changes in place."""
        captured = self.source.captured
        received = {x.storage: x.name for x in self.stage.received}
        for step in self.stage.steps:
            part = self.graph.part(step)
            operations = (
                captured.operations[part.first : part.end]
                if isinstance(part, ModuleCall)
                else [part]
            )
            for operation in operations:
                for tensor, accessor in zip(
                    operation.outputs, operation.accessors, strict=True
                ):
                    changes = accessor == "{0}" or operation.function.endswith("_")
                    if changes and tensor.storage in received:
                        name = self.names[received.pop(tensor.storage)]
                        self.lines.append(f"{name} = {name}.clone()")

    def _add(self, step: Step) -> None:
        """Add the lines of a step."""
        part = self.graph.part(step)
        call = self._call(part)
        made = [
            (tensor, accessor)
            for tensor, accessor in zip(part.outputs, part.accessors, strict=True)
            if tensor.name in self.last
        ]
        if not made:
            if "{0}" in part.accessors or not part.outputs:
                self.lines.append(call)
            return
        if [accessor for _, accessor in made] == ["{0}"]:
            self.lines.append(call)
            self.names[made[0][0].name] = self.names[part.inputs[0]]
            return
        if len(made) == 1:
            tensor, accessor = made[0]
            if accessor and not isinstance(part, ModuleCall):
                call = f"({call})"
            self.lines.append(f"{self._name(tensor, step)} = {call}{accessor}")
            return
        result = self._unique("result")
        self.lines.append(f"{result} = {call}")
        for tensor, accessor in made:
            self.lines.append(f"{self._name(tensor, None)} = {result}{accessor}")

    def _call(self, part: ModuleCall | Operation) -> str:
        texts = [self._read(name) for name in part.inputs]
        device = f"{self.inputs[0]}.device" if self.inputs else '"cpu"'
        code = part.code.format(*texts, device=device)
        if isinstance(part, ModuleCall):
            return f"{_attribute(part.call.path)}({code})"
        return code

    def _read(self, name: str) -> str:
        """Return how a stage calls a tensor."""
        if name in self.graph.parameters:
            return _attribute(name)
        if name.startswith("input."):
            index = int(name.removeprefix("input."))
            return self.source.inputs[index] or f"model.input_{index}"
        return self.names[name]

    def _name(self, tensor: Tensor, step: Step | None) -> str:
        """Name a variable: as one that is not read again, if there is one."""
        maker = self.graph.part(self.graph.made[tensor.name])
        for read in maker.inputs if step is not None else ():
            other = self.graph.tensors.get(read)
            if (
                other is not None
                and self.last.get(read) == step
                and other.has_gradient == tensor.has_gradient
            ):
                self.names[tensor.name] = self.names[read]
                return self.names[read]
        name = "x" if tensor.has_gradient else "mask"
        taken = name in self.names.values() or name in self.inputs
        if taken or not (tensor.has_gradient or tensor.dtype == "bool"):
            name = self._unique(self._noun(maker))
        self.names[tensor.name] = name
        return name

    def _noun(self, part: ModuleCall | Operation) -> str:
        """Return a name for what a step makes: of the module, parameter or function."""
        text = part.call.path if isinstance(part, ModuleCall) else ""
        if isinstance(part, Operation):
            weights = [x for x in part.inputs if x in self.graph.parameters]
            text = weights[0] if weights else part.function.removesuffix(".__get__")
        words = [x for x in text.split(".") if not x.isdigit()]
        text = re.sub(r"\W", "_", words[-1]).strip("_") if words else ""
        return text if text.isidentifier() else "value"

    def _unique(self, name: str) -> str:
        taken = {*self.names.values(), *self.inputs, *_TAKEN}
        number, unique = 2, name
        while unique in taken:
            unique, number = f"{name}_{number}", number + 1
        return unique


def _attribute(path: str) -> str:
    """Return how Python reaches a module or parameter of the model."""
    text = "model"
    for name in path.split("."):
        if name.isdigit():
            text += f"[{name}]"
        elif name.isidentifier():
            text += f".{name}"
        else:
            return f"model.get_submodule({path!r})"
    return text


_BLOCK = re.compile(r"(.+ = )(model[\w.\[\]]*)\[(\d+)\](\(.*\))")


def _folded(lines: Sequence[str]) -> Iterator[str]:
    """Write calls of neighboring blocks that differ in their number as a loop."""
    at = 0
    while at < len(lines):
        first = _BLOCK.fullmatch(lines[at])
        end = at + 1
        while first and end < len(lines):
            other = _BLOCK.fullmatch(lines[end])
            if (
                other is None
                or other.group(1, 2, 4) != first.group(1, 2, 4)
                or int(other[3]) != int(first[3]) + end - at
            ):
                break
            end += 1
        if first and end - at > 1:
            start = int(first[3])
            yield f"for block in {first[2]}[{start}:{start + end - at}]:"
            yield f"{_INDENT}{first[1]}block{first[4]}"
        else:
            yield from _wrapped(lines[at])
            end = at + 1
        at = end


def _wrapped(line: str) -> Iterator[str]:
    """Break a long call between its arguments."""
    head, bracket, rest = line.partition("(")
    items = rest[:-1].split(", ")
    is_whole = rest.endswith(")") and not any(x.count("'") % 2 for x in items)
    if len(line) + len(_INDENT) <= _WIDTH or not is_whole:
        yield line
        return
    yield head + bracket
    row = _INDENT + items[0]
    for item in items[1:]:
        if len(row) + len(item) + len(_INDENT) + 3 > _WIDTH:
            yield f"{row},"
            row = _INDENT + item
        else:
            row += f", {item}"
    yield row
    yield ")"


def _listed(paths: Sequence[str]) -> str:
    """Return a list of paths in Python, with runs of blocks written as one item."""
    items: list[str] = []
    at = 0
    while at < len(paths):
        owner, _, number = paths[at].rpartition(".")
        end = at + 1
        while (
            number.isdigit()
            and end < len(paths)
            and paths[end] == f"{owner}.{int(number) + end - at}"
        ):
            end += 1
        if end - at > 2:
            stop = int(number) + end - at
            items.append(f'*(f"{owner}.{{i}}" for i in range({int(number)}, {stop}))')
        else:
            end = at + 1
            items.append(_quoted(paths[at]))
        at = end
    text = f"[{', '.join(items)}]"
    if len(text) < _WIDTH - 25:
        return text
    lines = "".join(f"{_INDENT * 3}{item},\n" for item in items)
    return f"[\n{lines}{_INDENT * 2}]"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


# ------------------------------------------------------------------- the script


class _Script:
    """The files of a plan."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        source: Source,
        mesh: _Mesh,
        stages: Sequence[_Stage],
    ) -> None:
        self.problem, self.plan, self.source = problem, plan, source
        self.mesh, self.stages = mesh, stages
        self.graph = _Graph(source)

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
        result = {SCRIPT: self._text()}
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
        """Refuse backward passes in two parts where hooks need whole ones."""
        split = next((x for row in passes for x in row if "I" in x or "W" in x), None)
        if split is None:
            return
        needs = [
            f"ZeRO {stage.zero}" if stage.zero > 1 else "recomputation"
            for stage in self.stages
            if (stage.zero > 1 and self.mesh.shards > 1) or self._recomputed(stage)
        ]
        if needs:
            raise _refused(
                "--to torch: order",
                f"whole backward passes, since PyTorch's {needs[0]} runs with them",
                split,
                "solve with --schedule 1f1b",
            )

    def _title(self) -> str:
        return f"{self.problem.name}: {self.plan.text}"

    def _world(self) -> int:
        mesh = self.mesh
        return mesh.pipeline * mesh.replicas * mesh.shards * mesh.tensor

    def _text(self) -> str:
        mesh, stages = self.mesh, self.stages
        zeros = {stage.zero if mesh.shards > 1 else 0 for stage in stages}
        tied = self._tied()
        average = [
            f"{_INDENT * 3}average(named.values(), mesh.get_group({axis!r}))"
            for axis, size, least in (
                ("replica", mesh.replicas, 2),
                ("shard", mesh.shards, 0),
            )
            if size > 1 and min(zeros) <= least
        ]
        constants = [i for i, name in enumerate(self.source.inputs) if not name]
        flags = {
            "single": mesh.pipeline == 1,
            "pipeline": mesh.pipeline > 1,
            "named_schedule": mesh.pipeline > 1 and bool(self.schedule),
            "csv": mesh.pipeline > 1 and not self.schedule,
            "tensor": mesh.tensor > 1,
            "recompute": any(self._recomputed(stage) for stage in stages),
            "slices": bool(zeros & {1, 2}),
            "zero3": 3 in zeros,
            "average": bool(average),
            "tied": bool(tied),
            "constants": bool(constants),
        }
        names = [name for name in self.source.inputs if name]
        values = {
            "title": f"Trains {self.source.factory}: {self._title()}.",
            "start": f"torchrun --nproc-per-node {self._world()} {SCRIPT} --steps 10",
            "schedule_class": self.schedule,
            "file": _quoted(self.source.file),
            "factory": _quoted(self.source.factory),
            "mesh": f"{mesh.pipeline}, {mesh.replicas}, {mesh.shards}, {mesh.tensor}",
            "micro_batches": str(mesh.micro_batches),
            "samples": str(mesh.samples),
            "stages": self._stages_text(zeros, tied, names),
            "batch": str(self.source.batch),
            "inside": "Stage(stage, nn.Module.__call__)" if 3 in zeros else "stage",
            "constants": str(constants),
            "average": "\n".join(average),
        }
        template = files("nest.frameworks").joinpath("data", "torch_train.py.txt")
        return _rendered(template.read_text(), flags, values)

    def _stages_text(
        self,
        zeros: set[int],
        tied: Sequence[Sequence[tuple[int, str]]],
        names: Sequence[str],
    ) -> str:
        """Return the functions of the stages, and the tables that describe them."""
        codes = [_Code(stage, self.graph, self.source).text() for stage in self.stages]
        lines = ["\n\n".join(codes), "", "STAGES = ["]
        for stage in self.stages:
            lines += ["    {", f'        "run": stage_{stage.index},']
            lines += [
                f'        "{key}": {x},' for key, x in self._plan_of(stage, zeros)
            ]
            lines.append("    },")
        lines.append("]")
        if self.mesh.pipeline > 1:
            owners = [self.plan.block_of(stage.index) for stage in self.stages]
            lines.append("# The pipeline rank of each stage.")
            lines.append(f"OWNERS = {owners}")
        if tied:
            lines.append("# Copies of a weight: their stages and names.")
            lines.append("TIED = [")
            for copies in tied:
                pairs = ", ".join(f"({i}, {_quoted(name)})" for i, name in copies)
                lines.append(f"    [{pairs}],")
            lines.append("]")
        if self.mesh.pipeline > 1:
            lines.append("# Tensors between stages: shape, type, and if with gradient.")
            lines.append("BETWEEN = [")
            for tensors in [x.received for x in self.stages] + [self.stages[-1].handed]:
                texts = [
                    f"({x.shape or (1,)}, torch.{x.dtype}, {x.has_gradient})"
                    for x in tensors
                ]
                lines.append(f"    [{', '.join(texts)}],")
            lines.append("]")
        index = [i for i, name in enumerate(self.source.inputs) if name]
        pairs = ", ".join(
            f"{_quoted(name)}: {i}" for name, i in zip(names, index, strict=True)
        )
        lines.append("# Inputs whose first axis is the batch.")
        lines.append(f"INPUTS = {{{pairs}}}")
        return "\n".join(lines)

    def _plan_of(self, stage: _Stage, zeros: set[int]) -> Iterator[tuple[str, str]]:
        """Yield what the plan says about a stage."""
        if self.mesh.pipeline > 1:
            yield "keep", _listed(self.graph.paths(stage.steps))
        if zeros != {0}:
            yield "zero", str(stage.zero)
        if 3 in zeros:
            yield "shard", _listed(self._sharded(stage))
        if any(self._recomputed(x) for x in self.stages):
            yield "recompute", _listed(self._recomputed(stage))
        if self.mesh.tensor > 1:
            yield "styles", self._styles(stage)

    def _blocks(self, stage: _Stage) -> Iterator[tuple[str, Strategy]]:
        """Yield the paths of blocks, each once, with their strategies."""
        seen = set()
        for layer, strategy in zip(stage.layers, stage.strategies, strict=True):
            part = self.graph.part(layer.steps[0])
            if layer.is_block and isinstance(part, ModuleCall):
                if part.call.path not in seen:
                    yield part.call.path, strategy
                seen.add(part.call.path)

    def _recomputed(self, stage: _Stage) -> list[str]:
        return [path for path, x in self._blocks(stage) if x.recompute == "full"]

    def _sharded(self, stage: _Stage) -> list[str]:
        """Return the blocks that gather their weights apart from the rest.

        Those that share a weight with others are gathered with the stage.
        """
        paths = self.graph.paths(stage.steps)
        uses = Counter(x for path in paths for x in self.graph.trained([path]))
        found = []
        for path, _ in self._blocks(stage):
            storages = self.graph.trained([path])
            if storages and all(uses[x] == 1 for x in storages):
                found.append(path)
        return found

    def _styles(self, stage: _Stage) -> str:
        """Return which modules are cut, with blocks of a kind as one pattern."""
        styles: dict[str, str] = {}
        for layer in stage.layers:
            cut = tensor_cut(self.source.captured, layer, self.mesh.tensor)
            styles |= {path: _STYLES[x] for path, x in cut.styles.items()}
        kept = self.graph.paths(stage.steps)
        inside = [
            x.call.path
            for x in self.source.captured.modules
            if any(x.call.path == k or x.call.path.startswith(f"{k}.") for k in kept)
        ]
        patterns: dict[str, set[str]] = {}
        for path in inside:
            patterns.setdefault(_pattern(path), set()).add(styles.get(path, ""))
        merged: dict[str, str] = {}
        for path, style in styles.items():
            same = len(patterns[_pattern(path)]) == 1
            merged[_pattern(path) if same else path] = style
        items = "".join(
            f"{_INDENT * 3}{_quoted(path)}: {style},\n"
            for path, style in merged.items()
        )
        return f"{{\n{items}{_INDENT * 2}}}" if items else "{}"

    def _tied(self) -> list[list[tuple[int, str]]]:
        """Return weights of which several stages have a copy."""
        copies: dict[int, list[tuple[int, str]]] = {}
        for stage in self.stages:
            trained = self.graph.trained(self.graph.paths(stage.steps))
            for storage, (name, _) in trained.items():
                copies.setdefault(storage, []).append((stage.index, name))
        tied = [x for x in copies.values() if len(x) > 1]
        for pairs in tied:
            zeros = {self.stages[index].zero for index, _ in pairs}
            if len(zeros) > 1:
                raise _refused(
                    f"--to torch: {pairs[0][1]}",
                    "the same ZeRO stage on all stages with a copy of it",
                    sorted(zeros),
                    "solve with one ZeRO stage",
                )
        return tied


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
    result = "\n".join(lines) + "\n"
    for name, value in values.items():
        result = result.replace(f"{{{{{name}}}}}", value)
    return result
