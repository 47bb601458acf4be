"""What a syncpoint's writer does where a TiDB refuses one of its statements."""

import logging
from dataclasses import dataclass

import pytest

from consumers.processors.apply.connection import Connector
from consumers.processors.apply.destination import DatabaseDestination
from consumers.processors.apply.errors import DestinationRefusedError
from consumers.processors.apply.syncpoints import SyncpointWriter
from consumers.processors.core.apply.statements import StatementSettings
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts
from tests.support.database.fake_tidb import Affected, Answer, FakeTidb

TS = Ts(5 << 18)
SECONDARY = "449999999999999999"


@dataclass
class Tidb:
    """Answers as one that has the table of syncpoints."""

    external_ts: Answer = None

    def __call__(self, sql: str) -> Answer:
        if "tidb_current_ts" in sql:
            return [(SECONDARY,)]
        if "tidb_external_ts = " in sql:
            return self.external_ts
        if sql.startswith("INSERT IGNORE INTO tidb_cdc") or "tidebus.changefeed" in sql:
            return Affected(1)
        return [("1",)] if sql.startswith("SELECT") else None


def _write(server: FakeTidb) -> None:
    config = load_changefeed(server.uri)
    assert config.uri.server is not None
    destination = DatabaseDestination(Connector(config.uri.server, config), "feed", 1, StatementSettings())
    SyncpointWriter(
        destination=destination,
        cluster="c",
        changefeed_id="f",
        namespace="default",
        start_ts=Ts(1),
        interval_s=30,
        retention_s=60,
    ).write(TS)


@pytest.mark.parametrize(
    ("number", "warnings"), [(1193, 0), (1227, 1), (1142, 1)], ids=["unknown variable", "privilege", "command denied"]
)
def test_syncpoint_is_written_without_an_external_ts_and_a_missing_privilege_is_told(
    number: int, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    with FakeTidb(Tidb((number, "refused"))) as server:
        _write(server)
        assert "COMMIT" in [sql.upper() for sql in server.said]
    said = [vars(record) for record in caplog.records if record.levelno == logging.WARNING]
    assert [(line["errno"], line["primary_ts"]) for line in said] == [(number, TS)] * warnings


def test_syncpoint_whose_external_ts_is_refused_for_anything_else_stops_as_ticdcs() -> None:
    with FakeTidb(Tidb((1231, "can't be set to the value"))) as server, pytest.raises(DestinationRefusedError):
        _write(server)
    assert "COMMIT" not in [sql.upper() for sql in server.said]
