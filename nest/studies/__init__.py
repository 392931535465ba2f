"""Audits: questions about planners, each answered by one command.

The one list of them is here; a study is a record, see
:mod:`nest.studies.study`, and is imported when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from nest.errors import UnknownNameError

if TYPE_CHECKING:
    from nest.studies.study import Study

_STUDIES = {
    "nest-artifact": "nest.studies.artifact:STUDY",
    "piper": "nest.studies.piper:STUDY",
    "galvatron": "nest.studies.planners:GALVATRON",
    "alpa": "nest.studies.planners:ALPA",
    "blindness": "nest.studies.blindness:STUDY",
    "rankings": "nest.studies.rankings:STUDY",
    "effort": "nest.studies.effort:STUDY",
}


def study_names() -> tuple[str, ...]:
    """Return the names of all studies."""
    return tuple(_STUDIES)


def get_study(name: str) -> Study:
    """Return the study of that name.

    Raises ``UnknownNameError`` if there is none; the text lists them.
    """
    if name not in _STUDIES:
        raise UnknownNameError("audit", name, _STUDIES)
    module, _, attribute = _STUDIES[name].partition(":")
    study: Study = getattr(import_module(module), attribute)
    return study
