"""Which further runs would tell most about the step times of a cluster.

Candidates are configurations of the models that ran, within the devices that ran. With
covariance ``C`` of the parameters and slopes ``j`` of a candidate's logarithm, its
prediction is uncertain by ``j C jᵀ``, and a run with slopes ``k`` and noise ``r²``
changes ``C`` to ``C - C kᵀ k C / (r² + k C kᵀ)``. Chosen is, one after the other, what
lowers the mean uncertainty of all candidates most: the V-optimal design of Chaloner and
Verdinelli 1995, doi 10.1214/ss/1177009939, section 2.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from nest.calibration.evidence import Array, evidence_of
from nest.calibration.parameters import options_of
from nest.calibration.runs import Learned
from nest.errors import NestError
from nest.validation.predict import Skip, predict
from nest.validation.rows import Row
from nest.validation.software import software_of
from nest.validation.usable import why_unusable

#: Runs that are proposed.
PROPOSED = 3

#: Candidates at most, drawn at random from all configurations.
MOST_CANDIDATES = 40

#: Values that are tried: micro-batches, and degrees up to twice what ran,
#: of tensor parallelism inside a node.
MICRO_BATCHES = (1, 2, 4, 8)
DEGREES = (1, 2, 4, 8, 16, 32)

#: ZeRO stage that shards weights too.
MOST_SHARDED = 3

#: What makes a model, whatever it runs on and however.
_MODEL = (
    *("layers", "hidden", "heads", "kv_heads", "ffn_hidden", "experts"),
    *("vocab", "framework", "precision_class"),
)

#: What a candidate chooses.
CHOICES = ("num_devices", "tp", "pp", "dp", "micro_batch", "seq_len")

#: Cells that a run has and a candidate has not; any step time can be predicted.
_NOTHING_MEASURED = {
    **dict.fromkeys(("row_id", "grad_accum", "notes", "peak_mem_gb")),
    **dict.fromkeys(("tokens_per_s_per_gpu", "samples_per_s")),
    "iter_time_s": 1.0,
}


@dataclass(frozen=True)
class Candidates:
    """Runs that could be done."""

    #: ``m`` configurations that fit the devices, with the predicted step time in
    #: ``iter_time_s``.
    rows: tuple[Row, ...]
    #: How the logarithms of step times move with those of the parameters, ``(m, p)``.
    slopes: Array


class Proposal(NamedTuple):
    """A run that would tell much."""

    #: What to run, with the predicted step time.
    row: Row
    #: How far off step times of all candidates are after this run and those before it:
    #: the root of their mean uncertainty and the noise of a run, a fraction of step
    #: times.
    deviation: float


def candidates(
    learned: Learned, seed: int = 0, tell: Callable[[str], None] | None = None
) -> Candidates:
    """Return configurations of the models that ran, none that did.

    ``seed`` is for what is drawn where there are more than :data:`MOST_CANDIDATES`;
    ``tell`` is called now and then with what is being done.
    """
    runs, after = learned.runs, learned.after
    ran = {_choice(row) for row in runs.rows}
    grid = [
        row
        for base in _models(runs.rows)
        for row in _variants(base, runs.rows, runs.site.node.fan_out)
        if _choice(row) not in ran
    ]
    random.Random(seed).shuffle(grid)
    options = options_of(after.values, after.parameters)
    rows: list[Row] = []
    for row in grid:
        if len(rows) == MOST_CANDIDATES:
            break
        try:
            answer = predict(row, options)
        except NestError:
            continue
        if isinstance(answer, Skip) or not answer.fits:
            continue
        rows.append(replace(row, iter_time_s=answer.step_time_s))
        if tell is not None:
            tell(f"{len(rows)} runs that could be done")
    if not rows:
        return Candidates((), np.zeros((0, len(after.x))))
    evidence = evidence_of(rows, [runs.where] * len(rows))
    errors = evidence.errors(after.x, after.parameters)
    slopes = evidence.slopes(after.x, errors, after.parameters)
    return Candidates(tuple(rows), slopes)


def _choice(row: Row) -> tuple[object, ...]:
    return tuple(getattr(row, name) for name in (*_MODEL, *CHOICES))


def _models(rows: tuple[Row, ...]) -> list[Row]:
    """Return a run of each model."""
    by_model: dict[tuple[object, ...], Row] = {}
    for row in rows:
        by_model.setdefault(tuple(getattr(row, name) for name in _MODEL), row)
    return list(by_model.values())


def _variants(base: Row, rows: tuple[Row, ...], node_size: int) -> Iterator[Row]:
    """Yield what else the model of a run could do on the devices that ran.

    What is no choice (recomputation, ZeRO stage, software) stays as it is.
    Where all states are sharded, so do the degrees: such software may have
    neither tensor nor pipeline parallelism.
    """
    counts = sorted({row.num_devices or 1 for row in rows})
    lengths = sorted({row.seq_len or 1 for row in rows})
    most_tp = min(node_size, 2 * max(row.tp or 1 for row in rows))
    most_pp = 2 * max(row.pp or 1 for row in rows)
    degrees = {degree for degree in DEGREES if degree <= most_tp}
    stages = {degree for degree in DEGREES if degree <= most_pp}
    stated = base.zero_stage
    zero = software_of(base).zero if stated is None else stated
    if zero == MOST_SHARDED:
        same_software = [row for row in rows if row.framework == base.framework]
        degrees = {row.tp or 1 for row in same_software}
        stages = {row.pp or 1 for row in same_software}
    cp = base.cp or 1
    for count, tp, pp, micro_batch, length in product(
        counts, sorted(degrees), sorted(stages), MICRO_BATCHES, lengths
    ):
        dp, rest = divmod(count, tp * pp * cp)
        batch = base.global_batch or 1
        if rest or not dp or batch % (micro_batch * dp):
            continue
        values = (count, tp, pp, dp, micro_batch, length)
        chosen = dict(zip(CHOICES, values, strict=True))
        vpp = base.vpp if pp == base.pp else None
        row = replace(base, **_NOTHING_MEASURED, **chosen, vpp=vpp, line=0)
        if why_unusable(row) is None:
            yield row


def propose(learned: Learned, pool: Candidates) -> list[Proposal]:
    """Return the runs of a pool that would tell most, the best first."""
    noise = learned.noise
    chosen = choose(pool.slopes, learned.after.covariance, noise, PROPOSED)
    return [
        Proposal(pool.rows[n], math.hypot(deviation, noise)) for n, deviation in chosen
    ]


def choose(
    slopes: Array, covariance: Array, noise: float, count: int
) -> list[tuple[int, float]]:
    """Choose ``count`` runs that lower the mean uncertainty of all predictions most.

    Candidates have ``slopes``, ``(m, p)``, parameters a ``covariance``, ``(p, p)``, and
    the logarithm of a run the standard deviation ``noise``. Returned are the number of
    a candidate, each once, and the root of the mean uncertainty with it and those
    before it.
    """
    choices: list[tuple[int, float]] = []
    for _ in range(min(count, len(slopes))):
        moved = slopes @ covariance
        shared = moved @ slopes.T
        variances = noise**2 + np.diag(shared)
        # By how much a run lowers the uncertainties of all, together.
        gains = (shared**2).sum(axis=0) / variances
        gains[[index for index, _ in choices]] = -1.0
        best = int(np.argmax(gains))
        covariance = covariance - np.outer(moved[best], moved[best]) / variances[best]
        choices.append((best, spread_of(slopes, covariance)))
    return choices


def spread_of(slopes: Array, covariance: Array) -> float:
    """Return the root of the mean uncertainty of predictions."""
    variances = np.einsum("ij,jk,ik->i", slopes, covariance, slopes)
    return float(np.sqrt(variances.mean()))
