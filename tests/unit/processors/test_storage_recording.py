"""The recording through a storage sink into a folder, and back by a reader that knows only files: what TiDB's SELECT
returned.
"""

import base64
import csv
import io
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from compose.foresight.dry_run import prepare
from consumers.processors.core.storage.paths import PathForm, file_number
from consumers.processors.sink_source import SinkRecord
from consumers.processors.storage.begin import FilesLead, FilesShare
from consumers.processors.storage.run import StorageRun, StorageSettings
from consumers.processors.storage.store import LocalStore
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.position import Position, PositionClass
from schemas.sink.storage_rows import decode_storage_rows
from schemas.sink.topic import PARTITIONS, sorter_config
from tests.support.recorded.recording import TIDB_DATA, read_jsonl
from tests.support.recorded.recording_checks import checks, enum_names
from tests.support.topics.materialise import Contents, Table, differences, explained
from tests.support.topics.messages import Message
from tests.support.topics.storage_share import WholeStorage

NULL = "<null>"
SETTINGS = f"""
[sink]
date-separator = "none"
file-index-digit = 6
terminator = "\\n"
[sink.csv]
include-commit-ts = true
binary-encoding-method = "hex"
null = "{NULL}"
"""
CLASSES = {"ddl": PositionClass.DDL, "watermark": PositionClass.WATERMARK, "bootstrap": PositionClass.BOOTSTRAP}
BINARY_TYPES = ("BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB")


class ListSource:
    """Records, a few at a time, once all partitions are asked for."""

    def __init__(self, records: list[SinkRecord]) -> None:
        self.records = records
        self._wanted: set[int] = set()

    def poll(self, timeout_s: float) -> list[SinkRecord]:
        if len(self._wanted) < PARTITIONS:
            return []
        batch, self.records = self.records[:500], self.records[500:]
        return batch

    def check(self, offsets: Mapping[int, int]) -> None: ...
    def begin(self, offsets: Mapping[int, int]) -> None:
        self._wanted.update(offsets)

    def end(self, partition: int) -> None: ...
    def pause(self, partition: int) -> None: ...
    def resume(self, partition: int) -> None: ...
    def note(self, offsets: Any) -> None: ...
    def close(self) -> None: ...


def sink_records(uri: str) -> list[SinkRecord]:
    """Return what the sorter writes of the whole recording, by position; offsets are the partitions' own."""
    info = ChangefeedInfo(changefeed_id="a", upstream=UpstreamId("u"), sink_uri=uri, start_ts=Ts(1))
    config = sorter_config(load_changefeed(uri, SETTINGS), info, "k:1")
    run = prepare(TIDB_DATA, config, refused=lambda error: None, watermark_every_ms=2_000)
    ends = dict.fromkeys(range(PARTITIONS), 0)
    records = []
    for shown in run.records():
        partition = shown["partition"]
        records.append(record_of(shown, partition, ends[partition]))
        ends[partition] += 1
    return records


def record_of(shown: dict[str, Any], partition: int, offset: int) -> SinkRecord:
    key = base64.b64decode(shown["key"]) if shown["key"] else None
    value = base64.b64decode(shown["value"])
    if shown["op"] in CLASSES:
        position = Position(Ts(shown["commit_ts"]), CLASSES[shown["op"]]).encode()
    else:
        position = decode_storage_rows(value).position(0)
    return SinkRecord(partition, offset, position, key, value)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("storage")
    settings = StorageSettings(
        changefeed="default.a",
        paths=PathForm(extension="csv", date_separator="none", file_index_digit=6),
        start_ts=Ts(1),
    )
    uri = f"file://{root}?protocol=csv"
    source = ListSource(sink_records(uri))
    run = StorageRun(source, LocalStore(root), settings)
    whole = WholeStorage(FilesShare(run), FilesLead(run), PARTITIONS)
    while source.records:
        whole.turn()
    whole.finish()
    run.close()
    return root


def data_messages(root: Path) -> Iterator[tuple[int, int, Message]]:
    """Yield (commit_ts, 0, row) of every line of every data file that an index names."""
    for index in root.glob("*/*/**/meta/CDC.index"):
        table_folder = index.parent.parent
        schema, table, version = table_folder.relative_to(root).parts[:3]
        (definition,) = (root / schema / table / "meta").glob(f"schema_{version}_*.json")
        columns = json.loads(definition.read_text())["TableColumns"] or []
        last = file_number(index.read_text().strip())
        assert last is not None
        for number in range(1, last + 1):
            text = (table_folder / f"CDC{number:06d}.csv").read_bytes().decode("utf-8", "surrogateescape")
            for op, name, schema_name, commit_ts, *cells in csv.reader(io.StringIO(text, newline="")):
                assert (name, schema_name) == (table, schema)
                yield int(commit_ts), 0, row_message(op, schema, table, columns, cells)


