"""When the schemas of tables are told again (simple's BOOTSTRAP), for consumers that begin in the middle of a topic.

TiCDC counts by its clock from a table's last bootstrap. A cut that is repeated must hold the same records, so here
each table has ticks on the scale of commit ts, and those of different tables are spread over the interval.
"""

import numpy as np
import numpy.typing as npt

from schemas.ids import TableId, Ts, compose_ts, physical_ms

_SPREAD = 2_654_435_761
"""Knuth's multiplier (2**32 over the golden ratio): ids that follow one another fall far apart."""

_NARROW_MS = 1 << 31


def last_tick(table_id: TableId, after_ts: Ts, upto_ts: Ts, interval_ms: int) -> Ts | None:
    """Return a table's last tick within ``(after_ts, upto_ts]``; None: there is none.

    A catch-up passes days in minutes, so a cut tells a schema once, however many ticks it spans.
    """
    phase = table_id * _SPREAD % interval_ms
    tick = compose_ts((physical_ms(upto_ts) - phase) // interval_ms * interval_ms + phase)
    return tick if tick > after_ts else None


def due_tables(table_ids: npt.NDArray[np.int64], after_ts: Ts, upto_ts: Ts, interval_ms: int) -> npt.NDArray[np.int64]:
    """Return those of many tables that have a tick within ``(after_ts, upto_ts]``, in their order."""
    if interval_ms < _NARROW_MS:  # as in last_tick; the product is within 64 bits
        phase = table_ids % interval_ms * (_SPREAD % interval_ms) % interval_ms
    else:
        phase = np.array([table_id * _SPREAD % interval_ms for table_id in table_ids.tolist()], np.int64)
    tick_ms = (physical_ms(upto_ts) - phase) // interval_ms * interval_ms + phase
    due: npt.NDArray[np.int64] = table_ids[tick_ms > physical_ms(after_ts)]  # a tick has no logical part
    return due
