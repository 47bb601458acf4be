"""The Spark source on the real Kafka and Spark: batches by commit order, restarts, reads between two ts, refusals."""

import json
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from compose.stack.local import Addresses
from edges.zookeeper.session import Session
from examples.spark import join_as_of, merge_into, quality_check, scd2
from schemas.changes import Op
from schemas.ids import TableId, Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, ZkPaths, encode_changefeed_info
from schemas.rawlog.image_batch import ScanName
from schemas.rawlog.images import ImageFeed, ImageState, KeyRange
from schemas.tidb.row_v2 import decode_row_v2
from sorters.core.source.errors import SourceOptionError
from sorters.log.failures import HistoryLostError
from sorters.spark.session import create_session
from tests.support.lakes.lake import Lake
from tests.support.lakes.lake_bank import TABLES, TOTAL, LakeBank
from tests.support.rawlog.raw_log import START_TS, Change, RawLog, recorded, row_key
from tests.support.recorded.ddl_jobs import table_info
from tidebus.spark import TideBusDataSource, register

TABLE, KEYS, CHANGES, ROWS_MAX = 114, 20, 60, 30
K_COLUMN = 2
"""The id of sbtest1's column ``k``."""
END_S = 600.0
NIGHTLY = pytest.mark.skipif(
    os.environ.get("NIGHTLY_SOURCE") != "1", reason="some ten seconds each: NIGHTLY_SOURCE=1, as `make nightly`"
)
DYING = range(100) if os.environ.get("NIGHTLY_SOURCE") == "1" else (0,)
"""Batches that die once; with NIGHTLY_SOURCE=1 each of them, which starts a query as often."""
SLOW_START, STARTS_MAX = "Python worker failed to connect back", 10
DEATHS = ("died after it had written", SLOW_START)
"""What a query may end by here: the test's own, and Spark's where Python takes more than its ten seconds to start."""
Row = tuple[int, str, int, int | None]
"""_commit_version, _change_type, id, k."""


