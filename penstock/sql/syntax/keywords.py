"""Words and operators of Spark's expression grammar."""

from __future__ import annotations

from typing import Final

__all__ = ["BINARY", "BY_UNIT", "COMPARISONS", "CURRENT", "DATE_UNITS", "INFIX", "SEPARATORS", "UNITS"]

COMPARISONS: Final = {"==": "=", "!=": "<>"} | {
    symbol: symbol for symbol in ("=", "<=>", "<>", "<", "<=", ">", ">=")
}
"""For each comparison operator, the spelling that trees use."""
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
"""Functions that SQL calls without parentheses."""
UNITS: Final = frozenset(
    """
    NANOSECOND NANOSECONDS MICROSECOND MICROSECONDS MILLISECOND MILLISECONDS SECOND SECONDS MINUTE MINUTES
    HOUR HOURS DAY DAYS WEEK WEEKS MONTH MONTHS YEAR YEARS
    """.split()  # noqa: SIM905
)
"""Units of an ``INTERVAL`` literal."""
BY_UNIT: Final = frozenset(
    """
    TIMESTAMPADD DATEADD DATE_ADD TIMESTAMPDIFF DATEDIFF DATE_DIFF TIMEDIFF
    """.split()  # noqa: SIM905
)
"""Functions whose first argument may be a unit: ``DATEDIFF(DAY, a, b)``."""
DATE_UNITS: Final = UNITS | {"QUARTER", "DAYOFYEAR"}
"""Units that the functions of `BY_UNIT` accept."""
SEPARATORS: Final = frozenset({"FROM", "FOR", "PLACING", "IN"})
"""Words that replace a comma: ``substring(s FROM 2 FOR 3)``, ``position(a IN b)``."""
INFIX: Final = frozenset(
    """
    AND OR NOT IN IS LIKE ILIKE RLIKE REGEXP BETWEEN DIV COLLATE ESCAPE AS WHEN THEN ELSE END FROM FOR PLACING
    FILTER WITHIN OVER IGNORE RESPECT WHERE GROUP ORDER HAVING LIMIT SORT UNION EXCEPT INTERSECT MINUS LATERAL
    JOIN ON USING CLUSTER DISTRIBUTE WINDOW PIVOT QUALIFY
    """.split()  # noqa: SIM905
)
"""Words that can name an entry of a select list only after ``AS``."""
