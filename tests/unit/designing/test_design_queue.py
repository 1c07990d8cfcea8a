"""`penstock.design_queue`: a queue's key, buckets and working copy, and the estimate beside a simulation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import penstock
from penstock.cli import app
from penstock.designing.queues import expected_staleness
from penstock.errors import InvalidUsageError
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.simulation.server import simulate, update_stream
from penstock.operators.simulation.traces import UNIT_US, draw_arrivals, zipf_weights

ROWS, SYMBOLS = 20_000, 500


@pytest.fixture(scope="module")
def quotes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a p-stream: 1,000 quotes a second of 500 symbols, of which one has a fifth."""
    place = tmp_path_factory.mktemp("quotes") / "updates"
    draw = np.random.default_rng(1)
    symbol = np.where(draw.random(ROWS) < 0.2, 0, draw.integers(0, SYMBOLS, ROWS))
    rows = pa.table(
        {
            "ts": pa.array(np.arange(ROWS) * 1_000, pa.timestamp("us")),
            "symbol": pa.array([f"S{number}" for number in symbol.tolist()]),
            "venue": pa.array(symbol % 4),
            "id": pa.array(np.arange(ROWS)),
            "price": pa.array(draw.random(ROWS)),
        }
    )
    with penstock.PStreamWriter(str(place), rows.schema) as writer:
        writer.append(rows)
    return place


@pytest.mark.parametrize(
    ("load", "keys", "skew", "updates"),
    [(10.0, 40, 0.9, 3_000), (0.5, 30, 0.9, 400), pytest.param(4.0, 50, 0.0, 6_000, marks=pytest.mark.long)],
)
def test_the_estimate_is_near_a_simulation(load: float, keys: int, skew: float, updates: int) -> None:
    rates = zipf_weights(keys, skew)
    queue, cost_us = UpdateQueue(update_stream(), Policy.IN_PLACE), round(load * UNIT_US)
    outcome = simulate(queue, update_stream(), draw_arrivals(rates, 1.0, updates, seed=1), cost_us)
    estimated = expected_staleness(rates / rates.sum(), load)
    assert estimated == pytest.approx(outcome.application_updates, rel=0.25)


def test_the_key_is_the_column_of_most_values_that_come_again(quotes: Path) -> None:
    proposal = penstock.design_queue(quotes, time="ts", cost="500us")
    assert (proposal.key, proposal.buckets, proposal.working_copy) == (("symbol",), 1, "memory")
    assert proposal.reached
    lines = proposal.explain().splitlines()
    assert lines[0] == "20,000 rows of 20.0 s, 1,000 a second"
    assert "  or venue: 4 values with 5,000.0 rows each" in lines
    (values,) = [line for line in lines if "values with 40.0 rows each" in line]
    assert "the most frequent 5 have 2" in values  # a fifth, and four of 500 symbols


def test_costly_tuples_need_more_buckets_and_little_memory_another_copy(quotes: Path) -> None:
    def buckets(cost: str, staleness: str) -> int:
        return penstock.design_queue(quotes, time="ts", cost=cost, staleness=staleness, cores=4).buckets

    assert buckets("2ms", "10s") == 1
    assert 1 < buckets("2ms", "40ms") < 4
    far = penstock.design_queue(quotes, time="ts", cost="100ms", staleness="1ms", cores=4)
    assert far.buckets == 4
    assert not far.reached
    assert "4 cores do not reach it" in far.explain()
    small = penstock.design_queue(quotes, time="ts", key=["symbol", "venue"], memory_bytes=1_000)
    assert (small.key, small.working_copy) == (("symbol", "venue"), "rocksdb")


def test_windows_have_buckets_by_rate_and_memory(quotes: Path) -> None:
    windows = penstock.design_queue(quotes, time="ts", size="1min", slide="1s")
    assert (windows.key, windows.buckets, windows.working_copy) == (("symbol",), 1, "memory")
    assert "500 groups in 60 panes" in windows.explain()
    assert penstock.design_queue(quotes, time="ts", size="1min", slide="1s", memory_bytes=1 << 20).buckets > 3


def test_the_command_takes_a_p_stream(quotes: Path) -> None:
    done = CliRunner().invoke(app, ["design", str(quotes), "--time", "ts", "--key", "venue"])
    assert done.exit_code == 0, done.output
    assert "key: venue" in done.output.splitlines()
    refused = CliRunner().invoke(app, ["design", str(quotes)])
    assert refused.exit_code == 2
    assert "give --time COLUMN" in refused.output


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"time": "tss"}, "did you mean 'ts'"),
        ({"time": "id"}, "the time is not a timestamp"),
        ({"time": "ts", "key": "symbl"}, "did you mean 'symbol'"),
        ({"time": "ts", "size": "1s"}, "windows need a size and a slide"),
        ({"time": "ts", "rows": 1}, "a sample needs rows of several moments"),
    ],
)
def test_an_unusable_p_stream_or_option_is_refused(quotes: Path, options: dict[str, str], fact: str) -> None:
    with pytest.raises(InvalidUsageError, match=fact):
        penstock.design_queue(quotes, **options)  # type: ignore[arg-type]
