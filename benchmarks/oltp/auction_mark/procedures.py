"""AuctionMark: sixteen tables and ten transactions of an auction site (H-Store, appendix A.1).

Departures from the benchmark, because procedures make no texts and return one value to a caller:

- A result has a price, a balance or rating, or a number of rows, not the rows.
- An item's text of attributes is the requester's, not made from the names of the attributes, which are read.
- A row that belongs to an item has a number of its own within the item, which the tables count.
"""

from __future__ import annotations

from typing import Any

from penstock.procedures.databases import database
from penstock.procedures.language import abort

__all__ = ["AUCTIONS", "KINDS", "transact"]

KINDS = range(10)
"""The kinds of transactions; the last one runs at regular intervals."""
(GET_ITEM, GET_USER_INFO, NEW_BID, NEW_COMMENT, NEW_COMMENT_RESPONSE, NEW_FEEDBACK, NEW_ITEM, NEW_PURCHASE,
 UPDATE_ITEM, CLOSE_AUCTIONS) = KINDS  # fmt: skip
OPEN, WAITING_FOR_PURCHASE, CLOSED = range(3)
"""The states of an item."""
FEEDBACK, COMMENTS, SELLER_ITEMS, BUYER_ITEMS, WATCHED_ITEMS = 1, 2, 4, 8, 16
"""The parts that `get_user_info` reads, as bits of ``number``."""

_ROWS_SHOWN = 25
_AUCTIONS_CLOSED = 100
"""The most auctions that a transaction looks at to close them."""
_STEP = 0.025
"""The step between bids, in proportion to the first price."""

_OWNED = "u_id bigint, i_id bigint"
_TEXTS = ", ".join(f"sattr{n} string NOT NULL" for n in range(8))
_NUMBERS = ", ".join(f"iattr{n} bigint NOT NULL" for n in range(8))
_TIMES = "created timestamp NOT NULL, updated timestamp NOT NULL"

AUCTIONS = database("auction_mark")
AUCTIONS.table("regions", "r_id bigint, name string NOT NULL", key="r_id")
AUCTIONS.table(
    "users",
    "u_id bigint, rating bigint NOT NULL, balance double NOT NULL, comments bigint NOT NULL, "
    f"r_id bigint NOT NULL, {_TIMES}, {_TEXTS}, {_NUMBERS}",
    key="u_id",
    partition_by="u_id",
)
AUCTIONS.table(
    "user_attributes",
    "u_id bigint, ua_id bigint, name string NOT NULL, value string NOT NULL, created timestamp NOT NULL",
    key=("u_id", "ua_id"),
    partition_by="u_id",
)
AUCTIONS.table("categories", "c_id bigint, name string NOT NULL, parent_id bigint", key="c_id")
AUCTIONS.table("attribute_groups", "gag_id bigint, c_id bigint NOT NULL, name string NOT NULL", key="gag_id")
AUCTIONS.table(
    "attribute_values", "gag_id bigint, gav_id bigint, name string NOT NULL", key=("gag_id", "gav_id")
)
AUCTIONS.table(
    "items",
    f"{_OWNED}, c_id bigint NOT NULL, name string NOT NULL, description string NOT NULL, "
    "attributes string NOT NULL, initial_price double NOT NULL, current_price double NOT NULL, "
    "num_bids bigint NOT NULL, num_images bigint NOT NULL, num_attributes bigint NOT NULL, "
    "num_comments bigint NOT NULL, start_date timestamp NOT NULL, end_date timestamp NOT NULL, "
    f"status bigint NOT NULL, {_TIMES}, {_NUMBERS}",
    key=("u_id", "i_id"),
    partition_by="u_id",
    indexes=["u_id", "end_date"],
)
AUCTIONS.table(
    "item_attributes",
    f"{_OWNED}, ia_id bigint, gav_id bigint NOT NULL, gag_id bigint NOT NULL, sattr0 string",
    key=("u_id", "i_id", "ia_id"),
    partition_by="u_id",
)
AUCTIONS.table(
    "item_images", f"{_OWNED}, ii_id bigint, sattr0 string NOT NULL", key=("u_id", "i_id", "ii_id"),
    partition_by="u_id",
)  # fmt: skip
AUCTIONS.table(
    "item_comments",
    f"{_OWNED}, ic_id bigint, buyer_id bigint NOT NULL, question string NOT NULL, response string, {_TIMES}",
    key=("u_id", "i_id", "ic_id"),
    partition_by="u_id",
    indexes=["u_id"],
)
AUCTIONS.table(
    "item_bids",
    f"{_OWNED}, ib_id bigint, buyer_id bigint NOT NULL, bid double NOT NULL, max_bid double NOT NULL, "
    f"{_TIMES}",
    key=("u_id", "i_id", "ib_id"),
    partition_by="u_id",
)
AUCTIONS.table(
    "item_max_bids", f"{_OWNED}, ib_id bigint NOT NULL, {_TIMES}", key=("u_id", "i_id"), partition_by="u_id"
)
AUCTIONS.table(
    "item_purchases", f"{_OWNED}, ip_id bigint, ib_id bigint NOT NULL, date timestamp NOT NULL",
    key=("u_id", "i_id", "ip_id"), partition_by="u_id",
)  # fmt: skip
AUCTIONS.table(
    "feedback",
    "u_id bigint, i_id bigint, i_u_id bigint, from_id bigint, rating bigint NOT NULL, "
    "date timestamp NOT NULL, sattr0 string NOT NULL",
    key=("u_id", "i_id", "i_u_id", "from_id"),
    partition_by="u_id",
    indexes=["u_id"],
)
AUCTIONS.table(
    "user_items",
    "u_id bigint, i_id bigint, i_u_id bigint, ip_id bigint, ib_id bigint NOT NULL, "
    "created timestamp NOT NULL",
    key=("u_id", "i_id", "i_u_id"),
    partition_by="u_id",
    indexes=["u_id"],
)
AUCTIONS.table(
    "watches", "u_id bigint, i_id bigint, i_u_id bigint, created timestamp NOT NULL",
    key=("u_id", "i_id", "i_u_id"), partition_by="u_id", indexes=["u_id"],
)  # fmt: skip


