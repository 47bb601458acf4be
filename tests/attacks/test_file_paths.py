"""Files of a storage sink: whatever tables are called, nothing leaves the root and no two share a folder."""

import json
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from consumers.processors.core.storage.paths import METADATA, PathForm
from consumers.processors.storage.store import LocalStore, StorageUnavailableError
from schemas.errors import BusError, CorruptDataError
from schemas.ids import Ts
from schemas.sink.file_names import is_schema_file_path, path_name, schema_path_name
from schemas.sink.storage_rows import FolderForm, SchemaFile, decode_schema_file, encode_schema_file
from sorters.core.encode.storage.schema import ddl_file
from sorters.core.sql.ddl_event import ddl_events
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

FORM = PathForm(extension="csv")
NOW = datetime(2024, 5, 6)  # noqa: DTZ001 # files are named by the server's local time
EVIL = ["..", ".", "../../x", "/x", "a/b", "b/c", "a\\b", "", "\x00", "a\n", "%2E", "%", "meta", "metadata", ".tidebus"]
EVIL += [
    "x" * 64,
    "😀" * 64,
    "%" * 64,
    "/" * 64,
    "CON",
    "a?b",
    "a#1",
    "é",
    "e\u0301",
    " ",
    "a ",
    ":",
    "~",
    "%~",
]
NAMES = st.sampled_from(EVIL) | st.text(max_size=64) | st.text("./\\%~2EF", max_size=5)


def folder(schema: str, table: str, version: int = 7, partition: int | None = None) -> str:
    return FORM.folder(FolderForm(schema, table, Ts(version), partition), NOW)


def schema_file(schema: str, table: str) -> SchemaFile:
    store = snapshot((schema, 2, []))
    record = job(20, 3, schema=schema, schema_id=2, table_id=9, query="CREATE TABLE t", table_info=table_info(9, table))
    change = store.apply(record)
    assert change is not None
    (event,) = ddl_events(change)
    return ddl_file(event)


@pytest.mark.parametrize(("schema", "table"), [("shop", "orders"), ("s_1$", "Größe"), ("a-b", "c d"), ("a.b", "meta")])
def test_ordinary_names_stand_as_in_ticdc(schema: str, table: str) -> None:
    assert folder(schema, table) == f"{schema}/{table}/7/2024-05-06"
    assert schema_file(schema, table).path.startswith(f"{schema}/{table}/meta/schema_20_")


@pytest.mark.parametrize(
    ("schema", "table"), [pair for name in EVIL for pair in ((name, "t"), ("s", name), (name, name))]
)
def test_no_name_leaves_the_root(tmp_path: Path, schema: str, table: str) -> None:
    root = tmp_path / "out" / "sink"
    store = LocalStore(root)
    paths = [f"{folder(schema, table)}/CDC1.csv"]
    if schema:
        paths.append(schema_file(schema, table).path)
    for path in paths:
        store.put(path, [b"x"])
        assert store.get(path) == b"x"
    store.put(METADATA, [b"{}"])
    store.put(".tidebus/feed/partition-0", [b"{}"])
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) == len(paths) + 2
    assert all(root in path.parents for path in files)
    assert {path.name for path in root.iterdir()} == {METADATA, ".tidebus", schema_path_name(schema)}


def test_names_with_slashes_share_no_folder() -> None:
    assert folder("a", "b/c") != folder("a/b", "c")
    assert schema_file("a", "b/c").path.rpartition("/")[0] != schema_file("a/b", "c").path.rpartition("/")[0]


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_two_tables_never_share_a_folder(table: tuple[str, str], other: tuple[str, str]) -> None:
    mine, theirs = folder(*table).split("/"), folder(*other).split("/")
    assert (mine == theirs) == (table == other)
    assert len(mine) == 4
    for part in mine:
        assert part not in ("", ".", "..")
        assert not part.startswith(".")
        assert len(os.fsencode(part)) <= 200
        assert part.isprintable() or not any(ord(char) < 32 or char in "/\\" for char in part)
        part.encode()


@given(NAMES.filter(bool), NAMES)
def test_path_of_every_schema_file_is_taken_by_the_processor(schema: str, table: str) -> None:
    path = f"{schema_path_name(schema)}/{path_name(table)}/meta/schema_1_0000000002.json"
    assert is_schema_file_path(path)
    assert decode_schema_file(encode_schema_file(SchemaFile(path, "{}", is_ddl=True))).path == path


@pytest.mark.parametrize(
    "path",
    [
        *("../x", "/etc/cron.d/x", "a/../b/meta/schema_1_1.json", "a/b/meta/schema_1_1.json/..", "metadata", ""),
        *("a//meta/schema_1_1.json", ".tidebus/x/meta/schema_1_1.json", "metadata/t/meta/schema_1_1.json"),
        *("a/b/1/CDC1.csv", "a\\..\\b/meta/schema_1_1.json", "a/b\x00/meta/schema_1_1.json", "a" * 700),
        *("a/b/c/meta/schema_1_1.json", "a/b/meta/schema_1_1.json\n", "a/b/meta/schema_١_1.json"),
    ],
)
def test_path_of_a_record_that_is_no_schema_file_is_refused(path: str) -> None:
    value = json.dumps({"path": path, "content": "x", "is_ddl": True}).encode()
    with pytest.raises(CorruptDataError):
        decode_schema_file(value)


@settings(max_examples=50)
@given(st.text(max_size=60) | st.text("a/.\\%2EF~", max_size=30))
def test_store_writes_no_path_outside_of_its_root(tmp_path_factory: pytest.TempPathFactory, path: str) -> None:
    above = tmp_path_factory.mktemp("above")
    store = LocalStore(above / "root")
    with suppress(BusError):
        store.put(path, [b"x"])
    assert {entry.name for entry in above.iterdir()} <= {"root"}


def test_new_folders_are_durable_in_theirs_before_a_file_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    root = tmp_path / "new" / "sink"
    store = LocalStore(root)
    store.put("s/t/7/CDC1.csv", [b"x"])
    assert {tmp_path, tmp_path / "new", root, root / "s", root / "s/t", root / "s/t/7"} <= set(synced)
    synced.clear()
    store.put("s/t/7/CDC2.csv", [b"x"])
    assert root not in synced
    LocalStore(root).put("s/t/7/CDC3.csv", [b"x"])  # another process: who made the folders may have ended too early
    assert {root, root / "s", root / "s/t"} <= set(synced)
    (root / "s/t/7").rename(root / "gone")
    store.put("s/t/7/CDC4.csv", [b"x"])
    assert store.get("s/t/7/CDC4.csv") == b"x"


def test_folder_that_was_replaced_gets_no_file_behind_those_that_are_gone(tmp_path: Path) -> None:
    root, away = tmp_path / "mount" / "sink", tmp_path / "away"
    store = LocalStore(root)
    store.put("s/t/7/CDC1.csv", [b"x"])
    root.rename(away)
    for replaces in (False, True):  # removed or unmounted; another disk is there
        if replaces:
            root.mkdir()
        with pytest.raises(StorageUnavailableError, match="not the one that was written to"):
            store.put("s/t/7/CDC2.csv", [b"x"])
        with pytest.raises(StorageUnavailableError, match=str(root)):
            store.get(".tidebus/feed/partition-0")
        assert not root.exists() or not list(root.iterdir())
    root.rmdir()
    away.rename(root)
    store.put("s/t/7/CDC2.csv", [b"x"])
    assert store.get("s/t/7/CDC2.csv") == b"x"
