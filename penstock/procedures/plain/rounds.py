"""Workflows that run in Python: for ``plain=True``, and as the reference in tests of compiled workflows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from penstock.errors import InvalidUsageError
from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.plain.tables import PlainTables, fit, fit_results, python_rows
from penstock.procedures.plain.words import RejectedError
from penstock.procedures.schema import Column
from penstock.procedures.workflows.dependencies import Dependencies
from penstock.procedures.workflows.stages import Stage, transactions_of
from penstock.procedures.workflows.streams import StreamSpec
from penstock.procedures.workflows.windows import PLACE, WindowSpec

__all__ = ["PlainRounds"]

Fetch = Callable[[tuple[Any, ...]], dict[str, Any] | None]
Scan = Callable[[], Iterable[dict[str, Any]]]
Fire = Callable[[str, dict[str, Any]], None]


def _fit_row(owner: str, columns: Sequence[Column], values: dict[str, Any]) -> dict[str, Any]:
    if strange := values.keys() - {column.name for column in columns}:
        raise InvalidUsageError("there are no such columns", of=owner, columns=sorted(strange))
    return {column.name: fit(column, values.get(column.name)) for column in columns}


class _Stream:
    """A stream that keeps its rows in a list."""

    def __init__(self, spec: StreamSpec, fire: Fire) -> None:
        self.spec = spec
        self.rows: list[dict[str, Any]] = []
        self._fire = fire

    def emit(self, /, **values: Any) -> None:
        row = _fit_row(self.spec.name, self.spec.columns, values)
        self.rows.append(row)
        self._fire(self.spec.name, row)


class _WindowRow:
    """A row of a window: read-only, and valid until the next insert."""

    __slots__ = ("_inserts", "_values", "_window")

    def __init__(self, window: _Window, inserts: int, values: dict[str, Any]) -> None:
        object.__setattr__(self, "_window", window)
        object.__setattr__(self, "_inserts", inserts)
        object.__setattr__(self, "_values", values)

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            return _WindowRow
        # A column may have the name of one of `__slots__`.
        window, inserts, values = (
            object.__getattribute__(self, slot) for slot in ("_window", "_inserts", "_values")
        )
        if window.inserts != inserts:
            raise InvalidUsageError(
                "a row of a window is read after an insert into it",
                window=window.name,
                column=name,
                hint="keep its columns in variables",
            )
        return values[name]

    def __setattr__(self, name: str, value: Any) -> None:
        raise InvalidUsageError("a row of a window cannot be changed", column=name)


class _Window:
    """A window, as the procedure that owns it sees it. Two tables store its rows and facts."""

    def __init__(self, spec: WindowSpec, rounds: PlainRounds) -> None:
        self._spec = spec
        self._rounds = rounds
        self.name = spec.name
        self.inserts = 0
        """The number of rows that were inserted."""

    def insert(self, /, **values: Any) -> bool:
        row = _fit_row(self._spec.name, self._spec.columns, values)
        self.inserts += 1
        return bool(self._rounds.call(self._rounds.dependencies.insertions[self._spec.name], row))

    def _active(self) -> range:
        facts = self._rounds.tables[self._spec.facts.name].get(0)
        return range(0) if facts is None else range(facts.first, facts.active)

    def __len__(self) -> int:
        return len(self._active())

    def __iter__(self) -> Iterator[_WindowRow]:
        table, places = self._rounds.tables[self._spec.rows.name], self._spec.places
        inserts = self.inserts
        for number in self._active():
            row = table[number if places is None else number % places]
            values = {name: getattr(row, name) for name in (PLACE, *self._spec.names)}
            yield _WindowRow(self, inserts, values)


class PlainRounds(PlainTables):
    """Tables, streams and windows as Python objects, and workflows that run over them.

    Parameters
    ----------
    dependencies : Dependencies
        The dependencies of the procedures.
    fetch, scan : mapping, optional
        See `PlainTable`, by the names of tables.
    """

    def __init__(
        self,
        dependencies: Dependencies,
        fetch: Mapping[str, Fetch] | None = None,
        scan: Mapping[str, Scan] | None = None,
    ) -> None:
        super().__init__(dependencies.tables.values(), fetch, scan)
        self.dependencies = dependencies
        self._streams = {name: _Stream(spec, self._fire) for name, spec in dependencies.streams.items()}
        self._windows = {name: _Window(spec, self) for name, spec in dependencies.windows.items()}
        for name in dependencies.triggers.keys() & self.tables.keys():
            self.tables[name].on_insert = self._fire

    def parameter(self, name: str) -> Any:
        """Return the table, stream or window that a parameter names."""
        return next(
            objects[name] for objects in (self._streams, self._windows, self.tables) if name in objects
        )

    def call(self, text: ProcedureText, event: Mapping[str, Any]) -> Any:
        """Run a procedure; return its value."""
        return self.function(text)(SimpleNamespace(**event), *map(self.parameter, text.tables))

    def _fire(self, on: str, row: Mapping[str, Any]) -> None:
        for text in self.dependencies.triggers.get(on, ()):
            self.call(text, row)

    def run_workflow(
        self, stages: Sequence[Stage], events: pa.RecordBatch, bounds: Iterable[int] | None = None
    ) -> list[tuple[Any, ...]]:
        """Run a round for each atomic batch of events; return the results of each event, and its rejections.

        Parameters
        ----------
        stages : sequence of Stage
            The procedures in the order in which they run.
        events : pyarrow.RecordBatch
            The events of all batches.
        bounds : iterable of int, optional
            The position of the first event of each batch; the last element is the number of all events. By
            default each event is a batch.
        """
        rows = python_rows(events)
        begins = range(len(rows) + 1) if bounds is None else [int(bound) for bound in bounds]
        results: list[tuple[Any, ...]] = []
        for begin, end in itertools.pairwise(begins):
            results += self._round(stages, rows[begin:end])
        return results

    def _round(self, stages: Sequence[Stage], events: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
        results: list[list[Any]] = [[] for _ in events]
        reasons = []
        for members in transactions_of(stages):
            begin, stream_sizes = (
                len(self.journal),
                {stream: len(stream.rows) for stream in self._streams.values()},
            )
            transaction_results: list[list[Any]] = [[] for _ in events]
            name = ""
            try:
                for member in members:
                    name = stages[member].text.name
                    for row, part in zip(
                        transaction_results, self._run_stage(stages[member], events), strict=True
                    ):
                        row.extend(part)
            except RejectedError as rejection:
                self.undo(begin)
                for stream, count in stream_sizes.items():
                    del stream.rows[count:]
                transaction_results = [
                    [None for member in members for _ in stages[member].results] for _ in events
                ]
                reasons.append(f"{name}: {rejection.args[0]}")
            for row, part in zip(results, transaction_results, strict=True):
                row.extend(part)
        for stream in self._streams.values():
            stream.rows.clear()
        self.journal.clear()
        return [(*row, "; ".join(reasons) or None) for row in results]

    def _run_stage(self, stage: Stage, events: list[dict[str, Any]]) -> list[list[Any]]:
        """Return the results of each event; for an interior procedure, only the results for its last row."""
        rows = events if stage.stream is None else list(self._streams[stage.stream].rows)
        results = [fit_results(self.call(stage.text, row), stage.results) for row in rows]
        if stage.stream is None:
            return results
        nothing: list[Any] = [None for _ in stage.results]
        return [*([nothing] * (len(events) - 1)), results[-1] if results else nothing]
