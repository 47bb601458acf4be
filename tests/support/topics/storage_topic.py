"""A storage sink's topic as a sorter may write it, with repeats joined otherwise, and what its files must then show."""

import itertools
import random
from collections.abc import Iterator, Mapping

from consumers.processors.core.storage.paths import file_number
from consumers.processors.sink_source import SinkRecord
from schemas.ids import Ts
from schemas.sink.parts import cut_message
from schemas.sink.position import Position, PositionClass, RowOp
from schemas.sink.storage_rows import HEADS, FolderForm, SchemaFile, encode_folder, encode_schema_file

PARTITIONS = 2
START_TS = Ts(10)
Topic = dict[int, list[SinkRecord]]
Lines = dict[tuple[str, str], list[bytes]]
"""By schema and table."""


def message(rows: list[tuple[int, bytes, bytes]]) -> bytes:
    """Return rows of (commit_ts, key, line) as the format's description has them."""
    heads = b"".join(
        ts.to_bytes(8, "big")
        + (ts - 1).to_bytes(8, "big")
        + b"\x03"
        + len(key).to_bytes(4, "big")
        + len(line).to_bytes(4, "big")
        for ts, key, line in rows
    )
    assert len(heads) == len(rows) * HEADS.itemsize
    return heads + b"".join(key for _, key, _ in rows) + b"".join(line for _, _, line in rows)


def position(ts: int, key: bytes) -> bytes:
    return Position(Ts(ts), PositionClass.ROW, Ts(ts - 1), RowOp.INSERT, key).encode()


def watermark(ts: int) -> tuple[bytes | None, bytes, bytes]:
    return None, b"{}", Position(Ts(ts), PositionClass.WATERMARK).encode()


def schema_file(ts: int, table: str, *, is_ddl: bool) -> tuple[bytes | None, bytes, bytes]:
    kind = PositionClass.DDL if is_ddl else PositionClass.BOOTSTRAP
    value = encode_schema_file(SchemaFile(f"s/{table}/meta/schema_{ts}_1.json", f"{ts}", is_ddl=is_ddl))
    return None, value, Position(Ts(ts), kind, key=table.encode()).encode()


def topic_of(rng: random.Random) -> tuple[Topic, Lines, int]:
    """Write cuts, some of them twice and joined otherwise; return them, the lines that were meant, and the last ts."""
    topic: Topic = {number: [] for number in range(PARTITIONS)}
    meant: Lines = {}
    first = [schema_file(10, table, is_ddl=False) for table in ("a", "b", "c")]
    ts, versions, numbers = 10, {"a": 10, "b": 10, "c": 10}, itertools.count()
    for cut in range(rng.randint(1, 6)):
        rows: dict[int, list[tuple[str, int, bytes, bytes]]] = {number: [] for number in range(PARTITIONS)}
        for _ in range(rng.randint(0, 8)):
            ts += rng.randint(0, 2) or (0 if any(rows.values()) else 1)
            table = rng.choice("abc")
            key = b"%s%04d" % (table.encode(), next(numbers))
            line = b"%s|%d|%s\n" % (table.encode(), ts, b"x" * rng.randint(0, 20))
            home = 0 if table == "a" else 1
            rows[home].append((table, ts, key, line))
        for number in rows:
            rows[number].sort(key=lambda row: position(row[1], row[2]))
            for table, _, _, line in rows[number]:
                meant.setdefault(("s", table), []).append(line)
        ts += 1
        companions = [(0, watermark(ts)), (1, watermark(ts))]
        if rng.random() < 0.4:
            table = rng.choice("abc")
            companions.insert(0, (0, schema_file(ts, table, is_ddl=True)))
        for attempt in range(rng.randint(0, 2), -1, -1):
            for number in rows:
                messages = [part for message in joined(rng, rows[number], versions) for part in in_parts(rng, *message)]
                written = [*(first if cut == 0 and number == 0 else []), *messages]
                written += [record for home, record in companions if home == number]
                cut_off = len(written) if attempt == 0 else rng.randint(0, len(written))
                for key_, value, at in written[:cut_off]:
                    topic[number].append(SinkRecord(number, len(topic[number]), at, key_, value))
        for home, (_, value, at) in companions:
            if home == 0 and at[8] == PositionClass.DDL:
                versions[value.decode().split("/")[1]] = ts
    return topic, meant, ts


def joined(
    rng: random.Random, rows: list[tuple[str, int, bytes, bytes]], versions: Mapping[str, int]
) -> Iterator[tuple[bytes | None, bytes, bytes]]:
    """Yield messages of neighbours of one table; how many are joined is another matter each time."""
    at = 0
    while at < len(rows):
        table, many = rows[at][0], rng.randint(1, 4)
        group = [row for row in rows[at : at + many] if row[0] == table]
        group = (
            rows[at : at + len(group)]
            if all(row[0] == table for row in rows[at : at + len(group)])
            else rows[at : at + 1]
        )
        form = encode_folder(FolderForm("s", table, Ts(versions[table])))
        yield form, message([(ts, key, line) for _, ts, key, line in group]), position(*group[-1][1:3])
        at += len(group)


def in_parts(
    rng: random.Random, key: bytes | None, value: bytes, at: bytes
) -> Iterator[tuple[bytes | None, bytes, bytes]]:
    """Cut a row message into parts now and then, however short it is."""
    if key is None or rng.random() < 0.7:
        yield key, value, at
        return
    for part_key, piece in cut_message(key, value, len(key) + rng.randint(30, 60)):
        yield part_key, bytes(piece), at


def visible(files: Mapping[str, bytes], extension: str = "csv") -> Lines:
    """Read the data files that index files name, by table version and number."""
    lines: Lines = {}
    folders = sorted(
        (path.removesuffix("/meta/CDC.index") for path in files if path.endswith("/meta/CDC.index")),
        key=lambda folder: int(folder.split("/")[2]),
    )
    for folder in folders:
        schema, table, *_ = folder.split("/")
        last = file_number(files[f"{folder}/meta/CDC.index"].decode().strip())
        assert last is not None
        for number in range(1, last + 1):
            rows_named = files[f"{folder}/CDC{number:06d}.{extension}"].splitlines(keepends=True)
            lines.setdefault((schema, table), []).extend(rows_named)
    return lines


def check_schema_files(files: Mapping[str, bytes]) -> None:
    """No line is visible before the schema file of its table version."""
    for path in files:
        if path.endswith("/meta/CDC.index"):
            schema, table, version, *_ = path.split("/")
            assert f"{schema}/{table}/meta/schema_{version}_1.json" in files
