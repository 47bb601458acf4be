"""The reader of the bank's topics sees what a consumer sees: sums at watermarks that every partition has reached."""

import json

from tests.support.database.bank import BankReader
from tests.support.topics.messages import TopicRecord, decode_canal_json

TOTAL = 200


def row(partition: int, table: str, account: int, balance: int, commit_ts: int) -> TopicRecord:
    body = {
        "database": "bank",
        "table": table,
        "isDdl": False,
        "type": "UPDATE",
        "ts": 0,
        "pkNames": ["id"],
        "mysqlType": {"id": "int", "k": "int"},
        "data": [{"id": str(account), "k": str(balance)}],
        "old": [{"k": "0"}],
        "_tidb": {"commitTs": commit_ts},
    }
    return TopicRecord("bank", partition, 0, None, json.dumps(body).encode())


def mark(partition: int, ts: int) -> TopicRecord:
    body = {"type": "TIDB_WATERMARK", "isDdl": False, "ts": 0, "_tidb": {"watermarkTs": ts}}
    return TopicRecord("bank", partition, 0, None, json.dumps(body).encode())


def read(*records: TopicRecord) -> BankReader:
    reader = BankReader(decode_canal_json, TOTAL)
    reader.read(records)
    return reader


OPENED = (row(0, "a", 1, 100, 10), row(1, "b", 1, 100, 10), mark(0, 15), mark(1, 15))


def test_bank_whose_transfers_are_whole_at_each_watermark_adds_up() -> None:
    moved = (row(0, "a", 1, 70, 20), mark(0, 25), row(1, "b", 1, 130, 20), mark(1, 25))
    repeated = (row(0, "a", 1, 100, 10), row(0, "a", 1, 70, 20), mark(0, 25), mark(0, 30), mark(1, 30))
    reader = read(*OPENED, *moved, *repeated)
    assert (reader.broken, reader.sums) == ([], 3)


def test_bank_whose_transfer_stands_by_half_before_a_watermark_is_broken() -> None:
    reader = read(*OPENED, row(0, "a", 1, 70, 20), mark(0, 25), mark(1, 25), row(1, "b", 1, 130, 20), mark(1, 30))
    assert len(reader.broken) == 1
    assert "170" in reader.broken[0]


def test_bank_that_lost_a_row_is_broken_from_then_on() -> None:
    reader = read(*OPENED, row(0, "a", 1, 70, 20), mark(0, 25), mark(1, 25), mark(0, 30), mark(1, 30))
    assert len(reader.broken) == 2
