"""Open object stores by URI, one connection per process, and report their errors in one line."""

from __future__ import annotations

import configparser
import contextlib
import difflib
import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from penstock.checkpointing.files.locations import redact_secrets
from penstock.checkpointing.files.s3a import S3A_SETTINGS, s3a_settings
from penstock.errors import InvalidUsageError, PenstockError, UnavailableError

__all__ = ["OBJECT_STORES", "open_store", "store_refusals"]

OBJECT_STORES: Final = {
    "s3": "S3", "s3a": "S3", "gs": "GCS", "gcs": "GCS",
    "az": "Azure", "azure": "Azure", "abfs": "Azure", "abfss": "Azure",
}  # fmt: skip
"""For each scheme, the kind of store."""

_RETRY_LIMIT_S: Final = 30.0
_TIMEOUT: Final = "5 minutes"
"""The maximum time of one request. Even a large upload is one request."""

_OWN_PARAMETERS: Final = ("endpoint_override", "retry_limit_seconds", "scheme", "timeout")
"""Parameters that are not settings of obstore. The first and the third are parameters of pyarrow's URIs."""

_COMMON_SETTINGS: Final = (
    *_OWN_PARAMETERS, "access_key_id", "account_key", "account_name", "application_credentials", "base_url",
    "client_id", "client_secret", "endpoint", "region", "sas_key", "secret_access_key",
    "server_side_encryption", "service_account", "session_token", "skip_signature", "sse_kms_key_id",
    "tenant_id", "use_azure_cli", "virtual_hosted_style_request",
)  # fmt: skip
"""The settings that an error may suggest in place of a misspelt setting."""

_NOT_IN_URIS: Final = re.compile(r"[\x00-\x20\x7f<>\"{}|\\^`]")
_URL: Final = re.compile(r"\w+://\S+")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")

_stores: dict[int, dict[tuple[str, str | None], tuple[Any, str]]] = {}
"""The stores of each process, by URI and Spark's settings. A forked process sees its parent's stores."""


def open_store(uri: str) -> tuple[Any, str]:
    """Return obstore's store for `uri`, made once per process, and the path in it.

    Raises
    ------
    InvalidUsageError
        If the location or one of its parameters is not possible, or this process was forked from a process
        that already used a store. The threads that serve requests do not survive a fork.
    """
    own = _stores.get(os.getpid())
    if own is None:
        if _stores:
            raise InvalidUsageError(
                "this process was forked from a process that had used an object store",
                location=redact_secrets(uri),
                hint="start processes by 'spawn' or 'forkserver', or fork before the first use",
            )
        own = _stores[os.getpid()] = {}
    key = uri, os.environ.get(S3A_SETTINGS)
    found = own.get(key)
    if found is None:
        found = own[key] = _connect(uri)
    return found


def _connect(uri: str) -> tuple[Any, str]:
    from obstore import exceptions, store

    if _NOT_IN_URIS.search(uri):
        raise _refusal(uri, "a location has characters that a URI cannot have", "percent-encode them")
    parts = urlsplit(uri)
    parameters = dict(parse_qsl(parts.query, keep_blank_values=True))
    kind = OBJECT_STORES[parts.scheme]
    bucket, path, settings = _SETTINGS[kind](uri, parts)
    settings |= {key: value for key, value in parameters.items() if key not in _OWN_PARAMETERS}
    endpoint = parameters.get("endpoint_override")
    if endpoint is not None:
        full = endpoint if "://" in endpoint else f"{parameters.get('scheme', 'https')}://{endpoint}"
        settings["base_url" if kind == "GCS" else "endpoint"] = full
    if kind == "S3":
        try:
            settings |= s3a_settings(bucket, settings, os.environ)
        except ValueError:
            raise _refusal(uri, "fs.s3a.endpoint is not an address", "write https://host:port") from None
    try:
        limit = timedelta(seconds=float(parameters.get("retry_limit_seconds", _RETRY_LIMIT_S)))
    except ValueError:
        raise _refusal(uri, "retry_limit_seconds is not a number", "write seconds, such as 30") from None
    try:
        made = getattr(store, f"{kind}Store")(
            bucket,
            config=settings,
            # obstore uses HTTP only if the endpoint's URL begins with http://.
            client_options={"timeout": parameters.get("timeout", _TIMEOUT), "allow_http": True},
            retry_config={"retry_timeout": limit},
        )
    except exceptions.UnknownConfigurationKeyError:
        unknown = [key for key in settings if not _is_setting(kind, key)]
        near = [match for key in unknown for match in difflib.get_close_matches(key, _COMMON_SETTINGS, n=1)]
        raise _refusal(
            uri,
            f"a location has parameters that {kind} does not have: {', '.join(unknown)}",
            f"did you mean {near[0]!r}?" if near else f"see obstore's {kind}Config",
        ) from None
    except (exceptions.BaseError, ValueError) as error:
        raise _refusal(uri, "obstore does not take this location", None, reason=_reason(error)) from None
    return made, path.strip("/")


