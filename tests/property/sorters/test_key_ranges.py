"""Conditions of a resync hold for the rows that a chunk lacks, and for no others: held against keys one by one."""

import random
import re
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import CorruptDataError
from schemas.ids import TableId, Ts
from schemas.rawlog.images import KeyRange
from schemas.tidb.codec import encode_int, encode_uint
from schemas.tidb.keys import row_key
from schemas.tidb.mysql_types import MysqlFlag, MysqlType
from schemas.tidb.table import TableVersion
from schemas.tidb.table_info import table_version
from sorters.core.encode.sql import key_ranges
from sorters.core.encode.sql.key_ranges import lacking_ranges, range_misfit
from tests.support.recorded.ddl_jobs import PRIMARY, column, table_info

TABLE = TableId(7)
KEYS = (KeyRange.of_table(TABLE).start, KeyRange.of_table(TABLE).end)
Row = tuple[int, ...]
EDGES = (-(2**63), -(2**63) + 1, -2, -1, 0, 1, 2, 5, 2**63 - 1)
UNSIGNED_EDGES = (0, 1, 2, 5, 2**63 - 1, 2**63, 2**63 + 1, 2**64 - 1)


def table(*names: str, unsigned: bool = False, **more: Any) -> TableVersion:
    """Return a table with a clustered key of these columns."""
    flag = PRIMARY | (MysqlFlag.UNSIGNED if unsigned else 0)
    columns = [
        column(number, name, tp=MysqlType.BIGINT, not_null=True, flag=flag) for number, name in enumerate(names, 1)
    ]
    for offset, each in enumerate(columns):
        each["offset"] = offset
    parts = [{"name": {"O": name, "L": name}, "offset": at, "length": -1} for at, name in enumerate(names)]
    primary = {
        "id": 1, "idx_name": {"O": "PRIMARY", "L": "primary"}, "idx_cols": parts, "is_primary": True,
        "is_unique": True, "state": 5,
    }  # fmt: skip
    is_common = len(names) > 1
    info = table_info(TABLE, "t", columns=columns, indexes=[primary] if is_common else None, is_common_handle=is_common)
    return table_version({**info, **more}, schema_id=1, schema="d", version=Ts(1))


def key(row: Row, *, unsigned: bool) -> bytes:
    """Return a row's key as TiDB makes it."""
    if len(row) == 1:
        value = row[0] - 2**64 if unsigned and row[0] >= 2**63 else row[0]
        return row_key(TABLE, value)
    part = (lambda value: b"\x04" + encode_uint(value)) if unsigned else (lambda value: b"\x03" + encode_int(value))
    return row_key(TABLE, b"".join(map(part, row)))


def holds(condition: bytes, names: tuple[str, ...], row: Row) -> bool:
    """Evaluate the little SQL that conditions are, as every server does with whole numbers."""
    text = condition.decode().replace("NOT IN (", "not in (*(),").replace(" AND ", " and ").replace(" OR ", " or ")
    text = re.sub(r"(?<![<>])=", "==", text).replace("TRUE", "True").replace("`", "")
    return bool(eval(text, {"__builtins__": {}}, dict(zip(names, row, strict=True))))


@given(st.integers(0, 2**64), st.sampled_from([1, 2, 3]), st.booleans(), st.sampled_from([1, 2, 3, 512]))
def test_conditions_hold_for_the_keys_of_a_range_that_are_not_present_and_for_no_others(
    seed: int, width: int, unsigned: bool, keys_max: int
) -> None:
    rng, names = random.Random(seed), ("a", "b", "c")[:width]
    edges = UNSIGNED_EDGES if unsigned else EDGES
    rows = sorted({tuple(rng.choice(edges) for _ in range(width)) for _ in range(12)})
    by_key = sorted((key(row, unsigned=unsigned), row) for row in rows)
    bounds = [*(raw for raw, _ in by_key), *KEYS, *(_mangled(rng, raw) for raw, _ in by_key)]
    start, end = sorted(rng.sample(bounds, 2))
    within = [(raw, row) for raw, row in by_key if start <= raw < end]
    present = {raw: row for raw, row in within if rng.random() < 0.6}
    version = table(*names, unsigned=unsigned)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(key_ranges, "KEYS_MAX", keys_max)
        made = list(lacking_ranges(version, KeyRange(start, end), pa.array(list(present), pa.binary())))
    gone = {row for row in rows if any(holds(each.condition, names, row) for each in made)}
    assert gone == {row for raw, row in within if raw not in present}
    starts = [each.start for each in made]
    assert starts == sorted(set(starts)), "each stands at a place of its own in the order"
    assert all(start <= at < end for at in starts)


def _mangled(rng: random.Random, raw: bytes) -> bytes:
    """Return a key as regions may begin with: of no row, cut off anywhere, or longer."""
    cut = raw[: rng.randint(11, len(raw))]
    return cut + rng.choice((b"", b"\0", b"\x01", b"\xff", b"\x05x"))


def test_a_dense_range_needs_no_condition() -> None:
    version = table("id")
    rows = [row_key(TABLE, number) for number in range(100, 2_000)]
    keys = KeyRange(rows[0], rows[-1] + b"\0")
    assert list(lacking_ranges(version, keys, pa.array(rows, pa.binary()))) == []
    (gap,) = lacking_ranges(version, keys, pa.array(rows[:700] + rows[701:], pa.binary()))
    assert gap.condition.startswith(b"(`id`>611 AND `id`<=1124 AND `id` NOT IN (612,613,")
    (rest,) = lacking_ranges(version, KeyRange(rows[5], KeyRange.of_table(TABLE).end), pa.array([], pa.binary()))
    assert rest.condition == b"(`id`>=105)"
    (everything,) = lacking_ranges(version, KeyRange.of_table(TABLE), pa.array([], pa.binary()))
    assert everything.condition == b"(TRUE)"


def test_a_key_that_is_none_of_the_table_is_an_error() -> None:
    with pytest.raises(CorruptDataError, match="does not decode"):
        list(lacking_ranges(table("id"), KeyRange.of_table(TABLE), pa.array([row_key(TABLE, b"\x01" * 12)])))


def test_tables_whose_rows_no_range_tells_are_named() -> None:
    assert range_misfit(table("id")) is None
    assert range_misfit(table("a", "b", unsigned=True)) is None
    parted = {"enable": True, "definitions": [{"id": 8, "name": {"O": "p", "L": "p"}}]}
    assert "partitioned" in str(range_misfit(table("id", partition=parted)))
    assert "not clustered" in str(range_misfit(table("id", pk_is_handle=False)))
    texts = table_info(
        TABLE, "t", columns=[{**column(1, "name", tp=MysqlType.VARCHAR, not_null=True, flag=PRIMARY), "offset": 0}],
        indexes=[{
            "id": 1, "idx_name": {"O": "PRIMARY", "L": "primary"}, "is_primary": True, "is_unique": True, "state": 5,
            "idx_cols": [{"name": {"O": "name", "L": "name"}, "offset": 0, "length": -1}],
        }], is_common_handle=True,
    )  # fmt: skip
    said = range_misfit(table_version(texts, schema_id=1, schema="d", version=Ts(1)))
    assert said == "its key has a column that is no whole number: name"
