"""What ``nest instances`` prints: lists of instances, and one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import RenderableType

from nest.hardware.machines import parse_clusters
from nest.instances import CLASSES, best_known, instance, names, store
from nest.instances.records import BestKnown, Instance, Unlimited
from nest.ir.io import plan_to_json
from nest.present.table import key_lines, plan_text, terminal_table
from nest.units import quanta_to_ns
from nest.util.tables import Column, Table
from nest.util.time_scale import TimeScale


def instance_table(found: Sequence[str]) -> RenderableType:
    """Return a row per instance: its best known plan, and its classes."""
    rows = []
    for name in found:
        known = best_known(name)
        time_ns = _in_ns(name, known.value_quanta)
        value = TimeScale.fitting(time_ns)(time_ns) or "none"
        rows.append(
            (
                name,
                "none fits" if known.infeasible else value,
                _gap(known),
                known.status,
                ", ".join(store.classes(name)),
            )
        )
    columns = (
        Column("instance"),
        Column("best known"),
        Column("gap", rank=3),
        Column("status", rank=1),
        Column("classes", rank=2, min_width=16),
    )
    return terminal_table(Table(columns, rows))


def list_document(found: Sequence[str]) -> dict[str, Any]:
    """Return the ``nest-instance-list/1`` document of some instances."""
    return {
        "schema": "nest-instance-list/1",
        "instances": [_record(name) for name in found],
    }


def class_table() -> RenderableType:
    """Return a row per class."""
    columns = (
        Column("name", "class"),
        Column("about", rank=2),
        Column("instances", rank=1),
        Column("meaning", min_width=24),
    )
    return terminal_table(Table.of(columns, _class_records()))


def class_document() -> dict[str, Any]:
    """Return the ``nest-instance-classes/1`` document."""
    return {
        "schema": "nest-instance-classes/1",
        "classes": _class_records(),
    }


def _class_records() -> list[dict[str, Any]]:
    return [
        {
            "name": item.name,
            "about": item.dimension,
            "meaning": item.meaning,
            "instances": len(names([item.name])),
        }
        for item in CLASSES
    ]


def instance_lines(name: str) -> RenderableType:
    """Return all that is known of an instance, but for its plan in full."""
    found, known, library = instance(name), best_known(name), store.library()
    rows = [
        ("instance", name),
        ("what", found.title),
        ("classes", ", ".join(store.classes(name))),
        (
            "size",
            f"{found.num_layers} layers, {found.num_devices} devices",
        ),
        ("source", " ".join(found.source.split())),
        *(("confirmed", text) for text in _confirmed(found)),
        ("recipe", json.dumps(found.recipe)),
        (
            "made by",
            f"{library.generator}, nest {library.version}, calibration "
            f"{library.calibration_sha256[:12]}",
        ),
        ("hash", found.problem_hash),
        ("status", known.status),
        ("best known", _figure(name, known.value_quanta, known.infeasible)),
        ("bound", _figure(name, known.bound_quanta, known.infeasible)),
    ]
    if known.found_by is not None:
        rows.append(("found by", known.found_by))
    rows += [
        (
            "proven by",
            f"{proof.solver} ({proof.version}), {proof.method}: "
            + _figure(name, proof.bound_quanta, proof.bound_quanta is None),
        )
        for proof in known.proofs
    ]
    if known.unlimited is not None:
        rows.append(("memory", _memory(name, known.unlimited)))
    if known.plan is not None:
        rows.append(("plan", plan_text(known.plan)))
    return key_lines(rows)


def _confirmed(found: Instance) -> list[str]:
    """Return what was found later of its machines' sources."""
    return [
        f"{site.name}: {site.confirmed_by}"
        for site, _ in parse_clusters(found.recipe["cluster"])
        if site.confirmed_by
    ]


def _memory(name: str, beyond: Unlimited) -> str:
    """Say what is known if memory is no limit."""
    found = []
    if beyond.value_quanta is not None:
        time = _figure(name, beyond.value_quanta, False)
        found.append(f"a plan that does not fit takes {time}")
    if beyond.proof is not None:
        time = _figure(name, beyond.proof.bound_quanta, False)
        found.append(
            f"fitting or not, none takes less than {time}, by "
            f"{beyond.proof.solver} ({beyond.proof.version})"
        )
    return "; ".join(found) or "not settled"


def instance_document(name: str) -> dict[str, Any]:
    """Return the ``nest-instance/1`` document of an instance."""
    known, library = best_known(name), store.library()
    beyond = known.unlimited
    return {
        "schema": "nest-instance/1",
        **_record(name),
        "made_by": {
            "generator": library.generator,
            "version": library.version,
            "calibration_sha256": library.calibration_sha256,
            "sources_sha256": library.sources_sha256,
        },
        "plan": plan_to_json(known.plan),
        "unlimited": None
        if beyond is None
        else {
            "value_quanta": beyond.value_quanta,
            "bound_quanta": beyond.proof and beyond.proof.bound_quanta,
            "plan": plan_to_json(beyond.plan),
        },
    }


def _record(name: str) -> dict[str, Any]:
    found, known = instance(name), best_known(name)
    return {
        "name": name,
        "title": found.title,
        "problem_hash": found.problem_hash,
        "classes": list(store.classes(name)),
        "devices": found.num_devices,
        "layers": found.num_layers,
        "status": known.status,
        "infeasible": known.infeasible,
        "value_quanta": known.value_quanta,
        "value_ns": _in_ns(name, known.value_quanta),
        "bound_quanta": known.bound_quanta,
        "bound_ns": _in_ns(name, known.bound_quanta),
        "found_by": known.found_by,
        "proofs": msgspec.to_builtins(known.proofs),
        "source": found.source,
        "recipe": found.recipe,
    }


def _in_ns(name: str, quanta: int | None) -> int | float | None:
    if quanta is None:
        return None
    return quanta_to_ns(quanta, instance(name).quantum_ps)


def _gap(known: BestKnown) -> str:
    value, bound = known.value_quanta, known.bound_quanta
    if known.status == "closed":
        return "0"
    if value is None or bound is None:
        return "unknown"
    return f"{100 * (value - bound) / value:.2f} %"


def _figure(name: str, quanta: int | None, infeasible: bool) -> str:
    if infeasible:
        return "no plan fits"
    time_ns = _in_ns(name, quanta)
    if time_ns is None:
        return "none"
    return f"{TimeScale.fitting(time_ns)(time_ns)} ({quanta:,} quanta)"