@pytest.fixture(scope="module")
def spark(stack: Addresses, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    session = create_session("local[2]", "source", tmp_path_factory.mktemp("source"))
    register(session)
    yield session
    session.stop()


def history() -> tuple[list[Change], list[Row], dict[int, int | None]]:
    """Return changes of some keys, three a transaction, the rows that they come to, and the table after them."""
    _, recorded_rows = recorded("sbtest1")
    values, changes, rows = dict[int, bytes](), list[Change](), list[Row]()
    for number in range(CHANGES):
        handle = number * 7 % KEYS
        old, commit_ts = values.get(handle, b""), START_TS + 10 + 10 * (number // 3)
        if old and number % 5 == 4:
            del values[handle]
            changes.append(Change(commit_ts, row_key(TABLE, handle), b"", old, op=Op.DELETE))
            rows.append((commit_ts, "delete", handle, k_of(old)))
            continue
        values[handle] = recorded_rows[number % len(recorded_rows)].value
        changes.append(Change(commit_ts, row_key(TABLE, handle), values[handle], old))
        if old:
            rows.append((commit_ts, "update_preimage", handle, k_of(old)))
        rows.append((commit_ts, "update_postimage" if old else "insert", handle, k_of(values[handle])))
    return changes, rows, {handle: k_of(value) for handle, value in values.items()}


def k_of(value: bytes) -> int | None:
    raw = decode_row_v2(value)[K_COLUMN]
    return None if raw is None else int.from_bytes(raw, "little", signed=True)


def handle_of(key: bytes) -> int:
    return int.from_bytes(key[-8:], "big") - (1 << 63)


@pytest.fixture
def log(stack: Addresses, fresh_name: Callable[[str], str]) -> RawLog:
    """A log in which transactions stand out of order, over three raw partitions."""
    log = RawLog(stack.kafka, fresh_name("up"), partitions=3)
    log.snapshot([recorded("sbtest1")[0]])
    changes, _, _ = history()
    for at in range(0, CHANGES, 12):
        part = changes[at : at + 12]
        for partition in range(3):
            log.rows(TABLE, part[partition::3][::-1], partition)
        log.advance(part[-1].commit_ts)
    return log


def of_log(reader: Any, log: RawLog, **options: object) -> Any:
    texts = {name: str(value) for name, value in options.items()}
    return reader.format("tidebus").options(kafka=log.kafka, raw=log.upstream, table="sb.sbtest1", **texts).load()


def rows_of(frame: Any, folder: Path) -> list[Row]:
    """Let Spark write the rows to files, and read those: pyspark leaves the sockets open by which it collects."""
    names = ("_commit_version", "_change_type", "id", "k")
    frame.select(*names).write.mode("overwrite").json(str(folder))
    lines = (line for file in folder.glob("*.json") for line in file.read_text().splitlines())
    return [tuple(json.loads(line).get(name) for name in names) for line in lines]


@pytest.mark.timeout(900)
def test_stream_when_it_dies_in_a_batch_delivers_all_changes_in_bounded_whole_transactions(
    log: RawLog, spark: Any, tmp_path: Path
) -> None:
    """A batch is written, and dies before Spark has noted it; the query that follows runs it again, and goes on."""
    _, expected, table = history()
    deliveries: dict[int, list[list[Row]]] = defaultdict(list)

    def write(frame: Any, number: int) -> None:
        deliveries[number].append(rows_of(frame, tmp_path / f"{number}-{len(deliveries[number])}"))
        if len(deliveries[number]) == 1 and number in DYING:
            raise RuntimeError("died after it had written")

    def is_whole() -> bool:
        written = (each[-1] for number, each in list(deliveries.items()) if len(each) > (number in DYING))
        return sum(map(len, written)) >= len(expected)

    deadline = time.monotonic() + END_S
    while not is_whole():
        frame = of_log(spark.readStream, log, startingTs="earliest", maxRowsPerBatch=ROWS_MAX)
        writer = frame.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.start()
        while query.isActive and not is_whole():
            assert time.monotonic() < deadline, deliveries
            time.sleep(0.02)
        failure = str(query.exception() or "")
        assert not failure or any(death in failure for death in DEATHS), failure
        query.stop()

    batches = [deliveries[number] for number in sorted(deliveries)]
    assert len(batches) >= len(expected) // ROWS_MAX
    assert any(len(each) > 1 for each in batches)
    for first, *again in batches:
        assert all(Counter(first) == Counter(rows) for rows in again)
        assert 0 < len(first) <= ROWS_MAX
    delivered = [sorted(each[0]) for each in batches]
    assert [row for rows in delivered for row in rows] == sorted(expected)
    commits = [{row[0] for row in rows} for rows in delivered]
    assert all(not before & after for number, before in enumerate(commits) for after in commits[number + 1 :])
    replayed = dict[int, int | None]()
    for _, kind, handle, k in sorted((row for rows in delivered for row in rows), key=lambda row: row[0]):
        if kind in ("insert", "update_postimage"):
            replayed[handle] = k
        elif kind == "delete":
            replayed.pop(handle)
    assert replayed == table


def test_read_between_two_ts_has_the_changes_above_the_first_and_up_to_the_second(
    log: RawLog, spark: Any, tmp_path: Path
) -> None:
    _, expected, _ = history()
    start, end = expected[20][0], expected[70][0]

    rows = rows_of(of_log(spark.read, log, startingTs=start, endingTs=end), tmp_path / "rows")

    assert Counter(rows) == Counter(row for row in expected if start < row[0] <= end)
    assert not rows_of(of_log(spark.read, log, startingTs=end, endingTs=end), tmp_path / "none")


def test_read_when_repeats_stand_in_another_partition_has_each_change_once(
    log: RawLog, spark: Any, tmp_path: Path
) -> None:
    changes, expected, _ = history()
    log.rows(TABLE, changes[-9:], 0, may_repeat=True)
    log.advance(changes[-1].commit_ts + 1, low=[0, 0, 0], repeats=True)

    assert Counter(rows_of(of_log(spark.read, log), tmp_path / "rows")) == Counter(expected)


def test_read_that_starts_at_an_image_has_its_rows_and_what_changed_them_since(
    log: RawLog, spark: Any, tmp_path: Path
) -> None:
    changes, expected, table = history()
    whole, middle = KeyRange.of_table(TableId(TABLE)), row_key(TABLE, KEYS // 2)
    early, late = changes[20].commit_ts + 1, changes[40].commit_ts + 1
    chunks, imaged = [], list[Row]()
    for number, (ts, keys) in enumerate([(late, KeyRange(whole.start, middle)), (early, KeyRange(middle, whole.end))]):
        newest = {change.key: change.value for change in changes if change.commit_ts <= ts}
        rows = {key: value for key, value in sorted(newest.items()) if value and keys.start <= key < keys.end}
        chunks.append(log.image(ScanName(Ts(ts), number, 0), keys, rows, feeds=("default/a@1",), batch_rows=3))
        imaged += [(ts, "insert", handle_of(key), k_of(value)) for key, value in rows.items()]
    state = ImageState(version=(1, 1), feeds=(ImageFeed(feed="default/a@1"),), chunks=tuple(chunks))
    log.advance(changes[-1].commit_ts, images=state)

    rows_read = rows_of(of_log(spark.read, log, startingTs="image"), tmp_path / "rows")

    above = [row for row in expected if row[0] > (late if row[2] < KEYS // 2 else early)]
    assert Counter(rows_read) == Counter(imaged + above)
    assert {row[2] for row in imaged}
    assert {row[2] for row in rows_read} >= set(table)


def test_read_of_a_changefeed_has_the_changes_that_its_filters_leave(
    stack: Addresses, log: RawLog, spark: Any, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    _, expected, _ = history()
    cluster = fresh_name("cluster")
    rule = {"matcher": ["sb.*"], "ignore-event": ["delete"]}
    info = ChangefeedInfo(
        changefeed_id="orders",
        upstream=UpstreamId(log.upstream),
        sink_uri=f"kafka://{stack.kafka}/orders?protocol=canal-json",
        config={"filter": {"rules": ["sb.sbtest1"], "event-filters": [rule]}},
        start_ts=START_TS,
    )
    with Session(stack.zookeeper_access) as session:
        path = ZkPaths(cluster).changefeed_info("default", "orders")
        session.client.create(path, encode_changefeed_info(info), makepath=True)
    reader = spark.read.format("tidebus").options(kafka=log.kafka, zookeeper=stack.zookeeper, cluster=cluster)

    frame = reader.option("changefeed", "orders").option("table", "sb.sbtest1").load()

    assert Counter(rows_of(frame, tmp_path / "rows")) == Counter(row for row in expected if row[1] != "delete")
    with pytest.raises(Exception, match=r"source\.option.*changefeed does not replicate the table"):
        reader.option("changefeed", "orders").option("table", "other.sbtest1").load()
    with pytest.raises(Exception, match=r"source\.option.*there is no such changefeed"):
        reader.option("changefeed", "other").option("table", "sb.sbtest1").load()


def test_read_that_the_log_cannot_answer_is_refused_by_a_named_error(log: RawLog, spark: Any, tmp_path: Path) -> None:
    changes, _, _ = history()
    with pytest.raises(Exception, match=r"source\.not_reached.*frontier has not reached endingTs"):
        of_log(spark.read, log, endingTs=changes[-1].commit_ts + 1).count()
    with pytest.raises(Exception, match=r"source\.table.*no table of this name"):
        spark.read.format("tidebus").options(kafka=log.kafka, raw=log.upstream, table="sb.nothing").load()
    with pytest.raises(SourceOptionError, match="no raw log of this upstream") as unknown:
        TideBusDataSource({"kafka": log.kafka, "raw": "nowhere", "table": "sb.sbtest1"}).schema()
    assert log.upstream in str(unknown.value.fields["upstreams"]).split(", ")
    with pytest.raises(HistoryLostError, match="the log begins above it"):
        TideBusDataSource(
            {"kafka": log.kafka, "raw": log.upstream, "table": "sb.sbtest1", "endingTs": str(START_TS - 1)}
        ).schema()
    gone = [TopicPartition(log.topics.region_events, partition, 1) for partition in range(3)]
    admin = AdminClient({"bootstrap.servers": log.kafka})
    for deleted in admin.delete_records(gone).values():
        deleted.result(60)

    with pytest.raises(Exception, match=r"sorter\.history_lost") as raised:
        of_log(spark.read, log, startingTs=START_TS).count()

    assert f"asked_ts={START_TS}" in str(raised.value)
    assert f"oldest_ts={changes[11].commit_ts}" in str(raised.value)
    kept = rows_of(of_log(spark.read, log), tmp_path / "rows")
    assert min(row[0] for row in kept) == changes[12].commit_ts


@pytest.fixture
def bank(stack: Addresses, fresh_name: Callable[[str], str]) -> LakeBank:
    log = RawLog(stack.kafka, fresh_name("up"))
    log.snapshot([table_info(number, name) for number, name in TABLES.items()], schema="bank")
    bank = LakeBank(log, START_TS)
    bank.open()
    bank.transfer(30)
    bank.advance()
    return bank


@pytest.fixture
def few_tasks(spark: Any) -> Iterator[None]:
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    yield
    spark.conf.unset("spark.sql.shuffle.partitions")


def arguments(bank: LakeBank, folder: Path, *more: str) -> list[str]:
    named = {"kafka": bank.log.kafka, "raw": bank.log.upstream, "checkpoint": folder / "checkpoint"}
    return [*(f"--{name}={value}" for name, value in named.items()), "--once", *more]


def run(script: Callable[[list[str]], None], given: list[str]) -> None:
    """Run a script with ``--once``; again where Python took more than Spark's ten seconds to start: it goes on."""
    for _ in range(STARTS_MAX):
        try:
            return script(given)
        except Exception as error:
            if SLOW_START not in str(error):
                raise
    raise AssertionError("python did not start in time")


def of_folder(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.rglob("*.parquet")) for row in pq.read_table(file).to_pylist()]


@NIGHTLY
@pytest.mark.usefixtures("few_tasks")
def test_example_merge_keeps_a_lake_table_equal_to_the_source(bank: LakeBank, spark: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    script = arguments(bank, tmp_path, "--table=bank.debit", "--key=id", "--target=lake.bank.debit")
    for _ in range(3):
        run(merge_into.main, [*script, f"--warehouse={lake.folder}"])
        assert {row["id"]: row["v"] for row in lake.rows("bank", "debit")} == bank.at[max(bank.at)][201]
        bank.transfer(30)
        bank.advance()


@NIGHTLY
@pytest.mark.usefixtures("few_tasks")
def test_example_history_holds_the_table_as_it_was_at_each_ts(bank: LakeBank, spark: Any, tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    script = arguments(bank, tmp_path, "--table=bank.credit", "--key=id", "--target=lake.bank.credit_history")
    for _ in range(3):
        run(scd2.main, [*script, f"--warehouse={lake.folder}"])
        bank.transfer(30)
        bank.advance()
    run(scd2.main, [*script, f"--warehouse={lake.folder}"])

    rows = lake.rows("bank", "credit_history")
    assert len(rows) == sum(op != "D" for _, op, table, _, _ in bank.history if table == 202)
    for ts, held in bank.at.items():
        valid = [row for row in rows if row["_valid_from"] <= ts and (row["_valid_to"] or ts + 1) > ts]
        assert len(valid) == len(held[202])
        assert {row["id"]: row["v"] for row in valid} == held[202]


@pytest.mark.usefixtures("few_tasks")
def test_example_join_sees_both_tables_at_one_ts(bank: LakeBank, spark: Any, tmp_path: Path) -> None:
    ts = bank.ts
    bank.transfer(30)
    bank.advance()
    tables = ["--left=bank.debit", "--right=bank.credit", "--left-key=id", "--right-key=id", "--on=l.id = r.id"]
    log = [f"--kafka={bank.log.kafka}", f"--raw={bank.log.upstream}"]

    run(join_as_of.main, [*log, *tables, f"--ts={ts}", f"--output={tmp_path / 'joined'}"])

    rows = of_folder(tmp_path / "joined")
    for side, number in (("left", 201), ("right", 202)):
        assert {row[f"{side}_id"]: row[f"{side}_v"] for row in rows if row[f"{side}_id"] is not None} == bank.at[ts][
            number
        ]
    assert sum((row["left_v"] or 0) + (row["right_v"] or 0) for row in rows) == TOTAL


@NIGHTLY
@pytest.mark.usefixtures("few_tasks")
def test_example_quality_check_passes_drops_and_fails_as_it_is_told(bank: LakeBank, spark: Any, tmp_path: Path) -> None:
    new = [(account, v) for _, op, table, account, v in bank.history if table == 201 and op != "D"]
    poor, rich = [each for each in new if (each[1] or 0) < 95], [each for each in new if (each[1] or 0) > 105]
    assert poor
    assert rich
    script = arguments(bank, tmp_path, "--table=bank.debit", f"--output={tmp_path}")

    run(quality_check.main, [*script, "--drop=solvent: v >= 95", "--warn=modest: v <= 105", "--fail=known: id >= 0"])

    assert Counter((row["id"], row["v"]) for row in of_folder(tmp_path / "quarantine")) == Counter(poor)
    passed = of_folder(tmp_path / "passed")
    assert Counter((row["id"], row["v"]) for row in passed) == Counter(new) - Counter(poor)
    assert all(row["_warn"] == (["modest"] if row["v"] > 105 else []) for row in passed)
    counts = {row["expectation"]: row["count"] for row in of_folder(tmp_path / "counts")}
    assert counts == {"solvent": len(poor), "modest": len(rich)}
    with pytest.raises(Exception, match="rows that must not be"):
        run(quality_check.main, [*script, "--fail=none: v < 0", f"--checkpoint={tmp_path / 'second'}"])
    assert len(of_folder(tmp_path / "failed")) == len(new)
