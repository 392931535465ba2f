"""The output of ``nest instances``: lists of instances, and single ones."""

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
from nest.present.table import key_lines, terminal_table
from nest.units import quanta_to_ns
from nest.util.tables import Column, Table
from nest.util.time_scale import TimeScale

#: Fields of the index that say what made the problems.
_MADE_BY = ("generator", "version", "calibration_sha256", "sources_sha256")


def instance_table(instances: Sequence[str]) -> RenderableType:
    """Return a row per instance: its best known plan, and its classes."""

    def value(name: str) -> str:
        best = best_known(name)
        time_ns = _in_ns(name, best.value_quanta)
        text = TimeScale.fitting(time_ns)(time_ns) or "none"
        return "none fits" if best.infeasible else text

    def classes(name: str) -> str:
        return ", ".join(store.classes(name))

    columns = (
        Column("instance", value=str),
        Column("best known", value=value),
        Column("gap", value=lambda name: _gap(best_known(name)), rank=3),
        Column("status", value=lambda name: best_known(name).status, rank=1),
        Column("classes", value=classes, rank=2, min_width=16),
    )
    return terminal_table(Table.of(columns, instances))


def list_document(instances: Sequence[str]) -> dict[str, Any]:
    """Return the ``nest-instance-list/1`` document of some instances."""
    return {
        "schema": "nest-instance-list/1",
        "instances": [_record(name) for name in instances],
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
    return {"schema": "nest-instance-classes/1", "classes": _class_records()}


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
    record, best, library = instance(name), best_known(name), store.library()
    rows = [
        ("instance", name),
        ("what", record.title),
        ("classes", ", ".join(store.classes(name))),
        ("size", f"{record.num_layers} layers, {record.num_devices} devices"),
        ("source", " ".join(record.source.split())),
        *(("confirmed", text) for text in _confirmed(record)),
        ("recipe", json.dumps(record.recipe)),
        (
            "made by",
            f"{library.generator}, nest {library.version}, calibration "
            f"{library.calibration_sha256[:12]}",
        ),
        ("hash", record.problem_hash),
        ("status", best.status),
        ("best known", _figure(name, best.value_quanta, best.infeasible)),
        ("bound", _figure(name, best.bound_quanta, best.infeasible)),
    ]
    if best.found_by is not None:
        rows.append(("found by", best.found_by))
    rows += [
        (
            "proven by",
            f"{proof.solver} ({proof.version}), {proof.method}: "
            + _figure(name, proof.bound_quanta, proof.bound_quanta is None),
        )
        for proof in best.proofs
    ]
    if best.unlimited is not None:
        rows.append(("memory", _memory(name, best.unlimited)))
    if best.plan is not None:
        rows.append(("plan", best.plan.text))
    return key_lines(rows)


def _confirmed(record: Instance) -> list[str]:
    """Return what was found later of its machines' sources."""
    return [
        f"{site.name}: {site.confirmed_by}"
        for site, _ in parse_clusters(record.recipe["cluster"])
        if site.confirmed_by
    ]


def _memory(name: str, beyond: Unlimited) -> str:
    """Say what is known if memory is no limit."""
    texts = []
    if beyond.value_quanta is not None:
        time = _figure(name, beyond.value_quanta, False)
        texts.append(f"a plan that does not fit takes {time}")
    if beyond.proof is not None:
        time = _figure(name, beyond.proof.bound_quanta, False)
        texts.append(
            f"fitting or not, none takes less than {time}, by "
            f"{beyond.proof.solver} ({beyond.proof.version})"
        )
    return "; ".join(texts) or "not settled"


def instance_document(name: str) -> dict[str, Any]:
    """Return the ``nest-instance/1`` document of an instance."""
    best, library = best_known(name), store.library()
    beyond = best.unlimited
    return {
        "schema": "nest-instance/1",
        **_record(name),
        "made_by": {name: getattr(library, name) for name in _MADE_BY},
        "plan": plan_to_json(best.plan),
        "unlimited": None
        if beyond is None
        else {
            "value_quanta": beyond.value_quanta,
            "bound_quanta": beyond.proof and beyond.proof.bound_quanta,
            "plan": plan_to_json(beyond.plan),
        },
    }


def _record(name: str) -> dict[str, Any]:
    record, best = instance(name), best_known(name)
    return {
        "name": name,
        "title": record.title,
        "problem_hash": record.problem_hash,
        "classes": list(store.classes(name)),
        "devices": record.num_devices,
        "layers": record.num_layers,
        "status": best.status,
        "infeasible": best.infeasible,
        "value_quanta": best.value_quanta,
        "value_ns": _in_ns(name, best.value_quanta),
        "bound_quanta": best.bound_quanta,
        "bound_ns": _in_ns(name, best.bound_quanta),
        "found_by": best.found_by,
        "proofs": msgspec.to_builtins(best.proofs),
        "source": record.source,
        "recipe": record.recipe,
    }


def _in_ns(name: str, quanta: int | None) -> int | float | None:
    if quanta is None:
        return None
    return quanta_to_ns(quanta, instance(name).quantum_ps)


def _gap(best: BestKnown) -> str:
    value, bound = best.value_quanta, best.bound_quanta
    if best.status == "closed":
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
