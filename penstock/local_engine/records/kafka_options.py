"""Parse the options of Spark's connector for Kafka for the local engine."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, Literal

from penstock.errors import InvalidUsageError

__all__ = ["EARLIEST", "LATEST", "KafkaOptions", "Partition"]

Partition = tuple[str, int]
"""A topic, and the number of a partition of this topic."""

EARLIEST, LATEST = -2, -1
"""The offsets that stand for the first record and for the end of a partition, as in Spark."""

MAX_OFFSETS: Final = 1_000_000
"""The default maximum of offsets in a micro-batch, whose rows are held in memory."""

_CLIENT: Final = "kafka."
_KNOWN: Final = (
    "assign", "subscribe", "subscribepattern", "startingoffsets", "startingtimestamp",
    "startingoffsetsbytimestamp", "startingoffsetsbytimestampstrategy", "failondataloss",
    "maxoffsetspertrigger", "includeheaders", "minpartitions", "maxrecordsperpartition", "groupidprefix",
)  # fmt: skip
_INTERNAL: Final = ("__consumer_offsets", "__transaction_state")
"""The brokers' internal topics, which a pattern never selects, as in the Java client."""
_OWN: Final = ("auto.offset.reset", "enable.auto.commit", "key.deserializer", "value.deserializer")
_JAAS: Final = re.compile(r'\b(username|password)\s*=\s*"((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    """The options of a source.

    Parameters
    ----------
    client : mapping of str to str
        The settings of the client, librdkafka.
    topics : tuple of str
        The topics to read; empty if `pattern` or `partitions` selects what to read.
    pattern : str, optional
        A regular expression. All topics whose whole name matches are read.
    partitions : frozenset of Partition
        The partitions to read; empty if `topics` or `pattern` selects what to read.
    start : int or mapping of Partition to int
        The first offset to read, or the time in ms from which to read; for all partitions, or for each.
    start_kind : {"offset", "time"}
        Whether `start` is an offset or a time.
    late_start : {"error", "latest"}
        What to do if all records of a partition are older than its time in `start`: fail, or start at the
        end.
    max_offsets : int
        The maximum number of offsets in a micro-batch.
    fails_on_loss : bool
        Whether the query fails if Kafka has deleted unread records.
    """

    client: Mapping[str, str]
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: frozenset[Partition] = frozenset()
    start: int | Mapping[Partition, int] = LATEST
    start_kind: Literal["offset", "time"] = "offset"
    late_start: str = "error"
    max_offsets: int = MAX_OFFSETS
    fails_on_loss: bool = True

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> KafkaOptions:
        """Return the checked options.

        Raises
        ------
        InvalidUsageError
            If an option is wrong, or only Spark knows it.
        """
        texts = {name.lower(): text.strip() for name, text in options.items()}
        client = {
            name.removeprefix(_CLIENT): text for name, text in texts.items() if name.startswith(_CLIENT)
        }
        _check_names([name for name in texts if not name.startswith(_CLIENT)], client)
        start, kind = _parse_start(texts)
        return cls(
            client=_client_settings(client),
            topics=tuple(name.strip() for name in texts.get("subscribe", "").split(",") if name.strip()),
            pattern=_parse_pattern(texts),
            partitions=_parse_assignment(texts["assign"]) if "assign" in texts else frozenset(),
            start=start,
            start_kind=kind,
            late_start=_one_of(texts, "startingoffsetsbytimestampstrategy", ("error", "latest")),
            max_offsets=_positive(texts, "maxoffsetspertrigger") or MAX_OFFSETS,
            fails_on_loss=_one_of(texts, "failondataloss", ("true", "false")) == "true",
        )

    def matches(self, partition: Partition) -> bool:
        """Return whether these options select a partition."""
        if self.pattern is not None:
            return partition[0] not in _INTERNAL and re.fullmatch(self.pattern, partition[0]) is not None
        return partition[0] in self.topics or partition in self.partitions


def _check_names(names: Iterable[str], client: Mapping[str, str]) -> None:
    for name in names:
        if name not in _KNOWN:
            near = get_close_matches(name, _KNOWN, 1)
            raise InvalidUsageError(
                "the local engine does not know an option of Kafka's source",
                option=name,
                hint=f"did you mean {near[0]}?" if near else "leave it out, or use engine: spark",
            )
    for name in _OWN:
        if name in client:
            raise InvalidUsageError("a setting of Kafka's client is fixed", setting=name, hint="leave it out")


def _client_settings(client: dict[str, str]) -> dict[str, str]:
    """Convert settings of Kafka's Java client to settings of librdkafka."""
    settings = {"isolation.level": "read_uncommitted", **client}  # the default of the Java client
    jaas = settings.pop("sasl.jaas.config", None)
    if jaas is not None:
        settings |= {f"sasl.{name}": re.sub(r"\\(.)", r"\1", text) for name, text in _JAAS.findall(jaas)}
    java = [
        name for name in settings if re.fullmatch(r"ssl\.truststore\..*|.*\.callback\.handler\.class", name)
    ]
    if java:
        raise InvalidUsageError(
            "a setting exists only in Kafka's Java client",
            setting=java[0],
            hint="the local engine uses librdkafka: set kafka.ssl.ca.location, or use engine: spark",
        )
    return settings


def _parse_start(
    texts: Mapping[str, str],
) -> tuple[int | Mapping[Partition, int], Literal["offset", "time"]]:
    if "startingtimestamp" in texts:
        return _positive(texts, "startingtimestamp", least=0) or 0, "time"
    if "startingoffsetsbytimestamp" in texts:
        return _parse_offsets(texts, "startingoffsetsbytimestamp"), "time"
    text = texts.get("startingoffsets", "latest")
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return words[text.lower()], "offset"
    return _parse_offsets(texts, "startingoffsets"), "offset"


def _parse_offsets(texts: Mapping[str, str], name: str) -> dict[Partition, int]:
    try:
        found = json.loads(texts[name])
        return {
            (topic, int(number)): int(offset)
            for topic, offsets in found.items()
            for number, offset in offsets.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise InvalidUsageError(
            "an option of Kafka's source is not JSON of topics and partitions",
            option=name,
            hint="""write for example {"trades": {"0": 23, "1": -2}}""",
        ) from None


def _parse_assignment(text: str) -> frozenset[Partition]:
    try:
        return frozenset((topic, int(one)) for topic, numbers in json.loads(text).items() for one in numbers)
    except (ValueError, TypeError, AttributeError):
        raise InvalidUsageError(
            "assign is not JSON of topics and partitions", hint="""write for example {"trades": [0, 1]}"""
        ) from None


def _parse_pattern(texts: Mapping[str, str]) -> str | None:
    pattern = texts.get("subscribepattern")
    try:
        re.compile(pattern or "")
    except re.error as error:
        raise InvalidUsageError(
            "subscribePattern is not a regular expression", reason=error.msg, position=error.pos
        ) from None
    return pattern


def _positive(texts: Mapping[str, str], name: str, least: int = 1) -> int | None:
    if name not in texts:
        return None
    if not texts[name].isdecimal() or int(texts[name]) < least:
        raise InvalidUsageError("an option of Kafka's source is not a number", option=name, least=least)
    return int(texts[name])


def _one_of(texts: Mapping[str, str], name: str, words: tuple[str, ...]) -> str:
    """Return the value of an option, which must be one of `words`; by default the first word."""
    word = texts.get(name, words[0]).lower()
    if word not in words:
        raise InvalidUsageError("an option of Kafka's source is wrong", option=name, known=", ".join(words))
    return word
