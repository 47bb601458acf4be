"""What flow proofs cost: CPU of a row from raw records to ordered messages, with and without its books, in pairs.

``python -m tests.bench.rows.proofs`` prints one JSON line per shape and cut. ``row_cpu_us`` is process CPU time of a
cut as the driver runs it (:func:`sorters.cut.whole_cut.whole_cut`: decode, mount, encode, order; nothing is sent),
``proof_cpu_us`` what the books add, both the median over pairs that are run one right after the other, in turn which
comes first. ``cpu_ratio`` is their quotient; ``sent_ratio`` the same with what a writer takes for the row besides, by
``produce`` of a client whose broker is not there.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

from schemas.changes import RowChanges
from schemas.config.changefeed import load_changefeed
from schemas.flow.flow_sum import FlowSum
from schemas.ids import RegionId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.tidb.table import TableVersion
from sorters.core.columnar.row_changes import slices_of_rows
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import compile_feed
from sorters.core.flow.ledger import CutFlow, FlowLedger
from sorters.core.records.order import OutputRecords, no_records
from sorters.cut.cut_books import CutBooks
from sorters.cut.raw_cut import RawCut
from sorters.cut.whole_cut import whole_cut
from sorters.cut.worker import FeedProgram
from tests.support.recorded.mounting import benchmark_rows

SHAPES = ("sbtest1", "order_line", "wide10")
CUTS = ((100, 100), (2_000, 200), (16_384, 512))
"""Rows of a cut, and of a raw record."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=41)
    options = parser.parse_args(argv)
    pa.set_cpu_count(1)
    for shape in SHAPES:
        for count, per_record in CUTS:
            table, rows = benchmark_rows(shape, count)
            print(json.dumps(_figure(shape, table, rows, per_record, options.pairs)), flush=True)
    return 0


class _OneTable:
    """Answers as a schema store does that knows one version of one table."""

    def __init__(self, table: TableVersion) -> None:
        self._table = table

    def boundaries_of(self, table_id: int) -> Any:
        return np.zeros(1, np.int64)

    def lookup(self, table_id: int, commit_ts: Ts) -> TableVersion:
        return self._table

    def stored_of(self, table_id: int) -> tuple[TableVersion, ...]:
        return (self._table,)


class _NoBooks(FlowLedger):
    """Keeps none."""

    def gather(self, rows: int) -> None:
        pass

    def land(self, rows: RowChanges, known: FlowSum | None = None) -> None:
        pass

    def write(self, ordered: OutputRecords, written: OutputRecords) -> None:
        pass


def _figure(shape: str, table: TableVersion, rows: RowChanges, per_record: int, pairs: int) -> dict[str, Any]:
    feed = compile_feed(load_changefeed("kafka://h:1/t?protocol=canal-json"), "default", {"t": 4})
    schemas: Any = _OneTable(table)
    program = FeedProgram(schemas, feed)
    records = [
        encode_region_batch(RegionBatch(region_id=RegionId(1), may_repeat=False, rows=part), 1)
        for part in slices_of_rows(rows, per_record)
    ]
    after_ts, upto_ts = Ts(int(rows.commit_ts.min()) - 1), Ts(int(rows.commit_ts.max()))
    cut = Cut(after_ts=after_ts, upto_ts=upto_ts, start=(0,), end=(1,), may_repeat=False, ddl_end=0)

    kept = CutBooks.of

    def run(*, with_books: bool) -> tuple[float, OutputRecords, CutFlow]:
        none = patch.object(CutBooks, "of", lambda cut, feed: replace(kept(cut, feed), flow=_NoBooks()))
        without = nullcontext() if with_books else none
        repeats = max(1, 4_096 // len(rows))
        with without:
            started = time.process_time()
            for _ in range(repeats):
                whole = whole_cut(cut, RawCut(records, 0), program, no_records(), 1, 1 << 32)
            took = (time.process_time() - started) / repeats / len(rows)
        assert whole is not None
        return took * 1e6, whole.records, whole.flow

    _, made, flow = run(with_books=True)
    assert sum(each.count for each in flow.written.values()) == len(rows) == made.num_rows
    plain, added = list[float](), list[float]()
    for number in range(pairs):
        first = run(with_books=number % 2 == 0)[0]
        second = run(with_books=number % 2 == 1)[0]
        books, none = (first, second) if number % 2 == 0 else (second, first)
        plain.append(none)
        added.append(books - none)
    row_us, proof_us = statistics.median(plain), statistics.median(added)
    sent_us = row_us + _produce_us(made)
    return {
        "bench": "proofs",
        "shape": shape,
        "cut_rows": len(rows),
        "row_cpu_us": round(row_us, 3),
        "proof_cpu_us": round(proof_us, 3),
        "cpu_ratio": round(proof_us / row_us, 4),
        "sent_ratio": round(proof_us / sent_us, 4),
        "pairs": pairs,
    }


def _produce_us(records: OutputRecords) -> float:
    """Return the CPU time of handing a row to a client, which cannot send it; what sending takes is not in it."""
    config = {"bootstrap.servers": "127.0.0.1:1", "queue.buffering.max.messages": 1_000_000, "log_level": 0}
    producer, headers = Producer(config), dict[str, str | bytes | None]()
    names = ("topic", "partition", "key", "value", "position")
    started = time.process_time()
    columns = (records.column(name).to_pylist() for name in names)
    for topic, partition, key, value, headers["tidebus-position"] in zip(*columns, strict=True):
        producer.produce(topic, value, key, partition, None, None, 0, headers)
    took = time.process_time() - started
    producer.purge()
    producer.flush(1)
    return took / records.num_rows * 1e6


if __name__ == "__main__":
    sys.exit(main())
