"""Topics of Kafka as a source of the local engine, with the offsets and options of Spark's connector.

The checkpoint holds the offsets. No offsets are committed to Kafka for a consumer group. ::

    QUERY/sources/<number>/0    a zero byte, "v1", a line break, and the offsets of the first start, in JSON
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.types import StructType

from penstock._clock import monotonic_s, new_id, pause
from penstock._extras import need_extra
from penstock.errors import CorruptDataError, InvalidUsageError, UnavailableError
from penstock.local_engine.query_log import Offset, write_whole
from penstock.local_engine.records.bad_records import BadRecords, RecordInput, Records
from penstock.local_engine.records.kafka_options import EARLIEST, LATEST, KafkaOptions, Partition
from penstock.local_engine.records.kafka_values import read_messages

__all__ = ["KafkaInput"]

_LOGGER = logging.getLogger(__name__)
_ANSWER_S: Final = 5.0
_PATIENCE_S: Final = 60.0
"""If no broker answers for this time, a query fails."""
_POLL_S: Final = 0.05
_MAX_MESSAGES: Final = 50_000
_BOUNDS_S: Final = 0.02
"""The time for which the ends of partitions are cached, so that idle polls do not load the brokers."""
_TOPICS_S: Final = 1.0
"""The time for which the list of partitions is cached."""

Found = TypeVar("Found")


class Decoder(Protocol):
    """An object that decodes raw records to rows, such as a `RecordDecoder`."""

    def decode(self, records: pa.Table) -> Records:
        """Return the rows of records, which have the columns of Spark's connector."""


