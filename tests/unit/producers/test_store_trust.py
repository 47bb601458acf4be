"""How often a store with which there is no TLS is tried: one that nobody reaches must not hold up all others."""

from pathlib import Path
from typing import cast

import pytest

from compose.stack.secure.certificates import Authority
from producers.errors import StoreUnavailableError, TlsRefusedError
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.tls import Channels, TlsSettings
from schemas.ids import StoreId
from schemas.proto import metapb_pb2

STORE = StoreId(2)
ADDRESS = "10.0.0.2:20160"


class Stores(Channels):
    """One store that lets whoever looks at its certificates wait, and what it answers then; the clock is a test's."""

    def __init__(self, tls: TlsSettings) -> None:
        super().__init__(tls)
        self.now_s, self.looks, self.takes_s = 1000.0, 0, 3.0
        self.answer: Exception | None = None

    def probe(self, address: str) -> TlsRefusedError | None:
        assert address == ADDRESS
        self.looks += 1
        self.now_s += self.takes_s
        if isinstance(self.answer, OSError):
            raise self.answer
        return cast("TlsRefusedError | None", self.answer)


class OnePd:
    """PD of one store."""

    def __init__(self, channels: Channels) -> None:
        self.channels = channels

    def stores(self) -> list[metapb_pb2.Store]:
        return [metapb_pb2.Store(id=STORE, address=ADDRESS)]


@pytest.fixture
def stores(tmp_path: Path) -> Stores:
    """Return the store."""
    return Stores(TlsSettings(ca_path=Authority(tmp_path).path))


def cache_of(stores: Stores) -> RegionCache:
    return RegionCache(cast(PdClient, OnePd(stores)), clock=lambda: stores.now_s)


def refused(cache: RegionCache) -> StoreUnavailableError:
    with pytest.raises(StoreUnavailableError) as caught:
        cache.address(STORE)
    return caught.value


def test_store_when_nobody_answers_there_then_it_is_tried_once_in_some_ten_seconds_whoever_asks(stores: Stores) -> None:
    stores.answer = TimeoutError("timed out")
    cache, began_s = cache_of(stores), stores.now_s
    said = {str(refused(cache)) for _ in range(20)}
    assert (stores.looks, stores.now_s - began_s) == (1, 3.0)
    assert said == {
        f"[producer.store_unavailable] store is not reached (store_id=2, address={ADDRESS}, reason=timed out)"
    }
    for _ in range(8):
        stores.now_s += 1.0
        cache.forget_stores()  # as when a stream to any store breaks
        refused(cache)
    assert stores.looks == 1
    stores.now_s += 1.5
    refused(cache)
    assert stores.looks == 2


def test_store_when_it_is_reached_again_then_it_is_trusted_at_the_next_try(stores: Stores) -> None:
    stores.answer = TimeoutError("timed out")
    cache = cache_of(stores)
    refused(cache)
    stores.answer, stores.takes_s = None, 0.01
    stores.now_s += 10.0
    assert cache.address(STORE) == ADDRESS
    assert cache.address(STORE) == ADDRESS
    assert stores.looks == 2


@pytest.mark.parametrize("answer", [ConnectionRefusedError("refused"), TlsRefusedError("no TLS connection")])
def test_store_when_the_answer_comes_at_once_then_each_try_asks_it(stores: Stores, answer: Exception) -> None:
    stores.answer, stores.takes_s = answer, 0.001
    cache = cache_of(stores)
    for _ in range(3):  # a store that restarts, or has another certificate now, is not left alone for long
        refused(cache)
        stores.now_s += 0.05
    stores.answer = None
    assert cache.address(STORE) == ADDRESS


def test_store_whose_certificate_is_refused_slowly_stays_refused_for_it_meanwhile(stores: Stores) -> None:
    stores.answer = TlsRefusedError("no TLS connection", reason="certificate of the server is refused: expired")
    cache = cache_of(stores)
    for error in (refused(cache), refused(cache)):
        assert "store cannot be trusted" in str(error) and "refused: expired" in str(error)
        assert isinstance(error.__cause__, TlsRefusedError)
    assert stores.looks == 1
