"""The zone of TIMESTAMPs: where its name comes from, that it stays with the changefeed, and what is written in it."""

import json
import pickle
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from compose.capture.settings.server_zone import server_zone
from schemas.config.changefeed import load_changefeed
from schemas.config.zone import check_zone, session_zone
from schemas.errors import ConfigError
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, decode_changefeed_info, encode_changefeed_info
from schemas.sink.topic import sorter_config
from schemas.tidb.keys import row_key
from schemas.tidb.packed_time import pack_time
from schemas.tidb.row_v2 import encode_row_v2
from schemas.tidb.time_zone import load_zone, zone_names
from sorters.core.feed.feed import compile_feed
from sorters.core.mount.mounter import SMALL_ROWS
from tests.support.rawlog.row_records import records_of
from tests.support.recorded.ddl_jobs import PRIMARY, column, snapshot, table_info
from tests.support.recorded.mounting import row_changes
from tests.support.recorded.recording import CommittedChange

TABLE_ID = TableId(112)
COLUMNS = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "t", tp=7)]
COUNTS = pytest.mark.parametrize("count", [1, 3 * SMALL_ROWS], ids=["scalar", "columnar"])
SHANGHAI = "Asia/Shanghai"


def info_of(uri: str, zone: str) -> ChangefeedInfo:
    return ChangefeedInfo(
        changefeed_id="a", upstream=UpstreamId("u"), sink_uri=uri, start_ts=Ts(7), create_time="t", time_zone=zone
    )


def written(uri: str, zone: str, count: int, config: dict[str, Any] | None = None) -> list[bytes]:
    """Return the messages of rows that all were at 2024-06-30 20:00:00 UTC."""
    placed = [spec | {"offset": offset} for offset, spec in enumerate(COLUMNS)]
    store = snapshot(("d", 1, [table_info(TABLE_ID, "t", columns=placed)]))
    value = encode_row_v2({2: pack_time(2024, 6, 30, 20).to_bytes(8, "little")})
    changes = [CommittedChange(109, 108, row_key(TABLE_ID, number), "put", value, b"", 0) for number in range(count)]
    feed = compile_feed(sorter_config(load_changefeed(uri, config), info_of(uri, zone), "h:1"), "default")
    feed = replace(feed, partitions={feed.default_topic: 1})
    records = records_of(row_changes(TABLE_ID, changes), store, feed, encoded_at_ms=1)
    return [value or b"" for value in records.column("value").to_pylist()]


@pytest.mark.parametrize("name", ["+08:00", "asia/shanghai", "../../etc/passwd", "/etc/localtime", "CST6", "Local", ""])
def test_a_name_that_the_database_does_not_have_is_no_zone(name: str) -> None:
    with pytest.raises(ConfigError, match="no such time zone"):
        load_zone(name)


def test_a_zone_is_found_by_its_name_in_another_process_too() -> None:
    zone = load_zone(SHANGHAI)
    assert pickle.loads(pickle.dumps(zone)) is zone
    assert str(zone) == SHANGHAI
    assert load_zone("Etc/UTC") is load_zone("UTC") is UTC
    assert {SHANGHAI, "America/Argentina/Buenos_Aires", "UTC"} <= zone_names()


def test_the_machines_zone_is_that_of_tz_or_of_where_localtime_leads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "zoneinfo/America/Argentina/Buenos_Aires"
    file.parent.mkdir(parents=True)
    file.touch()
    (tmp_path / "localtime").symlink_to(file)
    monkeypatch.delenv("TZ", raising=False)
    for word in ("System", "local", ""):
        assert server_zone(word, tmp_path / "localtime") == "America/Argentina/Buenos_Aires"
    for value, name in ((":Asia/Shanghai", SHANGHAI), ("", "UTC"), ("nonsense", "UTC"), (str(file), file.name)):
        monkeypatch.setenv("TZ", value)
        named = server_zone("System", tmp_path / "localtime")
        assert named.rpartition("/")[2] == name.rpartition("/")[2]
    assert server_zone("Europe/Berlin") == "Europe/Berlin"
    with pytest.raises(ConfigError, match="no such time zone"):
        server_zone("Europe/Nowhere")


