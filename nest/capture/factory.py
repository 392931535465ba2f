"""The user's function that makes a module and its example inputs."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves, tree_map

from nest.capture.imports import module_of
from nest.errors import NestError
from nest.util.text import did_you_mean


class InvalidModuleError(NestError, ValueError):
    """A factory or its module cannot be captured; the text names the module's path."""


class Built(NamedTuple):
    """A module, on the meta device if it can be, its example inputs, and its name."""

    module: torch.nn.Module
    inputs: tuple[Any, ...]
    name: str


def load(text: str) -> tuple[Callable[[], Any], str]:
    """Return the function that ``FILE.py:FACTORY`` names, and a name for its model.

    The file is executed, as an import does; in a package, as a module of that.

    Raises
    ------
    InvalidModuleError
        If there is no such file or function, or the file fails.
    """
    file, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        raise InvalidModuleError(
            f"factory: expected FILE.py:FACTORY, got {text!r}; name a file and, behind "
            f"a colon, a function in it"
        )
    path = Path(file)
    if not path.is_file():
        raise InvalidModuleError(
            f"{file}: expected a file with the function {name}, found none; check the "
            f"path"
        )
    try:
        loaded = _executed(path)
    except (Exception, SystemExit) as error:
        raise InvalidModuleError(
            f"{file}: expected a file that Python can run, got {first_line(error)}; "
            f"run it with python first"
        ) from error
    factory = getattr(loaded, name, None)
    if not callable(factory):
        names = [key for key, value in vars(loaded).items() if callable(value)]
        hint = did_you_mean(name, names, "choose a function of this file")
        raise InvalidModuleError(
            f"{file}: expected a function {name}, found none; {hint}"
        )
    return factory, f"{path.stem}-{name}"


def _executed(path: Path) -> ModuleType:
    """Execute a file as a script, or as a module of the package that it is in.

    Imports of files beside it work either way.
    """
    folder, name = module_of(path)
    folders = [str(folder), str(path.resolve().parent)]
    sys.path[:0] = folders
    try:
        if "." in name:
            importlib.import_module(name.rpartition(".")[0])
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError("its name does not end in .py")
        loaded = importlib.util.module_from_spec(spec)
        # Dataclasses and pickles look for the module by its name.
        sys.modules.setdefault(name, loaded)
        spec.loader.exec_module(loaded)
        return loaded
    finally:
        for each in folders:
            sys.path.remove(each)


def build(factory: Callable[[], Any], name: str, samples: int | None = None) -> Built:
    """Call a factory on the meta device, where no tensor has values.

    A factory that reads values while it builds is called again on the CPU.

    Parameters
    ----------
    samples
        Rows of the inputs. Default: those of the example inputs.

    Raises
    ------
    InvalidModuleError
        If it fails, or returns anything but a module and a tuple of inputs, or if no
        input has a first axis.
    """
    try:
        try:
            with torch.device("meta"), seeded():
                made = factory()
        except Exception as error:
            # Each function of PyTorch that needs values names the device.
            if "meta" not in str(error).lower():
                raise
            with seeded():
                made = factory()
    except (Exception, SystemExit) as error:
        raise InvalidModuleError(
            f"{name}: expected a factory that runs without arguments, got "
            f"{first_line(error)}; call it in Python first"
        ) from error
    match made:
        case (torch.nn.Module() as module, tuple() | list() as inputs):
            if batch_of(inputs) == 0:
                has_axes = any(getattr(x, "ndim", 0) for x in tree_leaves(inputs))
                raise InvalidModuleError(
                    f"{name}: expected inputs whose first axis is the batch, got none "
                    f"with {'a sample' if has_axes else 'an axis'}; return tensors"
                )
            rows = inputs if samples is None else with_samples(inputs, samples)
            return Built(module, tuple(rows), name)
        case (torch.nn.Module(), other):
            raise InvalidModuleError(
                f"{name}: expected a tuple of example inputs, got "
                f"{type(other).__name__}; return (module, (tensor,))"
            )
    raise InvalidModuleError(
        f"{name}: expected (module, example_inputs), with a tuple of inputs, got "
        f"{type(made).__name__}; return both"
    )


@contextmanager
def seeded(seed: int = 0) -> Iterator[None]:
    """Seed all random numbers, and leave those of the process as they were."""
    numpy = sys.modules.get("numpy")
    before = random.getstate()
    before_numpy = numpy.random.get_state() if numpy else None
    with torch.random.fork_rng(devices=[]):
        seed_all(seed)
        try:
            yield
        finally:
            random.setstate(before)
            if numpy:
                numpy.random.set_state(before_numpy)


def seed_all(seed: int) -> None:
    """Seed PyTorch, Python and, where it is imported, NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy:
        numpy.random.seed(seed)


def batch_of(inputs: Any) -> int:
    """Return the size of the first axis of the first tensor that has one, or 0."""
    for value in tree_leaves(inputs):
        if isinstance(value, torch.Tensor) and value.dim():
            return int(value.shape[0])
    return 0


def batch_inputs(built: Built) -> tuple[str, ...]:
    """Return a name for every tensor among the inputs whose first axis is the batch.

    It is the parameter's of the module's ``forward``; other tensors have an empty one.
    """
    batch, names = batch_of(built.inputs), list[str]()
    arguments = [*inspect.signature(built.module.forward).parameters.values()]
    for i, value in enumerate(built.inputs):
        tensors = [x for x in tree_leaves(value) if isinstance(x, torch.Tensor)]
        for tensor in tensors:
            name = f"input_{len(names)}"
            if len(tensors) == 1 and i < len(arguments):
                is_named = arguments[i].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
                name = arguments[i].name if is_named else name
            names.append(name if has_rows(tensor, batch) else "")
    return tuple(names)


def with_samples(inputs: Any, samples: int) -> Any:
    """Return inputs of `samples` rows: those of each tensor, repeated in turn.

    Tensors whose first axis is not the batch stay as they are.
    """
    batch = batch_of(inputs)
    return with_rows(inputs, [i % batch for i in range(samples)], inputs)


def with_rows(inputs: Any, rows: Sequence[int], examples: Any) -> Any:
    """Return chosen rows of inputs whose first axis is the batch in the examples."""
    batch = batch_of(examples)

    def resized(value: Any, example: Any) -> Any:
        if not has_rows(example, batch):
            return value
        return value[torch.tensor(rows, device=value.device)]

    return tree_map(resized, inputs, examples)


def has_rows(value: Any, batch: int) -> bool:
    """Whether a value is a tensor whose first axis is the batch."""
    return isinstance(value, torch.Tensor) and value.shape[:1] == (batch,)


def first_line(error: BaseException) -> str:
    """Return the first line of what an exception says, with its class."""
    first = str(error).strip().splitlines()
    return f"{type(error).__name__}: {first[0] if first else ''}".rstrip(": ")
