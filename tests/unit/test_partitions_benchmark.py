"""The benchmark of partitions compares its contenders' tables, so that it cannot rot."""

from benchmarks.partitions import SHARES, report


def test_each_share_has_a_line() -> None:
    lines = list(report(50, 1, [1, 3], [0]))
    rows = [line.split() for line in lines if line.endswith(tuple("0123456789")) and "%" in line]
    assert [row[1] for row in rows] == [f"{share:.0%}" for share in SHARES]
    assert all(len([float(value) for value in row[2:]]) == 2 for row in rows)
