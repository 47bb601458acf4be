"""Order, repeats and restarts of DDL jobs."""

from producers.pull.core.ddl.book import DdlBook
from schemas.ddl.job import DdlDecodeError, undecodable_record
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.row_v2 import encode_row_v2


def job(job_id: int, ts: int) -> DdlRecord:
    return DdlRecord(kind="job", ts=Ts(ts), payload={"id": job_id})


def snapshot(ts: int) -> list[DdlRecord]:
    return [DdlRecord(kind="schema", ts=Ts(ts), payload={}), DdlRecord(kind="snapshot_end", ts=Ts(ts), payload={})]


def opened(*records: DdlRecord) -> DdlBook:
    return DdlBook(enumerate(records))


def test_ddl_book_when_jobs_come_in_any_order_then_they_go_out_by_finished_ts_once_resolved() -> None:
    book = opened(*snapshot(10))
    for record in (job(3, 30), job(2, 20), job(5, 30), job(4, 40)):
        book.add(record)
    assert [record.payload["id"] for record in book.resolved(Ts(35))] == [2, 3, 5]
    assert book.resolved(Ts(36)) == []


def test_ddl_book_when_not_all_is_acknowledged_then_landed_ts_waits() -> None:
    book = opened(*snapshot(10))
    book.add(job(1, 20))
    book.add(job(2, 21))
    book.resolved(Ts(25))
    book.acked(2)
    assert (book.report().landed_ts, book.report().end) == (10, 3)
    book.acked(3)
    assert (book.report().landed_ts, book.report().end) == (25, 4)


def test_ddl_book_when_a_job_row_is_written_again_then_its_first_done_counts() -> None:
    book = opened(*snapshot(10))
    book.add(job(1, 22))
    book.add(job(1, 20))
    book.add(job(1, 24))
    assert [record.ts for record in book.resolved(Ts(30))] == [20]
    book.add(job(1, 31))
    assert book.resolved(Ts(40)) == []


def test_ddl_book_when_reopened_then_it_reads_again_what_may_be_missing_and_lands_no_job_twice() -> None:
    book = opened(*snapshot(10), job(1, 20))
    assert book.resume_ts(Ts(0)) == 19
    assert book.resume_ts(Ts(50)) == 50
    book.add(job(1, 20))
    book.add(job(2, 20))
    assert [record.payload["id"] for record in book.resolved(Ts(21))] == [2]


def test_ddl_book_when_the_snapshot_was_cut_off_then_there_is_none() -> None:
    book = opened(snapshot(10)[0])
    assert book.snapshot_ts is None
    assert book.report().landed_ts == 0


def unread(key: bytes, ts: int, meta: bytes = b"\xff") -> DdlRecord:
    """Return a row that did not decode where it was read; by default it never will."""
    table = {"cols": [{"id": 2, "name": {"O": "job_meta", "L": "job_meta"}}]}
    error = DdlDecodeError("no", reason="too new")
    return undecodable_record(key, encode_row_v2({2: meta}), table, start_ts=Ts(ts - 1), commit_ts=Ts(ts), error=error)


def test_ddl_book_when_rows_do_not_decode_then_each_goes_out_once_at_its_commit_ts() -> None:
    book = opened(*snapshot(10))
    for record in (job(3, 30), unread(b"k", 25), unread(b"k", 20), unread(b"k", 20), unread(b"l", 40)):
        book.add(record)
    sent = book.resolved(Ts(35))
    assert [(record.kind, record.ts) for record in sent] == [("undecodable", 20), ("undecodable", 25), ("job", 30)]
    book.add(unread(b"k", 25))
    assert [record.ts for record in book.resolved(Ts(50))] == [40]


def test_ddl_book_when_reopened_by_a_version_that_can_read_a_row_then_its_job_does_not_land_again() -> None:
    meta = b'{"id":7,"state":4,"binlog":{"SchemaVersion":3}}'
    book = opened(*snapshot(10), unread(b"k", 20, meta), unread(b"l", 21))
    assert book.resume_ts(Ts(0)) == 20
    for record in (job(7, 25), unread(b"l", 21), job(8, 26)):
        book.add(record)
    assert [record.payload["id"] for record in book.resolved(Ts(30))] == [8]
