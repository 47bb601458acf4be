"""A bus held in memory, for tests of the API before it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from consumers.control.api.access.errors import ApiError
from consumers.control.api.backend import Scheduling, UpstreamView
from consumers.control.api.bodies import FeedRequest, StoredFeed
from consumers.control.api.metrics import MetricsSnapshot
from consumers.control.changefeeds.asked_images import AskedImages
from consumers.control.changefeeds.processor_nodes import Share
from consumers.control.changefeeds.service_nodes import StoredServices
from consumers.control.changefeeds.store import ChangefeedExistsError, ChangefeedNotFoundError, StartTsError
from consumers.control.changefeeds.verbs import ConfigChange, configured, feed_of
from consumers.control.cluster.capture_registry import CaptureInfo
from consumers.control.core.changefeeds.state import Pause, Resume, step
from schemas.config.changefeed import load_changefeed
from schemas.ids import CaptureId, RegionId, TableId, Ts, UpstreamId, compose_ts
from schemas.nodes.changefeed import ChangefeedInfo, ChangefeedStatus
from schemas.rawlog.images import ImageMode

CHECKPOINT = compose_ts(1_700_000_000_123, 5)
URI = "kafka://127.0.0.1:9092/t?protocol=canal-json&sasl-mechanism=plain&sasl-user=u&sasl-password=hidden"
ME, OTHER = (
    CaptureInfo(capture_id=CaptureId(name), address=f"127.0.0.1:{port}", version="1.2.3", started_at_s=1)
    for name, port in (("me", 1), ("other", 2))
)


PD = "pd.example:2379"


@dataclass
class Shares:
    """An owner's schedulers: what they are asked is noted."""

    shares: dict[CaptureId, list[TableId]] = field(default_factory=dict)
    asked: list[tuple[Any, ...]] = field(default_factory=list)
    refusal: Exception | None = None

    def check_ready(self) -> None:
        if self.refusal:
            raise self.refusal

    def tables(self) -> Mapping[CaptureId, Collection[TableId]]:
        return self.shares

    def drain(self, capture: CaptureId) -> int:
        self.check_ready()
        self.asked.append(("drain", capture))
        return len(self.shares.get(capture, ()))

    def move_table(self, table: TableId, capture: CaptureId) -> None:
        self.asked.append(("move", table, capture))

    def rebalance(self) -> None:
        self.asked.append(("rebalance",))

    def resign(self) -> None:
        self.asked.append(("resign",))


