"""Read and write the pointers in Spark's own state, without a Spark task.

Spark can read its own state (`penstock.spark_ext.state_reader.committed`), but the first such read in a
process takes seconds. That is too slow for a recovery. This module reads the files of Spark's default
provider for ``applyInPandasWithState``::

    CHECKPOINT/state/<operator>/_metadata/metadata             what operator it is, and its partitions
    CHECKPOINT/state/<operator>/0/_metadata/schema             keys and values: a bucket's label, a pointer
    CHECKPOINT/state/<operator>/<partition>/<version>.delta    what a micro-batch put or removed
    CHECKPOINT/state/<operator>/<partition>/<version>.snapshot all keys and values

Micro-batch ``b`` leaves version ``b + 1``. A file is a sequence of LZ4 blocks, each with the length and the
checksum of its content. The content is pairs of rows (Spark's ``UnsafeRow``), each preceded by its length,
big-endian. All other forms are refused, such as those of another provider or codec, and rows with checksums.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from penstock.checkpointing.files import Content, Files
from penstock.spark_ext.border.buckets import spark_hash
from penstock.state_store.bucket_store import FileId, Pointer, Version

__all__ = [
    "POINTER_FIELDS",
    "SPARK_OPERATOR",
    "Held",
    "encode_pointers",
    "has_timeouts",
    "partition_labels",
    "partitions_of",
    "read_pointer_files",
]

Held = dict[int, dict[int, Pointer]]
"""The pointers by label, for each of Spark's operators that holds pointers, by the operator's number."""

SPARK_OPERATOR = "applyInPandasWithState"
"""Spark's name for Penstock's operators."""

POINTER_FIELDS = ("version", "file_id")
"""The columns of a pointer in its state."""

_BLOCK = struct.Struct("<8sBiiI")
_MAGIC = b"LZ4Block"
_RAW, _COMPRESSED = 0x10, 0x20
_SEED, _CHECKSUM_BITS = 0x9747B28C, 0x0FFFFFFF
_VALUES = (["groupState"], ["groupState", "timeoutTimestamp"])
_END = -1
_WORD_BYTES, _KEY_BYTES, _POINTER_BYTES = 8, 16, 24
"""A row consists of words. A pointer's text follows three words. A setting of Spark puts 4 bytes of checksum
before each row."""
_BLOCK_BYTES, _BLOCK_LEVEL = 1 << 15, 5
"""The size of the blocks that we write; Java takes ``1 << (10 + level)`` as the limit of a block."""
_NO_TIMEOUT, _LONG_AGO_MS = -1, 1
_MAX_BLOCK_BYTES = 1 << 25
"""The largest block of LZ4 in Java."""

Run = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""Like `map`, but may run calls in parallel."""


class _UnknownError(Exception):
    """A file is in a form that this module does not support."""


_UNKNOWN = (
    _UnknownError, OSError, ValueError, LookupError, TypeError, struct.error, pa.ArrowException
)  # fmt: skip
"""Errors that occur when files in a different format are read."""


def read_pointer_files(state: Files, batch: int, labels: Iterable[int], run: Run = map) -> Held | None:
    """Return the pointers of a committed micro-batch; None if only Spark can read them.

    The driver calls this function.

    Parameters
    ----------
    state : Files
        The directory ``state`` of a query's checkpoint.
    batch : int
        The micro-batch.
    labels : iterable of int
        The labels of all possible buckets. Files are read from the newest to the oldest, until every label
        has been seen.
    run : callable, optional
        A function like `map`, which may read several partitions in parallel.

    Raises
    ------
    UnavailableError
        If the file system refuses.
    """
    all_labels = list(labels)
    held: Held = {}
    try:
        for facts in state.list():
            if facts.is_directory and facts.name.isdecimal():
                operator = state.child(facts.name)
                partitions = partitions_of(operator)
                if partitions:
                    held[int(facts.name)] = _read_held(operator, partitions, batch + 1, all_labels, run)
    except _UNKNOWN:
        return None
    return held


def partitions_of(operator: Files) -> int:
    """Return the number of partitions of an operator; 0 if it holds no pointers."""
    version, _, text = bytes(operator.child("_metadata").read("metadata")).partition(b"\n")
    document = json.loads(text)
    if version != b"v1":
        raise _UnknownError
    if document["operatorInfo"]["operatorName"] != SPARK_OPERATOR:
        return 0
    (store,) = document["stateStoreInfo"]
    if store["storeName"] != "default":
        raise _UnknownError
    key, value = _schemas(bytes(operator.child("0").child("_metadata").read("schema")))
    group = value[0]["type"]
    names = [field["name"] for field in value]
    if [(field["name"], field["type"]) for field in key] != [("bucket", "integer")] or names not in _VALUES:
        return 0
    fields = group["fields"] if isinstance(group, dict) else []
    if tuple((field["name"], field["type"]) for field in fields) != tuple(
        zip(POINTER_FIELDS, ("long", "string"), strict=True)
    ):
        return 0
    return int(store["numPartitions"])


def has_timeouts(operator: Files) -> bool:
    """Return whether Spark stores a timeout with each pointer of an operator that holds pointers."""
    _, value = _schemas(bytes(operator.child("0").child("_metadata").read("schema")))
    return [field["name"] for field in value] == _VALUES[1]


