"""Bad files of networks: one line that says where, what and what to do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import yaml

from nest.errors import (
    InvalidOptionError,
    InvalidProblemError,
    NestError,
    UnknownNameError,
)
from nest.topology.files import (
    FORMATS,
    MEANING,
    read_rankfile,
    read_topology,
    write_hostfile,
    write_node_link,
    write_rankfile,
)
from tests.rows import rows
from tests.unit.topology.test_topology_files import DATA, FILES, HOSTS, HOW, uniform

Change = tuple[str, str]


def refused(
    path: Path,
    message: str,
    error: type[NestError] = InvalidProblemError,
    **options: Any,
) -> None:
    """Check the one line of an error."""
    with pytest.raises(error, match=re.escape(message)) as caught:
        read_topology(path, **options)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 600
    assert "; " in text


def changed(tmp_path: Path, name: str, *changes: Change) -> Path:
    """Write a file with other text in the places of some."""
    text = (DATA / name).read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = tmp_path / name
    path.write_text(text)
    return path


class TestAnyFile:
    @pytest.mark.parametrize("form", [None, *FORMATS])
    def test_empty(self, tmp_path: Path, form: str | None) -> None:
        path = tmp_path / "net"
        path.write_text(" \n\n")
        refused(path, "net: expected a topology, got an empty file", format=form)

    @pytest.mark.parametrize(
        ("data", "got"),
        [(b"\x89PNG\r\n\xff\xfe", "byte 0x89"), (b"a\0b", "binary data")],
    )
    def test_binary(self, tmp_path: Path, data: bytes, got: str) -> None:
        path = tmp_path / "net.xml"
        path.write_bytes(data)
        refused(path, f"net.xml: line 1: expected text in UTF-8, got {got}")

    def test_missing(self, tmp_path: Path) -> None:
        refused(
            tmp_path / "no.yaml",
            "no.yaml: expected a readable topology file, got No such file",
        )

    def test_a_directory(self, tmp_path: Path) -> None:
        refused(tmp_path, "expected a topology file, got a directory")

    def test_too_large(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("nest.ir.documents.MAX_FILE_BYTES", 3)
        path = tmp_path / "net.conf"
        path.write_text("four")
        refused(path, "net.conf: expected at most 3 bytes, got more")
        path.write_text("thr")
        refused(path, "net.conf: expected one of the formats")

    def test_none_of_the_formats(self, tmp_path: Path) -> None:
        path = tmp_path / "net.txt"
        path.write_text("hello\n")
        refused(
            path,
            f"net.txt: expected one of the formats {', '.join(FORMATS)}, got "
            "none of them; give the format",
        )

    def test_several_formats(self, tmp_path: Path) -> None:
        path = tmp_path / "net.json"
        path.write_text('{"instances": [], "edges": []}')
        message = "got what could be node-link or topograph-graph; give"
        refused(path, message)
        other = path.rename(tmp_path / "net.txt")
        refused(other, message)

    def test_the_suffix_tells_several_formats_apart(self, tmp_path: Path) -> None:
        path = tmp_path / "net.yaml"
        path.write_text("switches: {}\nx: |\n  SwitchName=a\n")
        refused(path, "expected keys switches or blocks")
        other = path.rename(tmp_path / "net.conf")
        refused(other, "line 1: expected Key=Value, got 'switches:'")

    def test_an_unknown_format(self) -> None:
        refused(
            FILES[0],
            "format: expected one of astra-sim, graphml,",
            UnknownNameError,
            format="astra",
        )

    def test_another_format(self) -> None:
        refused(
            DATA / "simai.txt", "expected a header that begins", format="nvidia-smi"
        )

    def test_a_file_that_slurm_ignores(self, tmp_path: Path) -> None:
        path = tmp_path / "topology.conf"
        path.write_bytes((DATA / "slurm-tree.conf").read_bytes())
        (tmp_path / "topology.yaml").write_text("- topology: t\n")
        refused(
            path,
            "topology.conf: expected the file that Slurm reads, got one that "
            "it ignores, as topology.yaml is beside it; name that one, or "
            "give the format slurm-conf",
            **HOSTS,
        )


class TestOptions:
    def test_an_unknown_option(self) -> None:
        refused(FILES[0], "did you mean 'num_nodes'?", UnknownNameError, num_node=3)

    @pytest.mark.parametrize(
        ("name", "value", "expected"), rows("topologies", "options")
    )
    def test_out_of_range(self, name: str, value: object, expected: str) -> None:
        refused(
            DATA / "slurm.yaml",
            f"{name}: expected {expected}",
            InvalidOptionError,
            **{name: value},
        )

    @pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
    def test_nothing_is_guessed(self, path: Path) -> None:
        """Without any one option the file is refused by its name."""
        name, options = HOW[path.name]
        for option in options:
            if options[option] is None:
                continue
            less = {**options, option: None}
            with pytest.raises(NestError, match=rf"\b{option}\b|as part"):
                read_topology(path, **less)
        extra = next(one for one in MEANING if one not in FORMATS[name].options)
        value = "x" if extra in ("part", "topology") else 1
        if extra.startswith("uplink"):
            value = (1,)  # type: ignore[assignment]
        with pytest.raises(InvalidOptionError, match=f"got {extra}; leave it out"):
            read_topology(path, **{**options, extra: value})

    def test_lists_of_hosts_ask_for_all_at_once(self) -> None:
        names = [name for name in HOSTS if name != "devices_per_node"]
        with pytest.raises(InvalidOptionError) as caught:
            read_topology(DATA / "slurm-tree.conf", devices_per_node=2)
        asked = str(caught.value).rpartition("; give ")[2].split(" and ")
        assert sorted(asked) == sorted(names)

    @pytest.mark.parametrize(
        ("name", "options", "message"), rows("topologies", "supplements")
    )
    def test_options_that_do_not_fit_the_file(
        self, name: str, options: dict[str, Any], message: str
    ) -> None:
        options = {**HOW[name][1], **options}
        refused(DATA / name, message, InvalidOptionError, **options)


#: File, what to change in it, what the error says.
CASES: list[tuple[str, list[Change], str]] = [
    (name, case["change"], case["error"])
    for name, cases in yaml.safe_load(
        (DATA.parent / "topologies-refused.yaml").read_text()
    ).items()
    for case in cases
]


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    CASES,
    ids=[f"{number}-{case[0]}" for number, case in enumerate(CASES)],
)
def test_bad_files(
    tmp_path: Path, name: str, changes: list[Change], message: str
) -> None:
    assert message
    path = changed(tmp_path, name, *changes)
    form, options = HOW[name]
    if "without a common root: west" in message or "separate rings" in message:
        options = {**options, "part": None}
    refused(path, message, format=form, **options)


class TestMore:
    """Errors that need other files or options."""

    @pytest.mark.parametrize(
        ("topology", "changes", "message"), rows("topologies", "slurm-yaml")
    )
    def test_parts_of_topology_yaml(
        self, tmp_path: Path, topology: str, changes: list[Change], message: str
    ) -> None:
        path = changed(tmp_path, "slurm.yaml", *changes)
        options = {**HOW["slurm.yaml"][1], "topology": topology}
        refused(path, message, **options)

    @pytest.mark.parametrize(
        ("form", "text", "message"),
        [
            *rows("topologies", "texts"),
            (
                "nccl",
                '<system version="1"><cpu numaid="0">'
                + "".join(f'<pci busid="{i}" class="0x0604">' for i in range(40))
                + "</pci>" * 40
                + "</cpu></system>",
                "<pci 31>: expected at most 32 levels, got more",
            ),
            ("node-link", "[" * 100_000, "expected JSON, got malformed text"),
            ("astra-sim", "[" * 100_000, "expected YAML, got malformed text"),
        ],
    )
    def test_other_texts(
        self, tmp_path: Path, form: str, text: str, message: str
    ) -> None:
        path = tmp_path / "net"
        path.write_text(text)
        refused(path, message, format=form)

    def test_numbers_of_links_that_no_device_has(self, tmp_path: Path) -> None:
        path = tmp_path / "topo.txt"
        options = {
            "num_nodes": 1,
            "nvlink_bandwidth_bytes_per_s": 25e9,
            "node_latency_ns": 100,
        }
        # 12 and 18 links of a row could be a mesh as well as a switch.
        for count, code in ((4, "NV6"), (3, "NV4")):
            path.write_text(uniform(count, code))
            refused(
                path,
                "expected nvlinks_per_device (the NVLinks that one device has)",
                InvalidOptionError,
                **options,
            )
        refused(
            path,
            "GPU0: expected at most nvlinks_per_device = 3 NVLinks to one other, got 4",
            nvlinks_per_device=3,
            **options,
        )
        text = uniform(3, "NV18").replace("GPU0 X NV18", "GPU0 X NV12")
        path.write_text(text.replace("GPU1 NV18 X", "GPU1 NV12 X"))
        refused(
            path,
            "GPU2: expected a row of at most 18 NVLinks, or the same between "
            "all, got 36",
            **options,
        )

    @pytest.mark.parametrize("directed", [False, True])
    def test_a_link_twice_where_the_file_says_there_is_one(
        self, tmp_path: Path, directed: bool
    ) -> None:
        second = ("a", "b") if directed else ("b", "a")
        record: dict[str, Any] = {
            "directed": directed,
            "multigraph": False,
            "nodes": [{"id": name, "kind": "device"} for name in "ab"],
            "edges": [
                {"source": a, "target": b, "bandwidth": 1, "latency_ns": 1}
                for a, b in (("a", "b"), ("b", "a"), second)
            ],
        }
        path = tmp_path / "graph.json"
        path.write_text(json.dumps(record))
        number = 2 if directed else 1
        refused(
            path,
            f"edges[{number}]: expected one link between two nodes, got a "
            f"second one from",
        )

    def test_devices_that_do_not_forward_are_no_path(self, tmp_path: Path) -> None:
        # A chain a - b - c of devices: b is next to both, but no way through.
        record: dict[str, Any] = {
            "nodes": [{"id": name, "kind": "device"} for name in "abc"],
            "edges": [
                {"source": a, "target": b, "bandwidth": 1, "latency_ns": 1}
                for a, b in ("ab", "bc")
            ],
        }
        path = tmp_path / "graph.json"
        path.write_text(json.dumps(record))
        refused(
            path,
            "links: expected a path between all devices, got none from 'a' to "
            "'c'; add a link, or let nodes in between forward",
        )
        record["nodes"][1]["forward"] = True
        path.write_text(json.dumps(record))
        assert read_topology(path).graph["order"] == ["a", "b", "c"]

    def test_devices_around_one_that_does_not_forward(self, tmp_path: Path) -> None:
        record = {
            "nodes": [
                *({"id": name, "kind": "device"} for name in "abc"),
                *({"id": name, "kind": "switch"} for name in "st"),
            ],
            "edges": [
                {"source": a, "target": b, "bandwidth": 1, "latency_ns": 1}
                for a, b in ("as", "sb", "bt", "tc")
            ],
        }
        path = tmp_path / "graph.json"
        path.write_text(json.dumps(record))
        refused(path, "got none from 'a' to 'c'; add a link")

    def test_only_the_first_of_many_are_named(self, tmp_path: Path) -> None:
        path = tmp_path / "net.conf"
        path.write_text("".join(f"SwitchName=s{i} Nodes=n{i}\n" for i in range(9)))
        refused(path, "trees without a common root: s0, s1, s2, s3, s4 and 4 more; add")


class TestRankFiles:
    @pytest.fixture
    def graph(self) -> nx.Graph:
        return read_topology(DATA / "simai.txt")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            (
                "0 server0:0\n1 server0:1\n",
                "order: expected all 4 devices, got 2; add '2'",
            ),
            (
                "0 server0:0\n1 server0:0\n",
                "order: expected every device once, got '0' twice",
            ),
            ("1 server0:0\n", "line 1: expected '0 host:device', got '1 s"),
            ("0 server0\n", "line 1: expected '0 host:device', got '0 s"),
            ("0 server9:0\n", "a device of the network, got server9:0"),
            ("0 server0:2\n", "a device of the network, got server0:2"),
            ("", "expected a topology, got an empty file"),
        ],
    )
    def test_bad_files(
        self, tmp_path: Path, graph: nx.Graph, text: str, message: str
    ) -> None:
        path = tmp_path / "ranks"
        path.write_text(text)
        with pytest.raises(InvalidProblemError, match=re.escape(message)):
            read_rankfile(path, graph)

    @pytest.mark.parametrize("write", [write_hostfile, write_rankfile])
    def test_an_order_that_misses_a_device(
        self, tmp_path: Path, graph: nx.Graph, write: Any
    ) -> None:
        path = tmp_path / "ranks"
        with pytest.raises(
            InvalidProblemError, match=r"order: expected all 4 devices, got 3; add '3'"
        ):
            write(path, graph, ["2", "1", "0"])
        assert not path.exists()

    @pytest.mark.parametrize("write", [write_hostfile, write_rankfile, write_node_link])
    def test_a_file_that_cannot_be_written(
        self, tmp_path: Path, graph: nx.Graph, write: Any
    ) -> None:
        with pytest.raises(NestError, match="expected a writable file"):
            write(tmp_path / "no" / "file", graph)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_half_a_file_is_no_file(path: Path, tmp_path: Path) -> None:
    """Cut in the middle, where no format can end."""
    text = path.read_text()
    copy = tmp_path / path.name
    copy.write_text(text[: len(text) // 2])
    form, options = HOW[path.name]
    with pytest.raises(NestError) as caught:
        read_topology(copy, form, **options)
    assert "\n" not in str(caught.value)
