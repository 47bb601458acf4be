"""Topics of a stream between captures, named as TiCDC's: ``{feed}/agent``, ``{feed}/scheduler``, and two of our own."""

from enum import StrEnum

from consumers.control.peers.interface import FeedKey, Side


class EntryKind(StrEnum):
    """What the entries of a topic are."""

    AGENT = Side.AGENT.value
    """``schedulepb`` requests."""
    SCHEDULER = Side.SCHEDULER.value
    """``schedulepb`` responses."""
    LANDING = "landing"
    """``landingpb.LandingReport``: each goes on from the one before it on the stream."""
    FRONTIER = "frontier"
    """The frontier topic's JSON."""


def topic_of(feed: FeedKey, kind: EntryKind) -> str:
    """Return a topic's name."""
    return f"{feed}/{kind}"


def parse_topic(topic: str) -> tuple[FeedKey, EntryKind] | None:
    """Return whose topic it is, and of what; None: of a kind that this version does not know."""
    feed, _, kind = topic.rpartition("/")
    return (FeedKey(feed), _KINDS[kind]) if feed and kind in _KINDS else None


_KINDS = {kind.value: kind for kind in EntryKind}
