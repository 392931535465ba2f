"""The best pipeline of stages with as many layers each, a device a stage."""

from itertools import pairwise

from nest import Plan, score
from nest.errors import InvalidPlanError
from nest.ir import Stage, Strategy
from nest.solvers.base import Capabilities, SolverOutput, Status


class EvenPlanner:
    """Tries every number of stages, on as many replicas as there can be."""

    name = "even"
    capabilities = Capabilities(exact=False, method="even pipelines")

    def unsupported(self, problem):
        """Return why it cannot search a problem, or ``None``."""

    def solve(self, problem, options, report=None):
        """Return the fastest plan that fits."""
        graph, best = problem.graph, None
        layers = [graph.layers[i].id for i in graph.topological_order()]
        for count in range(1, len(layers) + 1):
            cuts = [i * len(layers) // count for i in range(count + 1)]
            stages = [
                Stage.of(layers[i:j], [Strategy()] * (j - i)) for i, j in pairwise(cuts)
            ]
            replicas = max(1, problem.cluster.num_devices // count)
            plan = Plan(
                replicas=replicas,
                micro_batch=problem.job.micro_batches[0],
                stages=tuple(stages),
            )
            try:
                found = score(problem, plan)
            except InvalidPlanError:  # such as a batch that does not divide
                continue
            if found.feasible and (not best or found.step_quanta < best[0]):
                best = found.step_quanta, plan
        if best is None:
            return SolverOutput(Status.NO_SOLUTION, detail="no pipeline fits")
        return SolverOutput(Status.FEASIBLE, best[1], claimed_quanta=best[0])
