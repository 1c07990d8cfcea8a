"""The contenders of the benchmark of Kafka's formats decode the same rows."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from benchmarks.kafka import kafka_formats
from tests.servers.registry import Registry


def test_all_contenders_decode_the_same_rows() -> None:
    with Registry() as registry:
        found: dict[str, Any] = {
            name: decode() for name, decode in kafka_formats.contenders(registry).items()
        }
    rows = [kafka_formats.row(number) for number in range(kafka_formats.VALUES)]
    for name, decoded in found.items():
        columns = decoded if isinstance(decoded, pa.Array) else decoded[0]
        assert columns.to_pylist() == rows, name
