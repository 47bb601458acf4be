"""canal-json's options against the same rows without options: what they take away, and that nothing else changes."""

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.tidb.mysql_types import CdcFlag
from sorters.core.encode.canal.json import CanalJsonEncoder
from sorters.core.mount import mount
from tests.support.recorded.mounting import row_changes
from tests.support.topics.random_rows import random_change, random_table

Pairs = list[tuple[str, Any]]


def read(encoder: CanalJsonEncoder, mounted: Any) -> list[dict[str, Any]]:
    """Return the messages; ``data``, ``old`` and the type maps as lists of members, so that order and repeats show."""

    def members(pairs: Pairs) -> Any:
        return dict(pairs) if pairs[0][0] == "id" and pairs[0][1] == 0 else pairs

    values = encoder.encode_rows(mounted, encoded_at_ms=5).values.to_pylist()
    return [json.loads(value, object_pairs_hook=lambda pairs: members(pairs) if pairs else []) for value in values]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**48), updated=st.booleans(), compatible=st.booleans(), handle_only=st.booleans())
def test_canal_json_options_take_away_exactly_what_they_say(
    seed: int, updated: bool, compatible: bool, handle_only: bool
) -> None:
    rng = random.Random(seed)
    table = random_table(rng)
    changes = [random_change(rng, table, number, damage=False) for number in range(50)]
    handle = {spec.name for spec in table.columns if spec.cdc_flag & CdcFlag.HANDLE_KEY}
    optioned = CanalJsonEncoder(
        only_output_updated_columns=updated,
        content_compatible=compatible,
        delete_only_output_handle_key_columns=handle_only,
    )
    for small_rows in (0, 10**9):
        mounted = mount(table, row_changes(table.table_id, changes), small_rows=small_rows)
        for full, got in zip(read(CanalJsonEncoder(), mounted), read(optioned, mounted), strict=True):
            wanted = dict(full)
            if full["type"] == "UPDATE" and (updated or compatible):
                new = dict(full["data"][0])
                wanted["old"] = [[(name, value) for name, value in full["old"][0] if value != new[name]]]
            if full["type"] == "DELETE" and handle_only:
                for name in ("sqlType", "mysqlType"):
                    wanted[name] = [pair for pair in full[name] if pair[0] in handle]
                wanted["data"] = [[pair for pair in full["data"][0] if pair[0] in handle]]
            if compatible:
                assert [name for name, _ in got["mysqlType"]] == [name for name, _ in wanted["mysqlType"]]
                wanted["mysqlType"] = got["mysqlType"]  # the names are tests/unit/formats/test_canal_json.py's
            assert got == wanted
