"""``--tz`` of a capture: the zone in which changefeeds that are created through it write TIMESTAMPs, as TiCDC's."""

import logging
import os
from pathlib import Path
from typing import Final

from schemas.tidb.time_zone import UTC_NAME, load_zone, zone_names

log = logging.getLogger(__name__)

OF_THE_MACHINE: Final = frozenset({"", "system", "local"})
"""Words for the machine's own zone, in any case."""
_LOCALTIME: Final = Path("/etc/localtime")
_FOLDER: Final = "/zoneinfo/"


def server_zone(name: str, localtime: Path = _LOCALTIME) -> str:
    """Return the name of the zone that ``--tz`` asks for.

    Raises:
        ConfigError: there is no such zone.
    """
    if name.lower() in OF_THE_MACHINE:
        return machine_zone(localtime)
    load_zone(name)
    return name


def machine_zone(localtime: Path = _LOCALTIME) -> str:
    """Return the machine's zone: by TZ, else by where ``localtime`` leads; UTC if neither names one, as Go does."""
    named = os.environ.get("TZ")
    text = str(localtime.resolve()) if named is None else named.removeprefix(":")
    name = (text.partition(_FOLDER)[2] if text.startswith("/") else text) or UTC_NAME
    if name in zone_names():
        return name
    log.warning("the machine's time zone has no name that is known; TIMESTAMPs are written in UTC", extra={"tz": text})
    return UTC_NAME
