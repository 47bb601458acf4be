"""What clients send, by TiCDC's names: pydantic models, strict as Go's JSON is, and stricter about unknown fields."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from consumers.control.api.bodies import TS_MAX, FeedRequest
from consumers.control.api.replica_config import from_api
from schemas.ids import CaptureId, RegionId, TableId, Ts

Tso = Annotated[int, Field(ge=0, le=TS_MAX, description="a TSO; 0: not given")]
TableNumber = Annotated[int, Field(ge=1, le=(1 << 63) - 1)]


class Body(BaseModel):
    """A JSON object: unknown fields and values of another type are refused; null is as good as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class UpstreamBody(Body):
    """TiCDC's PDConfig. A bus pulls one upstream, with the files that its captures were started with."""

    pd_addrs: list[str] | None = Field(default=None, description="must name our own upstream's PD, if anything")
    ca_path: str | None = None
    cert_path: str | None = None
    key_path: str | None = None
    cert_allowed_cn: list[str] | None = None


class TsoBody(UpstreamBody):
    """POST /tso: TiCDC's UpstreamConfig."""

    id: int | None = Field(default=None, ge=0, le=TS_MAX, description="of the upstream: PD's cluster id; not looked at")


class VerifyTableBody(UpstreamBody):
    """POST /verify_table."""

    replica_config: dict[str, object] | None = None
    start_ts: Tso | None = None
    sink_uri: str | None = None


class FeedBody(VerifyTableBody):
    """TiCDC's ChangefeedConfig: what a changefeed is created from, or the parts of it that an update replaces."""

    namespace: str | None = None
    keyspace: str | None = Field(default=None, description="TiCDC's newer word for the namespace")
    changefeed_id: str | None = None
    target_ts: Tso | None = None


class ResumeBody(UpstreamBody):
    """POST /changefeeds/{id}/resume."""

    overwrite_checkpoint_ts: Tso | None = None


class ResolveLockBody(UpstreamBody):
    """POST /unsafe/resolve_lock."""

    region_id: int = Field(ge=1, le=TS_MAX)
    ts: Tso | None = Field(default=None, description="transactions up to here; 0: now")

    @property
    def region(self) -> RegionId:
        """The region whose locks are looked at."""
        return RegionId(self.region_id)


class SafePointBody(TsoBody):
    """DELETE /unsafe/service_gc_safepoint."""


class LogBody(Body):
    """POST /log."""

    log_level: str = Field(description="debug, info, warn, error")


class RedactBody(Body):
    """POST /log/redact."""

    redact_info_log: str = Field(description="off, on or marker")


class DrainBody(Body):
    """PUT /api/v1/captures/drain."""

    capture_id: str


class MoveFeedBody(Body):
    """POST /api/tidebus/changefeeds/{id}/move."""

    capture_id: str = Field(description="a capture's id or address, or a sorter service's id; empty: any")


class TablesBody(Body):
    """POST /api/tidebus/changefeeds/{id}/tables/backfill, and resync."""

    tables: list[str] = Field(description="schema.table each", min_length=1, max_length=1000)
    where_key_range: str | None = Field(
        default=None, max_length=100, description="START:END of the one table's integer key, END not included"
    )


class SomeTablesBody(Body):
    """POST /api/tidebus/changefeeds/{id}/tables/pause, and resume."""

    tables: list[str] = Field(default=[], description="schema.table each; none: all of the changefeed", max_length=1000)


class MoveTableBody(Body):
    """POST /api/v1/changefeeds/{id}/tables/move_table."""

    capture_id: str
    table_id: TableNumber

    @property
    def capture(self) -> CaptureId:
        """Where to."""
        return CaptureId(self.capture_id)

    @property
    def table(self) -> TableId:
        """Which table."""
        return TableId(self.table_id)


def feed_request(body: VerifyTableBody) -> FeedRequest:
    """Return a changefeed's settings; zeros and empty texts mean that nothing is given, as in Go."""
    feed = body if isinstance(body, FeedBody) else FeedBody()
    return FeedRequest(
        namespace=feed.namespace or feed.keyspace or None,
        changefeed_id=feed.changefeed_id or None,
        start_ts=ts_given(body.start_ts),
        target_ts=ts_given(feed.target_ts),
        sink_uri=body.sink_uri or None,
        config=None if body.replica_config is None else from_api(body.replica_config),
        pd_addresses=tuple(body.pd_addrs or ()),
    )


def ts_given(ts: int | None) -> Ts | None:
    """Return a TSO, None where it is absent or 0."""
    return Ts(ts) if ts else None
