"""SEATS: eight tables and six transactions of an airline's reservations (H-Store, appendix A.2).

A customer is known by a number, by a text, or by the text of a frequent flyer's card, as applications differ.
Departures from the benchmark: a result has a balance, a price or a number of rows, because procedures return
one value to a caller. A reservation's key is its flight and customer, who has one seat in a flight.
"""

from __future__ import annotations

from typing import Any

from penstock.procedures.databases import database
from penstock.procedures.language import abort

__all__ = ["KINDS", "SEATS_DATABASE", "transact"]

KINDS = range(6)
(DELETE_RESERVATION, FIND_FLIGHTS, FIND_OPEN_SEATS, NEW_RESERVATION, UPDATE_CUSTOMER,
 UPDATE_RESERVATION) = KINDS  # fmt: skip
NEARBY_AIRPORTS = 10
"""The most airports near the destination to which flights are found."""

_FLIGHTS_FOUND = 50
_FIRST_CLASS_SEATS = 10


def _numbers(count: int) -> str:
    return ", ".join(f"iattr{n:02} bigint NOT NULL" for n in range(count))


def _texts(count: int) -> str:
    return ", ".join(f"sattr{n:02} string NOT NULL" for n in range(count))


SEATS_DATABASE = database("seats")
SEATS_DATABASE.table(
    "countries",
    "co_id bigint, name string NOT NULL, code_2 string NOT NULL, code_3 string NOT NULL",
    key="co_id",
)
SEATS_DATABASE.table(
    "airports",
    "ap_id bigint, code string NOT NULL, name string NOT NULL, city string NOT NULL, "
    "postal_code string NOT NULL, co_id bigint NOT NULL, longitude double NOT NULL, "
    f"latitude double NOT NULL, gmt_offset double NOT NULL, wac bigint NOT NULL, {_numbers(16)}",
    key="ap_id",
)
SEATS_DATABASE.table(
    "distances",
    "ap_id0 bigint, ap_id1 bigint, distance double NOT NULL",
    key=("ap_id0", "ap_id1"),
    indexes=[("ap_id0", "distance")],
)
SEATS_DATABASE.table(
    "airlines",
    "al_id bigint, iata_code string NOT NULL, icao_code string NOT NULL, call_sign string NOT NULL, "
    f"name string NOT NULL, co_id bigint NOT NULL, {_numbers(16)}",
    key="al_id",
)
SEATS_DATABASE.table(
    "customers",
    "c_id bigint, id_str string NOT NULL, base_ap_id bigint NOT NULL, balance double NOT NULL, "
    f"{_texts(20)}, {_numbers(20)}",
    key="c_id",
    partition_by="c_id",
    indexes=["id_str"],
)
SEATS_DATABASE.table(
    "frequent_flyers",
    f"c_id bigint, al_id bigint, id_str string NOT NULL, {_texts(4)}, {_numbers(16)}",
    key=("c_id", "al_id"),
    partition_by="c_id",
    indexes=["c_id", "id_str"],
)
SEATS_DATABASE.table(
    "flights",
    "f_id bigint, al_id bigint NOT NULL, depart_ap_id bigint NOT NULL, depart_time timestamp NOT NULL, "
    "arrive_ap_id bigint NOT NULL, arrive_time timestamp NOT NULL, status bigint NOT NULL, "
    f"base_price double NOT NULL, seats_total bigint NOT NULL, seats_left bigint NOT NULL, {_numbers(30)}",
    key="f_id",
    partition_by="f_id",
    indexes=[("depart_ap_id", "depart_time")],
)
SEATS_DATABASE.table(
    "reservations",
    "f_id bigint, c_id bigint, r_id bigint NOT NULL, seat bigint NOT NULL, price double NOT NULL, "
    f"{_numbers(9)}, created timestamp NOT NULL, updated timestamp NOT NULL",
    key=("f_id", "c_id"),
    partition_by="f_id",
    indexes=[("f_id", "seat"), "c_id"],
)


@SEATS_DATABASE.procedure
def find_customer(e: Any, customers: Any, frequent_flyers: Any) -> Any:
    """Return a customer's number, by any of its names."""
    if e.c_id is not None:
        return e.c_id
    if e.card is not None:
        card = frequent_flyers.by("id_str")[e.card].first()
        if card is None:
            abort("unknown card")
        return card.c_id
    customer = customers.by("id_str")[e.id_str].first()
    if customer is None:
        abort("unknown customer")
    return customer.c_id


@SEATS_DATABASE.procedure
def delete_reservation(e: Any, customers: Any, frequent_flyers: Any, flights: Any, reservations: Any) -> Any:
    """Delete a reservation; return the customer's balance."""
    c_id = find_customer(e, customers, frequent_flyers)
    reservation = reservations.get((e.f_id, c_id))
    if reservation is None:
        abort("no reservation")
    customer = customers[c_id]
    customer.balance -= reservation.price
    customer.iattr00 += 1
    customer.iattr10 -= 1
    customer.iattr11 -= 1
    del reservations[e.f_id, c_id]
    flights[e.f_id].seats_left += 1
    if e.al_id is not None:
        card = frequent_flyers.get((c_id, e.al_id))
        if card is not None:
            card.iattr10 -= 1
    return customer.balance


