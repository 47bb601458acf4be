"""debezium against TiCDC's own messages of the whole recording, byte for byte, keys and values.

Only ``payload.ts_ms`` is masked, the wall time of encoding. One row is refused, as TiCDC refuses it: a DATETIME with
month and day 0.
"""

import base64
import re

import numpy as np
import pytest

from schemas.ids import Ts
from sorters.core.encode.debezium.encoder import DebeziumEncoder
from sorters.core.encode.wire.protocol import EncodeRefusedError, Partitions
from sorters.core.mount import MountedColumns, mount
from sorters.core.sql.ddl_event import ddl_events
from tests.support.recorded.mounting import encoded_oracle, recorded_batches, recorded_store
from tests.support.recorded.recording import oracle

PATHS = [pytest.param(0, id="columnar"), pytest.param(10**9, id="scalar")]
ENCODERS = {
    "debezium": DebeziumEncoder(),
    "debezium-ext": DebeziumEncoder(enable_tidb_extension=True),
}
NAMES = pytest.mark.parametrize("name", ENCODERS)
ENCODED_AT_MS = 1_700_000_000_000
_ENCODE_TIME = re.compile(rb'("cluster_id":"default"\},"ts_ms":)\d+')


def masked(value: bytes) -> bytes:
    """Hide the time of encoding, which stands once in a message, behind the source."""
    shown, count = _ENCODE_TIME.subn(rb"\1T", value, count=1)
    assert count == 1
    return shown


def without(mounted: MountedColumns, row: int) -> MountedColumns:
    parts = [part.take(np.flatnonzero(part.rows != row)) for part in mounted.parts]
    return MountedColumns(table=mounted.table, count=mounted.count, parts=tuple(part for part in parts if len(part)))


@NAMES
@pytest.mark.parametrize("small_rows", PATHS)
def test_debezium_of_all_recorded_rows_equals_ticdc(name: str, small_rows: int) -> None:
    expected, seen, errors = encoded_oracle(name), 0, []
    for batch in recorded_batches():
        mounted = mount(batch.table, batch.rows, small_rows=small_rows)
        for row in range(len(batch.rows)):
            message = expected.get(batch.row_id(row))
            if message is not None and message.error:
                with pytest.raises(EncodeRefusedError) as caught:
                    ENCODERS[name].encode_rows(mounted, encoded_at_ms=ENCODED_AT_MS)
                errors.append((caught.value.fields, batch.row_id(row)))
                mounted = without(mounted, row)
        encoded = ENCODERS[name].encode_rows(mounted, encoded_at_ms=ENCODED_AT_MS)
        rows = zip(encoded.rows.tolist(), encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True)
        for row, key, value in rows:
            message = expected[batch.row_id(row)]
            assert message.value is not None
            assert (key, masked(value)) == (message.key, masked(message.value)), batch.row_id(row)
            seen += 1
    assert seen == len(expected) - 1 == 17_650
    ((fields, row_id),) = errors
    assert fields == {"table": "d1.t_all", "key": row_id[3], "commit_ts": row_id[0], "column": "c_dt"}


@NAMES
def test_debezium_ddl_and_watermarks_equal_ticdc(name: str) -> None:
    encoder, seen, unsaid = ENCODERS[name], 0, []
    lines = {(line["commit_ts"], line["seq"]): line for line in oracle(f"encoded/{name}") if line["op"] == "ddl"}
    sent = {
        (line["commit_ts"], event["seq"])
        for line in oracle("ddl_events")
        if not line.get("not_sent")
        for event in line["events"]
    }
    for change in recorded_store().changes_between(Ts(0), Ts(2**62)):
        for event in ddl_events(change):
            event_id = int(event.commit_ts), event.seq
            if event_id not in sent:
                continue
            message = encoder.encode_ddl(event, encoded_at_ms=ENCODED_AT_MS)
            if message is None:
                unsaid.append(event.type_name)
                continue
            line = lines.pop(event_id)
            assert message.key == base64.b64decode(line["key"])
            assert masked(message.value) == masked(base64.b64decode(line["value"])), event.query
            seen += 1
    assert (seen, unsaid, lines) == (96, ["recover table"], {})
    watermarks = [line for line in oracle(f"encoded/{name}") if line["op"] == "watermark"]
    for line in watermarks:
        made = encoder.encode_watermark(Ts(line["commit_ts"]), encoded_at_ms=ENCODED_AT_MS)
        assert made is not None
        assert made.key == base64.b64decode(line["key"])
        assert masked(made.value) == masked(base64.b64decode(line["value"]))
    assert len(watermarks) == (10 if name == "debezium-ext" else 0)


def test_debezium_without_extension_has_no_watermarks() -> None:
    assert ENCODERS["debezium"].encode_watermark(Ts(1), encoded_at_ms=1) is None
    assert ENCODERS["debezium"].watermark_partitions is Partitions.NONE
    assert ENCODERS["debezium-ext"].watermark_partitions is Partitions.ALL
    assert ENCODERS["debezium"].ddl_partitions is Partitions.ALL
