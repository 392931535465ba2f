"""Charts as SVG: drawn once, when a page is written, without a browser.

A page so has no scripts: it opens at once, prints, and works where scripts
are forbidden (mail, viewers of build artifacts). What a mark stands for is its
``title``, which browsers show where somebody points at it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from nest.present.pages.charts import BACK, TEXT, narrow
from nest.util.sections import Chart

#: Letters of one text that a page shows: names come from files.
MOST_LETTERS = 4000

_SVG = "http://www.w3.org/2000/svg"

_AXIS = {
    "domainColor": "#808080",
    "gridColor": "#808080",
    "gridOpacity": 0.25,
    "tickColor": "#808080",
    "labelColor": TEXT,
    "titleColor": TEXT,
    "titleFontWeight": "normal",
    "labelFontSize": 12,
    "titleFontSize": 12,
}
_CONFIG: dict[str, Any] = {
    "background": None,
    "font": "Arial, Liberation Sans, sans-serif",
    "axis": _AXIS,
    # Fonts where a page is opened may be wider.
    "axisQuantitative": {"labelOverlap": True, "labelSeparation": 8},
    "legend": {
        "labelColor": TEXT,
        "titleColor": TEXT,
        "labelFontSize": 12,
        "symbolType": "square",
    },
    "text": {"color": TEXT, "fontSize": 12},
    "title": {"color": TEXT},
    "view": {"stroke": None},
}


#: Digits of a place that no screen shows.
_DIGITS = re.compile(r"(\.\d\d)\d+")

#: Draws the charts of standard input, one a line. Where V8 gets no memory it
#: ends its process, so it has one of its own, which leaves no core file.
_DRAW = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
sys.path.append(sys.argv[1])
import vl_convert
for line in sys.stdin:
    try:
        chart = json.loads(line)
        svg = vl_convert.vegalite_to_svg(chart, allowed_base_urls=[])
    except ValueError:
        svg = None
    print(json.dumps(svg), flush=True)
"""


def can_draw() -> bool:
    """Whether the package that draws is there."""
    return find_spec("vl_convert") is not None


def pictures(charts: Iterable[Chart]) -> dict[str, str] | None:
    """Return charts as SVG by their names; ``None`` if nothing can draw.

    One that cannot be drawn is left out: a page does without it.
    """
    if not can_draw():
        return None
    pictures_by_name = {}
    open_charts = []
    for chart in charts:
        if chart.spec is None:
            pictures_by_name[chart.name] = _named(chart.picture, chart.title)
        else:
            open_charts.append(chart)
    specs = [chart.spec or {} for chart in open_charts]
    drawn = _drawn([x for spec in specs for x in (spec, narrow(spec))])
    pairs = zip(drawn[::2], drawn[1::2], strict=True)
    for chart, svgs in zip(open_charts, pairs, strict=True):
        if None not in svgs:
            pictures_by_name[chart.name] = "".join(
                _for_page(svg or "", chart.title, css)
                for svg, css in zip(svgs, ("broad", "narrow"), strict=True)
            )
    return pictures_by_name


def _drawn(specs: Sequence[dict[str, Any]]) -> list[str | None]:
    """Return charts as vl-convert draws them, ``None`` for those it cannot.

    Where its process fails, standard error says so in one line.
    """
    if not specs:
        return []
    package = find_spec("vl_convert")
    assert package is not None
    assert package.origin is not None
    folder = str(Path(package.origin).parents[1])
    lines = [json.dumps(_clean({**spec, "config": _CONFIG})) for spec in specs]
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", _DRAW, folder],
            input="".join(f"{line}\n" for line in lines).encode(),
            capture_output=True,
            check=False,
        )
        output, why = done.stdout, f"exit status {done.returncode}"
    except OSError as error:
        output, why = b"", str(error.strerror)
    # What follows the last end of a line is incomplete.
    drawn = [json.loads(line) for line in output.split(b"\n")[:-1]]
    missing = len(specs) - len(drawn)
    if missing:
        print(
            f"nest: note: {missing} charts are tables: the process that draws them "
            f"failed ({why}); a higher memory limit (ulimit -v) may help",
            file=sys.stderr,
        )
    return [*drawn, *[None] * missing]


def picture(spec: dict[str, Any], title: str) -> str:
    """Return one chart in Vega-Lite as SVG for a page, with a title for listeners.

    Raises ``ValueError`` if the chart cannot be drawn.
    """
    (svg,) = _drawn([spec])
    if svg is None:
        raise ValueError(f"chart: {title}: expected one that can be drawn")
    return _for_page(svg, title)


def _for_page(text: str, title: str, css: str = "broad") -> str:
    """Return what vl-convert draws as a page has it, with a class."""
    root = ElementTree.fromstring(text)
    _simplify(root, css == "broad")
    root.set("class", css)
    root.set("role", "img")
    root.set("aria-label", title)
    ElementTree.register_namespace("", _SVG)
    svg = ElementTree.tostring(root, encoding="unicode")
    return svg.replace(TEXT, "currentColor").replace(BACK, "var(--back)")


def _named(picture: str, title: str) -> str:
    """Return a picture with a name for readers of the screen."""
    label = escape(clean(title))
    return picture.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def _simplify(node: ElementTree.Element, has_titles: bool) -> None:
    """Keep what is to be seen, with texts of marks as their titles.

    On a telephone nobody points at a mark: there they are left out.
    """
    label = node.attrib.get("aria-label")
    marked = node.attrib.get("role") == "graphics-symbol"
    for name in [x for x in node.attrib if x.startswith("aria-")]:
        del node.attrib[name]
    for name in ("role", "class"):
        node.attrib.pop(name, None)
    for name in {"d", "transform"} & node.attrib.keys():
        node.attrib[name] = _DIGITS.sub(r"\1", node.attrib[name])
    for child in list(node):
        hidden = child.attrib.get("display") == "none"
        empty = child.tag == f"{{{_SVG}}}path" and not child.attrib.get("d")
        if hidden or empty:
            node.remove(child)
        else:
            _simplify(child, has_titles)
    if has_titles and label is not None and marked:
        title = ElementTree.Element(f"{{{_SVG}}}title")
        title.text = label
        node.insert(0, title)


def _clean(value: Any) -> Any:
    """Return a chart without characters that XML does not know."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {key: _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value


def clean(text: str) -> str:
    """Return a text as a page may have it.

    With a mark for each character that no page may have, and no longer than
    :data:`MOST_LETTERS`.
    """
    if len(text) > MOST_LETTERS:
        left_out = len(text) - MOST_LETTERS
        text = f"{text[:MOST_LETTERS]}… ({left_out} more characters)"
    return "".join(x if _is_text(ord(x)) else "\ufffd" for x in text)


def _is_text(code: int) -> bool:
    """Whether XML 1.0 and HTML have a character, controls left out."""
    return (
        code in (0x9, 0xA)
        or 0x20 <= code < 0x7F
        or 0xA0 <= code < 0xD800
        or (0xE000 <= code <= 0x10FFFF and code & 0xFFFE != 0xFFFE)
    )
