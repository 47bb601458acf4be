"""A real TiKV cluster's recorded feed, served again: the client must make of it exactly what was committed.

``expected`` and ``not_delivered`` were read back from the stores after the recording, not from the feed.
"""

import json
import math
from pathlib import Path

import pytest

from compose.cli import run_cli
from compose.foresight.feed_dry_run import play, read_spans, row_changes
from producers.pull.feed.types import FeedSettings
from producers.region_server.replay.player import read_feed_folder
from schemas.errors import ConfigError
from schemas.ids import TableId
from tests.support.recorded.recording import read_jsonl

FEED = Path(__file__).parents[2] / "data" / "tikv-feed"


def test_dry_run_of_a_recorded_feed_prints_exactly_the_expected_changes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(["dry-run", "--feed", str(FEED), "--protocol", "raw"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    expected = list(read_jsonl(FEED / "expected.jsonl.zst"))
    assert len(printed) == len(expected)
    for mine, wanted in zip(printed, expected, strict=True):
        assert mine == wanted
        assert list(mine) == list(wanted)  # the members stand in the same order too
    left_out = [json.loads(line) for line in (FEED / "not_delivered.jsonl").read_text().splitlines()]
    shown = {(row["key"], row["commit_ts"]) for row in printed}
    assert len(left_out) == 3
    assert not [row for row in left_out if (row["key"], row["commit_ts"]) in shown]


@pytest.mark.parametrize(("multiplexing", "speed"), [(True, 60.0), (False, math.inf)])
def test_event_feed_on_a_recorded_feed_meets_its_troubles_and_ends_with_every_change(
    multiplexing: bool, speed: float
) -> None:
    """By a clock and without; the collector ends the feed if a resolved ts runs ahead or goes back."""
    spans = read_spans(FEED)
    played = play(read_feed_folder(FEED), spans, speed=speed, settings=FeedSettings(multiplexing=multiplexing))
    names = {span.span.table_id: span.name for span in spans}
    landed = {
        (names[table_id], commit_ts, start_ts, key.hex(), op, value.hex(), old_value.hex())
        for table_id, changes in played.collected.changes.items()
        for commit_ts, start_ts, op, key, value, old_value, _ in changes
    }
    until = {span.name: span.until for span in spans}
    expected = {
        (row["sub"], row["commit_ts"], row["start_ts"], row["key"], 1 if row["op"] == "put" else 2,
         row["value"] or "", row["old_value"] or "")
        for row in read_jsonl(FEED / "expected.jsonl.zst")
    }  # fmt: skip
    assert {row for row in landed if row[1] <= until[row[0]]} == expected
    for span in spans:
        assert played.collected.resolved_ts[TableId(span.span.table_id)] >= span.until
    # The troubles were really met: errors of registrations, the store that stopped, and what was sent once more.
    assert played.counters.region_errors >= 21
    assert played.counters.stream_failures >= 2
    assert played.collected.repeats >= 16_000


@pytest.mark.parametrize(
    "arguments",
    [
        ["--feed", str(FEED)],
        ["--feed", str(FEED), "--protocol", "canal-json"],
        ["--recording", str(FEED), "--protocol", "raw"],
        ["--recording", str(FEED), "--feed", str(FEED), "--protocol", "raw"],
        [],
    ],
)
def test_dry_run_when_feed_and_protocol_do_not_fit_then_one_line_says_so(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["dry-run", *arguments]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith("error: [bus.config]") and shown.count("\n") == 1


def test_row_changes_when_the_folder_has_no_feed_then_it_names_the_file_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "subscriptions.json").write_text('{"subscriptions": []}')
    with pytest.raises(ConfigError) as caught:
        list(row_changes(tmp_path))
    assert caught.value.fields["wanted"] == "feed.jsonl.zst"
