"""A pytest plugin for tests of pipelines, graphs and procedures. Pytest finds it automatically.

The plugin imports Penstock's own modules only when a test asks for a fixture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from penstock.testing.databases import DatabaseTest
    from penstock.testing.graphs import GraphTest
    from penstock.testing.pipelines import PipelineTest

__all__ = [
    "OpenDatabaseTest",
    "OpenGraph",
    "OpenPipeline",
    "penstock_database",
    "penstock_graph",
    "penstock_pipeline",
]

OpenPipeline: TypeAlias = "Callable[..., PipelineTest]"
"""A function that opens a pipeline. It takes the arguments of `penstock.testing.pipeline`."""

OpenGraph: TypeAlias = "Callable[..., GraphTest]"
"""A function that opens a graph. It takes the arguments of `penstock.testing.graph`."""

OpenDatabaseTest: TypeAlias = "Callable[..., DatabaseTest]"
"""A function that opens a database. It takes the arguments of `penstock.testing.database`."""


@pytest.fixture
def penstock_pipeline() -> Iterator[OpenPipeline]:
    """Return a function that opens pipelines for a test and closes them at its end.

    It takes the arguments of `penstock.testing.pipeline`.
    """
    from penstock.testing.pipelines import pipeline

    with ExitStack() as opened:

        def open_pipeline(*arguments: Any, **options: Any) -> PipelineTest:
            return opened.enter_context(pipeline(*arguments, **options))

        yield open_pipeline


@pytest.fixture
def penstock_graph() -> Iterator[OpenGraph]:
    """Return a function that opens graphs for a test; it takes the arguments of `penstock.testing.graph`."""
    from penstock.testing.graphs import graph

    with ExitStack() as opened:

        def open_graph(*arguments: Any, **options: Any) -> GraphTest:
            return opened.enter_context(graph(*arguments, **options))

        yield open_graph


@pytest.fixture
def penstock_database() -> Iterator[OpenDatabaseTest]:
    """Return a function that opens databases; it takes the arguments of `penstock.testing.database`."""
    from penstock.testing.databases import database

    with ExitStack() as opened:

        def open_database(*arguments: Any) -> DatabaseTest:
            return opened.enter_context(database(*arguments))

        yield open_database
