"""The micro-batches of a run, and their display."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from penstock.jobs.signals import is_stopping

__all__ = ["Batch", "Totals", "batch_parts", "batch_printer", "summary_line", "wrap_parts"]

_SILENCE_S = 10.0
"""The silence after which a run reports that it is still starting, or has no rows."""
_MIN_SHOWN_MS = 0.5
"""Staleness is shown in whole milliseconds, and not if it rounds to 0."""
_STALENESS = (
    "stale: how long, per key, the oldest unserved update has waited in the queue;",
    "average and 95th percentile over keys and time; not shown below 0.5 ms",
)
"""The explanation that follows the first batch with staleness."""
_BAD_RECORDS = (
    "bad records: at least half of all; compare the source's schema and options with a record,",
    "or look at the records that reject_to keeps, each with its reason",
)
"""The explanation that follows the first batch with mostly bad records."""


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch that has ended.

    Attributes
    ----------
    number : int
        The batch's id.
    rows_in, emitted, conflated, late, duplicates, dropped : int
        Counts of the operator's rows, as in `penstock.metrics`. For a query without a Penstock operator,
        `rows_in` counts the rows of its sources.
    waiting_keys : int
        The number of keys that wait after the batch.
    duration_ms : int
        The time from the batch's trigger to its commit.
    new_input : bool
        Whether any source had new rows. A batch without new rows only serves waiting keys.
    staleness_ms, staleness_p95_ms : float
        Application staleness since the previous batch: average and 95th percentile over keys and time.
    bad_records : int
        Records of a pipeline's sources that could not be read.
    committed, rejected : int
        The numbers of committed and of rejected transactions.
    has_operator : bool
        Whether the query has a Penstock operator. Without one, no emitted rows are counted or shown.
    query : str
        The query that made the batch; empty for the last of several queries, and for the query that makes a
        graph's results.
    """

    number: int
    rows_in: int
    emitted: int
    conflated: int
    late: int
    dropped: int
    waiting_keys: int
    duration_ms: int
    new_input: bool = True
    staleness_ms: float = 0.0
    staleness_p95_ms: float = 0.0
    bad_records: int = 0
    duplicates: int = 0
    committed: int = 0
    rejected: int = 0
    has_operator: bool = True
    query: str = ""

    @property
    def did_something(self) -> bool:
        """Return whether rows were read or emitted."""
        return bool(self.rows_in or self.emitted or self.late or self.dropped or self.bad_records)


@dataclass(frozen=True, slots=True)
class Totals:
    """The totals of a run, from its start to its end: of its last query, which makes the results of a graph.

    Attributes
    ----------
    batches, rows_in, emitted, conflated, late, duplicates, dropped, bad_records : int
        The number of batches, and sums over all batches of the run.
    committed, rejected : int
        Sums over all batches; both are 0 without transactions.
    idle : int
        The number of batches without rows, which have no line.
    has_operator : bool
        As in the last `Batch`.
    waiting_keys : int
        Keys that still wait; their tuples are in the state.
    signal : int or None
        The signal that stopped the run.
    earlier : mapping of str to Totals
        The totals of the other queries of the run, by name; for a graph, only of those that ran a batch.
    """

    batches: int = 0
    rows_in: int = 0
    emitted: int = 0
    conflated: int = 0
    late: int = 0
    dropped: int = 0
    waiting_keys: int = 0
    signal: int | None = None
    bad_records: int = 0
    duplicates: int = 0
    committed: int = 0
    rejected: int = 0
    idle: int = 0
    has_operator: bool = True
    earlier: Mapping[str, Totals] = field(default_factory=dict, hash=False)

    @property
    def all_waiting_keys(self) -> int:
        """The keys that wait in any query of the run."""
        return self.waiting_keys + sum(one.waiting_keys for one in self.earlier.values())

    def plus(self, batch: Batch) -> Totals:
        """Return the totals with one more batch."""
        if name := batch.query:
            one = self.earlier.get(name, Totals()).plus(replace(batch, query=""))
            return replace(self, earlier={**self.earlier, name: one})
        return replace(
            self,
            batches=self.batches + 1,
            rows_in=self.rows_in + batch.rows_in,
            emitted=self.emitted + batch.emitted,
            conflated=self.conflated + batch.conflated,
            late=self.late + batch.late,
            duplicates=self.duplicates + batch.duplicates,
            dropped=self.dropped + batch.dropped,
            waiting_keys=batch.waiting_keys,
            bad_records=self.bad_records + batch.bad_records,
            committed=self.committed + batch.committed,
            rejected=self.rejected + batch.rejected,
            idle=self.idle + (not batch.did_something),
            has_operator=batch.has_operator,
        )


def batch_parts(batch: Batch) -> list[str]:
    """Return the parts of a summary line of a batch."""
    name = f"{batch.query}: " if batch.query else ""
    parts = [f"{name}batch {batch.number:<5} in {batch.rows_in:>9,}"]
    if batch.committed or batch.rejected:
        parts.append(f"committed {batch.committed:>8,}  rejected {batch.rejected:,}")
    elif batch.has_operator:
        parts.append(f"emitted {batch.emitted:>8,}")
    parts += [f"conflated {batch.conflated:>9,}"] if batch.conflated else []
    parts += [f"late {batch.late:,}"] if batch.late else []
    parts += [f"duplicates {batch.duplicates:,}"] if batch.duplicates else []
    parts += [f"dropped {batch.dropped:,}"] if batch.dropped else []
    parts += [f"bad records {batch.bad_records:,}"] if batch.bad_records else []
    parts += [f"waiting {batch.waiting_keys:>7,}"] if batch.waiting_keys else []
    if batch.staleness_p95_ms >= _MIN_SHOWN_MS:
        parts.append(f"stale {_time(batch.staleness_ms)}, p95 {_time(batch.staleness_p95_ms)}")
    return [*parts, f"took {_time(batch.duration_ms)}"]


