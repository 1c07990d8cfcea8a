"""The chooser's decisions, its later decisions, and its recovery from wrong ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.compression import Block, Chooser, Goal, Plan, column_stats, decode, encode
from penstock.compression.choice import chooser as chooser_module
from penstock.compression.choice import search, statistics
from penstock.compression.choice.costs import cost
from penstock.compression.choice.goals import goal_of
from penstock.compression.choice.search import choose
from penstock.compression.choice.statistics import sample_of
from penstock.compression.codecs import encode_stream
from penstock.compression.kernels import bits
from penstock.errors import InvalidUsageError

SPEED = Goal(float("inf"))
BYTES = Goal(0.0)


class Clock:
    """A clock that moves only when a test moves it."""

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


def test_a_bound_of_numpy_is_a_bound() -> None:
    values = np.random.default_rng(3).normal(0, 1, 20_000)
    chooser = Chooser(error_bounds={"c": np.float64(0.01)})
    assert first_of(chooser, pa.array(values)).startswith("quantized_0.01>")


@pytest.mark.parametrize("bound", [0.0, -1.0, float("nan"), float("inf")])
def test_a_bound_that_is_no_positive_number_is_refused(bound: float) -> None:
    with pytest.raises(InvalidUsageError, match="an error bound must be a positive number"):
        Chooser(error_bounds={"c": bound})


def test_what_was_decided_for_floats_is_not_for_other_types() -> None:
    chooser = Chooser(interval_s=1e9, error_bounds={"c": 0.5})
    assert first_of(chooser, pa.array(np.random.default_rng(3).normal(0, 9, 5000))).startswith("quantized_")
    for array in (
        pa.array([1, 2, 3, 99]),
        pa.array([1, 2, 3, 99], pa.timestamp("us")),
        pa.array(["a", "bb"]),
    ):
        assert decode(encode(array, chooser=chooser, column="c")).equals(array)
    assert chooser.columns["c"].decisions == 4


@pytest.mark.parametrize(
    ("array", "codec"),
    [
        (pa.array([1, 2, 1000]), "quantized_0.5"),
        (pa.array([1, 2], pa.timestamp("us")), "run_length>quantized_0.5"),
        (pa.array(["a", "bb"]), "quantized_0.5>ns"),
        (pa.array([[1], [2, 3]]), "quantized_0.5"),
        (pa.array([1.5, 2.5] * 9), "dictionary>quantized_0.5"),
        (pa.array([1.5, 2.5] * 9), "delta>quantized_0.5"),
    ],
)
def test_only_floats_are_coded_within_a_bound(array: pa.Array, codec: str) -> None:
    with pytest.raises(InvalidUsageError, match="only floating-point numbers have an error bound"):
        encode(array, codec)


def test_runs_of_floats_may_have_a_bound() -> None:
    values = np.repeat(np.random.default_rng(3).normal(0, 9, 500), 7)
    block = Block(encode(pa.array(values), "run_length>quantized_0.5"))
    assert block.describe()[0][1].startswith("run_length>quantized_0.5")
    assert float(np.abs(block.read().to_numpy() - values).max()) <= 0.5


def test_text_that_repeats_gets_a_dictionary_and_other_text_does_not() -> None:
    chooser = Chooser()
    encode(pa.array([f"city {i % 20}" for i in range(3000)]), chooser=chooser, column="city")
    encode(pa.array([f"{i * 7919 % 10**8:08d}" for i in range(3000)]), chooser=chooser, column="code")
    assert chooser.columns["city"].plan.dictionary
    assert not chooser.columns["code"].plan.dictionary


@pytest.mark.parametrize("goal", ["quick", "", "-5 MB/s", 500, "500 MB", "nan MB/s", "5 MB/s 6 MB/s"])
def test_a_goal_that_is_neither_name_nor_bandwidth_is_refused(goal: Any) -> None:
    with pytest.raises(InvalidUsageError, match=f"no such goal: goal={goal} known=fast, balanced, small"):
        Chooser(goal)


@pytest.mark.parametrize(("text", "mb_s"), [("500MB/s", 500.0), (" 12.5 mb/S ", 12.5), ("0 MB/s", 0.0)])
def test_a_goal_can_be_a_bandwidth(text: str, mb_s: float) -> None:
    assert goal_of(text) == Goal(mb_s)


def test_more_bandwidth_buys_less_compression_in_less_time() -> None:
    values = pa.array(np.random.default_rng(3).integers(0, 1000, 100_000).repeat(2) * 0.01)
    sizes = [len(encode(values, chooser=Chooser(goal))) for goal in ("1 MB/s", "140 MB/s", "100000 MB/s")]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[2]


@pytest.mark.parametrize("numbers", [(-1.0, 1.0), (float("nan"), 1.0), (5.0, -1.0), (5.0, float("nan"))])
def test_a_goal_of_numbers_that_cannot_be_is_refused(numbers: tuple[float, float]) -> None:
    with pytest.raises(InvalidUsageError, match="a goal's numbers cannot be negative"):
        Goal(*numbers)


def test_a_column_of_a_table_has_statistics_as_it_is() -> None:
    table = pa.concat_tables([pa.table({"n": [1, 2]}), pa.table({"n": [3]})])
    assert column_stats(table["n"]) == column_stats(pa.array([1, 2, 3]))


def test_what_is_no_arrow_array_is_refused() -> None:
    with pytest.raises(InvalidUsageError, match=r"only Arrow arrays can be coded: type=ndarray"):
        encode(np.arange(3))


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


# What a sample does not show.


def test_what_the_sample_has_once_is_held_to_the_whole_block() -> None:
    rare = np.zeros(300_000, np.int64)
    rare[60_000:60_005] = 7  # between the stretches of the samples
    for goal in ("fast", "balanced", "small"):
        chooser = Chooser(goal)
        encode(pa.array(rare), chooser=chooser, column="c")
        assert chooser.columns["c"].plan.cascades[0] != ("constant",)
        assert not chooser.columns["c"].deoptimised


def test_a_dictionary_that_holds_the_sample_and_not_the_block_is_not_chosen() -> None:
    # Each value many times, one after the other: few in any stretch, too many for a dictionary in all.
    mixed = np.random.default_rng(8).permutation(100_000).astype(np.int64) << 20
    array = pa.array(np.repeat(mixed, 20))
    for goal in ("fast", "balanced", "small"):
        chooser = Chooser(goal)
        block = encode(array, chooser=chooser, column="c")
        assert not chooser.columns["c"].deoptimised
        assert len(block) < array.nbytes / 10


@pytest.mark.parametrize("kind", ["steps", "runs", "words"])
def test_a_goal_that_values_bytes_more_gets_no_more_bytes(kind: str) -> None:
    generator = np.random.default_rng(9)
    array = {
        "steps": pa.array(1_700_000_000_000_000 + np.arange(300_000) // 1000 * 1000),
        "runs": pa.array(np.repeat(generator.integers(0, 50, 40_000), generator.integers(1, 15, 40_000))),
        "words": pa.array([f"word-{n}" for n in generator.integers(0, 200, 100_000)]),
    }[kind]
    sizes = [len(encode(array, chooser=Chooser(goal))) for goal in ("fast", "balanced", "small")]
    assert sizes[1] <= sizes[0] * 1.01
    assert sizes[2] <= sizes[1] * 1.01


# What deciding takes.


def test_decisions_about_all_columns_take_no_more_than_their_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    chooser = Chooser(interval_s=4.0, now_s=clock)
    decide = chooser_module._decide

    def slow(*arguments: Any, **options: Any) -> Plan:
        clock.now += 1.0  # it takes a second, on a clock that we turn
        return decide(*arguments, **options)

    monkeypatch.setattr(chooser_module, "_decide", slow)
    array = pa.array(np.arange(100))
    begin = clock.now
    for _ in range(400):
        for column in "abc":
            chooser.plan(column, array, array.type)
        clock.now += 1.0
    spent = sum(known.decisions for known in chooser.columns.values()) * 1.0
    assert spent <= (clock.now - begin) / 40 + 6
    assert min(known.decisions for known in chooser.columns.values()) >= 3


def test_a_sample_is_bounded_in_rows_and_of_text_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = pa.array(np.arange(10**6))
    assert len(sample_of(numbers, 1 << 14)) == 1 << 14
    texts = pa.array(["x" * 1000] * 50_000)
    assert sample_of(texts, 1 << 14).nbytes < 5_000_000
    assert len(sample_of(pa.array(["x"] * 50_000), 1 << 14)) == 1 << 14
    seen: list[int] = []
    scan = statistics._scan

    def counted(values: np.ndarray, out: np.ndarray) -> None:
        seen.append(values.size)
        scan(values, out)

    monkeypatch.setattr(statistics, "_scan", counted)
    column_stats(texts)
    assert seen == [1 << 12]


def test_statistics_and_a_search_see_few_bytes_of_long_text(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(10)
    texts = pa.array([generator.bytes(50).hex() for _ in range(20_000)])
    seen = 0
    tried = search.rank

    def counted(values: np.ndarray, *arguments: Any, **options: Any) -> Any:
        nonlocal seen
        seen += values.nbytes
        return tried(values, *arguments, **options)

    monkeypatch.setattr(search, "rank", counted)
    encode(texts, chooser=Chooser("balanced"), column="c")
    assert 0 < seen < texts.nbytes / 3


def test_codecs_are_tried_on_arrays_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each kernel would be compiled for both kinds of array."""
    kinds = set()
    pack = bits._pack

    def noted(values: Any, *others: Any) -> Any:
        kinds.add(values.flags.writeable)
        return pack(values, *others)

    monkeypatch.setattr(bits, "_pack", noted)
    encode(pa.array([(n * n) % 1000 / 4 for n in range(5000)]), chooser=Chooser("fast"))
    assert kinds == {False}


