"""Whole commands for the files of the readers: what fuzzing runs.

A command runs in this process, in a folder of its own, as do the solvers that
it starts. Whatever it may write has a name that begins with ``OUT``.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from unittest import mock

from nest.certificates import check
from nest.cli.main import main
from nest.frameworks.faults import _MAX_FAULTS
from nest.ir import encode
from tests import inside
from tests.loopback import good_plan, tiny_problem
from tests.unit.topology.test_topology_files import DATA, HOW

RANKED = "slurm-blocks.conf"

#: Stands for the file that is broken.
FILE = "FILE"

#: The reader's own function, in place of a command.
READ = "read"

_MODEL = "--sequence-length 128 --global-batch 4 --tp 1"
_SOLVED = "--solver dp --time-limit 0.2"
_LAUNCH = "-o OUT.json --plan OUT-plan.json"
_TOPOLOGY = (
    "topology show FILE --plot OUT.svg --hostfile OUT.hosts --rankfile "
    "OUT.ranks -o OUT.json --json OUT2.json",
    "topology show FILE --order auto -o OUT.json",
    "topology bench FILE --json OUT.json",
)
_PLAN = (
    "score problem.json FILE --json OUT.json",
    "simulate problem.json FILE --json OUT.json",
    "trace problem.json FILE -o OUT.json",
    "explain problem.json FILE --no-search --json OUT.json",
    "report problem.json FILE -o OUT.html",
    "certify proven.json FILE -o OUT.json",
    "export problem.json FILE --to chakra -o OUT",
    "export problem.json FILE --to csv -o OUT",
    "export problem.json FILE --to megatron --model gpt2 -o OUT",
    "check problem.json FILE",
)
_PROBLEM = (
    "check FILE",
    "score FILE plan.json --json OUT.json",
    "score FILE --plan zero=0 --json OUT.json",
    "simulate FILE --plan zero=0 --json OUT.json",
    "trace FILE --plan zero=0 -o OUT.json",
    "explain FILE plan.json --no-search --json OUT.json",
    "export FILE plan.json --to chakra -o OUT",
    "certify FILE --plan zero=0 -o OUT.json",
    f"solve FILE {_SOLVED} -o OUT.json --json OUT2.json",
    "compare FILE --solvers dp,megatron --time-limit 0.2 --json OUT.json",
    "pareto FILE --time-limit 0.2 --json OUT.json -o OUT",
    f"report FILE {_SOLVED} -o OUT.html",
    f"fit FILE --within 3600 {_SOLVED} --json OUT.json",
    "bench FILE --solvers dp --time-limit 0.2 -o OUT",
)

#: Commands by reader, with the words that follow ``nest``. What takes long is
#: rare. Files that name commands or other files are read only.
COMMANDS: dict[str, tuple[str, ...]] = {
    "problem": _PROBLEM,
    "problem in yaml": _PROBLEM,
    "plan": _PLAN,
    "plan in yaml": _PLAN,
    "order of passes": (
        "import schedule-csv FILE --plan plan.json -o OUT.json",
        "simulate problem.json plan.json --schedule FILE --json OUT.json",
    ),
    "certificate": ("nest-check proven.json FILE",),
    "cluster": (
        *(_TOPOLOGY[:2] * 4),
        _TOPOLOGY[2],
        f"import hf model.json --cluster FILE {_MODEL} -o OUT.json",
        f"solve --model model.json --cluster FILE {_MODEL} {_SOLVED}",
    ),
    "price": ("topology price FILE --json OUT.json",),
    "rank file": (
        "topology show slurm-blocks.conf SAID --order FILE --rankfile "
        "OUT.ranks -o OUT.json",
    ),
    "profile": (
        f"import hf model.json --cluster h100x2 {_MODEL} --profile FILE -o OUT.json",
        "solve --model llama2-7b --cluster h100x8 --sequence-length 4096 "
        f"--global-batch 8 --tp 1,2 --sequence-parallel off --profile FILE "
        f"{_SOLVED}",
    ),
    "calibration": (
        f"import hf model.json --cluster h100x2 {_MODEL} --calibration FILE "
        f"-o OUT.json",
        "validate runs.csv --calibration FILE --json OUT.json",
    ),
    "measured rows": (
        "validate FILE --jobs 1 --details OUT.csv --json OUT.json",
        "validate FILE --jobs 1 --intervals --html OUT.html",
        "calibrate FILE -o OUT.json",
    ),
    "own runs": (
        *(READ,) * 9,
        "calibrate FILE -o OUT.json --next OUT.csv --json OUT2.json",
    ),
    "codesign": ("codesign FILE --describe --json OUT.json",),
    "layer": (
        "schedule FILE --cores tensor=2,vector=1 --time-limit 0.2 --json OUT.json",
    ),
    "artifact": ("import nest-artifact FILE -o OUT.json",),
    "piper": ("import piper FILE -o OUT.json",),
    "hf": (
        f"import hf FILE --cluster h100x2 {_MODEL} -o OUT.json",
        f"solve --model FILE --cluster h100x2 {_MODEL} {_SOLVED}",
    ),
    "script": (f"import megatron-args FILE --cluster dgx-h100x16 {_LAUNCH}",),
    "megatron config": (
        f"import megatron-args FILE --cluster dgx-h100x16 --say "
        f"vocab-size=1024 {_LAUNCH}",
        f"import megatron-args FILE --cluster dgx-h100x16 --set SEQ=1024 {_LAUNCH}",
    ),
    "maxtext": (f"import maxtext FILE --cluster dgx-h100x16 {_LAUNCH}",),
    "torchtitan": (f"import torchtitan FILE --cluster dgx-h100x8 {_LAUNCH}",),
    "deepspeed": (
        f"import deepspeed FILE --cluster dgx-h100x8 --model gpt2 "
        f"--sequence-length 1024 {_LAUNCH}",
    ),
}


def _say(options: dict[str, Any]) -> str:
    """Return what is said beside a topology file, as a command takes it."""
    texts = (
        f"{key}={x if isinstance(x, (int, float, str)) else _numbers(x)}"
        for key, x in options.items()
        if x is not None
    )
    return f" --beside {','.join(texts)}" if options else ""


def _numbers(values: Sequence[float]) -> str:
    return "/".join(map(str, values))


def _topologies() -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, (_, options) in HOW.items():
        said = _say(options)
        solved = (
            f"solve --model model.json --cluster h100x2 {_MODEL} {_SOLVED} "
            f"--topology FILE"
        )
        yield f"topology {name}", tuple(line + said for line in (*_TOPOLOGY, solved))


COMMANDS |= dict(_topologies())
COMMANDS["rank file"] = tuple(
    line.replace(" SAID", _say(HOW[RANKED][1])) for line in COMMANDS["rank file"]
)


class Ended(NamedTuple):
    """How a command ended: its exit code, and its standard error."""

    code: object
    said: str


def line_of(reader: str, seed: int, number: int) -> str:
    """Return the command that takes a broken file; always the same one."""
    rng = Random(f"command {reader} {seed} {number}")
    return rng.choice(COMMANDS.get(reader, (READ,)))


@cache
def _others() -> dict[str, bytes]:
    """Return what commands read besides the file that is broken."""
    from tests.readers import READERS, proven_pair

    return {
        "problem.json": encode(tiny_problem()),
        "plan.json": encode(good_plan()),
        "proven.json": encode(proven_pair()[0]),
        "model.json": READERS["hf"].examples()[0],
        "runs.csv": READERS["own runs"].examples()[0],
        RANKED: (DATA / RANKED).read_bytes(),
    }


def run(line: str, path: Path) -> Ended:
    """Run a command in the folder of a file, which is otherwise empty.

    Raises
    ------
    AssertionError
        If it ends as none should: another exit code than 0, 1 and 2, an
        internal error, another number of error lines than the code tells, or
        files or processes that it leaves.
    """
    folder = path.parent
    for name, data in _others().items():
        (folder / name).write_bytes(data)
    (folder / "tmp").mkdir()
    before, processes = set(os.listdir(folder)), _children()
    words = [path.name if word == FILE else word for word in line.split()]
    ended = _in_folder(words, folder)
    stray = [x for x in os.listdir(folder) if not x.startswith("OUT")]
    stray = [*(set(stray) - before), *os.listdir(folder / "tmp")]
    what = f"{line}: {ended.code}: {ended.said[-2000:]!r}"
    assert ended.code in (0, 1, 2), what
    assert "internal error" not in ended.said, what
    assert "Traceback" not in ended.said, what
    lines = ended.said.splitlines()
    errors = sum(x.startswith(("nest: error: ", "nest-check: ")) for x in lines)
    # A launch file may have several faults, all of which are said.
    assert errors <= (_MAX_FAULTS if "import" in words else 1), what
    assert errors or ended.code != 2, what
    assert all(len(x) < 12_000 for x in lines), what
    assert not stray, f"{line}: left {stray}"
    assert _children() <= processes, f"{line}: child"
    return ended


def _children() -> set[str]:
    """Return the processes that this one has, where the system shows them."""
    shown = Path(f"/proc/self/task/{os.getpid()}/children")
    return {*shown.read_text().split()} if shown.exists() else set()


def _in_folder(words: list[str], folder: Path) -> Ended:
    said, told = io.StringIO(), io.TextIOWrapper(io.BytesIO())
    code: object = None
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(folder))
        stack.enter_context(contextlib.redirect_stderr(said))
        stack.enter_context(contextlib.redirect_stdout(told))
        change = {"TMPDIR": str(folder / "tmp")}
        stack.enter_context(mock.patch.dict(os.environ, change))
        stack.enter_context(mock.patch("tempfile.tempdir", None))
        # Charts have a process of their own, and tests of their own.
        stack.enter_context(
            mock.patch("nest.present.pages.draw.can_draw", return_value=False)
        )
        for place in (*inside.PLACES, "nest.benchmarks.execute.run_solver"):
            stack.enter_context(mock.patch(place, inside.run_inside))
        try:
            if words[0] == "nest-check":
                with mock.patch.object(sys, "argv", words):
                    code = check.main()
            else:
                main(words)
        except SystemExit as exit_:
            code = exit_.code
    return Ended(code, said.getvalue())
