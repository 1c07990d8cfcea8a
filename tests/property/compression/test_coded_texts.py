"""Blocks of dictionary-encoded texts equal blocks of the same texts in plain form."""

from __future__ import annotations

import tempfile
from itertools import chain, product
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from penstock.checkpointing.p_stream import PStream, PStreamWriter
from penstock.compression import Block, Chooser, decode, encode
from penstock.compression.arrow import encode_as_dictionary
from penstock.compression.kernels.text import distinct_texts
from penstock.compression.layouts import Layout
from penstock.errors import InvalidUsageError
from penstock.operators.scan.scanner import Scanner
from penstock.operators.scan.spec import Scan

KINDS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]
SCHEMA = pa.schema({"n": pa.int64(), "text": pa.string()})


def dictionary_of(texts: list[str | None], kind: pa.DataType, index: pa.DataType, spare: list[str]) -> Any:
    """Return texts as a dictionary array whose dictionary also has other texts."""
    distinct = pa.array([*dict.fromkeys(text for text in texts if text is not None), *spare], pa.string())
    numbers = [None if text is None else distinct.to_pylist().index(text) for text in texts]
    return pa.DictionaryArray.from_arrays(pa.array(numbers, index), distinct.cast(kind))


def all_of(stream: PStream) -> pa.Table:
    return pa.Table.from_batches(stream.read(stream.start, stream.end), stream.schema)


@given(
    st.lists(st.text("ab\u00e9", max_size=9) | st.none() | st.just("often"), max_size=80),
    st.sampled_from(KINDS),
    st.sampled_from([pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint64()]),
    st.lists(st.text("ab", max_size=20), max_size=3),
    st.sampled_from(["auto", "ns", "dictionary>ns", "dictionary>run_length"]),
    st.integers(0, 3),
)
def test_a_dictionary_is_coded_as_its_texts_are(
    texts: list[str | None], kind: pa.DataType, index: pa.DataType, spare: list[str], codec: str, cut: int
) -> None:
    array = dictionary_of(texts, kind, index, spare)[cut:]
    chooser = Chooser()
    for _ in range(2):  # as it was decided, and as it was decided before
        block = decode(encode(array, codec, chooser=chooser, kind=kind))
        assert block.equals(pa.array(texts, pa.string()).cast(kind)[cut:])
    assert decode(encode(array)).equals(array), "of the type that it has, where no other is told"


def test_texts_that_are_numbered_keep_their_numbers() -> None:
    array = dictionary_of(["b", "a", "b", None] * 5, pa.string(), pa.int32(), ["never"])
    block = Block(encode(array, "dictionary>ns", kind=pa.string()))
    assert block.layout is Layout.TEXT_DICTIONARY
    assert block.read(keep_dictionary=True).dictionary.to_pylist() == ["b", "a", ""], "numbered anew"
    block = Block(encode(array.drop_null(), "dictionary>ns", kind=pa.string()))
    assert block.read(keep_dictionary=True).dictionary.to_pylist() == ["b", "a"]
    texts = pa.DictionaryArray.from_arrays([3, 1, 3, 3] * 5, ["never", "a", "nor this", "b"])
    block = Block(encode(texts, "dictionary>ns", kind=pa.string()))
    assert block.read(keep_dictionary=True).dictionary.to_pylist() == ["a", "b"], "the numbers' order is kept"
    few = pa.DictionaryArray.from_arrays([1, 0, 1, 1], ["a", "b"])
    block = Block(encode(few, "dictionary>ns", kind=pa.string()))
    assert block.read(keep_dictionary=True).dictionary.to_pylist() == ["b", "a"], "too many for so few rows"
    hidden = pa.DictionaryArray.from_arrays([0, 1] * 10, pa.array(["a", None]))
    assert decode(encode(hidden, "dictionary>ns", kind=pa.string())).to_pylist() == ["a", None] * 10
    twice = pa.DictionaryArray.from_arrays([0, 1, 2, 2] * 5, ["a", "b", "a"])
    block = Block(encode(twice, "dictionary>ns", kind=pa.string()))
    assert block.read(keep_dictionary=True).dictionary.to_pylist() == ["a", "b"], "each text once"


