"""The only package, with `penstock.jobs`, that imports pyspark: DataFrame API and adapters."""

from penstock.spark_ext.metrics import metrics
from penstock.spark_ext.register import register
from penstock.spark_ext.update_queue import update_queue

__all__ = ["metrics", "register", "update_queue"]
