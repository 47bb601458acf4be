"""Rows/s from a sink topic into a MariaDB beside a bare loop of multi-row REPLACE, and the lag at 1,000 rows/s.

The topic holds real sbtest1 rows as a sorter writes them, in four tables. The bare loop writes the same literals, in
statements and transactions of the same size, over one connection: what is left of it is what reading Kafka, telling
rows apart, positions and workers cost. ``ratio`` compares rows/s, and ``cpu_ratio`` the CPU of client and server a row,
which others on the machine do not change.

Where our own CPU goes, in us a row, with messages of 512 rows and transactions of 2,048 (``process_time`` around each
step): taking messages in 0.15, cutting transactions 0.12, statements 0.45; librdkafka, PyMySQL and the kernel's copies
are the rest of some 3. While rows were read one by one it was 7. A transaction of one message of one row costs 100.
"""

import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from compose.stack.local import Addresses, LocalStack
from compose.stack.mariadb import LocalMariaDb
from consumers.processors.alone import AloneRun
from consumers.processors.apply.begin import begin_database_work
from consumers.processors.apply.connection import Connector
from consumers.processors.core.apply.statements import StatementSettings, statements
from consumers.processors.core.apply.waiting import RowBatch, RowSlice
from consumers.processors.processor import ProcessorInputs, ProcessorOptions
from edges.kafka.access import KafkaAccess
from edges.zookeeper.access import ZooKeeperAccess
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts, UpstreamId, compose_ts
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.position import POSITION_HEADER, Position, PositionClass, RowOp
from schemas.sink.sql_rows import SqlRow, decode_rows, encode_form, encode_rows, encode_watermark
from schemas.sink.topic import sink_topic
from sorters.core.encode.sql.rows import ROWS_PER_MESSAGE, SqlRowsEncoder, form_of
from sorters.core.mount import mount
from tests.support.database.apply import run_sql
from tests.support.recorded.mounting import benchmark_rows

TABLES, PARTITIONS = 4, 4
ROWS = 200_000
TXN_ROWS = 2048
LAG_S, LAG_ROWS_PER_S = 20.0, 1000
_CREATE = (
    "CREATE TABLE bench.t{} (id BIGINT PRIMARY KEY, k BIGINT NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL,"
    " KEY (k))"
)


def main() -> int:
    """Print both figures."""
    with tempfile.TemporaryDirectory(prefix="tidebus-bench") as folder:
        # The processor needs a broker only: what it need not start is given by any address.
        given = Addresses(zookeeper="none", schema_registry="none")
        say = lambda text: print(text, file=sys.stderr)  # noqa: E731
        with (
            LocalStack(data=Path(folder) / "stack", given=given, say=say) as stack,
            LocalMariaDb(data=Path(folder) / "mariadb", say=say) as server,
        ):
            kafka = stack.addresses.kafka
            _rate(kafka, server)
            _lag(kafka, server)
    return 0


def _rate(kafka: str, server: LocalMariaDb) -> None:
    literals = _literals()
    info = _changefeed(server, "bench-rate")
    _fill(kafka, sink_topic(info), literals)
    best: dict[str, float] = {}
    for _ in range(2):
        _tables(server)
        bare, bare_cpu_us = _bare(server, literals)
        if bare > best.get("bare", 0.0):
            best |= {"bare": bare, "bare_cpu_us": bare_cpu_us}
        _tables(server)
        rate, cpu_us = _applied(kafka, server, info, len(literals))
        if rate > best.get("rate", 0.0):
            best |= {"rate": rate, "cpu_us": cpu_us}
    figure = {
        "bench": "mysql_apply",
        "rows_s": round(best["rate"]),
        "bare_rows_s": round(best["bare"]),
        "ratio": round(best["rate"] / best["bare"], 3),
        "rows": len(literals),
        "cpu_us_per_row": round(best["cpu_us"], 2),
        "bare_cpu_us_per_row": round(best["bare_cpu_us"], 2),
        "cpu_ratio": round(best["bare_cpu_us"] / best["cpu_us"], 3),
    }
    print(json.dumps(figure), flush=True)


