"""What the chooser decides, when it decides again, and what happens when it was wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from penstock.compression import Block, Chooser, Goal, decode, encode
from penstock.compression.chooser import choose
from penstock.compression.codecs import encode_stream
from penstock.compression.costs import cost
from penstock.errors import InvalidUsageError

SPEED = Goal(float("inf"))
BYTES = Goal(0.0)


class Clock:
    """Seconds that move only when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def first_of(chooser: Chooser, array: pa.Array, column: str = "c") -> str:
    encode(array, chooser=chooser, column=column)
    return ">".join(chooser.columns[column].plan.cascades[0])


@pytest.mark.parametrize(
    ("values", "cascade"),
    [
        (np.full(5000, 7), "constant"),
        (np.arange(5000) * 3, "delta"),
        (np.arange(5000) // 500, "run_length"),
        (np.random.default_rng(1).choice([0, 10**12, 7 * 10**12 + 1], 5000), "dictionary"),
        (np.cumsum(np.arange(5000)), "delta_of_delta"),
    ],
    ids=["constant", "sequence", "runs", "three values", "parabola"],
)
def test_the_fewest_bytes_come_from_what_fits_the_values(values: np.ndarray, cascade: str) -> None:
    chosen = choose(values.astype(np.int64), Goal(5.0)).cascade
    assert chosen[0] == cascade or cascade in chosen


def test_bandwidth_moves_the_choice_from_fast_to_small() -> None:
    values = np.random.default_rng(2).choice(np.arange(0, 9000, 90), 20_000, p=_skewed(100)).astype(np.int64)
    sizes, times = [], []
    for goal in (SPEED, Goal(1000.0), Goal(100.0), Goal(10.0), BYTES):
        chosen = choose(values, goal)
        sizes.append(chosen.node.size_bytes)
        times.append(cost(chosen.node, chosen.cascade, SPEED))
    assert sizes == sorted(sizes, reverse=True)
    assert times[:-1] == sorted(times[:-1])
    assert sizes[-1] < sizes[0]


def _skewed(count: int) -> np.ndarray:
    weights = 1.0 / np.arange(1, count + 1)
    return weights / weights.sum()


def test_it_decides_once_in_an_interval() -> None:
    clock = Clock()
    chooser = Chooser(interval_s=4.0, now_s=clock)
    runs = np.repeat(np.random.default_rng(6).integers(0, 10**9, 200), 500)
    assert "run_length" in first_of(chooser, pa.array(runs))
    clock.now += 3.9
    assert "run_length" in first_of(chooser, pa.array(np.arange(5000)))
    clock.now += 0.2
    assert "delta" in first_of(chooser, pa.array(np.arange(5000)))
    known = chooser.columns["c"]
    assert (known.blocks, known.decisions, known.deoptimised) == (3, 2, 0)


def test_a_block_that_does_not_fit_falls_back_and_the_next_is_decided_anew() -> None:
    chooser = Chooser(interval_s=1e9)
    assert first_of(chooser, pa.array(np.full(5000, 7))) == "constant"
    surprise = pa.array(np.arange(5000))
    block = encode(surprise, chooser=chooser, column="c")
    assert decode(block).equals(surprise)
    known = chooser.columns["c"]
    assert (known.blocks, known.decisions, known.deoptimised) == (2, 1, 1)
    assert "delta" in first_of(chooser, surprise)
    assert (known.blocks, known.decisions, known.deoptimised) == (3, 2, 1)


def test_columns_are_decided_apart() -> None:
    chooser = Chooser()
    assert first_of(chooser, pa.array(np.full(50, 7)), "a") == "constant"
    assert first_of(chooser, pa.array(np.random.default_rng(0).integers(0, 99, 50)), "b") != "constant"


def test_floats_lose_precision_only_where_a_bound_is_given() -> None:
    values = np.random.default_rng(3).normal(0, 1, 20_000)
    array = pa.array(values)
    chooser = Chooser("small", error_bounds={"lossy": 0.01})
    exact = encode(array, chooser=chooser, column="exact")
    lossy = encode(array, chooser=chooser, column="lossy")
    np.testing.assert_array_equal(decode(exact).to_numpy(), values)
    out = decode(lossy).to_numpy()
    assert float(np.abs(out - values).max()) <= 0.01
    assert len(lossy) < len(exact) / 4


def test_text_that_repeats_gets_a_dictionary_and_other_text_does_not() -> None:
    chooser = Chooser()
    encode(pa.array([f"city {i % 20}" for i in range(3000)]), chooser=chooser, column="city")
    encode(pa.array([f"{i * 7919 % 10**8:08d}" for i in range(3000)]), chooser=chooser, column="code")
    assert chooser.columns["city"].plan.dictionary
    assert not chooser.columns["code"].plan.dictionary


def test_a_goal_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match="no such goal: goal=quick known=fast, balanced, small"):
        Chooser("quick")


def test_levels_of_one_codec_cost_differently() -> None:
    values = np.random.default_rng(4).integers(0, 9, 20_000)
    node = encode_stream(values, ("zstd",))
    assert cost(node, ("zstd_19",), SPEED) > 10 * cost(node, ("zstd",), SPEED)


def test_a_block_says_what_it_is() -> None:
    block = Block(encode(pa.array([1, None, 3], pa.int32()), "base_delta>ns"))
    assert (block.rows, block.type, block.raw_bytes) == (3, pa.int32(), 12)
    assert [(name, cascade, count) for name, cascade, count, _ in block.describe()] == [
        ("validity", "plain", 3),
        ("values", "base_delta>ns", 3),
    ]
    fields = ("decimal_2>run_length>base_delta>patched_ns", "quantized_0.25>delta>ns", "xor>ns")
    for codec in fields:
        described = Block(encode(pa.array([1.25, 1.25, 3.5] * 9), codec)).describe()
        assert described[0][1] == codec


def test_nulls_where_there_were_none_before_or_all_alike_are_coded() -> None:
    chooser = Chooser(interval_s=1e9)
    for values in ([1, 2, 3], [None, None, 3], [None, 2, 3], [None, None, None], [1, None, None]):
        array = pa.array(values, pa.int64())
        assert decode(encode(array, chooser=chooser, column="c")).equals(array)
