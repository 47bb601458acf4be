"""Mount and encode rows a second on one core, by shape and protocol, beside a plain loop over the same rows.

``python -m tests.bench.rows.mount_encode`` prints one JSON line per figure. ``rows_per_s`` counts process CPU time,
median of the repeats, from the raw log's columns (:class:`RowChanges`) to finished messages; ``wall_rows_per_s`` is
beside it, since the machine may be shared. ``scalar_rows_per_s`` is what a newcomer would write: mount row by row, then
``fastavro`` or ``json``. ``mib_per_s`` are the values of the messages that were made, of either way its own.

``mount_encode`` is inserts, ``mount_encode_updates`` the same rows updated: two row images to mount, and for
canal-json to write. Rows are the 5,000 real ones of each shape, repeated to a batch; nothing in the measured path
remembers values.
"""

import argparse
import io
import json
import statistics
import struct
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import fastavro
import pyarrow as pa

from schemas.changes import Op, RowChanges
from schemas.ids import Ts
from schemas.proto import canal_pb2 as pb
from schemas.tidb.mysql_types import MysqlType
from schemas.tidb.table import ColumnVersion, TableVersion
from sorters.core.encode.avro.encoder import AvroEncoder
from sorters.core.encode.canal.json import CanalJsonEncoder
from sorters.core.encode.canal.protobuf import CanalEncoder
from sorters.core.encode.debezium.encoder import DebeziumEncoder
from sorters.core.encode.open.encoder import OpenProtocolEncoder
from sorters.core.encode.simple.avro import SimpleAvroEncoder
from sorters.core.encode.simple.json import SimpleJsonEncoder
from sorters.core.mount import mount
from sorters.core.mount.column import value_text
from sorters.core.mount.scalar import MountedRow, mount_row
from tests.support.recorded.mounting import benchmark_rows

SHAPES = ("sbtest1", "order_line", "wide10")
TOPIC = "bench"
SCALAR_ROWS = 5_000


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=65_536, help="rows of one batch")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, choices=SHAPES)
    options = parser.parse_args(argv)
    pa.set_cpu_count(1)
    for shape in options.shapes:
        for op in ("insert", "update"):
            table, rows = benchmark_rows(shape, options.rows, updates=op == "update")
            for protocol, encode, scalar in _protocols(table):
                cpu, wall, size = _measure(partial(encode, rows), options.repeats)
                scalar_rate, scalar_size = _scalar(table, rows, scalar)
                figure = {
                    "bench": "mount_encode" if op == "insert" else "mount_encode_updates",
                    "shape": shape,
                    "protocol": protocol,
                    "rows_per_s": round(len(rows) / cpu),
                    "mib_per_s": round(size / cpu / 2**20),
                    "scalar_rows_per_s": round(scalar_rate),
                    "scalar_mib_per_s": round(scalar_rate * scalar_size / 2**20),
                    "op": op,
                    "wall_rows_per_s": round(len(rows) / wall),
                    "batch_rows": len(rows),
                    "message_bytes": round(size / len(rows)),
                }
                sys.stdout.write(json.dumps(figure) + "\n")
                sys.stdout.flush()
    return 0


ScalarEncoder = Callable[[MountedRow], bytes]


def _protocols(table: TableVersion) -> list[tuple[str, Callable[[RowChanges], Any], ScalarEncoder]]:
    canal = CanalJsonEncoder(enable_tidb_extension=True)
    avro = AvroEncoder(enable_tidb_extension=True)
    texts = avro.schemas(table, TOPIC)
    ids = {text.key: number for number, text in enumerate(texts, 1)}
    schema = fastavro.parse_schema(json.loads(texts[-1].text))
    opened, simple, simple_avro = OpenProtocolEncoder(), SimpleJsonEncoder(), SimpleAvroEncoder()
    debezium, debezium_bare = DebeziumEncoder(), DebeziumEncoder(debezium_disable_schema=True)
    packets = CanalEncoder()
    return [
        (
            "canal-json",
            lambda rows: canal.encode_rows(mount(table, rows), encoded_at_ms=1_700_000_000_000),
            _plain_json,
        ),
        (
            "avro",
            lambda rows: avro.encode_rows(mount(table, rows), topic=TOPIC, schema_ids=ids),
            lambda row: _plain_avro(row, schema),
        ),
        ("open-protocol", lambda rows: opened.encode_rows(mount(table, rows)), _plain_json),
        (
            "simple-json",
            lambda rows: simple.encode_rows(mount(table, rows), encoded_at_ms=1_700_000_000_000),
            _plain_json,
        ),
        (
            "simple-avro",
            lambda rows: simple_avro.encode_rows(mount(table, rows), encoded_at_ms=1_700_000_000_000),
            lambda row: _plain_avro(row, schema),
        ),
        (
            "debezium",
            lambda rows: debezium.encode_rows(mount(table, rows), encoded_at_ms=1_700_000_000_000),
            _plain_json,
        ),
        (
            "debezium-no-schema",
            lambda rows: debezium_bare.encode_rows(mount(table, rows), encoded_at_ms=1_700_000_000_000),
            _plain_json,
        ),
        ("canal", lambda rows: packets.encode_rows(mount(table, rows)), _plain_protobuf),
    ]


