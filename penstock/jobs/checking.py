"""Check a pipeline before it runs, without a JVM."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from penstock.conf.document import Document
    from penstock.conf.pipeline import Pipeline

__all__ = ["check_pipeline"]


def check_pipeline(
    pipeline: str,
    overrides: list[str],
    *,
    inputs: bool = False,
    settings: Mapping[str, str] | None = None,
    own_process: bool = False,
) -> tuple[Pipeline, Document]:
    """Read a pipeline, and check its places, columns and expressions.

    With `inputs`, also check that the files that the pipeline reads exist. The Spark settings in `settings`
    and in the pipeline determine how S3 is reached. Set `own_process` if the process does nothing but run the
    pipeline.

    Raises
    ------
    PipelineError
        If any of these is wrong, with a line for each problem.
    """
    from penstock.conf.document import PipelineError
    from penstock.conf.pipeline import load_document
    from penstock.jobs.local.first_row import skip_pandas

    loaded, document = load_document(pipeline, overrides)
    from penstock.checkpointing.files.s3a import keep_s3a
    from penstock.jobs.pipelines.graph import graph_of
    from penstock.jobs.pipelines.places import check_inputs, check_places, check_upsert

    keep_s3a({**loaded.query.spark, **(settings or {})}.items(), os.environ)
    if inputs:
        check_inputs(loaded, document)
    problems: list[str] = []
    checks: list[Callable[[Pipeline, Document], object]] = [graph_of, check_places, check_upsert]
    if loaded.engine == "local":
        if own_process and not _has_users_code(loaded):
            skip_pandas()
        checks[0] = _check_local(settings or {})
    for check_part in checks:
        try:
            check_part(loaded, document)
        except PipelineError as error:
            problems += error.problems
    if problems:
        raise PipelineError(problems)
    return loaded, document


def _has_users_code(pipeline: Pipeline) -> bool:
    """Return whether a pipeline runs its user's Python code, as far as the pipeline can be read."""
    from penstock.errors import InvalidUsageError
    from penstock.jobs.cluster.modules import user_code

    try:
        return pipeline.database is not None or bool(user_code(pipeline))
    except InvalidUsageError:
        return True  # the checks report what is wrong, and where


def _check_local(settings: Mapping[str, str]) -> Callable[[Pipeline, Document], object]:
    """Return the function that checks a pipeline for the local engine, which takes no Spark settings."""
    from penstock.errors import InvalidUsageError
    from penstock.jobs.local.pipeline import check_local_pipeline

    if settings:
        raise InvalidUsageError(
            "the local engine takes no settings of Spark",
            settings=", ".join(settings),
            hint="use engine: spark",
        )
    return check_local_pipeline
