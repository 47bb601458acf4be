"""Position headers compare as bytes in the order that docs/formats/position.md promises."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.sink.position import Position, PositionClass, RowOp, decode_position

TS = st.integers(0, 2**63 - 1).map(Ts)
POSITIONS = st.builds(Position, TS, st.sampled_from(PositionClass), TS, st.sampled_from(RowOp), st.binary(max_size=20))


@given(POSITIONS, POSITIONS)
def test_position_bytes_compare_as_positions_do(a: Position, b: Position) -> None:
    assert (a.encode() < b.encode()) is (a < b)
    assert decode_position(a.encode()) == a


def test_position_at_one_ts_puts_rows_then_ddl_then_watermark() -> None:
    delete = Position(Ts(5), PositionClass.ROW, Ts(4), RowOp.DELETE, b"b")
    insert = Position(Ts(5), PositionClass.ROW, Ts(4), RowOp.INSERT, b"a")
    later_transaction = Position(Ts(5), PositionClass.ROW, Ts(5), RowOp.DELETE, b"a")
    ddl = Position(Ts(5), PositionClass.DDL, Ts(1))
    watermark = Position(Ts(5), PositionClass.WATERMARK)
    in_order = [delete, insert, later_transaction, ddl, watermark]
    arrived = [watermark, insert, ddl, later_transaction, delete]
    assert sorted(arrived, key=Position.encode) == in_order


@pytest.mark.parametrize("header", [b"", bytes(17), bytes(8) + b"\x09" + bytes(9), bytes(17) + b"\x07"])
def test_position_when_malformed_is_refused(header: bytes) -> None:
    with pytest.raises(CorruptDataError, match="position header"):
        decode_position(header)
