"""``time-zone`` of a database sink beside the changefeed's own zone, as TiCDC holds them against each other."""

from typing import Final

from schemas.config.settings import ChangefeedConfig
from schemas.config.sink.mysql import MYSQL_PATH
from schemas.tidb.time_zone import load_zone

_OF_THE_CHANGEFEED: Final = frozenset({"system", "local"})
"""Words for the zone of the capture's machine, in any case; what that was stands with the changefeed."""


def session_zone(config: ChangefeedConfig, time_zone: str) -> str:
    """Return the name of the zone that DDL runs in; '': the server's own. ``time_zone`` is the changefeed's."""
    asked = config.sink.mysql.time_zone
    return time_zone if asked is None or asked.lower() in _OF_THE_CHANGEFEED else asked


def check_zone(config: ChangefeedConfig, time_zone: str) -> None:
    """Refuse a database sink in another zone than the changefeed's, as TiCDC does (``ErrMySQLInvalidConfig``).

    Raises:
        ConfigError: the zones differ, or there is none of a name.
    """
    load_zone(time_zone)
    zone = session_zone(config, time_zone)
    if config.uri.server is None or not zone:
        return
    load_zone(zone)
    if zone != time_zone:
        raise config.origin.error(
            (*MYSQL_PATH, "time-zone"),
            f"time-zone is {zone}, and the capture's --tz {time_zone}: they must be the same",
        )
