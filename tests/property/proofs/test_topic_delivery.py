"""Tables to which each DDL is given that may be theirs become those that look at every change by themselves."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from consumers.client.changes import Change, ChangeBatch, Ddl, Row
from consumers.client.errors import ProofLostError
from consumers.verify.core.columns import ColumnRow, KeyRow, compared
from consumers.verify.topic_check import TopicTables
from consumers.verify.topic_side import TopicTable
from schemas.avro_name import sanitize_name
from schemas.ids import Ts
from schemas.state_proof.proof_sql import Dialect

WHAT = compared([ColumnRow("id", "int", "")], [KeyRow("PRIMARY", "id", False)], ["id"], Dialect.TIDB)
SCHEMAS = ("shop", "SHOP", "my-shop", "to")
TABLES = ("orders", "Orders2", "order-lines", "rename", "straße", "a`b")
NAMES = [(schema, table) for schema in SCHEMAS for table in TABLES]
QUERIES = (
    "RENAME TABLE {0}.{1} TO {2}.{3}",
    "RENAME TABLE {1} TO {3}",
    "RENAME TABLE {1} TO {2}.{3}",
    "ALTER TABLE {0}.{1} EXCHANGE PARTITION p WITH TABLE {2}.{3}",
    "ALTER TABLE {1} EXCHANGE PARTITION p WITH TABLE {3}",
    "ALTER TABLE {1} ADD COLUMN {3} INT COMMENT 'rename'",
    "ALTER TABLE {1} ADD COLUMN {3} INT COMMENT 'rename",
    "FLASHBACK TABLE {1} TO {3}",
    "TRUNCATE TABLE {1}",
    "DROP TABLE {1}, {3}",
    "DROP DATABASE {0}",
    "FLASHBACK DATABASE {0} TO {2}",
)


@st.composite
def ddl(draw: st.DrawFn) -> Ddl:
    named = [draw(st.sampled_from(names)) for names in (SCHEMAS, TABLES, SCHEMAS, TABLES)]
    as_written = [f"`{name.replace('`', '``')}`" if draw(st.booleans()) else name.upper() for name in named]
    query = draw(st.sampled_from(QUERIES)).format(*as_written)
    schema, table = (
        sanitize_name(named[0]),
        "" if "DATABASE" in query else sanitize_name(named[draw(st.sampled_from((1, 3)))]),
    )
    return Ddl(schema=schema, table=table, query=query, commit_ts=Ts(2), start_ts=Ts(1))


def rows() -> st.SearchStrategy[Row]:
    return st.builds(
        lambda name, number, has_key: Row(
            schema=sanitize_name(name[0]),
            table=sanitize_name(name[1]),
            op="insert",
            commit_ts=Ts(2),
            start_ts=Ts(1),
            columns={"id": number} if has_key else {},
        ),
        st.sampled_from(NAMES),
        st.integers(0, 3),
        st.integers(0, 9).map(bool),
    )


def made() -> dict[tuple[str, str], TopicTable]:
    return {name: TopicTable(name, WHAT, sanitize_name) for name in NAMES}


def state(table: TopicTable) -> tuple[object, ...]:
    try:
        table.check_proven()
    except ProofLostError as error:
        return sorted(table.rows), table.watermark_ts, str(error)
    return sorted(table.rows), table.watermark_ts, ""


@given(st.lists(st.lists(ddl() | rows(), max_size=12), min_size=1, max_size=3))
def test_topic_tables_become_what_they_are_where_each_gets_every_change(batches: Sequence[Sequence[Change]]) -> None:
    sorted_out, all_alone, lost = TopicTables(made()), made(), dict[tuple[str, str], str]()
    for ts, changes in enumerate(batches, 5):
        batch = ChangeBatch(watermark_ts=Ts(ts), changes=tuple(changes))
        sorted_out.apply(batch)
        for name, table in all_alone.items():
            try:
                table.apply(batch)
            except ProofLostError as error:
                lost[name] = str(error)
    assert {name: state(table) for name, table in sorted_out.tables.items()} == {
        name: state(table) for name, table in all_alone.items()
    }
    assert sorted_out.lost == lost
