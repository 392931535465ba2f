"""Commands that are refused, and the line that each writes.

``refusals.txt`` has a command after ``$`` and its message after it, without ``nest:
error:``. In a message ``…`` stands for any text, such as the names of all models.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from nest.ir import encode
from nest.solvers import registry
from tests import codesigns
from tests.builders import SINGLE, make_plan, two_stages, with_device, with_job
from tests.certified import NCCL
from tests.cli.conftest import TINY, Cli
from tests.cli.test_export_cli import SCRIPT, plan_of_16
from tests.cli.test_questions_cli import chain, chain_of_two_types
from tests.cli.test_simulate_cli import steady
from tests.cli.test_targets_cli import stages_differ
from tests.cli.test_validate_cli import MEASURED
from tests.loopback import (
    BASELINE,
    OVERRUNNER,
    TARGET,
    big_plan,
    crowded_problem,
    foreign_plan,
    good_plan,
    tiny_problem,
)
from tests.unit.analysis.test_pareto import small
from tests.unit.validation.test_validation import CELLS, text_of

TWO = replace(two_stages(topology=NCCL), name="two")

TOPOLOGIES = Path(__file__).parents[1] / "data" / "topologies"
TRANSCRIPT = Path(__file__).with_name("refusals.txt")

RECORDS = {
    "problem.json": tiny_problem(),
    "plan.json": good_plan(),
    "big.json": big_plan(),
    "crowded.json": crowded_problem(),
    "foreign.json": foreign_plan(),
    "strange.json": replace(foreign_plan(), problem_hash="0" * 64),
    "unknown-preset.json": replace(tiny_problem(), preset="standrad"),
    "chain.json": chain(sequence_length=10),
    "tight.json": chain(memory_bytes=19),
    "tighter.json": chain(memory_bytes=5),
    "chain-plan.json": make_plan(("a", SINGLE), ("b", SINGLE)),
    "two-types.json": chain_of_two_types(),
    "small.json": small(),
    "stages-differ.json": stages_differ(),
    "plan-16.json": plan_of_16(),
    "mixed-16.json": plan_of_16(recompute="full"),
    "steady.json": steady(),
    "steady-plan.json": make_plan(("a", SINGLE)),
    "two.json": TWO,
    "two-split.json": with_job(TWO, schedule="dualpipe-v"),
    "two-tight.json": with_device(TWO, memory_bytes=1),
    "two-plan.json": make_plan(("a b", SINGLE), replicas=2),
}

SPACE = codesigns.SPEC
MODELS = "models: [gpt2, bert-large]\n"
WHOLE = encode(tiny_problem()).decode()

TEXTS = {
    "tiny/config.json": json.dumps(TINY),
    "cut.json": WHOLE[:100],
    "half-case.json": '{"graph": {"directed": fal',
    "wild.json": WHOLE.replace('"name"', '"preset": "wild", "name"', 1),
    "grid.yaml": "models: [gpt3-1.3b]\n",
    "run.sh": SCRIPT,
    "tower.json": WHOLE.replace('"kind": "block"', '"kind": "tower"', 1),
    "a101.yaml": "num_devices: 8\ndevice: {machine: a101}\n",
    "empty.csv": "",
    "other.csv": "a,b\n1,2\n",
    "measured.csv": MEASURED.decode(),
    "gbs.csv": text_of(CELLS | {"gbs": "8"}).decode(),
    "nvswitch.txt": (TOPOLOGIES / "nvidia-smi-nvswitch.txt").read_text(),
    "rwkv/config.json": '{"model_type": "rwkv"}',
    "xlnet/config.json": '{"model_type": "xlnet"}',
    "nan.yaml": "num_devices: 2\ndevice:\n  machine: h100\n  memory_bytes: .nan\n",
    "slurm-tree.conf": (TOPOLOGIES / "slurm-tree.conf").read_text(),
    "spec.yaml": SPACE,
    "bare.yaml": SPACE.replace(MODELS, ""),
    "job.yaml": SPACE.replace("job:\n", "job:\n  tp: [5]\n"),
    "weighted.yaml": SPACE.replace(MODELS, "").replace(
        "objective:\n", "objective:\n  weights: {gpt2: 2}\n"
    ),
}

#: No text, whatever it should be.
NO_TEXT = {
    "binary.csv": b"\xff",
    "binary.sh": b"\xff\xfe",
    "binary.json": b"\x80\x81 not JSON",
}

#: A number that commands of the transcript call so.
HUGE = "9" * 5000

SOLVERS = {
    "loopback": TARGET,
    "baseline": BASELINE,
    "overrunner": OVERRUNNER,
    "engine": "tests.loopback:NeedsEngine",
}


def fill(path: Path) -> None:
    """Write the files that commands name."""
    for name, record in RECORDS.items():
        (path / name).write_bytes(encode(record))
    for name, text in TEXTS.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_text(text)
    for name, data in NO_TEXT.items():
        (path / name).write_bytes(data)


@contextmanager
def more_solvers() -> Iterator[None]:
    """Register the solvers that commands name."""
    for name, target in SOLVERS.items():
        registry.register_solver(name, target)
    yield
    for name in SOLVERS:
        registry.unregister_solver(name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a folder with the files that commands name."""
    path = tmp_path_factory.mktemp("refusals")
    fill(path)
    with more_solvers():
        yield path


def rows() -> list[tuple[str, str]]:
    """Return the commands and messages of the transcript."""
    blocks = TRANSCRIPT.read_text().strip().split("\n\n")
    pairs = [block.splitlines() for block in blocks]
    return [(command.removeprefix("$ nest "), message) for command, message in pairs]


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {
        path: path.read_bytes() if path.is_file() else None
        for path in folder.rglob("*")
    }


@pytest.mark.parametrize(
    ("command", "message"), [pytest.param(*row, id=row[0]) for row in rows()]
)
def test_a_command_is_refused(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    """On one line, and no file is written or changed."""
    monkeypatch.chdir(folder)
    before = contents(folder)
    text = cli.refuses(command.replace("HUGE", HUGE))
    pattern = ".*".join(map(re.escape, message.split("…")))
    assert text == message or re.fullmatch(pattern, text), text
    assert contents(folder) == before
