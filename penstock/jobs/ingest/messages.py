"""Rows from messages: each message has one record, or several lines of records."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.jobs.ingest.records import Bad, Dialect, JsonRecords, Records, parse_records
from penstock.jobs.ingest.sources import BadRecord, Rows, Source

__all__ = ["Message", "MessageSource", "Messages"]


@dataclass(frozen=True, slots=True)
class Message:
    """A message: its topic (empty if it has none), and its content."""

    topic: str
    content: bytes


class Messages(ABC):
    """A connection that delivers messages; it reads only when `receive` is called."""

    name: str
    ended: bool = False
    """True if no more messages can come."""
    acknowledges: bool = False
    """True if the sender keeps messages until they are acknowledged."""

    @abstractmethod
    def receive(self, most_bytes: int) -> Sequence[Message]:
        """Return the messages that have arrived, after a short wait for more.

        Raises
        ------
        UnavailableError
            If the sender cannot be reached.
        InvalidUsageError
            If the sender refuses this client.
        """

    def acknowledge(self) -> None:  # noqa: B027 - a sender that keeps nothing needs none
        """Acknowledge all messages that were received."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class MessageSource(Source):
    """The rows of messages.

    Parameters
    ----------
    messages : Messages
        The connection.
    dialect : Dialect
        The format of the content.
    topic_column : str, optional
        The column that gets the topics of messages.
    chunk_bytes : int
        The bytes of messages that are parsed together.
    """

    def __init__(
        self, messages: Messages, dialect: Dialect, topic_column: str | None, chunk_bytes: int
    ) -> None:
        records = dialect.records(b"", whole=False)
        if records is None:
            raise InvalidUsageError(
                "messages of CSV need columns and have no header", hint="pass --schema and --no-header"
            )
        self.name = messages.name
        self._messages, self._records = messages, records
        self._topic, self._chunk_bytes = topic_column, chunk_bytes
        self._kept: Sequence[Message] = ()
        self._schema = pa.schema([])
        self._count = 0
        self.acknowledges = messages.acknowledges

    def acknowledge(self) -> None:
        """Acknowledge the messages whose rows were read."""
        self._messages.acknowledge()

    def infer(self) -> pa.Schema | None:
        """Infer the columns from the first messages; see `Source.infer`."""
        if not self._kept:
            self._kept = self._messages.receive(self._chunk_bytes)
        content, ends = _join(self._kept, self._records)
        if not content:
            self.done = self._messages.ended
            return None
        try:
            schema = self._records.infer(content)
        except pa.ArrowInvalid:
            raise self._bad(
                0, self._records.explain_failure(content[: int(ends[0])], pa.schema([]))
            ).error() from None
        return schema if self._topic is None else schema.append(pa.field(self._topic, pa.string()))

    def begin(self, schema: pa.Schema, clock: Mapping[str, int]) -> None:
        """Take the stream's columns; messages have no positions."""
        self._schema = schema
        if self._topic is not None and self._topic not in schema.names:
            raise InvalidUsageError(
                "the p-stream lacks the column of topics", column=self._topic, known=", ".join(schema.names)
            )

    def read(self) -> Iterator[Rows | BadRecord]:
        """Return the rows of messages that have arrived; see `Source.read`."""
        messages = self._kept or self._messages.receive(self._chunk_bytes)
        self._kept = ()
        content, ends = _join(messages, self._records)
        payload = pa.schema([field for field in self._schema if field.name != self._topic])
        if content and not self._count and isinstance(self._records, JsonRecords):
            self._compare(self._records.names_in(content), payload, sparse=True)
        record_ends, start = self._records.ends(content), 0
        message_of = np.searchsorted(ends, record_ends)
        for stop, item in parse_records(self._records, content, payload):
            of = message_of[
                np.searchsorted(record_ends, start, "right") : np.searchsorted(record_ends, stop, "right")
            ]
            if isinstance(item, Bad):
                yield self._bad(int(of[0]), item.why)
            else:
                yield Rows(self._add_topics(item, messages, of), stop - start)
            start = stop
        self._count += len(messages)
        self.done = self._messages.ended

    def _add_topics(
        self, rows: pa.Table, messages: Sequence[Message], of: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> pa.Table:
        if self._topic is None:
            return rows
        topics = pa.array([message.topic for message in messages], pa.string()).take(of)
        at = self._schema.names.index(self._topic)
        field = self._schema.field(at)
        return rows.add_column(at, field, topics.cast(field.type))

    def _bad(self, message: int, why: str) -> BadRecord:
        again = "the broker will send it again, so " if self.acknowledges else ""
        return BadRecord(
            self.name, self._count + message + 1, 0, why, f"{again}skip such messages with --on-error skip"
        )

    def close(self) -> None:
        """Close the connection."""
        self._messages.close()


def _join(
    messages: Sequence[Message], records: Records
) -> tuple[bytes, np.ndarray[tuple[int], np.dtype[np.int64]]]:
    """Return the content of messages as lines, without blank lines, and the end of each message in it."""
    if isinstance(records, JsonRecords):
        # A JSON text has line breaks only outside of its strings, so spaces can replace them.
        lines = [
            b" ".join(message.content.split(b"\n")) + b"\n" if message.content.strip() else b""
            for message in messages
        ]
    else:
        lines = [
            b"".join(line + b"\n" for line in message.content.splitlines() if line) for message in messages
        ]
    return b"".join(lines), np.cumsum([len(line) for line in lines], dtype=np.int64)
