"""Convert Arrow arrays to streams of integers and back; `penstock.compression.layouts` lists the streams."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.compression.abc import check
from penstock.compression.kernels.bits import Bytes, Ints
from penstock.compression.kernels.text import (
    MAX_DISTINCT,
    code_type,
    counts_of,
    distinct_texts,
    offsets_of,
    texts_of,
)
from penstock.compression.kinds import is_coded_text, is_text
from penstock.compression.layouts import Layout, Streams, layouts_of
from penstock.compression.texts.forms import Forms, learn_forms, sample_rows
from penstock.compression.texts.token_decoder import decode_tokens
from penstock.compression.texts.token_encoder import encode_tokens
from penstock.errors import CorruptDataError, InternalError, InvalidUsageError

__all__ = [
    "encode_as_dictionary",
    "forms_of",
    "from_streams",
    "offsets_and_bytes",
    "raw_bytes",
    "take_rows",
    "to_streams",
]

_MIN_REPEATS_TO_KEEP_CODES = 4
"""A selection dictionary-encodes texts if each distinct text occurs this often on average."""
_DICTIONARY_SAMPLE_ROWS = 4096
"""The number of first texts to try. All texts are encoded only if at least half of these are repeats."""
_MAX_TEXT_BYTES = (1 << 31) - 1
"""The greatest size of a block's text in bytes: the readers' default limit."""
_I32, _U16 = struct.Struct("<i"), struct.Struct("<H")


def to_streams(
    array: pa.Array[Any],
    *,
    dictionary: bool = False,
    forms: Forms | None = None,
    kind: pa.DataType | None = None,
) -> Streams:
    """Return the streams of `array`.

    Parameters
    ----------
    array : pyarrow.Array
        The values. If `kind` is text, they may be dictionary-encoded.
    dictionary : bool
        Whether the distinct values of texts are stored separately.
    forms : Forms, optional
        The patterns of texts to tokenize.
    kind : pyarrow.DataType, optional
        The values' type; by default the array's.

    Raises
    ------
    InvalidUsageError
        If the array has more text than one array of its type can hold, or if the array is not valid, for
        example because a text is not UTF-8. A block of such an array would be unreadable.
    """
    kind = array.type if kind is None else kind
    if is_coded_text(array.type, kind):
        streams = _keep_dictionary(array) if dictionary else None
        if streams is not None:
            return streams
        array = array.cast(kind)
    valid = None
    if array.null_count and not pa.types.is_null(kind):
        valid = _bits(pc.is_valid(array))
    layout = layouts_of(kind)[0]
    if layout is Layout.NOTHING:
        return Streams(layout, (), None)
    if layout is Layout.NESTED:
        # The nulls are in the IPC stream.
        return Streams(layout, (_to_ipc(array),), None)
    if layout is Layout.TEXT:
        if valid is not None:
            array = array.fill_null("" if kind in (pa.string(), pa.large_string()) else b"")
        if len(array):
            offsets, _ = offsets_and_bytes(array)
            _refuse_too_much(int(offsets[-1]) - int(offsets[0]))
        if dictionary:
            codes, distinct = _distinct(array)
            _refuse_other_than_utf8(distinct)
            return Streams(Layout.TEXT_DICTIONARY, (codes, *_text(distinct)), valid)
        _refuse_other_than_utf8(array)
        if forms is not None:
            offsets, content = np.zeros(1, np.int32), np.empty(0, np.uint8)
            if len(array):
                offsets, content = offsets_and_bytes(array)
            return Streams(Layout.TEXT_TOKENS, encode_tokens(offsets, content, forms), valid)
        return Streams(layout, _text(array), valid)
    if pa.types.is_boolean(kind):
        values = _bits(array if valid is None else array.fill_null(False))
    else:
        size = kind.bit_width // 8
        raw = np.frombuffer(array.buffers()[1], np.uint8) if len(array) else np.empty(0, np.uint8)
        part = raw[array.offset * size : (array.offset + len(array)) * size]
        if layout is Layout.WIDE:
            pairs = part.view(np.int64).reshape(-1, 2)
            if valid is not None:
                pairs = pairs[_last_valid(valid)]
            low, high = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
            wide = bool((high != low >> 63).any())
            return Streams(layout, (low, high) if wide else (low,), valid)
        values = part.view(f"i{size}")
    if valid is not None and not pa.types.is_boolean(kind):
        values = values[_last_valid(valid)]
    return Streams(layout, (values,), valid)


def from_streams(kind: pa.DataType, rows: int, columns: Streams, max_bytes: int) -> pa.Array[Any]:
    """Return the array of `rows` values that these streams encode, with at most `max_bytes` of text.

    Raises
    ------
    CorruptDataError
        If the streams contradict one another or the type.
    """
    layout, streams = columns.layout, columns.streams
    if layout is Layout.NOTHING:
        return pa.nulls(rows)
    if layout is Layout.NESTED:
        return _from_ipc(kind, rows, streams[0])
    validity = None if columns.valid is None else pa.py_buffer(np.packbits(columns.valid, bitorder="little"))
    if layout is Layout.TEXT:
        offsets, data = _offsets(kind, streams[0], streams[1])
        return _text_array(kind, rows, validity, offsets, data)
    if layout is Layout.TEXT_DICTIONARY:
        offsets, data = _offsets(kind, streams[1], streams[2])
        _text_array(kind, len(offsets) - 1, None, offsets, data)
        texts = texts_of(streams[0], offsets, data, offsets.dtype, min(max_bytes, _most_text(kind)))
        if texts is None:
            raise CorruptDataError("a code has no text in its dictionary, or the texts have too many bytes")
        return pa.Array.from_buffers(kind, rows, [validity, *map(pa.py_buffer, texts)])
    if layout is Layout.TEXT_TOKENS:
        texts = decode_tokens(
            streams, np.int32 if _most_text(kind) < 1 << 31 else np.int64, min(max_bytes, _most_text(kind))
        )
        if texts is None:
            raise CorruptDataError("texts have too many bytes")
        return _text_array(kind, rows, validity, *texts)
    if pa.types.is_boolean(kind):
        return pa.Array.from_buffers(
            kind, rows, [validity, pa.py_buffer(np.packbits(streams[0], bitorder="little"))]
        )
    if layout is Layout.WIDE:
        pairs = np.empty((rows, 2), np.int64)
        pairs[:, 0] = streams[0]
        pairs[:, 1] = streams[1] if len(streams) == 2 else streams[0] >> 63
        return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(pairs)])
    return pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(streams[0])])


def dictionary_of(kind: pa.DataType, columns: Streams) -> pa.Array[Any]:
    """Return the dictionary array of texts whose distinct values are stored separately.

    Raises
    ------
    CorruptDataError
        If the streams contradict one another or the type.
    """
    codes, lengths, content = columns.streams
    offsets, data = _offsets(kind, lengths, content)
    texts = _text_array(kind, len(offsets) - 1, None, offsets, data)
    check(
        not codes.size or (int(codes.min()) >= 0 and int(codes.max()) < len(texts)),
        "a code has no text in its dictionary",
    )
    missing = None if columns.valid is None else columns.valid == 0
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=missing), texts, safe=False)


def raw_bytes(streams: Streams) -> int:
    """Return the decoded size of the streams in bytes."""
    return sum(stream.nbytes for stream in streams.streams)


def _bits(array: pa.Array[Any]) -> Ints:
    """Return 0 and 1 for an array of booleans without nulls."""
    end = array.offset + len(array)
    buffer = array.buffers()[1]
    if buffer is None or not len(array):
        return np.zeros(len(array), np.int8)
    bits = np.unpackbits(np.frombuffer(buffer, np.uint8), bitorder="little", count=end)
    return bits[array.offset :].view(np.int8)


def _last_valid(valid: Ints) -> Any:
    """Return the last valid row at or before each row; for leading nulls, return the first valid row."""
    rows = np.where(valid, np.arange(valid.size), -1)
    first = int(np.argmax(valid))
    return np.maximum(np.maximum.accumulate(rows), first if valid[first] else 0)


def _text(array: pa.Array[Any]) -> tuple[Ints, Ints]:
    """Return lengths and bytes of text without nulls."""
    if not len(array):
        return np.empty(0, np.int32), np.empty(0, np.int8)
    offsets, content = offsets_and_bytes(array)
    return np.diff(offsets), content[int(offsets[0]) : int(offsets[-1])].view(np.int8)


def offsets_and_bytes(array: pa.Array[Any]) -> tuple[Ints, Bytes]:
    """Return the offsets of texts, and the buffer that holds their bytes."""
    _, bounds, data = array.buffers()
    offsets: Ints = np.frombuffer(bounds, np.int32 if _most_text(array.type) < 1 << 31 else np.int64)
    content = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return offsets[array.offset : array.offset + len(array) + 1], content


def forms_of(array: pa.Array[Any]) -> Forms:
    """Learn the patterns of texts from a sample; nulls are treated as empty texts."""
    array = array.take(pa.array(sample_rows(len(array), array.nbytes // max(len(array), 1))))
    if array.null_count:
        array = array.fill_null("" if array.type in (pa.string(), pa.large_string()) else b"")
    if not len(array):
        return learn_forms(np.zeros(1, np.int32), np.empty(0, np.uint8))
    return learn_forms(*offsets_and_bytes(array))


def take_rows(array: pa.Array[Any], rows: Ints) -> pa.Array[Any]:
    """Return the values of distinct rows, as Arrow's `take` does, but faster for texts."""
    if not len(array) or array.null_count or not is_text(array.type):
        return array.take(pa.array(rows))
    offsets, content = offsets_and_bytes(array)
    texts = texts_of(rows, offsets, content, offsets.dtype, _most_text(array.type))
    if texts is None:
        raise InternalError("there are no such rows")
    return pa.Array.from_buffers(array.type, len(rows), [None, *map(pa.py_buffer, texts)])


