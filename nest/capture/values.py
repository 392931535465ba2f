"""A check of a module's loss by values: whether it is a mean over its samples.

The operations of a capture do not show everything: a batch may be normalized, sorted
or shifted by functions that keep its shape, and a module may change what it keeps. A
small module is therefore built with values on the CPU. The loss of a batch is compared
with the mean of the losses of its parts, with its loss in another order, and with its
own loss a second time; its gradients with the mean of those of its halves.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from nest.capture.batch import REMEDY, UNCHECKED
from nest.capture.factory import (
    InvalidModuleError,
    batch_of,
    first_line,
    has_rows,
    seed_all,
    seeded,
    with_rows,
    with_samples,
)
from nest.capture.records import CapturedModule

#: Trained values of the largest module that is built with values.
MAX_CHECKED_VALUES = 50_000_000

#: FLOPs, and bytes that autograd would keep, of the largest forward pass that is run.
MAX_CHECKED_FLOPS = 50_000_000_000
MAX_CHECKED_BYTES = 2**32

#: Rows of the inputs of the check.
ROWS = 4

#: By how much two losses that are equal may differ, as a share of the larger one, by
#: the least precise floating-point type of the pass.
_TOLERANCES = {
    torch.float64: 1e-9,
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 2e-2,
}

#: Functions that make random numbers, for which a pass of the check gets equal ones.
_RANDOM_LIKE = {"rand_like", "randn_like", "rand", "randn", "normal"}
_CASTS = {"float", "double", "half", "bfloat16"}
_DROPOUTS = {
    "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
    "feature_alpha_dropout",
}  # fmt: skip


#: Norms over the batch, whose statistics other rules are for.
_NORMS = (
    torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d,
    torch.nn.SyncBatchNorm, torch.nn.InstanceNorm1d, torch.nn.InstanceNorm2d,
    torch.nn.InstanceNorm3d,
)  # fmt: skip


class _Losses(NamedTuple):
    """The losses of one batch: its own and those of its parts."""

    whole: float
    again: float
    #: With another start of the random numbers.
    other_start: float
    permuted: float
    halves: tuple[float, ...]
    #: Empty if a single sample does not run.
    singles: tuple[float, ...]
    tolerance: float
    #: Names of tensors of modules that the passes changed.
    changed: tuple[str, ...]
    #: Why single samples do not run.
    obstacle: str
    #: By how much the gradient differs from the mean of those of the halves, as a share
    #: of it, both as vectors; ``None`` if there is none.
    gradient: float | None


def check_values(
    factory: Callable[[], Any], name: str, captured: CapturedModule, split_loss: bool
) -> tuple[str, ...]:
    """Refuse a module whose loss, by its values, is no mean over samples.

    Parameters
    ----------
    factory, name
        What builds the module, and the name of its model.
    captured
        The module's capture, which shows how large it is.
    split_loss
        Whether micro-batches may compute the loss apart whatever it is.

    Returns
    -------
    tuple
        What was assumed, a line each.

    Raises
    ------
    InvalidModuleError
        If the loss is no mean over samples, or if passes change what the module keeps.
    """
    unchecked = _too_large(captured)
    if unchecked:
        return (f"{UNCHECKED}: {unchecked}",)
    try:
        with _quiet():
            losses = _losses(factory)
    except _NotRunError as error:
        return (f"{UNCHECKED}: {error}",)
    if losses.changed:
        raise InvalidModuleError(
            f"{name}: {losses.changed[0]}: expected a forward pass that changes "
            f"nothing that the module keeps, got another value after it; remove the "
            f"change, or move it out of the forward pass"
        )
    if not _equal(losses, losses.whole, losses.again):
        raise InvalidModuleError(
            f"{name}: expected a forward pass that depends on nothing but its inputs, "
            f"got a loss of {losses.whole:.6g}, then {losses.again:.6g} for the same "
            f"inputs; keep no state between passes"
        )
    if not _equal(losses, losses.whole, losses.other_start):
        return (f"{UNCHECKED}: it depends on random numbers",)
    notes = []
    if losses.obstacle:
        notes.append(
            f"the loss was checked by values for 2 and {ROWS} samples, not for one: "
            f"{losses.obstacle}"
        )
    difference = _difference(losses)
    if difference and not split_loss:
        raise InvalidModuleError(
            f"{name}: expected a loss that is the mean of its samples' losses, got "
            f"{difference}; {REMEDY}"
        )
    if difference:
        notes.append(f"the loss is no mean over samples: {difference}")
    return tuple(notes)


class _NotRunError(Exception):
    """The module does not run with values; the message says why."""


def _too_large(captured: CapturedModule) -> str:
    """Return why a module is too large for the check, or an empty text."""
    rows = ROWS / captured.batch
    if captured.num_parameters > MAX_CHECKED_VALUES:
        return (
            f"{captured.num_parameters:,} trained values, more than "
            f"{MAX_CHECKED_VALUES:,}"
        )
    if captured.forward_flops * rows > MAX_CHECKED_FLOPS:
        return f"{ROWS} samples take more than {MAX_CHECKED_FLOPS:,} FLOPs"
    # Values of float64 may take twice the bytes.
    if captured.saved_bytes * rows * 2 > MAX_CHECKED_BYTES:
        return f"{ROWS} samples take more than {MAX_CHECKED_BYTES:,} bytes"
    return ""


def _difference(losses: _Losses) -> str:
    """Return which losses differ that a mean over samples has equal, if any do."""
    whole = f"{losses.whole:.6g} for {ROWS} samples"
    if not _equal(losses, losses.whole, losses.permuted):
        return f"{whole} and {losses.permuted:.6g} for them in another order"
    for what, part_losses in (
        ("halves", losses.halves),
        ("single samples", losses.singles),
    ):
        mean = sum(part_losses) / max(len(part_losses), 1)
        if part_losses and not _equal(losses, losses.whole, mean):
            return f"{whole} and a mean of {mean:.6g} for their {what}"
    if (losses.gradient or 0.0) > 10 * losses.tolerance:
        return (
            f"the loss of {ROWS} samples as the mean of those of their halves, and a "
            f"gradient that differs by {losses.gradient:.2g} of its size from the mean "
            f"of theirs"
        )
    return ""


def _equal(losses: _Losses, one: float, other: float) -> bool:
    scale = max(map(abs, (one, other, *losses.halves, *losses.singles)))
    return abs(one - other) <= losses.tolerance * scale


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings away, and the random numbers of the process as they are."""
    dtype = torch.get_default_dtype()
    with warnings.catch_warnings(), seeded(), torch.compiler.set_stance("force_eager"):
        warnings.simplefilter("ignore")
        try:
            yield
        finally:
            torch.set_default_dtype(dtype)


