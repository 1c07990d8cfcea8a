"""Records of text equal their source rows, wherever the file is cut into chunks."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from penstock.jobs.ingest.byte_source import ByteSource, PipeBytes
from penstock.jobs.ingest.records import CsvDialect, Dialect, JsonDialect
from penstock.jobs.ingest.sources import BadRecord, ReadSizes, Rows, TextSource

SCHEMA = pa.schema({"n": pa.int64(), "text": pa.string(), "x": pa.float64()})

Row = tuple[int | None, str | None, float | None]

_TEXT = st.text(st.sampled_from('ab ,;"\n\r\\[]{}:é\u2028'), max_size=6)
ROWS = st.lists(
    st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | _TEXT,
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
    ),
    max_size=12,
)


class Memory(ByteSource):
    """A file that grows: at first only some bytes are there."""

    def __init__(self, content: bytes, lengths: Sequence[int] = ()) -> None:
        super().__init__("memory")
        self._content = content
        self._lengths = [*sorted(min(length, len(content)) for length in lengths), len(content)]

    def grow(self) -> bool:
        """Add bytes to the file; return whether any were left to add."""
        del self._lengths[:1]
        return bool(self._lengths)

    def read_at(self, at: int, size: int) -> tuple[bytes, bool]:
        length = self._lengths[0] if self._lengths else len(self._content)
        content = self._content[at : min(at + size, length)]
        return content, len(self._lengths) <= 1 and at + len(content) == length

    def lines_before(self, at: int) -> int:
        return self._content.count(b"\n", 0, at)

    def close(self) -> None:
        pass


def csv_of(rows: Sequence[Row], draw: Callable[[st.SearchStrategy[Any]], Any], *, header: bool) -> bytes:
    end = draw(st.sampled_from(["\n", "\r\n"]))

    def field(value: object) -> str:
        if value is None:
            return ""
        text = repr(value) if isinstance(value, float) else str(value)
        must = isinstance(value, str) and (not text or text[0] == '"' or any(one in text for one in ',"\n\r'))
        quoted = must or draw(st.booleans())
        return '"' + text.replace('"', '""') + '"' if quoted else text

    lines = [",".join(field(value) for value in row) for row in rows]
    if header:
        lines.insert(0, "n,text,x")
    last = end if draw(st.booleans()) else ""
    return (end.join(lines) + last).encode()


def json_of(rows: Sequence[Row], draw: Callable[[st.SearchStrategy[Any]], Any], *, array: bool) -> bytes:
    ascii_only = draw(st.booleans())
    sparse = draw(st.booleans())

    def record(row: Row) -> str:
        value: dict[str, object] = {
            name: one for name, one in zip(SCHEMA.names, row, strict=True) if one is not None or not sparse
        }
        value["other"] = [[1, {"a": "]"}]]
        return json.dumps(
            value, ensure_ascii=ascii_only, indent=draw(st.sampled_from([None, 1])) if array else None
        )

    records = [record(row) for row in rows]
    if array:
        return (draw(st.sampled_from(["[", " [\n"])) + ",\n".join(records) + " ]\n").encode()
    return ("\n".join(records) + ("\n" if draw(st.booleans()) else "")).encode()


def read(source: TextSource, grow: Callable[[], bool] = bool) -> Iterator[Row]:
    while True:
        for found in source.read():
            assert isinstance(found, Rows), found
            yield from (tuple(row.values()) for row in found.table.to_pylist())
        if source.done:
            return
        assert grow(), "not all was read, and there is no more"


@st.composite
def files(draw: Callable[[st.SearchStrategy[Any]], Any]) -> tuple[list[Row], bytes, Dialect]:
    rows = draw(ROWS)
    kind = draw(st.sampled_from(["csv", "ndjson", "json"]))
    if kind == "csv":
        header = draw(st.booleans())
        # A line without a field is passed over.
        names = () if header else tuple(SCHEMA.names)
        return rows, csv_of(rows, draw, header=header), CsvDialect(header, multiline=True, names=names)
    return rows, json_of(rows, draw, array=kind == "json"), JsonDialect(arrays=kind == "json")


@given(files(), st.integers(1, 60), st.lists(st.integers(0, 400), max_size=5))
def test_wherever_a_file_is_cut_its_rows_are_the_same(
    file: tuple[list[Row], bytes, Dialect], size: int, lengths: list[int]
) -> None:
    rows, content, dialect = file
    growing = Memory(content, lengths)
    source = TextSource(growing, dialect, "memory", ReadSizes(chunk_bytes=size))
    source.begin(SCHEMA, {})
    assert list(read(source, growing.grow)) == rows


@given(files(), st.integers(1, 60), st.integers(0, 10))
def test_after_a_restart_at_any_clock_the_rest_follows(
    file: tuple[list[Row], bytes, Dialect], size: int, stop: int
) -> None:
    rows, content, dialect = file
    sizes = ReadSizes(chunk_bytes=size)
    before = TextSource(Memory(content), dialect, "memory", sizes)
    before.begin(SCHEMA, {})
    clock: dict[str, int] = {}
    seen = 0
    for number, found in enumerate(before.read()):
        if number == stop:
            break
        assert isinstance(found, Rows)
        clock, seen = dict(found.clock), seen + found.table.num_rows
    after = TextSource(Memory(content), dialect, "memory", sizes)
    after.begin(SCHEMA, clock)
    assert list(read(after)) == rows[seen:]


@given(files(), st.lists(st.integers(1, 40), min_size=1, max_size=5))
def test_however_a_pipe_gives_its_bytes_the_rows_are_the_same(
    file: tuple[list[Row], bytes, Dialect], sizes: list[int]
) -> None:
    rows, content, dialect = file
    reading, writing = os.pipe()
    with os.fdopen(reading), os.fdopen(writing, "wb", 0) as pipe:
        source = TextSource(PipeBytes("pipe", reading, wait_s=0.0, gather_s=0.0), dialect)
        source.begin(SCHEMA, {})
        left = [content[: sizes[0]], *_pieces(content[sizes[0] :], sizes)]

        def grow() -> bool:
            if left:
                pipe.write(left.pop(0))
            elif pipe.closed:
                return False
            else:
                pipe.close()
            return True

        assert list(read(source, grow)) == rows


def _pieces(content: bytes, sizes: Sequence[int]) -> Iterator[bytes]:
    number = 0
    while content:
        size = sizes[number % len(sizes)]
        yield content[:size]
        content, number = content[size:], number + 1


@given(
    st.lists(st.booleans(), min_size=1, max_size=40),
    st.integers(1, 200),
    st.sampled_from(["1,a,b,c", "x,a,1", "1", '{"n": "x"}', "[1]", '{"n": 1,}', "{", '{"n": 1.5}']),
    st.sampled_from(["csv", "ndjson"]),
)
def test_each_bad_record_is_found_and_no_other(good: list[bool], size: int, bad: str, kind: str) -> None:
    dialect: Dialect = CsvDialect(False, names=tuple(SCHEMA.names)) if kind == "csv" else JsonDialect()
    fine = "{0},t,1.5" if kind == "csv" else '{{"n": {0}, "text": "t", "x": 1.5}}'
    lines = [fine.format(number) if one else bad for number, one in enumerate(good)]
    begins = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]
    source = TextSource(Memory("\n".join(lines).encode()), dialect, "memory", ReadSizes(chunk_bytes=size))
    source.begin(SCHEMA, {})
    rows: list[int] = []
    found: list[tuple[int, int]] = []
    for one in source.read():
        if isinstance(one, BadRecord):
            found.append((one.line, one.offset))
            assert not any(text in one.why for text in ("1,a", "1.5"))
        else:
            rows += one.table["n"].to_pylist()
    assert rows == [number for number, one in enumerate(good) if one]
    assert found == [(number + 1, begins[number]) for number, one in enumerate(good) if not one]