def encode_as_dictionary(array: pa.Array[Any], rows: Ints) -> pa.Array[Any] | None:
    """Return the texts of some rows as a dictionary array; None if texts repeat too little.

    At least half of the first 4,096 texts must be repeats, and each distinct text must occur four times on
    average.

    Parameters
    ----------
    array : pyarrow.Array
        Texts, without nulls.
    rows : Ints
        The positions of the texts to return.
    """
    texts = offsets_and_bytes(array)
    sample = distinct_texts(*texts, rows[:_DICTIONARY_SAMPLE_ROWS])
    if sample is None or len(sample[0]) * 2 > len(sample[1]):
        return None
    distinct = distinct_texts(*texts, rows, min(MAX_DISTINCT, rows.size // _MIN_REPEATS_TO_KEEP_CODES))
    if distinct is None:
        return None
    first, codes = distinct
    return pa.DictionaryArray.from_arrays(pa.array(codes), array.take(pa.array(first)), safe=False)


def _keep_dictionary(array: pa.Array[Any]) -> Streams | None:
    """Return the streams of dictionary-encoded texts; None to encode the texts again."""
    texts, indices = array.dictionary, array.indices
    if (
        indices.null_count
        or texts.null_count
        or not 0 < len(texts) * _MIN_REPEATS_TO_KEEP_CODES <= len(array)
    ):
        return None
    distinct = distinct_texts(*offsets_and_bytes(texts))
    if distinct is None or len(distinct[0]) < len(texts):
        return None
    codes = indices.to_numpy()
    counts = counts_of(codes, len(texts))
    _refuse_too_much(int(counts @ _text(texts)[0]))
    if not counts.all():
        codes = (np.cumsum(counts > 0) - 1)[codes]
        texts = texts.take(pa.array(np.flatnonzero(counts)))
    _refuse_other_than_utf8(texts)
    codes = codes.astype(code_type(len(texts)), copy=False)
    return Streams(Layout.TEXT_DICTIONARY, (codes, *_text(texts)), None)


def _refuse_too_much(size_bytes: int) -> None:
    if size_bytes > _MAX_TEXT_BYTES:
        raise InvalidUsageError(
            "a column has more text than one block holds", size_bytes=size_bytes, most=_MAX_TEXT_BYTES
        )


def _distinct(array: pa.Array[Any]) -> tuple[Ints, pa.Array[Any]]:
    """Return the code of each text, and the distinct texts in order of appearance."""
    if not len(array):
        return np.empty(0, np.int32), array
    distinct = distinct_texts(*offsets_and_bytes(array))
    if distinct is None:
        encoded = array.dictionary_encode()
        return np.frombuffer(encoded.indices.buffers()[1], np.int32, len(array)), encoded.dictionary
    rows, codes = distinct
    return codes, array.take(pa.array(rows))


def _offsets(kind: pa.DataType, lengths: Ints, content: Ints) -> tuple[Ints, Bytes]:
    most = _most_text(kind)
    offsets = offsets_of(lengths, np.int32 if most < 1 << 31 else np.int64, most)
    if offsets is None:
        raise CorruptDataError("a text has an impossible length")
    check(
        content.dtype == np.int8 and int(offsets[-1]) == content.size,
        "the lengths of texts do not match their bytes",
    )
    return offsets, content.view(np.uint8)


def _most_text(kind: pa.DataType) -> int:
    """Return the greatest number of bytes that an array of texts can have."""
    return (1 << 63 if kind in (pa.large_string(), pa.large_binary()) else 1 << 31) - 1


def _text_array(kind: pa.DataType, rows: int, validity: Any, offsets: Ints, data: Bytes) -> pa.Array[Any]:
    array = pa.Array.from_buffers(kind, rows, [validity, pa.py_buffer(offsets), pa.py_buffer(data)])
    check(_is_utf8(array, data), "a text is not UTF-8")
    return array


def _is_utf8(array: pa.Array[Any], data: Ints | Bytes) -> bool:
    """Return whether text of a string type is valid UTF-8; `data` are its bytes."""
    # ASCII is valid UTF-8, and quicker to check.
    utf8 = array.type in (pa.string(), pa.large_string())
    if not utf8 or not data.size or data.view(np.int8).min() >= 0:
        return True
    try:
        array.validate(full=True)
    except pa.ArrowException:
        return False
    return True


def _refuse_other_than_utf8(array: pa.Array[Any]) -> None:
    if not _is_utf8(array, _text(array)[1]):
        raise InvalidUsageError("a text is not UTF-8", hint="the type binary holds any bytes")


def _to_ipc(array: pa.Array[Any]) -> Ints:
    batch = pa.record_batch([array], names=[""])
    if batch.nbytes >= 1 << 31:
        raise InvalidUsageError("a nested column is too large for one block", size_bytes=batch.nbytes)
    try:
        batch.validate(full=True)
    except pa.ArrowException as error:
        raise InvalidUsageError("a nested column is not a valid Arrow array", type=str(array.type)) from error
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    # The parts of the stream are padded to 8 bytes, so ascending times in a struct become ascending integers.
    return np.frombuffer(sink.getvalue(), np.int64)


def _is_compressed(message: pa.ipc.Message) -> bool:
    """Return whether a message's parts are compressed; such parts may take any amount of memory.

    Arrow has verified its metadata. The metadata are FlatBuffers tables: field 2 of Message is the header,
    field 1 of DictionaryBatch is a RecordBatch, and field 3 of RecordBatch is the compression.
    """
    data = message.metadata.to_pybytes()

    def field(table: int, number: int) -> int:
        fields = table - _I32.unpack_from(data, table)[0]
        entry = fields + 4 + 2 * number
        is_present = 4 + 2 * number < _U16.unpack_from(data, fields)[0]
        place = table + _U16.unpack_from(data, entry)[0] if is_present else table
        return place + int(_I32.unpack_from(data, place)[0]) if place > table else 0

    batch = field(_I32.unpack_from(data, 0)[0], 2)
    if message.type == "dictionary":
        batch = field(batch, 1)
    return message.type != "schema" and field(batch, 3) > 0


def _from_ipc(kind: pa.DataType, rows: int, stream: Ints) -> pa.Array[Any]:
    try:
        for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(stream)):
            check(not _is_compressed(message), "a nested column has compressed parts")
        with pa.ipc.open_stream(pa.py_buffer(stream)) as reader:
            batch = reader.read_next_batch()
        batch.validate(full=True)
    except (pa.ArrowException, OSError, StopIteration, struct.error) as error:
        raise CorruptDataError("a nested column cannot be read") from error
    fits = batch.num_columns == 1 and batch.num_rows == rows and batch.column(0).type == kind
    check(fits, "a nested column does not match its block's type and rows")
    return batch.column(0)
