"""What is fitted: named parameters, what is known of them before, and how."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from nest.hardware.calibration import Calibration, Software, stored_calibration
from nest.ir.base import Struct
from nest.util.stored import read_stored
from nest.validation.predict import PredictOptions

#: Every family of devices, or what does not belong to one.
EVERY = "every"
SOFTWARE = "software"


class Parameter(Struct, frozen=True, kw_only=True):
    """One fitted parameter."""

    #: ``family.field`` of :class:`~nest.hardware.calibration.Calibration`;
    #: ``every.field`` is one value for all families, ``software.name`` an overlapped
    #: fraction.
    name: str
    #: Most probable value without any row.
    value: float
    #: Standard deviation of what is known of it, in its logarithm.
    deviation: float
    #: Standard deviation of its logarithm from source to source.
    spread: float
    #: Largest value.
    most: float = math.inf
    #: Where ``value`` is from.
    note: str = ""

    @property
    def family(self) -> str:
        """Whose parameter it is."""
        return self.name.split(".")[0]

    @property
    def field(self) -> str:
        """Which of its parameters it is."""
        return self.name.split(".")[1]

    def concerns(self, family: str) -> bool:
        """Return whether predictions for a device family depend on it."""
        return self.family in (EVERY, SOFTWARE, family)


PARAMETERS = read_stored("nest.calibration", "parameters", tuple[Parameter, ...])


def options_of(
    values: Mapping[str, float], parameters: tuple[Parameter, ...] = PARAMETERS
) -> PredictOptions:
    """Return the options that predict with values, the others as stored."""
    stored = stored_calibration()
    families: dict[str, dict[str, Any]] = {
        name: msgspec.structs.asdict(calibration)
        for name, calibration in stored.families.items()
    }
    software = msgspec.structs.asdict(stored.software)
    software["overlap"] = dict(software["overlap"])
    slowdown = values.get("every.slowdown", 1.0)
    for parameter in parameters:
        if parameter.field == "slowdown":
            continue
        value = min(values[parameter.name], parameter.most)
        if parameter.family == SOFTWARE:
            software["overlap"][parameter.field] = value
        elif parameter.family == EVERY:
            for fields in families.values():
                # Compiled programs issue no kernels.
                if fields["host_ns"] or parameter.field != "host_ns":
                    fields[parameter.field] = value
        else:
            families[parameter.family][parameter.field] = value
    for fields in families.values():
        for name in ("matmul", "attention", "memory"):
            share = fields[f"{name}_fraction"] / slowdown
            fields[f"{name}_fraction"] = min(share, 1.0)
        fields["host_ns"] *= slowdown
    return PredictOptions(
        calibration={name: Calibration(**fields) for name, fields in families.items()},
        software=Software(**software),
    )
