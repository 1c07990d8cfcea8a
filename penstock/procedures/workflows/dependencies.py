"""The dependencies of procedures on parts of a database."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from penstock.procedures.compiler.reading import ProcedureText
from penstock.procedures.schema import TableSpec
from penstock.procedures.workflows.streams import StreamSpec
from penstock.procedures.workflows.windows import WindowSpec

__all__ = ["Dependencies"]


@dataclass
class Dependencies:
    """The dependencies of procedures, including dependencies through calls and triggers.

    Attributes
    ----------
    texts : list of ProcedureText
        The procedures, including called procedures and triggers.
    tables : dict
        The tables by name; the tables of windows come last.
    streams, windows : dict
        The streams and windows, by name.
    triggers : dict
        The triggers, by the name of their table, stream or window.
    insertions : dict
        For each window, the procedure that inserts a row.
    """

    texts: list[ProcedureText] = field(default_factory=list)
    tables: dict[str, TableSpec] = field(default_factory=dict)
    streams: dict[str, StreamSpec] = field(default_factory=dict)
    windows: dict[str, WindowSpec] = field(default_factory=dict)
    triggers: dict[str, tuple[ProcedureText, ...]] = field(default_factory=dict)
    insertions: dict[str, ProcedureText] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return streams, windows and triggers as JSON values for digests; leave out what is empty."""
        parts: dict[str, Any] = {
            "streams": [stream.to_json() for stream in self.streams.values()],
            "windows": [window.to_json() for window in self.windows.values()],
            "triggers": {name: [text.name for text in texts] for name, texts in self.triggers.items()},
        }
        return {name: value for name, value in parts.items() if value}
