"""One column as a block: its type, its validity, and its encoded streams, behind a checksum.

Bytes of a block, integers as variable bytes (`penstock.compression.node`)::

    0   2  magic "PB"
    2   1  format version: 2 for texts as tokens, else 1
    3   1  layout (`penstock.compression.layouts.Layout`) in bits 0 to 2; bit 3: a stream of validity comes
           first; the other bits are 0
    4   4  low half of the xxh3-64 of the bytes 0 to 3 and all after 8, little-endian
    8      type: length, bytes (`penstock.compression.layouts.put_type`)
           rows
           size of the decoded streams in bytes
           the streams' nodes

`docs/reference/format.md` has the whole format, byte by byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache
from itertools import zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from penstock.compression.abc import Cascade, UnfitError, check, check_version
from penstock.compression.arrow import dictionary_of, forms_of, from_streams, raw_bytes, to_streams
from penstock.compression.choice.chooser import Chooser, plan_quickly
from penstock.compression.choice.plan import Plan
from penstock.compression.codecs import decode_stream, encode_stream
from penstock.compression.codecs.registry import DEFAULT, cascade_of, head_of
from penstock.compression.kernels.bits import SUB_BLOCK, Ints
from penstock.compression.kinds import check_codes, is_coded_text
from penstock.compression.layouts import Layout, Streams, get_type, layouts_of, put_type
from penstock.compression.node import Node, Reader, put_varint
from penstock.compression.texts import token_streams
from penstock.compression.texts.token_decoder import decode_part
from penstock.errors import CorruptDataError, InvalidUsageError

__all__ = ["FORMAT_VERSION", "MAX_BYTES", "Block", "decode", "encode", "parse_cascade"]

FORMAT_VERSION = 2
"""The newest format that this code reads. It writes the oldest version that can represent the block."""

MAX_BYTES = 1 << 31
"""The default limit of a block's decoded bytes; a block whose stated size is larger is refused."""

_MAGIC = b"PB"
_NULLS = 8
_START = struct.Struct("<2sBB")
_CHECKSUM = struct.Struct("<I")
_STREAMS: dict[Layout, tuple[str, ...]] = {
    Layout.NOTHING: (),
    Layout.FIXED: ("values",),
    Layout.WIDE: ("low halves", "high halves"),
    Layout.TEXT: ("lengths", "bytes"),
    Layout.TEXT_DICTIONARY: ("codes", "lengths of distinct texts", "distinct texts"),
    Layout.NESTED: ("Arrow IPC",),
    Layout.TEXT_TOKENS: token_streams.STREAMS,
}
"""The names of each layout's streams; the last stream of wide values may be missing."""
_OF_ROWS = {Layout.FIXED: 1, Layout.WIDE: 2, Layout.TEXT: 1, Layout.TEXT_DICTIONARY: 1, Layout.TEXT_TOKENS: 1}
"""The number of a layout's leading streams that have one value for each row."""
_FALLBACKS: dict[Cascade, Cascade] = {("constant",): ("run_length", *DEFAULT)}


@lru_cache(maxsize=256)
def parse_cascade(text: str) -> Cascade:
    """Return a cascade from its text, such as ``"dictionary>ns"``.

    Raises
    ------
    InvalidUsageError
        If the text names an unknown codec, or a codec follows a codec that ends a cascade.
    """
    cascade = tuple(name.strip() for name in text.split(">"))
    # Tokens are a layout of texts: the codecs that follow encode the tokens.
    rest = cascade[1:] if cascade[0] == "tokens" else cascade
    while rest:
        _, rest = head_of(rest)
    return cascade


