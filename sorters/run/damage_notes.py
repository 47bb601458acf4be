"""Says once in a run which damaged raw records it has passed over: cuts read the same records more than once."""

import logging
from collections.abc import Callable, Iterable

from schemas.ids import TableId
from schemas.rawlog.record_check import NO_TABLE
from sorters.cut.damaged_records import DamagedRecord

log = logging.getLogger(__name__)


class DamageNotes:
    """Of one run of a changefeed."""

    def __init__(self, changefeed: str) -> None:
        self._changefeed = changefeed
        self._noted: set[DamagedRecord] = set()

    def note(self, passed: Iterable[DamagedRecord], name_of: Callable[[TableId], str]) -> int:
        """Say which of them are new, and return how many."""
        fresh = sorted(set(passed) - self._noted, key=lambda each: each.where)
        self._noted.update(fresh)
        for each in fresh:
            extra: dict[str, object] = {"changefeed": self._changefeed}
            extra |= {"partition": each.where[0], "offset": each.where[1]}
            if each.table_id == NO_TABLE:
                log.warning(
                    "raw record that is no capture's, or is damaged beyond telling whose, is skipped by "
                    "filter.skip-damaged-records: unless somebody else has written it, resync the tables",
                    extra=extra,
                )
                continue
            extra |= {"table": name_of(each.table_id), "table_id": each.table_id, "max_commit_ts": each.max_commit_ts}
            if each.is_skipped:
                log.warning(
                    "damaged raw record is skipped by filter.skip-damaged-records: resync its table", extra=extra
                )
            else:
                log.warning("damaged raw record is of a table that is not the changefeed's: passed over", extra=extra)
        return len(fresh)
