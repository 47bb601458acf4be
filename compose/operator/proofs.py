"""Reads a changefeed's proofs out of their topic, as they stand there, byte for byte."""

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from typing import Final

from edges.kafka.access import KafkaAccess
from edges.kafka.offsets import READ_TIMEOUT_S, TopicReader
from edges.kafka.topic_state import seen_topics
from schemas.errors import Action, BusError, CorruptDataError
from schemas.flow.proof import decode_proof
from schemas.ids import UpstreamId
from schemas.json_text import read_json
from schemas.nodes.changefeed import ChangefeedInfo
from schemas.rawlog.topics import raw_topics

ANSWER_S: Final = 5.0
"""For the API, which does not wait for a broker that is away."""


class NoProofsError(BusError):
    """No sorter has made an upstream's topic of proofs yet."""

    code, action = "proofs.none", Action.RETRY


def read_proofs(
    kafka: KafkaAccess,
    upstream: UpstreamId,
    name: tuple[str, str],
    records_max: int | None = None,
    timeout_s: float = READ_TIMEOUT_S,
) -> Iterator[bytes]:
    """Yield the records of a changefeed, by namespace and id, the oldest first.

    Args:
        records_max: of the topic, from its end back; None: all that it holds.

    Raises:
        NoProofsError
        KafkaUnreachableError: the brokers do not answer.
    """
    topic = raw_topics(upstream).proofs
    if not seen_topics(kafka.config(), {topic}):
        raise NoProofsError("no sorter has made this topic yet", topic=topic, upstream=upstream, kafka=kafka.servers)
    with closing(TopicReader(kafka.config(), topic, timeout_s=timeout_s)) as reader:
        low, high = reader.bounds()
        start = low if records_max is None else max(low, high - records_max)
        for _, content in reader.read(start, high):
            try:
                proof = decode_proof(content)
            except CorruptDataError:
                yield content  # whose it is cannot be told: the checker says what is wrong with it
                continue
            if proof.name == name:
                yield content


def newest_proofs(kafka: KafkaAccess, info: ChangefeedInfo, records_max: int) -> list[Mapping[str, object]]:
    """Return a changefeed's records among the newest of its topic, as JSON has them; those that do not read are left
    out, and there are none while there is no topic.

    Raises:
        KafkaUnreachableError: see :func:`read_proofs`.
    """
    name, shown = (info.namespace, info.changefeed_id), list[Mapping[str, object]]()
    with suppress(NoProofsError):
        for content in read_proofs(kafka, info.upstream, name, records_max, ANSWER_S):
            with suppress(CorruptDataError):
                decode_proof(content)
                shown.append(read_json(content))
    return shown
