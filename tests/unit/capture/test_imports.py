"""Which files a user's file imports from its folder."""

from __future__ import annotations

import hashlib
from pathlib import Path

from nest.capture.imports import hashes_of_imports, module_of

FILES = {
    "main.py": "import plain\nfrom package.part import f\nfrom spread import far",
    "plain.py": "def late():\n    import later",
    "later.py": "import main\nimport broken",
    "broken.py": "def (",
    "package/__init__.py": "from .sibling import *",
    "package/part.py": "from . import other\nfrom .. import plain",
    "package/sibling.py": "",
    "package/other.py": "",
    "spread/far.py": "",
    "unused.py": "",
    "package/unused.py": "",
}


def test_files_of_packages(tmp_path: Path) -> None:
    files = {
        "top/__init__.py": "",
        "top/inner/__init__.py": "",
        "top/inner/main.py": "from ..shared import f\nimport top.late\nimport beside",
        "top/shared.py": "",
        "top/late.py": "",
        "top/inner/beside.py": "",
        "top/unused.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    main = tmp_path / "top/inner/main.py"
    assert module_of(main) == (tmp_path.resolve(), "top.inner.main")
    expected = sorted({*files} - {"top/inner/main.py", "top/unused.py"})
    assert [*hashes_of_imports(main)] == expected
    assert module_of(tmp_path / "alone.py")[1] == "alone"


def test_imports_of_imports_count(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    hashes = hashes_of_imports(tmp_path / "main.py")
    expected = sorted({*FILES} - {"main.py", "unused.py", "package/unused.py"})
    assert [*hashes] == expected
    text = FILES["plain.py"].encode()
    assert hashes["plain.py"] == hashlib.sha256(text).hexdigest()
