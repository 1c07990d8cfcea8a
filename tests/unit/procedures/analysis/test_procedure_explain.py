"""`explain` describes procedures and databases."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from hypothesis import given

import penstock
from penstock.procedures.analysis.counts import TransactionCounts
from penstock.procedures.analysis.operations import Operation, operations_of
from penstock.procedures.compiler.program import Program
from penstock.procedures.databases import Database
from tests.transactions.procedures import bank, define, sources

TRANSFER = """
def transfer(e, accounts):
    source = accounts[e.source]
    if source.balance < e.amount:
        abort("short")
    source.balance -= e.amount
    accounts[e.target].balance += e.amount
    return source.balance
"""


def accounts() -> Database:
    database = penstock.database("bank")
    database.table("accounts", "id bigint, balance bigint NOT NULL", key="id", partition_by="id")
    database.table("links", "id bigint, next bigint, kind string", key="id", partition_by="id")
    return database


def test_a_transfer_is_explained_as_two_conditional_modifications() -> None:
    database = accounts()
    procedure = database.procedure(
        event="source bigint, target bigint, amount bigint", returns="left bigint"
    )(define(TRANSFER))
    digest = procedure.program().digest
    assert procedure.explain() == textwrap.dedent(f"""\
        transfer (program {digest})
          READ_MODIFY accounts[e.source]
            balance = accounts[e.source].balance - e.amount
            if not accounts[e.source].balance < e.amount  <- accounts[e.source]
          READ_MODIFY accounts[e.target]
            balance = accounts[e.target].balance + e.amount
            if not accounts[e.source].balance < e.amount  <- accounts[e.source]
          keys: of the event
          undo log: yes
          rejections: null key: accounts, unknown key: accounts, null, short, overflow
          access sets: known
          route: one bucket: keys are of several attributes: source, target
          sent to the bucket: source, target, amount
          forwarded to other buckets: with buckets=, where source and target are of several buckets""")
    for forwarded, text in ((24, "24 of 1,200 transactions (2.0%)"), (0, "0 of 1,200 transactions (0.0%)")):
        told = procedure.explain(TransactionCounts(1200, forwarded))
        assert told == f"{procedure.explain()}\n  forwarded, measured: {text}"
    assert database.explain().startswith(
        "database bank\ntable accounts: id bigint NOT NULL, balance bigint NOT NULL; key id; "
        "partitioned by id\ntable links: "
    )
    assert database.explain().endswith(procedure.explain())


def test_what_is_not_compiled_yet_has_operations_alone() -> None:
    procedure = accounts().procedure(define("def act(e, accounts):\n    accounts[e.id].balance = 3\n"))
    assert procedure.explain() == textwrap.dedent("""\
        act
          WRITE accounts[e.id]
            balance = 3
          keys: of the event
          compiled: no, the attributes of its event are unknown""")


def test_python_s_procedures_are_explained_too() -> None:
    text = "def act(e, accounts):\n    while e.n:\n        accounts[e.id].balance = sum([e.n, 3])\n"
    procedure = accounts().procedure(event="id bigint, n bigint", plain=True)(define(text))
    assert procedure.explain().splitlines()[1:] == [
        "  WRITE accounts[e.id]",
        "    balance = sum([e.n, 3])",
        "  keys: of the event",
        "  compiled: no, Python runs it",
        "  route: one bucket: Python runs it",
        "  sent to the bucket: id, n",
        "  forwarded to other buckets: nothing, there is one bucket: Python runs it",
    ]


def test_writes_to_replicated_tables_are_explained() -> None:
    database = accounts()
    database.table("rates", "id bigint, rate bigint NOT NULL", key="id")
    text = "def act(e, accounts, rates):\n    accounts[e.id].balance += 1\n    rates[e.rate].rate = 3\n"
    explained = database.procedure(event="id bigint, rate bigint")(define(text)).explain()
    where = "with buckets=, over copies of the tables, where the event may write rates"
    assert explained.endswith(f"forwarded to other buckets: {where}")


def operations(body: str, names: dict[str, Any] | None = None) -> list[Operation]:
    database = accounts()
    text = "def act(e, accounts, links):\n" + textwrap.indent(textwrap.dedent(body), "    ")
    procedure = database.procedure(define(text, names))
    keys = {name: spec.key for name, spec in database.tables.items()}
    return list(operations_of(procedure.text, keys))


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("x = accounts[e.id].balance", ["READ accounts[e.id]"]),
        ("if e.id in accounts:\n    del links[e.id]", ["READ accounts[e.id]", "DELETE links[e.id]"]),
        ("accounts.insert(id=e.id, balance=links[e.k].next)", ["READ links[e.k]", "INSERT accounts[e.id]"]),
        ("a = accounts.get(e.id)\nif a is None:\n    a = accounts.insert(id=e.id, balance=0)\na.balance += 1",
         ["READ_MODIFY accounts[e.id]", "INSERT accounts[e.id]"]),
        ("if e.b:\n    a = accounts[e.id]\nelse:\n    a = accounts[e.k]\na.balance = 1",
         ["WRITE accounts[e.id]", "WRITE accounts[e.k]"]),
        ("k = e.id\nfor i in range(3):\n    accounts[k + i].balance = 1", ["WRITE accounts[e.id + i]"]),
        ("k = e.id\nif e.b:\n    k = e.k\naccounts[k].balance = 1", ["WRITE accounts[k]"]),
    ],
)  # fmt: skip
def test_operations_are_found(body: str, found: list[str]) -> None:
    assert sorted(f"{one.mode} {one.target}" for one in operations(body)) == sorted(found)


def test_a_key_and_a_value_may_depend_on_other_rows() -> None:
    body = """\
    first = links[e.id]
    amount = accounts[e.id].balance // 2
    if amount > 3 and first.kind == "x":
        return
    accounts[first.next].balance = amount
    """
    write = operations(body)[-1]
    assert write.target == "accounts[links[e.id].next]"
    assert write.function == "balance = amount"
    assert write.reads == ("accounts[e.id]",)
    assert write.conditions == ("not (amount > 3 and links[e.id].kind == 'x')",)
    assert write.condition_reads == ("accounts[e.id]", "links[e.id]")
    assert write.key_reads == ("links[e.id]",)


def test_equal_writes_of_two_branches_have_their_own_conditions() -> None:
    body = """\
    if e.amount > 3:
        accounts[e.id].balance = 1
    elif e.amount == 2:
        accounts[e.id].balance = 1
    return accounts[e.id].balance
    """
    assert [(one.mode, one.conditions) for one in operations(body)] == [
        ("WRITE", ("e.amount > 3",)),
        ("WRITE", ("not e.amount > 3", "e.amount == 2")),
    ]


def test_a_value_that_a_loop_carries_depends_on_what_each_round_read() -> None:
    body = "x = 0\nfor k in e.ks:\n    accounts[e.id].balance = x\n    x = links[k].next\n"
    write = next(one for one in operations(body) if one.function)
    assert write.reads == ("links[k]",)


def test_called_procedures_are_shown_in_terms_of_the_event() -> None:
    database = accounts()
    fee = database.procedure(
        define("def fee(x, accounts):\n    if x.n > 0:\n        accounts[x.who].balance -= x.n\n")
    )
    text = "def act(e, accounts):\n    fee(event(who=e.id, n=e.amount), accounts)\n    fee(e, accounts)\n"
    procedure = database.procedure(define(text, {"fee": fee}))
    found = operations_of(procedure.text, {"accounts": ("id",)})
    assert [(one.target, one.conditions) for one in found] == [
        ("accounts[e.id]", ("e.amount > 0",)),
        ("accounts[e.who]", ("e.n > 0",)),
    ]


@given(sources())
def test_all_accesses_of_the_compiler_are_among_the_operations(source: str) -> None:
    database = bank(source)
    program = database.procedures["random"].program()
    assert isinstance(program, Program)
    keys = {name: spec.key for name, spec in database.tables.items()}
    found = operations_of(database.procedures["random"].text, keys)
    modes = {
        "read": {"READ", "READ_MODIFY", "WRITE", "INSERT", "DELETE"},
        "write": {"WRITE", "READ_MODIFY"},
        "insert": {"INSERT"},
        "delete": {"DELETE"},
    }
    for access in program.accesses:
        own = {
            str(one.mode)
            for one in found
            if one.target.startswith((f"{access.table}[", f"{access.table}.by("))
        }
        assert own & modes[access.mode]
