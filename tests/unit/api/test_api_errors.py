"""Our errors by TiCDC's codes, and as messages of the command line."""

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from compose.cli import run_cli
from compose.operator.api_calls import HINTS, USAGE_CODES
from compose.ports import free_ports
from consumers.control.api.codes import CDC_CODES, INTERNAL, KEY_CODES, STATUSES
from consumers.control.api.errors import cdc_code, error_body, status_of
from consumers.control.api.serving.server import ApiServer
from consumers.control.changefeeds.store import StartTsError
from consumers.control.core.replication.versions import VersionMismatchError
from schemas.config.parse.origin import ExpressionParseError
from schemas.errors import BusError, ConfigError
from sorters.core.filter.row_conditions import ExpressionColumnNotFoundError, ExpressionMisfitError
from tests.support.control.memory_bus import URI, Memory, Shares

PACKAGES = ("schemas", "edges", "producers", "sorters", "consumers", "compose")


def subclasses(kind: type[BusError]) -> Iterator[type[BusError]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from subclasses(subclass)


def test_every_code_of_the_table_is_an_error_of_ours() -> None:
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if "__main__" not in module.name:
                importlib.import_module(module.name)
    codes = {error.code for error in subclasses(BusError) if error.__module__.split(".")[0] in PACKAGES}
    assert set(CDC_CODES) <= codes
    known = {*CDC_CODES.values(), *KEY_CODES.values()}
    assert known >= USAGE_CODES | set(HINTS)
    assert known | {INTERNAL, "CDC:ErrMySQLConnectionError", "CDC:ErrMySQLInvalidConfig"} >= set(STATUSES)


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [
        (ConfigError("no", key="sink-uri"), "CDC:ErrSinkURIInvalid", 400),
        (ConfigError("no", key="filter.rules[0]"), "CDC:ErrFilterRuleInvalid", 400),
        (ConfigError("no", key="target-ts"), "CDC:ErrTargetTsBeforeStartTs", 400),
        (ConfigError("no", key="sink.protocol"), "CDC:ErrAPIInvalidParam", 400),
        (StartTsError("gone", oldest_ts=7), "CDC:ErrStartTsBeforeGC", 400),
        (ExpressionParseError("no", key="filter.event-filters[0].x"), "CDC:ErrExpressionParseFailed", 400),
        (ExpressionMisfitError("no", table="a.b"), "CDC:ErrExpressionParseFailed", 400),
        (ExpressionColumnNotFoundError("no", table="a.b"), "CDC:ErrExpressionColumnNotFound", 400),
        (VersionMismatchError("captures of too many versions"), "CDC:ErrVersionIncompatible", 500),
        (BusError("what"), INTERNAL, 500),
    ],
)
def test_errors_have_ticdcs_code_and_status_and_ours_in_the_text(error: BusError, code: str, status: int) -> None:
    assert (cdc_code(error), status_of(error)) == (code, HTTPStatus(status))
    assert error_body(error) == {"error_code": code, "error_msg": f"[{code}] {error}"}


@pytest.fixture
def bus() -> Memory:
    bus = Memory()
    bus.leader, bus.shares = bus.capture.capture_id, Shares()
    return bus


@pytest.fixture
def server(bus: Memory) -> Iterator[str]:
    with closing(ApiServer("127.0.0.1:0")) as server, server.serving(bus):
        yield f"http://{server.address}"


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = run_cli(["cli", *arguments])
    shown = capsys.readouterr()
    assert shown.out == "" and shown.err.startswith("error: [") and shown.err.count("\n") == 1, shown
    return status, shown.err


def test_command_line_says_what_to_do_about_a_refusal(
    server: str, bus: Memory, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--server", server]
    status, said = failed(capsys, "changefeed", "query", "-c", "nobody", *where)
    assert status == 1 and "[CDC:ErrChangeFeedNotExists]" in said and "changefeed list --all" in said
    create = ["changefeed", "create", "--sink-uri", URI, "--no-confirm", *where]
    assert run_cli([*create, "-c", "twice"]) == 0
    capsys.readouterr()
    status, said = failed(capsys, *create, "-c", "twice")
    assert status == 1 and "[CDC:ErrChangeFeedAlreadyExists]" in said and "another --changefeed-id" in said
    status, said = failed(capsys, *create, "--start-ts", "5")
    assert status == 1 and "[CDC:ErrStartTsBeforeGC]" in said and "later --start-ts" in said
    status, said = failed(capsys, "changefeed", "query", "-c", "bad--id", *where)
    assert status == 2 and "[CDC:ErrAPIInvalidParam]" in said and "changefeed-id must be" in said
    status, said = failed(capsys, "changefeed", "update", "-c", "twice", "--target-ts", "9", "--no-confirm", *where)
    assert status == 1 and "pause it first" in said
    status, said = failed(capsys, "capture", "drain", "who", *where)
    assert status == 1 and "[CDC:ErrCaptureNotExist]" in said and "capture list" in said
    bus.broken = VersionMismatchError("captures of too many versions", versions=["1.0.0", "2.0.0", "3.0.0"])
    status, said = failed(capsys, "changefeed", "query", "-c", "twice", *where)
    assert status == 1 and "bring all captures to one version" in said and "3.0.0" in said
    bus.leader, bus.shares, bus.broken = None, None, None
    status, said = failed(capsys, "processor", "list", *where)
    assert status == 1 and "[CDC:ErrOwnerNotFound]" in said and "ask again" in said


def test_command_line_without_a_server_to_ask_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (port,) = free_ports(1)
    status, said = failed(capsys, "capture", "list", "--server", f"http://127.0.0.1:{port}")
    assert status == 1 and "[api.unreachable] no capture answers there; check --server" in said
    status, said = failed(capsys, "capture", "list", "--server", "ftp://127.0.0.1")
    assert status == 2 and "http://host:port" in said
    status, said = failed(
        capsys, "capture", "list", "--server", "https://127.0.0.1:1", "--ca", str(tmp_path / "no.pem")
    )
    assert status == 1 and "[api.tls_file] file cannot be read" in said


def test_command_line_before_a_server_that_is_not_ours_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    import http.server
    import threading

    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:  # the name that http.server calls
            self.send_response(404)
            self.end_headers()
            self.wfile.write(b"<html>")

        def log_message(self, *_: Any) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            status, said = failed(capsys, "capture", "list", "--server", f"http://127.0.0.1:{other.server_port}")
        finally:
            other.shutdown()
            thread.join()
    assert status == 1 and "[api.strange_answer] no TideBus API answers there" in said


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_shells_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["completion", shell]) == 0
    assert f"{shell}_complete" in capsys.readouterr().out.replace("_TIDEBUS_COMPLETE=", "")
