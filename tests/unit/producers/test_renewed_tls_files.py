"""TLS files that are away for a moment, as while they are renewed: who needs them then waits, and goes on."""

from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest

from compose.stack.secure.certificates import Authority
from producers.channels import OpenChannel
from producers.errors import PdUnreachableError, TlsRefusedError
from producers.pull.pd.client import PdClient
from producers.tls import Channels, TlsSettings
from schemas.tidb.codec import encode_bytes
from schemas.tidb.keys import row_key
from tests.support.upstream.scripted_stores import (
    SPAN,
    START_TS,
    TABLE,
    FeedRig,
    ScriptedStream,
    committed,
    event,
    initialized,
    resolved,
)

SPLIT = encode_bytes(row_key(TABLE, 1000))


class TrustedStores(Channels):
    """All stores are well and trusted."""

    def probe(self, address: str) -> TlsRefusedError | None:
        return None


class OpenedStream(ScriptedStream):
    """Opens its channel as a real one does."""

    def __init__(self, *args: Any, open_channel: OpenChannel, **kwargs: Any) -> None:
        open_channel(args[2], []).close()
        super().__init__(*args, **kwargs)


@pytest.fixture
def ca(tmp_path: Path) -> Path:
    """Return where a CA stands."""
    return Path(Authority(tmp_path).path)


@pytest.mark.parametrize("multiplexing", [True, False])
def test_feed_when_a_tls_file_is_away_as_a_stream_is_opened_anew_then_its_regions_wait_for_it(
    ca: Path, multiplexing: bool
) -> None:
    rig = FeedRig((2, b"", SPLIT, 5, 1), (3, SPLIT, b"", 5, 1), subscribe=False, multiplexing=multiplexing)
    rig.pd.channels = TrustedStores(TlsSettings(ca_path=str(ca)))
    rig.feed._open_stream = partial(OpenedStream, rig.streams)
    rig.feed.subscribe(SPAN, START_TS)
    rig.run()
    first = rig.stream
    for request in first.registers:
        first.say(initialized(request))
        first.say(resolved(110, request, multiplexed=multiplexing))
    rig.run()
    away = ca.rename(ca.with_suffix(".away"))
    scans = rig.pd.scans
    first.end(grpc.StatusCode.UNAVAILABLE, "restarts")
    rig.run(10.0)
    assert not rig.fatal and all(stream.closed for stream in rig.streams)
    assert "producer.tls_file" in rig.reason and str(ca) in rig.reason
    assert 4 <= rig.feed.troubles["store_unavailable"] <= 10, "each second or two"
    assert rig.pd.scans - scans <= 11, "both regions are asked for at once"
    away.rename(ca)
    rig.run(3.0)
    assert [(request.region_id, request.checkpoint_ts) for request in rig.stream.registers] == [(2, 110), (3, 110)]
    for request in rig.stream.registers:
        rig.stream.say(event(request, committed(110, 115, 1 if request.region_id == 2 else 1000)))
        rig.stream.say(initialized(request))
        rig.stream.say(resolved(120, request, multiplexed=multiplexing))
    rig.run()
    assert len(rig.sink.changes) == 2
    assert rig.sink.resolved_ts == 120


def test_pd_client_when_a_tls_file_is_away_then_the_call_is_tried_until_its_deadline_and_says_why(ca: Path) -> None:
    pd = PdClient("127.0.0.1:1", channels=Channels(TlsSettings(ca_path=str(ca))), deadline_s=0.5)
    ca.unlink()
    with pytest.raises(PdUnreachableError, match=r"producer\.tls_file\] file cannot be read") as caught:
        pd.now()
    assert caught.value.fields["tries"] == 3, "after 0.1 s and 0.2 s more"
    pd.close()