@AUCTIONS.procedure
def get_item(e: Any, regions: Any, users: Any, items: Any) -> Any:
    """Read an item that is for sale, its seller, and the seller's region; return its price."""
    item = items[e.u_id, e.i_id]
    if item.status != OPEN:
        abort("not for sale")
    seller = users[e.u_id]
    if seller.r_id not in regions:
        abort("unknown region")
    return item.current_price


@AUCTIONS.procedure
def get_user_info(
    e: Any,
    regions: Any,
    users: Any,
    items: Any,
    item_comments: Any,
    feedback: Any,
    user_items: Any,
    watches: Any,
) -> Any:
    """Read a user, and rows of the kinds that ``number`` has; return how many these are."""
    user = users[e.u_id]
    if user.r_id not in regions:
        abort("unknown region")
    rows = 0
    if e.number & FEEDBACK != 0:
        for given in feedback.by("u_id")[e.u_id].last(_ROWS_SHOWN):
            if given.from_id in users:
                rows += 1
    if e.number & COMMENTS != 0:
        for comment in item_comments.by("u_id")[e.u_id].last(_ROWS_SHOWN):
            if comment.response is None:
                rows += 1
    if e.number & SELLER_ITEMS != 0:
        for item in items.by("u_id")[e.u_id].last(_ROWS_SHOWN):
            if item.status != CLOSED:
                rows += 1
    if e.number & BUYER_ITEMS != 0:
        for bought in user_items.by("u_id")[e.u_id].last(_ROWS_SHOWN):
            if (bought.i_u_id, bought.i_id) in items:
                rows += 1
    if e.number & WATCHED_ITEMS != 0:
        for watch in watches.by("u_id")[e.u_id].last(_ROWS_SHOWN):
            if (watch.i_u_id, watch.i_id) in items:
                rows += 1
    return rows


@AUCTIONS.procedure
def new_bid(e: Any, items: Any, item_bids: Any, item_max_bids: Any) -> Any:
    """Bid for an item up to ``amount``; return its price. The highest bidder pays a step more than others."""
    item = items[e.u_id, e.i_id]
    if item.status != OPEN:
        abort("not for sale")
    if item.end_date < e.date:
        abort("ended")
    if e.amount < item.current_price:
        abort("bid too low")
    number = item.num_bids + 1
    if item.num_bids == 0:
        item_bids.insert(
            u_id=e.u_id, i_id=e.i_id, ib_id=number, buyer_id=e.buyer_id, bid=item.initial_price,
            max_bid=e.amount, created=e.date, updated=e.date,
        )  # fmt: skip
        item_max_bids.insert(u_id=e.u_id, i_id=e.i_id, ib_id=number, created=e.date, updated=e.date)
        item.num_bids = number
        item.updated = e.date
        return item.current_price
    highest = item_max_bids[e.u_id, e.i_id]
    best = item_bids[e.u_id, e.i_id, highest.ib_id]
    if best.buyer_id == e.buyer_id:
        if e.amount < best.max_bid:
            abort("bid too low")
        best.max_bid = e.amount
        best.updated = e.date
        return item.current_price
    step = item.initial_price * _STEP
    price = e.amount
    if e.amount > best.max_bid:
        price = min(e.amount, best.max_bid + step)
        highest.ib_id = number
        highest.updated = e.date
    else:
        best.bid = min(best.max_bid, e.amount + step)
        best.updated = e.date
        item.current_price = best.bid
    item_bids.insert(
        u_id=e.u_id, i_id=e.i_id, ib_id=number, buyer_id=e.buyer_id, bid=price, max_bid=e.amount,
        created=e.date, updated=e.date,
    )  # fmt: skip
    item.current_price = max(item.current_price, price)
    item.num_bids = number
    item.updated = e.date
    return item.current_price


