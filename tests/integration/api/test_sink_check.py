"""Sinks that are connected to before a changefeed is stored, on real servers; and tables that cannot be replicated."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import pymysql
import pytest

from compose.capture.api.backend import ApiBackend
from compose.changefeeds import TableIneligibleError, check_eligible
from compose.ports import free_ports
from compose.sink_check import SameClusterError, SinkRefusedError, check_other_cluster, check_sink
from compose.stack.local import Addresses
from compose.stack.mariadb import LocalMariaDb
from consumers.control.api.bodies import FeedRequest
from consumers.control.changefeeds.store import ChangefeedRequest
from consumers.control.changefeeds.verbs import ConfigChange
from edges.zookeeper.session import Session
from producers.region_server.server import RegionServer
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from tests.support.control.memory_bus import ME
from tests.support.control.served_bus import places_of
from tests.support.database.mariadb import mariadb as mariadb
from tests.support.rawlog.raw_log import RawLog, create_topic, recorded

OURS = 7_300_000_000_000_000_001


def info_at(uri: str, config: dict[str, Any] | None = None, zone: str = "UTC") -> ChangefeedInfo:
    return ChangefeedInfo(
        changefeed_id="cf",
        namespace="default",
        upstream=UpstreamId("u"),
        sink_uri=uri,
        config=config or {},
        start_ts=Ts(1),
        time_zone=zone,
    )


def check(uri: str, config: dict[str, Any] | None = None, *, zone: str = "UTC") -> None:
    check_sink(info_at(uri, config, zone), lambda: OURS)


def tidb_of(cluster_id: int) -> tuple[str, str]:
    """Return what makes a server say that it belongs to a TiDB cluster."""
    return (
        "CREATE TABLE mysql.tidb (VARIABLE_NAME VARCHAR(64), VARIABLE_VALUE VARCHAR(64))",
        f"INSERT INTO mysql.tidb VALUES ('cluster_id', '{cluster_id}'), ('other', '1')",
    )


def run(mariadb: LocalMariaDb, *statements: str) -> None:
    connection = mariadb.connect()
    try:
        with connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
        connection.commit()
    finally:
        connection.close()


def test_kafka_sink_is_asked_for_its_topic_and_nothing_is_made(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    missing, there = fresh_name("missing"), fresh_name("there")
    create_topic(stack.kafka, there, 2)
    uri = f"kafka://{stack.kafka}/{{}}?protocol=canal-json"
    for topic in (missing, there):
        check(uri.format(topic))
    with pytest.raises(SinkRefusedError, match=r"sorter\.topic_missing"):  # and so the first look has made none
        check(uri.format(missing) + "&auto-create-topic=false")
    with pytest.raises(SinkRefusedError, match=r"sorter\.topic_partitions"):
        check(uri.format(there) + "&partition-num=3")


def test_kafka_sink_that_nobody_listens_at_is_refused() -> None:
    (port,) = free_ports(1)
    with pytest.raises(SinkRefusedError, match="kafka_unreachable"):
        check(f"kafka://127.0.0.1:{port}/t?protocol=canal-json&sasl-user=u&sasl-password=hidden&sasl-mechanism=PLAIN")


def test_sink_whose_secrets_are_elsewhere_is_left_to_who_has_them(caplog: pytest.LogCaptureFixture) -> None:
    check("kafka://127.0.0.1:1/t?protocol=canal-json&sasl-user=u&sasl-password=${env:TIDEBUS_SECRET_NOWHERE}")
    assert "sink is not tried" in caplog.text


def test_storage_sink_whose_place_is_taken_is_refused(tmp_path: Any) -> None:
    (tmp_path / "file").write_text("")
    check(f"file://{tmp_path}/folder?protocol=csv")
    with pytest.raises(SinkRefusedError, match=r"storage\."):
        check(f"file://{tmp_path}/file?protocol=csv")


def test_database_sink_is_logged_into_in_its_zone(mariadb: LocalMariaDb) -> None:
    check(mariadb.uri())
    with pytest.raises(SinkRefusedError, match="destination_refused") as caught:
        check(mariadb.uri(user="nobody", password="hidden"))
    assert "hidden" not in str(caught.value)
    connection = mariadb.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET SESSION time_zone = 'Asia/Shanghai'")
    except pymysql.MySQLError:  # its tables of zones are not loaded: what a changefeed in this zone would meet
        with pytest.raises(SinkRefusedError, match="time zone"):
            check(mariadb.uri(), zone="Asia/Shanghai")
    else:
        check(mariadb.uri(), zone="Asia/Shanghai")
    finally:
        connection.close()
    check(mariadb.uri("time-zone="), zone="Asia/Shanghai")


def test_database_sink_that_cannot_mark_our_writes_is_refused_for_bdr_mode(mariadb: LocalMariaDb) -> None:
    check(mariadb.uri(), {"bdr-mode": False})
    with pytest.raises(SinkRefusedError, match="tidb_cdc_write_source"):
        check(mariadb.uri(), {"bdr-mode": True})


def test_database_sink_that_is_the_upstream_is_refused(mariadb: LocalMariaDb) -> None:
    """A TiDB says who it is in a table; a keyspace of another name would be another cluster, but MariaDB has none."""
    run(mariadb, *tidb_of(OURS))
    try:
        with pytest.raises(SameClusterError):
            check(mariadb.uri())
        run(mariadb, f"UPDATE mysql.tidb SET VARIABLE_VALUE = '{OURS + 1}' WHERE VARIABLE_NAME = 'cluster_id'")
        check(mariadb.uri())
    finally:
        run(mariadb, "DROP TABLE mysql.tidb")


def keyless_log(kafka: str, upstream: str) -> None:
    """Write a raw log with `sb.sbtest1`, and `sb.log`, which has no key."""
    keyed = recorded("sbtest1")[0]
    keyless = {
        **keyed,
        "id": keyed["id"] + 1,
        "name": {"O": "log", "L": "log"},
        "pk_is_handle": False,
        "is_common_handle": False,
        "index_info": None,
        "cols": [{**column, "type": {**column["type"], "Flag": 0}} for column in keyed["cols"]],
    }
    RawLog(kafka, upstream).snapshot([keyed, keyless])


def test_changefeed_that_is_changed_or_goes_on_is_checked_as_one_that_is_created(
    stack: Addresses, fresh_name: Callable[[str], str], mariadb: LocalMariaDb
) -> None:
    upstream = fresh_name("checked")
    keyless_log(stack.kafka, upstream)
    uri, ignoring = mariadb.uri(), {"ignore-ineligible-table": True}
    with RegionServer() as server, Session(stack.zookeeper_access) as session:
        places = places_of(server.pd_address, stack.kafka, stack.zookeeper, fresh_name("cluster"), upstream)
        with closing(ApiBackend(session, ME, replace(places, tries_sinks=True), lambda: False)) as bus:
            asked = FeedRequest(
                namespace="default",
                changefeed_id="cf",
                start_ts=None,
                target_ts=None,
                sink_uri=uri,
                config=ignoring,
                pd_addresses=(),
            )
            bus.create(asked, "default")
            bus.pause("cf", "default")
            with pytest.raises(TableIneligibleError, match=r"sb\.log"):
                bus.configure("cf", "default", ConfigChange(config={}))
            bus.configure("cf", "default", ConfigChange(config={"filter": {"rules": ["sb.sb*"]}}))
            ours = bus.upstream_id(UpstreamId(upstream))
            assert ours
            run(mariadb, *tidb_of(ours))
            try:
                with pytest.raises(SameClusterError):
                    bus.resume("cf", "default", None)
                assert bus.feed("cf", "default").info.desired_state == "stopped"
            finally:
                run(mariadb, "DROP TABLE mysql.tidb")
            bus.resume("cf", "default", None)
            assert bus.feed("cf", "default").info.desired_state == "normal"


def test_sink_that_does_not_answer_keeps_no_changefeed_from_going_on(caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)
    check_other_cluster(info_at(f"mysql://root@127.0.0.1:{port}/"), lambda: OURS)
    assert "does not say which cluster" in caplog.text


def test_tables_without_a_usable_key_are_refused_unless_the_settings_say_what_to_do(
    stack: Addresses, fresh_name: Callable[[str], str]
) -> None:
    upstream = fresh_name("keyless")
    keyless_log(stack.kafka, upstream)

    def refused(**config: Any) -> bool:
        request = ChangefeedRequest(
            upstream=UpstreamId(upstream),
            sink_uri="kafka://127.0.0.1:9092/t?protocol=canal-json",
            config=config,
        )
        try:
            check_eligible(stack.kafka_access, request)
        except TableIneligibleError as error:
            assert "sb.log" in str(error) and "sbtest" not in str(error)
            return True
        return False

    assert refused()
    assert not refused(**{"ignore-ineligible-table": True})
    assert not refused(**{"force-replicate": True})
    assert not refused(filter={"rules": ["sb.sb*"]})
