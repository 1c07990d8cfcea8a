"""Forged files with correct checksums: Penstock refuses them with its own errors, or reads some values."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from penstock.checkpointing import PUnit, decode
from penstock.checkpointing.files import LocalFiles
from penstock.checkpointing.p_stream import PStream, PStreamReader, PStreamWriter
from penstock.checkpointing.p_stream.cleanup import CleanupRule
from penstock.checkpointing.p_stream.survey import survey_p_stream
from penstock.compression import Block, Chooser, TableBlock, encode_table
from penstock.compression import encode as encode_block
from penstock.compression.codecs.registry import CODECS
from penstock.errors import CorruptDataError, InvalidUsageError, PenstockError, UnavailableError
from penstock.operators.joins.join import UpdateJoin
from penstock.operators.queues.abc import KeyedQueue
from penstock.operators.queues.adaptive_queue import AdaptiveQueue, Semantics
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.state_store.bucket_store import BucketStore, Handle
from penstock.state_store.survey import survey_bucket
from penstock.windows.panes import new_panes
from penstock.windows.shared_watermark import SeveralPanes
from penstock.windows.update.results import WindowMode
from penstock.windows.update.windows import UpdateWindows, WindowArrivals
from tests.checkpoints.states import RowState
from tests.fuzz.case import Case
from tests.fuzz.subjects import codecs
from tests.oracles.naive import Update
from tests.oracles.naive_join import Tuple
from tests.oracles.naive_panes import Row
from tests.property.operators.joins import test_update_join
from tests.property.windows import test_panes, test_row_windows
from tests.samples.hostile import GONE, STRANGE, changed, places, rewrite, unit_in
from tests.samples.streams import ARRIVAL_STREAM, STREAM, WEIGHTED_STREAM, enqueue, through_bytes

_BLOCKS = 30
_UNITS = 30
_LOGS = 6
_MAX_BYTES = 1 << 20


# --------------------------------------------------------------------------------------------- blocks


def _mutated(draw: random.Random, data: bytes, begin: int) -> bytearray:
    """Return bytes that differ from `begin` on."""
    block = bytearray(data)
    for _ in range(draw.randint(1, 3)):
        if len(block) <= begin + 1:
            break
        at = draw.randrange(begin, len(block))
        match draw.randrange(5):
            case 0:
                block[at] ^= 1 << draw.randrange(8)
            case 1:
                block[at] = draw.choice([0, 1, 0x7F, 0x80, 0xFF])
            case 2:
                del block[at : at + draw.randrange(1, 9)]
            case 3:
                block[at:at] = draw.randbytes(draw.randrange(1, 9))
            case _:
                block[at : at + 9] = b"\xff" * draw.randrange(1, 9) + b"\x01"
    return block


def _check_blocks(draw: random.Random) -> None:
    kind = codecs._kind(draw)
    array = codecs.column(draw, kind, draw.choice([3, 1100, 2500]))
    cascade = draw.choice(["auto", "auto", *(name for name in CODECS if not name.startswith("decimal"))])
    data = encode_block(array, cascade, chooser=Chooser(draw.choice(codecs._GOALS)))
    for _ in range(_BLOCKS):
        block = _mutated(draw, data, 8)
        digest = xxhash.xxh3_64_intdigest(bytes(block[:4]) + bytes(block[8:])) & 0xFFFFFFFF
        block[4:8] = digest.to_bytes(4, "little")
        try:
            whole = Block(bytes(block), file="f", max_bytes=_MAX_BYTES)
            out = whole.read()
            whole.describe()
            whole.read(0, whole.rows // 2, keep_dictionary=True)
        except CorruptDataError as error:
            assert "file" in error.context, error
        else:
            assert out.nbytes <= 4 * _MAX_BYTES


def _check_tables(draw: random.Random) -> None:
    table = pa.table({"n": range(50), "text": [f"text {n % 7}" for n in range(50)]})
    data = encode_table(table)
    size = 20 + int.from_bytes(data[8:12], "little")
    for _ in range(_BLOCKS):
        head = _mutated(draw, data[:size], 20)
        head[8:12] = (len(head) - 20).to_bytes(4, "little")
        digest = xxhash.xxh3_64_intdigest(bytes(head[:12]) + bytes(head[20:]))
        head[12:20] = digest.to_bytes(8, "little")
        schema = draw.choice([None, table.schema, pa.schema({"n": pa.int32()})])
        try:
            block = TableBlock(bytes(head) + data[size:], file="f", max_bytes=_MAX_BYTES, schema=schema)
            block.read([])
            block.read()
        except CorruptDataError as error:
            assert "file" in error.context, error


# --------------------------------------------------------------------------------------------- states


@dataclass
class _Stored:
    """The stored units of an operator, a factory of empty states, and a function that uses a state."""

    units: list[PUnit]
    new: Callable[[], Any]
    use: Callable[[Any], object]


def _updates(draw: random.Random, count: int) -> list[Update]:
    return [
        Update(draw.randint(0, 20), draw.randint(0, 30), draw.randint(0, 99), draw.randint(0, 50))
        for _ in range(count)
    ]


def _queue(draw: random.Random) -> _Stored:
    stream, policy = draw.choice([STREAM, ARRIVAL_STREAM, WEIGHTED_STREAM]), draw.choice(list(Policy))
    semantics = draw.choice(list(Semantics))

    def new() -> KeyedQueue:
        if semantics is Semantics.UPDATE:
            return UpdateQueue(stream, policy, cost_us=1.0)
        return AdaptiveQueue(stream, policy, semantics, cost_us=1.0)

    def use(queue: KeyedQueue) -> None:
        enqueue(queue, _updates(draw, 5), 5000)
        queue.deliver(queue.dequeue(10, 6000), 6001)
        queue.account_staleness(7000)

    queue = new()
    units = []
    for now in (1000, 2000):
        enqueue(queue, _updates(draw, 20), now)
        queue.deliver(queue.dequeue(5, now + 10), now + 20)
        queue.account_staleness(now + 30)
        units.append(queue.delta())
    return _Stored(draw.choice([units, list(queue.snapshot())]), new, use)


def _rows(draw: random.Random, count: int) -> list[Row]:
    return [
        Row(draw.choice(["a", "b", None]), draw.randint(0, 40), draw.choice([None, 1.0, 2.5]))
        for _ in range(count)
    ]


def _panes(draw: random.Random) -> _Stored:
    count_windows = draw.random() < 0.4
    size = draw.randint(1, 9)
    slide = draw.randint(1, size)
    layout: Any = (test_row_windows if count_windows else test_panes).layout_of(size, slide)

    def arriving() -> list[pa.RecordBatch]:
        rows = _rows(draw, 20)
        if count_windows:
            made = [test_row_windows.Row(row.group, row.pane, row.value or 0.0) for row in rows]
            return test_row_windows.batch_of(made)
        return [test_panes.entries_of(rows, layout)]

    mode = draw.choice(["append", "lazy", "eager", "several"])
    if mode == "append":
        new: Callable[[], Any] = lambda: new_panes(layout)  # noqa: E731
        run: Callable[[Any, int], object] = lambda state, at: state.run(arriving(), at)  # noqa: E731
    elif mode == "several":
        layout = test_panes.layout_of(size, slide)
        count_windows = False
        new = lambda: SeveralPanes([layout, layout])  # noqa: E731
        run = lambda state, at: state.run([arriving(), arriving()], [at, at])  # noqa: E731
    else:
        new = lambda: UpdateWindows(layout, WindowMode(mode), Policy.LINECUTTING)  # noqa: E731

        def run(state: UpdateWindows, at: int) -> None:
            state.enqueue(WindowArrivals(arriving(), at), 1000 * at)
            state.deliver(state.dequeue(2, 1000 * at + 1), 1000 * at + 2)
            state.account_staleness(1000 * at + 3)

    state = new()
    units = []
    for at in (10, 25):
        run(state, at)
        units.append(state.delta())
    return _Stored(draw.choice([units, list(state.snapshot())]), new, lambda state: run(state, 50))


def _join(draw: random.Random) -> _Stored:
    stream = test_update_join.joined_stream(draw.randint(0, 9), 5)

    def sides() -> list[Any]:
        made = [
            [Tuple(draw.randint(0, 3), draw.randint(0, 30), draw.randint(0, 9)) for _ in range(8)]
            for _ in range(2)
        ]
        return [test_update_join.left_of(made[0]), test_update_join.right_of(made[1])]

    join = UpdateJoin(stream)
    units = []
    for _ in range(2):
        join.join(*sides())
        units.append(join.delta())
    units = draw.choice([units, list(join.snapshot())])
    return _Stored(units, lambda: UpdateJoin(stream), lambda state: state.join(*sides()))


def _hostile_column(draw: random.Random, column: pa.Array[Any]) -> pa.Array[Any]:
    """Return a column of the same length with other values, nulls or another type."""
    rows = len(column)
    match draw.randrange(4):
        case 0:
            return pa.array([None if draw.random() < 0.3 else one for one in column.to_pylist()], column.type)
        case 1 if pa.types.is_int64(column.type) and not column.null_count:
            values = column.to_numpy().copy()
            for _ in range(draw.randint(1, 3)):
                values[draw.randrange(rows)] = draw.choice([
                    -1, 0, 1, 3, 1 << 40, (1 << 62), (1 << 63) - 1, -(1 << 63), -(1 << 62), int(values[-1]),
                ])  # fmt: skip
            return pa.array(values)
        case 2:
            return column.take(pa.array([draw.randrange(rows) for _ in range(rows)]))
        case _:
            kinds = [pa.int32(), pa.string(), pa.float64(), pa.list_(pa.int64())]
            return pa.nulls(rows, draw.choice(kinds))


def _hostile_blocks(draw: random.Random, blocks: dict[str, pa.RecordBatch]) -> dict[str, pa.RecordBatch]:
    name = draw.choice(sorted(blocks))
    block = blocks[name]
    columns, names = list(block.columns), list(block.schema.names)
    match draw.randrange(6):
        case 0:
            return {other: one for other, one in blocks.items() if other != name}
        case 1:
            return {**blocks, name: blocks[draw.choice(sorted(blocks))]}
        case 2:
            return {**blocks, name: block.slice(0, draw.randint(0, block.num_rows))}
        case 3:
            at = draw.randrange(len(columns))
            names[at] = draw.choice(["x", *names])
            if len(set(names)) < len(names):
                return blocks
        case _ if block.num_rows:
            at = draw.randrange(len(columns))
            columns[at] = _hostile_column(draw, columns[at])
    return {**blocks, name: pa.RecordBatch.from_arrays(columns, names)}


def _hostile_unit(draw: random.Random, unit: PUnit) -> PUnit:
    if draw.random() < 0.4:
        path = draw.choice(list(places(unit.meta)))
        return replace(unit, meta=changed(unit.meta, path, draw.choice([GONE, *STRANGE])))
    if draw.random() < 0.05:
        return replace(unit, kind=draw.choice(["delta", "snapshot", "x"]))
    return replace(unit, blocks=_hostile_blocks(draw, dict(unit.blocks)))


STATES: Sequence[Callable[[random.Random], _Stored]] = (_queue, _panes, _join)
"""The factory of the state of each kind of operator."""


def check_states(draw: random.Random, make: Callable[[random.Random], _Stored]) -> None:
    """Change units of a state behind their checksums, restore and use them."""
    stored = make(draw)
    for _ in range(_UNITS):
        units = list(stored.units)
        at = draw.randrange(len(units))
        units[at] = _hostile_unit(draw, units[at])
        if draw.random() < 0.1:
            units = draw.sample(units, len(units))
        state = stored.new()
        try:
            state.restore(map(through_bytes, units))
        except (CorruptDataError, InvalidUsageError):
            continue
        # A state that is not refused may make no sense, but does no harm.
        try:
            stored.use(state)
            list(state.snapshot())
        except PenstockError:
            pass


def _check_bucket(draw: random.Random, directory: Path) -> None:
    store, handle = BucketStore(LocalFiles(directory)), Handle()
    schema = pa.schema({"k": pa.int64(), "s": pa.string()})
    table = RowState(schema)
    for n in range(3):
        table.put(pa.record_batch([[n, n + 1], ["x", None]], schema=schema))
        handle = store.commit(table, handle)
    assert handle.pointer is not None
    files = sorted(directory.iterdir())
    contents = {file: file.read_bytes() for file in files}
    for _ in range(_LOGS):
        file = draw.choice(files)
        rewrite(file, _hostile_unit(draw, unit_in(file)))
        try:
            store.load(handle.pointer, RowState(schema))
        except CorruptDataError as error:
            assert str(error.context["file"]).startswith(str(directory)), error
        except (InvalidUsageError, UnavailableError):
            pass
        survey_bucket(store.files)
        file.write_bytes(contents[file])


# ---------------------------------------------------------------------------------------- p-streams


def _use_stream(place: Path) -> Iterator[object]:
    yield survey_p_stream(PStream(place))
    yield PStreamReader(place).read()
    yield PStreamReader(place, reader="r").read(5)
    yield PStream(place).trim(now=True)


def _check_stream(draw: random.Random, place: Path) -> None:
    schema = pa.schema({"n": pa.int64(), "text": pa.string()})
    often = CleanupRule(min_log_entries=4)
    for name in ("a", "b"):
        with PStreamWriter(place, schema, writer=name, threads=1, interval="1us", cleanup=often) as writer:
            for n in range(3):
                writer.append(pa.table({"n": range(n, n + 9), "text": ["x"] * 9}, schema), clock={"s": n})
                writer.flush()
        PStream(place, cleanup=often).subscribe("r")
        PStream(place, cleanup=often).trim_from("r", 9)
    for _ in range(_LOGS):
        # A trim may have changed the files.
        files = [file for file in place.rglob("*") if file.is_file() and file.suffix != ".segment"]
        contents = {file: file.read_bytes() for file in place.rglob("*") if file.is_file()}
        file = draw.choice(files)
        unit = decode(contents[file], file)
        path = draw.choice(list(places(unit.meta)))
        rewrite(file, PUnit(unit.kind, changed(unit.meta, path, draw.choice([GONE, *STRANGE]))))
        for use in (0, 1, 2, 3):
            steps = _use_stream(place)
            try:
                for _ in range(use + 1):
                    next(steps)
            except CorruptDataError as error:
                assert str(error.context["file"]).startswith(str(place)), error
            except (InvalidUsageError, UnavailableError):
                pass
        for other in place.rglob("*"):
            if other.is_file() and other not in contents:
                other.unlink()
        for other, content in contents.items():
            other.write_bytes(content)
        assert PStreamReader(place, start="latest").read().num_rows == 0


def check(case: Case) -> None:
    """Change blocks, states and logs behind their checksums, and use them."""
    draw = case.random
    with np.errstate(all="ignore"):
        _check_blocks(draw)
        _check_tables(draw)
        check_states(draw, draw.choice(STATES))
        _check_bucket(draw, case.directory)
        _check_stream(draw, case.directory / "s")
