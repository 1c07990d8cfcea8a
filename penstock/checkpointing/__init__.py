"""What makes Penstock's data durable: p-units and, later, lineage, markers and the protocol."""

from penstock.checkpointing.p_unit import FORMAT_VERSION, PUnit, decode, encode, encode_blocks, head

__all__ = ["FORMAT_VERSION", "PUnit", "decode", "encode", "encode_blocks", "head"]