def encode_pointers(pointers: Mapping[int, Pointer], due: Container[int] | None) -> bytes:
    """Return a snapshot of a partition of Spark's state, in uncompressed blocks.

    Parameters
    ----------
    pointers : mapping of int to Pointer
        The pointer of each label.
    due : container of int, optional
        The labels whose timeout has expired. For these, Spark calls the operator even without new rows. None
        if Spark stores no timeouts.
    """
    content = bytearray()
    for label, pointer in pointers.items():
        name = pointer.file_id.encode()
        place = (_POINTER_BYTES << 32) | len(name)
        group = struct.pack("<QqQ", 0, pointer.version, place) + name + bytes(-len(name) % _WORD_BYTES)
        timeout = b"" if due is None else struct.pack("<q", _LONG_AGO_MS if label in due else _NO_TIMEOUT)
        place = ((2 * _WORD_BYTES + len(timeout)) << 32) | len(group)
        value = struct.pack("<QQ", 0, place) + timeout + group
        content += struct.pack(">i", _KEY_BYTES) + struct.pack("<Qii", 0, label, 0)
        content += struct.pack(">i", len(value)) + value
    content += struct.pack(">i", _END)
    blocks = [bytes(content[at : at + _BLOCK_BYTES]) for at in range(0, len(content), _BLOCK_BYTES)]
    return b"".join(_block(part) for part in [*blocks, b""])


def _block(content: bytes) -> bytes:
    """Return an uncompressed block of Java's LZ4 stream; an empty block ends the stream."""
    checksum = xxhash.xxh32_intdigest(content, _SEED) & _CHECKSUM_BITS if content else 0
    return _BLOCK.pack(_MAGIC, _RAW | _BLOCK_LEVEL, len(content), len(content), checksum) + content


def _schemas(content: bytes) -> list[list[dict[str, Any]]]:
    """Return the fields of keys and values, from a file of Java's UTF texts, in chunks."""
    at = 0

    def text() -> bytes:
        nonlocal at
        (size,) = struct.unpack_from(">H", content, at)
        at += 2 + size
        return content[at - size : at]

    if text() != b"v2":
        raise _UnknownError
    schemas = []
    for _ in range(2):
        (pieces,) = struct.unpack_from(">i", content, at)
        at += 4
        schemas.append(json.loads(b"".join(text() for _ in range(pieces)))["fields"])
    return schemas


def _read_held(
    operator: Files, partitions: int, version: int, labels: list[int], run: Run
) -> dict[int, Pointer]:
    placed = partition_labels(labels, partitions)
    parts = [(operator.child(str(number)), some) for number, some in enumerate(placed)]
    held: dict[int, Pointer] = {}
    for pointers in run(partial(_newest, version), parts):
        held |= {label: pointer for label, pointer in pointers.items() if pointer is not None}
    return held


def partition_labels(labels: Iterable[int], partitions: int) -> list[set[int]]:
    """Return the labels in each of Spark's partitions."""
    all_labels = list(labels)
    places = (spark_hash(np.array(all_labels, np.int64)) % partitions).tolist()
    result: list[set[int]] = [set() for _ in range(partitions)]
    for label, place in zip(all_labels, places, strict=True):
        result[place].add(label)
    return result


def _newest(version: int, wanted: tuple[Files, set[int]]) -> dict[int, Pointer | None]:
    """Return the content of a partition at a version; None marks removed keys."""
    files, labels = wanted
    pointers: dict[int, Pointer | None] = {}
    names: set[str] | None = None
    for number in range(version, 0, -1):
        whole = names is not None and f"{number}.snapshot" in names
        try:
            content = files.read(f"{number}.snapshot" if whole else f"{number}.delta")
        except FileNotFoundError:
            if names is not None:
                raise
            content, whole = files.read(f"{number}.snapshot"), True
        # Within a version, the last entry of a label is valid. Entries of newer versions replace older ones.
        pointers = dict(_pairs(_decompress(content))) | pointers
        # Usually each bucket has a new pointer in each version, so the newest file has all labels.
        if whole or (labels and labels <= pointers.keys()):
            break
        if names is None:
            names = {facts.name for facts in files.list()}
    return pointers


def _decompress(content: Content) -> bytes:
    view, at, parts = memoryview(content), 0, []
    codec = pa.Codec("lz4_raw")
    while at < len(view):
        magic, token, size, plain_size, checksum = _BLOCK.unpack_from(view, at)
        at += _BLOCK.size
        kind = token & 0xF0
        is_valid = magic == _MAGIC and kind in {_RAW, _COMPRESSED} and 0 <= plain_size <= _MAX_BLOCK_BYTES
        if not is_valid or not 0 <= size <= len(view) - at:
            raise _UnknownError
        block: Any = view[at : at + size]
        if kind == _COMPRESSED:
            block = codec.decompress(pa.py_buffer(block), plain_size)
        part = bytes(block)
        if size and xxhash.xxh32_intdigest(part, _SEED) & _CHECKSUM_BITS != checksum:
            raise _UnknownError
        parts.append(part)
        at += size
    return b"".join(parts)


def _pairs(content: bytes) -> Iterator[tuple[int, Pointer | None]]:
    at = 0
    while True:
        (size,) = struct.unpack_from(">i", content, at)
        at += 4
        if size == _END:
            return
        if size != _KEY_BYTES:
            raise _UnknownError
        (label,) = struct.unpack_from("<i", content, at + 8)
        at += size
        (size,) = struct.unpack_from(">i", content, at)
        at += 4
        if size > 0 and size % _WORD_BYTES:
            raise _UnknownError
        yield label, None if size < 0 else _pointer(content[at : at + size])
        at += max(size, 0)


def _pointer(row: bytes) -> Pointer | None:
    """Return the pointer in a row: null bits, then for each column 8 bytes, the value or its position."""
    nulls, place = struct.unpack_from("<QQ", row)
    if nulls & 1:
        return None
    group = row[place >> 32 :][: place & 0xFFFFFFFF]
    nulls, version, place = struct.unpack_from("<QqQ", group)
    if nulls:
        raise _UnknownError
    return Pointer(Version(version), FileId(group[place >> 32 :][: place & 0xFFFFFFFF].decode()))
