"""Words and operators of Spark's grammar of expressions."""

from __future__ import annotations

from typing import Final

__all__ = ["BINARY", "BY_UNIT", "COMPARISONS", "CURRENT", "DATE_UNITS", "INFIX", "SEPARATORS", "UNITS"]

COMPARISONS: Final = {"==": "=", "!=": "<>"} | {one: one for one in ("=", "<=>", "<>", "<", "<=", ">", ">=")}
BINARY: Final = (
    frozenset({"|"}),
    frozenset({"^"}),
    frozenset({"&"}),
    frozenset({"<<", ">>", ">>>"}),
    frozenset({"+", "-", "||"}),
    frozenset({"*", "/", "%", "DIV"}),
)
"""Operators of numbers, those that bind least first; all from left to right."""
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
"""Words that stand for a comma: ``substring(s FROM 2 FOR 3)``, ``position(a IN b)``."""
INFIX: Final = frozenset(
    """
    AND OR NOT IN IS LIKE ILIKE RLIKE REGEXP BETWEEN DIV COLLATE ESCAPE AS WHEN THEN ELSE END FROM FOR PLACING
    FILTER WITHIN OVER IGNORE RESPECT WHERE GROUP ORDER HAVING LIMIT SORT UNION EXCEPT INTERSECT MINUS LATERAL
    JOIN ON USING CLUSTER DISTRIBUTE WINDOW PIVOT QUALIFY
    """.split()  # noqa: SIM905
)
"""Words that are no name of an entry of a select list unless ``AS`` says so."""
