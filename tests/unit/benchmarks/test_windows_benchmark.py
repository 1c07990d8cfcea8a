"""The benchmarks of windows run, and measure what they say."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.steps import OTHER, step_of
from benchmarks.windows import windows_growth_in_spark as in_spark
from benchmarks.windows.windows_growth import BATCHES, Case, run, table


@pytest.mark.parametrize(
    "case", [Case(10, 20, 4000, 10, 10), Case(5, 40, 4000, 30, 1)], ids=["tumbling", "sliding"]
)
def test_a_case_is_measured(case: Case) -> None:
    found = run(case)
    newest = BATCHES * case.seconds - 1
    starts = range(newest - case.size - case.seconds + 1, newest - case.size + 1)
    closed = sum(start % case.slide == 0 for start in starts)
    assert found["windows"] == case.keys * closed
    assert found["million a s"] > 0
    assert found["entries"] >= case.keys
    assert found["delta MB"] > 0


def test_in_spark_windows_are_full_before_what_is_counted() -> None:
    case = Case(7, 40, 4000, 30, 1)
    stream = pa.concat_tables(in_spark.chunks(case))
    assert stream.num_rows == case.tuples * (1 + in_spark.WARM + in_spark.COUNTED)
    first = stream.slice(0, case.tuples)
    pairs = set(zip(first["key"].to_pylist(), first["time"].to_pylist(), strict=True))
    assert pairs == set(itertools.product(range(7), range(-30, 0)))
    times = stream["time"].to_numpy()
    assert (np.diff(times) >= 0).all()
    assert times[-1] == (in_spark.WARM + in_spark.COUNTED) * case.seconds - 1
    assert len(in_spark.query_of(case).plan(persist="always").streams) == 1


def test_tables_that_were_printed_are_read(capsys: pytest.CaptureFixture[str]) -> None:
    found = {"million a s": 1.5, "beyond ns": 20.25}
    cases = {number: Case(number, 60, 1000, 10, 10) for number in (10, 1_000_000)}
    table("keys", cases, lambda _: {"million a s": 3.0})  # of another benchmark
    for title in ("keys", "size / slide"):
        table(title, cases, lambda _: found)
    expected = dict.fromkeys(cases, found)
    assert in_spark.printed(capsys.readouterr().out) == {"keys": expected, "size / slide": expected}


@pytest.mark.parametrize(
    ("inner", "step"),
    [
        (["EntryPacker.pack (penstock/spark_ext/border/window_packing.py:83)"], "pack"),
        (
            [
                "EntryPacker.pack (penstock/spark_ext/border/window_packing.py:83)",
                "Scanner._accumulate (penstock/operators/scan/scanner.py:232)",
                "Fragmenter.add (penstock/operators/scan/fragments/fragmenter.py:116)",
                "wrapper (pyarrow/compute.py:272)",
            ],
            "fold",
        ),
        (
            [
                "Scanner._read (penstock/operators/scan/scanner.py:127)",
                "TableBlock.read (penstock/compression/table.py:218)",
            ],
            "read",
        ),
        (
            [
                "WindowOperator.run (penstock/spark_ext/worker/window_operator.py:140)",
                "Panes.run (penstock/windows/append/panes.py:121)",
            ],
            "windows",
        ),
        (
            [
                "WindowOperator.run (penstock/spark_ext/worker/window_operator.py:140)",
                "BucketStore.commit (penstock/state_store/bucket_store.py:90)",
                "encode_table (penstock/compression/table.py:66)",
            ],
            "store",
        ),
        (["ArrowStreamSerializer.load_stream (pyspark/sql/pandas/serializers.py:87)"], OTHER),
        (["ArrowStreamSerializer.load_stream (x.py:1)", "SocketIO.readinto (socket.py:706)"], None),
        (["Thread.run (threading.py:982)", "_worker (concurrent/futures/thread.py:81)"], None),
    ],
)
def test_a_sample_of_a_worker_is_of_one_step(inner: list[str], step: str | None) -> None:
    outer = [
        'process 7:".venv/bin/python -m penstock.spark_ext.daemon"',
        "<module> (penstock/spark_ext/daemon.py:144)",
    ]
    assert step_of([*outer, *inner]) == step
