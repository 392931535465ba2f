"""The gallery: pages that the project writes when the site is built.

Each is the answer to a command of ``gallery_pages.REPORTS``; the directive
``reports`` of gallery.md lists them. Where there is a browser, pictures of
them are taken: small ones for the list, and those of the page of ``make
report`` again, in place of the ones in the repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from gallery_pages import MAKE_REPORT, REPORTS, write_page
from pictures import REPORT, shown, take, thumbnails
from sphinx.util.docutils import SphinxDirective

#: Where pages are, from the root of the site.
FOLDER = "reports"


def write(folder: Path) -> None:
    """Write all pages into a folder, and small pictures of them."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = [write_page(report, folder) for report in REPORTS]
    take(
        [
            (page, picture)
            for page in pages
            for picture in thumbnails(page.name).values()
        ],
        folder,
    )


class Reports(SphinxDirective):
    """A list of the pages: a link, the command, and a picture."""

    def run(self) -> list[nodes.Node]:
        """Return a definition list."""
        folder = Path(self.env.app.outdir, FOLDER)
        items = nodes.definition_list()
        for report in REPORTS:
            term = nodes.term()
            uri = f"{FOLDER}/{report.file}"
            term += nodes.reference("", report.shows, refuri=uri)
            command = f"nest {report.command} {report.file}"
            text = nodes.paragraph()
            text += nodes.literal("", command)
            image = nodes.raw("", shown(folder, report.file), format="html")
            items += nodes.definition_list_item(
                "", term, nodes.definition("", text, image)
            )
        return [items]


def _begin(app: Any) -> None:
    if app.builder.name == "html":
        write(Path(app.outdir, FOLDER))


def _end(app: Any, error: Exception | None) -> None:
    """Put pictures of the page as it is now in place of committed ones."""
    if app.builder.name == "html" and error is None:
        page = Path(app.outdir, FOLDER, MAKE_REPORT.file)
        take([(page, each) for each in REPORT], Path(app.outdir, "_images"))


def setup(app: Any) -> dict[str, bool]:
    """Tell Sphinx of the directive and the pages."""
    app.add_directive("reports", Reports)
    app.connect("builder-inited", _begin)
    app.connect("build-finished", _end)
    return {"parallel_read_safe": True}
