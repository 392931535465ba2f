"""Capture of a module: one forward and one backward pass without values.

The module runs once, eagerly, on tensors that have shapes and no values. Three
observers note what happens: one sees each call of a function of PyTorch outside
PyTorch's own code, one sees each call of a module, and one sees the kernels below
them, also in the backward pass, whose steps belong to the function that made them.
Autograd tells which tensors it keeps.
"""

from __future__ import annotations

import functools
import logging
import pickle
import random
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from operator import attrgetter
from typing import Any, NoReturn

import torch
import torch.utils.checkpoint
from msgspec.structs import replace
from torch._functorch import apis as vmaps
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.parameter import UninitializedTensorMixin
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from nest.capture.factory import Built, InvalidModuleError, batch_of, first_line
from nest.capture.kernels import Meter, Tally
from nest.capture.records import (
    Call,
    CapturedModule,
    ModuleCall,
    Operation,
    Parameter,
    Tensor,
)
from nest.capture.strategies import UNHELD
from nest.capture.written import (
    NoTextError,
    function_name,
    leaves,
    write_arguments,
    write_call,
)

#: Methods that let code of the module change gradients.
_HOOKS = {"register_hook", "register_post_accumulate_grad_hook"}

#: What tells the memory of tensors apart, also where it holds no values.
_address_of = attrgetter("_cdata")


def capture(built: Built) -> CapturedModule:
    """Capture a module.

    Raises
    ------
    InvalidModuleError
        If its pass reads values or fails, if it changes its parameters, or if it does
        not return a scalar that has a gradient. The text names the module's path.
    """
    before = _plain_values(built.module)
    captured = _captured_once(built, is_first=True)
    first = _plain_values(built.module)
    if first != before:  # It may only keep a length for the passes that follow.
        captured = _captured_once(built, is_first=False)
        for name, value in _plain_values(built.module).items():
            if first.get(name) != value:
                raise InvalidModuleError(
                    f"{built.name}: {name}: expected a forward pass that changes "
                    f"nothing that the module keeps, got another value after it; "
                    f"remove the change, or move it out of the forward pass"
                )
    return captured


def _captured_once(built: Built, is_first: bool) -> CapturedModule:
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        # PyTorch logs a traceback of every error that is reported below.
        log = logging.getLogger("torch._subclasses.fake_tensor")
        stack.callback(log.setLevel, log.level)
        log.setLevel(logging.CRITICAL)
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        recorder = _Recorder(built, mode if is_first else None)
        stack.enter_context(recorder.installed())
        inputs = recorder.example_inputs()
        with recorder.meter:
            loss = recorder.forward(inputs)
            recorder.backward(loss)
        return recorder.captured()


