"""Options of Spark's readers of files: their names, and values that Spark refuses or ignores."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Final

__all__ = ["csv_marks", "wrong_options"]

_COMMON: Final = (
    "archivePathFilter cleanSource codec compression discardCachedInputRatio encoding extension fileNameOnly "
    "ignoreCorruptFiles ignoreMissingFiles ignoredPathSegmentRegex latestFirst maxBytesPerTrigger "
    "maxCachedFiles maxFileAge maxFilesPerTrigger mergeSchema modifiedAfter modifiedBefore pathGlobFilter "
    "recursiveFileLookup sourceArchiveDir"
)
_TEXT: Final = (
    "charset columnNameOfCorruptRecord dateFormat enableDateTimeParsingFallback lineSep locale mode "
    "multiLine samplingRatio singleVariantColumn timeFormat timestampFormat timestampNTZFormat timeZone"
)
_NAMES: Final = {
    "csv": (
        f"{_COMMON} {_TEXT} charToEscapeQuoteEscaping columnPruning comment delimiter emptyValue "
        "enforceSchema escape escapeQuotes header ignoreLeadingWhiteSpace ignoreTrailingWhiteSpace "
        "inferSchema inputBufferSize maxCharsPerColumn maxColumns nanValue negativeInf nullValue positiveInf "
        "preferDate quote quoteAll sep unescapedQuoteHandling"
    ),
    "json": (
        f"{_COMMON} {_TEXT} allowBackslashEscapingAnyCharacter allowComments allowNonNumericNumbers "
        "allowNumericLeadingZeros allowSingleQuotes allowUnquotedControlChars allowUnquotedFieldNames "
        "dropFieldIfAllNull ignoreNullFields inferTimestamp prefersDecimal pretty primitivesAsString "
        "sortKeys useUnsafeRow writeNonAsciiCharacterAsCodePoint"
    ),
    "parquet": f"{_COMMON} datetimeRebaseMode int96RebaseMode",
    "orc": _COMMON,
    "text": f"{_COMMON} lineSep wholetext",
}
_SYNONYMS: Final = {"separator": "sep", "lineseparator": "lineSep"}
_CHARACTERS: Final = ("quote", "escape", "comment", "charToEscapeQuoteEscaping")
_FLAGS: Final = ("enforceSchema", "header", "multiLine", "recursiveFileLookup", "mergeSchema")
_MODES: Final = ("PERMISSIVE", "DROPMALFORMED", "FAILFAST")
MIN_SIMILARITY: Final = 0.8
"""From this similarity to a known name on, a name is misspelt. Other names may be newer or older options."""
_PATTERNS: Final = ("dateFormat", "timeFormat", "timestampFormat", "timestampNTZFormat")
_READABLE: Final = frozenset("GyYMLwWdDEFuaHkKhmsSVzOXxZ")
"""The letters that Spark accepts in patterns for reading times, under any setting of its time parser."""


def _unreadable_letters(pattern: str) -> list[str]:
    letters = re.sub("'[^']*'", "", pattern)
    return sorted({one for one in letters if one.isascii() and one.isalpha()} - _READABLE)


def wrong_options(format: str, options: Mapping[str, str]) -> Iterator[tuple[str, str | None]]:
    """Yield the fact and the hint for each wrong option of a reader.

    Parameters
    ----------
    format : {"csv", "json", "parquet", "orc", "text"}
        The format.
    options : mapping of str to str
        The options; as in Spark, the case of their names does not matter.
    """
    names = {name.lower(): name for name in _NAMES[format].split()}
    meant = names | {name: option for name, option in _SYNONYMS.items() if option.lower() in names}
    for name, text in options.items():
        if name.lower() not in names:
            if near := difflib.get_close_matches(name.lower(), meant, n=1, cutoff=MIN_SIMILARITY):
                yield f"{format} files have no option {name!r}", f"did you mean {meant[near[0]]!r}?"
            continue
        known = names[name.lower()]
        if known in _FLAGS and text.lower() not in ("true", "false"):
            yield f"{name} is not true or false", None
        elif known == "mode" and text.upper() not in _MODES:
            yield f"{name} is not one of {', '.join(_MODES)}", None
        elif known in ("sep", "delimiter") and not text:
            yield f"{name} is empty", "write the character between two fields, such as ';'"
        elif known in _PATTERNS and (letters := _unreadable_letters(text)):
            fact = f"{name} has letters that no time can be read with: {', '.join(letters)}"
            yield fact, "write a pattern such as yyyy-MM-dd HH:mm:ss"
        elif known in _CHARACTERS and len(text) > 1:
            yield f"{name} is more than one character", None


def csv_marks(options: Mapping[str, str]) -> tuple[str, str]:
    """Return the separator of fields and the quote that options of Spark's CSV reader set.

    Parameters
    ----------
    options : mapping of str to str
        The options; the case of their names does not matter.
    """
    known = {name.lower(): text for name, text in options.items()}
    separator = known.get("sep", known.get("delimiter", ",")).replace("\\t", "\t")
    return separator, known.get("quote", '"')
