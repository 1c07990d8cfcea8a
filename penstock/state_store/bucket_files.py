"""Read and write the files of a bucket. The header of a version's file holds the version's chain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from penstock.checkpointing import PUnit, decode, encode, read_header
from penstock.checkpointing.fields import Fields
from penstock.checkpointing.files import Content, Files
from penstock.errors import CorruptDataError
from penstock.state_store.lineage import (
    FileId,
    Handle,
    Link,
    Pointer,
    Snapshot,
    Version,
    number_of,
)

__all__ = ["BucketFiles", "State"]


class State(Protocol):
    """The interface of working copies."""

    def delta(self) -> PUnit:
        """Return the changes since the last call of `delta` or `restore`."""

    def snapshot(self) -> Iterator[PUnit]:
        """Return the whole current state, in p-units of bounded size, which later changes do not affect."""

    def restore(self, units: Iterable[PUnit]) -> None:
        """Apply p-units in their order."""


class BucketFiles:
    """Reads and writes the files of one bucket, and checks each file against its name.

    Parameters
    ----------
    files : Files
        The bucket's directory.
    """

    def __init__(self, files: Files) -> None:
        self.files = files

    def _publish(
        self,
        pointer: Pointer,
        unit: PUnit,
        coded: Mapping[str, bytes],
        before: Handle,
        parent: Pointer | None,
    ) -> Link:
        """Publish `unit` at `pointer` with its `coded` blocks and the chain of `before` in the header."""
        content = encode(PUnit(unit.kind, _meta(pointer, unit, before, parent)), coded)
        self.files.publish(pointer.file_name, content)
        return Link(pointer, len(content))

    def _open(self, pointer: Pointer) -> tuple[PUnit, Handle]:
        newest, size_bytes = self._read(pointer)
        return newest, self._handle_in(pointer, newest, size_bytes)

    def _from_head(self, pointer: Pointer, size_bytes: int) -> Handle | None:
        """Return the handle of a version from the header of its file; None if the file is not whole."""
        read = partial(self.files.read_range, pointer.file_name)
        path = self.files.path_of(pointer.file_name)
        try:
            unit, whole_bytes = read_header(read, size_bytes, path)
            if whole_bytes != size_bytes:
                return None
            return self._handle_in(pointer, self._check(pointer, unit), size_bytes)
        except (CorruptDataError, FileNotFoundError):
            return None

    def _handle_in(self, pointer: Pointer, unit: PUnit, size_bytes: int) -> Handle:
        """Return the handle of the version whose file at `pointer` is `unit`."""
        path = self.files.path_of(pointer.file_name)
        fields = Fields(unit.meta, path)
        before = tuple(map(Link.from_json, fields.rows("chain", 3)))
        superseded = tuple((Version(row.count(0)), row.text(1)) for row in fields.rows("superseded", 2))
        # Files of early format versions name no base, parent or snapshot. Their base is one file.
        base = fields.count("base", most=len(before) + 1) if fields.has("base") else 1
        parent = fields.row("parent", 2) if fields.has("parent") else None
        before_it = Pointer(Version(parent.count(0)), FileId(parent.text(1))) if parent else None
        snapshot = Snapshot.from_json(fields.row("snapshot", 4)) if fields.has("snapshot") else None
        if snapshot is not None and snapshot.deltas_begin > len(before) + 1:
            raise fields.damage_error("snapshot", "a place in the chain")
        names = [link.pointer.file_name for link in before] + [name for _, name in superseded]
        names += [snapshot.pointer.file_name] if snapshot else []
        if any(number_of(name) is None for name in names):
            raise CorruptDataError("the file refers to files outside its directory", file=path)
        return Handle((*before, Link(pointer, size_bytes)), base, superseded, before_it, snapshot)

    def _restore(self, state: State, links: Sequence[Link], units: Iterable[PUnit]) -> None:
        """Apply the p-units of the files `links` to a state. An error names the damaged file."""
        at = -1

        def count_units() -> Iterator[PUnit]:
            nonlocal at
            for unit in units:
                at += 1
                yield unit

        try:
            state.restore(count_units())
        except CorruptDataError as error:
            raise error.name_file(self.files.path_of(links[at].pointer.file_name)) from error

    def _state_unit(self, source: Link | PUnit) -> PUnit:
        unit = source if isinstance(source, PUnit) else self._read(source.pointer)[0]
        return PUnit(unit.kind, unit.meta["state"], unit.blocks)

    def _read(self, pointer: Pointer) -> tuple[PUnit, int]:
        path = self.files.path_of(pointer.file_name)
        try:
            content = self.files.read(pointer.file_name)
        except FileNotFoundError:
            raise CorruptDataError(
                "a state file is missing", file=path, hint="restore it, or start a new checkpoint"
            ) from None
        return self._decode(pointer, content), len(content)

    def _decode(self, pointer: Pointer, content: Content) -> PUnit:
        return self._check(pointer, decode(content, self.files.path_of(pointer.file_name)))

    def _check(self, pointer: Pointer, unit: PUnit) -> PUnit:
        """Check the unit in the file at `pointer` against the file's name, and return the unit."""
        path = self.files.path_of(pointer.file_name)
        if (unit.meta.get("version"), unit.meta.get("file_id")) != (pointer.version, pointer.file_id):
            raise CorruptDataError("the file holds another version than its name states", file=path)
        if not isinstance(unit.meta.get("state"), dict):
            raise CorruptDataError("the header of a state file is not valid", file=path)
        return unit


def _meta(pointer: Pointer, unit: PUnit, before: Handle, parent: Pointer | None) -> dict[str, object]:
    return {
        "version": pointer.version,
        "file_id": pointer.file_id,
        "parent": parent and [parent.version, parent.file_id],
        "base": before.base,
        "chain": [link.to_json() for link in before.links],
        "superseded": [list(entry) for entry in before.superseded],
        "snapshot": before.snapshot and before.snapshot.to_json(),
        "state": unit.meta,
    }
