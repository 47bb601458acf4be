"""Every DDL type that TiCDC replicates, and what `alter table` of an event filter covers, against TiCDC's own lists."""

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.config.filter.event_names import ALTER_TABLE_EVENTS, DDL_EVENT_OF_TYPE, EVENT_NAMES
from schemas.ddl.job import DDL_TYPE_NAMES, DdlType
from sorters.core.encode.wire.canal_types import ddl_event_type
from sorters.core.feed.ddl_filter import events_to_send
from sorters.core.feed.feed import compile_feed
from sorters.core.sql.restore import restore
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

# pingcap/ticdc `pkg/filter/ddl.go`, `ddlWhiteListMap`, by the numbers of pingcap/tidb `pkg/meta/model/job.go`; 63 since
# its pull request 6258 of September 2026.
ALLOWED = {
    *(1, 2, 26, 3, 60, 4, 11, 14, 47, 25, 17, 22, 21, 24, 19, 20, 23, 42, 64, 71, 72, 5, 6, 12, 15),
    *(13, 32, 33, 7, 8, 18, 41, 65, 67, 61, 63, 9, 10, 37, 38, 230, 231),
}
# pingcap/tiflow `pkg/filter/utils.go`, `alterTableSubType`.
ALTER_TABLE = {
    *(14, 47, 17, 22, 19, 20, 23, 42, 64, 71, 72, 5, 6, 12, 15, 13, 32, 33, 7, 8, 18, 41, 65, 67, 61, 37, 38),
}


def sent(type_id: int, query: str, ignored: list[str] | None = None) -> list[tuple[int, str]]:
    """Return type and statement of what goes downstream of a job on ``d.t``."""
    rules = [{"matcher": ["*.*"], "ignore-event": ignored}] if ignored else []
    config = load_changefeed("kafka://h:1/t?protocol=canal-json", {"filter": {"event-filters": rules}})
    store = snapshot(("d", 2, [table_info(9, "t")]))
    record = job(20, type_id, schema="d", schema_id=2, table_id=9, query=query, table_info=table_info(9, "t"))
    change = store.apply(record)
    if change is None:
        return []
    return [(event.ddl_type, event.query) for event in events_to_send(change, compile_feed(config, "default"))]


def test_the_types_are_ticdcs() -> None:
    assert {int(type_) for type_ in DdlType} == ALLOWED


def test_alter_table_covers_the_types_that_it_covers_in_ticdc() -> None:
    covered = {int(type_) for type_, name in DDL_TYPE_NAMES.items() if DDL_EVENT_OF_TYPE[name] in ALTER_TABLE_EVENTS}
    assert covered == ALTER_TABLE


def test_auto_increment_goes_downstream_as_an_alter() -> None:
    assert sent(13, "alter table t auto_increment = 5000") == [(13, "ALTER TABLE `t` AUTO_INCREMENT = 5000")]
    assert ddl_event_type(13) == "ALTER"
    for event in ("rebase auto id", "alter table", "all ddl"):
        assert sent(13, "alter table t auto_increment = 5000", [event]) == []


@pytest.mark.parametrize(
    ("query", "type_id", "event"),
    [
        ("ALTER TABLE t ADD FULLTEXT INDEX (v) WITH PARSER standard", 230, "add fulltext index"),
        (" create hybrid index i on t (v, id) parameter 'x'", 231, "create hybrid index"),
    ],
)
def test_an_index_that_tidb_has_no_type_for_is_told_by_its_statement(query: str, type_id: int, event: str) -> None:
    assert event in EVENT_NAMES
    ((kind, text),) = sent(75, query)
    assert kind == type_id
    assert "INDEX" in text.upper()
    assert sent(75, query, [event]) == []
    assert len(sent(75, query, ["alter table"])) == 1


def test_a_type_that_ticdc_does_not_replicate_stays_out() -> None:
    assert sent(30, "alter table t set tiflash replica 1") == []


def test_a_known_type_is_not_told_by_its_statement() -> None:
    ((kind, _),) = sent(17, "alter table t comment = 'ADD FULLTEXT INDEX'")
    assert kind == DdlType.MODIFY_TABLE_COMMENT


def test_force_auto_increment_is_restored_as_tidb_does() -> None:
    restored = "ALTER TABLE `t` /*T![force_inc] FORCE */ AUTO_INCREMENT = 12"
    assert restore("alter table t force auto_increment = 12") == restored
