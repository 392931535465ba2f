"""Pages in a real browser: errors, people who cannot see, sizes of windows.

``make test-browser`` installs what this needs, but for the browser; without
it all is skipped. Pictures of the pages go to ``build/pages``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from nest.cli.main import cli
from nest.present.pages import codesign
from nest.present.pages.html import to_html
from tests import codesigns
from tests.browser import driver as driver_module
from tests.browser.driver import picture, show, violations
from tests.pages import full, named

REASON = driver_module.why_not()
pytestmark = [pytest.mark.browser, pytest.mark.skipif(bool(REASON), reason=REASON)]

ROOT = Path(__file__).parents[2]
WIDTHS = (375, 390, 768, 1280)
#: Pages of other kinds, by what writes them.
COMMANDS = {
    "frontier": ("pareto", "llama2-7b-8", "--devices", "4"),
    "validation": ("validate", "--limit", "40"),
    "graph": (
        *("solve", "--solver", "megatron", "--model", "gpt2"),
        *("--cluster", "h100x8", "--topology", "ring:8", "--pin", "pp=2"),
    ),
}
HOSTILE = "</title><script>document.title='x'</script><b onclick=1>\"'&"


@pytest.fixture(scope="module")
def driver() -> Iterator[Any]:
    with driver_module.browser() as found:
        yield found


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    made = {"full": full(), "named": named(HOSTILE)}
    for name, document in made.items():
        (folder / f"{name}.html").write_text(to_html(document), "utf-8")
    text = codesign.to_html(codesigns.document(), "nest codesign spec.yaml")
    (folder / "codesign.html").write_text(text, "utf-8")
    found = {name: folder / f"{name}.html" for name in (*made, "codesign")}
    for name, arguments in COMMANDS.items():
        found[name] = folder / f"{name}.html"
        words = [*arguments, "--html", str(found[name])]
        assert CliRunner().invoke(cli, words).return_value in (0, None)
    return found


@pytest.fixture(scope="module")
def pictures() -> Path:
    folder = ROOT / "build" / "pages"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("name", ["full", "named", "codesign", *COMMANDS])
def test_no_error_and_nothing_fetched(
    driver: Any, pages: dict[str, Path], name: str
) -> None:
    driver.get_log("browser")
    show(driver, pages[name], 1280)
    assert driver.get_log("browser") == []
    entries = "return performance.getEntriesByType('resource').length"
    assert driver.execute_script(entries) == 0
    assert driver.execute_script("return document.scripts.length") == 0


def test_hostile_names_are_shown(driver: Any, pages: dict[str, Path]) -> None:
    show(driver, pages["named"], 1280)
    assert driver.title == f"Report on {HOSTILE}"
    assert HOSTILE in driver.find_element("tag name", "h1").text
    assert driver.find_elements("css selector", "[onclick]") == []


@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        *(("full", "light"), ("full", "dark"), ("named", "light")),
        *(("validation", "light"), ("codesign", "light")),
        ("codesign", "dark"),
    ],
)
def test_axe_finds_nothing_serious(
    driver: Any, pages: dict[str, Path], name: str, scheme: str
) -> None:
    show(driver, pages[name], 1280, scheme)
    driver.execute_script(
        "document.querySelectorAll('details').forEach(x => x.open = true)"
    )
    # It did look.
    checked = frozenset({"color-contrast", "svg-img-alt", "landmark-unique"})
    assert violations(driver, checked) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_no_wider_than_the_window(
    driver: Any, pages: dict[str, Path], pictures: Path, width: int
) -> None:
    for name, path in pages.items():
        show(driver, path, width)
        picture(driver, pictures / f"{name}-{width}.png")
        wide = driver.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width, name


def test_tables_use_the_width_there_is(driver: Any, pages: dict[str, Path]) -> None:
    show(driver, pages["full"], 1280)
    wide = driver.execute_script(
        "return [...document.querySelectorAll('.wide:has(table)')]"
        ".filter(x => x.scrollWidth > x.clientWidth)"
        ".map(x => x.getAttribute('aria-label'))"
    )
    assert wide == []


def test_charts_are_as_wide_as_the_page(driver: Any, pages: dict[str, Path]) -> None:
    """One picture of each is shown, at its width or for telephones."""
    shown = (
        "return [...document.querySelectorAll('figure')].map(x => {"
        "  const page = x.clientWidth, found ="
        "    [...x.querySelectorAll('svg')].filter(y => y.clientWidth);"
        "  return [page, ...found.map(y => y.clientWidth)];"
        "})"
    )
    for width in WIDTHS:
        show(driver, pages["full"], width)
        found = driver.execute_script(shown)
        assert found
        assert all(page == chart for page, chart in found), width


def test_a_graph_is_dark_where_the_page_is(driver: Any, pages: dict[str, Path]) -> None:
    show(driver, pages["graph"], 1280, "dark")
    style = (
        "const svg = document.querySelector('.graph svg');"
        "return ['backgroundColor', 'fill'].map("
        "x => getComputedStyle(svg)[x])"
    )
    assert driver.execute_script(style) == [*("rgba(0, 0, 0, 0)", "rgb(232, 232, 232)")]
    devices = (
        "return getComputedStyle(document.querySelector('.graph .devices text')).fill"
    )
    assert driver.execute_script(devices) == "rgb(26, 26, 26)"


def test_dark_and_print_have_colours_of_their_own(
    driver: Any, pages: dict[str, Path], pictures: Path
) -> None:
    color = "return getComputedStyle(document.body).backgroundColor"
    show(driver, pages["full"], 1280)
    assert driver.execute_script(color) == "rgb(255, 255, 255)"
    show(driver, pages["full"], 1280, "dark")
    picture(driver, pictures / "full-dark.png")
    assert driver.execute_script(color) == "rgb(22, 24, 27)"
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert driver.execute_script(color) == "rgb(255, 255, 255)"
    shown = "return getComputedStyle(document.querySelector('nav')).display"
    assert driver.execute_script(shown) == "none"
    # No table is wider than a sheet of A4 without its margins.
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 718, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    widest = (
        "return Math.max(...[...document.querySelectorAll('table')]"
        ".map(x => x.offsetWidth))"
    )
    assert 500 < driver.execute_script(widest) <= 718
    # A word that is broken is on more than one line.
    broken = (
        "return [...document.querySelectorAll('thead th')].flatMap(cell => {"
        "  const node = cell.firstChild, found = [];"
        "  for (const word of cell.textContent.matchAll(/\\S+/g)) {"
        "    const range = document.createRange();"
        "    range.setStart(node, word.index);"
        "    range.setEnd(node, word.index + word[0].length);"
        "    if (range.getClientRects().length > 1) found.push(word[0]);"
        "  }"
        "  return found;"
        "})"
    )
    assert driver.execute_script(broken) == []
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


def test_the_keyboard_reaches_everything(driver: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.keys import Keys

    show(driver, pages["full"], 1280)
    driver.find_element("tag name", "body").send_keys(Keys.TAB)
    skip = driver.switch_to.active_element
    assert skip.text == "Skip to the answer"
    skip.send_keys(Keys.ENTER)
    assert driver.current_url.endswith("#main")
    seen = []
    for _ in range(100):
        driver.switch_to.active_element.send_keys(Keys.TAB)
        active = driver.switch_to.active_element
        if active.tag_name == "body":
            break
        seen.append((active.tag_name, active.get_attribute("role")))
        if active.tag_name == "summary" and seen.count(seen[-1]) == 1:
            active.send_keys(Keys.ENTER)
    charts = driver.find_elements("css selector", "figure .wide")
    folded = driver.find_elements("tag name", "summary")
    assert seen.count(("summary", None)) == len(folded) > 3
    assert seen.count(("div", "region")) >= len(charts)
    assert len(driver.find_elements("css selector", "details[open]")) == 1
