"""Durable data: files, p-units, p-streams, and the checkpoints of graphs."""

from penstock.checkpointing.p_unit import (
    FORMAT_VERSION,
    MAX_UNIT_ROWS,
    PUnit,
    decode,
    encode,
    encode_blocks,
    read_header,
)

__all__ = ["FORMAT_VERSION", "MAX_UNIT_ROWS", "PUnit", "decode", "encode", "encode_blocks", "read_header"]
