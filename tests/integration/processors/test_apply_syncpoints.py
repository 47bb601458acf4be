"""Where syncpoints begin in a real MariaDB when their settings have changed: none says what was not so."""

from contextlib import closing
from dataclasses import dataclass, field

import pytest

from compose.stack.mariadb import LocalMariaDb
from consumers.processors.apply.destination import DatabaseDestination, PartitionPosition
from consumers.processors.apply.errors import ProcessorReplacedError
from consumers.processors.apply.syncpoints import SyncpointWriter
from consumers.processors.core.apply.partition import start_position, watermark_position
from consumers.processors.core.apply.statements import StatementSettings
from schemas.ids import Ts, compose_ts, physical_ms
from schemas.sink.position import RowOp
from tests.support.database.apply import Processor, rows, run_sql, table
from tests.support.database.apply_tables import A, feed, two_tables
from tests.support.database.mariadb import mariadb
from tests.support.database.verify import connector
from tests.support.topics.sink_log import SinkLog

__all__ = ["feed", "mariadb"]

START = start_position(Ts(1))


def at(seconds: int) -> Ts:
    return compose_ts(seconds * 1000)


@dataclass
class Changefeed:
    """One whose processors begin again and again, each time under another leader."""

    server: LocalMariaDb
    feed: str
    log: SinkLog = field(default_factory=SinkLog)
    seen: list[tuple[int, list[int]]] = field(default_factory=list)
    """Syncpoints in seconds, and the rows that were there then: their ids are the seconds at which they came."""
    leaders: int = 0

    def rows(self, *seconds: int, upto: int) -> None:
        """Write rows into the first partition; the second stays empty."""
        for second in seconds:
            self.log.rows(0, A, at(second), (RowOp.INSERT, str(second), f"({second},0)"))
        self.log.watermark(at(upto))

    def processor(self, interval_s: int) -> Processor:
        seen, server = self.seen, self.server

        class Seeing(SyncpointWriter):
            def write(self, ts: Ts) -> None:
                seen.append((physical_ms(ts) // 1000, sorted(key for key, _ in table(server, "d.a"))))
                super().write(ts)

        def syncpoints(destination: DatabaseDestination) -> SyncpointWriter:
            return Seeing(
                destination=destination,
                cluster="default",
                changefeed_id=self.feed,
                namespace="default",
                start_ts=Ts(1),
                interval_s=interval_s,
                retention_s=3600,
            )

        self.leaders += 1
        return Processor(
            server, self.log, self.feed, revision=self.leaders, syncpoints=syncpoints if interval_s else None
        )

    def apply(self, interval_s: int, upto: int) -> list[tuple[int, list[int]]]:
        """Apply all up to a second with syncpoints (0: without), and return those that were written."""
        self.seen.clear()
        self.processor(interval_s).apply(at(upto))
        return list(self.seen)


@pytest.fixture
def changefeed(mariadb: LocalMariaDb, feed: str) -> Changefeed:
    two_tables(mariadb)
    return Changefeed(mariadb, feed)


@pytest.mark.parametrize("former_s", [0, 60], ids=["none", "a longer interval"])
def test_syncpoints_that_are_wanted_later_begin_above_what_the_destination_holds(
    changefeed: Changefeed, former_s: int
) -> None:
    changefeed.rows(10, 70, 95, upto=95)
    assert [second for second, _ in changefeed.apply(former_s, 95)] == ([60] if former_s else [])
    gone = changefeed.processor(30)
    gone.open()
    gone.close()  # before it has written one
    changefeed.rows(100, 120, 121, upto=155)
    assert changefeed.apply(30, 155) == [(120, [10, 70, 95, 100, 120]), (150, [10, 70, 95, 100, 120, 121])]


def test_syncpoints_that_were_not_wanted_for_a_while_leave_out_what_has_passed(changefeed: Changefeed) -> None:
    changefeed.rows(10, 31, upto=40)
    assert changefeed.apply(30, 40) == [(30, [10])]
    changefeed.rows(61, 95, upto=95)
    assert changefeed.apply(0, 95) == []
    changefeed.rows(119, upto=125)
    assert changefeed.apply(30, 125) == [(120, [10, 31, 61, 95, 119])]


@pytest.mark.parametrize("former", ["DROP TABLE tidebus.syncpoint_start", "DELETE FROM tidebus.syncpoint_start"])
def test_syncpoints_after_a_release_that_notes_no_interval_begin_above_what_the_destination_holds(
    changefeed: Changefeed, former: str
) -> None:
    changefeed.rows(10, upto=40)
    assert changefeed.apply(30, 40) == [(30, [10])]
    changefeed.rows(61, 95, upto=95)
    assert changefeed.apply(0, 95) == []  # as it would with other syncpoints
    run_sql(changefeed.server, former)
    changefeed.rows(96, upto=125)
    assert changefeed.apply(30, 125) == [(120, [10, 61, 95, 96])]


def test_no_syncpoint_is_left_out_for_a_partition_that_is_ahead_without_rows(changefeed: Changefeed) -> None:
    changefeed.rows(10, upto=40)
    assert changefeed.apply(30, 40) == [(30, [10])]
    ahead = watermark_position(at(200)).hex()
    run_sql(
        changefeed.server,
        f"UPDATE tidebus.position SET position = x'{ahead}', commit_ts = {at(200)}"
        f" WHERE feed = '{changefeed.feed}' AND part = 1",
    )
    changefeed.rows(61, 91, upto=95)
    assert changefeed.apply(30, 95) == [(60, [10]), (90, [10, 61])]


@pytest.mark.parametrize(
    ("former_ms", "ms", "is_fenced"),
    [(0, 30_000, True), (60_000, 30_000, True), (30_000, 30_000, False), (30_000, 0, False), (0, 0, False)],
)
def test_whoever_had_a_partition_writes_no_more_once_there_are_other_syncpoints(
    mariadb: LocalMariaDb, feed: str, former_ms: int, ms: int, is_fenced: bool
) -> None:
    """What it writes now may be above the next one."""
    former, later = (DatabaseDestination(connector(mariadb), feed, number, StatementSettings()) for number in (1, 2))
    former.lead(2, START, former_ms)
    former.take([1], 1)
    assert later.lead(2, START, ms).syncpoints_from == (1 if ms else 0)
    with closing(former.connect()) as connection:
        if is_fenced:
            with pytest.raises(ProcessorReplacedError):
                former.keep(connection, 1, START, PartitionPosition(watermark_position(Ts(9)), 1))
            with pytest.raises(ProcessorReplacedError):
                former.take([1], 1)
        else:
            former.keep(connection, 1, START, PartitionPosition(watermark_position(Ts(9)), 1))


def _write(server: LocalMariaDb, feed: str, cluster: str, namespace: str) -> None:
    destination = DatabaseDestination(connector(server), f"{cluster}/{namespace}/{feed}", 1, StatementSettings())
    destination.lead(2, START)
    SyncpointWriter(
        destination=destination,
        cluster=cluster,
        changefeed_id=feed,
        namespace=namespace,
        start_ts=Ts(1),
        interval_s=30,
        retention_s=86400,
    ).write(at(60))


def test_syncpoints_of_one_id_in_two_namespaces_are_two(mariadb: LocalMariaDb, feed: str) -> None:
    """The namespace `default` has the id alone, as TiCDC's classic architecture and the release before."""
    for namespace in ("default", "team2", "default"):
        _write(mariadb, feed, "c", namespace)
    sql = f"SELECT ticdc_cluster_id, changefeed, primary_ts FROM tidb_cdc.syncpoint_v1 WHERE changefeed LIKE '%{feed}'"
    assert sorted(rows(mariadb, sql)) == [("c", feed, str(at(60))), ("c", f"team2/{feed}", str(at(60)))]


def test_syncpoint_that_another_cluster_has_written_is_warned_of(
    mariadb: LocalMariaDb, feed: str, caplog: pytest.LogCaptureFixture
) -> None:
    _write(mariadb, feed, "c", "default")
    _write(mariadb, feed, "c", "default")
    assert not caplog.records
    _write(mariadb, feed, "other", "default")
    (said,) = [vars(record) for record in caplog.records]
    assert (said["cluster"], said["holder"], said["primary_ts"]) == ("other", f"c {feed}", at(60))


def test_syncpoints_under_a_name_longer_than_the_column_are_found_again(
    mariadb: LocalMariaDb, feed: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A namespace and an id of 128 characters each, and the sign between them: two more than TiCDC's column takes."""
    namespace, long = "n" * 128, feed.ljust(128, "f")
    name = f"{namespace}/{long}"[:255]
    _write(mariadb, long, "c", namespace)
    run_sql(
        mariadb,
        "UPDATE tidb_cdc.syncpoint_v1 SET primary_ts = '1', created_at = NOW() - INTERVAL 2 DAY"
        f" WHERE changefeed = '{name}'",
    )
    for _ in range(2):
        _write(mariadb, long, "c", namespace)
    sql = f"SELECT primary_ts FROM tidb_cdc.syncpoint_v1 WHERE changefeed = '{name}'"
    assert rows(mariadb, sql) == [(str(at(60)),)]
    assert not caplog.records
