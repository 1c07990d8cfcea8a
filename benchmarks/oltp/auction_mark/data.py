"""The first rows of AuctionMark's tables and its requests (H-Store, appendix A.1).

Few users sell most items, by a Zipf distribution. A request comes each second. Items get most views and
bids shortly before they end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from benchmarks.oltp.auction_mark import procedures
from benchmarks.oltp.auction_mark.procedures import AUCTIONS, transact
from penstock.procedures.programs.oltp.benchmark import START, Draws, OltpBenchmark, table_of
from penstock.procedures.programs.packaged import Integers, events_of, lists, scatter, zipf_ranks

__all__ = ["AUCTION_MARK", "AuctionMarkScale"]

ITEMS_OF_USER = 10_000_000
"""An item's number is its seller's, times this, and a number of its own."""
_SHARES = np.repeat(np.arange(9), [45, 10, 20, 2, 2, 4, 10, 5, 2])
"""The kind of each per cent of the transactions but those that close procedures."""
_CLOSE_EVERY = 50
"""After so many requests one closes procedures."""
_SECOND = 1_000_000
_BEFORE = START - 7 * 86_400 * _SECOND
"""The time of most first rows."""
_SELLER_SKEW = 1.0
_REGIONS = 62
_VALUES = 10
"""The values of a group of attributes."""
_INFO_SHARES = {
    procedures.FEEDBACK: 0.33,
    procedures.COMMENTS: 0.25,
    procedures.SELLER_ITEMS: 0.1,
    procedures.BUYER_ITEMS: 0.1,
    procedures.WATCHED_ITEMS: 0.1,
}


@dataclass(frozen=True)
class AuctionMarkScale:
    """The size of an auction site.

    Parameters
    ----------
    users : int
        The number of users.
    items : int
        The first items, at least 20: half of them are for sale.
    categories : int
        The categories of items.
    groups : int
        The groups of attributes, each of ten values.
    longest_s : int
        The longest duration of an auction, in seconds.
    """

    users: int = 1_000_000
    items: int = 10_000_000
    categories: int = 16_000
    groups: int = 100
    longest_s: int = 86_400


@dataclass(frozen=True)
class _Items:
    """The first items, and their bids."""

    u_id: Integers
    i_id: Integers
    status: Integers
    price: NDArray[np.float64]
    bids: Integers
    end_date: Integers
    buyer: Integers
    """The highest bidder; 0 if there is no bid."""
    comments: Integers
    answered: Integers
    """The answered ones of these: the first ones."""

    @staticmethod
    def draw(scale: AuctionMarkScale) -> _Items:
        draws = Draws(2)
        count = scale.items
        u_id = np.sort(_sellers(7, count, scale))
        begins = np.searchsorted(u_id, u_id)
        number = np.arange(count)
        # Half are open, one of ten awaits its purchase.
        status = np.where(number % 2 == 0, procedures.OPEN, procedures.CLOSED)
        status[number % 10 == 5] = procedures.WAITING_FOR_PURCHASE
        is_open = status == procedures.OPEN
        bids = draws.integers(count, 1, 10)
        bids[is_open & (draws.fractions(count) < 0.2)] = 0
        ends = draws.integers(count, 1, scale.longest_s) * _SECOND
        comments = draws.integers(count, 0, 3)
        return _Items(
            u_id, u_id * ITEMS_OF_USER + number - begins + 1, status,
            draws.integers(count, 1, 100).astype(np.float64), bids,
            START + np.where(is_open, ends, -ends),
            np.where(bids > 0, _other(draws, u_id, scale.users), 0), comments,
            np.minimum(comments, draws.integers(count, 0, 3)),
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.u_id)

    def of(self, status: int) -> Integers:
        """Return the places of the items in a state."""
        return np.flatnonzero(self.status == status)

    def current_price(self) -> NDArray[np.float64]:
        """Return the bid of the highest bidder, or the first price."""
        return self.price + np.maximum(self.bids - 1, 0) * self.price * 0.025


def _sellers(seed: int, count: int, scale: AuctionMarkScale) -> Integers:
    return scatter(zipf_ranks(seed, count, scale.users, _SELLER_SKEW), scale.users) + 1


def _other(draws: Draws, u_id: Integers, users: int) -> Integers:
    """Draw another user for each."""
    return (u_id - 1 + draws.integers(len(u_id), 1, max(users - 1, 1))) % users + 1


def _several(counts: Integers) -> tuple[Integers, Integers]:
    """Return the owner of each row, for `counts` rows of each owner, and numbers from 1 on."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts) + 1