def test_the_zone_stays_with_the_changefeed_and_is_utc_where_no_version_has_named_one() -> None:
    node = encode_changefeed_info(info_of("kafka://h:1/t?protocol=canal-json", SHANGHAI))
    assert decode_changefeed_info(node).time_zone == SHANGHAI
    before = json.loads(node)
    del before["time_zone"]
    assert decode_changefeed_info(json.dumps(before).encode()).time_zone == "UTC"


@COUNTS
@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("kafka://h:1/t?protocol=canal-json", '"t":"2024-07-01 04:00:00"'),
        ("kafka://h:1/t?protocol=open-protocol", '"v":"2024-07-01 04:00:00"'),
        ("kafka://h:1/t?protocol=simple", '"t":{"location":"Asia/Shanghai","value":"2024-07-01 04:00:00"}'),
        ("kafka://h:1/t?protocol=debezium", '"t":"2024-06-30T20:00:00Z"'),
        ("file:///d?protocol=csv", "2024-07-01 04:00:00"),
    ],
)
def test_timestamps_are_written_in_the_changefeeds_zone(
    uri: str, shown: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "America/New_York")  # which nobody looks at
    messages = written(uri, SHANGHAI, count)
    assert messages and all(shown.encode() in message for message in messages)
    assert all(b"2024-07-01" not in message for message in written(uri, "UTC", count))


@COUNTS
def test_a_database_gets_moments_and_value_expressions_see_the_zone(count: int) -> None:
    uri = "mysql://root@h/"
    for message in written(uri, SHANGHAI, count):
        assert b"2024-06-30 20:00:00" in message and b"07-01" not in message
    rule = {"matcher": ["*.*"], "ignore-insert-value-expr": "t >= '2024-07-01'"}
    config = {"filter": {"event-filters": [rule]}}
    for zone, expected in ((SHANGHAI, 0), ("UTC", count)):
        assert len(written(uri, zone, count, config)) == expected
        assert len(written("kafka://h:1/t?protocol=canal-json", zone, count, config)) == expected


@COUNTS
def test_unix_timestamp_of_a_moment_is_the_same_in_each_zone(count: int) -> None:
    rule = {"matcher": ["*.*"], "ignore-insert-value-expr": "unix_timestamp(t) = 1719777600"}
    config = {"filter": {"event-filters": [rule]}}
    for uri in ("mysql://root@h/", "kafka://h:1/t?protocol=canal-json"):
        assert written(uri, SHANGHAI, count, config) == written(uri, "UTC", count, config) == []
    local = rule | {"ignore-insert-value-expr": "unix_timestamp('2024-07-01 04:00:00') = 1719777600"}
    assert written("mysql://root@h/", SHANGHAI, count, {"filter": {"event-filters": [local]}}) == []


@pytest.mark.parametrize(
    ("parameter", "zone", "session"),
    [
        ("", SHANGHAI, SHANGHAI),
        ("?time-zone=", SHANGHAI, ""),
        ("?time-zone=SYSTEM", SHANGHAI, SHANGHAI),
        ("?time-zone=Asia/Shanghai", SHANGHAI, SHANGHAI),
        ("?time-zone=Asia/Shanghai", "UTC", None),
        ("?time-zone=Nowhere", "UTC", None),
    ],
)
def test_a_database_sinks_zone_is_the_changefeeds_or_the_servers(
    parameter: str, zone: str, session: str | None
) -> None:
    config = load_changefeed(f"mysql://root@h/{parameter}")
    if session is None:
        with pytest.raises(ConfigError, match=r"--tz|no such time zone"):
            check_zone(config, zone)
    else:
        check_zone(config, zone)
        assert session_zone(config, zone) == session


def test_another_sink_reads_no_zone_of_its_own() -> None:
    check_zone(load_changefeed("kafka://h:1/t?protocol=canal-json"), SHANGHAI)
    assert ZoneInfo(SHANGHAI).key == str(load_zone(SHANGHAI))
