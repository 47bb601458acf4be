"""Rows of the HTTP API: each path is asked for, and each field of ``replica_config`` is sent."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from consumers.control.api.replica_config import from_api, replica_config
from consumers.control.api.requests import FeedBody, feed_request
from schemas.config.changefeed import load_changefeed
from schemas.errors import BusError
from schemas.ids import Ts
from tests.parity.evidence import shown
from tests.parity.rows import Mark, Row, Verdict, read_rows
from tests.parity.settings import judge_key
from tests.support.control.api import Api
from tests.support.control.memory_bus import Memory
from tests.support.recorded.recorded_ticdc import exchanges

NO_ROUTE = "api.no_such_route"
URI: Final = "kafka://h/t?protocol=canal-json&enable-tidb-extension=true"


def judge_path(row: Row) -> Verdict:
    """Return what becomes of a path. The probe: method and path; ``field`` and a key of the file as in its rows; or
    ``fields``, all that TiCDCs were sent and have shown."""
    method, _, path = row.probe.partition(" ")
    if not method:
        return Verdict(Mark.NOT_HERE, row.how) if row.how else Verdict(Mark.SILENT, "there is nothing, and no reason")
    if method == "field":
        return _judge_field(row, path)
    if method == "fields":
        return judge_fields(row, recorded_configs())
    answer = _api().http.request(method, path)
    text = answer.text
    if NO_ROUTE in text:
        return Verdict(Mark.UNKNOWN, f"{answer.status_code}: no such path")
    if answer.status_code >= 400 and row.how.startswith("refused"):
        body: dict[str, Any] = answer.json()
        return Verdict(Mark.REFUSED, f"`{body['error_code']}`: {row.how}")
    return shown(row, path.partition("?")[0].rpartition("/")[2], path)


def _api() -> Api:
    """Return one with a changefeed, of which an earlier row has removed nothing."""
    bus = Memory()
    bus.now = Ts(470642030000000000)
    bus.create(feed_request(FeedBody(changefeed_id="cf", sink_uri=URI)), "default")
    return Api(bus)


def _judge_field(row: Row, probe: str) -> Verdict:
    """The probe: the API's field, a blank, and the row of the file that it stands for."""
    field, _, setting = probe.partition(" ")
    key, _, file_probe = setting.partition(" ")
    if field not in _names(key):
        return Verdict(Mark.UNKNOWN, f"the API's `{field}` is read as no `{key}`")
    return judge_key(Row(key, row.since, file_probe, row.test, row.how))


def judge_fields(row: Row, configs: Iterable[Mapping[str, Any]]) -> Verdict:
    """Return what becomes of whole ``replica_config``, each loaded as it is, and of the API's name of each key that a
    row of the file has; one unknown name is a fault."""
    keys = [row.item.rpartition(".")[2] for row in read_rows("config")]
    misread = [key for key in keys if list(from_api(replica_config({key: 1}))) != [key]]
    if misread:
        return Verdict(Mark.UNKNOWN, f"the API reads `{misread[0]}` as another key")
    names = set[str]()
    for config in configs:
        try:
            load_changefeed(URI, from_api(config))
        except BusError as error:
            return Verdict(Mark.UNKNOWN, str(error))
        names |= set(_paths(config))
    said = f"{row.how}; the {len(names)} that recorded TiCDCs were sent or show are taken as a whole"
    return shown(replace(row, how=said), "exchanges")


def recorded_configs() -> Iterator[dict[str, Any]]:
    """Yield each ``replica_config`` of the recordings, sent or shown."""
    for exchange in (exchange for name in ("classic", "new") for exchange in exchanges(name)):
        for text in (exchange["request"], exchange["response"]):
            body = json.loads(text) if text and text.startswith("{") else {}
            yield from (body[key] for key in ("replica_config", "config") if isinstance(body.get(key), dict))


def _paths(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            yield from _paths(value[0], f"{prefix}{name}[].")
        else:
            yield prefix + name


def _names(key: str) -> set[str]:
    """Return the API's names that are read as the last part of a key of the file."""
    last = key.rpartition(".")[2]
    candidates = {last, last.replace("-", "_"), "advance_timeout", "max_multi_update_row_count", "file_index_width"}
    return {name for name in candidates if list(from_api({name: 1})) == [last]}
