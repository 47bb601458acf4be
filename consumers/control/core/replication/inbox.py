"""In order and at most once, out of any transport: what is older than the newest message of its sender is dropped.

A report is true of the moment when it was sent. An old one that overtakes a new one would tell of a span that has
stopped since, and the owner would start it elsewhere while it runs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from consumers.control.core.replication.messages import Message
from schemas.ids import CaptureId


@dataclass(slots=True)
class Inbox:
    """One receiver's memory of its senders: a number each. An agent has one, and a coordinator has one."""

    last: dict[CaptureId, int] = field(default_factory=dict)

    def take(self, messages: Iterable[Message]) -> Iterator[Message]:
        """Yield the messages that are newer than all that came before from their sender."""
        for message in messages:
            if message.sequence > self.last.get(message.sender, -1):
                self.last[message.sender] = message.sequence
                yield message

    def forget(self, alive: Iterable[CaptureId]) -> None:
        """Drop the numbers of everybody who is not ``alive``: their ids never come again."""
        kept = set(alive)
        self.last = {capture: sequence for capture, sequence in self.last.items() if capture in kept}
