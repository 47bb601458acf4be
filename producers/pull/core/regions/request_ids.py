"""Which request id a region is registered under. Pure.

A store groups the resolved ts of a stream by request id: a message has one, and up to all regions under it. With an id
for each table, 100,000 tables would be as many messages in each round; so tables share ids, each with its first few
regions. A large table's other regions have an id of their own, whose messages concern one span and go by vector.

A region is never registered twice under one id, on whatever stream: what is still on its way from a registration that
has ended (an INITIALIZED that the error has overtaken) names an id under which nobody is registered any more.
"""

from typing import Final

from schemas.ids import RegionId

SHARED_REGIONS_MAX: Final = 16
"""Regions of a span that are registered under shared ids."""
OWN_FIRST: Final = 1 << 32
"""Shared ids count from 1 up, as often as a region has been registered; own ones from here."""


def is_shared(request_id: int) -> bool:
    """Say whether regions of several spans may be registered under an id."""
    return request_id < OWN_FIRST


class RequestIds:
    """The request ids of one feed, on all its streams."""

    def __init__(self) -> None:
        self._uses: dict[RegionId, int] = {}
        self._last_own = OWN_FIRST - 1

    def shared(self, region_id: RegionId) -> int:
        """Return a shared id under which the region has never been registered."""
        self._uses[region_id] = request_id = self._uses.get(region_id, 0) + 1
        return request_id

    def own(self) -> int:
        """Return an id that nobody has."""
        self._last_own += 1
        return self._last_own

    def has_shared(self, request_id: int, region_id: RegionId) -> bool:
        """Say whether the region has ever been registered under a shared id."""
        return 0 < request_id <= self._uses.get(region_id, 0)

    def has_own(self, request_id: int) -> bool:
        """Say whether an own id has been given to anybody."""
        return OWN_FIRST <= request_id <= self._last_own
