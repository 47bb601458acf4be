"""What ``tidebus recover`` may do, and what it says: pure, so that every answer can be shown in a test.

    CHECK --nobody else has it--> SORT --topic holds all up to the target--> APPLY --destination has it--> DONE
      |                            |  ^                                       |  ^
      | captures run it            +--+ trouble that may pass: again          +--+
      v
    REFUSED

There is nothing to keep between two tries: how far the sorter is stands in the changefeed's status, how far the
destination is in the destination. So a recovery that was killed is simply begun again.
"""

from collections.abc import Sequence

from schemas.config.settings import ChangefeedConfig
from schemas.errors import Action, BusError, ConfigError
from schemas.ids import Ts
from schemas.nodes.changefeed import ChangefeedInfo, ChangefeedState

_OWNERS_RUN: frozenset[ChangefeedState] = frozenset({"normal", "warning", "pending"})
"""States in which the owner of living captures runs a changefeed, or will by itself."""


class CapturesAliveError(BusError):
    """Captures run the changefeed: they bring the destination up to date themselves."""

    code, action = "recover.captures_alive", Action.STOP_CHANGEFEED


def check_sink(info: ChangefeedInfo, config: ChangefeedConfig) -> None:
    """Refuse a changefeed whose destination is no database.

    Raises:
        ConfigError
    """
    if config.uri.server is None:
        raise ConfigError(
            "recover is for changefeeds to MySQL or TiDB; what a Kafka sink lacks, `tidebus remount` writes",
            key="sink-uri",
            changefeed=info.changefeed_id,
            scheme=config.uri.scheme,
        )


def check_alone(info: ChangefeedInfo, state: ChangefeedState, captures: Sequence[str]) -> None:
    """Refuse a changefeed that others may be running.

    Args:
        captures: who is registered, as text for people; after whoever was killed has had time to go.

    Raises:
        CapturesAliveError
        ConfigError: it is being removed.
    """
    if state == "removed":
        raise ConfigError("changefeed is being removed", changefeed=info.changefeed_id)
    if captures and state in _OWNERS_RUN:
        raise CapturesAliveError(
            "captures run this changefeed; stop them, or pause it with `tidebus changefeed pause`, and try again",
            changefeed=info.changefeed_id,
            state=state,
            captures=", ".join(captures),
        )


def target_of(info: ChangefeedInfo, consistent_ts: Ts, sorted_ts: Ts) -> Ts:
    """Return up to where a destination is to be brought.

    Args:
        consistent_ts: up to where the raw log is known to be whole for the changefeed.
        sorted_ts: the sorter's checkpoint: what it has written was whole when it did.
    """
    reachable = max(consistent_ts, sorted_ts, info.start_ts)
    return reachable if info.target_ts is None else min(reachable, info.target_ts)
