"""What tasks look rows up in, sent in parts as DDLs come, answers as the driver's own store does."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config.changefeed import load_changefeed
from schemas.ddl.layered_schemas import LayeredSchemas
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError
from schemas.ids import TableId, Ts
from schemas.rawlog.ddl_record import decode_ddl_record, encode_ddl_record
from sorters.core.feed.feed import compile_feed
from sorters.cut.worker import FeedProgram
from sorters.spark.worker import program_sender
from sorters.spark.worker.program_sender import ProgramSender
from tests.property.rawlog.test_schema_store import SCHEMA, START, Step, histories
from tests.support.recorded.ddl_jobs import snapshot, table_info

FEED = compile_feed(load_changefeed("kafka://h:1/t?protocol=canal-json"), "default")


class Context:
    """Broadcasts as Spark does: what a worker gets is unpickled from what it was then."""

    def __init__(self) -> None:
        self.sent = 0

    def broadcast(self, value: Any) -> "Sent":
        self.sent += 1
        return Sent(pickle.dumps(value))


class Sent:
    def __init__(self, data: bytes) -> None:
        self._data: bytes | None = data

    @property
    def value(self) -> Any:
        assert self._data is not None, "nobody uses what was taken back"
        return pickle.loads(self._data)

    def destroy(self) -> None:
        self._data = None


def answers(schemas: SchemaStore | LayeredSchemas, ts: int) -> list[object]:
    replies: list[object] = []
    for table in map(TableId, range(100, 115)):
        replies.append(schemas.boundaries_of(table).tolist())
        try:
            replies.append(schemas.lookup(table, Ts(ts)))
        except BusError as error:
            replies.append(error.code)
    return replies


@given(histories(), st.lists(st.booleans(), min_size=13, max_size=13), st.integers(0, 3))
def test_program_of_tasks_after_any_ddls_answers_as_the_drivers_own(
    steps: list[Step], asks: list[bool], changed_max: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_sender, "CHANGED_MAX", changed_max)
        store = snapshot(("d", SCHEMA, [table_info(100, "t100")]), ts=START)
        sender = ProgramSender(Context().broadcast)
        for step, ask in zip(steps, asks, strict=False):
            change = store.apply(decode_ddl_record(encode_ddl_record(step.record)))
            assert change is not None
            sides = [side for table in change.tables for side in (table.pre, table.post) if side is not None]
            sender.note_changed({id_ for side in sides for id_ in side.physical_ids})
            if ask:  # not every cut is one for tasks
                theirs = sender.send(FeedProgram(store, FEED)).load().schemas
                for ts in range(START, step.ts + 2):
                    assert answers(theirs, ts) == answers(store, ts)


def test_program_of_tasks_without_a_change_is_sent_once() -> None:
    context = Context()
    sender = ProgramSender(context.broadcast)
    program = FeedProgram(snapshot(("d", SCHEMA, [table_info(100, "t100")]), ts=START), FEED)
    for _ in range(3):
        assert sender.send(program).load().feed.default_topic == "t"
    assert context.sent == 2, "schemas and the rest"


def test_program_of_tasks_with_another_feed_is_sent_anew_without_its_schemas() -> None:
    context = Context()
    sender = ProgramSender(context.broadcast)
    store = snapshot(("d", SCHEMA, [table_info(100, "t100")]), ts=START)
    first = sender.send(FeedProgram(store, FEED))
    second = sender.send(FeedProgram(store, replace(FEED, default_topic="u")))
    assert second.load().feed.default_topic == "u"
    assert (context.sent, second.base) == (3, first.base)
