"""Convert Spark's settings of S3 (``spark.hadoop.fs.s3a.*``) to settings of obstore.

The driver keeps Spark's settings in an environment variable, which Spark passes to its Python workers. A
setting is used only if the location, the environment and AWS's shared files do not contain it.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from typing import Final
from urllib.parse import urlsplit

__all__ = ["S3A_SETTINGS", "keep_s3a", "s3a_settings"]

S3A_SETTINGS: Final = "PENSTOCK_S3A_SETTINGS"
"""The environment variable that holds the settings, as JSON."""

_PREFIX: Final = "spark.hadoop.fs.s3a."
_NAMES: Final = (
    "access.key", "secret.key", "session.token", "aws.credentials.provider", "endpoint", "endpoint.region",
    "path.style.access", "connection.ssl.enabled",
)  # fmt: skip
_KEY_PROVIDERS: Final = ("SimpleAWSCredentialsProvider", "TemporaryAWSCredentialsProvider")
_AWS_HOST: Final = re.compile(r"s3(?:[.-](?P<region>[a-z0-9-]+))?\.amazonaws\.com")
_HOST_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


def keep_s3a(settings: Iterable[tuple[str, str]], *environments: MutableMapping[str, str]) -> None:
    """Copy Spark's settings of S3 to environment variables, where `s3a_settings` finds them.

    The driver calls this function once it knows Spark's settings. New settings replace earlier settings.
    """
    found = {name.removeprefix(_PREFIX): value.strip() for name, value in settings if _is_used(name)}
    for environment in environments:
        environment.pop(S3A_SETTINGS, None)
        if found:
            environment[S3A_SETTINGS] = json.dumps(found, sort_keys=True)


def _is_used(name: str) -> bool:
    short = name.removeprefix(_PREFIX)
    return short != name and (
        short in _NAMES
        or (short.startswith("bucket.") and short.endswith(tuple(f".{one}" for one in _NAMES)))
    )


def s3a_settings(bucket: str, own: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return obstore's settings of a bucket that come from Spark.

    Settings under ``fs.s3a.bucket.BUCKET.*`` override settings under ``fs.s3a.*``. As in Hadoop, the bucket
    is a part of the host's name unless ``path.style.access`` is true, the host is an IP address, or a host's
    name cannot contain the bucket's name. The access key, its secret and its session token come from one
    source. The endpoint and the style of its addresses also come from one source.

    Parameters
    ----------
    bucket : str
        The bucket's name.
    own : mapping of str to str
        The settings of the location and of AWS's shared files.
    environment : mapping of str to str
        The variables of this process.
    """
    given = json.loads(environment.get(S3A_SETTINGS, "{}"))

    def value(name: str) -> str:
        return str(given.get(f"bucket.{bucket}.{name}") or given.get(name) or "")

    known = {name.removeprefix("aws_") for name in own}
    known |= {name.removeprefix("AWS_").lower() for name in environment if name.startswith("AWS_")}
    found: dict[str, str] = {}
    if not known & {"access_key_id", "skip_signature"}:
        found |= _keys(value)
    endpoint, region = value("endpoint"), value("endpoint.region")
    host = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or ""
    aws = _AWS_HOST.fullmatch(host)
    region = region or (aws["region"] or "" if aws else "")
    if region and not known & {"region", "default_region"}:
        found["region"] = region
    if endpoint and not aws and not known & {"endpoint", "endpoint_url", "endpoint_url_s3"}:
        found |= _address(endpoint, host, bucket, value)
    return found


def _keys(value: Callable[[str], str]) -> dict[str, str]:
    providers = value("aws.credentials.provider")
    if "AnonymousAWSCredentialsProvider" in providers:
        return {"skip_signature": "true"}
    # Other providers, such as a machine's role, take no keys from Spark.
    if not value("access.key") or (providers and not any(one in providers for one in _KEY_PROVIDERS)):
        return {}
    keys = {"access_key_id": value("access.key"), "secret_access_key": value("secret.key")}
    return keys | ({"session_token": value("session.token")} if value("session.token") else {})


def _address(endpoint: str, host: str, bucket: str, value: Callable[[str], str]) -> dict[str, str]:
    if "://" not in endpoint:
        scheme = "http" if value("connection.ssl.enabled").lower() == "false" else "https"
        endpoint = f"{scheme}://{endpoint}"
    in_path = value("path.style.access").lower() == "true" or _is_address(host)
    if in_path or not _HOST_NAME.fullmatch(bucket):
        return {"endpoint": endpoint, "virtual_hosted_style_request": "false"}
    scheme, _, rest = endpoint.partition("://")
    return {"endpoint": f"{scheme}://{bucket}.{rest}", "virtual_hosted_style_request": "true"}


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
