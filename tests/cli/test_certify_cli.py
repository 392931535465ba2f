"""``nest certify``: what it writes, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from nest.ir import Problem, write
from nest.ir.io import problem_hash
from tests.builders import SINGLE, make_plan, two_stages
from tests.certified import NCCL
from tests.cli.conftest import Cli


@pytest.fixture
def paths(tmp_path: Path) -> dict[str, Path]:
    names = "problem", "plan", "certificate", "other"
    found = {name: tmp_path / f"{name}.json" for name in names}
    write(found["problem"], two_stages(topology=NCCL))
    write(found["plan"], make_plan(("a b", SINGLE), replicas=2))
    return found


def texts(paths: dict[str, Path]) -> list[str]:
    return [str(paths["problem"]), str(paths["plan"])]


def test_a_certificate_is_written_and_holds(
    cli: Cli, paths: dict[str, Path]
) -> None:
    """143 ns: see tests/unit/certificates/test_certificates.py."""
    output = paths["certificate"]
    cli.succeeds("certify", *texts(paths), "-o", str(output))
    assert cli.out == (
        "optimal: step time 143 ns, lower bound 143 ns, gap 0 %; 2 batch "
        "splits, 1 prices, 0 labels\n"
    )
    command = [sys.executable, "-m", "nest.certificates.check"]
    arguments = [paths["problem"], output]
    found = subprocess.run([*command, *arguments], capture_output=True)
    assert found.returncode == 0
    assert found.stdout.startswith(b"verified: optimal")
    assert found.stderr == b""


def test_it_may_go_to_standard_output(
    cli: Cli, paths: dict[str, Path]
) -> None:
    cli.succeeds("certify", *texts(paths), "-o", "-")
    assert json.loads(cli.out)["status"] == "optimal"
    assert cli.err.startswith("optimal: ")


def test_a_file_that_states_more_has_a_hash_of_its_own(
    cli: Cli, paths: dict[str, Path]
) -> None:
    """The certificate is for the file as it is, defaults stated or not."""
    problem = two_stages(topology=NCCL)
    document = json.loads(paths["problem"].read_text())
    document["quantum_ps"] = 1000
    paths["problem"].write_text(json.dumps(document))
    output = str(paths["certificate"])
    cli.succeeds("certify", *texts(paths), "-o", output)
    certificate = json.loads(paths["certificate"].read_text())
    assert certificate["problem_hash"] != problem_hash(problem)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"overlap": {"tp": 0.5}},
            "two.job.overlap: expected nothing, for a certificate, got {'tp': "
            "0.5}; change or remove it",
        ),
        (
            {"granularity": "layer"},
            "two.job.granularity: expected nothing, for a certificate, got "
            "layer; change or remove it",
        ),
    ],
)
def test_what_is_not_covered_is_refused(
    cli: Cli, paths: dict[str, Path], change: dict[str, object], message: str
) -> None:
    problem: Problem = two_stages(topology=NCCL)
    job = replace(problem.job, **change)
    write(paths["problem"], replace(problem, name="two", job=job))
    output = str(paths["certificate"])
    said = cli.refuses("certify", *texts(paths), "-o", output)
    assert said == message
    assert not paths["certificate"].exists()


def test_too_many_devices_are_refused_by_name(
    cli: Cli, paths: dict[str, Path]
) -> None:
    """By the name of the problem, and of the file where it is checked."""
    level = replace(NCCL.levels[0], fan_out=4096)
    problem = two_stages(topology=replace(NCCL, levels=(level,)))
    cluster = replace(problem.cluster, num_devices=4096)
    write(paths["problem"], replace(problem, name="two", cluster=cluster))
    text = (
        ".cluster.num_devices: expected at most 1024, for a certificate, got "
        "4096; take fewer"
    )
    output = str(paths["certificate"])
    said = cli.refuses("certify", *texts(paths), "-o", output)
    assert said == f"two{text}"
    paths["other"].write_text("{}")
    command = [sys.executable, "-m", "nest.certificates.check"]
    arguments = [paths["problem"], paths["other"]]
    found = subprocess.run([*command, *arguments], capture_output=True)
    assert found.returncode == 2
    expected = f"nest-check: {paths['problem']}{text}\n"
    assert found.stderr.decode() == expected


def test_a_plan_that_does_not_fit_has_none(
    cli: Cli, paths: dict[str, Path]
) -> None:
    write(paths["problem"], two_stages(topology=NCCL, memory_bytes=1))
    output = str(paths["certificate"])
    said = cli.refuses("certify", *texts(paths), "-o", output)
    assert "plan: expected one that fits" in said


def test_without_a_plan_it_certifies_that_none_fits(
    cli: Cli, paths: dict[str, Path]
) -> None:
    """A weight of one byte takes 16 bytes with what belongs to it."""
    write(paths["problem"], two_stages(topology=NCCL, memory_bytes=1))
    words = [str(paths["problem"]), "-o", str(paths["certificate"])]
    cli.succeeds("certify", *words)
    assert cli.out.startswith("infeasible: no plan fits; 2 batch splits, ")
    assert json.loads(paths["certificate"].read_text())["plan"] is None


def test_a_problem_with_plans_needs_one(
    cli: Cli, paths: dict[str, Path]
) -> None:
    words = [str(paths["problem"]), "-o", str(paths["certificate"])]
    said = cli.refuses("certify", *words)
    assert said.startswith("PLAN: expected one, as there are plans that fit")
    assert not paths["certificate"].exists()


def test_the_output_is_asked_for(cli: Cli, paths: dict[str, Path]) -> None:
    said = cli.refuses("certify", *texts(paths))
    assert "--output" in said
