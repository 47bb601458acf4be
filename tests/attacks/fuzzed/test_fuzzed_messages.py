"""What a reader of topics, a processor, a puller and a capture are sent: whatever it says, a coded error comes out."""

import http.server
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from consumers.client.avro import AvroDecoder
from consumers.client.canal_json import CanalJsonDecoder
from consumers.client.core.partition import PartitionKey, StreamRecord
from consumers.client.stream import _read_position
from consumers.control.api import client
from consumers.control.api.client import Answer, ApiClient, ServerAnswerError
from consumers.processors.core.storage.files import decode_state
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass, RowOp
from schemas.tidb.keys import decode_meta_json
from tests.support.sources.hostile import NOT_JSON, VALUES, bent, only_coded

ROW = Position(Ts(9), PositionClass.ROW, Ts(5), RowOp.INSERT, b"k")
DDL = Position(Ts(9), PositionClass.DDL, Ts(5), RowOp.INSERT, b"k")
CANAL: dict[str, Any] = {
    "database": "d",
    "table": "t",
    "pkNames": ["id"],
    "isDdl": False,
    "type": "INSERT",
    "mysqlType": {"id": "bigint(20)", "d": "decimal(10,2)"},
    "data": [{"id": "1", "d": "0.10"}],
    "old": None,
    "_tidb": {"commitTs": 9},
}
SCHEMA: dict[str, Any] = {
    "type": "record",
    "name": "t",
    "namespace": "n.d",
    "fields": [
        {"name": "id", "type": {"type": "long", "connect.parameters": {"tidb_type": "BIGINT"}}},
        {"name": "s", "type": ["null", "string"]},
        {"name": "b", "type": "bytes"},
    ],
}
AVRO = b"\x00\x00\x00\x00\x01\x02\x02\x06abc\x02z"


def record(value: bytes | None, position: Position = ROW) -> StreamRecord:
    return StreamRecord(PartitionKey("t", 3), 1, AVRO, value, position.encode())


def canal(value: bytes) -> Any:
    return CanalJsonDecoder()(record(value), ROW)


def avro(value: bytes, schema: str = json.dumps(SCHEMA)) -> Any:
    return AvroDecoder(lambda _: schema)(record(value), ROW)


def avro_ddl(value: bytes) -> Any:
    return AvroDecoder(lambda _: "")(record(b"\x01" + value, DDL), DDL)


DECODERS: dict[str, Callable[[bytes], Any]] = {
    "canal-json": canal,
    "avro schema": lambda value: avro(AVRO, value.decode("utf-8", "replace")),
    "avro ddl": avro_ddl,
    "state of a storage sink": lambda value: decode_state(value, "p"),
    "meta value": decode_meta_json,
    "answer of the api": lambda value: Answer(200, "", value).json(),
}


def test_messages_that_are_right_decode() -> None:
    assert canal(json.dumps(CANAL).encode()).key == (1,)
    assert avro(AVRO).columns == {"id": 1, "s": "abc", "b": b"z"}


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("text", NOT_JSON, ids=lambda text: text[:6])
def test_json_that_exhausts_a_parser_is_refused_by_a_code(name: str, text: str) -> None:
    only_coded(DECODERS[name], text.encode())


@given(st.dictionaries(st.sampled_from(sorted(CANAL)), VALUES, max_size=4), VALUES)
def test_canal_json_of_any_shape_is_refused_by_a_code(changes: dict[str, Any], value: Any) -> None:
    only_coded(canal, json.dumps({**CANAL, **changes}).encode())
    only_coded(canal, json.dumps(value).encode())


@given(bent(AVRO), st.sampled_from(["id", "s", "b"]), VALUES)
def test_avro_of_any_bytes_or_schema_is_refused_by_a_code(datum: bytes, name: str, kind: Any) -> None:
    only_coded(avro, datum)
    fields = [{**field, "type": kind} if field["name"] == name else field for field in SCHEMA["fields"]]
    only_coded(lambda value: avro(value, json.dumps({**SCHEMA, "fields": fields})), AVRO)


@pytest.mark.parametrize("metadata", [*NOT_JSON, "[1]", '{"applied_ts":{}}', '{"applied_ts":1e999}', "1"])
def test_offset_that_somebody_else_committed_has_no_ts(metadata: str) -> None:
    class Committed:
        offset = 4

    Committed.metadata = metadata  # type: ignore[attr-defined]
    assert _read_position(Committed()).applied_ts == 0


@contextmanager
def endless(chunk: bytes, pause_s: float) -> Iterator[str]:
    """A server whose answer has no end."""
    ends = threading.Event()

    class Endless(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while not ends.wait(pause_s):
                    self.wfile.write(chunk)
            except OSError:
                pass

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            ends.set()
            server.shutdown()
            thread.join()


def test_answer_without_end_takes_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_BYTES_MAX", 1 << 20)
    with endless(b"x" * 65536, 0) as url, pytest.raises(ServerAnswerError, match="longer than"):
        ApiClient(url=url).ask("GET", "/status")


def test_answer_that_drips_takes_bounded_time() -> None:
    began_at = time.monotonic()
    with endless(b"x", 0.05) as url, pytest.raises(client.ServerUnreachableError, match="too slow"):
        ApiClient(url=url, timeout_s=0.5).ask("GET", "/status")
    assert time.monotonic() - began_at < 10
