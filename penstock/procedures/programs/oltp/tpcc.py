"""TPC-C: the nine tables and five transactions of a wholesaler with warehouses (H-Store §2, appendix).

The program departs from the specification, because procedures make no texts and return one value to a caller:

- The terminal gets no texts. The result of a new order is its total. The result of a payment or an order
  status is the customer's balance. The result of a delivery is the number of delivered orders, and that of a
  stock level the number of items with low stock.
- A payment of a customer with bad credit does not change ``data``. The specification prepends values to
  ``data`` that the row of ``history`` also has. Here ``history`` has the names of warehouse and district as
  two columns, and a key: the customer and the number of the payment.
- The terminal draws the customer by last name; the procedure chooses the middle customer with this name, as
  specified.
- A delivery is one transaction for all districts of a warehouse.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from penstock.procedures.databases import database
from penstock.procedures.language import abort

__all__ = ["DELIVERY", "DISTRICTS", "NEW_ORDER", "ORDER_STATUS", "PAYMENT", "STOCK_LEVEL", "TPCC", "transact"]

DISTRICTS = 10
"""The number of districts of a warehouse in the specification."""
RECENT_ORDERS = 20
"""The number of last orders that `stock_level` reads."""
NEW_ORDER, PAYMENT, ORDER_STATUS, DELIVERY, STOCK_LEVEL = range(5)
"""The kinds of transactions."""

_ZERO = Decimal("0.00")
_ONE = Decimal(1)
_KEY = "w_id bigint, d_id bigint"
_PLACE = (
    "name string NOT NULL, street_1 string NOT NULL, street_2 string NOT NULL, city string NOT NULL, "
    "state string NOT NULL, zip string NOT NULL"
)
_INFOS = ", ".join(f"dist_{number:02} string NOT NULL" for number in range(1, DISTRICTS + 1))

TPCC = database("tpcc")
TPCC.table(
    "warehouses",
    f"w_id bigint, {_PLACE}, tax decimal(4, 4) NOT NULL, ytd decimal(14, 2) NOT NULL",
    key="w_id",
    partition_by="w_id",
)
TPCC.table(
    "districts",
    f"{_KEY}, {_PLACE}, tax decimal(4, 4) NOT NULL, ytd decimal(14, 2) NOT NULL, next_o_id bigint NOT NULL",
    key=("w_id", "d_id"),
    partition_by="w_id",
)
TPCC.table(
    "customers",
    f"{_KEY}, c_id bigint, first string NOT NULL, middle string NOT NULL, last string NOT NULL, "
    f"{_PLACE.partition(', ')[2]}, phone string NOT NULL, since timestamp NOT NULL, credit string NOT NULL, "
    "credit_lim decimal(14, 2) NOT NULL, discount decimal(4, 4) NOT NULL, balance decimal(14, 2) NOT NULL, "
    "ytd_payment decimal(14, 2) NOT NULL, payment_cnt bigint NOT NULL, delivery_cnt bigint NOT NULL, "
    "data string NOT NULL",
    key=("w_id", "d_id", "c_id"),
    partition_by="w_id",
    indexes=[("w_id", "d_id", "last", "first")],
)
TPCC.table(
    "history",
    "c_w_id bigint, c_d_id bigint, c_id bigint, number bigint, d_id bigint NOT NULL, w_id bigint NOT NULL, "
    "date timestamp NOT NULL, amount decimal(6, 2) NOT NULL, w_name string NOT NULL, d_name string NOT NULL",
    key=("c_w_id", "c_d_id", "c_id", "number"),
    partition_by="c_w_id",
)
TPCC.table("new_orders", f"{_KEY}, o_id bigint", key=("w_id", "d_id", "o_id"), partition_by="w_id",
           indexes=[("w_id", "d_id")])  # fmt: skip
TPCC.table(
    "orders",
    f"{_KEY}, o_id bigint, c_id bigint NOT NULL, entry_d timestamp NOT NULL, carrier_id bigint, "
    "ol_cnt bigint NOT NULL, all_local bigint NOT NULL",
    key=("w_id", "d_id", "o_id"),
    partition_by="w_id",
    indexes=[("w_id", "d_id", "c_id")],
)
TPCC.table(
    "order_lines",
    f"{_KEY}, o_id bigint, number bigint, i_id bigint NOT NULL, supply_w_id bigint NOT NULL, "
    "delivery_d timestamp, quantity bigint NOT NULL, amount decimal(6, 2) NOT NULL, "
    "dist_info string NOT NULL",
    key=("w_id", "d_id", "o_id", "number"),
    partition_by="w_id",
)
TPCC.table(
    "items",
    "i_id bigint, im_id bigint NOT NULL, name string NOT NULL, price decimal(5, 2) NOT NULL, "
    "data string NOT NULL",
    key="i_id",
)
TPCC.table(
    "stock",
    f"w_id bigint, i_id bigint, quantity bigint NOT NULL, {_INFOS}, ytd bigint NOT NULL, "
    "order_cnt bigint NOT NULL, remote_cnt bigint NOT NULL, data string NOT NULL",
    key=("w_id", "i_id"),
    partition_by="w_id",
)


@TPCC.procedure
def new_order(
    e: Any,
    warehouses: Any,
    districts: Any,
    customers: Any,
    new_orders: Any,
    orders: Any,
    order_lines: Any,
    items: Any,
    stock: Any,
) -> Any:
    """Enter an order; return its total (TPC-C 2.4)."""
    district = districts[e.w_id, e.d_id]
    o_id = district.next_o_id
    district.next_o_id += 1
    customer = customers[e.w_id, e.d_id, e.c_id]
    all_local = 1
    for supply in e.supplies:
        if supply != e.w_id:
            all_local = 0
    orders.insert(
        w_id=e.w_id, d_id=e.d_id, o_id=o_id, c_id=e.c_id, entry_d=e.date, ol_cnt=len(e.items),
        all_local=all_local,
    )  # fmt: skip
    new_orders.insert(w_id=e.w_id, d_id=e.d_id, o_id=o_id)
    total = _ZERO
    for place in range(len(e.items)):
        i_id = e.items[place]
        supply = e.supplies[place]
        quantity = e.quantities[place]
        # Take the keys from the event, so that the kernel prefetches these look-ups.
        item = items.get(e.items[place])
        if item is None:
            abort("item number is not valid")
        row = stock[e.supplies[place], e.items[place]]
        if row.quantity >= quantity + 10:
            row.quantity -= quantity
        else:
            row.quantity += 91 - quantity
        row.ytd += quantity
        row.order_cnt += 1
        if supply != e.w_id:
            row.remote_cnt += 1
        amount = item.price * quantity
        total += amount
        info = row.dist_10
        if e.d_id == 1:
            info = row.dist_01
        elif e.d_id == 2:
            info = row.dist_02
        elif e.d_id == 3:
            info = row.dist_03
        elif e.d_id == 4:
            info = row.dist_04
        elif e.d_id == 5:
            info = row.dist_05
        elif e.d_id == 6:
            info = row.dist_06
        elif e.d_id == 7:
            info = row.dist_07
        elif e.d_id == 8:
            info = row.dist_08
        elif e.d_id == 9:
            info = row.dist_09
        order_lines.insert(
            w_id=e.w_id, d_id=e.d_id, o_id=o_id, number=place + 1, i_id=i_id, supply_w_id=supply,
            quantity=quantity, amount=amount, dist_info=info,
        )  # fmt: skip
    tax = warehouses[e.w_id].tax + district.tax
    return total * (_ONE - customer.discount) * (_ONE + tax)


@TPCC.procedure
def find_customer(e: Any, customers: Any) -> Any:
    """Return the number of a customer, or of the middle customer with a last name (TPC-C 2.5.2.2)."""
    if e.c_id is not None:
        return e.c_id
    found = None
    count = len(customers.by("w_id", "d_id", "last", "first")[e.c_w_id, e.c_d_id, e.c_last])
    for row in customers.by("w_id", "d_id", "last", "first")[e.c_w_id, e.c_d_id, e.c_last].first(
        (count + 1) // 2
    ):
        found = row.c_id
    return found


@TPCC.procedure
def payment(e: Any, warehouses: Any, districts: Any, customers: Any, history: Any) -> Any:
    """Take a payment of a customer; return the balance (TPC-C 2.5)."""
    c_id = find_customer(e, customers)
    customer = customers[e.c_w_id, e.c_d_id, c_id]
    warehouse = warehouses[e.w_id]
    district = districts[e.w_id, e.d_id]
    warehouse.ytd += e.amount
    district.ytd += e.amount
    customer.balance -= e.amount
    customer.ytd_payment += e.amount
    customer.payment_cnt += 1
    history.insert(
        c_w_id=e.c_w_id, c_d_id=e.c_d_id, c_id=c_id, number=customer.payment_cnt, d_id=e.d_id, w_id=e.w_id,
        date=e.date, amount=e.amount, w_name=warehouse.name, d_name=district.name,
    )  # fmt: skip
    return customer.balance


@TPCC.procedure
def order_status(e: Any, customers: Any, orders: Any, order_lines: Any) -> Any:
    """Read a customer's last order; return the customer's balance (TPC-C 2.6)."""
    c_id = find_customer(e, customers)
    customer = customers[e.c_w_id, e.c_d_id, c_id]
    order = orders.by("w_id", "d_id", "c_id")[e.c_w_id, e.c_d_id, c_id].last()
    if order is not None:
        quantity = 0
        for number in range(1, order.ol_cnt + 1):
            line = order_lines[e.c_w_id, e.c_d_id, order.o_id, number]
            quantity += line.quantity
        if quantity == 0:
            abort("an empty order")
    return customer.balance


@TPCC.procedure
def deliver(e: Any, customers: Any, new_orders: Any, orders: Any, order_lines: Any) -> Any:
    """Deliver the oldest order of each district; return the number of orders (TPC-C 2.7)."""
    delivered = 0
    for d_id in range(1, DISTRICTS + 1):
        oldest = new_orders.by("w_id", "d_id")[e.w_id, d_id].first()
        if oldest is not None:
            o_id = oldest.o_id
            del new_orders[e.w_id, d_id, o_id]
            order = orders[e.w_id, d_id, o_id]
            order.carrier_id = e.number
            total = _ZERO
            for number in range(1, order.ol_cnt + 1):
                line = order_lines[e.w_id, d_id, o_id, number]
                line.delivery_d = e.date
                total += line.amount
            customer = customers[e.w_id, d_id, order.c_id]
            customer.balance += total
            customer.delivery_cnt += 1
            delivered += 1
    return delivered


@TPCC.procedure
def stock_level(e: Any, districts: Any, orders: Any, order_lines: Any, stock: Any) -> Any:
    """Return how many items of a district's last orders have a low stock (TPC-C 2.8)."""
    after = districts[e.w_id, e.d_id].next_o_id
    low = set()
    for o_id in range(after - RECENT_ORDERS, after):
        order = orders.get((e.w_id, e.d_id, o_id))
        if order is not None:
            for number in range(1, order.ol_cnt + 1):
                i_id = order_lines[e.w_id, e.d_id, o_id, number].i_id
                if stock[e.w_id, i_id].quantity < e.number:
                    low.add(i_id)
    return len(low)


