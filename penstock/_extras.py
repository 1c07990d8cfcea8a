"""Optional libraries, installed by the extras of ``pyproject.toml``, such as ``penstock[plot]``."""

from __future__ import annotations

import importlib.util
from typing import Final, Literal

from penstock.errors import InvalidUsageError

__all__ = ["Extra", "has_extra", "need_extra"]

Extra = Literal[
    "avro", "dashboard", "delta", "duckdb", "iceberg", "kafka", "mqtt", "mysql", "opentelemetry", "pack",
    "plot", "postgresql", "predict", "prometheus", "protobuf", "redis", "sketch", "websocket",
]  # fmt: skip

_MODULES: Final[dict[Extra, tuple[str, str]]] = {
    "avro": ("fastavro", "fastavro"),
    "dashboard": ("starlette", "starlette uvicorn"),
    "delta": ("deltalake", "deltalake"),
    "duckdb": ("duckdb", "duckdb"),
    "iceberg": ("pyiceberg", "pyiceberg[sql-sqlite]"),
    "kafka": ("confluent_kafka", "confluent-kafka"),
    "mqtt": ("paho", "paho-mqtt"),
    "mysql": ("pymysql", "pymysql"),
    "opentelemetry": (
        "opentelemetry.exporter.otlp.proto.http",
        "opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
    ),
    "pack": ("venv_pack", "venv-pack2"),
    "plot": ("matplotlib", "matplotlib"),
    "postgresql": ("adbc_driver_postgresql", "adbc-driver-postgresql"),
    "predict": ("sklearn", "scikit-learn"),
    "prometheus": ("prometheus_client", "prometheus-client"),
    "protobuf": ("ptars", "ptars grpcio-tools"),
    "redis": ("redis", "redis"),
    "sketch": ("datasketches", "datasketches"),
    "websocket": ("websockets", "websockets"),
}
"""For each extra: the module to look for, and the package that provides it."""


def need_extra(extra: Extra, purpose: str) -> None:
    """Check that an optional dependency is installed. Callers do this before the work that needs it begins.

    Parameters
    ----------
    extra : str
        The extra's name in ``pyproject.toml``.
    purpose : str
        The feature that needs the dependency, for the message.

    Raises
    ------
    InvalidUsageError
        If the dependency is not installed.
    """
    _, package = _MODULES[extra]
    if not has_extra(extra):
        packages = package.split()
        raise InvalidUsageError(
            f"{purpose} needs {' and '.join(packages)}, which {'is' if len(packages) == 1 else 'are'} not "
            "installed",
            hint=f"pip install 'penstock[{extra}]', or pip install {package}",
        )


def has_extra(extra: Extra) -> bool:
    """Return whether an optional dependency is installed."""
    try:
        return importlib.util.find_spec(_MODULES[extra][0]) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False
