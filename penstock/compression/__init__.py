"""Per-column compression: codecs, statistics, the chooser, and blocks of columns and tables."""

from typing import TYPE_CHECKING

from penstock._lazy import lazily

if TYPE_CHECKING:
    from penstock.compression.choice.chooser import Chooser, Decision
    from penstock.compression.choice.goals import GOALS, Goal
    from penstock.compression.choice.plan import Plan
    from penstock.compression.choice.statistics import ColumnStats, column_stats
    from penstock.compression.column import FORMAT_VERSION, MAX_BYTES, Block, decode, encode
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
]

# Load modules when they are first used: processes that only plan do not need them, and Numba takes a quarter
# of a second to load.
__getattr__ = lazily(
    __name__,
    {
        "Block": "penstock.compression.column",
        "BlockReader": "penstock.compression.table",
        "BlockWriter": "penstock.compression.table",
        "Chooser": "penstock.compression.choice.chooser",
        "ColumnStats": "penstock.compression.choice.statistics",
        "Decision": "penstock.compression.choice.chooser",
        "FORMAT_VERSION": "penstock.compression.column",
        "GOALS": "penstock.compression.choice.goals",
        "Goal": "penstock.compression.choice.goals",
        "MAX_BYTES": "penstock.compression.column",
        "Plan": "penstock.compression.choice.plan",
        "TableBlock": "penstock.compression.table",
        "column_stats": "penstock.compression.choice.statistics",
        "decode": "penstock.compression.column",
        "encode": "penstock.compression.column",
        "encode_table": "penstock.compression.table",
    },
)
