"""A driver that is killed: procedures, with requests beside one, and a workflow, from and into p-streams.

Usage: ``python transaction_job.py DIRECTORY``. `START` in the environment seeds what each start draws: the
number of partitions, whether rows pass through Spark, and who writes the results; `POINTS` arms fail points
in the processes that Spark starts. Prints ``started`` when all
queries run for the first time; a query that fails, because a worker was killed, is started again. Once there
is a file ``finished`` and all is read, it writes the tables into Parquet files, and ends.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import penstock
from penstock import abort
from penstock.procedures.databases import Database
from penstock.procedures.procedure import Procedure
from penstock.procedures.programs import PROGRAMS
from penstock.procedures.workflows.workflow import Workflow
from tests.crash.harness import FILE_MANAGERS
from tests.spark.conftest import lean_session
from tests.spark.queries import limits

START = "PENSTOCK_CRASH_START"
POINTS = "PENSTOCK_CRASH_POINTS"
MAX_ROWS = 1500
NUMBER = "number"
KEYS = 60
IS_LONG = bool(os.environ.get("PENSTOCK_LONG"))
"""True if more queries run: a workflow, a single procedure, and transactions that need several buckets."""
CALLS = "calls"
"""The directory of a flow's requests."""
ONLY = "PENSTOCK_CRASH_FLOWS"
"""The variable with the names of the only queries to run, to look for a fault. Requests need ``spending``."""


@dataclass(frozen=True)
class Flow:
    """The program, input and options of one query.

    Attributes
    ----------
    target : Procedure or Workflow
        The program.
    database : Database
        Its tables.
    buckets : int
        The number of buckets.
    opening : pa.RecordBatch, optional
        The first events.
    workload : callable
        From a number of events and a seed to events.
    calls : callable, optional
        Draws a procedure that a request calls, and its arguments.
    forwards : bool
        Whether transactions need several buckets. Their order is that of arrival.
    """

    target: Procedure | Workflow
    database: Database
    buckets: int
    opening: pa.RecordBatch | None
    workload: Callable[[int, int], pa.RecordBatch]
    calls: Callable[[random.Random], tuple[str, dict[str, Any]]] | None = None
    forwards: bool = False


votes = penstock.database("votes")
votes.table("voters", "phone bigint, votes bigint NOT NULL", key="phone")
votes.table("totals", "id bigint, votes bigint NOT NULL, recent bigint NOT NULL", key="id")
votes.table("slides", "id bigint, count bigint NOT NULL", key="id")
counted = votes.stream("counted", "phone bigint, contestant bigint NOT NULL")
trend = votes.window("trend", "contestant bigint NOT NULL", size=20, slide=5)


@votes.trigger(trend)
def recount(e: Any, trend: Any, slides: Any) -> None:
    """Count what the window holds each time that it slides."""
    if 0 not in slides:
        slides.insert(id=0, count=0)
    slides[0].count += len(trend)


@votes.procedure(event="phone bigint, contestant bigint", returns="votes bigint")
def validate(e: Any, voters: Any, counted: Any) -> Any:
    """Take at most five votes of a phone."""
    if e.phone not in voters:
        voters.insert(phone=e.phone, votes=0)
    voters[e.phone].votes += 1
    if voters[e.phone].votes > 5:
        abort("voted too often")
    counted.emit(phone=e.phone, contestant=e.contestant)
    return voters[e.phone].votes


@votes.procedure(event=counted, returns="total bigint, recent bigint")
def count(e: Any, totals: Any, voters: Any, trend: Any) -> Any:
    """Count a vote, and those for the contestant in the window; each hundredth frees the phone."""
    if e.contestant not in totals:
        totals.insert(id=e.contestant, votes=0, recent=0)
    total = totals[e.contestant]
    total.votes += 1
    trend.insert(contestant=e.contestant)
    recent = 0
    for vote in trend:
        if vote.contestant == e.contestant:
            recent += 1
    total.recent = recent
    if total.votes % 100 == 0:
        voters[e.phone].votes = 0
    if e.contestant == 7:
        abort("out of the show")
    return total.votes, recent


