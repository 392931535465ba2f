"""Write the list of slow tests, from the times of a run.

    CPU_TIMES=build/times.txt make test-all
    python -m tests.slow build/times.txt

A test is slow if it takes more than a third of a second of CPU. One that
notices a mutation (bench/results/mutation.txt) stays quick up to half a
second, so that ``make test`` notices most of what the whole suite does.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path

from tests.conftest import LIMIT_S, SLOW

LIST = Path(__file__).parent / "slow.txt"
NOTICED = Path(__file__).parents[1] / "bench" / "results" / "mutation.txt"

#: Seconds of CPU of a test that is quick.
QUICK_S = 1 / 3

#: The same of a test that notices a mutation.
MOST_S = 0.55 * LIMIT_S


def main(path: str) -> None:
    """Rewrite the list; tests that did not run stay as they are."""
    noticing = NOTICED.read_text()
    times: dict[str, dict[str, float]] = defaultdict(dict)
    for line in Path(path).read_text().splitlines():
        used_s, _, test = line.partition(" ")
        function = test.partition("[")[0]
        times[function][test] = max(times[function].get(test, 0.0), float(used_s))
    slow = {name for name in SLOW if name.partition("[")[0] not in times}
    for function, tests in times.items():
        names = {
            test
            for test, used_s in tests.items()
            if used_s > (MOST_S if f" {test}\n" in noticing else QUICK_S)
        }
        slow |= {function} if len(names) == len(tests) else names
    LIST.write_text("".join(f"{name}\n" for name in sorted(slow)))
    print(f"{len(slow)} entries, of {sum(map(len, times.values()))} tests")


if __name__ == "__main__":
    main(sys.argv[1])
