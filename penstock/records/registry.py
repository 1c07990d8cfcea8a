"""A client of schema registries with the interface of Confluent's, which Karapace and Apicurio also have."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final
from urllib.parse import quote, urlsplit

from penstock._clock import pause
from penstock.conf.arguments import check_keywords
from penstock.errors import InvalidUsageError, UnavailableError, hide_value

__all__ = ["RegisteredSchema", "SchemaRegistry", "UnknownSchemaError"]

_TIMEOUT_S: Final = 10.0
_PAUSES_S: Final = (0.1, 0.5, 2.0)
"""The pauses between the attempts of a request."""
_BUSY: Final = (408, 429)
"""Status codes of transient failures, in addition to 500 and above."""
_UNKNOWN: Final = (40401, 40402, 40403)
"""The registry's error numbers: no such subject, version, schema."""


class UnknownSchemaError(InvalidUsageError):
    """The registry does not know a schema."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema in a registry. `references` has the schemas that it refers to, with the names that it uses."""

    kind: str
    text: str
    references: tuple[tuple[str, RegisteredSchema], ...] = ()


@check_keywords
@dataclass(frozen=True, slots=True)
class SchemaRegistry:
    """The address of a schema registry, for `penstock.decode_kafka`.

    Parameters
    ----------
    url : str
        The registry's address, such as ``https://registry:8081``. Python's default certificates are trusted,
        or the certificates in the file that the environment variable ``SSL_CERT_FILE`` names.
    subject : str, optional
        The subject whose newest schema gives the columns, such as ``trades-value``.
    user, password : str, optional
        The user and the password for basic authentication.
    token : str, optional
        The token for authentication by a bearer token.

    Raises
    ------
    InvalidUsageError
        If the address is not valid, or both a token and a user are given.

    Notes
    -----
    Workers cache each schema, because a schema never changes under its number.
    """

    url: str
    subject: str | None = None
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        address = urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname or "@" in address.netloc:
            raise InvalidUsageError(
                "the address of the schema registry is not valid",
                hint="write it as https://HOST:PORT, and pass user and password as separate arguments",
            )
        if (self.user is None) != (self.password is None) or (self.user is not None and self.token):
            raise InvalidUsageError(
                "a schema registry takes a user and a password, or a token, or none of them"
            )
        for secret in (self.password, self.token):
            if secret is not None:
                hide_value(secret, "***")

    def by_id(self, number: int) -> RegisteredSchema:
        """Return the schema with a number.

        Raises
        ------
        UnknownSchemaError
            If the registry does not know the schema.
        InvalidUsageError
            If the registry refuses the user, or the address is not a registry's.
        UnavailableError
            If the registry does not answer.
        """
        return _fetch(self, f"schemas/ids/{number}")

    def newest(self) -> RegisteredSchema:
        """Return the newest schema of the subject; see `by_id` for errors."""
        # The newest schema may change, so it is not cached.
        return _resolve(self, _get(self, f"subjects/{quote(self.subject or '', safe='')}/versions/latest"))


@lru_cache(maxsize=1_000)
def _fetch(registry: SchemaRegistry, path: str) -> RegisteredSchema:
    return _resolve(registry, _get(registry, path))


def _resolve(registry: SchemaRegistry, answer: dict[str, Any]) -> RegisteredSchema:
    references = tuple(
        (
            one["name"],
            _fetch(registry, f"subjects/{quote(one['subject'], safe='')}/versions/{one['version']}"),
        )
        for one in answer.get("references") or ()
    )
    return RegisteredSchema(answer.get("schemaType") or "AVRO", answer["schema"], references)


def _get(registry: SchemaRegistry, path: str) -> dict[str, Any]:
    """Return the answer to a request. Repeat the request while the registry is busy or unavailable."""
    url = f"{registry.url.rstrip('/')}/{path}"
    request = urllib.request.Request(url, headers={"Accept": "application/vnd.schemaregistry.v1+json"})  # noqa: S310  # the scheme is checked
    if registry.user is not None:
        pair = base64.b64encode(f"{registry.user}:{registry.password}".encode()).decode()
        request.add_unredirected_header("Authorization", f"Basic {pair}")
    elif registry.token is not None:
        request.add_unredirected_header("Authorization", f"Bearer {registry.token}")
    reason = ""
    for pause_s in (*_PAUSES_S, None):
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # as above
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                if error.code < 500 and error.code not in _BUSY:
                    raise _refusal(registry, path, error) from None
            reason = f"status {error.code}"
        except OSError as error:
            cause = getattr(error, "reason", error)
            reason = getattr(cause, "strerror", None) or type(cause).__name__
        except ValueError:
            raise _no_registry(registry, path) from None
        else:
            if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
                raise _no_registry(registry, path)
            return found
        if pause_s is not None:
            pause(pause_s)  # a growing pause spares a starting registry
    raise UnavailableError(
        "the schema registry does not answer", registry=registry.url, path=path, reason=reason
    )


def _refusal(registry: SchemaRegistry, path: str, error: urllib.error.HTTPError) -> InvalidUsageError:
    if error.code in (401, 403):
        return InvalidUsageError(
            "the schema registry refuses the user",
            registry=registry.url,
            path=path,
            status=error.code,
            hint="check user and password, or token, and what they may read",
        )
    try:
        number = json.load(error).get("error_code")
    except (ValueError, AttributeError):
        number = None
    if error.code == 404 and number in _UNKNOWN:
        return UnknownSchemaError(
            "the schema registry does not know this schema", registry=registry.url, path=path
        )
    return _no_registry(registry, path, status=error.code)


def _no_registry(registry: SchemaRegistry, path: str, **more: object) -> InvalidUsageError:
    return InvalidUsageError(
        "the answer does not come from a schema registry",
        registry=registry.url,
        path=path,
        **more,
        hint="the address may need a path, such as the path of a registry's Confluent-compatible interface",
    )
