"""``tidebus lake compact`` says of each table what it did, or why it left it; its status says whether it left any."""

import json

import pytest

from compose.cli import lake_commands, run_cli
from compose.operator import lake
from schemas.ids import TableId, Ts, compose_ts
from sorters.core.lake.resync import LakeResync
from sorters.run.lake.maintenance import Compacted

DONE = ("bank.debit", Compacted(files_before=7, files_after=1, deletes_dropped=2))
SINCE_TS = compose_ts(1_700_000_000_123, 5)


def _compact(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *tables: tuple[str, Compacted]
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