def _losses(factory: Callable[[], Any]) -> _Losses:
    """Return the losses of a small batch in the most precise way that runs.

    Varied inputs come first, then those of the factory as they are; float64 comes
    before float32.
    """
    reason = "no finite loss"
    for is_varied in (True, False):
        for dtype in (torch.float64, torch.float32):
            try:
                losses = _losses_as(factory, dtype, is_varied)
            except (Exception, SystemExit) as error:
                reason = first_line(error)
                continue
            finally:
                torch.set_default_dtype(torch.float32)
            if all(abs(x) < float("inf") for x in (losses.whole, *losses.halves)):
                return losses
    raise _NotRunError(f"it does not run with values on the CPU ({reason})")


def _losses_as(
    factory: Callable[[], Any], dtype: torch.dtype, is_varied: bool
) -> _Losses:
    """Return the losses of a small batch with values of one type."""
    seed_all(0)
    module, examples = factory()
    _train_only_own(module.to(dtype))
    inputs = with_samples(examples, ROWS)
    if is_varied:
        inputs = _varied(examples, inputs)

    def as_type(value: torch.Tensor) -> torch.Tensor:
        return value.detach().to(dtype) if value.is_floating_point() else value

    inputs = tree_map_only(torch.Tensor, as_type, inputs)
    torch.set_default_dtype(dtype)
    mode = _EqualNumbers(dtype)

    def run(rows: Sequence[int], seed: int = 1) -> torch.Tensor:
        seed_all(seed)
        with mode:
            chosen = with_rows(inputs, rows, examples)
            return module(*tree_map_only(torch.Tensor, torch.clone, chosen))

    def loss_of(rows: Sequence[int], seed: int = 1) -> float:
        with torch.no_grad():
            return float(run(rows, seed))

    every = range(ROWS)
    whole = loss_of(every)
    before = _state(module)
    again = loss_of(every)
    # What the same inputs make again is no state, such as a loss that a block keeps.
    changed = tuple(_changed(before, _state(module)))
    half = ROWS // 2
    losses = _Losses(
        whole=whole,
        again=again,
        other_start=loss_of(every, seed=2),
        permuted=loss_of((*every[1::2], *every[::2])),
        halves=(loss_of(every[:half]), loss_of(every[half:])),
        singles=(),
        tolerance=_TOLERANCES.get(mode.least_precise, 2e-2),
        changed=changed,
        obstacle="",
        gradient=_gradient_difference(module, run, (every, every[:half], every[half:])),
    )
    try:
        return losses._replace(singles=tuple(loss_of((row,)) for row in every))
    except (Exception, SystemExit) as error:
        return losses._replace(obstacle=first_line(error))


def _gradient_difference(
    module: torch.nn.Module,
    run: Callable[[Sequence[int]], torch.Tensor],
    batches: tuple[Sequence[int], Sequence[int], Sequence[int]],
) -> float | None:
    """Return by how much the gradient of a batch differs from that of its halves.

    ``None`` where the module trains nothing, or has no backward pass on the CPU.
    """
    trained = [p for p in module.parameters() if p.requires_grad]
    difference: list[torch.Tensor] = []
    size = 0.0
    try:
        for rows in batches:
            computed = torch.autograd.grad(run(rows), trained, allow_unused=True)
            gradients = [
                torch.zeros_like(p) if g is None else g.to_dense()
                for p, g in zip(trained, computed, strict=True)
            ]
            if not difference:
                size = _norm(gradients)
                difference = gradients
            else:
                for total, gradient in zip(difference, gradients, strict=True):
                    total -= gradient / 2
    except (Exception, SystemExit):
        return None
    return _norm(difference) / size if size else None


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    """Return the Euclidean norm of tensors as one vector."""
    return math.sqrt(sum(float(x.abs().square().sum()) for x in tensors))


