"""Energy and average power of a step: of what runs, and of leakage.

The energy of a step is the sum over stages, layers, micro-batches and
replicas, on every device of a stage, of the energies of the operators of the
forward pass, the backward pass and what is recomputed, each in the mode of
its schedule, and the leakage of every device for as long as the step takes,
idle ones too. Not in it: optimizer updates, collectives, links and hosts.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from nest.accelerators.architecture import Architecture
from nest.accelerators.layers import LayerWork, Pass
from nest.accelerators.operators import energy_fj
from nest.accelerators.silicon import Technology, area_e6_um2, leakage_mw, unit_energies
from nest.accelerators.workload import Workload, cores_of
from nest.ir.plan import Plan, Strategy
from nest.operator_schedule import schedule
from nest.units import ceil_div


class StepEnergy(NamedTuple):
    """The energy of a step, of all devices together."""

    operators_fj: int
    leakage_fj: int
    step_ps: int
    num_devices: int

    @property
    def total_fj(self) -> int:
        """Of all that is counted."""
        return self.operators_fj + self.leakage_fj

    @property
    def average_mw(self) -> int:
        """The average power of a device, rounded up."""
        return ceil_div(self.total_fj, self.step_ps * self.num_devices)


def step_energy(
    workload: Workload,
    architecture: Architecture,
    process: Technology,
    plan: Plan,
    step_ps: int,
) -> StepEnergy:
    """Return the energy of a step.

    Raises ``InvalidPlanError`` if the plan has a layer or a split that the model has
    not.
    """
    problem = workload.base
    passes = _Passes(workload, architecture, process)
    per_micro_batch_fj = sum(
        stage.devices * passes.layer_fj(work, strategy)
        for stage, strategy, work in workload.works_of(plan)
    )
    micro_batches = problem.job.global_batch // plan.micro_batch
    num_devices = problem.cluster.num_devices
    # mW times ps is fJ.
    leakage = leakage_mw(area_e6_um2(architecture, process), process)
    return StepEnergy(
        operators_fj=micro_batches * per_micro_batch_fj,
        leakage_fj=leakage * step_ps * num_devices,
        step_ps=step_ps,
        num_devices=num_devices,
    )


class _Passes:
    """Energies of passes, each found once."""

    def __init__(
        self, workload: Workload, architecture: Architecture, process: Technology
    ) -> None:
        self._workload, self._chip = workload, architecture
        self._units = unit_energies(architecture, process)
        self.pass_fj = cache(self._pass_fj)

    def layer_fj(self, work: LayerWork, strategy: Strategy) -> int:
        """Return what a layer takes on a device for a micro-batch."""
        again = {"full": work.forward, "selective": work.repeated}
        repeated = again.get(strategy.recompute, ())
        runs = (*work.forward, *work.backward, *repeated)
        return sum(count * self.pass_fj(each) for each, count in runs)

    def _pass_fj(self, each: Pass) -> int:
        workload, chip = self._workload, self._chip
        operators = workload.operators(workload.passes.index(each), chip)
        placed = schedule(operators, cores_of(chip)).operators
        return sum(
            energy_fj(
                *(work, chip, self._units),
                whole=placed[operator.name].whole,
                convention=workload.convention,
            )
            for work, operator in zip(each.works, operators, strict=True)
        )
