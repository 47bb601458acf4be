"""Looks again and again whether the raw log is still what the frontier was published over."""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Final

from edges.kafka.access import KafkaAccess
from edges.kafka.topic_state import seen_topics, topic_states
from schemas.errors import Action, BusError
from schemas.rawlog.frontier import NO_TOPIC_IDS, FrontierRecord, TopicIds
from schemas.rawlog.log_state import check_raw_log, topic_ids
from schemas.rawlog.topic_settings import Complaint, RawTopicSettingsError, check_settings
from schemas.rawlog.topics import RawTopics

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0


def look_at_log(kafka: KafkaAccess, topics: RawTopics, record: FrontierRecord | None) -> TopicIds:
    """Check the raw log against a frontier record, None: there is none yet; return the ids of its topics.

    Raises:
        RawLogRecreatedError: a topic is another one.
        RawLogLostError: a topic ends too early.
        KafkaUnreachableError: the brokers do not answer.
    """
    states = topic_states(kafka.config(), (topics.region_events, topics.ddl))
    if record is not None:
        check_raw_log(record, topics, states)
    return topic_ids(topics, states) if states else NO_TOPIC_IDS


def check_topics(kafka: KafkaAccess, topics: RawTopics, warned: set[Complaint]) -> None:
    """Check how the raw topics are set, and warn of what loses records when brokers fail, a line a topic.

    Args:
        warned: what this process has warned of; what is there already is not said again.

    Raises:
        RawTopicSettingsError: records get lost for certain.
        KafkaUnreachableError: the brokers do not answer.
    """
    seen = seen_topics(kafka.config(), (topics.region_events, topics.ddl, topics.frontier, topics.images))
    fresh = [complaint for complaint in check_settings(topics, seen) if complaint not in warned]
    warned.update(fresh)
    for name in dict.fromkeys(complaint.topic for complaint in fresh):
        said = "; ".join(complaint.text for complaint in fresh if complaint.topic == name)
        extra = {"code": RawTopicSettingsError.code, "topic": name, "said": said}
        log.warning("raw topic is not safe: records get lost where a broker falls", extra=extra)


@contextlib.contextmanager
def watched_log(
    kafka: KafkaAccess,
    topics: RawTopics,
    newest: Callable[[], FrontierRecord],
    on_failure: Callable[[BusError], None],
    *,
    look_s: float = LOOK_S,
) -> Iterator[None]:
    """Check every ``look_s`` while inside; what is found goes to ``on_failure``, in a thread of ours."""
    leaving = threading.Event()

    def look() -> None:
        while not leaving.wait(look_s):
            try:
                look_at_log(kafka, topics, newest())  # the record first: the log only grows
            except BusError as error:
                if error.action is not Action.RETRY:
                    on_failure(error)
                    return
                log.warning("raw log cannot be looked at", extra={"code": error.code, "error": str(error)})

    thread = threading.Thread(target=look, name="raw-log-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        leaving.set()
