"""The persistence protocol as a pure state machine: no files, no clock, no threads (0006).

`PersistentOperatorGraph` takes events and returns tasks; `Recovery` makes it from what is durable.
"""

from tests.models.protocol.collect import Checkpoint, Facts, Requests, requests
from tests.models.protocol.graph import PersistentOperatorGraph
from tests.models.protocol.lineage import Extent, Lineage, StreamUnit, consumed, needed
from tests.models.protocol.markers import CheckpointMarker, Marker, ReleaseMarker, RetainMarker
from tests.models.protocol.operator import FTOperator, Function, Pending, Restart, Send, Snapshot
from tests.models.protocol.p_stream import PStream
from tests.models.protocol.recovery import Recovery, RecoveryReport
from tests.models.protocol.tasks import Storage, Task
from tests.models.protocol.topology import OperatorSpec, SinkSpec, SourceSpec, Topology
from tests.models.protocol.vector_clock import VectorClock

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
