"""Hostlists of Slurm: what they mean, and each rule that refuses one."""

from __future__ import annotations

import re

import pytest

from nest.errors import InvalidProblemError
from nest.topology.files.hostlist import MAX_RANGE, expand
from tests.rows import rows


@pytest.mark.parametrize(("text", "hosts"), rows("hostlists", "hosts"))
def test_hosts_of_a_list(text: str, hosts: str) -> None:
    assert expand(text, "file") == hosts.split()


@pytest.mark.parametrize(("text", "message"), rows("hostlists", "lists"))
def test_lists_that_are_refused(text: str, message: str) -> None:
    with pytest.raises(
        InvalidProblemError, match=f"^file: hostlist: .*{re.escape(message)}"
    ) as caught:
        expand(text, "file")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_range_may_have_as_many_hosts_as_slurm_allows() -> None:
    assert len(expand(f"n[1-{MAX_RANGE}]", "file")) == MAX_RANGE


def test_a_list_may_have_so_many_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nest.topology.files.hostlist.MAX_RANGES", 3)
    assert expand("a[1,2-3],b[4]", "file") == ["a1", "a2", "a3", "b4"]
    with pytest.raises(
        InvalidProblemError,
        match=r"expected at most 3 ranges, got b\[3,4\] with 4; correct",
    ):
        expand("a[1,2],b[3,4]", "file")
