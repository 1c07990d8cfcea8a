"""Linear Road's tolls, each computed anew from all reports before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Report = dict[str, Any]


def place_of(report: Report) -> int:
    """Return a report's segment and direction."""
    return 2 * (report["position"] // 5280) + report["direction"]


def answers(reports: Sequence[Report]) -> list[tuple[int | None, bool | None]]:
    """Return toll and accident of each report, both None unless a vehicle enters a segment."""
    made: list[tuple[int | None, bool | None]] = []
    own: dict[tuple[int, int], list[Report]] = {}
    minutes: dict[tuple[int, int, int], list[Report]] = {}
    for report in reports:
        road, place, minute = report["xway"], place_of(report), report["time"] // 60
        mine = own.setdefault((road, report["vehicle"]), [])
        entered = not mine or place_of(mine[-1]) != place
        mine.append(report)
        minutes.setdefault((road, place, minute), []).append(report)
        if not entered:
            made.append((None, None))
            continue
        step = -2 if report["direction"] else 2
        ahead = {place + step * number for number in range(5)}
        spots = [_spot(one) for (other, _), one in own.items() if other == road]
        standing = [spot for spot in spots if spot is not None]
        accident = any(spot[0] in ahead and standing.count(spot) > 1 for spot in standing)
        free = accident or report["lane"] == 4
        made.append((0 if free else _toll(minutes, road, place, minute), accident))
    return made


def _spot(reports: Sequence[Report]) -> tuple[int, int, int] | None:
    """Return where a vehicle stands that has reported the same position four times."""
    last = [(place_of(one), one["position"], one["lane"]) for one in reports[-4:]]
    return last[0] if len(last) == 4 and len(set(last)) == 1 else None


def _toll(minutes: dict[tuple[int, int, int], list[Report]], road: int, place: int, minute: int) -> int:
    vehicles = {one["vehicle"] for one in minutes.get((road, place, minute - 1), ())}
    speeds = [one["speed"] for back in range(1, 6) for one in minutes.get((road, place, minute - back), ())]
    if len(vehicles) <= 50 or sum(speeds) >= 40 * len(speeds):
        return 0
    return int(2 * (len(vehicles) - 50) ** 2)
