"""Figure 11: how many expressways of Linear Road a core keeps up with (S-Store §4.7).

Traffic of one expressway grows for half an hour to the rate that Linear Road has by then, and is the same on
all. Reports come in batches of `BATCH_S`, and the time that each batch takes is measured, without waiting for
the next one. Arrivals and these times give the moment of each result: a batch begins when it has arrived and
the previous batch has ended.
"""

from __future__ import annotations

import itertools
import multiprocessing
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from benchmarks.harness import MemoryProbe
from benchmarks.paper.s_store.scale import Point, Scale
from penstock.procedures.engine import TableSet, event_schema
from penstock.procedures.programs.linear_road import LINEAR_ROAD, REPORT_S, SEGMENT_FEET, SEGMENTS
from penstock.procedures.programs.packaged import fractions, integers

__all__ = ["BATCH_S", "THRESHOLD_S", "figure_11", "traffic", "worst_latency"]

Integers = npt.NDArray[np.int64]

BATCH_S = 0.25
THRESHOLD_S = 1.0
"""The paper's threshold of latency."""
_ROAD_FEET = SEGMENTS * SEGMENT_FEET


def traffic(minutes: int, reports_per_s: int) -> dict[str, Integers]:
    """Return the reports of one expressway in their order, by attribute; ``batch`` is the number of theirs.

    A vehicle enters ever so often, and reports every 30 seconds from then on. Half of them are in a jam,
    where some stop for minutes, in pairs.
    """
    vehicles = reports_per_s * REPORT_S
    seconds = minutes * 60
    enters = (np.arange(vehicles) + 0.5) / vehicles * seconds
    reports = np.ceil((seconds - enters) / REPORT_S).astype(np.int64)
    vehicle = np.repeat(np.arange(vehicles), reports)
    step = np.arange(len(vehicle)) - np.repeat(np.cumsum(reports) - reports, reports)
    jam = np.arange(vehicles) % 2 == 0
    speed = np.where(jam, 10 + integers(1, vehicles, 15), 50 + integers(1, vehicles, 25))[vehicle]
    stands = (np.arange(vehicles) % 80 < 4)[vehicle] & jam[vehicle] & (step >= 3) & (step < 9)
    speed[stands] = 0
    feet = speed * REPORT_S * SEGMENT_FEET // 3600
    moved = np.cumsum(feet)
    moved -= np.repeat(moved[np.cumsum(reports) - reports] - feet[np.cumsum(reports) - reports], reports)
    start = np.where(jam, 40 * SEGMENT_FEET, fractions(2, vehicles) * 30 * SEGMENT_FEET).astype(np.int64)
    position = (start[vehicle] + moved) % _ROAD_FEET
    position[stands] = (41 + vehicle[stands] // 80 % 3) * SEGMENT_FEET + SEGMENT_FEET // 2
    direction = np.where(jam, 0, integers(3, vehicles, 2))[vehicle]
    position = np.where(direction == 0, position, _ROAD_FEET - 1 - position)
    at = enters[vehicle] + REPORT_S * step
    order = np.argsort(at, kind="stable")
    found = {
        "time": at.astype(np.int64), "vehicle": vehicle, "speed": speed, "lane": np.where(jam, 1, 2)[vehicle],
        "direction": direction, "position": position, "batch": (at / BATCH_S).astype(np.int64),
    }  # fmt: skip
    return {name: values[order] for name, values in found.items()}


def _batches(reports: dict[str, Integers], xways: int, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the reports of all expressways, a batch at a time."""
    bounds = np.searchsorted(reports["batch"], np.arange(reports["batch"][-1] + 2))
    for begin, until in itertools.pairwise(bounds.tolist()):
        columns = {name: np.tile(values[begin:until], xways) for name, values in reports.items()}
        columns["xway"] = np.repeat(np.arange(xways), until - begin)
        yield pa.RecordBatch.from_arrays([pa.array(columns[name]) for name in schema.names], schema=schema)


def worst_latency(took: npt.NDArray[np.float64]) -> float:
    """Return the greatest time from a report to its result, of batches that take so long."""
    worst = done = 0.0
    for number, seconds in enumerate(took):
        arrival = (number + 1) * BATCH_S
        done = max(done, arrival) + seconds
        worst = max(worst, done - arrival + BATCH_S)
    return worst


def drive(xways: int, minutes: int, reports_per_s: int) -> dict[str, float]:
    """Run the traffic of expressways on this core."""
    program = LINEAR_ROAD.procedure.program()
    state = TableSet(LINEAR_ROAD.database.catalog.all_tables.values())
    schema = event_schema(program.event)
    state.run(program, pa.RecordBatch.from_pylist([], schema))
    took = []
    count = 0
    with MemoryProbe() as probe:
        for batch in _batches(traffic(minutes, reports_per_s), xways, schema):
            begin = time.monotonic()
            state.run(program, batch)
            took.append(time.monotonic() - begin)
            count += batch.num_rows
    return {
        "latency": worst_latency(np.array(took)),
        "busy": sum(took) / (len(took) * BATCH_S),
        "reports": count / sum(took),
        "MiB": max(probe.peak_mib.get("python", 0.0), state.size_bytes / 2**20),
    }


def figure_11(scale: Scale) -> list[Point]:
    """Return the worst latency by the number of expressways on each core."""
    points: list[Point] = []
    context = multiprocessing.get_context("spawn")
    for cores in scale.cores:
        for xways in scale.xways:
            with context.Pool(cores) as pool:
                cases: list[Any] = [(xways, scale.minutes, scale.reports_per_s)] * cores
                found = pool.starmap(drive, cases, chunksize=1)
            points.append({
                "x-ways a core": xways,
                "cores": cores,
                "worst latency, s": max(one["latency"] for one in found),
                "busy, %": 100 * max(one["busy"] for one in found),
                "reports/s of busy time": sum(one["reports"] for one in found),
                "MiB a core": max(one["MiB"] for one in found),
            })  # fmt: skip
    return points
