"""The persistence protocol as a pure state machine: no files, no clock, no threads (0006).

`PersistentOperatorGraph` takes events and returns tasks; `Recovery` makes it from what is durable.
"""

from penstock.checkpointing.protocol.collect import Checkpoint, Facts, Requests, requests
from penstock.checkpointing.protocol.graph import PersistentOperatorGraph
from penstock.checkpointing.protocol.lineage import Extent, Lineage, StreamUnit, consumed, needed
from penstock.checkpointing.protocol.markers import CheckpointMarker, Marker, ReleaseMarker, RetainMarker
from penstock.checkpointing.protocol.operator import FTOperator, Function, Pending, Restart, Send, Snapshot
from penstock.checkpointing.protocol.p_stream import PStream
from penstock.checkpointing.protocol.recovery import Recovery, RecoveryReport
from penstock.checkpointing.protocol.tasks import Storage, Task
from penstock.checkpointing.protocol.topology import OperatorSpec, SinkSpec, SourceSpec, Topology
from penstock.checkpointing.protocol.vector_clock import VectorClock

__all__ = [
    "Checkpoint",
    "CheckpointMarker",
    "Extent",
    "FTOperator",
    "Facts",
    "Function",
    "Lineage",
    "Marker",
    "OperatorSpec",
    "PStream",
    "Pending",
    "PersistentOperatorGraph",
    "Recovery",
    "RecoveryReport",
    "ReleaseMarker",
    "Requests",
    "Restart",
    "RetainMarker",
    "Send",
    "SinkSpec",
    "Snapshot",
    "SourceSpec",
    "Storage",
    "StreamUnit",
    "Task",
    "Topology",
    "VectorClock",
    "consumed",
    "needed",
    "requests",
]
