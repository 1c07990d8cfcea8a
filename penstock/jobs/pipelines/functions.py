"""Functions that a pipeline names."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle

from penstock._lazy import import_named
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.cluster.modules import pipeline_modules

__all__ = ["carry_functions", "import_function"]


def import_function(name: str, field: str) -> Callable[..., Any]:
    """Import the function that a field names as ``module:function``.

    Raises
    ------
    InvalidUsageError
        If there is no such function, or its module fails.
    """
    try:
        value = import_named(name)
    except (ImportError, AttributeError) as error:
        raise InvalidUsageError(
            f"{field}: {error}",
            hint="the module must be installed, beside the pipeline's file, on PYTHONPATH, or passed to "
            "spark-submit with --py-files",
        ) from error
    except Exception as error:  # a module of users raises anything
        module = name.partition(":")[0]
        raise InvalidUsageError(
            f"{field}: the module {module} fails: {type(error).__name__}: {error}"
        ) from error
    if not callable(value):
        raise InvalidUsageError(f"{field}: {name} is not a function")
    return value


def carry_functions(pipeline: Pipeline) -> None:
    """Let Spark Connect send the functions that a pipeline names to the server, with their modules.

    The server runs functions of ``foreach_batch``. Without this call, it has only the modules that are
    installed on it.
    """
    for name in sorted(pipeline_modules(pipeline).packed):
        cloudpickle.register_pickle_by_value(importlib.import_module(name))