def _first_rows(scale: AuctionMarkScale) -> dict[str, pa.Table]:
    draws = Draws(1)
    items = _Items.draw(scale)
    attributes = draws.integers(len(items), 0, 4)
    columns = {
        "regions": {"r_id": np.arange(_REGIONS), "name": draws.texts(_REGIONS, 6, 20)},
        "categories": {
            "c_id": np.arange(scale.categories), "name": draws.texts(scale.categories, 6, 50),
            "parent_id": np.arange(scale.categories) // 10,
        },
        "attribute_groups": {
            "gag_id": np.arange(scale.groups), "c_id": draws.integers(scale.groups, 0, scale.categories - 1),
            "name": draws.texts(scale.groups, 6, 32),
        },
        "attribute_values": {
            "gag_id": np.repeat(np.arange(scale.groups), _VALUES),
            "gav_id": np.tile(np.arange(_VALUES), scale.groups),
            "name": draws.texts(scale.groups * _VALUES, 6, 32),
        },
        "items": _item_columns(draws, items, attributes, scale),
        **_parts(draws, items, attributes, scale),
        **_bids(draws, items, scale),
    }  # fmt: skip
    columns |= _users(draws, items, columns["feedback"], scale)
    return {name: table_of(AUCTIONS, name, table) for name, table in columns.items()}


def _item_columns(
    draws: Draws, items: _Items, attributes: Integers, scale: AuctionMarkScale
) -> dict[str, Any]:
    count = len(items)
    return {
        "u_id": items.u_id, "i_id": items.i_id, "c_id": draws.integers(count, 0, scale.categories - 1),
        "name": draws.texts(count, 6, 32), "description": draws.texts(count, 50, 255),
        "attributes": draws.texts(count, 20, 255), "initial_price": items.price,
        "current_price": items.current_price(), "num_bids": items.bids, "num_images": 1,
        "num_attributes": attributes, "num_comments": items.comments,
        "start_date": items.end_date - scale.longest_s * _SECOND,
        "end_date": items.end_date, "status": items.status, "created": _BEFORE,
        "updated": _BEFORE, **{f"iattr{n}": draws.integers(count, 0, 9) for n in range(8)},
    }  # fmt: skip


def _parts(
    draws: Draws, items: _Items, attributes: Integers, scale: AuctionMarkScale
) -> dict[str, dict[str, Any]]:
    """Return the attributes, images and comments of items."""
    has, number = _several(attributes)
    of, comment = _several(items.comments)
    return {
        "item_attributes": {
            "u_id": items.u_id[has], "i_id": items.i_id[has], "ia_id": number,
            "gav_id": draws.integers(len(has), 0, _VALUES - 1),
            "gag_id": draws.integers(len(has), 0, scale.groups - 1), "sattr0": draws.texts(len(has), 6, 32),
        },
        "item_images": {
            "u_id": items.u_id, "i_id": items.i_id, "ii_id": 1, "sattr0": draws.texts(len(items), 20, 100),
        },
        "item_comments": {
            "u_id": items.u_id[of], "i_id": items.i_id[of], "ic_id": comment,
            "buyer_id": _other(draws, items.u_id[of], scale.users), "question": draws.texts(len(of), 10, 128),
            "response": pa.array(
                draws.texts(len(of), 10, 128).to_pylist(), pa.string(), mask=comment > items.answered[of]
            ),
            "created": _BEFORE, "updated": _BEFORE,
        },
    }  # fmt: skip


def _bids(draws: Draws, items: _Items, scale: AuctionMarkScale) -> dict[str, dict[str, Any]]:
    """Return bids, each a step higher, and what follows from the highest ones."""
    of, number = _several(items.bids)
    is_highest = number == items.bids[of]
    bid = items.price[of] + (number - 1) * items.price[of] * 0.025
    top = np.flatnonzero(items.bids > 0)
    ended = np.flatnonzero(items.status != procedures.OPEN)
    sold = items.of(procedures.CLOSED)
    rated = sold[draws.fractions(len(sold)) < 0.3]
    times = {"created": _BEFORE, "updated": _BEFORE}
    return {
        "item_bids": {
            "u_id": items.u_id[of], "i_id": items.i_id[of], "ib_id": number,
            "buyer_id": np.where(is_highest, items.buyer[of], _other(draws, items.u_id[of], scale.users)),
            "bid": bid, "max_bid": bid * np.where(is_highest, 1.1, 1.0), **times,
        },
        "item_max_bids": {
            "u_id": items.u_id[top], "i_id": items.i_id[top], "ib_id": items.bids[top], **times,
        },
        "item_purchases": {
            "u_id": items.u_id[sold], "i_id": items.i_id[sold], "ip_id": 1, "ib_id": items.bids[sold],
            "date": _BEFORE,
        },
        "user_items": {
            "u_id": items.buyer[ended], "i_id": items.i_id[ended], "i_u_id": items.u_id[ended],
            "ip_id": pa.array(np.ones(len(ended), np.int64), mask=items.status[ended] != procedures.CLOSED),
            "ib_id": items.bids[ended], "created": items.end_date[ended],
        },
        "feedback": {
            "u_id": items.u_id[rated], "i_id": items.i_id[rated], "i_u_id": items.u_id[rated],
            "from_id": items.buyer[rated], "rating": draws.integers(len(rated), -1, 1),
            "date": _BEFORE, "sattr0": draws.texts(len(rated), 10, 80),
        },
    }  # fmt: skip


