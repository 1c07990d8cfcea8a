"""Columns of text such as services write: paths, JSON, e-mail addresses, user agents, log lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["columns"]

_FIRST = [
    "james",
    "mary",
    "john",
    "patricia",
    "robert",
    "jennifer",
    "michael",
    "linda",
    "david",
    "elizabeth",
    "william",
    "barbara",
    "richard",
]
_LAST = [
    "smith",
    "johnson",
    "williams",
    "brown",
    "jones",
    "garcia",
    "miller",
    "davis",
    "rodriguez",
    "martinez",
    "hernandez",
    "lopez",
]
_HOSTS = [
    "gmail.com",
    "yahoo.com",
    "outlook.com",
    "example.org",
    "mail.example.co.uk",
    "company.io",
    "web.de",
]
_SYSTEMS = (
    "Windows NT 10.0; Win64; x64",
    "Macintosh; Intel Mac OS X 10_15_7",
    "X11; Linux x86_64",
    "Linux; Android 13; SM-S918B",
    "Linux; Android 14; Pixel 8",
)
_LEVELS = ("INFO", "INFO", "INFO", "DEBUG", "WARN", "ERROR")
_VERBS = ("view", "edit", "reviews", "buy")
_ERRORS = ("connection reset by peer", "read timed out", "no route to host", "broken pipe")


def columns(rows: int, seed: int = 1) -> dict[str, pa.Array[Any]]:
    """Return a column of each kind."""
    pick = np.random.default_rng(seed)

    def among(texts: tuple[str, ...] | list[str]) -> list[str]:
        return np.array(texts, object)[pick.integers(0, len(texts), rows)].tolist()

    def numbers(most: int) -> list[int]:
        return pick.integers(0, most, rows).tolist()

    def clock(second: int) -> str:
        return f"2024-05-17 {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"

    items, ids = numbers(1000), numbers(10)
    many = (pick.zipf(1.2, rows) % 50_000).tolist()
    verbs = among(_VERBS)
    first, last, hosts = among(_FIRST), among(_LAST), among(_HOSTS)
    year = numbers(100)
    prices = np.round(pick.gamma(2.0, 20.0, rows), 2).tolist()
    flags = among(["true", "false"])
    seconds = np.sort(pick.integers(0, 86_400, rows)).tolist()
    millis, workers, tooks = numbers(1000), numbers(16), (pick.gamma(2.0, 30.0, rows)).astype(int).tolist()
    levels, errors, kinds = among(list(_LEVELS)), among(list(_ERRORS)), numbers(8)
    return {
        "path": pa.array([f"/item/{item}/view?id={i}" for item, i in zip(items, ids, strict=True)]),
        "paths": pa.array(
            [
                f"/shop/{verb}?q={name}&page={i}" if i < 3 else f"/item/{item}/{verb}?id={i}"
                for verb, name, item, i in zip(verbs, last, many, ids, strict=True)
            ]
        ),
        "json": pa.array(
            [
                f'{{"user":{user},"name":"{name}","price":{price},"paid":{flag},"items":[{item},{i}]}}'
                for user, name, price, flag, item, i in zip(
                    many, first, prices, flags, items, ids, strict=True
                )
            ]
        ),
        "email": pa.array(
            [
                f"{one}.{two}{age}@{host}" if age < 60 else f"{one}_{two}@{host}"
                for one, two, age, host in zip(first, last, year, hosts, strict=True)
            ]
        ),
        "agent": pa.array(
            [
                f"Mozilla/5.0 ({system}) AppleWebKit/537.36 (KHTML, like Gecko) "
                f"Chrome/{100 + minor % 25}.0.{build}.{patch} Safari/537.36"
                for system, minor, build, patch in zip(
                    among(list(_SYSTEMS)), year, numbers(7000), numbers(200), strict=True
                )
            ]
        ),
        "log": pa.array(
            [
                f"{clock(at)}.{ms:03} {level} [worker-{worker}] "
                + (
                    f"GET /item/{item} 200 in {took} ms"
                    if kind < 5
                    else f"user={one} logged in from 10.0.{worker}.{kind * 30}"
                    if kind < 7
                    else f"request {item} failed: {error}"
                )
                for at, ms, level, worker, item, took, kind, one, error in zip(
                    *(seconds, millis, levels, workers, many, tooks, kinds, first, errors), strict=True
                )
            ]
        ),
    }
