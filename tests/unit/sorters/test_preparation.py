"""What stands before a cut may run: rules that fit the first tables, and watermarks at the pace of the cut's ts."""

from collections.abc import Iterable
from typing import Any

import pytest

from schemas.config.changefeed import load_changefeed
from schemas.ddl.bad_jobs import BadJobs
from schemas.ddl.job import DdlType
from schemas.ddl.schema_store import SchemaStore
from schemas.ids import Ts, compose_ts
from schemas.sink.position import PositionClass, decode_position
from sorters.core.cut.cut import Cut
from sorters.core.cut.watermark_pace import EVERY_CUT_MAX
from sorters.core.feed.feed import compile_feed
from sorters.core.route.dispatch import DispatchError
from sorters.log.topic_admin import SinkTopicLimits
from sorters.run.preparation import Preparation
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

START_MS = 1_760_000_000_000
MISFIT = {"sink": {"dispatchers": [{"matcher": ["*.*"], "partition": "columns", "columns": ["nope"]}]}}


class Driver:
    """Stands in for Spark, the schema feed and the topic admin: all that they do here is answer."""

    def __init__(self, store: SchemaStore, partitions: int) -> None:
        self.store, self.partitions = store, partitions
        self.bad = BadJobs().jobs
        self.sparkContext = self

    def broadcast(self, value: Any) -> "Driver":
        return self

    def unpersist(self) -> None:
        """Nothing is held."""

    def advance(self, ddl_end: int) -> bool:
        return False

    def forget(self, checkpoint_ts: Ts) -> None:
        self.store.gc(checkpoint_ts)

    def ensure(self, topics: Iterable[str]) -> dict[str, SinkTopicLimits]:
        return {topic: SinkTopicLimits(partitions=self.partitions, message_bytes_max=1 << 20) for topic in topics}


def ts(ms: int) -> Ts:
    return compose_ts(START_MS + ms)


def cut(after_ms: int, upto_ms: int) -> Cut:
    return Cut(after_ts=ts(after_ms), upto_ts=ts(upto_ms), start=(0,), end=(1,), may_repeat=False, ddl_end=0)


def preparation(
    store: SchemaStore,
    partitions: int = 1,
    config: dict[str, Any] | None = None,
    target_ts: Ts | None = None,
    protocol: str = "canal-json",
) -> Preparation:
    uri = f"kafka://h:1/t?protocol={protocol}&enable-tidb-extension=true"
    feed = compile_feed(load_changefeed(uri, config), "default")
    driver: Any = Driver(store, partitions)
    return Preparation(driver, feed, driver, driver, None, start_ts=ts(0), target_ts=target_ts)


def one_table() -> SchemaStore:
    return snapshot(("d", 1, [table_info(100, "orders")]), ts=ts(0))


def classes(ready: Preparation, of: Cut) -> list[PositionClass]:
    ready.begin(of)
    positions = ready.companions(of, 1).column("position").to_pylist()
    return [decode_position(position).position_class for position in positions]


def test_begin_of_the_first_cut_of_a_changefeed_holds_the_rules_against_its_tables() -> None:
    with pytest.raises(DispatchError, match="nope"):
        preparation(one_table(), config=MISFIT).begin(cut(0, 5))


def test_begin_of_a_later_cut_leaves_misfits_to_their_first_row() -> None:
    # A changefeed that has run must not stop for a restart alone.
    preparation(one_table(), config=MISFIT).begin(cut(3, 5))


def test_companions_with_few_partitions_end_every_cut_with_watermarks() -> None:
    ready = preparation(one_table(), EVERY_CUT_MAX)
    for after, upto in ((0, 3), (3, 4), (4, 990)):
        assert classes(ready, cut(after, upto)) == [PositionClass.WATERMARK] * EVERY_CUT_MAX


class Registry:
    """Numbers subjects from 1."""

    def __init__(self) -> None:
        self.subjects: list[str] = []

    def register(self, subject: str, schema: str, *, table: str) -> int:
        self.subjects.append(subject)
        return len(self.subjects)


def test_begin_registers_what_ddl_and_watermarks_are_written_by_once() -> None:
    uri = "kafka://h:1/t?protocol=debezium-avro&schema-registry=http://r&enable-tidb-extension=true"
    feed = compile_feed(load_changefeed(f"{uri}&avro-enable-watermark=true"), "default")
    driver: Any = Driver(one_table(), 2)
    registry: Any = Registry()
    ready = Preparation(driver, feed, driver, driver, registry, start_ts=ts(0))
    for after, upto in ((0, 3), (3, 4)):
        assert classes(ready, cut(after, upto)) == [PositionClass.WATERMARK] * 2
    own = registry.subjects
    assert len(own) == len(set(own)) == 4 and all("SchemaChange" in name or "watermark" in name for name in own)
    (value, *_) = ready.companions(cut(3, 4), 1).column("value").to_pylist()
    assert value[:5] == b"\0" + (own.index("default.watermark.Envelope") + 1).to_bytes(4, "big")


def test_companions_with_many_partitions_have_watermarks_once_a_second_with_ddl_and_at_the_target() -> None:
    count = EVERY_CUT_MAX + 1
    store = one_table()
    info = table_info(200, "more")
    store.apply(job(ts(2100), DdlType.CREATE_TABLE, schema_id=1, table_id=200, query="CREATE TABLE m", table_info=info))
    ready = preparation(store, count, target_ts=ts(2500))
    sent = {upto: len(classes(ready, cut(after, upto))) for after, upto in ((0, 400), (400, 1200), (1200, 1900))}
    assert sent == {400: 0, 1200: count, 1900: 0}
    assert len(classes(ready, cut(1900, 2000))) == count
    assert classes(ready, cut(2050, 2150)).count(PositionClass.WATERMARK) == count, "a DDL is closed at once"
    assert classes(ready, cut(2150, 2300)) == []
    assert len(classes(ready, cut(2300, 2500))) == count


def at_start(ready: Preparation, of: Cut) -> list[PositionClass]:
    ready.begin(of)
    positions = (position for part in ready.schemas_at_start(of, 1) for position in part.column("position").to_pylist())
    return [decode_position(position).position_class for position in positions]


def test_schemas_at_start_of_simple_are_all_schemas_in_the_first_cut_and_no_other() -> None:
    ready = preparation(one_table(), 2, protocol="simple")
    assert at_start(ready, cut(0, 3)) == [PositionClass.BOOTSTRAP] * 2
    assert classes(ready, cut(0, 3)) == [PositionClass.WATERMARK] * 2
    assert at_start(ready, cut(3, 4)) == []
    assert classes(ready, cut(3, 4)) == [PositionClass.WATERMARK] * 2
    # After a restart the changefeed goes on where it was: what was sent stays sent.
    again = preparation(one_table(), 2, protocol="simple")
    assert at_start(again, cut(4, 5)) == []
    assert classes(again, cut(4, 5)) == [PositionClass.WATERMARK] * 2
