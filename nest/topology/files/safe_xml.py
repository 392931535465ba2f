"""XML without document types and entities."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from nest.topology.files.source import Source, shown

_DECLARATION = re.compile(r"<!(DOCTYPE|ENTITY)", re.IGNORECASE)


def parse_xml(source: Source) -> ElementTree.Element:
    """Return the root element.

    Raises
    ------
    InvalidProblemError
        If the file is malformed, or declares a document type or entities.
    """
    declared = _DECLARATION.search(source.text)
    if declared is not None:
        raise source.refuse(
            "",
            "XML without document types and entities",
            declared[0],
            "remove the declaration",
        )
    try:
        return ElementTree.fromstring(source.text)
    except (ElementTree.ParseError, ValueError) as error:
        raise source.refuse(
            "",
            "XML",
            f"malformed text ({shown(str(error))})",
            "check that the file is complete",
        ) from error
