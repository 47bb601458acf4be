"""A changefeed that is created with a start ts below the raw log: what TiKV still has is held from then on."""

import contextlib
import secrets
from collections.abc import Iterator
from typing import Final

from consumers.control.changefeeds.service_nodes import StoredServices
from consumers.control.changefeeds.store import StartTsError
from consumers.control.log.raw_log import RetainedFrontier
from producers.errors import HistoryGoneError
from producers.pull.pd.client import PdClient
from producers.pull.pd.safe_point import keep_safe_point, release_safe_point
from producers.pull.prologue.scan import schemas_in_tikv
from producers.pull.puller import PullerSettings
from schemas.config.settings import ChangefeedConfig
from schemas.ddl.schema_store import SchemaStore
from schemas.errors import BusError, ConfigError
from schemas.ids import Ts
from schemas.nodes.prologue import Prologue

HELD_S: Final = 3600
"""TiCDC's TTL for a changefeed in creation; the owner takes over within seconds."""


class OldHistory:
    """TiKV's history from one ts on, for a changefeed that begins there."""

    def __init__(self, prologue: Prologue, schemas: SchemaStore) -> None:
        """``schemas`` are those at the start ts."""
        self.prologue, self.schemas = prologue, schemas
        self.is_kept = False

    def keep(self) -> None:
        """Let it be held on: the changefeed is there, and the owner holds it."""
        self.is_kept = True


@contextlib.contextmanager
def held_history(pd: PdClient, cluster: str, start_ts: Ts, window: RetainedFrontier) -> Iterator[OldHistory]:
    """Hold TiKV's history above ``start_ts`` for a prologue up to the newest frontier record; let go of it at the end,
    unless it is to be kept.

    Raises:
        StartTsError: TiKV does not have it any more, or had nothing yet.
        SnapshotFailedError: the schemas at that ts cannot be read.
        BusError: PD does not answer.
    """
    prologue = Prologue(life=f"{cluster}.{secrets.token_hex(8)}", start_ts=start_ts, end_ts=window.newest_ts)
    service_id = PullerSettings(cluster=cluster).gc_service_id(prologue.holder)
    history: OldHistory | None = None
    try:
        keep_safe_point(pd, service_id, start_ts, HELD_S)
        schemas = schemas_in_tikv(pd, start_ts)
        if schemas is None:
            raise StartTsError("there was no TiDB at this start-ts yet", start_ts=start_ts, oldest_ts=window.oldest_ts)
        history = OldHistory(prologue, schemas)
        yield history
    except HistoryGoneError as error:
        safe_point = error.fields.get("gc_safe_point")
        raise StartTsError(
            f"start-ts is older than the raw log, which begins at {window.oldest_ts}, and older than what TiKV still "
            f"has, from {safe_point} on",
            start_ts=start_ts,
            gc_safe_point=safe_point,
            oldest_ts=window.oldest_ts,
            newest_ts=window.newest_ts,
        ) from error
    finally:
        if history is None or not history.is_kept:
            with contextlib.suppress(BusError):  # it goes by its TTL; another error says more
                release_safe_point(pd, service_id)


def check_prologue(config: ChangefeedConfig, start_ts: Ts, window: RetainedFrontier, services: StoredServices) -> None:
    """Refuse what cannot begin with a prologue.

    Raises:
        ConfigError: it asks for table images too, which begin later than any prologue ends.
        StartTsError: a sorter service of an older version would not know it.
    """
    if config.wants_initial:
        raise ConfigError(
            'initial = "snapshot" brings the rows from before: leave start-ts away, or take one that the raw log holds',
            key="initial",
            start_ts=start_ts,
            oldest_ts=window.oldest_ts,
        )
    old = [service for service, info in services.services.items() if not info.knows_prologues]
    if old:
        raise StartTsError(
            f"start-ts is older than the raw log; the oldest possible start-ts is {window.oldest_ts}, as long as a "
            "sorter service of an older version is there",
            start_ts=start_ts,
            oldest_ts=window.oldest_ts,
            newest_ts=window.newest_ts,
            services=", ".join(sorted(old)),
        )
