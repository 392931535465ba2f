"""Energy of a step, by hand and within the TDP."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from nest.accelerators.answers import setting_of
from nest.accelerators.energy import step_energy
from nest.accelerators.operators import energy_fj
from nest.accelerators.silicon import leakage_mw, tdp_mw, unit_energies
from nest.accelerators.tasks import workload_of
from nest.accelerators.workload import cores_of
from nest.cost.score import score
from nest.errors import InvalidPlanError
from nest.ir.plan import Plan, Stage, Strategy
from nest.operator_schedule import schedule
from tests.codesigns import on, spec_of
from tests.random_spaces import known, random_spec

STEP_PS = 10**11


def test_a_step_by_hand() -> None:
    """Sixteen samples in eight micro-batches on two stages of two devices."""
    spec = spec_of()
    point = spec.space.points[-1]
    chip, process = point.architecture, spec.process
    workload = workload_of(setting_of(spec, "gpt2", 2))
    plan = on("gpt2", STEP_PS).plan
    assert plan is not None

    def pass_fj(each) -> int:
        number = workload.passes.index(each)
        operators = workload.operators(number, chip)
        placed = schedule(operators, cores_of(chip)).operators
        return sum(
            energy_fj(
                work, chip, unit_energies(chip, process), whole=placed[str(place)].whole
            )
            for place, work in enumerate(each.works)
        )

    layers = workload.base.graph.layers
    expected = again = 0
    for layer in layers:
        work = workload.works[layer.kind, (1, 1, 1, 0, False, 1)]
        forward = sum(n * pass_fj(each) for each, n in work.forward)
        backward = sum(n * pass_fj(each) for each, n in work.backward)
        expected += 8 * 2 * (forward + backward)
        again += 8 * 2 * forward
    found = step_energy(workload, chip, process, plan, STEP_PS)
    assert found.operators_fj == expected
    leakage = leakage_mw(point.area_e6_um2, process)
    assert found.leakage_fj == leakage * STEP_PS * 4
    mean = (expected + found.leakage_fj) / (STEP_PS * 4)
    assert 0 <= found.average_mw - mean < 1
    full = Strategy(dp=2, recompute="full")
    repeated = replace(
        plan, stages=tuple(replace(x, strategy=full) for x in plan.stages)
    )
    more = step_energy(workload, chip, process, repeated, STEP_PS)
    assert more.operators_fj == expected + again


def test_a_plan_of_another_model() -> None:
    spec = spec_of()
    workload = workload_of(setting_of(spec, "gpt2", 2))
    stage = Stage(layers=("none",), devices=4, strategy=Strategy(dp=4))
    plan = Plan(replicas=1, micro_batch=4, stages=(stage,))
    with pytest.raises(InvalidPlanError, match="none: expected a layer and a"):
        step_energy(
            workload, spec.space.points[0].architecture, spec.process, plan, STEP_PS
        )


@pytest.mark.parametrize("seed", range(6))
def test_no_more_than_the_tdp(seed: int) -> None:
    """Of random points, in a step as short as any: nothing but work."""
    spec, models = random_spec(seed, 40)
    with known(models):
        for point in spec.space.points[:: max(1, len(spec.space.points) // 3)]:
            chip = point.architecture
            name = spec.models[seed % 3]
            workload = workload_of(setting_of(spec, name, chip.devices_per_node))
            times = workload.entries(workload.shortest(chip))
            problem = workload.problem(chip, times)
            ids = tuple(layer.id for layer in problem.graph.layers)
            # One device does all, as often as there are devices.
            stage = Stage(layers=ids, devices=1, strategy=Strategy())
            plan = Plan(replicas=spec.devices, micro_batch=1, stages=(stage,))
            step_ps = score(problem, plan).step_quanta * problem.quantum_ps
            found = step_energy(workload, chip, spec.process, plan, step_ps)
            assert found.operators_fj > 0
            assert found.average_mw <= tdp_mw(chip, spec.process)
