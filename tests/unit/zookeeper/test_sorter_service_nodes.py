"""Nodes of sorter services: what is written is read again, what is not a node is refused with a code."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedStatus, ZkPaths, decode_changefeed_status, encode_changefeed_status
from schemas.nodes.feed_figures import FIGURES_BYTES_MAX, FeedFigures, decode_figures, encode_figures
from schemas.nodes.service_paths import ServicePaths
from schemas.nodes.sorter_service import (
    ENTRIES_MAX,
    Assigned,
    Assignment,
    FeedEntry,
    ServiceInfo,
    SparkFigures,
    decode_assignment,
    decode_entries,
    decode_service,
    encode_assignment,
    encode_entries,
    encode_service,
    newest_entries,
    with_figures,
    with_progress,
)
from schemas.producer_figures import BROKERS_MAX, BrokerFigures, ProducerFigures
from schemas.sink_figures import BUCKETS_MAX, SinkFigures, Spread
from sorters.core.cut.beginning import BegunEpoch, encode_begun

SERVICE = ServiceInfo(service="s1", host="h", pid=7, version="0.2.0", started_at_s=3, master="local[1]")
ENTRY = FeedEntry(
    namespace="default",
    changefeed_id="a",
    created_zxid=9,
    epoch=2,
    revision=5,
    checkpoint_ts=Ts(100),
    resolved_ts=Ts(120),
    rows_total=4,
)
FIGURES = FeedFigures(
    reason="cheaper-on-driver",
    states_proven=3,
    windows_proven=545,
    sent=SinkFigures(flushes_us=Spread((0, 120, 300), 4_512_345), file_bytes=1 << 30),
)
REQUIRED_BEFORE = {
    "namespace": str,
    "changefeed_id": str,
    "created_zxid": int,
    "epoch": int,
    "revision": int,
    "checkpoint_ts": int,
    "resolved_ts": int,
    "begun": str,
    "rows_total": int,
    "spark_rows_total": int,
    "corrupt_rows_total": int,
    "batch_rows": int,
    "batch_s": float,
    "last_synced_ts": int,
    "cpu_s": float,
    "reason": str,
}
"""Of an entry, by the version that kept the figures in it, too."""
STATUS = ChangefeedStatus(state="warning", checkpoint_ts=Ts(90), resolved_ts=Ts(95), rows_total=1)


def test_nodes_are_read_as_they_were_written() -> None:
    service = replace(SERVICE, dedicated="default/a", spark_ui="http://127.0.0.1:4040", is_stopping=True)
    service = replace(service, spark=SparkFigures(sessions=1, jobs=2, jobs_failed=3, cuts=4, queries=5))
    assigned = Assigned(namespace="default", changefeed_id="a", created_zxid=9, epoch=2, revision=5)
    assignment = Assignment(owner_rev=3, feeds=(assigned,), dedicated=(("default", "b"),))
    assert decode_service(encode_service(service)) == service
    assert decode_assignment(encode_assignment(assignment)) == assignment
    assert decode_entries(encode_entries([ENTRY])) == [ENTRY]


def test_service_of_a_former_version_says_nothing_of_its_spark() -> None:
    node = json.loads(encode_service(SERVICE))
    del node["spark"]
    assert decode_service(json.dumps(node).encode()) == SERVICE
    for spark in ({"jobs": -1}, {"jobs": "7"}, [1]):
        with pytest.raises(CorruptDataError):
            decode_service(json.dumps({**node, "spark": spark}).encode())


def test_full_nodes_of_long_names_are_read() -> None:
    full = Spread((10_000_000,) * (BUCKETS_MAX + 1), 1 << 60)
    numbers = [10**12] * 10
    brokers = tuple(BrokerFigures(number, *numbers) for number in range(BROKERS_MAX))
    producer = ProducerFigures(7.5, brokers, *numbers)
    sent = SinkFigures(flushes_us=full, queued_us=full, batch_rows=full, file_bytes=1 << 60, producer=producer)
    figures = FeedFigures(reason="r" * 40, damaged_records_total=1 << 60, windows_proven=1 << 60, sent=sent)
    entry = replace(ENTRY, namespace="n" * 128, changefeed_id="c" * 128, begun="b" * 200, checkpoint_ts=Ts(1 << 60))
    entries = [replace(entry, revision=number) for number in range(ENTRIES_MAX)]
    assert len(encode_entries(entries)) < 128 * 1024
    assert decode_entries(encode_entries(entries)) == entries
    counted = dict.fromkeys([each.run for each in entries], figures)
    assert len(encode_figures(counted.items())) < FIGURES_BYTES_MAX
    assert decode_figures(encode_figures(counted.items())) == counted


def test_figures_are_read_as_they_were_written_and_none_of_who_has_counted_nothing() -> None:
    counted = {
        ENTRY.run: FIGURES,
        replace(ENTRY, changefeed_id="b").run: FeedFigures(damaged_records_total=1, states_unproven=4),
    }
    idle = replace(ENTRY, changefeed_id="c").run, FeedFigures()
    assert decode_figures(encode_figures([*counted.items(), idle])) == counted


def test_an_entry_grows_by_no_figures() -> None:
    begun = encode_begun(BegunEpoch("tidebus.7012345678901234567.frontier", Ts(1 << 58), 123_456, 123_459)).decode()
    entry = replace(ENTRY, changefeed_id="orders-17", begun=begun, checkpoint_ts=Ts(1 << 58), resolved_ts=Ts(1 << 58))
    entry = replace(entry, rows_total=1 << 30, batch_rows=600, batch_s=0.1234, cpu_s=12.345)
    node = encode_entries([replace(entry, figures=FIGURES)])
    assert node == encode_entries([entry])
    assert len(node) < 512


def test_figures_of_another_run_say_nothing_of_an_entry() -> None:
    assert with_figures(ENTRY, {ENTRY.run: FIGURES}).figures == FIGURES
    for other in (
        replace(ENTRY, revision=4),
        replace(ENTRY, epoch=1),
        replace(ENTRY, created_zxid=8),
        replace(ENTRY, namespace="n"),
        replace(ENTRY, changefeed_id="b"),
    ):
        assert with_figures(ENTRY, {other.run: FIGURES}) == ENTRY


def test_entry_of_a_former_version_brings_its_figures_which_count_before_any_other() -> None:
    (entry,) = json.loads(encode_entries([ENTRY]))
    del entry["reason"]
    assert decode_entries(json.dumps([entry]).encode()) == [ENTRY]
    ((*_, shown),) = json.loads(encode_figures([(ENTRY.run, FIGURES)]))
    (read,) = decode_entries(json.dumps([{**entry, **shown}]).encode())
    assert read == replace(ENTRY, figures=FIGURES)
    assert with_figures(read, {ENTRY.run: FeedFigures(windows_proven=1)}) == read
    for sent in ({"flushes_us": [-1]}, {"batch_rows": [0] * (BUCKETS_MAX + 3)}, {"producer": [1]}, 7):
        with pytest.raises(CorruptDataError):
            decode_entries(json.dumps([{**entry, "sent": sent}]).encode())
        with pytest.raises(CorruptDataError):
            decode_figures(json.dumps([[*ENTRY.run, {"sent": sent}]]).encode())


def test_former_version_finds_in_an_entry_all_that_it_takes_none_without() -> None:
    (entry,) = json.loads(encode_entries([replace(ENTRY, figures=FIGURES)]))
    assert {name: type(value) for name, value in entry.items()} == REQUIRED_BEFORE


def test_paths_stand_under_the_clusters_root() -> None:
    paths = ServicePaths(ZkPaths("c"))
    assert paths.service("s") == "/tidebus/c/services/s"
    assert paths.assignment("s") == "/tidebus/c/assignments/s"
    assert paths.entries("s", 1) == "/tidebus/c/progress/s/1"
    assert paths.entry_figures("s", 1) == "/tidebus/c/figures/s/1"


@pytest.mark.parametrize("decode", [decode_service, decode_assignment, decode_entries, decode_figures])
@given(node=st.binary(max_size=200) | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_whatever_is_no_node_is_refused_with_a_code(decode: object, node: bytes | str) -> None:
    content = node.encode() if isinstance(node, str) else node
    try:
        decoded = decode(content)  # type: ignore[operator]
    except CorruptDataError as error:
        assert error.code
    else:
        assert not decoded, "only a list of nothing is a node"


def test_a_negative_or_huge_number_is_refused() -> None:
    for revision in (-1, 1 << 64, True, "5"):
        raw = json.loads(encode_entries([ENTRY]))
        raw[0]["revision"] = revision
        with pytest.raises(CorruptDataError):
            decode_entries(json.dumps(raw).encode())


def test_the_highest_revision_speaks_for_a_changefeed() -> None:
    stale = replace(ENTRY, revision=4, checkpoint_ts=Ts(500))
    again = replace(ENTRY, created_zxid=11, checkpoint_ts=Ts(7))
    newest = newest_entries([stale, ENTRY, again])
    assert newest == {(("default", "a"), 9): ENTRY, (("default", "a"), 11): again}


def test_progress_never_takes_a_checkpoint_back() -> None:
    shown = with_progress(STATUS, ENTRY)
    assert shown is not None
    assert (shown.state, shown.checkpoint_ts, shown.resolved_ts, shown.rows_total) == ("warning", 100, 120, 4)
    ahead = replace(STATUS, checkpoint_ts=Ts(101))
    assert with_progress(ahead, ENTRY) == ahead
    assert with_progress(STATUS, None) == STATUS
    assert with_progress(None, None) is None


def test_tables_with_and_without_a_state_proof_are_told() -> None:
    shown = with_progress(STATUS, replace(ENTRY, figures=FeedFigures(states_proven=7, states_unproven=2)))
    assert shown is not None and (shown.states_proven, shown.states_unproven) == (7, 2)
    assert decode_changefeed_status(encode_changefeed_status(shown)) == shown


def test_what_was_said_before_a_user_set_the_checkpoint_does_not_count() -> None:
    reset = replace(STATUS, set_epoch=3)
    assert with_progress(reset, ENTRY) == reset
    shown = with_progress(reset, replace(ENTRY, epoch=3))
    assert shown is not None
    assert shown.checkpoint_ts == 100
