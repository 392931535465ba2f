"""Write the list of slow tests, from the times of a run.

    CPU_TIMES=build/times.txt make test-all
    python -m tests.slow build/times.txt

A function is slow if one of its parameters takes more than a third of what a
test may take that is not: other machines are slower, and busy ones too.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.conftest import MOST_S, SLOW

LIST = Path(__file__).parent / "slow.txt"


def main(path: str) -> None:
    """Rewrite the list; tests that did not run stay as they are."""
    longest: dict[str, float] = {}
    for line in Path(path).read_text().splitlines():
        used_s, _, name = line.partition(" ")
        function = name.partition("[")[0]
        longest[function] = max(longest.get(function, 0.0), float(used_s))
    slow = {name for name, used_s in longest.items() if used_s > MOST_S / 3}
    names = sorted(slow | (SLOW - longest.keys()))
    LIST.write_text("".join(f"{name}\n" for name in names))
    print(f"{len(names)} of {len(longest)} functions are slow")


if __name__ == "__main__":
    main(sys.argv[1])