def _users(
    draws: Draws, items: _Items, feedback: dict[str, Any], scale: AuctionMarkScale
) -> dict[str, dict[str, Any]]:
    count = scale.users
    u_id = np.arange(1, count + 1)
    owner, number = _several(draws.integers(count, 0, 3))
    unanswered = np.bincount(items.u_id, items.comments - items.answered, count + 1)[1:]
    rating = np.bincount(feedback["u_id"], feedback["rating"], count + 1)[1:]
    watcher = np.repeat(u_id, 2)
    place = draws.integers(len(watcher), 0, len(items) - 1)
    watches = np.unique(np.stack([watcher, place]), axis=1)
    return {
        "users": {
            "u_id": u_id, "rating": rating.astype(np.int64),
            "balance": draws.integers(count, 100, 1_000).astype(np.float64),
            "comments": unanswered.astype(np.int64), "r_id": draws.integers(count, 0, _REGIONS - 1),
            "created": _BEFORE, "updated": _BEFORE,
            **{f"sattr{n}": draws.texts(count, 16, 64) for n in range(8)},
            **{f"iattr{n}": draws.integers(count, 0, 9) for n in range(8)},
        },
        "user_attributes": {
            "u_id": u_id[owner], "ua_id": number, "name": draws.texts(len(owner), 5, 32),
            "value": draws.texts(len(owner), 5, 32), "created": _BEFORE,
        },
        "watches": {
            "u_id": watches[0], "i_id": items.i_id[watches[1]], "i_u_id": items.u_id[watches[1]],
            "created": _BEFORE,
        },
    }  # fmt: skip


def _requests(scale: AuctionMarkScale, count: int, seed: int) -> pa.RecordBatch:
    """Draw requests. An item that one of them inserts has a number that the request's place tells."""
    draws = Draws(seed + 1)
    items = _Items.draw(scale)
    row = np.arange(count)
    kinds = np.where(row % _CLOSE_EVERY == _CLOSE_EVERY - 1, procedures.CLOSE_AUCTIONS,
                     _SHARES[draws.integers(count, 0, 99)])  # fmt: skip
    date = START + row * _SECOND
    place = _places(draws, kinds, date, items)
    u_id, i_id = items.u_id[place], items.i_id[place]

    is_new = kinds == procedures.NEW_ITEM
    seller = _sellers(seed + 8, count, scale)
    u_id = np.where(is_new, seller, u_id)
    i_id = np.where(is_new, seller * ITEMS_OF_USER + len(items) + row + 1, i_id)
    is_info = kinds == procedures.GET_USER_INFO
    u_id = np.where(is_info, draws.integers(count, 1, scale.users), u_id)

    # A seller rates the buyer, or the buyer the seller.
    rates_buyer = (kinds == procedures.NEW_FEEDBACK) & (draws.fractions(count) < 0.5)
    bidder = _other(draws, u_id, scale.users)
    is_rating = kinds == procedures.NEW_FEEDBACK
    buyer = np.where(is_rating, np.where(rates_buyer, items.buyer[place], u_id), bidder)
    from_id = np.where(rates_buyer, u_id, items.buyer[place])

    price = items.current_price()[place]
    credit = np.where(draws.fractions(count) < 0.5, price, 0.0)
    amount = np.where(kinds == procedures.NEW_BID, price * (0.95 + draws.fractions(count)), credit)
    amount = np.where(is_new, draws.integers(count, 1, 100), amount)

    bits = sum(bit * (draws.fractions(count) < share) for bit, share in _INFO_SHARES.items())
    questions = items.answered[place] + 1
    number = np.select(
        [is_info, kinds == procedures.NEW_COMMENT_RESPONSE, is_rating, kinds == procedures.UPDATE_ITEM],
        [bits, questions, draws.integers(count, -1, 1), draws.integers(count, 0, 2)],
        draws.integers(count, 0, scale.categories - 1),
    )
    until = np.where(is_new, date + draws.integers(count, 1, scale.longest_s) * _SECOND, date)
    date = np.where(kinds == procedures.CLOSE_AUCTIONS, date - _CLOSE_EVERY * _SECOND, date)
    sizes = np.where(is_new, draws.integers(count, 0, 4), (kinds == procedures.UPDATE_ITEM).astype(np.int64))
    lines = int(sizes.sum())
    columns = [
        kinds, u_id, i_id, buyer, from_id, amount, number, draws.integers(count, 1, 5),
        draws.texts(count, 10, 128), pa.array(date, pa.timestamp("us")), pa.array(until, pa.timestamp("us")),
        lists(draws.integers(lines, 0, scale.groups - 1), sizes),
        lists(draws.integers(lines, 0, _VALUES - 1), sizes),
    ]  # fmt: skip
    return events_of(transact, columns)


