"""The frontier topic as one simulated capture reaches it: appends that are late, or whose answer never comes."""

from collections.abc import Callable
from random import Random

from compose.simulation.broker import Broker
from consumers.control.log.frontier_topic import FrontierUnavailableError
from schemas.rawlog.frontier import FrontierRecord


class SimFrontierTopic:
    """Has the methods of ``consumers.control.log.frontier_topic.FrontierTopic`` that owners call.

    ``on_its_way`` is called while a record is: there its sender may stand still for as long as it likes.
    """

    def __init__(self, broker: Broker, random: Random, on_its_way: Callable[[], None]) -> None:
        self._broker, self._random, self._on_its_way = broker, random, on_its_way
        self.failures = 0.0
        self.note: Callable[..., None] = lambda *_: None
        self.late: list[FrontierRecord] = []
        """Appended some time after their sender gave them up."""

    def publish(self, record: FrontierRecord) -> int:
        """Append a record.

        Raises:
            FrontierUnavailableError: no answer; the record may be in the topic, come later, or never.
        """
        self._on_its_way()
        # What an idempotent producer sends later can never overtake: what is late comes now, or not at all.
        self.straggle()
        self.late.clear()
        if self._random.random() < self.failures:
            fate = self._random.choice(("there", "late", "lost"))
            self.note("unanswered", fate, record.owner_rev, record.resolved_ts)
            if fate == "there":
                self._broker.append_frontier(record)
            elif fate == "late":
                self.late.append(record)
            raise FrontierUnavailableError("the simulated broker did not answer", resolved_ts=record.resolved_ts)
        self._broker.append_frontier(record)
        return len(self._broker.frontier) - 1

    def straggle(self) -> None:
        """Let what is late come, or not."""
        if self.late and self._random.random() < 0.3:
            self._broker.append_frontier(self.late.pop(0))

    def newest(self) -> FrontierRecord | None:
        """Return where a reader of the whole topic stands."""
        return self._broker.newest_followed()
