"""What an operator does to an upstream by hand when nothing else helps: TiCDC's `unsafe` commands."""

from contextlib import closing

from producers.errors import PdUnimplementedError, RegionsUnknownError, SnapshotFailedError
from producers.pull.core.ddl.meta_snapshot import database_count
from producers.pull.core.regions.region_map import KEY_END
from producers.pull.ddl.schema_snapshot import SnapshotReader
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.pull.pd.safe_point import release_safe_point
from producers.pull.puller import PullerSettings
from producers.tls import Channels, TlsSettings
from schemas.ids import RegionId, Ts, UpstreamId
from schemas.tidb.codec import decode_bytes

_RAW_END = b"\xff" * 9
"""Above every raw key of TiDB, for the last region."""


def now_ts(pd: str, tls: TlsSettings) -> Ts:
    """Return a new TSO.

    Raises:
        BusError: PD does not answer.
    """
    with closing(PdClient(pd, channels=Channels(tls))) as client:
        return client.now()


def resolve_region(pd: str, tls: TlsSettings, region_id: RegionId, max_ts: Ts | None) -> dict[str, object]:
    """Resolve the locks in a region of transactions up to ``max_ts`` (None: now); return what was done, for JSON.

    Transactions that live are left alone, as their primary says.

    Raises:
        RegionsUnknownError: PD does not know the region.
        BusError: PD does not answer.
    """
    with closing(PdClient(pd, channels=Channels(tls))) as client:
        region = client.region_by_id(region_id)
        if region is None:
            raise RegionsUnknownError("pd does not know the region; it may have been merged", region_id=region_id)
        start = decode_bytes(region.range.start)[0] if region.range.start else b""
        end = _RAW_END if region.range.end in (b"", KEY_END) else decode_bytes(region.range.end)[0]
        with closing(LockResolver(KvClient(RegionCache(client)))) as resolver:
            task = resolver.resolve_range(start, end, client.now() if max_ts is None else max_ts)
    return {
        "region": region_id,
        "committed": task.committed,
        "rolled_back": task.rolled_back,
        "left_alive": [str(lock) for lock in task.held],
        "troubles": list(task.troubles),
    }


def verify_gc_safe_point(pd: str, tls: TlsSettings, *, is_legacy: bool) -> tuple[Ts, int]:
    """Read TiDB's databases as of the ts up to which history may be collected; return that ts, and how many there were.

    A changefeed that begins there reads the same. Nothing is held meanwhile: collection may go on above that ts.

    Args:
        is_legacy: ask for the GC safe point, as all PDs have it, and not for the txn safe point of new ones.

    Raises:
        SnapshotFailedError: there is no such ts yet, or what was there then cannot be read.
        BusError: PD does not answer.
    """
    with closing(PdClient(pd, channels=Channels(tls))) as client:
        ts = client.gc_safe_point() if is_legacy else _txn_safe_point(client)
        if ts == 0:
            raise SnapshotFailedError("PD has no safe point: nothing was ever collected, and all can be read", pd=pd)
        with closing(SnapshotReader(RegionCache(client), ts)) as reader:
            return ts, database_count(reader.scan)


def _txn_safe_point(client: PdClient) -> Ts:
    try:
        return Ts(client.gc_state().txn_safe_point)
    except PdUnimplementedError:
        return client.gc_safe_point()


def delete_safe_point(pd: str, tls: TlsSettings, cluster: str, upstream: UpstreamId) -> str:
    """Let PD collect what this bus has still to pull; return the entry that is gone.

    Raises:
        BusError: PD does not answer.
    """
    service_id = PullerSettings(cluster=cluster).gc_service_id(upstream)
    with closing(PdClient(pd, channels=Channels(tls))) as client:
        release_safe_point(client, service_id)
    return service_id
