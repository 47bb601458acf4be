"""A changefeed's info holds its passwords in clear for the sorter, and shows them nowhere."""

import pytest

from schemas.errors import CorruptDataError
from schemas.ids import Ts, UpstreamId
from schemas.nodes.changefeed import ChangefeedInfo, decode_changefeed_info, encode_changefeed_info

INFO = ChangefeedInfo(
    changefeed_id="c",
    upstream=UpstreamId("u"),
    sink_uri="kafka://h:1/t?sasl-password=hidden-word",
    config={"sink": {"kafka-config": {"sasl-password": "hidden-word"}}},
    start_ts=Ts(1),
)


def test_changefeed_info_repr_shows_no_secret_and_the_node_keeps_it() -> None:
    assert "hidden-word" not in repr(INFO)
    assert decode_changefeed_info(encode_changefeed_info(INFO)) == INFO


@pytest.mark.parametrize("node", [encode_changefeed_info(INFO)[:-9], b'{"sink_uri": "hidden-word"}', b"hidden-word"])
def test_changefeed_info_undecodable_error_shows_no_secret(node: bytes) -> None:
    with pytest.raises(CorruptDataError) as caught:
        decode_changefeed_info(node)
    assert "hidden-word" not in str(caught.value)
