"""The benchmark of a scan's parts still runs."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks.p_streams.scan_parts import VALUES, WHERE, measured, scan_of
from benchmarks.streams import REAL
from penstock.checkpointing.p_stream import PStream, PStreamWriter

pytestmark = pytest.mark.usefixtures("unsynced")


def test_every_scan_is_divided_into_its_parts(tmp_path: Path) -> None:
    columns = REAL["cluster"].columns
    rows = {name: pa.array([n % 7 for n in range(300)]).cast(kind) for name, kind in columns.items()}
    with PStreamWriter(tmp_path, pa.schema(columns), threads=1) as writer:
        writer.append(pa.table(rows))
    for where in WHERE:
        for value in VALUES:
            found = measured(PStream(tmp_path), scan_of(where, value))
            assert list(found) == ["evaluated", "intervals"]
            for parts in found.values():
                assert parts["all"] > parts["decode"] > 0
                assert (parts["predicate"] > 0) == (where != "nothing")
