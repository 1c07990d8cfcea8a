"""The metrics of micro-batches as a list that notebooks and pandas understand."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["MetricsList", "html_table"]

_SHOWN: Final = (
    "operator", "batch_id", "timestamp", "rows_in", "conflated", "late", "dropped", "emitted", "waiting_keys",
)  # fmt: skip
_MAX_ROWS: Final = 50


class MetricsList(list[dict[str, Any]]):
    """The entries of `penstock.metrics`, oldest first.

    A notebook shows the newest entries as a table.
    """

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with one row for each entry.

        Nested fields become separate columns, such as ``application_staleness_ms.p95``.
        """
        import pandas as pd

        frame = pd.json_normalize(list(self))
        if "timestamp" in frame:
            frame["timestamp"] = pd.to_datetime(frame["timestamp"], utc=True)
        return frame

    def _repr_html_(self) -> str:
        """Return the newest entries as a table, for notebooks."""
        shown = [name for name in _SHOWN if any(entry.get(name) not in (0, None) for entry in self)]
        rows = [[_show(entry.get(name)) for name in shown] for entry in self[-_MAX_ROWS:]]
        for row, entry in zip(rows, self[-_MAX_ROWS:], strict=True):
            stale = entry.get("application_staleness_ms") or {}
            row += [f"{stale.get(name, 0.0):,.0f}" for name in ("avg", "p95")]
            row.append(f"{entry.get('batch_ms', 0):,}")
        left_out = len(self) - len(rows)
        note = f"<p>{left_out:,} older entries are not shown.</p>" if left_out else ""
        return html_table([*shown, "stale ms", "p95 ms", "batch ms"], rows) + note


def html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table with the texts of `header` and `rows`."""
    head = "".join(f"<th>{escape(text)}</th>" for text in header)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _show(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
