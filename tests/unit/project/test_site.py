"""The documentation site: links of its pages, and of files that move there."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.children import python

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"


def load(name: str) -> ModuleType:
    """Import a file of docs/, which is no package."""
    spec = spec_from_file_location(f"docs_{name}", DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _places(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the paths as they are, which conf.py adds to."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("PATH", os.environ["PATH"])


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Two pages whose links all lead somewhere."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">A</h1><a href="sub/b.html#here">b</a><a href="#top">'
        '<img src="a.png"><a href="https://example.org/gone">elsewhere</a>'
        '<a href="sub/b.html?highlight=x">b</a>'
    )
    (tmp_path / "sub" / "b.html").write_text(
        '<p id="here"><a href="../index.html">a</a><a href="..">a</a>'
    )
    (tmp_path / "a.png").write_bytes(b"")
    return tmp_path


def test_links_that_lead_somewhere_are_fine(site: Path) -> None:
    assert load("check_links").broken(site) == []


@pytest.mark.parametrize(
    ("link", "reason"),
    [
        ('<a href="c.html">', "expected a file of the site, got none"),
        ('<img src="b.png">', "expected a file of the site, got none"),
        ('<a href="../../x.html">', "expected a file of the site, got none"),
        ('<a href="index.html#no">', "expected a place on the page"),
        ('<a href="#no">', "expected a place on the page, got none"),
    ],
)
def test_links_that_lead_nowhere_are_named(site: Path, link: str, reason: str) -> None:
    page = site / "c-d.html"
    page.write_text(link)
    (line,) = load("check_links").broken(site)
    assert line.startswith("c-d.html: ")
    assert reason in line


def test_the_check_of_links_fails(site: Path) -> None:
    """Also where there is no page at all."""

    def run(folder: Path) -> tuple[int, str]:
        done = python(DOCS / "check_links.py", folder)
        return done.returncode, done.stdout

    assert run(site) == (0, "links: 2 pages, 0 broken links\n")
    (site / "c.html").write_text('<a href="gone.html">')
    assert run(site) == (1, "links: 3 pages, 1 broken links\n")
    assert run(site / "none") == (1, "links: 0 pages, 0 broken links\n")


@pytest.mark.parametrize(
    ("link", "page"),
    [
        ("[c](../CONTRIBUTING.md)", "[c](/project/contributing.md)"),
        ("[c](docs/cost-model.md#a)", "[c](/cost-model.md#a)"),
        ("[c](../docs/files.md)", "[c](/files.md)"),
        ("[c](files.md)", "[c](files.md)"),
        ("[e](../examples/even-planner)", "[e](/reference/examples.md)"),
    ],
)
def test_links_to_files_that_move_lead_to_pages(link: str, page: str) -> None:
    assert load("conf").on_the_site(link) == page


def test_names_in_docstrings_have_to_exist() -> None:
    exists = load("conf")._exists
    assert exists("nest.ir.plan.Plan")
    assert exists("nest.ir.plan.Plan.replicas")
    assert exists("collections.abc.Mapping")
    assert exists("int")
    assert not exists("nest.ir.plan.Plam")
    assert not exists("nest.no.module")
    assert not exists("nest.ir.plan.Plan.replica")


def test_every_page_is_on_the_left() -> None:
    """Sphinx checks it too; this does without it."""
    listed = "\n".join(
        block
        for page in DOCS.rglob("*.md")
        for block in re.findall(
            r"```\{toctree\}\n(.*?)```", page.read_text(), re.DOTALL
        )
    )
    named = {line.rpartition("/")[2] for line in listed.splitlines()}
    pages = {page.stem for page in DOCS.glob("*.md")} - {"index"}
    assert pages <= named


def test_pictures_in_the_repository_are_those_that_the_build_takes() -> None:
    files = {each.file for each in load("pictures").REPORT}
    assert files == {path.name for path in (DOCS / "images").iterdir()}
    named = re.findall(r"images/([\w-]+\.png)", (DOCS / "report.md").read_text())
    assert set(named) == files
    assert "docs/images/report.png" in (ROOT / "README.md").read_text()


def test_without_a_browser_no_picture_is_taken_and_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pictures = load("pictures")
    monkeypatch.setattr(pictures, "why_not", lambda: "there is no Chromium")
    wanted = [(tmp_path / "x.html", each) for each in pictures.REPORT]
    assert not pictures.take(wanted, tmp_path)
    assert capsys.readouterr().out == (
        "pictures: report.png, report-dark.png, report-narrow.png not taken, "
        "those of the repository stay: there is no Chromium\n"
    )
    assert list(tmp_path.iterdir()) == []
    assert pictures.shown(tmp_path, "x.html") == ""


def test_pictures_are_taken_without_sphinx(monkeypatch: pytest.MonkeyPatch) -> None:
    """``make pictures`` runs in the environment of nest."""
    monkeypatch.setitem(sys.modules, "docutils", None)
    pages, pictures = load("gallery_pages"), load("pictures")
    monkeypatch.setitem(sys.modules, "gallery_pages", pages)
    monkeypatch.setattr(pages, "write_page", lambda report, _: report.file)
    taken: dict[Path, list[str]] = {}

    def take(wanted: list[tuple[str, Any]], folder: Path) -> bool:
        taken[folder] = [page for page, _ in wanted]
        return True

    monkeypatch.setattr(pictures, "take", take)
    pictures.main()
    assert taken == {DOCS / "images": ["llama3-70b.html"] * 3}


def test_pictures_of_a_page_are_links_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "x-dark.png").touch()
    assert load("pictures").shown(folder, "x.html") == (
        '<a href="reports/x.html" tabindex="-1" aria-hidden="true">'
        '<img class="only-dark" src="reports/x-dark.png" alt="" '
        'loading="lazy" width="495" height="450"></a>'
    )


def test_without_a_browser_nobody_looks_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    access = load("check_access")
    monkeypatch.setattr(access, "why_not", lambda: "there is no Chromium")
    assert access.main() == 0
    assert capsys.readouterr().out == "access: not checked: there is no Chromium\n"


def test_corners_of_tables_head_nothing() -> None:
    context = {"body": '<tr><th class="head"><p></p></th><th>a</th></tr>'}
    load("conf")._page(None, "index", "page.html", context, None)
    assert context["body"] == "<tr><td></td><th>a</th></tr>"


@pytest.fixture
def gallery(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """What writes its pages; Sphinx, which only lists them, may be missing."""
    monkeypatch.syspath_prepend(DOCS)
    if find_spec("sphinx") is None:
        for name, what in (
            ("docutils", {"nodes": None}),
            ("sphinx", {}),
            ("sphinx.util", {}),
            ("sphinx.util.docutils", {"SphinxDirective": object}),
        ):
            module = ModuleType(name)
            vars(module).update(what)
            monkeypatch.setitem(sys.modules, name, module)
    return load("gallery")


def test_a_page_of_the_gallery_has_to_say_what_it_shows(
    gallery: ModuleType, tmp_path: Path
) -> None:
    """Two devices of 40 GB do not hold the model; of 80 GB they do."""
    (short,) = (x for x in gallery.REPORTS if x.file == "infeasible.html")
    text = gallery.write_page(short, tmp_path).read_text()
    assert "There is no plan that fits: this is proven." in text
    assert "would do: 4 such devices" in text
    # What somebody would type, not where it was built.
    assert (
        "nest solve --model llama3-8b --cluster a100-40gbx2 --html infeasible.html\n"
    ) in text.replace("<", "\n")
    for place in (tmp_path, ROOT, Path(tempfile.gettempdir())):
        assert f"{place}/" not in text
    fits = short._replace(command="solve llama2-7b-8 --html")
    with pytest.raises(RuntimeError, match="to say 'memory is short by', got"):
        gallery.write_page(fits, tmp_path)


def test_examples_of_commands_are_blocks_of_code() -> None:
    epilog = "\b\nExamples:\n  nest solve a\n  nest fit b \\\n    --memory"
    assert load("conf").example_lines(epilog) == [
        "Examples:",
        "",
        ".. code-block:: console",
        "",
        "   $ nest solve a",
        "   $ nest fit b \\",
        "       --memory",
        "",
    ]
