"""The sections of a pipeline's file."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from penstock.conf.kafka_source import KafkaSource
from penstock.conf.values import (
    Freshness,
    Function,
    Names,
    OnError,
    Options,
    PStreamPath,
    Section,
    StartTime,
    Text,
    Weight,
    address_of,
    aggregates_of,
    budget_of,
    cost_of,
    delay_of,
    empty_section,
    persist_of,
    queue_cost_of,
    sql,
    texts,
    trigger_of,
    ttl_of,
    window_duration,
    window_length,
)

Persist: TypeAlias = Literal["auto", "always", "never"]
PolicyName: TypeAlias = Literal["fifo", "in_place", "linecutting", "freshest"]
SemanticsName: TypeAlias = Literal["update", "append", "adaptive"]
WindowModeName: TypeAlias = Literal["append", "lazy", "eager"]
WorkingCopyName: TypeAlias = Literal["memory", "rocksdb"]
TimeUnit: TypeAlias = Literal["s", "ms", "us", "ns"]
OrderName: TypeAlias = Literal["arrival", "any"]
Nulls: TypeAlias = Literal["error", "drop"]
EngineName: TypeAlias = Literal["spark", "local"]


class MarketSource(Section):
    """Penstock's market generator (`penstock.market`)."""

    type: Literal["market"]
    rows_per_second: int = Field(default=10_000, ge=1)
    symbols: int = Field(default=3_000, ge=1)
    skew: float = Field(default=4_305.0, ge=1)
    seed: int = 0
    partitions: int = Field(default=2, ge=1)
    start_time: StartTime = None
    max_rows_per_trigger: int | None = Field(default=None, ge=1)
    rows: int | None = Field(default=None, ge=1)
    real_time: bool = True


class FilesSource(Section):
    """Files that arrive in a directory; `options` are for Spark's reader of the format.

    With the `reader` ``penstock``, Penstock reads Parquet files if the pipeline reduces the number of rows;
    else Spark does. `on_error` sets the treatment of CSV and JSON records that cannot be read.
    """

    type: Literal["files"]
    format: Literal["csv", "json", "parquet", "orc", "text"]
    path: Text
    reader: Literal["spark", "penstock"] = "spark"
    columns: Text | None = Field(default=None, alias="schema")
    on_error: OnError = "keep"
    reject_to: PStreamPath = None
    options: Options = {}

    @property
    def counts_bad_records(self) -> bool:
        """True if unreadable records are counted; False if `options` set their treatment."""
        theirs = {"mode", "columnnameofcorruptrecord"} & {name.lower() for name in self.options}
        return self.format in ("csv", "json") and self.columns is not None and not theirs


class PStreamSource(Section):
    """A p-stream, read from its first row."""

    type: Literal["pstream"]
    path: Text
    max_rows_per_trigger: int | None = Field(default=None, ge=1)


class SparkSource(Section):
    """Any streaming source of Spark, by the name of its format.

    `columns` are the columns that the source returns, so that a pipeline can be checked without Spark.
    """

    type: Literal["spark"]
    format: Text
    path: Text | None = None
    columns: Text = Field(alias="schema")
    options: Options = {}


class RateSource(Section):
    """Spark's own counter, with the columns ``timestamp`` and ``value``."""

    type: Literal["rate"]
    rows_per_second: int = Field(default=1, ge=1)
    options: Options = {}


class ConsoleSink(Section):
    """Prints the rows of every micro-batch."""

    type: Literal["console"]
    rows: int = Field(default=20, ge=1)
    truncate: bool = False


class ParquetSink(Section):
    """Parquet files, each row in them exactly once."""

    type: Literal["parquet"]
    path: Text
    options: Options = {}


class KafkaSink(Section):
    """A topic of Kafka, which gets each row at least once: the key as text or JSON, all columns as JSON."""

    type: Literal["kafka"]
    options: Options = {}


class PStreamSink(Section):
    """A p-stream, which gets each row exactly once; `options` are options of the data source ``pstream``.

    `key` and `time` make it an update log, in which a row is a delete if `delete_when` is true for it.
    """

    type: Literal["pstream"]
    path: Text
    key: Names | None = None
    time: Text | None = None
    delete_when: Annotated[Text | None, BeforeValidator(sql)] = None
    keep_deletes: Annotated[str | None, BeforeValidator(delay_of)] = None
    options: Options = {}


class SparkSink(Section):
    """Any streaming sink of Spark, by the name of its format; `path` and `options` are the sink's."""

    type: Literal["spark"]
    format: Text
    path: Text | None = None
    options: Options = {}


class ForeachBatchSink(Section):
    """A function that is called with the rows of each micro-batch, as a DataFrame, and the batch's number."""

    type: Literal["foreach_batch"]
    function: Function