spending = penstock.database("spending")
spending.table("accounts", "account bigint, balance bigint NOT NULL", key="account", partition_by="account")


@spending.procedure(event="account bigint, amount bigint", returns="left bigint")
def spend(e: Any, accounts: Any) -> Any:
    """Spend money, or put some in; accounts open themselves."""
    if e.account not in accounts:
        accounts.insert(account=e.account, balance=50)
    accounts[e.account].balance -= e.amount
    if accounts[e.account].balance < 0:
        abort("short")
    return accounts[e.account].balance


@spending.procedure(event="account bigint, amount bigint", returns="balance bigint")
def pay(e: Any, accounts: Any) -> Any:
    """Pay into an account; each eleventh payment is undone."""
    account = accounts[e.account]
    account.balance += e.amount
    if account.balance % 11 == 0:
        abort("eleventh")
    return account.balance


@spending.procedure(event="account bigint", returns="balance bigint")
def look(e: Any, accounts: Any) -> Any:
    """Read the balance of an account."""
    return accounts[e.account].balance


moving = penstock.database("moving")
moving.table("accounts", "account bigint, balance bigint NOT NULL", key="account", partition_by="account")


@moving.procedure(event="source bigint, target bigint, amount bigint", returns="left bigint")
def move(e: Any, accounts: Any) -> Any:
    """Move money between accounts, which open themselves; an empty one closes."""
    if e.source not in accounts:
        accounts.insert(account=e.source, balance=50)
    if e.target not in accounts:
        accounts.insert(account=e.target, balance=50)
    source = accounts[e.source]
    source.balance -= e.amount
    accounts[e.target].balance += e.amount
    left = source.balance
    if left < 0:
        abort("short")
    if left == 0:
        del accounts[e.source]
    return left


numbering = penstock.database("numbering")
numbering.table("counters", "account bigint, count bigint NOT NULL", key="account", partition_by="account")
numbering.table(
    "entries",
    "account bigint, number bigint, amount bigint NOT NULL",
    key=("account", "number"),
    partition_by="account",
    indexes=[("account", "amount")],
)


@numbering.procedure(event="source bigint, target bigint, amount bigint", returns="least bigint")
def enter(e: Any, counters: Any, entries: Any) -> Any:
    """Enter an amount under a number that a row tells; remove the least one if it is negative."""
    if e.source not in counters:
        counters.insert(account=e.source, count=0)
    counters[e.source].count += 1
    entries.insert(account=e.target, number=1000 * counters[e.source].count + e.source, amount=e.amount)
    least = entries.by("account", "amount")[e.target].first()
    amount = least.amount
    if amount < 0:
        del entries[(e.target, least.number)]
    if amount > 55:
        abort("much")
    return amount


def _call_of_spending(draw: random.Random) -> tuple[str, dict[str, Any]]:
    account = {"account": draw.randrange(KEYS)}
    if draw.random() < 0.3:
        return look.name, account
    return draw.choice([pay, spend]).name, account | {"amount": draw.randrange(40)}


def _integers(**ranges: range) -> Callable[[int, int], pa.RecordBatch]:
    """Return a function that draws events."""

    def drawn(rows: int, seed: int) -> pa.RecordBatch:
        draw = random.Random(seed)
        return pa.RecordBatch.from_pydict({name: draw.choices(one, k=rows) for name, one in ranges.items()})

    return drawn


