"""Table images into canal-json files: lines in the order of positions, and what a reader of files ends with."""

import json
from dataclasses import replace
from pathlib import Path

from consumers.processors.core.storage.paths import PathForm
from consumers.processors.sink_source import SinkRecord
from consumers.processors.storage.begin import FilesLead, FilesShare
from consumers.processors.storage.run import StorageRun, StorageSettings
from consumers.processors.storage.store import LocalStore
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.sink.topic import PARTITIONS, sorter_config
from sorters.core.feed.companions import start_bootstraps, watermark_records
from sorters.core.feed.feed import compile_feed
from sorters.core.records.order import join_records
from sorters.cut.raw_cut import RawCut
from sorters.cut.whole_cut import whole_cut
from sorters.cut.worker import FeedProgram
from tests.support.recorded.ddl_jobs import PRIMARY, column, snapshot, table_info
from tests.support.topics.storage_share import WholeStorage
from tests.unit.images.test_image_chunks import ONE, TWO, S, cut_of, inserts, raw_chunk
from tests.unit.processors.test_storage_recording import ListSource


def records(uri: str) -> list[SinkRecord]:
    """Return what goes between sorter and processors: schemas, a change, two chunks, changes of both tables above."""
    info = ChangefeedInfo(changefeed_id="a", upstream=UpstreamId("u"), sink_uri=uri, start_ts=Ts(500))
    config = sorter_config(load_changefeed(uri), info, "k:1")
    feed = compile_feed(config, "default")
    feed = replace(feed, partitions={feed.default_topic: PARTITIONS})
    columns = [column(1, "id", not_null=True, flag=PRIMARY), column(2, "v")]
    store = snapshot(("d", 1, [table_info(11, "one", columns=columns), table_info(12, "two", columns=columns)]))
    program = FeedProgram(store, feed)
    above = replace(cut_of(after_ts=S), upto_ts=Ts(S + 100))
    tables = list(start_bootstraps(store, Ts(500), feed, 1))
    for cut, raw, chunks in (
        (cut_of(), [inserts(TWO, 9, ts=900)], (raw_chunk(ONE, 0, *range(10)), raw_chunk(TWO, 1, 1, 2))),
        (above, [inserts(ONE, 110, 5, ts=S + 50), inserts(TWO, 1, ts=S + 60)], ()),
    ):
        cut = replace(cut, chunks=tuple(each.chunk for each in chunks))
        extras = watermark_records(cut.upto_ts, (feed.default_topic,), feed, 1)
        whole = whole_cut(cut, RawCut(raw, 0, chunks=chunks), program, extras, 1, 1 << 30)
        assert whole is not None
        tables.append(whole.records)
    ends = dict.fromkeys(range(PARTITIONS), 0)
    made = []
    for shown in join_records(tables).to_pylist():
        partition = shown["partition"]
        made.append(SinkRecord(partition, ends[partition], shown["position"], shown["key"], shown["value"]))
        ends[partition] += 1
    return made


def test_images_stand_in_canal_json_files_among_the_changes_each_key_last_as_it_is(tmp_path: Path) -> None:
    uri = f"file://{tmp_path}?protocol=canal-json&enable-tidb-extension=true"
    source = ListSource(records(uri))
    settings = StorageSettings(
        changefeed="default.a",
        paths=PathForm(extension="json", date_separator="none", file_index_digit=6),
        start_ts=Ts(500),
    )
    run = StorageRun(source, LocalStore(tmp_path), settings)
    whole = WholeStorage(FilesShare(run), FilesLead(run), PARTITIONS)
    while source.records:
        whole.turn()
    whole.finish()
    run.close()
    last: dict[str, dict[str, str]] = {}
    stamps: dict[str, list[int]] = {}
    for file in sorted(tmp_path.glob("d/*/**/CDC*.json")):
        for line in file.read_text().splitlines():
            message = json.loads(line)
            assert message["type"] == "INSERT"
            (data,) = message["data"]
            last.setdefault(message["table"], {})[data["id"]] = data["v"]
            stamps.setdefault(message["table"], []).append(message["_tidb"]["commitTs"])
    assert last == {
        "one": {str(number): str(number % 100) for number in (*range(10), 110)},
        "two": {"1": "1", "2": "2", "9": "9"},
    }
    assert stamps == {"one": [S] * 10 + [S + 50] * 2, "two": [900, S, S, S + 60]}
