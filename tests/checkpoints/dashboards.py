"""A checkpoint that a dashboard shows, made without Spark."""

from __future__ import annotations

from pathlib import Path

from penstock.checkpointing.files import open_files
from penstock.checkpointing.graph.directory import GraphDirectory
from penstock.checkpointing.p_unit import PUnit, encode
from penstock.dataflow import as_json, graph
from penstock.state_store.bucket_store import BucketStore, Handle
from penstock.state_store.location import SPECIFICATION_FILE
from tests.checkpoints.graph_directories import write_graph
from tests.checkpoints.states import DictState

__all__ = ["write_checkpoint"]


def write_checkpoint(place: Path) -> Path:
    """Make a graph's checkpoint with a p-stream of three commits, and state of two versions in a bucket."""
    write_graph(place)
    directory = GraphDirectory(place)
    document = directory.newest("graph")
    assert document is not None
    made = graph("sums").source("numbers", "n bigint, time timestamp")
    made = made.update_queue("n", "time", name="queue").sink("noop")
    plan = as_json(made.plan(persist="always"))
    directory.put("graph", {**document, "plan": plan})
    operator = open_files(str(place / "state" / "queries" / "queue"))
    store, state, held = BucketStore(operator.child("00000")), DictState(), Handle()
    for number in range(2):
        state[number] = bytes(100)
        held = store.commit(state, held)
    operator.publish(SPECIFICATION_FILE, encode(PUnit("operator", {"buckets": 1})))
    return place
