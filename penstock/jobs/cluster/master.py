"""The master that `penstock run` names: its settings, and the archive for its workers."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from penstock.conf.pipeline import Pipeline
from penstock.errors import InvalidUsageError
from penstock.jobs.cluster.archive import write_modules
from penstock.jobs.cluster.modules import pipeline_modules

__all__ = ["cluster_pipeline", "spark_settings"]

_MASTER: Final = "spark.master"
_DEPLOY_MODE: Final = "spark.submit.deployMode"
_PY_FILES: Final = "spark.submit.pyFiles"
_MASTERS: Final = re.compile(r"local(\[.*\]|-cluster\[.*\])?|yarn|(spark|k8s)://.+")
_DRIVER_IS_HERE: Final = (
    "pack the pipeline with penstock pack, and start it with spark-submit --deploy-mode cluster"
)


def spark_settings(
    master: str | None = None, conf: Sequence[str] = (), deploy_mode: str | None = None
) -> dict[str, str]:
    """Return the Spark settings that a command line requests.

    Parameters
    ----------
    master : str, optional
        The URL of a master, in the form that `spark-submit` takes.
    conf : sequence of str
        Settings of Spark, each as ``name=value``.
    deploy_mode : str, optional
        The deploy mode. Only ``client`` is possible, because the driver is this process.

    Raises
    ------
    InvalidUsageError
        If a setting is wrong, or Spark Connect or ``spark-submit`` already chooses the master.
    """
    settings: dict[str, str] = {}
    for one in conf:
        name, equals, value = one.partition("=")
        if not equals or not name.startswith("spark."):
            raise InvalidUsageError(
                "this is no setting of Spark", conf=one, hint="write --conf spark.executor.memory=2g"
            )
        settings[name] = value
    if master is not None:
        settings[_MASTER] = master
    if deploy_mode is not None:
        settings[_DEPLOY_MODE] = deploy_mode
    if settings.get(_DEPLOY_MODE, "client") != "client":
        raise InvalidUsageError(
            "penstock run is the driver itself and cannot run on the cluster",
            deploy_mode=settings[_DEPLOY_MODE],
            hint=_DRIVER_IS_HERE,
        )
    master = settings.get(_MASTER)
    if master is None:
        return settings
    if _MASTERS.fullmatch(master) is None:
        raise InvalidUsageError(
            "this is no master of Spark",
            master=master,
            hint="the masters are spark://HOST:PORT, yarn, k8s://https://HOST:PORT and local[N]",
        )
    for variable, other in (("SPARK_REMOTE", "Spark Connect"), ("PYSPARK_GATEWAY_PORT", "spark-submit")):
        if variable in os.environ:
            raise InvalidUsageError(
                f"{other} chooses the master", master=master, hint="leave out --master, or start without it"
            )
    return settings


@contextmanager
def cluster_pipeline(pipeline: Pipeline, settings: Mapping[str, str]) -> Iterator[Pipeline]:
    """Yield a pipeline with Spark settings and, for a cluster's master, with an archive for the workers.

    The archive has the pipeline's modules, if there are any, and is deleted at the end of the block. Penstock
    itself is sent later, if a worker lacks it (`penstock.spark_ext.worker.python_workers`). It is better to
    install Penstock on the workers, because each executor recompiles kernels that come from an archive.

    Parameters
    ----------
    pipeline : Pipeline
        The pipeline.
    settings : mapping of str to str
        The result of `spark_settings`. It takes precedence over ``query.spark``.

    Raises
    ------
    InvalidUsageError
        If a module cannot be packed, or the pipeline has no checkpoint that a cluster's workers can see.
    """
    spark = {**pipeline.query.spark, **settings}
    if spark.get(_MASTER, "local").startswith("local"):
        yield _set_spark(pipeline, spark)
        return
    if pipeline.query.checkpoint is None:
        raise InvalidUsageError(
            "query.checkpoint is missing",
            master=spark[_MASTER],
            hint="the workers of a cluster do not see a temporary directory of the driver: name a directory "
            "that all machines mount at the same path, or a location in an object store or HDFS",
        )
    with tempfile.TemporaryDirectory(prefix="penstock-") as directory:
        modules = pipeline_modules(pipeline)
        if modules.files:
            archive = Path(directory, "modules.zip")
            write_modules(archive, modules)
            py_files = [spark[_PY_FILES]] if spark.get(_PY_FILES) else []
            spark[_PY_FILES] = ",".join([*py_files, str(archive)])
        yield _set_spark(pipeline, spark)


def _set_spark(pipeline: Pipeline, spark: dict[str, str]) -> Pipeline:
    return pipeline.model_copy(update={"query": pipeline.query.model_copy(update={"spark": spark})})