def _literals() -> list[SqlRow]:
    """Return real rows with keys of their own: commit_ts, start_ts, op, key, row."""
    table, changes = benchmark_rows("sbtest1", 20_000)
    encoded = SqlRowsEncoder().encode_rows(mount(table, changes))
    form = form_of(table)
    rows = [decode_rows(value).row(0, form) for value in encoded.values.to_pylist()]
    tails = [row.row.partition(b",")[2] for row in rows]
    first_ts = compose_ts(1_760_000_000_000)
    return [
        SqlRow(first_ts + n, first_ts + n - 1, RowOp.INSERT, b"%d" % n, b"(%d,%s" % (n, tails[n % len(tails)]))
        for n in range(ROWS)
    ]


def _forms() -> list[Any]:
    table, _ = benchmark_rows("sbtest1", 1)
    return [replace(form_of(table), schema="bench", table=f"t{number}") for number in range(TABLES)]


def _tables(server: LocalMariaDb) -> None:
    run_sql(server, "DROP DATABASE IF EXISTS bench", "CREATE DATABASE bench")
    run_sql(server, "DROP DATABASE IF EXISTS tidebus", *(_CREATE.format(number) for number in range(TABLES)))


def _producer(kafka: str, topic: str) -> Producer:
    admin = AdminClient({"bootstrap.servers": kafka})  # must outlive the answer
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result()
    settings = {"linger.ms": 5, "compression.type": "lz4", "enable.idempotence": True}
    return Producer({"bootstrap.servers": kafka, **settings})


def _fill(kafka: str, topic: str, literals: list[SqlRow]) -> None:
    producer, forms = _producer(kafka, topic), _forms()
    for number in range(TABLES):
        mine = literals[number::TABLES]
        for start in range(0, len(mine), ROWS_PER_MESSAGE):
            rows = mine[start : start + ROWS_PER_MESSAGE]
            last = rows[-1]
            position = Position(
                Ts(last.commit_ts), PositionClass.ROW, Ts(last.start_ts), RowOp.INSERT, last.key
            ).encode()
            headers: dict[str, str | bytes | None] = {POSITION_HEADER: position}
            producer.produce(
                topic, encode_rows(forms[number], rows), encode_form(forms[number]), number, headers=headers
            )
            producer.poll(0)
    _watermark(producer, topic, Ts(literals[-1].commit_ts))
    producer.flush()


def _watermark(producer: Producer, topic: str, ts: Ts) -> None:
    for partition in range(PARTITIONS):
        encoded = Position(ts, PositionClass.WATERMARK).encode()
        headers: dict[str, str | bytes | None] = {POSITION_HEADER: encoded}
        producer.produce(topic, encode_watermark(ts), None, partition, headers=headers)


def _cpu_s(server: LocalMariaDb) -> float:
    """Return what this process and the server have used."""
    assert server.child is not None
    times = [psutil.Process().cpu_times(), psutil.Process(server.child.pid).cpu_times()]
    return float(sum(used.user + used.system for used in times))


def _bare(server: LocalMariaDb, literals: list[SqlRow]) -> tuple[float, float]:
    forms, settings = _forms(), StatementSettings(safe_mode=True)
    connection: Any = _connector(server)()
    began_at, cpu_s = time.perf_counter(), _cpu_s(server)
    for number in range(TABLES):
        mine = literals[number::TABLES]
        first_row = RowBatch((RowSlice(forms[number], decode_rows(encode_rows(forms[number], mine[:1])), 0, 1, 0),))
        head = next(statements(first_row, settings)).sql.partition(b"VALUES ")[0] + b"VALUES "
        for start in range(0, len(mine), TXN_ROWS):
            connection.begin()
            for at in range(start, min(start + TXN_ROWS, len(mine)), settings.rows_max):
                chunk = mine[at : min(at + settings.rows_max, start + TXN_ROWS)]
                connection.query(head + b",".join([row.row for row in chunk]))
            connection.commit()
    rate = len(literals) / (time.perf_counter() - began_at)
    cpu_us = (_cpu_s(server) - cpu_s) * 1e6 / len(literals)
    connection.close()
    return rate, cpu_us


