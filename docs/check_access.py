"""Whether the built site can be used: with axe-core, in a headless Chromium.

    python docs/check_access.py build/docs [PAGE…]

No page may be wider than its window, or have an error on the console; those
named, by default one of each kind, may have nothing that axe-core calls
serious, at three widths, in light and dark. ``PAGE`` is a part of a path.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.browser.driver import browser, show, violations, why_not

WIDTHS = (1280, 768, 375)
SCHEMES = ("light", "dark")

#: One of each kind: what the theme, notebooks, directives and nest write.
KINDS = (
    *("/index.html", "/tutorial.html", "/gallery.html"),
    *("/notebooks/first-plan.html", "/howto/memory.html"),
    *("/reference/records.html", "/reports/benchmark.html"),
)


def shortcomings(root: Path, parts: Sequence[str] = KINDS) -> Iterator[str]:
    """Yield a line for everything that keeps people out of a page."""
    pages = sorted(root.rglob("*.html"))
    looked = [
        page
        for page in pages
        if any(part in f"/{page.relative_to(root)}" for part in parts)
    ]
    with browser() as driver:
        for width in WIDTHS:
            for page in pages:
                driver.get_log("browser")
                show(driver, page, width)
                name = f"{page.relative_to(root)} at {width} px"
                yield from (f"{name}: {line}" for line in _errors(driver))
        for width in WIDTHS:
            for scheme in SCHEMES:
                for page in looked:
                    show(driver, page, width, scheme)
                    name = f"{page.relative_to(root)} at {width} px, {scheme}"
                    for rule, impact, nodes in violations(driver):
                        if impact in ("serious", "critical"):
                            yield f"{name}: {impact}: {rule}: {nodes}"


def _errors(driver: Any) -> Iterator[str]:
    """Yield what the console says, and what is wider than the window."""
    for entry in driver.get_log("browser"):
        yield str(entry["message"])
    wide, width = driver.execute_script(
        "const page = document.documentElement;"
        "return [page.scrollWidth, page.clientWidth]"
    )
    if wide > width:
        yield f"expected no more than {width} px, got {wide}"


def main() -> int:
    """Return 1 if something keeps people out."""
    reason = why_not()
    if reason:
        print(f"access: not checked: {reason}")
        return 0
    root = Path(sys.argv[1]).resolve()
    lines = list(shortcomings(root, sys.argv[2:] or KINDS))
    for line in lines:
        print(f"access: {line}", file=sys.stderr)
    print(f"access: {len(lines)} things that keep people out")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
