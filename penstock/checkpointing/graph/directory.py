"""The directory of a running graph: one checkpoint that holds all state for a restart.

    CHECKPOINT/
      graph-NUMBER.json           the graph: its shape, plan, p-streams and queries
      recovery-NUMBER.json        the report of the newest restart
      p-streams/NAME/             p-streams that the graph writes (`penstock.checkpointing.p_stream`)
      queries/NAME/               Spark's checkpoint of each query
      state/                      the state of operators (`penstock.state_store`)

For each kind of numbered file, the file with the largest number is valid. A file is deleted when its
successor is durable. This module does not need Spark: the logs of Spark's checkpoints are files with a line
``v1`` and then lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from penstock.checkpointing.fields import Fields
from penstock.checkpointing.files import Files, absolute_location, open_files
from penstock.errors import CorruptDataError, InvalidUsageError

__all__ = ["FORMAT", "GraphDirectory", "QueryProgress", "read_progress"]

FORMAT: Final = 1
"""The version of the documents' format."""

_LOG_VERSION: Final = "v1"


@dataclass(frozen=True, slots=True)
class QueryProgress:
    """The progress of one of Spark's queries, from its checkpoint.

    Parameters
    ----------
    id : str or None
        Spark's id of the query, which names its state and output; None before the query's first start.
    planned, committed : int
        The newest planned and the newest committed micro-batch; -1 if there is none.
    rows : mapping of str to int
        For the identity of each p-stream that the query reads, the row up to which the query has committed.
        If the query has several readers of one p-stream, the value is the least of their rows.
    """

    id: str | None = None
    planned: int = -1
    committed: int = -1
    rows: Mapping[str, int] = field(default_factory=dict)


