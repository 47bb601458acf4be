"""A changefeed of `tidebus run`, created as soon as the raw log can be read: its topics have just been made."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from compose.stack.local import Addresses
from consumers.control.changefeeds.store import ChangefeedRequest, NoFrontierError
from consumers.control.log.frontier_topic import FrontierUnavailableError
from consumers.control.log.raw_log import RawLogUnavailableError, retained_frontier
from schemas.errors import BusError
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.topics import raw_topics


class CreatesChangefeeds(Protocol):
    """A bus that is running."""

    @property
    def addresses(self) -> Addresses:
        """Where its Kafka is."""

    def create_changefeed(self, request: ChangefeedRequest) -> ChangefeedInfo:
        """Create a changefeed."""


@dataclass(slots=True)
class FirstFrontier:
    """Tries to create a changefeed from the raw log's beginning; ``say`` takes what is waited for, once."""

    bus: CreatesChangefeeds
    request: ChangefeedRequest
    say: Callable[[str], None]
    _last: BusError | None = field(default=None, init=False)
    _is_said: bool = field(default=False, init=False)

    def create(self) -> bool:
        """Create it; False: not yet.

        Raises:
            BusError: it cannot be created.
        """
        try:
            window = retained_frontier(self.bus.addresses.kafka_access, raw_topics(self.request.upstream))
            # From the log's beginning, which may have moved on by now: the newest ts is not what we want.
            self.bus.create_changefeed(replace(self.request, start_ts=window.oldest_ts if window else None))
        except (NoFrontierError, RawLogUnavailableError) as error:  # the capture has not come so far
            self._last = error
            return False
        except FrontierUnavailableError as error:  # Kafka may still elect the leader of a topic that was just made
            if not self._is_said:
                self.say(f"waits for the frontier topic: {error}")
            self._last, self._is_said = error, True
            return False
        return True

    def complaint(self) -> str:
        """Return what has not come."""
        return "no frontier was published" if self._last is None else f"no frontier could be read: {self._last}"