def test_texts_that_none_has_are_neither_stored_nor_change_how_others_are_coded() -> None:
    names = [f"category {n:05}" for n in range(200)]
    plain, dictionaries = Chooser(), Chooser()
    for part in range(5):
        texts = [names[part]] * 900 + [names[part + 1]] * 100
        array = dictionary_of([*texts], pa.string(), pa.int32(), names)
        one = encode(pa.array(texts), chooser=plain, column="c")
        other = encode(array, chooser=dictionaries, column="c", kind=pa.string())
        assert len(other) <= len(one) + 8
    assert dictionaries.columns["c"].deoptimised == plain.columns["c"].deoptimised == 0
    assert dictionaries.columns["c"].decisions == 1


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_more_text_than_a_block_holds_is_refused_before_it_is_written(
    tmp_path: Any, kind: pa.DataType
) -> None:
    numbers = pa.array(np.arange(1 << 16) % 2, pa.int8())
    long = pa.DictionaryArray.from_arrays(numbers, pa.array(["x" * 33_000, "y" * 33_000], kind))
    with pytest.raises(InvalidUsageError, match="more text than one block holds"):
        encode(long, "dictionary>ns", kind=kind)
    with (
        pytest.raises(InvalidUsageError, match="more text than one block holds"),
        PStreamWriter(tmp_path, pa.schema({"text": kind}), codecs={"text": "dictionary>ns"}) as writer,
    ):
        writer.append(pa.table({"text": long}))


def test_more_plain_text_than_a_block_holds_is_refused() -> None:
    # The system gives no memory for zeros that nobody looks at.
    bounds, content = (
        pa.array([0, 1 << 31], pa.int64()).buffers()[1],
        pa.py_buffer(np.zeros(1 << 31, np.uint8)),
    )
    long = pa.Array.from_buffers(pa.large_binary(), 1, [None, bounds, content])
    with pytest.raises(InvalidUsageError, match="more text than one block holds"):
        encode(long, "ns")


def test_values_of_another_type_than_their_block_are_refused() -> None:
    others: list[tuple[Any, pa.DataType]] = [
        (pa.array([1.0]), pa.int64()),
        (pa.array([1], pa.int32()), pa.int64()),
        (pa.array([b"\xff"]), pa.string()),
        (pa.array(["a"]).dictionary_encode(), pa.large_string()),
        (pa.array([1]).dictionary_encode(), pa.int64()),
    ]
    for array, kind in others:
        with pytest.raises(InvalidUsageError, match="another type"):
            encode(array, "ns", kind=kind)


def test_a_number_without_a_text_is_refused() -> None:
    for number, codec in product((1, -1), ("dictionary>ns", "ns", "auto")):
        numbers = pa.array([0, 0, 0, 0, number, 0, 0, 0])
        wrong = pa.DictionaryArray.from_arrays(numbers, ["a"], safe=False)
        with pytest.raises(InvalidUsageError, match="an index of a dictionary array has no value"):
            encode(wrong, codec, kind=pa.string())
    broken = pa.DictionaryArray.from_arrays([0] * 4, pa.array([b"\xff"]).view(pa.string()))
    with pytest.raises(InvalidUsageError, match="UTF-8"):
        encode(broken, "dictionary>ns", kind=pa.string())


@given(
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(["", "a", "bc", "a longer text", "\u00e9"]) | st.none(), max_size=30),
            st.sampled_from([None, pa.int8(), pa.int32()]),
        ),
        max_size=6,
    ),
    st.integers(1, 50),
    st.booleans(),
)
def test_a_writer_takes_texts_as_dictionaries(
    parts: list[tuple[list[str | None], pa.DataType | None]], unit_rows: int, at_once: bool
) -> None:
    with tempfile.TemporaryDirectory() as place:
        interval = "10s" if at_once else "1us"
        with PStreamWriter(place, SCHEMA, unit_rows=unit_rows, interval=interval, threads=1) as writer:
            for texts, index in parts:
                column = (
                    pa.array(texts, pa.string())
                    if index is None
                    else dictionary_of(texts, pa.string(), index, [])
                )
                writer.append(pa.table({"text": column, "n": pa.array(range(len(texts)), pa.int64())}))
        read = all_of(PStream(place))
        assert read.schema == SCHEMA
        assert read["text"].to_pylist() == [text for texts, _ in parts for text in texts]
        assert read["n"].to_pylist() == [n for texts, _ in parts for n in range(len(texts))]


