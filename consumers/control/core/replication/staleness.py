"""Which messages are of the past, of another owner or of another start, and must change nothing.

The rules: docs/formats/cluster.md §5.3.

The fence: an agent obeys the highest owner revision it has heard of, and a starting agent begins with the revision that
stands in ZooKeeper *after* it has registered. So an owner that was replaced reaches nobody who has answered its
successor, and nobody who came later than the successor's own list of captures.
"""

from dataclasses import dataclass
from enum import Enum

from consumers.control.core.replication.messages import Header
from schemas.errors import Action, BusError
from schemas.ids import CaptureId


class TwoOwnersError(BusError):
    """Two captures command with one owner revision: the election is broken."""

    code, action = "scheduling.two_owners", Action.CRASH


@dataclass(frozen=True, slots=True)
class Known:
    """The owner as an agent knows it. ``owner`` is None until it has spoken."""

    owner: CaptureId | None
    revision: int
    version: str = ""


class Verdict(Enum):
    """What an agent does with a message of an owner."""

    DROP = "drop"
    TAKE = "take"
    ADOPT = "adopt"
    """Take it, and its sender is the owner from now on."""


def judge_owner(known: Known, sender: CaptureId, header: Header) -> Verdict:
    """Return what a message of ``sender`` is worth to an agent that knows ``known``.

    Raises:
        TwoOwnersError: ``sender`` is not the owner of this very revision.
    """
    if header.owner_revision < known.revision:
        return Verdict.DROP
    if header.owner_revision > known.revision or known.owner is None:
        return Verdict.ADOPT
    if sender != known.owner:
        raise TwoOwnersError(
            "two captures with one owner revision", revision=known.revision, owner=known.owner, sender=sender
        )
    return Verdict.TAKE


def is_of_feed(header: Header, changefeed_epoch: int) -> bool:
    """Tell whether the message belongs to this start of the changefeed."""
    return header.changefeed_epoch == changefeed_epoch


def is_for_owner(header: Header, receiver: CaptureId, *, me: CaptureId, revision: int, changefeed_epoch: int) -> bool:
    """Tell whether an owner may hear an answer: meant for it, in this reign, of this start of the changefeed."""
    return receiver == me and header.owner_revision == revision and is_of_feed(header, changefeed_epoch)


def is_same_epoch(known: str | None, heard: str) -> bool:
    """Tell whether a message is meant for, or comes from, the agent's present start; '' is taken from anybody."""
    return known is None or heard in ("", known)
