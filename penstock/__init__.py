"""Penstock: update streams, durable streams and fast versioned state for Spark Structured Streaming."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from penstock._lazy import lazily
from penstock._version import __version__

if TYPE_CHECKING:
    from penstock.checkpointing.p_stream import PStreamReader, PStreamWriter
    from penstock.checkpointing.spark_checkpoint import repair_checkpoint
    from penstock.conf.pipeline import load_pipeline
    from penstock.dataflow import graph
    from penstock.designing.design import design
    from penstock.designing.queues import design_queue
    from penstock.jobs.pipelines.run import run
    from penstock.jobs.session import session
    from penstock.operators.aggregates.own import Aggregate
    from penstock.operators.own.abc import Operator
    from penstock.predicting.models.predictor import Predictor
    from penstock.predicting.predict import predict
    from penstock.procedures import abort, database, event, execute
    from penstock.procedures.served.client import DatabaseClient
    from penstock.records.registry import SchemaRegistry
    from penstock.spark_ext.api.metrics import metrics
    from penstock.spark_ext.api.register import register
    from penstock.spark_ext.api.transactions import transactions, write_transactions
    from penstock.spark_ext.api.update_join import update_join
    from penstock.spark_ext.api.update_queue import update_queue
    from penstock.spark_ext.api.update_union import update_union
    from penstock.spark_ext.api.update_window import update_window
    from penstock.spark_ext.api.upsert import upsert
    from penstock.spark_ext.forwarding.counts import count_transactions
    from penstock.spark_ext.graph.runner import start
    from penstock.spark_ext.kafka.decode import decode_kafka
    from penstock.spark_ext.metrics_listener import MetricsListener
    from penstock.spark_ext.own.apply import apply
    from penstock.spark_ext.state_copy.fork import fork_state
    from penstock.spark_ext.state_copy.migrate import migrate_state
    from penstock.spark_ext.state_copy.rescale import rescale_state
    from penstock.spark_ext.state_reader.read_state import read_state

__all__ = [
    "Aggregate",
    "DatabaseClient",
    "MetricsListener",
    "Operator",
    "PStreamReader",
    "PStreamWriter",
    "Predictor",
    "SchemaRegistry",
    "__version__",
    "abort",
    "apply",
    "count_transactions",
    "database",
    "decode_kafka",
    "design",
    "design_queue",
    "event",
    "execute",
    "fork_state",
    "graph",
    "load_pipeline",
    "metrics",
    "migrate_state",
    "predict",
    "read_state",
    "register",
    "repair_checkpoint",
    "rescale_state",
    "run",
    "session",
    "start",
    "transactions",
    "update_join",
    "update_queue",
    "update_union",
    "update_window",
    "upsert",
    "write_transactions",
]

__getattr__ = lazily(
    __name__,
    {
        "Aggregate": "penstock.operators.aggregates.own",
        "DatabaseClient": "penstock.procedures.served.client",
        "MetricsListener": "penstock.spark_ext.metrics_listener",
        "Operator": "penstock.operators.own.abc",
        "PStreamReader": "penstock.checkpointing.p_stream",
        "PStreamWriter": "penstock.checkpointing.p_stream",
        "Predictor": "penstock.predicting.models.predictor",
        "SchemaRegistry": "penstock.records.registry",
        "abort": "penstock.procedures",
        "apply": "penstock.spark_ext.own.apply",
        "count_transactions": "penstock.spark_ext.forwarding.counts",
        "database": "penstock.procedures",
        "decode_kafka": "penstock.spark_ext.kafka.decode",
        "design": "penstock.designing.design",
        "design_queue": "penstock.designing.queues",
        "event": "penstock.procedures",
        "execute": "penstock.procedures",
        "fork_state": "penstock.spark_ext.state_copy.fork",
        "graph": "penstock.dataflow",
        "load_pipeline": "penstock.conf.pipeline",
        "metrics": "penstock.spark_ext.api.metrics",
        "migrate_state": "penstock.spark_ext.state_copy.migrate",
        "predict": "penstock.predicting.predict",
        "read_state": "penstock.spark_ext.state_reader.read_state",
        "register": "penstock.spark_ext.api.register",
        "repair_checkpoint": "penstock.checkpointing.spark_checkpoint",
        "rescale_state": "penstock.spark_ext.state_copy.rescale",
        "run": "penstock.jobs.pipelines.run",
        "session": "penstock.jobs.session",
        "start": "penstock.spark_ext.graph.runner",
        "transactions": "penstock.spark_ext.api.transactions",
        "update_join": "penstock.spark_ext.api.update_join",
        "update_queue": "penstock.spark_ext.api.update_queue",
        "update_union": "penstock.spark_ext.api.update_union",
        "update_window": "penstock.spark_ext.api.update_window",
        "upsert": "penstock.spark_ext.api.upsert",
        "write_transactions": "penstock.spark_ext.api.transactions",
    },
)


if _level := os.environ.get("PENSTOCK_LOG"):
    from penstock.monitoring.logs import log_to_stderr

    log_to_stderr(_level)


def __dir__() -> list[str]:
    """Return all public names, including those not imported yet."""
    return list(__all__)
