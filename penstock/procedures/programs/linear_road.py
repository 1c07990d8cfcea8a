"""Linear Road's tolls and accidents, as a workflow of two procedures (S-Store §4.7).

A vehicle reports its position every 30 seconds. If it has entered a segment, it gets the segment's toll and
a warning of an accident ahead, and pays the toll of the segment that it has left. The first report of a
minute triggers the procedure that computes all tolls of an expressway from the previous minutes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from penstock.procedures.databases import database
from penstock.procedures.language import abort, event
from penstock.procedures.programs.packaged import PackagedProgram, events_of, fractions, integers

__all__ = ["LINEAR_ROAD"]

MINUTE_S = 60
REPORT_S = 30
SEGMENT_FEET = 5280
SEGMENTS = 100
PLACES = 2 * SEGMENTS
"""A segment in one direction is a place: twice the segment, plus the direction."""
LANES = 5
EXIT_LANE = 4
SPEED_MINUTES = 5
FREE_SPEED = 40
FREE_VEHICLES = 50
STOPPED_REPORTS = 4
SEGMENTS_AHEAD = 5

_lr = database("linear_road")
_XWAY = "xway"
_lr.table("clocks", "xway bigint, minute bigint NOT NULL", key=_XWAY, partition_by=_XWAY)
_lr.table(
    "vehicles",
    "xway bigint, vehicle bigint, time bigint NOT NULL, place bigint NOT NULL, position bigint NOT NULL, "
    "lane bigint NOT NULL, same bigint NOT NULL, toll bigint NOT NULL, paid bigint NOT NULL",
    key=(_XWAY, "vehicle"),
    partition_by=_XWAY,
)
_lr.table(
    "traffic",
    "xway bigint, place bigint, minute bigint, vehicles bigint NOT NULL, speeds bigint NOT NULL, "
    "reports bigint NOT NULL",
    key=(_XWAY, "place", "minute"),
    partition_by=_XWAY,
)
_lr.table(
    "tolls", "xway bigint, place bigint, toll bigint NOT NULL", key=(_XWAY, "place"), partition_by=_XWAY
)
_lr.table(
    "stops", "xway bigint, spot bigint, vehicles bigint NOT NULL", key=(_XWAY, "spot"), partition_by=_XWAY
)
_lr.table(
    "accidents", "xway bigint, place bigint, spots bigint NOT NULL", key=(_XWAY, "place"), partition_by=_XWAY
)


@_lr.procedure
def begin_minute(e: Any, traffic: Any, tolls: Any) -> Any:
    """Compute all tolls of an expressway, and delete the traffic that no later toll needs."""
    for place in range(PLACES):
        toll = 0
        last = traffic.get((e.xway, place, e.minute - 1))
        if last is not None and last.vehicles > FREE_VEHICLES:
            speeds = 0
            reports = 0
            for minute in range(e.minute - SPEED_MINUTES, e.minute):
                one = traffic.get((e.xway, place, minute))
                if one is not None:
                    speeds += one.speeds
                    reports += one.reports
            if speeds < FREE_SPEED * reports:
                toll = 2 * (last.vehicles - FREE_VEHICLES) * (last.vehicles - FREE_VEHICLES)
        known = tolls.get((e.xway, place))
        if known is None:
            tolls.insert(xway=e.xway, place=place, toll=toll)
        else:
            known.toll = toll
        for minute in range(e.before - SPEED_MINUTES, min(e.before + 1, e.minute - SPEED_MINUTES)):
            if (e.xway, place, minute) in traffic:
                del traffic[e.xway, place, minute]


@_lr.procedure
def stop_or_go(e: Any, stops: Any, accidents: Any) -> Any:
    """Count a vehicle that stops (1) or drives on (-1); two vehicles in one spot are an accident."""
    stop = stops.get((e.xway, e.spot))
    if stop is None:
        stops.insert(xway=e.xway, spot=e.spot, vehicles=e.change)
        return
    before = stop.vehicles
    stop.vehicles += e.change
    if max(before, before + e.change) == 2:
        accident = accidents.get((e.xway, e.place))
        if accident is None:
            accidents.insert(xway=e.xway, place=e.place, spots=1)
        else:
            accident.spots += e.change


@_lr.procedure(
    event="time bigint NOT NULL, vehicle bigint NOT NULL, speed bigint NOT NULL, xway bigint NOT NULL, "
    "lane bigint NOT NULL, direction bigint NOT NULL, position bigint NOT NULL",
    returns="toll bigint, accident boolean",
)
def report(e: Any, clocks: Any, vehicles: Any, traffic: Any, tolls: Any, stops: Any, accidents: Any) -> Any:
    """Process a report; return toll and accident if the vehicle has entered a segment."""
    minute = e.time // MINUTE_S
    place = 2 * (e.position // SEGMENT_FEET) + e.direction
    clock = clocks.get(e.xway)
    if clock is None:
        clocks.insert(xway=e.xway, minute=minute)
    else:
        if minute < clock.minute:
            abort("late")
        if minute > clock.minute:
            begin_minute(event(xway=e.xway, before=clock.minute, minute=minute), traffic, tolls)
            clock.minute = minute

    entered = True
    counted = False
    vehicle = vehicles.get((e.xway, e.vehicle))
    if vehicle is None:
        vehicles.insert(
            xway=e.xway, vehicle=e.vehicle, time=e.time, place=place, position=e.position, lane=e.lane,
            same=1, toll=0, paid=0,
        )  # fmt: skip
    else:
        entered = vehicle.place != place
        counted = not entered and vehicle.time // MINUTE_S == minute
        spot = (2 * vehicle.position + vehicle.place % 2) * LANES + vehicle.lane
        if not entered and vehicle.position == e.position and vehicle.lane == e.lane:
            vehicle.same += 1
            if vehicle.same == STOPPED_REPORTS:
                stop_or_go(event(xway=e.xway, spot=spot, place=place, change=1), stops, accidents)
        else:
            if vehicle.same >= STOPPED_REPORTS:
                stop_or_go(event(xway=e.xway, spot=spot, place=vehicle.place, change=-1), stops, accidents)
            vehicle.same = 1
        vehicle.time = e.time
        vehicle.place = place
        vehicle.position = e.position
        vehicle.lane = e.lane

    now = traffic.get((e.xway, place, minute))
    if now is None:
        traffic.insert(xway=e.xway, place=place, minute=minute, vehicles=1, speeds=e.speed, reports=1)
    else:
        now.speeds += e.speed
        now.reports += 1
        if not counted:
            now.vehicles += 1
    if not entered:
        return None, None

    accident = False
    for ahead in range(SEGMENTS_AHEAD):
        there = accidents.get((e.xway, place + ahead * (2 - 4 * e.direction)))
        if there is not None and there.spots > 0:
            accident = True
    toll = 0
    quoted = tolls.get((e.xway, place))
    if quoted is not None and not accident and e.lane != EXIT_LANE:
        toll = quoted.toll
    driver = vehicles[e.xway, e.vehicle]
    driver.paid += driver.toll
    driver.toll = toll
    return toll, accident


def _opening(keys: int) -> pa.RecordBatch:
    nothing = np.zeros(0, np.int64)
    return events_of(report, [nothing] * 7)


def _workload(count: int, keys: int, seed: int) -> pa.RecordBatch:
    """Drive `keys` vehicles, 1000 on each expressway; half of them go through a jam.

    Each vehicle enters within the first minutes and reports every 30 seconds until it has left the road.
    Every fortieth vehicle in the jam stops for some minutes where another vehicle stops.
    """
    reports = max(count // keys, 1) + 1
    xways = max(keys // 1000, 1)
    vehicle = np.repeat(np.arange(keys), reports)
    step = np.tile(np.arange(reports), keys)
    jam = np.arange(keys) % 2 == 0
    stops = np.arange(keys) % 80 < 4
    speeds = np.where(jam, 10 + integers(seed, keys, 15), 50 + integers(seed, keys, 25))
    speed = speeds[vehicle]
    stands = (stops & jam)[vehicle] & (step >= 3) & (step < 9)
    speed[stands] = 0
    distance = np.cumsum((speed * REPORT_S * SEGMENT_FEET // 3600).reshape(keys, reports), axis=1).reshape(-1)
    start = np.where(jam, 40 * SEGMENT_FEET, fractions(seed + 1, keys) * 30 * SEGMENT_FEET).astype(np.int64)
    position = (start[vehicle] + distance) % (SEGMENTS * SEGMENT_FEET)
    # Vehicles stop in the middle of a segment, in pairs.
    position[stands] = (41 + vehicle[stands] // 80 % 3) * SEGMENT_FEET + SEGMENT_FEET // 2
    direction = np.where(jam, 0, integers(seed + 2, keys, 2))[vehicle]
    position = np.where(direction == 0, position, SEGMENTS * SEGMENT_FEET - 1 - position)
    time = integers(seed + 3, keys, 2 * MINUTE_S)[vehicle] + REPORT_S * step
    order = np.lexsort([vehicle, time])[:count]
    lane = np.where(jam, 1, 2)[vehicle]
    columns = [time, vehicle, speed, vehicle % xways, lane, direction, position]
    return events_of(report, [column[order] for column in columns])


LINEAR_ROAD = PackagedProgram(
    "linear_road", "report a position, and get a toll and accidents", _lr, report, _opening, _workload
)
"""Position reports of Linear Road; the keys are vehicles, a thousand on each expressway."""
