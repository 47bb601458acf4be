"""Rows of many tables that are run together become what they become table by table, byte for byte."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.changes import RowChanges
from schemas.config.changefeed import load_changefeed
from schemas.ddl.schema_store import UnknownTableError
from schemas.errors import BusError, CorruptDataError
from schemas.flow.flow_sum import FlowSum
from schemas.ids import RegionId, TableId, Ts
from schemas.rawlog.region_batch import RegionBatch, encode_region_batch
from schemas.tidb.table import PartitionVersion, TableVersion
from sorters.core.cut.cut import Cut
from sorters.core.feed.feed import CompiledFeed, compile_feed
from sorters.core.flow.ledger import CutFlow, FlowLedger, differences
from sorters.core.flow.row_ids import sums_of_changes
from sorters.core.mount.alike_tables import are_alike
from sorters.core.mount.mounter import SMALL_ROWS
from sorters.core.records.order import in_order, join_records, no_records, sort_records
from sorters.core.rows import shared_pass
from sorters.core.rows.pipeline import EncodedPass, Settings, encode_pass, run_version
from sorters.core.rows.shared_pass import PassKey, run_chunks
from sorters.core.rows.table_plans import TablePlans
from sorters.core.rows.wanted_rows import wanted_versions
from sorters.cut.raw_cut import RawCut
from sorters.service.shared_cuts import SharedCut, SharedCuts
from tests.support.rawlog.alike_tables import Schemas, chunks_of, compiled, moved, tables_of
from tests.support.recorded.mounting import row_changes
from tests.support.sources.examples import examples
from tests.support.topics.random_rows import random_change, random_table


def alone(chunk: RowChanges, schemas: Any, feed: CompiledFeed) -> Any:
    """Return the records of one table, each version by a pass of its own, or what its error says."""
    given = Settings(encoded_at_ms=5, store_claim=None, on_corrupt=None)
    try:
        parts = [run_version(rows, version, feed, given) for version, rows in wanted_versions(chunk, schemas, feed)]
        return join_records([no_records(), *parts])
    except BusError as error:
        return error.code, str(error.fields)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**48), damage=st.booleans())
def test_rows_of_many_tables_run_together_equal_those_run_table_by_table(seed: int, damage: bool) -> None:
    rng = random.Random(seed)
    tables = tables_of(rng)
    schemas: Any = Schemas(tables)
    feed, chunks = compiled(rng, tables), chunks_of(rng, tables, damage=damage)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_pass, "PASS_ROWS_MAX", rng.choice([50, 100_000]))
        patch.setattr(shared_pass, "WAITING_BYTES_MAX", rng.choice([1_000, 100_000_000]))
        patch.setattr(shared_pass, "TABLE_ROWS_MAX", rng.choice([5, 100_000]))
        expected = [alone(chunk, schemas, feed) for chunk in chunks]
        errors = [outcome for outcome in expected if isinstance(outcome, tuple)]
        try:
            plans = TablePlans()
            produced = list(run_chunks(chunks, schemas, feed, encoded_at_ms=5, plans=plans))
            ledger = FlowLedger()
            again = list(run_chunks(chunks, schemas, feed, encoded_at_ms=5, plans=plans, ledger=ledger))
        except BusError as error:
            assert (error.code, str(error.fields)) in errors
            return
    assert not errors
    whole, parts, repeated = (sort_records(join_records([no_records(), *each])) for each in (expected, produced, again))
    assert parts.equals(whole)
    assert repeated.equals(whole)
    assert not list(differences(books_of(ledger, chunks, again), may_repeat=False))


def books_of(ledger: FlowLedger, chunks: list[RowChanges], produced: Any) -> CutFlow:
    """Return the books of a cut of these chunks, when its records have been put in order."""
    ledger.gather(sum(map(len, chunks)))
    in_order(produced, may_repeat=False, on_order=ledger.write)
    return ledger.close()


class Kept(SharedCut):
    """Keeps passes, and what chunks come to that are not its own."""

    def __init__(self) -> None:
        super().__init__(
            Cut(after_ts=Ts(0), upto_ts=Ts(1), start=(), end=(), may_repeat=False, ddl_end=0), RawCut([], 0)
        )
        self.taken = 0

    @property
    def passes(self) -> list[object]:
        """Those that were made."""
        return [kept for alike in self._passes.values() for kept in alike.values()]

    def covering(self, key: PassKey) -> tuple[EncodedPass, list[int]] | None:
        covering = super().covering(key)
        self.taken += covering is not None
        return covering

    def landed(self, rows: RowChanges) -> FlowSum | None:
        return sums_of_changes([rows])[0] if len(rows) else None


@settings(max_examples=examples(30), deadline=None)
@given(seed=st.integers(0, 2**48))
def test_passes_that_another_changefeed_has_made_equal_those_made_anew(seed: int) -> None:
    rng = random.Random(seed)
    tables = tables_of(rng)
    schemas: Any = Schemas(tables)
    first, chunks, kept = compiled(rng, tables), chunks_of(rng, tables, damage=False), Kept()
    others = [moved(rng, feed, name, tables) for name in "uvw" for feed in (first, compiled(rng, tables))]
    feeds = [first, *others, first]
    for feed in feeds:
        wanted = [chunk for chunk in chunks if rng.random() < rng.choice([0.3, 1.0])]
        expected = [alone(chunk, schemas, feed) for chunk in wanted]
        if any(isinstance(outcome, tuple) for outcome in expected):
            continue
        ledger, alone_ledger = FlowLedger(), FlowLedger()
        produced = list(run_chunks(wanted, schemas, feed, encoded_at_ms=5, kept=kept, ledger=ledger))
        by_itself = list(run_chunks(wanted, schemas, feed, encoded_at_ms=5, ledger=alone_ledger))
        whole, parts = (sort_records(join_records([no_records(), *each])) for each in (expected, produced))
        assert parts.equals(whole)
        books = books_of(ledger, wanted, produced)
        assert not list(differences(books, may_repeat=False))
        assert books == books_of(alone_ledger, wanted, by_itself)


def test_a_pass_is_made_once_for_changefeeds_that_differ_in_their_topics_and_anew_at_another_time() -> None:
    for seed in range(50):
        rng = random.Random(seed)
        tables = tables_of(rng)
        schemas: Any = Schemas(tables)
        feed = compile_feed(load_changefeed("kafka://h:1/t?protocol=canal-json", {}), "default")
        feeds = [moved(rng, replace(feed, force_replicate=True), topic, tables) for topic in ("u", "v")]
        chunks, kept = chunks_of(rng, tables, damage=False), Kept()
        made = []
        for each, encoded_at_ms in ((feeds[0], 5), (feeds[1], 5), (feeds[0], 6)):
            list(run_chunks(chunks, schemas, each, encoded_at_ms=encoded_at_ms, kept=kept))
            made.append(len(kept.passes))
        if made[0]:
            assert made == [made[0], made[0], 2 * made[0]]
            return
    pytest.fail("no seed has tables that share a pass")


def test_who_has_some_of_the_tables_of_a_pass_takes_its_rows_out_of_it() -> None:
    taken = 0
    for seed in range(20):
        rng = random.Random(seed)
        tables = tables_of(rng)
        schemas: Any = Schemas(tables)
        feed = compile_feed(load_changefeed("kafka://h:1/t?protocol=canal-json", {}), "default")
        first, second = (moved(rng, replace(feed, force_replicate=True), topic, tables) for topic in ("u", "v"))
        chunks, kept = chunks_of(rng, tables, damage=False), Kept()
        list(run_chunks(chunks, schemas, first, encoded_at_ms=5, kept=kept))
        for size in (1, 2, 5):
            wanted = rng.sample(chunks, size)
            expected = join_records([no_records(), *(alone(chunk, schemas, second) for chunk in wanted)])
            produced = list(run_chunks(wanted, schemas, second, encoded_at_ms=5, kept=kept))
            assert sort_records(join_records([no_records(), *produced])).equals(sort_records(expected))
        taken += kept.taken
    assert taken > 20


class Behind(Schemas):
    """Knows these tables alone."""

    def lookup(self, table_id: TableId, commit_ts: Ts) -> TableVersion:
        if table_id not in self._tables:
            raise UnknownTableError("row of an unknown table", table_id=table_id, commit_ts=commit_ts)
        return super().lookup(table_id, commit_ts)


class World:
    """Chunks of many tables of one form, and passes that changefeeds of some of the tables make of them."""

    def __init__(self, seed: int, forms: int = 1) -> None:
        rng = random.Random(seed)
        each = [random_table(rng) for _ in range(forms)]
        self.tables = [
            replace(each[number * forms // 12], schema="s", table=f"t{number}", table_id=TableId(200 + number))
            for number in range(12)
        ]
        self.schemas: Any = Schemas(self.tables)
        changes = ([random_change(rng, table, at, damage=False) for at in range(SMALL_ROWS)] for table in self.tables)
        chunks = [row_changes(table.table_id, each) for table, each in zip(self.tables, changes, strict=True)]
        batches = [RegionBatch(region_id=RegionId(1), may_repeat=False, rows=rows) for rows in chunks]
        upto_ts = Ts(max(int(rows.commit_ts.max()) for rows in chunks))
        cut = Cut(after_ts=Ts(0), upto_ts=upto_ts, start=(0,), end=(1,), may_repeat=False, ddl_end=0)
        self.cuts = SharedCuts()
        self.raw = RawCut([encode_region_batch(batch, 1) for batch in batches], 0)
        self.next_cut(cut)

    def next_cut(self, cut: Cut) -> None:
        shared: Any = self.cuts.keep(cut, self.raw).shared
        self.cut, self.shared = cut, shared

    def feed(self, topic: str) -> CompiledFeed:
        feed = compile_feed(load_changefeed(f"kafka://h:1/{topic}?protocol=canal-json", {}), "default")
        return replace(feed, force_replicate=True, partitions={topic: 3})

    def avro_feed(self, registry: dict[tuple[str, str], int], first_id: int, **sink: Any) -> CompiledFeed:
        """Return a changefeed with a topic a table, whose schemas a registry numbers from ``first_id``."""
        sink["dispatchers"] = [{"matcher": ["*.*"], "topic": "{schema}_{table}"}]
        uri = "kafka://h:1/t?protocol=avro&schema-registry=http://h:2"
        feed = replace(compile_feed(load_changefeed(uri, {"sink": sink}), "default"), force_replicate=True)
        texts = [text for table in self.tables for text in feed.row_schemas(table)]
        ids = {text.key: registry.setdefault((text.subject, text.text), first_id + len(registry)) for text in texts}
        return replace(feed, schema_ids=ids, partitions={feed.topic("s", table.table): 3 for table in self.tables})

    def run(self, feed: CompiledFeed, numbers: Sequence[int]) -> Any:
        """Run a changefeed of these tables; return its records, which are those that it makes alone."""
        wanted = {self.tables[number].table_id for number in numbers}
        chunks = list(self.shared.rows(wanted.__contains__))
        expected = join_records([no_records(), *(alone(chunk, self.schemas, feed) for chunk in chunks)])
        ledger = FlowLedger()
        made = list(run_chunks(chunks, self.schemas, feed, encoded_at_ms=5, kept=self.shared, ledger=ledger))
        assert sort_records(join_records([no_records(), *made])).equals(sort_records(expected))
        assert not list(differences(books_of(ledger, chunks, made), may_repeat=False))

    @property
    def passes(self) -> list[int]:
        """Of how many tables each pass is that was made of the cut."""
        return [len(tables) for alike in self.shared._passes.values() for tables in alike]


def test_who_makes_the_second_pass_of_a_cut_takes_along_what_others_have_lately_asked_for() -> None:
    world = World(3)
    sets = [range(3), range(3, 6), range(6, 9), range(9, 12)]
    for topic, numbers in zip("abcd", sets, strict=True):
        world.run(world.feed(topic), numbers)
    assert world.passes == [3, 6, 9, 12], "nobody knows yet who will ask"
    world.next_cut(replace(world.cut, upto_ts=Ts(world.cut.upto_ts + 1)))
    for topic, numbers in zip("bdca", [sets[1], sets[3], sets[2], sets[0]], strict=True):
        world.run(world.feed(topic), numbers)
    assert world.passes == [3, 12]


def run_cuts(world: World, feeds: Sequence[CompiledFeed]) -> list[int]:
    """Run changefeeds of all tables, in both orders; return of how many tables each pass is."""
    made = list[int]()
    for number in range(4):
        world.next_cut(replace(world.cut, upto_ts=Ts(world.cut.upto_ts + 1)))
        for feed in feeds if number % 2 else feeds[::-1]:
            world.run(feed, range(12))
        made += world.passes
    return made


@pytest.mark.parametrize("glue", [False, True])
def test_changefeeds_with_a_registry_each_write_their_own_ids_also_where_one_takes_the_others_tables_along(
    glue: bool,
) -> None:
    world = World(3, forms=2)
    feeds = [world.avro_feed({}, first_id) for first_id in (1_000, 2_000)]
    encoder: Any = feeds[0].encoder
    feeds = [replace(feed, encoder=replace(encoder, glue=glue)) for feed in feeds]
    assert 12 in run_cuts(world, feeds), "six tables of a form, by either's ids"


def test_changefeeds_of_which_one_selects_columns_of_a_table_write_their_own_ids() -> None:
    world, registry = World(3, forms=2), dict[tuple[str, str], int]()
    table = world.tables[7]  # of the form whose pass is a cut's second one
    left_out = next(column.name for column in table.columns if column.offset not in table.handle_columns)
    selector = {"matcher": ["s.t7"], "columns": ["*", f"!`{left_out}`"]}
    feeds = [world.avro_feed(registry, 1, **{"column-selectors": each}) for each in ([selector], [])]
    ids = [{key: number for key, number in feed.schema_ids.items() if "s_t7-value" in key} for feed in feeds]
    assert ids[0].keys() == ids[1].keys() and ids[0] != ids[1]
    run_cuts(world, feeds)


def test_tables_of_others_that_cannot_be_encoded_hurt_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(3)
    for topic, numbers in zip("ab", [range(3), range(3, 6)], strict=True):
        world.run(world.feed(topic), numbers)
    world.next_cut(replace(world.cut, upto_ts=Ts(world.cut.upto_ts + 1)))
    tried = list[int]()

    def refusing(rows: Any, version: Any, feed: Any, settings: Any, alike: Any) -> Any:
        tried.append(len(alike.versions))
        if len(alike.versions) > 3:
            raise CorruptDataError("one of the tables")
        return encode_pass(rows, version, feed, settings, alike)

    monkeypatch.setattr(shared_pass, "encode_pass", refusing)
    for topic, numbers in zip("abc", [range(3), range(3, 6), range(6, 9)], strict=True):
        world.run(world.feed(topic), numbers)
    assert tried == [3, 6, 3, 3], "with company once, and not again"


def test_a_table_that_a_changefeeds_schemas_do_not_know_yet_is_not_taken_along() -> None:
    world, refused = World(3), list[int]()
    for topic, numbers in zip("ab", [range(3), range(3, 6)], strict=True):
        world.run(world.feed(topic), numbers)
    world.next_cut(replace(world.cut, upto_ts=Ts(world.cut.upto_ts + 1)))
    world.run(world.feed("b"), range(3, 6))
    world.schemas = Behind(world.tables[6:9])
    chunks = list(world.shared.rows({table.table_id for table in world.tables[6:9]}.__contains__))

    def note(error: BusError, count: int) -> None:
        refused.append(count)

    feed = world.feed("c")
    made = list(run_chunks(chunks, world.schemas, feed, encoded_at_ms=5, kept=world.shared, on_refused=note))
    assert sum(each.num_rows for each in made) == sum(map(len, chunks))
    assert world.passes == [3, 3]
    assert refused == []


def test_changefeeds_of_different_table_routes_share_no_pass() -> None:
    route = {"sink": {"dispatchers": [{"matcher": ["*.*"], "target-schema": "x", "target-table": "{schema}.{table}"}]}}
    uri, passes = "kafka://h:1/t?protocol=canal-json", 0
    for seed in range(20):
        rng = random.Random(seed)
        tables = tables_of(rng)
        schemas: Any = Schemas(tables)
        plain, routed = (
            replace(compile_feed(load_changefeed(uri, rules), "default"), force_replicate=True, partitions={"t": 1})
            for rules in ({}, route)
        )
        chunks, kept = chunks_of(rng, tables, damage=False), Kept()
        for feed in (plain, routed):
            expected = [alone(chunk, schemas, feed) for chunk in chunks]
            if any(isinstance(outcome, tuple) for outcome in expected):
                break
            produced = list(run_chunks(chunks, schemas, feed, encoded_at_ms=5, kept=kept))
            whole, parts = (sort_records(join_records([no_records(), *each])) for each in (expected, produced))
            assert parts.equals(whole)
            passes += len(kept.passes)
    assert passes, "no seed has tables that share a pass"


@given(seed=st.integers(0, 2**48))
def test_tables_are_alike_when_only_names_ids_and_versions_differ(seed: int) -> None:
    rng = random.Random(seed)
    first = random_table(rng)
    second = replace(first, schema="x", table="y", schema_id=9, table_id=TableId(8), version=Ts(7), update_ts=Ts(6))
    assert are_alike(first, second)
    column = first.columns[-1]
    changed = replace(column, comment=column.comment + "!")
    for differing in (
        replace(second, columns=(*first.columns[:-1], changed)),
        replace(second, columns=first.columns[:-1]),
        replace(second, charset="gbk"),
        replace(second, handle_columns=(*first.handle_columns, 0)),
        replace(second, partitions=(PartitionVersion(id=TableId(8), name="p"),)),
    ):
        assert not are_alike(first, differing)


def test_shared_pass_that_is_refused_is_counted_and_its_tables_are_run_alone() -> None:
    refused: list[tuple[str, int]] = []

    def note(error: BusError, count: int) -> None:
        refused.append((error.code, count))

    def refusing(rows: Any, version: Any, feed: Any, settings: Any, alike: Any = None) -> Any:
        if alike is not None:
            raise CorruptDataError("one of the tables")
        return run_version(rows, version, feed, settings)

    for seed in range(50):
        rng = random.Random(seed)
        tables = tables_of(rng)
        schemas: Any = Schemas(tables)
        feed, chunks = compiled(rng, tables), chunks_of(rng, tables, damage=False)
        expected = [alone(chunk, schemas, feed) for chunk in chunks]
        if any(isinstance(outcome, tuple) for outcome in expected):
            continue
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared_pass, "run_version", refusing)
            ledger = FlowLedger()
            produced = list(run_chunks(chunks, schemas, feed, encoded_at_ms=5, on_refused=note, ledger=ledger))
        whole, parts = (sort_records(join_records([no_records(), *each])) for each in (expected, produced))
        assert parts.equals(whole)
        assert not list(differences(books_of(ledger, chunks, produced), may_repeat=False))
        if refused:
            assert refused == [("bus.corrupt_data", count) for count in range(1, len(refused) + 1)]
            return
    pytest.fail("no seed has tables that share a pass")
