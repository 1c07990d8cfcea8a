"""The data source ``market``: `penstock.market.Market` as a Spark stream or batch."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from penstock import _clock
from penstock.errors import InvalidUsageError
from penstock.market import NYSE_SKEW, NYSE_SYMBOLS, Market
from penstock.spark_ext.border.spark_versions import (
    HAS_ADMISSION_CONTROL,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from penstock.spark_ext.sources.wake import hide_lost_driver

__all__ = ["MarketDataSource"]

_BATCH_ROWS: Final = 65_536
_START_US: Final = 1_136_298_600_000_000  # 2006-01-03 14:30 UTC: the opening of the year's first trading day

_NAMES: Final = {
    name.lower(): name
    for name in (
        "rowsPerSecond",
        "symbols",
        "skew",
        "seed",
        "numPartitions",
        "startTime",
        "maxRowsPerTrigger",
        "rows",
        "realTime",
    )
}


@dataclass(frozen=True, slots=True)
class _Options:
    """The source's options, checked."""

    rate: int
    symbols: int
    skew: float
    seed: int
    partitions: int
    start_us: int | None
    max_rows: int | None
    rows: int | None
    real_time: bool

    @classmethod
    def parse(cls, options: MutableMapping[str, str]) -> _Options:
        texts = {name.lower(): text for name, text in dict(options).items()}
        unknown = sorted(texts.keys() - _NAMES.keys() - {"path"})
        if unknown:
            near = difflib.get_close_matches(unknown[0], _NAMES, n=1)
            raise InvalidUsageError(
                f"the market source has no option {', '.join(map(repr, unknown))}",
                hint=f"did you mean {_NAMES[near[0]]!r}?"
                if near
                else f"the options are {', '.join(_NAMES.values())}",
            )
        parsed = cls(
            rate=_whole(texts, "rowsPerSecond", 10_000, least=1),
            symbols=_whole(texts, "symbols", NYSE_SYMBOLS, least=1),
            skew=_number(texts, "skew", NYSE_SKEW),
            seed=_whole(texts, "seed", 0, least=None),
            partitions=_whole(texts, "numPartitions", 2, least=1),
            start_us=_optional(texts, "startTime", least=None),
            max_rows=_optional(texts, "maxRowsPerTrigger", least=1),
            rows=_optional(texts, "rows", least=0),
            real_time=_flag(texts, "realTime", True),
        )
        parsed.market(0)  # refuses values out of range here, on the driver
        return parsed

    def market(self, start_us: int) -> Market:
        return _market(self, start_us)


@lru_cache(maxsize=8)
def _market(options: _Options, start_us: int) -> Market:
    """Return a market, from a cache because making its tables takes longer than making a few rows."""
    return Market(
        symbols=options.symbols, rate=options.rate, skew=options.skew, seed=options.seed, start_us=start_us
    )


def _bad(name: str, text: str, expected: str) -> InvalidUsageError:
    return InvalidUsageError(f"the market source's option {name} is not {expected}", field=name, got=text)


def _whole(texts: dict[str, str], name: str, default: int, *, least: int | None) -> int:
    value = _optional(texts, name, least=least)
    return default if value is None else value


def _optional(texts: dict[str, str], name: str, *, least: int | None) -> int | None:
    text = texts.get(name.lower())
    if text is None:
        return None
    expected = "a whole number" if least is None else f"a whole number of at least {least}"
    try:
        value = int(text)
    except ValueError:
        raise _bad(name, text, expected) from None
    if least is not None and value < least:
        raise _bad(name, text, expected)
    return value


def _number(texts: dict[str, str], name: str, default: float) -> float:
    text = texts.get(name.lower())
    if text is None:
        return default
    try:
        return float(text)
    except ValueError:
        raise _bad(name, text, "a number") from None


def _flag(texts: dict[str, str], name: str, default: bool) -> bool:
    text = texts.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise _bad(name, text, "true or false")
    return text.lower() == "true"


class _Rows(InputPartition):
    """Rows `start` to `end` - 1 of the market that began at `start_us`."""

    def __init__(self, start_us: int, start: int, end: int) -> None:
        super().__init__(None)
        self.start_us = start_us
        self.start = start
        self.end = end


