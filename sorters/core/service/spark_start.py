"""When a service that keeps Spark warm starts it: pure."""

from typing import Final

FIRST_ROWS_S: Final = 3.0
"""After the first changefeed has come: a JVM's start takes all cores of a small machine, and first rows come first."""
BEHIND_S: Final = 10.0
"""A changefeed whose checkpoint is further back than this has a backlog, and nothing to lose: Spark is to run it."""


def is_spark_due(busy_s: float, lag_s: float) -> bool:
    """Tell whether Spark is to be there.

    Args:
        busy_s: for how long the service has had changefeeds; 0: it has none.
        lag_s: how far the checkpoint that is furthest behind is behind the machine's clock.
    """
    return busy_s > 0 and (busy_s > FIRST_ROWS_S or lag_s > BEHIND_S)
