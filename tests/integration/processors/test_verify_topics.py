"""``tidebus verify`` of topics: a real Kafka against a MariaDB that stands for the TiDB; what is planted is named."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from compose.operator import verify as operator_verify
from compose.operator.verify import VerifyOptions
from compose.operator.verify_topics import check_protocol, topic_check
from compose.stack.local import Addresses
from compose.stack.mariadb import LocalMariaDb
from consumers.verify.core.outcome import TableOutcome, Verdict, lines
from consumers.verify.core.proof_at import ProofAnswer
from consumers.verify.table_check import TablePair
from edges.zookeeper.access import ZooKeeperAccess
from schemas.config.changefeed import load_changefeed
from schemas.errors import ConfigError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ChangefeedStatus
from schemas.sink.image_note import IMAGES_HEADER, ImageNote
from schemas.sink.position import POSITION_HEADER, Position, PositionClass, RowOp
from schemas.state_proof.row_text import TableProof, row_hash
from tests.support.database.apply import run_sql
from tests.support.database.fake_tidb import FakeTidb
from tests.support.database.mariadb import mariadb
from tests.support.database.verify import MariaDbSource, played_tidb
from tests.support.rawlog.raw_log import create_topic

__all__ = ["mariadb"]

LAST, ROWS = Ts(100), 10
OPS = {"INSERT": RowOp.INSERT, "UPDATE": RowOp.UPDATE, "DELETE": RowOp.DELETE}
PAIR = TablePair(source=("u", "a"), destination=("d", "a"), partition_of=lambda _: 0)
Message = tuple[int, Position, dict[str, Any] | None, bytes]
"""Partition, position, JSON, and what a watermark says of images."""


def row(ts: int, op: str, number: int, kind: str, *, image: bool = False) -> Message:
    data = {"id": str(number), "v": str(number * 100), "kind": kind, "at": "2026-11-24 12:00:00"}
    types = {"id": "int", "v": "bigint", "kind": "enum", "at": "timestamp"}
    message = {
        "database": "d", "table": "a", "pkNames": ["id"], "isDdl": False, "type": op, "old": None,
        "mysqlType": types, "data": [data], "_tidb": {"commitTs": ts},
    }  # fmt: skip
    position = Position(Ts(ts), PositionClass.ROW, Ts(ts if image else ts - 1), OPS[op], b"%08d" % number)
    return number % 2, position, message, b""


def watermark(ts: int, images: bytes = b"") -> list[Message]:
    return [(partition, Position(Ts(ts), PositionClass.WATERMARK), {"isDdl": False}, images) for partition in (0, 1)]


def messages() -> list[Message]:
    """Rows of an image, and changes above it."""
    rows = [row(20, "INSERT", number, "2", image=True) for number in range(1, ROWS + 2)]
    return [*rows, *watermark(20), row(30, "UPDATE", 3, "1"), row(40, "DELETE", ROWS + 1, "2"), *watermark(LAST)]


@pytest.fixture
def write(stack: Addresses, fresh_name: Callable[[str], str]) -> Callable[[Sequence[Message]], str]:
    def written(sent: Sequence[Message]) -> str:
        topic = fresh_name("verified")
        create_topic(stack.kafka, topic, 2)
        producer = Producer({"bootstrap.servers": stack.kafka})
        for partition, position, message, images in sent:
            headers: dict[str, bytes] = {POSITION_HEADER: position.encode()}
            headers |= {IMAGES_HEADER: images} if images else {}
            producer.produce(topic, json.dumps(message), partition=partition, headers=dict(headers))
        producer.flush()
        return topic

    return written


@pytest.fixture
def source(mariadb: LocalMariaDb) -> Iterator[MariaDbSource]:
    run_sql(
        mariadb,
        "DROP DATABASE IF EXISTS u",
        "CREATE DATABASE u",
        "CREATE TABLE u.a (id INT PRIMARY KEY, v BIGINT, kind ENUM('x','y'), at TIMESTAMP NOT NULL)",
        *(
            f"INSERT INTO u.a VALUES ({number}, {number * 100}, '{'x' if number == 3 else 'y'}', '2026-11-24 12:00:00')"
            for number in range(1, ROWS + 1)
        ),
    )
    yield MariaDbSource(mariadb)
    run_sql(mariadb, "DROP DATABASE IF EXISTS u")


def checked(
    stack: Addresses,
    source: MariaDbSource,
    topic: str,
    *,
    proofs: Callable[[str, Ts], ProofAnswer] | None = None,
    pair: TablePair = PAIR,
    columns: Sequence[str] = (),
) -> TableOutcome:
    """``columns``: rules of a column selector of all tables."""
    uri = f"kafka://{stack.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true"
    sink = {"column-selectors": [{"matcher": ["*.*"], "columns": list(columns)}]} if columns else {}
    check = topic_check(
        load_changefeed(uri, {"sink": sink}),
        "default",
        [pair],
        source,
        upto_ts=Ts(LAST - 5),
        wait_s=5.0,
        keys_max=9,
        proofs=proofs,
    )
    return check.check(pair)


def test_verify_of_topics_says_the_same_at_a_watermark_and_asks_the_state_proof(
    stack: Addresses, source: MariaDbSource, write: Callable[[Sequence[Message]], str]
) -> None:
    topic = write([*messages(), *messages()])
    same = checked(stack, source, topic)
    assert (same.verdict, same.ts, same.source_proof.rows, same.differences) == (Verdict.SAME, LAST, ROWS, ())
    assert source.asked == [0, LAST]
    carried = TableProof()
    for number in range(1, ROWS + 1):
        texts = [b"%d" % number, b"%d" % (number * 100), b"x" if number == 3 else b"y", b"2026-11-24 12:00:00"]
        carried = carried.changed(None, row_hash(texts))
    columns = ("id", "v", "kind", "at")
    proven = checked(stack, source, topic, proofs=lambda *_: ProofAnswer(proof=carried, columns=columns))
    assert (proven.verdict, proven.proof, proven.odd) == (Verdict.SAME, carried, "")
    other = ProofAnswer(proof=TableProof(ROWS, carried.xor ^ 1), columns=columns)
    assert checked(stack, source, topic, proofs=lambda *_: other).odd == "proof"


def test_verify_of_topics_names_the_keys_of_rows_that_were_lost_swapped_or_repeated(
    stack: Addresses, source: MariaDbSource, write: Callable[[Sequence[Message]], str]
) -> None:
    planted = []
    for partition, position, message, images in messages():
        if message is not None and message.get("data") and position.key == b"%08d" % 7:
            continue  # a row is lost
        if message is not None and message.get("data") and position.key in (b"%08d" % 4, b"%08d" % 6):
            other = "600" if position.key == b"%08d" % 4 else "400"
            message = {**message, "data": [{**message["data"][0], "v": other}]}
        planted.append((partition, position, message, images))
    late = row(60, "INSERT", ROWS + 1, "2")  # what was deleted is there once more
    topic = write([*planted[:-2], late, *planted[-2:]])
    outcome = checked(stack, source, topic)
    assert (outcome.verdict, outcome.is_all) == (Verdict.DIFFERENT, True)
    assert [(each.key, each.what) for each in outcome.differences] == [
        (("4",), "differs"), (("6",), "differs"), (("7",), "missing"), ((str(ROWS + 1),), "extra"),
    ]  # fmt: skip


def test_verify_of_topics_leaves_out_the_columns_that_column_selectors_leave_out(
    stack: Addresses, source: MariaDbSource, write: Callable[[Sequence[Message]], str]
) -> None:
    sent = []
    for partition, position, message, images in messages():
        if message is not None and message.get("data"):
            kept = {name: text for name, text in message["data"][0].items() if name not in ("v", "at")}
            message = {**message, "data": [kept]}
        sent.append((partition, position, message, images))
    topic = write(sent)
    outcome = checked(stack, source, topic, columns=["*", "!V", "!at"])
    assert (outcome.verdict, outcome.source_proof.rows, outcome.left_out) == (Verdict.SAME, ROWS, ("v", "at"))
    assert lines(outcome)[1:] == ["  not compared: columns v, at"]
    run_sql(source.server, "UPDATE u.a SET kind = 'x' WHERE id = 5")
    differs = checked(stack, source, topic, columns=["*", "!V", "!at"])
    assert [(each.key, each.what) for each in differs.differences] == [(("5",), "differs")]
    unkept = checked(stack, source, topic, columns=["*", "!v"])
    assert (unkept.verdict, unkept.missing_columns) == (Verdict.DIFFERENT, ("at",))
    proof = checked(
        stack, source, topic, columns=["id"], proofs=lambda *_: ProofAnswer(proof=TableProof(), columns=("id", "v"))
    )
    assert (proof.proof, proof.proof_reason) == (None, "it is of other columns than are compared")


def test_verify_of_topics_whose_messages_lack_a_part_of_the_key_compares_nothing(
    stack: Addresses, source: MariaDbSource, write: Callable[[Sequence[Message]], str], mariadb: LocalMariaDb
) -> None:
    run_sql(mariadb, "CREATE TABLE u.h (a INT, b INT, c INT NOT NULL, PRIMARY KEY (a, b), UNIQUE KEY (c))")
    pair = TablePair(source=("u", "h"), destination=("d", "h"), partition_of=lambda _: 0)
    outcome = checked(stack, source, write(messages()), pair=pair, columns=["a", "c"])
    assert outcome.verdict is Verdict.NOT_COMPARED
    assert outcome.reason.endswith("cannot be told apart in a topic; column-selectors leave out b")


def test_verify_of_topics_compares_no_table_whose_image_is_under_way_or_that_a_ddl_may_have_changed(
    stack: Addresses, source: MariaDbSource, write: Callable[[Sequence[Message]], str]
) -> None:
    note = ImageNote(1, (), (("d", "a"),)).encode()
    outcome = checked(stack, source, write([*messages()[:-2], *watermark(LAST, note)]))
    assert outcome.verdict is Verdict.NOT_COMPARED
    assert "its image is under way" in outcome.reason
    ddl = {
        "database": "d",
        "table": "a",
        "isDdl": True,
        "type": "ALTER",
        "sql": "ALTER TABLE a ADD COLUMN w INT DEFAULT 1",
    }
    altered = (0, Position(Ts(50), PositionClass.DDL, Ts(49), key=bytes(4)), ddl, b"")
    outcome = checked(stack, source, write([*messages()[:-2], altered, *watermark(LAST)]))
    assert outcome.verdict is Verdict.NOT_COMPARED
    assert "ALTER TABLE" in outcome.reason


def test_verify_of_topics_without_a_watermark_or_without_a_key_compares_nothing(
    stack: Addresses, source: MariaDbSource, write: Callable[[Sequence[Message]], str], mariadb: LocalMariaDb
) -> None:
    outcome = checked(stack, source, write([row(20, "INSERT", 1, "2", image=True)]))
    assert (outcome.verdict, outcome.reason) == (Verdict.NOT_COMPARED, "its topics have no watermark")
    run_sql(mariadb, "CREATE TABLE u.h (n INT)")
    keyless = TablePair(source=("u", "h"), destination=("d", "h"), partition_of=lambda _: 0)
    outcome = checked(stack, source, write(messages()), pair=keyless)
    assert (outcome.verdict, outcome.reason.startswith("rows of a table without a key")) == (Verdict.NOT_COMPARED, True)


def test_verify_command_of_a_changefeed_to_kafka_reads_its_topics_in_its_zone(
    stack: Addresses,
    source: MariaDbSource,
    write: Callable[[Sequence[Message]], str],
    mariadb: LocalMariaDb,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    uri = f"kafka://{stack.kafka}/{write(messages())}?protocol=canal-json&enable-tidb-extension=true"
    info = ChangefeedInfo(
        changefeed_id="f", upstream=UpstreamId("u"), sink_uri=uri, config={"initial": "snapshot"}, start_ts=Ts(1),
        time_zone="Asia/Tokyo",
    )  # fmt: skip

    class Store:
        def get(self, *_: str) -> ChangefeedInfo:
            return info

        def status(self, *_: str) -> ChangefeedStatus:
            return ChangefeedStatus(state="normal", checkpoint_ts=Ts(LAST - 5), resolved_ts=LAST)

        def upstream_status(self, _: UpstreamId) -> dict[str, Any]:
            return {}

    @contextmanager
    def open_store(_: object, __: str) -> Iterator[Store]:
        yield Store()

    monkeypatch.setattr(operator_verify, "open_store", open_store)
    outcomes: list[TableOutcome] = []
    with FakeTidb(played_tidb(mariadb)) as tidb:
        options = VerifyOptions(
            changefeed_id="f", zookeeper=ZooKeeperAccess(servers="127.0.0.1:1"), upstream_dsn=tidb.uri, wait_s=5.0
        )
        assert operator_verify.verify(options, outcomes.append, lambda text: pytest.fail(text)) == 1
    assert [(item.source, item.verdict, item.ts) for item in outcomes] == [("d.a", Verdict.SAME, LAST)], outcomes
    assert "SET SESSION time_zone = 'Asia/Tokyo'" in tidb.said
    assert f"SET SESSION tidb_snapshot = '{LAST}'" in tidb.said


@pytest.mark.parametrize(
    "uri", ["kafka://h:1/t?protocol=canal-json", "kafka://h:1/t?protocol=debezium", "mysql://h:1/"]
)
def test_verify_of_what_the_library_does_not_read_is_refused(uri: str) -> None:
    with pytest.raises(ConfigError):
        check_protocol(load_changefeed(uri))
