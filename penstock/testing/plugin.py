"""A pytest plugin for tests of pipelines: name it in ``pytest_plugins`` of a ``conftest.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

if TYPE_CHECKING:
    from penstock.testing.pipelines import PipelineTest

__all__ = ["OpenPipeline", "penstock_pipeline"]

OpenPipeline: TypeAlias = "Callable[..., PipelineTest]"
"""Opens a pipeline; takes the arguments of `penstock.testing.pipeline`."""


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
