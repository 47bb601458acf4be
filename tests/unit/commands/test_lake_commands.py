"""``tidebus lake compact`` says of each table what it did, or why it left it; its status says whether it left any."""

import json
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError

from compose.cli import lake_commands, run_cli
from compose.operator import lake
from schemas.errors import BusError
from schemas.ids import TableId, Ts, compose_ts
from sorters.core.lake.resync import LakeResync
from sorters.run.lake.maintenance import Compacted

DONE = ("bank.debit", Compacted(files_before=7, files_after=1, deletes_dropped=2))
SINCE_TS = compose_ts(1_700_000_000_123, 5)


def _compact(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *tables: tuple[str, Compacted | BusError]
) -> tuple[int, list[dict[str, object]]]:
    monkeypatch.setattr(lake, "compact_tables", lambda _: iter(tables))
    monkeypatch.setattr(lake_commands, "_options", lambda given: given)
    status = run_cli(["lake", "compact", "--changefeed", "lake", "--zookeeper", "127.0.0.1:1"])
    return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_tables_that_are_compacted_are_a_line_each_and_a_good_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"table": "bank.debit", "files_before": 7, "files_after": 1, "delete_files_dropped": 2}
    assert _compact(monkeypatch, capsys, DONE) == (0, [line])


@pytest.mark.parametrize(("since_ts", "said"), [(SINCE_TS, (SINCE_TS, "2023-11-14T22:13:20+00:00")), (0, (None, None))])
def test_table_that_is_left_says_why_since_when_and_what_helps_and_the_others_are_done(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], since_ts: int, said: tuple[object, object]
) -> None:
    noted = LakeResync(TableId(7), 4, since_ts=Ts(since_ts))
    left = ("bank.credit", Compacted(0, 0, 0, noted))
    status, (first, second) = _compact(monkeypatch, capsys, left, DONE)
    assert (status, first["table"], first["files_before"]) == (1, "bank.credit", 0)
    why = first["left"]
    assert isinstance(why, dict) and (why["since_ts"], why["since"]) == said
    assert "resync" in why["why"] and "compact again" in why["what_helps"]
    assert second["table"] == "bank.debit" and "left" not in second


MOVED = "org.apache.iceberg.exceptions.ValidationException: Cannot commit, found new delete for replaced data file"


class _Table:
    def __init__(self, name: str, error: str = "") -> None:
        self.name, self._error = name, error

    def act(self) -> int:
        if self._error:
            raise Py4JError(f"An error occurred while calling o1.execute.\n: {self._error}\n\tat org.apache.iceberg")
        return 3


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [(MOVED, "lake.overtaken", "do it again"), ("java.io.IOException: no room", "sorter.spark_job", "no room")],
)
def test_table_that_iceberg_refuses_leaves_the_others_and_says_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: str, code: str, words: str
) -> None:
    tables: Any = [_Table("a.b", error), _Table("a.c")]
    (first, refused), second = lake.of_each(tables, lambda table: cast(Any, table).act())
    assert first == "a.b" and isinstance(refused, BusError) and refused.code == code
    assert words in str(refused) and "\tat " not in str(refused)
    assert second == ("a.c", 3)
    status, (said, done) = _compact(monkeypatch, capsys, ("a.b", refused), DONE)
    assert (status, said["table"], done["files_after"]) == (1, "a.b", 1)
    assert f"[{code}]" in str(said["error"])
    monkeypatch.setattr(lake, "expire_tables", lambda *_: iter([("a.b", refused), ("a.c", 3)]))
    assert run_cli(["lake", "expire", "--changefeed", "lake", "--zookeeper", "127.0.0.1:1"]) == 1
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("snapshots_expired") for line in shown] == [None, 3]


@pytest.mark.parametrize("size", ["5x", "1k", "511m", "2", "1.5g", "-2g", "9" * 5000 + "m"])
def test_heap_that_no_jvm_starts_with_is_refused_at_once(capsys: pytest.CaptureFixture[str], size: str) -> None:
    given = ["--changefeed", "lake", "--zookeeper", "127.0.0.1:1"]
    assert run_cli(["lake", "compact", *given, "--driver-memory", size]) == 2
    said = capsys.readouterr().err
    assert "1500m or 2g; at least 512m is allowed" in said and len(said) < 500