class Memory:
    """A bus of changefeeds in a dict."""

    def __init__(self) -> None:
        self.capture, self.cluster = ME, "default"
        self.live: list[CaptureInfo] = [ME, OTHER]
        self.shares: Scheduling | None = None
        self.table_ids: list[TableId] = []
        self.named: list[dict[str, Any]] = [{"id": 1, "name": "a.b", "partition": ""}]
        self.applying: list[Share] = []
        self.now = self.pulled_ts = CHECKPOINT
        self.ineligible: list[dict[str, Any]] = []
        self.asked_tables: FeedRequest | None = None
        self.kept: dict[tuple[str, str], StoredFeed] = {}
        self.leader: CaptureId | None = OTHER.capture_id
        self.stored = StoredServices()
        self.pinned: dict[tuple[str, str], str] = {}
        self.images: list[dict[str, Any]] = []
        self.logged: list[dict[str, Any]] = []
        self.refused: list[dict[str, str]] | None = []
        """None: the raw log does not answer."""
        self.proved: list[dict[str, Any]] = []
        """None: one that names itself alone."""
        self.imaged: list[tuple[str, str, ImageMode, list[str]]] = []
        self.key_ranges: list[str | None] = []
        self.broken: Exception | None = None
        self.snapshot = MetricsSnapshot(at_s=0.0, pull=None, feeds=None)

    def is_stopping(self) -> bool:
        return False

    def owner(self) -> CaptureId | None:
        return self.leader

    def captures(self) -> list[CaptureInfo]:
        return self.live

    def scheduling(self) -> Scheduling | None:
        return self.shares

    def settings(self) -> Mapping[str, Any]:
        return {"addr": ME.address, "tz": "UTC"}

    def upstreams(self) -> Sequence[UpstreamView]:
        return [UpstreamView(upstream=UpstreamId("u"), status=self.status())]

    def status(self) -> dict[str, Any]:
        """Return what the owner has said of the upstream; without images it is one of a former version."""
        return {"resolved_ts": self.pulled_ts, "rows_in": 7, **({"images": self.images} if self.images else {})}

    def all_feeds(self) -> list[StoredFeed]:
        return [feed for _, feed in sorted(self.kept.items())]

    def feed_tables(self, feed: StoredFeed) -> Collection[TableId]:
        return self.table_ids

    def refused_tables(self, feed: StoredFeed) -> Sequence[Mapping[str, str]]:
        if self.refused is None:
            raise ApiError("no frontier of this upstream has been published yet")
        return self.refused

    def processor_shares(self, feed: StoredFeed) -> list[Share]:
        return self.applying

    def sorter(self, changefeed_id: str, namespace: str) -> Mapping[str, Any] | None:
        return {"host": "h", "pid": 11}

    def services(self) -> StoredServices:
        return self.stored

    def pin(self, changefeed_id: str, namespace: str, service: str) -> None:
        self.feed(changefeed_id, namespace)
        self.pinned[namespace, changefeed_id] = service

    def request_images(
        self,
        changefeed_id: str,
        namespace: str,
        mode: ImageMode,
        tables: Sequence[str],
        key_range: str | None = None,
    ) -> Sequence[TableId]:
        self.feed(changefeed_id, namespace)
        self.imaged.append((namespace, changefeed_id, mode, list(tables)))
        self.key_ranges.append(key_range)
        return self.table_ids

    def pause_images(self, changefeed_id: str, namespace: str, tables: Sequence[str]) -> AskedImages:
        self.feed(changefeed_id, namespace)
        return AskedImages(paused=frozenset(self.table_ids)) if tables else AskedImages(is_paused=True)

    def resume_images(self, changefeed_id: str, namespace: str, tables: Sequence[str]) -> AskedImages:
        self.feed(changefeed_id, namespace)
        return AskedImages(paused=frozenset({TableId(len(tables) + 70)}))

    def proofs(self, feed: StoredFeed, records_max: int) -> Sequence[Mapping[str, Any]]:
        return self.proved or [{"changefeed": feed.info.changefeed_id, "of": records_max}]

    def check_upstream(self, pd_addresses: Sequence[str]) -> None:
        if pd_addresses and PD not in pd_addresses:
            raise ApiError("this bus pulls another upstream", key="pd_addrs")

    def metadata(self) -> Sequence[tuple[str, str]]:
        return [("/tidebus/default/owner-rev", "3")]

    def resolve_lock(self, region: RegionId, ts: Ts | None) -> Mapping[str, Any]:
        return {"region": region, "ts": ts}

    def delete_service_gc_safepoint(self) -> str:
        return "tidebus-default-u"

    def upstream_id(self, upstream: UpstreamId) -> int:
        return (1 << 63) + 1

    def now_ts(self) -> Ts:
        return self.now

    def feeds(self, namespace: str) -> list[StoredFeed]:
        return [feed for (space, _), feed in sorted(self.kept.items()) if space == namespace]

    def feed(self, changefeed_id: str, namespace: str) -> StoredFeed:
        if self.broken:
            raise self.broken
        try:
            return self.kept[namespace, changefeed_id]
        except KeyError:
            raise ChangefeedNotFoundError("there is no such changefeed", changefeed=changefeed_id) from None

    def create(self, request: FeedRequest, namespace: str) -> ChangefeedInfo:
        changefeed_id = request.changefeed_id or "made-up"
        if (namespace, changefeed_id) in self.kept:
            raise ChangefeedExistsError("changefeed exists", changefeed=changefeed_id)
        if request.start_ts is not None and request.start_ts < 10:
            raise StartTsError("start-ts is older than the raw log", oldest_ts=10)
        assert request.sink_uri is not None
        load_changefeed(request.sink_uri, request.config)
        info = ChangefeedInfo(
            changefeed_id=changefeed_id,
            namespace=namespace,
            upstream=UpstreamId("u"),
            sink_uri=request.sink_uri,
            config=request.config or {},
            start_ts=request.start_ts or CHECKPOINT,
            target_ts=request.target_ts,
            create_time="2026-01-01T00:00:00.000+00:00",
            creator_version="1.2.3",
        )
        self.kept[namespace, changefeed_id] = StoredFeed(info, None)
        return info

    def configure(self, changefeed_id: str, namespace: str, change: ConfigChange) -> ChangefeedInfo:
        feed = self.feed(changefeed_id, namespace)
        info = configured(feed.info, feed.state, change)
        self.kept[namespace, changefeed_id] = StoredFeed(info, feed.status)
        return info

    def pause(self, changefeed_id: str, namespace: str) -> None:
        self.desire(changefeed_id, namespace, Pause())

    def resume(self, changefeed_id: str, namespace: str, overwrite_checkpoint_ts: Ts | None) -> None:
        self.desire(changefeed_id, namespace, Resume(overwrite_checkpoint_ts))

    def desire(self, changefeed_id: str, namespace: str, message: Pause | Resume) -> None:
        feed = self.feed(changefeed_id, namespace)
        known = step(feed_of(feed.info, feed.status), message)
        info = replace(feed.info, desired_state="stopped" if known.state == "stopped" else "normal")
        status = ChangefeedStatus(state=known.state, checkpoint_ts=known.checkpoint_ts, resolved_ts=known.resolved_ts)
        self.kept[namespace, changefeed_id] = StoredFeed(replace(info, start_ts=known.start_ts), status)

    def remove(self, changefeed_id: str, namespace: str) -> None:
        self.feed(changefeed_id, namespace)
        del self.kept[namespace, changefeed_id]

    def tables(self, request: FeedRequest) -> dict[str, Any]:
        self.asked_tables = request
        eligible = [{"database_name": "a", "table_name": "b", "table_id": 1, "is_partition": False}]
        return {
            "ineligible_tables": self.ineligible,
            "eligible_tables": eligible,
            "all_tables": [*self.ineligible, *eligible],
        }

    def table_names(self, names_max: int) -> dict[str, Any]:
        return {"total": len(self.named), "items": self.named[:names_max]}

    def explain(self, request: FeedRequest) -> dict[str, Any]:
        return {"tables": [{"table": "a.b", "topic": "t"}]}

    def first_messages(self, request: FeedRequest) -> dict[str, Any]:
        message = {
            "topic": "t",
            "partition": 0,
            "table": "a.b",
            "op": "insert",
            "commit_ts": request.start_ts or 2**60 + 1,
        }
        value = {"text": "{}", "bytes": 2}
        return {"messages": [{**message, "key": None, "value": value}], "refused": [], "rows": 1, "records": 1}

    def log_lines(self) -> Sequence[Mapping[str, Any]]:
        return self.logged

    def checks(self) -> Sequence[Mapping[str, Any]]:
        return [{"name": "pd", "ok": False, "needed": True, "said": "PD does not answer"}]

    def metrics(self) -> MetricsSnapshot:
        return self.snapshot

    def check_health(self) -> None:
        if self.broken:
            raise self.broken
