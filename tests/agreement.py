"""Count on how many random problems the exact solvers agree.

``python -m tests.agreement KIND [COUNT] [SEED] [JOBS]`` draws problems of a
kind, or of all kinds in turn (``all``), until so many different ones are
compared in so many processes, and prints the counts. Layers take up to 1e14
quanta, see :mod:`tests.strategies`. ``brute`` is the truth; ``milp`` runs with
every engine that is installed. A problem on which a solver is wrong is written
to ``.hypothesis/disagreements``. The same seed draws the same problems.
"""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing import Pool
from pathlib import Path
from random import Random

from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from nest.constraints.targets import for_target, names
from nest.errors import InvalidOptionError
from nest.ir import Problem, problem_hash, write
from nest.solvers.base import SolveOptions
from nest.solvers.registry import get_solver
from tests.builders import with_job
from tests.half_quanta import half_quanta
from tests.independent.generate import draw_spread
from tests.properties.test_mixed_devices import mixed
from tests.properties.test_solvers_agree import solve, why_wrong
from tests.strategies import Draw, problems, with_offload, with_predictions

#: What is held against ``brute``: solver and, of ``milp``, engine.
SOLVERS = (
    *("dp", "cpsat", "milp cbc", "milp highs"),
    *(["milp scip"] if find_spec("pyscipopt") else []),
)

#: Draws per problem to compare: some are of another kind, or repeat.
DRAWS = 20

Kind = st.SearchStrategy[Problem]


def _sharded(problem: Problem) -> Problem:
    return with_job(problem, overlap={}, distributed_optimizer=True)


def _extreme(problem: Problem) -> Problem:
    """Let every fraction be 0 or 1: all hides or nothing."""
    job = problem.job
    job = replace(
        job,
        overlap={name: float(x >= 0.3) for name, x in job.overlap.items()},
        gradient_sync_overlap=float(job.gradient_sync_overlap > 0),
        weight_backward_fraction=float(job.weight_backward_fraction > 0),
    )
    return replace(problem, job=job)


def _any() -> Kind:
    plain = problems(preset="standard")
    return st.one_of(plain, plain, problems(graphs=True), mixed())


def _for(name: str) -> Kind:
    """Draw problems for a target; those it has no choice for are skipped."""

    def narrowed(problem: Problem) -> Problem:
        try:
            return for_target(problem, name)
        except InvalidOptionError:
            assume(False)
            raise

    return _any().map(narrowed)


@st.composite
def _predicting(draw: Draw) -> Problem:
    """Draw problems of Megatron with modules for multi-token prediction."""
    problem = with_predictions(draw, draw(_any()))
    try:
        return for_target(problem, "megatron")
    except InvalidOptionError:
        assume(False)
        raise


@st.composite
def _offloading(draw: Draw) -> Problem:
    """Draw problems whose plans may leave activations to the host."""
    kinds = (
        *(problems(preset="standard"), problems(granularity="layer"), mixed()),
        *(problems(overlapping=True), problems(graphs=True)),
    )
    try:
        return with_offload(draw, draw(st.one_of(*kinds)))
    except ValueError:
        assume(False)  # passes that a schedule splits keep their activations
        raise


KINDS: dict[str, Callable[[], Kind]] = {
    "plain": lambda: problems(preset="standard"),
    "layer": lambda: problems(granularity="layer"),
    "graph": lambda: problems(graphs=True),
    "mixed": mixed,
    "overlap": lambda: problems(overlapping=True),
    "fractions": lambda: st.one_of(
        problems(overlapping=True).map(_extreme),
        st.integers(0, 2**63).map(lambda x: half_quanta(Random(x))),
    ),
    # Passes that may wait for the host; of others one problem in four.
    "host": lambda: st.one_of(
        problems(preset="standard", hosts=True),
        problems(overlapping=True, hosts=True),
        problems(granularity="layer", hosts=True),
        mixed(hosts=True),
    ),
    "offload": _offloading,
    "mtp": _predicting,
    "experts": lambda: st.one_of(
        problems(folding=True),
        problems(folding=True, graphs=True),
        problems(folding=True, granularity="layer"),
        problems(folding=True, choosing=True),
        problems(folding=True, overlapping=True),
    ),
    "distributed": lambda: problems(overlapping=True).map(_sharded),
    # Times that differ by six orders, with overlap and without.
    "spread": lambda: st.randoms(use_true_random=True).map(
        lambda random: draw_spread(Random(random.getrandbits(64)))
    ),
    **{
        name: lambda name=name: _for(name)  # type: ignore[misc]
        for name in names()
        if name != "any"
    },
}


class EnoughError(Exception):
    """So many problems are compared."""


def compare(kind: str, count: int, first: int) -> Counter[str]:
    """Compare solvers on so many problems; return how often one is wrong."""
    mix: Counter[str] = Counter()
    seen: set[str] = set()

    @seed(first)
    @settings(
        max_examples=DRAWS * count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(KINDS[kind]())
    def look(problem: Problem) -> None:
        if len(seen) >= count:
            raise EnoughError
        if problem_hash(problem) in seen:
            return
        seen.add(problem_hash(problem))
        truth = get_solver("brute")().solve(problem, SolveOptions())
        mix["problems"] += 1
        mix[str(truth.status)] += 1
        for name in SOLVERS:
            try:
                output = solve(name, problem)
            except Exception as error:
                wrong: str | None = f"{name}: {error}"
            else:
                wrong = why_wrong(name.split()[0], problem, truth, output)
            mix[f"{name} {'agrees' if wrong is None else 'is wrong'}"] += 1
            if wrong is not None:
                folder = Path(".hypothesis", "disagreements")
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"{kind}-{problem_hash(problem)[:12]}.json"
                write(path, problem)
                print(f"{path}: {wrong}", flush=True)

    with suppress(EnoughError):
        look()
    return mix


def main(arguments: list[str]) -> int:
    """Return the exit code: 2 for a kind that is not known."""
    if not arguments or arguments[0] not in {*KINDS, "all"}:
        print(
            f"tests.agreement: expected one of {', '.join(KINDS)}, all, got "
            f"{' '.join(arguments[:1]) or 'nothing'}",
            file=sys.stderr,
        )
        return 2
    kind = arguments[0]
    count, first, jobs = [*map(int, arguments[1:4]), 1000, 0, 1][:3]
    kinds = [*KINDS] if kind == "all" else [kind] * jobs
    shares = [
        (name, count // len(kinds) + (i < count % len(kinds)), first + i)
        for i, name in enumerate(kinds)
    ]
    with Pool(jobs, maxtasksperchild=1) as pool:
        mixes = pool.starmap(compare, shares, chunksize=1)
    mix = sum(mixes, Counter())
    for name, number in sorted(mix.items()):
        print(f"{kind:12} {name:22} {number:6}")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = used.ru_utime + used.ru_stime
    print(f"{kind}: seed {first}, {cpu_s:.0f} s of CPU")
    return int(any(name.endswith("is wrong") for name in mix))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
