"""Pictures of pages that nest writes, taken in a headless Chromium.

``make docs`` takes those of the site; those in the repository, which README
shows, are of the same page:

    make pictures
"""

from __future__ import annotations

import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.browser.driver import browser, picture, show, why_not  # noqa: E402


class Picture(NamedTuple):
    """The top of a page, in a window of a width.

    ``height`` is in the same pixels; ``scale`` is that of the picture.
    """

    file: str
    width: int
    height: int
    scheme: str = "light"
    scale: float = 1.0


#: What docs/report.md and README show of the page of ``make report``.
REPORT = (
    Picture("report.png", 1280, 860),
    Picture("report-dark.png", 1280, 860, "dark"),
    Picture("report-narrow.png", 390, 960),
)


def thumbnails(page: str) -> dict[str, Picture]:
    """Return the small pictures of a page, by their scheme."""
    stem = page.removesuffix(".html")
    return {
        scheme: Picture(f"{stem}-{scheme}.png", 1100, 1000, scheme, 0.45)
        for scheme in ("light", "dark")
    }


def take(wanted: Sequence[tuple[Path, Picture]], folder: Path) -> bool:
    """Write pictures of pages to a folder; say so where nothing can."""
    reason = why_not()
    if reason:
        files = ", ".join(each.file for _, each in wanted)
        print(
            f"pictures: {files} not taken, those of the repository stay: {reason}",
            flush=True,
        )
        return False
    with browser() as driver:
        for page, each in wanted:
            show(driver, page, each.width, each.scheme)
            path = folder / each.file
            picture(driver, path, each.height, each.scale)
            path.write_bytes(small(path.read_bytes()))
    return True


def shown(folder: Path, page: str) -> str:
    """Return the small pictures of a page in HTML; empty where none are.

    They are a link for the mouse only: the one above them is the same. The
    folder is below that of the page that they are on.
    """
    images = [
        f'<img class="only-{scheme}" src="{folder.name}/{each.file}" alt="" '
        f'loading="lazy" width="{round(each.width * each.scale)}" '
        f'height="{round(each.height * each.scale)}">'
        for scheme, each in thumbnails(page).items()
        if (folder / each.file).is_file()
    ]
    if not images:
        return ""
    return (
        f'<a href="{folder.name}/{page}" tabindex="-1" aria-hidden="true">'
        f"{''.join(images)}</a>"
    )


def small(png: bytes) -> bytes:
    """Return a picture with few colors, which is a third of it."""
    from PIL import Image

    image = Image.open(io.BytesIO(png)).convert("RGB")
    found = io.BytesIO()
    image.quantize(64, dither=Image.Dither.NONE).save(found, "PNG", optimize=True)
    return found.getvalue()


def main() -> None:
    """Take the pictures in the repository anew."""
    from gallery_pages import MAKE_REPORT, write_page

    with tempfile.TemporaryDirectory() as folder:
        page = write_page(MAKE_REPORT, Path(folder))
        wanted = [(page, each) for each in REPORT]
        if not take(wanted, ROOT / "docs" / "images"):
            sys.exit(1)


if __name__ == "__main__":
    main()
