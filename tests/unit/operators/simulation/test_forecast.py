"""Forecasts of staleness from a sample, and the command that prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from penstock.checkpointing.p_stream.writer import PStreamWriter
from penstock.cli import app
from penstock.errors import InvalidUsageError
from penstock.jobs.plan.run import PlanRequest, best_of, read_engine, read_rows, run_plan
from penstock.operators.freshness.contract import FreshnessContract
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.simulation.forecast import Sample, forecast
from penstock.operators.simulation.micro_batches import Engine, run_micro_batches
from penstock.operators.update_stream.options import Budget
from penstock.operators.update_stream.stream import UpdateStream

RATE = 200
ENGINE = Engine(fixed_us=100_000, cost_us=5_000)


def table(seconds: float = 2.0) -> pa.Table:
    generator = np.random.default_rng(5)
    times = np.arange(int(RATE * seconds)) * 1_000_000 // RATE
    keys = generator.integers(0, 100, len(times))
    return pa.table({
        "key": keys, "time": pa.array(times, pa.timestamp("us")), "tier": np.where(keys < 10, "gold", "plain")
    })  # fmt: skip


def test_a_load_is_that_many_times_the_rate_and_updates_stay_in_order() -> None:
    sample = Sample.of(table().take(np.random.default_rng(1).permutation(400)), ["key"], "time")
    assert sample.rate == pytest.approx(RATE, rel=0.01)
    for load in (1.0, 4.0):
        rows, arrived = sample.at_load(load, 60_000_000)
        assert len(arrived) / arrived[-1] * 1e6 == pytest.approx(RATE * load, rel=0.01)
        assert arrived[-1] > 19_000_000
        assert np.all(np.diff(arrived) >= 0)
        assert np.all(np.diff(rows.column("__time").to_numpy()) > 0)
        assert rows.column("key").to_pylist()[:400] == table().column("key").to_pylist()


def test_a_run_takes_no_more_than_the_time_given_to_it() -> None:
    sample = Sample.of(table(), ["key"], "time")
    whole, arrived = sample.at_load(2.0, 60_000_000)
    rows, early = sample.at_load(2.0, 1_500_000)
    assert len(early) == np.count_nonzero(arrived <= 1_500_000) < len(arrived)
    assert rows.equals(whole.slice(0, len(early)))
    found = [
        next(
            forecast(sample, ENGINE, Budget(), loads=[1], cores=[1], policies=[Policy.FIFO], most_us=most_us)
        )
        for most_us in (10_000_000, 1_000_000)
    ]
    assert found[1].served < found[0].served / 5


@pytest.mark.long
def test_more_load_is_staler_and_more_cores_are_fresher() -> None:
    sample = Sample.of(table(), ["key"], "time")
    found = {
        (one.load, one.cores): one
        for one in forecast(
            sample, ENGINE, Budget(), loads=[0.5, 4], cores=[1, 3], policies=[Policy.IN_PLACE]
        )
    }
    for cores in (1, 3):
        assert found[4, cores].staleness.average_ms > found[0.5, cores].staleness.average_ms
    assert found[4, 3].staleness.average_ms < found[4, 1].staleness.average_ms
    # Half a cycle of waiting for the micro-batch, half of the fixed cost, and the service of a full queue.
    full = 100 + 100 * 5
    assert 0.5 * full < found[4, 1].staleness.percentile_ms(0.5) < 1.5 * full


@pytest.mark.long
def test_the_fewest_cores_that_keep_all_promises_are_best() -> None:
    contract = FreshnessContract.parse({"p95": {"gold": "500 ms", "other": "1 s"}, "by": "tier"})
    found = list(
        forecast(
            Sample.of(table(), ["key"], "time"), ENGINE, contract,
            loads=[3], cores=[4, 1, 2], policies=[Policy.FRESHEST],
        )
    )  # fmt: skip
    kept = {one.cores: all(one.kept.values()) for one in found}
    assert kept == {1: False, 2: True, 4: True}
    assert best_of(found, 3).cores == 2
    alone = next(one for one in found if one.cores == 1)
    assert alone.kept == {"gold": True, "other": False}
    assert alone.to_row()["gold_p95_ms"] < alone.to_row()["other_p95_ms"]


@pytest.mark.parametrize("kind", ["p-stream", "p-stream.2", "sample.parquet", "sample.csv", "parts.parquet"])
def test_a_sample_is_a_p_stream_or_a_file(tmp_path: Path, kind: str) -> None:
    place, rows = str(tmp_path / kind), table()
    if kind.startswith("p-stream"):
        with PStreamWriter(place, rows.schema) as writer:
            writer.append(rows)
    elif kind == "sample.csv":
        pyarrow.csv.write_csv(rows, place)
    elif kind == "parts.parquet":
        pq.write_to_dataset(rows, place)
    else:
        pq.write_table(rows, place)
    read = read_rows(place, 300)
    assert read.num_rows == 300
    assert Sample.of(read, ["key"], "time").rate == pytest.approx(RATE, rel=0.01)


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ({"key": ["nothing"]}, "no such column"),
        ({"time": "key"}, "not a timestamp|time column cannot"),
        ({"rows": table().slice(0, 1)}, "several moments"),
    ],
)
def test_what_is_no_sample_is_refused(arguments: dict[str, Any], fact: str) -> None:
    given: dict[str, Any] = {"rows": table(), "key": ["tier"], "time": "time"} | arguments
    with pytest.raises(InvalidUsageError, match=fact):
        Sample.of(given["rows"], given["key"], given["time"])


@pytest.mark.parametrize("name", ["sample.parquet", "a sample.csv", "sample.txt"])
def test_a_sample_may_be_a_uri(tmp_path: Path, name: str) -> None:
    rows = pa.table({"value": ["a", "b", "c"]})
    if name.endswith(".parquet"):
        pq.write_table(rows, tmp_path / name)
    else:
        header = [] if name.endswith(".txt") else ["value"]
        (tmp_path / name).write_text("\n".join([*header, "a", "b", "c"]))
    assert read_rows((tmp_path / name).as_uri(), 2).to_pydict() == {"value": ["a", "b"]}
    with pytest.raises(InvalidUsageError, match=r"there is no such file: file=file://.*/none\.parquet"):
        read_rows(f"{tmp_path.as_uri()}/none.parquet", 2)


def test_a_plan_has_a_contract_or_a_budget() -> None:
    request = PlanRequest(key=("k",), time="t", cost="1ms", budget="800ms")
    assert request.limits == Budget(duration_us=800_000)
    assert PlanRequest(key=("k",), time="t", budget="50").limits == Budget(rows=50)
    with pytest.raises(InvalidUsageError, match="sets the budget"):
        PlanRequest(key=("k",), time="t", budget="50", freshness="p95: 2 s").limits  # noqa: B018  # raises


def test_the_command_prints_a_table_and_advice_and_writes_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    sample, out, svg = (tmp_path / name for name in ("sample.parquet", "out.json", "plan.svg"))
    pq.write_table(table(), sample)
    arguments = ["plan", str(sample), "--cost", "10ms", "--fixed", "100ms", "--freshness", "p95: 1 s"]
    arguments += ["--load", "2", "--cores", "1,4", "--policy", "freshest", "-o", str(out), "--svg", str(svg)]
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    assert "Load 2: the promise holds with freshest on 4 cores." in shown.stdout
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["cores"], row["all_kept"]) for row in rows] == [(1, False), (4, True)]
    assert "<svg" in svg.read_text()
    assert CliRunner().invoke(app, [*arguments[:2], "--load", "x"]).exit_code == 2


def test_costs_come_from_the_metrics_of_a_test_run(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    first = {"batch_ms": 9_000.0, "budget_used_ms": 50.0, "emitted": 5, "buckets": 2}
    later = {"batch_ms": 130.0, "budget_used_ms": 60.0, "emitted": 20, "buckets": 2}
    idle = {"batch_ms": 20.0, "budget_used_ms": 0.0, "emitted": 0, "buckets": 1}
    longer = later | {"batch_ms": 190.0}

    def write(*entries: dict[str, Any]) -> None:
        file.write_text("".join(json.dumps(one) + "\n" for one in entries))

    write(first, later, idle, longer)
    assert read_engine(file) == Engine(100_000, 3_000.0, 0.0, (70_000, 130_000))
    # On Spark the buckets serve at the same time.
    write(*(one | {"spark_ms": {"addBatch": 1}} for one in (first, later, longer)))
    found = read_engine(file, 7.0)
    assert found == Engine(130_000, 3_000.0, 7.0, (100_000, 160_000))
    assert [found.fixed_of(number) for number in range(3)] == [100_000, 160_000, 100_000]
    assert PlanRequest(key=("k",), time="t", metrics=file).engine == read_engine(file)
    for content in (first,), ({},), (idle, idle):
        write(*content)
        with pytest.raises(InvalidUsageError, match="cannot read costs"):
            read_engine(file)


def test_the_first_micro_batch_after_each_start_and_other_queries_are_no_costs(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"

    def entry(run: str, batch: int, batch_ms: float, **named: Any) -> dict[str, Any]:
        costs = {"batch_ms": batch_ms, "budget_used_ms": 30.0, "emitted": 10, "buckets": 1}
        return {"query": "trades", "query_id": run, "batch_id": batch, "operator": "queue"} | costs | named

    def measure(*entries: dict[str, Any]) -> Engine:
        file.write_text("".join(json.dumps(one) + "\n" for one in entries))
        return read_engine(file)

    first = [entry("a", 0, 9_000.0), entry("a", 1, 130.0)]
    assert measure(*first) == Engine(100_000, 3_000.0, 0.0, (100_000,))
    for started in (entry("a", 1, 9_000.0), entry("b", 0, 9_000.0), entry("b", 7, 9_000.0)):
        later = {"query_id": started["query_id"], "batch_id": started["batch_id"] + 1}
        found = measure(*first, started, entry("a", 2, 150.0) | later)
        assert found == Engine(110_000, 3_000.0, 0.0, (100_000, 120_000))
    # Idle micro-batches before it do not end a start.
    idle = entry("b", 0, 20.0, emitted=0)
    assert measure(*first, idle, entry("b", 1, 9_000.0)).fixed_us == 100_000
    inner = entry("a", 1, 7_000.0, query="trades.persisted", query_id="c", operator="filter")
    assert measure(first[0], inner, inner, first[1]).fixed_us == 100_000
    for other in ({"query": "quotes"}, {"operator": "window"}):
        with pytest.raises(InvalidUsageError, match="several queries or operators"):
            measure(*first, first[1] | other)


def test_micro_batches_take_the_fixed_times_of_a_test_run_in_turn() -> None:
    stream = UpdateStream(table().schema, ("key",), "time", "time")
    rows, arrived = table(1.0).to_batches()[0], np.arange(RATE) * 1_000_000 // RATE
    engine = Engine(0, 0.0, 0.0, (50_000, 150_000))
    queue = UpdateQueue(stream, Policy.FIFO)
    ran = list(run_micro_batches([queue], rows, arrived, lambda now: engine, Budget()))
    assert [one.ended_us - one.started_us for one in ran[:4]] == [50_000, 150_000, 50_000, 150_000]


def test_a_time_too_short_for_micro_batches_is_refused_before_the_sample_is_read() -> None:
    request = PlanRequest(key=("key",), time="time", span="999ms")
    with pytest.raises(
        InvalidUsageError, match=r"too short a time to simulate: span=999ms\. Hint: give at least"
    ):
        run_plan("no such sample", request, out=None, svg=None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nofile.csv"], "there is no such file: file=nofile.csv."),
        (["rows.xls"], "the sample has an unknown format: file=rows.xls known=.parquet, .csv, .json"),
        (["rows.parquet", "--cores", "1.5"], "not a list of whole numbers: option=cores got=1.5."),
        (["rows.parquet", "--out", "rows.parquet/x.svg"], "rows.parquet is no directory"),
        (
            ["rows.parquet", "--freshness", "p95 2 s"],
            "the contract has no percentile with a colon: option=--freshness got=p95 2 s. "
            "Hint: write --freshness 'p95: 2 s'.",
        ),
    ],
)
def test_a_wrong_argument_gets_one_line_in_the_form_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(table(), "rows.parquet")
    result = CliRunner().invoke(app, ["plan", *arguments, "--key", "tier", "--time", "time"])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
