"""Pictures of the documentation site."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.driver import why_not
from tests.unit.test_site import load

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
