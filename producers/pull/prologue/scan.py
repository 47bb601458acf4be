"""Lands a prologue: what some tables changed in an interval of the past, into a raw log of its own.

    DDL feed: schemas as of start_ts, jobs --up to end_ts--> which tables --> puller: their spans, from start_ts
    everything up to end_ts is acknowledged --> the two records of its frontier

It uses what lands the upstream's raw log, by other topics, and keeps nothing: one that is cut off is begun anew, into
topics that nothing was landed in. TiKV's history must be held above ``start_ts`` meanwhile.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Final

from edges.kafka.access import KafkaAccess
from edges.registry.access import RegistryAccess
from producers.pull.core.ddl.meta_snapshot import snapshot_records
from producers.pull.core.landing.prologue import prologue_frontier
from producers.pull.ddl.ddl_feed import DdlFeed, job_table_info
from producers.pull.ddl.schema_snapshot import SnapshotReader
from producers.pull.locks.kv_client import KvClient
from producers.pull.locks.resolver import LockResolver
from producers.pull.pd.client import PdClient
from producers.pull.pd.region_cache import RegionCache
from producers.pull.puller import Puller, PullerSettings
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import Action, BusError
from schemas.ids import CaptureId, TableId, Ts, UpstreamId
from schemas.rawlog.ddl_record import DdlRecord
from schemas.rawlog.frontier import FrontierRecord
from schemas.tidb.spans import TableSpan

log = logging.getLogger(__name__)

POLL_S: Final = 0.05
SAY_S: Final = 30.0
"""Between two lines in the log of what holds it back."""
MATCHER_BYTES_MAX: Final = 32 << 20
"""Open transactions in memory, beside those of the capture's own puller; what is more goes to disk."""


class PrologueStoppedError(BusError):
    """The attempt was cut off: its changefeed is gone, or this capture is the owner no more."""

    code, action = "producer.prologue_stopped", Action.RETRY


@dataclass(frozen=True, slots=True, kw_only=True)
class PrologueSource:
    """From where to where, and by what."""

    log: UpstreamId
    """Names the topics, which nobody else lands in."""
    schema_topic: str
    """Region-events of the upstream: the registry has the schema of its records already."""
    start_ts: Ts
    end_ts: Ts
    pd_address: str
    kafka: KafkaAccess
    schema_registry: RegistryAccess
    settings: PullerSettings


def land_prologue(
    source: PrologueSource,
    tables_of: Callable[[Sequence[DdlRecord]], Collection[TableId]],
    *,
    may_land: Callable[[], bool],
    is_stopped: Callable[[], bool],
) -> tuple[FrontierRecord, FrontierRecord]:
    """Land all of it, and return the two records to publish; blocks until then.

    Args:
        source: see there.
        tables_of: returns the physical tables to pull, by the schemas at ``start_ts`` and the jobs up to ``end_ts``
            and perhaps some beyond; what it raises ends the attempt.
        may_land: asked before each record is sent, by any thread.
        is_stopped: asked some times a second.

    Raises:
        PrologueStoppedError: ``is_stopped`` said so.
        HistoryGoneError: TiKV holds ``start_ts`` no more.
        BusError: whatever ends a puller or a DDL feed.
    """
    settings = _settings_beside(source.settings)
    wait = _Waiting(is_stopped)
    ddl = DdlFeed(
        upstream=source.log,
        pd_address=source.pd_address,
        kafka=source.kafka,
        start_ts=source.start_ts,
        settings=settings,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(ddl.stop)
        ddl.start()
        wait.until(lambda: ddl.report().landed_ts >= source.end_ts, lambda: ddl.status().reason, ddl.failure)
        tables = tables_of(ddl.take())
        log.info("prologue is landed", extra={"log": source.log, "tables": len(tables)})
        puller = Puller(
            capture=CaptureId(source.log),
            upstream=source.log,
            pd_address=source.pd_address,
            kafka=source.kafka,
            schema_registry=source.schema_registry,
            settings=settings,
            may_land=may_land,
            schema_topic=source.schema_topic,
        )
        stack.callback(puller.stop)
        puller.start()
        puller.assign({TableSpan.of_table(table): source.start_ts for table in tables})
        records: list[tuple[FrontierRecord, FrontierRecord]] = []

        def is_whole() -> bool:
            frontier = prologue_frontier(source.start_ts, source.end_ts, puller.report(), ddl.report())
            records.extend([frontier] if frontier is not None else [])
            return frontier is not None

        wait.until(
            is_whole,
            lambda: "; ".join(stall.reason for stall in puller.stats().stalls[:3]),
            puller.failure,
            ddl.failure,
        )
    return records[0]


def _settings_beside(settings: PullerSettings) -> PullerSettings:
    """Return the settings of a puller beside the capture's own, which has the spill folder for itself."""
    folder = settings.spill.folder
    spill = replace(settings.spill, folder=None if folder is None else folder.with_name(f"{folder.name}-prologue"))
    return replace(settings, keep_safe_point=False, matcher_memory_bytes_max=MATCHER_BYTES_MAX, spill=spill)


class _Waiting:
    """Waits for steps, and says now and then what holds one back."""

    def __init__(self, is_stopped: Callable[[], bool]) -> None:
        self._is_stopped = is_stopped

    def until(self, is_done: Callable[[], bool], reason: Callable[[], str], *failures: "Future[BusError]") -> None:
        """Wait.

        Raises:
            PrologueStoppedError: it is not wanted any more.
            BusError: what a part has ended with.
        """
        say_at = time.monotonic() + SAY_S
        while True:
            for failure in failures:
                if failure.done():
                    raise failure.result()
            if self._is_stopped():
                raise PrologueStoppedError("a prologue is cut off; another attempt begins it anew")
            if is_done():
                return
            if time.monotonic() > say_at:
                say_at = time.monotonic() + SAY_S
                log.info("prologue has not landed yet", extra={"reason": reason()})
            time.sleep(POLL_S)


def schemas_in_tikv(pd: PdClient, ts: Ts) -> SchemaStore | None:
    """Return the schemas as TiKV has them at ``ts``, which must be held; None: there was no TiDB yet.

    Raises:
        SnapshotFailedError, PdUnreachableError: they cannot be read.
        CorruptDataError: they do not decode.
    """
    with _reading(RegionCache(pd), ts) as reader:
        records = list(snapshot_records(reader.scan, ts))
    if job_table_info(records) is None:
        return None
    store = SchemaStore.empty()
    for record in records:
        store.apply(record)
    return store


@contextlib.contextmanager
def _reading(cache: RegionCache, ts: Ts) -> Iterator[SnapshotReader]:
    resolver = LockResolver(KvClient(cache))
    reader = SnapshotReader(cache, ts, resolver)
    try:
        yield reader
    finally:
        reader.close()
        resolver.close()
