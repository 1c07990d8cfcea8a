"""Choose the store for upserts by the scheme of its address."""

from __future__ import annotations

import difflib
import re
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, parse_qsl, urlsplit

from penstock._extras import Extra, need_extra
from penstock.errors import InvalidUsageError, hide_value
from penstock.upserts.abc import Columns, UpsertTarget

__all__ = ["SCHEMES", "check_address", "open_target"]

_EXTRAS: Final[dict[str, Extra | None]] = {
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
    "sqlite": None,
    "duckdb": "duckdb",
    "redis": "redis",
    "rediss": "redis",
    "delta": "delta",
    "iceberg": "iceberg",
}
"""For each scheme, the extra that installs its package; SQLite is part of Python."""

SCHEMES: Final = tuple(_EXTRAS)

_SCHEME: Final = re.compile("[A-Za-z][A-Za-z0-9+.-]*")

_SECRETS: Final = ("token", "credential", "s3.secret-access-key", "s3.session-token", "adls.account-key")
"""Properties of Iceberg catalogs that messages do not show."""


def open_target(to: str, table: str | None, columns: Columns) -> UpsertTarget:
    """Return the table at an address. Nothing is opened yet.

    Parameters
    ----------
    to : str
        The address of the store, such as ``postgresql://USER:PASSWORD@HOST/DATABASE``, ``mysql://...``,
        ``sqlite:///FILE``, ``duckdb:///FILE``, ``redis://HOST``, ``delta:///DIRECTORY`` or
        ``iceberg://CATALOG?PROPERTY=VALUE&...``.
    table : str or None
        The table's name, optionally with its schema and a dot before it. For Redis, it is the prefix of keys;
        for Delta Lake, None.
    columns : Columns
        The table's columns and their roles.

    Raises
    ------
    InvalidUsageError
        If the address is not valid, a package or a directory is missing, or the store cannot hold a type.
    """
    uri = check_address(to, table)
    options = dict(parse_qsl(uri.query)) if uri.scheme == "iceberg" else {}
    for secret in (uri.password, *(options.get(name) for name in _SECRETS)):
        if secret:
            hide_value(secret, "***")
    name = f"{uri.scheme}://{uri.hostname or ''}{f':{uri.port}' if uri.port else ''}{uri.path}"
    if uri.scheme in ("postgresql", "postgres"):
        from penstock.upserts.sql.postgres import PostgresTable

        return PostgresTable(to, name, str(table), columns)
    if uri.scheme in ("mysql", "mariadb"):
        from penstock.upserts.sql.mysql import MysqlTable

        return MysqlTable(uri, name, str(table), columns)
    if uri.scheme == "sqlite":
        from penstock.upserts.sql.sqlite import SqliteTable

        return SqliteTable(_path(uri), str(table), columns)
    if uri.scheme == "duckdb":
        from penstock.upserts.sql.duck import DuckTable

        return DuckTable(_path(uri), str(table), columns)
    if uri.scheme == "delta":
        from penstock.upserts.delta import DeltaTarget

        return DeltaTarget(_path(uri), columns)
    if uri.scheme == "iceberg":
        from penstock.upserts.iceberg import IcebergTable

        return IcebergTable(uri.netloc, options, str(table), columns)
    from penstock.upserts.redis_hashes import RedisHashes

    return RedisHashes(uri, name, str(table), columns)


def check_address(to: str, table: str | None) -> SplitResult:
    """Check an address, and all that an upsert needs before it opens the store; return the address's parts.

    Raises
    ------
    InvalidUsageError
        If the address is not valid, or a package, the table or the directory of the database is missing.
    """
    uri = _split(to)
    extra = _EXTRAS[uri.scheme]
    if extra is not None:
        need_extra(extra, f"an upsert to {uri.scheme}")
    if (uri.scheme == "delta") != (table is None):
        raise InvalidUsageError(
            "an upsert to Delta Lake takes no table in addition to its address"
            if table is not None
            else "an upsert needs a table",
            to=uri.scheme,
            hint="leave table out" if table is not None else "name the table",
        )
    directory = Path(_path(uri)).parent
    if uri.scheme in ("sqlite", "duckdb") and not directory.is_dir():
        raise InvalidUsageError(
            "the directory of the database does not exist", directory=directory.absolute(), hint="make it"
        )
    return uri


def _split(to: str) -> SplitResult:
    with suppress(ValueError):
        uri = urlsplit(to)
        if uri.scheme in _EXTRAS and uri.port != 0:  # the port is parsed here
            return uri
    scheme, colon, _ = to.partition(":")
    # An address may hold a password, so the message shows only what can be a scheme.
    given = {"scheme": scheme} if colon and _SCHEME.fullmatch(scheme) else {}
    near = difflib.get_close_matches(scheme.lower(), SCHEMES, n=1) if given and scheme not in SCHEMES else []
    raise InvalidUsageError(
        "the address of the store is not valid",
        **given,
        hint=f"did you mean {near[0]}://?"
        if near
        else f"it begins with one of {', '.join(f'{scheme}://' for scheme in SCHEMES)}",
    )


def _path(uri: SplitResult) -> str:
    """Return a local path: ``sqlite:///a`` is relative, ``sqlite:////a`` absolute, as in SQLAlchemy."""
    return f"{uri.netloc}{uri.path}" if uri.netloc else uri.path.removeprefix("/")