def row_message(op: str, schema: str, table: str, columns: list[dict[str, str]], cells: list[str]) -> Message:
    assert len(cells) == len(columns), (table, cells)
    values = {
        column["ColumnName"]: None
        if cell == NULL
        else bytes.fromhex(cell)
        if column["ColumnType"].split(" ")[0] in BINARY_TYPES
        else cell
        for column, cell in zip(columns, cells, strict=True)
    }
    pk = tuple(column["ColumnName"] for column in columns if column.get("ColumnIsPk"))
    kinds: dict[str, Any] = {"I": "insert", "U": "update", "D": "delete"}
    types = {column["ColumnName"]: "" for column in columns}
    return Message(
        kind="row", commit_ts=None, schema=schema, table=table, op=kinds[op], columns=values, pk=pk, types=types
    )


def ddl_messages(root: Path) -> Iterator[tuple[int, int, Message]]:
    """Yield (commit_ts, 1, DDL) of every schema file that a DDL has written."""
    for path in [*root.glob("*/meta/schema_*.json"), *root.glob("*/*/meta/schema_*.json")]:
        definition = json.loads(path.read_text())
        if definition["Query"]:
            message = Message(
                kind="ddl",
                commit_ts=None,
                schema=definition["Schema"],
                table=definition["Table"],
                query=definition["Query"],
            )
            yield definition["TableVersion"], 1, message


def test_storage_files_of_the_recording_read_back_give_what_select_returned(folder: Path) -> None:
    csv.field_size_limit(1 << 24)
    history = sorted([*data_messages(folder), *ddl_messages(folder)], key=lambda item: item[:2])
    elements, contents, at, compared, failures = enum_names(), Contents(), 0, 0, []
    for check in checks():
        while at < len(history) and history[at][0] <= int(check["read_ts"]):
            contents.apply(history[at][2])
            at += 1
        name, result = check["check"].replace("`", ""), check["result"]
        if explained(name, contents):
            continue
        complaints = differences(
            contents.tables.get(name, Table()),
            result["columns"],
            result["types"],
            result["rows"],
            elements.get(name, {}),
        )
        failures += [
            f"{name} at {check['read_ts']}: {text}" for text in complaints if not explained(f"{name}: {text}", contents)
        ]
        compared += 1
    assert not failures[:10], len(failures)
    assert compared > 100


def checksum_of(text: str) -> int:
    """Return what TiCDC's storage consumer computes of a schema file that it reads.

    Source: pingcap/tiflow ``cmd/storage-consumer`` and ``marshalWithoutQuery`` of ``table_definition.go``.
    """
    definition = json.loads(text)
    columns = sorted(definition["TableColumns"] or [], key=lambda column: str(column["ColumnName"]).encode())
    form = {
        "Table": definition["Table"],
        "Schema": definition["Schema"],
        "Version": 0,
        "TableColumns": columns,
        "TableColumnsTotal": definition["TableColumnsTotal"],
    }
    go = json.dumps(form, indent=4, ensure_ascii=False).replace("\ufffd", "\\ufffd")
    for char in "<>&\u2028\u2029":
        go = go.replace(char, f"\\u{ord(char):04x}")
    return zlib.crc32(go.encode())


def test_a_reader_of_schema_files_computes_the_checksums_of_their_names(folder: Path) -> None:
    kinds = set()
    for path in folder.rglob("meta/schema_*.json"):
        text = path.read_text()
        assert int(path.stem.rsplit("_", 1)[1]) == checksum_of(text), path
        definition = json.loads(text)
        # TiCDC's consumer takes one without columns as a schema's.
        assert bool(definition["Table"]) == bool(definition["TableColumns"]), path
        kinds.add(definition["Type"])
    created, altered, dropped, views = {0, 1, 3}, {5, 12, 14, 22, 42}, {2, 4}, {21, 24}
    assert kinds >= created | altered | dropped | views


def test_storage_metadata_tells_how_far_files_are(folder: Path) -> None:
    last = max(int(line["commit_ts"]) for line in read_jsonl(TIDB_DATA / "encoded" / "canal-json.jsonl.zst"))
    assert json.loads((folder / "metadata").read_text())["checkpoint-ts"] >= last
