"""The recent micro-batches that the dashboard shows, from a metrics file or a running query."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, Final

from penstock._clock import new_id
from penstock.monitoring.batch import OperatorBatch

__all__ = ["History"]

_MAX_ENTRIES: Final = 20_000
_MAX_BYTES: Final = 16 << 20


class History:
    """The newest entries of `penstock.metrics`, oldest first, each with a number.

    Any thread may call its methods.

    Parameters
    ----------
    file : Path, optional
        A metrics file to follow, which need not exist yet.
    most_entries : int
        The number of newest entries that are kept.
    most_bytes : int
        The first call reads only this many bytes at the end of a metrics file. Each later call reads at most
        this many new bytes.
    """

    def __init__(
        self, file: Path | None = None, *, most_entries: int = _MAX_ENTRIES, most_bytes: int = _MAX_BYTES
    ) -> None:
        self.session = new_id()
        """An id for the numbering of the entries. It changes whenever the numbering starts again."""
        self._file = file
        self._lock = threading.Lock()
        self._entries: deque[dict[str, Any]] = deque(maxlen=most_entries)
        self._most_bytes = most_bytes
        self._number = 0
        self._inode = -1
        self._at = 0
        self.unreadable = 0
        """The number of lines that were not JSON, such as a line that a crash cut off."""

    def add(self, batches: Iterable[OperatorBatch]) -> None:
        """Add the metrics of micro-batches that have just ended."""
        with self._lock:
            for batch in batches:
                self._append(batch.entry())

    def read_after(self, number: int, most: int) -> list[dict[str, Any]]:
        """Return at most `most` entries with greater numbers than `number`, oldest first.

        Parameters
        ----------
        number : int
            The ``number`` of the newest known entry; 0 if none is known.
        """
        with self._lock:
            if self._file is not None:
                self._read(self._file)
            first = self._number - len(self._entries)
            start = max(number - first, 0)
            return list(islice(self._entries, start, start + most))

    def _append(self, entry: dict[str, Any]) -> None:
        self._number += 1
        self._entries.append({**entry, "number": self._number})

    def _read(self, path: Path) -> None:
        """Add the lines that were appended to the file since the last call."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return
        with file:
            facts = os.fstat(file.fileno())
            if facts.st_ino != self._inode or facts.st_size < self._at:
                # The file was replaced or emptied.
                self._inode, self._at = facts.st_ino, max(facts.st_size - self._most_bytes, 0)
                if self._at:
                    file.seek(self._at)
                    self._at += len(file.readline())
            file.seek(self._at)
            text = file.read(self._most_bytes)
        whole = text.rfind(b"\n") + 1
        self._at += whole
        for line in text[:whole].splitlines():
            try:
                self._append(dict(json.loads(line)))
            except ValueError:
                self.unreadable += 1
