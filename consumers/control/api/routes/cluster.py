"""Captures, owner, PD's clock, repairs, logs: the rest of ``/api/v2``, and what TiCDC serves beside it."""

import logging
import os
from http import HTTPStatus
from typing import Final

from fastapi import APIRouter, Request, Response

from consumers.control.api.access.errors import ApiError
from consumers.control.api.access.open_answers import LongResponse
from consumers.control.api.backend import Backend
from consumers.control.api.bodies import capture_body, list_body
from consumers.control.api.context import OWNER_WAIT_S, Bus, Owner, User, ask_owner, context_of
from consumers.control.api.errors import NoSuchCaptureError, SchedulerRefusedError
from consumers.control.api.metrics import OPENMETRICS, metrics_text
from consumers.control.api.overview import overview_body
from consumers.control.api.requests import LogBody, RedactBody, ResolveLockBody, SafePointBody, TsoBody, ts_given
from schemas.config.parse.origin import NotSupportedYetError
from schemas.errors import BusError
from schemas.ids import CaptureId, physical_ms
from schemas.redaction import parse_redaction, redaction

log = logging.getLogger(__name__)

open_router = APIRouter()
"""For probes and Prometheus, which have no user."""
router = APIRouter(dependencies=[User])

TICDC_VERSION: Final = "v8.5.4"
"""Whose API and files this is; `cdc cli` talks to no server below v6.2.0, and to none without a version of TiCDC's."""
_LOGICAL_MASK: Final = (1 << 18) - 1
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "fatal": logging.CRITICAL,
}


@open_router.get("/api/v2/status", tags=["server"], summary="Who this capture is")
@open_router.get("/api/v1/status", include_in_schema=False)
@open_router.get("/status", include_in_schema=False)
async def status(request: Request, bus: Bus) -> dict[str, object]:
    """Return id, version, process and whether it is the owner."""
    return await context_of(request).status.of(lambda: _status(bus))


def _status(bus: Backend) -> dict[str, object]:
    return {
        "version": TICDC_VERSION,
        "tidebus_version": bus.capture.version,
        "git_hash": "",
        "id": bus.capture.capture_id,
        "cluster_id": bus.cluster,
        "pid": os.getpid(),
        "is_owner": bus.owner() == bus.capture.capture_id,
        "liveness": int(bus.is_stopping()),
    }


@open_router.get("/api/v2/health", tags=["server"], summary="Whether it can work")
@open_router.get("/api/v1/health", include_in_schema=False)
async def health(request: Request, bus: Bus) -> dict[str, object]:
    """Answer 200 if this capture has its session and there is an owner; the owner also once it schedules."""
    await context_of(request).health.of(lambda: _check_health(bus))
    return {}


def _check_health(bus: Backend) -> None:
    bus.check_health()
    scheduling = bus.scheduling()
    if scheduling is not None:
        scheduling.check_ready()


@open_router.get("/metrics", tags=["server"], summary="Metrics for Prometheus", response_class=Response)
async def metrics(request: Request, bus: Bus) -> Response:
    """Return Prometheus' text format, or OpenMetrics where that is asked for."""
    accept = OPENMETRICS if OPENMETRICS in request.headers.get("Accept", "") else ""
    scrape = context_of(request).scrapes[accept]
    text, kind = await scrape.of(lambda: metrics_text(bus.metrics(), accept))
    return LongResponse(text, media_type=kind)


@router.post("/api/v2/log", tags=["server"], summary="Change the log level")
@router.post("/api/v1/log", include_in_schema=False)
def log_level(body: LogBody) -> dict[str, object]:
    """Change what this capture logs, until its end."""
    set_log_level(body.log_level)
    return {}


@router.post("/api/v2/log/redact", tags=["server"], summary="Redact logs: refused but for the mode that there is")
def redact(body: RedactBody) -> dict[str, object]:
    """Say how logs are redacted. A capture's sorters and processors are processes of their own, so that is settled when
    they start, by ``--redact-info-log``.

    Raises:
        NotSupportedYetError: another mode is asked for.
        ApiError: no such mode.
    """
    wanted, now = parse_redaction(body.redact_info_log), redaction()
    if wanted is None or not body.redact_info_log.strip():
        got = body.redact_info_log[:50]
        raise ApiError("no such mode; known are off, on, marker", key="redact_info_log", got=got)
    if wanted is not now:
        reason = "log redaction is not supported to change while a capture runs; start it with --redact-info-log"
        raise NotSupportedYetError(reason, key="redact_info_log", got=wanted.value, is_now=now.value)
    return {"previous_mode": now.value.upper(), "current_mode": now.value.upper()}


