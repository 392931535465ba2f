"""What plans under a software cost: by the table that predictions of rows read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from nest.constraints.targets import ANY
from nest.errors import InvalidOptionError
from nest.hardware.calibration import stored_calibration
from nest.hardware.fabric import MachineRun
from nest.ir.job import Optimizer, Schedules, splits_backward
from nest.ir.plan import Overlap
from nest.models.choices import Choices
from nest.models.operators.base import Dtype, Execution
from nest.validation.predict import SHARDED_GRADIENTS, execution_of, reached_by
from nest.validation.rows import Row
from nest.validation.settings import overlap_of
from nest.validation.software import Software, runs, software_of

#: What the targets are called in rows.
NAMES_OF_TARGETS = {
    "megatron": "Megatron-LM",
    "torchtitan": "torchtitan",
    "deepspeed": "DeepSpeed",
    "maxtext": "MaxText",
    "accelerate": "Accelerate",
}


class Planned(NamedTuple):
    """The software of a problem that is to be made."""

    #: What is known of a run: the names of software, model and device.
    row: Row
    #: The entry of the table.
    facts: Software

    def on(self, machines: Sequence[MachineRun]) -> list[MachineRun]:
        """Return machines with the rates that the software reaches there."""
        return [
            (reached_by(self.row, self.facts, site), count) for site, count in machines
        ]

    def execution(
        self,
        machines: Sequence[MachineRun],
        dtype: Dtype = "bf16",
        schedule: Schedules = "1f1b",
    ) -> Execution:
        """Return how operators run on machines, in a data type and a schedule."""
        site, _ = machines[0]
        num_devices = sum(count for _, count in machines)
        return replace(
            execution_of(self.row, self.facts, site, num_devices),
            dtype=dtype,
            split_backward=splits_backward(schedule),
        )

    def choices(
        self,
        choices: Choices,
        machines: Sequence[MachineRun],
        stated: frozenset[str],
        fractions: Mapping[Overlap, float] | None = None,
    ) -> Choices:
        """Return choices with what the software does.

        Of ``overlap`` and ``optimizer`` what is ``stated`` stays as it is.
        ``fractions`` say what overlap hides, by default as the stored calibration does.
        """
        facts = self.facts
        execution = self.execution(machines, choices.dtype, choices.schedule)
        choices = replace(choices, execution=execution)
        if "overlap" not in stated:
            fractions = fractions or stored_calibration().software.overlap
            overlap = {name: fractions[name] for name in overlap_of(self.row, facts)}
            choices = replace(choices, overlap=overlap)
        if "optimizer" not in stated:
            optimizer = Optimizer(
                name=choices.optimizer.name,
                weight_bytes=choices.optimizer.weight_bytes,
                gradient_bytes=facts.gradient_bytes,
                state_bytes=facts.state_bytes,
                buffer_bytes=facts.buffer_bytes,
            )
            choices = replace(choices, optimizer=optimizer)
        return choices

    def with_buckets(self, choices: Choices, weights: int) -> Choices:
        """Return choices with what ZeRO holds of a model of so many weights.

        Sums of all gradients that ZeRO 2 and 3 shard are not held under them.
        """
        optimizer = self.facts.with_buckets(choices.optimizer, weights)
        if min(choices.zero) >= SHARDED_GRADIENTS:
            optimizer = replace(optimizer, buffer_bytes=0)
        return replace(choices, optimizer=optimizer)


def planned(
    name: str | None, target: str | None, model: str, device: str, dtype: str | None
) -> Planned | None:
    """Return the software of a name, or else of a target; None for neither.

    The name is as a row has it in ``framework``; the entries of the table go by
    ``model``, ``device`` and ``dtype`` besides.

    Raises ``InvalidOptionError`` if the name is that of software which does not run
    plans of the target.
    """
    usual = NAMES_OF_TARGETS.get(target or ANY)
    if name is None and usual is None:
        return None
    row = Row(
        framework=name or usual,
        model=model,
        hardware=device,
        precision_class=dtype or "bf16",
    )
    facts = software_of(row)
    if usual is not None and facts.is_known and not runs(facts, target or ANY):
        raise InvalidOptionError(
            f"software: expected one that runs plans for {target}, such as {usual!r}, "
            f"got {name!r} ({facts.name}); correct it or leave it out"
        )
    return Planned(row, facts)
