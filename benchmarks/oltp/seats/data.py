"""The first rows of SEATS' tables and its requests (H-Store, appendix A.2).

Few airports have most flights, by a Zipf distribution. Requests change reservations of the
first rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.oltp.seats import procedures
from benchmarks.oltp.seats.procedures import SEATS_DATABASE, transact
from penstock.procedures.programs.oltp.benchmark import START, Draws, OltpBenchmark, table_of, times
from penstock.procedures.programs.packaged import Integers, events_of, scatter, zipf_ranks

__all__ = ["SEATS", "SeatsScale"]

_SHARES = np.repeat(np.arange(6), [10, 10, 35, 20, 10, 15])
_DAY = 86_400_000_000
_COUNTRIES = 249
_AIRPORT_SKEW = 1.0
_EARTH_MILES = 3_959.0
_BY_TEXT, _BY_CARD = 0.2, 0.2
"""The shares of requests that know a customer by its text, and by the text of a card."""
_WITH_CARDS = 0.25
_NEARBY = 0.25


@dataclass(frozen=True)
class SeatsScale:
    """The size of a reservation system.

    Parameters
    ----------
    customers : int
        The number of customers, at least as many as a flight's seats.
    airports, airlines : int
        The airports and airlines.
    flights : int
        The number of flights, of 50 days.
    seats : int
        The seats of a flight; 60 to 80 per cent of them are reserved at first.
    """

    customers: int = 1_000_000
    airports: int = 286
    airlines: int = 1_250
    flights: int = 50_000
    seats: int = 150


@dataclass(frozen=True)
class _Flights:
    """The flights, and the first reservations."""

    depart: Integers
    arrive: Integers
    airline: Integers
    depart_time: Integers
    taken: Integers
    """The reserved seats of each flight."""
    flight: Integers
    customer: Integers
    seat: Integers
    """These three are of each reservation."""
    free: Integers
    """The seats of each flight, the reserved ones first; two-dimensional."""

    @staticmethod
    def draw(scale: SeatsScale) -> _Flights:
        draws = Draws(2)
        count, airports = scale.flights, scale.airports
        depart = scatter(zipf_ranks(3, count, airports, _AIRPORT_SKEW), airports)
        step = 1 + zipf_ranks(4, count, airports - 1, _AIRPORT_SKEW)
        taken = (scale.seats * (0.6 + 0.2 * draws.fractions(count))).astype(np.int64)
        shuffled = np.argsort(draws.fractions(count * scale.seats).reshape(count, scale.seats), axis=1)
        flight = np.repeat(np.arange(count), taken)
        number = np.arange(len(flight)) - np.repeat(np.cumsum(taken) - taken, taken)
        first = draws.integers(count, 0, scale.customers - 1)
        return _Flights(
            depart, (depart + step) % airports, draws.integers(count, 0, scale.airlines - 1),
            START + draws.integers(count, 0, 50 * 24) * (_DAY // 24), taken, flight,
            (first[flight] + number) % scale.customers, shuffled[flight, number], shuffled,
        )  # fmt: skip


def _id_texts(numbers: Integers) -> pa.Array[Any]:
    return pa.array([f"{number:064d}" for number in numbers.tolist()])


def _card_texts(customers: Integers, airlines: Integers) -> pa.Array[Any]:
    pairs = zip(customers.tolist(), airlines.tolist(), strict=True)
    return pa.array([f"{customer:048d}{airline:016d}" for customer, airline in pairs])


def _attributes(draws: Draws, count: int, numbers: int, texts: int = 0) -> dict[str, Any]:
    columns: dict[str, Any] = {f"iattr{n:02}": draws.integers(count, 0, 1 << 20) for n in range(numbers)}
    return columns | {f"sattr{n:02}": draws.texts(count, 8, 32) for n in range(texts)}


def _cards(scale: SeatsScale) -> tuple[Integers, Integers]:
    """Return the customers and airlines of frequent flyers' cards: none to two for a customer."""
    draws = Draws(5)
    owner = np.repeat(np.arange(scale.customers), draws.integers(scale.customers, 0, 2))
    is_second = np.append(False, owner[1:] == owner[:-1])
    first = owner * 7 % scale.airlines
    return owner, np.where(is_second, (first + 1) % scale.airlines, first)


