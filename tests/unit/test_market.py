"""The market generator."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidUsageError
from penstock.market import MARKET_SCHEMA, Market


@given(
    start=st.integers(0, 10**12),
    sizes=st.tuples(st.integers(0, 40_000), st.integers(0, 40_000)),
    rate=st.integers(1, 10**8),
    symbols=st.integers(1, 5_000),
    seed=st.integers(-(2**70), 2**70),
)
def test_a_range_of_rows_is_the_same_however_it_is_cut(
    start: int, sizes: tuple[int, int], rate: int, symbols: int, seed: int
) -> None:
    market = Market(symbols=symbols, rate=rate, seed=seed)
    cut, end = start + sizes[0], start + sum(sizes)
    whole = pa.Table.from_batches([market.batch(start, end)])
    parts = pa.Table.from_batches([market.batch(start, cut), market.batch(cut, end)])
    assert whole.equals(parts.combine_chunks())


def test_rows_are_the_same_in_another_process() -> None:
    market = Market(seed=3, start_us=1_700_000_000_000_000)
    market.batch(0, 10)
    other: Market = pickle.loads(pickle.dumps(market))
    assert other.batch(1_000, 2_000).equals(market.batch(1_000, 2_000))


def test_the_first_rows_never_change() -> None:
    rows = Market(rate=1_000).batch(0, 3).to_pydict()
    assert rows["symbol"] == ["MYJ", "JAJ", "PZZ"]
    assert rows["volume"] == [600, 100, 10_800]
    assert rows["seq"] == [0, 1, 2]
    assert rows["price"] == [30.84, 27.28, 203.52]


def test_another_seed_gives_other_rows_of_the_same_shape() -> None:
    first, second = Market(seed=1).batch(0, 1_000), Market(seed=2).batch(0, 1_000)
    assert first["symbol"] != second["symbol"]
    assert first["price"] != second["price"]
    assert first["time"] == second["time"]


def test_a_batch_has_the_schema_and_no_nulls() -> None:
    batch = Market().batch(5, 1_000)
    batch.validate(full=True)
    assert batch.schema == MARKET_SCHEMA
    assert all(column.null_count == 0 for column in batch.columns)
    assert Market().batch(7, 7).num_rows == 0


def test_the_ends_of_the_rates_are_those_of_the_trading_day() -> None:
    market = Market()
    assert len(market.tickers) == 3_000
    assert len(set(market.tickers)) == 3_000
    assert {len(ticker) for ticker in market.tickers} == {3}
    assert market.weights[0] / market.weights[-1] == pytest.approx(4_305)
    assert market.weights.sum() == pytest.approx(1)
    assert bool((np.diff(market.weights) < 0).all())


def test_symbols_come_as_often_as_their_weights_say() -> None:
    market = Market()
    rows = 2_000_000
    counts = np.bincount(market.ranks(0, rows), minlength=market.symbols)
    expected = market.weights * rows
    common = expected >= 50
    chi_square = float((((counts - expected) ** 2) / expected)[common].sum())
    # Its mean is the number of symbols and its deviation the root of twice that; the seed is fixed.
    assert abs(chi_square - common.sum()) < 5 * np.sqrt(2 * common.sum())
    rare = counts[~common].sum()
    assert rare == pytest.approx(expected[~common].sum(), abs=5 * np.sqrt(expected[~common].sum()))


def test_the_symbol_column_is_that_of_the_ranks() -> None:
    market = Market(symbols=50)
    ranks = market.ranks(10, 500)
    assert market.batch(10, 500)["symbol"].to_pylist() == [market.tickers[rank] for rank in ranks]


def test_a_skew_of_one_makes_all_symbols_alike() -> None:
    assert bool((Market(skew=1, symbols=10).weights == 0.1).all())


def test_tickers_stay_distinct_when_three_letters_are_too_few() -> None:
    tickers = Market(symbols=20_000).tickers
    assert len(set(tickers)) == 20_000
    assert {len(ticker) for ticker in tickers} == {4}


def test_event_times_are_evenly_spaced_from_the_start() -> None:
    market = Market(rate=3, start_us=1_000_000)
    times = pc.cast(market.batch(0, 7)["time"], pa.int64()).to_pylist()
    assert times == [1_000_000, 1_333_333, 1_666_666, 2_000_000, 2_333_333, 2_666_666, 3_000_000]


@given(rate=st.integers(1, 10**9), start_us=st.integers(0, 10**15), row=st.integers(0, 10**12))
def test_row_at_counts_the_rows_whose_time_has_come(rate: int, start_us: int, row: int) -> None:
    market = Market(rate=rate, start_us=start_us)
    time_us = pc.cast(market.batch(row, row + 1)["time"], pa.int64())[0].as_py()
    assert time_us == start_us + row * 1_000_000 // rate
    assert market.row_at(time_us) > row
    assert market.row_at(time_us - 1) <= row


def test_no_row_is_there_before_the_start() -> None:
    assert Market(start_us=1_000).row_at(999) == 0
    assert Market(start_us=1_000).row_at(1_000) == 1


def test_prices_are_positive_cents_that_move_little_from_trade_to_trade() -> None:
    batch = Market(symbols=1, rate=1_000).batch(0, 20_000)
    prices = batch["price"].to_numpy()
    assert prices.min() > 0
    assert bool((np.abs(prices * 100 - np.rint(prices * 100)) < 1e-6).all())
    steps = np.abs(np.diff(prices)) / prices[:-1]
    assert steps.max() < 0.005
    assert prices.max() / prices.min() > 1.01


def test_volumes_are_round_lots() -> None:
    volumes = Market().batch(0, 10_000)["volume"].to_numpy()
    assert volumes.min() >= 100
    assert bool((volumes % 100 == 0).all())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"symbols": 0}, "a market has 1 to 10,000,000 symbols: field=symbols got=0."),
        (
            {"rate": 0},
            "a market has 1 to 1,000,000,000,000 rows a second: field=rate got=0.",
        ),
        (
            {"skew": 0.5},
            "the skew of a market is less than 1: field=skew got=0.5. "
            "Hint: use 1 or more; 1 makes all symbols equally active.",
        ),
        ({"seed": 1.5}, "seed is not a whole number: field=seed got=1.5."),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidUsageError) as caught:
        Market(**settings)
    assert str(caught.value) == message


def test_ranges_that_are_none_are_refused() -> None:
    with pytest.raises(InvalidUsageError, match=r"^not a range of rows: start=2 end=1\.$"):
        Market().batch(2, 1)
    with pytest.raises(InvalidUsageError, match=r"at most 100,000,000 rows"):
        Market().batch(0, 100_000_001)
    with pytest.raises(InvalidUsageError, match=r"^the event times do not fit 64 bits"):
        Market(rate=1).batch(10**14, 10**14 + 1)
