"""The section of a source that reads topics of Kafka."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from pydantic import BeforeValidator, Field

from penstock.conf.values import OnError, Options, PStreamPath, Section, Text, names_of

__all__ = [
    "CHANGE_COLUMNS",
    "TEXT_FORMATS",
    "KafkaColumn",
    "KafkaFormat",
    "KafkaSource",
    "RegistrySection",
]

KafkaFormat: TypeAlias = Literal["json", "avro", "protobuf", "debezium", "debezium_avro"]
TEXT_FORMATS: Final = ("json", "debezium")
"""Formats whose records carry no schema."""
CHANGE_COLUMNS: Final = "deleted BOOLEAN, change_op STRING, change_ms BIGINT, change_lsn BIGINT"
"""The columns that Debezium adds to the row of a change."""
KafkaColumn: TypeAlias = Literal["key", "topic", "partition", "offset", "timestamp", "headers"]


class RegistrySection(Section):
    """A schema registry; see `penstock.SchemaRegistry`."""

    url: Text
    subject: Text | None = None
    user: Text | None = None
    password: Text | None = Field(default=None, repr=False)
    token: Text | None = Field(default=None, repr=False)


class KafkaSource(Section):
    """Topics of Kafka; `options` are the options of Spark's connector, which both engines take.

    `kafka_columns` are Kafka's own columns in addition to `columns`, each with the prefix ``kafka_``.
    `value_schema`, `message` and `registry` are for values in Avro and Protobuf.
    """

    type: Literal["kafka"]
    value_format: KafkaFormat | Literal["raw"] = "raw"
    columns: Text | None = Field(default=None, alias="schema")
    value_schema: Text | None = None
    message: Text | None = None
    registry: RegistrySection | None = None
    kafka_columns: Annotated[tuple[KafkaColumn, ...], BeforeValidator(names_of)] = ("timestamp",)
    on_error: OnError = "keep"
    reject_to: PStreamPath = None
    options: Options = {}

    @property
    def has_headers(self) -> bool:
        """True if the connector is to return the headers of records."""
        options = {name.lower(): value.lower() for name, value in self.options.items()}
        return "headers" in self.kafka_columns or options.get("includeheaders") == "true"

    @property
    def decoded_format(self) -> KafkaFormat | None:
        """The format from which values are decoded; None if they are not decoded."""
        return None if self.value_format == "raw" else self.value_format

    @property
    def has_changes(self) -> bool:
        """True if the values are Debezium's change events."""
        return self.value_format in ("debezium", "debezium_avro")
