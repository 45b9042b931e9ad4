"""Which files an ONNX graph reads its weights from, without the `onnx` package.

A graph is a protocol buffer message; this walks only the fields on the way to a tensor's `external_data`.
"""

from __future__ import annotations

from collections.abc import Iterator

from serving.errors import BundleError, Problem

# Field numbers of onnx.proto that lead to tensors: message → field → message.
_CHILDREN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "function": {7: "node", 11: "attribute"},
    "training": {1: "graph", 2: "graph"},
    "tensor": {13: "entry"},
}
_MAX_DEPTH = 64


def external_files(model: bytes) -> set[str]:
    """Locations of external data named anywhere in a serialised ONNX model, as they are written there.

    Raises:
        BundleError: the bytes are not a protocol buffer message.
    """
    try:
        return set(_locations(memoryview(model), "model", 0))
    except (IndexError, ValueError) as error:
        raise BundleError(
            Problem("model.onnx", "an ONNX graph", f"bytes that do not parse ({error})", "Export the bundle again.")
        ) from error


def _locations(message: memoryview, kind: str, depth: int) -> Iterator[str]:
    if depth > _MAX_DEPTH:
        raise ValueError(f"messages nested deeper than {_MAX_DEPTH}")
    children = _CHILDREN[kind]
    for number, body in _bytes_fields(message):
        child = children.get(number)
        if child == "entry":
            entry = {field: bytes(text).decode() for field, text in _bytes_fields(body)}
            if entry.get(1) == "location":
                yield entry.get(2, "")
        elif child is not None:
            yield from _locations(body, child, depth + 1)


def _bytes_fields(message: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Length-delimited fields of a message: (field number, content); other fields are skipped."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        wire = tag & 7
        if wire == 2:
            size, at = _varint(message, at)
            if at + size > len(message):
                raise ValueError("a field that ends beyond its message")
            yield tag >> 3, message[at : at + size]
            at += size
        elif wire == 0:
            _, at = _varint(message, at)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire}")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number longer than ten bytes")