@router.post("/admin/log", include_in_schema=False)
def admin_log(level: str | LogBody) -> dict[str, object]:
    """Change the log level by a JSON text, as TiCDC's old route takes it."""
    set_log_level(level if isinstance(level, str) else level.log_level)
    return {}


@router.get("/config", tags=["server"], summary="What this capture was started with")
def config(bus: Bus) -> dict[str, object]:
    """Return its settings, without secrets."""
    return dict(bus.settings())


@router.get("/api/v2/captures", tags=["captures"], summary="List captures")
def captures(bus: Bus) -> dict[str, object]:
    """Return the captures that live and which of them is the owner."""
    owner = bus.owner()
    return list_body([capture_body(capture, owner, bus.cluster) for capture in bus.captures()])


@router.post(
    "/api/v2/captures/{capture_id}/drain", tags=["captures"], summary="Drain a capture", status_code=HTTPStatus.ACCEPTED
)
def drain(bus: Bus, owner: Owner, capture_id: str) -> dict[str, object]:
    """Move all tables of a capture away; ask again until it has none."""
    check_capture(bus, capture_id)
    if len(bus.captures()) < 2:
        raise SchedulerRefusedError("there is only one capture; start another one first", capture=capture_id)
    if capture_id == bus.owner():
        raise SchedulerRefusedError("the owner cannot be drained; let it resign first", capture=capture_id)
    return {"current_table_count": owner.drain(CaptureId(capture_id))}


@router.post("/api/v2/owner/resign", tags=["captures"], summary="Let the owner resign")
@router.post("/api/v1/owner/resign", include_in_schema=False)
def resign(owner: Owner) -> dict[str, object]:
    """End the owner's reign; the next capture in line becomes the owner."""
    owner.resign()
    return {}


@router.post("/api/v2/tso", tags=["upstream"], summary="A new TSO of PD")
def tso(bus: Bus, body: TsoBody | None = None) -> dict[str, object]:
    """Return PD's time and the counter within it."""
    bus.check_upstream((body.pd_addrs if body else None) or ())
    ts = bus.now_ts()
    return {"timestamp": physical_ms(ts), "logic_time": ts & _LOGICAL_MASK}


@router.get("/api/v2/unsafe/metadata", tags=["unsafe"], summary="All nodes in ZooKeeper")
def metadata(bus: Bus) -> list[dict[str, str]]:
    """Return paths and values, without secrets."""
    return [{"key": key, "value": value} for key, value in bus.metadata()]


@router.post("/api/v2/unsafe/resolve_lock", tags=["unsafe"], summary="Resolve a region's locks")
def resolve_lock(bus: Bus, body: ResolveLockBody) -> dict[str, object]:
    """Commit or roll back what crashed transactions have left, as their primaries say; tell what was done."""
    bus.check_upstream(body.pd_addrs or ())
    return dict(bus.resolve_lock(body.region, ts_given(body.ts)))


@router.delete("/api/v2/unsafe/service_gc_safepoint", tags=["unsafe"], summary="Give up TiKV's history")
def delete_service_gc_safepoint(bus: Bus, body: SafePointBody | None = None) -> dict[str, object]:
    """Let TiKV collect what this bus has still to pull; a running owner sets it anew."""
    bus.check_upstream((body.pd_addrs if body else None) or ())
    return {"service_id": bus.delete_service_gc_safepoint()}


@router.get("/api/tidebus/overview", tags=["tidebus"], summary="All of it, for a live picture")
def overview(request: Request, bus: Bus) -> object:
    """Return upstreams, captures with the number of their tables, and changefeeds; what `tidebus top` shows.

    Without an owner to ask nobody knows the tables, and they are null.
    """
    scheduling = bus.scheduling()
    try:
        if scheduling is None:
            return ask_owner(request, bus, OWNER_WAIT_S)
        return overview_body(bus, scheduling.tables())
    except BusError as error:
        log.info("owner is not asked for the overview", extra={"error": str(error)})
        return overview_body(bus, None)


def set_log_level(wanted: str) -> None:
    """Change this process's log level.

    Raises:
        ApiError: no such level.
    """
    level = _LEVELS.get(wanted.lower())
    if level is None:
        raise ApiError("no such log level; known are debug, info, warn, error", key="log_level", got=wanted[:50])
    logging.getLogger().setLevel(level)
    log.info("log level changed", extra={"level": wanted.lower()})


def check_capture(bus: Backend, capture_id: str) -> None:
    """Check that a capture lives.

    Raises:
        NoSuchCaptureError: it does not.
    """
    if capture_id not in {capture.capture_id for capture in bus.captures()}:
        raise NoSuchCaptureError("there is no such capture", capture=capture_id[:50])
