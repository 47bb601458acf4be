"""Sink URIs and settings of MySQL and TiDB sinks."""

from dataclasses import replace

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.errors import ConfigError
from schemas.ids import Ts, UpstreamId
from schemas.masking import mask_uri
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.topic import life_of, sink_topic, sorter_config
from sorters.core.encode.sql.rows import SqlRowsEncoder
from sorters.core.feed.feed import compile_feed


@pytest.mark.parametrize(
    ("uri", "host", "port", "tls", "is_tidb"),
    [
        ("mysql://root:p%40ss@db.example:3307/", "db.example", 3307, False, False),
        ("mysql+ssl://root:p%40ss@db.example/", "db.example", 3306, True, False),
        ("tidb://root:p%40ss@[::1]:4001", "::1", 4001, False, True),
        ("tidb+ssl://root:p%40ss@h?worker-count=4", "h", 4000, True, True),
    ],
)
def test_sink_uri_of_a_database_names_server_and_user(uri: str, host: str, port: int, tls: bool, is_tidb: bool) -> None:
    server = load_changefeed(uri).uri.server
    assert server is not None
    assert (server.host, server.port, server.tls, server.is_tidb) == (host, port, tls, is_tidb)
    assert (server.user, server.password.reveal()) == ("root", "p@ss")
    assert "p@ss" not in repr(server)
    assert "p%40ss" not in mask_uri(uri)


@pytest.mark.parametrize(
    ("uri", "port"),
    [("mysql://h/", 3306), ("mysql+ssl://h", 3306), ("mysql://h:3306/", None), ("tidb://h/", None)],
)
def test_port_that_is_not_named_and_is_not_ticdcs_is_told_of(uri: str, port: int | None) -> None:
    said = f"the sink URI names no port, and {port} is taken, where TiCDC takes 4000; write the port that is meant"
    assert load_changefeed(uri).notes == (() if port is None else (said,))


def test_sink_uri_of_a_database_sets_ticdcs_parameters_over_the_file() -> None:
    uri = "mysql://root@h/?worker-count=3&max-txn-row=20&safe-mode=true&time-zone=Asia/Shanghai&batch-dml-enable=false"
    uri += "&timeout=7s&read-timeout=8s"
    config = load_changefeed(uri, '[sink.mysql-config]\nworker-count = 9\nwrite-timeout = "30s"\nssl-ca = "/ca"')
    mysql = config.sink.mysql
    assert (mysql.worker_count, mysql.max_txn_row, config.sink.safe_mode) == (3, 20, True)
    assert (mysql.time_zone, mysql.enable_batch_dml) == ("Asia/Shanghai", False)
    assert [float(s) for s in (mysql.write_timeout_s, mysql.timeout_s, mysql.read_timeout_s)] == [30, 7, 8]
    assert mysql.ssl_ca == "/ca"


@pytest.mark.parametrize(
    ("uri", "text", "word"),
    [
        ("mysql://", "", "user:password@host:port"),
        ("mysql://root@h:99999/", "", "port"),
        ("mysql://root@h/?worker-count=0", "", "worker-count"),
        ("mysql://root@h/?protocol=canal-json", "", "protocol"),
        ("mysql://root@h/", '[sink]\nprotocol = "avro"', "no protocol"),
        (
            "mysql://root@h/",
            'enable-sync-point = true\nsync-point-interval = "5s"',
            "`sync-point-interval` must be at least 30s with enable-sync-point, got 5s",
        ),
        (
            "mysql://root@h/",
            'enable-sync-point = true\nsync-point-retention = "59m"',
            "`sync-point-retention` must be at least 1h with enable-sync-point, got 59m",
        ),
    ],
)
def test_settings_that_do_not_fit_a_database_are_refused(uri: str, text: str, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        load_changefeed(uri, text)


def test_sorter_of_a_database_sink_writes_literals_to_a_topic_of_the_changefeeds_life() -> None:
    uri = "mysql://root:hidden@h/"
    info = ChangefeedInfo(changefeed_id="a", upstream=UpstreamId("u"), sink_uri=uri, start_ts=Ts(7), create_time="t")
    config = sorter_config(load_changefeed(uri, '[[sink.dispatchers]]\nmatcher=["*.*"]\ntopic="x"'), info, "k:1,k:2")
    feed = compile_feed(config, "default")
    assert isinstance(feed.encoder, SqlRowsEncoder)
    assert feed.topic("d", "t") == sink_topic(info) == f"tidebus.sink.default.a.{life_of(info)}"
    assert config.uri.brokers == ("k:1", "k:2")
    lives = {sink_topic(info), sink_topic(replace(info, start_ts=Ts(8))), sink_topic(replace(info, create_time="u"))}
    assert len(lives) == 3
    long = replace(info, changefeed_id="a" * 128, namespace="b" * 128)
    assert len(sink_topic(long)) <= 249


def test_sorter_of_a_kafka_sink_runs_with_its_own_settings() -> None:
    uri = "kafka://h:9092/t?protocol=canal-json"
    info = ChangefeedInfo(changefeed_id="a", upstream=UpstreamId("u"), sink_uri=uri, start_ts=Ts(7))
    config = load_changefeed(uri)
    assert sorter_config(config, info, "k:1") is config


def test_settings_of_a_database_sink_that_change_nothing_are_noted() -> None:
    notes = load_changefeed("mysql://root@h:3306/?cache-prep-stmts=false&max-multi-update-row=7").notes
    assert [note.split(" has no effect")[0] for note in notes] == [
        "sink.mysql-config.max-multi-update-row",
        "sink.mysql-config.enable-cache-prepared-statement",
    ]
