"""The checkpoint of a local query, in the form of Spark's checkpoints.

::

    QUERY/metadata                             the query's id
    QUERY/offsets/<batch>                      the plan of a micro-batch: its end in each source
    QUERY/commits/<batch>                      the mark that the micro-batch is committed
    QUERY/sources/<number>/<entry>             the files that a source of files has found
    QUERY/state/0/<partition>/<batch + 1>.snapshot   the pointers of buckets after the micro-batch

Spark reads these files as its own, and this module reads Spark's files
(`penstock.spark_ext.state_reader.spark_state`). Like Spark, this module writes a whole file under a temporary
name before it renames the file, does not sync files, and deletes the files of old micro-batches. A p-stream
that receives a micro-batch's rows syncs the plan first.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from penstock import _durable
from penstock._clock import new_id, now_us
from penstock.checkpointing.files import LocalFiles
from penstock.checkpointing.spark_checkpoint import list_numbers, local_path, repair_checkpoint
from penstock.errors import CorruptDataError, InvalidUsageError
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.state_reader.spark_state import (
    SPARK_OPERATOR,
    encode_pointers,
    has_timeouts,
    partition_labels,
    partitions_of,
    read_pointer_files,
)
from penstock.state_store.bucket_store import Pointer

__all__ = ["EntryLog", "Offset", "QueryLog", "read_plan", "write_whole"]

Offset = dict[str, Any]
"""A position in a source, before which all rows are read. The value is JSON."""

_VERSION = "v1"
_KEPT_BATCHES = 100
"""The number of newest micro-batches whose files are kept, as in Spark."""
_COMPACTED_ENTRIES = 10
"""Every tenth file of a log also holds all earlier entries."""

_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
_SETTINGS = {
    "spark.sql.streaming.stateStore.providerClass": _PROVIDER,
    "spark.sql.streaming.stateStore.encodingFormat": "unsaferow",
    "spark.sql.streaming.stateStore.rowChecksum.enabled": "false",
    "spark.sql.streaming.stateStore.compression.codec": "lz4",
    "spark.sql.streaming.flatMapGroupsWithState.stateFormatVersion": "2",
}
"""Settings with which Spark can read the pointers that this module writes."""

_KEYS = [{"name": "bucket", "type": "integer", "nullable": True, "metadata": {}}]
_POINTER = {
    "type": "struct",
    "fields": [
        {"name": "version", "type": "long", "nullable": True, "metadata": {}},
        {"name": "file_id", "type": "string", "nullable": True, "metadata": {}},
    ],
}
_VALUES = [{"name": "groupState", "type": _POINTER, "nullable": True, "metadata": {}}]
_TIMEOUT = [{"name": "timeoutTimestamp", "type": "long", "nullable": True, "metadata": {}}]


def write_whole(path: Path, content: bytes) -> None:
    """Write a file atomically, without a sync."""
    _durable.make_directory(path.parent)
    temporary = path.with_name(f".{path.name}.{new_id()}.tmp")
    temporary.write_bytes(content)
    _durable.replace(path, temporary)
    _durable.delete(path.with_name(f".{path.name}.crc"))


def read_plan(checkpoint: Path, batch: int) -> tuple[int, list[Offset | None]]:
    """Return the time of a micro-batch's plan, in ms, and the sources' offsets at its end.

    Raises
    ------
    CorruptDataError
        If the plan is missing or damaged.
    """
    file = checkpoint / "offsets" / str(batch)
    try:
        version, facts, *lines = file.read_text().splitlines()
        found = [None if line == "-" else json.loads(line) for line in lines]
        time_ms = int(json.loads(facts).get("batchTimestampMs", 0))
    except FileNotFoundError:
        raise CorruptDataError("the plan of a micro-batch is missing", file=file) from None
    except ValueError:
        raise CorruptDataError("the plan of a micro-batch is damaged", file=file) from None
    if version != _VERSION:
        raise CorruptDataError("an offset log has an unknown version", file=file, version=version)
    return time_ms, found


class QueryLog:
    """The checkpoint of a query. One process at a time uses it.

    Parameters
    ----------
    location : str
        The checkpoint, on a local disk.
    partitions : int
        The number of Spark's shuffle partitions, for a new checkpoint.
    kept_batches : int
        The number of newest micro-batches whose files are kept.

    Raises
    ------
    InvalidUsageError
        If the checkpoint is not on a local disk.
    CorruptDataError
        If the checkpoint is damaged.
    """

    def __init__(self, location: str, partitions: int, *, kept_batches: int = _KEPT_BATCHES) -> None:
        path = local_path(location)
        if path is None:
            raise InvalidUsageError(
                "the local engine keeps its checkpoint on a local disk",
                checkpoint=location,
                hint="choose a local directory, or engine: spark",
            )
        self.path = path.absolute()
        self._kept_batches = kept_batches
        if self.path.exists():
            repair_checkpoint(str(self.path), dry_run=False)
        self.id = self._read_id()
        self.planned = max(list_numbers(self.path / "offsets"), default=-1)
        self.committed = max(list_numbers(self.path / "commits"), default=-1)
        self._state = self.path / "state" / "0"
        self._has_state = (self._state / "_metadata" / "metadata").exists()
        self.partitions = partitions
        if self._has_state:
            self.partitions = partitions_of(LocalFiles(self._state)) or partitions

    def _read_id(self) -> str:
        try:
            return str(json.loads((self.path / "metadata").read_text())["id"])
        except FileNotFoundError:
            made = str(uuid.UUID(new_id()))
            write_whole(self.path / "metadata", json.dumps({"id": made}).encode())
            return made
        except (ValueError, LookupError, TypeError):
            raise CorruptDataError("a query's metadata is damaged", file=self.path / "metadata") from None

    def offsets(self, batch: int) -> list[Offset | None]:
        """Return each source's offset at the end of a planned micro-batch; None if nothing was read yet."""
        return read_plan(self.path, batch)[1]

    def age_s(self, batch: int) -> float:
        """Return the time since a micro-batch was planned; 0 if the plan does not hold its time."""
        planned_ms = read_plan(self.path, batch)[0]
        return (now_us() / 1000 - planned_ms) / 1000 if planned_ms else 0.0

    def plan(self, batch: int, offsets: Iterable[Offset | None]) -> None:
        """Write the plan of a micro-batch, before it reads."""
        settings = _SETTINGS | {"spark.sql.shuffle.partitions": str(self.partitions)}
        facts = {"batchWatermarkMs": 0, "batchTimestampMs": now_us() // 1000, "conf": settings}
        lines = [_VERSION, json.dumps(facts)]
        lines += ["-" if offset is None else json.dumps(offset) for offset in offsets]
        write_whole(self.path / "offsets" / str(batch), "\n".join(lines).encode())
        self.planned = batch

    def pointers(self, buckets: int) -> dict[int, Pointer]:
        """Return the pointers after the newest committed micro-batch, by label.

        Raises
        ------
        InvalidUsageError
            If only Spark can read the pointers.
        """
        if self.committed < 0 or not self._has_state:
            return {}
        files = LocalFiles(self.path / "state")
        held = read_pointer_files(files, self.committed, bucket_labels(buckets))
        if held is None:
            raise InvalidUsageError(
                "the local engine cannot read the state of this checkpoint",
                checkpoint=self.path,
                hint="Spark wrote it with another state store or codec: continue with engine: spark",
            )
        return held.get(0, {})

    def commit(self, batch: int, pointers: Mapping[int, Pointer] | None, due: Collection[int] | None) -> None:
        """Make a micro-batch the newest committed micro-batch.

        Parameters
        ----------
        batch : int
            The micro-batch.
        pointers : mapping, optional
            The pointer of each label, if the query has state.
        due : collection of int, optional
            The labels of buckets in which keys wait; None if keys never wait.
        """
        if pointers is not None:
            if not self._has_state:
                self._describe_state(waits=due is not None)
            waits = due if has_timeouts(LocalFiles(self._state)) else None
            for partition, labels in enumerate(partition_labels(pointers, self.partitions)):
                held = {label: pointers[label] for label in sorted(labels)}
                place = self._state / str(partition)
                write_whole(place / f"{batch + 1}.snapshot", encode_pointers(held, waits))
        write_whole(self.path / "commits" / str(batch), f'{_VERSION}\n{{"nextBatchWatermarkMs":0}}'.encode())
        self.committed = batch
        self._forget(batch - self._kept_batches)

    def _describe_state(self, *, waits: bool) -> None:
        facts = {
            "operatorInfo": {"operatorId": 0, "operatorName": SPARK_OPERATOR},
            "stateStoreInfo": [
                {"storeName": "default", "numColsPrefixKey": 0, "numPartitions": self.partitions}
            ],
        }
        fields = (_KEYS, [*_VALUES, *(_TIMEOUT if waits else [])])
        texts = [json.dumps({"type": "struct", "fields": some}, separators=(",", ":")) for some in fields]
        schema = _utf("v2") + b"".join(struct.pack(">i", 1) + _utf(text) for text in texts)
        write_whole(self._state / "0" / "_metadata" / "schema", schema)
        text = json.dumps(facts, separators=(",", ":"))
        write_whole(self._state / "_metadata" / "metadata", f"{_VERSION}\n{text}".encode())
        self._has_state = True

    def _forget(self, batch: int) -> None:
        """Delete the files of an old micro-batch."""
        if batch < 0:
            return
        for log in ("offsets", "commits"):
            for name in (f"{batch}", f".{batch}.crc"):
                _durable.delete(self.path / log / name)
        for partition in range(self.partitions if self._has_state else 0):
            for suffix in ("delta", "snapshot"):
                for name in (f"{batch}.{suffix}", f".{batch}.{suffix}.crc"):
                    _durable.delete(self._state / str(partition) / name)


def _utf(text: str) -> bytes:
    """Encode a text like Java's ``writeUTF``."""
    return struct.pack(">H", len(text)) + text.encode()


class EntryLog:
    """A log of files, as Spark's source and sink of files write it: a file of JSON lines for each number.

    Parameters
    ----------
    path : pathlib.Path
        The directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._entries: dict[int, list[dict[str, Any]]] = {}
        compacted = [int(one.stem) for one in path.glob("*.compact") if one.stem.isdecimal()]
        start = max(compacted, default=-1)
        if start >= 0:
            self._entries[start] = self._read(f"{start}.compact")
        for number in sorted(list_numbers(path)):
            if number > start:
                self._entries[number] = self._read(str(number))

    def _read(self, name: str) -> list[dict[str, Any]]:
        version, *lines = (self._path / name).read_text().splitlines()
        if version != _VERSION:
            raise CorruptDataError("a log of files has an unknown version", file=self._path / name)
        return [json.loads(line) for line in lines if line]

    @property
    def newest(self) -> int:
        """The newest number; -1 if there is none."""
        return max(self._entries, default=-1)

    def entries(self, after: int = -1, to: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the entries of the numbers above `after`, up to `to`."""
        for number, some in sorted(self._entries.items()):
            for entry in some:
                of = int(entry.get("batchId", number))
                if of > after and (to is None or of <= to):
                    yield entry

    def add(self, number: int, entries: list[dict[str, Any]]) -> None:
        """Write the entries of a number, which must be one above the newest."""
        self._entries[number] = entries
        is_compacted = (number + 1) % _COMPACTED_ENTRIES == 0
        lines = list(self.entries()) if is_compacted else entries
        text = "\n".join([_VERSION, *(json.dumps(entry, separators=(",", ":")) for entry in lines)])
        write_whole(self._path / (f"{number}.compact" if is_compacted else str(number)), text.encode())