class GraphDirectory:
    """A graph's checkpoint. The driver and commands use it. It keeps no file open.

    Parameters
    ----------
    location : str or path
        A path, or a URI that both Spark and `penstock.checkpointing.files.open_files` support.

    Raises
    ------
    InvalidUsageError
        If no file system is known for the location.
    """

    def __init__(self, location: str | os.PathLike[str]) -> None:
        self.location = absolute_location(location).rstrip("/") or "/"
        self.files = open_files(self.location)

    def place(self, *names: str) -> str:
        """Return the location of a file or directory of the checkpoint, in the form that Spark takes."""
        return "/".join((self.location, *names))

    # ---------------------------------------------------------------------------------- documents

    def newest(self, kind: str) -> dict[str, Any] | None:
        """Return the newest document of a kind, ``graph`` or ``recovery``; None if there is none.

        Raises
        ------
        CorruptDataError
            If the document is not a JSON object.
        InvalidUsageError
            If the document's format is newer than this version of Penstock supports.
        UnavailableError
            If the file system refuses.
        """
        while True:
            number = max(self._numbers(kind), default=None)
            if number is None:
                return None
            name = _name(kind, number)
            # The file can be missing only if there is now a newer file.
            with contextlib.suppress(FileNotFoundError):
                content = bytes(self.files.read(name))
                break
        try:
            document = json.loads(content)
        except (ValueError, RecursionError):
            document = None
        if not isinstance(document, dict) or "format" not in document:
            raise CorruptDataError("a document of a graph is damaged", file=self.files.path_of(name))
        if document["format"] != FORMAT:
            raise InvalidUsageError(
                "the checkpoint has another format",
                file=self.files.path_of(name),
                format=document["format"],
                known=FORMAT,
                hint="use the version of Penstock that wrote it, or a newer one",
            )
        return document

    def put(self, kind: str, document: Mapping[str, Any]) -> None:
        """Publish a document as the newest of its kind, unless it equals the newest.

        Raises
        ------
        ConflictError
            If another driver publishes a document at the same time.
        CorruptDataError, UnavailableError
            As for `newest`.
        """
        full_document = {"format": FORMAT, **document}
        content = json.dumps(full_document, indent=1).encode()
        if self.newest(kind) == json.loads(content):
            return
        numbers = self._numbers(kind)
        self.files.publish(_name(kind, max(numbers, default=-1) + 1), content)
        for number in numbers:
            self.files.delete(_name(kind, number))

    def _numbers(self, kind: str) -> list[int]:
        pattern = re.compile(rf"{kind}-(\d+)\.json")
        return [int(match[1]) for fact in self.files.list() if (match := pattern.fullmatch(fact.name))]

    # --------------------------------------------------------------------------------- Spark's logs

    def query(self, name: str) -> str:
        """Return the location of a query's checkpoint."""
        return self.place("queries", name)

    def progress(self, query: str) -> QueryProgress:
        """Return a query's progress. The query may be running.

        Raises
        ------
        CorruptDataError
            If a file of its logs is damaged.
        UnavailableError
            If the file system refuses.
        """
        progress = read_progress(self.files.child("queries").child(query))
        rows = self.batch_rows(query, progress.committed) if progress.committed >= 0 else {}
        return replace(progress, rows=rows)

    def interrupted_ms(self, query: str) -> int | None:
        """Return when the micro-batch that is not committed was planned; None if this is unknown."""
        progress = read_progress(self.files.child("queries").child(query))
        if progress.planned <= progress.committed:
            return None
        log = self.files.child("queries").child(query).child("offsets")
        try:
            facts = bytes(log.read(str(progress.planned))).split(b"\n")[1]
            return int(json.loads(facts)["batchTimestampMs"])
        except (FileNotFoundError, ValueError, LookupError, TypeError):
            return None  # Spark refuses a damaged plan with an error of its own

    def batch_rows(self, query: str, batch: int) -> dict[str, int]:
        """Return the end row of a micro-batch in each p-stream, by identity.

        If the query has several readers of a p-stream, the row is the least of their rows. Spark keeps the
        newest hundred micro-batches. For older micro-batches the result is empty.

        Raises
        ------
        CorruptDataError
            If the file is damaged.
        UnavailableError
            If the file system refuses.
        """
        log = self.files.child("queries").child(query).child("offsets")
        with contextlib.suppress(FileNotFoundError):
            rows: dict[str, int] = {}
            text = bytes(log.read(str(batch))).decode(errors="replace")
            for identity, row in _offsets(text, log.path_of(str(batch))):
                rows[identity] = min(row, rows.get(identity, row))
            return rows
        return {}

    def count_released_batches(self, query: str, identity: str, row: int) -> int:
        """Count the micro-batches of a query whose rows of a p-stream are all released.

        Parameters
        ----------
        query : str
            The query's name.
        identity : str
            The identity of the p-stream.
        row : int
            The readers of the query have released all rows before this row.

        Raises
        ------
        CorruptDataError, UnavailableError
            As for `batch_rows`.
        """
        log = self.files.child("queries").child(query).child("offsets")
        for batch in sorted(_batches(log), reverse=True):
            end = self.batch_rows(query, batch).get(identity)
            if end is not None and end <= row:
                return batch + 1
        return 0


def read_progress(checkpoint: Files) -> QueryProgress:
    """Return the progress of the query with this checkpoint, without rows.

    Raises
    ------
    CorruptDataError
        If the query's metadata is damaged.
    UnavailableError
        If the file system refuses.
    """
    planned, committed = (max(_batches(checkpoint.child(log)), default=-1) for log in ("offsets", "commits"))
    return QueryProgress(_id_of(checkpoint), planned, committed)


def _name(kind: str, number: int) -> str:
    return f"{kind}-{number:08}.json"


def _batches(log: Files) -> list[int]:
    return [int(fact.name) for fact in log.list() if fact.name.isdecimal()]


def _id_of(files: Files) -> str | None:
    try:
        return str(json.loads(bytes(files.read("metadata")))["id"])
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError):
        raise CorruptDataError("a query's metadata is damaged", file=files.path_of("metadata")) from None


def _offsets(text: str, file: str) -> Iterator[tuple[str, int]]:
    """Yield identity and row of each p-stream in a file of Spark's offset log."""
    version, *lines = text.splitlines() or [""]
    if version != _LOG_VERSION:
        raise CorruptDataError("an offset log of Spark has an unknown version", file=file, version=version)
    for line in lines[1:]:
        try:
            offset = json.loads(line)
        except (ValueError, RecursionError):
            continue  # Other sources write offsets in their own formats.
        if isinstance(offset, dict) and {"identity", "offset"} <= offset.keys():
            fields = Fields(offset, file)
            yield fields.text("identity"), fields.count("offset")