def _first_rows(scale: SeatsScale) -> dict[str, pa.Table]:
    draws = Draws(1)
    customers, airports = scale.customers, scale.airports
    longitude, latitude = (draws.fractions(airports) * 120.0 - 60.0 for _ in range(2))
    ids = np.arange(customers)
    columns = {
        "countries": {
            "co_id": np.arange(_COUNTRIES), "name": draws.texts(_COUNTRIES, 6, 40),
            "code_2": draws.texts(_COUNTRIES, 2, 2), "code_3": draws.texts(_COUNTRIES, 3, 3),
        },
        "airports": {
            "ap_id": np.arange(airports), "code": draws.texts(airports, 3, 3),
            "name": draws.texts(airports, 10, 60), "city": draws.texts(airports, 6, 40),
            "postal_code": draws.digits(airports, 5), "co_id": draws.integers(airports, 0, _COUNTRIES - 1),
            "longitude": longitude, "latitude": latitude,
            "gmt_offset": draws.integers(airports, -11, 12).astype(np.float64),
            "wac": draws.integers(airports, 1, 999), **_attributes(draws, airports, 16),
        },
        "distances": _distances(longitude, latitude),
        "airlines": {
            "al_id": np.arange(scale.airlines), "iata_code": draws.texts(scale.airlines, 2, 2),
            "icao_code": draws.texts(scale.airlines, 3, 3), "call_sign": draws.texts(scale.airlines, 5, 20),
            "name": draws.texts(scale.airlines, 10, 60),
            "co_id": draws.integers(scale.airlines, 0, _COUNTRIES - 1),
            **_attributes(draws, scale.airlines, 16),
        },
        "customers": {
            "c_id": ids, "id_str": _id_texts(ids), "base_ap_id": draws.integers(customers, 0, airports - 1),
            "balance": np.full(customers, 1_000.0), **_attributes(draws, customers, 20, 20),
        },
        **_reservations(draws, scale),
    }  # fmt: skip
    return {name: table_of(SEATS_DATABASE, name, table) for name, table in columns.items()}


def _distances(longitude: Any, latitude: Any) -> dict[str, Any]:
    """Return the distances of all pairs of airports, along a great circle."""
    first, second = (part.reshape(-1) for part in np.indices((len(longitude), len(longitude))))
    first, second = first[first != second], second[first != second]
    radians = np.radians(np.stack([latitude, longitude]))
    (lat0, lon0), (lat1, lon1) = radians[:, first], radians[:, second]
    cosine = np.sin(lat0) * np.sin(lat1) + np.cos(lat0) * np.cos(lat1) * np.cos(lon0 - lon1)
    return {
        "ap_id0": first,
        "ap_id1": second,
        "distance": _EARTH_MILES * np.arccos(np.clip(cosine, -1.0, 1.0)),
    }


