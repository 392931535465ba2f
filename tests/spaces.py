"""Every point of a space solved by itself, without what a search cuts."""

from __future__ import annotations

from typing import NamedTuple

from nest.accelerators.answers import setting_of
from nest.accelerators.evaluate import best_plan, bound_of, work_bound
from nest.accelerators.objective import NO_PLAN
from nest.accelerators.spec import Spec
from nest.accelerators.tasks import workload_of


class Enumerated(NamedTuple):
    """Step times and bounds in quanta, by model and then by point."""

    steps: tuple[tuple[int, ...], ...]
    bounds: tuple[tuple[int, ...], ...]

    def fits(self) -> list[int]:
        """Return the points that every model has a plan on."""
        return [
            point
            for point, steps in enumerate(zip(*self.steps, strict=True))
            if max(steps) < NO_PLAN
        ]


def enumerate_space(spec: Spec) -> Enumerated:
    """Solve every model of a specification on every point."""
    steps, bounds = [], []
    for model in spec.models:
        of_model, bounded = [], []
        for point in spec.space.points:
            architecture = point.architecture
            workload = workload_of(
                setting_of(spec, model, architecture.devices_per_node)
            )
            least = workload.entries(workload.least(architecture))
            bounded.append(work_bound(bound_of(workload), least))
            times = workload.entries(workload.shortest(architecture))
            of_model.append(best_plan(workload.problem(architecture, times))[0])
        steps.append(tuple(of_model))
        bounds.append(tuple(bounded))
    return Enumerated(tuple(steps), tuple(bounds))
