"""The fit that the package brings along, as a prior for further runs."""

from __future__ import annotations

from functools import cache

import numpy as np

from nest.calibration.fit import Fit
from nest.calibration.parameters import PARAMETERS
from nest.ir.base import FileStruct
from nest.util.stored import read_stored


class StoredFit(FileStruct, frozen=True, kw_only=True, tag="nest-fit/1"):
    """A fit in a file."""

    #: The ``p`` fitted parameters.
    names: tuple[str, ...]
    #: Of their values.
    logarithms: tuple[float, ...]
    #: Of the logarithms, ``(p, p)``.
    covariance: tuple[tuple[float, ...], ...]
    #: How many step times of how many sources were fitted.
    rows: int
    sources: int


@cache
def stored_fit() -> Fit:
    """Return the fit that comes with the package."""
    stored = read_stored("nest.calibration", "fit", StoredFit)
    by_name = {parameter.name: parameter for parameter in PARAMETERS}
    return Fit(
        tuple(by_name[name] for name in stored.names),
        np.array(stored.logarithms),
        np.array(stored.covariance),
    )
