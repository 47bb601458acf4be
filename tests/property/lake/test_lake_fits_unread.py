"""A table that is seen to fit a lake without being decoded is refused by nothing that decodes it."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.config.sink.iceberg import LakeMode
from schemas.ddl.schema_change import StoredTable, stored_table
from schemas.ids import TableId, Ts
from sorters.core.lake.columns import checked_name, fits_unread, key_names, lake_columns
from sorters.core.lake.errors import LakeSchemaError
from tests.support.recorded.ddl_jobs import NOT_NULL, PRIMARY, column, index, table_info
from tests.support.recorded.mounting import recorded_store

NAMES = [
    "v",
    "_tidb_op",
    "_TIDB_Commit_ts",
    "_tidb_commit_time",
    "_tidb_commit",
    'a"_tidb_op',
    "_tİdb_op",
    "_tidb_\u212a",
]
FOLDERS = ["shop", "", ".", "..", "a/b", "a\\b", "a:b", "a\tb", "x" * 200, "x" * 201, "ünï"]
MODES: Sequence[LakeMode] = ("append", "upsert")


def _refused(stored: StoredTable, mode: LakeMode) -> bool:
    table = stored.decode()
    try:
        checked_name(table.schema, table)
        checked_name(table.table, table)
        lake_columns(table, mode)
        if mode == "upsert":
            key_names(table)
    except LakeSchemaError:
        return True
    return False


@st.composite
def _infos(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique_by=str.lower))
    flags, states = st.sampled_from([0, NOT_NULL, NOT_NULL | PRIMARY]), st.sampled_from([5, 5, 5, 4])
    columns = [
        column(at + 1, name, flag=draw(flags), state=draw(states)) | {"offset": at, "name": {"O": name}}
        for at, name in enumerate(names)
    ]
    if draw(st.booleans()):
        columns[-1] |= {"generated_expr_string": "1", "generated_stored": draw(st.booleans())}
    handle = any(each["type"]["Flag"] & PRIMARY and each["state"] == 5 for each in columns) and draw(st.booleans())
    parts = draw(st.lists(st.sampled_from(range(len(columns))), min_size=1, unique=True))
    indexes = draw(
        st.sampled_from([None, [index(1, "i", parts)], [index(1, "i", parts, unique=True, state=draw(states))]])
    )
    comment = draw(st.sampled_from(["", "see _tidb_op"]))
    info = table_info(7, draw(st.sampled_from(FOLDERS)), columns=columns, indexes=indexes, pk_is_handle=handle)
    return info | {"comment": comment}


@given(info=_infos(), schema=st.sampled_from(FOLDERS), mode=st.sampled_from(MODES))
def test_table_that_fits_unread_is_refused_by_nothing(info: dict[str, Any], schema: str, mode: LakeMode) -> None:
    stored = stored_table(info, schema_id=1, schema=schema, version=Ts(9))
    assert not (fits_unread(stored, mode) and _refused(stored, mode))


@pytest.mark.parametrize("mode", MODES)
def test_tables_of_a_real_tidb_fit_unread_but_those_without_a_key(mode: LakeMode) -> None:
    store = recorded_store()
    versions = (store.stored_of(TableId(int(table_id))) for table_id in store.table_ids())
    stored = [table for of_one in versions for table in of_one if table is not None and table.has_rows]
    fits = [fits_unread(table, mode) for table in stored]
    assert sum(fits) > 20
    assert all(fit or (mode == "upsert" and not table.eligible) for fit, table in zip(fits, stored, strict=True))
    assert not any(fit and _refused(table, mode) for fit, table in zip(fits, stored, strict=True))
