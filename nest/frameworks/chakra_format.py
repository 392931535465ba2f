"""Files of Chakra execution traces: their messages, and how they follow.

Chakra (MLCommons, https://github.com/mlcommons/chakra, MIT license) defines
traces in ``schema/protobuf/et_def.proto``: one :data:`METADATA` and then one
:data:`NODE` after the other, each behind its length. The fields below are
those of schema 0.0.4 that traces of plans use, with its numbers
(``data/chakra.yaml``). Files name no other field, so any
later schema reads them too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

import msgspec

from nest.errors import InvalidPlanError, NestError
from nest.frameworks.keyed import read_data
from nest.util.versions import DISTRIBUTION

METADATA, NODE, _ATTRIBUTE = "GlobalMetadata", "Node", "AttributeProto"
_ONEOF = "value"


class _Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The messages of traces, as ``data/chakra.yaml`` describes them."""

    version: str
    kinds: dict[str, int]
    collectives: dict[str, int]
    fields: dict[str, dict[str, tuple[int, str, bool]]]
    attributes: dict[str, str]


_SCHEMA = read_data("chakra", _Schema)
VERSION = _SCHEMA.version
KINDS = _SCHEMA.kinds
COLLECTIVES = _SCHEMA.collectives
#: Which field of an attribute holds its value.
ATTRIBUTES = _SCHEMA.attributes

Value = int | str | bool


class Node(NamedTuple):
    """A node of a trace."""

    #: Its id, from 1.
    number: int
    #: For readers of the trace.
    name: str
    #: One of :data:`KINDS`.
    kind: str
    #: Ids of nodes of the same trace that end before it begins.
    ctrl_deps: tuple[int, ...]
    data_deps: tuple[int, ...]
    #: Values by the names of :data:`ATTRIBUTES`.
    attributes: Mapping[str, Value]
    #: As the format has them, in whole µs.
    start_us: int = 0
    duration_us: int = 0


class Trace(NamedTuple):
    """One file: what it says about itself, and its nodes."""

    attributes: Mapping[str, Value]
    nodes: tuple[Node, ...]


def refuse(where: str, expected: str, got: str) -> InvalidPlanError:
    """Return the error about one place of a trace."""
    return InvalidPlanError(
        f"{where}: expected {expected}, got {got}; export the plan again"
    )


@cache
def _message(name: str) -> Any:
    """Return the class of a message; refuse to without the package for the format."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise NestError(
            f"--to chakra: expected the package protobuf, got no such "
            f"package; install it with: pip install '{DISTRIBUTION}[chakra]'"
        ) from None
    package = "ChakraProtoMsg"
    file = descriptor_pb2.FileDescriptorProto(
        name="et_def.proto", package=package, syntax="proto3"
    )
    types = descriptor_pb2.FieldDescriptorProto
    for message, fields in _SCHEMA.fields.items():
        made = file.message_type.add(name=message)
        if message == _ATTRIBUTE:
            made.oneof_decl.add(name=_ONEOF)
        for field, (tag, kind, many) in fields.items():
            one = made.field.add(
                name=field,
                number=tag,
                label=types.LABEL_REPEATED if many else types.LABEL_OPTIONAL,
            )
            if kind in _SCHEMA.fields:
                one.type = types.TYPE_MESSAGE
                one.type_name = f".{package}.{kind}"
            else:
                one.type = types.Type.Value(f"TYPE_{kind.upper()}")
            if message == _ATTRIBUTE and field != "name":
                one.oneof_index = 0
    # A pool of its own: the default one may have Chakra's package.
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName(f"{package}.{name}")
    return message_factory.GetMessageClass(descriptor)


def encode(trace: Trace) -> bytes:
    """Return the file of a trace.

    Raises ``NestError`` if the package for the format is missing.
    """
    head, node_type = _message(METADATA)(version=VERSION), _message(NODE)
    _put(head, trace.attributes)
    records = [_delimited(head.SerializeToString(deterministic=True))]
    for node in trace.nodes:
        message = node_type(
            id=node.number,
            name=node.name,
            type=KINDS[node.kind],
            ctrl_deps=node.ctrl_deps,
            data_deps=node.data_deps,
            start_time_micros=node.start_us,
            duration_micros=node.duration_us,
        )
        _put(message, node.attributes)
        records.append(_delimited(message.SerializeToString(deterministic=True)))
    return b"".join(records)


def _put(message: Any, attributes: Mapping[str, Value]) -> None:
    for name, value in attributes.items():
        message.attr.add(**{"name": name, ATTRIBUTES[name]: value})


def _delimited(data: bytes) -> bytes:
    """Return bytes behind their length, a base-128 number, low bits first."""
    rest, prefix = len(data), bytearray()
    while rest > 127:
        prefix.append(rest & 127 | 128)
        rest >>= 7
    prefix.append(rest)
    return bytes(prefix) + data


def decode(data: bytes, where: str) -> Trace:
    """Read a file.

    Raises ``InvalidPlanError`` if it is cut short, no such file, or has a node or an
    attribute that traces of plans have not; the text names the file and the node.
    Raises ``NestError`` if the package for the format is missing.
    """
    records = _records(data, where)
    first = next(records, None)
    if first is None:
        raise refuse(where, "metadata and nodes", "an empty file")
    head = _parse(METADATA, first, f"{where}: metadata")
    if head.version != VERSION:
        raise refuse(f"{where}: metadata", f"version {VERSION}", repr(head.version))
    attributes = _attributes(head, f"{where}: metadata")
    kinds = {code: kind for kind, code in KINDS.items()}
    nodes = []
    for count, record in enumerate(records, 1):
        location = f"{where}: node {count}"
        message = _parse(NODE, record, location)
        if message.type not in kinds:
            expected = f"a type among {', '.join(KINDS)}"
            raise refuse(location, expected, str(message.type))
        nodes.append(
            Node(
                *(message.id, message.name, kinds[message.type]),
                *(tuple(message.ctrl_deps), tuple(message.data_deps)),
                _attributes(message, location),
                *(message.start_time_micros, message.duration_micros),
            )
        )
    return Trace(attributes, tuple(nodes))


def _records(data: bytes, where: str) -> Iterator[bytes]:
    """Yield the messages of a file."""
    at, size = 0, len(data)
    while at < size:
        start, length, shift = at, 0, 0
        while True:
            if at == size or shift > 28:
                raise refuse(where, f"the length of a record at byte {start}", "none")
            byte = data[at]
            length |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
        if at + length > size:
            raise refuse(
                where, f"a record of {length} bytes at byte {at}", f"{size - at} bytes"
            )
        yield data[at : at + length]
        at += length


def _parse(name: str, data: bytes, where: str) -> Any:
    kind = _message(name)
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(data)
    except DecodeError:
        raise refuse(where, f"a message {name}", "other bytes") from None


def _attributes(message: Any, where: str) -> dict[str, Value]:
    values: dict[str, Value] = {}
    for attribute in message.attr:
        name, field = attribute.name, attribute.WhichOneof(_ONEOF)
        if name in values:
            raise refuse(where, f"attribute {name} once", "it twice")
        if ATTRIBUTES.get(name) != field or field is None:
            expected = ATTRIBUTES.get(name, "a known name")
            raise refuse(f"{where}: attribute {name}", expected, field or "no value")
        values[name] = getattr(attribute, field)
    return values
