"""Functions that a pipeline names."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any

from penstock._lazy import import_named
from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError, did_you_mean
from penstock.jobs.cluster.modules import pipeline_modules

__all__ = ["carry_functions", "import_function"]


def import_function(name: str, field: str) -> Callable[..., Any]:
    """Import the function that a field names as ``module:function``.

    Raises
    ------
    InvalidUsageError
        If there is no such function, or its module fails.
    """
    module, _, attribute = name.partition(":")
    try:
        value = import_named(name)
    except ImportError as error:
        raise InvalidUsageError(
            f"{field}: {error}",
            hint="the module must be installed, beside the pipeline's file, on PYTHONPATH, or passed to "
            "spark-submit with --py-files",
        ) from error
    except (Exception, SystemExit) as error:  # a module of users raises anything
        if isinstance(error, AttributeError) and (found := sys.modules.get(module)) is not None:
            names = [one for one in vars(found) if not one.startswith("_")]
            raise InvalidUsageError(
                f"{field}: the module {module} has no {attribute!r}",
                hint=did_you_mean(attribute, names, "names"),
            ) from error
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
    from pyspark import cloudpickle  # `penstock check` imports functions without Spark

    for name in sorted(pipeline_modules(pipeline).packed):
        cloudpickle.register_pickle_by_value(importlib.import_module(name))
