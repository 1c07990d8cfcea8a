"""Durable data: files, p-units, p-streams, and the checkpoints of graphs."""

from penstock.checkpointing.p_unit import FORMAT_VERSION, PUnit, decode, encode, encode_blocks, read_header

__all__ = ["FORMAT_VERSION", "PUnit", "decode", "encode", "encode_blocks", "read_header"]