def encode(
    array: pa.Array[Any] | pa.ChunkedArray[Any],
    codec: str = "auto",
    *,
    chooser: Chooser | None = None,
    column: str = "",
    kind: pa.DataType | None = None,
) -> bytes:
    """Return a column as one block.

    Parameters
    ----------
    array : pyarrow.Array or pyarrow.ChunkedArray
        Values of any type that columns of Spark can have.
    codec : str
        ``"auto"`` to let the chooser decide, or a cascade of codecs, such as ``"delta>ns"``,
        ``"decimal>dictionary>zstd"`` or ``"dictionary>run_length"``. For text the cascade applies to lengths
        and bytes; after ``dictionary``, to the codes; after ``tokens``, to the words and numbers. A stream
        that does not fit the cascade is encoded by ``base_delta>ns``.
    chooser : Chooser, optional
        Decides how to encode, and remembers its decision for `column`. If not given, the decision is based on
        a few values, with the goal "balanced".
    column : str
        The column's name for the chooser.
    kind : pyarrow.DataType, optional
        The type of the block's values; by default the type of the array. Texts in `array` may be
        dictionary-encoded; if they repeat, the block keeps their codes.

    Raises
    ------
    InvalidUsageError
        If there is no such codec, a codec cannot follow another or does not support this type, or the values
        are not a valid Arrow array of the type.
    """
    if not isinstance(array, pa.Array | pa.ChunkedArray):
        raise InvalidUsageError(
            "only Arrow arrays can be coded", type=type(array).__name__, hint="pyarrow.array(values)"
        )
    kind = array.type if kind is None else kind
    if is_coded_text(array.type, kind):
        check_codes(array)
    elif not array.type.equals(kind):
        raise InvalidUsageError("the values have another type", type=str(array.type), wanted=str(kind))
    if isinstance(array, pa.ChunkedArray):
        if array.num_chunks > 1 and not array.type.equals(kind):
            array = array.cast(kind)  # the dictionaries of chunks may differ
        # Arrow copies even a single chunk.
        array = array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
    if codec != "auto":
        return _encode(array, Plan.build(kind, parse_cascade(codec)), kind)[0]
    if chooser is None:
        block, fits = _encode(array, plan_quickly(array, kind), kind)
        if fits:
            return block
        chooser = Chooser()
    block, fits = _encode(array, chooser.plan(column, array, kind), kind)
    chooser.record_block(column, fits=fits)
    return block


def _encode(array: pa.Array[Any], plan: Plan, kind: pa.DataType) -> tuple[bytes, bool]:
    """Return the block of the values, and whether all their streams fitted the plan."""
    forms = plan.forms
    if plan.tokens and forms is None:
        forms = forms_of(array.cast(kind))
    parts = to_streams(array, dictionary=plan.dictionary, forms=forms, kind=kind)
    planned = list(zip_longest(parts.streams, plan.cascades[: len(parts.streams)]))
    if parts.valid is not None:
        planned.insert(0, (parts.valid, plan.validity))
    fits = parts.layout is not Layout.TEXT_TOKENS or token_streams.fits(parts.streams)
    nodes: list[Node] = []
    for stream, cascade in planned:
        try:
            nodes.append(encode_stream(stream, cascade or ()))
        except UnfitError:
            fits = False
            nodes.append(encode_stream(stream, _FALLBACKS.get(cascade[:1], DEFAULT)))
    head = bytearray()
    name = put_type(kind)
    put_varint(len(name), head)
    head += name
    put_varint(len(array), head)
    put_varint(raw_bytes(parts), head)
    body: list[Any] = [head]
    for node in nodes:
        node.write(body)
    start = _START.pack(
        _MAGIC, _version_of(parts.layout), parts.layout | (_NULLS if parts.valid is not None else 0)
    )
    return b"".join((start, _CHECKSUM.pack(_checksum(start, body)), *body)), fits


def _version_of(layout: Layout) -> int:
    """Return the first format version that has a layout."""
    return 2 if layout is Layout.TEXT_TOKENS else 1


def _checksum(start: Any, body: Iterable[Any]) -> int:
    digest = xxhash.xxh3_64(start)
    for part in body:
        digest.update(part)
    return digest.intdigest() & 0xFFFFFFFF