def _time(ms: float) -> str:
    return f"{ms / 1000:.1f} s" if ms >= 1000 else f"{ms:.0f} ms"


def summary_line(
    totals: Totals, later_steps: Sequence[str] = (), *, shows_waiting: bool = False, name: str = ""
) -> str:
    """Return a summary line of each query of a run; batches without rows do not count.

    Parameters
    ----------
    totals : Totals
        The totals of the run.
    later_steps : sequence of str
        Steps after the operator, which may drop rows that the operator has emitted.
    shows_waiting : bool
        Whether the line ends with the number of keys that wait.
    name : str
        The name with which the line of the last query begins; by default none.
    """
    lines = [
        summary_line(one, shows_waiting=shows_waiting, name=other) for other, one in totals.earlier.items()
    ]
    begin = f"{name}: " if name else ""
    emitted = f"emitted before {' and '.join(later_steps)}" if later_steps else "emitted"
    rows = "row in" if totals.rows_in == 1 else "rows in"
    counts = {
        rows: totals.rows_in,
        emitted: totals.emitted,
        "conflated": totals.conflated,
        "late": totals.late,
        "duplicate" if totals.duplicates == 1 else "duplicates": totals.duplicates,
        "dropped": totals.dropped,
        "committed": totals.committed,
        "rejected": totals.rejected,
        "bad record" if totals.bad_records == 1 else "bad records": totals.bad_records,
    }
    if not any(counts.values()):
        is_idle = totals.batches or totals.signal is None
        return "\n".join([*lines, begin + ("no new rows" if is_idle else "no micro-batch has ended")])
    batches = totals.batches - totals.idle
    parts = [f"{batches:,} {'batch' if batches == 1 else 'batches'}"]
    shows_emitted = totals.has_operator and not (totals.committed or totals.rejected)
    always = (rows, emitted) if shows_emitted else (rows,)
    parts += [f"{count:,} {name}" for name, count in counts.items() if count or name in always]
    waiting = "1 key" if totals.waiting_keys == 1 else f"{totals.waiting_keys:,} keys"
    parts += [f"{waiting} waiting"] if shows_waiting and totals.waiting_keys else []
    return "\n".join([*lines, begin + ", ".join(parts)])


def wrap_parts(parts: Sequence[str], width: int) -> str:
    """Join the parts of a batch's line; start a new line after `width` columns of the terminal."""
    lines: list[str] = []
    for part in parts:
        if lines and len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(f"    {part}" if lines else part)
    return "\n".join(lines)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _line_printer() -> Callable[[Sequence[str]], None]:
    """Return a function that prints the parts of a line on standard error.

    On a terminal the parts have colours, and continue on the next line if the terminal is too narrow.
    Otherwise all parts are on one line.
    """
    if not sys.stderr.isatty():
        return lambda parts: _say("  ".join(parts))
    from rich.console import Console
    from rich.text import Text

    console = Console(stderr=True, highlight=False)

    def print_coloured(parts: Sequence[str]) -> None:
        text = Text(wrap_parts(parts, console.width))
        text.highlight_regex(r"[0-9][0-9,.]*", "cyan")
        text.highlight_regex(r"(waiting|stale) +[1-9][0-9,.]*", "yellow")
        console.print(text, soft_wrap=True)

    return print_coloured


@contextmanager
def batch_printer(
    silence_s: float = _SILENCE_S,
    *,
    later_steps: Sequence[str] = (),
) -> Iterator[Callable[[Batch], None]]:
    """Yield a function that prints each batch with rows as a line on standard error.

    Some lines explain what the numbers mean:

    - after the first batch with staleness: what staleness is;
    - after the first batch with mostly bad records: how to find the reason;
    - after the first batch that emits rows, if `later_steps` may drop emitted rows: where the rows were
      counted.

    If no batch ends within `silence_s`, a line reports that the query is still starting. If no batch has rows
    within `silence_s` after the first batch, a line reports this. No such line follows a signal that stops
    the run.
    """
    show = _line_printer()

    def say(text: str) -> None:
        if not is_stopping():
            _say(text)

    starting, waiting = (
        threading.Timer(silence_s, say, [text])
        for text in (
            "no micro-batch has ended yet: still starting, or no new rows",
            "no micro-batch with rows has ended yet",
        )
    )
    starting.daemon = waiting.daemon = True
    explained = warned = False
    named = not later_steps

    def on_batch(batch: Batch) -> None:
        nonlocal explained, warned, named
        starting.cancel()
        if batch.did_something:
            waiting.cancel()
            show(batch_parts(batch))
        elif waiting.ident is None:
            waiting.start()
        if batch.emitted and not named and not batch.query:
            named = True
            show([f"emitted: rows of the operator, before {' and '.join(later_steps)}"])
        if batch.staleness_p95_ms >= _MIN_SHOWN_MS and not explained:
            explained = True
            show(_STALENESS)
        # `rows_in` may not count skipped records. In this case, as many bad records as rows are half of all
        # records.
        if batch.bad_records and batch.bad_records >= batch.rows_in and not warned:
            warned = True
            show(_BAD_RECORDS)

    starting.start()
    try:
        yield on_batch
    finally:
        starting.cancel()
        waiting.cancel()