@SEATS_DATABASE.procedure
def find_flights(e: Any, countries: Any, airports: Any, distances: Any, airlines: Any, flights: Any) -> Any:
    """Return how many flights there are between two times, to an airport or to those within a distance."""
    targets = set()
    targets.add(e.arrive_ap_id)
    if e.distance > 0.0:
        for near in distances.by("ap_id0", "distance")[e.arrive_ap_id, : e.distance].first(NEARBY_AIRPORTS):
            targets.add(near.ap_id1)
    count = 0
    for flight in flights.by("depart_ap_id", "depart_time")[e.depart_ap_id, e.start : e.until].first(
        _FLIGHTS_FOUND
    ):
        if flight.arrive_ap_id in targets and flight.al_id in airlines:
            airport = airports[flight.arrive_ap_id]
            if airport.co_id not in countries:
                abort("unknown country")
            count += 1
    return count


@SEATS_DATABASE.procedure
def find_open_seats(e: Any, flights: Any, reservations: Any) -> Any:
    """Return the price of a seat in a flight: the fewer are left, the more it costs."""
    flight = flights[e.f_id]
    taken = 0
    first_class = 0
    for reservation in reservations.by("f_id", "seat")[e.f_id]:
        taken += 1
        if reservation.seat < _FIRST_CLASS_SEATS:
            first_class += 1
    if taken + flight.seats_left != flight.seats_total:
        abort("seats do not add up")
    price = flight.base_price * (1.0 + taken / flight.seats_total)
    if first_class < _FIRST_CLASS_SEATS:
        return price * 2.0
    return price


@SEATS_DATABASE.procedure
def new_reservation(
    e: Any, customers: Any, frequent_flyers: Any, airlines: Any, flights: Any, reservations: Any
) -> Any:
    """Reserve a seat; return how many are left."""
    flight = flights[e.f_id]
    if flight.al_id not in airlines:
        abort("unknown airline")
    if flight.seats_left <= 0:
        abort("no seats left")
    if len(reservations.by("f_id", "seat")[e.f_id, e.seat : e.seat + 1]) > 0:
        abort("seat is taken")
    if (e.f_id, e.c_id) in reservations:
        abort("has a seat")
    customer = customers[e.c_id]
    reservations.insert(
        f_id=e.f_id, c_id=e.c_id, r_id=e.r_id, seat=e.seat, price=e.price, iattr00=e.value, iattr01=0,
        iattr02=0, iattr03=0, iattr04=0, iattr05=0, iattr06=0, iattr07=0, iattr08=0, created=e.start,
        updated=e.start,
    )  # fmt: skip
    flight.seats_left -= 1
    customer.iattr10 += 1
    customer.iattr11 += 1
    customer.iattr12 = e.value
    card = frequent_flyers.get((e.c_id, flight.al_id))
    if card is not None:
        card.iattr10 += 1
        card.iattr11 = e.value
    return flight.seats_left


@SEATS_DATABASE.procedure
def update_customer(e: Any, countries: Any, airports: Any, customers: Any, frequent_flyers: Any) -> Any:
    """Change two attributes of a customer, and maybe of all cards; return how many cards these are."""
    c_id = find_customer(e, customers, frequent_flyers)
    customer = customers[c_id]
    if airports[customer.base_ap_id].co_id not in countries:
        abort("unknown country")
    count = 0
    if e.al_id is not None:
        for card in frequent_flyers.by("c_id")[c_id]:
            card.iattr00 = e.value
            card.iattr01 = e.seat
            count += 1
    customer.iattr00 = e.value
    customer.iattr01 = e.seat
    return count


@SEATS_DATABASE.procedure
def update_reservation(e: Any, reservations: Any) -> Any:
    """Give a customer another seat; return the seat before."""
    if len(reservations.by("f_id", "seat")[e.f_id, e.seat : e.seat + 1]) > 0:
        abort("seat is taken")
    reservation = reservations.get((e.f_id, e.c_id))
    if reservation is None:
        abort("no reservation")
    before = reservation.seat
    reservation.seat = e.seat
    reservation.iattr00 = e.value
    reservation.updated = e.start
    return before


@SEATS_DATABASE.procedure(
    event="kind bigint NOT NULL, f_id bigint NOT NULL, c_id bigint, id_str string, card string, "
    "al_id bigint, r_id bigint NOT NULL, seat bigint NOT NULL, price double NOT NULL, "
    "value bigint NOT NULL, depart_ap_id bigint NOT NULL, arrive_ap_id bigint NOT NULL, "
    "start timestamp NOT NULL, until timestamp NOT NULL, distance double NOT NULL",
    returns="balance double, price double, count bigint",
)
def transact(
    e: Any,
    countries: Any,
    airports: Any,
    distances: Any,
    airlines: Any,
    customers: Any,
    frequent_flyers: Any,
    flights: Any,
    reservations: Any,
) -> Any:
    """Run a transaction of a kind. With ``al_id`` it concerns the cards of frequent flyers, too."""
    if e.kind == DELETE_RESERVATION:
        balance = delete_reservation(e, customers, frequent_flyers, flights, reservations)
        return balance, None, None
    if e.kind == FIND_FLIGHTS:
        count = find_flights(e, countries, airports, distances, airlines, flights)
        return None, None, count
    if e.kind == FIND_OPEN_SEATS:
        price = find_open_seats(e, flights, reservations)
        return None, price, None
    if e.kind == NEW_RESERVATION:
        count = new_reservation(e, customers, frequent_flyers, airlines, flights, reservations)
        return None, None, count
    if e.kind == UPDATE_CUSTOMER:
        count = update_customer(e, countries, airports, customers, frequent_flyers)
        return None, None, count
    count = update_reservation(e, reservations)
    return None, None, count