class Block:
    """An encoded column; any range of rows can be decoded.

    Parameters
    ----------
    data : bytes-like
        The result of `encode`, which must not change while the block is used.
    file : object
        Names the block in errors.
    max_bytes : int
        The limit of the memory of the decoded values.

    Raises
    ------
    CorruptDataError
        If the block is cut, changed or of a newer format, or if its stated size exceeds `max_bytes`.
    """

    def __init__(self, data: Any, *, file: object = None, max_bytes: int = MAX_BYTES) -> None:
        content = np.frombuffer(data, np.uint8)
        self._file, self._max_bytes = file, max_bytes
        reader = Reader(content, file)
        magic, version, self._flags = _START.unpack(reader.bytes(_START.size).data)
        if magic != _MAGIC:
            raise CorruptDataError("this is not a block", file=file, offset=0)
        check_version(version, FORMAT_VERSION, "block", file)
        (checksum,) = _CHECKSUM.unpack(reader.bytes(_CHECKSUM.size).data)
        if checksum != _checksum(content[: _START.size], (content[_START.size + _CHECKSUM.size :],)):
            raise CorruptDataError("the block's checksum is wrong", file=file, offset=0)
        with self._name_errors():
            self.layout = _layout(self._flags & 7)
            check(
                version == _version_of(self.layout) and self._flags < 2 * _NULLS,
                "the block has unknown flags",
            )
            self.type = get_type(reader.bytes(reader.varint()).tobytes())
            check(self.layout in layouts_of(self.type), "a block's layout does not suit its type")
        self.rows = reader.varint()
        self.raw_bytes = reader.varint()
        if max(self.raw_bytes, self.rows) > max_bytes:
            raise CorruptDataError(
                "the block claims more bytes than may be decoded at once",
                file=file,
                stated_bytes=max(self.raw_bytes, self.rows),
                max_bytes=max_bytes,
            )
        # Side streams have at most two values for each value of the main stream.
        reader.max_count = 2 * max(self.raw_bytes, self.rows) + SUB_BLOCK
        self.validity = reader.node() if self._flags & _NULLS else None
        self.nodes: list[Node] = []
        while not reader.at_end:
            self.nodes.append(reader.node())
        self.size_bytes = content.size
        with self._name_errors():
            self._check_streams()

    def _name_errors(self) -> _Named:
        return _Named(self._file)

    def _check_streams(self) -> None:
        """Check number, type and length of the streams against the layout."""
        expected = len(_STREAMS[self.layout])
        check(
            len(self.nodes) == expected or (self.layout is Layout.WIDE and len(self.nodes) == 1),
            "a block has another number of streams than its layout",
        )
        size_bytes = 0
        for number, node in enumerate(self.nodes):
            check(
                node.count == self.rows or number >= _OF_ROWS.get(self.layout, 0),
                "a stream has another number of values than rows",
            )
            size_bytes += node.count << node.width
        check(size_bytes == self.raw_bytes, "a block states another size than its streams have")
        if self.validity is not None:
            check(
                self.layout not in (Layout.NOTHING, Layout.NESTED),
                "a block has nulls, but its layout has none",
            )
            check(
                self.validity.count == self.rows and self.validity.width == 0,
                "the validity of a block does not match its rows",
            )
        if self.layout is Layout.FIXED:
            size = 1 if pa.types.is_boolean(self.type) else self.type.bit_width // 8
            check(
                1 << self.nodes[0].width == size, "a stream's values have another size than the block's type"
            )
        elif self.layout is Layout.WIDE:
            check(all(node.width == 3 for node in self.nodes), "a decimal's halves have a wrong size")

    def describe(self) -> list[tuple[str, str, int, int]]:
        """Describe each stream: its name, its cascade, its number of values, and its size in bytes."""
        streams = list(zip(_STREAMS[self.layout], self.nodes, strict=False))
        if self.validity is not None:
            streams.insert(0, ("validity", self.validity))
        with self._name_errors():
            return [(name, cascade_of(node), node.count, node.size_bytes) for name, node in streams]

    def read(
        self, start: int = 0, stop: int | None = None, *, keep_dictionary: bool = False
    ) -> pa.Array[Any]:
        """Return rows `start` to `stop` - 1; decode only the sub-blocks that hold these rows.

        Parameters
        ----------
        start, stop : int
            The rows; by default all.
        keep_dictionary : bool
            Whether to return dictionary-encoded texts as an Arrow dictionary array, whose dictionary may have
            values that occur in no row.

        Raises
        ------
        CorruptDataError
            If the block contradicts itself.
        InvalidUsageError
            If the block has no such rows.
        """
        stop = self.rows if stop is None else stop
        if not 0 <= start <= stop <= self.rows:
            raise InvalidUsageError("the block has no such rows", start=start, stop=stop, rows=self.rows)
        with self._name_errors():
            if self.layout is Layout.TEXT_TOKENS and stop - start < self.rows:
                begin = start // SUB_BLOCK * SUB_BLOCK
                return self._read(begin, stop, keep_dictionary=False).slice(start - begin)
            return self._read(start, stop, keep_dictionary=keep_dictionary)

    def _read(self, start: int, stop: int, *, keep_dictionary: bool) -> pa.Array[Any]:
        if self.layout is Layout.NESTED:
            return self._read_nested(start, stop)
        valid = None
        if self.validity is not None:
            valid = decode_stream(self.validity, self.rows, start, stop)
            check(bool(((valid == 0) | (valid == 1)).all()), "the validity of a row is neither 0 nor 1")
        streams = self._streams(start, stop)
        parts = Streams(self.layout, streams, valid)
        if keep_dictionary and self.layout is Layout.TEXT_DICTIONARY:
            return dictionary_of(self.type, parts)
        return from_streams(self.type, stop - start, parts, self._max_bytes)

    def _read_nested(self, start: int, stop: int) -> pa.Array[Any]:
        parts = Streams(self.layout, (decode_stream(self.nodes[0]),), None)
        array = from_streams(self.type, self.rows, parts, self._max_bytes)
        if stop - start == self.rows:
            return array
        # Copy the rows, so that they do not keep the memory of the whole block.
        copied = to_streams(array.slice(start, stop - start))
        return from_streams(self.type, stop - start, copied, self._max_bytes)

    def _streams(self, start: int, stop: int) -> tuple[Ints, ...]:
        if self.layout is Layout.TEXT:
            if stop - start == self.rows:
                return tuple(map(decode_stream, self.nodes))
            lengths = decode_stream(self.nodes[0], None, 0, stop).astype(np.int64)
            possible = (lengths >= 0) & (lengths <= self.nodes[1].count)
            check(bool(possible.all()), "a text has an impossible length")
            begin = int(lengths[:start].sum())
            end = begin + int(lengths[start:].sum())
            check(end <= self.nodes[1].count, "the lengths of texts do not match their bytes")
            return lengths[start:], decode_stream(self.nodes[1], None, begin, end)
        if self.layout is Layout.TEXT_DICTIONARY:
            codes, *texts = self.nodes
            return decode_stream(codes, None, start, stop), *map(decode_stream, texts)
        if self.layout is Layout.TEXT_TOKENS:
            if stop - start == self.rows:
                return tuple(map(decode_stream, self.nodes))
            return decode_part(self.nodes, start, stop)
        return tuple(decode_stream(node, None, start, stop) for node in self.nodes)


def _layout(number: int) -> Layout:
    check(number < len(Layout), "a block has an unknown layout")
    return Layout(number)


class _Named:
    """Adds the file's name to errors that occur within the context."""

    def __init__(self, file: object) -> None:
        self._file = file

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, CorruptDataError) and "file" not in error.context:
            raise error.name_file(self._file) from error


def decode(data: Any, *, file: object = None, max_bytes: int = MAX_BYTES) -> pa.Array[Any]:
    """Decode a block that `encode` made.

    Parameters
    ----------
    data : bytes-like
        The block.
    file : object
        Names the block in errors.
    max_bytes : int
        The limit of the memory of the decoded values.

    Raises
    ------
    CorruptDataError
        If the block is cut, changed or of a newer format, if its stated size exceeds `max_bytes`, or if it
        contradicts itself.
    """
    return Block(data, file=file, max_bytes=max_bytes).read()
