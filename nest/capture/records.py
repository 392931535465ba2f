"""What is known of a module once it is captured: plain records, without PyTorch.

A module is run once, on tensors without values. Every call of a function of PyTorch
outside PyTorch's own code is an :class:`Operation`; every call of a module is a
:class:`ModuleCall`. Both name the tensors that they read and make, so that the same
records say what a layer costs and how its code calls it.
"""

from __future__ import annotations

from functools import cached_property
from math import prod

from nest.ir.base import Struct


class Tensor(Struct, frozen=True, kw_only=True):
    """A tensor that an operation, a module or the caller provides."""

    #: Unique in a module: ``t0``, ``t1`` … in the order in which they are made; the
    #: dotted name of a parameter or buffer; ``input.0`` … for the example inputs.
    name: str
    shape: tuple[int, ...]
    #: As PyTorch names it, such as ``float32``.
    dtype: str
    #: Bytes of its values.
    size_bytes: int
    #: Number of the memory that it is in. Views share it, and so do tied parameters.
    storage: int
    #: Whether the loss has a gradient by it.
    has_gradient: bool


class Parameter(Struct, frozen=True, kw_only=True):
    """A parameter or a buffer, counted once for each storage."""

    #: All its dotted names; several for tied weights.
    names: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    storage: int
    #: Whether it is a parameter that gets gradients.
    trained: bool = True
    #: Whether it is a buffer, or a tensor that is an attribute of a module.
    buffer: bool = False
    #: How its first name ends if it is in a list or dict: what Python puts behind that.
    item: str = ""
    #: Whether its gradients name the rows that they are of, as ``sparse=True`` has it.
    sparse: bool = False


class Call(Struct, frozen=True, kw_only=True):
    """One call of a module."""

    #: Dotted path of the module.
    path: str
    #: Name of its class, and whether PyTorch itself defines it.
    class_name: str
    from_torch: bool = False
    #: 0 for its first call, 1 for the second one …
    repetition: int = 0


class Operation(Struct, frozen=True, kw_only=True):
    """One call of a function of PyTorch in the forward pass."""

    #: Such as ``torch.nn.functional.linear`` or ``torch.Tensor.view``.
    function: str
    #: The modules that it runs in, outermost first, without the root.
    calls: tuple[Call, ...]
    #: How Python writes it, as ``str.format`` takes it, with ``{0}``, ``{1}`` … for the
    #: tensors in :attr:`inputs`: ``torch.nn.functional.linear({0}, {1}, None)``,
    #: ``{0}.view(2, -1)``, ``{0}[:, 1:]``. ``{device}`` stands for the device. Empty
    #: where no text can repeat it; :attr:`obstacle` says why.
    code: str
    #: Names of the tensors that it reads, without repetition. The code does not mention
    #: the last ones if they only show the order: a function changed their memory.
    inputs: tuple[str, ...]
    #: The tensors that it makes. A function that changes a tensor in place makes one
    #: with a new name and the storage of the old one. A function that only changes
    #: buffers makes none.
    outputs: tuple[Tensor, ...]
    #: What is put behind the result to get each output: an empty text, ``[0]``,
    #: ``.detach()``. ``{0}`` says that the code is a statement that changes
    #: ``inputs[0]``, and that the output is another name of that tensor.
    accessors: tuple[str, ...]
    #: Matrix products, convolutions and attention, as PyTorch's counter counts them,
    #: corrected as :mod:`nest.capture.trace` says.
    forward_flops: int = 0
    backward_flops: int = 0
    #: Memory traffic of the forward and the backward pass; none for views.
    read_bytes: int = 0
    written_bytes: int = 0
    backward_bytes: int = 0
    #: Kernels that the forward and the backward pass launch.
    kernels: int = 0
    backward_kernels: int = 0
    #: Storages that autograd keeps for its backward pass, and their bytes, without
    #: parameters and buffers.
    saved: dict[int, int] = {}
    #: Names of the parameters and buffers that it reads (they are in ``inputs`` too).
    weights: tuple[str, ...] = ()
    #: Rows, depth and columns of each matrix product it is made of, with the number of
    #: such products: attention has two, an elementwise operation none.
    products: tuple[tuple[int, int, int, int], ...] = ()
    #: Why no text repeats it: a noun, such as ``an argument of class Cache``.
    obstacle: str = ""


