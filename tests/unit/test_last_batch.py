"""When a query over what is there now has done what it should."""

from __future__ import annotations

import itertools

from penstock.spark_ext.metrics import is_last


def test_a_batch_without_input_is_the_last_one_unless_what_waits_is_to_be_served() -> None:
    for new, waits, drain in itertools.product((False, True), repeat=3):
        told = is_last(new_input=new, waits=waits, drain=drain, first=False)
        assert told is (not new and not (drain and waits))


def test_the_first_batch_of_a_start_may_be_one_that_an_earlier_start_planned() -> None:
    for new, waits, drain in itertools.product((False, True), repeat=3):
        assert not is_last(new_input=new, waits=waits, drain=drain, first=True)
