"""``nest certify``: what it writes, and what it refuses."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from msgspec.structs import replace

from nest.ir import write
from nest.ir.io import problem_hash
from tests.builders import SINGLE, make_plan, two_stages
from tests.certified import NCCL
from tests.children import python
from tests.cli.conftest import Cli

#: What certificates are written by.
CERTIFY = "certify problem.json plan.json -o certificate.json"


@pytest.fixture(autouse=True)
def _files(tmp_path: Path) -> None:
    write(tmp_path / "problem.json", two_stages(topology=NCCL))
    write(tmp_path / "plan.json", make_plan(("a b", SINGLE), replicas=2))


def nest_check(certificate: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "nest.certificates.check", "problem.json", certificate)


def test_a_certificate_is_written_and_holds(cli: Cli) -> None:
    """143 ns: see tests/unit/certificates/test_certificates.py."""
    cli.succeeds(CERTIFY)
    assert cli.out == (
        "optimal: step time 143 ns, lower bound 143 ns, gap 0 %; 2 "
        "cases, 1 prices, 0 labels\n"
    )
    checked = nest_check("certificate.json")
    assert (checked.returncode, checked.stderr) == (0, "")
    assert checked.stdout.startswith("verified: optimal")


def test_it_may_go_to_standard_output(cli: Cli) -> None:
    cli.succeeds("certify problem.json plan.json -o -")
    assert json.loads(cli.out)["status"] == "optimal"
    assert cli.err.startswith("optimal: ")


def test_a_file_that_states_more_has_a_hash_of_its_own(cli: Cli) -> None:
    """The certificate is for the file as it is, defaults stated or not."""
    document = json.loads(Path("problem.json").read_text())
    document["quantum_ps"] = 1000
    Path("problem.json").write_text(json.dumps(document))
    cli.succeeds(CERTIFY)
    certificate = json.loads(Path("certificate.json").read_text())
    assert certificate["problem_hash"] != problem_hash(two_stages(topology=NCCL))


def test_too_many_devices_are_refused_by_name(cli: Cli) -> None:
    """By the name of the problem, and of the file where it is checked."""
    level = replace(NCCL.levels[0], fan_out=2**15)
    problem = two_stages(topology=replace(NCCL, levels=(level,)))
    cluster = replace(problem.cluster, num_devices=2**15)
    write("problem.json", replace(problem, name="two", cluster=cluster))
    text = (
        ".cluster.num_devices: expected at most 16384, for a certificate, got "
        "32768; take fewer"
    )
    assert cli.refuses(CERTIFY) == f"two{text}"
    Path("other.json").write_text("{}")
    checked = nest_check("other.json")
    assert checked.returncode == 2
    assert checked.stderr == f"nest-check: problem.json{text}\n"


def test_without_a_plan_it_certifies_that_none_fits(cli: Cli) -> None:
    """A weight of one byte takes 16 bytes with what belongs to it."""
    write("problem.json", two_stages(topology=NCCL, memory_bytes=1))
    cli.succeeds("certify problem.json -o certificate.json")
    assert cli.out.startswith("infeasible: no plan fits; 2 cases, ")
    assert json.loads(Path("certificate.json").read_text())["plan"] is None
