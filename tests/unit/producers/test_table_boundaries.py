"""Region boundaries of large tables, from the start keys of a cluster's regions."""

from producers.pull.core.regions.table_boundaries import table_boundaries
from schemas.ids import TableId
from schemas.tidb.codec import encode_bytes
from schemas.tidb.keys import row_key, table_span


def starts(*keys: bytes) -> list[bytes]:
    return [encode_bytes(key) for key in keys]


def test_table_boundaries_of_regions_of_several_tables_are_those_inside_the_rows_of_the_large_ones() -> None:
    index = table_span(TableId(5))[0][:-2] + b"_i" + bytes(8)
    keys = starts(
        *(index, table_span(TableId(5))[0], row_key(TableId(5), 1), row_key(TableId(5), 2)),
        *(table_span(TableId(6))[0][:-2], row_key(TableId(6), 9)),
        *(row_key(TableId(7), 1), row_key(TableId(7), 3), row_key(TableId(7), 4)),
        *(row_key(TableId(8), number) for number in range(9)),
    )
    tables = {TableId(5), TableId(6), TableId(7)}
    assert table_boundaries(keys, tables, 3) == {
        TableId(5): [row_key(TableId(5), 1), row_key(TableId(5), 2)],
        TableId(7): [row_key(TableId(7), 1), row_key(TableId(7), 3), row_key(TableId(7), 4)],
    }
    assert set(table_boundaries(keys, tables, 2)) == tables
    assert table_boundaries([], tables, 2) == {}


def test_table_boundaries_of_keys_that_nobody_can_read_are_left_out() -> None:
    keys = [b"", b"t\x80", *starts(b"m", row_key(TableId(5), 1)), b"t" + b"\x77" * 20]
    assert table_boundaries(keys, {TableId(5)}, 2) == {TableId(5): [row_key(TableId(5), 1)]}