class UpsertSink(Section):
    """A table of a store, kept up to date; see `penstock.upsert`.

    `key` and `time` are by default the key and time of the queue, union or join.
    """

    type: Literal["upsert"]
    to: Text
    table: Text | None = None
    key: Names | None = None
    time: Text | None = None
    delete_when: Annotated[Text | None, BeforeValidator(sql)] = None
    forget_deletes_after: int | Annotated[str, BeforeValidator(delay_of)] | None = None
    create: bool = False
    patience: Annotated[str, BeforeValidator(delay_of)] = "5 minutes"


class MemorySink(Section):
    """A table in the driver's memory, with the query's name; for tests and notebooks."""

    type: Literal["memory"]


class NoopSink(Section):
    """Takes all rows and keeps none; for measuring."""

    type: Literal["noop"]


Source: TypeAlias = MarketSource | FilesSource | KafkaSource | PStreamSource | SparkSource | RateSource
Sink: TypeAlias = (
    ConsoleSink
    | ParquetSink
    | KafkaSink
    | PStreamSink
    | SparkSink
    | ForeachBatchSink
    | UpsertSink
    | MemorySink
    | NoopSink
)


class Input(Section):
    """An additional stream of a union or a join: ``source -> filter -> projection``."""

    source: Source = Field(discriminator="type")
    filter: Annotated[Text | None, BeforeValidator(sql)] = None
    projection: Annotated[tuple[str, ...] | None, BeforeValidator(texts)] = None


class TableSection(Section):
    """A static table in files; `options` are for Spark's reader of the format."""

    format: Literal["csv", "json", "parquet", "orc"]
    path: Text
    columns: Text = Field(alias="schema")
    options: Options = {}


class LookupSection(Section):
    """An inner join with a static table, by columns of the same name."""

    table: TableSection
    key: Names


class Queue(Section):
    """The arguments of `penstock.update_queue`."""

    key: Names
    time: Text
    policy: PolicyName = "in_place"
    budget: Annotated[int | str | None, BeforeValidator(budget_of)] = None
    freshness: Freshness = None
    apply: Function | None = None
    output_schema: Text | None = None
    buckets: int | None = Field(default=None, ge=1)
    arrival: Text | None = None
    cost: Annotated[str | None, BeforeValidator(queue_cost_of)] = None
    weight: Weight = None
    nulls: Nulls = "error"
    combine: Literal["auto", True, False] = "auto"
    staleness_column: bool = False
    delete_when: Annotated[Text | None, BeforeValidator(sql)] = None
    ttl: Annotated[int | str | None, BeforeValidator(ttl_of)] = None
    delete_ttl: Annotated[int | str | None, BeforeValidator(ttl_of)] = None
    on_silent: Literal["row"] | None = None
    semantics: SemanticsName | None = None
    working_copy: WorkingCopyName = "memory"
    late_to: PStreamPath = None


class UnionSection(Queue):
    """The arguments of `penstock.update_union`; all inputs have names, except the pipeline's own source."""

    inputs: Annotated[dict[Text, Input], Field(min_length=1)]
    prefer: Text | None = None


class JoinSection(Section):
    """The arguments of `penstock.update_join`."""

    other: Input = Field(alias="with")
    key: Names
    time: Text
    within: Annotated[str, BeforeValidator(delay_of)]
    condition: Annotated[Text | None, BeforeValidator(sql)] = None
    watermark_delay: Annotated[str | None, BeforeValidator(delay_of)] = None
    delete_when: Text | dict[Literal["left", "right"], Text] | None = None
    ttl: Annotated[int | str | None, BeforeValidator(ttl_of)] = None
    on_silent: Literal["row"] | None = None
    unit: TimeUnit | None = None
    buckets: int | None = Field(default=None, ge=1)
    nulls: Nulls = "error"
    late_to: PStreamPath = None


class DatabaseSection(Section):
    """A stored procedure to run, and the Python file that defines its database.

    `name` chooses one of the file's databases. `time` and later fields are as in `penstock.transactions`.
    """

    file: Text
    procedure: Text
    name: Text | None = None
    time: Text | None = None
    order: OrderName = "arrival"
    keep: Names = ()
    buckets: int | None = Field(default=None, ge=1)
    requests: Text | None = None
    batch: Text | int | None = None
    compatible_with: Text | None = None
    initial: dict[Text, TableSection] = {}


class OperatorSection(Section):
    """A user-defined operator (a class in a module), and arguments of `penstock.apply`.

    `arguments` are the arguments of the class.
    """

    name: Function = Field(alias="class")
    key: Names
    time: Text | None = None
    buckets: int | None = Field(default=None, ge=1)
    arguments: dict[Text, Any] = {}


class ResultsSection(Section):
    """Filter and projection after a queue, a union, a join or transactions.

    The projection keeps an update key unchanged.
    """

    filter: Annotated[Text | None, BeforeValidator(sql)] = None
    projection: Annotated[tuple[str, ...] | None, BeforeValidator(texts)] = None