def _split(start_us: int, start: int, end: int, parts: int) -> list[_Rows]:
    rows = end - start
    edges = [start + rows * part // parts for part in range(parts + 1)]
    return [_Rows(start_us, low, high) for low, high in pairwise(edges) if low < high]


def _read(options: _Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    if not isinstance(partition, _Rows):
        raise TypeError("a partition of another source")
    market = options.market(partition.start_us)
    for low in range(partition.start, partition.end, _BATCH_ROWS):
        yield market.batch(low, min(low + _BATCH_ROWS, partition.end))


class MarketDataSource(DataSource):
    """Spark's view of a `penstock.market.Market`, registered under the name ``market``.

    Columns: ``time timestamp, symbol string, price double, volume int, seq bigint``; ``seq`` is the row's
    number, from 0, and row *i* has the event time ``startTime + i / rowsPerSecond``.

    Options
    -------
    rowsPerSecond : 10000
        Rows per second of event time. If `realTime` is true, also rows per second of real time.
    symbols : 3000
        Number of symbols.
    skew : 4305
        The number of updates of the most active symbol for each update of the least active symbol.
    seed : 0
        The seed of the trades.
    numPartitions : 2
        The number of Spark tasks that make the rows of a batch. The rows do not depend on this number.
    startTime
        Event time of row 0 in microseconds since the epoch. The default for a batch is 2006-01-03 14:30 UTC;
        for a stream, the time of the query's first start. Before Spark 4.2, streams have the same default as
        batches; without `rows`, such a stream begins with the first row after the query's first start.
    maxRowsPerTrigger
        The greatest number of rows of a micro-batch. Unlimited by default.
    rows
        The number of rows after which the stream ends. Required for a batch read.
    realTime : true
        Whether a row of a stream becomes available only at its event time. With ``false`` all rows are
        available at once; then `rows` or `maxRowsPerTrigger` must be given, to limit a micro-batch.

    Notes
    -----
    Every offset holds the start time and all options that determine the rows. So a restart from the
    checkpoint resumes exactly, and a batch that runs again gets the same rows. A restart with different
    values of these options is refused.

    If `rows` is given, ``Trigger.AvailableNow`` reads up to `rows`, regardless of the clock. Otherwise it
    reads the rows whose event time has passed.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._parsed = _Options.parse(options)

    @classmethod
    def name(cls) -> str:
        """Return the name to pass to ``format()``."""
        return "market"

    def schema(self) -> str:
        """Return the columns as DDL."""
        return "time timestamp, symbol string, price double, volume int, seq bigint"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch."""
        return _MarketReader(self._parsed)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a stream."""
        return _MarketStreamReader(self._parsed, start_is_late=not HAS_ADMISSION_CONTROL)

    def local_reader(self) -> DataSourceStreamReader:
        """Return the reader for the local engine, which passes the start of each micro-batch."""
        return _MarketStreamReader(self._parsed, start_is_late=False)


class _MarketReader(DataSourceReader):
    """Reads rows 0 to `rows` once."""

    def __init__(self, options: _Options) -> None:
        if options.rows is None:
            raise InvalidUsageError(
                "a batch read of the market source needs an end", hint="set the option rows", field="rows"
            )
        self._options = options
        self._rows = options.rows

    def partitions(self) -> Sequence[InputPartition]:
        start_us = self._options.start_us
        return _split(_START_US if start_us is None else start_us, 0, self._rows, self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)


class _MarketStreamReader(SupportsTriggerAvailableNow, DataSourceStreamReader):
    """Plans micro-batches on the driver (one process for the life of a query) and reads them on workers.

    Set `start_is_late` for Spark before 4.2: after a restart, it asks for the end of a micro-batch before it
    passes the start.
    """

    def __init__(self, options: _Options, *, start_is_late: bool) -> None:
        hide_lost_driver()
        if not options.real_time and options.rows is None and options.max_rows is None:
            raise InvalidUsageError(
                "a micro-batch of the market source has no end without realTime",
                hint="set rows or maxRowsPerTrigger",
                field="realTime",
            )
        self._options = options
        self._start_is_late = start_is_late
        self._available_now = False
        self._target: int | None = None  # fixed by the first latestOffset of an AvailableNow run
        self._start_us: int | None = None  # known once Spark has named an offset
        self._first_row: int | None = None  # the row at which a stream with a late start begins

    def _offset(self, start_us: int, row: int) -> dict[str, Any]:
        options = self._options
        return {
            "row": row,
            "startTime": start_us,
            "rowsPerSecond": options.rate,
            "symbols": options.symbols,
            "skew": repr(options.skew),
            "seed": options.seed,
        }

    def _check(self, offset: dict[str, Any]) -> None:
        now = self._offset(offset["startTime"], offset["row"])
        if self._options.start_us is not None:
            now["startTime"] = self._options.start_us
        changed = sorted(name for name in now if now[name] != offset.get(name))
        if changed:
            name = changed[0]
            raise InvalidUsageError(
                f"the checkpoint was written with another {name} of the market",
                hint="set the old value again, or start with a new checkpoint",
                field=name,
                was=offset.get(name),
                got=now[name],
            )

    def _check_restart(self, start: dict[str, Any], end: dict[str, Any]) -> None:
        # After a restart, older versions of Spark pass no start to `latestOffset`. Newer versions pass the
        # start, but at a first start they ask twice for the first offset, and the two offsets have different
        # start times.
        self._check(start)
        if start["startTime"] != end["startTime"]:
            raise InvalidUsageError(
                "the checkpoint was written with another startTime of the market",
                hint="start with a new checkpoint",
                field="startTime",
                was=start["startTime"],
                got=end["startTime"],
            )

    def _rows_until_now(self, start_us: int) -> int:
        rows = self._options.market(start_us).row_at(_clock.now_us())
        return rows if self._options.rows is None else min(rows, self._options.rows)

    def _available(self, start: dict[str, Any]) -> int | None:
        """Return the end of the available rows; None if there is no limit."""
        options = self._options
        if not self._available_now:
            return self._rows_until_now(start["startTime"]) if options.real_time else options.rows
        if self._target is None:
            if options.rows is not None:
                self._target = options.rows
            elif options.real_time and (start["row"] > 0 or options.start_us is not None):
                self._target = self._rows_until_now(start["startTime"])
            else:
                raise InvalidUsageError(
                    "the market source has no rows yet for AvailableNow to read",
                    hint="set the option rows, the number of rows to end at",
                    field="rows",
                )
        return self._target

    def initialOffset(self) -> dict[str, Any]:
        start_us = self._options.start_us
        if start_us is not None or not self._start_is_late:
            return self._offset(_clock.now_us() if start_us is None else start_us, 0)
        # After a restart, older versions of Spark ask for the newest offset before they pass the first
        # offset. So every start must use the same start time.
        if self._first_row is None:
            self._first_row = self._rows_until_now(_START_US) if self._options.rows is None else 0
        return self._offset(_START_US, self._first_row)

    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now = True

    def getDefaultReadLimit(self) -> ReadLimit:
        max_rows = self._options.max_rows
        return ReadAllAvailable() if max_rows is None else ReadMaxRows(max_rows)

    def latestOffset(self, start: dict[str, Any] | None, limit: ReadLimit) -> dict[str, Any]:
        start = self.initialOffset() if start is None else start
        self._check(start)
        is_first_call, self._start_us = self._start_us is None, start["startTime"]
        if is_first_call and self._options.rows is None and start["row"] == self._first_row:
            # Make the first micro-batch empty. If another process runs it again, that process starts at a
            # later row, but takes the end from the checkpoint, so the micro-batch is empty again.
            return start
        row = start["row"]
        end = self._available(start)
        if isinstance(limit, ReadMaxRows):
            end = row + limit.max_rows if end is None else min(end, row + limit.max_rows)
        if end is None:
            raise InvalidUsageError(
                "the market source has no end for AvailableNow to read to",
                hint="set the option rows, the number of rows to end at",
                field="rows",
            )
        return self._offset(start["startTime"], max(row, end))

    def reportLatestOffset(self) -> dict[str, Any] | None:
        if self._start_us is None:
            return None
        if not self._options.real_time:
            rows = self._options.rows
            return None if rows is None else self._offset(self._start_us, rows)
        return self._offset(self._start_us, self._rows_until_now(self._start_us))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        self._check(end)
        if self._start_is_late:
            self._check_restart(start, end)
        return _split(end["startTime"], start["row"], end["row"], self._options.partitions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(self._options, partition)
