"""What ``tidebus verify`` decides without a server: columns, keys, buckets, tables, partitions, exit statuses."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from compose.cli import run_cli
from compose.operator.verify import STATUS_DIFFERENT, STATUS_NOT_COMPARED, exit_status, notes, table_pairs
from consumers.processors.apply.errors import DestinationRefusedError, DestinationUnreachableError
from consumers.verify.core.columns import ColumnRow, KeyRow, compared, compared_in_messages
from consumers.verify.core.differences import (
    HashedRow,
    KeyDifference,
    bucket_shift,
    differing_buckets,
    key_differences,
)
from consumers.verify.core.images import ImagesToCome, judged
from consumers.verify.core.outcome import TableOutcome, Verdict
from consumers.verify.reader import Name
from consumers.verify.tidb_source import TidbSource
from schemas.config.changefeed import load_changefeed
from schemas.errors import BusError, ConfigError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.topic import PARTITIONS, sorter_config
from schemas.state_proof.proof_sql import Dialect
from schemas.state_proof.row_text import TableProof
from sorters.core.route.dispatch import Dispatcher
from tests.support.recorded.tables import make_table

URI = "mysql://u:p@127.0.0.1:3306/"
COLUMNS = (
    ColumnRow("id", "bigint", ""),
    ColumnRow("Doc", "json", ""),
    ColumnRow("twice", "bigint", "VIRTUAL GENERATED"),
    ColumnRow("thrice", "bigint", "STORED GENERATED"),
)


def names(columns: object) -> list[str]:
    assert isinstance(columns, tuple)
    return [column.name for column in columns]


def test_compared_columns_are_those_that_rows_hold_and_the_destination_has() -> None:
    what = compared(COLUMNS, [KeyRow("PRIMARY", "id", False)], ["ID", "doc", "twice", "more"], Dialect.MARIADB)
    assert names(what.columns) == ["id", "Doc"]
    assert (what.missing, what.left_out, what.range_column, what.has_key) == (("thrice",), (), "id", True)


def test_compared_columns_of_a_mysql_leave_json_out() -> None:
    what = compared(COLUMNS, [], ["id", "doc", "thrice"], Dialect.MYSQL)
    assert (names(what.columns), what.left_out) == (["id", "thrice"], ("Doc",))


@pytest.mark.parametrize(
    ("key", "has_key", "parts"),
    [
        ([KeyRow("PRIMARY", "b", False), KeyRow("PRIMARY", "a", False), KeyRow("u", "c", False)], True, ["b", "a"]),
        ([KeyRow("n", "a", True), KeyRow("u", "c", False)], True, ["c"]),
        ([KeyRow("n", "a", False), KeyRow("n", "b", True)], False, ["a", "b", "c"]),
        ([KeyRow("PRIMARY", "gone", False)], False, ["a", "b", "c"]),
    ],
)
def test_compared_key_is_the_first_index_without_null(key: list[KeyRow], has_key: bool, parts: list[str]) -> None:
    columns = [ColumnRow("a", "int", ""), ColumnRow("b", "varchar(9)", ""), ColumnRow("c", "int", "")]
    what = compared(columns, key, ["a", "b", "c"], Dialect.TIDB)
    assert (what.has_key, names(what.key)) == (has_key, parts)
    assert what.range_column == (parts[0] if has_key and parts[0] != "b" else None)


@pytest.mark.parametrize(
    ("key", "left_out", "parts"),
    [
        ([KeyRow("PRIMARY", "id", False), KeyRow("u", "Doc", False)], {"doc"}, ["id"]),
        ([KeyRow("PRIMARY", "thrice", False), KeyRow("u", "id", False)], {"thrice"}, None),
        ([KeyRow("u", "id", False), KeyRow("w", "thrice", False)], {"thrice"}, None),
        ([KeyRow("n", "thrice", True), KeyRow("u", "id", False)], {"thrice", "doc"}, ["id"]),
        ([KeyRow("PRIMARY", "id", False)], {"id", "doc", "thrice"}, None),
        ([KeyRow("PRIMARY", "id", False)], set(), ["id"]),
    ],
)
def test_compared_in_messages_are_the_columns_that_selectors_keep_if_they_keep_the_key(
    key: list[KeyRow], left_out: set[str], parts: list[str] | None
) -> None:
    what = compared_in_messages(COLUMNS, key, lambda column: column.lower() not in left_out)
    stored = ["id", "Doc", "thrice"]
    assert names(what.columns) == [name for name in stored if name.lower() not in left_out]
    assert (list(what.left_out), what.missing) == ([name for name in stored if name.lower() in left_out], ())
    assert (names(what.key) if what.has_key else None) == parts


def test_compared_in_messages_pass_over_the_type_of_a_column_that_is_left_out() -> None:
    odd = (ColumnRow("id", "int", ""), ColumnRow("place", "geometry", ""))
    what = compared_in_messages(odd, [KeyRow("PRIMARY", "id", False)], lambda column: column == "id")
    assert (names(what.columns), what.left_out) == (["id"], ("place",))


def test_differing_buckets_are_all_that_differ_until_there_are_too_many_rows() -> None:
    source = {1: TableProof(3, 7), 2: TableProof(2, 1), 4: TableProof(1, 5)}
    destination = {1: TableProof(3, 7), 2: TableProof(2, 9), 9: TableProof(1, 1)}
    assert differing_buckets(source, destination, 100) == ([2, 4, 9], True)
    assert differing_buckets(source, destination, 3) == ([2, 4], False)
    assert differing_buckets(source, destination, 1) == ([2], False)


def test_buckets_are_never_shifted_to_none_or_away() -> None:
    for rows in range(0, 5_000_000, 9_973):
        assert 48 <= bucket_shift(rows) <= 63


def test_key_differences_tell_missing_extra_changed_and_repeated_rows_in_the_keys_order() -> None:
    source = [HashedRow(1, ("10",)), HashedRow(2, ("9",)), HashedRow(3, ("a",)), HashedRow(4, (None,))]
    destination = [HashedRow(1, ("10",)), HashedRow(5, ("9",)), HashedRow(6, ("-2",)), *[HashedRow(4, (None,))] * 2]
    assert key_differences(source, destination) == [
        KeyDifference((None,), "repeated"),
        KeyDifference(("-2",), "extra"),
        KeyDifference(("9",), "differs"),
        KeyDifference(("a",), "missing"),
    ]


class Tables:
    def __init__(self, *tables: Name) -> None:
        self._tables = tables

    def tables(self) -> list[Name]:
        return list(self._tables)

    @contextmanager
    def at(self, ts: Ts) -> Iterator["Tables"]:
        assert ts == 0
        yield self


def test_table_pairs_follow_filter_and_routes_and_the_sorters_partition() -> None:
    toml = {
        "filter": {"rules": ["shop.*", "!shop.log*"]},
        "sink": {"dispatchers": [{"matcher": ["shop.*"], "target-schema": "copy", "target-table": "{table}_2"}]},
    }
    config = load_changefeed(URI, toml)
    source = Tables(("shop", "orders"), ("shop", "logins"), ("mysql", "user"), ("shop", "items"))
    pairs = table_pairs(config, source.at, ())  # type: ignore[arg-type]
    assert [(pair.source, pair.destination) for pair in pairs] == [
        (("shop", "orders"), ("copy", "orders_2")),
        (("shop", "items"), ("copy", "items_2")),
    ]
    info = ChangefeedInfo(changefeed_id="f", upstream=UpstreamId("u"), sink_uri=URI, config=toml, start_ts=Ts(1))
    sorters = Dispatcher(sorter_config(config, info, "k:9092"))
    for pair in pairs:
        schema, table = pair.source
        route = sorters.route(make_table(["id"], schema=schema, name=table, pk_is_handle="id"))
        assert pair.partition_of(PARTITIONS) == route.partition([], Ts(5), PARTITIONS)
    with pytest.raises(ConfigError):
        table_pairs(config, source.at, ("shop.logins",))  # type: ignore[arg-type]


def test_notes_name_settings_by_which_a_destination_lawfully_differs() -> None:
    assert notes(load_changefeed(URI)) == []
    toml = {
        "filter": {"ignore-txn-start-ts": [5], "event-filters": [{"matcher": ["a.b"], "ignore-event": ["delete"]}]},
    }
    assert len(notes(load_changefeed(URI, toml))) == 2


def test_exit_status_of_a_difference_goes_before_what_was_not_compared() -> None:
    same, different, unknown = Verdict.SAME, Verdict.DIFFERENT, Verdict.NOT_COMPARED
    assert [exit_status(verdicts) for verdicts in ([], [same], [same, unknown], [unknown, different])] == [
        0,
        0,
        STATUS_NOT_COMPARED,
        STATUS_DIFFERENT,
    ]


@pytest.mark.parametrize(
    "dsn", ["", "kafka://h:9092/secretword", "mysql://u:secretword@no host/", "secretword", "tidb://u:secretword@h:x/"]
)
def test_verify_command_of_no_tidbs_address_is_refused_and_shows_no_part_of_it(
    dsn: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["verify", "--changefeed", "f", "--zookeeper", "127.0.0.1:1", "--upstream-dsn", dsn]) == 2
    said = capsys.readouterr().err
    assert "--upstream-dsn" in said and "secretword" not in said


def _images(left: int, *names: str) -> ImagesToCome:
    feed = {"namespace": "n", "id": "f", "tables_left": left, "tables": [{"name": name} for name in names]}
    others = {"namespace": "n", "id": "other", "tables_left": 9, "tables": [{"name": "d.c"}]}
    return ImagesToCome.read({"images": [others, feed]}, "n", "f")


@pytest.mark.parametrize(
    ("images", "table", "why"),
    [
        (ImagesToCome.read({}, "n", "f"), "d.a", ""),
        (_images(2, "d.a", "d.a"), "d.a", "its image is under way"),
        (_images(2, "d.a", "d.a"), "d.b", ""),
        (_images(3, "d.a", "d.a"), "d.b", "its image may be to come: of 3 tables images are not whole"),
        (_images(2, "d.a", "d.b"), "d.c", ""),
    ],
    ids=["none", "begun", "all begun", "others", "another changefeed"],
)
def test_a_difference_is_none_while_the_tables_image_is_not_whole(images: ImagesToCome, table: str, why: str) -> None:
    seen = TableOutcome(source=table, destination="x.y", verdict=Verdict.DIFFERENT, source_proof=TableProof(9, 1))
    assert images.why(table) == why
    said = judged(seen, images)
    assert (said == seen) == (not why)
    if why:
        assert (said.verdict, said.reason.startswith(why)) == (Verdict.NOT_COMPARED, True)
        assert "9 rows, at the destination 0" in said.reason
    same = TableOutcome(source=table, destination="x.y", verdict=Verdict.SAME)
    assert judged(same, images) is same


def test_verify_command_that_has_compared_nothing_does_not_say_that_all_is_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("compose.operator.verify.verify", lambda *_: 0)
    given = ["--changefeed", "f", "--zookeeper", "127.0.0.1:1", "--upstream-dsn", "tidb://h:4000/"]
    assert run_cli(["verify", *given]) == STATUS_NOT_COMPARED
    assert "no tables upstream, so nothing is compared" in capsys.readouterr().err


@pytest.mark.parametrize("kind", [DestinationUnreachableError, DestinationRefusedError])
def test_source_that_lets_nobody_in_is_not_called_the_destination(kind: type[BusError]) -> None:
    def connect(*, multi_statements: bool = False) -> Any:
        raise kind("destination does not answer or refuses for now", address="h:4000", reason="2003")

    with pytest.raises(kind, match=r"the source, .*side=source, address=h:4000") as caught, TidbSource(connect)(Ts(0)):
        pass
    assert "destination" not in str(caught.value).removeprefix(f"[{kind.code}]")
