"""The errors for changed settings name them as plans do."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.state_store.descriptions import changed_setting_error


@pytest.mark.parametrize(
    ("was", "now", "texts"),
    [
        ([60_000, 60_000, 90_000], [120_000, 60_000, 0], ("60 s by 60 s, 90 s late", "120 s by 60 s")),
        ([1_500, 500, 20], [1_500, 500, 0], ("1500 ms by 500 ms, 20 ms late", "1500 ms by 500 ms")),
        (["9 rows", "3 rows", 1_000], [60_000, 60_000, 0], ("9 rows by 3 rows, 1 s late", "60 s by 60 s")),
        (
            ["session", 600_000, 1_000, 600, 1_000],
            ["session", 60_000, 0, 60, 1_000],
            ("sessions with a gap of 600 s, 1 s late", "sessions with a gap of 60 s"),
        ),
    ],
)
def test_changed_windows_are_told_as_in_plans(was: Any, now: Any, texts: tuple[str, str]) -> None:
    error = changed_setting_error("window", was, now, operator="windows", file="there")
    assert f'another window: operator=windows was="{texts[0]}" now="{texts[1]}" file=there' in str(error)
