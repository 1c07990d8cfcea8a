"""Split Spark SQL into tokens with their positions."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock.errors import InvalidUsageError

__all__ = ["Token", "TokenCursor", "strip_comments", "tokenize"]

_SPACE: Final = re.compile(r"\s+")
_LINE_COMMENT: Final = re.compile(r"--(?:\\\n|[^\r\n])*\r?\n?")
_BLOCK_EDGE: Final = re.compile(r"/\*|\*/")
_TOKEN: Final = re.compile(
    r"""
    (?P<string>'(?:[^'\\]|\\.|'')*'|[rR]'[^']*'|[rR]"[^"]*"|"(?:[^"\\]|\\.|"")*")
    |(?P<quoted>`(?:[^`]|``)*`)
    |(?P<number>(?:[0-9]+[LSYlsy]|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?(?:[dDfF]|[bB][dD])?)(?!\w))
    |(?P<word>\w+)
    |(?P<symbol><=>|>>>|<<|>>|<=|>=|<>|!=|==|\|\||::|->|=>|[-+*/%~&|^=<>!.,()\[\]:?])
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """One token.

    Parameters
    ----------
    kind : str
        The kind of token: ``string``, ``quoted`` (a name in backquotes), ``number``, ``word`` or ``symbol``.
        An ``end`` token follows the last token.
    text : str
        The token as the user wrote it; words and symbols are in upper case.
    start, stop : int
        The token's position: it is ``text[start:stop]`` of the parsed text.
    """

    kind: str
    text: str
    start: int
    stop: int


def tokenize(text: str) -> list[Token]:
    """Return the tokens of a text without comments, followed by an ``end`` token.

    Raises
    ------
    InvalidUsageError
        If a character belongs to no token.
    """
    tokens: list[Token] = []
    at = 0
    while at < len(text):
        if space := _SPACE.match(text, at):
            at = space.end()
            continue
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise InvalidUsageError("an expression cannot be parsed", position=at, expression=text)
        kind = match.lastgroup
        token_text = match.group().upper() if kind in ("word", "symbol") else match.group()
        tokens.append(Token(kind, token_text, at, match.end()))
        at = match.end()
    return [*tokens, Token("end", "", len(text), len(text))]


def strip_comments(text: str) -> str:
    """Replace each comment by a blank, like Spark."""
    if "--" not in text and "/*" not in text:
        return text
    parts: list[str] = []
    at = copied = 0
    while at < len(text):
        if text.startswith("--", at) or text.startswith("/*", at):
            parts += [text[copied:at], " "]
            at = copied = _end_of_comment(text, at)
        else:
            match = _TOKEN.match(text, at)
            is_literal = match is not None and match.lastgroup in ("string", "quoted")
            at = match.end() if match is not None and is_literal else at + 1
    return "".join([*parts, text[copied:]])


def _end_of_comment(text: str, start: int) -> int:
    line = _LINE_COMMENT.match(text, start)
    if line is not None:
        return line.end()
    depth = 0
    for edge in _BLOCK_EDGE.finditer(text, start):
        depth += 1 if edge.group() == "/*" else -1
        if not depth:
            return edge.end()
    raise InvalidUsageError("a comment has no end", expression=text)


class TokenCursor:
    """A parser's position in the tokens of a text.

    Raises
    ------
    InvalidUsageError
        If the text has a token that is not SQL.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokenize(text)
        self._at = 0

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _peek(self, ahead: int = 1) -> Token:
        return self._tokens[min(self._at + ahead, len(self._tokens) - 1)]

    def _take(self) -> Token:
        token = self._next
        self._at += token.kind != "end"
        return token

    def _sees(self, *texts: str) -> bool:
        return all(
            self._peek(ahead).text == text and self._peek(ahead).kind in ("word", "symbol")
            for ahead, text in enumerate(texts)
        )

    def _took(self, *texts: str) -> bool:
        if not self._sees(*texts):
            return False
        self._at += len(texts)
        return True

    def _need(self, *texts: str) -> None:
        if not self._took(*texts):
            raise self._wrong()

    def _wrong(self) -> InvalidUsageError:
        token = self._next
        if token.kind == "end":
            return InvalidUsageError(
                "an expression is empty"
                if not self._text.strip()
                else "an expression cannot be parsed: it ends too early",
                hint="write a SQL expression; in a list in YAML, quote an expression that contains a comma",
                expression=self._text,
            )
        return InvalidUsageError(
            "an expression cannot be parsed", position=token.start, expression=self._text
        )

    def end(self) -> None:
        """Raise an error unless all tokens are consumed."""
        if self._next.kind == "end":
            return
        if self._sees(","):
            raise InvalidUsageError("more than one expression", expression=self._text)
        raise self._wrong()
