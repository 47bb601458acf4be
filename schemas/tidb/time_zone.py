"""Time zones by their names in the tz database: the one that is installed with us, so that every machine has the same.

Names are those of Go's ``time.LoadLocation``, as TiCDC's ``--tz`` takes them: ``Asia/Shanghai``, ``UTC``; no offsets.
"""

import functools
from datetime import UTC, tzinfo
from importlib import resources
from typing import Final
from zoneinfo import ZoneInfo

from schemas.errors import ConfigError

UTC_NAME: Final = "UTC"
_AS_UTC: Final = frozenset({"UTC", "Etc/UTC", "UCT", "Etc/UCT", "Universal", "Etc/Universal", "Zulu", "Etc/Zulu"})
"""Names of a zone that never had another offset than none: nothing has to be moved into it."""
_DATABASE: Final = "tzdata"


class _StoredZone(ZoneInfo):
    """A zone of the installed database; another process finds it there by its name."""

    def __reduce__(self) -> tuple[object, ...]:
        return load_zone, (self.key,)


@functools.cache
def zone_names() -> frozenset[str]:
    """Return the names of all zones."""
    return frozenset((resources.files(_DATABASE) / "zones").read_text().split())


@functools.cache
def load_zone(name: str) -> tzinfo:
    """Return a zone, the same object for the same name; ``datetime.UTC`` for the names of UTC.

    Raises:
        ConfigError: there is none of this name.
    """
    if name in _AS_UTC:
        return UTC
    if name not in zone_names():
        raise ConfigError(
            "there is no such time zone; write a name of the tz database, such as Asia/Shanghai", key="tz", got=name
        )
    with resources.files(_DATABASE).joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return _StoredZone.from_file(file, key=name)
