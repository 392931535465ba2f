"""Whether every link of the built site leads to a file, and to a place in it.

    python docs/check_links.py build/docs

Sphinx checks what it resolves; this reads what it wrote, and also sees links
in HTML, to pages of the gallery and to pictures. Links to other hosts are not
followed.
"""

from __future__ import annotations

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

#: Which attributes lead elsewhere, by element.
_LINKS = {"a": "href", "link": "href", "img": "src", "script": "src"}


def broken(root: Path) -> list[str]:
    """Return a line for each link that leads nowhere."""
    lines = []
    for page in sorted(root.rglob("*.html")):
        for link in sorted(_read(page).links):
            reason = why_not(root, page, link)
            if reason:
                lines.append(f"{page.relative_to(root)}: {link}: {reason}")
    return lines


def why_not(root: Path, page: Path, link: str) -> str:
    """Return why a link leads nowhere; empty if it leads somewhere."""
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return ""
    file = page
    if parts.path:
        file = (page.parent / unquote(parts.path)).resolve()
    if file.is_dir():
        file /= "index.html"
    if not file.is_relative_to(root) or not file.is_file():
        return "expected a file of the site, got none"
    place = unquote(parts.fragment)
    if place and file.suffix == ".html" and place not in _read(file).places:
        return "expected a place on the page, got none"
    return ""


class _Page(HTMLParser):
    """What a page has of links and of places that links can lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.places: set[str] = set()
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.places.add(known.get("id") or "")
        self.links.add(known.get(_LINKS.get(tag, "")) or "")


@cache
def _read(page: Path) -> _Page:
    return _Page(page.read_text(encoding="utf-8"))


def main() -> int:
    """Return 1 if a link leads nowhere."""
    root = Path(sys.argv[1]).resolve()
    pages = len(list(root.rglob("*.html")))
    lines = broken(root)
    for line in lines:
        print(f"links: {line}", file=sys.stderr)
    print(f"links: {pages} pages, {len(lines)} broken links")
    return 1 if lines or not pages else 0


if __name__ == "__main__":
    sys.exit(main())
