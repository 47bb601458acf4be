"""A TiCDC that answers as a recorded one did: ``tests/data/ticdc-api``."""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import zstandard

DATA = Path(__file__).resolve().parents[2] / "data/ticdc-api"
LIST = "/api/v2/changefeeds"


def exchanges(name: str) -> Iterator[dict[str, Any]]:
    """Return every exchange of a recording, in order; ``classic`` or ``new``."""
    yield from _lines(name)


def cli_calls(name: str) -> Iterator[dict[str, Any]]:
    """Return every call of the official CLI in a recording, in order: args (without ``--server``), exit, output."""
    yield from _lines(f"{name}-cli")


def _lines(name: str) -> Iterator[dict[str, Any]]:
    with (DATA / f"{name}.jsonl.zst").open("rb") as file:
        for line in io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file)):
            yield json.loads(line)


class RecordedTicdc:
    """Its changefeeds as they were shown when they ran, and once they were paused."""

    def __init__(self, name: str) -> None:
        self.listed: list[dict[str, Any]] = []
        self.infos: dict[str, dict[str, Any]] = {}
        self.stopped: dict[str, dict[str, Any]] = {}
        self.posted: list[str] = []
        self.refused: dict[str, tuple[int, dict[str, Any]]] = {}
        """Answers other than 200, by path."""
        self.url = ""
        for exchange in exchanges(name):
            path, query = urlsplit(exchange["path"])[2:4]
            if exchange["method"] != "GET" or exchange["status"] != 200 or "state" not in exchange["response"]:
                continue
            body = json.loads(exchange["response"])
            if path == LIST and "state=all" in query:
                self.listed = max(self.listed, body["items"], key=len)
            elif path.startswith(f"{LIST}/") and "config" in body:
                kept = self.stopped if body["state"] == "stopped" else self.infos
                kept.setdefault(body["id"], body)

    def answer(self, method: str, path: str) -> tuple[int, Any]:
        """Return status and body."""
        if path in self.refused:
            return self.refused[path]
        if path == LIST:
            return 200, {"total": len(self.listed), "items": self.listed}
        changefeed_id, _, verb = path.removeprefix(f"{LIST}/").partition("/")
        if method == "POST":
            self.posted.append(f"{verb} {changefeed_id}")
            if verb == "pause":
                paused = self.stopped.get(changefeed_id, {**self.infos[changefeed_id], "state": "stopped"})
                self.infos[changefeed_id] = paused
            return 200, {}
        if changefeed_id in self.infos:
            return 200, self.infos[changefeed_id]
        return 400, {"error_code": "CDC:ErrChangeFeedNotExists", "error_msg": f"changefeed not exists: {changefeed_id}"}


@contextmanager
def recorded_ticdc(name: str) -> Iterator[RecordedTicdc]:
    """Serve a recording."""
    ticdc = RecordedTicdc(name)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = ticdc.answer(self.command, urlsplit(self.path).path)
            shown = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(shown)))
            self.end_headers()
            self.wfile.write(shown)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        ticdc.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield ticdc
        finally:
            server.shutdown()
            thread.join()
