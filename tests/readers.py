"""All that nest reads, with files that it takes: what fuzzing breaks.

A reader gets a folder that is its own and the bytes of a file, and does what
commands do before anything is searched.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import msgspec
import networkx

from bench.instance_updates import encode_best_known, with_document
from nest.accelerators.spec import read_spec
from nest.analysis.compare import to_document
from nest.audits.nest_artifact.importer import import_nest_artifact
from nest.audits.piper.importer import import_piper
from nest.benchmarks import instances
from nest.benchmarks.cells import Finished
from nest.benchmarks.store import MANIFEST, begun
from nest.benchmarks.sweep import read_sweep
from nest.calibration.runs import runs_of
from nest.calibration.template import template_csv
from nest.certificates import check as checker
from nest.certificates.certify import certify
from nest.cli.inspecting import check_command
from nest.cost.score import score
from nest.errors import InvalidProblemError, NestError
from nest.frameworks import (
    deepspeed,
    maxtext,
    maxtext_script,
    torchtitan,
    torchtitan_shapes,
)
from nest.frameworks.export import export, target_of
from nest.frameworks.importing import Site, build
from nest.frameworks.megatron_configs import read_config
from nest.frameworks.schedule_csv import with_passes
from nest.frameworks.scripts import read_launch
from nest.hardware import read_cluster
from nest.hardware.calibration import stored_calibration
from nest.hardware.calibration_file import read_calibration
from nest.hardware.machines import machine
from nest.instances import store
from nest.ir import Plan, Problem, encode, problem_hash, read_plan
from nest.ir.documents import refusing, text_of
from nest.ir.io import decode, read_bytes, read_text
from nest.models.hf import read_hf
from nest.operator_schedule.layer_file import decode_layer
from nest.profiles import Entry, Profile, load_profile
from nest.solvers.base import SolveOptions
from nest.solvers.command import _decode as decode_answer
from nest.solvers.command import read_planner
from nest.topology.files import read_rankfile, read_topology
from nest.topology.files.ranks import write_rankfile
from nest.topology.graph.case import CollectiveCase, price
from nest.validation.predict import predict
from nest.validation.reading import parse_rows, read_rows
from tests.benchmarks import instances as small_set
from tests.benchmarks import make_run
from tests.certified import draw_covered
from tests.cli.test_topology_cli import case
from tests.exports import small_model
from tests.inside import run_inside
from tests.loopback import good_plan, tiny_problem
from tests.unit.audits.test_nest_artifact import chain_document
from tests.unit.audits.test_piper import workload
from tests.unit.frameworks import (
    test_export,
    test_launch_configs,
    test_launch_scripts,
    test_maxtext,
)
from tests.unit.profiles import test_profiles
from tests.unit.topology.test_topology_files import DATA, HOW

ROOT = Path(__file__).parents[1]
WORLD = 16


class Reader(NamedTuple):
    """What is read.

    Attributes
    ----------
    suffix
        Ending of the file's name.
    examples
        Files that it takes.
    read
        Reads a file; it is in a folder of its own.
    """

    suffix: str
    examples: Callable[[], list[bytes]]
    read: Callable[[Path], object]


def _documents(*values: Any) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(value, indent=1).encode() for value in values]


def _blocks(page: str, language: str, key: str) -> Callable[[], list[bytes]]:
    """Return the examples of a page that have a key."""

    def found() -> list[bytes]:
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        parts = text.split(f"```{language}\n")[1:]
        blocks = [part.partition("```")[0] for part in parts]
        return [block.encode() for block in blocks if key in block]

    return found


# Problems and plans


@cache
def _instances() -> list[bytes]:
    """Return problems of every kind that are not large."""
    folder = ROOT / "nest" / "instances" / "data" / "problems"
    found = sorted(folder.glob("*.json.gz"), key=lambda x: x.stat().st_size)
    packed = [gzip.decompress(path.read_bytes()) for path in found[:6]]
    return [encode(tiny_problem()), encode(proven_pair()[0]), *packed]


def _check(path: Path) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        check_command.main([str(path)], standalone_mode=False)


def _plan(path: Path) -> None:
    score(tiny_problem(), read_plan(path))


def _order(path: Path) -> None:
    text = read_text(path, NestError)
    with_passes(good_plan(), text, str(path))


# Certificates: a program of its own, with its own exit codes.


@cache
def proven_pair() -> tuple[Problem, Plan]:
    """Return a problem that certificates are for, with its best plan."""
    for problem in draw_covered(0):
        plan = run_inside(problem, "dp").plan
        if plan is not None:
            return problem, plan
    raise AssertionError("no problem has a plan")


def _certificates() -> list[bytes]:
    proven = proven_pair()
    return [json.dumps(certify(*proven, encode(proven[0])), indent=1).encode()]


def _nest_check(path: Path) -> None:
    problem = path.with_name("problem.json")
    problem.write_bytes(encode(proven_pair()[0]))
    said = io.StringIO()
    with (
        contextlib.redirect_stdout(said),
        contextlib.redirect_stderr(said),
        mock.patch.object(sys, "argv", ["", str(problem), str(path)]),
    ):
        code = checker.main()
    if code:
        raise NestError(said.getvalue().rstrip("\n"))


# Hardware and networks


def _topology(name: str) -> Callable[[Path], object]:
    form, settings = HOW[name]
    return lambda path: read_topology(path, format=form, **settings)


def _topologies() -> dict[str, Reader]:
    found = {}
    for name in HOW:
        data = (DATA / name).read_bytes()
        suffix = Path(name).suffix.replace(".yml", ".yaml")
        found[f"topology {name}"] = Reader(
            suffix, lambda data=data: [data], _topology(name)
        )
    return found


def _price(path: Path) -> None:
    where = str(path)
    data = path.read_bytes()
    price(decode(data, where, CollectiveCase, "case", InvalidProblemError), where)


@cache
def _ranked() -> networkx.Graph:
    form, settings = HOW["slurm-blocks.conf"]
    return read_topology(DATA / "slurm-blocks.conf", format=form, **settings)


def _rank_files() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "ranks")
        write_rankfile(path, _ranked())
        return [path.read_bytes()]


# Measurements


def _profiles() -> list[bytes]:
    entry = Entry(
        model="llama2-7b",
        kind="decoder",
        sequence_length=4096,
        forward_ns=1e6,
        backward_ns=2e6,
        kept_bytes=10,
        forward_flops=1e9,
    )
    other = msgspec.structs.replace(entry, tp=2)
    profile = Profile(device="H100-80GB-SXM", dtype="bf16", entries=(entry, other))
    return [encode(profile)]


def _operators() -> list[bytes]:
    with tempfile.TemporaryDirectory() as name:
        return [test_profiles.write_lines(Path(name, "x")).read_bytes()]


def _aceso(path: Path) -> None:
    named = path.with_name(test_profiles.NAME)
    path.rename(named)
    test_profiles.run_import(named)


def _rows() -> list[bytes]:
    path = ROOT / "nest" / "validation" / "data" / "measured.csv"
    lines = path.read_bytes().splitlines(keepends=True)
    picked = [lines[0] + lines[i] + lines[-i] for i in range(1, 400, 40)]
    return [*picked, template_csv().encode()]


def _my_runs() -> list[bytes]:
    """Return two runs of one cluster."""
    lines = template_csv().encode().splitlines(keepends=True)
    own = [lines[1].strip() + digit for digit in (b"2\n", b"3\n")]
    return [lines[0] + b"".join(own)]


def _assessed(path: Path) -> None:
    for row in read_rows(path)[:2]:
        predict(row)


def _own_runs(path: Path) -> None:
    runs_of(parse_rows(path.read_bytes()), str(path), "", "", 0)


# Benchmarks


def _size_bytes(name: str) -> int:
    return store.problem_path(name).stat().st_size


@cache
def _compared() -> list[bytes]:
    # An instance that is solved at once.
    problem = store.load(min(store.index(), key=_size_bytes))
    result = run_inside(problem, "dp")
    document = to_document(problem, {"dp": SolveOptions()}, [result])
    return [json.dumps(document, indent=1).encode()]


def _update(path: Path) -> None:
    document = decode(path.read_bytes(), str(path), dict, "document", NestError)
    with_document(store.read_best_known(), document, str(path), _proves_nothing)


def _proves_nothing(problem: Problem, solver: str) -> Mapping[str, Any]:
    raise NestError(f"{solver}: expected no claim worth a proof, got one")


def _best_known() -> list[bytes]:
    known = dict(list(store.read_best_known().items())[:3])
    return [encode_best_known(known)]


@cache
def _finished() -> list[bytes]:
    (whole,) = _compared()
    cell = json.loads(whole)["cells"][0]
    document = {
        "schema": "nest-bench-cell/1",
        "key": "0" * 32,
        "cell": {
            "problem_hash": problem_hash(tiny_problem()),
            "solver": "dp",
            "seed": 0,
            "version": "0.2.0",
        },
        "result": cell,
        "trace": [{"wall_s": 0.1, "step_quanta": 5}],
    }
    return [json.dumps(document, indent=1).encode()]


def _cell(path: Path) -> None:
    decode(path.read_bytes(), str(path), Finished, "cell", NestError)


def _begun(path: Path) -> None:
    path.rename(path.with_name(MANIFEST))
    begun(path.parent)


def _set(path: Path) -> None:
    # Names of files would be those of this machine.
    with mock.patch.object(instances, "_find", return_value=[]):
        list(instances._read_any(path, ()))


# Accelerators


def _layers() -> list[bytes]:
    return [(ROOT / "examples" / "codesign" / "layer.json").read_bytes()]


def _spaces() -> list[bytes]:
    """Return the example that lists little, and one of points."""
    whole = (ROOT / "examples" / "codesign" / "own.yaml").read_bytes()
    points = (
        b"schema: nest-codesign/1\ndevices: 8\nspace:\n"
        b"  hbm: 1 GB\n  hbm_bandwidth: 1 GB/s\n  frequency: 1 GHz\n"
        b"  link_bandwidth: 1 GB/s\n  network_bandwidth: 1 GB/s\n  points:\n"
        b"  - {tensor_cores: 1, rows: 2, columns: 2, vector_cores: 1, "
        b"sram: 1 MiB}\n"
        b"  - {tensor_cores: 2, rows: 2, columns: 2, vector_cores: 1, "
        b"sram: 1 MiB}\n"
        b"objective: {base: {name: x, tensor_cores: 1, rows: 2, columns: 2, "
        b"vector_cores: 1, sram: 1 MiB}}\n"
    )
    return [whole, points]


# Models and launches


def _models() -> list[bytes]:
    path = ROOT / "tests" / "data" / "models.json"
    stored = json.loads(path.read_text(encoding="utf-8"))
    return [
        json.dumps(example["config"], indent=1).encode()
        for examples in stored.values()
        for example in examples[:1]
    ]


#: What only a resolver knows.
_DERIVED = "${multiply:2, ${.hidden_size}}"


@cache
def _site() -> Site:
    return Site([(machine("dgx-h100"), WORLD)])


def _script(path: Path) -> None:
    found = read_launch(read_text(path, NestError), str(path), WORLD).reading
    build(found.launch, found.model, _site())


def _config(path: Path) -> None:
    text = read_text(path, NestError)
    given = {"SEQ": "1024"} if "${SEQ}" in text else {}
    said = [] if "vocab_size" in text else [("vocab-size", "1024")]
    read_config(text, str(path), WORLD, given, said)


def _titan(path: Path) -> None:
    text = read_text(path, NestError)
    world = 8
    launch, shape, *_ = torchtitan.read_foreign(text, str(path), world)
    build(launch, shape, Site([(machine("dgx-h100"), world)]))


def _titan_module(path: Path) -> None:
    text = read_text(path, NestError)
    torchtitan_shapes.read_module(text, str(path), "small")


def _maxtext(path: Path) -> None:
    text = read_text(path, NestError)
    if maxtext_script.is_script(text, str(path)):
        found = maxtext_script.read_configuration(text, str(path), {}, lambda _: None)
    else:
        found = maxtext.configuration_of(text, str(path))
    launch, shape, _ = maxtext.read_foreign(found, str(path), WORLD)
    build(launch, shape, _site(), target="maxtext")


def _layer(path: Path) -> None:
    decode_layer(read_bytes(path, NestError), str(path))


def _speed(path: Path) -> None:
    text = read_text(path, NestError)
    model = small_model()
    deepspeed.read_foreign(text, str(path), 8, model, 1024)


@cache
def _exported(name: str) -> dict[str, str]:
    files = export(*test_export.base(name))
    return {key: str(text) for key, text in files.items()}


def _reread(name: str, file: str) -> Reader:
    target = test_export.BASES[name][0]
    suffix = Path(file).suffix.replace(".yml", ".yaml")

    def read(path: Path) -> None:
        with refusing(file, NestError):
            text = text_of(path.read_bytes())
        files = {**_exported(name), file: text}
        target_of(target).read(files, small_model())

    return Reader(suffix, lambda: [_exported(name)[file].encode()], read)


READERS: dict[str, Reader] = {
    "problem": Reader(".json", _instances, _check),
    "problem in yaml": Reader(
        ".yaml", _blocks("files.md", "yaml", "nest-problem/1"), _check
    ),
    "plan": Reader(".json", lambda: [encode(good_plan())], _plan),
    "order of passes": Reader(
        ".csv",
        lambda: [
            b"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
            b"0F0,0F1,,0I0,0W0,0B1\n1RECV_F0,1F0,1I0,1SEND_B0,1F1,1W0,1B1\n",
        ],
        _order,
    ),
    "plan in yaml": Reader(
        ".yaml",
        lambda: [
            b"schema: nest-plan/1\nreplicas: 1\nmicro_batch: 1\nstages:\n"
            b"- {layers: [0], devices: 1, strategy: {tp: 1}}\n"
            b"- {layers: [1], devices: 1, strategies: [{zero: 0}]}\n"
        ],
        _plan,
    ),
    "certificate": Reader(".json", _certificates, _nest_check),
    "cluster": Reader(".yaml", _blocks("files.md", "yaml", "machine:"), read_cluster),
    **_topologies(),
    "price": Reader(
        ".json",
        lambda: _documents(*(case(name) for name in ("clos", "star")))(),
        _price,
    ),
    "rank file": Reader("", _rank_files, lambda path: read_rankfile(path, _ranked())),
    "profile": Reader(".json", _profiles, load_profile),
    "aceso": Reader(".csv", _operators, _aceso),
    "calibration": Reader(
        ".json", lambda: [encode(stored_calibration())], read_calibration
    ),
    "measured rows": Reader(".csv", _rows, _assessed),
    "own runs": Reader(".csv", _my_runs, _own_runs),
    "sweep": Reader(
        ".yaml", _blocks("benchmarks.md", "yaml", "nest-sweep/1"), read_sweep
    ),
    "codesign": Reader(".yaml", _spaces, read_spec),
    "layer": Reader(".json", _layers, _layer),
    "set": Reader(
        ".yaml",
        lambda: [b"- one.json\n- two.json\n- {model: gpt2, cluster: h100x8}\n"],
        _set,
    ),
    "run": Reader(".json", lambda: [encode(make_run(small_set(2), ["dp"]))], _begun),
    "cell": Reader(".json", _finished, _cell),
    "compared": Reader(".json", _compared, _update),
    "best known": Reader(".json", _best_known, store.read_best_known),
    "planner": Reader(
        ".yaml",
        lambda: [(ROOT / "examples/shell-planner/replicate.yaml").read_bytes()],
        read_planner,
    ),
    "answer": Reader(
        ".json",
        lambda: [
            encode(good_plan()),
            b'{"schema": "nest-answer/1", "status": "no-solution"}',
        ],
        lambda path: decode_answer(path.read_bytes()),
    ),
    "artifact": Reader(
        ".json", lambda: _documents(chain_document())(), import_nest_artifact
    ),
    "piper": Reader(".json", lambda: _documents(workload())(), import_piper),
    "hf": Reader(".json", _models, read_hf),
    "script": Reader(".sh", lambda: [test_launch_scripts.SCRIPT.encode()], _script),
    "megatron config": Reader(
        ".yaml",
        lambda: [
            text.encode()
            for text in (
                test_launch_configs.MEGATRON,
                test_launch_configs.NEMO.replace(_DERIVED, "512"),
                test_launch_configs.BRIDGE,
            )
        ],
        _config,
    ),
    "torchtitan": Reader(
        ".toml",
        lambda: [test_launch_scripts.OLD.encode(), test_launch_scripts.NEW.encode()],
        _titan,
    ),
    "torchtitan module": Reader(
        ".py",
        lambda: [
            torchtitan_shapes.module_text(small_model(experts), 1024, 1).encode()
            for experts in (0, 4)
        ],
        _titan_module,
    ),
    "deepspeed": Reader(
        ".json", lambda: [_exported("speed")["ds.json"].encode()], _speed
    ),
    "maxtext": Reader(
        ".yml",
        lambda: [_exported("max")["config.yml"].encode(), test_maxtext.FILE.encode()],
        _maxtext,
    ),
    "maxtext script": Reader(".sh", lambda: [test_maxtext.SCRIPT.encode()], _maxtext),
    "export args.sh": _reread("plain", "args.sh"),
    "export hosts": _reread("replicas", "hostfile"),
    "export rank map": _reread("replicas", "rank_map.json"),
    "export ds.json": _reread("speed", "ds.json"),
    "export config.yml": _reread("max", "config.yml"),
}
