"""A sorter process with a backlog of several large cuts is killed in the middle of its epoch. What one has begun as
jobs, the next may go on with by a streaming query, and the reverse: nothing is lost, and what comes again is the same.
Each start of Spark costs more than all else here, so each process ends one backlog and begins the next.
"""

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compose.stack.local import Addresses
from schemas.ids import Ts
from schemas.sink.position import PositionClass, decode_position
from sorters.core.cut.beginning import decode_begun
from sorters.core.cut.cut_plan import QUERY_BYTES_MIN
from sorters.run.nodes.status import StatusBoard
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.raw_log import START_TS, RawLog, SinkRecord, read_topic, recorded, sbtest1_changes

TABLE, ROWS = 114, 40
"""Rows in a raw record; each is ten ts above the one before."""
CUTS, RECORDS = 4, 2
"""Cuts of a backlog, and raw records of a cut: there is a frontier record for each."""
CUT_TS = 10 * ROWS * RECORDS
DIES_AFTER = 3
"""Cuts that are written, of which the last is not reported."""
WAYS = ("jobs", "query", "jobs")
"""Of the processes, each of which has a backlog of its own; all but the last are killed in it."""
WAIT_S = 500.0
pytestmark = pytest.mark.timeout(1_800)
BYTES_MIN = {"jobs": QUERY_BYTES_MIN, "query": 1}
"""Raw bytes from which on a query runs several cuts."""
TROUBLE = f"""
import os, signal
from functools import partial
from edges.kafka.tail import FrontierTail
from sorters.core.cut import cut_plan
from sorters.run import cut_job, epochs
from sorters.spark.jobs.spark_counts import OF_PROCESS
cut_job.DRIVER_CUT_BYTES_MAX = cut_job.TASK_CUT_BYTES_MAX = -1
cut_plan.QUERY_BYTES_MIN = @BYTES_MIN@
epochs.plan_cuts = partial(cut_plan.plan_cuts, offsets_max={RECORDS})
run, read_some, ran = cut_job.CutJob.run, FrontierTail.read, [0]
def read(self, count, timeout_s):
    # The backlog at once, however the broker hands it out.
    records = read_some(self, count, timeout_s)
    while records and records[-1].resolved_ts < @WHOLE_TS@:
        records += read_some(self, count, timeout_s)
    return records
def counted(self, *orders, backlog):
    done = run(self, *orders, backlog=backlog)
    ran[0] += 1
    print("cut", done.choice.runner.value, done.choice.reason.value, OF_PROCESS.figures.queries, flush=True)
    if ran[0] == @DIES_AFTER@:
        os.kill(os.getpid(), signal.SIGKILL)
    return done
cut_job.CutJob.run, FrontierTail.read = counted, read
"""
RAN = {"jobs": "cut spark beyond_driver_memory 0", "query": "cut spark backlog 1"}
"""What it prints of each cut; of an epoch that was begun before, whoever runs it, as of jobs."""


@pytest.fixture
def sorter(stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path) -> Iterator[Sorter]:
    sorter = Sorter(stack.kafka, stack.zookeeper, tmp_path / "sorter", fresh_name("feed"))
    yield sorter
    sorter.close()


def land(log: RawLog, backlog: int) -> Ts:
    """Land the backlog of a number; return up to where."""
    for cut in range(backlog * CUTS, (backlog + 1) * CUTS):
        for record in range(cut * RECORDS, (cut + 1) * RECORDS):
            log.rows(TABLE, sbtest1_changes(ROWS, START_TS + 1 + 10 * ROWS * record, ROWS * record), record % 2)
        log.advance(START_TS + (cut + 1) * CUT_TS)
    return Ts(START_TS + (backlog + 1) * CUTS * CUT_TS)


def expected(cuts: int) -> list[tuple[int, PositionClass]]:
    """Return what so many cuts write, in its order."""
    rows = [(START_TS + 1 + 10 * row, PositionClass.ROW) for row in range(cuts * RECORDS * ROWS)]
    watermarks = [(START_TS + (cut + 1) * CUT_TS, PositionClass.WATERMARK) for cut in range(cuts)]
    return sorted([*rows, *watermarks])


def positions_of(records: list[SinkRecord]) -> list[tuple[int, PositionClass]]:
    decoded = (decode_position(record.position) for record in records)
    return [(position.commit_ts, position.position_class) for position in decoded]


def trouble(way: str, whole_ts: Ts, dies_after: int) -> str:
    values = {"BYTES_MIN": BYTES_MIN[way], "WHOLE_TS": whole_ts, "DIES_AFTER": dies_after}
    text = TROUBLE
    for name, value in values.items():
        text = text.replace(f"@{name}@", str(value))
    return text


def assert_killed_in_mid_epoch(sorter: Sorter, reported: int) -> None:
    """Wait until it is, in an epoch of a whole backlog; ``reported``: cuts up to the checkpoint, from the first on."""
    assert sorter.process is not None
    assert sorter.process.wait(WAIT_S) == -signal.SIGKILL, sorter.log()
    sorter.kill()
    epoch = decode_begun(StatusBoard(sorter.client, sorter.paths, "default", sorter.changefeed_id).begun())
    assert epoch is not None and epoch.end - epoch.start == CUTS, "it was begun as one"
    status = sorter.status()
    assert status is not None and status.checkpoint_ts == START_TS + reported * CUT_TS


def cuts_ran(sorter: Sorter) -> list[str]:
    """Return what all processes so far have printed of cuts."""
    log = sorter.data_dir / "sorter.log"
    said = log.read_text(errors="replace") if log.exists() else ""
    return [line for line in said.splitlines() if line.startswith("cut ")]


def test_backlog_of_several_cuts_whose_sorter_is_killed_in_mid_epoch_is_ended_either_way(
    stack: Addresses, sorter: Sorter, fresh_name: Callable[[str], str]
) -> None:
    log, topic = RawLog(stack.kafka, fresh_name("up")), fresh_name("sink")
    log.snapshot([recorded("sbtest1")[0]])
    uri = f"kafka://{stack.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num=1"
    sorter.create(log.upstream, uri, start_ts=START_TS)
    reported, unreported = 0, list[SinkRecord]()
    for number, way in enumerate(WAYS):
        is_last = number == len(WAYS) - 1
        end = number * CUTS + (CUTS if is_last else DIES_AFTER)
        before, printed = read_topic(stack.kafka, topic) if number else [], cuts_ran(sorter)
        upto_ts = land(log, number)
        sorter.trouble = trouble(way, upto_ts, dies_after=0 if is_last else end - reported)
        sorter.start()
        if is_last:
            sorter.wait_checkpoint(upto_ts, WAIT_S)
        else:
            assert_killed_in_mid_epoch(sorter, end - 1)
        after, done = read_topic(stack.kafka, topic)[len(before) :], len(expected(reported))
        assert positions_of(after) == expected(end)[done:], "from the checkpoint on, each row once and in order"
        again = [(record.key, record.value, record.position) for record in after[: len(unreported)]]
        assert again == [(record.key, record.value, record.position) for record in unreported]
        begun_before = number * CUTS - reported
        assert cuts_ran(sorter)[len(printed) :] == [RAN["jobs"]] * begun_before + [RAN[way]] * (end - number * CUTS)
        reported, unreported = end - 1, after[len(expected(end - 1)) - done :]
    assert sorter.stop() == 0
