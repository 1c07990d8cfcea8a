"""P-streams: durable channels of rows, from any process to any other, with or without Spark."""

from penstock.checkpointing.p_stream.description import EARLIEST
from penstock.checkpointing.p_stream.log import CommitLog
from penstock.checkpointing.p_stream.log_record import Commit, Segment, Unit
from penstock.checkpointing.p_stream.reader import PStreamReader
from penstock.checkpointing.p_stream.segments import Coder, Piece, SegmentWriter, read_blocks
from penstock.checkpointing.p_stream.stream import PStream, TrimResult
from penstock.checkpointing.p_stream.writer import PStreamWriter

__all__ = [
    "EARLIEST",
    "Coder",
    "Commit",
    "CommitLog",
    "PStream",
    "PStreamReader",
    "PStreamWriter",
    "Piece",
    "Segment",
    "SegmentWriter",
    "TrimResult",
    "Unit",
    "read_blocks",
]
