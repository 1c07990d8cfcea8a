"""A market of symbols with update rates as skewed as on a stock exchange.

Row *i* of the stream depends only on the market's settings and *i*, so any process can generate any range of
rows at any time, always with the same result. Nothing here imports pyspark: the Spark data source is
`penstock.spark_ext.sources.market`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from penstock.errors import InvalidUsageError
from penstock.units import FOREVER

__all__ = ["MARKET_SCHEMA", "NYSE_SKEW", "NYSE_SYMBOLS", "Market"]

NYSE_SYMBOLS: Final = 3_000
"""The number of symbols of the trading day in UpStream, Fig. 8."""

NYSE_SKEW: Final = 4_305.0
"""The ratio of updates of that day's most and least active symbols (UpStream §5.3)."""

MARKET_SCHEMA: Final = pa.schema(
    [
        ("time", pa.timestamp("us", tz="UTC")),
        ("symbol", pa.string()),
        ("price", pa.float64()),
        ("volume", pa.int32()),
        ("seq", pa.int64()),
    ]
)
"""Columns of the stream: event time, ticker, price with two decimals, shares, and the row's number."""

_U64 = NDArray[np.uint64]
_I64 = NDArray[np.int64]
_F64 = NDArray[np.float64]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF
_BLOCK_ROWS = 16_384  # the intermediate columns of a block stay in the processor's cache

# Streams of hashes, one for each use, so that no two of a row's values depend on each other.
_SYMBOL, _VOLUME, _BASE, _WALK = 1, 2, 3, 4

_WAVES_US = (64_000_000, 4_000_000)  # how long a price keeps its direction: a slow and a fast wave
_WAVE_SIZES = (0.05, 0.01)  # how far each wave carries a price from its base


def _mix(values: _U64) -> _U64:
    """Return a hash of each value, in place (the finalizer of SplitMix64)."""
    values ^= values >> np.uint64(30)
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def _hashes(numbers: _I64, key: int) -> _U64:
    values = numbers.view(np.uint64) * np.uint64(_GOLDEN)
    values += np.uint64(key)
    return _mix(values)


