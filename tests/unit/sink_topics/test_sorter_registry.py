"""The sorter's registry client against a registry that answers as told; errors that come out of Spark's workers."""

import json
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import psutil
import pytest

from edges.registry.access import RegistryAccess
from producers.pull.landing.raw_log import register_region_batch
from schemas.errors import Action, CorruptDataError
from sorters.core.feed.large_messages import SinkMessageTooLargeError
from sorters.log.failures import HistoryLostError, SparkJobError, WorkerError, bus_error, worker_error
from sorters.registry.confluent import ConfluentRegistry
from sorters.registry.registry import RegistryUnreachableError, SchemaRefusedError


class FakeRegistry(ThreadingHTTPServer):
    """Answers every request with ``answer`` and keeps what it was asked."""

    answer: tuple[int, bytes] = (200, b'{"id":42}')

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str | None, object]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # the client may keep its connection
    server: FakeRegistry

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.asked.append((self.path, self.headers["Authorization"], body))
        status, answer = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    server = FakeRegistry()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def register(access: RegistryAccess, subject: str, schema: str, *, table: str) -> int:
    with closing(ConfluentRegistry(access)) as client:
        return client.register(subject, schema, table=table)


def connections_to(registry: FakeRegistry) -> int:
    port = registry.server_address[1]
    return sum(bool(seen.raddr) and seen.raddr.port == port for seen in psutil.Process().net_connections("tcp"))


def test_registry_client_closed_leaves_no_connection(registry: FakeRegistry) -> None:
    client = ConfluentRegistry(RegistryAccess.at(f"http://{registry.address}"))
    client.register("t-value", '{"type":"int"}', table="d.t")
    assert connections_to(registry) == 1
    client.close()
    assert connections_to(registry) == 0


def test_schema_of_region_batches_registered_leaves_no_connection(registry: FakeRegistry) -> None:
    assert register_region_batch(RegistryAccess.at(f"http://{registry.address}"), "t") == 42
    assert connections_to(registry) == 0


def test_register_asks_once_for_a_schema_with_path_and_credentials(registry: FakeRegistry) -> None:
    access = RegistryAccess.at(f"http://me:p%40ss@{registry.address}/apis/ccompat/v7/")
    with closing(ConfluentRegistry(access)) as client:
        assert [client.register("a/b-value", '{"type":"int"}', table="d.t") for _ in range(2)] == [42, 42]
    path, credentials, body = registry.asked[0]
    assert len(registry.asked) == 1
    assert path.partition("?")[0] == "/apis/ccompat/v7/subjects/a%2Fb-value/versions"
    assert credentials == "Basic bWU6cEBzcw=="  # me:p@ss
    assert isinstance(body, dict)
    assert body["schema"] == '{"type":"int"}'


@pytest.mark.parametrize("status", [409, 422, 401])
def test_register_when_refused_names_subject_table_and_reason(registry: FakeRegistry, status: int) -> None:
    registry.answer = (status, b'{"error_code":409,"message":"reader union lacks writer type"}')
    with pytest.raises(SchemaRefusedError) as caught:
        register(RegistryAccess.at(f"http://{registry.address}"), "s-value", "{}", table="d.t")
    assert caught.value.action is Action.STOP_CHANGEFEED
    for part in ("s-value", "d.t", "reader union lacks writer type", str(status)):
        assert part in str(caught.value)


@pytest.mark.parametrize("status", [500, 503, 429])
def test_register_when_registry_fails_is_to_be_tried_again(registry: FakeRegistry, status: int) -> None:
    registry.answer = (status, b"no")
    with pytest.raises(RegistryUnreachableError) as caught:
        register(RegistryAccess.at(f"http://{registry.address}"), "s-value", "{}", table="d.t")
    assert caught.value.action is Action.RETRY


def test_register_when_nobody_listens_is_to_be_tried_again(registry: FakeRegistry) -> None:
    address = registry.address
    registry.server_close()
    with pytest.raises(RegistryUnreachableError):
        register(RegistryAccess.at(f"http://{address}"), "s-value", "{}", table="d.t")


def test_bus_error_of_a_worker_comes_back_whole_from_any_text_around_it() -> None:
    error = CorruptDataError("row does not decode", table="d.t", key="74", commit_ts=7)
    nonce = "a1" * 16
    text = (
        f"org.apache.spark.SparkException: Job aborted\n  Traceback …\nWorkerError: {WorkerError(error, nonce)}\n\tat …"
    )
    carried = worker_error(RuntimeError(text), nonce)
    assert isinstance(carried, CorruptDataError)
    assert carried.fields == error.fields
    cause = RuntimeError("outer")
    cause.__cause__ = RuntimeError(text)
    again = worker_error(cause, nonce)
    assert again is not None
    assert again.fields == error.fields


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("…: org.apache.kafka.common.errors.RecordTooLargeException: 12 bytes", SinkMessageTooLargeError),
        ("Cannot fetch offset 3. Some data may have been lost because", HistoryLostError),
        ("java.lang.OutOfMemoryError: Java heap space", SparkJobError),
    ],
)
def test_bus_error_of_spark_and_kafka_is_told_by_its_class(text: str, kind: type) -> None:
    assert type(bus_error(RuntimeError(text))) is kind
