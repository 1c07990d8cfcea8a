"""The bytes of a p-unit: named blocks of Arrow columns behind one checked header.

Layout, little-endian::

    offset  bytes  what
    0       8      magic "PENSTOCK"
    8       2      format version (2)
    10      2      flags (0)
    12      4      H, length of the header
    16      8      xxh3-64 of bytes 0..15 followed by the header
    24      H      header, JSON in UTF-8:
                     {"kind": text, "meta": object,
                      "blocks": [{"name": text, "size": bytes, "checksum": xxh3-64 in hex}, ...]}
    24+H    ...    the blocks in the header's order, each a table's block (`penstock.compression.table`),
                   each padded with zeros to a multiple of 8 bytes from the start of the file

In format version 1, which can still be read, each block is an Arrow IPC stream of one batch.

Nothing in a p-unit is ever unpickled or evaluated, and sizes are checked against the file's length
before any memory is allocated. The caller defines the block names and the content of `meta`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import xxhash

from penstock.checkpointing.fields import Fields
from penstock.compression.abc import check_version
from penstock.errors import CorruptDataError, InvalidUsageError

if TYPE_CHECKING:
    # Units of logs have no blocks, so their readers need not load the codecs.
    from penstock.compression import TableBlock

__all__ = [
    "CODEC",
    "FORMAT_VERSION",
    "MAGIC",
    "MAX_UNIT_ROWS",
    "PUnit",
    "choose_packed_cascades",
    "decode",
    "encode",
    "encode_blocks",
    "read_header",
    "tables",
]

FORMAT_VERSION = 2
"""The newest format that this code reads, and the format that it writes."""

CODEC = "zstd"
"""The default cascade of a column. It needs no compiled kernel, so no worker waits for a compilation."""

PACKED = "base_delta>ns"
"""The cascade of integers in units that are `PUnit.packed`. It takes a tenth of the time of the default."""

PACKED_FLOATS = f"decimal>{PACKED}"
"""The cascade of floats in packed units; floats that are not decimals take `PACKED`."""

MAGIC = b"PENSTOCK"
"""The first bytes of a p-unit."""
MAX_UNIT_ROWS = 1 << 20
"""A snapshot is divided into p-units of at most this many keys or rows."""
_PREFIX = struct.Struct("<8sHHI")
_CHECKSUM = struct.Struct("<Q")
_HEADER_AT = _PREFIX.size + _CHECKSUM.size
_ALIGNMENT = 8
_MAX_COLUMN_BYTES = 1 << 33
_FIRST_BYTES = 1 << 14
"""Most headers fit in this many bytes."""


@dataclass(frozen=True, slots=True)
class PUnit:
    """One durable unit: its kind, its metadata, and its blocks.

    Attributes
    ----------
    kind : str
        The kind of the unit.
    meta : mapping of str to JSON values
        The unit's metadata.
    blocks : mapping of str to pyarrow.RecordBatch
        The blocks by name.
    packed : bool
        Whether numbers are packed (`PACKED`, `PACKED_FLOATS`). Packing needs kernels, so only callers that
        run kernels anyway set it.
    """

    kind: str
    meta: Mapping[str, Any]
    blocks: Mapping[str, pa.RecordBatch] = field(default_factory=dict)
    packed: bool = field(default=False, kw_only=True, compare=False)

    @property
    def fields(self) -> Fields:
        """The metadata, checked when it is read."""
        return Fields(self.meta)

    def block(self, name: str, schema: pa.Schema, may_lack: Collection[str] = ()) -> pa.RecordBatch:
        """Return a block with a schema, with nulls only in its nullable fields.

        Text and binary may be stored with 32-bit or 64-bit offsets, because a Spark setting decides this.
        Fields of structs may differ in nullability. Columns in `may_lack`, which were added after the block
        was stored, are null, and may be at any position.

        Raises
        ------
        CorruptDataError
            If the block is missing, has different columns, or has nulls in a field that allows none.
        """
        block = self.blocks.get(name)
        if block is None:
            raise CorruptDataError("a p-unit lacks a block", block=name, kind=self.kind)
        if may_lack and block.schema.names != schema.names:
            block = _add_nulls(block, schema, may_lack)
        if block.schema.names != schema.names or (
            block.schema.types != schema.types
            and [*map(_narrow, block.schema.types)] != [*map(_narrow, schema.types)]
        ):
            raise CorruptDataError(
                "a block's stored columns differ from the expected columns",
                block=name,
                stored=_describe_schema(block.schema),
                expected=_describe_schema(schema),
            )
        for one, column in zip(schema, block.columns, strict=True):
            if column.null_count and not one.nullable:
                raise CorruptDataError(
                    "a block has nulls in a column that allows none",
                    block=name,
                    column=one.name,
                    hint="if the input's column was nullable before, make it nullable again",
                )
        if block.schema.types == schema.types:
            return block
        return pa.RecordBatch.from_arrays(block.columns, schema=schema)

    def numbers_below(self, name: str, column: str, limit: int, *, ascend: bool = False) -> Any:
        """Return a column of a block; check that its numbers are below a limit and, with `ascend`, increase.

        Raises
        ------
        CorruptDataError
            If a number is out of range or, with `ascend`, is not greater than its predecessor.
        """
        numbers = self.blocks[name].column(column).to_numpy()
        if numbers.size and (
            int(numbers.min()) < 0
            or int(numbers.max()) >= limit
            or (ascend and not (numbers[1:] > numbers[:-1]).all())
        ):
            raise CorruptDataError("a block has an impossible number", block=name, column=column, limit=limit)
        return numbers


def _add_nulls(block: pa.RecordBatch, schema: pa.Schema, may_lack: Collection[str]) -> pa.RecordBatch:
    """Return a block with nulls for the columns that it may lack; return other blocks unchanged."""
    known = set(block.schema.names)
    if len(known) < block.num_columns or not known <= set(schema.names) <= known | set(may_lack):
        return block
    columns = [
        block.column(one.name) if one.name in known else pa.nulls(block.num_rows, one.type) for one in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema.names)


def _narrow(kind: pa.DataType) -> pa.DataType:
    """Return the type with 32-bit offsets and nullable inner fields."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(child.name, _narrow(child.type)) for child in kind])
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_narrow(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(_narrow(kind.key_type), _narrow(kind.item_type))
    return {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)


def encode_blocks(unit: PUnit) -> dict[str, bytes]:
    """Return the bytes of each block of a p-unit."""
    if not unit.blocks:
        return {}
    from penstock.compression import encode_table

    def cascades(schema: pa.Schema) -> dict[str, str]:
        if unit.packed:
            return choose_packed_cascades(schema, floats=PACKED_FLOATS, others=CODEC)
        return dict.fromkeys(schema.names, CODEC)

    return {name: encode_table(batch, codecs=cascades(batch.schema)) for name, batch in unit.blocks.items()}


def choose_packed_cascades(schema: pa.Schema, *, floats: str, others: str) -> dict[str, str]:
    """Return a cascade for each column: `PACKED` for integers, `floats` for floats, `others` for the rest."""

    def cascade(kind: pa.DataType) -> str:
        return PACKED if pa.types.is_integer(kind) else floats if pa.types.is_floating(kind) else others

    return {field.name: cascade(field.type) for field in schema}


def encode(unit: PUnit, coded: Mapping[str, bytes] | None = None) -> memoryview:
    """Encode a p-unit to bytes.

    Parameters
    ----------
    unit : PUnit
        The unit to write.
    coded : mapping of str to bytes, optional
        The result of `encode_blocks`, if the caller has it already.
    """
    streams = encode_blocks(unit) if coded is None else coded
    entries = [
        {"name": name, "size": len(stream), "checksum": xxhash.xxh3_64_hexdigest(stream)}
        for name, stream in streams.items()
    ]
    header = json.dumps(
        {"kind": unit.kind, "meta": unit.meta, "blocks": entries}, separators=(",", ":")
    ).encode()
    prefix = _PREFIX.pack(MAGIC, FORMAT_VERSION, 0, len(header))
    parts: list[Any] = [prefix, _CHECKSUM.pack(xxhash.xxh3_64_intdigest(prefix + header)), header]
    parts.append(bytes(_padding(_HEADER_AT + len(header))))
    for stream in streams.values():
        parts += [stream, bytes(_padding(len(stream)))]
    return memoryview(b"".join(parts))


def decode(content: bytes | memoryview, file: object) -> PUnit:
    """Return the p-unit in `content`; `file` names it in errors.

    Raises
    ------
    CorruptDataError
        If the content is cut, changed, not a p-unit, or of a newer format than this code supports.
    """
    version, fields, streams = _parts(content, file)
    blocks = {
        name: _from_ipc(stream, file, at) if version == 1 else _table(stream, file, at).read()
        for name, (at, stream) in streams.items()
    }
    return PUnit(fields["kind"], fields["meta"], blocks)


def read_header(
    read: Callable[[int, int], bytes | memoryview], size_bytes: int, file: object
) -> tuple[PUnit, int]:
    """Return a p-unit without its blocks, and its full length.

    Parameters
    ----------
    read : callable
        A function that takes a position and a number of bytes, and returns these bytes of the file, like
        `penstock.checkpointing.files.Files.read_range`.
    size_bytes : int
        The length of the file.
    file : object
        The file's name in errors.

    Raises
    ------
    CorruptDataError
        If the header is cut, changed, not the header of a p-unit, or of a newer format than this code
        supports.
    """
    begin = read(0, _FIRST_BYTES)
    version, header_size = _prefix(begin, size_bytes, file)
    if _HEADER_AT + header_size > len(begin):
        begin = read(0, _HEADER_AT + header_size)
    fields = _header(begin, version, header_size, file)
    end = _HEADER_AT + header_size
    end += _padding(end) + sum(entry["size"] + _padding(entry["size"]) for entry in fields["blocks"])
    return PUnit(fields["kind"], fields["meta"]), end


def tables(content: bytes | memoryview, file: object) -> dict[str, TableBlock]:
    """Return the blocks of a p-unit by name, still encoded.

    Raises
    ------
    CorruptDataError
        As for `decode`.
    InvalidUsageError
        If the p-unit has format version 1, whose blocks are not coded.
    """
    version, _, streams = _parts(content, file)
    if version == 1:
        raise InvalidUsageError("a p-unit of format version 1 is not compressed", file=file)
    return {name: _table(stream, file, at) for name, (at, stream) in streams.items()}


def _table(stream: memoryview, file: object, at: int) -> TableBlock:
    from penstock.compression import TableBlock

    return TableBlock(stream, file=file, offset=at, max_bytes=_MAX_COLUMN_BYTES)


def _parts(
    content: bytes | memoryview, file: object
) -> tuple[int, dict[str, Any], dict[str, tuple[int, memoryview]]]:
    """Return the format version, the header, and the offset and bytes of each block, all checked."""
    size = len(content)
    version, header_size = _prefix(content, size, file)
    fields = _header(content, version, header_size, file)
    at = _HEADER_AT + header_size
    at += _padding(at)
    streams: dict[str, tuple[int, memoryview]] = {}
    for entry in fields["blocks"]:
        end = at + entry["size"]
        if end + _padding(end) > size:
            raise CorruptDataError(
                "the file is cut within a block", file=file, block=entry["name"], offset=at
            )
        stream = memoryview(content)[at:end]
        if xxhash.xxh3_64_hexdigest(stream) != entry["checksum"]:
            raise CorruptDataError("a block's checksum is wrong", file=file, block=entry["name"], offset=at)
        streams[entry["name"]] = at, stream
        at = end + _padding(end)
    if at != size or any(content[i] for i in _padding_positions(_HEADER_AT + header_size, fields)):
        raise CorruptDataError("the file has bytes that belong to no block", file=file, offset=at)
    return version, fields, streams


def _prefix(content: bytes | memoryview, size: int, file: object) -> tuple[int, int]:
    """Return the format version and the header length from the first bytes of a file of `size` bytes."""
    if min(size, len(content)) < _HEADER_AT:
        raise CorruptDataError("the file is too short for a p-unit", file=file, size_bytes=size)
    magic, version, _, header_size = _PREFIX.unpack(bytes(content[: _PREFIX.size]))
    if magic != MAGIC:
        raise CorruptDataError("the file is not a p-unit", file=file, offset=0)
    check_version(version, FORMAT_VERSION, "file", file)
    if header_size > size - _HEADER_AT:
        raise CorruptDataError("the file is cut within its header", file=file, size_bytes=size)
    return version, header_size


def _header(content: bytes | memoryview, version: int, header_size: int, file: object) -> dict[str, Any]:
    """Return the header after verifying its checksum."""
    prefix = bytes(content[: _PREFIX.size])
    flags = _PREFIX.unpack(prefix)[2]
    header = bytes(content[_HEADER_AT : _HEADER_AT + header_size])
    (checksum,) = _CHECKSUM.unpack(content[_PREFIX.size : _HEADER_AT])
    if xxhash.xxh3_64_intdigest(prefix + header) != checksum:
        raise CorruptDataError("the header's checksum is wrong", file=file, offset=0)
    if version < 1 or flags:
        raise CorruptDataError(
            "the file has a format version or flags that nothing writes",
            file=file,
            format_version=version,
            flags=flags,
        )
    return _fields(header, file)


def _fields(header: bytes, file: object) -> dict[str, Any]:
    """Return the fields of the header after checking their types.

    A checksum is not a signature: any program can write a file with a valid checksum.
    """
    try:
        fields: dict[str, Any] = json.loads(header)
        entries = [(entry["name"], entry["size"], entry["checksum"]) for entry in fields["blocks"]]
        sound = isinstance(fields["kind"], str) and isinstance(fields["meta"], dict)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CorruptDataError("the header cannot be read", file=file, offset=_HEADER_AT) from error
    names = {name for name, _, _ in entries if isinstance(name, str)}
    sizes = [size for _, size, _ in entries if type(size) is int and size >= 0]
    if not sound or len(names) < len(entries) or len(sizes) < len(entries):
        raise CorruptDataError("the header is not valid", file=file, offset=_HEADER_AT)
    return fields


def _describe_schema(schema: pa.Schema) -> str:
    return ", ".join(f"{column.name} {column.type}" for column in schema)


def _padding(position: int) -> int:
    return -position % _ALIGNMENT


def _padding_positions(header_end: int, fields: Mapping[str, Any]) -> list[int]:
    positions = list(range(header_end, header_end + _padding(header_end)))
    at = header_end + _padding(header_end)
    for entry in fields["blocks"]:
        at += entry["size"]
        positions += range(at, at + _padding(at))
        at += _padding(at)
    return positions


def _from_ipc(stream: memoryview, file: object, at: int) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
    except (pa.ArrowException, OSError, StopIteration) as error:
        raise CorruptDataError("a block cannot be read", file=file, offset=at) from error
    return batch
