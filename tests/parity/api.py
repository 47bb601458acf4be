"""Rows of the HTTP API: each path is asked for, and each field of ``replica_config`` is sent."""

from functools import cache
from typing import Any

from consumers.control.api.replica_config import from_api
from schemas.ids import Ts
from tests.parity.evidence import shown
from tests.parity.rows import Mark, Row, Verdict
from tests.parity.settings import judge_key
from tests.support.api import Api
from tests.support.memory_bus import Memory

NO_ROUTE = "api.no_such_route"


def judge_path(row: Row) -> Verdict:
    """Return what becomes of a path. The probe: method and path, or ``field`` and a key of the file as in its rows."""
    method, _, path = row.probe.partition(" ")
    if not method:
        return Verdict(Mark.NOT_HERE, row.how) if row.how else Verdict(Mark.SILENT, "there is nothing, and no reason")
    if method == "field":
        return _judge_field(row, path)
    answer = _api().http.request(method, path)
    text = answer.text
    if NO_ROUTE in text:
        return Verdict(Mark.UNKNOWN, f"{answer.status_code}: no such path")
    if answer.status_code >= 400 and row.how.startswith("refused"):
        body: dict[str, Any] = answer.json()
        return Verdict(Mark.REFUSED, f"`{body['error_code']}`: {row.how}")
    return shown(row, path.partition("?")[0].rpartition("/")[2], path)


@cache
def _api() -> Api:
    bus = Memory()
    bus.now = Ts(470642030000000000)
    return Api(bus)


def _judge_field(row: Row, probe: str) -> Verdict:
    """The probe: the API's field, a blank, and the row of the file that it stands for."""
    field, _, setting = probe.partition(" ")
    key, _, file_probe = setting.partition(" ")
    if field not in _names(key):
        return Verdict(Mark.UNKNOWN, f"the API's `{field}` is read as no `{key}`")
    return judge_key(Row(key, row.since, file_probe, row.test, row.how))


def _names(key: str) -> set[str]:
    """Return the API's names that are read as the last part of a key of the file."""
    last = key.rpartition(".")[2]
    candidates = {last, last.replace("-", "_"), "advance_timeout", "max_multi_update_row_count", "file_index_width"}
    return {name for name in candidates if list(from_api({name: 1})) == [last]}
