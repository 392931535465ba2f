"""Write the list of slow tests, from the times of a run.

    CPU_TIMES=build/times.txt make test-all
    python -m tests.slow build/times.txt

A function is slow if a test of it takes more than a third of a second of CPU.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conftest import SLOW

LIST = Path(__file__).parent / "slow.txt"

#: Seconds of CPU of a test that is quick.
QUICK_S = 1 / 3


def main(path: str) -> None:
    """Rewrite the list; tests that did not run stay as they are."""
    longest: dict[str, float] = {}
    for line in Path(path).read_text().splitlines():
        used_s, _, name = line.partition(" ")
        function = name.partition("[")[0]
        longest[function] = max(longest.get(function, 0.0), float(used_s))
    slow = {name for name, used_s in longest.items() if used_s > QUICK_S}
    names = sorted(slow | (SLOW - longest.keys()))
    LIST.write_text("".join(f"{name}\n" for name in names))
    print(f"{len(names)} of {len(longest)} functions are slow")


if __name__ == "__main__":
    main(sys.argv[1])