@pytest.mark.parametrize("kind", ["numbers", "texts"])
def test_a_column_that_is_coded_once_is_judged_by_as_many_values_however_many_it_has(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    tried = search.rank

    def counted(values: np.ndarray, *arguments: Any, **options: Any) -> Any:
        seen.append(values.nbytes)
        return tried(values, *arguments, **options)

    monkeypatch.setattr(search, "rank", counted)
    sums = []
    for rows in (50_000, 200_000):
        numbers = np.random.default_rng(3).integers(0, 1 << 40, rows)
        array = pa.array(numbers if kind == "numbers" else [f"{n:013}" for n in numbers.tolist()])
        encode(array)
        sums.append(sum(seen))
        seen.clear()
    # How many symbols some texts have depends on which these are.
    assert abs(sums[0] - sums[1]) * 100 <= (sums[1] if kind == "texts" else 0)
    assert max(sums) <= 1 << 19


def test_a_column_that_is_not_what_a_few_values_promised_is_coded_as_a_chooser_codes_it() -> None:
    numbers = np.zeros(100_000, np.int64)
    numbers[1024:30_000] = np.random.default_rng(3).integers(0, 1 << 40, 28_976)
    array = pa.array(numbers)
    block = encode(array)
    assert decode(block).equals(array)
    assert block == encode(array, chooser=Chooser())
