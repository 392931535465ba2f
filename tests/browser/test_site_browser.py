"""Pictures of the documentation site, and what keeps people out of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.driver import why_not
from tests.unit.project.test_site import load

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


def test_pictures_are_taken(tmp_path: Path) -> None:
    from PIL import Image

    pictures = load("pictures")
    page = tmp_path / "x.html"
    page.write_text("<p style='height: 2000px'>tall")
    thumbnails = pictures.thumbnails("x.html").values()
    assert pictures.take([(page, each) for each in thumbnails], tmp_path)
    for each in thumbnails:
        with Image.open(tmp_path / each.file) as image:
            assert image.size == (495, 450)


def test_what_keeps_people_out_is_found(tmp_path: Path) -> None:
    """Text without contrast in dark, a box of 700 px, and an error."""
    (tmp_path / "fine.html").write_text(
        "<!doctype html><html lang=en><title>a</title><main><h1>a</h1>"
    )
    access = load("check_access")
    assert list(access.shortcomings(tmp_path, ["fine"])) == []
    (tmp_path / "gray.html").write_text(
        "<!doctype html><html lang=en><title>a</title><style>"
        "@media (prefers-color-scheme: dark) { p { color: #ddd } }"
        "</style><main><h1>a</h1><p>barely</p>"
        "<div style='width: 700px; height: 9px'></div><script>gone()</script>"
    )
    found = list(access.shortcomings(tmp_path, ["gray"]))
    wide = [line for line in found if "px, got " in line]
    assert [line.partition(":")[0] for line in wide] == ["gray.html at 375 px"]
    assert sum("gone is not defined" in line for line in found) == 3
    serious = [line for line in found if "serious: color-contrast" in line]
    assert [line.partition(": ")[0] for line in serious] == [
        f"gray.html at {width} px, dark" for width in (1280, 768, 375)
    ]
