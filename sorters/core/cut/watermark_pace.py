"""How often watermarks are sent: with every cut, or where that would be thousands of messages each, once a second.

A watermark goes to every partition of every topic of the changefeed. TiCDC's owner sends one a second (tiflow
``cdc/owner/ddl_sink.go``, a ticker without a setting) and one after every DDL. Cuts end several times a second, so
a changefeed over thousands of tables, each in topics of its own, would write mostly watermarks.

A cut that is repeated must hold the same records, so nothing here looks at a clock or at what was sent before: a cut
is due by its own two ts.
"""

from schemas.ids import Ts, physical_ms
from sorters.core.cut.cut import Cut

EVERY_CUT_MAX = 300
"""Watermarks of one cut up to which each cut has them: at four cuts a second 1,200 small messages a second."""
INTERVAL_MS = 1_000
"""TiCDC's. A consumer that waits for watermarks sees a row at most so much later."""


def watermark_is_due(cut: Cut, messages: int, *, is_needed: bool, target_ts: Ts | None = None) -> bool:
    """Tell whether a cut ends with watermarks.

    Args:
        messages: how many they would be: the partitions of all topics.
        is_needed: the cut holds DDL events, which consumers run when the watermark has come, or a table's image becomes
            whole with it, which the watermark alone says.
        target_ts: where the changefeed ends; what is written up to there must be closed.
    """
    if messages <= EVERY_CUT_MAX or is_needed or cut.upto_ts == target_ts:
        return True
    # Ticks of the ts, not of a cut's length: cuts that end elsewhere after a restart meet the same ticks.
    return physical_ms(cut.upto_ts) // INTERVAL_MS > physical_ms(cut.after_ts) // INTERVAL_MS
