"""The recording as a sorter of a database sink would write it into its topic: encoded, joined, in order."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from compose.foresight.dry_run import prepare
from schemas.config.changefeed import load_changefeed
from schemas.errors import BusError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.topic import sorter_config
from sorters.core.records.order import OUTPUT_SCHEMA, sort_records
from sorters.core.records.row_batches import join_neighbours
from tests.support.recorded.recording import TIDB_DATA, oracle
from tests.support.topics.sink_log import SinkLog


@cache
def checks_by_ts() -> dict[int, list[dict[str, Any]]]:
    """Return what TiDB's own SELECT gave, by ts: table, columns, types, rows."""
    checks: dict[int, list[dict[str, Any]]] = {}
    for line in oracle("sql"):
        if line.get("check") and line.get("result"):
            checks.setdefault(int(line["read_ts"]), []).append(line)
    return dict(sorted(checks.items()))


def recorded_sink_log(
    rules: Sequence[str],
    cut_ts: Sequence[int],
    partitions: int = 16,
    routes: Sequence[Mapping[str, Any]] = (),
    *,
    force_replicate: bool = False,
) -> tuple[SinkLog, int]:
    """Return the log of a changefeed over the whole recording, cut at ``cut_ts``, and where it ends.

    Args:
        rules: of its filter.
        cut_ts: where cuts end.
        partitions: of its topic.
        routes: its dispatchers.
        force_replicate: with the tables that have no key.

    Raises:
        BusError: something would stop the changefeed.
    """
    uri = "mysql://root@unused/"
    info = ChangefeedInfo(changefeed_id="recorded", upstream=UpstreamId("u"), sink_uri=uri, start_ts=Ts(0))
    given = {
        "filter": {"rules": list(rules)},
        "sink": {"dispatchers": list(routes)},
        "force-replicate": force_replicate,
    }
    config = sorter_config(load_changefeed(uri, given), info, "unused:1")
    kafka = replace(config.sink.kafka, partition_num=partitions)
    config = replace(config, sink=replace(config.sink, kafka=kafka))
    dry = prepare(TIDB_DATA, config, refused=_refuse)
    joiner = dry.feed.encoder.joiner
    assert joiner is not None
    log, after_ts = SinkLog(partitions), dry.log.start_ts
    for upto_ts in sorted({*cut_ts, dry.log.end_ts}):
        records = sort_records(dry.cut(after_ts, Ts(upto_ts))).select(OUTPUT_SCHEMA.names).combine_chunks()
        for record in join_neighbours(records, joiner, lambda _: 10_000_000).to_pylist():
            log.add(record["partition"], record["position"], record["key"], record["value"])
        after_ts = Ts(upto_ts)
    return log, dry.log.end_ts


def _refuse(error: BusError) -> None:
    raise error
