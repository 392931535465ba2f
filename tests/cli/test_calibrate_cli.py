"""``nest calibrate``, and ``--calibration`` of the other commands."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from nest.calibration.template import TEMPLATE
from nest.hardware.calibration_file import read_calibration
from tests.cli.conftest import Cli

#: Small enough for a search in a moment.
SMALL = (
    "--model gpt2-xl --cluster a100x2 --global-batch 8 --sequence-length 512 "
    "--micro-batches 1,2"
)

#: What differs from the template, and the step time: a tenth longer than
#: the table has it, and some more.
RUNS = (
    {"iter_time_s": "1.2"},
    {"recompute": "full", "sp": "0", "iter_time_s": "1.55"},
    {"micro_batch": "2", "iter_time_s": "1.3"},
)


def write_runs(path: Path | str, *rows: dict[str, str]) -> str:
    names = list(dict.fromkeys(n for row in (TEMPLATE, *rows) for n in row))
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(TEMPLATE | row for row in rows)
    return str(path)


@pytest.fixture
def runs(tmp_path: Path) -> str:
    return write_runs(tmp_path / "runs.csv", *RUNS)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a calibration by which products take twice as long."""
    from msgspec.structs import replace

    from nest.hardware.calibration import stored_calibration
    from nest.ir.io import encode

    stored = stored_calibration()
    own = stored.families["A100"]
    halved = replace(own, matmul_fraction=own.matmul_fraction / 2)
    overlap = stored.software.overlap | {"gradients": 0.125}
    record = replace(
        stored,
        families={"A100": halved},
        inherits={},
        software=replace(stored.software, overlap=overlap),
    )
    path = tmp_path_factory.mktemp("slow") / "slow.json"
    path.write_bytes(encode(record))
    return str(path)


def test_runs_become_a_calibration(cli: Cli, runs: str, tmp_path: Path):
    out, doc, to_do = (
        str(tmp_path / name) for name in ("my.json", "doc.json", "next.csv")
    )
    cli.succeeds(f"calibrate {runs} -o {out} --json {doc} --next {to_do}")
    assert cli.out.startswith("3 runs of runs.csv on A100-80GB-SXM\n")
    for text in (
        "each run predicted by the others",
        "every.slowdown",
        "no run depends on",
        "these runs would tell most",
    ):
        assert text in cli.out
    found = read_calibration(out)
    document = json.loads(Path(doc).read_text())
    assert document["schema"] == "nest-own-runs/1"
    assert document["family"] in found.families
    assert [entry["line"] for entry in document["rows"]] == [2, 3, 4]
    before, after = (document["step_time"][x] for x in ("before", "after"))
    assert after["median_abs_error"] < before["median_abs_error"]
    assert len(document["proposed"]["runs"]) == 3
    rows = list(csv.DictReader(Path(to_do).read_text().splitlines()))
    assert [row["tp"] for row in rows] == [
        run["cells"]["tp"] for run in document["proposed"]["runs"]
    ]
    validated = cli.document(f"validate {runs} --calibration {out}")
    assert validated["used"] == 3
    assert validated["median_abs_error"] == pytest.approx(
        after["median_abs_error"], abs=2e-3
    )


def test_rows_that_are_not_used_are_told(cli: Cli):
    path = write_runs("runs.csv", *RUNS, {"status": "OOM", "iter_time_s": ""})
    cli.succeeds(f"calibrate {path} -o my.json")
    assert "not used because" in cli.out
    assert "5   the run went out of memory, and only step times" in cli.out


def test_runs_on_standard_input(cli: Cli, runs: str, monkeypatch: pytest.MonkeyPatch):
    data = io.BytesIO(Path(runs).read_bytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(data))
    cli.succeeds("calibrate - -o my.json")
    assert cli.out.startswith("3 runs of standard input on A100-80GB-SXM\n")


def test_the_template(cli: Cli):
    cli.succeeds("calibrate --template")
    (row,) = csv.DictReader(cli.out.splitlines())
    assert row == TEMPLATE
    cli.succeeds("calibrate --template -o runs.csv")
    assert cli.out == ""
    assert "expected at least 2 runs" in cli.refuses("calibrate runs.csv -o my.json")


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"iter_time_s": "0.001"}, "", "runs.csv:5: step time: expected at least"),
        (
            {"hardware": "H100-80GB-SXM"},
            "",
            "expected runs of one cluster, got A100-80GB-SXM (line 2) and "
            "H100-80GB-SXM (line 5)",
        ),
        ({}, "--hardware V100", "got none of 4; line 2: left out by --hardware V100"),
        ({}, "--next .", "--next .: expected a writable file"),
    ],
)
def test_bad_runs(cli: Cli, change, options, message):
    """Nothing is written."""
    path = write_runs("runs.csv", *RUNS, change)
    assert message in cli.refuses(f"calibrate {path} -o my.json {options}")
    assert not Path("my.json").exists()


