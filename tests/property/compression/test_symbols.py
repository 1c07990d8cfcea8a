"""Texts come back from codes of symbols, as the format says, and damage is found."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.compression.texts import columns
from penstock.compression import Block, decode, encode
from penstock.compression.abc import UnfitError
from penstock.compression.choice.goals import GOALS
from penstock.compression.choice.search import rank
from penstock.compression.codecs import CODECS, decode_stream, encode_stream
from penstock.compression.codecs.symbols import Symbols
from penstock.compression.node import Node
from penstock.errors import CorruptDataError
from tests.golden.make_fixtures import SYMBOLS, texts_of_golden_symbols

FRAME = 1 << 16
BYTES = st.binary(max_size=300) | st.builds(
    lambda part, times: part * times, st.binary(min_size=1, max_size=12), st.integers(1, 20_000)
)


def naive_bytes(node: Node) -> bytes:
    """Return the bytes of a node as docs/reference/format.md says."""
    count, *rest = node.parameters
    sizes, text = rest[:count], bytes(rest[count:])
    symbols = [text[sum(sizes[:code]) :][:size] for code, size in enumerate(sizes)]
    codes = decode_stream(node.children[0]).view(np.uint8).tolist()
    out, at = b"", 0
    for size in decode_stream(node.children[1]).tolist():
        frame, end = b"", at + size
        while at < end:
            if codes[at] == 255:
                frame, at = frame + bytes(codes[at + 1 : at + 2]), at + 2
            else:
                frame, at = frame + symbols[codes[at]], at + 1
        assert len(frame) == min(FRAME, node.count - len(out))
        out += frame
    return out


def coded(content: bytes) -> Node:
    return encode_stream(np.frombuffer(content, np.int8), ("fsst", "plain"))


@given(BYTES, st.data())
def test_bytes_come_back_from_their_codes_whole_and_in_part(content: bytes, data: Any) -> None:
    node = coded(content)
    assert naive_bytes(node) == content
    assert decode_stream(node).tobytes() == content
    start = data.draw(st.integers(0, len(content)))
    stop = data.draw(st.integers(start, len(content)))
    assert decode_stream(node, None, start, stop).tobytes() == content[start:stop]


def test_bytes_that_no_sample_has_are_escaped() -> None:
    content = bytes(200_000) + b"\xff\xfe" * 3 + bytes(range(256))
    assert naive_bytes(coded(content)) == content
    assert decode_stream(coded(content)).tobytes() == content


@pytest.mark.parametrize("name", list(columns(1)))
def test_what_services_write_takes_a_third_or_less(name: str) -> None:
    array = columns(20_000)[name]
    content = np.frombuffer(array.buffers()[2], np.int8)
    assert 3 * encode_stream(content, ("fsst", "plain")).size_bytes <= content.size
    for cascade in ("fsst", "fsst>lz4", "fsst>base_delta>ns", "dictionary>fsst"):
        block = Block(encode(array, cascade))
        assert block.read().equals(array)
        assert block.read(7_000, 9_000).equals(array.slice(7_000, 2_000))


@pytest.mark.parametrize("name", ["path", "paths", "email", "json"])
def test_symbols_cost_the_least_of_what_codes_the_bytes_of_texts(name: str) -> None:
    content = np.frombuffer(columns(5000)[name].buffers()[2], np.int8)
    for goal in ("fast", "balanced"):
        assert rank(content, GOALS[goal], text=True)[0].cascade[0] == "fsst"


def test_numbers_have_no_symbols() -> None:
    with pytest.raises(UnfitError):
        CODECS["fsst"].encode(np.arange(9))
    assert decode(encode(pa.array(["a", "b"]), "fsst")).to_pylist() == ["a", "b"]


def changed(node: Node, **parts: Any) -> Node:
    fields = {name: getattr(node, name) for name in ("codec", "width", "count", "parameters", "children")}
    fields.update(parts)
    return Node(**fields)


def test_a_table_that_contradicts_itself_is_refused() -> None:
    node = coded(b"abcabcabd" * 100)
    table, (codes, counts) = node.parameters, node.children
    plain = CODECS["plain"]
    first = decode_stream(codes).copy()
    first[0] = -2
    for other in (
        changed(node, parameters=b""),
        changed(node, parameters=table[:1]),
        changed(node, parameters=table[:-1]),
        changed(node, parameters=table + b"x"),
        changed(node, parameters=bytes([table[0], 0]) + table[2:]),
        changed(node, parameters=bytes([table[0], 9]) + table[2:]),
        changed(node, children=(codes,)),
        changed(node, children=(plain.encode(first), counts)),
        changed(node, children=(plain.encode(first[1:]), counts)),
        changed(node, children=(plain.encode(first.astype(np.int16)), counts)),
        changed(node, children=(codes, plain.encode(np.array([codes.count - 1], np.int32)))),
        changed(node, children=(codes, plain.encode(np.array([-1], np.int32)))),
        changed(node, count=node.count + 1),
        changed(node, count=node.count - 1),
        changed(node, width=3),
        changed(
            node,
            children=(
                plain.encode(np.append(first[1:], np.int8(-1))),
                plain.encode(np.array([first.size], np.int32)),
            ),
        ),
    ):
        with pytest.raises(CorruptDataError):
            Symbols().decode(other, 0, other.count)


def test_codes_that_are_changed_are_refused_or_give_as_many_bytes() -> None:
    """Whatever is in the codes, no byte outside of the texts is read or written."""
    draw = random.Random(5)
    content = np.frombuffer(columns(3000)["log"].buffers()[2], np.int8)[: FRAME + 5000]
    node = encode_stream(content, ("fsst", "plain"))
    codes = decode_stream(node.children[0])
    refused = 0
    for _ in range(2000):
        some = codes.copy()
        for _ in range(draw.randrange(1, 4)):
            some[draw.randrange(some.size)] = draw.choice([-1, -2, 0, draw.randint(-128, 127)])
        other = changed(node, children=(CODECS["plain"].encode(some), node.children[1]))
        try:
            assert decode_stream(other).size == content.size
        except CorruptDataError:
            refused += 1
    assert refused > 1000


def test_the_golden_block_of_symbols_is_read() -> None:
    content = Path(SYMBOLS).read_bytes()
    assert content[2] == 1, "the format version"
    assert decode(content).equals(texts_of_golden_symbols())
