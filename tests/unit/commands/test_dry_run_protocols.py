"""The dry run in open-protocol against TiCDC's messages, and what it says where dispatcher rules do not fit."""

from collections import Counter
from pathlib import Path

from compose.foresight.dry_run import prepare
from schemas.config.changefeed import load_changefeed
from schemas.errors import BusError
from tests.support.recorded.job_rows import EARLY_ROWS, EARLY_TS, is_early_row
from tests.support.recorded.recording import oracle

DATA = Path(__file__).parents[2] / "data" / "tidb"
# The oracle's rows were encoded one by one and not split.
NOT_SPLIT = {"sink": {"kafka-config": {"output-raw-change-event": True}}}


def test_dry_run_open_protocol_equals_ticdcs_messages_byte_for_byte() -> None:
    refused: list[BusError] = []
    config = load_changefeed("kafka://127.0.0.1:9092/default?protocol=open-protocol&partition-num=1", NOT_SPLIT)
    written = Counter(
        (line["op"], line["commit_ts"], line["key"], line["value"])
        for line in prepare(DATA, config, refused=refused.append).records()
        if line["op"] != "watermark"
    )
    wanted = Counter(
        (line["op"], line["commit_ts"], line["key"], line["value"])
        for line in oracle("encoded/open-protocol")
        if line["op"] != "watermark"
    )
    missed, extra = (wanted - written), (written - wanted)
    assert [line[1] for line in missed.elements() if line[0] == "ddl"] == list(EARLY_TS)
    assert [line[1] for line in extra.elements() if line[0] == "ddl"] == list(EARLY_TS.values())
    rows = sorted(line["commit_ts"] for line in oracle("encoded/open-protocol") if is_early_row(line))
    assert len(rows) == EARLY_ROWS
    for side in (missed, extra):
        assert sorted(line[1] for line in side.elements() if line[0] != "ddl") == rows
    assert wanted.total() == 17_651 + 97
    would_fail = {line["commit_ts"] for line in oracle("ddl_events") if "error:" in line.get("not_sent", "")}
    assert {error.fields.get("commit_ts") for error in refused} == would_fail


def test_dry_run_with_rules_that_do_not_fit_names_each_table_version_once() -> None:
    text = "[[sink.dispatchers]]\nmatcher = ['d1.t_all']\npartition = 'index-value'\nindex = 'k1'\n"
    refused: list[BusError] = []
    config = load_changefeed("kafka://h:1/t?protocol=canal-json", text, file="feed.toml")
    lines = prepare(DATA, config, refused=refused.append).records()
    assert not any(line["table"] == "d1.t_all" for line in lines if line["op"] not in ("ddl", "watermark"))
    said = [error for error in refused if error.code == "sorter.dispatch_failed"]
    assert said
    assert {(error.fields["table"], error.fields["key"], error.fields["line"]) for error in said} == {
        ("d1.t_all", "sink.dispatchers[0].index", 4)
    }
    versions = [error.fields["version"] for error in said]
    assert len(versions) == len(set(versions))
    assert "index `k1` is not unique" in str(said[0])
