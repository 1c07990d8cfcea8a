"""The benchmark of predictions runs, and hides from TATP's requests what it says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks.paper.h_store import houdini
from penstock.designing.traces.recording import ProcedureTrace
from penstock.predicting.training import Samples, measure, train
from penstock.procedures.partitions.placement import place_tables
from penstock.procedures.programs.oltp import tatp


def traces_of(name: str, count: int) -> list[ProcedureTrace]:
    """Return the transactions of a small database."""
    return houdini.trace_of(name, count, replace(houdini.SETTINGS[name], scale=tatp.TatpScale(60)))


def test_no_attribute_says_the_partition_of_tatp_by_name() -> None:
    placements = place_tables(tatp.TATP.database.tables, 4, {})
    accuracy = {}
    for name in ("tatp_text", "tatp_name"):
        for trace in traces_of(name, 500):
            samples = Samples.of(trace, placements, 4)
            models = train(samples, houdini.THRESHOLD, clustered=False)
            assert trace.kind is not None
            accuracy[name, trace.kind[1]] = measure(models, samples, houdini.THRESHOLD)
    assert accuracy["tatp_text", tatp.UPDATE_LOCATION].share("total") == 1.0
    assert accuracy["tatp_text", tatp.INSERT_FORWARDING].share("base") == 1.0
    assert accuracy["tatp_name", tatp.UPDATE_LOCATION].share("total") == 1.0
    assert accuracy["tatp_name", tatp.INSERT_FORWARDING].share("base") < 0.9


def test_an_update_by_an_index_counts_as_one_query_of_all_partitions() -> None:
    traces = {one.kind[1]: one for one in traces_of("tatp_name", 300) if one.kind is not None}
    update = traces[tatp.UPDATE_LOCATION]
    assert [str(name) for name in update.names] == ["write subscribers by sub_nbr"]
    assert np.diff(update.starts).tolist() == [1] * update.transactions
    other = {one.kind[1]: one for one in traces_of("tatp_text", 300) if one.kind is not None}
    assert other[tatp.UPDATE_LOCATION].transactions == update.transactions
    assert len(other[tatp.UPDATE_LOCATION].names) == 2
