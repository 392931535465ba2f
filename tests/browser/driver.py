"""A headless Chromium, driven by Selenium, for tests of pages."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

#: Nothing but the page: no first run, no services in the background.
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic"),
    *("--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)

#: Where a browser and its driver go by other names than on Debian.
_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def why_not() -> str:
    """Return why there is no browser here; empty if there is one."""
    for package in ("selenium", "axe_playwright_python"):
        if find_spec(package) is None:
            return f"{package} is not installed, see make test-browser"
    if _browser() is None or shutil.which("chromedriver") is None:
        return (
            "there is no Chromium with its driver; on Debian: apt-get "
            "install chromium chromium-driver"
        )
    return ""


def _browser() -> str | None:
    found = map(shutil.which, _BROWSERS)
    return next((path for path in found if path is not None), None)


@contextmanager
def browser() -> Iterator[Any]:
    """Start a browser with a profile of its own, and end it."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = _browser() or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        service = Service(shutil.which("chromedriver"), log_output=os.devnull)
        driver = webdriver.Chrome(options=options, service=service)
        # Of axe-core on a large page, on a busy machine.
        driver.set_script_timeout(300)
        try:
            yield driver
        finally:
            driver.quit()


def show(driver: Any, path: Path, width: int, scheme: str = "light") -> None:
    """Open a page in a window of a width, as tall as the page is."""
    driver.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    # Not the size of the window, which has a least width.
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    driver.get(path.as_uri())


def picture(
    driver: Any, path: Path, height: int | None = None, scale: float = 1
) -> None:
    """Write what is shown, or its top, to a file."""
    import base64

    size = driver.execute_script(
        "return [document.documentElement.clientWidth,"
        " document.documentElement.scrollHeight]"
    )
    shot = driver.execute_cdp_cmd(
        "Page.captureScreenshot",
        {
            "captureBeyondViewport": True,
            "clip": {
                "x": 0,
                "y": 0,
                "width": size[0],
                "height": min(size[1], height or size[1]),
                "scale": scale,
            },
        },
    )
    path.write_bytes(base64.b64decode(shot["data"]))


def axe() -> str:
    """Return the source of axe-core."""
    import axe_playwright_python

    (place,) = axe_playwright_python.__path__
    return Path(place, "axe.min.js").read_text(encoding="utf-8")


def violations(
    driver: Any, must: frozenset[str] = frozenset()
) -> list[tuple[str, str, list[str]]]:
    """Return what axe-core finds on a page: rule, impact and elements.

    Rules that must have been checked, and passed somewhere, are asserted.
    """
    driver.execute_script(axe())
    found = driver.execute_async_script(
        "const done = arguments[arguments.length - 1];"
        "axe.run().then(done, error => done({error: String(error)}))"
    )
    assert "error" not in found, found["error"]
    assert must <= {rule["id"] for rule in found["passes"]}
    return [
        (rule["id"], rule["impact"], [n["html"][:200] for n in rule["nodes"]])
        for rule in found["violations"]
    ]
