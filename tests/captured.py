"""Captured modules made by hand, without PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from nest.capture.problem import Captures, ModuleJob, ModuleSource, problem_of_module
from nest.capture.records import (
    Call,
    CapturedModule,
    ModuleCall,
    ModuleLayer,
    Operation,
    Parameter,
    Step,
    Tensor,
)
from nest.hardware import find_cluster
from nest.ir import Problem


@dataclass
class Writer:
    """Writes a capture at a batch size, operation by operation.

    The batch is the first axis of the input ``x``, of ``(batch, *shape)`` values in
    fp32. Every operation reads tensors by name and makes one.
    """

    batch: int
    shape: tuple[int, ...] = (4, 8)
    operations: list[Operation] = field(default_factory=list)
    modules: list[ModuleCall] = field(default_factory=list)
    parameters: dict[str, Parameter] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    layers: list[ModuleLayer] = field(default_factory=list)
    storages: int = 0

    def __post_init__(self) -> None:
        self.given("x", self.shape)

    def given(self, name: str, shape: Sequence[int], gradient: bool = False) -> str:
        """Add a tensor of the caller, one of its own for each sample."""
        self.tensors[name] = self._tensor(name, (self.batch, *shape), gradient)
        return name

    def _tensor(
        self, name: str, shape: Sequence[int], gradient: bool, view_of: str = ""
    ) -> Tensor:
        self.storages += 1
        size_bytes = 4
        for size in shape:
            size_bytes *= size
        storage = self.tensors[view_of].storage if view_of else self.storages
        return Tensor(
            name=name,
            shape=tuple(shape),
            dtype="float32",
            size_bytes=size_bytes,
            storage=storage,
            has_gradient=gradient,
        )

    def weight(self, name: str, shape: Sequence[int], *, trained: bool = True) -> str:
        """Add a parameter, or a buffer, unless it is there."""
        if name not in self.parameters:
            tensor = self._tensor(name, shape, trained)
            self.parameters[name] = Parameter(
                names=(name,),
                shape=tensor.shape,
                dtype="float32",
                size_bytes=tensor.size_bytes,
                storage=tensor.storage,
                trained=trained,
                buffer=not trained,
            )
        return name

    def run(
        self,
        function: str,
        inputs: Sequence[str],
        shape: Sequence[int],
        code: str = "",
        *,
        module: tuple[str, str] = ("", ""),
        gradient: bool = True,
        saves: Sequence[str] = (),
        view_of: str = "",
    ) -> str:
        """Add an operation that makes a tensor of a shape; return its name.

        ``module`` is the path and the class of the module of PyTorch that runs it.
        """
        name = f"t{len(self.operations)}"
        output = self._tensor(name, shape, gradient, view_of)
        self.tensors[name] = output
        weights = tuple(x for x in inputs if x in self.parameters)
        read = sum(self.tensors[x].size_bytes for x in inputs if x in self.tensors)
        rows = output.size_bytes // 4 // (shape[-1] if shape else 1)
        last = self.tensors.get(inputs[0]) if inputs else None
        depth = last.shape[-1] if last is not None and last.shape else 1
        flops = 0
        if function.endswith(("linear", "matmul")):
            flops = 2 * (output.size_bytes // 4) * depth
        path, class_name = module
        self.operations.append(
            Operation(
                function=function,
                calls=(Call(path=path, class_name=class_name, from_torch=True),)
                if path
                else (),
                code=code or f"{function}({{0}})",
                inputs=tuple(inputs),
                outputs=(output,),
                accessors=("",),
                forward_flops=flops,
                backward_flops=2 * flops,
                read_bytes=0 if view_of else read,
                written_bytes=0 if view_of else output.size_bytes,
                backward_bytes=0 if view_of else 2 * read,
                kernels=0 if view_of else 1,
                backward_kernels=0 if view_of else 1,
                saved={
                    self.tensors[x].storage: self.tensors[x].size_bytes for x in saves
                },
                weights=weights,
                products=((rows, depth, shape[-1], 1),) if flops else (),
            )
        )
        return name

    def linear(self, path: str, source: str, width: int, *, weight: str = "") -> str:
        """Add the product of a ``torch.nn.Linear``, which keeps its input."""
        shape = self.tensors[source].shape
        weight = self.weight(weight or f"{path}.weight", (width, shape[-1]))
        return self.run(
            "torch.nn.functional.linear",
            (source, weight),
            (*shape[:-1], width),
            "torch.nn.functional.linear({0}, {1}, None)",
            module=(path, "Linear"),
            saves=(source,),
        )

    def loss(self, source: str) -> str:
        """Add the mean of a tensor, the last operation of most modules."""
        return self.run("torch.Tensor.mean", (source,), (), "{0}.mean()")

    def layer(self, name: str, kind: str, first: int, *, block: bool = False) -> None:
        """Make a layer of all operations from a position on."""
        end = len(self.operations)
        steps = tuple(Step(operation=i) for i in range(first, end))
        if block:
            call = Call(path=name.partition("@")[0], class_name=kind)
            steps = (Step(module=len(self.modules)),)
            self.modules.append(
                ModuleCall(
                    call=call,
                    calls=(),
                    code="{0}",
                    inputs=(),
                    outputs=self.operations[-1].outputs,
                    accessors=("",),
                    first=first,
                    end=end,
                )
            )
        self.layers.append(
            ModuleLayer(
                name=name, kind=kind, steps=steps, first=first, end=end, is_block=block
            )
        )

    def capture(self, loss: str) -> CapturedModule:
        """Return what was written."""
        made = {x.name for each in self.operations for x in each.outputs}
        return CapturedModule(
            name="made",
            batch=self.batch,
            inputs=tuple(x for name, x in self.tensors.items() if name not in made),
            parameters=tuple(self.parameters.values()),
            operations=tuple(self.operations),
            modules=tuple(self.modules),
            loss=loss,
        )


def captures(write: object) -> Captures:
    """Return both captures of what ``write(writer)`` writes; it returns the loss."""
    small, large = Writer(2), Writer(4)
    losses = [write(writer) for writer in (small, large)]  # type: ignore[operator]
    return Captures(
        small.capture(losses[0]), large.capture(losses[1]), tuple(small.layers)
    )


def mlp(writer: Writer, path: str, source: str, width: int = 16) -> str:
    """Write a block: two linear layers around an activation, and a residual."""
    first = len(writer.operations)
    shape = writer.tensors[source].shape
    inner = writer.linear(f"{path}.up", source, width)
    inner = writer.run(
        "torch.nn.functional.gelu",
        (inner,),
        writer.tensors[inner].shape,
        module=(f"{path}.act", "GELU"),
        saves=(inner,),
    )
    inner = writer.linear(f"{path}.down", inner, shape[-1])
    made = writer.run("torch.Tensor.add", (source, inner), shape, "{0} + {1}")
    writer.layer(path, f"Mlp-{width}", first, block=True)
    return made


def random_module(random: Random) -> Captures:
    """Return a module of two to four layers: blocks, loose products, branches."""
    choices = [
        (random.choice(("mlp", "linear", "again")), random.choice((8, 16, 4096)))
        for _ in range(random.randint(1, 3))
    ]
    branch = random.random() < 0.4

    def write(writer: Writer) -> str:
        values = "x"
        ends: list[str] = []
        for i, (kind, width) in enumerate(choices):
            source = "x" if branch and i == 1 else values
            if kind == "mlp":
                values = mlp(writer, f"blocks.{i}", source, width)
            else:
                first = len(writer.operations)
                weight = "shared.weight" if kind == "again" else ""
                values = writer.linear(f"linear.{i}", source, 8, weight=weight)
                writer.layer(f"linear.{i}", f"linear-{kind}", first)
            ends.append(values)
        first = len(writer.operations)
        for end in ends[:-1] if branch else ():
            shape = writer.tensors[values].shape
            values = writer.run("torch.Tensor.add", (values, end), shape, "{0} + {1}")
        loss = writer.loss(values)
        writer.layer("loss", "loss", first)
        return loss

    return captures(write)


def problem(made: Captures, cluster: str = "a100x2", **job: object) -> Problem:
    """Return the problem of a module on a small cluster."""
    ((machine, count),) = find_cluster(cluster)[0]
    choices = ModuleJob(**({"global_batch": 4, "micro_batches": (1, 2, 4)} | job))  # type: ignore[arg-type]
    source = ModuleSource(file="model.py", factory="make")
    return problem_of_module(made, choices, machine, machine.cluster(count), source)