def _measure(run: Callable[[], Any], repeats: int) -> tuple[float, float, int]:
    """Return median CPU and wall seconds of one run, and the bytes of its values."""
    size = run().values.nbytes
    cpu, wall = [], []
    for _ in range(repeats):
        cpu_start, wall_start = time.process_time(), time.perf_counter()
        run()
        cpu.append(time.process_time() - cpu_start)
        wall.append(time.perf_counter() - wall_start)
    return statistics.median(cpu), statistics.median(wall), size


def _scalar(table: TableVersion, rows: RowChanges, encode: ScalarEncoder) -> tuple[float, float]:
    """Return rows per CPU second, and bytes a message."""
    count = min(len(rows), SCALAR_ROWS)
    keys, values, old = (column.slice(0, count).to_pylist() for column in (rows.key, rows.value, rows.old_value))
    size, start = 0, time.process_time()
    for number in range(count):
        mounted = mount_row(
            table,
            key=keys[number],
            op=Op.PUT,
            value=values[number],
            old_value=old[number],
            commit_ts=Ts(int(rows.commit_ts[number])),
            start_ts=Ts(int(rows.start_ts[number])),
        )
        assert mounted is not None
        size += len(encode(mounted))
    return count / (time.process_time() - start), size / count


def _plain_json(row: MountedRow) -> bytes:
    def side(values: tuple[Any, ...] | None) -> list[dict[str, str | None]] | None:
        if values is None:
            return None
        texts = ((spec.name, value_text(spec, value)) for spec, value in zip(row.table.columns, values, strict=True))
        return [{name: None if text is None else text.decode("utf-8", "replace") for name, text in texts}]

    message = {
        "id": 0,
        "database": row.table.schema,
        "table": row.table.table,
        "isDdl": False,
        "type": row.op.name,
        "es": row.commit_ts >> 18,
        "sql": "",
        "old": side(row.pre_columns),
        "data": side(row.columns),
        "_tidb": {"commitTs": row.commit_ts},
    }
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


def _plain_protobuf(row: MountedRow) -> bytes:
    data = pb.RowData()
    for values, side in ((row.pre_columns, data.beforeColumns), (row.columns, data.afterColumns)):
        for spec, value in zip(row.table.columns, values or (), strict=bool(values)):
            text = value_text(spec, value)
            shown = "" if text is None else text.decode("utf-8", "replace")
            side.add(name=spec.name, isNull=text is None, value=shown, updated=True)
    change = pb.RowChange(isDdl=False, rowDatas=[data]).SerializeToString()
    header = pb.Header(executeTime=row.commit_ts >> 18, schemaName=row.table.schema, tableName=row.table.table)
    entry = pb.Entry(header=header, entryType=pb.ROWDATA, storeValue=change).SerializeToString()
    body = pb.Messages(messages=[entry]).SerializeToString()
    return pb.Packet(version=1, type=pb.MESSAGES, body=body).SerializeToString()


def _plain_avro(row: MountedRow, schema: Any) -> bytes:
    assert row.columns is not None
    record = {spec.name: _avro_value(spec, value) for spec, value in zip(row.table.columns, row.columns, strict=True)}
    record |= {"_tidb_op": "c", "_tidb_commit_ts": row.commit_ts, "_tidb_commit_physical_time": row.commit_ts >> 18}
    out = io.BytesIO()
    out.write(struct.pack(">bi", 0, 1))
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def _avro_value(spec: ColumnVersion, value: Any) -> Any:
    if spec.tp is MysqlType.DECIMAL and value is not None:
        unscaled = int(value.replace(".", ""))
        return unscaled.to_bytes(unscaled.bit_length() // 8 + 1, "big", signed=True)
    if isinstance(value, bytes) and not spec.binary:
        return value.decode()
    return value - (1 << 64) if isinstance(value, int) and value >= 1 << 63 else value


if __name__ == "__main__":
    sys.exit(main())