def _train_only_own(module: torch.nn.Module) -> None:
    """Put the user's modules into training, and those of PyTorch out of it.

    What the user does in training, such as a change of a buffer, is seen; dropout and
    batch norm are off.
    """
    for each in module.modules():
        made_by = type(each).__module__
        each.training = not (made_by.startswith("torch.") or isinstance(each, _NORMS))


def _varied(examples: Any, inputs: Any) -> Any:
    """Return inputs like these, whose rows are drawn from the values of the examples.

    A value comes from the same place of any sample; where all samples are alike, it
    comes from any place. Fractions are mixed, so that the range stays.
    """
    batch = batch_of(examples)

    def varied(value: Any, original: Any) -> Any:
        if not has_rows(original, batch) or not original.numel():
            return value
        return _drawn(original.detach(), value.shape)

    return tree_map(varied, inputs, examples)


def _drawn(original: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Return a tensor of a shape with values like those of the original."""
    source = original.reshape(len(original), -1)
    columns = torch.arange(source.shape[1])
    if bool((source == source[0]).all()):
        source = _alternatives(source)
        columns = torch.zeros_like(columns)

    def draw() -> torch.Tensor:
        rows = torch.randint(0, len(source), (shape[0], len(columns)))
        return source[rows, columns.expand_as(rows)].reshape(shape)

    drawn = draw()
    if not original.is_floating_point() or bool((source == source.round()).all()):
        return drawn
    share = torch.rand(shape, dtype=torch.float64).to(original.dtype)
    return drawn * share + draw() * (1 - share)


def _alternatives(source: torch.Tensor) -> torch.Tensor:
    """Return a column of values for a tensor whose rows are all alike."""
    values = source.unique().reshape(-1, 1)
    if len(values) > 1 or source.dtype == torch.bool or source.is_complex():
        return values
    value = values[0]
    if source.is_floating_point():
        other = value * 0.5 if value else value + 1
        steps = torch.linspace(0, 1, 100, dtype=torch.float64).to(source.dtype)
        return (value + (other - value) * steps).reshape(-1, 1)
    return torch.stack([value, value - 1 if value > 0 else value + 1])


def _state(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return copies of the tensors that a module and its parts keep as attributes."""
    return {
        f"{path}.{name}" if path else name: value.detach().clone()
        for path, each in module.named_modules()
        for name, value in vars(each).items()
        if not name.startswith("_") and isinstance(value, torch.Tensor)
    }


def _changed(
    before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]
) -> Iterator[str]:
    """Yield the names of tensors that differ."""
    for name, value in before.items():
        now = after.get(name)
        if (
            now is None
            or value.shape != now.shape
            or not torch.equal(value.nan_to_num(), now.nan_to_num())
        ):
            yield name


class _EqualNumbers(TorchFunctionMode):  # type: ignore[misc]
    """Gives each sample the same random numbers, and leaves dropout and norms out.

    Casts to other floating-point types are left out, too. It also notes the least
    precise of those of the results.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype
        self.least_precise = torch.float64

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in _CASTS:
            return args[0].to(self.dtype)
        args, kwargs = tree_map(self._without_cast, (args, kwargs))
        if name in _DROPOUTS or (name == "batch_norm" and args):
            return args[0] if args else kwargs["input"]
        if name == "scaled_dot_product_attention":
            args, kwargs = (
                (*args[:4], *(0.0,) * (len(args) > 4), *args[5:]),
                {
                    key: 0.0 if key == "dropout_p" else value
                    for key, value in kwargs.items()
                },
            )
        result = function(*args, **kwargs)
        if name in _RANDOM_LIKE and isinstance(result, torch.Tensor):
            return torch.full_like(result, 0.5)
        if name in ("randint", "randint_like"):
            return torch.zeros_like(result) + _middle(name, args, kwargs)
        if name == "randperm":
            return result.sort(descending=True).values
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                self._note(tensor.dtype)
        return result

    def _without_cast(self, value: Any) -> Any:
        is_type = isinstance(value, torch.dtype) and value.is_floating_point
        return self.dtype if is_type else value

    def _note(self, dtype: torch.dtype) -> None:
        if _TOLERANCES.get(dtype, 1) > _TOLERANCES[self.least_precise]:
            self.least_precise = dtype if dtype in _TOLERANCES else torch.bfloat16


def _middle(name: str, args: Any, kwargs: Any) -> int:
    """Return the middle of the numbers that ``randint`` draws from."""
    numbers = [x for x in args if type(x) is int]
    low = kwargs.get("low", numbers[0] if len(numbers) > 1 else 0)
    high = kwargs.get("high", numbers[-1] if numbers else low + 1)
    return (int(low) + int(high)) // 2
