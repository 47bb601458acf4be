"""Order, repeats and restarts of DDL jobs."""

from producers.core.ddl_book import DdlBook
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord


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