def _places(draws: Draws, kinds: Integers, date: Integers, items: _Items) -> Integers:
    """Draw the place of an item for each request."""
    count = len(kinds)
    by_end = items.of(procedures.OPEN)
    by_end = by_end[np.argsort(items.end_date[by_end], kind="stable")]
    alive = np.minimum(np.searchsorted(items.end_date[by_end], date), len(by_end) - 1)
    # Most of those that end soon.
    ahead = (draws.fractions(count) ** 3 * (len(by_end) - alive)).astype(np.int64)
    place = by_end[alive + ahead]
    is_open = items.status == procedures.OPEN
    for kind, candidates in (
        (procedures.NEW_PURCHASE, items.of(procedures.WAITING_FOR_PURCHASE)),
        (procedures.NEW_FEEDBACK, items.of(procedures.CLOSED)),
        (procedures.NEW_COMMENT_RESPONSE, np.flatnonzero(items.comments > items.answered)),
        (procedures.UPDATE_ITEM, np.flatnonzero(is_open)),
    ):
        chosen = np.flatnonzero(kinds == kind)
        shuffled = candidates[np.argsort(draws.fractions(len(candidates)), kind="stable")]
        place[chosen] = np.resize(shuffled, len(chosen))
    return place


AUCTION_MARK = OltpBenchmark(
    "auction_mark",
    "offer, view and comment items, bid for them, pay, and rate users",
    AUCTIONS,
    transact,
    AuctionMarkScale(),
    AuctionMarkScale(users=40, items=200, categories=20, groups=5, longest_s=600),
    _first_rows,
    _requests,
    {
        "an item has its bids": """
            SELECT u_id, i_id FROM items
            LEFT JOIN (SELECT u_id, i_id, count(*) AS bids FROM item_bids GROUP BY ALL) USING (u_id, i_id)
            WHERE num_bids <> coalesce(bids, 0)""",
        "an item costs the bid of its highest bidder": """
            SELECT u_id, i_id FROM items LEFT JOIN item_max_bids AS m USING (u_id, i_id)
            LEFT JOIN item_bids AS b USING (u_id, i_id, ib_id)
            WHERE current_price IS DISTINCT FROM coalesce(bid, initial_price)
            OR (num_bids = 0) IS DISTINCT FROM (bid IS NULL)""",
        "no bid is above the highest one": """
            SELECT u_id, i_id FROM item_max_bids AS m JOIN item_bids AS b USING (u_id, i_id, ib_id)
            JOIN item_bids AS o USING (u_id, i_id) WHERE o.max_bid > b.max_bid""",
        "an item that ended with bids has a buyer, and one that is paid a purchase": """
            SELECT i.i_id FROM items AS i LEFT JOIN user_items AS b ON b.i_u_id = i.u_id AND b.i_id = i.i_id
            LEFT JOIN item_purchases AS p ON p.u_id = i.u_id AND p.i_id = i.i_id
            WHERE (status > 0 AND num_bids > 0) IS DISTINCT FROM (b.u_id IS NOT NULL)
            OR (status = 2 AND num_bids > 0) IS DISTINCT FROM (p.ip_id IS NOT NULL)
            OR b.ip_id IS DISTINCT FROM p.ip_id""",
        "a user counts the questions without an answer": """
            SELECT u_id FROM users LEFT JOIN (
                SELECT u_id, count(*) AS unanswered FROM item_comments WHERE response IS NULL GROUP BY ALL
            ) USING (u_id) WHERE comments <> coalesce(unanswered, 0)""",
        "a user's rating is that of all feedback": """
            SELECT u_id FROM users
            LEFT JOIN (SELECT u_id, sum(rating) AS given FROM feedback GROUP BY ALL) AS f USING (u_id)
            WHERE rating <> coalesce(given, 0)""",
        "an item has its attributes": """
            SELECT u_id, i_id FROM items LEFT JOIN (
                SELECT u_id, i_id, count(*) AS found FROM item_attributes GROUP BY ALL
            ) USING (u_id, i_id) WHERE num_attributes <> coalesce(found, 0)""",
    },
)
"""AuctionMark: 55 per cent of the transactions only read; one of 50 closes procedures."""
