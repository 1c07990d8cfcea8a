"""Operators of Spark Connect with `schema=`: the server is not asked for columns, as flows need it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import DataFrame, SparkSession

import penstock
from penstock.errors import InvalidUsageError
from penstock.spark_ext.sources import wake
from penstock.spark_ext.worker import stateful
from tests.spark.connect_server import lacks_client

pytestmark = pytest.mark.skipif(lacks_client(), reason='needs pip install "penstock[connect]"')

SCHEMA = "k string, t bigint, v double, `a name` int"
SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.sql.ansi.enabled": "true"}


class SettingsOnly:
    """The stub of a server that may only be asked for settings."""

    def Config(self, request: Any, **_: Any) -> Any:  # noqa: N802  # the name of the call
        import pyspark.sql.connect.proto as pb2

        asked = request.operation
        known = dict.fromkeys(asked.get.keys, "")
        known |= {one.key: one.value for one in asked.get_with_default.pairs}
        known |= {one.key: one.value for one in asked.set.pairs}
        known |= {name: value for name, value in SETTINGS.items() if name in known}
        pairs = [pb2.KeyValue(key=name, value=value) for name, value in known.items()]
        return pb2.ConfigResponse(session_id=request.session_id, pairs=pairs)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"the server is called: {name}")


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """Give a client without a server, whose session is registered."""
    from pyspark.sql.connect.session import SparkSession as Client

    monkeypatch.setenv("SPARK_CONNECT_MODE_ENABLED", "1")
    session: Any = Client("sc://127.0.0.1:1")
    monkeypatch.setattr(session._client, "_stub", SettingsOnly())
    monkeypatch.setattr(wake, "_registered", {session})
    monkeypatch.setattr(stateful, "prepare_workers", lambda _: None)
    yield session
    session._client._channel.close()


def quotes(spark: SparkSession, schema: str | None = None) -> DataFrame:
    """Return a table of the pipeline, or files whose columns only the server knows."""
    return spark.readStream.table("quotes") if schema is None else spark.readStream.format("json").load()


def double(rows: pa.Table) -> pa.Table:
    return rows.select(["k", "v"])


def as_queue(spark: SparkSession, **more: Any) -> DataFrame:
    return penstock.update_queue(quotes(spark), key="k", time="t", schema=SCHEMA, **more)


def as_window(spark: SparkSession, **more: Any) -> DataFrame:
    given: dict[str, Any] = {"size": "10 s", "unit": "s"} | more
    aggs = {"total": "sum(v)", "n": "count(*)", "most": "max(`a name` + 1)"}
    return penstock.update_window(quotes(spark), key="k", time="t", aggs=aggs, schema=SCHEMA, **given)


def as_join(spark: SparkSession, **more: Any) -> DataFrame:
    given: dict[str, Any] = {
        "schema": {"left": "k string, t bigint, v double", "right": "t bigint, k string"}
    }
    sides = (quotes(spark), quotes(spark))
    return penstock.update_join(*sides, key="k", time="t", within="1 s", unit="s", **given | more)


def as_union(spark: SparkSession, **more: Any) -> DataFrame:
    inputs = {name: quotes(spark) for name in ("fast", "sure")}
    return penstock.update_union(inputs, key="k", time="t", prefer="sure", schema=SCHEMA, **more)


def as_transactions(spark: SparkSession, place: Path, **more: Any) -> DataFrame:
    database = penstock.database("last")
    database.table("last", "k string, v double", key="k", partition_by="k")

    @database.procedure(event="k string, v double")
    def remember(e, last):  # type: ignore[no-untyped-def]  # compiled by its text
        last[e.k].v = e.v

    return penstock.transactions(
        quotes(spark), remember, time="t", keep="k", schema=SCHEMA, state_location=place, **more
    )


OPERATORS: dict[str, Callable[[SparkSession, Path], DataFrame]] = {
    "queue": lambda spark, place: as_queue(spark, state_location=place),
    "queue that waits and deletes": lambda spark, place: as_queue(
        spark, budget=10, delete_when="v < 0", ttl=100, on_silent="row", late_to=place / "late",
        state_location=place / "state",
    ),
    "queue with a query": lambda spark, place: as_queue(
        spark, apply=double, output_schema="k string, v double", state_location=place
    ),
    "union": lambda spark, place: as_union(spark, state_location=place),
    "join": lambda spark, place: as_join(spark, delete_when="t < 0", state_location=place),
    "windows": lambda spark, place: as_window(spark, state_location=place),
    "windows that delete": lambda spark, place: as_window(
        spark, mode="lazy", budget="1s", delete_when="v < 0", late_to=place / "late",
        state_location=place / "state",
    ),
    "windows of rows": lambda spark, place: as_window(
        spark, size="5 rows", slide="1 rows", state_location=place
    ),
    "sessions": lambda spark, place: as_window(spark, size=None, session="5 s", state_location=place),
    "transactions": as_transactions,
    "forwarding transactions": lambda spark, place: as_transactions(spark, place, buckets=2),
}  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operator_is_made_without_a_question_to_the_server(
    spark: SparkSession, tmp_path: Path, operator: str
) -> None:
    made: Any = OPERATORS[operator](spark, tmp_path)
    assert made._plan.to_proto(spark.client).ByteSize() > 1000


@pytest.mark.skipif(pyspark.__version__ < "4.1", reason="declarative pipelines came with Spark 4.1")
def test_a_flow_whose_keys_may_wait_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    from pyspark.pipelines.graph_element_registry import graph_element_registration_context as define_flows

    registry: Any = object()
    with define_flows(registry):
        as_queue(spark, state_location=tmp_path)
        with pytest.raises(InvalidUsageError, match="a flow's run would never end"):
            as_queue(spark, budget=10, state_location=tmp_path)
        with pytest.raises(InvalidUsageError, match="a flow's run would never end"):
            as_window(spark, mode="lazy", budget="1s", state_location=tmp_path)
    as_queue(spark, budget=10, state_location=tmp_path)


def test_without_a_schema_the_server_is_asked(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="the server is called: AnalyzePlan"):
        penstock.update_queue(quotes(spark), key="k", time="t", state_location=tmp_path)


def test_columns_that_are_not_declared_well_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    given: dict[str, Any] = {"key": "k", "time": "t", "state_location": tmp_path}
    with pytest.raises(InvalidUsageError, match="schema is not a list of columns"):
        penstock.update_queue(quotes(spark), **given, schema=["k"])  # type: ignore[arg-type]
    with pytest.raises(InvalidUsageError, match="the schema is wrong"):
        penstock.update_queue(quotes(spark), **given, schema="k strin")
    with pytest.raises(InvalidUsageError, match=r"no column|key"):
        penstock.update_queue(quotes(spark), **given, schema="t bigint")
    with pytest.raises(InvalidUsageError, match="other sides than left and right"):
        as_join(spark, schema={"left": SCHEMA}, state_location=tmp_path)
    with pytest.raises(InvalidUsageError, match="only Spark knows the type"):
        penstock.update_window(
            quotes(spark),
            **given,
            size="1 s",
            unit="s",
            schema=SCHEMA,
            aggs={"all": "sum(java_method('a', k))"},
        )