class WindowSection(Section):
    """Windows of time or of rows, or sessions, and their aggregates; `unit` is for an integer time.

    Mode, budget, policy, cost, weight, deletes and times to live are as for `penstock.update_window`; the
    fields in `SERVING` are for lazy and eager mode.
    """

    SERVING: ClassVar = ("budget", "freshness", "policy", "cost", "weight", "ttl", "on_silent")

    time: Text
    size: Annotated[str | None, BeforeValidator(window_length)] = None
    slide: Annotated[str | None, BeforeValidator(window_length)] = None
    session: Annotated[str | None, BeforeValidator(window_duration)] = None
    unit: TimeUnit | None = None
    watermark_delay: Annotated[str | None, BeforeValidator(delay_of)] = None
    mode: WindowModeName = "append"
    budget: Annotated[int | str | None, BeforeValidator(budget_of)] = None
    freshness: Freshness = None
    policy: PolicyName = "in_place"
    cost: Annotated[str | None, BeforeValidator(cost_of)] = None
    weight: Weight = None
    delete_when: Annotated[Text | None, BeforeValidator(sql)] = None
    ttl: Annotated[str | None, BeforeValidator(delay_of)] = None
    on_silent: Literal["row"] | None = None
    late_to: PStreamPath = None


class OtherWindow(Section):
    """The window of a `WindowJoinSection`; missing fields are as in the pipeline's own window."""

    time: Text | None = None
    size: Annotated[str, BeforeValidator(window_duration)]
    unit: TimeUnit | None = None
    watermark_delay: Annotated[str | None, BeforeValidator(delay_of)] = None


class ByWindowSection(Section):
    """Aggregates of all groups of a window: one row for each window, or for each window and group."""

    group_by: Annotated[tuple[str, ...] | None, BeforeValidator(texts)] = None
    aggregates: Annotated[dict[Text, Text], BeforeValidator(aggregates_of)]
    having: Annotated[Text | None, BeforeValidator(sql)] = None


class WindowJoinSection(Section):
    """A second set of windows, joined with the pipeline's windows that end at the same time.

    The second windows are windows over the same stream with a separate size and aggregates, or the pipeline's
    own windows aggregated by window.
    """

    window: OtherWindow | None = None
    group_by: Annotated[tuple[str, ...] | None, BeforeValidator(texts)] = None
    aggregates: Annotated[dict[Text, Text] | None, BeforeValidator(aggregates_of)] = None
    having: Annotated[Text | None, BeforeValidator(sql)] = None
    by_window: ByWindowSection | None = None
    key: Names | None = None
    condition: Annotated[Text | None, BeforeValidator(sql)] = None


class Query(Section):
    """The settings of a pipeline's run.

    With the trigger available_now the run ends once all input is read and, with `drain`, no key waits.
    """

    name: Text = "penstock"
    checkpoint: Text | None = None
    trigger: Annotated[str | None, BeforeValidator(trigger_of)] = None
    drain: bool = True
    state_location: Text | None = None
    retain_versions: Annotated[int, Field(ge=1)] | None = None
    metrics: Text | None = None
    prometheus: Annotated[int | str | None, BeforeValidator(address_of)] = None
    opentelemetry: bool = False
    spark: Options = {}


def _one_step(queue: Queue | None, info: ValidationInfo) -> Queue | None:
    """Refuse a pipeline without a stateful step. A step that is present but invalid counts as a step."""
    others = ("window", "aggregates", "union", "join", "database", "operator")
    if queue is None and all(info.data.get(name, ...) is None for name in others):
        raise PydanticCustomError("missing", "is required")
    return queue


class PipelineSections(Section):
    """The sections of a whole pipeline."""

    engine: EngineName = "spark"
    source: Source = Field(discriminator="type")
    filter: Annotated[Text | None, BeforeValidator(sql)] = None
    projection: Annotated[tuple[str, ...] | None, BeforeValidator(texts)] = None
    lookup: LookupSection | None = None
    window: WindowSection | None = None
    group_by: Annotated[tuple[str, ...] | None, BeforeValidator(texts)] = None
    aggregates: Annotated[dict[Text, Text] | None, BeforeValidator(aggregates_of)] = None
    having: Annotated[Text | None, BeforeValidator(sql)] = None
    window_join: WindowJoinSection | None = None
    by_window: ByWindowSection | None = None
    persist: Annotated[Persist | dict[str, Persist], BeforeValidator(persist_of)] = "auto"
    union: UnionSection | None = None
    join: JoinSection | None = None
    database: DatabaseSection | None = None
    operator: OperatorSection | None = None
    queue: Annotated[Queue | None, AfterValidator(_one_step)] = Field(default=None, validate_default=True)
    results: ResultsSection | None = None
    sink: Sink = Field(discriminator="type")
    query: Annotated[Query, BeforeValidator(empty_section, json_schema_input_type=Query | None)] = Query()

    @property
    def planned_persist(self) -> Persist | dict[str, Persist]:
        """The planner's `persist`; it is ``never`` if there are no windows and nothing is ``always``."""
        persist = self.persist
        some = "always" in (persist.values() if isinstance(persist, dict) else (persist,))
        return persist if some or self.window is not None else "never"

    @property
    def step(self) -> Queue | JoinSection | None:
        """The step that has an update key: a queue, a union or a join."""
        return self.queue or self.union or self.join
