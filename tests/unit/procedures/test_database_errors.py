"""Wrong arguments of databases are errors that say what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.databases import databases_in
from penstock.procedures.databases import Database


@pytest.fixture
def bank() -> Database:
    made = penstock.database("bank")
    made.table("accounts", "id bigint, balance bigint", key="id")
    return made


def test_arguments_of_another_type_are_told(bank: Database) -> None:
    wrong: Any = 5
    with pytest.raises(InvalidUsageError, match="the location of a database is not a path: got=int"):
        bank.open(wrong)
    locations: list[Any] = [5, b"bank"]
    for location in locations:
        with pytest.raises(InvalidUsageError, match=r"a location is not a path: got=(int|bytes)"):
            penstock.database("bank", location)
    with pytest.raises(InvalidUsageError, match="the name is not usable: name=5"):
        penstock.database(wrong)
    with pytest.raises(InvalidUsageError, match="a trigger needs a table, stream or window: got=int"):
        bank.trigger(wrong)
    with bank.open() as db:
        for name in (["w"], None, 5):
            unusable: Any = name
            with pytest.raises(InvalidUsageError, match="the name of a procedure is a text"):
                db.call(unusable)
            with pytest.raises(InvalidUsageError, match="the name of a table is a text"):
                db.table(unusable)


def test_attributes_by_position_are_told_to_have_names(bank: Database) -> None:
    @bank.procedure(event="id bigint, amount decimal(9, 2)")
    def add(e: Any, accounts: Any) -> None:
        accounts.insert(id=e.id)

    wrong: Any = {"id": 1}
    hint = r"passed by name: procedure=add\. Hint: write name=value, \.\.\., or \*\*attributes for a dict"
    with bank.open() as db:
        for call in (db.call, db.submit):
            with pytest.raises(InvalidUsageError, match=hint):
                call("add", wrong)
        with pytest.raises(InvalidUsageError, match=r"event is id bigint, amount decimal\(9, 2\)"):
            db.call("add", amount=1)
        with pytest.raises(InvalidUsageError, match=r"type=string declared=decimal\(9, 2\)"):
            db.call("add", id=1, amount="x")
    with bank.open() as db:
        for call in (db.call, db.submit):
            unknown = r"no such attribute: procedure=add attribute=amuont\. Hint: did you mean 'amount'\?"
            with pytest.raises(InvalidUsageError, match=unknown):
                call("add", id=1, amount=None, amuont=2)
        db.run("add", {"id": [1], "amount": [None], "more": [2]})
    with pytest.raises(InvalidUsageError, match=r"not support a column.*type=map<string, bigint>"):
        bank.table("sums", "id bigint, totals map<string, bigint>", key="id")


def test_a_text_is_no_number_and_an_integer_beyond_64_bits_is_named(bank: Database) -> None:
    @bank.procedure(event="id bigint, amount bigint, note string")
    def add(e: Any, accounts: Any) -> None:
        accounts.insert(id=e.id)

    with bank.open() as db:
        text = r"of=add column=id type=string declared=bigint\. Hint: pass values of bigint\."
        with pytest.raises(InvalidUsageError, match=text):
            db.call("add", id="1", amount=1, note="")
        with pytest.raises(InvalidUsageError, match=text):
            db.submit("add", id="1", amount=1, note="").result()
        with pytest.raises(InvalidUsageError, match=r"of=accounts column=balance type=string"):
            db.load("accounts", {"id": [1], "balance": ["1"]})
        for large in (2**63, -(2**70)):
            with pytest.raises(InvalidUsageError) as caught:
                db.call("add", id=1, amount=large, note="secret")
            assert str(caught.value) == (
                "a column does not fit: of=add column=amount type=int. "
                "Hint: integers are from -2^63 to 2^63 - 1."
            )
        assert db.table("accounts").num_rows == 0


def test_the_location_of_a_database_stays_though_the_process_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = penstock.database("bank", "state")
    monkeypatch.chdir("/")
    made.table("accounts", "id bigint", key="id")

    @made.procedure(event="id bigint")
    def add(e: Any, accounts: Any) -> None:
        accounts.insert(id=e.id)

    assert add.location == made.location == str(tmp_path / "state")
    assert penstock.database("bank", "s3://bucket/state").location == "s3://bucket/state"


def test_strong_recovery_needs_a_location(bank: Database) -> None:
    with pytest.raises(InvalidUsageError, match="only a database in a directory has strong recovery"):
        bank.open(recovery="strong")


@pytest.mark.parametrize("name", ["_facts", "_row", "_e", "_key"])
def test_names_that_generated_procedures_have_are_refused(bank: Database, name: str) -> None:
    for declare in (
        lambda: bank.table(name, "id bigint", key="id"),
        lambda: bank.stream(name, "id bigint"),
        lambda: bank.window(name, "id bigint", size=2, slide=1),
    ):
        with pytest.raises(InvalidUsageError, match="name begins with _"):
            declare()


def test_a_load_refuses_columns_that_the_table_lacks(bank: Database) -> None:
    with bank.open() as db:
        with pytest.raises(InvalidUsageError, match=r"the table has no such columns.*columns=balanse"):
            db.load("accounts", {"id": [1], "balanse": [2]})
        db.load("accounts", {"id": [1]})
        assert db.table("accounts").num_rows == 1


def test_a_file_imports_a_module_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_bank_file.py").write_text('NAME = "bank"\n')
    file = tmp_path / "bank.py"
    file.write_text("import penstock\nfrom beside_bank_file import NAME\nbank = penstock.database(NAME)\n")
    assert list(databases_in(file)) == ["bank"]
