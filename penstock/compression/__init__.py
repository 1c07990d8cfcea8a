"""Per-column compression: codecs, statistics, the chooser, and blocks of columns and tables."""

from penstock.compression.chooser import GOALS, Chooser, Decision, Goal, Plan
from penstock.compression.column import FORMAT_VERSION, MAX_BYTES, Block, decode, encode
from penstock.compression.fused import sum_where
from penstock.compression.statistics import ColumnStats, column_stats
from penstock.compression.table import BlockReader, BlockWriter, TableBlock, encode_table

__all__ = [
    "FORMAT_VERSION",
    "GOALS",
    "MAX_BYTES",
    "Block",
    "BlockReader",
    "BlockWriter",
    "Chooser",
    "ColumnStats",
    "Decision",
    "Goal",
    "Plan",
    "TableBlock",
    "column_stats",
    "decode",
    "encode",
    "encode_table",
    "sum_where",
]