def _connector(server: LocalMariaDb) -> Connector:
    config = load_changefeed(server.uri())
    assert config.uri.server is not None
    return Connector(config.uri.server, config)


def _changefeed(server: LocalMariaDb, name: str) -> ChangefeedInfo:
    return ChangefeedInfo(
        changefeed_id=name,
        upstream=UpstreamId("bench"),
        sink_uri=server.uri(f"worker-count=4&max-txn-row={TXN_ROWS}"),
        config={"sink": {"safe-mode": True}},
        start_ts=Ts(1),
    )


@contextmanager
def _applying(kafka: str, info: ChangefeedInfo) -> Iterator[AloneRun]:
    options = ProcessorOptions(
        changefeed_id=info.changefeed_id, kafka=KafkaAccess(kafka), zookeeper=ZooKeeperAccess("")
    )
    config = load_changefeed(info.sink_uri, info.config)
    inputs = ProcessorInputs(options=options, info=info, config=config, stopped=lambda: False)
    with closing(begin_database_work(inputs)) as work, closing(AloneRun(work, 1, Ts(1))) as run:
        yield run


def _applied(kafka: str, server: LocalMariaDb, info: ChangefeedInfo, count: int) -> tuple[float, float]:
    with _applying(kafka, info) as run:
        began_at, cpu_s = time.perf_counter(), _cpu_s(server)
        while run.rows_total < count:
            run.turn()
        took_s = time.perf_counter() - began_at
        cpu_us = (_cpu_s(server) - cpu_s) * 1e6 / count
    return count / took_s, cpu_us


def _lag(kafka: str, server: LocalMariaDb) -> None:
    """Rows say in ``k`` when they were written to Kafka; how old the newest one is that can be seen is the lag."""
    _tables(server)
    info = _changefeed(server, "bench-lag")
    producer, forms = _producer(kafka, sink_topic(info)), _forms()
    ended, lags = threading.Event(), list[float]()

    def write() -> None:
        began_at, sent, batch = time.time(), 0, 25
        while time.time() - began_at < LAG_S:
            now = time.time()
            ts, ms = compose_ts(int(now * 1000)), int(now * 1000)
            rows: list[SqlRow] = [
                SqlRow(ts, ts - 1, RowOp.INSERT, b"%d" % n, b"(%d,%d,'c','p')" % (n, ms))
                for n in range(sent, sent + batch)
            ]
            number = sent // batch % TABLES
            position = Position(Ts(ts), PositionClass.ROW, Ts(ts - 1), RowOp.INSERT, rows[-1].key).encode()
            headers: dict[str, str | bytes | None] = {POSITION_HEADER: position}
            producer.produce(
                sink_topic(info), encode_rows(forms[number], rows), encode_form(forms[number]), number, headers=headers
            )
            _watermark(producer, sink_topic(info), Ts(ts))
            producer.poll(0)
            sent += batch
            time.sleep(max(0.0, began_at + sent / LAG_ROWS_PER_S - time.time()))
        producer.flush()
        ended.set()

    def look() -> None:
        connection = server.connect()
        seen = [0] * TABLES
        with connection.cursor() as cursor:
            while not ended.is_set():
                for number in range(TABLES):
                    cursor.execute(f"SELECT MAX(k) FROM bench.t{number}")
                    newest = (cursor.fetchone() or (None,))[0]
                    if newest is not None and newest > seen[number]:
                        seen[number] = newest
                        lags.append(time.time() - newest / 1000)
                time.sleep(0.005)
        connection.close()

    threads = [threading.Thread(target=write), threading.Thread(target=look)]
    with _applying(kafka, info) as run:
        for thread in threads:
            thread.start()
        while not ended.is_set():
            run.turn()
        for thread in threads:
            thread.join()
    steady = lags[len(lags) // 10 :]
    figure = {
        "bench": "apply_lag",
        "p50_s": round(float(np.percentile(steady, 50)), 4),
        "p99_s": round(float(np.percentile(steady, 99)), 4),
        "rows_s": LAG_ROWS_PER_S,
        "samples": len(steady),
    }
    print(json.dumps(figure), flush=True)


if __name__ == "__main__":
    sys.exit(main())
