"""The whole recording of a real TiDB goes to one that keeps databases and tables, by DDL that TiCDC recorded."""

import re
import ssl
from collections import Counter

import pytest

from consumers.processors.apply.errors import DdlRefusedError
from schemas.ids import Ts
from tests.support.database.apply import Processor
from tests.support.database.tidb_catalog import TIDB_VARIABLES, TidbCatalog
from tests.support.recorded.mounting import recorded_store
from tests.support.recorded.recorded_sink import recorded_sink_log
from tests.support.recorded.recording import oracle

DISCARDED = "discarded by ddl type/filter"
OF_NO_KEY = "DELETE FROM `d1`.`t_nopk` WHERE (`a`<=>"
APART = re.compile(r"ALTER TABLE \S+ ADD INDEX `\w+`\([^()]+\)$")
"""Built beside the rows, so its place among the others is not fixed."""


def test_the_recording_reaches_a_tidb_by_the_ddl_that_ticdc_sends_in_its_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Each of some 300 connections would read the machine's certificates, for a TLS that the server does not offer.
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: None)
    log, end_ts = recorded_sink_log(["*.*"], [], partitions=4, force_replicate=True)
    catalog = TidbCatalog()
    with catalog.serve() as server:
        Processor(server, log, "recorded").apply(end_ts)
        assert catalog.refused == []
        expected = _expected()
        assert [query for query in catalog.ddl if not APART.match(query)] == [
            query for query in expected if not APART.match(query)
        ]
        assert Counter(catalog.ddl) == Counter(expected)
        assert catalog.tables == _tables_of_upstream()
        assert set(catalog.rows) >= catalog.tables - {"tpcc.history_2024"}  # its rows came under its former name
        assert any(sql.startswith(OF_NO_KEY) and sql.endswith("*/ LIMIT 1") for sql in server.server.said)
        _each_session_is_set_up_as_a_tidbs(server.server.sessions)


def test_a_renamed_table_without_key_that_was_never_created_is_refused_as_a_ddl(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TiCDC sends the rename all the same; an operator skips it."""
    monkeypatch.setattr(ssl.SSLContext, "load_default_certs", lambda *_: None)
    log, end_ts = recorded_sink_log(["d1.t_nopk", "d2.t_nopk2"], [], partitions=1)
    catalog = TidbCatalog()
    with catalog.serve() as server, pytest.raises(DdlRefusedError, match=r"RENAME TABLE `d1`\.`t_nopk`"):
        Processor(server, log, "recorded").apply(end_ts)
    assert catalog.refused == ["RENAME TABLE `d1`.`t_nopk` TO `d2`.`t_nopk2`"]


def _expected() -> list[str]:
    return [
        event["restored_query"]
        for line in oracle("ddl_events")
        if line.get("not_sent") != DISCARDED
        for event in line["events"]
    ]


def _tables_of_upstream() -> set[str]:
    """Return what upstream has in the end of what is replicated, by its own schemas."""
    return {
        f"{stored.schema}.{stored.table}"
        for stored in recorded_store().stored_at(Ts(2**62))
        if stored.has_rows and stored.schema != "mysql"
    }


def _each_session_is_set_up_as_a_tidbs(sessions: list[list[str]]) -> None:
    working = [said for said in sessions if any(sql.startswith(("INSERT", "REPLACE", "CREATE TABLE")) for sql in said)]
    assert working
    for said in working:
        settings = " ".join(sql for sql in said if sql.startswith("SET SESSION"))
        assert all(name in settings for name in TIDB_VARIABLES), said[:8]