class KafkaInput(RecordInput):
    """Records of topics. Partitions are read one after the other, so repeated batches have the same order.

    Parameters
    ----------
    options : mapping of str to str
        The options of Spark's connector.
    schema : StructType
        The columns.
    decoder : Decoder
        The decoder of the records.
    bad_records : BadRecords
        The treatment of bad records.
    log : pathlib.Path
        The directory of the file with the first offsets.

    Raises
    ------
    InvalidUsageError
        If an option or a setting is unknown, or the client is not installed.
    CorruptDataError
        If the first offsets are damaged.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        decoder: Decoder,
        bad_records: BadRecords,
        log: Path,
    ) -> None:
        need_extra("kafka", "a source of Kafka on the local engine")
        self.schema = schema
        self.bad_records = bad_records
        self._decoder = decoder
        self._options = KafkaOptions.parse(options)
        self._log = log / "0"
        self._first = self._read_first()
        self._trouble = ""
        self._silent_since: float | None = None
        self._stops = False
        self._last: dict[Partition, int] | None = None
        self._partitions: list[Partition] = []
        self._bounds: dict[Partition, tuple[int, int]] = {}
        self._partitions_until_s = self._bounds_until_s = -math.inf
        self._lost: set[tuple[Partition, int]] = set()
        self._consumer = self._connect()

    def _connect(self) -> Any:
        from confluent_kafka import Consumer, KafkaException

        settings: dict[str, Any] = {
            "group.id": f"penstock-{new_id()}",
            **self._options.client,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error" if self._options.fails_on_loss else "earliest",
            "error_cb": self._note_trouble,
            "logger": _LOGGER,
        }
        try:
            return Consumer(settings)
        except KafkaException as error:
            raise InvalidUsageError(
                "Kafka's client refuses its settings",
                reason=error.args[0].str(),
                hint="the local engine uses librdkafka, which lacks some settings of the Java client",
            ) from None

    def _note_trouble(self, error: Any) -> None:
        self._trouble = error.name()

    # ------------------------------------------------------------------------------------ offsets

    def _read_first(self) -> dict[Partition, int] | None:
        try:
            text = self._log.read_bytes()
        except FileNotFoundError:
            return None
        try:
            version, _, offsets = text.removeprefix(b"\0").decode().partition("\n")
            if version != "v1":
                raise ValueError
            return _partitions(json.loads(offsets))
        except ValueError:
            raise CorruptDataError("the first offsets of a source are damaged", file=self._log) from None

    def _begin(
        self, start: Offset | None, bounds: Mapping[Partition, tuple[int, int]]
    ) -> dict[Partition, int]:
        """Return the first offset to read in each partition. New partitions are read from their beginning."""
        if start is None:
            if self._first is None:
                self._first = self._choose_first(bounds)
                write_whole(self._log, b"\0v1\n" + json.dumps(_offset(self._first)).encode())
            known = self._first
        else:
            known = _partitions(start)
        for partition in known.keys() - bounds.keys():
            self._lose(partition, known[partition], None)
        begin = {}
        for partition, (low, high) in bounds.items():
            begin[partition] = known.get(partition, low)
            if not low <= begin[partition] <= high:
                self._lose(partition, begin[partition], low)
                begin[partition] = low
        return begin

    def _lose(self, partition: Partition, offset: int, low: int | None) -> None:
        facts = {"topic": partition[0], "partition": partition[1], "offset": offset, "first_offset": low}
        if self._options.fails_on_loss:
            raise InvalidUsageError(
                "Kafka has deleted records that the query has not read",
                hint='write options: {failOnDataLoss: "false"} to continue without these records',
                **facts,
            )
        if (partition, offset) in self._lost:
            return
        self._lost.add((partition, offset))
        text = " ".join(f"{name}={value}" for name, value in facts.items())
        _LOGGER.warning("kafka has deleted records that the query has not read [%s]", text)

    def _choose_first(self, bounds: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        start = self._options.start
        given = dict.fromkeys(bounds, start) if isinstance(start, int) else start
        if missing := sorted(bounds.keys() ^ given.keys()):
            raise InvalidUsageError(
                "the start does not name exactly the partitions to read",
                topic=missing[0][0],
                partition=missing[0][1],
                hint="name each partition with an offset; -2 is its first record, -1 is its end",
            )
        if self._options.start_kind == "time":
            return self._find_times(given, bounds)
        named = {EARLIEST: 0, LATEST: 1}
        return {
            partition: bounds[partition][named[offset]] if offset in named else offset
            for partition, offset in given.items()
        }

    def _find_times(
        self, times: Mapping[Partition, int], bounds: Mapping[Partition, tuple[int, int]]
    ) -> dict[Partition, int]:
        from confluent_kafka import KafkaException, TopicPartition

        asked = [TopicPartition(*partition, time_ms) for partition, time_ms in times.items()]
        answers = self._consumer.offsets_for_times(asked, timeout=_ANSWER_S)
        for one in answers:
            if one.error is not None:
                raise KafkaException(one.error)
        found = {(one.topic, one.partition): one.offset for one in answers}
        for partition, offset in found.items():
            if offset < 0:
                if self._options.late_start == "error":
                    raise InvalidUsageError(
                        "all records of a partition are older than the start",
                        topic=partition[0],
                        partition=partition[1],
                        hint="write startingOffsetsByTimestampStrategy: latest to start at its end",
                    )
                found[partition] = bounds[partition][1]
        return found

    def _find_bounds(self) -> dict[Partition, tuple[int, int]]:
        """Return the first offset and the end of each partition."""
        from confluent_kafka import TopicPartition

        if monotonic_s() >= self._bounds_until_s:
            self._bounds = {
                partition: self._consumer.get_watermark_offsets(TopicPartition(*partition), timeout=_ANSWER_S)
                for partition in self._find_partitions()
            }
            self._bounds_until_s = monotonic_s() + _BOUNDS_S
        return self._bounds

    def _find_partitions(self) -> list[Partition]:
        if monotonic_s() >= self._partitions_until_s:
            topics = self._consumer.list_topics(timeout=_ANSWER_S).topics
            for name in {*self._options.topics, *(topic for topic, _ in self._options.partitions)}:
                if name not in topics or not topics[name].partitions:
                    raise InvalidUsageError("a topic of Kafka does not exist", topic=name)
            there = [(name, number) for name, topic in topics.items() for number in topic.partitions]
            self._partitions = [one for one in sorted(there) if self._options.matches(one)]
            self._partitions_until_s = monotonic_s() + _TOPICS_S
        return self._partitions

    def find_end(self, start: Offset | None) -> Offset | None:
        """See `Input.find_end`. While brokers do not answer, there are no new rows; after a minute, fail."""
        found = self._ask(lambda: self._plan(start))
        return start if found is None else found

    def _plan(self, start: Offset | None) -> Offset:
        bounds = self._find_bounds()
        begin = self._begin(start, bounds)
        ends = {partition: high for partition, (_, high) in bounds.items()}
        if self._stops:
            self._last = ends if self._last is None else self._last
            ends = {one: min(end, max(self._last.get(one, 0), begin[one])) for one, end in ends.items()}
        return _offset(_limit(begin, ends, self._options.max_offsets))

    def _ask(self, ask: Callable[[], Found]) -> Found | None:
        """Return the brokers' answer; None if they do not answer now. After a minute of silence, fail."""
        from confluent_kafka import KafkaException

        while True:
            knows_partitions = monotonic_s() < self._partitions_until_s
            try:
                found = ask()
            except KafkaException as error:
                self._partitions_until_s = self._bounds_until_s = -math.inf
                if knows_partitions:
                    continue  # a topic may be gone
                self._check_patience(error.args[0])
                if not self._stops:
                    return None
                pause(_POLL_S)  # a broker that comes back sends no notification
                continue
            self._silent_since = None
            return found

    def _check_patience(self, error: Any) -> None:
        """Check that an error may be temporary.

        Raises
        ------
        UnavailableError
            If the error is permanent, or has lasted for a minute.
        """
        now_s = monotonic_s()
        self._silent_since = now_s if self._silent_since is None else self._silent_since
        if _passes(error) and now_s - self._silent_since < _PATIENCE_S:
            return
        raise UnavailableError(
            "the brokers of Kafka do not answer",
            error=error.name(),
            client_error=self._trouble,
            hint="check kafka.bootstrap.servers, the brokers and the credentials",
        )

    def is_new(self, start: Offset | None, end: Offset | None) -> bool:
        """See `Input.is_new`."""
        if end is None:
            return False
        known = (self._first or {}) if start is None else _partitions(start)
        return any(offset != known.get(partition, 0) for partition, offset in _partitions(end).items())

    # ------------------------------------------------------------------------------------ records

    def read(self, start: Offset | None, end: Offset) -> Iterator[pa.RecordBatch]:
        """See `Input.read`."""
        for records in self.read_records(start, end):
            yield from records.rows.to_batches()

    def read_records(self, start: Offset | None, end: Offset) -> Iterator[Records]:
        """See `RecordInput.read_records`."""
        ends = _partitions(end)
        known = (self._first or {}) if start is None else _partitions(start)
        try:
            for partition in sorted(ends):
                first = known.get(partition, EARLIEST)
                if first > ends[partition]:
                    first = EARLIEST  # the topic was made anew; the query continues without the lost records
                if first != ends[partition]:
                    for messages in self._consume(partition, first, ends[partition]):
                        yield self._decoder.decode(read_messages(messages))
        finally:
            self._consumer.unassign()

    def _consume(self, partition: Partition, first: int, end: int) -> Iterator[list[Any]]:
        """Yield the messages of a partition from offset `first` up to, but not including, `end`."""
        from confluent_kafka import TopicPartition

        self._consumer.assign([TopicPartition(*partition, first)])
        next_offset = max(first, 0)
        while next_offset < end:
            wanted = min(end - next_offset, _MAX_MESSAGES)
            read = []
            for message in self._consumer.consume(wanted, _POLL_S):
                error = message.error()
                if error is None:
                    next_offset = message.offset() + 1
                    read.append(message)
                elif _is_end(error):
                    next_offset = max(next_offset, message.offset())
                else:
                    self._refuse(error, partition)
            if next_offset > end:
                read = [message for message in read if message.offset() < end]
            if read:
                self._silent_since = None
                yield read
            elif next_offset < end:
                self._check_silence()

    def _refuse(self, error: Any, partition: Partition) -> None:
        if not _passes(error):
            raise InvalidUsageError(
                "a partition of Kafka cannot be read",
                topic=partition[0],
                partition=partition[1],
                error=error.name(),
                hint="records may be gone, or the client may not be allowed to read them",
            )

    def _check_silence(self) -> None:
        from confluent_kafka import KafkaError

        self._check_patience(KafkaError(KafkaError._TIMED_OUT))

    def release(self, end: Offset) -> None:
        """Do nothing: Kafka keeps its records."""

    def stop_at_present(self) -> None:
        """See `Input.stop_at_present`. The ends of the partitions at the next `find_end` are final."""
        self._stops = True
        self._partitions_until_s = self._bounds_until_s = -math.inf