class ModuleCall(Struct, frozen=True, kw_only=True):
    """What one call of a module is given and gives back."""

    call: Call
    #: The modules around it, outermost first, without the root.
    calls: tuple[Call, ...]
    #: Its arguments as Python writes them, as of an operation: ``{0}, mask={1}``.
    code: str
    inputs: tuple[str, ...]
    outputs: tuple[Tensor, ...]
    #: As of an operation: an empty text, ``[0]``, ``['logits']`` or ``.logits``. An
    #: output may be one of the inputs, or the output of another module. ``@aux`` is a
    #: tensor that the call makes and the module keeps as its attribute ``aux``.
    accessors: tuple[str, ...]
    #: Positions of its operations in :attr:`CapturedModule.operations`.
    first: int
    end: int
    #: As of an operation: why no text repeats it.
    obstacle: str = ""


class CapturedModule(Struct, frozen=True, kw_only=True, dict=True):
    """A module as one forward and backward pass shows it."""

    #: For people.
    name: str
    #: Samples of the example inputs: the size of their first axis.
    batch: int
    #: The example inputs, by position; leaves of nested ones in the order of
    #: ``torch.utils._pytree``.
    inputs: tuple[Tensor, ...]
    parameters: tuple[Parameter, ...]
    #: In the order in which they run; the last one makes the loss.
    operations: tuple[Operation, ...]
    #: In the order in which they begin.
    modules: tuple[ModuleCall, ...]
    #: Name of the loss.
    loss: str

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """The example inputs, and what operations make, by name."""
        made = [x for operation in self.operations for x in operation.outputs]
        return {tensor.name: tensor for tensor in (*self.inputs, *made)}

    def record_of(self, step: Step) -> ModuleCall | Operation:
        """Return the record of a step."""
        if step.module >= 0:
            return self.modules[step.module]
        return self.operations[step.operation]

    @cached_property
    def named_parameters(self) -> dict[str, Parameter]:
        """The parameters and buffers, by each of their names."""
        return {name: x for x in self.parameters for name in x.names}

    @cached_property
    def maker(self) -> dict[str, int]:
        """Position of the operation that makes each tensor."""
        return {
            tensor.name: i
            for i, operation in enumerate(self.operations)
            for tensor in operation.outputs
        }

    @cached_property
    def readers(self) -> dict[str, list[int]]:
        """Positions of the operations that read each tensor or parameter, in order."""
        readers: dict[str, list[int]] = {}
        for i, operation in enumerate(self.operations):
            for name in operation.inputs:
                readers.setdefault(name, []).append(i)
        return readers

    def operations_of(self, step: Step) -> tuple[Operation, ...]:
        """Return the operations of a part of a layer."""
        if step.module < 0:
            return (self.operations[step.operation],)
        call = self.modules[step.module]
        return self.operations[call.first : call.end]

    @property
    def num_parameters(self) -> int:
        """Number of trained values, tied ones once."""
        return sum(prod(x.shape) for x in self.parameters if x.trained)

    @property
    def forward_flops(self) -> int:
        """FLOPs of the forward pass of the example batch."""
        return sum(operation.forward_flops for operation in self.operations)

    @property
    def backward_flops(self) -> int:
        """FLOPs of the backward pass of the example batch."""
        return sum(operation.backward_flops for operation in self.operations)

    @property
    def saved_bytes(self) -> int:
        """Bytes that autograd keeps, each storage once."""
        storages: dict[int, int] = {}
        for operation in self.operations:
            storages.update(operation.saved)
        return sum(storages.values())


class Step(Struct, frozen=True, kw_only=True):
    """A part of a layer that code calls as one: a module, or a loose operation.

    Exactly one of ``module`` and ``operation`` is a position, in
    :attr:`CapturedModule.modules` or :attr:`CapturedModule.operations`.
    """

    module: int = -1
    operation: int = -1


class ModuleLayer(Struct, frozen=True, kw_only=True):
    """Neighboring steps that a plan never cuts: a node of the problem's graph."""

    #: Unique: the path of a block (with ``@1`` behind it for its second call), else
    #: that of its first module or function.
    name: str
    #: Layers of a kind cost the same.
    kind: str
    steps: tuple[Step, ...]
    #: Positions of its operations in :attr:`CapturedModule.operations`.
    first: int
    end: int
    #: Whether it is a repeated block: one call of a module.
    is_block: bool = False

    @property
    def can_rerun(self) -> bool:
        """Whether it is a block that stages call, not the parts of it one by one."""
        return self.is_block and len(self.steps) == 1 and self.steps[0].module >= 0
