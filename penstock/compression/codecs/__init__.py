"""The codecs, one module for each kind."""

from penstock.compression.codecs import (
    agnostic,
    decimals,
    dictionary,
    differences,
    null_suppression,
    plain,
    run_length,
    simple8b,
    symbols,
    variable_byte,
)
from penstock.compression.codecs.registry import CODECS, codec_of, decode_stream, encode_light, encode_stream

__all__ = [
    "CODECS",
    "agnostic",
    "codec_of",
    "decimals",
    "decode_stream",
    "dictionary",
    "differences",
    "encode_light",
    "encode_stream",
    "null_suppression",
    "plain",
    "run_length",
    "simple8b",
    "symbols",
    "variable_byte",
]
