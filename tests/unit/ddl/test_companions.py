"""DDL events and watermarks go to the partitions that the protocol says."""

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.job import DdlType
from schemas.ids import Ts
from schemas.sink.position import PositionClass, decode_position
from sorters.core.feed.companions import ddl_records, watermark_records
from sorters.core.feed.feed import compile_feed
from sorters.core.records.order import OutputRecords
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

AVRO = "protocol=avro&schema-registry=http://r:1&enable-tidb-extension=true"


def partitions_of(records: OutputRecords) -> list[tuple[str, int]]:
    return list(zip(records.column("topic").to_pylist(), records.column("partition").to_pylist(), strict=True))


# docs/formats/kafka-sink-protocols.md §0 (table), and §3 for Avro's test mode.
@pytest.mark.parametrize(
    ("protocol", "ddl", "watermark"),
    [
        ("protocol=canal-json&enable-tidb-extension=true", [0], [0, 1, 2]),
        ("protocol=canal-json", [0], []),
        (AVRO, [], []),
        ("protocol=canal", [0], []),
        ("protocol=open-protocol", [0, 1, 2], [0, 1, 2]),
        ("protocol=debezium", [0, 1, 2], []),
        ("protocol=debezium&enable-tidb-extension=true", [0, 1, 2], [0, 1, 2]),
        ("protocol=default", [0, 1, 2], [0, 1, 2]),
        ("protocol=simple", [0, 1, 2], [0, 1, 2]),
        ("protocol=simple&encoding-format=avro", [0, 1, 2], [0, 1, 2]),
        (f"{AVRO}&avro-enable-watermark=true", [0, 1, 2], [0, 1, 2]),
    ],
)
def test_ddl_and_watermarks_go_to_the_partitions_of_the_protocol(
    protocol: str, ddl: list[int], watermark: list[int]
) -> None:
    config = load_changefeed(f"kafka://h:1/t?{protocol}")
    feed = compile_feed(config, "default", {"t": 3})
    store = snapshot(("d", 1, []))
    info = table_info(200, "new")
    store.apply(
        job(20, DdlType.CREATE_TABLE, schema_id=1, table_id=200, query="CREATE TABLE new (x INT)", table_info=info)
    )
    records = ddl_records(store, Ts(10), Ts(30), feed, encoded_at_ms=1)
    assert partitions_of(records) == [("t", partition) for partition in ddl]
    positions = [decode_position(position) for position in records.column("position").to_pylist()]
    assert {(at.commit_ts, at.position_class) for at in positions} <= {(20, PositionClass.DDL)}
    assert partitions_of(watermark_records(Ts(30), ["t"], feed, 1)) == [("t", partition) for partition in watermark]
