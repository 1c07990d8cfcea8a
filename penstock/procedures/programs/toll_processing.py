"""TP: a report changes a segment's speed and count of vehicles, which determine the toll (TStream §II)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.databases import database
from penstock.procedures.programs.packaged import PackagedProgram, events_of, fractions, integers, zipf

__all__ = ["TOLL_PROCESSING"]

OPEN, REPORT = range(2)
_SEGMENTS = 100
_SKEW = 0.2

_tp = database("TP")
_tp.table("segments", "id bigint, speed double NOT NULL, vehicles bigint NOT NULL", key="id")
_tp.table("seen", "segment bigint, vehicle bigint", key=("segment", "vehicle"))


@_tp.procedure(
    event="kind bigint NOT NULL, segment bigint NOT NULL, vehicle bigint NOT NULL, speed double NOT NULL",
    returns="toll double",
)
def report(e: Any, segments: Any, seen: Any) -> Any:
    """Maintain a segment's speed and vehicles; return the toll."""
    if e.kind == OPEN:
        segments.insert(id=e.segment, speed=e.speed, vehicles=0)
        return None
    segment = segments[e.segment]
    segment.speed = (segment.speed + e.speed) / 2.0
    if (e.segment, e.vehicle) not in seen:
        seen.insert(segment=e.segment, vehicle=e.vehicle)
        segment.vehicles += 1
    if segment.speed >= 40.0 or segment.vehicles <= 50:
        return 0.0
    return 2.0 * (segment.vehicles - 50) * (segment.vehicles - 50)


def _opening(keys: int) -> pa.RecordBatch:
    return events_of(report, [OPEN, np.arange(_SEGMENTS), 0, 60.0])


def _workload(count: int, keys: int, seed: int) -> pa.RecordBatch:
    vehicles = integers(seed + 1, count, max(keys // _SEGMENTS, 1))
    speeds = fractions(seed + 2, count) * 80
    return events_of(report, [REPORT, zipf(seed, count, _SEGMENTS, _SKEW), vehicles, speeds])


TOLL_PROCESSING = PackagedProgram(
    "TP", "report a speed, and pay a toll for a full segment", _tp, report, _opening, _workload
)
"""Each report is about one of 100 segments, which have a Zipf distribution (exponent 0.2)."""
