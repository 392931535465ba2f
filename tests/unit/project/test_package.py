"""The package as a whole: what it imports, and what it offers."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

import nest
from tests.children import python

ROOT = Path(nest.__file__).parent
HEAVY = {"ortools", "pulp", "highspy", "numpy", "networkx", "pandas", "rich"}


def loaded_by(code: str) -> set[str]:
    """Return the top-level modules that a new Python has after the code."""
    done = python("-c", f"{code}\nimport sys\nprint(*sys.modules)")
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    return {name.partition(".")[0] for name in last.split()}


@pytest.mark.parametrize(
    "code",
    [
        "import nest",
        "import nest; nest.solve, nest.read_problem, nest.SolveResult",
        "import nest; nest.compare_solvers, nest.solver_names()",
        "import nest.cli.main",
        "import nest.solvers.worker",
    ],
)
def test_imports_are_light(code: str) -> None:
    loaded = loaded_by(code)
    assert not loaded & HEAVY
    assert not loaded & {"formulations", "baselines"}


def test_import_nest_alone_loads_none_of_its_modules() -> None:
    assert "msgspec" not in loaded_by("import nest")


def test_modules_are_loaded_when_they_are_used() -> None:
    loaded = loaded_by("import nest, nest.constraints.pins; nest.api.solve")
    assert "msgspec" in loaded
    assert not loaded & HEAVY


#: What a small question on the command line does not need.
UNNEEDED = {
    *("yaml", "networkx", "ortools", "pulp", "joblib", "multiprocessing"),
    *("numpy.ma", "numpy.random", "rich.table", "rich.progress"),
    *("nest.analysis.neighbors", "nest.analysis.robust", "nest.frameworks"),
    *("nest.search.passes.interleaved", "nest.search.layers.best"),
    *("nest.simulation", "nest.topology.files", "nest.benchmarks"),
    "nest.present.pages",
    *("formulations", "baselines"),
}


#: A problem in a file: it comes with its costs.
STORED = ROOT.parent / "tests" / "data" / "regression" / "nest-artifact-memory.json"
#: What only the problem of a model needs.
OF_MODELS = {
    *(
        "nest.models.choices",
        "nest.models.zoo",
        "nest.validation",
        "nest.requests.networks",
    ),
    *("nest.profiles", "nest.instances"),
}


@pytest.mark.parametrize(
    ("question", "unneeded"),
    [("llama2-7b-8", UNNEEDED), (str(STORED), UNNEEDED | OF_MODELS)],
)
def test_a_small_question_loads_little_and_starts_no_process(
    question: str, unneeded: set[str]
) -> None:
    code = (
        "import sys\n"
        "def refuse(event, arguments):\n"
        "    if event in ('os.fork', 'os.posix_spawn', 'subprocess.Popen'):\n"
        "        os._exit(3)\n"
        "import os\n"
        "sys.addaudithook(refuse)\n"
        f"sys.argv[1:] = ['solve', {question!r}]\n"
        "from nest.__main__ import main\n"
        "try: main()\n"
        "except SystemExit as error: assert not error.code\n"
        "print(*sys.modules)\n"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert "\nproof      optimal among " in done.stdout
    modules = done.stdout.splitlines()[-1].split()
    assert unneeded.isdisjoint(modules), sorted(unneeded.intersection(modules))
    assert len(modules) < 550


def test_public_names_exist() -> None:
    for name in nest.__all__:
        if name != "load_problem":
            assert getattr(nest, name) is not None
    assert set(nest.__all__) <= set(dir(nest))
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        nest.nonsense  # noqa: B018


def test_the_command_hears_interrupts_early() -> None:
    """What takes long to import comes after the handler of signals."""
    done = python(
        *("-I", "-S", "-c"),
        f"import sys; sys.path.append({str(ROOT.parent)!r}); import nest.__main__; "
        "print(*{'typing', 're', 'click', 'msgspec'} & {*sys.modules})",
    )
    assert (done.returncode, done.stdout.split()) == (0, [])


def imports_of(path: Path) -> set[str]:
    """Return the top-level packages that a module names in its imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found


def test_dependencies_flow_one_way() -> None:
    """The package names solvers as text; their engines come with them.

    The linear programs of bounds alone use one in the search.
    """
    modules = sorted(ROOT.rglob("*.py"))
    assert len(modules) > 20
    for path in modules:
        forbidden = imports_of(path) & {"formulations", "baselines", "tests"}
        assert not forbidden, path
        engines = imports_of(path) & {"ortools", "pulp", "highspy"}
        bounds = path == ROOT / "search" / "linear_program.py"
        assert engines == ({"highspy"} if bounds else set()), path


def test_the_page_of_dependencies_has_their_bounds() -> None:
    """Those of the core and of the extras, as the project file has them."""
    page = (ROOT.parent / "docs" / "dependencies.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| (?:`\w+` \| )?([\w-]+) \| `(\S+)` \|", page, re.M)
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())["project"]
    stated = [
        *project["dependencies"],
        *(
            text
            for name, texts in project["optional-dependencies"].items()
            for text in texts
            if name != "all"
        ),
    ]
    assert sorted(name + bound for name, bound in shown) == sorted(stated)
