"""Reads the TableInfos of jobs that take effect before they are done, each in a thread of its own.

What comes above such a job waits for it, but nothing else does, nor the end of the process: TiKV may take long to
answer.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Final

from producers.pull.core.ddl.meta_snapshot import KeyValue, table_info_at
from schemas.errors import CorruptDataError
from schemas.ids import Ts
from schemas.rawlog.ddl_record import DdlRecord
from schemas.tidb.info_json import JsonObject

log = logging.getLogger(__name__)

RETRY_S: Final = 1.0

ScanAt = Callable[[Ts, bytes, bytes], Iterable[KeyValue]]
"""Keys and values in ``[start, end)`` as they stood at a ts; raises where it can be tried again."""


class EarlyTables:
    """Each record is read once at a time. Stop it when done."""

    def __init__(self, scan: ScanAt, tell: Callable[[DdlRecord, JsonObject | None], None]) -> None:
        """``tell`` takes a record and its table's TableInfo, None where there is none, in a thread of ours."""
        self._scan, self._tell = scan, tell
        self._asked = set[tuple[int, Ts]]()
        self._stopping = threading.Event()
        self.trouble = ""
        """Why the table that is being read cannot be read now, for people."""

    def ask(self, records: Iterable[DdlRecord]) -> None:
        """Have these read, but for those that are being read; called from one thread."""
        for record in records:
            row_id = int(record.payload["id"]), record.ts
            if row_id not in self._asked:
                self._asked.add(row_id)
                threading.Thread(target=self._read, args=(record,), name="early-table", daemon=True).start()

    def stop(self) -> None:
        """Stop; a read that is under way ends at its next call. Idempotent."""
        self._stopping.set()

    def _read(self, record: DdlRecord) -> None:
        extra = {"job_id": record.payload["id"], "ts": record.ts}
        while not self._stopping.is_set():
            try:
                info = table_info_at(
                    lambda start, end: self._scan(record.ts, start, end),
                    record.payload.get("schema_id"),
                    record.payload.get("table_id"),
                )
            except CorruptDataError as error:
                log.error("the table of a job does not decode", extra={**extra, "error": str(error)})
                info = None
            except Exception as error:  # whatever it is, nothing above the job goes out before it is known
                self.trouble = f"the table of DDL job {record.payload['id']} cannot be read yet: {error}"
                if not self._stopping.is_set():
                    log.warning("the table of a job cannot be read yet", extra={**extra, "error": repr(error)})
                self._stopping.wait(RETRY_S)
                continue
            self.trouble = ""
            self._asked.discard((int(record.payload["id"]), record.ts))
            if not self._stopping.is_set():
                self._tell(record, info)
            return