def test_sweeps_are_priced_with_it(cli: Cli, tmp_path: Path, slow: str):
    grid = Path("grid.yaml")
    grid.write_text(
        "schema: nest-sweep/1\nmodels: [llama2-7b]\nclusters: [dgx-a100x8]\n"
        "job: {sequence_length: 512, global_batch: 8}\n"
    )
    steps = []
    for more in ((), ("--calibration", slow)):
        place = str(tmp_path / f"run{len(steps)}")
        (row,) = cli.document(f"sweep grid.yaml -o {place}", *more)["answers"]["rows"]
        steps.append(row["step_time_ns"])
    assert 1.2 < steps[1] / steps[0] < 2
    grid.write_text(grid.read_text().replace("a100", "h100"))
    assert "expected a calibration of H100, got one of A100" in cli.refuses(
        f"sweep grid.yaml -o none --calibration {slow}"
    )


def test_plans_are_priced_with_it(cli: Cli, slow: str):
    """Twice as slow products make a step longer, and are told."""
    as_stored = cli.document(f"solve {SMALL} --solver dp")
    assert "calibration" not in as_stored
    under = cli.document(f"solve {SMALL} --solver dp --calibration {slow}")
    assert under["calibration"] == "slow.json"
    assert f"timesunderthecalibration{slow}" in "".join(cli.err.split())
    times = [x["cells"][0]["step_time_ns"] for x in (as_stored, under)]
    assert 1.2 < times[1] / times[0] < 2


@pytest.mark.parametrize(
    "command", ["compare --solvers dp", "pareto", "fit --within 1000", "problems"]
)
def test_commands_that_take_a_cluster_take_it(cli: Cli, slow: str, command: str):
    cli.succeeds(f"{command} {SMALL} --calibration {slow}")
    for cluster, message in (
        ("h100x2", f"{slow}: expected a calibration of H100, got one of A100"),
        ("a100x1+h100x1", f"{slow}: expected a calibration of H100"),
    ):
        assert message in cli.refuses(
            f"{command} {SMALL} --cluster {cluster} --calibration {slow}"
        )


def test_clusters_in_files_take_it(cli: Cli, slow: str):
    """Whatever their devices are called, they are of a machine's family."""
    path = Path("ours.yaml")
    for name in ("a100", "h100"):
        path.write_text(f"num_devices: 2\ndevice: {{machine: {name}, name: ours}}\n")
        command = f"problems {SMALL} --cluster ours.yaml"
        if name == "a100":
            cli.succeeds(command)
            stored = json.loads(cli.out)
            cli.succeeds(f"{command} --calibration {slow}")
            assert json.loads(cli.out)["graph"] != stored["graph"]
        else:
            assert "expected a calibration of H100" in cli.refuses(
                f"{command} --calibration {slow}"
            )


def test_problems_name_it(cli: Cli, slow: str):
    """By its name: where it lies is nobody's business."""
    cli.succeeds(f"problems {SMALL} --calibration {slow}")
    assert json.loads(cli.out)["source"].endswith("; calibration: slow.json")


@pytest.mark.parametrize("command", ["solve --solver dp", "compare", "pareto"])
def test_problems_that_are_priced_already(cli: Cli, slow: str, command):
    assert cli.refuses(f"{command} llama2-7b-8 --calibration {slow}") == (
        "--calibration: expected --model, got 'llama2-7b-8', a problem whose "
        "costs are already computed; build it anew with --model, --cluster "
        "and --calibration"
    )
    assert "--calibration: expected --model too" in cli.refuses(
        f"{command} --calibration {slow}"
    )


def test_no_calibration(cli: Cli, runs: str):
    assert "none.json: expected a" in cli.refuses(
        f"problems {SMALL} --calibration none.json"
    )


def test_validate_only_predicts_its_devices(cli: Cli, slow: str):
    path = write_runs("runs.csv", {}, {"hardware": "H100-80GB-SXM"})
    cli.succeeds(f"validate {path} --calibration {slow} --jobs 1")
    assert cli.out.startswith("2 rows (all rows): 1 used, 1 skipped")
    assert "a device that the calibration is not of" in cli.out
    assert f"{slow}: expected a calibration of H100, got one of A100" in cli.refuses(
        f"validate {path} --calibration {slow} --hardware H100"
    )


def test_imported_launches_take_what_it_hides(cli: Cli, slow: str):
    """And its times; the note says whose fractions they are."""
    script = Path("run.sh")
    script.write_text(
        "torchrun --nproc-per-node 2 pretrain_gpt.py --num-layers 2 "
        "--hidden-size 2048 --num-attention-heads 16 --seq-length 1024 "
        "--max-position-embeddings 1024 --micro-batch-size 1 "
        "--vocab-size 1000 --global-batch-size 4 --bf16 "
        "--use-distributed-optimizer --overlap-grad-reduce\n"
    )
    command = (
        *("import", "megatron-args", str(script), "--cluster", "a100x2"),
        *("-o", "problem.json"),
    )
    cli.succeeds(*command)
    stored = json.loads(Path("problem.json").read_text())
    cli.succeeds(*command, "--calibration", slow)
    assert f"{slow}'s, gradients=0.125" in cli.err
    found = json.loads(Path("problem.json").read_text())
    assert found["job"]["overlap"]["gradients"] == 0.125
    assert found["graph"] != stored["graph"]
    assert "expected a calibration of H100" in cli.refuses(
        *command[:4], "h100x2", "-o", "problem.json", "--calibration", slow
    )
