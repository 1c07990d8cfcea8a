"""The queries of (Scabbard Table 3) as graphs.

Each query is written as its benchmark states it, over all columns of its stream. The rules decide which part
reaches a p-stream. Times of the real files are whole seconds, except those of the sensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa

from benchmarks.streams import REAL, advertisements, bids
from penstock.dataflow import Graph, graph
from penstock.dataflow.nodes import Node, Source, rebuild

__all__ = ["CAMPAIGNS", "QUERIES", "STREAMS", "from_parquet"]

STREAMS = {
    "CM1": "cluster",
    "CM2": "cluster",
    "SG1": "smart_grid",
    "SG2": "smart_grid",
    "SG3": "smart_grid",
    "LRB1": "linear_road",
    "LRB2": "linear_road",
    "LRB3": "linear_road",
    "YSB": "ysb",
    "NQ5": "nexmark",
    "SM": "sensors",
}
"""The name of each query's stream, which is also its source's."""

CAMPAIGNS = pa.schema({"ad_id": pa.string(), "campaign_id": pa.string()})
"""The static table of the Yahoo Streaming Benchmark: the campaign of each advertisement."""


def _source(query: str) -> Graph:
    name = STREAMS[query]
    generated = {"ysb": advertisements, "nexmark": bids}
    schema = generated[name](1, 1).schema if name in generated else pa.schema(REAL[name].columns)
    return graph(query).source(name, schema)


def _cm1() -> Graph:
    return (
        _source("CM1")
        .window("timestamp", size="60 s", slide="1 s", unit="s")
        .group_by("category")
        .agg(cpu="sum(cpu)")
        .sink("noop")
    )


def _cm2() -> Graph:
    return (
        _source("CM2")
        .where("eventType = 1")
        .window("timestamp", size="60 s", slide="1 s", unit="s")
        .group_by("jobId")
        .agg(cpu="avg(cpu)")
        .sink("noop")
    )


def _sg1() -> Graph:
    return (
        _source("SG1")
        .window("timestamp", size="3600 s", slide="1 s", unit="s")
        .agg(load="avg(value)")
        .sink("noop")
    )


def _sg2() -> Graph:
    return (
        _source("SG2")
        .window("timestamp", size="128 s", slide="1 s", unit="s")
        .group_by("plug", "household", "house")
        .agg(load="avg(value)")
        .sink("noop")
    )


def _sg3() -> Graph:
    """Return how many plugs of each house are above the average of all: SG2 and SG1, joined each second."""
    readings = _source("SG3")
    overall = readings.window("timestamp", size="3600 s", slide="1 s", unit="s").agg(mean="avg(value)")
    return (
        readings.window("timestamp", size="128 s", slide="1 s", unit="s")
        .group_by("plug", "household", "house")
        .agg(load="avg(value)")
        .join_windows(overall, condition="load > mean")
        .group_by("window", "house")
        .agg(plugs="count(*)")
        .sink("noop")
    )


def _lrb1() -> Graph:
    return (
        _source("LRB1")
        .window("timestamp", size="300 s", slide="1 s", unit="s")
        .group_by("highway", "direction", segment="position DIV 5280")
        .agg(speed="avg(speed)")
        .where("speed < 40")
        .sink("noop")
    )


def _vehicles(name: str) -> Graph:
    """Return how often each vehicle was seen in each segment: as LightSaber has LRB2."""
    return (
        _source(name)
        .window("timestamp", size="30 s", slide="1 s", unit="s")
        .group_by("vehicle", "highway", "direction", segment="position DIV 5280")
        .agg(seen="count(*)")
    )


def _lrb2() -> Graph:
    return _vehicles("LRB2").sink("noop")


def _lrb3() -> Graph:
    return (
        _vehicles("LRB3")
        .group_by("window", "highway", "direction", "segment")
        .agg(vehicles="count(vehicle)")
        .sink("noop")
    )


def _ysb() -> Graph:
    return (
        _source("YSB")
        .where("event_type = 'view'")
        .select("ad_id", "event_time")
        .lookup("campaigns", CAMPAIGNS, on="ad_id")
        .window("event_time", size="10 s")
        .group_by("campaign_id")
        .agg(views="count(*)")
        .sink("noop")
    )


def _nq5() -> Graph:
    """Return the auctions that have the most bids."""
    counts = (
        _source("NQ5").window("date_time", size="60 s", slide="1 s").group_by("auction").agg(bids="count(*)")
    )
    most = counts.group_by("window").agg(most="max(bids)")
    return counts.join_windows(most, condition="bids = most").sink("noop")


def _sm() -> Graph:
    return (
        _source("SM")
        .window("timestamp", size="60 s", slide="1 s")
        .agg(mf01="avg(mf01)", mf02="avg(mf02)", mf03="avg(mf03)")
        .sink("noop")
    )


QUERIES: dict[str, Callable[[], Graph]] = {
    "CM1": _cm1,
    "CM2": _cm2,
    "SG1": _sg1,
    "SG2": _sg2,
    "SG3": _sg3,
    "LRB1": _lrb1,
    "LRB2": _lrb2,
    "LRB3": _lrb3,
    "YSB": _ysb,
    "NQ5": _nq5,
    "SM": _sm,
}
"""The graphs by the queries' names."""


def from_parquet(query: Graph, **options: str) -> Graph:
    """Return a query of Parquet files that Penstock reads, with the options of its source."""

    def change(node: Node) -> Node:
        if not isinstance(node, Source):
            return node
        return replace(node, kind="parquet", options=tuple(options.items()))

    return replace(query, root=rebuild(query.root, change))
