"""A parser for Spark's expression grammar.

The grammar and precedence are Spark's with default settings: ``a = b IS NULL`` tests whether ``a = b`` is
null, and ``! a = b`` is ``NOT (a = b)``. Trees are never converted to text: Spark gets the user's text, and
rules compose new texts from pieces of the user's text.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import InvalidUsageError
from penstock.sql.syntax.keywords import (
    BINARY,
    BY_UNIT,
    COMPARISONS,
    CURRENT,
    DATE_UNITS,
    INFIX,
    SEPARATORS,
    UNITS,
)
from penstock.sql.syntax.tokens import Token, TokenCursor
from penstock.sql.tree import Tree

__all__ = ["Parser"]


class Parser(TokenCursor):
    """A recursive-descent parser; each method is a rule of Spark's grammar."""

    def _node(
        self, kind: str, start: int, value: Any = None, parts: tuple[Tree, ...] = (), **more: Any
    ) -> Tree:
        return Tree(kind, start, self._tokens[self._at - 1].stop, value, parts, **more)

    # -- conditions

    def expression(self) -> Tree:
        """Return a whole expression, such as ``a OR b``."""
        parts = [self._conjunction()]
        while self._took("OR"):
            parts.append(self._conjunction())
        return parts[0] if len(parts) == 1 else self._node("or", parts[0].start, None, tuple(parts))

    def _conjunction(self) -> Tree:
        parts = [self._negation()]
        while self._took("AND"):
            parts.append(self._negation())
        return parts[0] if len(parts) == 1 else self._node("and", parts[0].start, None, tuple(parts))

    def _negation(self) -> Tree:
        start = self._next.start
        if self._took("NOT") or self._took("!"):
            return self._node("not", start, None, (self._negation(),))
        if self._sees("EXISTS", "(") and self._peek(2).text in ("SELECT", "WITH"):
            raise self._subquery()
        value = self._comparison()
        start = value.start
        if self._took("IS"):
            negated = self._took("NOT")
            if self._took("DISTINCT", "FROM"):
                test = self._node("is", start, "DISTINCT", (value, self._comparison()))
            elif self._next.text in ("NULL", "TRUE", "FALSE", "UNKNOWN"):
                test = self._node("is", start, self._take().text, (value,))
            else:
                raise self._wrong()
            return self._node("not", start, None, (test,)) if negated else test
        negated = self._sees("NOT") and self._peek().text in (
            "BETWEEN",
            "IN",
            "LIKE",
            "ILIKE",
            "RLIKE",
            "REGEXP",
        )
        if negated:
            self._take()
        predicate = self._predicate(value)
        if predicate is None:
            return value
        return self._node("not", start, None, (predicate,)) if negated else predicate

    def _predicate(self, value: Tree) -> Tree | None:
        start = value.start
        if self._took("BETWEEN"):
            low = self._comparison()
            self._need("AND")
            return self._node("between", start, None, (value, low, self._comparison()))
        if self._took("IN"):
            options = self._list()
            return self._node("in", start, None, (value, *options))
        for word in ("LIKE", "ILIKE", "RLIKE", "REGEXP"):
            if not self._took(word):
                continue
            if self._next.text in ("ANY", "SOME", "ALL") and self._peek().text == "(":
                quantifier = self._take().text
                return self._node("match", start, f"{word} {quantifier}", (value, *self._list(least=0)))
            pattern = self._comparison()
            if self._took("ESCAPE"):
                return self._node("match", start, f"{word} ESCAPE", (value, pattern, self._primary()))
            return self._node("match", start, word, (value, pattern))
        return None

    def _list(self, least: int = 1) -> tuple[Tree, ...]:
        self._need("(")
        if not least and self._took(")"):
            return ()
        parts = [self._part()]
        while self._took(","):
            parts.append(self._part())
        self._need(")")
        return tuple(parts)

    def _part(self) -> Tree:
        if self._next.text in ("SELECT", "WITH", "FROM", "VALUES", "TABLE") and self._next.kind == "word":
            following = self._peek()
            if following.kind not in ("symbol", "end"):
                raise self._subquery()
        return self.expression()

    def _subquery(self) -> InvalidUsageError:
        return InvalidUsageError("not a SQL expression of one row", expression=self._text)

    # -- values

    def _comparison(self) -> Tree:
        left = self._binary(0)
        while self._next.kind == "symbol" and self._next.text in COMPARISONS:
            operator = COMPARISONS[self._take().text]
            left = self._node("compare", left.start, operator, (left, self._binary(0)))
        return left

    def _binary(self, level: int) -> Tree:
        if level == len(BINARY):
            return self._unary()
        left = self._binary(level + 1)
        while self._next.text in BINARY[level] and self._next.kind in ("symbol", "word"):
            operator = self._take().text
            left = self._node("binary", left.start, operator, (left, self._binary(level + 1)))
        return left

    def _unary(self) -> Tree:
        start = self._next.start
        if self._sees("-") and self._peek().kind == "number":
            return self._postfix(self._primary())
        if self._next.kind == "symbol" and self._next.text in ("-", "+", "~"):
            operator = self._take().text
            return self._node("unary", start, operator, (self._unary(),))
        return self._postfix(self._primary())

    def _postfix(self, value: Tree) -> Tree:
        while True:
            start = value.start
            if self._took("."):
                if self._took("*"):
                    value = self._node("star", start, None, (value,))
                    continue
                value = self._node("field", start, self._identifier(), (value,))
            elif self._took("["):
                index = self._comparison()
                self._need("]")
                value = self._node("index", start, None, (value, index))
            elif self._took("::"):
                kind = self._type()
                value = self._node("cast", start, ("CAST", kind), (value,))
            elif self._sees("COLLATE"):
                self._take()
                value = self._node("collate", start, self._dotted_name(), (value,))
            elif self._sees("(") and (name := _function_name(value)) is not None:
                value = self._call(start, name)
            elif self._sees(":") and self._peek().kind in ("word", "quoted"):
                self._take()
                value = self._node("index", start, self._identifier(), (value,))
            else:
                return value

    def _identifier(self) -> str:
        token = self._take()
        if token.kind == "word":
            return self._text[token.start : token.stop]
        if token.kind == "quoted":
            return token.text[1:-1].replace("``", "`")
        self._at -= token.kind != "end"
        raise self._wrong()

    def _dotted_name(self) -> str:
        names = [self._identifier()]
        while self._took("."):
            names.append(self._identifier())
        return ".".join(names)

    def _primary(self) -> Tree:
        token = self._next
        start = token.start
        if token.kind == "number" or (token.text == "-" and self._peek().kind == "number"):
            sign = "-" if self._took("-") else ""
            return self._node("number", start, sign + self._take().text)
        if token.kind == "string":
            self._take()
            alone = self._next.kind != "string"
            while self._next.kind == "string":
                self._take()
            return self._node("string", start, token.text if alone else None)
        if token.kind == "symbol":
            return self._symbol(start)
        if token.kind == "word":
            node = self._keyword(token)
            if node is not None:
                return node
        name = self._identifier()
        if self._took("->"):
            return self._node("lambda", start, (name.lower(),), (self.expression(),))
        return self._node("column", start, name)

    def _symbol(self, start: int) -> Tree:
        if self._took("*"):
            return self._node("star", start)
        if self._took("?"):
            return self._node("parameter", start)
        if self._took(":"):
            self._identifier()
            return self._node("parameter", start)
        if not self._took("("):
            raise self._wrong()
        first = self._named_part()
        parts = [first]
        while self._took(","):
            parts.append(self._named_part())
        self._need(")")
        if self._took("->"):
            if any(part.kind != "column" for part in parts):
                raise self._wrong()
            names = tuple(part.value.lower() for part in parts)
            return self._node("lambda", start, names, (self.expression(),))
        if len(parts) == 1 and first.kind != "named":
            return self._node("paren", start, None, (first,))
        return self._node("row", start, None, tuple(parts))

    def _named_part(self) -> Tree:
        value = self._part()
        name = self.alias()
        return value if name is None else self._node("named", value.start, name, (value,))

    def alias(self) -> str | None:
        """Consume and return the name that follows an expression in a select list; None if there is none."""
        if self._took("AS"):
            return self._identifier()
        if self._next.kind == "quoted" or (self._next.kind == "word" and self._next.text not in INFIX):
            return self._identifier()
        return None

    def _keyword(self, token: Token) -> Tree | None:
        """Parse an expression that begins with a keyword; return None if the word is a name."""
        word, start, following = token.text, token.start, self._peek()
        if following.text == "." and following.kind == "symbol":
            return None
        if word in ("TRUE", "FALSE"):
            self._take()
            return self._node("boolean", start, word == "TRUE")
        if word == "NULL":
            self._take()
            return self._node("null", start)
        if word in CURRENT and following.text != "(":
            self._take()
            return self._node("current", start, word)
        if word == "CASE" and following.text not in (")", ",") and following.kind != "end":
            return self._case()
        if word in ("CAST", "TRY_CAST") and following.text == "(":
            return self._cast()
        if word == "INTERVAL" and (following.kind in ("number", "string") or following.text in ("-", "+")):
            return self._interval()
        if following.kind == "string" and word not in INFIX and following.text[0] in "'\"":
            self._take()
            self._take()
            return self._node("typed", start, word)
        return None

    def _case(self) -> Tree:
        start = self._take().start
        parts: list[Tree] = []
        based = not self._sees("WHEN")
        if based:
            parts.append(self.expression())
        branches = 0
        while self._took("WHEN"):
            parts.append(self.expression())
            self._need("THEN")
            parts.append(self.expression())
            branches += 1
        otherwise = self._took("ELSE")
        if otherwise:
            parts.append(self.expression())
        self._need("END")
        if not branches:
            raise self._wrong()
        return self._node("case", start, (based, otherwise), tuple(parts))

    def _cast(self) -> Tree:
        word = self._take()
        self._need("(")
        value = self._part()
        self._need("AS")
        kind = self._type()
        self._need(")")
        return self._node("cast", word.start, (word.text, kind), (value,))

    def _type(self) -> str:
        """Parse a type; return its tokens, joined without blanks."""
        tokens = [self._take()]
        if tokens[0].kind not in ("word", "quoted"):
            raise self._wrong()
        name = tokens[0].text
        if name == "INTERVAL":
            while self._next.kind == "word" and self._next.text in (*UNITS, "TO"):
                tokens.append(self._take())
        elif self._sees("COLLATE"):
            self._take()
            return f"{name} COLLATE {self._dotted_name()}"
        elif name == "STRUCT" and self._sees("<>"):
            tokens.append(self._take())
        elif self._sees("(") or (name in ("ARRAY", "MAP", "STRUCT") and self._sees("<")):
            depth = 0
            while True:
                token = self._take()
                if token.kind == "end":
                    raise self._wrong()
                depth += {"(": 1, "<": 1, ")": -1, ">": -1, ">>": -2, ">>>": -3}.get(token.text, 0)
                tokens.append(token)
                if depth <= 0:
                    break
        return "".join(token.text for token in tokens)

    def _interval(self) -> Tree:
        start = self._take().start
        while True:
            if self._next.text in ("-", "+"):
                self._take()
            if self._take().kind not in ("number", "string"):
                raise self._wrong()
            if self._next.text not in UNITS:
                break
            self._take()
            if self._took("TO"):
                self._take()
                break
            if self._next.kind not in ("number", "string"):
                break
        return self._node("interval", start)

    # -- calls

    def _call(self, start: int, name: str) -> Tree:
        self._need("(")
        modifiers: list[str] = []
        parts: list[Tree] = []
        if not self._took(")"):
            if self._next.text in ("DISTINCT", "ALL") and self._peek().text not in (",", ")", "."):
                modifiers += [self._take().text]
            modifiers += self._arguments(name, parts)
            self._need(")")
        if self._took("WITHIN"):
            modifiers.append("WITHIN GROUP")
            self._need("GROUP", "(", "ORDER", "BY")
            parts += self._sort_keys()
            self._need(")")
        condition = None
        if self._took("FILTER", "(", "WHERE"):
            condition = self.expression()
            self._need(")")
        if self._next.text in ("IGNORE", "RESPECT") and self._peek().text == "NULLS":
            modifiers.append(f"{self._take().text} {self._take().text}")
        if self._sees("OVER"):
            raise InvalidUsageError(
                "a window function cannot be used here",
                hint="use window(...) and agg(...) of the graph",
                expression=self._text,
            )
        return self._node("call", start, name, tuple(parts), filter=condition, modifiers=tuple(modifiers))

    def _arguments(self, name: str, parts: list[Tree]) -> list[str]:
        """Append a call's arguments to `parts`; return the modifiers among them, like ``IGNORE NULLS``."""
        word = name.upper()
        if (word in BY_UNIT and self._next.text in DATE_UNITS and self._peek().text == ",") or (
            word == "EXTRACT" and self._peek().text == "FROM"
        ):
            self._take()
            self._take()
        elif word == "TRIM":
            if self._next.text in ("BOTH", "LEADING", "TRAILING") and self._peek().text not in (
                ",",
                ")",
                "(",
            ):
                self._take()
            if self._took("FROM"):
                parts.append(self._comparison())
                return []
        split = word in ("SUBSTR", "SUBSTRING", "TRIM", "OVERLAY", "POSITION")
        while True:
            parts.append(self._comparison() if split else self._argument(word))
            if self._next.text in ("IGNORE", "RESPECT") and self._peek().text == "NULLS":
                return [f"{self._take().text} {self._take().text}"]
            if self._took(","):
                continue
            if split and self._next.text in SEPARATORS and self._next.kind == "word":
                self._take()
                continue
            return []

    def _argument(self, function: str) -> Tree:
        start = self._next.start
        if self._next.kind in ("word", "quoted") and self._peek().text == "=>":
            name = self._identifier()
            self._take()
            return self._node("named", start, name, (self._part(),))
        return self._named_part() if function == "STRUCT" else self._part()

    def _sort_keys(self) -> list[Tree]:
        keys = [self.expression()]
        while True:
            if self._next.text in ("ASC", "DESC"):
                self._take()
            if self._took("NULLS"):
                self._take()
            if not self._took(","):
                return keys
            keys.append(self.expression())


def _function_name(value: Tree) -> str | None:
    """Return the function name that a column or field node spells; None for other nodes."""
    if value.kind == "column":
        return str(value.value).lower()
    if value.kind == "field":
        above = _function_name(value.parts[0])
        return None if above is None else f"{above}.{value.value.lower()}"
    return None