def test_chunks_may_have_dictionaries_that_cannot_become_one(tmp_path: Any) -> None:
    texts = [[f"{part} {n}" for n in range(100)] * 5 for part in range(3)]
    column = pa.chunked_array([dictionary_of([*some], pa.string(), pa.int8(), []) for some in texts])
    with PStreamWriter(tmp_path, SCHEMA) as writer:
        writer.append(pa.table({"text": column, "n": pa.array(range(1500), pa.int64())}))
    assert all_of(PStream(tmp_path))["text"].to_pylist() == [*chain(*texts)]
    assert decode(encode(column, "dictionary>ns", kind=pa.string())).to_pylist() == [*chain(*texts)]


def test_a_writer_refuses_other_dictionaries_and_nulls_where_none_may_be(tmp_path: Any) -> None:
    schema = pa.schema([pa.field("text", pa.string(), nullable=False)])
    with PStreamWriter(tmp_path, schema) as writer:
        writer.append(pa.table({"text": dictionary_of(["a"], pa.string(), pa.int8(), [])}))
        wrong = pa.DictionaryArray.from_arrays(pa.array([7], pa.int8()), ["a"], safe=False)
        with pytest.raises(InvalidUsageError, match="an index of a dictionary array has no value"):
            writer.append(pa.table({"text": wrong}))
        with pytest.raises(InvalidUsageError, match="the columns differ from the columns"):
            writer.append(pa.table({"text": dictionary_of(["a"], pa.binary(), pa.int8(), [])}))
        hidden = pa.DictionaryArray.from_arrays([0, 1], pa.array(["a", None]))
        for nulls in (dictionary_of(["a", None], pa.string(), pa.int8(), []), hidden):
            with pytest.raises(InvalidUsageError, match="not nullable has nulls"):
                writer.append(pa.table({"text": nulls}))
    assert all_of(PStream(tmp_path))["text"].to_pylist() == ["a"]
    other = pa.schema([pa.field("text", pa.dictionary(pa.int8(), pa.string()), nullable=False)])
    with pytest.raises(InvalidUsageError, match="the columns differ from the columns"):
        PStream(tmp_path, other)


@given(
    st.lists(st.text("ab", max_size=20) | st.sampled_from(["one", "two of them"]), max_size=60),
    st.data(),
    st.integers(0, 3),
)
def test_texts_in_some_rows_are_numbered_as_a_dictionary_of_them(
    texts: list[str], data: st.DataObject, cut: int
) -> None:
    array = pa.array([*["before"] * cut, *texts], pa.string())[cut:]
    assume(len(array))
    rows = np.flatnonzero(data.draw(st.lists(st.booleans(), min_size=len(array), max_size=len(array))))
    assume(rows.size)
    wanted = [texts[row] for row in rows]
    distinct = list(dict.fromkeys(wanted))
    made = encode_as_dictionary(array, rows)
    if len(distinct) > max(1, len(wanted) // 4) or len(distinct) * 2 > len(wanted):
        assert made is None
    else:
        assert made is not None
        assert made.dictionary.to_pylist() == distinct
        assert made.to_pylist() == wanted
    bounds = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    content = np.frombuffer(array.buffers()[2] or b"", np.uint8)
    for most in (len(distinct), len(distinct) - 1):
        found = distinct_texts(bounds, content, rows, most)
        if most < max(len(distinct), 1):
            assert (found is None) == (len(distinct) > max(1, most))
            continue
        assert found is not None
        first, codes = found
        assert [texts[row] for row in first] == distinct
        assert [distinct[code] for code in codes] == wanted


@pytest.mark.parametrize("often", [True, False])
def test_what_is_pushed_before_a_p_stream_may_number_texts(often: bool) -> None:
    count = 20_000
    texts = pa.array([f"text number {n % (10 if often else count)}" for n in range(count)])
    rows = pa.table({"n": pa.array(range(count), pa.int64()), "text": texts, "left": texts})
    scan = Scan(
        columns=("n", "text", "left"),
        where="n % 3 = 0",
        select={"text": "text", "same": "left = 'text number 3'", "n": "n"},
    )
    scanner = Scanner(scan, rows.schema)
    made = scanner.apply(rows)
    assert pa.types.is_dictionary(made.schema.field("text").type) is often
    kept = [text.as_py() for n, text in enumerate(texts) if n % 3 == 0]
    assert made["text"].to_pylist() == kept
    assert made["same"].to_pylist() == [text == "text number 3" for text in kept]
    assert made["n"].to_pylist() == list(range(0, count, 3))
    assert made.cast(scanner.schema).schema == scanner.schema