@AUCTIONS.procedure
def new_comment(e: Any, users: Any, items: Any, item_comments: Any) -> Any:
    """Ask the seller of an item; return the number of the question."""
    item = items[e.u_id, e.i_id]
    number = item.num_comments + 1
    item_comments.insert(
        u_id=e.u_id, i_id=e.i_id, ic_id=number, buyer_id=e.buyer_id, question=e.text, created=e.date,
        updated=e.date,
    )  # fmt: skip
    item.num_comments = number
    users[e.u_id].comments += 1
    return number


@AUCTIONS.procedure
def new_comment_response(e: Any, users: Any, item_comments: Any) -> Any:
    """Answer a question; return how many questions to the seller are without an answer."""
    comment = item_comments[e.u_id, e.i_id, e.number]
    if comment.response is not None:
        abort("answered")
    comment.response = e.text
    comment.updated = e.date
    seller = users[e.u_id]
    seller.comments -= 1
    return seller.comments


@AUCTIONS.procedure
def new_feedback(e: Any, users: Any, feedback: Any) -> Any:
    """Rate the buyer or seller of an item; return the new rating."""
    if (e.buyer_id, e.i_id, e.u_id, e.from_id) in feedback:
        abort("rated")
    feedback.insert(
        u_id=e.buyer_id, i_id=e.i_id, i_u_id=e.u_id, from_id=e.from_id, rating=e.number, date=e.date,
        sattr0=e.text,
    )  # fmt: skip
    user = users[e.buyer_id]
    user.rating += e.number
    user.updated = e.date
    return user.rating


@AUCTIONS.procedure
def new_item(
    e: Any,
    users: Any,
    categories: Any,
    attribute_groups: Any,
    attribute_values: Any,
    items: Any,
    item_attributes: Any,
    item_images: Any,
) -> Any:
    """Offer an item until a time, for a fee; return the seller's balance."""
    if e.number not in categories:
        abort("unknown category")
    for place in range(len(e.groups)):
        if attribute_groups.get(e.groups[place]) is None:
            abort("unknown attribute")
        if attribute_values.get((e.groups[place], e.values[place])) is None:
            abort("unknown attribute")
        item_attributes.insert(
            u_id=e.u_id, i_id=e.i_id, ia_id=place + 1, gav_id=e.values[place], gag_id=e.groups[place]
        )
    for image in range(1, e.images + 1):
        item_images.insert(u_id=e.u_id, i_id=e.i_id, ii_id=image, sattr0=e.text)
    items.insert(
        u_id=e.u_id, i_id=e.i_id, c_id=e.number, name=e.text, description=e.text, attributes=e.text,
        initial_price=e.amount, current_price=e.amount, num_bids=0, num_images=e.images,
        num_attributes=len(e.groups), num_comments=0, start_date=e.date, end_date=e.until, status=OPEN,
        created=e.date, updated=e.date, iattr0=0, iattr1=0, iattr2=0, iattr3=0, iattr4=0, iattr5=0,
        iattr6=0, iattr7=0,
    )  # fmt: skip
    seller = users[e.u_id]
    seller.balance -= 1.0
    seller.updated = e.date
    return seller.balance


@AUCTIONS.procedure
def new_purchase(
    e: Any, users: Any, items: Any, item_bids: Any, item_max_bids: Any, item_purchases: Any, user_items: Any
) -> Any:
    """Pay an item that ended, partly by a credit; return the buyer's balance."""
    item = items[e.u_id, e.i_id]
    if item.status != WAITING_FOR_PURCHASE:
        abort("not waiting for a purchase")
    highest = item_max_bids[e.u_id, e.i_id]
    bid = item_bids[e.u_id, e.i_id, highest.ib_id]
    buyer = users[bid.buyer_id]
    if buyer.balance + e.amount < item.current_price:
        abort("short")
    item_purchases.insert(u_id=e.u_id, i_id=e.i_id, ip_id=1, ib_id=highest.ib_id, date=e.date)
    item.status = CLOSED
    item.updated = e.date
    bought = user_items[bid.buyer_id, e.i_id, e.u_id]
    bought.ip_id = 1
    buyer.balance += e.amount - item.current_price
    users[e.u_id].balance += item.current_price
    return buyer.balance


