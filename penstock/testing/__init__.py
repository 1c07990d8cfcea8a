"""Test pipelines in milliseconds, and test your own file systems, codecs, schedulers and tables.

`pipeline`, `graph` and `database` run a pipeline, a graph or procedures without a JVM; the test provides the
rows and the clock; see ``docs/how-to/test-pipelines.md``. The pytest plugin `penstock.testing.plugin` has
fixtures for them.

The classes are conformance tests, each for one interface. In a test file, inherit from a class, and define
the fixture that the class asks for::

    class TestMyFiles(FilesTests):
        @pytest.fixture
        def files(self, tmp_path):
            return MyFiles(tmp_path)

Penstock tests its own implementations in this way. The classes and the plugin need pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._lazy import lazily

if TYPE_CHECKING:
    from penstock.testing.codecs import CodecTests
    from penstock.testing.databases import DatabaseTest, database
    from penstock.testing.files import FilesTests
    from penstock.testing.graphs import GraphTest, graph
    from penstock.testing.own import AggregateTests, OperatorTests
    from penstock.testing.pipelines import PipelineTest, pipeline
    from penstock.testing.schedulers import SchedulerTests
    from penstock.testing.state import StateTests
    from penstock.testing.tables import TableTests

__all__ = [
    "AggregateTests",
    "CodecTests",
    "DatabaseTest",
    "FilesTests",
    "GraphTest",
    "OperatorTests",
    "PipelineTest",
    "SchedulerTests",
    "StateTests",
    "TableTests",
    "database",
    "graph",
    "pipeline",
]

__getattr__ = lazily(
    __name__,
    {
        "AggregateTests": "penstock.testing.own",
        "CodecTests": "penstock.testing.codecs",
        "DatabaseTest": "penstock.testing.databases",
        "FilesTests": "penstock.testing.files",
        "GraphTest": "penstock.testing.graphs",
        "OperatorTests": "penstock.testing.own",
        "PipelineTest": "penstock.testing.pipelines",
        "SchedulerTests": "penstock.testing.schedulers",
        "StateTests": "penstock.testing.state",
        "TableTests": "penstock.testing.tables",
        "database": "penstock.testing.databases",
        "graph": "penstock.testing.graphs",
        "pipeline": "penstock.testing.pipelines",
    },
)


def __dir__() -> list[str]:
    """Return all public names, including those not imported yet."""
    return list(__all__)
