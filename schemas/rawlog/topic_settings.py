"""Whether raw topics keep what the bus has promised: replication, cleaning and retention, as brokers say them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from schemas.errors import Action, BusError
from schemas.rawlog.topics import RawTopics

FOREVER: Final = -1
SETTINGS: Final = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "min.insync.replicas",
    "unclean.leader.election.enable",
)
"""What is looked at."""


class RawTopicSettingsError(BusError):
    """A raw topic is set so that records which everything else leans on get lost."""

    code, action = "rawlog.topic_settings", Action.STOP_CHANGEFEED


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTopic:
    """A topic as its brokers describe it. ``settings`` lacks what they do not tell."""

    replicas: int
    settings: Mapping[str, str] = field(default_factory=dict)

    def number(self, name: str, default: int) -> int:
        """Return a setting that is a number."""
        text = self.settings.get(name, "")
        return int(text) if text.lstrip("-").isdecimal() else default


@dataclass(frozen=True, slots=True, kw_only=True)
class Complaint:
    """One thing that is wrong."""

    topic: str
    setting: str
    seen: str
    allowed: str
    loses: bool
    """Records are lost for certain, in time: nothing may be built on it. Else: when brokers fail."""

    @property
    def text(self) -> str:
        """What is seen and what is wanted, without the topic."""
        return f"{self.setting} is {self.seen}, wanted: {self.allowed}"

    def __str__(self) -> str:
        return f"{self.topic}: {self.text}"


def complaints(topics: RawTopics, seen: Mapping[str, SeenTopic]) -> list[Complaint]:
    """Return what is wrong with the raw topics, the worst first."""
    faults = [complaint for name in seen for complaint in _of_any(name, seen[name])]
    for name in (topics.ddl, topics.frontier):
        if name in seen:
            faults += _unless(name, seen[name], "retention.bytes", FOREVER)
    if topics.ddl in seen:
        faults += _unless(topics.ddl, seen[topics.ddl], "retention.ms", FOREVER)
    events = seen.get(topics.region_events)
    for name in (topics.frontier, topics.images):
        # How long rows stay is not always shown: a broker may answer for one topic and have no time for another.
        if name in seen and events is not None and "retention.ms" in events.settings:
            rows = events.number("retention.ms", FOREVER)
            kept = seen[name].number("retention.ms", FOREVER)
            if kept != FOREVER and (rows == FOREVER or kept < rows):
                allowed = "-1" if rows == FOREVER else f"at least {topics.region_events}'s, {rows}"
                faults.append(_complaint(name, "retention.ms", kept, allowed, loses=True))
    return sorted(faults, key=lambda complaint: not complaint.loses)


def check_settings(topics: RawTopics, seen: Mapping[str, SeenTopic]) -> list[Complaint]:
    """Return what is to be warned of.

    Raises:
        RawTopicSettingsError: records get lost for certain.
    """
    faults = complaints(topics, seen)
    for complaint in faults:
        if complaint.loses:
            raise RawTopicSettingsError(
                "a raw topic is set so that it loses records; change it by kafka-configs",
                topic=complaint.topic,
                setting=complaint.setting,
                seen=complaint.seen,
                allowed=complaint.allowed,
            )
    return faults


def _of_any(name: str, topic: SeenTopic) -> Iterator[Complaint]:
    policy = topic.settings.get("cleanup.policy", "delete")
    if "compact" in policy:
        yield _complaint(name, "cleanup.policy", policy, "delete", loses=True)
    if topic.replicas < 2:
        yield _complaint(name, "replication factor", topic.replicas, "3", loses=False)
    insync = topic.number("min.insync.replicas", 2)
    if insync < 2 or insync >= topic.replicas > 1:
        yield _complaint(name, "min.insync.replicas", insync, "2, of 3 replicas", loses=False)
    if topic.settings.get("unclean.leader.election.enable") == "true":
        yield _complaint(name, "unclean.leader.election.enable", "true", "false", loses=False)


def _unless(name: str, topic: SeenTopic, setting: str, allowed: int) -> Iterator[Complaint]:
    if (seen := topic.number(setting, allowed)) != allowed:
        yield _complaint(name, setting, seen, str(allowed), loses=True)


def _complaint(topic: str, setting: str, seen: object, allowed: str, *, loses: bool) -> Complaint:
    return Complaint(topic=topic, setting=setting, seen=str(seen), allowed=allowed, loses=loses)
