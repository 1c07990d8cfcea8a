"""Update queues in buckets, and stopped queries with a checkpoint as Spark leaves it, without Spark."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from penstock.checkpointing import PUnit, encode
from penstock.checkpointing.files import LocalFiles, open_files
from penstock.operators.queues.repartition import merge_states, read_state, source_buckets
from penstock.operators.queues.update_queue import UpdateQueue
from penstock.operators.scheduling.policy import Policy
from penstock.operators.update_stream.stream import UpdateStream
from penstock.spark_ext.border.buckets import bucket_labels
from penstock.spark_ext.state_reader.spark_state import read_pointer_files
from penstock.state_store.bucket_store import BucketStore, Handle, Pointer
from tests.checkpoints.graph_directories import write_pointers
from tests.oracles.naive import Update
from tests.samples.streams import STREAM, arrivals_of, assert_invariants, rows_of, served_of, through_bytes

COST_US = 10.0


class Buckets:
    """The buckets of one queue, in memory; all read the same clock."""

    def __init__(self, stream: UpdateStream, policy: Policy, buckets: int) -> None:
        self.stream, self.policy = stream, policy
        self.queues = [self.new(buckets) for _ in range(buckets)]
        self.units: list[list[PUnit]] = [[] for _ in self.queues]
        self.handles = [Handle() for _ in self.queues]

    def new(self, buckets: int) -> UpdateQueue:
        # The cost of a tuple includes the turns of other buckets.
        return UpdateQueue(self.stream, self.policy, cost_us=COST_US * buckets)

    def enqueue(self, updates: Sequence[Update], now_us: int) -> None:
        placed = self.stream.keys(rows_of(self.stream, updates)).bucket(len(self.queues)).tolist()
        for bucket, queue in enumerate(self.queues):
            own = [update for update, at in zip(updates, placed, strict=True) if at == bucket]
            if own:
                queue.enqueue(arrivals_of(self.stream, own), now_us)

    def serve(self, limit: int, now_us: int) -> list[list[Update]]:
        """Serve every bucket, and store what changed."""
        served = [[update for update, _ in served_of(queue, limit, now_us)] for queue in self.queues]
        for queue, units in zip(self.queues, self.units, strict=True):
            queue.account_staleness(now_us)
            units.append(through_bytes(queue.delta()))
        return served

    def rescale(self, buckets: int) -> Buckets:
        """Return the same keys in another number of buckets."""
        other = Buckets(self.stream, self.policy, buckets)
        states = [read_state(units, self.stream.key) for units in self.units]
        for bucket, queue in enumerate(other.queues):
            sources = source_buckets(bucket, buckets, len(states))
            parts = [states[source].select(bucket, buckets) for source in sources]
            merged = merge_states(parts, buckets / len(states))
            other.units[bucket] = [through_bytes(unit) for unit in merged.units()]
            queue.restore(other.units[bucket])
            assert_invariants(queue)
        return other

    def records(self) -> dict[Any, Any]:
        """Return each key's record, its waiting tuple, and the arrival time of this tuple."""
        found: dict[Any, Any] = {}
        for queue in self.queues:
            for unit in queue.snapshot():
                cells, rows = (unit.blocks[name].to_pylist() for name in ("cells", "rows"))
                waiting = {row.pop("__penstock_cell"): row for row in rows}
                for number, cell in enumerate(cells):
                    row = waiting.get(number, {})
                    row = {
                        name: row[name] for name in row if name not in {"__penstock_rank", "__penstock_start"}
                    }
                    key = tuple(cell[name] for name in self.stream.key)
                    assert key not in found, "a key is in two buckets"
                    found[key] = (cell, row)
        return found

    def order(self) -> list[list[Any]]:
        """Return the keys that wait in each bucket, in their order; the queues stay as they are."""
        found = []
        for queue in self.queues:
            copy = UpdateQueue(self.stream, self.policy)
            copy.restore([through_bytes(unit) for unit in queue.snapshot()])
            found.append([self.key_of(update) for update, _ in served_of(copy, len(copy), 0)])
        return found

    def key_of(self, update: Update) -> Any:
        return (update.key, update.value) if "text" in self.stream.key else update.key


def draw_updates(draw: Random, count: int, moment: int, keys: int = 60) -> list[Update]:
    skewed = [min(draw.randrange(keys), draw.randrange(keys)) for _ in range(count)]
    return [
        Update(
            key,
            time=moment * 10 + draw.randrange(-15, 10),
            value=draw.randrange(1 << 40),
            arrival=1000 * moment - draw.randrange(2000),
        )
        for key in skewed
    ]


class Made:
    """A query that was stopped while keys wait, with a checkpoint as Spark leaves it."""

    def __init__(self, place: Path, buckets: int = 3, **specification: Any) -> None:
        self.checkpoint, self.state, self.to = place / "checkpoint", place / "state", place / "new"
        self.buckets = Buckets(STREAM, Policy.IN_PLACE, buckets)
        operator = open_files(self.state).child("old").child("queue")
        schema = ["value bigint", "key bigint", "text string", "time bigint"]
        facts: dict[str, Any] = {
            "key": ["key"],
            "time": "time",
            "arrival": None,
            "policy": "in_place",
            "schema": schema,
        }
        facts |= {"buckets": buckets, "weight": None, "semantics": None, "budget": "some"}
        operator.publish("operator.punit", encode(PUnit("operator", facts | specification)))
        versions: list[Mapping[int, Pointer | None]] = []
        draw, labels = Random(3), bucket_labels(buckets)
        for batch in range(4):
            self.buckets.enqueue(draw_updates(draw, 30, batch), 1000 * batch)
            put = {}
            for bucket, queue in enumerate(self.buckets.queues):
                served_of(queue, 2, 1000 * batch)
                queue.account_staleness(1000 * batch)
                store = BucketStore(operator.child(f"{bucket:05d}"))
                handle = store.commit(queue, self.buckets.handles[bucket])
                self.buckets.handles[bucket] = handle
                put[labels[bucket]] = handle.pointer
            versions.append(put)
        write_checkpoint(self.checkpoint, versions, waits=True)

    def read(self, checkpoint: Path, buckets: int, stream: UpdateStream = STREAM) -> Buckets:
        """Return the queues that a checkpoint's tasks would load."""
        query = json.loads((checkpoint / "metadata").read_text())["id"]
        labels = bucket_labels(buckets)
        held = read_pointer_files(LocalFiles(checkpoint / "state"), 3, labels)
        assert held is not None
        found = Buckets(stream, Policy.IN_PLACE, buckets)
        for label, pointer in held[0].items():
            bucket = labels.index(label)
            files = open_files(self.state).child(query).child("queue").child(f"{bucket:05d}")
            found.handles[bucket] = BucketStore(files).load(pointer, found.queues[bucket])
        return found


def write_checkpoint(
    checkpoint: Path, versions: Sequence[Mapping[int, Pointer | None]], *, waits: bool
) -> None:
    """Write the checkpoint of the query "old", which put these pointers in its micro-batches."""
    home = write_pointers(checkpoint.with_name("made"), "one", list(versions), waits=waits).parent
    for log in ("offsets", "commits"):
        (checkpoint / log).mkdir(parents=True)
        for batch in range(len(versions)):
            (checkpoint / log / str(batch)).write_text(f"{log} {batch}")
    shutil.move(home, checkpoint / "state")
    (checkpoint / "metadata").write_text(json.dumps({"id": "old"}))


def tree(directory: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }
