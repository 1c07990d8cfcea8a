"""Transactions in a pipeline's file and in graphs, without Spark."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner, Result

import penstock
from penstock.cli import app
from penstock.conf.document import PipelineError
from penstock.conf.pipeline import load_pipeline
from penstock.dataflow.nodes import Transactions, topological
from penstock.dataflow.shape import shape
from penstock.errors import InvalidUsageError
from penstock.jobs.pipelines.databases import databases_in
from penstock.jobs.pipelines.graph import plan_file

BANK = '''\
"""A bank."""

import penstock
from penstock import abort

bank = penstock.database("bank")
bank.table("accounts", "id bigint, balance bigint NOT NULL", key="id", partition_by="id", indexes=["balance"])


@bank.procedure(returns="left bigint")
def spend(e, accounts):
    account = accounts[e.source]
    account.balance -= e.amount
    if account.balance < 0:
        abort("short")
    return account.balance
'''
PIPELINE = """\
source: {type: files, format: json, path: in, schema: "id LONG, ts DATE, source LONG, amount INT, s STRING"}
filter: amount > 0
database:
  file: bank.py
  procedure: spend
  time: ts
  keep: id
  buckets: 2
results:
  filter: rejected IS NULL
  projection: [id, left * 2 AS twice]
sink: {type: console}
query: {name: mine}
"""


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bank.py").write_text(BANK)
    Path("p.yaml").write_text(PIPELINE)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def test_a_pipeline_with_a_database_becomes_a_graph() -> None:
    plan = plan_file("p.yaml")
    nodes = {node.label: node for node in topological(plan.root)}
    node = nodes["transactions"]
    assert isinstance(node, Transactions)
    assert (node.name, node.time, node.keep, node.options.buckets) == ("database", "ts", ("id",), 2)
    assert node.schema.names == ["bucket", "transaction", "id", "left", "rejected"]
    assert node.inputs[0].schema.names == ["id", "ts", "source", "amount"], "the plan leaves s out"
    assert plan.root.schema.names == ["id", "twice"]


def test_what_a_checkpoint_depends_on_is_the_event_and_not_what_is_kept() -> None:
    before = shape(plan_file("p.yaml"))
    text = Path("p.yaml").read_text()
    Path("p.yaml").write_text(text.replace("keep: id", "keep: [id, s]"))
    assert shape(plan_file("p.yaml"))[1:] == before[1:]
    Path("p.yaml").write_text(text.replace("time: ts", "time: id"))
    assert shape(plan_file("p.yaml"))[1:] != before[1:]


def test_check_and_explain_tell_of_the_transactions() -> None:
    result = run("check", "p.yaml")
    assert result.exit_code == 0, result.output
    assert result.stdout == "p.yaml: valid: files -> transactions of spend -> console\n"
    result = run("explain", "p.yaml")
    assert result.exit_code == 0, result.output
    assert "transactions spend by ts" in result.stdout
    assert (
        "  READ_MODIFY accounts[e.source]\n    balance = accounts[e.source].balance - e.amount\n"
        in result.stdout
    )
    assert "  route: the bucket of source\n" in result.stdout
    found = json.loads(run("explain", "p.yaml", "--json").stdout)
    assert found["procedures"]["database"].startswith("spend (program ")


def test_explain_shows_the_databases_of_a_python_file() -> None:
    result = run("explain", "bank.py")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[:4] == [
        "database bank",
        "table accounts: id bigint NOT NULL, balance bigint NOT NULL; key id; partitioned by id; "
        "index by balance",
        "spend",
        "  READ_MODIFY accounts[e.source]",
    ]
    (found,) = json.loads(run("explain", "bank.py", "--json").stdout)["databases"]
    assert found["tables"][0]["indexes"] == [["balance"]]
    assert found["procedures"][0]["operations"][0] | {"function": ""} == {
        "mode": "READ_MODIFY", "target": "accounts[e.source]", "function": "", "reads": [], "conditions": [],
        "condition_reads": [], "key_reads": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("file: bank.py", "file: bink.py",
         "p.yaml:3: database: there is no such Python file: file=bink.py."),
        ("procedure: spend", "procedure: spent",
         "p.yaml:5: database.procedure: there is no procedure 'spent': file=bank.py. "
         "Hint: did you mean 'spend'?"),
        ("procedure: spend", "procedure: spend\n  name: shop",
         "p.yaml:6: database.name: the database 'shop' is not one of bank: file=bank.py."),
        ("time: ts", "time: when",
         "p.yaml:6: database.time: there is no column 'when'. "
         "Hint: the columns are id, ts, source, amount, s."),
        ("time: ts", "time: s",
         "p.yaml:6: database.time: a column of this type cannot be the time: column=s type=string."),
        ("keep: id", "keep: rejected", "p.yaml:7: database.keep: there is no column 'rejected'."),
        ("buckets: 2", "bucket: 2",
         "p.yaml:8: database.bucket: unknown field. Hint: did you mean 'buckets'?"),
        ("  procedure: spend\n", "",
         "p.yaml:3: database.procedure: is required. Hint: name the procedure that runs for each row."),
        ("  buckets: 2", "  initial: {acounts: {format: csv, path: in, schema: id LONG}}",
         "p.yaml:8: database.initial.acounts: there is no table 'acounts'. Hint: did you mean 'accounts'?"),
        ("  buckets: 2", "  initial: {accounts: {format: csv, path: in, schema: 'id LONG, balanc LONG'}}",
         "p.yaml:8: database.initial.accounts: the table has no such columns: table=accounts columns=balanc. "
         "Hint: did you mean 'balance'?"),
        ("  buckets: 2", "  initial: {accounts: {format: csv, path: in, schema: 'id LONG'}}",
         "p.yaml:8: database.initial.accounts: a column is missing: column=balance."),
        ("  buckets: 2",
         "  initial: {accounts: {format: orc, path: a, schema: 'id INT, balance ARRAY<INT>'}}",
         "p.yaml:8: database.initial.accounts: a column has another type than in its table: column=balance"),
        ("sink:", "queue: {key: id, time: ts}\nsink:",
         "p.yaml:12: queue: cannot be in one pipeline with database. "
         "Hint: write one pipeline for each, with files or a topic between."),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_before_anything_starts(old: str, new: str, problem: str) -> None:
    Path("p.yaml").write_text(PIPELINE.replace(old, new))
    result = run("check", "p.yaml")
    assert result.exit_code == 2
    assert problem in result.stderr


def test_an_error_of_the_compiler_has_its_place_in_the_python_file() -> None:
    Path("bank.py").write_text(BANK.replace("account.balance < 0", "account.balance < e.s"))
    with pytest.raises(PipelineError, match=r"p\.yaml:3: database: integer is compared with text") as caught:
        plan_file("p.yaml")
    assert "file=" in str(caught.value)
    assert "line=14" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\n", "the file makes no database: file=other.py"),
        (
            "x = 1\ny = x / 0\n",
            "the file fails: file=other.py line=2 reason=ZeroDivisionError: division by zero",
        ),
        ("def f(:\n", "the file fails: file=other.py line=1 reason=SyntaxError"),
        ("import nothing_like_it\n", "the file fails: file=other.py line=1 reason=ModuleNotFoundError"),
    ],
)
def test_a_python_file_that_cannot_be_used_is_refused(text: str, message: str) -> None:
    Path("other.py").write_text(text)
    with pytest.raises(InvalidUsageError, match=message):
        databases_in("other.py")


def test_one_of_several_databases_is_chosen_by_name() -> None:
    more = '\nother = penstock.database("other")\n'
    Path("bank.py").write_text(BANK + more)
    assert list(databases_in("bank.py")) == ["bank", "other"]
    with pytest.raises(PipelineError, match="the file makes several databases"):
        plan_file("p.yaml")
    Path("p.yaml").write_text(PIPELINE.replace("procedure: spend", "procedure: spend\n  name: bank"))
    plan_file("p.yaml")


def test_a_program_s_queries_do_not_run_when_its_databases_are_read() -> None:
    Path("bank.py").write_text(BANK + '\nif __name__ == "__main__":\n    raise SystemExit(1)\n')
    assert list(databases_in("bank.py")) == ["bank"]


def test_a_file_of_databases_may_have_dataclasses() -> None:
    fee = "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
    fee += "@dataclass\nclass Fee:\n    amount: int\n\n"
    Path("bank.py").write_text(fee + BANK)
    assert list(databases_in("bank.py")) == ["bank"]
    assert not any(name.startswith("penstock_database_") for name in sys.modules)


def test_a_database_needs_no_queue(tmp_path: Path) -> None:
    pipeline = load_pipeline("p.yaml")
    assert pipeline.database is not None
    assert pipeline.step is None
    assert pipeline.planned_persist == "never"


def procedure() -> Any:
    return databases_in("bank.py")["bank"].procedures["spend"]


def test_a_graph_checks_transactions_when_it_is_built() -> None:
    rows = penstock.graph("g").source(
        "in", pa.schema({"source": pa.int64(), "amount": pa.int64(), "x": pa.null()})
    )
    made = rows.transactions(procedure(), keep="x", name="spending")
    assert made.schema.names == ["bucket", "transaction", "x", "left", "rejected"]
    assert made.key == ()
    made = rows.transactions(procedure(), order="any", name="spending")
    assert made.schema.names == ["bucket", "transaction", "batch", "forwarded", "left", "rejected"]
    with pytest.raises(InvalidUsageError, match="an option has an unknown value"):
        rows.transactions(procedure(), order="later")
    with pytest.raises(InvalidUsageError, match="there is no such option"):
        rows.transactions(procedure(), nulls="drop")  # type: ignore[call-arg]
    with pytest.raises(InvalidUsageError, match="this is not a procedure"):
        rows.transactions(len)  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match="the event has no amount"):
        rows.select("source").transactions(procedure())
    with pytest.raises(InvalidUsageError, match=r"only Spark knows the type of an attribute: .*amount"):
        rows.select("source", "x AS amount").transactions(procedure())
    for text in ("bigint(x)", "BIGINT(x)", "cast(x AS bigint)"):
        assert (
            rows.select("source", f"{text} AS amount").transactions(procedure()).schema.names[-1]
            == "rejected"
        )
    with pytest.raises(InvalidUsageError, match="not for text"):
        rows.select("source", "string(x) AS amount").transactions(procedure())
