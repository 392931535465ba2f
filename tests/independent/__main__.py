"""Compare both scorers on many random pairs: ``python -m tests.independent``.

``python -m tests.independent N [SEED]`` draws N pairs of a problem and a plan
and writes the pairs on which they differ to files.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path
from random import Random

from nest.ir import write
from tests.independent.compare import differences
from tests.independent.generate import draw_pair


def main(count: int, seed: int) -> int:
    """Compare ``count`` pairs; return how many differ."""
    began = time.process_time()
    mix: Counter[str] = Counter()
    num_different = 0
    for number in range(seed, seed + count):
        problem, plan = draw_pair(Random(number))
        verdict, found = differences(problem, plan)
        mix[f"{problem.preset} {verdict}"] += 1
        if found:
            num_different += 1
            stem = f"pair-{number}"
            write(Path(f"{stem}-problem.json"), problem)
            write(Path(f"{stem}-plan.json"), plan)
            print(f"{stem}: {'; '.join(found)}", flush=True)
    for name, amount in sorted(mix.items()):
        print(f"{name:28} {amount:7}")
    print(
        f"{count} pairs from seed {seed}, {num_different} differ, "
        f"{time.process_time() - began:.0f} s of CPU"
    )
    return num_different


if __name__ == "__main__":
    _count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    _seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    sys.exit(main(_count, _seed) > 0)
