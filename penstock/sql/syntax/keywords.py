"""Words and operators of Spark's expression grammar."""

from __future__ import annotations

from typing import Final

__all__ = ["BINARY", "BY_UNIT", "COMPARISONS", "CURRENT", "DATE_UNITS", "INFIX", "SEPARATORS", "UNITS"]

COMPARISONS: Final = {"==": "=", "!=": "<>"} | {
    symbol: symbol for symbol in ("=", "<=>", "<>", "<", "<=", ">", ">=")
}
BINARY: Final = (
    frozenset({"|"}),
    frozenset({"^"}),
    frozenset({"&"}),
    frozenset({"<<", ">>", ">>>"}),
    frozenset({"+", "-", "||"}),
    frozenset({"*", "/", "%", "DIV"}),
)
"""Arithmetic operators by increasing precedence; all are left-associative."""
CURRENT: Final = frozenset(
    """
    CURRENT_DATE CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER SESSION_USER USER
    """.split()  # noqa: SIM905
)
UNITS: Final = frozenset(
    """
    NANOSECOND NANOSECONDS MICROSECOND MICROSECONDS MILLISECOND MILLISECONDS SECOND SECONDS MINUTE MINUTES
    HOUR HOURS DAY DAYS WEEK WEEKS MONTH MONTHS YEAR YEARS
    """.split()  # noqa: SIM905
)
BY_UNIT: Final = frozenset(
    """
    TIMESTAMPADD DATEADD DATE_ADD TIMESTAMPDIFF DATEDIFF DATE_DIFF TIMEDIFF
    """.split()  # noqa: SIM905
)
DATE_UNITS: Final = UNITS | {"QUARTER", "DAYOFYEAR"}
SEPARATORS: Final = frozenset({"FROM", "FOR", "PLACING", "IN"})
"""Words that replace a comma: ``substring(s FROM 2 FOR 3)``, ``position(a IN b)``."""
INFIX: Final = frozenset(
    """
    AND OR NOT IN IS LIKE ILIKE RLIKE REGEXP BETWEEN DIV COLLATE ESCAPE AS WHEN THEN ELSE END FROM FOR PLACING
    FILTER WITHIN OVER IGNORE RESPECT WHERE GROUP ORDER HAVING LIMIT SORT UNION EXCEPT INTERSECT MINUS LATERAL
    JOIN ON USING CLUSTER DISTRIBUTE WINDOW PIVOT QUALIFY
    """.split()  # noqa: SIM905
)
"""Words that need ``AS`` to be the name of a select-list entry."""
