"""A changefeed whose table has rows already: its image goes out in chunks, each at a ts, among the changes.

The raw log is written by hand: what captures land and the owner says of images, and changes of the same rows meanwhile.
"""

import json
import signal
import threading
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from compose.stack.local import Addresses
from consumers.client import ChangeStream
from consumers.client.materialised import MaterialisedTable
from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from schemas.changes import Op
from schemas.config.changefeed import load_changefeed
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.images import (
    image_feed,
)
from schemas.sink.image_note import ImageNote
from schemas.sink.position import PositionClass, decode_position
from schemas.sink.topic import life_of
from schemas.state_proof.carried import CarriedState
from schemas.state_proof.row_text import TableProof, row_hash, value_text
from schemas.tidb.table_info import table_version
from sorters.core.mount.scalar import mount_row
from sorters.core.state_proof.proof_columns import kind_of
from sorters.cut.leave import GIVEN, Leave
from sorters.cut.sink_writer import SinkWriter
from sorters.run.epochs import CutProgress
from sorters.run.feed_run import FeedRun
from sorters.run.nodes.status import StatusBoard
from sorters.run.proofs.state_log import StateLog
from sorters.run.run_inputs import RunInputs
from tests.support.processes.sorter_process import Sorter
from tests.support.rawlog.imaged_log import END, FEED, FIRST, HALF, KEYS, SECOND, TABLE, ImagedLog, value
from tests.support.rawlog.raw_log import START_TS, RawLog, SinkRecord, read_topic, recorded, row_key

DEADLINE_S = 120.0
Emitted = tuple[int, int, str, bool]
"""commit_ts, handle, what, and whether it is of the image."""


def image(ts: Ts, start: int, end: int) -> list[Emitted]:
    return [(ts, number, "INSERT", True) for number in range(start, end)]


def update(after: int, handle: int) -> Emitted:
    return START_TS + after, handle, "UPDATE", False


INITIAL: list[Emitted] = [
    *image(FIRST, 0, HALF), update(1_100, 2), update(1_500, 3),
    *image(SECOND, HALF, KEYS), update(2_100, 4), update(2_200, 42), update(2_600, 43),
]  # fmt: skip
"""What goes out to a changefeed to which the table is new."""
BACKFILL: list[Emitted] = [
    update(100, 1), update(300, 40), update(500, 2), *image(FIRST, 0, HALF),
    update(1_100, 2), update(1_200, 40), update(1_500, 3), update(1_600, 41), *image(SECOND, HALF, KEYS),
    update(2_100, 4), update(2_200, 42), update(2_600, 43),
]  # fmt: skip
"""What goes out to one that has its changes in any case."""


def emitted(records: list[SinkRecord]) -> list[Emitted]:
    """Return the rows of a canal-json topic."""
    rows: list[Emitted] = []
    for record in rows_of(records):
        position, message = decode_position(record.position), json.loads(record.value or b"")
        handle = int.from_bytes(position.key[-8:], "big") - (1 << 63)
        rows.append((position.commit_ts, handle, message["type"], position.start_ts == position.commit_ts))
    return rows


def held_at_end(changed: Collection[int] = (1, 2, 3, 4, 40, 41, 42, 43)) -> TableProof:
    """Return what the table's rows come to, each hashed by itself."""
    info, proof = recorded("sbtest1")[0], TableProof()
    table = table_version(info, schema_id=1, schema="d", version=Ts(1))
    for number in range(KEYS):
        row = mount_row(
            table,
            key=row_key(TABLE, number),
            op=Op.PUT,
            value=value(1) if number in changed else value(number),
            old_value=b"",
            commit_ts=END,
            start_ts=START_TS,
        )
        assert row is not None and row.columns is not None
        texts = [value_text(kind_of(spec), row.columns[spec.offset]) for spec in table.columns]
        proof = proof.changed(None, row_hash(texts))
    return proof


def rows_of(records: list[SinkRecord]) -> list[SinkRecord]:
    return [record for record in records if decode_position(record.position).position_class is PositionClass.ROW]


