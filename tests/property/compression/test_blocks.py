"""Blocks return columns and tables of every type, and refuse changed bytes."""

from __future__ import annotations

import io
import os
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.compression import (
    GOALS,
    Block,
    BlockReader,
    BlockWriter,
    Chooser,
    TableBlock,
    arrow,
    decode,
    encode,
    encode_table,
)
from penstock.compression.codecs import CODECS, decode_stream
from penstock.errors import CorruptDataError, InvalidUsageError
from tests.long_tests import examples
from tests.samples.columns import KINDS, arrays

MUTATIONS = int(os.environ.get("PENSTOCK_FUZZ_MUTATIONS") or examples(25_000))
"""`script/fuzz` has more."""


@settings(max_examples=examples(100))
@given(st.data(), st.sampled_from(list(KINDS)), st.sampled_from(list(GOALS)), st.booleans())
def test_a_column_comes_back_whole_and_in_part(data: Any, kind: pa.DataType, goal: str, nulls: bool) -> None:
    array = arrays(data.draw, kind, data.draw(st.integers(0, 40)), nulls=nulls)
    block = Block(encode(array, chooser=Chooser(goal)))
    out = block.read()
    out.validate(full=True)
    assert out.type == array.type
    assert out.equals(array)
    start = data.draw(st.integers(0, len(array)))
    stop = data.draw(st.integers(start, len(array)))
    assert block.read(start, stop).equals(array.slice(start, stop - start))


@pytest.mark.parametrize(
    "codec", ["dictionary", "dictionary>zstd", "dictionary>run_length>ns", "zstd", "lz4", "snappy", "plain"]
)
@given(st.lists(st.none() | st.text(max_size=3), max_size=60))
def test_text_comes_back_from_every_layout(codec: str, texts: list[str | None]) -> None:
    array = pa.array(texts, pa.string())
    assert decode(encode(array, codec)).equals(array)


