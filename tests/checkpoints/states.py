"""A working copy that is a dictionary, for tests of what stores state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from typing import Any

import pyarrow as pa

from penstock.checkpointing import PUnit
from penstock.errors import CorruptDataError, PenstockError
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer

__all__ = ["DictState", "Later", "RowState", "content_of", "links_of", "names_of"]


class DictState:
    """Maps numbers to bytes; a deleted number is an upsert of None. Its snapshots have parts of `part`."""

    part = 1000

    def __init__(self, content: Mapping[int, bytes] | None = None) -> None:
        self.content = dict(content or {})
        self.closed = False
        self._changed: dict[int, bytes | None] = dict(self.content)

    @property
    def size_bytes(self) -> int:
        return sum(8 + len(value) for value in self.content.values())

    def __setitem__(self, key: int, value: bytes | None) -> None:
        self._changed[key] = value
        if value is None:
            self.content.pop(key, None)
        else:
            self.content[key] = value

    def close(self) -> None:
        self.closed = True

    def delta(self) -> PUnit:
        changed, self._changed = self._changed, {}
        return _unit("delta", changed, len(self.content))

    def snapshot(self) -> Iterator[PUnit]:
        entries = list(self.content.items())
        parts = [
            dict(entries[begin : begin + self.part]) for begin in range(0, max(len(entries), 1), self.part)
        ]
        counts = [min(self.part * (number + 1), len(entries)) for number in range(len(parts))]
        return iter([_unit("snapshot", part, count) for part, count in zip(parts, counts, strict=True)])

    def restore(self, units: Iterable[PUnit]) -> None:
        for unit in units:
            for row in unit.blocks["changes"].to_pylist():
                self[row["k"]] = row["v"]
            assert len(self.content) == unit.meta["keys"]
        self._changed = {}


def _unit(kind: str, changed: Mapping[int, bytes | None], keys: int) -> PUnit:
    block = pa.RecordBatch.from_arrays(
        [pa.array(list(changed), pa.int64()), pa.array(list(changed.values()), pa.binary())], ["k", "v"]
    )
    return PUnit(kind, {"keys": keys}, {"changes": block})


class RowState:
    """Rows by the key ``k``, of any other columns; its snapshots have parts of `part` rows."""

    def __init__(self, schema: pa.Schema, part: int = 1000) -> None:
        self.schema, self.part = schema, part
        self.content: dict[Any, dict[str, Any]] = {}
        self._changed: set[Any] = set()

    @property
    def size_bytes(self) -> int:
        return 100 * len(self.content)

    def put(self, rows: pa.RecordBatch) -> None:
        for row in rows.to_pylist():
            self.content[row["k"]] = row
            self._changed.add(row["k"])

    def delete(self, keys: Iterable[Any]) -> None:
        for key in keys:
            self.content.pop(key, None)
            self._changed.add(key)

    def close(self) -> None:
        self.content = {}

    def delta(self) -> PUnit:
        changed, self._changed = sorted(self._changed), set()
        upserts = [self.content[key] for key in changed if key in self.content]
        return self._unit("delta", upserts, [key for key in changed if key not in self.content])

    def snapshot(self) -> Iterator[PUnit]:
        rows = [self.content[key] for key in sorted(self.content)]
        parts = [rows[at : at + self.part] for at in range(0, max(len(rows), 1), self.part)]
        return iter([self._unit("snapshot", part, []) for part in parts])

    def restore(self, units: Iterable[PUnit]) -> None:
        for unit in units:
            if unit.blocks.keys() != {"upserts", "tombstones"}:
                raise CorruptDataError("a unit of a state has other blocks", kind=unit.kind)
            rows, gone = unit.blocks["upserts"], unit.blocks["tombstones"]
            if rows.schema != self.schema or gone.schema.names != ["k"]:
                raise CorruptDataError("a unit of a state has other columns", kind=unit.kind)
            self.put(rows)
            self.delete(gone["k"].to_pylist())
        self._changed = set()

    def _unit(self, kind: str, upserts: list[dict[str, Any]], tombstones: list[Any]) -> PUnit:
        gone = pa.record_batch({"k": pa.array(tombstones, self.schema.field("k").type)})
        blocks = {"upserts": pa.RecordBatch.from_pylist(upserts, self.schema), "tombstones": gone}
        return PUnit(kind, {}, blocks)


class InlineExecutor(Executor):
    """Run each function at once, in the calling thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class Later(Executor):
    """A thread in the background that does nothing before it is told to."""

    def __init__(self) -> None:
        self.work: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], /, *_: Any, **__: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.work.append((future, work))
        return future

    def run(self) -> None:
        for future, work in self.work:
            try:
                future.set_result(work())
            except PenstockError as error:
                future.set_exception(error)
        self.work = []


def content_of(store: BucketStore, pointer: Pointer) -> dict[int, bytes]:
    """Load everything at `pointer`."""
    state = DictState()
    assert store.load(pointer, state).pointer == pointer
    return state.content


def names_of(store: BucketStore) -> set[str]:
    """Return the names of the bucket's files."""
    return {facts.name for facts in store.files.list()}


def links_of(handle: Handle) -> list[str]:
    """Return the names of the files of a chain."""
    return [link.pointer.file_name for link in handle.links]