def plain(records: list[SinkRecord]) -> list[tuple[bytes | None, bytes | None, bytes, bytes]]:
    return [(record.key, record.value, record.position, record.images) for record in records]


def said_of_images(records: list[SinkRecord]) -> list[tuple[int, ImageNote]]:
    """Return what watermarks say of images, by ts."""
    return [
        (decode_position(record.position).commit_ts, ImageNote.decode(record.images))
        for record in records
        if record.images
    ]


NAME = ("sb", "sbtest1")
TO_COME = ImageNote(1, (), (NAME,))


def no_spark() -> Any:
    raise AssertionError("small cuts, and small chunks of images, need no spark")


class DiedError(Exception):
    """The process is killed here."""


@dataclass
class Machine:
    """One that a sorter of the changefeed runs on, and may die in."""

    stack: Addresses
    topic: str
    log: RawLog
    data_dir: Path
    node: list[bytes] = field(default_factory=list)
    """What is begun."""
    checkpoint_ts: Ts = START_TS
    dies: str = ""
    rules: tuple[str, ...] = ("*.*",)
    progress: list[Ts] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def begun(self) -> bytes | None:
        return self.node[-1] if self.node else None

    def begin(self, epoch: bytes, after_ts: Ts) -> Leave:
        self.node.append(epoch)
        return GIVEN

    def _on_progress(self, progress: CutProgress) -> None:
        if self.dies == "written" and progress.checkpoint_ts == FIRST:
            self._die()
        self.checkpoint_ts = progress.checkpoint_ts
        self.progress.append(progress.checkpoint_ts)
        if self.dies == "reported" and progress.checkpoint_ts == FIRST:
            self._die()
        if progress.checkpoint_ts >= END:
            self.over.set()

    def _die(self) -> None:
        self.over.set()
        raise DiedError

    def write(self, writer: SinkWriter, records: pa.Table, write: Callable[[SinkWriter, pa.Table], None]) -> None:
        """Write the image's first half if it is there that this machine dies."""
        if self.dies == "half" and records.num_rows >= HALF:
            write(writer, records.slice(0, HALF // 2))
            writer.finish()
            self._die()
        write(writer, records)

    @property
    def info(self) -> ChangefeedInfo:
        uri = f"kafka://{self.stack.kafka}/{self.topic}?protocol=canal-json&enable-tidb-extension=true&partition-num=1"
        return ChangefeedInfo(
            changefeed_id="images",
            upstream=UpstreamId(self.log.upstream),
            sink_uri=uri,
            config={},
            start_ts=START_TS,
            create_time=self.topic,
        )

    def proof(self) -> CarriedState:
        """Return what the table holds by its state proof."""
        with closing(StateLog({"bootstrap.servers": self.stack.kafka}, self.log.topics.states)) as states:
            return states.read(("default", "images"), life_of(self.info))[0][TABLE]

    def run(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Run until it has died, or has written all."""
        info = self.info
        run = FeedRun(
            no_spark,
            RunInputs(
                kafka=KafkaAccess(self.stack.kafka),
                raw_topics=self.log.topics,
                schema_registry=RegistryAccess(),
                info=info,
                config=load_changefeed(
                    info.sink_uri,
                    {"initial": "snapshot", "state-proofs": ["*.*"], "filter": {"rules": list(self.rules)}},
                ),
                image_name=FEED,
            ),
            data_dir=self.data_dir,
            checkpoint_ts=self.checkpoint_ts,
            ask=lambda: GIVEN,
            on_progress=self._on_progress,
            begun=self,
        )
        write = SinkWriter.write
        with closing(run), monkeypatch.context() as patched:
            patched.setattr(
                SinkWriter,
                "write",
                lambda writer, records, _, note=None: self.write(writer, records, partial(write, note=note)),
            )
            run.start()
            assert self.over.wait(DEADLINE_S), run.failure()


@pytest.fixture
def log(stack: Addresses, fresh_name: Callable[[str], str]) -> RawLog:
    log = RawLog(stack.kafka, fresh_name("up"))
    ImagedLog(log, FEED).write()
    return log


def test_initial_image_goes_out_in_its_chunks_with_the_changes_above_each_wherever_a_sorter_dies(
    stack: Addresses, log: RawLog, fresh_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = fresh_name("sink")
    whole = Machine(stack, topic, log, tmp_path)
    whole.run(monkeypatch)
    records = read_topic(stack.kafka, topic)
    assert emitted(records) == INITIAL
    assert (whole.proof().proof, whole.proof().is_proven, whole.proof().begun_by) == (held_at_end(), True, "image")
    assert {FIRST, SECOND} <= set(whole.progress)
    notes = said_of_images(records)
    assert notes[0][0] < FIRST
    assert notes[-1] == (SECOND, ImageNote(0, (NAME,), ()))
    assert {note for _, note in notes[:-1]} == {TO_COME}
    with ChangeStream(stack.kafka, [topic], group=topic) as stream:
        table = MaterialisedTable(*NAME).read(stream, END)
    assert (table.is_whole, table.proof()) == (True, held_at_end())
    said = [json.loads(record.value or b"").get("sql", "") for record in records[:2]]
    assert said[0].startswith("CREATE DATABASE IF NOT EXISTS `sb`")
    assert said[1].startswith("CREATE TABLE IF NOT EXISTS `sb`.`sbtest1` (")
    positions = [record.position for record in records]
    assert positions == sorted(set(positions))
    for dies in ("half", "written", "reported"):
        topic = fresh_name("sink")
        first = Machine(stack, topic, log, tmp_path / dies, dies=dies)
        first.run(monkeypatch)
        written = len(read_topic(stack.kafka, topic))
        assert first.checkpoint_ts == (FIRST if dies == "reported" else FIRST - 1)
        Machine(stack, topic, log, tmp_path / f"{dies} again", node=first.node, checkpoint_ts=first.checkpoint_ts).run(
            monkeypatch
        )
        assert first.proof().proof == held_at_end(), f"{dies}: each row counts once"
        both = read_topic(stack.kafka, topic)
        done = sum(decode_position(record.position).commit_ts <= first.checkpoint_ts for record in both[:written])
        repeated = plain(both[written:][: written - done])
        assert repeated == plain(both[done:written]), f"{dies}: the same bytes once more"
        assert plain(rows_of(both[:done] + both[written:])) == plain(rows_of(records))


def test_resync_empties_the_table_at_a_ts_of_its_own_before_the_rows_wherever_a_sorter_dies(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = RawLog(stack.kafka, fresh_name("up"))
    ImagedLog(log, FEED, "resync").write_resync()
    expected = [
        (START_TS, -1, "QUERY", True), (START_TS, -1, "CREATE", True),
        update(100, 1), update(500, 2), (FIRST, -1, "TRUNCATE", True), update(1_500, 3),
        *image(SECOND, 0, KEYS), update(2_100, 4),
    ]  # fmt: skip
    for dies in ("", "reported"):
        topic = fresh_name("sink")
        first = Machine(stack, topic, log, tmp_path / f"first {dies}", dies=dies)
        first.run(monkeypatch)
        if dies:
            Machine(stack, topic, log, tmp_path / "again", node=first.node, checkpoint_ts=first.checkpoint_ts).run(
                monkeypatch
            )
        said: list[Emitted] = []
        for record in read_topic(stack.kafka, topic):
            position, message = decode_position(record.position), json.loads(record.value or b"")
            if position.position_class is PositionClass.DDL:
                is_marked = position.start_ts == position.commit_ts == message["_tidb"]["commitTs"]
                said.append((position.commit_ts, -1, message["type"], is_marked))
            elif position.position_class is PositionClass.ROW:
                said += emitted([record])
        assert said == expected
        with ChangeStream(stack.kafka, [topic], group=topic) as stream:
            table = MaterialisedTable("sb", "sbtest1")
            table.rows[1_000_000,] = {"id": "1000000"}  # which the source has no more, though no message said so
            table.read(stream, END)
        notes = dict(said_of_images(read_topic(stack.kafka, topic)))
        assert (notes[FIRST], notes[SECOND]) == (TO_COME, ImageNote(0, (NAME,), ())), "empty is not whole"
        assert table.proof() == held_at_end((1, 2, 3, 4))


def test_table_that_is_renamed_into_the_filter_is_created_and_imaged(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, topic = RawLog(stack.kafka, fresh_name("up")), fresh_name("sink")
    ImagedLog(log, FEED).write_rename()
    machine = Machine(stack, topic, log, tmp_path, rules=("sb.sbtest1",))
    machine.run(monkeypatch)
    records = read_topic(stack.kafka, topic)
    assert emitted(records) == [*image(FIRST, 0, KEYS), update(1_100, 3)]
    ddl = [each for each in records if decode_position(each.position).position_class is PositionClass.DDL]
    schema, message = (json.loads(each.value or b"") for each in ddl)
    assert records[0] == ddl[0], "its schema holds no table of the changefeed at the start, and comes before all else"
    assert schema["sql"].startswith("CREATE DATABASE IF NOT EXISTS `sb`")
    assert (schema["table"], schema["_tidb"]["commitTs"]) == ("", START_TS)
    assert (message["type"], message["table"], message["_tidb"]["commitTs"]) == ("CREATE", "sbtest1", START_TS + 200)
    assert message["sql"].startswith("CREATE TABLE IF NOT EXISTS `sb`.`sbtest1` (")
    assert (machine.proof().proof, machine.proof().is_proven) == (held_at_end((1, 2, 3)), True)
    with ChangeStream(stack.kafka, [topic], group=topic) as stream:
        assert MaterialisedTable("sb", "sbtest1").read(stream, END).proof() == held_at_end((1, 2, 3))


def test_sorter_process_killed_in_mid_chunk_is_followed_by_one_that_repeats_the_chunk(
    stack: Addresses, fresh_name: Callable[[str], str], tmp_path: Path
) -> None:
    """A backfill: nothing is left out."""
    topic, name = fresh_name("sink"), fresh_name("feed")
    first, second = (Sorter(stack.kafka, stack.zookeeper, tmp_path / folder, name) for folder in ("first", "second"))
    first.trouble = KILLED_IN_MID_CHUNK
    log = RawLog(stack.kafka, fresh_name("up"))
    with closing(first), closing(second):
        uri = f"kafka://{stack.kafka}/{topic}?protocol=canal-json&enable-tidb-extension=true&partition-num=1"
        first.create(log.upstream, uri, start_ts=START_TS)
        current = StatusBoard(first.client, first.paths, "default", name).info()
        assert current is not None
        ImagedLog(log, image_feed("default", name, current[1].created_zxid), "backfill").write()
        first.start()
        assert first.process is not None
        assert first.process.wait(DEADLINE_S) == -signal.SIGKILL, first.log()
        before = read_topic(stack.kafka, topic)
        second.start()
        second.wait_checkpoint(END)
    after = read_topic(stack.kafka, topic)[len(before) :]
    assert emitted(before) == BACKFILL[: 3 + HALF // 2]
    start = next(at for at, row in enumerate(emitted(before)) if row == emitted(after)[0])
    assert emitted(after) == BACKFILL[start:]
    rows = rows_of(before)[start:]
    assert plain(rows) == plain(rows_of(after)[: len(rows)]), "the same bytes once more"


KILLED_IN_MID_CHUNK = f"""
import os, signal
from sorters.cut.sink_writer import SinkWriter
write = SinkWriter.write
def in_two(self, records, fence, note):
    if records.num_rows >= {HALF}:
        write(self, records.slice(0, {HALF // 2}), fence, note)
        self.finish()
        os.kill(os.getpid(), signal.SIGKILL)
    write(self, records, fence, note)
SinkWriter.write = in_two
"""
