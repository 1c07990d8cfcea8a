"""`design_queue`: propose key, buckets and working copy of a queue or of windows, from a p-stream's rows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.checkpointing.p_stream import PStream
from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.operators.update_stream.stream import as_int64, concat
from penstock.state_store.keys.key_words import KeyCodec, buckets_of
from penstock.units import parse_duration_us

__all__ = ["KeyStatistics", "QueueProposal", "design_queue", "expected_staleness"]

MIN_UPDATES_PER_KEY = 3.0
"""The least mean number of rows per value of a proposed key. With fewer, a queue conflates too few rows."""
BYTES_PER_KEY = 180
"""The memory for a key of a queue, in addition to its row (benchmarks/results/update_queue_copies.txt)."""
BYTES_PER_ENTRY = 130
"""The memory for one group in one pane (benchmarks/results/windows_growth.txt)."""
WINDOW_ROWS_A_SECOND = 2_000_000
"""The rows per second that a bucket adds to windows of a million groups (same file)."""
MAX_ROWS = 1_000_000
_MAX_ITERATIONS = 1_000
_SHOWN_OTHERS = 3

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class KeyStatistics:
    """Statistics of a possible key in a sample of rows.

    Attributes
    ----------
    columns : tuple of str
        The key's columns.
    rates : ndarray of float64
        The updates per second of each distinct value, the most frequent value first.
    hashes : ndarray of uint64
        The hash of each distinct value. The hash of a value decides its bucket.
    updates : float
        The mean number of rows per distinct value.
    """

    columns: tuple[str, ...]
    rates: Floats
    hashes: npt.NDArray[np.uint64]
    updates: float

    @staticmethod
    def of(rows: pa.RecordBatch, columns: Sequence[str], seconds: float) -> KeyStatistics:
        """Return the statistics of a key without nulls; `seconds` is the time span of the rows."""
        arrays = [rows.column(name) for name in columns]
        if any(array.null_count for array in arrays):
            there = pc.is_valid(arrays[0])
            for array in arrays[1:]:
                there = pc.and_(there, pc.is_valid(array))
            arrays = [array.filter(there) for array in arrays]
        codec = KeyCodec([rows.schema.field(name) for name in columns])
        found, counts = np.unique(codec.encode(arrays).hashes, return_counts=True)
        order = np.argsort(-counts, kind="stable")
        updates = len(arrays[0]) / max(len(found), 1)
        return KeyStatistics(tuple(columns), counts[order] / seconds, found[order], updates)

    @property
    def keys(self) -> int:
        """The number of distinct values."""
        return len(self.rates)

    def hottest(self) -> float:
        """Return the share of rows whose value is among the most frequent 1 % (at least one value)."""
        return float(self.rates[: max(self.keys // 100, 1)].sum() / self.rates.sum())


@dataclass(frozen=True)
class QueueProposal:
    """A proposal for an update queue or for windows.

    Attributes
    ----------
    key : tuple of str
        The key's columns.
    buckets : int
        The number of buckets. Each bucket is a task.
    working_copy : str
        ``memory`` or ``rocksdb``; windows are always in memory.
    staleness_ms : float
        The estimated mean staleness of a queue's keys, if keys are served one after the other; 0 for windows.
    state_bytes : int
        The estimated memory of a bucket if all its state is in memory.
    reached : bool
        Whether the proposal reaches the requested staleness, or has enough buckets for the windows.
    lines : tuple of str
        The lines of the explanation.
    """

    key: tuple[str, ...]
    buckets: int
    working_copy: str
    staleness_ms: float
    state_bytes: int
    reached: bool
    lines: tuple[str, ...]

    def explain(self) -> str:
        """Return the proposal and its reasons as text."""
        return "\n".join(self.lines)


def expected_staleness(rates: Floats, cost_s: float) -> float:
    """Return the mean application staleness of keys, in seconds, if one server serves waiting keys in turn.

    A round over all keys takes T seconds, `cost_s` for each key that has an update: T = cost_s * sum(1 -
    exp(-rate * T)). If the server keeps up, T is 0, and waiting times are ignored. A key is stale from its
    first update after a service until it is served again. The mean staleness of a key is T / 2 - 1 / rate +
    (1 - exp(-rate * T)) / (rate² * T), plus the time of a service.

    Parameters
    ----------
    rates : ndarray of float64
        The updates per second of each key.
    cost_s : float
        The time to serve a key, in seconds.
    """
    if not len(rates):
        return 0.0
    round_s, before_s = cost_s * len(rates), float("inf")
    least_s = 1e-6 * cost_s
    for _ in range(_MAX_ITERATIONS):
        if abs(round_s - before_s) <= 1e-4 * round_s:
            break
        before_s, round_s = round_s, max(cost_s * float(-np.expm1(-rates * round_s).sum()), least_s)
    updated = -np.expm1(-rates * round_s)  # the probability that a key has an update in a round
    waits = np.maximum(round_s / 2 - 1 / rates + updated / (rates * rates * round_s), 0.0)
    at_service = np.maximum(1.0 - updated / (rates * round_s), 0.0)  # mean staleness at a service, in rounds
    served = cost_s * at_service + updated / round_s * cost_s * cost_s / 2
    return float((waits + served).mean())


@check_keywords
def design_queue(
    location: str | os.PathLike[str],
    *,
    time: str,
    key: Sequence[str] | str | None = None,
    cost: str = "50us",
    staleness: str = "1s",
    cores: int = 8,
    memory_bytes: int = 2 << 30,
    slide: str | None = None,
    size: str | None = None,
    rows: int = MAX_ROWS,
) -> QueueProposal:
    """Propose the key, the number of buckets and the working copy of an update queue for a p-stream.

    Only the newest rows are read, and nothing is written. With `size` and `slide`, the proposal is for
    windows instead of a queue.

    Parameters
    ----------
    location : str or path
        The p-stream.
    time : str
        The column of timestamps that holds the time of each update.
    key : str or sequence of str, optional
        The key. The default is the column with the most distinct values, among the columns whose values have
        several rows on average. Check the other columns that `explain` names: one of them may be a better
        key.
    cost : str
        The time to process a tuple that leaves the queue.
    staleness : str
        The target: the mean staleness that keys may have.
    cores : int
        The greatest number of buckets to propose.
    memory_bytes : int
        The memory that a bucket may use.
    size, slide : str, optional
        The size and slide of windows.
    rows : int
        The number of rows to read, from the p-stream's end.

    Returns
    -------
    QueueProposal
        The proposal, with its explanation.

    Raises
    ------
    InvalidUsageError
        If the p-stream or a column does not exist, or all rows have the same time.
    CorruptDataError, UnavailableError
        If the p-stream's files are damaged, or the file system refuses.
    """
    if (size is None) != (slide is None) or cores < 1 or rows < 1:
        raise InvalidUsageError(
            "windows need a size and a slide; cores and rows must be positive", cores=cores, rows=rows
        )
    sample = _newest_rows(location, rows)
    _check_columns(sample.schema, [time, *([key] if isinstance(key, str) else key or [])])
    if not pa.types.is_timestamp(sample.schema.field(time).type):
        raise InvalidUsageError("the time is not a timestamp", column=time)
    at = as_int64(sample.column(time).drop_null().cast(pa.timestamp("us", sample.schema.field(time).type.tz)))
    seconds = float(at.max() - at.min()) / 1e6 if len(at) else 0.0
    if seconds <= 0.0:
        raise InvalidUsageError("a sample needs rows of several moments", rows=sample.num_rows, column=time)
    if key is not None:
        names = (key,) if isinstance(key, str) else tuple(key)
        keys = [KeyStatistics.of(sample, names, seconds)]
    else:
        keys = _choose_key(sample, time, seconds)
    chosen, others = keys[0], keys[1:]
    head = list(_describe_key(chosen, others, sample.num_rows, seconds))
    if size is not None and slide is not None:
        panes = -(-parse_duration_us(size) // max(parse_duration_us(slide), 1))
        return _windows(chosen, sample.num_rows / seconds, panes, cores, memory_bytes, head)
    row_bytes = sample.nbytes // sample.num_rows
    cost_s, target_s = parse_duration_us(cost) / 1e6, parse_duration_us(staleness) / 1e6
    return _queue(chosen, row_bytes, cost_s, target_s, cores, memory_bytes, head)


def _newest_rows(location: str | os.PathLike[str], rows: int) -> pa.RecordBatch:
    stream = PStream(os.fspath(location))
    batches = list(stream.read(max(stream.start, stream.end - rows), stream.end))
    if not batches:
        raise InvalidUsageError("the p-stream has no rows", location=os.fspath(location))
    return concat(batches)


def _check_columns(schema: pa.Schema, names: Sequence[str]) -> None:
    for name in names:
        if name not in schema.names:
            hint = did_you_mean(name, schema.names, "columns")
            raise InvalidUsageError("the p-stream has no such column", column=name, hint=hint)


def _choose_key(sample: pa.RecordBatch, time: str, seconds: float) -> list[KeyStatistics]:
    """Return the columns that may be a key, the best column first."""
    kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    found = [
        KeyStatistics.of(sample, [field.name], seconds)
        for field in sample.schema
        if field.name != time and any(is_kind(field.type) for is_kind in kinds)
    ]
    usable = [one for one in found if one.updates >= MIN_UPDATES_PER_KEY]
    if not usable:
        raise InvalidUsageError(
            "no column has values with several rows each",
            columns=[one.columns[0] for one in found],
            hint="name the key, or give more rows",
        )
    return sorted(usable, key=lambda one: -one.keys)


def _describe_key(
    chosen: KeyStatistics, others: Sequence[KeyStatistics], rows: int, seconds: float
) -> Iterator[str]:
    yield f"{rows:,} rows of {seconds:,.1f} s, {rows / seconds:,.0f} a second"
    yield ""
    yield f"key: {', '.join(chosen.columns)}"
    hottest = max(chosen.keys // 100, 1)
    yield (
        f"  {chosen.keys:,} values with {chosen.updates:,.1f} rows each; the most frequent {hottest:,} "
        f"{'has' if hottest == 1 else 'have'} {chosen.hottest():.0%} of the rows"
    )
    for other in islice(others, _SHOWN_OTHERS):
        yield f"  or {', '.join(other.columns)}: {other.keys:,} values with {other.updates:,.1f} rows each"


def _queue(
    key: KeyStatistics,
    row_bytes: int,
    cost_s: float,
    target_s: float,
    cores: int,
    memory_bytes: int,
    head: list[str],
) -> QueueProposal:
    buckets, stale = cores, 0.0
    for count in range(1, cores + 1):
        places = buckets_of(key.hashes, count)
        parts = [key.rates[places == bucket] for bucket in range(count)]
        stale = sum(expected_staleness(part, cost_s) * len(part) for part in parts) / key.keys
        if stale <= target_s:
            buckets = count
            break
    reached = stale <= target_s
    state_bytes = key.keys * (BYTES_PER_KEY + row_bytes) // buckets
    copy = "memory" if state_bytes <= memory_bytes else "rocksdb"
    load = float(key.rates.sum()) * cost_s / buckets
    target = f"the target is {target_s * 1e3:,.0f} ms"
    lines = [
        *head,
        f"buckets: {buckets}",
        f"  a tuple costs {cost_s * 1e6:,.0f} us, so a bucket gets {load:.2f} times the updates that it can "
        "process",
        f"  keys are stale for {stale * 1e3:,.1f} ms on average if served in turn; {target}"
        + ("" if reached else f": {cores} cores do not reach it, so allow more cores or reduce the cost"),
        f"working copy: {copy}",
        f"  {state_bytes / 2**20:,.1f} MiB a bucket in memory, of {memory_bytes / 2**20:,.0f}",
    ]
    return QueueProposal(key.columns, buckets, copy, stale * 1e3, state_bytes, reached, tuple(lines))


def _windows(
    key: KeyStatistics, rate: float, panes: int, cores: int, memory_bytes: int, head: list[str]
) -> QueueProposal:
    # `whole` is an upper bound: a group needs memory only in panes in which it has rows.
    by_rate = -(-int(rate) // WINDOW_ROWS_A_SECOND)
    whole = key.keys * panes * BYTES_PER_ENTRY
    wanted = max(by_rate, -(-whole // memory_bytes), 1)
    buckets = min(wanted, cores)
    lines = [
        *head,
        f"buckets: {buckets}",
        f"  a bucket takes {WINDOW_ROWS_A_SECOND:,} rows a second at least",
        "working copy: memory, as for all windows",
        f"  at most {whole / buckets / 2**20:,.1f} MiB a bucket: {key.keys:,} groups in {panes:,} panes",
    ]
    if wanted > cores:
        lines.append(f"  {wanted} buckets would be needed, and there are {cores} cores")
    return QueueProposal(key.columns, buckets, "memory", 0.0, whole // buckets, wanted <= cores, tuple(lines))
