"""The benchmark of latencies runs, and every contender answers all of its requests."""

from __future__ import annotations

from benchmarks.databases.database_latency import report


def test_the_benchmark_of_latencies_runs() -> None:
    lines = list(report(0.05, [1_000], ["0ms"]))
    table = [line for line in lines if line.startswith(("write-ahead", "p-stream", "SQLite"))]
    assert len(table) == 4
    for line in table:
        p50, p95, p99, answers = (float(cell.replace(",", "")) for cell in line.split()[-4:])
        assert 0 < p50 <= p95 <= p99
        assert answers > 0
