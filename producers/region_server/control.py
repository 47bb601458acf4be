"""The control port: cluster events by HTTP on loopback, for people and scripts that drive an embedded cluster.

    POST /chaos/{event}?{field}={value}&…     one event of core/chaos.py by its snake_case name; keys are hex
    GET  /chaos                               what there is to break: regions, leaders, stores, PD members

Such as ``curl -X POST 'localhost:4000/chaos/transfer_leader?region_id=2&to=3&hint=true'``. Answers are JSON: 200, or
400 with the error's code and text.
"""

import asyncio
import dataclasses
import json
import re
from typing import Any, get_args
from urllib.parse import SplitResult, parse_qsl, urlsplit

from producers.region_server.chaos import Chaos
from producers.region_server.core import chaos
from producers.region_server.kv.store import ClusterStore
from schemas.errors import BusError, ConfigError, shortened

_REQUEST_MAX_BYTES = 16 * 1024
_READ_TIMEOUT_S = 10.0
_SHOWN_CHARS_MAX = 200


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


EVENTS: dict[str, type[chaos.ClusterEvent]] = {_snake(kind.__name__): kind for kind in get_args(chaos.ClusterEvent)}


def parse_event(name: str, fields: dict[str, str]) -> chaos.ClusterEvent:
    """Make an event of its name and fields.

    Raises:
        ConfigError: the name or a field is unknown, a field is missing or does not read as its type.

    >>> parse_event("transfer_leader", {"region_id": "2", "to": "3", "hint": "true"})
    TransferLeader(region_id=2, to=3, hint=True, pd_lag_ms=0)
    """
    kind = EVENTS.get(name)
    if kind is None:
        raise ConfigError("cluster event is unknown", event=name, known=sorted(EVENTS))
    known = {field.name: field for field in dataclasses.fields(kind)}
    unknown = sorted(set(fields) - set(known))
    missing = [
        name for name, field in known.items() if field.default is dataclasses.MISSING and name not in fields
    ]  # fmt: skip
    if unknown or missing:
        raise ConfigError("fields of the event are wrong", event=name, unknown=unknown, missing=missing)
    values: dict[str, Any] = {field: _read(field, text, known[field].type) for field, text in fields.items()}
    return kind(**values)


def _read(name: str, text: str, kind: object) -> object:
    try:
        if kind is bytes:
            return bytes.fromhex(text)
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        # Ids are integers with a name.
        return text if kind is str else int(text)
    except (ValueError, KeyError) as error:
        raise ConfigError("field does not read as its type", field=name, value=text) from error


def _url(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:
        raise ConfigError("request names no URL", url=shortened(text, _SHOWN_CHARS_MAX), reason=error) from error


class ControlServer:
    """The control port of one region server."""

    def __init__(self, cluster_chaos: Chaos, store: ClusterStore, port: int, host: str = "127.0.0.1") -> None:
        self._chaos, self._store = cluster_chaos, store
        self._host, self._port = host, port
        self._listener: asyncio.Server | None = None

    async def start(self) -> str:
        """Listen; return ``host:port``."""
        self._listener = await asyncio.start_server(self._answer, self._host, self._port, limit=_REQUEST_MAX_BYTES)
        port = self._listener.sockets[0].getsockname()[1]
        return f"{self._host}:{port}"

    async def stop(self) -> None:
        """Give the port back."""
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), _READ_TIMEOUT_S)
            status, body = await self._do(head.split(b"\r\n", 1)[0].decode("latin-1"))
            data = json.dumps(body).encode() + b"\n"
            reason = {200: "OK", 400: "Bad Request", 404: "Not Found"}[status]
            lines = (
                f"HTTP/1.1 {status} {reason}", "Content-Type: application/json",
                f"Content-Length: {len(data)}", "Connection: close", "", "",
            )  # fmt: skip
            writer.write("\r\n".join(lines).encode() + data)
            await writer.drain()
        except (TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # no whole request came, or nobody waits for the answer
        finally:
            writer.close()

    async def _do(self, request_line: str) -> tuple[int, dict[str, object]]:
        method, _, rest = request_line.partition(" ")
        try:
            url = _url(rest.partition(" ")[0])
            path = [part for part in url.path.split("/") if part]
            if method == "GET" and path == ["chaos"]:
                return 200, self._view()
            if method == "POST" and len(path) == 2 and path[0] == "chaos":
                event = parse_event(path[1], dict(parse_qsl(url.query, keep_blank_values=True)))
                await self._chaos.perform(event)
                return 200, {"performed": repr(event)}
        except BusError as error:
            return 400, {"code": error.code, "message": str(error)}
        return 404, {"code": "region_server.no_such_path", "message": f"{method} {url.path} is not served"}

    def _view(self) -> dict[str, object]:
        view, store = self._chaos.view(), self._store
        regions = [
            {"region_id": region.region_id, "leader": region.leader, "version": region.version,
             "start": region.start.hex(), "end": region.end.hex(), "keys": len(region.data)}
            for region in store.regions
        ]  # fmt: skip
        return {
            "regions": regions, "up": list(view.up), "down": list(view.down),
            "pd_members": view.pd_members, "pd_leader": view.pd_leader, "events": sorted(EVENTS),
        }  # fmt: skip