@AUCTIONS.procedure
def update_item(e: Any, items: Any, item_attributes: Any) -> Any:
    """Change the description of an item, and maybe its attributes; return how many these are."""
    item = items[e.u_id, e.i_id]
    if item.status != OPEN:
        abort("not for sale")
    item.description = e.text
    item.updated = e.date
    if e.number == 1 and item.num_attributes > 0:
        del item_attributes[e.u_id, e.i_id, item.num_attributes]
        item.num_attributes -= 1
    if e.number == 2:
        item.num_attributes += 1
        item_attributes.insert(
            u_id=e.u_id, i_id=e.i_id, ia_id=item.num_attributes, gav_id=e.values[0], gag_id=e.groups[0],
            sattr0=e.text,
        )  # fmt: skip
    return item.num_attributes


@AUCTIONS.procedure
def close_auctions(e: Any, items: Any, item_bids: Any, item_max_bids: Any, user_items: Any) -> Any:
    """Close the auctions that ended between two times; return how many await a purchase."""
    waiting = 0
    for item in items.by("end_date")[e.date : e.until].first(_AUCTIONS_CLOSED):
        if item.status == OPEN:
            if item.num_bids == 0:
                item.status = CLOSED
            else:
                highest = item_max_bids[item.u_id, item.i_id]
                bid = item_bids[item.u_id, item.i_id, highest.ib_id]
                user_items.insert(
                    u_id=bid.buyer_id, i_id=item.i_id, i_u_id=item.u_id, ib_id=highest.ib_id, created=e.until
                )
                item.status = WAITING_FOR_PURCHASE
                waiting += 1
            item.updated = e.until
    return waiting


@AUCTIONS.procedure(
    event="kind bigint NOT NULL, u_id bigint NOT NULL, i_id bigint NOT NULL, buyer_id bigint NOT NULL, "
    "from_id bigint NOT NULL, amount double NOT NULL, number bigint NOT NULL, images bigint NOT NULL, "
    "text string NOT NULL, date timestamp NOT NULL, until timestamp NOT NULL, groups array<bigint>, "
    "values array<bigint>",
    returns="price double, balance double, count bigint",
)
def transact(
    e: Any,
    regions: Any,
    users: Any,
    categories: Any,
    attribute_groups: Any,
    attribute_values: Any,
    items: Any,
    item_attributes: Any,
    item_images: Any,
    item_comments: Any,
    item_bids: Any,
    item_max_bids: Any,
    item_purchases: Any,
    feedback: Any,
    user_items: Any,
    watches: Any,
) -> Any:
    """Run a transaction of a kind.

    ``number`` is a category, a question, a rating, what `get_user_info` reads, or whether `update_item`
    deletes (1) or adds (2) an attribute. `new_feedback` rates ``buyer_id``.
    """
    if e.kind == GET_ITEM:
        price = get_item(e, regions, users, items)
        return price, None, None
    if e.kind == GET_USER_INFO:
        count = get_user_info(e, regions, users, items, item_comments, feedback, user_items, watches)
        return None, None, count
    if e.kind == NEW_BID:
        price = new_bid(e, items, item_bids, item_max_bids)
        return price, None, None
    if e.kind == NEW_COMMENT:
        count = new_comment(e, users, items, item_comments)
        return None, None, count
    if e.kind == NEW_COMMENT_RESPONSE:
        count = new_comment_response(e, users, item_comments)
        return None, None, count
    if e.kind == NEW_FEEDBACK:
        count = new_feedback(e, users, feedback)
        return None, None, count
    if e.kind == NEW_ITEM:
        balance = new_item(
            e, users, categories, attribute_groups, attribute_values, items, item_attributes, item_images
        )
        return None, balance, None
    if e.kind == NEW_PURCHASE:
        balance = new_purchase(e, users, items, item_bids, item_max_bids, item_purchases, user_items)
        return None, balance, None
    if e.kind == UPDATE_ITEM:
        count = update_item(e, items, item_attributes)
        return None, None, count
    count = close_auctions(e, items, item_bids, item_max_bids, user_items)
    return None, None, count