_bank = PROGRAMS["bank"]
FLOWS = {
    "spending": Flow(
        spend, spending, 2, None, _integers(account=range(KEYS), amount=range(-40, 60)), _call_of_spending
    ),
}
if IS_LONG:
    FLOWS["votes"] = Flow(
        votes.workflow("vote", votes.nested(validate, count)),
        votes,
        1,
        None,
        _integers(phone=range(500), contestant=range(9)),
    )
    FLOWS["bank"] = Flow(
        _bank.procedure,
        _bank.database,
        1,
        _bank.opening(KEYS),
        lambda rows, seed: _bank.workload(rows, KEYS, seed),
    )
    FLOWS["moving"] = Flow(
        move, moving, 3, None, _integers(source=range(KEYS), target=range(KEYS), amount=range(-10, 60)),
        forwards=True,
    )  # fmt: skip
    FLOWS["numbering"] = Flow(
        enter, numbering, 2, None, _integers(source=range(KEYS), target=range(KEYS), amount=range(-10, 60)),
        forwards=True,
    )  # fmt: skip
if os.environ.get(ONLY):
    FLOWS = {name: FLOWS[name] for name in os.environ[ONLY].split()}


def start(spark: SparkSession, directory: Path, name: str, draw: random.Random) -> StreamingQuery:
    """Start or restart a query."""
    flow, place = FLOWS[name], directory / name
    options: dict[str, Any] = {"reader": name, "partitions": draw.randint(1, 3)} | limits(maxRows=MAX_ROWS)
    events = spark.readStream.format("pstream").options(**options).load(str(place / "source"))
    rows = draw.choice([events, events, events.where("true")])
    sink = place / "sink"
    given: dict[str, Any] = {"keep": NUMBER, "buckets": flow.buckets, "name": name}
    given["state_location"] = place / "state"
    given["requests"] = place / CALLS if flow.calls else None
    if draw.random() < 0.7:
        writer = penstock.write_transactions(rows, flow.target, sink, **given)
    else:
        results = penstock.transactions(rows, flow.target, **given)
        writer = results.writeStream.format("pstream").option("path", str(sink))
    return writer.option("checkpointLocation", str(place / "checkpoint")).start()


def write_tables(spark: SparkSession, directory: Path, names: Iterable[str] = FLOWS) -> None:
    """Write the tables of the last micro-batch."""
    for flow_name in names:
        flow, place = FLOWS[flow_name], directory / flow_name
        for name in flow.target.tables:
            read = penstock.read_state(spark, place / "state", checkpoint=place / "checkpoint", table=name)
            pq.write_table(read.toArrow(), place / f"{name}.parquet")


def run_flows(spark: SparkSession, directory: Path, names: Iterable[str], draw: random.Random) -> None:
    """Run queries until there is a file ``finished`` and all is read; start again those that fail."""
    running = {name: start(spark, directory, name, draw) for name in names}
    print("started", flush=True)
    going = set(running)
    while going:
        finished = (directory / "finished").exists()
        for name in sorted(going):
            try:
                if finished:
                    running[name].processAllAvailable()
                    going.remove(name)
                # The file is made by another process, which tells nobody: it is looked for as often.
                running[name].awaitTermination(0.02)  # type: ignore[arg-type]
            except StreamingQueryException as error:
                print(f"failed: {error}", file=sys.stderr, flush=True)
                running[name].stop()
                running[name] = start(spark, directory, name, draw)
    for query in running.values():
        query.stop()


def main() -> int:
    """Run the job and return its exit code."""
    directory, draw = Path(sys.argv[1]), random.Random(os.environ[START])
    # The manager that Spark takes by default starts some ten processes for each file.
    managers = {"spark__sql__streaming__checkpointFileManagerClass": FILE_MANAGERS.format("System")}
    spark = lean_session(
        directory / "spark",
        master="local[2,2]",
        as_users=True,
        spark__sql__codegen__wholeStage="false",
        spark__sql__codegen__factoryMode="NO_CODEGEN",
        **(managers if draw.random() < 0.7 else {}),
    )
    spark.sparkContext.environment["PENSTOCK_FAILPOINTS"] = os.environ[POINTS]
    penstock.register(spark)
    run_flows(spark, directory, FLOWS, draw)
    write_tables(spark, directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
