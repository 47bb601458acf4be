"""Row format v1: pairs of (column id as a varint datum, value datum). Source: pingcap/tidb ``pkg/tablecodec``."""

from schemas.errors import CorruptDataError
from schemas.tidb.codec import DatumFlag, decode_datum

RowV1 = dict[int, int | float | str | bytes | None]
"""Column id to datum value, as :class:`schemas.tidb.codec.Datum` has it; None: the column is NULL."""


def decode_row_v1(value: bytes) -> RowV1:
    """Read a row value of format v1; one byte 0 is the row without columns.

    Raises:
        CorruptDataError: a datum does not decode, or a column id is no integer.
    """
    columns: RowV1 = {}
    if value == b"\0":
        return columns
    at = 0
    while at < len(value):
        column_id, at = decode_datum(value, at)
        if column_id.flag not in {DatumFlag.VARINT, DatumFlag.INT} or not isinstance(column_id.value, int):
            raise CorruptDataError("column id of a v1 row is no integer", flag=column_id.flag, at=at)
        datum, at = decode_datum(value, at)
        columns[column_id.value] = datum.value
    return columns