def _unit(hashes: _U64) -> _F64:
    """Return each hash as a number of [0, 1)."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Market:
    """A deterministic, endless stream of trades.

    Used by workers (one range of rows for a task) and by simulations. Creating a market takes well under a
    millisecond; its tables are created at the first batch and kept.

    Parameters
    ----------
    symbols : int
        Number of symbols, the update keys.
    rate : int
        Rows in a second of event time.
    skew : float
        The expected ratio of updates of the most and the least active symbol. With 1 all are equally active.
    seed : int
        A different seed gives different trades with the same distribution. Only 64 bits of the seed are used.
    start_us : int
        Event time of row 0, in microseconds since the Unix epoch.

    Raises
    ------
    InvalidUsageError
        If a setting is out of its range.

    Notes
    -----
    UpStream §5.3 states the ends of the distribution: more than 3,000 symbols, 4,305 updates of the most
    active and 1 of the least. Between the ends the rate falls by the same factor from each rank to the next,
    ``weight(rank) = skew ** (-rank / (symbols - 1))``. The formula is our own, because the paper only plots
    the distribution.

    Examples
    --------
    >>> market = Market(rate=1_000)
    >>> market.batch(0, 3).num_rows
    3
    """

    symbols: int = NYSE_SYMBOLS
    rate: int = 10_000
    skew: float = NYSE_SKEW
    seed: int = 0
    start_us: int = 0

    def __post_init__(self) -> None:
        for name in ("symbols", "rate", "seed", "start_us"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise InvalidUsageError(f"{name} is not a whole number", field=name, got=value)
        if not 1 <= self.symbols <= 10_000_000:
            raise InvalidUsageError("a market has 1 to 10,000,000 symbols", field="symbols", got=self.symbols)
        if not 1 <= self.rate <= 1_000_000_000_000:
            raise InvalidUsageError(
                "a market has 1 to 1,000,000,000,000 rows a second", field="rate", got=self.rate
            )
        if not (math.isfinite(self.skew) and self.skew >= 1):
            raise InvalidUsageError(
                "the skew of a market is less than 1",
                hint="use 1 or more; 1 makes all symbols equally active",
                field="skew",
                got=self.skew,
            )

    @cached_property
    def weights(self) -> _F64:
        """Expected share of the rows for each symbol, the most active symbol first; float64, sums to 1."""
        ranks = np.arange(self.symbols, dtype=np.float64)
        weights = self.skew ** (-ranks / max(self.symbols - 1, 1))
        return weights / weights.sum()

    @cached_property
    def tickers(self) -> list[str]:
        """Ticker of each symbol, by rank: distinct, of equal length, in no order."""
        width = self._letters.shape[1]
        return [bytes(row).decode("ascii") for row in self._letters.reshape(-1, width)]

    @cached_property
    def _letters(self) -> NDArray[np.uint8]:
        width = 3
        while 26**width < self.symbols:
            width += 1
        # 7 ** 9 has no factor in common with 26, so distinct ranks stay distinct.
        numbers = (np.arange(self.symbols, dtype=np.int64) * 7**9 + 8_191) % 26**width
        powers = 26 ** np.arange(width - 1, -1, -1, dtype=np.int64)
        return (numbers[:, None] // powers % 26 + ord("A")).astype(np.uint8)

    @cached_property
    def _cumulative(self) -> _F64:
        cumulative = np.cumsum(self.weights)
        cumulative[-1] = 1.0  # so that a draw below 1 finds a symbol despite rounding
        return cumulative

    @cached_property
    def _guide(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """The first and the last symbol that a draw in each of many equal slices of [0, 1) can select."""
        slices = 1 << 16
        edges = np.arange(slices + 1, dtype=np.float64) / slices
        first = self._cumulative.searchsorted(edges[:-1], side="right").astype(np.int32)
        last = self._cumulative.searchsorted(np.nextafter(edges[1:], 0.0), side="right")
        return first, last.astype(np.int32)

    @cached_property
    def _bases(self) -> _F64:
        """Base price of each symbol, between 5 and 500."""
        numbers = np.arange(self.symbols, dtype=np.int64)
        return 5.0 * 100.0 ** _unit(_hashes(numbers, self._stream(_BASE)))

    def _stream(self, use: int) -> int:
        mixed = _mix(np.array([(self.seed + use * _GOLDEN) & _MASK], dtype=np.uint64))
        return int(mixed[0])

    def row_at(self, time_us: int) -> int:
        """Return how many rows have an event time of at most `time_us`; 0 before the start."""
        elapsed_us = time_us - self.start_us
        return 0 if elapsed_us < 0 else ((elapsed_us + 1) * self.rate - 1) // 1_000_000 + 1

    def ranks(self, start: int, end: int) -> _I64:
        """Return the rank of the symbol of each row from `start` to `end` - 1, int64."""
        rows = np.arange(start, end, dtype=np.int64)
        return self._draw(_unit(_hashes(rows, self._stream(_SYMBOL))))

    def _draw(self, uniform: _F64) -> _I64:
        first, last = self._guide
        slices = (uniform * len(first)).astype(np.int64)
        ranks = first[slices].astype(np.int64)
        # In a slice that holds the border of two symbols, search for the symbol.
        unsure = np.flatnonzero(ranks != last[slices])
        ranks[unsure] = self._cumulative.searchsorted(uniform[unsure], side="right")
        return ranks

    def _times(self, start: int, end: int) -> _I64:
        # start + row / rate, in whole microseconds, without a product that exceeds 64 bits.
        whole, rest = divmod(start * 1_000_000, self.rate)
        steps = np.arange(end - start, dtype=np.int64) * 1_000_000 + rest
        return steps // self.rate + (self.start_us + whole)

    def _prices(self, ranks: _I64, times: _I64) -> _F64:
        factors = np.ones(len(ranks))
        elapsed = times - self.start_us
        for wave, (period_us, size) in enumerate(zip(_WAVES_US, _WAVE_SIZES, strict=True)):
            key = self._stream(_WALK + wave)
            periods = elapsed // period_us
            share = (elapsed - periods * period_us) / period_us
            # A symbol's wave has a random height at the start of each cell of time, and straight lines
            # between.
            points = (periods << np.int64(24)) + ranks
            left = _unit(_hashes(points, key))
            right = _unit(_hashes(points + np.int64(1 << 24), key))
            factors += (left + (right - left) * share - 0.5) * (2.0 * size)
        return np.rint(self._bases[ranks] * factors * 100.0) / 100.0

    def _volumes(self, rows: _I64) -> NDArray[np.int32]:
        hashes = _hashes(rows, self._stream(_VOLUME))
        # The smaller of two draws, squared, makes small round lots common.
        draw = np.minimum(hashes & np.uint64(0xFF), (hashes >> np.uint64(8)) & np.uint64(0xFF))
        lots = (draw * draw >> np.uint64(8)).astype(np.int32) + np.int32(1)
        return lots * np.int32(100)

    def _symbols(self, ranks: _I64) -> pa.Array:
        letters = self._letters
        width = letters.shape[1]
        offsets = np.arange(0, (len(ranks) + 1) * width, width, dtype=np.int32)
        text = letters[ranks]
        return pa.StringArray.from_buffers(len(ranks), pa.py_buffer(offsets), pa.py_buffer(text))

    def batch(self, start: int, end: int) -> pa.RecordBatch:
        """Return the rows from `start` to `end` - 1.

        Parameters
        ----------
        start, end : int
            Row numbers, ``0 <= start <= end``; at most 100 million rows at once.

        Returns
        -------
        pyarrow.RecordBatch
            With `MARKET_SCHEMA`, without nulls, in order of ``seq`` and of ``time``; the caller owns it.

        Raises
        ------
        InvalidUsageError
            If the range is invalid, or an event time would not fit 64 bits.
        """
        if not 0 <= start <= end:
            raise InvalidUsageError("not a range of rows", start=start, end=end)
        if end - start > 100_000_000:
            raise InvalidUsageError(
                "a batch holds at most 100,000,000 rows", hint="make several", start=start, end=end
            )
        if self.start_us + end * 1_000_000 // self.rate > FOREVER:
            raise InvalidUsageError("the event times do not fit 64 bits", start=start, end=end)
        rows = np.arange(start, end, dtype=np.int64)
        times = np.empty(end - start, dtype=np.int64)
        ranks = np.empty(end - start, dtype=np.int64)
        prices = np.empty(end - start)
        volumes = np.empty(end - start, dtype=np.int32)
        for low in range(0, end - start, _BLOCK_ROWS):
            block = slice(low, min(low + _BLOCK_ROWS, end - start))
            times[block] = self._times(start + block.start, start + block.stop)
            ranks[block] = self.ranks(start + block.start, start + block.stop)
            prices[block] = self._prices(ranks[block], times[block])
            volumes[block] = self._volumes(rows[block])
        columns = [
            pa.array(times).cast(MARKET_SCHEMA.field("time").type),
            self._symbols(ranks),
            pa.array(prices),
            pa.array(volumes),
            pa.array(rows),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=MARKET_SCHEMA)
