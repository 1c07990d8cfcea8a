"""Progress of `penstock ingest` on standard error."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType

import pyarrow as pa
from rich.console import Console
from rich.filesize import decimal
from rich.progress import Progress, SpinnerColumn, TextColumn

from penstock._kernels import on_first_compilation
from penstock.ddl import schema_text
from penstock.jobs.ingest.ingest import Report, Totals
from penstock.jobs.ingest.sources import BadRecord

__all__ = ["ProgressLine"]

_TOLD_RECORDS = 10
_RATE_S = 1.0
"""The least time after which a rate is meaningful."""


class ProgressLine(Report):
    """Shows the counts in a line that is updated on a terminal, and in one line at the end.

    Parameters
    ----------
    quiet : bool
        Whether to print nothing at all.
    live : bool
        Whether to update a line while rows are read; needs a terminal.
    """

    def __init__(self, *, quiet: bool, live: bool) -> None:
        self._quiet = quiet
        self._totals: Totals | None = None
        self._told = 0
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            console=Console(stderr=True, highlight=False),
            transient=True,
            disable=quiet or not live,
        )
        self._line = self._progress.add_task("waiting for rows", total=None)
        self._running = ExitStack()

    def __enter__(self) -> ProgressLine:
        """Start to show progress."""
        self._running.enter_context(self._progress)
        self._running.enter_context(on_first_compilation(self._tell))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Show the last line."""
        self._running.close()
        if self._totals is not None:
            self._tell(_line(self._totals))

    def _tell(self, text: str) -> None:
        if not self._quiet:
            self._progress.console.print(text, markup=False, soft_wrap=True)

    def report_schema(self, schema: pa.Schema) -> None:
        """Show the inferred columns in the form of ``--schema``."""
        self._tell(f"columns: {schema_text(schema)}")

    def report_left_out(self, source: str, names: tuple[str, ...]) -> None:
        """Show columns that the stream lacks."""
        self._tell(f"{source}: not in the stream, and left out: {', '.join(names)}")

    def report_bad(self, record: BadRecord) -> None:
        """Show the first skipped records."""
        self._told += 1
        if self._told <= _TOLD_RECORDS:
            self._tell(f"{record.source}:{record.line}: skipped, at byte {record.offset}: {record.why}")

    def report_progress(self, totals: Totals) -> None:
        """Show the progress."""
        self._totals = totals
        self._progress.update(self._line, description=_line(totals))


def _line(totals: Totals) -> str:
    rate = totals.rows / max(totals.seconds, 1e-6)
    parts = [
        f"{totals.rows:,} row{'' if totals.rows == 1 else 's'}",
        *([f"{rate:,.0f} rows/s"] if rate >= 1 and totals.seconds >= _RATE_S else []),
        f"{decimal(totals.read_bytes)} read",
        f"{decimal(totals.written_bytes)} written",
    ]
    if totals.written_bytes:
        parts[-1] += f" (ratio {totals.read_bytes / totals.written_bytes:.1f})"
    if totals.bad:
        parts.append(f"{totals.bad:,} skipped")
    return ", ".join(parts)