class _Recorder(TorchFunctionMode):  # type: ignore[misc]
    """Keeps the calls of functions and of modules."""

    def __init__(self, built: Built, mode: FakeTensorMode | None) -> None:
        super().__init__()
        self.built = built
        #: What makes tensors without values in the first pass of a module.
        self.mode = mode
        self.meter = Meter(self.storage_of)
        self.paths = {
            module: path for path, module in built.module.named_modules() if path
        }
        self.is_busy = False
        self.stack: list[Call] = []
        #: Names of the tensors that each of them is given.
        self.argument_names: list[tuple[str, ...]] = []
        #: The modules around the place of the first error.
        self.failed: tuple[Call, ...] | None = None
        self.numbers: dict[str, int] = defaultdict(int)
        self.records: list[tuple[dict[str, Any], Tally]] = []
        self.modules: list[ModuleCall | None] = []
        self.tensors: dict[str, Tensor] = {}
        #: The name of each tensor, by its identity; tensors are kept alive by it.
        self.named: dict[int, tuple[str, torch.Tensor]] = {}
        self.storages: dict[int, tuple[int, Any]] = {}
        self.parameters: dict[int, Parameter] = {}
        #: What stands for a tensor with values, by its memory and by its identity.
        self.memory: dict[Any, torch.Tensor] = {}
        self.replaced: dict[int, torch.Tensor] = {}
        #: Names of tensors that modules keep as attributes, and how they end in lists.
        self.constants: dict[int, tuple[str, str]] = {}
        #: Tensors from elsewhere, held so that no other one takes their identity.
        self.alive: list[torch.Tensor] = []
        self.unnamed: set[str] = set()
        self.last_change: dict[int, str] = {}
        self.inputs: list[Tensor] = []
        #: The order in which named tensors are made.
        self.made: dict[str, int] = {}
        #: What each of them is made from.
        self.sources: dict[str, tuple[str, ...]] = {}
        self.loss = ""

    # What the module and its caller provide.

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Give the module tensors without values, and see its calls."""
        originals = self._take_values()
        self.installed_state = self._state()
        replacements = self._replacements()
        for owner, name, _, replacement in replacements:
            setattr(owner, name, replacement)
        try:
            yield
        finally:
            for owner, name, original, _ in replacements:
                setattr(owner, name, original)
            for module, name, value in originals:
                setattr(module, name, value)

    def _find_packed(self, find: Callable[..., Any], positions: torch.Tensor) -> Any:
        """Answer what transformers reads from positions: where packed texts begin.

        Positions that come from no input are counted by the model: nothing is packed.
        """
        pending = [self.named[id(positions)][0]] if id(positions) in self.named else []
        seen: set[str] = set()
        while pending:
            name = pending.pop()
            if name.startswith("input."):
                return find(positions)
            if name not in seen:
                seen.add(name)
                pending += self.sources.get(name, ())
        return None

    def call_other(self, run: Any, named: Any, args: Any, kwargs: Any) -> Any:
        """Call a function whose parts PyTorch does not show, as one operation."""
        if self.is_busy:
            return run(*args, **kwargs)
        unwritten = functools.partial(run)  # no text names it
        unwritten.__name__ = named.__qualname__  # type: ignore[attr-defined]
        return self.record(unwritten, args, kwargs)

    def _take_values(self) -> list[tuple[torch.nn.Module, str, Any]]:
        """Replace parameters and buffers; return the places and what was there."""
        originals = []
        # A module may have several paths, as a tied embedding in its head has.
        options = {"remove_duplicate": False}
        for path, module in self.built.module.named_modules(**options):
            if isinstance(module, torch.jit.ScriptModule):
                self._refuse(
                    f"modules in Python, got a scripted one, {path or 'the root'}; "
                    f"leave out torch.jit"
                )
            prefix = f"{path}." if path else ""
            for name, value in [
                *module.named_parameters(recurse=False, **options),
                *module.named_buffers(recurse=False, **options),
            ]:
                if isinstance(value, UninitializedTensorMixin):
                    self._refuse(
                        f"parameters and buffers with shapes, got none for "
                        f"{prefix}{name} of a lazy module; give it its sizes"
                    )
                originals.append((module, name, value))
                self._provided(prefix + name, value)
            for name, value in vars(module).items():
                is_tensor = isinstance(value, torch.Tensor)
                if is_tensor and not isinstance(value, FakeTensor) and value.grad_fn:
                    self._refuse(
                        f"weights that are parameters, got {prefix}{name}, computed "
                        f"from others before the forward pass; compute it in there, as "
                        f"torch.nn.utils.parametrizations do"
                    )
                if not name.startswith("_"):
                    for item, tensor in leaves(value):
                        full_name = f"{prefix}{name}{item}"
                        self.constants.setdefault(id(tensor), (full_name, item))
        for module, name, value in originals:
            setattr(module, name, self.replaced[id(value)])
        return originals

    def _replacements(self) -> list[tuple[Any, str, Any, Any]]:
        """Return owners and names of functions, the functions, and what sees them."""
        call = torch.nn.Module.__call__
        apply = torch.autograd.Function.__dict__["apply"]
        vmap = vmaps.vmap_impl
        backward = torch.autograd.backward

        def run_backward(*args: Any, **kwargs: Any) -> None:
            if not self.meter.is_backward:
                self._refuse_gradients("backward()")
            backward(*args, **kwargs)

        def call_module(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            return self.call_module(call, module, args, kwargs)

        def refuse_recomputation(*_: Any, **__: Any) -> NoReturn:
            self._refuse(
                "a forward pass that keeps its activations, got "
                "torch.utils.checkpoint; remove it, nest plans recomputation"
            )

        def apply_function(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if cls.__name__ == "CheckpointFunction":
                refuse_recomputation()
            return self.call_other(apply.__get__(None, cls), cls, args, kwargs)

        def call_vmap(function: Any, *args: Any, **kwargs: Any) -> Any:
            run = functools.partial(vmap, function)
            return self.call_other(run, torch.vmap, args, kwargs)

        replacements: list[tuple[Any, str, Any, Any]] = [
            (torch.nn.Module, "__call__", call, call_module),
            (torch.autograd.Function, "apply", apply, classmethod(apply_function)),
            (vmaps, "vmap_impl", vmap, call_vmap),
            (torch.autograd, "backward", backward, run_backward),
        ]
        name = "_checkpoint_without_reentrant_generator"
        make = getattr(torch.utils.checkpoint, name, None)
        if make is not None:
            owner = torch.utils.checkpoint
            replacements.append((owner, name, make, refuse_recomputation))
        owner, name = torch.nn.modules.transformer, "_detect_is_causal_mask"
        detect = getattr(owner, name, None)
        if detect is not None:
            # It compares masks with the causal one only to choose a faster kernel.
            replacements.append((owner, name, detect, lambda _, x, *__: bool(x)))
        masks = sys.modules.get("transformers.masking_utils")
        find = getattr(masks, "find_packed_sequence_indices", None)
        if find is not None:
            observed = functools.partial(self._find_packed, find)
            replacements.append((masks, find.__name__, find, observed))
        return replacements

    def _state(self) -> dict[str, int]:
        module = self.built.module
        return {
            name: id(value)
            for name, value in [*module.named_parameters(), *module.named_buffers()]
        }

    def _provided(self, name: str, value: torch.Tensor, item: str = "") -> torch.Tensor:
        """Return the tensor without values for a parameter or a buffer."""
        if any(
            getattr(value, kind, None)
            for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")
        ):
            self._refuse(
                f"parameters without hooks, got one on {name}; compute what it does in "
                f"the forward pass"
            )
        memory = (
            _address_of(value.untyped_storage()),
            value.storage_offset(),
            value.shape,
        )
        made = self.memory.get(memory)
        if made is None:
            made = self.replaced.get(id(value))
        if made is None:
            made = _fake(value)
            if isinstance(value, torch.nn.Parameter):
                made = torch.nn.Parameter(made, requires_grad=value.requires_grad)
            self.memory[memory] = made
        self.replaced[id(value)] = made
        storage = self.storage_of(made)
        before = self.parameters.get(storage)
        if before is not None:
            names = (*before.names, name)
            self.parameters[storage] = replace(before, names=names)
            return made
        self.parameters[storage] = Parameter(
            names=(name,),
            shape=tuple(made.shape),
            dtype=_dtype(made),
            size_bytes=made.untyped_storage().nbytes(),
            storage=storage,
            trained=made.requires_grad,
            buffer=not isinstance(value, torch.nn.Parameter),
            item=item,
        )
        self._name(made, name)
        return made

    def example_inputs(self) -> tuple[Any, ...]:
        """Return the example inputs as tensors without values."""
        values, structure = tree_flatten(self.built.inputs)
        for i, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                values[i] = _fake(value)
                name = f"input.{len(self.inputs)}"
                self.inputs.append(self._name(values[i], name))
        return tuple(tree_unflatten(values, structure))

    def storage_of(self, tensor: torch.Tensor) -> int:
        """Return the number of the memory of a tensor."""
        storage = tensor.untyped_storage()
        address = _address_of(storage)
        if address not in self.storages:
            self.storages[address] = (len(self.storages), storage)
        return self.storages[address][0]

    def _name(self, tensor: torch.Tensor, name: str = "") -> Tensor:
        """Give a tensor a name, a new one by default."""
        if not name:
            name = f"t{len(self.made)}"
            while name in self.tensors:
                name += "_"
            self.made[name] = len(self.made)
        record = Tensor(
            name=name,
            shape=tuple(tensor.shape),
            dtype=_dtype(tensor),
            size_bytes=tensor.numel() * tensor.element_size(),
            storage=self.storage_of(tensor),
            has_gradient=tensor.requires_grad,
        )
        self.tensors[name] = record
        self.named[id(tensor)] = (name, tensor)
        return record

    def _replace_unknown(self, value: Any) -> Any:
        """Give tensors from elsewhere a name, and take their values away."""
        if isinstance(value, torch.Tensor):
            if id(value) in self.named:
                return value
            if id(value) in self.replaced:
                return self.replaced[id(value)]
            if isinstance(value, torch.nn.Parameter):
                self._refuse(
                    "parameters of registered modules, got one of shape "
                    f"{tuple(value.shape)} that module.parameters() lacks; keep modules"
                    " in a ModuleList or ModuleDict"
                )
            if id(value) in self.constants:
                name, item = self.constants[id(value)]
                return self._provided(name, value, item)
            made = value if isinstance(value, FakeTensor) else _fake(value)
            if self.mode is not None and getattr(made, "fake_mode", None) != self.mode:
                self._refuse(
                    f"a forward pass that makes its tensors anew, got one of shape "
                    f"{tuple(value.shape)} that an earlier pass has made; keep none "
                    f"outside the module, or register it as a buffer"
                )
            self.alive.append(value)
            self.replaced[id(value)] = made
            name = f"constant.{len(self.unnamed)}"
            self.unnamed.add(name)
            self._name(made, name)
            return made
        if type(value) in (list, tuple):
            return type(value)(self._replace_unknown(x) for x in value)
        if type(value) is dict:
            return {key: self._replace_unknown(x) for key, x in value.items()}
        return value

    # What runs.

    def forward(self, inputs: tuple[Any, ...]) -> torch.Tensor:
        """Run the forward pass and return the loss."""
        random_states = _random_states()
        try:
            with self, saved_tensors_hooks(self._pack, lambda tensor: tensor):
                loss = self.built.module(*inputs)
        except InvalidModuleError:
            raise
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            function = str(getattr(error, "func", "")).removesuffix(".default")
            self._refuse(
                "a forward pass that is the same for all values, got one that reads "
                f"the values of a tensor ({function}); branch on shapes or settings",
                error,
            )
        except (Exception, SystemExit) as error:
            self._refuse(
                f"a forward pass that runs on tensors without values, got "
                f"{first_line(error)}; check the module and the "
                f"inputs of the factory",
                error,
            )
        if not isinstance(loss, torch.Tensor) or loss.dim():
            returned = (
                f"a tensor of shape {tuple(loss.shape)}"
                if isinstance(loss, torch.Tensor)
                else f"a value of class {type(loss).__name__}"
            )
            self._refuse(
                f"a scalar loss, a tensor without axes, got {returned}; return the mean"
            )
        if not loss.requires_grad:
            self._refuse(
                "a loss that depends on the parameters, got one without a gradient; "
                "compute it from the outputs of the modules"
            )
        if _random_states() != random_states:
            self._refuse(
                "a forward pass that draws no random numbers of Python or numpy, got "
                "one that does, whose choices a script would repeat; draw with torch"
            )
        now = self._state()
        for name, value in self.installed_state.items():
            if now.get(name) != value:
                self._refuse(
                    f"parameters and buffers that stay the same tensors, got another "
                    f"one for {name} in the forward pass; remove the change"
                )
        self.loss = self.named[id(loss)][0]
        return loss

    def _pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = self.storage_of(tensor)
        if storage not in self.parameters:
            self.meter.current.saved[storage] = tensor.untyped_storage().nbytes()
        return tensor

    def backward(self, loss: torch.Tensor) -> None:
        """Run the backward pass."""
        self.meter.is_backward = True
        self.is_busy = True
        try:
            loss.backward()
        except Exception as error:
            self._refuse(
                f"a backward pass that runs on tensors without values, got "
                f"{first_line(error)}; check the module",
                error,
            )
        for made in self.memory.values():
            if made.grad is not None and made.grad.is_sparse:
                storage = self.storage_of(made)
                parameter = self.parameters[storage]
                self.parameters[storage] = replace(parameter, sparse=True)

    def _refuse(self, text: str, error: BaseException | None = None) -> NoReturn:
        around = self.failed if self.failed is not None else tuple(self.stack)
        path = around[-1].path if around else "the module itself"
        raise InvalidModuleError(
            f"{self.built.name}: {path}: expected {text}"
        ) from error

    def call_module(
        self, call: Any, module: torch.nn.Module, args: Any, kwargs: Any
    ) -> Any:
        """Call a module and note what it is given and gives back."""
        path = self.paths.get(module)
        if path is None or self.is_busy:
            return call(module, *args, **kwargs)
        made_by = type(module).__module__
        this = Call(
            path=path,
            class_name=type(module).__name__,
            from_torch=made_by == "torch" or made_by.startswith("torch."),
            repetition=self.numbers[path],
        )
        self.numbers[path] += 1
        args, kwargs = self._replace_unknown(args), self._replace_unknown(kwargs)
        code, names, obstacle = self._write(
            functools.partial(write_arguments, args, kwargs)
        )
        if not torch.is_grad_enabled() and not obstacle:
            code, obstacle = "", "a call without gradients"
        position = len(self.modules)
        self.modules.append(None)
        around = tuple(self.stack)
        first = len(self.records)
        self.stack.append(this)
        self.argument_names.append(names)
        try:
            result = call(module, *args, **kwargs)
        except Exception:
            self.failed = self.failed or tuple(self.stack)
            raise
        finally:
            self.stack.pop()
            self.argument_names.pop()
        returned = [*leaves(result)]
        self._replace_unknown([tensor for _, tensor in returned])
        returned += self._attributes_made(module, first)
        outputs = [self.tensors[self.named[id(tensor)][0]] for _, tensor in returned]
        self.modules[position] = ModuleCall(
            call=this,
            calls=around,
            code=code,
            inputs=names,
            outputs=tuple(outputs),
            accessors=tuple(accessor for accessor, _ in returned),
            first=first,
            end=len(self.records),
            obstacle=obstacle,
        )
        return result

    def _attributes_made(
        self, module: torch.nn.Module, first: int
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors of a call that the module keeps, such as losses."""
        made = {x.name for fields, _ in self.records[first:] for x in fields["outputs"]}
        for path, submodule in module.named_modules():
            for name, value in vars(submodule).items():
                if self.named.get(id(value), ("",))[0] in made:
                    yield f"@{path}.{name}" if path else f"@{name}", value

    def _write(
        self, write: Callable[[Callable[[torch.Tensor], str]], str]
    ) -> tuple[str, tuple[str, ...], str]:
        """Return a text, the tensors in it, and why there is no text."""
        names: list[str] = []

        def write_tensor(tensor: torch.Tensor) -> str:
            name = self.named[id(tensor)][0]
            if name not in names:
                names.append(name)
            if name in self.unnamed:
                raise NoTextError(UNHELD)
            return f"{{{names.index(name)}}}"

        try:
            code = write(write_tensor)
            obstacle = ""
        except NoTextError as error:
            code, obstacle = "", str(error)
        if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
            code, obstacle = "", "autocast in the forward pass"
        return code, tuple(names), obstacle

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if self.is_busy:
            return function(*args, **(kwargs or {}))
        return self.record(function, args, kwargs or {})

    def record(self, function: Any, args: Any, kwargs: Any) -> Any:
        """Run a function of PyTorch and note what it does."""
        args, kwargs = self._replace_unknown(args), self._replace_unknown(kwargs)
        name = getattr(function, "__name__", "")
        if name == "__set__":
            self._refuse_assignment(function, args)
        if function is torch.autograd.grad:
            self._refuse_gradients("torch.autograd.grad")
        if name in _HOOKS and not self.stack:
            self._refuse(
                f"a forward pass without hooks outside its parts, got Tensor.{name}; "
                f"move what is hooked into a module"
            )
        code, names, obstacle = self._write(
            functools.partial(write_call, function, args, kwargs)
        )
        read = [x for _, x in leaves((args, kwargs))]
        names = tuple(dict.fromkeys((*names, *(self.named[id(x)][0] for x in read))))
        before = self.meter.current
        tally = self.meter.current = Tally()
        self.is_busy = True
        try:
            result = function(*args, **kwargs)
        finally:
            self.is_busy = False
            self.meter.current = before
        outputs: list[Tensor] = []
        accessors: list[str] = []
        changes_state = self._refuse_changes(tally, function)
        arguments = [(f"{{{names.index(self.named[id(x)][0])}}}", x) for x in read]
        accessible: dict[int, tuple[str, torch.Tensor]] = {}
        for accessor, tensor in (*leaves(result), *arguments):
            accessible.setdefault(id(tensor), (accessor, tensor))
        made = [
            (accessor, tensor)
            for accessor, tensor in accessible.values()
            if id(tensor) not in self.named or self._is_changed(tensor, tally)
        ]
        # Code cannot repeat a hook, so its module must be called as a whole.
        if not made and not changes_state and name not in _HOOKS:
            return result
        names = self._with_order(names)
        needs_detach = not torch.is_grad_enabled() and any(
            x.requires_grad for x in read
        )
        for accessor, tensor in made:
            record = self._name(tensor)
            outputs.append(record)
            self.sources[record.name] = names
            if tally.changed and self._is_changed(tensor, tally):
                self.last_change[record.storage] = record.name
            if needs_detach and not tensor.requires_grad:
                accessor += ".detach()"
            accessors.append(accessor)
            self._claim_steps(tensor, tally)
        weights = tuple(
            x
            for x in names
            if x not in self.made and self.tensors[x].storage in self.parameters
        )
        self._refuse_distant(weights)
        self.records.append(
            (
                {
                    "function": function_name(function),
                    "calls": tuple(self.stack),
                    "code": code,
                    "inputs": names,
                    "outputs": tuple(outputs),
                    "accessors": tuple(accessors),
                    "weights": weights,
                    "obstacle": obstacle,
                },
                tally,
            )
        )
        return result

    def _is_changed(self, tensor: torch.Tensor, tally: Tally) -> bool:
        if not tally.changed:
            return False
        storage = self.storage_of(tensor)
        return storage in tally.changed and storage not in self.parameters

    def _refuse_changes(self, tally: Tally, function: Any) -> bool:
        """Return whether a norm changes its statistics; refuse any other change."""
        changed = [x for x in tally.changed if x in self.parameters]
        for storage in changed:
            parameter = self.parameters[storage]
            if not parameter.buffer:
                self._refuse(
                    f"parameters that only the optimizer changes, got "
                    f"{function_name(function)} on {parameter.names[0]} in the forward "
                    f"pass; remove the change"
                )
            if not self._is_norm(function):
                self._refuse(
                    f"a forward pass that changes nothing that the module keeps, got "
                    f"{function_name(function)} on {parameter.names[0]}; remove the "
                    f"change, or move it out of the forward pass"
                )
        return bool(changed)

    def _is_norm(self, function: Any) -> bool:
        """Whether a function is, or is in, a norm that keeps statistics of batches."""
        if getattr(function, "__name__", "") in ("batch_norm", "instance_norm"):
            return True
        return any(
            x.from_torch
            and ("BatchNorm" in x.class_name or "InstanceNorm" in x.class_name)
            for x in self.stack[-1:]
        )

    def _refuse_gradients(self, function: str) -> NoReturn:
        self._refuse(
            f"a forward pass that leaves gradients to the training script, got "
            f"{function}; return the loss alone"
        )

    def _refuse_distant(self, weights: tuple[str, ...]) -> None:
        """Refuse parameters that a module neither holds nor is given."""
        for weight in weights:
            parameter = self.parameters[self.tensors[weight].storage]
            for call, names in zip(
                self.stack[::-1], self.argument_names[::-1], strict=True
            ):
                if parameter.buffer or any(
                    x.startswith(f"{call.path}.") for x in parameter.names
                ):
                    break
                if weight not in names:
                    self._refuse(
                        f"a module that reads its own parameters and those that it is "
                        f"given, got {weight}, which it does not hold; give it to its "
                        f"forward, or register it as this module's too"
                    )

    def _refuse_assignment(self, function: Any, args: Any) -> None:
        name = self.named[id(args[0])][0]
        attribute = function_name(function).split(".")[-2]
        if attribute == "data" and name not in self.made:
            self._refuse(
                f"parameters and buffers that only the optimizer or a function changes,"
                f" got an assignment to {name}.data in the forward pass; remove it"
            )

    def _with_order(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Add the last changes of the memory that is read under older names."""
        if not self.last_change:
            return names
        names_in_order = list(names)
        for name in names:
            last = self.last_change.get(self.tensors[name].storage)
            if last and self.made.get(name, -1) < self.made[last]:
                names_in_order.append(last)
        return tuple(dict.fromkeys(names_in_order))

    def _claim_steps(self, tensor: torch.Tensor, tally: Tally) -> None:
        """Note which steps of the backward pass belong to an operation."""
        steps = [tensor.grad_fn]
        owners = self.meter.owners
        while steps:
            step = steps.pop()
            if step is not None and step not in owners:
                owners[step] = tally
                steps += [following for following, _ in step.next_functions]

    # What is known.

    def captured(self) -> CapturedModule:
        """Return the records."""
        return CapturedModule(
            name=self.built.name,
            batch=batch_of(self.built.inputs),
            inputs=tuple(self.inputs),
            parameters=tuple(self.parameters.values()),
            operations=tuple(
                Operation(**fields, **tally.fields()) for fields, tally in self.records
            ),
            modules=tuple(x for x in self.modules if x is not None),
            loss=self.loss,
        )


def _plain_values(module: torch.nn.Module) -> dict[str, object]:
    """Return the numbers, texts and lengths that a module and its parts keep."""
    containers = (list, dict, set)
    plain_types = (int, float, str, *containers)
    return {
        f"{path}.{name}" if path else name: (
            len(value) if isinstance(value, containers) else value
        )
        for path, each in module.named_modules()
        for name, value in vars(each).items()
        if not name.startswith("_") and isinstance(value, plain_types)
    }


def _random_states() -> tuple[object, ...]:
    """Return the states of the random numbers of Python and of numpy."""
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state(legacy=False) if numpy else None
    return random.getstate(), pickle.dumps(of_numpy)


def _fake(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device="cpu"
    )


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
