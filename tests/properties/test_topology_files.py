"""Files of networks: damaged ones never crash, and ranges are numbers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nest.errors import NestError
from nest.topology.files import FORMATS, FileSupplement
from nest.topology.files.hostlist import expand
from nest.topology.files.source import Source
from tests.properties.profiles import examples
from tests.unit.topology.test_topology_files import FILES, HOW

WORDS = ["", "-1", "nan", "tbd", "[", "]", '"', "\n", "\x1b", "é", "{}", "1e999"]


@given(data=st.data())
@examples(300)
def test_damaged_files_are_refused_or_read(data: st.DataObject) -> None:
    """Other text at a random place: one line about it, or devices."""
    path = data.draw(st.sampled_from(FILES))
    text = path.read_text()
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(len(text), start + 40)))
    new = data.draw(st.sampled_from(WORDS) | st.text(max_size=3))
    form, options = HOW[path.name]
    damaged = Source(
        path.name, text[:start] + new + text[end:], FileSupplement(**options)
    )
    try:
        said = FORMATS[form].read(damaged).graph["order"][0]
    except NestError as error:
        said = str(error)
    assert said
    assert len(said.splitlines()) == 1
    assert len(said) < 1000


@given(
    st.integers(0, 2000),
    st.integers(0, 50),
    st.integers(1, 6),
    st.sampled_from(["", "-x", ".rack"]),
)
@examples(100)
def test_a_range_is_its_numbers(low: int, more: int, width: int, suffix: str) -> None:
    text = f"{low:0{width}d}"
    hosts = expand(f"n[{text}-{low + more}]{suffix}", "file")
    assert [host.removesuffix(suffix).removeprefix("n") for host in hosts] == [
        str(number).zfill(len(text)) for number in range(low, low + more + 1)
    ]
