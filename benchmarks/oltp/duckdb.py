"""The packaged OLTP benchmarks as statements of DuckDB in this process; each commit is synced to its file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from benchmarks.oltp.peers import EmbeddedPeer, Row, Rows, plain_columns, schema_texts
from benchmarks.oltp.sqlite import SQLITE, Rejected
from penstock.procedures.programs.oltp import OltpBenchmark

__all__ = ["DuckDb"]


class DuckDb(EmbeddedPeer):
    """DuckDB in a directory; its transactions are SQLite's."""

    def __init__(self, benchmark: OltpBenchmark, scale: Any, place: str | Path) -> None:
        self._benchmark = benchmark
        self._transact, self._width = SQLITE[benchmark.name]
        self._db = duckdb.connect(f"{place}/{benchmark.name}.duckdb")
        tables, indexes = schema_texts(benchmark)
        for text in tables:
            self._db.execute(text)
        for name, rows in benchmark.tables(scale).items():
            self._db.register("first_rows", pa.table(plain_columns(rows), names=rows.schema.names))
            self._db.execute(f"INSERT INTO {name} SELECT * FROM first_rows")
            self._db.unregister("first_rows")
        for text in indexes:
            self._db.execute(text)

    def _one(self, text: str, *values: Any) -> Any:
        return self._db.execute(text, values).fetchone()

    def run(self, events: Rows, group: int) -> Rows:
        return [
            result
            for begin in range(0, len(events), group)
            for result in self._run_group(events[begin : begin + group])
        ]

    def _run_group(self, events: Rows) -> Rows:
        results: Rows = []
        self._db.execute("BEGIN")
        for event in events:
            try:
                results.append((*self._transact(self._one, *event), None))
            except Rejected as rejection:
                # DuckDB has no savepoints, so the transactions before are undone as well, and run again.
                self._db.execute("ROLLBACK")
                self._db.execute("BEGIN")
                self._repeat(events, results)
                results.append((*[None] * self._width, rejection.args[0]))
        self._db.execute("COMMIT")
        return results

    def _repeat(self, events: Sequence[Row], results: Rows) -> None:
        for event, result in zip(events, results, strict=False):
            if result[-1] is None:
                self._transact(self._one, *event)