@pytest.mark.parametrize("kind", ["struct", "list"])
def test_a_nested_column_is_coded_as_integers_and_read_as_bytes_too(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = pa.array(range(0, 50_000_000, 1000), pa.timestamp("us"))
    array = pa.StructArray.from_arrays([times, times], ["start", "end"])
    if kind == "list":
        array = pa.ListArray.from_arrays(pa.array([0, 7, 7, len(times)], pa.int32()), times)
    written = encode(array, chooser=Chooser("fast"))
    assert len(written) < 0.05 * array.nbytes
    to_ipc = arrow._to_ipc
    monkeypatch.setattr(arrow, "_to_ipc", lambda array: to_ipc(array).view(np.int8))
    for block in (written, encode(array, "zstd"), encode(array, chooser=Chooser("fast"))):
        assert decode(block).equals(array)


@pytest.mark.parametrize("kind", ["list", "dictionary"])
def test_a_nested_column_that_arrow_compressed_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the block states its decoded size, and Arrow allocates that memory before it checks anything."""
    array = pa.array([[0] * 1_000_000])
    if kind == "dictionary":
        array = pa.array(["x" * 1_000_000]).dictionary_encode()

    def compressed(array: pa.Array) -> np.ndarray:
        sink, options = io.BytesIO(), pa.ipc.IpcWriteOptions(compression="zstd")
        batch = pa.record_batch([array], names=[""])
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        return np.frombuffer(sink.getvalue(), np.int64)

    assert decode(encode(array, "zstd")).equals(array)
    monkeypatch.setattr(arrow, "_to_ipc", compressed)
    with pytest.raises(CorruptDataError, match="a nested column has compressed parts"):
        decode(encode(array, "zstd"), max_bytes=10_000)


@pytest.mark.parametrize("codec", ["auto", "zstd", "dictionary"])
def test_what_could_not_be_read_again_is_not_written(codec: str) -> None:
    letters = [pa.py_buffer(np.arange(3, dtype=np.int32)), pa.py_buffer(b"a\xff")]
    text = pa.Array.from_buffers(pa.string(), 2, [None, *letters])
    number = pa.Array.from_buffers(pa.decimal128(3), 1, [None, pa.py_buffer(np.array([10**9, 0]))])
    with pytest.raises(InvalidUsageError, match="a text is not UTF-8"):
        encode(text, codec)
    for values in (text, number):
        nested = pa.ListArray.from_arrays(pa.array([0, len(values)], pa.int32()), values)
        with pytest.raises(InvalidUsageError, match="a nested column is not a valid Arrow array"):
            encode(nested, codec)
    # What is not seen does not matter.
    for array in (text[:1], pa.Array.from_buffers(pa.string(), 2, [pa.py_buffer(b"\x01"), *letters])):
        assert decode(encode(array, codec)).equals(array)


def test_bits_of_floats_come_back(generator: np.random.Generator) -> None:
    bits = generator.integers(-(1 << 63), (1 << 63) - 1, 5000)
    bits[::3] = np.round(generator.normal(0, 9, bits[::3].size), 2).view(np.int64)
    array = pa.array(bits.view(np.float64))
    for goal in GOALS:
        out = decode(encode(array, chooser=Chooser(goal)))
        np.testing.assert_array_equal(out.to_numpy().view(np.int64), bits)


@pytest.fixture
def generator() -> np.random.Generator:
    return np.random.default_rng(5)


@pytest.fixture
def table(generator: np.random.Generator) -> pa.Table:
    rows = 5000
    return pa.table(
        {
            "time": pa.array(np.arange(rows) // 7 * 1000, pa.timestamp("us", "UTC")),
            "key": generator.integers(0, 50, rows),
            "price": np.round(generator.uniform(0, 100, rows), 2),
            "name": [f"n{i % 9}" for i in range(rows)],
            "note": [None if i % 3 else f"note {i}" for i in range(rows)],
            "tags": [[i, None] for i in range(rows)],
        }
    )


def test_a_table_comes_back_by_columns_and_rows(table: pa.Table) -> None:
    sink = io.BytesIO()
    writer = BlockWriter(sink, chooser=Chooser(interval_s=1e9))
    sizes = [writer.write(table.slice(at, 2000)) for at in range(0, 5000, 2000)]
    reader = BlockReader(sink.getvalue())
    assert [block.size_bytes for block in reader] == sizes
    assert [block.rows for block in reader] == [2000, 2000, 1000]
    assert reader.read().equals(table)
    assert reader.read(["price", "key"]).equals(table.select(["price", "key"]))
    part = reader.blocks[1].read(["note"], 10, 1500)
    assert pa.Table.from_batches([part]).equals(table.select(["note"]).slice(2010, 1490))
    assert writer.chooser.columns["price"].decisions == 1
    assert reader.blocks[0].read([], 3, 8).num_rows == 5


def test_a_column_is_read_without_touching_the_others(table: pa.Table) -> None:
    data = bytearray(encode_table(table))
    block = TableBlock(bytes(data), file="f")
    other = block.column("name")
    at, size = block.places["key"]
    data[at + size // 2] ^= 1
    damaged = TableBlock(bytes(data), file="f")
    assert damaged.read(["name"]).column(0).equals(other.read())
    with pytest.raises(
        CorruptDataError, match=rf"checksum is wrong: file=f, column key, offset {at} offset=0"
    ):
        damaged.read(["key"])


def test_what_cannot_be_written_or_read_is_refused(table: pa.Table) -> None:
    twice = pa.Table.from_arrays([table["key"], table["key"]], ["a", "a"])
    with pytest.raises(InvalidUsageError, match="two columns of a table have the same name"):
        encode_table(twice)
    with pytest.raises(InvalidUsageError, match=r"no such columns: columns=\['x'\]"):
        encode_table(table, codecs={"x": "zstd"})
    writer = BlockWriter(io.BytesIO())
    with pytest.raises(InvalidUsageError, match="two columns of a table have the same name"):
        writer.write(twice)
    writer.write(table)
    with pytest.raises(InvalidUsageError, match="schema differs"):
        writer.write(table.select(["key"]))
    block = TableBlock(encode_table(table))
    with pytest.raises(InvalidUsageError, match="no such column: column=x known=time, key"):
        block.column("x")
    with pytest.raises(InvalidUsageError, match="no such rows: start=2 stop=9000 rows=5000"):
        block.column("key").read(2, 9000)
    with pytest.raises(InvalidUsageError, match="no block to read a schema from"):
        BlockReader(b"").read()


@pytest.mark.parametrize("change", ["a name", "a longer directory", "two of one name"])
def test_a_directory_that_contradicts_itself_is_refused(change: str) -> None:
    """The checksum is right, so that the content is checked."""
    whole = encode_table(pa.table({"aa": [1], "bb": [2]}))
    size = int.from_bytes(whole[8:12], "little")
    directory, columns = bytearray(whole[20 : 20 + size]), whole[20 + size :]
    if change == "a name":
        directory[3] = 0xFF
    elif change == "a longer directory":
        directory.append(0)
    else:
        directory = bytearray(bytes(directory).replace(b"bb", b"aa"))
    prefix = whole[:8] + len(directory).to_bytes(4, "little")
    checksum = xxhash.xxh3_64_intdigest(prefix + bytes(directory)).to_bytes(8, "little")
    broken = prefix + checksum + bytes(directory) + columns
    with pytest.raises(CorruptDataError, match=r"directory of a table's block is damaged|not UTF-8"):
        TableBlock(broken, file="f")


def test_a_newer_format_is_refused_and_names_both_versions(table: pa.Table) -> None:
    block = bytearray(encode(table["key"]))
    block[2] = 9
    with pytest.raises(CorruptDataError, match=r"newer format.*file=f format_version=9 newest_known=2"):
        decode(bytes(block), file="f")
    whole = bytearray(encode_table(table))
    whole[4] = 7
    with pytest.raises(CorruptDataError, match=r"newer format.*file=f format_version=7 newest_known=1"):
        TableBlock(bytes(whole), file="f")


def test_a_block_that_states_too_much_takes_no_memory() -> None:
    block = encode(pa.array(np.zeros(1 << 20, np.int64)))
    assert len(block) < 30
    with pytest.raises(
        CorruptDataError, match=r"claims more bytes than may be decoded at once.*stated_bytes=8388608"
    ):
        decode(block, max_bytes=1 << 20)


def test_every_cut_and_every_flipped_byte_of_a_table_is_found(table: pa.Table) -> None:
    small = table.slice(0, 40)
    whole = encode_table(small)
    for size in range(len(whole)):
        with pytest.raises(CorruptDataError):
            TableBlock(whole[:size], file="f").read()
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= 0x55
        with pytest.raises(CorruptDataError, match="file=f"):
            TableBlock(bytes(changed), file="f").read()


def _sound(block: bytearray) -> bytes:
    """Return a block with the checksum that its bytes should have."""
    digest = xxhash.xxh3_64(bytes(block[:4]) + bytes(block[8:])).intdigest() & 0xFFFFFFFF
    block[4:8] = digest.to_bytes(4, "little")
    return bytes(block)


def _blocks_to_break(table: pa.Table) -> list[bytes]:
    small = table.slice(0, 1300)
    blocks = [encode(small[name], chooser=Chooser(goal)) for name in small.schema.names for goal in GOALS]
    codecs = ["simple8b", "variable_byte", "ns_words", "xor>lz4", "delta>run_length", "multiple>ns"]
    blocks += [
        encode(small["key"], codec) for codec in [*codecs, "base_delta>patched_ns", "pcodec", "snappy"]
    ]
    texts = pa.array([f"/item/{n}/view" for n in range(1300)])
    blocks += [encode(texts, codec) for codec in ("fsst", "dictionary>fsst>lz4")]
    blocks += [encode(small["price"], codec) for codec in ("quantized_0.5>ns", "decimal>delta_of_delta>ns")]
    return blocks


def test_a_block_changed_behind_its_checksum_is_refused_or_gives_some_column(table: pa.Table) -> None:
    """Decoding any block ends with an error or values, and takes at most the memory that the block states."""
    draw = random.Random(11)
    blocks = _blocks_to_break(table)
    refused = 0
    for number in range(MUTATIONS):
        block = bytearray(blocks[number % len(blocks)])
        for _ in range(draw.randrange(1, 4)):
            at, kind = draw.randrange(8, len(block)), draw.randrange(4)
            if kind == 0:
                block[at] ^= 1 << draw.randrange(8)
            elif kind == 1:
                block[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF])
            elif kind == 2:
                del block[at : at + draw.randrange(1, 9)]
            else:
                block[at:at] = draw.randbytes(draw.randrange(1, 9))
            if len(block) < 10:
                break
        try:
            array = decode(_sound(block), file="f", max_bytes=1 << 20)
        except CorruptDataError:
            refused += 1
        else:
            assert array.nbytes <= 1 << 22
    assert refused > MUTATIONS // 4


@pytest.mark.parametrize("name", ["zstd", "base_delta>ns", "ns_words", "variable_byte"])
def test_a_payload_of_another_size_than_its_parts_is_refused(name: str) -> None:
    node = CODECS[name].encode(np.arange(3000, dtype=np.int64))
    longer = np.append(node.payload, np.zeros(8, np.uint8))
    for payload in (longer, node.payload[:-8]):
        broken = replace(node, payload=np.frombuffer(payload.tobytes(), np.uint8))
        with pytest.raises(CorruptDataError, match="another size than its parts"):
            decode_stream(broken)


def test_texts_written_out_take_no_more_than_was_allowed() -> None:
    texts = pa.array(["x" * 1000] * 10_000)
    block = encode(texts, "dictionary>base_delta>ns")
    assert len(block) < 2000
    assert decode(block, max_bytes=10_000_000).equals(texts)
    with pytest.raises(CorruptDataError, match="too many bytes"):
        decode(block, max_bytes=9_999_999)


def test_an_exception_lies_among_the_values_of_the_last_sub_block() -> None:
    values = np.zeros(1024 + 100, np.int64)
    values[[500, 1024 + 50]] = 1 << 40
    node = CODECS["base_delta>patched_ns"].encode(values)
    np.testing.assert_array_equal(decode_stream(node), values)
    positions = decode_stream(node.children[-2])
    assert positions.tolist() == [500, 50]
    for wrong in ([500, 100], [1024, 50], [-1, 50]):
        children = [*node.children[:-2], CODECS["plain"].encode(np.array(wrong, np.int16)), node.children[-1]]
        with pytest.raises(CorruptDataError, match="outside its sub-block"):
            decode_stream(replace(node, children=children))


def test_a_frame_that_states_more_than_its_values_takes_no_memory() -> None:
    node = CODECS["zstd"].encode(np.arange(1000, dtype=np.int64))
    frame = bytearray(node.payload.tobytes())
    size = frame.index((8000 - 256).to_bytes(2, "little"))
    frame[size : size + 2] = b"\xff\xff"
    with pytest.raises(CorruptDataError, match="a frame has another size than its values"):
        decode_stream(replace(node, payload=np.frombuffer(bytes(frame), np.uint8)))
    cut = replace(node, payload=node.payload[:3], children=[CODECS["plain"].encode(np.array([3], np.int32))])
    with pytest.raises(CorruptDataError, match="a frame cannot be decompressed"):
        decode_stream(cut)


def test_frames_are_decoded_by_several_threads_at_once() -> None:
    values = np.random.default_rng(1).integers(0, 99, 200_000)
    node = CODECS["zstd"].encode(values)
    with ThreadPoolExecutor(4) as pool:
        for out in pool.map(lambda _: decode_stream(node), range(16)):
            assert (out == values).all()
