"""open-protocol against TiCDC's own messages of the whole recording, byte for byte, keys and values.

TiCDC made them with max-batch-size 1, so each message holds one row. Nothing is masked.
"""

import base64

import pytest

from schemas.ids import Ts
from sorters.core.encode.open.encoder import OpenProtocolEncoder
from sorters.core.encode.wire.protocol import EncodedMessage, Partitions
from sorters.core.mount import mount
from tests.support.recorded.mounting import encoded_oracle, recorded_batches
from tests.support.recorded.recording import oracle

PATHS = [pytest.param(0, id="columnar"), pytest.param(10**9, id="scalar")]
ENCODER = OpenProtocolEncoder()


@pytest.mark.parametrize("small_rows", PATHS)
def test_open_protocol_of_all_recorded_rows_equals_ticdc(small_rows: int) -> None:
    expected, seen = encoded_oracle("open-protocol"), 0
    for batch in recorded_batches():
        encoded = ENCODER.encode_rows(mount(batch.table, batch.rows, small_rows=small_rows))
        rows = zip(encoded.rows.tolist(), encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True)
        for row, key, value in rows:
            message = expected[batch.row_id(row)]
            assert (key, value) == (message.key, message.value), batch.row_id(row)
            seen += 1
    assert seen == len(expected) == 17_651


def test_open_protocol_ddl_and_watermarks_equal_ticdc() -> None:
    queries = {
        (line["commit_ts"], event["seq"]): event for line in oracle("ddl_events") for event in line.get("events") or []
    }

    class Recorded:
        pre = post = None

        def __init__(self, commit_ts: int, seq: int) -> None:
            event = queries[commit_ts, seq]
            self.schema, self.table, self.query = event["schema"], event["table"], event["restored_query"]
            self.ddl_type, self.commit_ts = event["type_id"], Ts(commit_ts)

    seen = {"ddl": 0, "watermark": 0}
    for line in oracle("encoded/open-protocol"):
        if line["op"] not in seen:
            continue
        seen[line["op"]] += 1
        wanted = EncodedMessage(base64.b64decode(line["key"]), base64.b64decode(line["value"]))
        if line["op"] == "ddl":
            assert ENCODER.encode_ddl(Recorded(line["commit_ts"], line["seq"])) == wanted
        else:
            assert ENCODER.encode_watermark(Ts(line["commit_ts"])) == wanted
    assert seen == {"ddl": 97, "watermark": 10}
    assert ENCODER.ddl_partitions is ENCODER.watermark_partitions is Partitions.ALL
