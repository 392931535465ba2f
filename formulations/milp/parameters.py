"""Parameters of the engines of ``milp``, checked before anything is solved."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from formulations.parameters import PREFIX, check_name, refuse_value
from nest.errors import InvalidOptionError

#: What proofs rest on, and what would hide the result: nest's own.
_CBC_RESERVED = re.compile(
    r"log|preprocess|timemode|direction|randoms|randomc|errors|messages|"
    r"printing|allcommands|names|output|constraint|threads",
    re.IGNORECASE,
)
#: How the headings of its list begin.
_CBC_LISTS = ("Double", "Integer", "Keyword", "Action", "Branch")
_HIGHS_RESERVED = re.compile(
    r"tolerance|gap|time_limit|threads|seed|presolve|infinite|matrix_value|"
    r"objective|user_|output|log|file|improving_solution|pdlp|solver$|"
    r"solution_style|glpsol|iis|ranging|relaxation"
)
_SCIP_RESERVED = re.compile(
    r"^numerics/|^exact/|^limits/(time|softtime|gap|absgap|primal|dual)$|"
    r"^randomization/|tol(fac(tor)?)?$|eps$|^reoptimization/|^benders/|"
    r"^write/|^visual/|file|^lp/(check|condition|minmarko|disable|threads)|"
    r"^misc/(?!usesymmetry|allow)"
)


def check_parameters(engine: str, parameters: Mapping[str, str]) -> dict[str, str]:
    """Return parameters by their full names; ``engine`` is as PuLP calls it.

    Raises ``InvalidOptionError`` if the engine does not have one, does not take its
    value, or must not change because proofs depend on it.
    """
    if not parameters:
        return {}
    checks: dict[str, Callable[[str, str, str], str]] = {
        "PULP_CBC_CMD": _check_cbc,
        "HiGHS": _check_highs,
        "SCIP_PY": _check_scip,
    }
    found = {}
    for name, value in parameters.items():
        where = f"option milp.{PREFIX}{name}"
        if engine not in checks:
            raise InvalidOptionError(
                f"{where}: expected engine cbc, highs or scip, whose "
                f"parameters are passed on, got {engine}; remove it"
            )
        found[checks[engine](where, name, value)] = value
    return found


def _check_cbc(where: str, name: str, value: str) -> str:
    """Ask CBC, which takes names cut short and goes on after mistakes."""
    import pulp

    path = pulp.PULP_CBC_CMD().path
    said = _said(path, "-?")
    known = read_cbc_names(said)
    full = [
        other
        for other, least in known.items()
        if other.lower().startswith(name.lower()) and len(name) >= least
    ]
    name = full[0] if full else name
    own = name in read_cbc_names(said, passed_on=True)
    reserved = _CBC_RESERVED if own else re.compile("")
    check_name(where, "CBC", name, known, reserved)
    word = re.fullmatch(r"-?\d{1,9}|[A-Za-z]\w*", value)
    answer = _said(path, f"-{name}", value) if word else "illegal"
    if re.search("illegal|Possible options|No match|Multiple", answer):
        refuse_value(where, "CBC", name, value)
    return name


def read_cbc_names(text: str, passed_on: bool = False) -> dict[str, int]:
    """Return CBC's parameters, and how short their names may be.

    ``text`` is its own list, such as ``gomory(Cuts)`` under a heading. Only
    integers and keywords are passed on: those of doubles are tolerances, gaps
    and limits, and the others are actions.
    """
    found, listed = {}, False
    for line in text.splitlines():
        if line.endswith(":"):
            is_value = re.search("integer|keyword", line.lower())
            listed = line.startswith(_CBC_LISTS) and bool(is_value or not passed_on)
        elif listed and line.startswith(" "):
            for word in line.split():
                least = word.partition("(")[0]
                full = word.replace("(", "").replace(")", "")
                found[full] = len(least)
    return found


def _said(*words: str) -> str:
    return subprocess.run(
        [*words, "-quit"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    ).stdout


def _check_highs(where: str, name: str, value: str) -> str:
    import highspy

    engine = highspy.Highs()
    engine.setOptionValue("output_flag", False)
    # Not all that there are; those are enough to guess what was meant.
    names = dir(highspy.HighsOptions())
    known = [x for x in names if not x.startswith("_")]
    if engine.getOptionType(name)[0] == highspy.HighsStatus.kOk:
        known.append(name)
    check_name(where, "HiGHS", name, known, _HIGHS_RESERVED)
    if engine.setOptionValue(name, value) != highspy.HighsStatus.kOk:
        refuse_value(where, "HiGHS", name, value)
    return name


def _check_scip(where: str, name: str, value: str) -> str:
    import pyscipopt

    model: Any = pyscipopt.Model()
    check_name(where, "SCIP", name, model.getParams(), _SCIP_RESERVED)
    try:
        model.setParam(name, value)
    except Exception:  # whatever SCIP raises
        refuse_value(where, "SCIP", name, value)
    return name
