"""What is counted of a cut's way to Kafka, from the writer to the answer of a task."""

from dataclasses import replace

import pyarrow as pa

from schemas.sink_figures import NO_FIGURES
from sorters.core.mount.corrupt_rows import CorruptRows
from sorters.core.records.order import OUTPUT_SCHEMA, join_records, no_records
from sorters.cut.record_writer import NOWHERE, record_writer
from sorters.cut.sending import Sending
from sorters.cut.worker import CutCounts
from sorters.spark.tasks.cut_answers import counts_as_json, sum_of_counts


def records(values: list[bytes | None]) -> pa.Table:
    filled = {"key": b"kk", "topic": "t", "partition": 0}
    rows = [{"value": value, **filled} for value in values]
    return pa.Table.from_pylist(rows, OUTPUT_SCHEMA)


def test_messages_and_their_bytes_are_counted_over_all_windows_of_a_writer() -> None:
    sending = Sending(record_writer(NOWHERE))
    sending.write(records([b"123", None]))
    sending.write(join_records([no_records(), records([b"1"] * 5)]))
    sent = sending.finish()
    assert (sent.batch_rows.total, sent.batch_rows.counts) == (7, (0, 1)), "seven messages, above four"
    assert sent.file_bytes == 7 * len(b"kk") + 3 + 5
    assert sent.flushes_us.count == 1
    assert Sending(record_writer(NOWHERE)).finish() == NO_FIGURES, "a cut without messages is no batch"


def test_what_tasks_have_sent_is_added_up() -> None:
    sending = Sending(record_writer(NOWHERE))
    sending.write(records([b"1"]))
    counts = CutCounts(rows=1, raw_bytes=1, corrupt=CorruptRows(), sent=sending.finish())
    total = sum_of_counts([counts_as_json(counts), counts_as_json(replace(counts, sent=NO_FIGURES))])
    assert total.sent == counts.sent
    assert sum_of_counts([counts_as_json(counts)] * 2).sent == counts.sent.plus(counts.sent)
