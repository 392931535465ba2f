"""Small inputs that grow without end when they are read: one line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from nest.calibration.template import template_csv
from nest.errors import NestError
from nest.frameworks.configs import Config
from nest.frameworks.scripts import read_launch
from nest.frameworks.shell import read_script
from nest.frameworks.shell_arithmetic import written_names
from nest.frameworks.torchtitan import read_foreign
from nest.ir.documents import MalformedError, parse_json
from nest.topology.files import read_topology
from nest.topology.generators import generate
from nest.util.text import clipped
from nest.validation.predict import predict
from nest.validation.reading import parse_rows
from nest.validation.report import assess
from tests.fuzz import limited
from tests.unit.topology.test_topology_files import DATA, HOW

_LONG = "words and variables of at most 131072 characters"
_WORK = "a script that expands to at most 1048576 characters"
_DEEP = "commands and expansions at most about a hundred deep"

#: Scripts, and what the message expects of them.
SCRIPTS = {
    "a variable": ("A=ab\n" + "A=$A$A$A$A$A$A$A$A\n" * 30, _LONG),
    "an appended variable": ("A=ab\n" + "A+=$A$A$A$A\n" * 30, _LONG),
    "an exported variable": ("A=ab\n" + 'export A="$A$A$A"\n' * 30, _LONG),
    "a default": ("A=ab\n" + "A=${B:-$A$A$A$A}\n" * 30, "at most"),
    "an unknown variable": ('A="$B"\n' + 'A="$A$A$A$A"\n' * 30, _LONG),
    "an argument": ("f() { f $1$1$1$1; }\nA=1\nf abcdefghijklmnop\n", _LONG),
    "an array": ("A=(a b)\n" + "A=(${A[@]} ${A[@]} ${A[@]})\n" * 30, _WORK),
    "empty elements": ('A=("" "")\n' + 'A+=("${A[@]}" "${A[@]}")\n' * 30, _WORK),
    "an element": ("".join(f"A[{i}]=1\n" for i in range(9000)), _WORK),
    "a function": ("f() {\n" + "A=1;B=2\n" * 2000 + "}\n" + "f\n" * 900, _WORK),
    "a shift": ("f() {\n" + "shift\n" * 9000 + "}\nf" + " 1" * 9000, _WORK),
    "a pattern": (
        f"A={'a' * 100_000}\ncase $A in {'*a' * 30_000}b) B=1;; esac\n",
        _WORK,
    ),
    "subshells": ("(" * 30_000 + "x" + " y)" * 30_000, _WORK),
    "nested defaults": ("A=" + "${a:-" * 3000 + "x" + "}" * 3000, "at most"),
    "nested conditions": ("if a; then\n" * 3000 + "fi\n" * 3000, _DEEP),
    "a comparison": (
        f"if [[ {' || '.join(['a == b'] * 9000)} ]]; then A=1; fi\n",
        _WORK,
    ),
    "a long script": ("A=1\n" * 2**17, "a script of at most 262144"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_that_grows_is_refused(name: str) -> None:
    text, expected = SCRIPTS[name]
    with pytest.raises(NestError, match=expected) as caught, limited():
        read_script(text, "exp.sh")
    assert str(caught.value).startswith("exp.sh:")
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "text",
    [
        "2**99999",
        "1<<10**9",
        "9**9**9**9",
        "(((((2**61)**61)**61)**61)**61)",
        "(" * 190 + "1" + ")" * 190,
        "a" * 100_000,
        "9" * 5000,
    ],
)
def test_arithmetic_beyond_a_launch_is_not_known(text: str) -> None:
    with limited():
        script = read_script(f"A=$(({text}))\n", "exp.sh")
    assert script.variables["A"][0].unknown


def test_names_that_arithmetic_sets_are_found_in_linear_time() -> None:
    with limited():
        assert written_names("a" * 100_000 + " " * 100_000) == []
        assert written_names("b = " + "a " * 100_000 + "++") == ["b", "a"]


def test_numbers_of_thousands_of_digits_are_not_compared() -> None:
    text = f"A={'9' * 5000}\n" + "".join(
        f"if {test}; then {name}=1; fi\n"
        for name, test in (("B", "[ $A -eq 1 ]"), ("C", "[[ $A -eq 1 ]]"))
    )
    found = read_script(text, "exp.sh").variables
    assert found["B"][0].unknown
    assert found["C"][0].unknown


def test_only_one_unknown_argument_is_compared_with_all_others() -> None:
    words = " ".join(f"--hidden-o{i} 1" for i in range(2000))
    with pytest.raises(NestError, match="an argument that is known"), limited():
        read_launch(f"run pretrain.py --num-layers 2 {words}", "exp.sh", 8)


def test_interpolations_that_lead_to_each_other_are_few() -> None:
    text = "".join(f"k{i}: ${{k{i + 1}}}\n" for i in range(2000)) + "k2000: 1"
    config = Config(text, "run.yaml")
    with pytest.raises(NestError, match="within 50 interpolations"):
        config.get("k0")
    value = config.get("k1960")
    assert value is not None
    assert value.value == 1


def _topology(name: str, text: str, folder: Path) -> None:
    form, settings = HOW[name]
    path = folder / name
    path.write_text(text)
    read_topology(path, format=form, **settings)


_SLURM = (DATA / "slurm-tree.conf").read_text() + "SwitchName=s99 Nodes="
_DIMS = 20_000

#: Files that are read in linear time, and what the message expects of them.
FILES = {
    "astra-rings.yml": (
        f"topology: [{','.join(['Ring'] * _DIMS)}]\n"
        f"npus_count: [{','.join(['2'] * _DIMS)}]\n"
        f"bandwidth: [{','.join(['2'] * _DIMS)}]\n"
        f"latency: [{','.join(['2'] * _DIMS)}]\n",
        "at most 131072 devices, got more than",
    ),
    "simai.txt": (
        "9 2 2 3 10 H100\n4 5 6 7 8\n" + f"0 4 {'a' * 10**6}1 0ns 0\n" * 10,
        "line 3: bandwidth: expected a number with",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_a_network_beyond_its_budget_is_refused(name: str, tmp_path: Path) -> None:
    text, expected = FILES[name]
    with pytest.raises(NestError, match=expected), limited():
        _topology(name, text, tmp_path)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (",".join(f"g{i}" for i in range(100_000)), "without a common root"),
        ("g" + "[0-1]" * 30_000, "at most 65536 prefixes"),
        ("g[0-999999999]", "at most 65536 hosts in a range"),
        ("g[0-65535][0-65535]", "at most 1048571 hosts"),
        ("g[0-1,", "brackets that match"),
    ],
)
def test_lists_of_hosts_are_read_in_linear_time(
    nodes: str, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(NestError, match=expected), limited():
        _topology("slurm-tree.conf", _SLURM + nodes, tmp_path)


def test_networks_of_countless_devices_are_refused() -> None:
    shape = "x".join(["131072"] * 1000)
    with pytest.raises(NestError, match="devices, got more than"), limited():
        generate(f"torus:{shape}")


def test_digits_of_json_are_looked_for_in_linear_time() -> None:
    text = f"[{'1' * 10**6}e5, 0.{'1' * 10**6}, {'1' * 5000}]"
    with pytest.raises(MalformedError, match="4300 digits"), limited():
        parse_json(text)


def test_keys_of_toml_have_few_parts() -> None:
    with pytest.raises(NestError, match="at most 100 dots"), limited():
        read_foreign(f"{'.'.join('a' * 20_000)} = 1", "run.toml", 8)
    with pytest.raises(NestError, match="a key that is known"):
        read_foreign(f"#{'.' * 200}\nx = 1\n\n", "run.toml", 8)


def test_cells_of_runs_are_short() -> None:
    text = template_csv().rstrip() + "_" * 10**5
    with pytest.raises(NestError, match="at most 1000"), limited():
        parse_rows(text.encode(), "runs.csv")


def test_blanks_of_a_message_are_looked_through_once() -> None:
    with limited():
        assert clipped(f"a{' ' * 10**6}b \n\n c").endswith(" b c")


@pytest.mark.parametrize("cell", ["1e308", "1e-300"])
def test_figures_of_runs_have_limits(cell: str) -> None:
    header, row, *_ = template_csv().splitlines()
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    cells["peak_mem_gb"] = cell
    text = f"{','.join(cells)}\n{','.join(cells.values())}\n"
    (found,) = parse_rows(text.encode(), "runs.csv")
    assert any("from 1e-21 to 1e21" in text for text in found.unreadable)
    assert assess(found, predict).reason is not None


def test_runs_whose_layers_are_out_of_range_are_refused() -> None:
    header, row, *_ = template_csv().splitlines()
    cells = dict(zip(header.split(","), row.split(","), strict=True))
    count = "1000000000"
    cells |= {"seq_len": count, "micro_batch": count, "global_batch": count}
    text = f"{','.join(cells)}\n{','.join(cells.values())}\n"
    (found,) = parse_rows(text.encode(), "runs.csv")
    with pytest.raises(NestError, match="check the shape of the model"):
        predict(found)