def _is_setting(kind: str, key: str) -> bool:
    from obstore import exceptions, store

    try:
        getattr(store, f"{kind}Store")("bucket", config={key: "1"})
    except exceptions.UnknownConfigurationKeyError:
        return False
    except (exceptions.BaseError, ValueError):
        return True
    return True


def _s3(uri: str, parts: SplitResult) -> tuple[str, str, dict[str, str]]:
    user, _, bucket = parts.netloc.rpartition("@")
    if not user and (":" in bucket or "@" in parts.path):
        raise _refusal(uri, "a location's bucket has a colon", "write %2F for a slash in a secret")
    key, _, secret = user.partition(":")
    if user:
        return bucket, unquote(parts.path), {
            "access_key_id": unquote(key), "secret_access_key": unquote(secret)
        }  # fmt: skip
    return bucket, unquote(parts.path), {} if "AWS_ACCESS_KEY_ID" in os.environ else _profile(os.environ)


def _profile(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the keys and region of the AWS profile, from the files that AWS's tools share."""
    home = Path(environment.get("HOME", "/")) / ".aws"
    profile = environment.get("AWS_PROFILE", "default")
    found = configparser.ConfigParser(interpolation=None)
    found.read(environment.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials"))
    keys = dict(found[profile]) if found.has_section(profile) else {}
    if "AWS_REGION" not in environment and "AWS_DEFAULT_REGION" not in environment:
        regions = configparser.ConfigParser(interpolation=None)
        regions.read(environment.get("AWS_CONFIG_FILE", home / "config"))
        section = profile if profile == "default" else f"profile {profile}"
        keys |= {"region": regions[section]["region"]} if regions.has_option(section, "region") else {}
    wanted = ("access_key_id", "secret_access_key", "session_token", "region")
    short = {key.removeprefix("aws_"): value for key, value in keys.items()}
    return {key: short[key] for key in wanted if key in short}


def _gcs(uri: str, parts: SplitResult) -> tuple[str, str, dict[str, str]]:
    user, _, bucket = parts.netloc.rpartition("@")
    if user not in {"", "anonymous"}:
        raise _refusal(uri, "a location of Google Cloud Storage has a user", "write gs://bucket/path")
    return bucket, unquote(parts.path), {"skip_signature": "true"} if user else {}


def _azure(uri: str, parts: SplitResult) -> tuple[str, str, dict[str, str]]:
    user, _, host = parts.netloc.rpartition("@")
    path = unquote(parts.path).lstrip("/")
    settings: dict[str, str] = {}
    if parts.scheme in {"az", "azure"}:
        container = host
    else:
        settings["account_name"] = host.partition(".")[0]
        if host.endswith(".fabric.microsoft.com"):
            settings["use_fabric_endpoint"] = "true"
        container, _, key = user.partition(":")
        if key:
            settings["account_key"] = unquote(key)
        if not container:
            container, _, path = path.partition("/")
    if not container:
        raise _refusal(uri, "the location names no container", "write abfss://container@account.host/path")
    return unquote(container), path, settings


_SETTINGS: Final = {"S3": _s3, "GCS": _gcs, "Azure": _azure}


def _refusal(uri: str, fact: str, hint: str | None, **context: str) -> InvalidUsageError:
    return InvalidUsageError(fact, location=redact_secrets(uri), hint=hint, **context)


def _reason(error: Exception) -> str:
    """Return an error of obstore in one line, without addresses, because they may hold tokens."""
    text = str(error)
    code = _CODE.search(text)
    first = text.splitlines()[0] if text else type(error).__name__
    line = _URL.sub("the service", first).partition(": <?xml")[0]
    return f"{line}: {code[1]}" if code and code[1] not in line else line


@contextlib.contextmanager
def store_refusals(fact: str, file: str) -> Iterator[None]:
    """Convert errors of a store to `UnavailableError`, except a `FileNotFoundError` for `file`."""
    from obstore.exceptions import BaseError

    try:
        yield
    except PenstockError:
        raise
    except (BaseError, OSError, ValueError, NotImplementedError) as error:  # a store may support less
        if isinstance(error, FileNotFoundError) and error.filename == file:
            raise
        raise UnavailableError(
            fact,
            file=file,
            reason=_reason(error),
            hint="check the location, its permissions and whether the service answers",
        ) from None
