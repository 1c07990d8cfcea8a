"""TPC-E as a trace: its 33 tables, and the rows that its twelve transactions access (H-Store, appendix A.6).

No transaction runs. The accesses follow the transactions' frames in the specification, in its mix, over
numbers for customers, accounts, brokers, companies, securities and trades; columns that are no key and no
index are left out. Data-Maintenance changes one of twelve tables by turns; Trade-Cleanup comes once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import penstock
from penstock.designing.traces.trace import Mode, Trace, TraceBuilder
from penstock.procedures.databases import Database
from penstock.procedures.partitions.placement import hash_numbers
from penstock.procedures.programs.oltp.benchmark import Draws
from penstock.procedures.texts import Numbers

__all__ = ["MIX", "TpceScale", "brokerage", "trace"]

MIX = {
    "broker_volume": 49, "customer_position": 130, "market_feed": 10, "market_watch": 180,
    "security_detail": 140, "trade_lookup": 80, "trade_order": 101, "trade_result": 100, "trade_status": 190,
    "trade_update": 20,
}  # fmt: skip
"""The transactions of each kind in a thousand."""
MAINTENANCE_EVERY = 250
ACCOUNTS = 5
"""The accounts of a customer."""
TRADES = 20
"""The first trades of an account."""

_TABLES = {
    "account_permission": "ca_id tax_id", "customer": "c_id", "customer_account": "ca_id",
    "customer_taxrate": "c_id tx_id", "holding": "h_t_id", "holding_history": "h_t_id t_id",
    "holding_summary": "ca_id symb", "watch_item": "wl_id symb", "watch_list": "wl_id",
    "broker": "b_id", "cash_transaction": "t_id", "charge": "tt_id c_tier",
    "commission_rate": "c_tier tt_id ex_id from_qty", "settlement": "t_id", "trade": "t_id",
    "trade_history": "t_id st_id", "trade_request": "t_id", "trade_type": "tt_id", "company": "co_id",
    "company_competitor": "co_id comp_co_id", "daily_market": "date symb", "exchange": "ex_id",
    "financial": "co_id year qtr", "industry": "in_id", "last_trade": "symb", "news_item": "ni_id",
    "news_xref": "co_id ni_id", "sector": "sc_id", "security": "symb", "address": "ad_id",
    "status_type": "st_id", "taxrate": "tx_id", "zip_code": "zc_code",
}  # fmt: skip
_INDEXED = {
    "customer": ["tax_id"], "customer_account": ["c_id"], "holding": ["ca_id"], "watch_list": ["c_id"],
    "broker": ["name"], "trade": ["ca_id", "symb"], "trade_request": ["symb", "b_id"],
    "company": ["name", "in_id"], "security": ["co_id"], "sector": ["name"], "industry": ["sc_id"],
    "daily_market": ["symb"],
}  # fmt: skip
_MAINTAINED = (
    "account_permission", "address", "company", "customer", "customer_taxrate", "daily_market", "exchange",
    "financial", "news_item", "security", "taxrate", "watch_item",
)  # fmt: skip


@dataclass(frozen=True)
class TpceScale:
    """The size of a brokerage.

    Parameters
    ----------
    customers : int
        The number of customers, at least 100. Securities, companies and brokers follow from it.
    """

    customers: int = 1_000

    @property
    def accounts(self) -> int:
        """The number of accounts."""
        return self.customers * ACCOUNTS

    @property
    def securities(self) -> int:
        """The number of securities."""
        return self.customers * 685 // 1_000

    @property
    def brokers(self) -> int:
        """The number of brokers."""
        return max(self.customers // 100, 1)


def brokerage() -> Database:
    """Return the tables: their keys and indexed columns."""
    database = penstock.database("tpce")
    for name, columns in _TABLES.items():
        key = columns.split()
        # A column of the key may be an index, too.
        indexes = _INDEXED.get(name, [])
        others = [column for column in indexes if column not in key]
        text = ", ".join(
            [f"{column} bigint" for column in key] + [f"{one} bigint NOT NULL" for one in others]
        )
        database.table(name, f"{text}, more string", key=key, indexes=indexes)
    return database


class _Accesses:
    """Adds accesses of transactions by the names of tables and columns."""

    def __init__(self, builder: TraceBuilder) -> None:
        self._builder = builder

    def add(self, mode: Mode, table: str, of: Numbers, index: str | None = None, **key: Numbers) -> None:
        """Add an access for each number of a transaction in `of`; unnamed columns are not known."""
        place = self._builder.places[table]
        spec = self._builder.tables[place]
        number = 0 if index is None else [one.columns for one in spec.indexes].index((index,))
        if mode is Mode.WRITE and not key.keys() >= set(spec.key):
            raise ValueError(f"a write of {table} has its key")
        values = [key.get(name) for name in spec.key]
        self._builder.add(of, place, mode, values, index=np.full(len(of), number))

    def read(self, table: str, of: Numbers, **key: Numbers) -> None:
        """Read rows by their key or its first columns."""
        self.add(Mode.READ, table, of, None, **key)

    def write(self, table: str, of: Numbers, **key: Numbers) -> None:
        """Insert, change or delete rows without changing what an index has."""
        self.add(Mode.WRITE, table, of, None, **key)

    def find(self, table: str, index: str, of: Numbers, found: Numbers, **key: Numbers) -> None:
        """Look rows up by an index for transactions `of`; the rows of `found` were there."""
        self.add(Mode.SELECT, table, of, index)
        self.add(Mode.FOUND, table, found, index, **key)


@dataclass(frozen=True)
class _Market:
    """The relations between the rows of the tables."""

    scale: TpceScale

    def account_of_trade(self, trade: Numbers) -> Numbers:
        """Return the account of each trade: some customers trade more."""
        scattered = hash_numbers(trade).view(np.uint64) >> np.uint64(11)
        fraction = scattered.astype(np.float64) * 2.0**-53
        return (fraction**1.5 * self.scale.accounts).astype(np.int64)

    def symbol_of_trade(self, trade: Numbers) -> Numbers:
        """Return the security of each trade."""
        return (hash_numbers(trade + (1 << 40)).view(np.uint64) % np.uint64(self.scale.securities)).astype(
            np.int64
        )

    def trades_of_account(self, draws: Draws, account: Numbers, count: int) -> tuple[Numbers, Numbers]:
        """Return trades for each account, and the place of the account; a multiple keeps them distinct."""
        place = np.repeat(np.arange(len(account)), count)
        return 1_000_000 + account[place] * TRADES + draws.integers(len(place), 0, TRADES - 1), place

    def broker(self, account: Numbers) -> Numbers:
        """Return the broker of each account."""
        return account % self.scale.brokers


def trace(scale: TpceScale, count: int, seed: int) -> Trace:
    """Return the trace of transactions in their order."""
    draws = Draws(seed + 1)
    names = np.repeat(list(MIX), list(MIX.values()))[draws.integers(count, 0, 999)].astype(object)
    names[MAINTENANCE_EVERY - 1 :: MAINTENANCE_EVERY] = "data_maintenance"
    names[count // 2] = "trade_cleanup"
    builder = TraceBuilder(brokerage(), recorded=True)
    numbers = builder.begin(names.tolist())
    market, accesses = _Market(scale), _Accesses(builder)
    for name in dict.fromkeys(names.tolist()):
        of = numbers[names == name]
        routes = _TRANSACTIONS[name](draws, market, accesses, of)
        there = np.ones(len(of), np.bool_)
        builder.add_routes(name, of, {key: (hash_numbers(value), there) for key, value in routes.items()})
    return builder.build()


Routes = dict[str, Numbers]


def _several(of: Numbers, count: int) -> tuple[Numbers, npt.NDArray[np.int64]]:
    """Return each transaction several times, and its place."""
    place = np.repeat(np.arange(len(of)), count)
    return of[place], place


def _security(accesses: _Accesses, of: Numbers, symbol: Numbers) -> None:
    accesses.read("security", of, symb=symbol)
    accesses.read("company", of, co_id=symbol // 2)


def _broker_volume(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers) -> Routes:
    each, _ = _several(of, 8)
    broker = draws.integers(len(each), 0, market.scale.brokers - 1)
    accesses.find("broker", "name", of, each, b_id=broker)
    sector = draws.integers(len(of), 0, 11)
    accesses.find("sector", "name", of, of, sc_id=sector)
    accesses.find("industry", "sc_id", of, of, in_id=sector)
    accesses.find("company", "in_id", of, each, co_id=draws.integers(len(each), 0, 99))
    accesses.find("security", "co_id", of, each, symb=draws.integers(len(each), 0, 67))
    accesses.find("trade_request", "b_id", of, each, t_id=draws.integers(len(each), 0, 1 << 20))
    return {"sector": sector}


def _customer_position(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers) -> Routes:
    customer = draws.integers(len(of), 0, market.scale.customers - 1)
    by_tax = draws.fractions(len(of)) < 0.5
    accesses.find("customer", "tax_id", of[by_tax], of[by_tax], c_id=customer[by_tax])
    accesses.read("customer", of, c_id=customer)
    each, place = _several(of, ACCOUNTS)
    account = customer[place] * ACCOUNTS + np.tile(np.arange(ACCOUNTS), len(of))
    accesses.find("customer_account", "c_id", of, each, ca_id=account)
    accesses.read("holding_summary", each, ca_id=account)
    accesses.read("last_trade", each, symb=draws.integers(len(each), 0, market.scale.securities - 1))
    shows = draws.fractions(len(of)) < 0.5
    one = customer[shows] * ACCOUNTS
    trade, at = market.trades_of_account(draws, one, 10)
    accesses.find("trade", "ca_id", of[shows], of[shows][at], t_id=trade)
    accesses.read("trade_history", of[shows][at], t_id=trade)
    accesses.read("status_type", of, st_id=np.zeros(len(of), np.int64))
    return {"c_id": customer}


def _market_feed(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers) -> Routes:
    each, _ = _several(of, 20)
    symbol = draws.integers(len(each), 0, market.scale.securities - 1)
    accesses.write("last_trade", each, symb=symbol)
    waiting = draws.fractions(len(each)) < 0.1
    trade = draws.integers(int(waiting.sum()), 2_000_000, 3_000_000)
    accesses.find("trade_request", "symb", each, each[waiting], t_id=trade)
    for table in ("trade_request", "trade"):
        accesses.write(table, each[waiting], t_id=trade)
    accesses.write("trade_history", each[waiting], t_id=trade, st_id=np.ones(len(trade), np.int64))
    return {"symb": symbol[::20]}


def _market_watch(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers) -> Routes:
    customer = draws.integers(len(of), 0, market.scale.customers - 1)
    drawn = draws.fractions(len(of))
    watches, holds, by_industry = drawn < 0.6, (drawn >= 0.6) & (drawn < 0.95), drawn >= 0.95
    accesses.find("watch_list", "c_id", of[watches], of[watches], wl_id=customer[watches])
    accesses.read("watch_item", of[watches], wl_id=customer[watches])
    accesses.read("holding_summary", of[holds], ca_id=customer[holds] * ACCOUNTS)
    industry = of[by_industry]
    accesses.find("industry", "sc_id", industry, industry, in_id=draws.integers(len(industry), 0, 101))
    accesses.find("company", "in_id", industry, industry, co_id=draws.integers(len(industry), 0, 99))
    each, _ = _several(of, 10)
    symbol = draws.integers(len(each), 0, market.scale.securities - 1)
    for table in ("security", "last_trade"):
        accesses.read(table, each, symb=symbol)
    accesses.read("daily_market", each, date=draws.integers(len(each), 0, 1_305), symb=symbol)
    return {"c_id": customer}


def _security_detail(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers) -> Routes:
    symbol = draws.integers(len(of), 0, market.scale.securities - 1)
    company = symbol // 2
    _security(accesses, of, symbol)
    accesses.read("last_trade", of, symb=symbol)
    each, place = _several(of, 2)
    accesses.read("address", each, ad_id=draws.integers(len(each), 0, 10_000))
    accesses.read("zip_code", each, zc_code=draws.integers(len(each), 0, 14_741))
    accesses.read("exchange", of, ex_id=symbol % 4)
    accesses.read("company_competitor", of, co_id=company)
    accesses.read("company", each, co_id=company[place] * 7 % market.scale.customers)
    accesses.read("industry", of, in_id=company % 102)
    accesses.read("financial", of, co_id=company)
    days, at = _several(of, 5)
    accesses.find("daily_market", "symb", of, days, date=draws.integers(len(days), 0, 1_305), symb=symbol[at])
    accesses.read("news_xref", of, co_id=company)
    accesses.read("news_item", each, ni_id=company[place] * 2)
    return {"symb": symbol}


def _looked_up(
    draws: Draws, market: _Market, accesses: _Accesses, of: Numbers, account: Numbers, shares: Sequence[float]
) -> tuple[Numbers, Numbers]:
    """Add look-ups of trades by numbers, accounts or securities; return the trades and transactions."""
    drawn = draws.fractions(len(of))
    by_number, by_account = drawn < shares[0], (drawn >= shares[0]) & (drawn < shares[1])
    by_symbol = drawn >= shares[1]
    trade, place = market.trades_of_account(draws, account, 10)
    is_known = by_number[place]
    trade[is_known] = draws.integers(int(is_known.sum()), 0, market.scale.accounts * TRADES) + 1_000_000
    of_trade = of[place]
    accesses.read("trade", of_trade[is_known], t_id=trade[is_known])
    for index, chosen in (("ca_id", by_account), ("symb", by_symbol)):
        accesses.find("trade", index, of[chosen], of_trade[chosen[place]], t_id=trade[chosen[place]])
    accesses.read("trade_type", of, tt_id=of % 5)
    for table in ("settlement", "cash_transaction", "trade_history"):
        accesses.read(table, of_trade, t_id=trade)
    return trade, of_trade


def _trade_lookup(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers) -> Routes:
    account = draws.integers(len(of), 0, market.scale.accounts - 1)
    trade, _ = _looked_up(draws, market, accesses, of, account, (0.3, 0.7))
    return {"ca_id": account, "t_id": trade[::10]}


def _trade_update(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers) -> Routes:
    account = draws.integers(len(of), 0, market.scale.accounts - 1)
    trade, of_trade = _looked_up(draws, market, accesses, of, account, (0.33, 0.66))
    chosen = np.arange(len(trade)) % 3
    for place, table in enumerate(("trade", "settlement", "cash_transaction")):
        accesses.write(table, of_trade[chosen == place], t_id=trade[chosen == place])
    return {"ca_id": account, "t_id": trade[::10]}


def _customer_of(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers, account: Numbers) -> None:
    accesses.read("customer", of, c_id=account // ACCOUNTS)
    accesses.read("customer_taxrate", of, c_id=account // ACCOUNTS)
    accesses.read("taxrate", of, tx_id=draws.integers(len(of), 0, 319))
    tier, kind = account % 3, of % 5
    accesses.read("charge", of, tt_id=kind, c_tier=tier)
    accesses.read("commission_rate", of, c_tier=tier, tt_id=kind)
    accesses.read("trade_type", of, tt_id=kind)


def _trade_order(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers) -> Routes:
    account = draws.integers(len(of), 0, market.scale.accounts - 1)
    symbol = draws.integers(len(of), 0, market.scale.securities - 1)
    trade = 3_000_000 + of
    accesses.read("customer_account", of, ca_id=account)
    accesses.read("broker", of, b_id=market.broker(account))
    other = draws.fractions(len(of)) < 0.1
    accesses.read("account_permission", of[other], ca_id=account[other])
    by_name = draws.fractions(len(of)) < 0.4
    named = of[by_name]
    accesses.find("company", "name", named, named, co_id=symbol[by_name] // 2)
    accesses.find("security", "co_id", named, named, symb=symbol[by_name])
    _security(accesses, of[~by_name], symbol[~by_name])
    accesses.read("last_trade", of, symb=symbol)
    accesses.read("holding_summary", of, ca_id=account, symb=symbol)
    held, at = market.trades_of_account(draws, account, 2)
    accesses.find("holding", "ca_id", of, of[at], h_t_id=held)
    _customer_of(draws, market, accesses, of, account)
    accesses.write("trade", of, t_id=trade)
    accesses.write("trade_history", of, t_id=trade, st_id=np.zeros(len(of), np.int64))
    limited = draws.fractions(len(of)) < 0.4
    accesses.write("trade_request", of[limited], t_id=trade[limited])
    return {"ca_id": account, "symb": symbol}


def _trade_result(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers) -> Routes:
    trade = draws.integers(len(of), 2_000_000, 3_000_000)
    account, symbol = market.account_of_trade(trade), market.symbol_of_trade(trade)
    accesses.write("trade", of, t_id=trade)
    accesses.write("holding_summary", of, ca_id=account, symb=symbol)
    held, at = market.trades_of_account(draws, account, 2)
    accesses.find("holding", "ca_id", of, of[at], h_t_id=held)
    accesses.write("holding", of[at], h_t_id=held)
    accesses.write("holding_history", of[at], h_t_id=held, t_id=trade[at])
    _security(accesses, of, symbol)
    _customer_of(draws, market, accesses, of, account)
    accesses.write("customer_account", of, ca_id=account)
    accesses.write("broker", of, b_id=market.broker(account))
    accesses.write("trade_history", of, t_id=trade, st_id=np.full(len(of), 2))
    accesses.write("settlement", of, t_id=trade)
    cash = draws.fractions(len(of)) < 0.8
    accesses.write("cash_transaction", of[cash], t_id=trade[cash])
    return {"t_id": trade}


def _trade_status(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers) -> Routes:
    account = draws.integers(len(of), 0, market.scale.accounts - 1)
    trade, place = market.trades_of_account(draws, account, 20)
    accesses.find("trade", "ca_id", of, of[place], t_id=trade)
    accesses.read("security", of[place], symb=market.symbol_of_trade(trade))
    accesses.read("exchange", of[place], ex_id=trade % 4)
    accesses.read("status_type", of, st_id=of % 5)
    accesses.read("trade_type", of, tt_id=of % 5)
    accesses.read("customer_account", of, ca_id=account)
    accesses.read("customer", of, c_id=account // ACCOUNTS)
    accesses.read("broker", of, b_id=market.broker(account))
    return {"ca_id": account}


def _data_maintenance(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers) -> Routes:
    value = draws.integers(len(of), 0, 99)
    for place, table in enumerate(_MAINTAINED):
        chosen = np.arange(len(of)) % len(_MAINTAINED) == place
        key = dict.fromkeys(_TABLES[table].split(), value[chosen])
        accesses.write(table, of[chosen], **key)
    return {"value": value}


def _trade_cleanup(draws: Draws, market: _Market, accesses: _Accesses, of: Numbers) -> Routes:
    accesses.read("trade_request", of)
    each, _ = _several(of, 100)
    trade = draws.integers(len(each), 2_000_000, 3_000_000)
    for table in ("trade_request", "trade"):
        accesses.write(table, each, t_id=trade)
    accesses.write("trade_history", each, t_id=trade, st_id=np.full(len(each), 4))
    return {"t_id": trade[::100]}


_TRANSACTIONS = {
    "broker_volume": _broker_volume, "customer_position": _customer_position, "market_feed": _market_feed,
    "market_watch": _market_watch, "security_detail": _security_detail, "trade_lookup": _trade_lookup,
    "trade_order": _trade_order, "trade_result": _trade_result, "trade_status": _trade_status,
    "trade_update": _trade_update, "data_maintenance": _data_maintenance, "trade_cleanup": _trade_cleanup,
}  # fmt: skip
