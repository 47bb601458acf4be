"""DDL jobs of any shape in the ddl topic: the schema store refuses them by a code, and is as it was."""

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.errors import BusError
from schemas.ids import Ts
from sorters.core.sql.ddl_event import ddl_events
from tests.support.recorded.ddl_jobs import job, snapshot, table_info

LEAVES = st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=6)
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))
TYPES = [1, 2, 3, 4, 5, 11, 13, 14, 21, 24, 38, 42, 47, 60]


def paths(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return (
        [at, *(path for key, item in inner for path in paths(item, (*at, key)))]
        if at
        else [path for key, item in inner for path in paths(item, (key,))]
    )


@settings(max_examples=300)
@given(st.data())
def test_ddl_job_of_any_shape_is_refused_by_a_code(data: st.DataObject) -> None:
    store = snapshot(("d", 2, [table_info(100, "t"), table_info(101, "u")]))
    info = table_info(100, "t")
    record = job(
        20,
        data.draw(st.sampled_from(TYPES)),
        schema_id=2,
        table_id=100,
        query=data.draw(st.text(max_size=30)),
        table_info=info,
        table_infos=[info],
        db_info={"id": 2, "db_name": {"O": "d", "L": "d"}},
    )
    payload: Any = copy.deepcopy(record.payload)
    for path in data.draw(st.lists(st.sampled_from(paths(payload)), max_size=3)):
        holder = payload
        try:
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = data.draw(VALUES)
        except (TypeError, KeyError, IndexError):
            continue  # what held it is gone by now
    record.payload.clear()
    record.payload.update(payload)
    before = {table_id: stored.table for table_id, stored in store.pullable_tables_at(Ts(30)).items()}
    try:
        change = store.apply(record)
        if change is not None:
            ddl_events(change)
    except BusError as error:
        assert error.code != BusError.code
        after = {table_id: stored.table for table_id, stored in store.pullable_tables_at(Ts(30)).items()}
        assert after == before