@TPCC.procedure(
    event="kind bigint NOT NULL, w_id bigint NOT NULL, d_id bigint NOT NULL, c_w_id bigint NOT NULL, "
    "c_d_id bigint NOT NULL, c_id bigint, c_last string, amount decimal(6, 2) NOT NULL, "
    "number bigint NOT NULL, date timestamp NOT NULL, items array<bigint>, supplies array<bigint>, "
    "quantities array<bigint>",
    returns="total decimal(18, 10), balance decimal(14, 2), count bigint",
)
def transact(
    e: Any,
    warehouses: Any,
    districts: Any,
    customers: Any,
    history: Any,
    new_orders: Any,
    orders: Any,
    order_lines: Any,
    items: Any,
    stock: Any,
) -> Any:
    """Run a transaction of the kind ``e.kind``; ``number`` is a delivery's carrier, or a stock threshold."""
    if e.kind == NEW_ORDER:
        total = new_order(e, warehouses, districts, customers, new_orders, orders, order_lines, items, stock)
        return total, None, None
    if e.kind == PAYMENT:
        balance = payment(e, warehouses, districts, customers, history)
        return None, balance, None
    if e.kind == ORDER_STATUS:
        balance = order_status(e, customers, orders, order_lines)
        return None, balance, None
    if e.kind == DELIVERY:
        count = deliver(e, customers, new_orders, orders, order_lines)
        return None, None, count
    count = stock_level(e, districts, orders, order_lines, stock)
    return None, None, count