def _passes(error: Any) -> bool:
    from confluent_kafka import KafkaError

    silent = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT, KafkaError._RESOLVE)
    return error.retriable() or error.code() in silent


def _is_end(error: Any) -> bool:
    from confluent_kafka import KafkaError

    return bool(error.code() == KafkaError._PARTITION_EOF)


def _limit(begin: Mapping[Partition, int], ends: Mapping[Partition, int], most: int) -> dict[Partition, int]:
    """Return the ends of a micro-batch. As in Spark, partitions share the maximum number of offsets."""
    new = {partition: end - begin[partition] for partition, end in ends.items()}
    total = sum(new.values())
    if total <= most:
        return dict(ends)
    shares = {partition: most * count / total for partition, count in new.items()}
    whole = {one: int(share) if share >= 1 else int(share > 0) for one, share in shares.items()}
    return {partition: begin[partition] + min(whole[partition], count) for partition, count in new.items()}


def _partitions(offset: Offset) -> dict[Partition, int]:
    return {(topic, int(number)): end for topic, ends in offset.items() for number, end in ends.items()}


def _offset(partitions: Mapping[Partition, int]) -> Offset:
    offset: dict[str, dict[str, int]] = {}
    for (topic, number), end in sorted(partitions.items()):
        offset.setdefault(topic, {})[str(number)] = end
    return offset
