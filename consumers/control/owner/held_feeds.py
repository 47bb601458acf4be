"""Which changefeeds wait for their upstream, and why: told in each one's own status, as a warning.

They wait for tables that are held, those that contain them; and all of them where the frontier stands. The owner's
thread notes once a second how it is (:meth:`HeldFeeds.note`), the thread that keeps changefeeds asks for each of them.
Nobody is warned before it has been so for a while: most tables are held for a moment, while they move or a store
restarts.
"""

import datetime
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from consumers.control.core.changefeeds.errors import TABLE_HELD, UPSTREAM_STANDS, FeedError
from schemas.ddl.schema_change import StoredTable
from schemas.ids import CaptureId, TableId, Ts
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.frontier import FrontierRecord, LandingReport
from schemas.tidb.spans import TableSpan

WARN_AFTER_S: Final = 10.0
"""On top of the lag from which on a table is held."""
STANDS_AFTER_S: Final = 30.0
"""Without a step of the frontier: a new owner needs some seconds."""
SAY_AGAIN_S: Final = 10.0
"""Between two texts of one warning: reasons count seconds, and each text is a write to ZooKeeper."""
SHOWN_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class HeldTable:
    """A table, or partition, that is behind the frontier."""

    table_id: TableId
    schema: str
    table: str
    eligible: bool
    ts: Ts
    """Where who contains it stands."""
    why: str

    def __str__(self) -> str:
        """Return it for an operator."""
        return f"{self.schema}.{self.table} (table id {self.table_id}) stands at ts {self.ts}: {self.why}"


def held_tables(
    published: FrontierRecord,
    newest_of: Callable[[TableId], StoredTable | None],
    reports: Mapping[CaptureId, LandingReport],
) -> tuple[HeldTable, ...]:
    """Return what ``published`` holds, with the reasons that the captures have told."""
    if not published.held:
        return ()
    reasons = {
        stall.span.table_id: f"{stall.reason} (capture {who})"
        for who, report in sorted(reports.items())
        if report.figures is not None
        for stall in reversed(report.figures.stalls)
    }
    tables = []
    for group in published.held:
        for table_id in group.tables:
            stored = newest_of(table_id)
            if stored is not None:
                why = reasons.get(table_id) or _whereabouts(table_id, reports)
                tables.append(HeldTable(table_id, stored.schema, stored.table, stored.eligible, group.ts, why))
    return tuple(tables)


def _whereabouts(table_id: TableId, reports: Mapping[CaptureId, LandingReport]) -> str:
    span = TableSpan.of_table(table_id)
    who = sorted(capture for capture, report in reports.items() if span in report.landed_ts)
    return f"it is behind the other tables (capture {', '.join(who)})" if who else "no capture has taken it up yet"


class ReplicatedTables(Protocol):
    """The feed compiler, as far as it is needed here."""

    def __call__(self, info: ChangefeedInfo) -> Callable[[HeldTable], bool]:
        """Return which tables a changefeed contains; none if its settings do not compile, which its sorter says."""


@dataclass(slots=True)
class _Shown:
    of: object
    """What it is about."""
    error: FeedError
    at_s: float


class HeldFeeds:
    """Of one reign. :meth:`note` is for one thread, :meth:`why` for another."""

    def __init__(self, replicated: ReplicatedTables, clock: Callable[[], float] = time.monotonic) -> None:
        self._replicated = replicated
        self._clock = clock
        self._since_s: dict[TableId, float] = {}
        self._held: tuple[HeldTable, ...] = ()
        self._resolved_ts, self._moved_at_s, self._stands = Ts(0), clock(), ""
        self._shown: dict[tuple[str, str], _Shown] = {}
        self._filters: dict[tuple[str, str], tuple[ChangefeedInfo, Callable[[HeldTable], bool]]] = {}

    def note(self, held: Sequence[HeldTable], resolved_ts: Ts, reasons: Sequence[str]) -> None:
        """Take what is held now, where the frontier stands, and what keeps it from getting on, if anything does."""
        now_s = self._clock()
        self._since_s = {table.table_id: self._since_s.get(table.table_id, now_s) for table in held}
        self._held = tuple(table for table in held if now_s - self._since_s[table.table_id] >= WARN_AFTER_S)
        if resolved_ts != self._resolved_ts:
            self._resolved_ts, self._moved_at_s, self._stands = resolved_ts, now_s, ""
        elif now_s - self._moved_at_s >= STANDS_AFTER_S:
            shown = "; ".join(reasons[:SHOWN_MAX]) or "no cause is known"
            self._stands = f"the upstream's frontier stands at ts {resolved_ts}: {shown}"

    def why(self, info: ChangefeedInfo) -> FeedError | None:
        """Return what a changefeed waits for; the same object while it stands. None: for nothing."""
        name, held, stands = (info.namespace, info.changefeed_id), self._held, self._stands
        if stands:
            return self._say(name, UPSTREAM_STANDS, UPSTREAM_STANDS, stands)
        mine = [table for table in held if self._contains(name, info)(table)] if held else []
        if not mine:
            self._shown.pop(name, None)
            return None
        more = f"; and {len(mine) - SHOWN_MAX} more tables" if len(mine) > SHOWN_MAX else ""
        message = "waits for a table of its upstream: " + "; ".join(map(str, mine[:SHOWN_MAX])) + more
        return self._say(name, tuple(table.table_id for table in mine), TABLE_HELD, message)

    def _say(self, name: tuple[str, str], of: object, code: str, message: str) -> FeedError:
        shown, now_s = self._shown.get(name), self._clock()
        if shown is not None and shown.of == of and now_s - shown.at_s < SAY_AGAIN_S:
            return shown.error
        since = shown.error.time if shown is not None and shown.error.code == code else _now()
        error = FeedError(code=code, message=message, time=since)
        self._shown[name] = _Shown(of, error, now_s)
        return error

    def _contains(self, name: tuple[str, str], info: ChangefeedInfo) -> Callable[[HeldTable], bool]:
        known = self._filters.get(name)
        if known is None or known[0] is not info:
            self._filters[name] = known = (info, self._replicated(info))
        return known[1]


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