def _reservations(draws: Draws, scale: SeatsScale) -> dict[str, dict[str, Any]]:
    flights = _Flights.draw(scale)
    owner, airline = _cards(scale)
    count, reserved = scale.flights, len(flights.flight)
    return {
        "frequent_flyers": {
            "c_id": owner, "al_id": airline, "id_str": _card_texts(owner, airline),
            **_attributes(draws, len(owner), 16, 4),
        },
        "flights": {
            "f_id": np.arange(count), "al_id": flights.airline, "depart_ap_id": flights.depart,
            "depart_time": flights.depart_time, "arrive_ap_id": flights.arrive,
            "arrive_time": flights.depart_time + draws.integers(count, 1, 12) * (_DAY // 24), "status": 0,
            "base_price": draws.integers(count, 100, 1_000).astype(np.float64), "seats_total": scale.seats,
            "seats_left": scale.seats - flights.taken, **_attributes(draws, count, 30),
        },
        "reservations": {
            "f_id": flights.flight, "c_id": flights.customer, "r_id": np.arange(reserved),
            "seat": flights.seat, "price": draws.integers(reserved, 100, 1_000).astype(np.float64),
            **_attributes(draws, reserved, 9), "created": START, "updated": START,
        },
    }  # fmt: skip


def _requests(scale: SeatsScale, count: int, seed: int) -> pa.RecordBatch:
    """Draw requests. Each changes another reservation, as long as there are some."""
    draws = Draws(seed + 1)
    flights = _Flights.draw(scale)
    kinds = _SHARES[draws.integers(count, 0, 99)]
    reserved = np.resize(np.argsort(draws.fractions(len(flights.flight)), kind="stable"), count)
    has_reservation = (kinds == procedures.DELETE_RESERVATION) | (kinds == procedures.UPDATE_RESERVATION)
    flight = np.where(has_reservation, flights.flight[reserved], draws.integers(count, 0, scale.flights - 1))
    customer = np.where(
        has_reservation, flights.customer[reserved], draws.integers(count, 0, scale.customers - 1)
    )
    # A free seat at first; a request before may have taken it.
    free = flights.taken[flight] + (draws.fractions(count) * (scale.seats - flights.taken[flight])).astype(
        np.int64
    )
    is_update = kinds == procedures.UPDATE_CUSTOMER
    seat = np.where(is_update, draws.integers(count, 0, 1 << 20), flights.free[flight, free])

    by_name = is_update | (kinds == procedures.DELETE_RESERVATION)
    drawn = draws.fractions(count)
    owner, airline = _cards(scale)
    with_card = np.unique(owner)
    by_card = by_name & (drawn < _BY_CARD) & np.isin(customer, with_card)
    by_text = by_name & ~by_card & (drawn < _BY_CARD + _BY_TEXT)
    # The first card of each customer.
    first = np.minimum(np.searchsorted(owner, customer), len(owner) - 1)
    cards = _card_texts(customer, airline[first])
    has_airline = by_name & (draws.fractions(count) < _WITH_CARDS)
    is_search = kinds == procedures.FIND_FLIGHTS
    start = np.where(is_search, flights.depart_time[flight] - _DAY // 2, times(count))
    columns = [
        kinds, flight, pa.array(customer, mask=by_card | by_text),
        pa.array(_id_texts(customer).to_pylist(), pa.string(), mask=~by_text),
        pa.array(cards.to_pylist(), pa.string(), mask=~by_card),
        pa.array(airline[first], mask=~has_airline), len(flights.flight) + np.arange(count), seat,
        draws.integers(count, 100, 1_000).astype(np.float64), draws.integers(count, 0, 1 << 20),
        flights.depart[flight], flights.arrive[flight], pa.array(start, pa.timestamp("us")),
        pa.array(start + _DAY, pa.timestamp("us")),
        np.where(draws.fractions(count) < _NEARBY, 1_000.0, 0.0),
    ]  # fmt: skip
    return events_of(transact, columns)


SEATS = OltpBenchmark(
    "seats",
    "search flights and seats, reserve, change and cancel",
    SEATS_DATABASE,
    transact,
    SeatsScale(),
    SeatsScale(customers=60, airports=8, airlines=4, flights=12, seats=20),
    _first_rows,
    _requests,
    {
        "the seats of a flight are reserved or left": """
            SELECT f_id FROM flights LEFT JOIN (
                SELECT f_id, count(*) AS taken FROM reservations GROUP BY ALL
            ) USING (f_id) WHERE seats_left + coalesce(taken, 0) <> seats_total OR seats_left < 0""",
        "a seat has one reservation": """
            SELECT f_id, seat FROM reservations GROUP BY ALL HAVING count(*) > 1""",
        "a reservation has its flight and customer": """
            SELECT f_id FROM reservations LEFT JOIN flights USING (f_id) LEFT JOIN customers USING (c_id)
            WHERE seats_total IS NULL OR id_str IS NULL""",
    },
)
"""SEATS: 45 per cent of the transactions only read."""
