"""canal packets read by Alibaba's own Java classes: what they say is what TiDB's rows hold."""

import warnings
from pathlib import Path

import pyarrow as pa
import pytest

from schemas.ids import Ts
from sorters.core.encode.canal.protobuf import CanalEncoder
from sorters.core.mount import mount
from tests.support.recorded.mounting import mounted_oracle, recorded_batches
from tests.support.topics.canal_java import CanalJavaMissingError, CanalRow, read_packets

ROWS_PER_PACKET = 7


def read_or_skip(packets: list[bytes], folder: Path) -> list[list[CanalRow]]:
    try:
        return read_packets(packets, folder)
    except CanalJavaMissingError as missing:
        warnings.warn(f"canal packets were not read by canal's own classes: {missing}", stacklevel=1)
        pytest.skip(str(missing))


def test_canal_packets_of_recorded_rows_are_read_by_canals_own_java_classes(tmp_path: Path) -> None:
    encoder = CanalEncoder()
    packets, wanted = [], []
    kinds = {(row["commit_ts"], row["start_ts"], row["table_id"], row["key"]): row for row in mounted_oracle()}
    for batch in recorded_batches():
        encoded = encoder.encode_rows(mount(batch.table, batch.rows, small_rows=0))
        count = min(len(encoded.rows), ROWS_PER_PACKET)
        offsets = pa.array([0, count], pa.int32())
        lists = (pa.ListArray.from_arrays(offsets, side.slice(0, count)) for side in (encoded.keys, encoded.values))
        _, joined = encoder.joiner.join(*lists)
        packets.append(joined[0].as_py())
        wanted.append([(batch.table, kinds[batch.row_id(row)]) for row in encoded.rows[:count].tolist()])

    class CreateTable:
        schema, table, query, ddl_type, commit_ts = "d", "t", "CREATE TABLE `t` (`é` INT)", 3, Ts(1 << 50)
        pre = post = None

    *read_packets, (ddl,) = read_or_skip([*packets, encoder.encode_ddl(CreateTable()).value], tmp_path)
    assert (ddl.event_type, ddl.is_ddl, ddl.sql) == ("CREATE", True, "CREATE TABLE `t` (`é` INT)")
    assert [len(rows) for rows in read_packets] == [len(rows) for rows in wanted]
    pairs = zip((row for rows in read_packets for row in rows), (row for rows in wanted for row in rows), strict=True)
    for said, (table, row) in pairs:
        assert (said.entry_type, said.event_type.lower(), said.is_ddl) == ("ROWDATA", row["op"], False)
        assert (said.schema, said.table, said.execute_time) == (table.schema, table.table, row["commit_ts"] >> 18)
        for side, columns in ((said.before, row["pre_columns"]), (said.after, row["columns"])):
            assert [(column.name, column.is_null, column.value) for column in side] == [
                (column["name"], column["value"] is None, shown(column["value"])) for column in columns or ()
            ]


def shown(value: str | dict[str, str] | None) -> str:
    """Return a mounted value as canal has it: bytes as ISO-8859-1, NULL as nothing."""
    return bytes.fromhex(value["hex"]).decode("latin-1") if isinstance(value, dict) else value or ""
