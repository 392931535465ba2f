"""What Sphinx makes of this folder: ``make docs``, see CONTRIBUTING.md."""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
import inspect
import os
import pkgutil
import re
import sys
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT)]
# Cells that call nest take the one of this environment.
os.environ["PATH"] = os.pathsep.join(
    [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
)
# They find files of this folder by a variable.
os.environ["NEST_DOCS"] = str(DOCS)
# Nor do they print tables as wide as the terminal of who builds the site.
os.environ.pop("COLUMNS", None)

import nest.requests  # noqa: E402
from nest.util.versions import nest_version  # noqa: E402

project = "nest"
author = "The nest developers"
copyright = author
version = release = nest_version()

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "numpydoc",
    "sphinx_click",
    "gallery",
    "formulas",
]
html_theme = "furo"
html_title = "nest"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_show_sphinx = False
highlight_language = "none"
# Two dashes are those of an option.
smartquotes = False

# Every reference has to lead somewhere.
nitpicky = True
myst_heading_anchors = 4

# Formulas are written as GitHub shows them, see formulas.py.
myst_enable_extensions = ["dollarmath"]
myst_dmath_allow_digits = False
myst_dmath_allow_space = False
myst_fence_as_directive = ["math"]
html_math_renderer = "mathml"

# A cell that raises fails the build.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_execution_excludepatterns = (
    [] if importlib.util.find_spec("torch") else ["notebooks/my-module*"]
)
nb_merge_streams = True

numpydoc_show_class_members = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}


#: Pages of the site that are files elsewhere, whose links are from there.
_MOVED = {
    "CHANGELOG.md": "/project/changelog.md",
    "CONTRIBUTING.md": "/project/contributing.md",
    "formulations/README.md": "/explanation/formulations.md",
    "examples/even-planner": "/reference/examples.md",
    "examples/shell-planner": "/reference/examples.md",
    "examples/modules/models.py": "/reference/examples.md",
}


def on_the_site(text: str) -> str:
    """Return a text whose links to other files lead to pages."""
    for file, page in _MOVED.items():
        text = re.sub(rf"\]\((\.\./)*{re.escape(file)}", f"]({page}", text)
    return re.sub(r"\]\((\.\./)*docs/", "](/", text)


def _read(app: Any, docname: str, source: list[str]) -> None:
    source[0] = on_the_site(source[0])
    # Its index says what the pages of the folder are about; this puts those
    # that are there on the left.
    if docname == "howto/index" and "{toctree}" not in source[0]:
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def _page(app: Any, pagename: str, template: str, context: Any, doctree: Any) -> None:
    """Take corners of tables for what they are, which head nothing."""
    empty = r"<th[^>]*>(<p></p>)?</th>"
    context["body"] = re.sub(empty, "<td></td>", context.get("body", ""))


def _include(app: Any, path: Path, docname: str, source: list[str]) -> None:
    source[0] = on_the_site(source[0])


#: Modules whose types the signatures of nest.api name.
_REQUESTS = tuple(
    f"nest.requests.{module.name}"
    for module in pkgutil.iter_modules(nest.requests.__path__)
)


def _resolve(app: Any, env: Any, node: Any, contnode: Any) -> Any:
    """Resolve what no page has: names without module, and those of others.

    What is not on the site is text, if it can be imported.
    """
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"].partition("[")[0]
    domain = env.get_domain("py")
    places = {
        name
        for name in domain.objects
        if name.endswith(f".{target}") and not name.startswith("nest.api.")
    }
    if len(places) == 1:
        return domain.resolve_xref(
            env, node["refdoc"], app.builder, "obj", *places, node, contnode
        )
    scopes = [node.get("py:module") or "", node.get("py:class") or ""]
    for scope in ("", scopes[0], ".".join(scopes)):
        if _exists(f"{scope}.{target}".strip(".")):
            return contnode
    modules = (*domain.modules, *_REQUESTS)
    known = any(target in _imported(module) for module in modules)
    return contnode if known else None


def _exists(name: str) -> bool:
    """Whether a name can be imported, with the modules that it names."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            known = getattr(found, "__dataclass_fields__", ())
            if part in (*known, *getattr(found, "__struct_fields__", ())):
                return True
            found = getattr(found, part, None)
        return found is not None
    return hasattr(builtins, name)


@functools.cache
def _imported(module: str) -> set[str]:
    """Return what a module imports or declares, for annotations too."""
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    return imported | {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def example_lines(epilog: str) -> list[str]:
    """Return the examples below the help of a command as a block of code."""
    heading, *lines = filter(str.strip, epilog.replace("\b", "").splitlines())
    block = [
        f"   {'  ' if line.startswith('   ') else '$ '}{line[2:]}" for line in lines
    ]
    return [heading, "", ".. code-block:: console", "", *block, ""]


def _examples(app: Any, context: Any, lines: list[str]) -> None:
    if context.command.epilog:
        lines[:] = example_lines(context.command.epilog)


def setup(app: Any) -> None:
    """Connect what is above."""
    # Pygments has none for tables.
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", _read)
    app.connect("include-read", _include)
    app.connect("html-page-context", _page)
    app.connect("missing-reference", _resolve)
    app.connect("sphinx-click-process-epilog", _examples)
